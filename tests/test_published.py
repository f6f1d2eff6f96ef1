"""The JSON of tests/bench/results: nothing that is published misses what the benchmark itself asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from readme import result

from agent import bench_bargein, bench_browser, bench_page, bench_transport
from agent.bench_report import Line
from agent.bench_silence import Cycles, Silences

MISSED = {"browser-beside-1": {"concealed inside sound", "underruns", "packet to packet, at the socket"}}
"""By file, the lines that are published though they miss their target: the README says so."""


def of(module: Any) -> Callable[[str], Iterable[Line]]:
    """The lines of a benchmark whose file has all its figures at the top."""

    def lines(name: str) -> Iterable[Line]:
        return module.rows(msgspec.convert(result(name), module.Figures))  # type: ignore[no-any-return]

    return lines


def bargein(name: str) -> Iterable[Line]:
    for part in bench_bargein.PARTS:
        kind: Any = Cycles if part == "cycles" else Silences
        yield from bench_bargein.rows(part, msgspec.convert(result(name)[part], kind))


@pytest.mark.parametrize(
    ("name", "lines", "least"),
    [
        ("bargein", bargein, 15),
        ("browser", of(bench_browser), 8),
        ("browser-beside-1", of(bench_browser), 8),
        ("page", of(bench_page), 10),
        ("transport", of(bench_transport), 6),
    ],
)
def test_nothing_published_misses_what_is_asked_of_it(
    name: str, lines: Callable[[str], Iterable[Line]], least: int
) -> None:
    found = [(what.strip(), met) for what, _, _, met in lines(name) if met is not None]
    assert len(found) >= least
    assert {what for what, met in found if not met} == MISSED.get(name, set())
