"""Reads written English, as words that need no further reading. It knows neither markup nor emoji, nor a voice."""

from __future__ import annotations

from engine.english import addresses, dates, letters, quantities, words
from engine.english.rule import applied

RULES = (
    *words.FACES,
    *addresses.WORDED,
    *dates.RULES,
    *words.ABBREVIATIONS,
    *letters.DOTTED,
    *addresses.NUMBERED,
    *quantities.MEASURED,
    *letters.ROMAN,
    *letters.LETTERED,
    *quantities.BARE,
    *letters.IDENTIFIERS,
    *words.SYMBOLIC,
    *letters.CAPITALS,
    *words.PUNCTUATION,
)
"""What is longest and most certain comes first; each rule leaves words, which the later ones leave alone."""

MOST_PASSES = 8
"""One reads, one more finds nothing left to read; what is glued together (`2Jan.`) takes another."""


def read(text: str) -> str:
    """Plain text as it is said, in one line. What was read already stays as it is."""
    for _ in range(MOST_PASSES):
        before, text = text, applied(RULES, words.cleaned(text))
        if text == before:
            break
    return text
