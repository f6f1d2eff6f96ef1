"""The user's sounds are there, begin at their acoustic onset, and are small."""

import wave
from pathlib import Path

import numpy as np
import pytest

from agent.probe import sounds
from agent.probe.sounds import NAMES, RATE, SoundError, cut, sound

FOLDER = Path(sounds.__file__).parent


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_begins_and_ends_with_itself(name: str) -> None:
    samples = sound(name)
    assert samples.dtype == np.int16 and samples.ndim == 1 and 0.2 * RATE < samples.size < 6 * RATE
    loudest = max(np.abs(samples[start : start + 240].astype(float)).max() for start in range(0, samples.size, 240))
    for end in (samples[:240], samples[-480:]):
        assert np.abs(end.astype(float)).max() > 0.02 * loudest
    assert 1000 < np.sqrt((samples.astype(float) ** 2).mean()) < 4000


def test_every_clip_is_listed_and_all_are_small() -> None:
    files = sorted(FOLDER.glob("*.opus"))
    assert [file.stem for file in files] == sorted(NAMES)
    assert sum(file.stat().st_size for file in files) < 150_000


def test_the_table_says_where_each_clip_is_from() -> None:
    assert sounds.__doc__ and all(name in sounds.__doc__ for name in NAMES)


def test_a_wav_file_is_resampled_and_cut(tmp_path: Path) -> None:
    tone = np.round(8000 * np.sin(2 * np.pi * 440 * np.arange(8000) / 16_000)).astype(np.int16)
    silence = np.zeros(1600, np.int16)
    with wave.open(str(tmp_path / "tone.wav"), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(np.concatenate([silence, tone, silence]).tobytes())
    assert sound(str(tmp_path / "tone.wav")).size == pytest.approx(24_000, abs=480)


def test_what_is_no_sound_is_said(tmp_path: Path) -> None:
    file = tmp_path / "words.wav"
    file.write_text("hello")
    with pytest.raises(SoundError, match=r"words\.wav is to be a sound that FFmpeg can read"):
        sound(str(file))
    with pytest.raises(SoundError, match=r"none\.wav"):
        sound(str(tmp_path / "none.wav"))
    assert cut(np.zeros(4800, np.int16)).size == 0


def test_a_sound_is_everybodys() -> None:
    with pytest.raises(ValueError, match="read-only"):
        sound("wait")[0] = 1
