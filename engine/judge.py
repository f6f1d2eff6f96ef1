"""Judges what each stream needs next and how long that can wait. It does not choose between them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from engine import chunking
from engine.chunking import fitting, goal, steps
from engine.core import Limits, Stage, num_sequences
from engine.encoding import PIECES, Encoding
from engine.policy import Candidate, Policy
from engine.predictor import Predictor, bucket
from engine.stream import Stream

CODEC, ENCODE, PREFILL, TEXT = Stage.CODEC, Stage.ENCODE, Stage.PREFILL, Stage.TEXT
SMALLEST_PREFILL = 16
"""Prompt positions that one prefill step may have, however long it takes."""


class Judge:
    """By the Predictor's costs, for a policy that sends chunks in part or does not."""

    def __init__(self, predictor: Predictor, limits: Limits, policy: Policy, max_lead: float) -> None:
        self._predictor, self._limits = predictor, limits
        self.use(policy, max_lead)
        self._parts = {guided: self._part(guided) for guided in (False, True)}
        """By what is known now and not later: how a prompt is parted may change the last bit of what is computed, and
        a request's codes must not depend on the load."""
        self._piece = self._longest_piece()
        """Frames of a recording that one step may have, for the same reason."""
        self.pace = predictor.pace(1, limits)
        """Of the streams that were judged last."""

    def use(self, policy: Policy, max_lead: float) -> None:
        """Judges for another policy from now on; prompts are parted as before."""
        self._first_chunk, self._in_part, self._max_lead = policy.first_chunk, policy.paced, max_lead

    def judge(self, candidates: Sequence[Candidate], now: float) -> None:
        """Write into each what its stream needs, and its slack, if all who speak share the device; recordings have only
        what these can spare. This is most of planning, so no call is made that can be spared."""
        speaking = [candidate.stream.guided for candidate in candidates if candidate.stream.stage is not ENCODE]
        guided = True in speaking
        self.pace = pace = self._predictor.pace(max(1, len(speaking)), self._limits, guided)
        margin, most, frame, codec = pace.margin, pace.largest, pace.frame, pace.codec
        first, least, in_part = self._first_chunk, frame + codec[1], self._in_part
        for candidate in candidates:
            stream, left = candidate.stream, -inf
            sent = stream.sent
            if (sent or stream.continues) and not stream.silent:
                playback = stream.playback
                clock = playback.clock
                if clock.still is None and clock.origin is not None:  # Playback.left
                    left = clock.origin + (playback.offset + playback.delivered) - clock.jitter - now - margin
                else:
                    left = playback.left(now) - margin
            pending = stream.made - sent
            stage = stream.stage
            candidate.stage, candidate.count, candidate.optional = stage, 1, False
            if stage is TEXT:
                candidate.count = stream.to_read
            if not pending:
                candidate.slack = left - least
                if stream.prefilled < stream.prompt_length:
                    self._open(candidate)
                elif isinstance(stream, Encoding):
                    candidate.count = min(stream.missing, self._piece)
                elif stage is TEXT:
                    candidate.slack -= self._predictor.cost(TEXT, 1, candidate.count)
                continue
            size = fitting(pending, most)
            if stream.reason is None and not stream.lacks_text:
                ready, larger = steps(pending, goal(stream.chunks, most, first))
                if larger and (not in_part or (larger - pending) * frame + codec[larger] <= left):  # chunking.seconds
                    candidate.optional, candidate.slack = True, left - codec[size]  # they could be sent instead
                    continue
                size = ready
            candidate.stage, candidate.count, candidate.slack = CODEC, size, left - codec[size]

    def _wanted(self, stream: Stream) -> int:
        """Frames that its next chunk should have."""
        return goal(stream.chunks, self.pace.largest, self._first_chunk)

    def goals(self, candidates: Sequence[Candidate]) -> dict[int, int]:
        """Of chunks that are to be sent in part, by request: the frames that they should have, for an explanation."""
        chunks = [c.stream for c in candidates if c.stage is CODEC and c.stream.reason is None]
        sizes = {c.stream.request_id: c.count for c in candidates}
        wanted = {stream.request_id: self._wanted(stream) for stream in chunks}
        return {number: frames for number, frames in wanted.items() if sizes[number] < frames}

    def _open(self, candidate: Candidate) -> None:
        """The same for one whose prompt is not in yet: its slack is without that."""
        stream = candidate.stream
        missing, part = stream.prompt_length - stream.prefilled, self._parts[stream.guided]
        first = stream.boundary - stream.prefilled  # what others may share is prefilled apart
        count = min(missing, part, first) if first > 0 else min(missing, part)
        seconds = ceil(missing / part) * self._prefill_cost(min(missing, part), stream.guided)
        if stream.stage is TEXT:
            count = stream.to_read
            seconds += self._predictor.cost(TEXT, 1, count)
        candidate.count = count
        candidate.slack -= seconds

    def _part(self, guided: bool) -> int:
        """Prompt positions that one prefill step has time for."""
        count = self._limits.max_prefill_tokens
        while count > SMALLEST_PREFILL and self._prefill_cost(count, guided) > self._limits.max_step_seconds:
            count = bucket(count) // 2
        return count

    def _longest_piece(self) -> int:
        most = self._limits.max_step_seconds
        return max((size for size in PIECES if self._predictor.cost(ENCODE, 1, size) <= most), default=PIECES[0])

    def encoding_seconds(self, frames: int) -> float:
        """Of a recording, on an idle device."""
        return ceil(frames / self._piece) * self._predictor.cost(ENCODE, 1, self._piece)

    def _prefill_cost(self, count: int, guided: bool) -> float:
        return self._predictor.cost(PREFILL, num_sequences(PREFILL, 1, guided), count)

    def too_late(self, stream: Stream, now: float) -> bool:
        """Whether not even one frame can be there before its listener runs dry."""
        text = self._predictor.cost(TEXT, 1, max(1, stream.to_read))
        return stream.playback.left(now) < text + self.pace.frame + self.pace.codec[1] + self.pace.margin

    def slack(self, stream: Stream, now: float) -> float:
        """Chunk.slack of the chunk just delivered. A stream that is held goes on when only max_lead is left."""
        playback, pending, pace = stream.playback, stream.pending, self.pace
        if stream.reason is not None:
            size = fitting(pending, pace.largest)
        else:
            size = chunking.expected(pending, self._wanted(stream), playback.left(now), pace.frame, pace.codec)
        reserve = playback.deadline(now) - now
        if playback.clock.known:
            reserve = min(reserve, self._max_lead)
        return reserve - chunking.seconds(size, pending, pace.frame, pace.codec)
