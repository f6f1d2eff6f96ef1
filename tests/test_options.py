"""Every numeric option of both command lines: what is no number, or none that makes sense, is one clear line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.__main__ import main, serve_parser
from engine import options
from engine.__main__ import parser

NEEDED = {"say": ["hello", "-o", "x"], "calibrate": ["-o", "x"]}
"""What a command wants beside its options."""
HUGE = "1" + 30 * "0"
SENSELESS = ("many", "", "-1", "nan", "-inf", HUGE)
ALLOWED = {("serve", "--max-wait", HUGE), ("serve", "--max-rate", HUGE)}
"""Numbers that make sense after all: patience, and no limit."""
FROM_0 = {
    "--seed",
    "--top-k",
    "--depth-top-k",
    "--temperature",
    "--depth-temperature",
    "--cfg-scale",
    "--min-frames",
} | {*("--port", "--max-wait", "--drain", "--stalls", "--barge-ins", "--drift")}
"""Options for which 0 makes sense."""


def commands(top: argparse.ArgumentParser, *names: str) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """All commands by their words, with their options."""
    groups = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield names, top
    for group in groups:
        for name, below in group.choices.items():
            yield from commands(below, *names, name)


def numeric() -> Iterator[tuple[str, str]]:
    """(command, option) of all that take a number."""
    everything = [*commands(parser("breezert", {})), (("serve",), serve_parser())]
    for names, command in everything:
        for action in command._actions:
            if action.type not in (None, Path) and action.metavar != "URL":
                yield " ".join(names), action.option_strings[0]


NUMERIC = list(numeric())


def refused(capsys: pytest.CaptureFixture[str], command: str, *given: str) -> str:
    """The last line that is said to a command that must not begin."""
    try:
        assert main([*command.split(), *NEEDED.get(command, []), *given]) == 1
    except SystemExit as ended:
        assert ended.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_they_are_all_here() -> None:
    assert ("simulate", "--load") in NUMERIC
    assert ("bench plan", "--steps") in NUMERIC
    assert ("say", "--depth-top-k") in NUMERIC
    assert ("serve", "--port") in NUMERIC
    assert len(NUMERIC) > 35


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [(*pair, value) for pair in NUMERIC for value in SENSELESS if (*pair, value) not in ALLOWED],
)
def test_what_makes_no_sense_is_refused(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, command, f"{option}={value}")
    assert f"got {value!r}" in line or f"got {value}" in line or f"got {float(value)}" in line
    assert "must be" in line or "expected a" in line
    assert "invalid" not in line


@pytest.mark.parametrize(("command", "option"), [pair for pair in NUMERIC if pair[1] not in FROM_0])
def test_where_nothing_is_none(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "got 0" in refused(capsys, command, f"{option}=0")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (options.whole, "-3", -3),
        (options.number, "-0.5", -0.5),
        (options.positive, "1", 1),
        (options.positive, "1000000", 1_000_000),
        (options.positive_number, "0.001", 0.001),
        (options.seed, "0", 0),
        (options.seed, "9223372036854775807", 2**63 - 1),
        (options.share, "0", 0.0),
        (options.share, "1", 1.0),
        (options.ppm, "999999.5", 999_999.5),
        (options.port, "0", 0),
        (options.port, "65535", 65_535),
        (options.seconds, "0", 0.0),
        (options.patience, "inf", float("inf")),
        (options.setting("top_p", options.number), "1", 1.0),
        (options.setting("min_frames", options.whole), "5000", 5000),
    ],
)
def test_what_makes_sense_is_read(kind: object, text: str, value: float) -> None:
    assert callable(kind)
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (options.whole, "2.5", "expected a whole number, got '2.5'"),
        (options.number, "warm", "expected a number, got 'warm'"),
        (options.positive, "0", "must be at least 1, got 0"),
        (options.positive, "1000001", "must be at most 1000000, got 1000001"),
        (options.positive_number, "inf", "must be above 0, got inf"),
        (options.positive_number, "1e7", "must be at most 1000000, got 1e7"),
        (options.positive_number, "5e-324", "must be at least 0.001, got 5e-324"),
        (options.positive_number, "0.0009", "must be at least 0.001, got 0.0009"),
        (options.seed, "-1", "must be from 0 to 9223372036854775807, got -1"),
        (options.share, "1.1", "must be from 0 to 1, got 1.1"),
        (options.ppm, "1e6", "must be from 0 to below a million, got 1e6"),
        (options.port, "65536", "must be from 0 to 65535, got 65536"),
        (options.port, "http", "expected a whole number, got 'http'"),
        (options.seconds, "inf", "must be seconds from 0 to 1000000, got inf"),
        (options.patience, "nan", "must be seconds from 0 on, or inf, got nan"),
        (options.setting("top_p", options.number), "1.5", "top_p must be from 1e-06 to 1.0, got 1.5"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(kind: object, text: str, says: str) -> None:
    assert callable(kind)
    with pytest.raises(argparse.ArgumentTypeError) as raised:
        kind(text)
    assert str(raised.value) == says
