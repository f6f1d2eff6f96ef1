"""The backbone against golden states; its paged cache against whole sequences; rows that do not see one another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stage import GOLDEN, ROWS, VOICE, load_stage
from torch import Tensor

from engine import weights
from engine.backbone import Backbone, BackboneConfig
from engine.kv_cache import PagedKV
from engine.weights import CheckpointError


def load(folder: Path) -> Backbone:
    return load_stage(folder, "backbone_config", "backbone_model.", lambda d: Backbone(BackboneConfig.from_dict(d)))


@pytest.fixture(scope="module")
def tiny() -> Backbone:
    return load(GOLDEN / "checkpoint")


@pytest.fixture(scope="module")
def voice() -> Backbone:
    return load(VOICE)


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return load_file(GOLDEN / "expected_model.safetensors")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Sequences:
    """Slots 1.. of a fresh cache of 8 pages each, and where each slot's next position is."""

    def __init__(self, backbone: Backbone, num_slots: int, page_size: int = 8) -> None:
        self.backbone = backbone
        self.kv = PagedKV.allocate(
            backbone.config,
            num_pages=num_slots * 8 + 1,
            page_size=page_size,
            num_slots=num_slots + 1,
            max_positions=8 * page_size,
            dtype=torch.float32,
            device="cpu",
        )
        for slot in range(1, num_slots + 1):  # pages in falling order, so that place and position differ
            self.kv.assign(slot, range(slot * 8, slot * 8 - 8, -1))
        self.next = [0] * (num_slots + 1)

    def feed(self, slots: Sequence[int], chunks: Sequence[Tensor]) -> list[Tensor]:
        """Each chunk [T, H] as its slot's next positions, padded on the right to the longest -> their states."""
        longest = max(map(len, chunks))
        embeds = torch.stack([torch.nn.functional.pad(c, (0, 0, 0, longest - len(c)), value=torch.nan) for c in chunks])
        positions = torch.tensor([self.next[slot] for slot in slots])[:, None] + torch.arange(longest)
        valid = torch.arange(longest) < torch.tensor([[len(c)] for c in chunks])
        states = self.backbone(embeds, positions, valid, self.kv, torch.tensor(slots), 8)
        for slot, chunk in zip(slots, chunks, strict=True):
            self.next[slot] += len(chunk)
        return [states[i, : len(chunk)] for i, chunk in enumerate(chunks)]


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=5e-5)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ROWS)
def test_every_layer_of_the_prefill_is_golden(tiny: Backbone, expected: dict[str, Tensor], name: str) -> None:
    embeds, last = expected[f"bb.{name}.prefill_layer0"], expected[f"bb.{name}.prefill_layer3"]
    close(Sequences(tiny, 1).feed([1], [embeds])[0], last)
    assert torch.equal(last, expected[f"bb.{name}.prefill_hidden"])
    for count in (1, 2):
        lower = Backbone(replace(tiny.config, num_layers=count))
        lower.load_state_dict({key: value for key, value in tiny.state_dict().items() if key in lower.state_dict()})
        lower.norm = torch.nn.Identity()  # type: ignore[assignment]
        close(Sequences(lower.eval(), 1).feed([1], [embeds])[0], expected[f"bb.{name}.prefill_layer{count}"])


@pytest.mark.parametrize("name", ROWS)
def test_decode_and_code_0_logits_are_golden(tiny: Backbone, expected: dict[str, Tensor], name: str) -> None:
    folder = GOLDEN / "checkpoint"
    head = weights.stored(folder)["lm_head.weight"].read().float()
    table = weights.stored(folder)["depth_decoder.model.embed_tokens.weight"].read().float()
    sequences = Sequences(tiny, 1)
    [prefill] = sequences.feed([1], [expected[f"bb.{name}.prefill_layer0"]])
    fed = [table[frame + torch.arange(16) * 35].sum(0, keepdim=True) for frame in expected["tf.frames"]]
    decoded = torch.cat([sequences.feed([1], [frame])[0] for frame in fed])
    close(decoded, expected[f"bb.{name}.decode_hidden"])
    for states, key in ((prefill[-1], "prefill_logits"), (decoded, "decode_logits")):
        torch.testing.assert_close(states @ head.T, expected[f"bb.{name}.{key}"], rtol=0, atol=2e-4)


@pytest.mark.parametrize("sizes", [(1,) * 38, (37, 1), (1, 37), (8, 8, 8, 8, 6), (5, 17, 3, 13), (16, 16, 6)])
def test_a_prompt_in_any_chunks_is_the_prompt(
    tiny: Backbone, expected: dict[str, Tensor], sizes: tuple[int, ...]
) -> None:
    sequences = Sequences(tiny, 1)
    chunks = expected["bb.design.cond.prefill_layer0"].split(sizes)
    states = torch.cat([sequences.feed([1], [chunk])[0] for chunk in chunks])
    close(states, expected["bb.design.cond.prefill_hidden"])


def test_prompts_of_different_lengths_share_a_batch(tiny: Backbone, expected: dict[str, Tensor]) -> None:
    """Padding is NaN here: it enters neither the sequence nor its neighbours."""
    prompts = [expected[f"bb.{name}.prefill_layer0"] for name in ROWS]
    for name, states in zip(ROWS, Sequences(tiny, 3).feed([3, 1, 2], prompts), strict=True):
        close(states, expected[f"bb.{name}.prefill_hidden"])


def test_without_a_cache_it_is_the_same(tiny: Backbone, expected: dict[str, Tensor]) -> None:
    embeds = expected["bb.clone.cond.prefill_layer0"]
    both = tiny.causal(torch.stack((embeds, random(*embeds.shape))))
    close(both[0], expected["bb.clone.cond.prefill_hidden"])


def test_what_others_left_in_memory_never_enters(tiny: Backbone) -> None:
    """Page 0, the neighbours' pages and the rest of its own hold NaN; zero times NaN would be NaN."""
    clean, dirty = Sequences(tiny, 1), Sequences(tiny, 3)
    for memory in (dirty.kv.keys, dirty.kv.values):
        memory.fill_(torch.nan)
    for chunk in random(15, 64).split((7, 1, 1, 6)):
        [want] = clean.feed([1], [chunk])
        got = dirty.feed([2, 3, 0], [chunk, torch.full_like(chunk, torch.nan), torch.full_like(chunk, torch.nan)])
        close(got[0], want)


def test_invalid_rows_write_to_page_0_only(tiny: Backbone) -> None:
    sequences = Sequences(tiny, 2)
    positions = torch.tensor([[3], [5]])
    embeds = random(2, 1, 64)
    tiny(embeds, positions, torch.zeros(2, 1, dtype=torch.bool), sequences.kv, torch.tensor([1, 0]), 8)
    assert sequences.kv.keys[:, 1:].abs().sum() == 0
    assert sequences.kv.values[:, 1:].abs().sum() == 0


@pytest.mark.parametrize("batch", [2, 3, 4, 8])
def test_a_row_has_the_same_bits_at_any_place_beside_any_neighbours(voice: Backbone, batch: int) -> None:
    prompt, frame = random(40, 320), random(1, 320, seed=1)
    results = []
    for place in range(batch):
        sequences = Sequences(voice, batch)
        for slot in range(1, batch + 1):  # one by one: lengths differ, the row's own prompt does not
            sequences.feed([slot], [prompt if slot == place + 1 else random(7 * slot % 50 + 1, 320, seed=slot)])
        others = random(batch, 1, 320, seed=place)
        frames = [frame if i == place else others[i] for i in range(batch)]
        results.append(sequences.feed(range(1, batch + 1), frames)[place])
    assert all(torch.equal(result, results[0]) for result in results)


def test_weights_changed_in_training_are_used(tiny: Backbone) -> None:
    with torch.inference_mode(False):
        backbone = Backbone(replace(tiny.config, num_layers=1))
        backbone.load_state_dict({k: v for k, v in tiny.state_dict().items() if k in backbone.state_dict()})
        embeds = random(1, 5, 64)
        before = backbone.eval().causal(embeds).detach()
        backbone.train().causal(embeds).square().sum().backward()
        for name, parameter in backbone.named_parameters():
            assert parameter.grad is not None, name
            assert bool(parameter.grad.isfinite().all()), name
        with torch.no_grad():
            for norm in (backbone.layers[0].self_attn.q_norm, backbone.layers[0].self_attn.k_norm):  # type: ignore
                norm.weight.mul_(3)
        trained = backbone.causal(embeds)
        assert not torch.allclose(trained, before, atol=1e-3)
        torch.testing.assert_close(backbone.eval().causal(embeds), trained)


@pytest.mark.parametrize("key, value", [("hidden_act", "gelu"), ("attention_bias", True), ("use_sliding_window", True)])
def test_a_variant_it_does_not_know_is_named(key: str, value: object) -> None:
    config = json.loads((VOICE / "config.json").read_text())["backbone_config"]
    with pytest.raises(CheckpointError, match=f"backbone_config: {key} must be"):
        BackboneConfig.from_dict({**config, key: value})
