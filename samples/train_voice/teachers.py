"""Voices that can be learned from: text to phonemes, phonemes to samples. They do not know who listens.

A teacher's licence must allow it; hibari is Apache-2.0 (PyPI hibari-tts).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 24000


class Teacher(Protocol):
    """24 kHz, mono."""

    def phonemes(self, text: str) -> list[str]:
        """A string of phonemes for each sentence of the text."""

    def speak(self, phonemes: list[str], seed: int) -> NDArray[np.float32]:
        """Samples; the same for the same seed."""


class HibariTeacher:
    """hibari: about 100 times real time on one core."""

    def __init__(self, voice: str) -> None:
        from hibari import Hibari  # type: ignore[import-not-found]  # only who prepares needs it

        self._tts: Any = Hibari(voice=voice)

    def phonemes(self, text: str) -> list[str]:
        return list(self._tts.phonemize(text))

    def speak(self, phonemes: list[str], seed: int) -> NDArray[np.float32]:
        chance = np.random.default_rng(seed)
        parts = [self._tts.from_ids(self._tts.ids(part), 1.0, chance) for part in phonemes]
        return np.concatenate(parts).astype(np.float32)


class ToneTeacher:
    """A chord for each letter, for trying out the recipe: nothing to install, no speech."""

    def __init__(self, voice: str) -> None:
        self._pitch = 110.0 * (1 + len(voice) % 5)

    def phonemes(self, text: str) -> list[str]:
        return [text.lower()]

    def speak(self, phonemes: list[str], seed: int) -> NDArray[np.float32]:
        chance = np.random.default_rng(seed)
        silence = np.zeros(SAMPLE_RATE // 5)
        tones = [self._tone(letter) for letter in "".join(phonemes)]
        sound = np.concatenate([silence, *tones, silence])
        return (sound + chance.normal(0, 1e-4, len(sound))).astype(np.float32)

    def _tone(self, letter: str) -> NDArray[np.float64]:
        """80 ms; a space is a rest."""
        times = np.arange(SAMPLE_RATE * 8 // 100) / SAMPLE_RATE
        steps = 0 if letter == " " else ord(letter) % 24
        sound = sum(np.sin(2 * np.pi * times * self._pitch * 2 ** (steps / 12) * n) / n for n in (1, 2, 3))
        return np.asarray(0.2 * sound * np.sin(np.pi * times / times[-1]) * (letter != " "), np.float64)


TEACHERS: dict[str, type[HibariTeacher] | type[ToneTeacher]] = {"hibari": HibariTeacher, "tones": ToneTeacher}
