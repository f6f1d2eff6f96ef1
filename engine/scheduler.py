"""Takes events in, gives steps and audio out: what runs, what it made, and when it is over. It knows neither the device
nor the time.

Who may begin is engine.entrance's business, of recordings engine.encoding's; what a stream needs is engine.judge's, and
what runs next engine.choice's.

A stream that is more than Limits.max_lead ahead of its listener is not run, even on an idle engine: audio that may
never be heard costs nothing then. It is held between two chunks only, so it leads by at most max_lead plus one chunk
of 16 frames; wake_at says when it goes on. A listener who never says where he stands (a file that is written) is not
waited for: his slack grows, so that he is served last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from engine.choice import Predicted
from engine.core import (
    Cancel,
    Chunk,
    Encode,
    ErrorCode,
    Event,
    Failed,
    Finished,
    FinishReason,
    Limits,
    ModelSpec,
    Output,
    Playhead,
    Refused,
    Row,
    Stage,
    Step,
    StepResult,
    Submit,
    Text,
)
from engine.encoding import Encoding, Encodings
from engine.entrance import Entrance, early, impossible
from engine.judge import Judge
from engine.metrics import Count, Measure, Metrics
from engine.policy import Candidate, Decision, Explain, Policy, UsePolicy, Waits, explained
from engine.predictor import Predictor
from engine.room import Room
from engine.stream import Stream

CODEC, ENCODE, PREFILL = Stage.CODEC, Stage.ENCODE, Stage.PREFILL
Applied = Event | UsePolicy


@dataclass(slots=True)
class Flight:
    """The step that runs now."""

    step: Step
    rows: Sequence[Candidate]
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
        self._explain = explain
        self._spec = spec
        self._limits = limits
        self._predictor = predictor
        self._room = Room(predictor, limits, spec.frame_seconds)
        self._entrance = Entrance(limits, self._room, self.metrics)
        self._encodings = Encodings(limits)
        policy = policy or Predicted(predictor, limits)
        self._judge = Judge(predictor, limits, policy, limits.max_lead)
        self._use(policy)
        self._admitted: dict[int, Candidate] = {}
        self._leaving: list[Stream] = []
        self._in_flight: Flight | None = None
        self._wake_at: float | None = None

    @property
    def wake_at(self) -> float | None:
        """After a plan without a step: when to plan again if no event comes. None: only an event can bring work."""
        return self._wake_at

    def snapshot(self, now: float) -> dict[str, float]:
        """All metrics, and what is used right now, by name."""
        active = {"requests_active": float(len(self._admitted))}
        return self.metrics.snapshot() | self._entrance.snapshot(now) | self._encodings.snapshot() | active

    def _use(self, policy: Policy) -> None:
        self._policy = policy
        self._max_lead = self._entrance.max_lead = self._limits.max_lead if policy.paced else inf
        self._judge.use(policy, self._max_lead)

    def apply(self, event: Applied, now: float) -> list[Output]:
        """Take an event in. A refusal and the end of a cancelled request are returned at once."""
        match event:
            case Submit():
                return self._submit(event, now)
            case Encode():
                return self._encode(event, now)
            case Text():
                return self._read(event, now)
            case Refused():
                return self._fail(event, now)
            case Cancel():
                stream = self._find(event.request_id)
                if stream is not None:
                    return self._end(stream, FinishReason.CANCELLED, now)
                self._entrance.silence(event.request_id, now)
            case Playhead():
                self._move(event, now)
            case UsePolicy(policy=policy):
                self._use(policy)
        return []

    def plan(self, now: float) -> Step | None:
        """The next step, or None when nobody needs one before wake_at. Nothing may be in flight."""
        assert self._in_flight is None, f"plan before commit of {self._in_flight}"
        self._free()
        running = self._running(now)
        if not running:
            self._entrance.strain = 0.0
        running += self._admit(now)
        waits = self._waits(running, now) if self._explain else []
        if not running:
            self._wake_at = self._next_due(now)
            if self._explain and waits:
                self._explain(explained(Decision((), "nobody may run", self._wake_at or inf), (), now, waits))
            return None
        self._judge.judge(running, now)
        late = [c.slack for c in running if 0 > c.slack > -inf]
        self._entrance.strain = -min(late) if late else 0.0
        decision = self._policy.decide(running, self._judge.pace, now)
        if self._explain is not None:
            self._explain(explained(decision, running, now, waits, self._judge.goals(running)))
        if not decision.rows:
            self._wake_at = decision.wait_until
            return None
        return self._begin(decision.rows)

    def _running(self, now: float) -> list[Candidate]:
        lead, admitted = self._max_lead, self._admitted.values()
        if lead == inf:  # nobody is held, but for want of text
            return [c for c in admitted if (s := c.stream).text is None or now >= s.due_at(lead)]
        return [c for c in admitted if (s := c.stream).made > s.sent or now >= s.due_at(lead)]

    def _waits(self, running: Sequence[Candidate], now: float) -> list[Waits]:
        """Who is not run, and why, for an explanation."""
        runs = {id(candidate) for candidate in running}
        held = [candidate.stream for candidate in self._admitted.values() if id(candidate) not in runs]
        return [*self._entrance.waits(now), *((stream, early(stream, self._max_lead)) for stream in held)]

    def _begin(self, rows: Sequence[Candidate]) -> Step:
        step = Step(rows[0].stage, tuple([c.stream.row(c.stage, c.count) for c in rows]))
        shape = step.stage, step.sequences, step.length
        expected = self._predictor.mean(*shape), self._predictor.cost(*shape)
        self._in_flight = Flight(step, rows, *expected)
        return step

    def commit(self, step: Step, result: StepResult, now: float, elapsed: float) -> list[Output]:
        """Take the planned step's result in, which took `elapsed` seconds; returns its audio and the ends. Rows
        cancelled meanwhile are dropped."""
        flight = self._in_flight
        assert flight is not None and flight.step is step, f"commit of a step not planned: {step}"
        self._in_flight = None
        self._observe(flight, elapsed)
        outputs: list[Output] = []
        stage, share, ended = step.stage, elapsed / step.batch, result.ended or (False,) * step.batch
        for index, (candidate, row) in enumerate(zip(flight.rows, step.rows, strict=True)):
            if self._admitted.get(row.request_id) is not candidate:
                continue
            stream = candidate.stream
            stream.stage_seconds[stage] += share
            stream.served_at = now
            if stage is not ENCODE:
                stream.advance(stage, row, ended[index])
            if stage is PREFILL and row.start < stream.boundary <= stream.prefilled:
                self._entrance.keep(stream)
            if stage is CODEC:
                outputs.append(self._chunk(stream, row, result, index, now))
            elif isinstance(stream, Encoding):
                vector = result.vectors[index] if result.vectors else ()
                if encoded := stream.take(row, result.codes[index], vector):
                    outputs.append(encoded)
            if stream.reason is not None and not stream.pending:
                outputs += self._end(stream, stream.reason, now)
        return outputs

    def _observe(self, flight: Flight, elapsed: float) -> None:
        self.metrics.count(Count.STEPS)
        self.metrics.count(Count.BUSY, elapsed)
        self.metrics.count(Count.OVERRUNS, elapsed > flight.cost)
        self.metrics.observe(Measure.PREDICTION_ERROR, abs(elapsed / flight.mean - 1))

    # Entry

    def _submit(self, submit: Submit, now: float) -> list[Output]:
        self.metrics.count(Count.SUBMITTED)
        refusal = impossible(submit, self._spec, self._limits)
        if refusal is not None:
            return self._refuse(refusal)
        assert self._find(submit.request_id) is None, f"request_id {submit.request_id} is in use"
        stream = Stream.accept(submit, self._spec, self._limits, now)
        after = None if submit.follows is None else self._find(submit.follows)
        self._entrance.enqueue(stream, after, now)
        self._admit(now)
        return self._entrance.answer(stream, now)

    def _encode(self, encode: Encode, now: float) -> list[Output]:
        """A recording comes. It waits for a place where the encoder keeps its past, if need be."""
        self.metrics.count(Count.SUBMITTED)
        if not self._spec.encodes:
            message = f"expected a voice with encoders for recordings, {self._spec.name} has none: give a Reference"
            return self._refuse(Failed(encode.request_id, 0, ErrorCode.BAD_REQUEST, message))
        if self._encodings.full:
            wait = self._judge.encoding_seconds(self._encodings.missing)
            message = f"{self._limits.max_queued} recordings are waiting already"
            return self._refuse(Failed(encode.request_id, 0, ErrorCode.BUSY, message, wait))
        assert self._find(encode.request_id) is None, f"request_id {encode.request_id} is in use"
        self._encodings.enqueue(Encoding.of(encode, self._spec, now))
        return []

    def _read(self, text: Text, now: float) -> list[Output]:
        """More text of a request: what waits for enough to begin with may have it; what has run out of it, and gets it
        when nobody could help any more, begins anew. For what came in time and waited here the engine answers."""
        stream = self._find(text.request_id)
        if stream is None or stream.text is None or stream.text.done:
            return []
        waits = stream.opens
        came_at = now if text.came_at is None else min(now, text.came_at)
        if stream.lacks_text and not (stream.pending or stream.silent) and self._judge.too_late(stream, came_at):
            self.metrics.count(Count.TEXT_WAITS)
            stream.fall_silent()
        stream.take_text(text)
        if not waits or stream.opens:
            return []
        self._entrance.begin(stream, now)
        self._admit(now)
        return self._entrance.queued(stream)

    def _fail(self, refused: Refused, now: float) -> list[Output]:
        """It failed before it came here; or it is here, and cannot go on."""
        failed = Failed(refused.request_id, refused.epoch, refused.code, refused.message, field=refused.field)
        stream = self._find(refused.request_id)
        if stream is None:
            self.metrics.count(Count.SUBMITTED)
            return self._refuse(failed)
        return [*self._refuse(failed), *self._leave(stream, FinishReason.CANCELLED, now)]

    def _refuse(self, refusal: Failed) -> list[Output]:
        self.metrics.count(Count.REFUSED)
        return [refusal]

    def _admit(self, now: float) -> list[Candidate]:
        """Let in those who can start."""
        streams = self._entrance.admit(now)
        for stream in streams:
            self.metrics.observe(Measure.QUEUED, now - stream.submitted_at)
        entered = [Candidate(stream, stream.stage, 1, -inf) for stream in (*streams, *self._encodings.admit())]
        for candidate in entered:
            self._admitted[candidate.stream.request_id] = candidate
        return entered

    def _next_due(self, now: float) -> float | None:
        """When the first of those that are held goes on by itself, or a reply's place is free."""
        streams = (*(candidate.stream for candidate in self._admitted.values()), *self._entrance.streams)
        due = [stream.due_at(self._max_lead) for stream in streams]
        if self._limits.max_wait < inf:
            self._room.expire(now)
            due.append(self._room.next_end(now))
        return min((at for at in due if now < at < inf), default=None)

    # Results

    def _chunk(self, stream: Stream, row: Row, result: StepResult, index: int, now: float) -> Chunk:
        self._measure(stream, row, now)
        text_late, stream.silent = stream.silent, False
        stream.last_chunk_seconds = row.count * self._spec.frame_seconds
        stream.playback.deliver(stream.last_chunk_seconds, now)
        final = stream.reason is not None and not stream.pending
        waits = stream.lacks_text and not stream.pending
        slack = inf if final or waits else self._judge.slack(stream, now)
        pcm, codes = result.pcm[index], result.codes[index]
        return Chunk(stream.request_id, stream.submit.epoch, row.start, pcm, codes, slack, final, now, text_late)

    def _measure(self, stream: Stream, row: Row, now: float) -> None:
        self.metrics.count(Count.CHUNKS)
        self.metrics.count(Count.FRAMES, row.count)
        late = now - stream.playback.deadline(now)
        if stream.first_chunk_at is None:
            stream.first_chunk_at = now
            self.metrics.observe(Measure.TTFA, now - stream.submitted_at)
            late = late if stream.continues else 0.0
        if late > 0 and not stream.silent:
            self.metrics.count(Count.DEADLINE_MISSES)
            self.metrics.observe(Measure.LATENESS, late)

    # Ends

    def _end(self, stream: Stream, reason: FinishReason, now: float) -> list[Output]:
        """The one end of a request that was served as far as was wanted."""
        stats, cancelled = stream.stats(now), reason is FinishReason.CANCELLED
        self.metrics.count(Count.CANCELLED if cancelled else Count.FINISHED)
        finished = Finished(stream.request_id, stream.submit.epoch, reason, stats)
        if isinstance(stream, Encoding):
            stream.reason = reason
            self._end_encoding(stream, cancelled, now)
            return [finished, *self._entrance.hand_on(stream, True, now)]  # nothing is heard of it: a new caller
        if not cancelled:
            self._room.learn(stats)
        if stats.rtf is not None:
            self.metrics.observe(Measure.RTF, stats.rtf)
        return [finished, *self._leave(stream, reason, now)]

    def _leave(self, stream: Stream, reason: FinishReason, now: float) -> list[Output]:
        """What those are told who would have continued it. What it holds is only marked here."""
        stream.reason = reason
        if not self._entrance.remove(stream):
            self._leaving.append(self._admitted.pop(stream.request_id).stream)
        return self._entrance.hand_on(stream, reason is FinishReason.CANCELLED, now)

    def _end_encoding(self, encoding: Encoding, cancelled: bool, now: float) -> None:
        if not self._encodings.remove(encoding):
            self._leaving.append(self._admitted.pop(encoding.request_id).stream)
        if not cancelled:
            self.metrics.observe(Measure.ENCODING, now - encoding.submitted_at)

    def _free(self) -> None:
        """Give back what ended streams held: only here, because now nothing is in flight."""
        for stream in self._leaving:
            if isinstance(stream, Encoding):
                self._encodings.free(stream)
            else:
                self._entrance.free(stream)
        self._leaving.clear()

    def _find(self, request_id: int) -> Stream | None:
        candidate = self._admitted.get(request_id)
        if candidate is not None:
            return candidate.stream
        return self._entrance.find(request_id) or self._encodings.find(request_id)

    def _move(self, playhead: Playhead, now: float) -> None:
        """The listener's own word on where it stands, in an utterance that lives or has ended."""
        stream = self._find(playhead.request_id)
        playback = stream.playback if stream else self._entrance.said(playhead.request_id)
        if playback is not None:
            played = min(playhead.played_samples / self._spec.sample_rate, playback.delivered)
            playback.clock.move(playback.offset + played, playhead.at, playhead.running, playhead.jitter, now)
            if stream is None:
                self._room.moved()
