"""The figures of one recording, from the waveforms and the packets alone. It does not know what a server says of
itself, nor what is good or bad.

Where a figure has a name in the literature, it is defined here, once:

takeover        the agent takes the turn: after the step's end it is audible for TAKEOVER_SECONDS in all. The papers'
                takeover rate (Full-Duplex-Bench, arXiv:2503.04721) is the share of trials with it; they take a turn of
                less than a second and of few words for a backchannel. Words are not counted here.
response        end of the user's sound -> first audible of the agent; that paper's latency of smooth turn taking, and
                of user interruption where the agent spoke before. The papers take what is below 0 for 0; here an answer
                may begin up to EARLY_SECONDS before the sound's end and keeps its sign.
stop            onset of the user's sound -> end of the last audible sample of the agent before it stays silent; the
                stop latency of Full-Duplex-Bench v1.5 (arXiv:2507.23159). An agent that is audible to the end of the
                user's sound has not stopped for it: its stop is where it is silent for QUIET_SECONDS then.
resumed         end of the user's sound -> first audible of an agent that had fallen silent for it; the response latency
                of v1.5. It is the same instant as `response`.
takeover rate   the share of `takeover` among the steps that are to be answered (the higher, the better), and among
                those whose rest is to be waited for (the lower, the better). A step whose answer the next one speaks
                over within TAKEOVER_SECONDS has none. Of a backchannel it is not told: an agent that has paused for
                one, and goes on, would be taken for one that answers it; whether it goes on is what `resumes` and
                `continues` are for.

All of them are taken at the output of the listener's jitter buffer. Blocks of 10 ms: no figure of them is finer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from agent.probe.audible import (
    BLOCK_SECONDS,
    Flags,
    Instants,
    Span,
    Voice,
    audible,
    in_order,
    levels,
    pads,
    spans,
    ticks,
    voice,
)
from agent.probe.recording import RATE, Heard, Packet, Recording, Said
from agent.probe.scenario import QUIET_SECONDS, Scenario
from agent.toc import silence_follows

TAKEOVER_SECONDS = 1.0
BACKGROUND_DB = -15.0
"""A sound that is made so much quieter is behind the user, and no answer to it is waited for."""
EARLY_SECONDS = 0.2
"""So long before its end a user's sound has all but ended: its last consonant."""
STILL_SECONDS = 0.3
"""A silence below it, while the user speaks, is no stop."""
AROUND_SECONDS = 0.2
"""What is concealed is a gap in speech where something is audible that close before and after it."""
CUT_SHARE = 0.7
"""Of the median level of speech: who is so loud in the last 10 ms did not pause, but was cut off."""
NEAR_PACKETS = 3
"""A buffer that has guessed merges its guess with what comes, and may guess again: a loss so close before counts."""
PAUSED_SECONDS = 0.06
"""A sender that pauses lets its timestamps run on; the next packet may come that much earlier than they say."""
DRIFT_SECONDS = 5.0
DRIFT_POINTS = 40
UNPACED = 0.05
"""Sooner or later by more than this share is no clock's drift."""


@dataclass(frozen=True, slots=True)
class StepMeasures:
    """What became of the agent's speech around one step. Instants on the recording's clock."""

    step: str
    begins_at: float
    ends_at: float
    speaking: bool
    """The agent was audible when the step began or while it went on, but for its last EARLY_SECONDS."""
    stopped_at: float | None
    """None where it was not speaking, or never stopped."""
    response_at: float | None
    """None where nothing came before the next step, or the agent never stopped."""
    after_stop_ms: float
    """Audible between a first silence of STILL_SECONDS and the end of the user's sound, or right behind that: it is
    stale, or the agent had only paused."""
    takeover: bool

    @property
    def stop_ms(self) -> float | None:
        return None if self.stopped_at is None else 1000 * (self.stopped_at - self.begins_at)

    @property
    def response_ms(self) -> float | None:
        return None if self.response_at is None else 1000 * (self.response_at - self.ends_at)


@dataclass(frozen=True, slots=True)
class Gap:
    """What broke the agent's speech. kind: `concealed`, a guess of the listener's buffer, or `zeros` that were sent.

    at: where it came out at the listener; of zeros, when they came. lost: packets that the network lost there."""

    kind: str
    at: float
    ms: float
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Drift:
    """Of arrival against timestamp; ppm, above 0 where the sender is slow. The truth lies between with 95 %."""

    ppm: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Pacing:
    """Of all packets. ms where not said otherwise."""

    packets: int
    packet_ms: float
    """How long most of them are."""
    timestamp_ms: float | None
    """From one timestamp to the next, of most packets; None for fewer than two."""
    longest_ms: float
    long_packets: int
    """Of more than 20 ms."""
    wrong_timestamps: int
    """Packets whose timestamp is not that of the one before and its length, although nothing was lost or paused."""
    lost: int
    reordered: int
    between_p99_ms: float | None
    """From one arrival to the next."""
    between_max_ms: float | None
    spread_ms: float | None
    """How much later than the earliest packets the latest came, drift apart: from the 1st to the 99th of a hundred."""
    rate: float | None
    """Seconds of sound that came in a second; 1 where it is paced. None for less than a second."""
    drift: Drift | None
    """None for less than 5 s, and for a sender without pacing."""


@dataclass(slots=True)
class Measures:
    """Of one trial. What did not happen is None; ms."""

    answered_ms: float | None
    """Dialled -> the server's answer."""
    connected_ms: float | None
    first_packet_ms: float | None
    first_audio_ms: float | None
    """Dialled -> the first audible sample came out."""
    spans: tuple[Span, ...]
    """In which the agent was audible at the listener."""
    gaps: tuple[Gap, ...]
    steps: tuple[StepMeasures, ...]
    pacing: Pacing
    buffer_ms: float | None
    """From a packet's arrival to its coming out; the median."""
    voice: Voice
    """What was sent, for who looks closer."""

    def of(self, step: str) -> StepMeasures | None:
        return next((measured for measured in self.steps if measured.step == step), None)


def measure(recording: Recording, heard: Heard, scenario: Scenario) -> Measures:
    """All figures of a trial; heard: what a listener's buffer made of the recording's packets."""
    listened = Listened(heard)
    sent = voice(recording.packets)
    begun, packets = recording.dialled_at, recording.packets
    return Measures(
        answered_ms=_since(begun, recording.answered_at),
        connected_ms=_since(begun, recording.connected_at),
        first_packet_ms=_since(begun, min((packet.at for packet in packets), default=None)),
        first_audio_ms=_since(begun, listened.spans[0].begins_at if listened.spans else None),
        spans=listened.spans,
        gaps=(*concealed(listened, packets, recording.said), *zeros(sent, recording.said)),
        steps=tuple(steps(listened, recording, scenario)),
        pacing=pacing(packets),
        buffer_ms=listened.buffer_ms,
        voice=sent,
    )


def _since(begun: float, instant: float | None) -> float | None:
    return None if instant is None else 1000 * (instant - begun)


class Listened:
    """What came out of the listener's buffer, block by block."""

    def __init__(self, heard: Heard) -> None:
        self.heard = heard
        self.flags: Flags = audible(heard.samples)
        self.at: Instants = heard.begins_at + BLOCK_SECONDS * np.arange(self.flags.size, dtype=np.float64)
        self.spans = spans(self.flags, self.at)

    @cached_property
    def buffer_ms(self) -> float | None:
        known = self.heard.delay[~np.isnan(self.heard.delay)]
        return float(1000 * np.median(known)) if known.size else None

    def between(self, since: float, until: float) -> float:
        """Seconds audible between two instants."""
        return BLOCK_SECONDS * int(np.count_nonzero(self.flags & (self.at >= since) & (self.at < until)))


# ---- the steps --------------------------------------------------------------------------------------------------


def steps(listened: Listened, recording: Recording, scenario: Scenario) -> Iterator[StepMeasures]:
    echoes = {step.name for step in scenario.steps if step.echo_db is not None}
    behind = {step.name for step in scenario.steps if step.gain_db <= BACKGROUND_DB}
    said = [each for each in recording.said if each.step not in echoes]
    for number, each in enumerate(said):
        later = (one.begins_at for one in said[number + 1 :] if one.step not in behind)
        following = min((begins_at for begins_at in later if begins_at >= each.ends_at), default=inf)
        yield step_measures(listened, each, min(following, _end(recording, listened)))


def _end(recording: Recording, listened: Listened) -> float:
    return max(recording.ended_at, float(listened.at[-1]) + BLOCK_SECONDS if listened.at.size else -inf)


def step_measures(listened: Listened, said: Said, until: float) -> StepMeasures:
    """Around one sound; what comes after `until` belongs to the next."""
    begin, end = said.begins_at, said.ends_at
    due = max(begin, end - EARLY_SECONDS)
    over = [span for span in listened.spans if span.ends_at > begin and span.begins_at < due]
    stopped_at = _stopped_at(listened, over, due, until)
    # Nobody answers within EARLY_SECONDS: what begins right behind the next sound's beginning is this one's answer yet.
    first = (
        _first(listened, max(due, stopped_at or due), until + EARLY_SECONDS)
        if not over or stopped_at is not None
        else None
    )
    return StepMeasures(
        step=said.step,
        begins_at=begin,
        ends_at=end,
        speaking=bool(over),
        stopped_at=stopped_at,
        response_at=first,
        after_stop_ms=_after_stop_ms(listened, over, begin, end) if stopped_at is not None else 0.0,
        takeover=first is not None and listened.between(first, until) >= TAKEOVER_SECONDS,
    )


def _stopped_at(listened: Listened, over: Sequence[Span], due: float, until: float) -> float | None:
    """The end of the last that was audible under the user's sound; where that reaches beyond it, of the first silence
    that lasts."""
    if not over:
        return None
    if over[-1].ends_at <= due:
        return over[-1].ends_at
    later = [span for span in listened.spans if span.begins_at >= over[-1].begins_at]
    for span, following in pairwise(later):
        if following.begins_at - span.ends_at >= QUIET_SECONDS and span.ends_at < until:
            return span.ends_at
    return later[-1].ends_at if later[-1].ends_at < until - QUIET_SECONDS else None


def _first(listened: Listened, since: float, until: float) -> float | None:
    return next((span.begins_at for span in listened.spans if since <= span.begins_at < until), None)


def _after_stop_ms(listened: Listened, over: Sequence[Span], begin: float, end: float) -> float:
    """Audible spans that begin behind a silence of STILL_SECONDS, before anybody could know that the user is done."""
    still = False
    total, last = 0.0, begin
    for span in listened.spans:
        if span.ends_at <= begin:
            continue
        still = still or (span is not over[0] and span.begins_at - last >= STILL_SECONDS)
        if still and span.begins_at < end:
            total += span.seconds
        last = span.ends_at
    return 1000 * total


# ---- gaps -------------------------------------------------------------------------------------------------------


def concealed(listened: Listened, packets: Sequence[Packet], said: Sequence[Said]) -> Iterator[Gap]:
    """What the listener's buffer had to guess inside speech, although the sender had not paused."""
    flags = listened.heard.concealed[: listened.flags.size]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    around = round(AROUND_SECONDS / BLOCK_SECONDS)
    real = listened.flags[: flags.size] & ~flags
    arrivals = Arrivals(packets)
    level = levels(listened.heard.samples)
    loud = float(np.median(level[: flags.size][real])) * CUT_SHARE if real.any() else inf
    for first, end in edges.reshape(-1, 2):
        if not real[max(0, first - around) : first].any() or not real[end : end + around].any():
            continue
        lost, paused = arrivals.between(_came(listened, first - 1), _came(listened, end))
        at = float(listened.at[first])
        cut = level[max(0, first - 1)] > loud and not on_sound(at, said)  # nobody pauses in the midst of a vowel
        if lost or not paused or cut:
            yield Gap("concealed", float(listened.at[first]), 1000 * BLOCK_SECONDS * int(end - first), lost)


def _came(listened: Listened, block: int) -> float | None:
    """When the packet came of which a block is."""
    delay = float(listened.heard.delay[block]) if 0 <= block < listened.heard.delay.size else float("nan")
    return None if np.isnan(delay) else float(listened.at[block]) - delay


class Arrivals:
    """The packets by when they came, to tell who made a hole: a network that lost something, or a sender's pause."""

    def __init__(self, packets: Sequence[Packet]) -> None:
        self.packets = packets
        self.at = np.array([packet.at for packet in packets])
        self.numbers = {packet.sequence for packet in packets}

    def between(self, before: float | None, after: float | None) -> tuple[int, bool]:
        """How many packets never came between those which came then, or close before them, and whether the sender had
        paused."""
        if before is None or after is None or not self.at.size:
            return 0, False
        one, other = (self.packets[int(np.abs(self.at - instant).argmin())] for instant in (before, after))
        if one.source != other.source:
            return 0, True
        count = (other.sequence - one.sequence) % 0x10000
        if count >= 0x8000:
            return 0, False
        since_first = (one.sequence - self.packets[0].sequence) % 0x10000
        near = range(-min(NEAR_PACKETS, since_first), count + 1)
        missing = sum((one.sequence + step) % 0x10000 not in self.numbers for step in near)
        elapsed = (other.timestamp - one.timestamp) % (1 << 32)
        return missing, count == 1 and elapsed > ticks(one)


def on_sound(at: float, said: Sequence[Said]) -> bool:
    """The instant falls on a user's sound, or so close behind it that the agent may still stand still for it."""
    return any(each.begins_at <= at <= each.ends_at + QUIET_SECONDS for each in said)


def zeros(sent: Voice, said: Sequence[Said]) -> Iterator[Gap]:
    """Padding inside speech. What falls on a user's sound does not count: an agent that stands still for it, and goes
    on, sends silence on purpose."""
    for pad in pads(sent):
        at = sent.at(pad.begin)
        if pad.samples and not on_sound(at, said):
            yield Gap("zeros", at, 1000 * pad.samples / RATE)


# ---- pacing -----------------------------------------------------------------------------------------------------


def pacing(packets: Sequence[Packet]) -> Pacing:
    lengths = np.array([ticks(packet) for packet in packets if not silence_follows(packet.payload)] or [0])
    between = 1000 * np.diff([packet.at for packet in packets])
    streams = [_stream(packets, source) for source in dict.fromkeys(packet.source for packet in packets)]
    longest = max(streams, key=lambda stream: len(stream.ordered), default=Stream([], []))
    drift, spread = longest.drift_and_spread()
    return Pacing(
        packets=len(packets),
        packet_ms=1000 * commonest(lengths) / RATE,
        timestamp_ms=longest.timestamp_ms,
        longest_ms=1000 * float(lengths.max()) / RATE,
        long_packets=int(np.count_nonzero(lengths > 960)),
        wrong_timestamps=sum(stream.wrong for stream in streams),
        lost=sum(stream.lost for stream in streams),
        reordered=sum(stream.reordered for stream in streams),
        between_p99_ms=float(np.percentile(between, 99)) if between.size else None,
        between_max_ms=float(between.max()) if between.size else None,
        spread_ms=spread,
        rate=longest.rate,
        drift=drift,
    )


def commonest(values: NDArray[np.int64]) -> int:
    """Of at least one value; of several as frequent ones the least."""
    found, counts = np.unique(values, return_counts=True)
    return int(found[counts.argmax()])


def _stream(packets: Sequence[Packet], source: int) -> Stream:
    own = [packet for packet in packets if packet.source == source]
    return Stream(own, in_order(own))


@dataclass(slots=True)
class Stream:
    """One source's packets, as they came and in the sender's order."""

    came: list[Packet]
    ordered: list[tuple[int, Packet]]

    @property
    def lost(self) -> int:
        return self.ordered[-1][0] - self.ordered[0][0] + 1 - len(self.ordered) if self.ordered else 0

    @property
    def reordered(self) -> int:
        """Packets that came behind a later one."""
        number = {id(packet): number for number, packet in self.ordered}
        numbers = [number[id(packet)] for packet in self.came if id(packet) in number]
        return int(np.count_nonzero(np.array(numbers) < np.maximum.accumulate(np.array(numbers, np.int64))))

    @property
    def neighbours(self) -> Iterator[tuple[Packet, Packet]]:
        """Each packet and the next, where the network lost nothing between them."""
        return ((one, other) for (a, one), (b, other) in pairwise(self.ordered) if b == a + 1)

    @property
    def timestamp_ms(self) -> float | None:
        steps = [(other.timestamp - one.timestamp) % (1 << 32) for one, other in self.neighbours]
        return 1000 * commonest(np.array(steps, np.int64)) / RATE if steps else None

    @property
    def wrong(self) -> int:
        return sum(not rightly_stamped(one, other) for one, other in self.neighbours)

    @property
    def rate(self) -> float | None:
        """Over the packets between which the sender did not pause, nor stood still by its timestamps."""
        moved = ((one, other) for one, other in self.neighbours if one.timestamp != other.timestamp)
        pairs = [(one, other) for one, other in moved if not _paused(one, other)]
        took = sum(other.at - one.at for one, other in pairs)
        return sum(ticks(one) for one, _ in pairs) / RATE / took if len(pairs) >= 50 and took > 0 else None

    def positions(self) -> NDArray[np.float64]:
        """Of each packet, in seconds: by its timestamp; where timestamps are wrong, by the lengths before it."""
        if self.wrong * 10 > len(self.ordered):
            return np.cumsum([0, *(ticks(packet) for _, packet in self.ordered[:-1])]) / RATE
        stamps = np.array([packet.timestamp for _, packet in self.ordered], np.int64)
        steps = (np.diff(stamps) + (1 << 31)) % (1 << 32) - (1 << 31)
        return np.concatenate([[0], np.cumsum(steps)]) / RATE

    def drift_and_spread(self) -> tuple[Drift | None, float | None]:
        """spread in ms."""
        if len(self.ordered) < 50:
            return None, None
        at = np.array([packet.at for _, packet in self.ordered])
        positions = self.positions()
        late = at - positions
        drift = slope(positions, late) if np.ptp(positions) >= DRIFT_SECONDS and np.ptp(at) >= DRIFT_SECONDS else None
        if drift and abs(drift.ppm) > 1e6 * UNPACED:
            drift = None
        level = late - (1e-6 * drift.ppm * positions if drift else 0.0)
        return drift, float(1000 * np.ptp(np.percentile(level, (1, 99))))


def rightly_stamped(one: Packet, other: Packet) -> bool:
    """The next timestamp is this one and the packet's length, or a pause's length more."""
    return (other.timestamp - one.timestamp) % (1 << 32) == ticks(one) or _paused(one, other)


def _paused(one: Packet, other: Packet) -> bool:
    """The timestamps run on, and so did time; or the packet said that silence follows (RFC 7587, section 3.1.3)."""
    elapsed = (other.timestamp - one.timestamp) % (1 << 32)
    if not ticks(one) < elapsed < 1 << 31:
        return False
    in_time = other.at - one.at >= elapsed / RATE - PAUSED_SECONDS and elapsed >= 2 * ticks(one)
    return silence_follows(one.payload) or in_time


def slope(positions: NDArray[np.float64], late: NDArray[np.float64]) -> Drift | None:
    """How lateness grows, after Theil and Sen, from the earliest packet of each of some stretches: a packet can only be
    late, so that one says most. The interval is Sen's (Journal of the American Statistical Association 63, 1968)."""
    stretch = ((positions - positions.min()) / (np.ptp(positions) / DRIFT_POINTS)).astype(int).clip(0, DRIFT_POINTS - 1)
    earliest = [np.flatnonzero(stretch == n)[late[stretch == n].argmin()] for n in np.unique(stretch)]
    x, y = positions[earliest], late[earliest]
    one, other = np.triu_indices(x.size, 1)
    apart = x[other] - x[one]
    slopes = np.sort(1e6 * (y[other] - y[one])[apart > 0] / apart[apart > 0])
    if slopes.size < 10:
        return None
    wide = 1.96 * sqrt(x.size * (x.size - 1) * (2 * x.size + 5) / 18)
    least = int(np.clip((slopes.size - wide) / 2, 0, slopes.size - 1))
    return Drift(float(np.median(slopes)), float(slopes[least]), float(slopes[slopes.size - 1 - least]))
