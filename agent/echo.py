"""Says how likely it is that what the microphone hears is only the agent's own voice, come back through a loudspeaker.

It does not know who speaks, what a turn is, or how the far signal was sent; every instant is an argument.

Far is what was sent, near is what the microphone hears. Both become band powers, because a codec, a drifting clock and
a loudspeaker spoil a waveform's coherence long before they spoil its envelope (WebRTC's AEC3 judges the residual echo
in the power domain too). The delay is where the two correlate; the gain of every band is a median over the last
seconds; what stands above the echo expected so is somebody else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PCM = NDArray[np.int16]
"""Mono samples, shape [samples]."""
Decibels = NDArray[np.float64]
"""Band powers, shape [..., NUM_BANDS]; 0 dB is a power of one least significant bit of 16."""

NEAR_RATE = 16_000
WINDOW = 0.032
HOP = 0.008
"""Seconds between two far columns: every delay is met within 4 ms."""
NEAR_HOP = 2 * HOP
MAX_DELAY = 0.56
"""Seconds from a sample's sending to its return: the network twice, two jitter buffers, the sound card, the air."""
MEMORY = 2.56
"""Seconds from which the gain is learned."""
EDGES_HZ = (
    *(150, 250, 350, 450, 550, 700, 850, 1000, 1200, 1400),
    *(1650, 1950, 2300, 2700, 3200, 3800, 4500, 5300, 6300, 7400),
)
"""Band edges, about as wide as the ear's (Zwicker's critical bands)."""
NUM_BANDS = len(EDGES_HZ) - 1
FLOOR_DB = 12.0
"""What a band has at least, less than the noise of any microphone."""
AUDIBLE_DB = 30.0
"""Far bands below can make no echo that counts."""
TAIL_DB = 1.0
"""What a band's echo loses a hop once its sound has ended: 60 dB in 0.48 s, a furnished room."""
DIRECT_DB = 10.0
"""By which reverberation may exceed the sound itself where a gain is learned: TAIL_DB is a guess, and in a dry room, or
with a phone at the ear, hardly anything is left of a sound that has ended."""
NOISE_MARGIN_DB = 5.0
"""What of a column counts as sound stands above the noise, which is followed at its lowest, by more than this."""
NARROWEST_DB, WIDEST_DB = 3.0, 9.0
SPAN_DB = 4.0
"""From the margin on, a band counts as unexplained in proportion, and wholly at the end of this span."""
NO_ECHO_SHARE, ECHO_SHARE = 0.78, 0.94
"""Explained shares at which the likelihood is 0 and 1. Measured over -6, -12 and -20 dB, 0.3 to 0.6 s of reverberation,
clipping and a gain that moves by 4 dB: of columns with echo only, 99 % have a share above 0.87."""
KEPT = 0.985
"""What is kept of the correlation a near column: half of it is younger than 0.74 s."""
MIN_COLUMNS = 8
"""Near columns with sound before a delay is believed: 128 ms."""
MIN_CORRELATION, MIN_CONTRAST = 0.55, 0.3
"""Of the best delay, and above the median delay. Echo has 0.7 to 0.9, a user's own speech mostly less than 0.45; where
it has more in its first half second (6 of 60 measured), the gain learned is so low that at most 5 frames are lost."""
FAINT_DB = 60.0
"""The sum over the bands, above noise, at which a column counts as much as the one before it: noise alone makes some
10, speech some hundreds."""
FOREIGN_DB = 1e3
"""Stands for the ratio of columns that tell nothing; sorts behind all others."""
LEARNED_COLUMNS = 32
"""Near columns with sound in a band from which its margin may be the narrowest: 0.5 s."""
LEARN_EVERY = 8
"""Near columns between two looks at the gains, which cost as much as the rest together."""

NUM_DELAYS = round(MAX_DELAY / HOP) + 1
NEAR_COLUMNS = round(MEMORY / NEAR_HOP)
AHEAD = NUM_DELAYS
"""Columns of silence that stand for what is not sent, or not yet: at no delay does the past take their place."""
FAR_COLUMNS = round(MEMORY / HOP) + NUM_DELAYS + AHEAD
MAX_SLIP = 0.03
"""Seconds by which an instant may differ from the count of samples before the count gives way: jitter is less."""


class Spectrogram:
    """Cuts a stream into Hann windows of 32 ms; the same band powers at any sample rate, for the same sound."""

    def __init__(self, rate: int, hop: float) -> None:
        self._rate, self._size, self._hop = rate, round(rate * WINDOW), round(rate * hop)
        self._window = np.hanning(self._size + 1)[:-1] / (self._size / 4)
        hz = np.arange(round(EDGES_HZ[-1] * WINDOW) + 1)[:, None] / WINDOW
        self._bands = ((hz >= EDGES_HZ[:-1]) & (hz < EDGES_HZ[1:])).astype(np.float64)
        self._rest = np.zeros(self._size - self._hop, np.int16)
        self._end_at: float | None = None

    @property
    def end_at(self) -> float | None:
        """The end of the last column's window; None before the first sample."""
        if self._end_at is None:
            return None
        return self._end_at - (self._rest.size - self._size + self._hop) / self._rate

    def push(self, samples: PCM, at: float) -> Decibels:
        """The columns that samples which end at `at` complete, [num_columns, NUM_BANDS]; a gap is silence."""
        starts_at = at - samples.size / self._rate
        slip = 0.0 if self._end_at is None else starts_at - self._end_at
        if abs(slip) > MAX_SLIP:
            silence = np.zeros(round(min(max(slip, 0.0), MEMORY) * self._rate), np.int16)
            samples, slip = np.concatenate([silence, samples]), 0.0
        self._end_at = at - 0.95 * slip  # follows the clock, not its jitter
        return self._cut(np.concatenate([self._rest, samples]))

    def _cut(self, joined: PCM) -> Decibels:
        count = max(0, (joined.size - self._size) // self._hop + 1)
        self._rest = joined[count * self._hop :]
        if not count:
            return np.empty((0, NUM_BANDS))
        windows = joined[np.arange(0, count * self._hop, self._hop)[:, None] + np.arange(self._size)]
        spectra = np.fft.rfft(windows * self._window)[:, : len(self._bands)]
        power = (spectra.real**2 + spectra.imag**2) @ self._bands
        return np.asarray(10 * np.log10(power + 10 ** (FLOOR_DB / 10)))


class Far:
    """The last seconds of what was sent, each column with the reverberation that it leaves behind."""

    def __init__(self, rate: int) -> None:
        self._spectrogram = Spectrogram(rate, HOP)
        self.levels: Decibels = np.zeros((FAR_COLUMNS + AHEAD, NUM_BANDS))
        """The sound alone, dB above what is audible, [FAR_COLUMNS + AHEAD, NUM_BANDS]."""
        self.tails: Decibels = np.full((FAR_COLUMNS + AHEAD, NUM_BANDS), FLOOR_DB)
        """With reverberation."""
        self.newest: int | None = None
        """The number of the last column, that is its end in hops; column n is in row n - newest + FAR_COLUMNS - 1."""

    def push(self, samples: PCM, at: float) -> None:
        new = self._spectrogram.push(samples, at)[-FAR_COLUMNS:]
        if not len(new):
            return
        tails, tail = new.copy(), self.tails[FAR_COLUMNS - 1]
        for column in tails:
            tail = np.maximum(column, tail - TAIL_DB, out=column)
        self.newest = round((self._spectrogram.end_at or 0.0) / HOP)
        for rows, added in ((self.levels, np.maximum(new - AUDIBLE_DB, 0.0)), (self.tails, tails)):
            rows[: FAR_COLUMNS - len(new)] = rows[len(new) : FAR_COLUMNS].copy()
            rows[FAR_COLUMNS - len(new) : FAR_COLUMNS] = added

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where columns are; those that are forgotten share the oldest row."""
        assert self.newest is not None
        return np.maximum(0, np.minimum(numbers - self.newest + FAR_COLUMNS - 1, FAR_COLUMNS + AHEAD - 1))

    def span(self, first: int, num_columns: int) -> slice:
        """Where that many columns from number `first` on are, without a copy; the oldest for those forgotten."""
        assert self.newest is not None
        start = max(0, min(first - self.newest + FAR_COLUMNS - 1, FAR_COLUMNS + AHEAD - num_columns))
        return slice(start, start + num_columns)


class DelayFinder:
    """Correlates the near columns of the last seconds with the far ones at every delay."""

    def __init__(self) -> None:
        self._columns = 0.0
        self._near_mean = np.zeros(NUM_BANDS)
        self._cross = np.zeros(NUM_DELAYS)  # the longest delay first, as the columns come
        self._far_power = np.full(NUM_DELAYS, 1e-3)
        self._near_power = 1e-3

    def observe(self, near: Decibels, far: Decibels) -> int | None:
        """Takes a near column, dB above noise, and the far ones sent up to then, dB audible, [NUM_DELAYS, NUM_BANDS].

        Returns the delay in hops, None where nothing stands out. Where nothing was sent, nothing is forgotten.
        """
        if far.max() < SPAN_DB:
            return None
        self._near_mean += 0.01 * (near - self._near_mean)
        moved, sent = near - self._near_mean, far - far.sum(axis=0) / NUM_DELAYS
        self._columns = KEPT * self._columns + bool(near.max() > 2 * NOISE_MARGIN_DB)
        self._cross = KEPT * self._cross + sent @ moved
        self._far_power = KEPT * self._far_power + np.einsum("db,db->d", sent, sent)
        self._near_power = KEPT * self._near_power + float(moved @ moved)
        return self._best()

    def _best(self) -> int | None:
        correlation = self._cross / np.sqrt(self._far_power * self._near_power)
        best = int(correlation.argmax())
        if self._columns < MIN_COLUMNS or correlation[best] < MIN_CORRELATION:
            return None
        median = np.partition(correlation, NUM_DELAYS // 2)[NUM_DELAYS // 2]
        return NUM_DELAYS - 1 - best if correlation[best] - median >= MIN_CONTRAST else None


class EchoGuard:
    """Likelihood of echo for frames of the microphone, given what was sent.

    Frames and packets may come in any interleaving, each kind in order of time, on one clock. Until the first 0.2 s of
    an echo have been heard there is no delay, and no likelihood. A user who speaks over an echo 6 dB louder than they
    are stands out in about half of the frames, at equal level in two thirds.
    """

    def __init__(self, far_rate: int) -> None:
        self._far_rate = far_rate
        self._far, self._near = Far(far_rate), Spectrogram(NEAR_RATE, NEAR_HOP)
        self._finder = DelayFinder()
        self._delay_hops: int | None = None
        self._noise: Decibels = np.full(NUM_BANDS, 40.0)
        self._gain: Decibels = np.full(NUM_BANDS, -FLOOR_DB - 100.0)
        self._margin: Decibels = np.full(NUM_BANDS, WIDEST_DB)
        self._columns: Decibels = np.full((NEAR_COLUMNS, NUM_BANDS), FLOOR_DB)
        self._numbers = np.full(NEAR_COLUMNS, np.iinfo(np.int32).min, np.int64)
        """The far column that ended with each near one."""
        self._until_learning = 0
        self._column = self._last = 0.0
        """The likelihoods of the last column and of the last frame."""

    @property
    def delay(self) -> float | None:
        """Seconds from sending to hearing, within 8 ms; None before an echo was found."""
        return None if self._delay_hops is None else self._delay_hops * HOP

    @property
    def gain_db(self) -> float | None:
        """The echo's level against what was sent, the median band; None before an echo was found."""
        return None if self._delay_hops is None else float(np.median(self._gain))

    def sent(self, samples: PCM, at: float) -> None:
        """Takes what is sent from instant `at` on, int16 [samples] at the far rate. What is not told was silence."""
        self._far.push(samples, at + samples.size / self._far_rate)

    def likelihood(self, frame: PCM, at: float) -> float:
        """How likely a frame of the microphone that ends at `at` is echo alone, 0 to 1; int16 [samples] at 16 kHz.

        It is the mean of the columns that the frame completes, and for a frame that completes none the last one's.
        """
        columns = self._near.push(frame, at)
        end_at = self._near.end_at
        assert end_at is not None
        ends = [end_at - (len(columns) - 1 - n) * NEAR_HOP for n in range(len(columns))]
        found = [self._judge(column, ends_at) for column, ends_at in zip(columns, ends, strict=True)]
        self._last = sum(found) / len(found) if found else self._last
        return self._last

    def _judge(self, near: Decibels, at: float) -> float:
        self._noise = np.where(near < self._noise, 0.7 * self._noise + 0.3 * near, self._noise + 0.02)
        if self._far.newest is None:
            return 0.0
        number = round(at / HOP)
        self._remember(near, number)
        loud = np.maximum(near - self._noise - NOISE_MARGIN_DB, 0.0)
        self._look_for_echo(loud, number)
        if self._delay_hops is not None:
            self._column = self._explained(near, loud, number - self._delay_hops)
        return self._column

    def _remember(self, near: Decibels, number: int) -> None:
        self._columns[:-1], self._numbers[:-1] = self._columns[1:].copy(), self._numbers[1:].copy()
        self._columns[-1], self._numbers[-1] = near, number

    def _look_for_echo(self, loud: Decibels, number: int) -> None:
        far = self._far.levels[self._far.span(number - NUM_DELAYS + 1, NUM_DELAYS)]
        found = self._finder.observe(loud, far)
        fresh = found is not None and self._delay_hops is None
        self._delay_hops = self._delay_hops if found is None else found
        self._until_learning -= 1
        if self._delay_hops is not None and (fresh or self._until_learning <= 0):
            self._until_learning = LEARN_EVERY
            self._learn(self._delay_hops)

    def _learn(self, delay_hops: int) -> None:
        """Each band's gain is the median of near against far, its margin half as much again as the spread below it.

        Whoever speaks over the echo only raises levels, so that the lower half is the echo's own. Where the echo ends
        (a headset is plugged in), the median falls to the noise within MEMORY, and nothing is explained any more.
        """
        rows = self._far.rows(self._numbers - delay_hops)
        levels, tails = self._far.levels[rows], self._far.tails[rows]
        sounding = (levels > SPAN_DB) & (rows > 0)[:, None]  # row 0 stands for all that is forgotten
        sounding &= levels > tails - AUDIBLE_DB - DIRECT_DB
        ratios = np.sort(np.where(sounding, self._columns - tails, FOREIGN_DB), axis=0)
        count, bands = sounding.sum(axis=0), np.arange(NUM_BANDS)
        low, middle = ratios[count // 5, bands], ratios[count // 2, bands]
        known = count >= MIN_COLUMNS
        self._gain[known] = middle[known]
        least = np.maximum(NARROWEST_DB, WIDEST_DB * (1.0 - count / LEARNED_COLUMNS))
        self._margin[known] = np.clip(1.5 * (middle - low), least, WIDEST_DB)[known]

    def _explained(self, near: Decibels, loud: Decibels, number: int) -> float:
        """The likelihood from the share of the sound above noise that the expected echo explains.

        A column that hardly stands above the noise says little, and leaves what the one before has said: a VAD goes
        on with a word's end, and so must this.
        """
        expected = self._far.tails[self._far.span(number - 1, 3)].max(axis=0) + self._gain
        excess = np.minimum(np.maximum(near - expected - self._margin, 0.0) / SPAN_DB, 1.0)
        total = float(loud.sum())
        share = 1.0 - float(loud @ excess) / max(total, 1.0)
        likelihood = min(1.0, max(0.0, (share - NO_ECHO_SHARE) / (ECHO_SHARE - NO_ECHO_SHARE)))
        return (total * likelihood + FAINT_DB * self._column) / (total + FAINT_DB)
