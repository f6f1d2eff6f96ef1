"""Reads numbers from a command line: argparse types whose errors say what was expected, and what came.

It knows no command. argparse itself would only say `invalid X value`, with the name of the function.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from math import inf
from typing import TypeVar

from engine.checks import RequestError
from engine.core import SamplingParams

MOST = 1_000_000
"""Of whatever is counted, and of seconds: more is a slip of the keyboard."""
LEAST = 0.001
"""Of loads and seconds that are to be above 0: so few callers come as good as never."""
LARGEST_SEED = 2**63 - 1
MOST_FRAMES = 2**31 - 1


def whole(text: str) -> int:
    """Any whole number."""
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a whole number, got {text!r}") from None


def number(text: str) -> float:
    """Any number, also infinity and NaN: who takes them has to look."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a number, got {text!r}") from None


def positive(text: str) -> int:
    """How many of something."""
    value = whole(text)
    if value < 1:
        raise ArgumentTypeError(f"must be at least 1, got {value}")
    if value > MOST:
        raise ArgumentTypeError(f"must be at most {MOST}, got {text}")
    return value


def positive_number(text: str) -> float:
    """How much of something."""
    value = number(text)
    if not 0 < value < inf:
        raise ArgumentTypeError(f"must be above 0, got {text}")
    if value < LEAST:
        raise ArgumentTypeError(f"must be at least {LEAST}, got {text}")
    if value > MOST:
        raise ArgumentTypeError(f"must be at most {MOST}, got {text}")
    return value


def seed(text: str) -> int:
    """Of something random."""
    return _within(text, whole(text), LARGEST_SEED)


def share(text: str) -> float:
    """A part of the whole."""
    return _within(text, number(text), 1)


def ppm(text: str) -> float:
    """Parts per million, below all of them."""
    value = number(text)
    if not 0 <= value < 1e6:
        raise ArgumentTypeError(f"must be from 0 to below a million, got {text}")
    return value


def port(text: str) -> int:
    """Of TCP; 0 stands for a free one."""
    return _within(text, whole(text), 65535)


def seconds(text: str) -> float:
    """A time that passes."""
    return _within(text, number(text), MOST, "seconds ")


def patience(text: str) -> float:
    """A time, or for ever."""
    value = number(text)
    if not value >= 0:  # also for NaN
        raise ArgumentTypeError(f"must be seconds from 0 on, or inf, got {text}")
    return value


N = TypeVar("N", int, float)


def _within(text: str, value: N, most: float, unit: str = "") -> N:
    if not 0 <= value <= most:  # also false for NaN
        raise ArgumentTypeError(f"must be {unit}from 0 to {most}, got {text}")
    return value


def setting(name: str, kind: Callable[[str], float]) -> Callable[[str], float]:
    """The setting of that name of SamplingParams, which knows its range."""

    def read(text: str) -> float:
        value = kind(text)
        try:
            SamplingParams(**{"max_frames": MOST_FRAMES, name: value})  # type: ignore[arg-type]
        except RequestError as error:
            raise ArgumentTypeError(str(error)) from None
        return value

    return read
