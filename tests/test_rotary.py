"""Rotary embedding: frequencies of every kind of config, and a rotation that only shows distances."""

from __future__ import annotations

import math

import pytest
import torch

from engine.rotary import cos_sin, frequencies, rotate, rotations
from engine.weights import CheckpointError, outlines

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 0.001953125,
    "high_freq_factor": 0.0078125,
    "original_max_position_embeddings": 16,
}


def test_default_frequencies_by_hand() -> None:
    inv_freq = frequencies({"rope_theta": 10000.0, "rope_scaling": None}, 4)
    torch.testing.assert_close(inv_freq, torch.tensor([1.0, 0.01]))


def test_linear_divides_by_the_factor() -> None:
    inv_freq = frequencies({"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}, 4)
    torch.testing.assert_close(inv_freq, torch.tensor([1 / 8, 1e-3 / 8]))


def test_llama3_has_three_zones() -> None:
    """Wavelengths below 2048 stay, above 8192 are stretched 32 times, between them blend."""
    plain = frequencies({"rope_theta": 500000.0}, 128).double()
    wavelengths = 2 * math.pi / plain
    blend = (16 / wavelengths - 0.001953125) / (0.0078125 - 0.001953125)
    expected = torch.where(wavelengths > 8192, plain / 32, (1 - blend) * plain / 32 + blend * plain)
    expected = torch.where(wavelengths < 2048, plain, expected)
    got = frequencies({"rope_theta": 500000.0, "rope_scaling": LLAMA3}, 128)
    torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=0)
    zones = [int((wavelengths < 2048).sum()), int(((wavelengths >= 2048) & (wavelengths <= 8192)).sum())]
    assert zones == [29, 6]


def test_newer_checkpoints_call_it_rope_parameters() -> None:
    older = frequencies({"rope_theta": 5e5, "rope_scaling": LLAMA3}, 16)
    newer = frequencies({"rope_parameters": {"rope_theta": 5e5, **LLAMA3}}, 16)
    assert torch.equal(older, newer)


def test_constants_exist_under_the_meta_device() -> None:
    with outlines():
        assert frequencies({"rope_theta": 10000.0}, 4).device.type == "cpu"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_theta": 1e4, "rope_scaling": {"type": "yarn"}}, "one of default, linear, llama3, found 'yarn'"),
        ({"rope_theta": None}, "rope_theta must be a number from 1 to 1e.30, found None"),
        ({"rope_theta": 1e4, "rope_scaling": "llama3"}, "rope_scaling must be an object, found 'llama3'"),
        ({"rope_theta": 1e4, "rope_scaling": LLAMA3 | {"high_freq_factor": 0.0}}, "high_freq_factor must be above low"),
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear"}},
            "rotary config: factor must be a number from 1e-12 to 1e.30, found nothing",
        ),
        ({}, "rope_theta must be a number from 1 to 1e.30, found nothing"),
    ],
)
def test_what_it_cannot_do_is_named(config: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        frequencies(config, 8)


def test_a_quarter_turn_moves_the_first_half_into_the_second() -> None:
    cos, sin = torch.zeros(4), torch.ones(4)
    assert rotate(torch.tensor([1.0, 2.0, 3.0, 4.0]), cos, sin).tolist() == [-3.0, -4.0, 1.0, 2.0]


def test_only_the_distance_shows_in_a_score() -> None:
    inv_freq = frequencies({"rope_theta": 10000.0}, 32)
    draw = torch.Generator().manual_seed(4)
    q, k = torch.randn(2, 32, generator=draw)
    cos, sin = cos_sin(torch.tensor([3, 10, 103, 110]), inv_freq, torch.float32)
    near, far = (rotate(q, cos[i], sin[i]) @ rotate(k, cos[j], sin[j]) for i, j in ((1, 0), (3, 2)))
    torch.testing.assert_close(near, far, rtol=0, atol=1e-4)
    assert abs(near - q @ k) > 0.1


def test_a_matrix_rotates_as_the_angles_do() -> None:
    inv_freq = frequencies({"rope_theta": 500000.0, "rope_scaling": LLAMA3}, 16)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(5))
    matrices = rotations(16, inv_freq, torch.float32)
    cos, sin = cos_sin(torch.arange(16), inv_freq, torch.float32)
    for position in range(16):
        torch.testing.assert_close(x @ matrices[position], rotate(x, cos[position], sin[position]))
