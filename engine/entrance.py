"""Says who may begin, and what those are told who have to wait. It does not know what runs, nor when the next step is.

Who comes first begins first, as soon as slots and pages for the whole of it are free and one more stream breaks no
deadline. An utterance that follows another is in no line before that one is generated and its end is less than max_lead
away. From then on it waits in the same line as new callers do, by the time of its arrival there, so that neither
starves the other; but it has its reply's place, and is not held back for others' deadlines.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from engine.core import ErrorCode, Failed, Limits, ModelSpec, Output, Queued, Submit
from engine.metrics import Count, Metrics
from engine.pages import PageAllocator
from engine.playback import Playback
from engine.policy import Waits
from engine.prefixes import Prefixes
from engine.room import Place, Room
from engine.stream import Stream, frame_limit, pages_needed

REMEMBERED = 256
"""Ended utterances whose place on the playback clock is kept, for their playheads and for what follows them."""


class Entrance:
    """All who wait, and what is free for them. The one place where slots and pages are given out and taken back."""

    def __init__(self, limits: Limits, room: Room, metrics: Metrics) -> None:
        self.max_lead = limits.max_lead
        """Infinity under a policy that holds nobody."""
        self.strain = 0.0
        """Seconds that a playing stream lacked when last planned: no new caller begins before that is over."""
        self._limits, self._room, self._metrics = limits, room, metrics
        self._pages = PageAllocator(limits.num_pages)
        self._prefixes = Prefixes(self._pages)
        self._slots = PageAllocator(limits.num_slots)  # numbers that are given out, like pages
        self._queue: dict[int, Stream] = {}
        self._said: dict[int, tuple[Playback, Place | None]] = {}
        self._usual_pages = 0
        """Of one row of the latest request."""

    @property
    def streams(self) -> list[Stream]:
        """Those who wait, in order of their arrival."""
        return list(self._queue.values())

    def snapshot(self, now: float) -> dict[str, float]:
        """Who waits and what is free, by name."""
        self._room.expire(now)
        return {
            "requests_queued": float(len(self._queue)),
            "slots_free": float(self._slots.num_free),
            "pages_free": float(self._pages.num_free + self._prefixes.idle()),
            "prefix_pages": float(self._prefixes.num_pages),
            "retry_after_seconds": self._retry_after(),
        }

    def find(self, request_id: int) -> Stream | None:
        """Who waits under that number."""
        return self._queue.get(request_id)

    def said(self, request_id: int) -> Playback | None:
        """Of an utterance that has ended lately: where it lies on its listener's clock."""
        return self._said.get(request_id, (None, None))[0]

    # Coming

    def enqueue(self, stream: Stream, after: Stream | None, now: float) -> None:
        """It comes, and continues `after` or what its request follows, if that has ended lately."""
        stream.after, follows = after, stream.submit.follows
        if follows is not None and follows in self._said:
            self._resume(stream, *self._said[follows], now)
        self._queue[stream.request_id] = stream
        self._usual_pages = max(stream.pages_needed)

    def _resume(self, stream: Stream, said: Playback, place: Place | None, now: float) -> None:
        """It continues an utterance that has ended: in its place, if that was kept; as a new caller after silence."""
        self._room.expire(now)
        if place is not None and self._room.has(place):
            self._room.share_with(place, 1)
            stream.place = place
        elif said.deadline(now) > now:
            stream.place = self._room.take(stream.num_rows, now)
        _follow(stream, said, now)

    def answer(self, stream: Stream, now: float) -> list[Output]:
        """What a request that waits is told, unless it has begun: how long it has to, or that this would be too long,
        or that too many of its kind, in a reply or not, wait already. What continues a reply waits for the end of what
        went before, and needs no answer."""
        if stream.request_id not in self._queue:
            return []
        others = sum(other.in_reply == stream.in_reply for other in self._queue.values()) - 1
        wait = self._until_room()
        if others >= self._limits.max_queued:
            return self._turn_away(stream, f"{others} requests are waiting already", wait, now)
        if stream.in_reply:
            return []
        if wait > self._limits.max_wait:
            return self._turn_away(stream, "all voices are busy", wait, now)
        return [] if stream.opens and not wait else self.queued(stream)

    def queued(self, stream: Stream) -> list[Output]:
        """What one that was accepted is told, unless it has begun, or continues a reply."""
        if stream.request_id not in self._queue or stream.in_reply:
            return []
        return [Queued(stream.request_id, stream.submit.epoch, self._until_room())]

    def begin(self, stream: Stream, now: float) -> None:
        """There is text enough for it, which counts as its arrival; where what went before it was heard meanwhile, it
        is a new caller, who was not kept waiting by anybody here."""
        stream.submitted_at = stream.served_at = now
        stream.ready_at = max(stream.ready_at, now)
        if stream.continues and stream.playback.deadline(now) <= now:
            stream.continues = False

    def _turn_away(self, stream: Stream, reason: str, wait: float, now: float) -> list[Output]:
        """Refuse one that waits; what would have continued it is told anew."""
        self._metrics.count(Count.REFUSED)
        del self._queue[stream.request_id]
        if stream.place is not None and stream.after is None:
            self._room.leave(stream.place, None, now)
        refusal = _refusal(stream.submit, ErrorCode.BUSY, reason, wait or self._room.wait([stream.num_rows]))
        return [refusal, *self._orphan(stream, now)]

    def _orphan(self, stream: Stream, now: float) -> list[Output]:
        """Answers for those that continue one that never began: they are new callers now."""
        outputs: list[Output] = []
        for follower in self._followers(stream):
            follower.after, follower.ready_at = None, now
            outputs += self.answer(follower, now)
        return outputs

    def _followers(self, stream: Stream) -> list[Stream]:
        return [other for other in self._queue.values() if other.after is stream]

    def _until_room(self, more: int = 0) -> float:
        """Predicted seconds until the last new caller who waits begins, or one of `more` others behind him."""
        waiting = [stream for stream in self._queue.values() if not stream.in_reply]
        rows = [stream.num_rows for stream in waiting] + [1] * more
        pages = sum(sum(stream.pages_needed) for stream in waiting) + more * self._usual_pages
        free = self._pages.num_free + self._prefixes.idle()
        if self._slots.num_free >= sum(rows) and free >= pages and self._fits(rows):
            return self.strain
        return self._room.wait(rows)

    def _retry_after(self) -> float:
        """What a new caller would be told now, if he were refused; else 0."""
        waiting = sum(not stream.in_reply for stream in self._queue.values())
        wait = self._until_room(more=1)
        return wait if wait > self._limits.max_wait or waiting >= self._limits.max_queued else 0.0

    # Going in

    def admit(self, now: float) -> list[Stream]:
        """Give slots and pages to those who can start, first come first. Who does not fit yet blocks those behind him,
        or small requests would starve a large one. A new caller who would break a deadline blocks new callers only."""
        entered: list[Stream] = []
        if not self._queue:
            return entered
        self._room.expire(now)
        if not self._slots.num_free:
            return entered  # no need to know who is first in line
        held = False
        for stream in self._line(now):
            held = held or self._holds_back(stream)
            if held and stream.place is None:
                continue
            if not self._reserve(stream):
                break
            if stream.place is None:
                stream.place = self._room.take(stream.num_rows, now)
            entered.append(self._queue.pop(stream.request_id))
        return entered

    def _line(self, now: float) -> list[Stream]:
        lead = self.max_lead
        ready = [stream for stream in self._queue.values() if now >= stream.due_at(lead)]
        return sorted(ready, key=lambda stream: stream.waits_since(lead))

    def _holds_back(self, stream: Stream) -> bool:
        """Whether it is a new caller who has to wait for others' deadlines."""
        if stream.place is not None or self._limits.max_wait == inf:
            return False
        return self.strain > 0 or not self._fits([stream.num_rows])

    def _fits(self, rows: list[int]) -> bool:
        """Whether callers with so many rows each break no deadline."""
        return self._limits.max_wait == inf or self._room.fits(rows)

    def _reserve(self, stream: Stream) -> bool:
        """All that the stream may ever need, or nothing: who was admitted cannot run out later."""
        if self._lacking(stream):
            return False
        own, shared = self._own_pages(stream), self._share(stream)
        self._prefixes.make_room(own)
        slots, pages = self._slots.allocate(stream.num_rows), self._pages.allocate(own)
        assert slots is not None and pages is not None, f"{stream.request_id} lacks nothing, and gets nothing"
        stream.hold(slots, pages, shared)
        return True

    def _share(self, stream: Stream) -> tuple[int, ...]:
        """The pages that hold its prompt's prefix, if some do: it is one of their holders now, with each row."""
        if stream.prefix is None:
            return ()
        there = bool(self._prefixes.find(stream.prefix.key))
        self._metrics.count(Count.PREFIX_HITS if there else Count.PREFIX_MISSES)
        return self._prefixes.take(stream.prefix.key, stream.num_rows) if there else ()

    def _own_pages(self, stream: Stream) -> int:
        """Those that it would share with nobody."""
        shared = len(self._prefixes.find(stream.prefix.key)) if stream.prefix else 0
        return sum(stream.pages_needed) - stream.num_rows * shared

    def keep(self, stream: Stream) -> None:
        """Its prompt's prefix is in its pages now: whoever comes next may share them."""
        assert stream.prefix is not None, f"{stream.request_id} has no prefix"
        pages = stream.prefix.length // self._limits.page_size
        self._prefixes.keep(stream.prefix.key, stream.pages[0][:pages])

    def _lacking(self, stream: Stream) -> str:
        """What it cannot begin without, if anything."""
        if self._slots.num_free < stream.num_rows:
            return "slots"
        free = self._pages.num_free + self._prefixes.idle(beside=stream.prefix.key if stream.prefix else b"")
        return "pages" if free < self._own_pages(stream) else ""

    def free(self, stream: Stream) -> None:
        """Take back what an ended stream held."""
        self._slots.free(stream.slots)
        for pages in stream.pages:
            self._pages.free(pages)

    def waits(self, now: float) -> Iterator[Waits]:
        """Why each of those waits whom admit has just not let in, for an explanation."""
        line, blocked, held = self._line(now), "", ""
        for stream in line:
            behind = blocked or (held if stream.place is None else "")
            if behind:
                reason = behind
            elif self._holds_back(stream):
                held = f"behind {stream.request_id}"
                late = f"others are {1000 * self.strain:.0f} ms late" if self.strain > 0 else ""
                reason = late or "one more would break a deadline"
            else:
                blocked, reason = f"behind {stream.request_id}", f"too few free {self._lacking(stream)}"
            yield stream, reason
        for stream in self._queue.values():
            if stream not in line:
                yield stream, early(stream, self.max_lead)

    # Leaving

    def silence(self, request_id: int, now: float) -> None:
        """Nobody listens any more to an utterance that has ended: its place is free, if it was the reply's last."""
        playback, place = self._said.pop(request_id, (None, None))
        if place is not None and place.playback is playback:
            self._room.silence(place, now)

    def remove(self, stream: Stream) -> bool:
        """It does not wait any longer; whether it did."""
        return self._queue.pop(stream.request_id, None) is not None

    def hand_on(self, stream: Stream, cancelled: bool, now: float) -> list[Output]:
        """It has ended: lets those that continue it begin, in its place, and answers those that would have. What
        continues one that waited itself waits on for that one's predecessor."""
        if not cancelled:
            self._remember(stream)
        followers, place = self._followers(stream), stream.place
        if stream.after is not None:
            for follower in followers:
                follower.after = stream.after
            return []
        if place is None:
            return self._orphan(stream, now)
        self._room.share_with(place, len(followers))
        for follower in followers:
            follower.after, follower.ready_at, follower.place = None, now, place
            if not cancelled:
                _follow(follower, stream.playback, now)
        self._room.leave(place, None if cancelled else stream.playback, now)
        return []

    def _remember(self, stream: Stream) -> None:
        self._said[stream.request_id] = stream.playback, stream.place
        if len(self._said) > REMEMBERED:
            del self._said[next(iter(self._said))]


def impossible(submit: Submit, spec: ModelSpec, limits: Limits) -> Failed | None:
    """Why this request could never be served, whatever the load."""
    rows, length = len(submit.prompt.rows), submit.prompt.length if submit.prompt.rows else 0
    if not length:
        return _refusal(submit, ErrorCode.BAD_REQUEST, "expected a prompt, got an empty one: send some text")
    if rows > limits.num_slots:
        reason = f"it needs {rows} slots, the engine has {limits.num_slots}: set cfg_scale to 1"
        return _refusal(submit, ErrorCode.BAD_REQUEST, reason)
    frames = frame_limit(submit, spec)
    if frames < 1:
        reason = f"expected at most {spec.max_positions - 2} prompt positions, got {length}: shorten it"
        return _refusal(submit, ErrorCode.TOO_LONG, reason)
    pages = sum(pages_needed(submit, frames, limits.page_size))
    if pages > limits.num_pages:
        reason = f"it needs {pages} pages, the engine has {limits.num_pages}: lower max_frames ({frames})"
        return _refusal(submit, ErrorCode.TOO_LONG, reason)
    return None


def early(stream: Stream, max_lead: float) -> str:
    """Why a stream is not due, for an explanation."""
    if stream.after is not None:
        return f"after {stream.after.request_id}"
    due_at = stream.due_at(max_lead)
    if stream.opens or stream.lacks_text or (due_at == inf and stream.silent):
        return "its text is late"
    until = f"until {due_at:.4f}" if due_at < inf else "while he stands still"
    return f"{max_lead:g} s ahead of its listener {until}"


def _follow(stream: Stream, said: Playback, now: float) -> None:
    """Start it where `said` ends; at once, if there is silence already."""
    if said.deadline(now) > now:
        stream.playback = Playback(said.clock, said.end)
        stream.continues = True


def _refusal(submit: Submit, code: ErrorCode, reason: str, retry_after: float | None = None) -> Failed:
    return Failed(submit.request_id, submit.epoch, code, reason, retry_after)
