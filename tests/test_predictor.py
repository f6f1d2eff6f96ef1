"""Costs from what was seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core import Limits, Row, Stage, Step
from engine.predictor import FORGET_AFTER, Layer, Predictor, prior
from engine.profile import Profile


def step(stage: Stage, batch: int = 1, length: int = 1) -> Step:
    return Step(stage, tuple(Row(number, (number + 1,), count=length) for number in range(batch)))


def guided(stage: Stage, batch: int = 1, length: int = 1) -> Step:
    return Step(stage, tuple(Row(number, (2 * number + 1, 2 * number + 2), count=length) for number in range(batch)))


def seen(*observed: tuple[Step, float], profile: Profile | None = None) -> Predictor:
    predictor = Predictor(profile)
    for one, elapsed in observed:
        predictor.observe(one, elapsed)
    return predictor


class TestCosts:
    def test_nothing_seen_is_the_prior(self) -> None:
        assert Predictor().predict(step(Stage.DEPTH, 2)) == prior(Stage.DEPTH, 2, 1) > 0

    def test_a_first_measurement_replaces_the_prior(self) -> None:
        predictor = seen((step(Stage.DEPTH), 0.5))
        assert predictor.predict(step(Stage.DEPTH)) == pytest.approx(0.5)
        assert predictor.predict(step(Stage.DECODE)) == prior(Stage.DECODE, 1, 1)

    def test_a_batch_size_between_two_seen_ones_costs_something_between(self) -> None:
        predictor = seen((step(Stage.DEPTH, 1), 0.010), (step(Stage.DEPTH, 5), 0.050), (step(Stage.DEPTH, 5), 0.050))
        costs = [predictor.cost(Stage.DEPTH, batch) for batch in range(1, 6)]
        assert costs == sorted(costs)
        assert costs[0] == pytest.approx(0.010)
        assert costs[-1] == pytest.approx(0.050)

    def test_a_batch_size_never_seen_is_neither_free_nor_cheaper_than_a_smaller_one(self) -> None:
        predictor = seen((step(Stage.DEPTH, 1), 0.010), (step(Stage.DEPTH, 2), 0.011), (step(Stage.DEPTH, 2), 0.011))
        costs = [predictor.cost(Stage.DEPTH, batch) for batch in (2, 3, 8, 64)]
        assert costs == sorted(costs)
        assert costs[0] > 0

    def test_an_outlier_alone_changes_nothing(self) -> None:
        usual = [(step(Stage.DECODE), 0.010)] * 8
        predictor = seen(*usual, (step(Stage.DECODE), 1.0))
        assert predictor.predict(step(Stage.DECODE)) == pytest.approx(0.010)

    def test_a_single_slow_first_run_of_a_batch_size_does_not_rule_it_out(self) -> None:
        predictor = seen((step(Stage.DEPTH, 1), 0.018), (step(Stage.DEPTH, 2), 1.0))
        assert predictor.cost(Stage.DEPTH, 2) < 2 * predictor.cost(Stage.DEPTH, 1)

    def test_what_happens_often_is_believed(self) -> None:
        predictor = seen(*[(step(Stage.DECODE), 0.010)] * 8, *[(step(Stage.DECODE), 0.030)] * 8)
        assert predictor.predict(step(Stage.DECODE)) == pytest.approx(0.030)

    def test_slow_days_are_over_when_the_window_has_passed(self) -> None:
        predictor = seen(*[(step(Stage.DECODE), 0.030)] * 8, *[(step(Stage.DECODE), 0.010)] * 32)
        assert predictor.predict(step(Stage.DECODE)) == pytest.approx(0.010)

    def test_a_batch_size_not_run_for_long_is_forgotten(self) -> None:
        slow = [(step(Stage.DEPTH, 2), 1.0)] * 8
        predictor = seen((step(Stage.DEPTH, 1), 0.018), *slow, *[(step(Stage.DEPTH, 1), 0.018)] * (FORGET_AFTER - 1))
        assert predictor.cost(Stage.DEPTH, 2) == pytest.approx(1.0)
        predictor.observe(step(Stage.DEPTH, 1), 0.018)
        predictor.observe(step(Stage.DEPTH, 1), 0.018)
        assert predictor.cost(Stage.DEPTH, 2) < 0.036

    def test_lengths_are_learned_apart(self) -> None:
        predictor = seen((step(Stage.CODEC, 1, 1), 0.010), (step(Stage.CODEC, 1, 16), 0.040))
        predictor.observe(step(Stage.CODEC, 1, 16), 0.040)
        assert predictor.cost(Stage.CODEC, 1, 1) == pytest.approx(0.010)
        assert predictor.cost(Stage.CODEC, 1, 16) == pytest.approx(0.040)

    def test_a_length_never_seen_borrows_its_neighbours_ratio(self) -> None:
        predictor = seen((step(Stage.PREFILL, 1, 64), 2 * prior(Stage.PREFILL, 1, 64)))
        assert predictor.cost(Stage.PREFILL, 1, 128) == pytest.approx(2 * prior(Stage.PREFILL, 1, 128))

    def test_no_time_at_all_is_not_a_prediction_of_zero(self) -> None:
        assert seen((step(Stage.TEXT), 0.0)).predict(step(Stage.TEXT)) > 0


class TestGuidance:
    @pytest.mark.parametrize("stage", [Stage.PREFILL, Stage.DECODE, Stage.DEPTH])
    def test_a_guided_request_costs_backbone_and_depth_two_sequences(self, stage: Stage) -> None:
        predictor = seen((step(stage, 1), 0.020), (step(stage, 2), 0.030), (step(stage, 2), 0.030))
        assert predictor.predict(guided(stage, 1)) == pytest.approx(0.030)
        assert predictor.predict(step(stage, 1)) == pytest.approx(0.020)

    @pytest.mark.parametrize("stage", [Stage.TEXT, Stage.CODEC])
    def test_and_the_others_one(self, stage: Stage) -> None:
        predictor = seen((step(stage, 1), 0.020), (step(stage, 2), 0.030), (step(stage, 2), 0.030))
        assert predictor.predict(guided(stage, 1)) == pytest.approx(0.020)

    def test_what_is_seen_of_it_is_not_believed_of_others(self) -> None:
        predictor = seen((step(Stage.DEPTH), 0.020), *[(guided(Stage.DEPTH), 0.050)] * 2)
        assert predictor.predict(guided(Stage.DEPTH)) == pytest.approx(0.050)
        assert predictor.predict(step(Stage.DEPTH)) == pytest.approx(0.020)

    def test_one_guided_row_pairs_the_whole_step(self) -> None:
        mixed = Step(Stage.DEPTH, (Row(1, (1,)), Row(2, (2, 3)), Row(3, (4,))))
        assert mixed.sequences == 6


class TestProfile:
    DATA = {  # noqa: RUF012
        "voice": "small",
        "costs": [
            {"stage": "depth", "batch": 1, "length": 1, "source": "measured", "seconds": [0.012, 0.012, 0.013]},
            {"stage": "depth", "batch": 32, "length": 1, "source": "measured", "seconds": [0.0134]},
        ],
    }

    def test_it_is_believed_before_anything_was_run(self) -> None:
        predictor = Predictor(Profile.from_dict(self.DATA))
        assert predictor.cost(Stage.DEPTH, 1) == pytest.approx(0.012)
        assert predictor.cost(Stage.DEPTH, 32) == pytest.approx(0.0134)

    def test_live_steps_correct_it_also_where_they_did_not_run(self) -> None:
        predictor = seen(*[(step(Stage.DEPTH), 0.024)] * 3, profile=Profile.from_dict(self.DATA))
        assert predictor.cost(Stage.DEPTH, 1) == pytest.approx(0.024)
        assert predictor.cost(Stage.DEPTH, 32) == pytest.approx(0.0268)

    def test_it_survives_json(self) -> None:
        profile = Profile.from_dict(self.DATA)
        assert Profile.from_dict(profile.to_dict()) == profile

    @pytest.mark.parametrize(
        "data",
        [
            {},
            {"voice": "x", "costs": [{"stage": "nonsense", "batch": 1, "length": 1, "seconds": [1.0]}]},
            {"voice": "x", "costs": [{"stage": "depth", "batch": 1, "length": 1, "seconds": []}]},
            {"voice": "x", "costs": [{"stage": "depth", "batch": 0, "length": 1, "seconds": [1.0]}]},
            {"voice": "x", "costs": [{"stage": "depth", "batch": 1, "length": 1, "seconds": [0.0]}]},
            {"voice": "x", "costs": [{"stage": "depth", "batch": 1, "length": 1, "seconds": [float("nan")]}]},
        ],
    )
    def test_nonsense_is_refused(self, data: dict[str, object]) -> None:
        with pytest.raises(ValueError, match="cost profile"):
            Profile.from_dict(data)


class TestMean:
    """What steps take on average, without those above the upper quantile: what a device has time for."""

    def test_nothing_seen_is_the_prior(self) -> None:
        assert Predictor().mean(Stage.DEPTH, 2) == prior(Stage.DEPTH, 2, 1)

    def test_of_a_profile(self) -> None:
        samples = {(Stage.DEPTH, 1, 1): tuple(0.010 + 0.001 * place for place in (9, 0, 3, 1, 2, 5, 4, 7, 6, 8))}
        predictor = Predictor(Profile("ten", samples))
        assert predictor.cost(Stage.DEPTH, 1) == pytest.approx(0.018)
        assert predictor.mean(Stage.DEPTH, 1) == pytest.approx(0.014)

    def test_of_what_was_seen(self) -> None:
        """A first run that is taken for an outlier, then two speeds in turn."""
        predictor = seen(*[(step(Stage.DECODE), seconds) for _ in range(8) for seconds in (0.010, 0.020)])
        assert predictor.cost(Stage.DECODE, 1) == pytest.approx(0.020)
        assert predictor.mean(Stage.DECODE, 1) == pytest.approx((8 * 0.010 + 6 * 0.020) / 14)

    def test_an_outlier_does_not_move_it(self) -> None:
        predictor = seen(*[(step(Stage.DECODE), 0.010)] * 9, (step(Stage.DECODE), 3.0))
        assert predictor.mean(Stage.DECODE, 1) == pytest.approx(0.010)

    def test_live_steps_correct_a_profile_in_its_own_scatter(self) -> None:
        """Half as fast: cost and mean double, also where nothing ran."""
        samples = {(Stage.DEPTH, batch, 1): (0.010, 0.010, 0.010, 0.014, 0.020) for batch in (1, 8)}
        profile = Profile("scattered", samples)
        predictor = seen(
            *[(step(Stage.DEPTH), seconds) for seconds in (0.020, 0.020, 0.020, 0.028) * 8], profile=profile
        )
        assert predictor.cost(Stage.DEPTH, 8) == pytest.approx(0.028)
        assert 0.020 <= predictor.mean(Stage.DEPTH, 8) < 0.0225
        assert predictor.mean(Stage.DEPTH, 8) == pytest.approx(predictor.mean(Stage.DEPTH, 1))

    def test_it_is_forgotten_with_the_cost(self) -> None:
        slow = [(step(Stage.DEPTH, 2), 1.0)] * 8
        predictor = seen((step(Stage.DEPTH, 1), 0.018), *slow, *[(step(Stage.DEPTH, 1), 0.018)] * (FORGET_AFTER + 1))
        assert predictor.mean(Stage.DEPTH, 2) < 0.036


class TestMargin:
    """What a deadline allows for: by how much two steps in a thousand last longer than was predicted."""

    USUAL = [(step(Stage.DECODE), 0.010)] * 12

    def test_nothing_seen_is_no_margin(self) -> None:
        assert Predictor().margin == 0.0

    def test_it_is_the_time_beyond_the_prediction(self) -> None:
        assert seen(*self.USUAL, (step(Stage.DECODE), 0.035)).margin == pytest.approx(0.025)

    def test_what_nobody_measured_yet_was_not_predicted(self) -> None:
        assert seen((step(Stage.DECODE), 0.5)).margin == 0.0
        elsewhere = Predictor(Profile("measured on another machine", {(Stage.DECODE, 1, 1): (0.010,)}))
        elsewhere.observe(step(Stage.DECODE), 0.5)
        assert elsewhere.margin == 0.0

    def test_a_step_that_is_faster_than_predicted_does_not_narrow_it(self) -> None:
        predictor = seen((step(Stage.DECODE), 0.001))
        assert predictor.margin == 0.0
        predictor.observe(step(Stage.TEXT), 0.001)
        assert predictor.margin == 0.0

    def test_of_all_stages_together(self) -> None:
        predictor = seen(*self.USUAL, *[(step(Stage.CODEC), 0.020)] * 12, (step(Stage.CODEC), 0.050))
        assert predictor.margin == pytest.approx(0.030)
        predictor.observe(step(Stage.DECODE), 0.045)
        assert predictor.margin == pytest.approx(0.035)

    def test_one_step_in_four_hundred_counts_and_one_in_six_hundred_does_not(self) -> None:
        predictor = seen(*self.USUAL, (step(Stage.DECODE), 0.035), *[(step(Stage.DECODE), 0.010)] * 388)
        assert predictor.margin == pytest.approx(0.025)
        for _ in range(200):
            predictor.observe(step(Stage.DECODE), 0.010)
        assert predictor.margin == pytest.approx(0.0)

    def test_what_has_been_learned_is_no_overrun(self) -> None:
        """A device three times slower: 20 ms too long until its steps are what is expected."""
        predictor = seen(*self.USUAL)
        late = []
        for _ in range(8):
            predicted = predictor.predict(step(Stage.DECODE))
            predictor.observe(step(Stage.DECODE), 0.030)
            late.append(0.030 - predicted)
        assert late[0] == pytest.approx(0.020)
        assert late[-1] == pytest.approx(0.0)
        assert predictor.margin == pytest.approx(0.020)

    def test_after_1024_steps_it_is_forgotten(self) -> None:
        """Three steps that are each at least a second longer than the last: as many as there may be of 1024."""
        slow = [(step(Stage.TEXT), float(seconds)) for seconds in range(1, 5)]
        predictor = seen(*slow, *[(step(Stage.DECODE), 0.001)] * 1022)
        assert predictor.margin == pytest.approx(1.0)
        predictor.observe(step(Stage.DECODE), 0.001)
        assert predictor.margin == 0.0


class TestPace:
    LIMITS = Limits(max_batch=dict.fromkeys(Stage, 8), max_step_seconds=1.0)

    def test_it_is_worked_out_anew_only_when_a_cost_has_changed(self) -> None:
        predictor = seen(*[(step(stage), 0.010) for stage in (Stage.DECODE, Stage.DEPTH, Stage.CODEC)] * 12)
        pace = predictor.pace(1, self.LIMITS)
        predictor.observe(step(Stage.DEPTH), 0.010)
        assert predictor.pace(1, self.LIMITS) is pace
        for _ in range(12):
            predictor.observe(step(Stage.DEPTH), 0.030)
            predictor.observe(step(Stage.CODEC), 0.040)
        pace = predictor.pace(1, self.LIMITS)
        assert (pace.decode, pace.depth, pace.codec[1]) == pytest.approx((0.010, 0.030, 0.040))
        assert pace.margin == pytest.approx(0.030)

    def test_or_when_the_limits_are_others(self) -> None:
        predictor = Predictor()
        assert predictor.pace(3, self.LIMITS).decode == pytest.approx(0.008)
        single = Limits(max_batch=dict.fromkeys(Stage, 1))
        assert predictor.pace(3, single).decode == pytest.approx(3 * 0.006)
        assert predictor.pace(3, self.LIMITS).decode == pytest.approx(0.008)

    def test_or_when_the_margin_has_grown(self) -> None:
        predictor = seen(*[(step(Stage.DECODE), 0.010)] * 12)
        assert predictor.pace(1, self.LIMITS).margin == 0.0
        predictor.observe(step(Stage.DECODE), 0.035)
        assert predictor.pace(1, self.LIMITS).margin == pytest.approx(0.025)

    def test_a_frame_is_a_decode_and_a_depth_step_of_the_shared_batch(self) -> None:
        pace = Predictor().pace(3, self.LIMITS)
        assert pace.frame == pytest.approx(prior(Stage.DECODE, 3, 1) + prior(Stage.DEPTH, 3, 1))
        assert pace.codec[16] == pytest.approx(prior(Stage.CODEC, 3, 16))
        assert pace.whole_frame == pytest.approx(pace.frame + pace.codec[pace.largest] / pace.largest)

    def test_guided_streams_make_frames_of_two_sequences_each(self) -> None:
        pace = Predictor().pace(3, self.LIMITS, guided=True)
        assert pace.frame == pytest.approx(prior(Stage.DECODE, 6, 1) + prior(Stage.DEPTH, 6, 1))
        assert pace.codec[16] == pytest.approx(prior(Stage.CODEC, 3, 16))

    def test_more_streams_than_a_batch_holds_take_turns(self) -> None:
        full, double = Predictor().pace(8, self.LIMITS), Predictor().pace(9, self.LIMITS)
        assert double.depth == pytest.approx(2 * full.depth)

    def test_so_do_more_than_one_step_has_time_for(self) -> None:
        """Four chunks of 16 would take 261 ms, two 133, one 69."""
        pace = Predictor().pace(4, Limits(max_step_seconds=0.100))
        assert pace.codec[16] == pytest.approx(4 * prior(Stage.CODEC, 1, 16))
        assert pace.codec[4] == pytest.approx(prior(Stage.CODEC, 4, 4))  # 69 ms

    def test_the_largest_chunk_is_judged_by_what_it_takes_alone(self) -> None:
        assert Predictor().pace(8, Limits(max_step_seconds=0.100)).largest == 16
        assert Predictor().pace(8, Limits(max_step_seconds=0.068)).largest == 8


batches, lengths = st.integers(1, 9), st.sampled_from([1, 2, 3, 16])


@given(st.lists(st.tuples(batches, lengths, st.sampled_from([0.5, 1.0, 3.0])), max_size=12))
def test_what_was_asked_for_before_is_no_older_than_what_is_asked_for_now(points: list[tuple[int, int, float]]) -> None:
    """A cost that is kept is that of a layer that was never asked."""
    asked, fresh = Layer(prior), Layer(prior)
    for batch, length, ratio in points:
        assert asked.set(Stage.CODEC, batch, length, ratio) == fresh.set(Stage.CODEC, batch, length, ratio)
        unasked = Layer(prior)
        unasked._curves = fresh._curves
        for shape in ((size, frames) for size in range(1, 11) for frames in (1, 2, 3, 16)):
            assert asked.cost(Stage.CODEC, *shape) == unasked.cost(Stage.CODEC, *shape)
