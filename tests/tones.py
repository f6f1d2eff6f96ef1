"""Speech that tells by its pitch which utterance it is, and the ear for it. It knows neither network nor engine.

Every pitch is a multiple of 100 Hz, so that 10 ms hold whole waves of each and none is found in another.
"""

from __future__ import annotations

import time
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scripted_runtime import Job, ScriptedRuntime

from engine.core import Chunk, FinishReason

PITCHES = (500, 800, 1100, 1400, 1700, 2000, 2300, 2600)
"""In Hz; far enough from each other for what Opus makes of them."""
LEVEL = 12_000
HEARD_LEVEL = 0.25
"""Of LEVEL: a fade, or a block that holds the tone's first moments only, is no evidence of a pitch."""
SHARE = 0.5
"""Of a block's energy."""

STEP_SECONDS = 0.02


def text(number: int, frames: int) -> str:
    """What ToneRuntime says as the tone of this number, 80 ms a frame."""
    return chr(ord("a") + number % len(PITCHES)) * frames


def tone(pitch: int, first: int, count: int, rate: int) -> NDArray[np.int16]:
    """Samples `first` to `first + count` of an endless sine."""
    phase = 2 * np.pi * pitch * np.arange(first, first + count) / rate
    return (LEVEL * np.sin(phase)).astype(np.int16)


class ToneRuntime(ScriptedRuntime):
    """Says each text of `text` as its tone. After a cancellation one more chunk comes, as of an engine whose step is
    under way: that must not be heard."""

    def say(
        self, request_id: int, frames: int = 1, slack: float = 1.0, final: bool = False, made_at: float | None = None
    ) -> None:
        job = self.jobs[request_id]
        pcm = self.sound(job, frames)
        codes = np.zeros((frames, 1), np.int16)
        chunk = Chunk(request_id, job.request.epoch, job.frames, pcm, codes, slack, final, made_at)
        job.frames += frames
        job.deliver(chunk)

    def sound(self, job: Job, frames: int) -> NDArray[np.int16]:
        """The next frames of a request."""
        size = self.spec.samples_per_frame
        pitch = PITCHES[ord(job.request.text[0]) - ord("a")]
        return tone(pitch, job.frames * size, frames * size, self.spec.sample_rate)

    def finish(self, request_id: int, reason: FinishReason = FinishReason.END) -> None:
        if reason is FinishReason.CANCELLED:
            time.sleep(STEP_SECONDS)  # on the request's own thread
            self.say(request_id, self._chunk_frames)
        super().finish(request_id, reason)

    def forget(self) -> None:
        """Waits for requests that are over, and holds no caller's utterance any more."""
        self.join()
        for job in self.jobs.values():
            job.deliver = lambda output: None


def stair(frame: int, size: int, rate: int) -> NDArray[np.int16]:
    """Frame `frame` of a sound that tells where in it one is: each frame has the next pitch."""
    return tone(PITCHES[frame % len(PITCHES)], frame * size, size, rate)


class StairRuntime(ToneRuntime):
    """Says every text as stairs."""

    def sound(self, job: Job, frames: int) -> NDArray[np.int16]:
        size, rate = self.spec.samples_per_frame, self.spec.sample_rate
        return np.concatenate([stair(job.frames + n, size, rate) for n in range(frames)])


@cache
def waves(samples: int) -> NDArray[np.complex128]:
    """[pitches, samples]: what a block is compared with."""
    return np.exp(-2j * np.pi * np.outer(PITCHES, np.arange(samples)) / 48_000)


def number(block: NDArray[np.int16]) -> int | None:
    """Of the tone in 10 ms of sound at 48 kHz; None where there is none, or no clear one."""
    sound = block.astype(np.float64)
    levels = 2 / sound.size * np.abs(waves(sound.size) @ sound)
    loudest = int(np.argmax(levels))
    clear = levels[loudest] ** 2 / 2 > SHARE * np.mean(sound**2)
    return loudest if clear and levels[loudest] > HEARD_LEVEL * LEVEL else None


class Ear:
    """Names the tone of each block that a list has, and will have."""

    def __init__(self, blocks: list[NDArray[np.int16]]) -> None:
        self._blocks = blocks
        self._numbers = list[int | None]()

    @property
    def numbers(self) -> list[int | None]:
        """One a block."""
        self._numbers += map(number, self._blocks[len(self._numbers) :])
        return self._numbers

    def first(self, wanted: int, start: int = 0) -> int | None:
        """The index of the first block of the tone of this number, from `start` on."""
        pitch = wanted % len(PITCHES)
        return next((start + index for index, found in enumerate(self.numbers[start:]) if found == pitch), None)
