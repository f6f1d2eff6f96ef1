"""agent/bench_policies.py: what becomes of a reply, and of many, by literal messages; a browser's test runs it."""

from __future__ import annotations

import pytest

from agent.bench_page import heard_rows
from agent.bench_policies import Compared, Policy, Reply, reply
from agent.browser import BrowserError, Heard


def test_a_reply_is_told_by_its_messages() -> None:
    stutter = {"type": "speech.underrun", "id": "u1", "heard_ms": 100}
    messages = [
        {"type": "speech.started", "id": "u1", "ttfa_ms": 80.5},
        {**stutter, "missed_ms": 40, "underruns": 1},
        {**stutter, "missed_ms": 60, "underruns": 2},
    ]
    assert reply(Heard(messages=messages)) == Reply(80.5, 2, 100)
    assert reply(Heard(messages=[{"type": "error", "code": "busy"}])) == Reply(None, 0, 0)


def test_what_is_refused_is_counted_apart() -> None:
    found = Policy.of("newest-first", [Reply(100, 0, 0), Reply(200, 2, 100), Reply(90, 1, 40), Reply(None, 0, 0)])
    assert (found.replies, found.refused, found.replies_with_stutters, found.stutters) == (4, 1, 2, 3)
    assert (found.missed_ms, found.longest_ms, found.first_audio_ms) == (140, 100, 100)
    ((what, value, _, met),) = heard_rows(Compared(4, [found]))
    assert what == "newest-first, beside 4 synthetic listeners"
    assert value.startswith("2 of 4 replies stutter, by 140 ms in all, 100 in one; first audio p50 100 ms; 1 refused")
    assert met is None


def test_a_policy_of_which_nothing_was_heard_is_an_error() -> None:
    with pytest.raises(BrowserError, match="newest-first all replies were refused"):
        Policy.of("newest-first", [Reply(None, 0, 0)])
