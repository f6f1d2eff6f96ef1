"""What a stream needs next and how long that can wait, at literal costs: a frame takes 20 ms, a codec step 10 ms and 2
ms for each frame."""

from math import inf

import numpy as np
import pytest
from scripted_engine import COSTS, Fixed, submit

from engine.choice import Predicted
from engine.core import Encode, FinishReason, Limits, Stage
from engine.encoding import Encoding
from engine.judge import Judge
from engine.playback import Playback, PlaybackClock
from engine.policies import newest_first
from engine.policy import Candidate, Policy
from engine.stream import Stream
from engine.traffic import SPEC

LIMITS = Limits(max_step_seconds=0.300)


class Flat(Fixed):
    """Chunks of 16 frames pay."""

    def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
        return 0.010 + 0.002 * length if stage is Stage.CODEC else COSTS[stage]


def playing(pending: int, left: float, sent: int = 31) -> Candidate:
    """At 100 s: chunks of 1, 2, 4, 8 and 16 frames were sent, `left` seconds of them are not played yet."""
    stream = Stream.accept(submit(1), SPEC, LIMITS, 0.0)
    stream.stage, stream.prefilled, stream.chunks = Stage.DECODE, stream.prompt_length, 5
    stream.made, stream.sent = sent + pending, sent
    stream.playback = Playback(PlaybackClock(origin=100.0 + left - 4.0), 0.0, 4.0)
    return Candidate(stream, Stage.TEXT, 1, -inf)


def judged(*candidates: Candidate, policy: Policy | None = None) -> list[tuple[Stage, int, bool]]:
    predictor = Flat()
    Judge(predictor, LIMITS, policy or Predicted(predictor, LIMITS), inf).judge(candidates, 100.0)
    return [(c.stage, c.count, c.optional) for c in candidates]


MORE, SENT = (Stage.DECODE, 1, True), (Stage.CODEC, 4, False)


def test_as_time_runs_out_more_frames_are_waited_for_less() -> None:
    """Six frames of 16 wanted: 8 take 2 * 20 + 26 ms, and with less time 4 are sent at once."""
    for left, need in ((9.0, MORE), (0.067, MORE), (0.065, SENT), (0.0, SENT), (-9.0, SENT)):
        assert judged(playing(6, left)) == [need]


def test_a_full_chunk_is_sent_however_much_time_there_is() -> None:
    assert judged(playing(16, 9.0)) == [(Stage.CODEC, 16, False)]
    assert judged(playing(17, 9.0)) == [(Stage.CODEC, 16, False)]


def test_what_is_left_at_the_end_is_sent_however_much_time_there_is() -> None:
    candidate = playing(3, 9.0)
    candidate.stream.reason = FinishReason.END
    assert judged(candidate) == [(Stage.CODEC, 2, False)]


def test_who_sends_no_chunk_in_part_waits_for_all_of_it_however_late_it_is() -> None:
    assert judged(playing(15, -9.0), policy=newest_first.POLICY) == [MORE]
    assert judged(playing(16, 9.0), policy=newest_first.POLICY) == [(Stage.CODEC, 16, False)]


def test_slack_is_the_time_left_without_the_least_that_must_be_done() -> None:
    nothing, more, full = playing(0, 1.0), playing(6, 1.0), playing(16, 1.0)
    alone = [judged(candidate)[0] for candidate in (nothing, more, full)]
    assert alone == [(Stage.DECODE, 1, False), MORE, (Stage.CODEC, 16, False)]
    assert nothing.slack == pytest.approx(1.0 - 0.020 - 0.012)
    assert more.slack == pytest.approx(1.0 - 0.018)
    assert full.slack == pytest.approx(1.0 - 0.042)


def test_nothing_of_an_earlier_judgement_is_left() -> None:
    candidate = playing(6, 9.0)
    assert judged(candidate) == [MORE]
    candidate.stream.sent, candidate.stream.chunks = candidate.stream.made, 6
    assert judged(candidate) == [(Stage.DECODE, 1, False)]


def test_a_new_caller_has_waited_too_long_already() -> None:
    candidate = Candidate(Stream.accept(submit(1, tokens=40), SPEC, LIMITS, 0.0), Stage.DEPTH, 1, 0.0, True)
    assert judged(candidate) == [(Stage.TEXT, 40, False)]
    assert candidate.slack == -inf


def test_recordings_are_nobody_who_speaks() -> None:
    """With eight more who speak there would be two steps for each frame, as eight share one at most."""
    alone, beside = playing(0, 1.0), playing(0, 1.0)
    encodes = [Encode(number, np.zeros(SPEC.samples_per_frame, np.float32)) for number in range(2, 10)]
    recordings = [Candidate(Encoding.of(encode, SPEC, 0.0), Stage.ENCODE, 1, -inf) for encode in encodes]
    judged(alone)
    assert judged(beside, *recordings)[1:] == [(Stage.ENCODE, 1, False)] * 8
    assert beside.slack == alone.slack
    judged(crowded := playing(0, 1.0), *(playing(0, 1.0) for _ in recordings))
    assert crowded.slack < alone.slack
