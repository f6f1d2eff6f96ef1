"""The depth decoder against golden logits and frames; its frame loop against whole frames; rows on their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stage import GOLDEN, ROWS, VOICE, load_stage
from torch import Tensor

from engine.core import SamplingParams
from engine.depth import DepthConfig, DepthDecoder
from engine.sampling import SamplingState, draw, guide, uniforms


def load(folder: Path) -> DepthDecoder:
    return load_stage(
        folder, "depth_decoder_config", "depth_decoder.", lambda d: DepthDecoder(DepthConfig.from_dict(d))
    )


@pytest.fixture(scope="module")
def tiny() -> DepthDecoder:
    return load(GOLDEN / "checkpoint")


@pytest.fixture(scope="module")
def voice() -> DepthDecoder:
    return load(VOICE)


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return load_file(GOLDEN / "expected_model.safetensors")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=2e-4)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def states_before(expected: dict[str, Tensor], name: str) -> Tensor:
    """The backbone's state that each of the teacher's 4 frames follows, [4, 64]."""
    return torch.cat((expected[f"bb.{name}.prefill_hidden"][-1:], expected[f"bb.{name}.decode_hidden"][:-1]))


def forced(codes: Tensor, seen: list[Tensor]) -> Callable[[Tensor, int], Tensor]:
    """A draw that always says the teacher's codes [B, K] and keeps the logits."""

    def choose(logits: Tensor, codebook: int) -> Tensor:
        seen.append(logits)
        return codes[:, codebook]

    return choose


@pytest.mark.parametrize("name", ROWS)
def test_whole_frames_are_golden(tiny: DepthDecoder, expected: dict[str, Tensor], name: str) -> None:
    states, logits = tiny.logits(states_before(expected, name), expected["tf.frames"])
    close(states, expected[f"depth.{name}.hidden"])
    close(logits, expected[f"depth.{name}.logits"])


@pytest.mark.parametrize("name", ROWS)
def test_the_frame_loop_is_golden(tiny: DepthDecoder, expected: dict[str, Tensor], name: str) -> None:
    frames, seen = expected["tf.frames"], list[Tensor]()
    codes = tiny(states_before(expected, name), frames[:, 0], forced(frames, seen))
    assert torch.equal(codes, frames)
    close(torch.stack(seen, 1), expected[f"depth.{name}.logits"])


def test_guided_pairs_are_golden(tiny: DepthDecoder, expected: dict[str, Tensor]) -> None:
    hidden = torch.cat([states_before(expected, name)[:1] for name in ("design.cond", "design.uncond")])
    golden, seen = expected["greedy.design.cfg4.rp1.1.frames"][:1], list[Tensor]()

    def choose(logits: Tensor, codebook: int) -> Tensor:
        seen.append(guide(*logits.chunk(2), torch.tensor([[4.0]])))
        return seen[-1][:, :32].argmax(-1)

    assert torch.equal(tiny(hidden, golden[:, 0], choose), golden)
    close(torch.cat(seen), expected["greedy.design.cfg4.rp1.1.depth_guided_logits"][0])


def test_frames_are_embedded_as_in_the_golden_prompt(tiny: DepthDecoder, expected: dict[str, Tensor]) -> None:
    frames = torch.cat((expected["prompt.ref_codes"], torch.zeros(1, 16, dtype=torch.int64)))
    golden = expected["prompt.clone.cond.embeds"][expected["prompt.clone.cond.text_mask"] == 0]
    torch.testing.assert_close(tiny.embed_frames(frames), golden, rtol=0, atol=5e-5)
    assert tiny.embed_frames(frames.view(2, 3, 16)).shape == (2, 3, 64)


def test_a_frame_embedding_is_rounded_once(tiny: DepthDecoder) -> None:
    half = load(GOLDEN / "checkpoint").to(torch.bfloat16)  # exact: the checkpoint is bfloat16
    frames = torch.randint(0, 32, (50, 16), generator=torch.Generator().manual_seed(1))
    assert torch.equal(half.embed_frames(frames), tiny.embed_frames(frames).to(torch.bfloat16))


def test_heads_are_float32_whatever_the_layers_are(expected: dict[str, Tensor]) -> None:
    half, seen = load(GOLDEN / "checkpoint").to(torch.bfloat16), list[Tensor]()
    frames = expected["tf.frames"]
    half(states_before(expected, "clone.cond").to(torch.bfloat16), frames[:, 0], forced(frames, seen))
    golden = expected["depth.clone.cond.logits"]
    error = torch.stack(seen, 1) - golden
    assert seen[0].dtype == torch.float32
    assert error.abs().max() / golden.abs().max() < 0.06


def sample(decoder: DepthDecoder, hidden: Tensor, code0: Tensor, params: list[SamplingParams]) -> tuple[Tensor, Tensor]:
    """Codes [B, K] and all logits [R, K - 1, V] of frame 3 with each row's own settings."""
    rows, seen = len(params), list[Tensor]()
    state = SamplingState.allocate(rows, 513, "cpu")
    for slot, row in enumerate(params):
        state.set(slot, row, cfg_scale=2.0 if len(hidden) > rows else 1.0)
    settings = state.rows(torch.arange(rows))
    uniform = uniforms(settings.seed, torch.full((rows,), 3), 16)

    def choose(logits: Tensor, codebook: int) -> Tensor:
        seen.append(logits)
        scores = logits if len(logits) == rows else guide(*logits.chunk(2), settings.cfg_scale)
        return draw(scores, settings.depth, uniform[:, codebook])

    codes = decoder(hidden, code0, choose)
    return codes, torch.stack(seen, 1)


NEIGHBOURS = [
    SamplingParams(depth_temperature=0.0),
    SamplingParams(depth_top_k=0, depth_top_p=0.7, seed=5),
    SamplingParams(depth_temperature=2.0, depth_top_k=200),
    SamplingParams(depth_top_k=1),
]


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("batch", [2, 3, 4, 8])
def test_a_row_has_the_same_bits_at_any_place_beside_any_neighbours(
    voice: DepthDecoder, batch: int, copies: int
) -> None:
    mine, own = SamplingParams(depth_temperature=0.7, seed=77), random(copies, 320)
    results = []
    for place in range(batch):
        params = [mine if i == place else NEIGHBOURS[(i + place) % 4] for i in range(batch)]
        hidden = random(copies, batch, 320, seed=place)
        hidden[:, (place + 1) % batch] = torch.nan  # a broken row breaks only itself
        hidden[:, place] = own
        codes, logits = sample(voice, hidden.flatten(0, 1), torch.full((batch,), 9), params)
        results.append((codes[place], logits.view(copies, batch, 15, -1)[:, place]))
    alike = [torch.equal(a, b) for result in results for a, b in zip(result, results[0], strict=True)]
    assert all(alike)


def test_nothing_is_left_from_the_frame_before(voice: DepthDecoder) -> None:
    hidden, code0, params = random(1, 320), torch.tensor([3]), [SamplingParams()]
    fresh = sample(load(VOICE), hidden, code0, params)
    sample(voice, torch.full((1, 320), torch.nan), code0, params)
    assert all(torch.equal(a, b) for a, b in zip(sample(voice, hidden, code0, params), fresh, strict=True))


def test_it_can_be_trained(tiny: DepthDecoder, expected: dict[str, Tensor]) -> None:
    with torch.inference_mode(False):
        decoder = load(GOLDEN / "checkpoint")
        hidden, frames = states_before(expected, "clone.cond").clone(), expected["tf.frames"].clone()
        before = sample_greedy(decoder, hidden, frames)
        decoder.train().logits(hidden, frames)[1].square().mean().backward()
        for name, parameter in decoder.named_parameters():
            assert parameter.grad is not None, name
            assert bool(parameter.grad.isfinite().all()), name
            parameter.data -= 0.1 * parameter.grad
        after = sample_greedy(decoder.eval(), hidden, frames)
        torch.testing.assert_close(after, decoder.logits(hidden, frames)[1], rtol=1e-4, atol=1e-3)
        assert not torch.allclose(before, after, atol=1e-2)


def sample_greedy(decoder: DepthDecoder, hidden: Tensor, frames: Tensor) -> Tensor:
    seen = list[Tensor]()
    decoder(hidden, frames[:, 0], forced(frames, seen))
    return torch.stack(seen, 1)
