"""agent/heard.py: positions from what a listener tells, silences, and words that never claim more than was played."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agent import bench_heard
from agent.heard import (
    PCM,
    USUAL_BUFFER_SECONDS,
    BufferTotals,
    Loudness,
    heard_samples,
    heard_text,
    spoken_ends,
    spoken_rate,
    spoken_seconds,
    words,
    words_before,
)
from engine.runtime import Runtime

RATE = 24_000


def tone(seconds: float, level: int = 8000) -> PCM:
    return np.full(round(seconds * RATE), level, np.int16)


def audio(*parts: tuple[float, int]) -> Loudness:
    """Seconds and level of each part."""
    loudness = Loudness(RATE)
    for seconds, level in parts:
        loudness.push(tone(seconds, level))
    return loudness


def said(text: str) -> float:
    """Seconds that the words are expected to take."""
    return sum(word.seconds for word in words(text))


def spoken(*phrases: str, rate: float = 1.0, pause: float = 0.3) -> Loudness:
    """Phrases exactly as they are expected, with pauses between them."""
    parts: list[tuple[float, int]] = []
    for phrase in phrases:
        parts += [(rate * said(phrase), 8000), (pause, 0)]
    return audio(*parts[:-1])


def heard(text: str, seconds: float, loudness: Loudness, complete: bool = True) -> str:
    return heard_text(text, round(seconds * RATE), loudness, complete)


# ---- how far --------------------------------------------------------------------------------------------------------


def test_the_buffer_and_half_the_round_trip_are_still_on_their_way() -> None:
    assert heard_samples(24_000, RATE, 0.05, 0.04) == 24_000 - 1200 - 480
    assert heard_samples(24_000, RATE, 0.05) == 24_000 - 1200


@pytest.mark.parametrize(
    ("sent", "buffer_seconds", "round_trip", "expected"),
    [
        (0, 0.05, 0.04, 0),
        (500, 0.05, 0.04, 0),
        (-3, 0.0, 0.0, 0),
        (1000, 0.0, 0.0, 1000),
        (1000, -1.0, -1.0, 1000),
        (1000, nan, nan, 1000),
        (1000, inf, 0.0, 0),
        (1000, 0.0, inf, 0),
    ],
)
def test_positions_stay_between_nothing_and_what_was_sent(
    sent: int, buffer_seconds: float, round_trip: float, expected: int
) -> None:
    assert heard_samples(sent, RATE, buffer_seconds, round_trip) == expected


@given(st.integers(0, 10**7), st.floats(0, 10), st.floats(0, 10), st.integers(0, 10**6))
def test_positions_grow_with_what_was_sent_and_shrink_with_what_is_on_its_way(
    sent: int, buffer_seconds: float, round_trip: float, more: int
) -> None:
    position = heard_samples(sent, RATE, buffer_seconds, round_trip)
    assert 0 <= position <= sent
    assert heard_samples(sent + more, RATE, buffer_seconds, round_trip) >= position
    assert heard_samples(sent, RATE, buffer_seconds + 0.1, round_trip) <= position


def test_what_the_buffer_holds_is_of_the_samples_since_the_last_report() -> None:
    before = BufferTotals(480.0, 9600)
    assert BufferTotals(480.0 + 0.06 * 48_000, 9600 + 48_000).buffer_seconds(before) == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (BufferTotals(1.0, 100), USUAL_BUFFER_SECONDS),  # nothing was emitted since
        (BufferTotals(2.0, 50), USUAL_BUFFER_SECONDS),  # totals that shrink: another track
        (BufferTotals(0.5, 200), USUAL_BUFFER_SECONDS),
        (BufferTotals(nan, 200), USUAL_BUFFER_SECONDS),
        (BufferTotals(inf, 200), USUAL_BUFFER_SECONDS),
        (BufferTotals(1e9, 200), 2.0),
    ],
)
def test_reports_that_make_no_sense_are_not_believed(now: BufferTotals, expected: float) -> None:
    assert now.buffer_seconds(BufferTotals(1.0, 100)) == expected


# ---- where it is silent ---------------------------------------------------------------------------------------------


def test_silences_are_found_wherever_chunks_end() -> None:
    pcm = np.concatenate([tone(0.05, 0), tone(0.4), tone(0.09, 0), tone(0.3), tone(0.25, 20), tone(0.2), tone(0.31, 0)])
    for size in (97, 1920, pcm.size):
        loudness = Loudness(RATE)
        for start in range(0, pcm.size, size):
            loudness.push(pcm[start : start + size])
        assert loudness.seconds == pytest.approx(1.6)
        # 90 ms are a plosive; the beginning counts however short it is
        assert np.array(loudness.silences()) == pytest.approx(np.array([(0, 0.05), (0.84, 1.09), (1.29, 1.6)]))


def test_audio_of_nothing_and_of_silence_only() -> None:
    assert list(Loudness(RATE).silences()) == []
    assert list(audio((1.0, 3)).silences()) == [(0.0, 1.0)]


def test_the_spoken_clock_stands_still_in_silence() -> None:
    silences = [(0.0, 0.1), (1.0, 1.5)]
    instants = (0.0, 0.05, 0.1, 0.6, 1.0, 1.2, 1.5, 2.0)
    assert [spoken_seconds(at, silences) for at in instants] == pytest.approx([0, 0, 0, 0.5, 0.9, 0.9, 0.9, 1.4])


# ---- which words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  ...  ", []),
        ("Hello there.", ["Hello", "Hello there."]),
        (" one - two", [" one -", " one - two"]),
        ("(yes) 'no'", ["(yes)", "(yes) 'no'"]),
        ("你好，世界。", ["你", "你好，", "你好，世", "你好，世界。"]),
    ],
)
def test_words_end_behind_their_punctuation(text: str, expected: list[str]) -> None:
    assert [text[: word.end] for word in words(text)] == expected


def test_pauses_are_expected_after_punctuation() -> None:
    assert [word.pause for word in words("Well, yes. (No?) Half-done - and don't")] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]


def test_longer_words_and_numbers_take_longer() -> None:
    seconds = [word.seconds for word in words("a cat elephant responsibility 1994")]
    assert seconds == sorted(seconds)
    assert words("make")[0].seconds < words("maker")[0].seconds  # the e is silent


def test_what_is_written_out_takes_as_long_as_what_is_said() -> None:
    (price,) = words("$3.50", "en")
    spoken = sum(word.seconds for word in words("three dollars and fifty cents"))
    assert price.seconds == pytest.approx(spoken)
    assert [word.seconds for word in words("Three dollars, please!", "en")] == [
        word.seconds for word in words("Three dollars, please!")
    ], "words are words"
    assert words("$3.50")[0].seconds < spoken, "a voice that gets it as it is"


def test_half_a_word_is_heard_and_less_is_not() -> None:
    text = "Nobody knows"
    loudness = audio((said(text), 8000))
    first, second = (word.seconds for word in words(text))
    assert heard(text, 0.45 * first, loudness) == ""
    assert heard(text, 0.55 * first, loudness) == "Nobody"
    assert heard(text, first + 0.45 * second, loudness) == "Nobody"
    assert heard(text, first + 0.55 * second, loudness) == "Nobody knows"


def test_in_a_pause_all_before_it_was_heard_and_nothing_behind_it() -> None:
    phrases = ("Good morning,", "how can I help you", "today?")
    text = " ".join(phrases)
    for rate in (0.7, 1.0, 1.6):
        loudness = spoken(*phrases, rate=rate)
        first, second = (end - 0.05 for _, end in loudness.silences())
        assert heard(text, first, loudness) == "Good morning,"
        assert heard(text, second, loudness) == "Good morning, how can I help you"
        assert heard(text, 99.0, loudness) == text


def test_a_pause_that_nobody_wrote_ends_a_word_and_one_that_was_not_made_is_left_out() -> None:
    text = "We waited, for a very long time at the station, and nobody came."
    loudness = spoken("We waited, for a very long time", "at the station,", "and nobody came.")
    before = [text[: words(text)[count - 1].end] for count in counts(text, loudness)]
    assert before == ["We waited, for a very long time", "We waited, for a very long time at the station,", text]


def counts(text: str, loudness: Loudness) -> list[int]:
    silences = loudness.silences()
    stops = [spoken_seconds(begin, silences) for begin, _ in silences]
    return words_before([*stops, spoken_seconds(loudness.seconds, silences)], words(text), True, 1.0)


def test_what_is_not_complete_goes_at_the_voices_rate() -> None:
    text = "The train to the coast leaves from platform nine in about twelve minutes."
    whole = said(text)
    so_far = audio((whole / 2, 8000))
    claimed = heard(text, whole / 2, so_far, complete=False)
    assert claimed == heard(text, whole / 2, audio((whole, 8000)))
    slower = heard_text(text, round(RATE * whole / 2), so_far, False, usual_rate=1.5)
    assert len(slower) < len(claimed)
    assert heard(text, whole / 2, so_far) == text  # the end was reached: it was said faster


def test_the_rate_of_what_was_said_tells_the_voices() -> None:
    text = "Nobody knows exactly how old the tree is, but it was here before the town."
    assert spoken_rate(text, audio((said(text), 8000))) == pytest.approx(1.0, abs=0.01)
    assert 1.0 < spoken_rate(text, audio((1.5 * said(text), 8000))) < 1.5
    assert spoken_rate("", audio()) == 1.0


@pytest.mark.parametrize("complete", [False, True])
def test_silence_says_nothing(complete: bool) -> None:
    assert heard("Hello there.", 1.0, audio((1.0, 0)), complete) == ""
    assert heard("Hello there.", 0.0, audio((1.0, 8000)), complete) == ""
    assert heard("Hello there.", 1.0, audio(), complete) == ""
    assert heard("...", 1.0, audio((1.0, 8000)), complete) == ""


TEXTS = st.lists(
    st.sampled_from(["a", "tree,", "nobody", "Stop.", "1994", "-", "你好。", "well…", "é"]), max_size=30
).map(" ".join)
PARTS = st.lists(st.tuples(st.floats(0.01, 0.8), st.sampled_from([0, 20, 3000, 20_000])), max_size=12)


@given(TEXTS, PARTS, st.booleans(), st.floats(0.5, 2.0), st.lists(st.integers(0, 200_000), min_size=2, max_size=8))
def test_what_was_heard_begins_the_text_and_grows_with_the_position(
    text: str, parts: list[tuple[float, int]], complete: bool, rate: float, positions: list[int]
) -> None:
    loudness = audio(*parts)
    claims = [heard_text(text, position, loudness, complete, rate) for position in sorted(positions)]
    ends = {0, *(word.end for word in words(text))}
    assert all(text.startswith(claim) and len(claim) in ends for claim in claims)
    assert [len(claim) for claim in claims] == sorted(len(claim) for claim in claims)


@given(TEXTS, PARTS, st.booleans(), st.floats(0.5, 2.0))
def test_words_end_one_after_another_and_the_last_of_a_complete_utterance_with_its_audio(
    text: str, parts: list[tuple[float, int]], complete: bool, rate: float
) -> None:
    loudness, found = audio(*parts), words(text)
    ends = spoken_ends(found, loudness.silences(), loudness.seconds, complete, rate)
    assert len(ends) == len(found)
    assert all(before <= after + 1e-9 for before, after in pairwise(ends))
    if complete and found:
        assert ends[-1] == pytest.approx(spoken_seconds(loudness.seconds, loudness.silences()), abs=1e-6)


# ---- the bench ------------------------------------------------------------------------------------------------------


def test_an_aligners_times_are_put_right_where_they_reach_into_a_silence() -> None:
    aligned = [("Good", 0.0, 0.2), ("morning,", 0.2, 0.9), ("how", 0.9, 1.4)]
    silences = [(0.0, 0.1), (0.6, 1.0)]
    assert bench_heard.halves(aligned, silences) == pytest.approx((0.15, 0.4, 1.2))


def test_parts_of_words_are_joined_and_punctuation_takes_no_time() -> None:
    parts = [(" It", 0.0, 0.1), ("'s", 0.1, 0.2), (" fine", 0.2, 0.5), (",", 0.5, 0.9), (" Bob", 0.9, 1.2)]
    marks = [(".", 1.2, 1.3), ("<|endoftext|>", 1.3, 1.3)]
    assert bench_heard.joined([*parts, *marks]) == [("It's", 0.0, 0.2), ("fine", 0.2, 0.5), ("Bob", 0.9, 1.2)]


def test_a_sentence_whose_words_are_not_all_found_is_no_reference(runtime: Runtime) -> None:
    found = bench_heard.utterances(runtime, lambda pcm, rate, text: [("Good", 0.0, 0.2)], Console(quiet=True))
    with pytest.raises(ValueError, match="Good morning, how can I help"):
        next(found)


def test_a_tone_is_the_same_at_the_recognisers_rate() -> None:
    tone_400 = (8192 * np.sin(2 * np.pi * 400 * np.arange(RATE) / RATE)).astype(np.int16)
    expected = 0.25 * np.sin(2 * np.pi * 400 * np.arange(16_000) / 16_000)
    assert bench_heard.resampled(tone_400, RATE) == pytest.approx(expected, abs=1e-3)


def test_errors_are_counted_at_every_position() -> None:
    text = "Nobody knows"
    pcm = tone(0.8)
    spoken_words = bench_heard.Spoken(text, pcm, RATE, (0.25, 0.55))
    none, both = ([*bench_heard.errors(spoken_words, lambda *_, said=said: said, inf)] for said in ("", text))
    assert none == [0, 0, -1, -1, -1, -2, -2]
    assert both == [2, 2, 1, 1, 1, 0, 0]
    figures = bench_heard.Figures.of(np.array(both))
    assert (figures.positions, figures.mean_error_words, figures.worst_too_many_words) == (7, 1.0, 2)
    assert (figures.claims_too_much, figures.claims_two_too_many) == (0.7143, 0.2857)
    assert bench_heard.measure([spoken_words])["heard"]["complete"].worst_too_many_words <= 0


def test_there_are_fifty_sentences_and_none_twice() -> None:
    assert len(set(bench_heard.SENTENCES)) == 50


def test_a_missing_recogniser_is_one_line_and_an_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_heard.main(["--whisper", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("bench_heard: ")
