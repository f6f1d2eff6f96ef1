"""Takes events in, gives steps and audio out: admission, deadlines and ends. It knows neither the device nor the time.

What runs next is engine.choice's business; here is what a stream may use, when it must send, and when it is over.

A stream that is more than Limits.max_lead ahead of its listener is not run, even on an idle engine: audio that may
never be heard costs nothing then. It is held between two chunks only, so it leads by at most max_lead plus one chunk
of 16 frames; wake_at says when it goes on. A listener who never says where he stands (a file that is written) is not
waited for: his slack grows, so that he is served last. An utterance that follows another starts when that one is
generated and its end is less than max_lead away; until then it holds neither slot nor page. From then on it waits in
the same line for them as new callers do, by the time of its arrival there, so that neither starves the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from engine import chunking
from engine.choice import Predicted
from engine.core import (
    PCM,
    Cancel,
    Chunk,
    Codes,
    ErrorCode,
    Event,
    Failed,
    Finished,
    FinishReason,
    Limits,
    ModelSpec,
    Output,
    Playhead,
    Queued,
    Refused,
    Row,
    Stage,
    Step,
    StepResult,
    Submit,
    num_sequences,
)
from engine.metrics import Count, Measure, Metrics
from engine.pages import PageAllocator
from engine.policy import Candidate, Explain, Policy, explained
from engine.predictor import Playback, Predictor, bucket
from engine.room import Place, Room
from engine.stream import Stream, frame_limit, pages_needed

REMEMBERED = 256
"""Ended utterances whose place on the playback clock is kept, for their playheads and for what follows them."""
SMALLEST_PREFILL = 16
"""Prompt positions that one prefill step may have, however long it takes."""


@dataclass(frozen=True, slots=True)
class Flight:
    """The step that runs now."""

    step: Step
    streams: tuple[Stream, ...]
    started_at: float
    mean: float
    cost: float
    """Seconds that it was expected to take, on average and at most."""


class Scheduler:
    """Which stage runs next, for which requests. One thread calls it, in the order of engine.loop."""

    def __init__(
        self,
        spec: ModelSpec,
        limits: Limits,
        predictor: Predictor,
        policy: Policy | None = None,
        explain: Explain | None = None,
    ) -> None:
        self.metrics = Metrics()
        self._policy = policy or Predicted(predictor, limits)
        self._explain = explain
        self._max_lead = limits.max_lead if self._policy.paced else inf
        self._spec = spec
        self._limits = limits
        self._predictor = predictor
        self._pages = PageAllocator(limits.num_pages)
        self._slots = PageAllocator(limits.num_slots)  # numbers that are given out, like pages
        self._queue: dict[int, Stream] = {}
        self._admitted: dict[int, Stream] = {}
        self._leaving: list[Stream] = []
        self._said: dict[int, tuple[Playback, Place | None]] = {}
        self._in_flight: Flight | None = None
        self._pace = predictor.pace(1, limits)
        self._parts = {guided: self._part(guided) for guided in (False, True)}
        """By what is known now and not later: how a prompt is parted may change the last bit of what is computed, and
        a request's codes must not depend on the load."""
        self._room = Room(predictor, limits, spec.frame_seconds)
        self._usual_pages = 0
        """Of one row of the latest request."""
        self._strain = 0.0
        """Seconds that a playing stream lacked when last planned: no new caller begins before that is over."""
        self._wake_at: float | None = None

    @property
    def wake_at(self) -> float | None:
        """After a plan without a step: when to plan again if no event comes. None: only an event can bring work."""
        return self._wake_at

    def snapshot(self, now: float) -> dict[str, float]:
        """All metrics, and what is used right now, by name."""
        self._room.expire(now)
        return self.metrics.snapshot() | {
            "requests_queued": float(len(self._queue)),
            "requests_active": float(len(self._admitted)),
            "slots_free": float(self._slots.num_free),
            "pages_free": float(self._pages.num_free),
            "retry_after_seconds": self._retry_after(),
        }

    def apply(self, event: Event, now: float) -> list[Output]:
        """Take an event in. A refusal and the end of a cancelled request are returned at once."""
        match event:
            case Submit():
                return self._submit(event, now)
            case Refused():
                self.metrics.count(Count.SUBMITTED)
                self.metrics.count(Count.REFUSED)
                return [Failed(event.request_id, event.epoch, event.code, event.message)]
            case Cancel():
                stream = self._find(event.request_id)
                return self._end(stream, FinishReason.CANCELLED, now) if stream else []
            case Playhead():
                self._move(event)
                return []

    def plan(self, now: float) -> Step | None:
        """The next step, or None when nobody needs one before wake_at. Nothing may be in flight."""
        assert self._in_flight is None, f"plan before commit of {self._in_flight}"
        self._free()
        running = self._running(now)
        if not running:
            self._strain = 0.0
        if self._admit(now):
            running = self._running(now)
        if not running:
            self._wake_at = self._next_due(now)
            return None
        guided = any(stream.guided for stream in running)
        self._pace = self._predictor.pace(len(running), self._limits, guided)
        candidates = [self._judge(stream, now) for stream in running]
        self._strain = max((-slack for c in candidates if -inf < (slack := c.slack) < 0), default=0.0)
        decision = self._policy.decide(candidates, self._pace, now)
        if self._explain is not None:
            self._explain(explained(decision, candidates, now))
        if not decision.rows:
            self._wake_at = decision.wait_until
            return None
        return self._begin(decision.rows, now)

    def _running(self, now: float) -> list[Stream]:
        lead = self._max_lead
        return [stream for stream in self._admitted.values() if stream.pending or now >= stream.due_at(lead)]

    def _begin(self, rows: Sequence[Candidate], now: float) -> Step:
        step = Step(rows[0].stage, tuple(c.stream.row(c.stage, c.count) for c in rows))
        shape = step.stage, step.sequences, step.length
        expected = self._predictor.mean(*shape), self._predictor.cost(*shape)
        self._in_flight = Flight(step, tuple(c.stream for c in rows), now, *expected)
        return step

    def commit(self, step: Step, result: StepResult, now: float) -> list[Output]:
        """Take the planned step's result in; returns its audio and the ends. Rows cancelled meanwhile are dropped."""
        flight = self._in_flight
        assert flight is not None and flight.step is step, f"commit of a step not planned: {step}"
        self._in_flight = None
        elapsed = now - flight.started_at
        self._observe(flight, elapsed)
        outputs: list[Output] = []
        for index, (stream, row) in enumerate(zip(flight.streams, step.rows, strict=True)):
            if self._admitted.get(row.request_id) is stream:
                stream.stage_seconds[step.stage] += elapsed / step.batch
                stream.served_at = now
                outputs += self._advance(stream, step.stage, row, result, index, now)
        return outputs

    def _observe(self, flight: Flight, elapsed: float) -> None:
        self.metrics.count(Count.STEPS)
        self.metrics.count(Count.BUSY, elapsed)
        self.metrics.count(Count.OVERRUNS, elapsed > flight.cost)
        self.metrics.observe(Measure.PREDICTION_ERROR, abs(elapsed / flight.mean - 1))

    # Entry

    def _submit(self, submit: Submit, now: float) -> list[Output]:
        self.metrics.count(Count.SUBMITTED)
        impossible = self._impossible(submit)
        if impossible is not None:
            self.metrics.count(Count.REFUSED)
            return [impossible]
        self._enqueue(submit, now)
        self._admit(now)
        return self._answer(submit, now)

    def _impossible(self, submit: Submit) -> Failed | None:
        """Why this request could never be served, whatever the load."""
        rows, length = len(submit.prompt.rows), submit.prompt.length if submit.prompt.rows else 0
        if not length:
            return _refusal(submit, ErrorCode.BAD_REQUEST, "expected a prompt, got an empty one: send some text")
        if rows > self._limits.num_slots:
            reason = f"it needs {rows} slots, the engine has {self._limits.num_slots}: set cfg_scale to 1"
            return _refusal(submit, ErrorCode.BAD_REQUEST, reason)
        frames = frame_limit(submit, self._spec)
        if frames < 1:
            reason = f"expected at most {self._spec.max_positions - 2} prompt positions, got {length}: shorten it"
            return _refusal(submit, ErrorCode.TOO_LONG, reason)
        pages = sum(pages_needed(submit, frames, self._limits.page_size))
        if pages > self._limits.num_pages:
            reason = f"it needs {pages} pages, the engine has {self._limits.num_pages}: lower max_frames ({frames})"
            return _refusal(submit, ErrorCode.TOO_LONG, reason)
        return None

    def _enqueue(self, submit: Submit, now: float) -> None:
        assert self._find(submit.request_id) is None, f"request_id {submit.request_id} is in use"
        stream = Stream.accept(submit, self._spec, self._limits, now)
        if submit.follows is not None:
            stream.after = self._find(submit.follows)
            if submit.follows in self._said:
                self._resume(stream, *self._said[submit.follows], now)
        self._queue[submit.request_id] = stream
        self._usual_pages = max(stream.pages_needed)

    def _resume(self, stream: Stream, said: Playback, place: Place | None, now: float) -> None:
        """It continues an utterance that has ended: in its place, if that was kept; as a new caller after silence."""
        self._room.expire(now)
        if place is not None and self._room.has(place):
            self._room.share_with(place, 1)
            stream.place = place
        elif said.deadline(now) > now:
            stream.place = self._room.take(len(stream.pages_needed), now)
        self._follow(stream, said, now)

    def _follow(self, stream: Stream, said: Playback, now: float) -> None:
        """Start it where `said` ends; at once, if there is silence already."""
        if said.deadline(now) > now:
            stream.playback = Playback(said.clock, said.end)
            stream.continues = True

    def _answer(self, submit: Submit, now: float) -> list[Output]:
        """What a request that waits is told, unless it begins at once: how long it has to, or that this would be too
        long, or that too many of its kind, in a reply or not, wait already. What continues a reply waits for the end of
        what went before, and needs no answer."""
        stream = self._queue.get(submit.request_id)
        if stream is None:
            return []
        others = sum(other.in_reply == stream.in_reply for other in self._queue.values()) - 1
        wait = self._until_room()
        if others >= self._limits.max_queued:
            return self._turn_away(stream, f"{others} requests are waiting already", wait, now)
        if stream.in_reply:
            return []
        if wait > self._limits.max_wait:
            return self._turn_away(stream, "all voices are busy", wait, now)
        return [Queued(submit.request_id, submit.epoch, wait)]

    def _turn_away(self, stream: Stream, reason: str, wait: float, now: float) -> list[Output]:
        """Refuse one that waits; what would have continued it is told anew."""
        self.metrics.count(Count.REFUSED)
        del self._queue[stream.request_id]
        if stream.place is not None and stream.after is None:
            self._room.leave(stream.place, None, now)
        refusal = _refusal(stream.submit, ErrorCode.BUSY, reason, wait or self._room.wait(len(stream.pages_needed)))
        return [refusal, *self._orphan(stream, now)]

    def _orphan(self, stream: Stream, now: float) -> list[Output]:
        """Answers for those that continue one that never began: they are new callers now."""
        outputs: list[Output] = []
        for follower in self._followers(stream):
            follower.after, follower.ready_at = None, now
            outputs += self._answer(follower.submit, now)
        return outputs

    def _followers(self, stream: Stream) -> list[Stream]:
        return [other for other in self._queue.values() if other.after is stream]

    def _until_room(self, more: int = 0) -> float:
        """Predicted seconds until the last new caller who waits begins, or another one with `more` rows behind him."""
        waiting = [stream for stream in self._queue.values() if not stream.in_reply]
        rows = sum(len(stream.pages_needed) for stream in waiting) + more
        pages = sum(sum(stream.pages_needed) for stream in waiting) + more * self._usual_pages
        if self._slots.num_free >= rows and self._pages.num_free >= pages and self._fits(rows):
            return self._strain
        return self._room.wait(rows)

    def _retry_after(self) -> float:
        """What a new caller would be told now, if he were refused; else 0."""
        waiting = sum(not stream.in_reply for stream in self._queue.values())
        wait = self._until_room(more=1)
        return wait if wait > self._limits.max_wait or waiting >= self._limits.max_queued else 0.0

    def _fits(self, rows: int) -> bool:
        """Whether so many more rows break no deadline."""
        return self._limits.max_wait == inf or self._room.fits(rows)

    def _holds_back(self, stream: Stream) -> bool:
        """Whether it is a new caller who has to wait for others' deadlines."""
        if stream.place is not None or self._limits.max_wait == inf:
            return False
        return self._strain > 0 or not self._fits(len(stream.pages_needed))

    def _admit(self, now: float) -> bool:
        """Give slots and pages to those who can start, first come first; whether there was anybody. Who does not fit
        yet blocks those behind him, or small requests would starve a large one. A new caller who would break a deadline
        blocks new callers only."""
        if not self._queue:
            return False
        self._room.expire(now)
        lead, held, before = self._max_lead, False, len(self._admitted)
        ready = [stream for stream in self._queue.values() if now >= stream.due_at(lead)]
        for stream in sorted(ready, key=lambda stream: stream.waits_since(lead)):
            held = held or self._holds_back(stream)
            if held and stream.place is None:
                continue
            if not self._reserve(stream):
                break
            self._enter(stream, now)
        return len(self._admitted) > before

    def _enter(self, stream: Stream, now: float) -> None:
        self._admitted[stream.request_id] = self._queue.pop(stream.request_id)
        if stream.place is None:
            stream.place = self._room.take(len(stream.pages_needed), now)
        self.metrics.observe(Measure.QUEUED, now - stream.submitted_at)

    def _reserve(self, stream: Stream) -> bool:
        """All that the stream may ever need, or nothing: who was admitted cannot run out later."""
        rows = len(stream.pages_needed)
        pages = self._pages.allocate(sum(stream.pages_needed)) if self._slots.num_free >= rows else None
        slots = self._slots.allocate(rows) if pages is not None else None
        if pages is None or slots is None:
            return False
        stream.hold(slots, pages)
        return True

    # Choice

    def _judge(self, stream: Stream, now: float) -> Candidate:
        """What the stream needs next, and how long it can wait for it."""
        pace = self._pace
        left = -inf if stream.starting else stream.playback.left(now) - pace.margin
        if pending := stream.pending:
            size = self._sendable(stream, pending, left)
            if size:
                return Candidate(stream, Stage.CODEC, size, left - pace.codec[size])
            least = pace.codec[chunking.fitting(pending, pace.largest)]  # could be sent instead
            return Candidate(stream, stream.stage, 1, left - least, optional=True)
        left -= pace.frame + pace.codec[1]
        if stream.prefilled < stream.prompt_length:
            count, seconds = self._opening(stream)
            return Candidate(stream, stream.stage, count, left - seconds)
        return Candidate(stream, stream.stage, 1, left)

    def _sendable(self, stream: Stream, pending: int, left: float) -> int:
        """How many of its pending frames to send now; 0 means: make more frames first."""
        pace = self._pace
        if stream.reason is not None:
            return chunking.fitting(pending, pace.largest)
        wanted = chunking.goal(stream.chunks, pace.largest, self._policy.first_chunk)
        if self._policy.paced:
            return chunking.sendable(pending, wanted, left, pace.frame, pace.codec)
        return wanted if pending >= wanted else 0

    def _opening(self, stream: Stream) -> tuple[int, float]:
        """Row.count of its next step while its prompt is not in, and the predicted seconds until it is."""
        left, part = stream.prompt_length - stream.prefilled, self._parts[stream.guided]
        count = min(left, part)
        seconds = ceil(left / part) * self._prefill_cost(count, stream.guided)
        if stream.stage is Stage.TEXT:
            return stream.text_tokens, seconds + self._predictor.cost(Stage.TEXT, 1, stream.text_tokens)
        return count, seconds

    def _part(self, guided: bool) -> int:
        """Prompt positions that one prefill step has time for."""
        count = self._limits.max_prefill_tokens
        while count > SMALLEST_PREFILL and self._prefill_cost(count, guided) > self._limits.max_step_seconds:
            count = bucket(count) // 2
        return count

    def _prefill_cost(self, count: int, guided: bool) -> float:
        return self._predictor.cost(Stage.PREFILL, num_sequences(Stage.PREFILL, 1, guided), count)

    def _next_due(self, now: float) -> float | None:
        """When the first of those that are held goes on by itself, or a reply's place is free."""
        streams = (*self._admitted.values(), *self._queue.values())
        due = [stream.due_at(self._max_lead) for stream in streams]
        if self._limits.max_wait < inf:
            due.append(self._room.next_end(now))
        return min((at for at in due if now < at < inf), default=None)

    # Results

    def _advance(
        self, stream: Stream, stage: Stage, row: Row, result: StepResult, index: int, now: float
    ) -> list[Output]:
        stream.advance(stage, row, bool(result.ended) and result.ended[index])
        outputs: list[Output] = []
        if stage is Stage.CODEC:
            outputs.append(self._chunk(stream, row, result.pcm[index], result.codes[index], now))
        if stream.reason is not None and not stream.pending:
            outputs += self._end(stream, stream.reason, now)
        return outputs

    def _chunk(self, stream: Stream, row: Row, pcm: PCM, codes: Codes, now: float) -> Chunk:
        self._measure(stream, row, now)
        stream.last_chunk_seconds = row.count * self._spec.frame_seconds
        stream.playback.deliver(stream.last_chunk_seconds, now)
        final = stream.reason is not None and not stream.pending
        slack = inf if final else self._slack(stream, now)
        return Chunk(stream.request_id, stream.submit.epoch, row.start, pcm, codes, slack, final, now)

    def _slack(self, stream: Stream, now: float) -> float:
        """Chunk.slack of the chunk just delivered. A stream that is held goes on when only max_lead is left."""
        playback, pending, pace = stream.playback, stream.pending, self._pace
        if stream.reason is not None:
            size = chunking.fitting(pending, pace.largest)
        else:
            wanted = chunking.goal(stream.chunks, pace.largest, self._policy.first_chunk)
            size = chunking.expected(pending, wanted, playback.left(now), pace.frame, pace.codec)
        reserve = playback.deadline(now) - now
        if playback.clock.known:
            reserve = min(reserve, self._max_lead)
        return reserve - chunking.seconds(size, pending, pace.frame, pace.codec)

    def _measure(self, stream: Stream, row: Row, now: float) -> None:
        self.metrics.count(Count.CHUNKS)
        self.metrics.count(Count.FRAMES, row.count)
        late = now - stream.playback.deadline(now)
        if stream.first_chunk_at is None:
            stream.first_chunk_at = now
            self.metrics.observe(Measure.TTFA, now - stream.submitted_at)
            late = late if stream.continues else 0.0
        if late > 0:
            self.metrics.count(Count.DEADLINE_MISSES)
            self.metrics.observe(Measure.LATENESS, late)

    # Ends

    def _end(self, stream: Stream, reason: FinishReason, now: float) -> list[Output]:
        """The one end of a request that was accepted, and what those are told who would have continued it. What it
        holds is only marked here."""
        stream.reason, stats = reason, stream.stats(now)
        cancelled = reason is FinishReason.CANCELLED
        if self._queue.pop(stream.request_id, None) is None:
            self._leaving.append(self._admitted.pop(stream.request_id))
        if not cancelled:
            self._room.learn(stats)
            self._remember(stream)
        self.metrics.count(Count.CANCELLED if cancelled else Count.FINISHED)
        if stats.rtf is not None:
            self.metrics.observe(Measure.RTF, stats.rtf)
        finished = Finished(stream.request_id, stream.submit.epoch, reason, stats)
        return [finished, *self._hand_on(stream, cancelled, now)]

    def _hand_on(self, stream: Stream, cancelled: bool, now: float) -> list[Output]:
        """Lets those that continue it begin, in its place. What continues one that waited itself waits on for that
        one's predecessor."""
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
                self._follow(follower, stream.playback, now)
        self._room.leave(place, None if cancelled else stream.playback, now)
        return []

    def _remember(self, stream: Stream) -> None:
        self._said[stream.request_id] = stream.playback, stream.place
        if len(self._said) > REMEMBERED:
            del self._said[next(iter(self._said))]

    def _free(self) -> None:
        """Take back what ended streams held: only here, because now nothing is in flight."""
        for stream in self._leaving:
            self._slots.free(stream.slots)
            for pages in stream.pages:
                self._pages.free(pages)
        self._leaving.clear()

    def _find(self, request_id: int) -> Stream | None:
        return self._admitted.get(request_id) or self._queue.get(request_id)

    def _move(self, playhead: Playhead) -> None:
        """The listener's own word on where it stands, in an utterance that lives or has ended."""
        stream = self._find(playhead.request_id)
        playback = stream.playback if stream else self._said.get(playhead.request_id, (None, None))[0]
        if playback is not None:
            played = min(playhead.played_samples / self._spec.sample_rate, playback.delivered)
            playback.clock.move(playback.offset + played, playhead.at, playhead.running, playhead.jitter)


def _refusal(submit: Submit, code: ErrorCode, reason: str, retry_after: float | None = None) -> Failed:
    return Failed(submit.request_id, submit.epoch, code, reason, retry_after)
