"""What `bench transport` makes of the packets that came: how even they were, and how soon a microphone was judged.

It knows neither processes nor networks: instants, RTP timestamps and sequence numbers are arguments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.bench_browser import PACKET_SAMPLES
from agent.bench_report import measured
from agent.browser import BrowserError
from agent.pace import PACKET_SECONDS
from agent.probe.outcome import Spread
from agent.receive import FRAME_SAMPLES

WARM_SECONDS = 1.0
"""Of the microphone, that are left out: the VAD is loaded when it hears the first sound."""
BACK_MS = 60.0
"""A microphone is in time where the VAD has judged a packet within that from its arrival. Silero's own frames, of 32
ms, are in it: the rest of one is waited for up to 40 ms, two packets."""
BEFORE_LOSS = 2
"""Packets that may wait in a VAD frame for the lost one behind them; that is no lateness of an earlier loss."""
TARGET_BACK_MS = 1000.0


class BenchError(Exception):
    """What went wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Listened:
    """Calls that listen to speech without a break, all at once."""

    peers: int
    seconds: float
    packets: int
    packets_lost: int
    inter_arrival_ms: Spread
    """From packet to packet of a call, over all calls, where the receiving process takes them."""
    worst_peer_p99_ms: float
    share_of_960_steps: float
    """Of the RTP timestamps' steps from packet to packet, in order of arrival."""
    underruns: int
    pacing_stalls: int
    """Times that the server was so late that it set its clock anew; see agent/pace.py."""
    server_cpu_percent: float
    """Of one core."""
    receiver_cpu_percent: float
    """Of the process that all listeners share."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """One call that speaks into its microphone while packets are lost in a fixed pattern."""

    loss_percent: int
    packets: int
    packets_lost: int
    frame_ms: Spread
    """Arrival of a packet -> its 20 ms at 16 kHz are handed over."""
    judged_ms: Spread
    """Arrival of a packet -> the VAD has judged its last sample: of that, up to a VAD frame is waiting for the rest of
    the frame."""
    back_ms: Spread | None
    """The instant at which a lost packet should have come -> the VAD has judged a packet that came after it within
    BACK_MS of its arrival, from where on all are until the next loss. Infinite, which JSON has as null, where that
    never happens; None without loss."""
    first_ms: float
    """The longest of frame_ms in the WARM_SECONDS that are left out: the thread that decodes loads the VAD then, and
    whoever else is heard waits for it, too."""
    guesses_of_packets_that_came: int
    """Frames that were guessed though their packet was not lost."""
    vad: str


Packets = tuple[Sequence[float], Sequence[int], Sequence[int]]
"""Of one call, in order of arrival: instants in seconds, RTP timestamps, sequence numbers."""


def of_packets(calls: Sequence[Packets]) -> dict[str, Any]:
    """What the packets of all calls say. Raises BenchError where a call got none."""
    if any(len(arrivals) < 2 for arrivals, _, _ in calls):
        raise BenchError("a call heard nothing: look at what the server printed")
    gaps = [1000 * np.diff(arrivals) for arrivals, _, _ in calls]
    steps = np.concatenate([steps_of(timestamps, 2**32) for _, timestamps, _ in calls])
    return {
        "packets": sum(len(arrivals) for arrivals, _, _ in calls),
        "packets_lost": sum(len(missing(sequences)) for _, _, sequences in calls),
        "inter_arrival_ms": spread(np.concatenate(gaps)),
        "worst_peer_p99_ms": round(max(float(np.quantile(gap, 0.99)) for gap in gaps), 1),
        "share_of_960_steps": round(float(np.mean(steps == PACKET_SAMPLES)), 6),
    }


def steps_of(counters: Sequence[int], size: int) -> NDArray[np.int64]:
    """From each to the next, of counters that wrap around at `size`."""
    values = np.asarray(counters, np.int64)
    return np.asarray((values[1:] - values[:-1]) % size, np.int64)


def places(sequences: Sequence[int]) -> NDArray[np.int64]:
    """Where each packet stands, counted from the first that came, beyond the wrap-around; in order of arrival."""
    steps = (steps_of(sequences, 2**16) + 2**15) % 2**16 - 2**15
    return np.concatenate([[0], np.cumsum(steps)])


def missing(sequences: Sequence[int]) -> list[int]:
    """The places of packets that never came."""
    there = set(places(sequences).tolist())
    return sorted(set(range(min(there), max(there) + 1)) - there)


def spread(values: Sequence[float] | NDArray[np.float64]) -> Spread:
    """Raises BenchError where there are none."""
    try:
        return measured(values, "packet")
    except BrowserError as error:
        raise BenchError(str(error)) from None


def occurred(values: Sequence[float]) -> Spread:
    """Of values that may be infinite: each percentile is one of them, the next above."""
    found = (float(np.quantile(values, q, method="higher")) for q in (0.5, 0.95, 0.99, 1.0))
    return Spread(len(values), *(round(value, 1) for value in found))


def of_microphone(journal: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """What a journal says after its first WARM_SECONDS. Raises BenchError where it is empty."""
    if not journal["arrivals"] or not journal["frames"] or not journal["judged"]:
        raise BenchError("nothing was heard of the microphone: look at what the server printed")
    instants, sequences = zip(*journal["arrivals"], strict=True)
    warm_at = instants[0] + WARM_SECONDS
    lost = due(instants, sequences)
    frames = [frame for frame in journal["frames"] if not frame[3]]
    cold, warm = ([frame for frame in frames if (frame[1] >= warm_at) is late] for late in (False, True))
    came = {end // FRAME_SAMPLES - 1 for _, _, end, guessed in journal["frames"] if guessed} - set(lost)
    back = [1000 * s for place, s in backs(lost, frames, journal["judged"]) if lost[place] >= warm_at]
    return {
        "packets": sum(instant >= warm_at for instant in instants),
        "packets_lost": sum(instant >= warm_at for instant in lost.values()),
        "frame_ms": spread([1000 * (at - arrived_at) for at, arrived_at, _, _ in warm]),
        "judged_ms": spread([*judged_ms(warm, journal["judged"])]),
        "back_ms": occurred(back) if back else None,
        "first_ms": round(max((1000 * (at - arrived_at) for at, arrived_at, _, _ in cold), default=0.0), 1),
        "guesses_of_packets_that_came": len(came),
    }


Frames = Sequence[tuple[float, float, int, bool]]
"""See Journal.frames."""


def due(instants: Sequence[float], sequences: Sequence[int]) -> dict[int, float]:
    """The places of lost packets, and the instants at which they should have come: after the one before them."""
    came = dict(zip(places(sequences).tolist(), instants, strict=True))
    at = dict[int, float]()
    for place in missing(sequences):
        at[place] = came.get(place - 1, at.get(place - 1, instants[0])) + PACKET_SECONDS
    return at


Judged = Sequence[tuple[float, int]]
"""See Journal.judged."""


def judgements(frames: Frames, judged: Judged) -> Iterator[tuple[float, float, int]]:
    """Of each frame its arrival, the instant at which the VAD had judged its last sample, and its place; what it had
    not at the end is left out."""
    ends = [end for _, end in judged]
    for _, arrived_at, end, _ in frames:
        index = bisect_left(ends, end)
        if index < len(ends):
            yield arrived_at, judged[index][0], end // FRAME_SAMPLES - 1


def judged_ms(frames: Frames, judged: Judged) -> Iterator[float]:
    """From each frame's arrival until the VAD had judged its last sample."""
    for arrived_at, judged_at, _ in judgements(frames, judged):
        yield 1000 * (judged_at - arrived_at)


def backs(lost: Mapping[int, float], frames: Frames, judged: Judged) -> Iterator[tuple[int, float]]:
    """Of every loss, its place and the seconds until what came was judged in time again, and all from there to the next
    loss; where it was not before a later loss, it is looked for behind that one. Infinity where it never was; a loss
    that was looked at for less than the target until the end is left out then: it might still have met it.

    frames: without guesses, in order of their places."""
    found = [*judgements(frames, judged)]
    for place, due_at in lost.items():
        after = [one for one in found if one[0] >= due_at and one[2] > place]
        if (back_at := in_time(after, lost)) is not None:
            yield place, back_at - due_at
        elif after and 1000 * (after[-1][1] - due_at) >= TARGET_BACK_MS:
            yield place, float("inf")


def in_time(after: Sequence[tuple[float, float, int]], lost: Mapping[int, float]) -> float | None:
    """When the first of these was judged in time from which on all were until the next loss."""
    back_at, before = None, -1
    for arrived_at, judged_at, place in after:
        if back_at is not None and any(between in lost for between in range(before + 1, place)):
            return back_at
        before = place
        if any(place + step in lost for step in range(1, BEFORE_LOSS + 1)):
            continue
        if 1000 * (judged_at - arrived_at) > BACK_MS:
            back_at = None
        elif back_at is None:
            back_at = judged_at
    return back_at
