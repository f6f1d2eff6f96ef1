"""Sentences of users, for benches that speak to an agent. It does not know who listens.

Made with espeak-ng 1.51, `espeak-ng -v VOICE -s WORDS_A_MINUTE TEXT` as below, resampled to 48 kHz, cut to the speech
by the rule of `onset` at both ends, scaled to an active RMS of 2000 (-24 dB of full scale), and encoded with libopus
at 24 kbit/s.

| | voice | speed | text |
|---|---|---|---|
| wait | en-us | 165 | Wait, that is not the train I asked for. |
| stop | en-us+m3 | 185 | Stop, please, I know that part already. |
| sorry | en-us+f3 | 170 | Sorry, what was the price of the ticket? |
| hold | en-gb | 160 | Hold on, can we go back to the first one? |
| actually | en-gb+f2 | 180 | Actually, I would rather leave on Sunday. |
| no | en-gb+m5 | 150 | No, I meant the other hotel. |
| excuse | en-gb-scotland | 190 | Excuse me, how long does the whole journey take? |
| can | en-us+f4 | 200 | Can you tell me something else instead? |
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

RATE = 48_000
NAMES = ("wait", "stop", "sorry", "hold", "actually", "no", "excuse", "can")
ONSET_SAMPLES, ONSET_SHARE = 240, 0.03

Pcm = NDArray[np.int16]


@cache
def sentence(name: str) -> Pcm:
    """One of NAMES, int16 [samples] at RATE; its first sample is its acoustic onset."""
    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
    with av.open(str(Path(__file__).with_name(f"{name}.opus"))) as container:
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    samples = np.concatenate([frame.to_ndarray()[0] for frame in [*frames, *resampler.resample(None)]])
    return samples[onset(samples) :]


def onset(samples: Pcm) -> int:
    """The sample at which it begins to be heard: the first 5 ms whose RMS is above 3 % of the loudest 5 ms'."""
    whole = samples[: samples.size // ONSET_SAMPLES * ONSET_SAMPLES].astype(np.float64).reshape(-1, ONSET_SAMPLES)
    power = (whole**2).mean(axis=1)
    return int(np.flatnonzero(power > ONSET_SHARE**2 * power.max())[0]) * ONSET_SAMPLES
