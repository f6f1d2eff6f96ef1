"""Listeners' time told as lanes: when each waited, what arrived and was played, and where it broke off.

It knows neither policies nor how a lane is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from engine.listener import Listener

Span = tuple[float, float]
"""Two instants."""
BEFORE, AFTER = 0.3, 2.0
"""Seconds that are shown before the first caller comes, and after the worst gap."""
LEAST, MOST = 5.0, 16.0
"""Seconds that are shown."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One listener's time, until it interrupted. A stall of its playback counts as playing."""

    request_id: int
    submitted_at: float
    chunks: tuple[float, ...]
    """When they arrived."""
    plays: tuple[Span, ...]
    gaps: tuple[Span, ...]
    buffered: tuple[tuple[float, float], ...]
    """Corners of a line: instants, and seconds until all that has arrived is played."""
    left_at: float
    """When it interrupted; infinity: never."""


def lane(listener: Listener) -> Lane:
    """What was heard, by playing it again."""
    said = listener.said
    left_at = inf if said.cancel_at is None else said.cancel_at
    plays: list[Span] = []
    gaps: list[Span] = []
    corners: list[tuple[float, float]] = []
    again = replace(listener, before=replace(listener, runs_out_at=listener.plays_at), arrivals=[], audio=0.0)
    for now, seconds in listener.arrivals:
        before, dry_at = again.audio, again.runs_out_at if again.arrivals else now
        again.hear(seconds, now)
        start = max(now, dry_at, again.plays_at)
        if said.hears is not None and before < said.hears <= again.audio:
            left_at = min(left_at, start + (said.hears - before) / said.rate)
        if now > dry_at:
            gaps.append((dry_at, now))
            corners.append((dry_at, 0.0))
        corners += [(now, max(0.0, dry_at - now)), (now, again.runs_out_at - now)]
        plays.append((start, again.runs_out_at))
    chunks = tuple(now for now, _ in listener.arrivals)
    corners.append((again.runs_out_at, 0.0))
    heard, missed = _until(left_at, _joined(plays)), _until(left_at, gaps)
    return Lane(listener.request_id, said.at, chunks, heard, missed, tuple(corners), left_at)


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Those that touch become one."""
    out: list[Span] = []
    for start, end in spans:
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], end
        else:
            out.append((start, end))
    return out


def _until(instant: float, spans: Iterable[Span]) -> tuple[Span, ...]:
    return tuple((start, min(end, instant)) for start, end in spans if start < instant)


@dataclass(frozen=True, slots=True)
class Scene:
    """What part of a run is looked at: callers who came one after another, and a span of time."""

    first: int
    count: int
    start: float
    end: float

    def lanes(self, listeners: Sequence[Listener]) -> list[Lane]:
        return [lane(listener) for listener in listeners[self.first : self.first + self.count]]


def scene(listeners: Sequence[Listener], count: int) -> Scene:
    """Around the listener that needs the largest extra buffer, in the middle of `count`; of the middle one if nobody
    needs any. It shows the gap, and from when the first of them came if that is not too long ago."""
    worst = max(range(len(listeners)), key=lambda i: (listeners[i].extra_buffer, -abs(i - len(listeners) / 2)))
    count = min(count, len(listeners))
    first = min(max(0, worst - count // 2), len(listeners) - count)
    came_at, gap_end = listeners[first].said.at - BEFORE, _worst_gap(lane(listeners[worst]))[1] + AFTER
    return Scene(first, count, max(came_at, gap_end - MOST), max(came_at + LEAST, gap_end))


def _worst_gap(lane: Lane) -> Span:
    """The longest, or the time of its request where there is none."""
    return max(lane.gaps, key=lambda gap: gap[1] - gap[0], default=(lane.submitted_at, lane.submitted_at))
