"""agent/opus.py: packets of 20 ms that a stock decoder plays, at the voice's own rate."""

from __future__ import annotations

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from scripted_runtime import TONE_HZ, tone

from agent.opus import RATES, OpusEncoder, check_rate
from agent.playout import faded


def decode(payloads: list[bytes]) -> NDArray[np.float64]:
    """What a stock decoder makes of the packets: [samples] at 48 kHz, full scale 1."""
    decoder = av.CodecContext.create("libopus", "r")
    decoder.sample_rate, decoder.layout, decoder.format = 48_000, "mono", "s16"
    frames = [frame for payload in payloads for frame in decoder.decode(av.Packet(payload))]
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]) / 32768


def loudest_hz(samples: NDArray[np.float64]) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(samples.size)))
    return float(np.argmax(spectrum) * 48_000 / samples.size)


@pytest.mark.parametrize("rate", RATES)
def test_a_tone_comes_back_as_the_same_tone_at_the_same_level(rate: int) -> None:
    encoder, size = OpusEncoder(rate), rate // 50
    assert encoder.packet_samples == size
    heard = decode([encoder.encode(tone(n * size, size, rate)) for n in range(50)])
    assert heard.size == 48_000  # 20 ms each, on Opus' own clock
    assert loudest_hz(heard[4800:]) == pytest.approx(TONE_HZ, abs=2)
    assert np.sqrt(np.mean(heard[4800:] ** 2)) == pytest.approx(12_000 / 32768 / np.sqrt(2), rel=0.1)


def test_silence_is_silent_and_small() -> None:
    encoder = OpusEncoder(24_000)
    payloads = [encoder.encode(np.zeros(480, np.int16)) for _ in range(50)]
    assert np.abs(decode(payloads)).max() < 1e-3
    assert max(len(payload) for payload in payloads[10:]) <= 40


def test_the_bit_rate_is_kept() -> None:
    encoder = OpusEncoder(24_000, bit_rate=32_000)
    noise = np.random.default_rng(0).normal(0, 3000, 480 * 100).astype(np.int16)
    sizes = [len(encoder.encode(noise[n * 480 : (n + 1) * 480])) for n in range(100)]
    assert sum(sizes[10:]) * 8 / (90 * 0.02) == pytest.approx(32_000, rel=0.15)


def test_a_packet_that_is_encoded_and_not_sent_leaves_no_click() -> None:
    """A flush replaces the packet encoded ahead: the decoder never sees what the encoder saw."""
    encoder, size = OpusEncoder(24_000), 480
    harmonics = sum(np.sin(2 * np.pi * 140 * k * np.arange(21 * size) / 24_000) / k for k in range(1, 30))
    voice = (harmonics / np.abs(harmonics).max() * 14_000).astype(np.int16)
    payloads = [encoder.encode(voice[n * size : (n + 1) * size]) for n in range(20)]
    encoder.encode(voice[20 * size :])  # replaced
    out = np.zeros(size, np.int16)
    out[:240] = faded(voice[20 * size : 20 * size + 240])
    payloads += [encoder.encode(samples) for samples in (out, *np.zeros((5, size), np.int16))]
    heard = decode(payloads)
    steady, end = heard[5 * 960 : 18 * 960], heard[20 * 960 - 100 :]
    assert np.abs(end).max() < 1.1 * np.abs(steady).max()
    assert np.abs(np.diff(end)).max() < 1.2 * np.abs(np.diff(steady)).max()
    assert np.abs(heard[22 * 960 :]).max() < 0.01


def test_a_rate_that_opus_does_not_take_is_refused_with_the_rates_that_it_does() -> None:
    with pytest.raises(ValueError, match=r"24000.*22050"):
        OpusEncoder(22_050)
    check_rate(24_000)
