"""Both VADs on real sound, and the cutting of a stream into frames with literal instants.

What the clips are and how they were made is said in sounds.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sounds import Wave, clip, int16, noise, onset, placed

from agent.vad import EARSHOT, SAMPLE_RATE, SILERO, VADS, Frame, Framer, Vad, check, frame_seconds, make

NAMES = tuple(VADS)
WORDS = ("user", "other", "mhm", "yeah", "uh_huh", "agent")


def probabilities(vad: Vad, sound: Wave) -> NDArray[np.float64]:
    """Of every whole frame."""
    frames = int16(sound)[: sound.size // vad.frame_samples * vad.frame_samples].reshape(-1, vad.frame_samples)
    return np.array([vad.probability(frame) for frame in frames])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", WORDS)
def test_speech_is_noticed_within_an_eighth_of_a_second(name: str, words: str) -> None:
    vad, speech = make(name), clip(words)[: 3 * SAMPLE_RATE]
    found = probabilities(vad, placed(1.0 + speech.size / SAMPLE_RATE, (0.5, speech)))
    starts_at = 0.5 + onset(speech)
    ends = (np.flatnonzero(found >= 0.5) + 1) * frame_seconds(name)
    assert starts_at < ends[0] <= starts_at + 0.125  # "mhm" takes 0.108, the others at most 0.07


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", ["user", "other"])
def test_most_of_an_utterance_is_speech_and_the_silence_behind_it_is_not(name: str, words: str) -> None:
    speech = clip(words)
    found = probabilities(make(name), placed(3.0 + speech.size / SAMPLE_RATE, (1.0, speech))) >= 0.5
    seconds = np.arange(found.size) * frame_seconds(name)
    assert found[(seconds > 1.1) & (seconds < 0.9 + speech.size / SAMPLE_RATE)].mean() > 0.8
    assert not found[seconds < 0.9].any()
    assert not found[seconds > 1.3 + speech.size / SAMPLE_RATE].any()


@pytest.mark.parametrize("name", NAMES)
def test_noise_is_no_speech(name: str) -> None:
    assert not (probabilities(make(name), noise(5.0, rms=100.0)) >= 0.5).any()


@pytest.mark.parametrize("name", NAMES)
def test_after_a_reset_a_stream_is_judged_as_by_a_fresh_one(name: str) -> None:
    vad, speech = make(name), clip("other")
    first = probabilities(vad, speech)
    assert not np.array_equal(probabilities(vad, speech)[:10], first[:10])
    vad.reset()
    np.testing.assert_allclose(probabilities(vad, speech), first, atol=1e-6)


@pytest.mark.parametrize(("name", "samples"), [(SILERO, 512), (EARSHOT, 256)])
def test_a_frame_has_the_vads_size_and_type(name: str, samples: int) -> None:
    vad = make(name)
    assert vad.frame_samples == samples
    assert frame_seconds(name) == samples / 16_000
    with pytest.raises(AssertionError, match=rf"int16 \({samples},\): float64 \({samples},\)"):
        vad.probability(np.zeros(samples))  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        vad.probability(np.zeros(samples + 1, np.int16))


def test_an_unknown_vad_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="a VAD is one of silero, earshot: 'loud'"):
        make("loud")


@pytest.mark.parametrize(("name", "other"), [(SILERO, EARSHOT), (EARSHOT, SILERO)])
def test_a_vad_whose_package_is_missing_says_what_to_do(name: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, VADS[name].package, None)
    with pytest.raises(ImportError, match=f"{name} needs .* not installed: choose {other}"):
        check(name)
    with pytest.raises(ImportError):
        make(name)
    check(other)


def test_hearing_brings_no_torch_into_the_media_process() -> None:
    code = (
        "import sys, agent.vad, agent.turn, agent.echo\n"
        "for name in agent.vad.VADS: agent.vad.make(name)\n"
        "assert 'torch' not in sys.modules"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- frames ----------------------------------------------------------------------------------------------------


def pushed(framer: Framer, samples: int, at: float, value: int = 0) -> list[tuple[int, float]]:
    """First sample and rounded instant of every frame that so many samples complete."""
    found = framer.push(np.arange(value, value + samples, dtype=np.int16), at)
    assert all(frame.samples.shape == (512,) for frame in found)
    return [(int(frame.samples[0]), round(frame.at, 4)) for frame in found]


def test_pieces_of_20_ms_become_frames_of_32_with_the_instants_of_their_ends() -> None:
    framer = Framer(512)
    assert pushed(framer, 320, 5.02, 0) == []
    assert pushed(framer, 320, 5.04, 320) == [(0, 5.032)]
    assert pushed(framer, 320, 5.06, 640) == []
    assert pushed(framer, 320, 5.08, 960) == [(512, 5.064)]
    assert pushed(framer, 320, 5.10, 1280) == [(1024, 5.096)]


def test_a_long_piece_has_several_frames() -> None:
    assert pushed(Framer(512), 1600, 1.1) == [(0, 1.032), (512, 1.064), (1024, 1.096)]


def test_uneven_arrivals_hardly_move_the_instants_and_a_drift_is_followed() -> None:
    framer = Framer(512)
    assert pushed(framer, 512, 1.0) == [(0, 1.0)]
    assert pushed(framer, 512, 1.052) == [(0, 1.033)]  # 20 ms late
    for n in range(200):
        (last,) = pushed(framer, 512, 1.064 + 0.033 * (n + 1))  # 1 ms a frame slower than it says
    assert last[1] == pytest.approx(1.064 + 0.033 * 200, abs=0.025)


@pytest.mark.parametrize("slip", [0.3, -0.3])
def test_no_frame_reaches_over_a_gap(slip: float) -> None:
    framer = Framer(512)
    pushed(framer, 320, 1.0)
    assert pushed(framer, 320, 1.02 + slip, 1000) == []
    assert pushed(framer, 320, 1.04 + slip, 1320) == [(1000, round(1.032 + slip, 4))]


def test_a_frame_keeps_its_samples() -> None:
    (frame,) = Framer(4).push(np.array([1, 2, 3, 4, 5], np.int16), 1.0)
    assert isinstance(frame, Frame)
    assert frame.samples.tolist() == [1, 2, 3, 4]
    assert frame.at == 1.0 - 1 / SAMPLE_RATE
