"""One way to read something: what it looks like, and what is said. It knows no particular reading.

Patterns repeat a bounded number of times, or cannot fail where they began, so that a text takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Match = re.Match[str]

START = r"(?<![\w.])(?<!\d,)"
"""No part of a longer number or word."""
NUMBER = r"(?:(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:\.\d{1,12})?|\.\d{1,12})(?!\d)"
MINUS = r"(?:(?<![\w)])[-−])?"
DASH = r"\s?[-–—]\s?"


@dataclass(frozen=True, slots=True)
class Rule:
    """All of `pattern` becomes what `read` says of the match."""

    pattern: re.Pattern[str]
    read: Callable[[Match], str]


def words(text: str) -> tuple[str, ...]:
    """Those of the text."""
    return tuple(text.split())


def rule(pattern: str, read: Callable[[Match], str] | str, ignore_case: bool = False) -> Rule:
    """A rule whose reading is a function, or the same text always."""
    said = (lambda _: read) if isinstance(read, str) else read
    return Rule(re.compile(pattern, re.IGNORECASE if ignore_case else 0), said)


def applied(rules: Iterable[Rule], text: str) -> str:
    """The text after all rules, in their order."""
    for each in rules:
        text = each.pattern.sub(each.read, text)
    return text


def any_of(words: Iterable[str]) -> str:
    """A pattern for one of the words, the longest that fits."""
    return "(?:" + "|".join(sorted(map(re.escape, words), key=len, reverse=True)) + ")"


def before(match: Match, size: int = 24) -> str:
    """What stands before the match."""
    return match.string[max(0, match.start() - size) : match.start()]


def after(match: Match, size: int = 24) -> str:
    """What stands behind the match."""
    return match.string[match.end() : match.end() + size]


def word_before(match: Match) -> str:
    """The word right before the match, in lower case; empty where there is none."""
    found = re.search(r"([A-Za-z']{1,20})[\s-]{0,2}$", before(match))
    return found[1].lower() if found else ""


def ends_sentence(match: Match) -> bool:
    """Whether the text ends behind the match, or goes on with a capital."""
    return re.match(r"\s*$|\s+[\"'(]?[A-Z]", after(match)) is not None
