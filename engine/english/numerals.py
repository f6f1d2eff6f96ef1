"""Writes numbers as American English words: cardinals, ordinals, years, digits one by one. It knows no context."""

from __future__ import annotations

import re

from engine.english.rule import words

SMALL = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
TENS = words("zero ten twenty thirty forty fifty sixty seventy eighty ninety")
SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
LARGEST = 10**15 - 1
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
LONG_DIGITS = 10
"""So many without separators are an account or a phone, not a quantity, unless they are round."""
ROMAN = re.compile(r"(?=[IVXL])(X{0,3}|XL|L)(IX|IV|V?I{0,3})")
ROMAN_PARTS = {"I": 1, "V": 5, "X": 10, "L": 50}


def cardinal(number: int) -> str:
    """`number` from 0 to LARGEST."""
    if number < 20:
        return SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens] + (f"-{SMALL[ones]}" if ones else "")
    size, name = next(scale for scale in SCALES if number >= scale[0])
    count, rest = divmod(number, size)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """First, twenty-first."""
    said = cardinal(number)
    start = max(said.rfind(" "), said.rfind("-")) + 1
    last = said[start:]
    return said[:start] + (ORDINALS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"))


def plural(noun: str) -> str:
    """Of the last word: nineties, hundreds, thirds."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("x") else f"{noun}s"


def digits(number: str) -> str:
    """One by one: zero zero seven."""
    return " ".join(SMALL[int(digit)] for digit in number)


def year(number: int) -> str:
    """From 1000 to 9999: nineteen oh five, two thousand five, twenty twenty-four."""
    if number % 1000 < 10:
        return cardinal(number)
    return pairs(str(number))


def pairs(number: str) -> str:
    """Three or four digits as a room or a flight is read: two oh four, twenty-four ninety; others as they come."""
    if len(number) not in (3, 4) or number[0] == "0":
        return whole(number)
    first, last = int(number[:-2]), int(number[-2:])
    if last == 0:
        return cardinal(int(number)) if first % 10 == 0 else f"{cardinal(first)} hundred"
    return f"{cardinal(first)} {'oh ' if last < 10 else ''}{cardinal(last)}"


def whole(number: str) -> str:
    """Digits, with or without commas: as a quantity, or one by one where they are none (007, account numbers)."""
    bare = number.replace(",", "")
    account = len(bare) >= LONG_DIGITS and bare == number and not bare.endswith("000")
    if account or len(bare) > len(str(LARGEST)) or (len(bare) > 1 and bare[0] == "0"):
        return digits(bare)
    return cardinal(int(bare))


def decimal(number: str) -> str:
    """1,234.5 or .5, as a person reads it: one thousand two hundred thirty-four point five, point five."""
    before, point, after = number.partition(".")
    said = [whole(before)] if before else []
    return " ".join([*said, "point", digits(after)] if point and after else said)


def roman(numeral: str) -> int:
    """I to LXXXIX, 0 where it is none."""
    if not ROMAN.fullmatch(numeral):
        return 0
    values = [ROMAN_PARTS[letter] for letter in numeral]
    following = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, following, strict=True))
