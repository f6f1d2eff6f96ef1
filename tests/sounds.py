"""Sounds for the tests of hearing: clips, a cough, and a room in which the agent's voice comes back to the microphone.

tests/golden/speech/ holds Opus clips. agent: two sentences of the embedded voice (`python -m engine say --seed 1`, 2).
The others are espeak-ng 1.51, cut to the speech and scaled to an active RMS of 2000. user: `espeak-ng -s 165 -v en-us
"Wait, stop, I meant the train on Sunday evening."`; other: `-s 165 -v en-gb+f3 "Actually, could you tell me the price
first?"`; mhm: `-s 165 -v en-us "[[m'hm]]"`; yeah: `-s 175 -v en-us+m3 "yeah"`; uh_huh: `-s 175 -v en-us+f3 "uh huh"`.
stop: `-s 150 -v en-us "stop"`; no: `-s 160 -v en-gb+f3 "No!"`, both shorter than what interrupts by its duration.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from agent.echo import EchoGuard
from agent.turn import Action, AgentState, Heard, Interrupt, Judge, Pause, Resume, Settings, TurnTaking
from agent.vad import SAMPLE_RATE, Vad

PCM = NDArray[np.int16]
Wave = NDArray[np.float64]

SPEECH = Path(__file__).parent / "golden" / "speech"
FAR_RATE = 24_000
PACKET_SECONDS = 0.02
START_AT = 100.0


@cache
def clip(name: str, rate: int = SAMPLE_RATE) -> Wave:
    """The clip at a sample rate, in units of 16-bit samples."""
    resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
    with av.open(str(SPEECH / f"{name}.opus")) as container:
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]).astype(np.float64)


def int16(wave: Wave) -> PCM:
    return np.clip(np.round(wave), -32768, 32767).astype(np.int16)


def level(wave: Wave) -> float:
    """The RMS of what is not silence, in frames of 20 ms."""
    frames = wave[: wave.size // 320 * 320].reshape(-1, 320)
    power = (frames**2).mean(axis=1)
    return float(np.sqrt(power[power > power.max() / 1000].mean()))


def onset(wave: Wave) -> float:
    """Seconds to the first 5 ms that are above 3 % of the loudest."""
    rms = np.sqrt((wave[: wave.size // 80 * 80].reshape(-1, 80) ** 2).mean(axis=1))
    return float(np.flatnonzero(rms > 0.03 * rms.max())[0] * 80 / SAMPLE_RATE)


def noise(seconds: float, rms: float = 8.0, seed: int = 0) -> Wave:
    """A quiet microphone's noise; 8 is 72 dB below full scale."""
    return rms * np.random.default_rng(seed).standard_normal(round(seconds * SAMPLE_RATE))


def cough(seconds: float = 0.15, rms: float = 4000.0, seed: int = 1) -> Wave:
    """A burst of noise between 400 Hz and 4 kHz, with a hard start and an end that fades."""
    count = round(seconds * SAMPLE_RATE)
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(count))
    hz = np.fft.rfftfreq(count, 1 / SAMPLE_RATE)
    burst = np.fft.irfft(spectrum * ((hz > 400) & (hz < 4000)), count) * np.exp(-4 * np.arange(count) / count)
    return np.asarray(burst * rms / np.sqrt((burst**2).mean()))


def room(seed: int = 0, reverberation: float = 0.3) -> Wave:
    """The impulse response of a loudspeaker that is uneven by 6 dB, and of a room with that time to lose 60 dB."""
    rng, size = np.random.default_rng(seed), 512
    hz = np.fft.rfftfreq(size, 1 / SAMPLE_RATE)
    tone = 10 ** (np.interp(hz, np.linspace(0, 8000, 9), rng.uniform(-6, 6, 9)) / 20)
    tone /= np.sqrt((1 + (250 / np.maximum(hz, 1)) ** 4) * (1 + (hz / 6000) ** 4))
    speaker = np.roll(np.fft.irfft(tone, size), size // 2) * np.hanning(size)
    at = np.arange(round(reverberation * SAMPLE_RATE)) / SAMPLE_RATE
    tail = rng.standard_normal(at.size) * 10 ** (-3 * at / reverberation)
    tail *= 0.5 / np.sqrt((tail**2).sum())
    tail[0] = 1.0
    return np.convolve(speaker, tail)[size // 2 :]


def echo_of(wave: Wave, decibels: float, response: Wave) -> Wave:
    """What comes back of a wave at 16 kHz, at a level against it."""
    size = 1 << (wave.size + response.size).bit_length()
    echo = np.fft.irfft(np.fft.rfft(wave, size) * np.fft.rfft(response, size), size)[: wave.size]
    return np.asarray(echo * 10 ** (decibels / 20) * level(wave) / level(echo))


def placed(seconds: float, *parts: tuple[float, Wave], seed: int = 0) -> Wave:
    """A microphone's sound with each part from its instant on, over quiet noise."""
    sound = noise(seconds, seed=seed)
    for starts_at, wave in parts:
        start = round(starts_at * SAMPLE_RATE)
        wave = wave[: max(0, sound.size - start)]
        sound[start : start + wave.size] += wave
    return sound


class Call:
    """A conversation in simulated time: the agent says its clip over and over, or as often as there is time, stands
    still at Pause, goes on at Resume, and is silent after Interrupt; what it sends comes back after `delay`."""

    def __init__(
        self,
        vad: Vad,
        user: Wave,
        *,
        speaks: bool = True,
        echo_db: float | None = None,
        delay: float = 0.2,
        response: Wave | None = None,
        settings: Settings | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.vad, self.user, self.delay = vad, user, delay
        self.guard = EchoGuard(FAR_RATE)
        self.turns = TurnTaking(vad.frame_samples / SAMPLE_RATE, settings, judge)
        self.state = AgentState.SPEAKING if speaks else AgentState.SILENT
        self.actions: list[Action] = []
        self.heard: list[Heard] = []
        self._far, self._near = clip("agent", FAR_RATE), clip("agent")
        self._sent = 0
        self._position = 0
        """Packets of the clip that were sent."""
        self._echo = np.zeros(user.size + 5 * SAMPLE_RATE)
        self._response = room() if response is None else response
        if echo_db is not None:
            back = np.convolve(self._near[: 5 * SAMPLE_RATE], self._response)
            self._response = self._response * 10 ** (echo_db / 20) * level(self._near[: 5 * SAMPLE_RATE]) / level(back)
        self._echoing = echo_db is not None

    def run(self) -> list[Action]:
        """All of the user's sound, frame by frame; the actions, of which the instants count from its start."""
        for start in self.starts:
            self.hear(start)
        return self.actions

    @property
    def starts(self) -> range:
        """Of all frames, in samples."""
        return range(0, self.user.size - self.vad.frame_samples + 1, self.vad.frame_samples)

    def hear(self, start: int) -> None:
        """One frame, after those before it."""
        size = self.vad.frame_samples
        at = (start + size) / SAMPLE_RATE
        while (self._sent + 1) * PACKET_SECONDS <= at:
            self._send()
        frame = int16(self.user[start : start + size] + self._echo[start : start + size])
        echo = self.guard.likelihood(frame, START_AT + at)
        self.heard.append(Heard(self.vad.probability(frame), at, echo))
        for action in self.turns.hear(self.heard[-1], self.state):
            self._follow(action)

    def _follow(self, action: Action) -> None:
        self.actions.append(action)
        if isinstance(action, Interrupt):
            self.state = AgentState.SILENT

    def _send(self) -> None:
        """The next packet of the clip, or silence, and what will come back of it."""
        at, samples = self._sent * PACKET_SECONDS, np.zeros(round(PACKET_SECONDS * FAR_RATE))
        size = round(PACKET_SECONDS * SAMPLE_RATE)
        if self.state is not AgentState.SILENT and not self.turns.paused:
            count = self._near.size // size
            index = self._position % count
            samples = self._far[index * samples.size : (index + 1) * samples.size]
            near = self._near[index * size : (index + 1) * size]
            self._position += 1
            if self._echoing:
                start = self._sent * size + round(self.delay * SAMPLE_RATE)
                back = np.convolve(near, self._response)[: max(0, self._echo.size - start)]
                self._echo[start : start + back.size] += back
        self.guard.sent(int16(samples), START_AT + at)
        self._sent += 1


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def final(actions: list[Action]) -> str:
    """What became of the reply: interrupted, paused (still), resumed or untouched."""
    names = [name for name in kinds(actions) if name in {Pause.__name__, Resume.__name__, Interrupt.__name__}]
    return names[-1] if names else "untouched"
