"""The synthetic profile `h200-estimate`: what Breeze TTS 2 would cost on one H200, before anybody calibrated there.

Backbone decoding at batch 1 and the depth decoder at 1, 2, 16 and 32 were measured on an H200 (torch 2.11, 2026-11-29,
random weights of full size, compiled and one CUDA graph). All else is estimated from the model's sizes: weights are
read at 4.3 TB/s (measured), bf16 matrices multiply at 400 TFLOP/s, the codec's fp32 convolutions at 30 TFLOP/s, about
half of what the chip can do. It knows no scheduling.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

from engine.chunking import LADDER
from engine.core import Limits, Stage
from engine.encoding import PIECES
from engine.profile import CostKey, Profile

NAME = "h200-estimate"
LIMITS = Limits(num_slots=128, num_pages=128 * 128, max_batch=dict.fromkeys(Stage, 16))
BATCHES, RECORDINGS = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16)
TOKENS = (16, 32, 64, 128, 256, 512)
DECODE = {1: 1.9e-3}
DEPTH = {1: 12.0e-3, 2: 12.0e-3, 16: 12.6e-3, 32: 13.4e-3}
"""Measured seconds by batch."""
TEXT_BASE, TEXT_TOKEN = 1.5e-3, 1.40e9 / 400e12
"""26 narrow layers of launches and 1.4 GB of weights; 1.40 GFLOP a token."""
PREFILL_BASE, PREFILL_TOKEN = 2.5e-3, 2.82e9 / 400e12
"""The measured decode step with larger kernels; 2.82 GFLOP a token."""
KEYS_AND_VALUES = 114688 * 500 / 4.3e12
"""Seconds to read those of one sequence at 500 positions."""
ENCODE_BASE, ENCODE_FRAME = 3.0e-3, 0.44e9 / 30e12
"""300 launches; 5.5 GFLOP for a second of a recording."""
CODEC_BASE, CODEC_FRAME = 1.6e-3, 4.961e9 / 30e12
SAMPLES = 64


def profile() -> Profile:
    """The same at every call: the scatter is drawn from one seed."""
    random = Random(0)
    samples: dict[CostKey, tuple[float, ...]] = {}
    sources: dict[CostKey, str] = {}
    for key, seconds, source in costs():
        samples[key] = tuple(round(seconds * _scatter(random), 7) for _ in range(SAMPLES))
        sources[key] = source
    return Profile(NAME, samples, sources, LIMITS)


def _scatter(random: Random) -> float:
    """Of one step: 2 % either way, up to 10 % more in one of 12, half as long again in one of 100. Estimated."""
    tail = random.random()
    if tail < 0.01:
        return 1.5
    return random.uniform(0.98, 1.02) + (random.uniform(0.0, 0.1) if tail < 0.09 else 0.0)


def costs() -> Iterator[tuple[CostKey, float, str]]:
    """Shapes with their seconds and where these come from."""
    for batch in BATCHES:
        for tokens in TOKENS:
            yield (Stage.TEXT, batch, tokens), TEXT_BASE + TEXT_TOKEN * tokens * batch, "estimated"
            yield (Stage.PREFILL, batch, tokens), PREFILL_BASE + PREFILL_TOKEN * tokens * batch, "estimated"
        yield (Stage.DECODE, batch, 1), DECODE[1] + KEYS_AND_VALUES * (batch - 1), _source(batch in DECODE)
        yield (Stage.DEPTH, batch, 1), _depth(batch), _source(batch in DEPTH)
        for frames in LADDER:
            yield (Stage.CODEC, batch, frames), CODEC_BASE + CODEC_FRAME * frames * batch, "estimated"
    for batch, frames in product(RECORDINGS, PIECES):
        yield (Stage.ENCODE, batch, frames), ENCODE_BASE + ENCODE_FRAME * frames * batch, "estimated"


def _depth(batch: int) -> float:
    """On the line between the measured neighbours."""
    low, high = max(b for b in DEPTH if b <= batch), min(b for b in DEPTH if b >= batch)
    share = (batch - low) / (high - low) if high > low else 0.0
    return DEPTH[low] * (1 - share) + DEPTH[high] * share


def _source(measured: bool) -> str:
    return "measured" if measured else "estimated"
