"""codec.py: the decoder against its fixtures, and incremental decoding against whole decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from engine.codec import UNUSED, CodecConfig, CodecDecoder, CodecState
from engine.weights import CheckpointError, load, outlines, read_json, stored

GOLDEN = Path(__file__).parent / "golden"
TINY = GOLDEN / "breeze" / "checkpoint" / "audio_tokenizer"
MINI = Path(__file__).parents[1] / "engine" / "voices" / "breeze-mini" / "audio_tokenizer"
TOLERANCE = 5e-5
"""The fixtures' own, of samples and stages."""
OFFICIAL = {
    "codebook_size": 2048,
    "codebook_dim": 512,
    "num_quantizers": 16,
    "latent_dim": 1024,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "sliding_window": 72,
    "rope_theta": 10000,
    "rms_norm_eps": 1e-5,
    "decoder_dim": 1536,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
}


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As the engine runs: without gradients, one thread an operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


@cache
def decoder(folder: Path, window: int | None = None) -> CodecDecoder:
    config = CodecConfig.from_dict(read_json(folder / "config.json")["decoder_config"])
    if window is not None:
        config = replace(config, sliding_window=window)
    with torch.inference_mode(False):
        with outlines():
            empty = CodecDecoder(config)
        skip = (*UNUSED, "encoder.*")
        return load(empty, stored(folder), "decoder.", dtype=torch.float32, device="cpu", skip=skip).eval()


@cache
def expected() -> dict[str, Tensor]:
    return load_file(GOLDEN / "breeze" / "expected_codec.safetensors")


def tiny(window: int = 12) -> CodecDecoder:
    return decoder(TINY, window)


def codes40() -> Tensor:
    """[1, T, K]"""
    return expected()["codes40"].transpose(1, 2)


def decode(codec: CodecDecoder, codes: Tensor, sizes: Sequence[int], slot: int = 1) -> Tensor:
    """codes [1, T, K] decoded in chunks of these sizes -> samples [T * samples_per_frame]."""
    state = codec.init_state(slot + 1, "cpu")
    chunks = codes.split(list(sizes), 1)
    return torch.cat([codec.step(chunk, state, torch.tensor([slot]))[0] for chunk in chunks])


def difference(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return (ours - theirs).abs().max().item()


# ---- the fixtures ----


@pytest.mark.parametrize("window", [12, 72])
@pytest.mark.parametrize("frames", [40, 100])
def test_whole_utterance_equals_the_fixture(window: int, frames: int) -> None:
    samples = tiny(window)(expected()[f"codes{frames}"])[0]
    assert difference(samples, expected()[f"w{window}.wav{frames}"]) <= TOLERANCE


def test_every_stage_equals_the_fixture() -> None:
    stages = dict(tiny().stages(expected()["codes40"]))
    assert list(stages) == [
        *("quantized", "pre_conv", "transformer_out"),
        *("upsample0.tconv", "upsample0.out", "upsample1.tconv", "upsample1.out"),
        *(f"decoder{index}.out" for index in range(7)),
    ]
    for name, stage in stages.items():
        theirs = expected()[f"w12.{name}"]
        ours = stage[0].t() if name == "transformer_out" else stage[0]
        assert difference(ours[:, : theirs.shape[1]], theirs) <= TOLERANCE, name


def test_samples_of_generated_frames_equal_the_fixture() -> None:
    samples = tiny()(expected()["e2e.design_cfg4.codes"])[0]
    assert difference(samples, expected()["e2e.design_cfg4.wav"]) <= TOLERANCE


def test_decoding_with_repeated_context_is_not_what_we_do() -> None:
    samples = tiny(72)(expected()["codes100"])[0]
    assert difference(samples, expected()["w72.wav100_chunked10_ctx25"]) > 0.1


@pytest.mark.parametrize("sentence", ["0", "1", "2"])
def test_the_small_voice_decodes_its_sentences(sentence: str) -> None:
    values = load_file(GOLDEN / "breeze-mini.safetensors")
    codes = values[f"{sentence}.codes"][None]
    sizes = [1] * codes.shape[1]
    assert difference(decode(decoder(MINI), codes, sizes), values[f"{sentence}.wav"]) <= TOLERANCE


# ---- incremental equals whole ----


@pytest.mark.parametrize("window", [12, 72])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_chunks_of_one_size_equal_the_whole(window: int, size: int) -> None:
    sizes = [size] * (40 // size) + [40 % size] * (40 % size > 0)
    assert difference(decode(tiny(window), codes40(), sizes), expected()[f"w{window}.wav40"]) <= 1e-4


@settings(max_examples=25, deadline=None)
@given(cuts=st.sets(st.integers(1, 39)))
def test_chunks_of_any_sizes_equal_the_whole(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), 40]
    sizes = [end - start for start, end in pairwise(edges)]
    with torch.inference_mode():
        assert difference(decode(tiny(), codes40(), sizes), expected()["w12.wav40"]) <= 1e-4


@pytest.mark.parametrize(("window", "sizes"), [(12, [3, 97]), (72, [1, 2, 4, 8, 16, 69]), (72, [10] * 10)])
def test_chunks_longer_than_the_window_and_past_it(window: int, sizes: list[int]) -> None:
    codes = expected()["codes100"].transpose(1, 2)
    assert difference(decode(tiny(window), codes, sizes), expected()[f"w{window}.wav100"]) <= 1e-4


def test_an_early_frame_of_a_long_stream_is_final() -> None:
    first = decode(tiny(), codes40()[:, :5], [5])
    assert difference(first, expected()["w12.wav40"][: 5 * 1920]) <= TOLERANCE


def test_samples_are_clipped() -> None:
    codec = tiny()
    last = dict(codec.stages(expected()["codes40"]))["decoder6.out"][0, 0]
    assert last.abs().max() > 1
    assert torch.equal(codec(expected()["codes40"])[0], last.clamp(-1, 1))


# ---- streams side by side ----


def streams() -> Tensor:
    """Three utterances of 12 frames, [3, 12, K]."""
    return expected()["codes100"][0, :, :36].t().reshape(3, 12, -1)


def test_interleaved_streams_equal_each_alone() -> None:
    codec, (first, second, _) = tiny(), streams()
    state = codec.init_state(4, "cpu")
    one = [codec.step(first[None, :3], state, torch.tensor([3]))]
    both = codec.step(torch.stack([second[:4], first[3:7]]), state, torch.tensor([1, 3]))
    one.append(both[1:])
    two = [both[:1], codec.step(second[None, 4:6], state, torch.tensor([1]))]
    both = codec.step(torch.stack([first[7:], second[6:11]]), state, torch.tensor([3, 1]))
    one.append(both[:1])
    two.append(both[1:])
    assert difference(torch.cat(one, 1)[0], codec(first.t()[None])[0]) <= 1e-4
    assert difference(torch.cat(two, 1)[0], codec(second[:11].t()[None])[0]) <= 1e-4
    assert state.frames.tolist() == [0, 11, 0, 12]


def running(codec: CodecDecoder) -> CodecState:
    """Streams in slots 1, 2, 3, five frames old."""
    state = codec.init_state(4, "cpu")
    codec.step(streams()[:, :5], state, torch.tensor([1, 2, 3]))
    return state


def test_rows_may_stand_in_any_order() -> None:
    codec = tiny()
    state, other = running(codec), running(codec)
    order = torch.tensor([2, 0, 1])
    samples = codec.step(streams()[:, 5:], state, torch.tensor([1, 2, 3]))
    shuffled = codec.step(streams()[order, 5:], other, torch.tensor([1, 2, 3])[order])
    assert difference(shuffled, samples[order]) <= 1e-6
    assert difference(other.columns, state.columns) <= 1e-5


def test_a_row_is_bit_equal_whatever_its_neighbours_hold() -> None:
    codec = tiny()
    state, other = running(codec), running(codec)
    other.columns[1] = torch.nan
    other.columns[3].uniform_(-9, 9)
    other.frames[3] = 1000
    codes = streams()[:, 5:].clone()
    samples = codec.step(codes, state, torch.tensor([1, 2, 3]))
    codes[0], codes[2] = 7, 31
    beside = codec.step(codes, other, torch.tensor([1, 2, 3]))
    assert beside[0].isnan().any()
    assert torch.equal(beside[1], samples[1])
    assert torch.equal(other.columns[2], state.columns[2])


def test_slots_outside_the_batch_are_neither_read_nor_written() -> None:
    codec = tiny()
    state, other = running(codec), running(codec)
    other.columns[2] = torch.nan
    expected_samples = codec.step(streams()[[0, 2], 5:], state, torch.tensor([1, 3]))
    samples = codec.step(streams()[[0, 2], 5:], other, torch.tensor([1, 3]))
    assert torch.equal(samples, expected_samples)
    assert other.columns[2].isnan().all()
    assert other.frames.tolist() == [0, 12, 5, 12]


def test_padding_rows_of_slot_0_change_nothing() -> None:
    codec = tiny()
    state, padded = running(codec), running(codec)
    padded.columns[0] = torch.nan
    codes = streams()[:, 5:]
    samples = codec.step(codes[:1], state, torch.tensor([2]))
    wide = codec.step(torch.cat([codes[:1], torch.zeros_like(codes)]), padded, torch.tensor([2, 0, 0, 0]))
    assert difference(wide[0], samples[0]) <= 1e-5
    assert difference(padded.columns[1:], state.columns[1:]) <= 1e-5
    assert padded.frames[1:].tolist() == state.frames[1:].tolist() == [5, 12, 5]


def test_a_reset_slot_equals_a_fresh_one() -> None:
    codec = tiny()
    state, fresh = running(codec), codec.init_state(4, "cpu")
    before = state.columns[1].clone()
    state.columns[2] = torch.nan
    state.reset(torch.tensor([2, 3]))
    ours = codec.step(streams()[1:, :4], state, torch.tensor([2, 3]))
    assert torch.equal(ours, codec.step(streams()[1:, :4], fresh, torch.tensor([2, 3])))
    assert torch.equal(state.columns[1], before)
    assert state.frames.tolist() == [0, 5, 4, 4]


def test_state_stays_where_it_is() -> None:
    codec = tiny()
    state = codec.init_state(2, "cpu")
    addresses = state.columns.data_ptr(), state.frames.data_ptr()
    codec.step(codes40(), state, torch.tensor([1]))
    assert (state.columns.data_ptr(), state.frames.data_ptr()) == addresses


# ---- sizes, training, configs ----


def test_sizes_of_the_official_codec() -> None:
    with outlines():
        codec = CodecDecoder(CodecConfig.from_dict(OFFICIAL))
    input_projections = 2 * 512 * 256  # in the checkpoint, unused
    assert sum(p.numel() for p in codec.parameters()) + input_projections == 114_323_137
    assert codec.memory == 135_232 + 1_163_264
    assert codec.config.samples_per_frame == 1920


def training_copy() -> CodecDecoder:
    with torch.inference_mode(False):
        codec = CodecDecoder(tiny().config)
        codec.load_state_dict({name: value.clone() for name, value in tiny().state_dict().items()})
        return codec.train()


def test_training_computes_the_same() -> None:
    assert difference(training_copy()(expected()["codes40"]), tiny()(expected()["codes40"])) <= 1e-5


def test_derived_constants_follow_the_parameters() -> None:
    codec, codes = training_copy().eval(), expected()["codes40"]
    before = codec(codes)
    with torch.inference_mode(False), torch.no_grad():
        codec.train()
        for parameter in codec.parameters():
            parameter.mul_(1.01)
    changed = codec(codes)
    assert difference(changed, before) > 1e-3
    assert difference(codec.eval()(codes), changed) <= 1e-5


def test_gradients_are_the_slopes() -> None:
    with torch.inference_mode(False):
        codec = training_copy().double()
        codes = expected()["codes40"][:, :, :3]
        parameters = [p for p in codec.parameters() if p.requires_grad]
        generator = torch.Generator().manual_seed(5)
        ways = [torch.randn(p.shape, generator=generator, dtype=p.dtype) * p.detach().abs().mean() for p in parameters]

        def loss() -> Tensor:
            return dict(codec.stages(codes))["decoder6.out"].square().mean()

        gradients = torch.autograd.grad(loss(), parameters)
        for parameter, way, gradient in zip(parameters, ways, gradients, strict=True):
            slope = (gradient * way).sum().item()
            with torch.no_grad():
                parameter.add_(way, alpha=1e-5)
                above = loss().item()
                parameter.add_(way, alpha=-2e-5)
                below = loss().item()
                parameter.add_(way, alpha=1e-5)
            assert (above - below) / 2e-5 == pytest.approx(slope, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_semantic_quantizers": 2}, "num_semantic_quantizers must be 1, found 2"),
        ({"num_key_value_heads": 4}, "num_key_value_heads must be 16, found 4"),
        ({"hidden_act": "gelu"}, "decoder_config: hidden_act must be 'silu', found 'gelu'"),
    ],
)
def test_a_foreign_variant_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        CodecConfig.from_dict(OFFICIAL | change)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_step_replays_on_cuda() -> None:
    with torch.inference_mode(False):
        codec = CodecDecoder(tiny().config)
        codec.load_state_dict(tiny().state_dict())
        codec.to("cuda").eval()
    state, slots = codec.init_state(2, "cuda"), torch.tensor([1], device="cuda")
    chunk = torch.zeros(1, 4, 16, dtype=torch.int64, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        codec.step(chunk, state, slots)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        samples = codec.step(chunk, state, slots)
    state.reset(slots)
    heard = []
    for codes in codes40().split(4, 1):
        chunk.copy_(codes)
        graph.replay()
        heard.append(samples[0].cpu())
    assert difference(torch.cat(heard), expected()["w12.wav40"]) <= 1e-4
