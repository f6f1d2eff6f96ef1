"""What a listener with libwebrtc would have heard of the packets that came, and when: its jitter buffer, as a model.

It does not know whose packets they are, why some came late, or what is said in them; it reads no clock. After public
sources of libwebrtc's NetEQ (modules/audio_coding/neteq: delay_manager, underrun_optimizer, reorder_optimizer,
histogram, packet_arrival_history, buffer_level_filter, decision_logic, packet_buffer, neteq_impl, as of milestone 106,
which npm's @roamhq/wrtc 0.10.0 has), with the values that a browser's call has. tests/test_probe_neteq.py holds it
against that package. Not modelled: comfort noise packets (RFC 3389), tones (RFC 4733), redundancy (RFC 2198), more than
one codec, and a page's `jitterBufferTarget`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from agent.opus import OpusDecoder
from agent.probe.recording import RATE, Heard, Packet, Pcm
from agent.probe.stretch import MS, OVERLAP, WINDOW, Guess, Noise, Sound, lengthened, merged, resumed, shortened
from agent.toc import frame_ticks, packet_ticks, silence_follows

BLOCK_MS = 10
BLOCK = BLOCK_MS * MS
"""Samples that are given out at once."""
BLOCK_SECONDS = BLOCK / RATE
START_MS = 80
"""The target until half a second of packets was seen."""
BUCKET_MS, BUCKETS = 20, 100
WHOLE = 1 << 30
"""A share of 1 in a histogram: NetEQ counts in fixed point, so that small shares vanish some day."""
QUANTILE, FORGET = 0.95, 0.983
REORDER_FORGET = 0.9993
MS_PER_PERCENT = 20
"""What NetEQ waits in order not to lose one more packet of a hundred to reordering."""
INTERVAL_MS = 500
"""Of each, the longest delay enters the histogram."""
SEEN_MS = 2000
"""How far back delays are compared."""
MAX_PACKETS = 200
HORIZON = 5 * RATE
"""Ticks: what is older by more belongs to another stream, and is no late packet."""
STRETCH_EVERY = 5
"""Blocks from one change of length to the next."""
LOW_OFFSET_MS, WINDOW_MS = 85, 20
MAX_WAIT, REINIT = 10, 100
"""Guessed blocks after which a packet farther on is played all the same, and after which all begins anew."""
QUIET_MS = 50
"""Half of what a pause in which nothing is sent (DTX) may change the delay by."""
KEPT = 3 * WINDOW
"""Samples that are remembered after they were given out."""


# ---- how long to wait ---------------------------------------------------------------------------------------------


class Histogram:
    """Shares of buckets of 20 ms, the newer the more."""

    def __init__(self, forget: float) -> None:
        self.shares = np.zeros(BUCKETS, np.int64)
        self._most, self._forget, self._count = int(forget * (1 << 15)), 0, 0

    def add(self, bucket: int) -> None:
        self.shares = self.shares * self._forget >> 15
        self.shares[bucket] += (1 << 15) - self._forget << 15
        self.shares[0] += WHOLE - int(self.shares.sum())
        self._count += 1
        self._forget = max(0, min(self._most, int((1 << 15) * (1 - 2 / (self._count + 1)))))

    def quantile(self, share: float) -> int:
        """The first bucket up to which at least this share lies."""
        above = WHOLE - np.cumsum(self.shares)
        return int(np.argmax(above <= WHOLE - int(share * WHOLE)))

    def cheapest(self, base_ms: int) -> int:
        """The bucket up to which waiting costs less than losing what lies above."""
        if self.shares[0] >= WHOLE:
            return 0
        lost = (WHOLE - np.cumsum(self.shares)) / WHOLE
        waited = np.maximum(0, BUCKET_MS * np.arange(BUCKETS) - base_ms)
        return int(np.argmin(waited + 100 * MS_PER_PERCENT * lost))


class Target:
    """How many milliseconds of packets are to be held, by how late packets come: later than the least late one of the
    last two seconds."""

    def __init__(self) -> None:
        self.ms = START_MS
        self._spans: deque[tuple[int, int]] = deque()
        """Of each packet: its timestamp in ms, and its arrival less that."""
        self._least = 0
        """Of those."""
        self._newest = -1
        self._late, self._swapped = Histogram(FORGET), Histogram(REORDER_FORGET)
        self._underrun_ms: int | None = None
        self._since_ms: int | None = None
        self._most_ms = 0

    def observe(self, timestamp: int, now_ms: int, packet_ms: int) -> None:
        """A packet has come; its timestamp is unwrapped."""
        stamp_ms = timestamp // MS
        swapped = timestamp < self._newest
        self._newest = max(self._newest, timestamp)
        self._remember(stamp_ms, now_ms - stamp_ms)
        if len(self._spans) < 2:
            return
        delay_ms = now_ms - stamp_ms - self._least
        if not swapped:
            self._observe_late(delay_ms, now_ms)
        self._set(delay_ms, swapped, packet_ms)

    def _remember(self, stamp_ms: int, span: int) -> None:
        self._least = min(self._least, span) if self._spans else span
        self._spans.append((stamp_ms, span))
        least_gone = False
        while self._spans[0][0] + SEEN_MS < stamp_ms:
            least_gone |= self._spans.popleft()[1] == self._least
        if least_gone:
            self._least = min(span for _, span in self._spans)

    def _observe_late(self, delay_ms: int, now_ms: int) -> None:
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms > INTERVAL_MS:
            if self._most_ms < BUCKET_MS * BUCKETS:
                self._late.add(self._most_ms // BUCKET_MS)
            self._underrun_ms = BUCKET_MS * (1 + self._late.quantile(QUANTILE))
            self._since_ms, self._most_ms = now_ms, 0
        self._most_ms = max(self._most_ms, delay_ms)

    def _set(self, delay_ms: int, swapped: bool, packet_ms: int) -> None:
        underrun_ms = START_MS if self._underrun_ms is None else self._underrun_ms
        bucket = delay_ms // BUCKET_MS if swapped else 0
        if bucket < BUCKETS:
            self._swapped.add(bucket)
        self.ms = max(underrun_ms, BUCKET_MS * (1 + self._swapped.cheapest(underrun_ms)))
        if packet_ms:
            self.ms = min(self.ms, MAX_PACKETS * packet_ms * 3 // 4)


@dataclass(slots=True)
class Level:
    """Samples that lie in the packet buffer, smoothed. Counted in 1/256 and rounded as NetEQ does: a level often stands
    right at a limit."""

    parts: int = 0

    @property
    def samples(self) -> int:
        return (self.parts + 128) >> 8

    def observe(self, samples: int, target_ms: int, removed: int) -> None:
        """removed: samples by which the sound was shortened since."""
        share = next((share for most, share in ((20, 251), (60, 252), (140, 253)) if target_ms <= most), 254)
        self.parts = max(0, (share * self.parts >> 8) + (256 - share) * samples - 256 * removed)


# ---- packets ------------------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """What one packet holds, or the copy of the one before in it (in-band FEC): its timestamp is unwrapped."""

    timestamp: int
    sequence: int
    payload: bytes
    came_at: float
    tick: int
    copy: bool

    @property
    def ticks(self) -> int:
        """0 where it cannot be told."""
        return frame_ticks(self.payload[0]) if self.copy else packet_ticks(self.payload)

    @property
    def dtx(self) -> bool:
        return silence_follows(self.payload)


def has_copy(payload: bytes) -> bool:
    """Whether a packet carries a copy of the frame before: the flag behind those of voice activity, of either channel
    (RFC 6716, section 4.2.4; only in SILK, of 20 ms at least once)."""
    if len(payload) < 2 or payload[0] & 0x80:
        return False
    code, start = payload[0] & 3, 1
    if code == 2:
        start += 1 if payload[1] < 252 else 2
    if code == 3:
        start = after_lengths(payload)
    if len(payload) <= start:
        return False
    flags = max(1, frame_ticks(payload[0]) // 960)
    channels = 2 if payload[0] & 4 else 1
    return any(payload[start] & (0x80 >> (channel * (flags + 1) - 1)) for channel in range(1, channels + 1))


def after_lengths(payload: bytes) -> int:
    """Where the first frame of a packet of many frames begins (RFC 6716, section 3.2.5)."""
    at = 2
    if payload[1] & 0x40:
        while at < len(payload) and payload[at] == 255:
            at += 1
        at += 1
    if payload[1] & 0x80:
        for _ in range((payload[1] & 0x3F) - 1):
            at += 1 if at < len(payload) and payload[at] < 252 else 2
    return at


def unwrapped(value: int, bits: int, near: int | None) -> int:
    """The count whose last `bits` bits are the value, next to `near`."""
    if near is None:
        return value
    half = 1 << (bits - 1)
    return near + (value - near + half) % (2 * half) - half


class Frames:
    """What has come and was not decoded yet, in the order of time."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []

    def __bool__(self) -> bool:
        return bool(self._frames)

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def first(self) -> Frame | None:
        return self._frames[0] if self._frames else None

    @property
    def any_dtx(self) -> bool:
        return any(frame.dtx for frame in self._frames)

    def clear(self) -> None:
        self._frames.clear()

    def insert(self, frame: Frame) -> None:
        """What is there twice is kept once, a packet rather than a copy."""
        at = len(self._frames)
        while at and self._frames[at - 1].timestamp > frame.timestamp:
            at -= 1
        if at and self._frames[at - 1].timestamp == frame.timestamp:
            if self._frames[at - 1].copy and not frame.copy:
                self._frames[at - 1] = frame
            return
        self._frames.insert(at, frame)

    def drop(self, before: int, horizon: int | None = HORIZON) -> None:
        """What is older than that timestamp, by no more than the horizon."""
        if not self._frames or self._frames[0].timestamp >= before:
            return
        oldest = -math.inf if horizon is None else before - horizon
        self._frames = [frame for frame in self._frames if not oldest < frame.timestamp < before]

    def pop(self) -> Frame:
        return self._frames.pop(0)

    def span(self, last_samples: int, tick: int) -> int:
        """Samples from the beginning of the first one to the end of the last one."""
        if not self._frames:
            return 0
        last = self._frames[-1]
        lasts = last.ticks or last_samples
        if last.dtx and last.ticks:
            lasts = max(lasts, (tick - last.tick) * BLOCK)
        return last.timestamp - self._frames[0].timestamp + lasts


# ---- the buffer ---------------------------------------------------------------------------------------------------


class Do(Enum):
    """What to do for the next block."""

    NORMAL = auto()
    SHORTEN = auto()
    LENGTHEN = auto()
    GUESS = auto()
    MERGE = auto()
    SILENCE = auto()
    """The decoder's own, in a pause in which nothing is sent (DTX)."""


class Done(Enum):
    """What was done last."""

    NORMAL = auto()
    STRETCHED = auto()
    UNSTRETCHED = auto()
    """It was to be, but would have been heard."""
    GUESSED = auto()
    MERGED = auto()
    SILENCE = auto()


STRETCHES = (Do.SHORTEN, Do.LENGTHEN)


@dataclass(slots=True)
class Totals:
    """As inbound-rtp counts them (https://www.w3.org/TR/webrtc-stats/), in samples and seconds, from the first packet
    on."""

    concealed: int = 0
    silent_concealed: int = 0
    inserted: int = 0
    removed: int = 0
    delay: float = 0.0
    """Summed over all samples, the time that their packets lay in the buffer."""
    emitted: int = 0
    _owed: int = 0
    _owed_silent: int = 0

    def conceal(self, samples: int, silent: bool) -> None:
        """Fewer than were counted (below 0) are taken off what comes next: totals never fall."""
        if samples < 0:
            self._owed -= samples
            self._owed_silent -= samples if silent else 0
            return
        paid = min(samples, self._owed)
        self._owed -= paid
        self.concealed += samples - paid
        if silent:
            paid = min(samples, self._owed_silent)
            self._owed_silent -= paid
            self.silent_concealed += samples - paid


NOT_SENT = math.inf
"""Instead of an arrival: nothing came, and nothing is missing. What is a guess at something missing has NaN."""


class Block(NamedTuple):
    """10 ms: the samples; when the first packet in it came, NaN where there is none; whether any of it is a guess, and
    whether its length was changed."""

    sound: Sound
    came_at: float
    concealed: bool
    stretched: bool

    @classmethod
    def of(cls, tape: Sound, stretched: bool) -> Block:
        came_at = tape[1]
        known = came_at[np.isfinite(came_at)]
        return cls(tape[0], float(known[0]) if known.size else math.nan, bool(np.isnan(came_at).any()), stretched)


class JitterBuffer:
    """One stream's, from its first packet on. `push` what has come, `pop` every 10 ms.

    Time is counted in blocks, as NetEQ does: within a block it does not know which packet came first. Raises
    LibraryMissing where there is no libopus."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._decoder = OpusDecoder(RATE)
        self._tick = 0
        self._frames = Frames()
        self._stamp: int | None = None
        self._sequence: int | None = None
        self._tape = np.zeros((2, KEPT + OVERLAP))
        self._tape[1] = np.nan
        self._ahead = OVERLAP
        """Samples of the tape, at its end, that were not given out."""
        self._end = 0
        """The timestamp behind the tape."""
        self._guess, self._noise = Guess(), Noise()
        self._done = Done.NORMAL
        self._frame_samples = 3 * BLOCK
        self._guessed_blocks = 0
        self._silent_since: int | None = None
        """The tick from which on time passed without packets."""
        self._in_dtx = False
        self._bad = False
        self._begin()

    def _begin(self) -> None:
        """Forgets what was learnt: with the next packet all is new."""
        self._target, self._level = Target(), Level()
        self._new = True
        self._packet_samples = 0
        self._wait_until = self._tick + STRETCH_EVERY + 1
        self._stretching = False
        """The last block's length was to be changed; it had so many samples before:"""
        self._had = 0
        self._skipped = 0

    # -- in

    def push(self, packet: Packet) -> None:
        """A packet has come. One without a payload holds nothing."""
        if not packet.payload:
            return
        self._stamp = stamp = unwrapped(packet.timestamp, 32, self._stamp)
        self._sequence = sequence = unwrapped(packet.sequence, 16, self._sequence)
        if len(self._frames) >= MAX_PACKETS:
            self._frames.clear()
            self._new = True
        frame = Frame(stamp, sequence, packet.payload, packet.at, self._tick, False)
        if has_copy(packet.payload):
            before = stamp - frame_ticks(packet.payload[0])
            self._frames.insert(frame._replace(timestamp=before, copy=True))
        self._frames.insert(frame)
        if not self._new:
            self._packet_samples = self._frame_samples
            self._target.observe(stamp, BLOCK_MS * self._tick, self._packet_samples // MS)

    # -- out

    def pop(self) -> Block:
        """The next block."""
        self._tick += 1
        if self._guess.muted and not self._frames:
            self._guessed_blocks += 1
            self.totals.conceal(BLOCK, True)
            return Block(np.zeros(BLOCK), math.nan, True, False)
        self._bad = False
        self._work()
        out = self._out()
        if self._done in (Done.NORMAL, Done.UNSTRETCHED, Done.SILENCE):
            self._noise.observe(self._tape[0, -256:])
        if self._done not in (Done.SILENCE, Done.GUESSED):
            self._silent_since = None
        return Block.of(out, self._done is Done.STRETCHED)

    def _out(self) -> Sound:
        """What could not be decoded, or is too short, libwebrtc's mixer leaves out."""
        start = self._tape.shape[1] - self._ahead
        out = self._tape[:, start : start + BLOCK].copy()
        self._ahead = max(OVERLAP, self._ahead - BLOCK)
        return np.stack([np.zeros(BLOCK), np.full(BLOCK, np.nan)]) if self._bad or out.shape[1] < BLOCK else out

    @property
    def _left(self) -> int:
        return self._ahead - OVERLAP

    @property
    def _target_ms(self) -> int:
        return max(self._target.ms, self._packet_samples // MS)

    def _work(self) -> None:
        """Makes the tape hold one block more than was given out."""
        if not self._new:
            self._frames.drop(self._end)
        wanted = self._decide()
        first = self._frames.first
        if first and first.dtx and wanted in (*STRETCHES, Do.MERGE):
            wanted = Do.NORMAL
        if self._left >= BLOCK and wanted not in (*STRETCHES, Do.MERGE):
            return
        if self._new and first:
            wanted = Do.NORMAL
            self._end = first.timestamp
            self._begin()
            self._new = False
        if wanted is Do.GUESS:
            self._conceal()
        elif wanted is Do.SILENCE:
            self._pause()
        else:
            self._play(wanted)

    # -- what to do

    def _decide(self) -> Do:
        expanding = self._done is Done.GUESSED
        self._guessed_blocks = self._guessed_blocks + 1 if expanding else 0
        span = self._frames.span(self._frame_samples, self._tick)
        self._observe_level(span)
        first = self._frames.first
        if first is None:
            return Do.SILENCE if self._in_dtx else Do.GUESS
        if self._guessed_blocks > REINIT:
            self._decoder.reset()
            return Do.NORMAL
        thin = span < self._target_ms * MS // 2 and not self._frames.any_dtx
        if expanding and self._guess.level < 8192 and thin:
            return Do.GUESS
        return self._expected() if first.timestamp == self._end else self._farther(first.timestamp - self._end, span)

    def _observe_level(self, span: int) -> None:
        stretched = self._done is Done.STRETCHED
        removed, self._skipped = self._skipped, 0
        if stretched and self._stretching:
            self._wait_until = self._tick + STRETCH_EVERY
            removed += self._had - self._left - BLOCK
        self._stretching = False
        if self._done is not Done.SILENCE:
            self._level.observe(span, self._target_ms, removed)
        else:
            self._skipped = removed

    def _expected(self) -> Do:
        """The very next packet is there."""
        if self._done is Done.GUESSED or self._tick < self._wait_until:
            return Do.NORMAL
        target = self._target_ms * MS
        low = max(target * 3 // 4, target - LOW_OFFSET_MS * MS)
        high = max(target, low + WINDOW_MS * MS)
        level = self._level.samples
        if level >= high:
            return Do.SHORTEN
        return Do.LENGTHEN if level < low else Do.NORMAL

    def _farther(self, leap: int, span: int) -> Do:
        """Only a packet farther on is there."""
        if self._done is Done.SILENCE:
            return self._after_silence(leap, span)
        if self._done is not Done.GUESSED:
            return Do.GUESS
        early = leap > BLOCK * self._guessed_blocks and self._level.samples < self._target_ms * MS
        if early and leap < BLOCK * REINIT and self._guessed_blocks < MAX_WAIT:
            return Do.GUESS
        return Do.MERGE

    def _after_silence(self, leap: int, span: int) -> Do:
        passed = self._passed
        held_ms = span // MS
        enough = passed >= leap and held_ms >= self._target_ms - QUIET_MS
        if enough or held_ms > self._target_ms + QUIET_MS:
            self._skipped = leap - passed
            return Do.NORMAL
        return Do.SILENCE

    @property
    def _passed(self) -> int:
        """Samples of a pause in which nothing was sent."""
        return 0 if self._silent_since is None else (self._tick - self._silent_since) * BLOCK

    # -- doing it

    def _conceal(self) -> None:
        while self._left < BLOCK:
            self._append(self._guess.more(self._tape[0]))
            self.totals.conceal(self._added, self._guess.silent)
            self._done = Done.GUESSED
        if self._silent_since is None:
            self._silent_since = self._tick

    def _append(self, sound: Sound, came_at: float | Sound = math.nan) -> None:
        new = np.empty((2, sound.size))
        new[0], new[1] = sound, came_at
        self._join(new, 0)

    def _join(self, new: Sound, instead: int) -> None:
        """Puts it in the place of the tape's last samples."""
        size = self._tape.shape[1]
        self._added = new.shape[1] - instead
        self._ahead = max(OVERLAP, self._ahead + self._added)
        tape = np.concatenate([self._tape[:, : size - instead], new], axis=1)
        self._tape = tape[:, -(KEPT + self._ahead) :]

    def _pause(self) -> None:
        """The decoder goes on by itself."""
        self._append(self._decoder.conceal(BLOCK).astype(np.float64), NOT_SENT)
        self._done = Done.SILENCE
        self._guess.reset()

    def _play(self, wanted: Do) -> None:
        """With packets, where more are needed."""
        left = self._left
        small = self._frame_samples < WINDOW
        needed = BLOCK
        if wanted in STRETCHES:
            if left >= WINDOW or (wanted is Do.LENGTHEN and left >= BLOCK and not small):
                self._had, self._stretching = left, True
                self._stretch(wanted, np.zeros((2, 0)))
                return
            if wanted is Do.SHORTEN and left >= BLOCK and not small:
                return
            if left < 2 * BLOCK and small:
                needed = 2 * BLOCK
                wanted = Do.NORMAL if wanted is Do.SHORTEN else wanted
        frames = self._extract(needed)
        samples = frames[-1].timestamp - frames[0].timestamp + (frames[-1].ticks or self._frame_samples)
        if wanted in STRETCHES:
            self._had, self._stretching = left + samples, True
            if wanted is Do.SHORTEN and left + samples < WINDOW:
                wanted = Do.NORMAL
        self._decode(frames, wanted)

    def _extract(self, needed: int) -> list[Frame]:
        """The next packets, as many as are needed and follow each other."""
        first = self._frames.first
        assert first is not None, "it was looked for"
        self._end = first.timestamp
        self._in_dtx = False
        frames: list[Frame] = []
        while True:
            frame = self._frames.pop()
            frames.append(frame)
            lasts = frame.ticks or self._frame_samples
            self.totals.delay += (self._tick - frame.tick) * BLOCK_SECONDS * lasts
            self.totals.emitted += lasts
            following = self._frames.first
            follows = (
                following is not None
                and following.sequence - frame.sequence in (0, 1)
                and following.timestamp - frame.timestamp <= lasts
            )
            if frame.timestamp + lasts - first.timestamp >= needed or not follows:
                break
        self._frames.drop(frames[-1].timestamp, None)
        return frames

    def _decode(self, frames: list[Frame], wanted: Do) -> None:
        parts: list[Sound] = []
        for frame in frames:
            pcm = self._decoded(frame)
            if pcm is None:
                self._end += self._frame_samples
                self._bad = True
                self._conceal()
                return
            self._frame_samples = pcm.size
            parts.append(np.stack([pcm.astype(np.float64), np.full(pcm.size, frame.came_at)]))
        new = np.concatenate(parts, axis=1)
        pause = frames[-1].dtx
        if pause:
            self._silent_since, self._in_dtx = self._tick, True
        else:
            self._end += new.shape[1]
        self._put(wanted, new)
        if pause:
            self._done = Done.SILENCE

    def _decoded(self, frame: Frame) -> Pcm | None:
        if frame.copy:
            return self._decoder.conceal(frame.ticks, frame.payload)
        return self._decoder.decode(frame.payload)

    def _put(self, wanted: Do, new: Sound) -> None:
        if wanted is Do.MERGE:
            self._merge(new)
        elif wanted in STRETCHES:
            self._stretch(wanted, new)
        else:
            if self._done is Done.GUESSED:
                new[0] = resumed(self._tape[0], self._guess, new[0], self._noise)
            self._join(new, 0)
            self._done = Done.NORMAL

    def _merge(self, new: Sound) -> None:
        ahead = self._ahead
        sound, guessed = merged(self._tape[0], ahead, self._guess, new[0])
        came_at = np.concatenate([np.full(guessed, np.nan), new[1]])
        self.totals.conceal(sound.size - ahead - new.shape[1], self._guess.silent)
        self._join(np.stack([sound, came_at]), ahead)
        self._done = Done.MERGED

    def _stretch(self, wanted: Do, new: Sound) -> None:
        """Of 30 ms at least: where the packets hold less, of the tape's end as well."""
        borrowed = max(0, WINDOW - new.shape[1])
        whole = np.concatenate([self._tape[:, self._tape.shape[1] - borrowed :], new], axis=1)
        played = max(0, borrowed - self._ahead)
        shorten = wanted is Do.SHORTEN
        changed = shortened(whole, self._noise) if shorten else lengthened(whole, played, self._noise)
        self._done = Done.UNSTRETCHED if changed is None else Done.STRETCHED
        changed = whole if changed is None else changed
        self.totals.removed += max(0, whole.shape[1] - changed.shape[1])
        self.totals.inserted += max(0, changed.shape[1] - whole.shape[1])
        self._join(changed, borrowed)
        self._guess.reset()


# ---- the whole ----------------------------------------------------------------------------------------------------


def listen(packets: Sequence[Packet], begins_at: float, ends_at: float) -> Heard:
    """What came out from begins_at to ends_at, in blocks of 10 ms on a steady clock from begins_at on.

    packets: in the order in which they came. Of a new SSRC a new buffer begins, and what lay in the old one is not
    heard any more. The true listener's blocks begin at some other instant within 10 ms: unless begins_at is one of
    them, all instants are off by up to that. Raises LibraryMissing where there is no libopus."""
    return hear(packets, begins_at, ends_at)[0]


def hear(packets: Sequence[Packet], begins_at: float, ends_at: float) -> tuple[Heard, Totals]:
    """The same, with the totals of the last stream."""
    count = max(0, math.ceil((ends_at - begins_at) / BLOCK_SECONDS - 1e-6))
    blocks, totals, upcoming = list[Block](), Totals(), 0
    buffer: JitterBuffer | None = None
    source: int | None = None
    for index in range(count):
        now = begins_at + index * BLOCK_SECONDS
        while upcoming < len(packets) and packets[upcoming].at <= now:
            packet = packets[upcoming]
            if buffer is None or packet.source != source:
                buffer, source = JitterBuffer(), packet.source
                totals = buffer.totals
            buffer.push(packet)
            upcoming += 1
        blocks.append(NOTHING if buffer is None else buffer.pop())
    return gathered(blocks, begins_at), totals


NOTHING = Block(np.zeros(BLOCK), math.nan, False, False)
"""Before the first packet."""


def gathered(blocks: list[Block], begins_at: float) -> Heard:
    """The blocks one after the other."""
    sound = np.concatenate([block.sound for block in blocks]) if blocks else np.zeros(0)
    at = begins_at + BLOCK_SECONDS * np.arange(len(blocks))
    return Heard(
        begins_at,
        np.clip(np.rint(sound), -32768, 32767).astype(np.int16),
        np.array([block.concealed for block in blocks], np.bool_),
        np.array([block.stretched for block in blocks], np.bool_),
        (at - np.array([block.came_at for block in blocks])).astype(np.float32),
    )
