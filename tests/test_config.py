"""config.py: values of a kind and range, and errors that name place, key, what was expected and what was found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import Section
from engine.weights import CheckpointError

VALUES = {
    "n": 3,
    "zero": 0,
    "half": 0.5,
    "flag": True,
    "name": "x",
    "null": None,
    "list": [1, 2],
    "inner": {"deep": {"n": "3"}},
}


@pytest.fixture
def section() -> Section:
    return Section.of(VALUES, "config.json")


def test_values_of_their_kind(section: Section) -> None:
    assert (section.integer("n"), section.integer("zero", low=0), section.integers("list")) == (3, 0, (1, 2))
    assert (section.number("half"), section.number("n"), section.flag("flag", False)) == (0.5, 3.0, True)
    assert (section.text("name", ""), section.section("inner").where) == ("x", "config.json: inner")


def test_a_default_stands_in_for_null_and_nothing(section: Section) -> None:
    for key in ("null", "absent"):
        assert section.integer(key, default=7) == 7
        assert section.number(key, default=0.25) == 0.25
        assert section.flag(key, True) is True
        assert section.text(key, "y") == "y"
        assert section.section(key, {}) == {}


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (
            lambda s: s.integer("absent"),
            "config.json: absent must be an integer from 1 to 16777216, found nothing",
        ),
        (lambda s: s.integer("null"), "null must be an integer from 1 to 16777216, found None"),
        (lambda s: s.integer("half"), "half must be an integer from 1 to 16777216, found 0.5"),
        (lambda s: s.integer("flag"), "flag must be an integer from 1 to 16777216, found True"),
        (lambda s: s.integer("n", high=2), "n must be an integer from 1 to 2, found 3"),
        (lambda s: s.integers("n"), "n must be a list of integers from 1 to 16777216, found 3"),
        (lambda s: s.integers("list", high=1), "list must be a list of integers from 1 to 1, found [1, 2]"),
        (lambda s: s.number("flag"), "flag must be a number from 0 to 1e+30, found True"),
        (lambda s: s.number("zero", low=1), "zero must be a number from 1 to 1e+30, found 0"),
        (lambda s: s.flag("n", True), "n must be true or false, found 3"),
        (lambda s: s.text("n", ""), "n must be a string, found 3"),
        (lambda s: s.texts("name", "x", "y"), "name must be a list of x, y, found 'x'"),
        (lambda s: s.section("list"), "list must be an object, found [1, 2]"),
        (lambda s: s.section("inner").section("deep").integer("n"), "config.json: inner: deep: n must be an integer"),
        (lambda s: s.require({"n": 4}), "n must be 4, found 3"),
    ],
)
def test_what_does_not_fit_is_named(section: Section, read: Callable[[Section], object], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(section)
    assert message in str(caught.value)


def test_what_is_required_may_be_absent(section: Section) -> None:
    section.require({"n": 3, "absent": "anything"})


def test_a_file_is_a_section_that_has_its_name(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"a": {"b": 1}}')
    inner = Section.read(file).section("a")
    assert (inner.integer("b"), inner.where) == (1, f"{file}: a")
    assert Section.of(inner, "elsewhere") is inner
