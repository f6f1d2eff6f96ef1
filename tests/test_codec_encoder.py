"""codec_encoder.py: the encoder against its fixtures and a plain one, pieces against the whole, rows side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.codec_encoder import CodecEncoder, EncoderConfig, load, skipped
from engine.rotary import cos_sin, frequencies, rotate
from engine.weights import CheckpointError, outlines

GOLDEN = Path(__file__).parent / "golden"
TINY = GOLDEN / "breeze" / "checkpoint"
MINI = Path(__file__).parents[1] / "engine" / "voices" / "breeze-mini"
TOLERANCE = 5e-5
"""The fixtures' own."""
FRAME = 1920
OFFICIAL: dict[str, Any] = {
    "num_filters": 64,
    "kernel_size": 7,
    "residual_kernel_size": 3,
    "last_kernel_size": 3,
    "compress": 2,
    "upsampling_ratios": [8, 6, 5, 4],
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2048,
    "norm_eps": 1e-5,
    "rope_theta": 10000,
    "num_quantizers": 32,
    "codebook_size": 2048,
    "codebook_dim": 256,
}
RATES: dict[str, Any] = {
    "input_sample_rate": 24000,
    "encode_downsample_rate": FRAME,
    "encoder_valid_num_quantizers": 16,
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
def tiny() -> CodecEncoder:
    with torch.inference_mode(False):
        return load(TINY, device="cpu")


@cache
def expected() -> dict[str, Tensor]:
    return load_file(GOLDEN / "breeze" / "expected_codec.safetensors")


def recording() -> Tensor:
    """[12220], the last frame partial."""
    return expected()["enc.wav"]


def noise(num_samples: int, seed: int = 0) -> Tensor:
    return torch.randn(num_samples, generator=torch.Generator().manual_seed(seed)) * 0.3


def encode(samples: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """samples [N] in pieces of these sizes -> latents [T, hidden] and codes [T, K]."""
    encoder = tiny()
    state = encoder.init_state(1, "cpu")
    pieces = samples[None].split(list(sizes), 1)
    latents = [encoder.latents(piece, state, i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    codes = [encoder.codes(piece) for piece in latents]
    return torch.cat(latents, 1)[0], torch.cat(codes, 1)[0]


def difference(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return (ours - theirs).abs().max().item()


# ---- the fixtures ----


def test_every_stage_equals_the_fixture() -> None:
    stages = dict(tiny().stages(recording()[None]))
    assert list(stages) == ["seanet_out", "transformer_out", "downsample_out"]
    for name, stage in stages.items():
        ours = stage[0].t() if name == "transformer_out" else stage[0]
        assert difference(ours, expected()[f"enc.{name}"]) <= TOLERANCE, name


def test_codes_equal_the_fixture() -> None:
    assert torch.equal(tiny()(recording()[None])[0], expected()["enc.codes"])
    assert torch.equal(tiny().rows([recording()])[0], expected()["enc.codes"])


# ---- a plain encoder: PyTorch's convolutions over the whole, padded as EnCodec's code pads ----


class Plain:
    """The same weights, one operation after the other, without pieces, rows or histories."""

    def __init__(self) -> None:
        self.weights = load_file(TINY / "audio_tokenizer" / "model.safetensors")
        self.config = tiny().config

    def conv(self, x: Tensor, name: str, stride: int = 1, mode: str = "constant") -> Tensor:
        """x [C, T] -> [C', ceil(T / stride)]."""
        weight, bias = self.weights[f"encoder.{name}.weight"], self.weights.get(f"encoder.{name}.bias")
        right = -x.shape[1] % stride
        padded = F.pad(x[None], (weight.shape[2] - stride, right), mode=mode)
        return F.conv1d(padded, weight, bias, stride)[0]

    def seanet(self, samples: Tensor) -> Tensor:
        x = self.conv(samples[None], "encoder.layers.0.conv")
        layer = 1
        for rate in self.config.rates:
            inner = self.conv(F.elu(x), f"encoder.layers.{layer}.block.1.conv")
            x = x + self.conv(F.elu(inner), f"encoder.layers.{layer}.block.3.conv")
            x = self.conv(F.elu(x), f"encoder.layers.{layer + 2}.conv", rate)
            layer += 3
        return self.conv(F.elu(x), f"encoder.layers.{layer + 1}.conv")

    def layer(self, x: Tensor, index: int) -> Tensor:
        """x [T, hidden]"""
        of = {k: self.weights[f"encoder.encoder_transformer.layers.{index}.{k}"] for k in self.names(index)}
        width, heads = x.shape[1], self.config.num_heads
        normed = F.layer_norm(x, (width,), of["input_layernorm.weight"], of["input_layernorm.bias"], 1e-5)
        q, k, v = (
            (normed @ of[f"self_attn.{part}_proj.weight"].t()).view(len(x), heads, -1).transpose(0, 1) for part in "qkv"
        )
        inv_freq = frequencies({"rope_theta": 10000}, q.shape[-1])
        cos, sin = cos_sin(torch.arange(len(x)), inv_freq, torch.float32)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)
        x = x + mixed @ of["self_attn.o_proj.weight"].t() * of["self_attn_layer_scale.scale"]
        scale, shift = of["post_attention_layernorm.weight"], of["post_attention_layernorm.bias"]
        inner = F.gelu(F.layer_norm(x, (width,), scale, shift, 1e-5) @ of["mlp.fc1.weight"].t())
        return x + inner @ of["mlp.fc2.weight"].t() * of["mlp_layer_scale.scale"]

    def names(self, index: int) -> list[str]:
        prefix = f"encoder.encoder_transformer.layers.{index}."
        return [name.removeprefix(prefix) for name in self.weights if name.startswith(prefix)]

    def latents(self, samples: Tensor) -> Tensor:
        """samples [N] -> [T, hidden]"""
        x = self.seanet(samples).t()
        for index in range(self.config.num_layers):
            x = self.layer(x, index)
        return self.conv(x.t(), "downsample.conv", 2, "replicate").t()

    def codes(self, latents: Tensor) -> Tensor:
        return torch.cat([self.book("semantic", latents, 1), self.book("acoustic", latents, 15)], 1)

    def book(self, kind: str, latents: Tensor, count: int) -> Tensor:
        prefix = f"encoder.quantizer.{kind}_residual_vector_quantizer"
        left, codes = latents @ self.weights[f"{prefix}.input_proj.weight"][..., 0].t(), []
        for index in range(count):
            book = f"{prefix}.layers.{index}.codebook"
            table = self.weights[f"{book}.embed_sum"] / self.weights[f"{book}.cluster_usage"].clamp(min=1e-5)[:, None]
            codes.append(torch.cdist(left, table).argmin(1))
            left = left - table[codes[-1]]
        return torch.stack(codes, 1)


@pytest.mark.parametrize("num_samples", [1, 3, 4, 5, 21, 960, 961, 1919, 1920, 1921, 3840, 5003, 12220])
def test_recordings_of_any_length_equal_the_plain_encoder(num_samples: int) -> None:
    plain, samples = Plain(), noise(num_samples)
    latents, codes = encode(samples, [num_samples])
    assert len(codes) == math.ceil(num_samples / FRAME) == tiny().config.num_frames(num_samples)
    assert difference(latents, plain.latents(samples)) <= TOLERANCE
    assert torch.equal(codes, plain.codes(latents))


def test_a_column_attends_to_all_that_came_before() -> None:
    """More than the 250 columns of the sliding window that the official code has in its config and does not apply."""
    samples = noise(300 * FRAME // 2)
    assert difference(encode(samples, [len(samples)])[0], Plain().latents(samples)) <= TOLERANCE


# ---- in pieces ----


@settings(max_examples=25, deadline=None)
@given(cuts=st.sets(st.integers(0, 12220), max_size=12))
def test_pieces_of_any_sizes_equal_the_whole(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), 12220]
    with torch.inference_mode():
        latents, codes = encode(recording(), [end - start for start, end in pairwise(edges)])
        assert difference(latents.t(), encode(recording(), [12220])[0].t()) <= 1e-5
        assert torch.equal(codes, expected()["enc.codes"])


@pytest.mark.parametrize("size", [100, FRAME, FRAME + 1, 5 * FRAME, 40_000])
def test_a_long_recording_in_pieces_of_one_size_equals_the_whole(size: int) -> None:
    samples = noise(151 * FRAME + 7)
    whole = encode(samples, [len(samples)])
    sizes = [size] * (len(samples) // size) + [len(samples) % size]
    pieces = encode(samples, sizes)
    assert difference(pieces[0], whole[0]) <= 1e-5
    assert torch.equal(pieces[1], whole[1])


def test_a_step_gives_the_frames_that_are_whole() -> None:
    encoder = tiny()
    state = encoder.init_state(2, "cpu")
    samples = torch.stack((recording(), noise(12220)))
    counts = [encoder.step(samples[:, :1919], state).shape, encoder.step(samples[:, 1919:1920], state).shape]
    counts.append(encoder.step(samples[:, 1920:7000], state).shape)
    counts.append(encoder.step(samples[:, 7000:], state, last=True).shape)
    assert counts == [(2, 0, 16), (2, 1, 16), (2, 2, 16), (2, 4, 16)]


def test_a_recording_may_end_behind_its_last_sample() -> None:
    encoder = tiny()
    state = encoder.init_state(1, "cpu")
    first = encoder.step(recording()[None], state)
    assert torch.equal(torch.cat((first, encoder.step(torch.zeros(1, 0), state, last=True)), 1)[0], codes_alone())
    state = encoder.init_state(1, "cpu")
    assert encoder.step(recording()[None, : 2 * FRAME], state).shape == (1, 2, 16)
    assert encoder.step(torch.zeros(1, 0), state, last=True).shape == (1, 0, 16)


def codes_alone() -> Tensor:
    return expected()["enc.codes"]


# ---- rows ----


LENGTHS = [5000, 12220, 1, 1920, 12221, 30_000, 1919, 3841]


@pytest.mark.parametrize("piece_frames", [1, 2, 12])
def test_rows_equal_each_recording_alone(piece_frames: int) -> None:
    recordings = [noise(length, seed) for seed, length in enumerate(LENGTHS)]
    rows = tiny().rows(recordings, piece_frames)
    for samples, row in zip(recordings, rows, strict=True):
        assert torch.equal(row, tiny()(samples[None])[0]), len(samples)


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 9000), min_size=1, max_size=5), piece_frames=st.integers(1, 6))
def test_rows_of_any_lengths_equal_each_alone(lengths: list[int], piece_frames: int) -> None:
    with torch.inference_mode():
        recordings = [noise(length, seed) for seed, length in enumerate(lengths)]
        rows = tiny().rows(recordings, piece_frames)
        assert all(torch.equal(row, tiny()(x[None])[0]) for row, x in zip(rows, recordings, strict=True))


@pytest.mark.parametrize("value", [math.nan, 1e30])
def test_a_row_is_the_same_whatever_its_neighbours_hold(value: float) -> None:
    beside = [torch.full((length,), value) for length in (30_000, 12_000, 2000)]
    assert torch.equal(tiny().rows([beside[0], recording(), *beside[1:]])[1], expected()["enc.codes"])


def test_latents_of_a_row_do_not_know_the_padding() -> None:
    """Bit for bit: behind a row's end there may be anything."""
    encoder, size = tiny(), 4 * FRAME
    samples, ends = noise(2 * size).view(2, size), torch.tensor([3333, size])
    other = samples.clone()
    other[0, 3333:] = math.inf
    ours, theirs = (encoder._latents(x, encoder.init_state(2, "cpu"), ends) for x in (samples, other))
    assert torch.equal(ours[0, :2], theirs[0, :2])
    assert torch.equal(ours[1], theirs[1])


def test_rows_of_nothing() -> None:
    assert tiny().rows([]) == []
    with pytest.raises(ValueError, match=r"at least one sample, got \[3, 0\]"):
        tiny().rows([noise(3), noise(0)])


# ---- sizes, configs, checkpoints ----


def test_sizes_of_the_official_encoder() -> None:
    config = EncoderConfig.from_dict({**RATES, "encoder_config": OFFICIAL})
    with outlines():
        encoder = CodecEncoder(config)
    unused = 16 * (2048 * 257 + 1) + 16 + 2 * 256 * 512  # books, `initialized` of the others, output projections
    assert sum(p.numel() for p in encoder.parameters()) + unused == 682_229_764 // 4 - 114_323_137
    assert config.samples_per_frame == FRAME
    assert config.rates == (4, 5, 6, 8)


def test_only_the_books_that_are_used_are_read() -> None:
    patterns = skipped(tiny().config)
    layers = "encoder.quantizer.acoustic_residual_vector_quantizer.layers"
    assert f"{layers}.14.*" not in patterns
    assert {f"{layers}.15.*", f"{layers}.30.*"} <= set(patterns)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_semantic_quantizers": 2}, "encoder_config: num_semantic_quantizers must be 1, found 2"),
        ({"num_key_value_heads": 4}, "num_key_value_heads must be 8, found 4"),
        ({"use_causal_conv": False}, "use_causal_conv must be True, found False"),
        ({"hidden_act": "silu"}, "hidden_act must be 'gelu', found 'silu'"),
        ({"upsampling_ratios": [7]}, "encode_downsample_rate must be a multiple of the upsampling_ratios' product 7"),
        ({"compress": 3}, "compress must be a divisor of num_filters = 64, found 3"),
        ({"num_quantizers": 12}, "encoder_valid_num_quantizers must be an integer from 2 to 12, found 16"),
    ],
)
def test_a_foreign_variant_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        EncoderConfig.from_dict({**RATES, "encoder_config": OFFICIAL | change})


def test_the_width_of_a_head_may_be_left_out() -> None:
    d = {key: value for key, value in OFFICIAL.items() if key != "head_dim"}
    assert EncoderConfig.from_dict({**RATES, "encoder_config": d}).head_dim == 64


def test_a_checkpoint_without_encoder_says_so() -> None:
    with pytest.raises(CheckpointError, match=r"found no tensor encoder\.\*; this voice cannot take a recording"):
        load(MINI, device="cpu")


def test_a_checkpoint_with_half_an_encoder_names_what_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "audio_tokenizer"
    folder.mkdir()
    weights = load_file(TINY / "audio_tokenizer" / "model.safetensors")
    del weights["encoder.downsample.conv.weight"]
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text((TINY / "audio_tokenizer" / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"1 tensors differ[\s\S]*missing: encoder\.downsample\.conv\.weight"):
        load(tmp_path, device="cpu")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_rows_on_cuda() -> None:
    encoder = load(TINY, device="cuda")
    rows = encoder.rows([noise(30_000).cuda(), recording().cuda(), noise(1).cuda()])
    assert torch.equal(rows[1].cpu(), expected()["enc.codes"])
