"""Makes sound shorter or longer by one wave of its pitch, and guesses how it goes on where some of it is missing.

It knows neither packets nor buffers, nor when either is called for. After libwebrtc's NetEQ (public source,
modules/audio_coding/neteq: time_stretch, accelerate, preemptive_expand, expand, merge, normal, background_noise): the
same lengths, thresholds and slopes, in floats instead of fixed point. Its waves are therefore as long as NetEQ's, but
the noise in a guess is another.

Sound is float64 [samples] at 48 kHz, mono, in steps of int16.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Sound = NDArray[np.float64]

MS = 48
"""Samples."""
WINDOW = 30 * MS
"""What a change of length needs to see."""
HALF = 15 * MS
"""Its middle, and the longest wave."""
OVERLAP = 30
"""Samples that are faded where a guess begins: NetEQ always keeps that many more than it gives out."""
PAST = 256 * 6
"""Samples that a guess is made from."""
THINNING = 12
"""48 kHz / 4 kHz: pitch is looked for in sound of the lower rate."""
SMOOTH = np.array([0.2487, 0.0952, 0.1042, 0.1074, 0.1042, 0.0952, 0.2487])
"""What it is smoothed with before."""
SHORTEST = 10 * THINNING
"""2.5 ms, the shortest wave."""
ALIKE = 0.9
"""How much alike two waves must be for one to be left out or played twice: the correlation coefficient."""
MERGED_FROM = 202 * 6
"""Samples of a guess among which the place is looked for where new sound fits on."""
FULL = 16_384
"""A level of 1: NetEQ keeps its levels as multiples of 1/16384, and a guess is silent when that is 0."""

EVERY_WAVE = 1 / 128
"""By which a guess gets quieter with each wave, beside its slope: NetEQ rounds its gain down by that much."""


# ---- pitch ------------------------------------------------------------------------------------------------------


def thinned(sound: Sound, centre: int, count: int) -> Sound:
    """`count` samples at 4 kHz, of which the first one lies at sample `centre` of the sound; whole numbers, so that
    the decoder's silence, of steps of 1, is none of a pitch."""
    first = centre - SMOOTH.size // 2
    windows = np.lib.stride_tricks.sliding_window_view(sound, SMOOTH.size)
    low: Sound = np.rint(windows[first : first + THINNING * (count - 1) + 1 : THINNING] @ SMOOTH)
    return low


def correlations(sound: Sound, at: int, length: int, lags: range) -> Sound:
    """Of sound[at : at + length] with what lies each of `lags` samples before."""
    span = sound[at - lags[-1] : at - lags[0] + length]
    return np.correlate(span, sound[at : at + length])[::-1]


def peak(values: Sound, index: int) -> tuple[int, float]:
    """Where between the values their peak near `index` lies, in samples at 48 kHz, and how high: a parabola's."""
    if index == 0:
        return 0, float(values[0])
    before, at, after = (float(value) for value in values[index - 1 : index + 2])
    bend = before - 2 * at + after
    off = min(0.5, max(-0.5, (before - after) / (2 * bend))) if bend else 0.0
    return THINNING * index + round(THINNING * off), at - (before - after) * off / 4


@dataclass(frozen=True, slots=True)
class Pitch:
    """Of 30 ms: the length of a wave in samples, how much the wave before the middle is like the one behind it (-1 to
    1), and whether this is more than the noise between words."""

    wave: int
    alike: float
    active: bool

    @classmethod
    def of(cls, sound: Sound, noise: Noise) -> Pitch:
        low = thinned(sound, 7, 110)
        found = np.append(correlations(low, 60, 50, range(10, 60)), 0.0)
        wave = min(HALF, peak(found, int(np.argmax(found[:-1])))[0] + SHORTEST)
        before, behind = sound[HALF - wave : HALF], sound[HALF : HALF + wave]
        energies = float(before @ before), float(behind @ behind)
        product = float(np.sqrt(energies[0] * energies[1]))
        alike = float(before @ behind) / product if product else 0.0
        return cls(wave, alike, sum(energies) / 16 * headroom(sound, wave) > wave * noise.threshold)


def headroom(sound: Sound, wave: int) -> int:
    """The factor that NetEQ's energies were divided by to fit into 32 bits, and by whose square it multiplies them
    again: loud sound is taken for speech sooner than quiet sound."""
    largest = int(np.abs(sound).max())
    return 1 << max(0, (largest * largest).bit_length() + wave.bit_length() - 31)


# ---- changes of length --------------------------------------------------------------------------------------------


def shortened(tape: Sound, noise: Noise) -> Sound | None:
    """The sound without the wave behind its middle, faded; None where that would be heard.

    tape: [2, samples], at least 30 ms; the second row goes with the first, unfaded."""
    pitch = Pitch.of(tape[0], noise)
    if pitch.active and pitch.alike <= ALIKE:
        return None
    wave = pitch.wave
    faded = np.concatenate([tape[:, :HALF], tape[:, HALF + wave :]], axis=1)
    faded[0, HALF - wave : HALF] = crossfaded(tape[0, HALF - wave : HALF], tape[0, HALF : HALF + wave])
    return faded


def lengthened(tape: Sound, played: int, noise: Noise) -> Sound | None:
    """The sound with one wave twice, not before sample `played`; None where that would be heard. As `shortened`."""
    if played >= tape.shape[1] - OVERLAP:
        return None
    pitch = Pitch.of(tape[0], noise)
    if pitch.active and (pitch.alike <= ALIKE or played > HALF):
        return None
    wave = pitch.wave if pitch.active else min(pitch.wave, tape.shape[1] - played)
    at = max(played, HALF)
    wave = min(wave, tape.shape[1] - at)
    again = tape[:, at : at + wave].copy()
    again[0] = crossfaded(again[0], tape[0, at - wave : at])
    return np.concatenate([tape[:, :at], again, tape[:, at:]], axis=1)


def crossfaded(old: Sound, new: Sound) -> Sound:
    """From the one into the other, in a straight line."""
    share = np.arange(1, old.size + 1) / (old.size + 1)
    return old + share * (new - old)


def risen(sound: Sound, level: float, step: float) -> Sound:
    """Under a level that grows by `step` a sample, up to 1."""
    grown: Sound = sound * np.minimum(1.0, level + step * np.arange(sound.size))
    return grown


# ---- the noise between words --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Noise:
    """How loud the noise behind the speech is, in mean squares: the quietest that was heard and has no pitch."""

    energy: float = 2500.0
    known: bool = False
    _limit: float = 500_000.0
    _loudest: float = 0.0

    @property
    def threshold(self) -> float:
        """What speech must exceed."""
        return self.energy if self.known else 75_000.0

    def observe(self, sound: Sound) -> None:
        """256 samples that were decoded and not changed. What the decoder makes of silence is no noise."""
        sum_of_squares = float(sound @ sound)
        energy = float(sum_of_squares // sound.size)
        if energy >= self._limit:
            self._loosen(energy)
        elif sum_of_squares > 0:
            self._limit = max(energy, 1.0)
            if energy > 0 and flat(sound, energy):
                self.energy, self.known = energy, True

    def _loosen(self, energy: float) -> None:
        """By a factor of 4 in 4 s."""
        self._limit += self._limit * 229 / 65_536
        self._loudest = max(energy, self._loudest * (1 - 1 / 1024))
        self._limit = max(self._limit, float(round(self._loudest / 2**20)))


def flat(sound: Sound, energy: float) -> bool:
    """Whether the sound's spectrum is flat: what is left of it after prediction is not much less."""
    taps = predictor(sound, 8)
    if taps is None:
        return False
    left = np.convolve(sound[-64 - taps.size + 1 :], taps, "valid")
    return 5 * float(left @ left) >= 16 * energy


def predictor(sound: Sound, order: int) -> Sound | None:
    """The taps of the whitening filter, [order + 1], by Levinson and Durbin; None where none is stable."""
    correlation = np.array([sound[: sound.size - lag] @ sound[lag:] for lag in range(order + 1)])
    error = float(correlation[0])
    if error <= 0:
        return None
    taps = np.zeros(order + 1)
    taps[0] = 1.0
    for lag in range(1, order + 1):
        reflection = -float(taps[:lag] @ correlation[lag:0:-1]) / error
        if abs(reflection) >= 0.9995:
            return None
        taps[: lag + 1] += reflection * taps[lag::-1]
        error *= 1 - reflection * reflection
    return taps


# ---- guesses ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Guess:
    """How sound goes on: its last waves again and again, more and more as noise, more and more quietly.

    Begins with the first `more` after `reset`."""

    level: int = FULL
    """What its end has of the sound's level, of FULL."""
    longest: int = 0
    """Samples of the longer one of the two waves that it may be made of."""
    _fresh: bool = True
    _steady: bool = False
    """Goes on at the level that it has: something is to be joined on."""
    _count: int = 0
    _lags: tuple[int, int, int] = (0, 0, 0)
    _turn: int = -1
    _direction: int = 1
    _waves: tuple[Sound, Sound] = (np.zeros(0), np.zeros(0))
    _voice: float = 0.0
    """What is to be left of the waves, when noise has come in."""
    _mix: float = 1.0
    """What is left of them now."""
    _slope: float = 0.0
    """By which the level falls with each sample, 1 at full level."""
    _onset: bool = False
    """The sound was growing: its first guess is not muted."""
    _noise: Sound = field(default_factory=lambda: np.zeros(1))
    """The response of the sound's own colour to a click."""
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    @property
    def silent(self) -> bool:
        return self.level == 0

    @property
    def muted(self) -> bool:
        """Whether nothing but silence will come of it."""
        return not self._fresh and not self._steady and self.silent

    def reset(self) -> None:
        """What comes next is about other sound."""
        self._fresh, self._count, self.longest = True, 0, 0

    def join_merge(self) -> None:
        """New sound that lies further on is to be joined on."""
        self._turn, self._direction, self._steady = -1, 1, True

    def join_next(self) -> None:
        """The very next sound is to be joined on."""
        self._turn, self._direction, self._steady = 0, 0, True

    def more(self, past: Sound) -> Sound:
        """The next samples, one wave. The last samples of `past` are faded into it, in place."""
        if self._fresh:
            self._analyse(past[-PAST:])
        self._next_turn()
        lag = self._lags[self._turn]
        wave = self._wave(lag)
        if self.level > 0.05 * FULL and self._mix > 0.5:
            past[-OVERLAP:] = crossfaded(past[-OVERLAP:], wave[:OVERLAP] * (self.level / FULL))
        sound = self._mixed(wave[OVERLAP:])
        self._steepen()
        sound = self._faded(sound)
        self._count = min(200, self._count + 1)
        return sound

    def _next_turn(self) -> None:
        self._turn += self._direction
        if self._turn <= 0:
            self._direction = 1
        if self._turn >= len(self._lags) - 1:
            self._direction = -1

    def _wave(self, lag: int) -> Sound:
        """One wave and what it is faded with: of the last one more than of the one before."""
        last, before = (wave[-lag - OVERLAP :] for wave in self._waves)
        share = (1.0, 0.75, 0.5)[self._turn]
        return share * last + (1 - share) * before

    def _mixed(self, wave: Sound) -> Sound:
        """With noise, more and more of it until the wave has the share `_voice`."""
        step = 0.0 if self._steady else (256 >> (self.longest.bit_length() - 5)) / FULL
        noise = np.convolve(self._random.standard_normal(wave.size), self._noise)[: wave.size]
        share: Sound = np.maximum(min(self._voice, self._mix), self._mix - step * np.arange(wave.size))
        if step:
            self._mix = max(self._voice, self._mix - step * wave.size)
        return share * wave + (1 - share) * noise

    def _steepen(self) -> None:
        """5 % in 6.25 ms from the fourth wave on, 10 % from the eighth."""
        if self._count == 3:
            self._slope = max(self._slope, (1049 // 6) / 2**20)
        if self._count == 7:
            self._slope = max(self._slope, (2097 // 6) / 2**20)

    def _faded(self, sound: Sound) -> Sound:
        if self._count == 0 and self._onset:
            return sound
        sound = sound * (self.level / FULL)
        if self._steady:
            return sound
        fade: Sound = np.maximum(0.0, 1 - self._slope * np.arange(sound.size))
        level = round(self.level * max(0.0, 1 - self._slope * sound.size - EVERY_WAVE))
        self.level = 0 if self._count > 3 and level >= self.level else level
        return sound * fade

    # -- what the sound was like

    def _analyse(self, past: Sound) -> None:
        self._fresh, self._steady, self._count, self.level, self._mix = False, False, 0, FULL, 1.0
        self._turn, self._direction = -1, 1
        nearest, alike = waves(past)
        self.longest = max(nearest, alike)
        middle = nearest + alike
        self._lags = (nearest, middle // 2, (middle - 1) // 2 if nearest > alike else (middle + 1) // 2)
        if nearest == alike:
            self._lags = (nearest,) * 3
        ratio = self._cut(past, nearest)
        self._voice = voiced(coefficient(past, nearest, alike))
        self._colour(past)
        self._set_slope(ratio, nearest)

    def _cut(self, past: Sound, nearest: int) -> float:
        """Takes the last wave and the one before at the same level; returns how much louder the last one was."""
        length = self.longest + OVERLAP
        last = past[-length:]
        before = past[past.size - length - nearest : past.size - nearest]
        energies = float(last @ last), float(before @ before)
        if energies[0] / 4 < energies[1] and energies[0] > energies[1] / 4:
            ratio = float(np.sqrt(energies[0] / energies[1]))
            self._waves = last.copy(), ratio * before
            return ratio
        self._waves = last.copy(), last.copy()
        return 0.5 if energies[0] / 4 < energies[1] or energies[1] == 0 else 2.0

    def _colour(self, past: Sound) -> None:
        taps = predictor(past[-160 * 6 :], 6)
        if taps is None:
            taps = np.array([1.0, 0, 0, 0, 0, 0, 0])
        left = np.convolve(past[-128 - 6 :], taps, "valid")
        self._noise = np.sqrt(float(left @ left) / left.size) * response(taps, 96)

    def _set_slope(self, ratio: float, nearest: int) -> None:
        """How fast it gets quieter: as fast as the sound did, and at once where it has no pitch."""
        self._onset = ratio > 1.5
        if self._onset:
            self._slope = (1 - 1 / ratio) / nearest / (2 if ratio > 1.8 else 8)
            return
        self._slope = (1 - ratio) / nearest
        if self._voice <= 0.8:
            self._slope = max(self._slope, (5243 // 6) / 2**20)
        elif ratio > 0.98:
            self._slope = 0.0
        self._slope = max(0.0, self._slope)


def waves(past: Sound) -> tuple[int, int]:
    """The lengths of the last wave: at which it differs least from the one before, and at which it is most alike."""
    low = thinned(past, past.size - 124 * THINNING - 3, 124)
    found = correlations(low, 64, 60, range(10, 64))[:51]
    best, chosen = -np.inf, (SHORTEST, SHORTEST)
    for _ in range(3):
        index = int(np.argmax(found[:-1]))
        place, height = peak(found, index)
        found[max(0, index - 2) : index + 3] = 0.0
        nearest, distance = least_different(past, place + SHORTEST)
        ratio = height / distance if distance > 0 else (np.inf if height else 0.0)
        if ratio > best:
            best, chosen = ratio, (nearest, min(place + SHORTEST, HALF))
    return chosen


def least_different(past: Sound, around: int) -> tuple[int, float]:
    """Which lag near `around` brings the last 2.5 ms closest to what was before, and how close."""
    lags = range(max(SHORTEST, around - 24), min(HALF - 1, around + 24) + 1)
    end = past[-120:]
    span = past[past.size - 120 - lags[-1] : past.size - lags[0]]
    distances = np.abs(np.lib.stride_tricks.sliding_window_view(span, 120)[::-1] - end).sum(axis=1)
    index = int(np.argmin(distances))
    return lags[index], float(distances[index])


def coefficient(past: Sound, nearest: int, alike: int) -> float:
    """The largest correlation coefficient of the end with what lies between the two lags before."""
    length = max(min(nearest + 10, HALF), 60 * 6)
    lags = range(min(nearest, alike), max(nearest, alike) + 1)
    found = correlations(past, past.size - length, length, lags)
    lag = lags[int(np.argmax(found))]
    end, before = past[-length:], past[past.size - length - lag : past.size - lag]
    product = float(np.sqrt((end @ end) * (before @ before)))
    return float(found.max()) / product if product else 0.0


def voiced(alike: float) -> float:
    """Which part of the guess stays a wave where two waves were that much alike."""
    if alike <= 0.48:
        return 0.0
    return float(min(1.0, max(0.0, (-5179 + 19931 * alike - 16422 * alike**2 + 5776 * alike**3) / 4096)))


def response(taps: Sound, count: int) -> Sound:
    """What comes out of the inverse of a whitening filter after a click."""
    out = np.zeros(count + taps.size - 1)
    backwards = -taps[:0:-1]
    start = taps.size - 1
    out[start] = 1.0
    for index in range(start + 1, out.size):
        out[index] = backwards @ out[index - start : index]
    return out[start:]


# ---- back from a guess --------------------------------------------------------------------------------------------


def resumed(past: Sound, guess: Guess, sound: Sound, noise: Noise) -> Sound:
    """The very next sound after a guess: it grows to its level, and is faded in over 1 ms."""
    guess.join_next()
    expected = guess.more(past)
    head = sound[: 64 * 6]
    energy = float(head @ head) / head.size
    level = max(guess.level / FULL, min(1.0, float(np.sqrt(noise.energy / energy))) if energy > noise.energy else 1.0)
    guess.reset()
    step = max(64 // 6, (FULL - round(level * FULL)) // sound.size) / FULL
    grown = risen(sound, level, step)
    length = min(MS, grown.size, expected.size)
    grown[:length] = crossfaded(expected[:length], grown[:length])
    return grown


def merged(past: Sound, ahead: int, guess: Guess, sound: Sound) -> tuple[Sound, int]:
    """Joins sound on that lies further on: where it fits best on the last `ahead` samples of `past` and more guesses.

    Returns what takes the place of those samples, and how many of it are guesses."""
    guess.join_merge()
    more = guess.more(past)
    left = past[past.size - ahead :]
    times = max(0, -(-(MERGED_FROM - ahead) // more.size))
    expected = np.concatenate([left, *([more] * times)])[:MERGED_FROM]
    level = max(guess.level / FULL, min(1.0, loudness_ratio(expected, sound)))
    at = best_place(expected, sound, ahead, guess.longest)
    length = min(60 * 6, expected.size - at, sound.size)
    step = max((4194 // 6) / 2**20, (1 - level) / sound.size)
    grown = risen(sound, level, step)
    grown[:length] = crossfaded(expected[at : at + length], grown[:length])
    guess.reset()
    return np.concatenate([expected[:at], grown]), at


def loudness_ratio(expected: Sound, sound: Sound) -> float:
    """The guess's amplitude by the sound's."""
    length = min(64 * 6, sound.size)
    energies = float(expected[:length] @ expected[:length]), float(sound[:length] @ sound[:length])
    return float(np.sqrt(energies[0] / energies[1])) if energies[1] > energies[0] else 1.0


def best_place(expected: Sound, sound: Sound, ahead: int, longest: int) -> int:
    """The sample of `expected` at which the sound is most alike; not so early that less than 10 ms come of both."""
    low = thinned(expected, 3, 100)
    count = min(40, (sound.size - SMOOTH.size) // THINNING)
    if sound.size <= 10 * MS or count < 40:
        head = np.zeros(40)
        head[: max(0, count)] = thinned(sound, 3, count) if count > 0 else 0.0
    else:
        head = thinned(sound, 3, 40)
    stop = min(60, longest // THINNING + 1)
    values = np.zeros(60 + OVERLAP)
    values[:stop] = np.correlate(low[: stop + 39], head)
    first = max(ahead, 10 * MS + OVERLAP) - sound.size
    first = max(0, first)
    skipped = first // THINNING
    searched = values[skipped : skipped + min(stop, 60 + OVERLAP - 1 - skipped) + 1]
    return first + peak(searched, int(np.argmax(searched[:-1])))[0] if searched.size > 1 else first
