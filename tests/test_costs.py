"""What steps take where a profile knows the order of its samples, where it does not, and beyond what was measured."""

from itertools import pairwise
from statistics import fmean

import pytest

from engine.core import Row, Stage, Step
from engine.costs import Pace, ProfileCosts
from engine.profile import CostKey, Profile

DEPTH, CODEC = (Stage.DEPTH, 1, 1), (Stage.CODEC, 1, 4)
OTHERS: dict[CostKey, tuple[float, ...]] = {
    (stage, 1, 1): (1.0,) for stage in (Stage.TEXT, Stage.PREFILL, Stage.DECODE)
}


def step(stage: Stage, batch: int = 1, length: int = 1) -> Step:
    return Step(stage, tuple(Row(number, (number + 1,), count=length) for number in range(batch)))


class TestPace:
    """Usual costs are 1 for a depth step and 3 for the codec's."""

    PACE = Pace.of(
        Profile(
            "slow from 4 to 12",
            {DEPTH: (1.0, 2.0, 1.0), CODEC: (3.0, 6.0, 3.0)},
            order=(DEPTH, CODEC, DEPTH, CODEC, DEPTH, CODEC),
        )
    )
    """1 + 3 s as usual, 2 + 6 s at half the speed, 1 + 3 s as usual: 16 s in which 12 s of work are done."""

    def test_it_lasts_as_long_as_its_steps(self) -> None:
        assert self.PACE.period == 16.0

    @pytest.mark.parametrize(
        ("work", "at", "seconds"),
        [
            (1.0, 0.0, 1.0),
            (1.0, 2.5, 1.0),  # across two steps
            (1.0, 4.0, 2.0),
            (3.0, 5.0, 6.0),  # across two slow steps
            (1.0, 3.5, 1.5),  # half of it before the spell
            (1.0, 11.0, 1.5),  # half of it in the spell
            (6.0, 3.5, 10.0),  # all of the spell: 0.5 before, 4 in 8 s, 1.5 after it
            (1.0, 12.0, 1.0),
        ],
    )
    def test_a_step_in_the_spell_is_slow_and_one_that_straddles_it_in_between(
        self, work: float, at: float, seconds: float
    ) -> None:
        assert self.PACE.seconds(work, at) == pytest.approx(seconds)

    @pytest.mark.parametrize(
        ("work", "at", "seconds"),
        [(2.0, 15.0, 2.0), (6.0, 15.0, 7.0), (1.0, 20.0, 2.0), (1.0, 3.5 + 160.0, 1.5), (12.0, 7.0, 16.0)],
    )
    def test_after_the_end_comes_the_beginning(self, work: float, at: float, seconds: float) -> None:
        assert self.PACE.seconds(work, at) == pytest.approx(seconds)

    def test_a_step_may_be_longer_than_all_of_it(self) -> None:
        assert self.PACE.seconds(24.0 + 1.0, 3.5) == pytest.approx(32.0 + 1.5)

    def test_between_steps_it_is_as_fast_as_usual(self) -> None:
        run = Pace([(2.0, 2.0, 1.0), (6.0, 1.0, 2.0)])
        """Half as fast from 2 to 4, twice as fast from 6 to 7."""
        assert run.period == 7.0
        works = ((1.0, 0.5), (1.0, 2.0), (1.0, 4.5), (1.0, 5.5), (2.0, 6.5))
        assert [run.seconds(*work) for work in works] == pytest.approx([1.0, 2.0, 1.0, 0.75, 1.5])

    def test_a_shape_outside_the_order_takes_no_time(self) -> None:
        other = Profile("others", OTHERS | {DEPTH: (1.0, 2.0, 1.0)}, order=(DEPTH,) * 3)
        assert Pace.of(other).period == 4.0


class TestAtAGivenPace:
    def test_steps_take_as_long_as_their_median_would_have_at_that_instant(self) -> None:
        profile = Profile("mine", OTHERS | {DEPTH: (1.0, 1.0, 9.0), CODEC: (3.0,)})
        costs = ProfileCosts(profile, seed=4, pace=Pace([(0.0, 10.0, 5.0), (20.0, 1.0, 1.0)]))
        assert [costs.draw(step(Stage.DEPTH), now) for now in (0.0, 9.0, 12.0)] == pytest.approx([2.0, 1.5, 1.0])
        assert costs.draw(step(Stage.CODEC, length=4), 0.0) == pytest.approx(6.0)


class TestInOrder:
    PROFILE = Profile(
        "slow for half of the time",
        OTHERS | {DEPTH: (1.0,) * 101 + (2.0,) * 50, CODEC: (3.0,)},
        order=(DEPTH,) * 151,
    )
    """101 s as usual, 100 s at half the speed."""

    def drawn(self, seed: int, speed: float = 1.0) -> list[float]:
        """Depth steps, back to back."""
        costs, now, out = ProfileCosts(self.PROFILE, seed, speed), 0.0, list[float]()
        for _ in range(150):
            out.append(costs.draw(step(Stage.DEPTH), now))
            now += out[-1]
        return out

    @pytest.mark.parametrize("seed", range(4))
    def test_slow_steps_come_in_one_spell(self, seed: int) -> None:
        slow = [seconds > 1.5 for seconds in self.drawn(seed)]
        assert 45 <= sum(slow) <= 51
        assert sum(a != b for a, b in pairwise(slow)) <= 2

    def test_a_seed_is_a_beginning(self) -> None:
        assert self.drawn(1) == self.drawn(1)
        assert self.drawn(1) != self.drawn(2)

    def test_all_stages_share_it(self) -> None:
        costs = ProfileCosts(self.PROFILE, 3)
        for now in range(0, 400, 7):
            assert costs.draw(step(Stage.TEXT), now) == costs.draw(step(Stage.DEPTH), now)

    def test_a_faster_device_has_the_same_spells_and_gets_more_done_in_them(self) -> None:
        usual, fast = (ProfileCosts(self.PROFILE, 1, speed) for speed in (1.0, 2.0))
        for now in range(0, 400, 7):
            first = fast.draw(step(Stage.DEPTH), now)
            second = fast.draw(step(Stage.DEPTH), now + first)
            assert first + second == pytest.approx(usual.draw(step(Stage.DEPTH), now))

    def test_asking_changes_nothing(self) -> None:
        costs = ProfileCosts(self.PROFILE, 1)
        assert costs.draw(step(Stage.DEPTH), 5.0) == costs.draw(step(Stage.DEPTH), 5.0)


class TestWithout:
    def test_costs_of_a_profile_are_its_samples_whenever_they_are_drawn(self) -> None:
        samples = (0.010, 0.011, 0.030)
        costs = ProfileCosts(Profile("three", {(stage, 1, 1): samples for stage in Stage}), seed=5, speed=2.0)
        drawn = [costs.draw(step(Stage.DEPTH), 3.0) for _ in range(300)]
        assert set(drawn) == {0.005, 0.0055, 0.015}
        assert fmean(drawn) == pytest.approx(0.0085, rel=0.1)

    def test_a_profile_without_a_stage_cannot_be_simulated(self) -> None:
        with pytest.raises(ValueError, match="no samples of prefill, decode, depth, codec"):
            ProfileCosts(Profile("half", {(Stage.TEXT, 1, 1): (0.01,)}))


class TestShapes:
    def test_the_nearest_that_is_not_smaller(self) -> None:
        samples = {(batch, length): (batch + length / 100,) for batch in (1, 2, 8) for length in (1, 4, 16)}
        measured = {(stage, *shape): seconds for stage in Stage for shape, seconds in samples.items()}
        costs = ProfileCosts(Profile("grid", measured))
        assert costs.samples(Stage.CODEC, 1, 1) == (1.01,)
        assert costs.samples(Stage.CODEC, 1, 2) == (1.04,)
        assert costs.samples(Stage.CODEC, 3, 5) == (8.16,)
        assert costs.samples(Stage.TEXT, 2, 0) == (2.01,)

    FLAT = Profile("flat", {(stage, batch, n): (0.010,) for stage in Stage for batch in (1, 8) for n in (1, 4, 16)})

    @pytest.mark.parametrize(
        ("batch", "length", "times"),
        [(8, 16, 1), (16, 16, 2), (8, 64, 4), (64, 4096, 8 * 256), (9, 1, 9 / 8), (1, 32, 2), (3, 32, 2)],
    )
    def test_beyond_the_largest_costs_grow_with_the_work(self, batch: int, length: int, times: float) -> None:
        """The part that was measured, as many times; a batch of 3 is measured as one of 8."""
        assert ProfileCosts(self.FLAT).samples(Stage.PREFILL, batch, length) == (pytest.approx(0.010 * times),)

    def test_where_large_batches_were_measured_short_only(self) -> None:
        """Of 4 by 16 steps, 4 by 4 and 1 by 16 are measured: both are a quarter of it."""
        shapes = {(4, 4): 0.008, (1, 16): 0.006}
        costs = ProfileCosts(
            Profile("corner", {(stage, *shape): (s,) for stage in Stage for shape, s in shapes.items()})
        )
        assert costs.samples(Stage.TEXT, 4, 16) == (pytest.approx(4 * 0.006),)
        assert costs.samples(Stage.TEXT, 4, 8) == (pytest.approx(2 * 0.008),)
