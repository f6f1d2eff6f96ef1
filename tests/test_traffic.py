"""Callers by rate, length and mood, and scripts that are written and read again."""

import json
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest
from prior_costs import PriorCosts

from engine.simulator import simulate
from engine.stream import frame_limit
from engine.traffic import NEVER, SPEC, Moods, Utterance, moody, poisson, read_trace, write_trace


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


class TestSubmit:
    def test_the_place_in_the_script_is_the_id(self) -> None:
        submit = Utterance(1.5, 25, text_tokens=30, rows=2, follows=3).submit(7)
        assert (submit.request_id, submit.follows, submit.submitted_at) == (7, 3, 1.5)
        assert [row.length for row in submit.prompt.rows] == [30, 30]

    def test_long_ones_are_not_cut(self) -> None:
        """Of 2048 positions, the prompt has 40 and the end one."""
        assert frame_limit(Utterance(0.0, 1800).submit(0), SPEC) == 1801
        assert frame_limit(Utterance(0.0, 25).submit(0), SPEC) == 1500, "as many as any request may have"
        assert simulate([Utterance(0.0, 1800)], PriorCosts()).listeners[0].audio == pytest.approx(1800 * 0.08)


class TestPoisson:
    def test_callers_come_at_the_rate_that_the_load_asks_for(self) -> None:
        script = poisson(2000, 3.0, seed=0)
        audio = sum(said.frames * 0.08 for said in script)
        assert audio / script[-1].at == pytest.approx(3.0, rel=0.05)

    def test_twice_the_load_is_the_same_callers_in_half_the_time(self) -> None:
        slow, fast = poisson(50, 2.0, seed=3), poisson(50, 4.0, seed=3)
        assert [said.at for said in fast] == pytest.approx([said.at / 2 for said in slow])
        assert [replace(said, at=0.0) for said in fast] == [replace(said, at=0.0) for said in slow]

    def test_the_time_between_two_is_exponential(self) -> None:
        """Its mean is its deviation, and 37 % are longer than the mean."""
        script = poisson(4000, 3.0, seed=1)
        gaps = [b.at - a.at for a, b in pairwise(script)]
        mean = sum(gaps) / len(gaps)
        assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.05)
        assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)

    def test_lengths_are_from_2_to_20_s_with_a_median_of_4_5(self) -> None:
        frames = sorted(said.frames for said in poisson(2000, 3.0, seed=0))
        assert (frames[0], frames[-1]) == (25, 250)
        assert frames[1000] * 0.08 == pytest.approx(4.48, abs=0.3)
        assert 0.02 < frames.count(25) / 2000 < 0.12  # P(log-normal < 2 s) = 0.09

    def test_text_is_as_long_as_its_speech(self) -> None:
        assert all(abs(said.text_tokens - 14 * 0.08 * said.frames) <= 1.1 for said in poisson(200, 3.0, seed=0))

    def test_a_burst_comes_at_one_instant_and_no_more_often(self) -> None:
        script = poisson(16000, 3.0, seed=0, burst=16)
        instants = [said.at for said in script]
        assert all(len(set(instants[i : i + 16])) == 1 for i in range(0, 16000, 16))
        assert len(set(instants)) == 1000
        assert sum(said.frames * 0.08 for said in script) / instants[-1] == pytest.approx(3.0, rel=0.08)

    def test_a_burst_that_is_not_full_is_the_last(self) -> None:
        instants = [said.at for said in poisson(5, 3.0, seed=0, burst=3)]
        assert instants[0] == instants[1] == instants[2] < instants[3] == instants[4]

    def test_a_seed_is_a_script(self) -> None:
        assert poisson(20, 3.0, seed=5) == poisson(20, 3.0, seed=5) != poisson(20, 3.0, seed=6)

    def test_the_audio_is_as_long_with_other_frames(self) -> None:
        short = replace(SPEC, samples_per_frame=960)
        plain, halved = poisson(20, 3.0, seed=0), poisson(20, 3.0, seed=0, spec=short)
        assert all(abs(b.frames - 2 * a.frames) <= 1 for a, b in zip(plain, halved, strict=True))


class TestMoody:
    CALM = poisson(3000, 3.0, seed=0)

    def test_calm_listeners_are_left_as_they_are(self) -> None:
        assert moody(self.CALM[:50], Moods(), seed=1) == self.CALM[:50]

    def test_a_script_keeps_what_its_own_listeners_do(self) -> None:
        own = [Utterance(0.0, 50, rate=1.01, stall=(1.0, 0.5), hears=2.0, cancel_at=9.0, follows=None, rows=2)]
        assert moody(own, Moods(), seed=1) == own

    def test_shares(self) -> None:
        script = moody(self.CALM, Moods(stalls=0.3, barge_ins=0.1), seed=1)
        assert sum(said.stall != NEVER for said in script) / 3000 == pytest.approx(0.3, abs=0.025)
        assert sum(said.hears is not None for said in script) / 3000 == pytest.approx(0.1, abs=0.02)
        both = sum(said.stall != NEVER and said.hears is not None for said in script)
        assert both / 3000 == pytest.approx(0.03, abs=0.01)  # independent

    def test_all_or_none(self) -> None:
        script = moody(self.CALM[:200], Moods(stalls=1.0, barge_ins=1.0), seed=1)
        assert all(said.stall != NEVER and said.hears is not None for said in script)

    def test_a_stall_is_somewhere_in_the_utterance_and_lasts_0_1_to_2_s(self) -> None:
        script = moody(self.CALM[:500], Moods(stalls=1.0), seed=1)
        assert all(0 < said.stall[0] < said.frames * 0.08 for said in script)
        pauses = [said.stall[1] for said in script]
        assert 0.1 <= min(pauses) < 0.15
        assert 1.95 < max(pauses) <= 2.0

    def test_an_interruption_comes_after_a_tenth_and_before_nine(self) -> None:
        script = moody(self.CALM[:500], Moods(barge_ins=1.0), seed=1)
        parts = [said.hears / (said.frames * 0.08) for said in script if said.hears is not None]
        assert 0.1 <= min(parts) < 0.12
        assert 0.88 < max(parts) <= 0.9

    def test_clocks_drift_either_way(self) -> None:
        rates = [said.rate for said in moody(self.CALM[:500], Moods(drift_ppm=200.0), seed=1)]
        assert 1 - 200e-6 <= min(rates) < 1 - 190e-6
        assert 1 + 190e-6 < max(rates) <= 1 + 200e-6

    def test_one_mood_does_not_move_another(self) -> None:
        stalled = moody(self.CALM[:50], Moods(stalls=0.5), seed=1)
        every = moody(self.CALM[:50], Moods(drift_ppm=100.0, stalls=0.5, barge_ins=0.5), seed=1)
        assert [said.stall for said in every] == [said.stall for said in stalled]


class TestTrace:
    def test_a_script_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        script = moody(poisson(20, 3.0, seed=0, burst=4), Moods(150.0, 0.5, 0.5), seed=2)
        script.append(Utterance(99.0, 30, 12, rows=2, follows=3, cancel_at=100.0))
        path = tmp_path / "trace.jsonl"
        write_trace(path, script)
        assert read_trace(path) == script

    def test_what_is_usual_is_left_out(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.jsonl"
        write_trace(path, [Utterance(1.0, 25), Utterance(2.5, 30, 50, stall=(1.0, 0.5))])
        assert path.read_text().splitlines() == [
            '{"at": 1.0, "frames": 25}',
            '{"at": 2.5, "frames": 30, "text_tokens": 50, "stall": [1.0, 0.5]}',
        ]

    def test_empty_lines_are_skipped(self, tmp_path: Path) -> None:
        path = written(tmp_path / "trace.jsonl", '{"at": 0, "frames": 25}', "", '{"at": 1, "frames": 30, "follows": 0}')
        assert read_trace(path) == [Utterance(0.0, 25), Utterance(1.0, 30, follows=0)]

    @pytest.mark.parametrize(
        "line", ["hello", "[1, 2]", "7", '{"frames": 25}', '{"at": 0}', '{"at": 0, "frames": 25, "mood": 1}']
    )
    def test_a_line_that_is_no_utterance(self, tmp_path: Path, line: str) -> None:
        path = written(tmp_path / "trace.jsonl", '{"at": 0, "frames": 25}', "", line)
        names = "at, frames, text_tokens, rows, follows, cancel_at, rate, stall, hears, recording, text_rate"
        with pytest.raises(ValueError) as error:
            read_trace(path)
        expected = f"{path}, line 3: expected a JSON object with at, frames and others of {names}, got {line}"
        assert str(error.value) == expected

    @pytest.mark.parametrize(
        ("field", "rule"),
        [
            ('"at": "now"', "at must be a number"),
            (f'"at": 1{"0" * 100}{"0" * 50}', "at must be from 0 to 1000000"),
            ('"frames": "many"', "frames must be a whole number"),
            ('"frames": 2.5', "frames must be a whole number"),
            ('"frames": 1e999', "frames must be a whole number"),
            ('"rows": true', "rows must be a whole number"),
            ('"rate": null', "rate must be a number"),
            ('"stall": 3', "stall must be two numbers"),
            ('"stall": [3]', "stall must be two numbers"),
            ('"stall": "12"', "stall must be two numbers"),
        ],
    )
    def test_a_field_that_is_something_else(self, tmp_path: Path, field: str, rule: str) -> None:
        line = f'{{"at": 0, "frames": 25, {field}}}'  # of two with one name, the last counts
        with pytest.raises(ValueError) as error:
            read_trace(path := written(tmp_path / "trace.jsonl", line))
        assert str(error.value) == f"{path}, line 1: {rule}, got {line}"

    def test_whole_numbers_may_be_written_with_a_point(self, tmp_path: Path) -> None:
        (said,) = read_trace(written(tmp_path / "trace.jsonl", '{"at": 1, "frames": 25.0, "rate": 1}'))
        assert said == Utterance(1.0, 25)
        assert type(said.frames) is int

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.jsonl"
        path.write_bytes(b"\x89PNG\xff")
        with pytest.raises(
            ValueError, match=r"trace.jsonl: expected JSON lines in UTF-8, got other bytes: give a trace"
        ):
            read_trace(path)

    def test_what_no_voice_of_so_many_positions_could_say(self, tmp_path: Path) -> None:
        line = '{"at": 1.0, "frames": 2008}'
        fits, long = '{"at": 0.0, "frames": 2007}', written(tmp_path / "long.jsonl", "", line)
        assert read_trace(written(tmp_path / "fits.jsonl", fits), SPEC) == [Utterance(0.0, 2007)]
        with pytest.raises(ValueError) as error:
            read_trace(long, SPEC)
        rule = "text_tokens (40) and frames together must be at most 2047: make it shorter"
        assert str(error.value) == f"{long}, line 2: {rule}, got {line}"
        assert read_trace(long) == [Utterance(1.0, 2008)], "another voice may have more"

    def test_lines_are_in_order_of_arrival(self, tmp_path: Path) -> None:
        """So that nobody follows an utterance that comes later."""
        line = '{"at": 1.5, "frames": 25, "follows": 0}'
        path = written(tmp_path / "trace.jsonl", '{"at": 2.0, "frames": 25}', line)
        with pytest.raises(ValueError) as error:
            read_trace(path)
        rule = "at must not be before that of the line above (2.0): put the lines in order of arrival"
        assert str(error.value) == f"{path}, line 2: {rule}, got {line}"

    @pytest.mark.parametrize(
        ("wrong", "rule"),
        [
            ({"at": -0.1}, "at must be from 0 to 1000000"),
            ({"at": inf}, "at must be from 0 to 1000000"),
            ({"at": float("nan")}, "at must be from 0 to 1000000"),
            ({"frames": 0}, "frames and text_tokens must be from 1 to 1000000"),
            ({"text_tokens": 0}, "frames and text_tokens must be from 1 to 1000000"),
            ({"rows": 0}, "rows must be 1, or 2 for guidance"),
            ({"rows": 3}, "rows must be 1, or 2 for guidance"),
            ({"rate": 0}, "rate must be from 0.01 to 100.0"),
            ({"rate": float("nan")}, "rate must be from 0.01 to 100.0"),
            ({"rate": inf}, "rate must be from 0.01 to 100.0"),
            ({"stall": [0, 1]}, "stall must be [seconds of audio above 0, seconds of pause from 0 to 1000000]"),
            ({"stall": [1, -1]}, "stall must be [seconds of audio above 0, seconds of pause from 0 to 1000000]"),
            ({"stall": [1, inf]}, "stall must be [seconds of audio above 0, seconds of pause from 0 to 1000000]"),
            ({"hears": 0}, "hears must be above 0"),
            ({"recording": 31}, "recording must be seconds from 0 to 30"),
            ({"text_rate": 0}, "text_rate must be from 0.1 to 10000.0, with one row"),
            ({"text_rate": 20, "rows": 2}, "text_rate must be from 0.1 to 10000.0, with one row"),
            ({"cancel_at": 0.5}, "cancel_at must be from at to 2000000"),
            ({"cancel_at": inf}, "cancel_at must be from at to 2000000"),
            ({"cancel_at": float("nan")}, "cancel_at must be from at to 2000000"),
            ({"at": 1e12}, "at must be from 0 to 1000000"),
            ({"frames": 1e300}, "frames and text_tokens must be from 1 to 1000000"),
            ({"text_tokens": 1_000_001}, "frames and text_tokens must be from 1 to 1000000"),
            ({"rate": 5e-324}, "rate must be from 0.01 to 100.0"),
            ({"rate": 1.7e308}, "rate must be from 0.01 to 100.0"),
            ({"stall": [1, 1e308]}, "stall must be [seconds of audio above 0, seconds of pause from 0 to 1000000]"),
            ({"follows": 1}, "follows must be the place of an earlier utterance, from 0 on"),
            ({"follows": -1}, "follows must be the place of an earlier utterance, from 0 on"),
        ],
    )
    def test_a_value_that_makes_no_sense(self, tmp_path: Path, wrong: dict[str, object], rule: str) -> None:
        line = json.dumps({"at": 1.0, "frames": 25} | wrong)
        path = written(tmp_path / "trace.jsonl", '{"at": 0, "frames": 25}', line)
        with pytest.raises(ValueError) as error:
            read_trace(path)
        assert str(error.value) == f"{path}, line 2: {rule}, got {line}"

    @pytest.mark.parametrize("line", ['{"at": 0, "frames": 5, "x": "' + "y" * 10**6 + '"}', "[" * 100_000])
    def test_of_a_long_line_the_beginning_is_told(self, tmp_path: Path, line: str) -> None:
        """Also where it is nested too deeply for any JSON reader."""
        path = written(tmp_path / "trace.jsonl", line)
        with pytest.raises(ValueError) as error:
            read_trace(path)
        said = str(error.value)
        assert said.startswith(f"{path}, line 1: expected a JSON object with at, frames and others of at, ")
        assert said.endswith(f", got {line[:200]}...")

    def test_a_number_beyond_every_float_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="line 1: at must be a number, got"):
            read_trace(written(tmp_path / "trace.jsonl", f'{{"at": 1{"0" * 400}, "frames": 5}}'))

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read_trace(tmp_path / "none.jsonl")


def test_a_tokenizer_of_longer_tokens_makes_shorter_prompts() -> None:
    usual, longer = poisson(50, 8.0, 3), poisson(50, 8.0, 3, tokens_per_char=0.25)
    assert [said.frames for said in longer] == [said.frames for said in usual]
    for one, other in zip(longer, usual, strict=True):
        assert abs(4 * one.text_tokens - other.text_tokens) <= 3
