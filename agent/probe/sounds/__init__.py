"""Sounds of a user's side: what is said to an agent, and what is to be heard beside it. It does not know who listens.

All are mono at 48 kHz, cut at both ends to the sound by the rule of `onset`, scaled to an active RMS of 2000 (-24 dB of
full scale; the cough to 3000), and encoded with libopus at 24 kbit/s, application voip.

The user is the embedded voice, `breezert say TEXT --seed SEED -o FILE.wav`:

| | seed | text |
|---|---|---|
| question | 1 | Good morning. Can you tell me about your opening hours, please? |
| another | 2 | And what about Sunday? Are you open then? |
| wait | 3 | Wait, that is not what I asked for. |
| stop | 4 | Stop, please, I know that part already. |
| no | 5 | No, I meant the other one. |
| prices | 6 | Sorry, how much does it cost altogether? |
| begin | 7 | I would like to book a table for |
| rest | 8 | four people, on Sunday evening. |
| yeah | 10 | Yeah. |
| aside | 9 | Anna, could you close the window, please? |

The pauses inside `question` and `another` are cut to a quarter of a second: inside longer ones agents answer.

`aside` is followed by 0.35 s of silence and what another person answers. All others speak with espeak-ng 1.51,
`espeak-ng -v VOICE -s SPEED -w FILE.wav TEXT`:

| | voice | speed | text |
|---|---|---|---|
| aside | en-gb+f2 | 165 | Yes, of course. |
| other | en-gb+m3 | 165 | Has anybody seen my keys? I left them on the table. |
| mhm | en-us | 165 | [[m'hm]] |
| babble | en-us | 165 | The next train leaves from platform nine, and I would rather not run for it again this time. |
| | en-us+f3 | 150 | So she told him that the table was too small for the seven of us, and he just laughed. |
| | en-gb+m3 | 175 | Two coffees, one tea, and a piece of that apple cake over there, if you still have some left. |
| | en-gb+f2 | 160 | I have looked everywhere for it, under the chairs, behind the door, even in the garden. |

`babble` is 5 s of those four at once, each repeated and 0.7 s later than the one before, over white noise of RMS 400.

cough: two bursts of 0.18 s, the second 0.12 s after the first and of 0.8 of its height; each is white noise (numpy's
default_rng, seed 1 and 2) between 400 Hz and 6 kHz that fades with exp(-4 t / 0.18 s).

hum: 0.42 s of eight harmonics, each of 1/k² of the first, at 125 + 25 sin(2π 2.4 t - 1.2) Hz; it swells in 15 ms, fades
in 60 ms, and dips by 85 % around 0.19 s (a bell of 0.03 s).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

RATE = 48_000
NAMES = (
    "question",
    "another",
    "wait",
    "stop",
    "no",
    "prices",
    "begin",
    "rest",
    "yeah",
    "aside",
    "other",
    "mhm",
    "hum",
    "cough",
    "babble",
)
ONSET_SAMPLES, ONSET_SHARE = 240, 0.03

Pcm = NDArray[np.int16]


class SoundError(ValueError):
    """A file that is no sound; the text names it."""


@cache
def sound(name: str) -> Pcm:
    """One of NAMES, or the path of a file that FFmpeg reads: int16 [samples] at RATE, mono, from its acoustic onset to
    its acoustic end. Raises SoundError."""
    path = Path(__file__).with_name(f"{name}.opus") if name in NAMES else Path(name)
    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
    try:
        with av.open(str(path)) as container:
            frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
        parts = [frame.to_ndarray()[0] for frame in [*frames, *resampler.resample(None)]]
    except (OSError, ValueError, IndexError) as error:  # av's own errors are one of these
        raise SoundError(f"{path} is to be a sound that FFmpeg can read: {error}") from error
    samples = cut(np.concatenate(parts)) if parts else np.zeros(0, np.int16)
    if not samples.size:
        raise SoundError(f"{path} is to be a sound, it has nothing but silence")
    samples.flags.writeable = False  # it is everybody's
    return samples


def cut(samples: Pcm) -> Pcm:
    """From its acoustic onset to its acoustic end; empty where it is silent."""
    if not samples.any() or samples.size < ONSET_SAMPLES:
        return samples[:0]
    begun = samples[onset(samples) :]
    return begun[: begun.size - onset(begun[::-1])].copy()


def onset(samples: Pcm) -> int:
    """The sample at which it begins to be heard: the first 5 ms whose RMS is above 3 % of the loudest 5 ms'."""
    whole = samples[: samples.size // ONSET_SAMPLES * ONSET_SAMPLES].astype(np.float64).reshape(-1, ONSET_SAMPLES)
    power = (whole**2).mean(axis=1)
    return int(np.flatnonzero(power > ONSET_SHARE**2 * power.max())[0]) * ONSET_SAMPLES
