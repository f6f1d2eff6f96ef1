"""Listeners' time as lanes, by hand, and which part of a run is looked at."""

from math import inf

import pytest

from engine.lanes import Lane, Scene, lane, scene
from engine.listener import Listener
from engine.traffic import Utterance


def listener(said: Utterance, *arrivals: tuple[float, float], number: int = 0) -> Listener:
    """Who heard chunks (instant, seconds)."""
    out = Listener(number, said)
    for at, seconds in arrivals:
        out.hear(seconds, at)
    return out


def test_a_lane_with_a_gap() -> None:
    heard = listener(Utterance(1.0, 20), (1.5, 0.5), (1.75, 0.5), (3.0, 1.0), number=4)
    assert lane(heard) == Lane(
        4,
        1.0,
        chunks=(1.5, 1.75, 3.0),
        plays=((1.5, 2.5), (3.0, 4.0)),
        gaps=((2.5, 3.0),),
        buffered=((1.5, 0.0), (1.5, 0.5), (1.75, 0.25), (1.75, 0.75), (2.5, 0.0), (3.0, 0.0), (3.0, 1.0), (4.0, 0.0)),
        left_at=inf,
    )


def test_looking_changes_nothing() -> None:
    heard = listener(Utterance(1.0, 20), (1.5, 0.5), (3.0, 1.0))
    before = (list(heard.arrivals), heard.audio, heard.runs_out_at, heard.extra_buffer, heard.underruns)
    assert lane(heard) == lane(heard)
    assert (heard.arrivals, heard.audio, heard.runs_out_at, heard.extra_buffer, heard.underruns) == before


def test_nobody_plays_on_after_leaving() -> None:
    """By a place in the audio, which is later where there was a gap, and by the clock."""
    arrivals = ((1.5, 0.5), (3.0, 1.0), (3.5, 1.0))
    shown = lane(listener(Utterance(1.0, 40, hears=0.75), *arrivals))
    assert (shown.plays, shown.gaps, shown.left_at) == (((1.5, 2.0), (3.0, 3.25)), ((2.0, 3.0),), 3.25)
    shown = lane(listener(Utterance(1.0, 40, cancel_at=2.5), *arrivals))
    assert (shown.plays, shown.gaps, shown.left_at) == (((1.5, 2.0),), ((2.0, 2.5),), 2.5)
    assert shown.chunks == (1.5, 3.0, 3.5), "what was made for nobody was made"


def test_a_sentence_that_follows_is_played_after_the_one_before() -> None:
    first = listener(Utterance(0.0, 20), (0.5, 2.0))
    second = Listener(1, Utterance(0.25, 20, follows=0), first)
    second.hear(1.0, 1.0)
    first.hear(4.0, 1.25)  # the end of the first is another now
    shown = lane(second)
    assert shown.plays == ((2.5, 3.5),)
    assert shown.buffered == ((1.0, 0.0), (1.0, 2.5), (3.5, 0.0))


def test_who_heard_nothing_has_an_empty_lane() -> None:
    shown = lane(listener(Utterance(1.0, 20)))
    assert (shown.chunks, shown.plays, shown.gaps) == ((), (), ())


def crowd(count: int, worst: int, late: float) -> list[Listener]:
    """One caller a second, who hears two seconds; the second half comes `late` for one of them."""
    out = []
    for number in range(count):
        second = number + 1.0 + (late if number == worst else 0.0)
        out.append(listener(Utterance(float(number), 25), (number + 0.5, 1.0), (second, 1.0), number=number))
    return out


@pytest.mark.parametrize(
    ("worst", "first", "start", "end"),
    [
        (20, 15, 14.7, 24.0),  # 5 callers before, 4 after; until 2 s after the gap that ends at 22.0
        (3, 0, -0.3, 7.0),
        (38, 30, 29.7, 42.0),
        (0, 0, -0.3, 4.7),  # the gap is over soon: 5 s all the same
    ],
)
def test_a_scene_is_around_the_worst_gap(worst: int, first: int, start: float, end: float) -> None:
    assert scene(crowd(40, worst, late=1.0), 10) == Scene(first, 10, pytest.approx(start), pytest.approx(end))


def test_a_scene_is_at_most_16_seconds_long() -> None:
    assert scene(crowd(40, 20, late=30.0), 10) == Scene(15, 10, pytest.approx(37.0), pytest.approx(53.0))


def test_a_scene_without_gaps_is_the_middle_and_of_few_callers_all() -> None:
    assert scene(crowd(40, 0, late=0.0), 10).first == 15
    some = crowd(3, 1, late=1.0)
    assert scene(some, 10) == Scene(0, 3, pytest.approx(-0.3), pytest.approx(5.0))
    assert [shown.request_id for shown in Scene(1, 2, 0.0, 9.0).lanes(some)] == [1, 2]
