"""encoding.py and the scheduler's sixth stage: recordings in pieces, together, cancelled, beside speech."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prior_costs import PriorCosts
from scripted_engine import Engine, Fixed, ids, submit

from engine import estimate
from engine.core import (
    SPEAKING,
    Cancel,
    Encode,
    Encoded,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    Limits,
    Output,
    Row,
    Samples,
    Stage,
    Step,
    StepResult,
)
from engine.costs import ProfileCosts
from engine.encoding import PIECES
from engine.policies import NAMES, make
from engine.predictor import Predictor
from engine.profile import Profile
from engine.scheduler import Scheduler
from engine.simulator import LIMITS as SIMULATED
from engine.simulator import simulate
from engine.traffic import SPEC, Utterance, poisson

ENCODE = Stage.ENCODE
FRAME = SPEC.samples_per_frame
VOICE = replace(SPEC, encodes=True)
PLACES = 4
LIMITS = Limits(num_slots=4, num_pages=400, max_batch=dict.fromkeys(Stage, PLACES), max_step_seconds=0.1, max_queued=6)


class Linear(Fixed):
    """A frame of a recording takes 10 ms, whoever shares the step; what is shared saves a third."""

    def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
        if stage is not ENCODE:
            return super().cost(stage, sequences, length)
        return 0.010 * length * (1 + 0.4 * (sequences - 1)) / 1.0


def recording(frames: float, seed: int = 0) -> Samples:
    return np.random.default_rng(seed).uniform(-1, 1, round(frames * FRAME)).astype(np.float32)


def marks(samples: Samples) -> np.ndarray[tuple[int, int], np.dtype[np.int16]]:
    """A stand-in for codes: what a frame of samples begins with."""
    return (samples[::FRAME, None] * 1000).astype(np.int16).repeat(SPEC.num_codebooks, 1)


@dataclass
class Listening(Engine):
    """Its device remembers, by place, whose recording it has heard, and up to where."""

    places: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scheduler = Scheduler(VOICE, self.limits, self.predictor)

    def result(self, step: Step) -> StepResult:
        if step.stage is not ENCODE:
            return super().result(step)
        assert step.batch <= self.limits.max_batch[ENCODE]
        assert len({row.start for row in step.rows}) == 1, "they have heard equally much"
        assert len({row.slots for row in step.rows}) == step.batch, "each has a place of its own"
        return StepResult(codes=tuple(self.heard(row) for row in step.rows))

    def heard(self, row: Row) -> np.ndarray[tuple[int, int], np.dtype[np.int16]]:
        (place,) = row.slots
        assert 1 <= place <= self.limits.max_batch[ENCODE]
        assert row.start == 0 or self.places[place] == (row.request_id, row.start)
        self.places[place] = row.request_id, row.start + row.count
        assert row.samples is not None
        assert -(-row.samples.size // FRAME) == row.count
        assert row.final or row.samples.size == row.count * FRAME
        return marks(row.samples)

    def encode(self, request_id: int, samples: Samples) -> list[Output]:
        return self.scheduler.apply(Encode(request_id, samples), self.now)

    def codes(self, request_id: int) -> np.ndarray[tuple[int, int], np.dtype[np.int16]]:
        (encoded,) = (o for o in self.outputs if isinstance(o, Encoded) and o.request_id == request_id)
        return encoded.codes


class Telling(Listening):
    """One that says who speaks: by the last sample of a recording that ends."""

    def result(self, step: Step) -> StepResult:
        made = super().result(step)
        if step.stage is not ENCODE:
            return made
        ends = (row.recording[-1:] if row.final and row.recording is not None else [] for row in step.rows)
        return replace(made, vectors=tuple(tuple(map(float, last)) for last in ends))


def listening(limits: Limits = LIMITS, predictor: Predictor | None = None) -> Listening:
    return Listening(limits, predictor=predictor or Linear())


def test_a_recording_is_encoded_in_pieces_that_no_step_outlasts() -> None:
    """10 ms a frame: eight of them fit into 0.1 s, of the sizes that there are."""
    engine, samples = listening(), recording(19.5)
    engine.encode(1, samples)
    steps = [engine.step() for _ in range(3)]
    assert [(s.stage, s.length, s.rows[0].start, s.rows[0].final) for s in steps if s] == [
        (ENCODE, 8, 0, False),
        (ENCODE, 8, 8, False),
        (ENCODE, 4, 16, True),
    ]
    assert engine.codes(1).tolist() == marks(samples).tolist()
    end = engine.end(1)
    assert isinstance(end, Finished)
    assert (end.reason, end.stats.audio_seconds) == (FinishReason.END, 0.0)
    assert end.stats.stage_seconds[ENCODE] == pytest.approx(0.2)
    assert engine.step() is None
    values = engine.scheduler.snapshot(engine.now)
    assert (values["recordings_queued"], values["recording_places_free"]) == (0, PLACES)
    assert values["encoding_seconds_count"] == 1


def test_who_speaks_is_told_of_the_whole_recording_where_the_voice_reads_that() -> None:
    for engine, expected in ((Telling(LIMITS, predictor=Linear()), True), (listening(), False)):
        samples = {1: recording(11, seed=1), 2: recording(9.5, seed=2)}
        for number, each in samples.items():
            engine.encode(number, each)
        while engine.step():
            pass
        told = {output.request_id: output.vector for output in engine.outputs if isinstance(output, Encoded)}
        assert told == {number: (float(each[-1]),) if expected else () for number, each in samples.items()}


def test_what_costs_more_than_a_step_may_is_still_encoded_frame_by_frame() -> None:
    engine = listening(replace(LIMITS, max_step_seconds=0.001))
    engine.encode(1, recording(2))
    assert [step.length for step in (engine.step(), engine.step()) if step] == [1, 1]


def test_those_who_come_together_are_encoded_together_and_the_short_ones_end_first() -> None:
    cheap = Fixed()  # 50 ms whatever a step holds
    engine = listening(predictor=cheap)
    lengths = {1: 300, 2: 100, 3: 129}
    for number, frames in lengths.items():
        engine.encode(number, recording(frames, number))
    assert [(ids(step), step.length) for step in (engine.step(), engine.step(), engine.step()) if step] == [
        ([1, 2, 3], PIECES[-1]),
        ([1, 3], PIECES[-1]),
        ([1], 44),
    ]
    for number, frames in lengths.items():
        assert engine.codes(number).tolist() == marks(recording(frames, number)).tolist()


def test_who_comes_later_does_not_join_those_who_have_heard_more() -> None:
    engine = listening(predictor=Fixed())
    engine.encode(1, recording(200))
    engine.step()
    engine.encode(2, recording(200, 2))
    assert [ids(step) for step in (engine.step(), engine.step()) if step] == [[1], [2]]


def test_more_than_there_are_places_for_wait_in_order_and_too_many_are_refused() -> None:
    engine = listening(replace(LIMITS, max_queued=2))
    for number in range(PLACES):
        assert engine.encode(number, recording(20, number)) == []
    engine.step()
    assert [engine.encode(10 + i, recording(20, 10 + i)) for i in range(2)] == [[], []]
    (refused,) = engine.encode(12, recording(20))
    assert isinstance(refused, Failed)
    assert refused.code is ErrorCode.BUSY
    assert refused.retry_after == pytest.approx(2 * 0.08 * 20 / 8, rel=0.3)
    engine.drain()
    assert engine.served() == [*range(PLACES), 10, 11]


def test_a_voice_without_an_encoder_says_so() -> None:
    engine = Engine(LIMITS)
    (refused,) = engine.scheduler.apply(Encode(1, recording(2)), engine.now)
    assert isinstance(refused, Failed)
    assert refused.code is ErrorCode.BAD_REQUEST
    assert "encoder" in refused.message
    assert engine.step() is None


def test_a_playing_stream_with_little_slack_goes_first_and_one_with_time_waits() -> None:
    engine = listening()
    engine.submit(submit(1))
    for _ in range(4):
        engine.step()  # text, prefill, depth, codec: 80 ms of audio are out
    engine.encode(2, recording(8))
    assert ids(engine.step() or pytest.fail()) == [1], "80 ms are too few for a step of 80 ms"
    step = engine.until(ENCODE, 2)
    assert step.rows[0].final
    assert min(chunk.slack for chunk in engine.chunks(1)) > 0


def test_a_new_caller_goes_before_a_long_recording() -> None:
    engine = listening()
    engine.encode(1, recording(80))
    engine.step()
    engine.submit(submit(2))
    assert [step.stage for step in (engine.step() for _ in range(4)) if step] == [
        Stage.TEXT,
        Stage.PREFILL,
        Stage.DEPTH,
        Stage.CODEC,
    ]


def test_no_recording_makes_a_playing_stream_late() -> None:
    """Two who play, and recordings all the time: 30 s of each of eight."""
    engine = listening(replace(LIMITS, max_queued=64))
    engine.submit(submit(1), submit(2))
    engine.until(Stage.CODEC, 2)
    for number in range(3, 11):
        engine.encode(number, recording(375, number))
    engine.drain()
    assert engine.scheduler.snapshot(engine.now)["deadline_misses_total"] == 0
    assert sorted(engine.served()) == list(range(1, 11))


@pytest.mark.parametrize("pieces", range(4))
def test_cancelled_at_any_piece_it_gives_its_place_back(pieces: int) -> None:
    engine = listening(replace(LIMITS, max_batch=dict.fromkeys(Stage, 1)))
    engine.encode(1, recording(24))
    engine.encode(2, recording(8, 2))
    for _ in range(pieces):
        engine.step()
    engine.outputs += engine.cancel(1)
    engine.drain()
    assert engine.codes(2).tolist() == marks(recording(8, 2)).tolist()
    assert isinstance(end := engine.end(1), Finished)
    assert end.reason is (FinishReason.CANCELLED if pieces < 3 else FinishReason.END)
    assert any(isinstance(o, Encoded) and o.request_id == 1 for o in engine.outputs) == (pieces == 3)
    assert engine.scheduler.snapshot(engine.now)["recording_places_free"] == 1


def test_cancelled_in_flight_its_codes_are_dropped() -> None:
    engine = listening()
    engine.encode(1, recording(4))
    step = engine.scheduler.plan(engine.now)
    assert step is not None
    (end,) = engine.cancel(1)
    assert isinstance(end, Finished)
    assert engine.scheduler.commit(step, engine.result(step), engine.now, 0.04) == []
    assert engine.step() is None
    assert engine.scheduler.snapshot(engine.now)["recording_places_free"] == PLACES


def recorded(callers: int, load: float, seconds: float, seed: int) -> list[Utterance]:
    return [replace(said, recording=seconds) for said in poisson(callers, load, seed)]


@pytest.mark.parametrize("seed", range(3))
def test_callers_with_recordings_hardly_ever_make_a_listener_run_dry(seed: int) -> None:
    """On a machine that takes 10 ms for a frame of a recording, and on one that takes 5 ms for ten seconds of it."""
    slow = recorded(30, 0.6, 8.0, seed)
    played = simulate(slow, PriorCosts(seed), limits=replace(SIMULATED, max_step_seconds=0.1))
    fast = simulate(recorded(200, 25.0, 10.0, seed), ProfileCosts(estimate.profile(), seed), profile=estimate.profile())
    for run, count, late in ((played, 30, 1), (fast, 200, 0)):  # a step in 500 takes three times as long on the first
        assert sum(isinstance(output, Encoded) for _, output in run.outputs) == count
        assert sum(listener.underruns for listener in run.listeners) <= late
        assert all(isinstance(listener.end, Finished) for listener in run.listeners)
        assert run.metrics["deadline_misses_total"] <= late


def test_who_hangs_up_while_his_recording_is_encoded_says_nothing() -> None:
    script = [Utterance(0.0, 20, recording=20.0, cancel_at=0.5), Utterance(0.0, 20)]
    played = simulate(script, PriorCosts())
    assert not any(isinstance(output, Encoded) for _, output in played.outputs)
    assert played.listeners[0].arrivals == []
    assert isinstance(played.listeners[1].end, Finished)
    assert played.metrics["recording_places_free"] == SIMULATED.max_batch[ENCODE]


def test_a_profile_without_the_stage_says_so() -> None:
    profile = Profile("old", {(stage, 1, 1): (0.01,) for stage in SPEAKING})
    simulate([Utterance(0.0, 3)], ProfileCosts(profile))
    with pytest.raises(ValueError, match="expected a profile with samples of encode"):
        simulate([Utterance(0.0, 3, recording=2.0)], ProfileCosts(profile))


actions = st.lists(
    st.one_of(
        st.tuples(st.just("encode"), st.floats(0.001, 60.0)),
        st.tuples(st.just("speak"), st.integers(1, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("step"), st.integers(1, 9)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("policy", NAMES)
def test_whatever_is_asked_under_every_policy_everybody_gets_his_own_and_nothing_leaks(policy: str) -> None:
    @settings(max_examples=60 if policy == "predictor" else 15, deadline=None)
    @given(actions, st.booleans())
    def holds(asked: list[tuple[str, float]], cheap: bool) -> None:
        predictor = Fixed() if cheap else Linear()
        engine = listening(predictor=predictor)
        engine.scheduler = Scheduler(VOICE, LIMITS, predictor, make(policy, predictor, LIMITS))
        recordings, spoken = dict[int, Samples](), list[int]()
        for number, (what, value) in enumerate(asked):
            match what:
                case "encode":
                    recordings[number] = recording(value, number)
                    engine.outputs += engine.encode(number, recordings[number])
                case "speak":
                    spoken.append(number)
                    engine.frames[number] = int(value)
                    engine.outputs += engine.submit(submit(number))
                case "cancel":
                    engine.outputs += engine.scheduler.apply(Cancel(int(value)), engine.now)
                case "step":
                    for _ in range(int(value)):
                        engine.step()
        engine.drain()
        for number in spoken:
            assert engine.end(number)
        for number, samples in recordings.items():
            end = engine.end(number)
            if isinstance(end, Finished) and end.reason is FinishReason.END:
                assert engine.codes(number).tolist() == marks(samples).tolist()
            else:
                assert not any(isinstance(o, Encoded) and o.request_id == number for o in engine.outputs)
        values = engine.scheduler.snapshot(engine.now)
        assert (values["recording_places_free"], values["recordings_queued"]) == (PLACES, 0)
        assert (values["slots_free"], values["requests_active"]) == (LIMITS.num_slots, 0)

    holds()


def test_what_follows_a_recording_begins_when_that_is_over() -> None:
    engine = listening()
    engine.encode(1, recording(8))
    engine.outputs += engine.submit(submit(2, max_frames=3, follows=1))
    engine.drain()
    assert engine.served() == [1, 2]
