"""Reads dates and times as an American does: March fifth, three thirty P M. It does not know what day it is."""

from __future__ import annotations

import re

from engine.english.numerals import cardinal, ordinal, year
from engine.english.rule import DASH, START, Match, any_of, ends_sentence, rule, word_before, words

MONTHS = words("January February March April May June July August September October November December")
SHORT_MONTHS = {month[:3]: month for month in MONTHS if month != "May"} | {"Sept": "September"}
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
SHORT_DAYS = {day[:3]: day for day in DAYS} | {"Tues": "Tuesday", "Thur": "Thursday", "Thurs": "Thursday"}
MONTH = rf"(?P<month>{any_of(MONTHS)}|{any_of(SHORT_MONTHS)}\b\.?)"
DAY = r"(?P<day>[12]\d|3[01]|0?[1-9])"
NTH = r"(?:st|nd|rd|th)?"
YEAR = r"(?P<year>1\d{3}|20\d{2})(?![\d-])"
CLOCK = r"(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)"


def month_name(written: str) -> str:
    written = written.rstrip(".")
    return SHORT_MONTHS.get(written, written)


def said_year(match: Match) -> str:
    """The match's year behind a comma; nothing where it has none."""
    return f", {year(int(match['year']))}" if match["year"] else ""


def calendar_day(year_: str, month: int, day: int) -> str:
    """May third, twenty twenty-four; two digits are this or the last century's."""
    whole_year = int(year_) if len(year_) == 4 else int(year_) + (2000 if int(year_) < 50 else 1900)
    return f"{MONTHS[month - 1]} {ordinal(day)}, {year(whole_year)}"


def is_day(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31


def iso(match: Match) -> str:
    month, day = int(match["m"]), int(match["d"])
    if not is_day(month, day) or int(match["y"]) < 1000:
        return match[0]
    clock = ", " + time_of_day(int(match["hour"]), int(match["minute"])) if match["hour"] else ""
    return calendar_day(match["y"], month, day) + clock + (" U T C" if match["zone"] else "")


def slashed(match: Match) -> str:
    """Month first, unless it can be no month."""
    month, day = int(match["m"]), int(match["d"])
    if not is_day(month, day):
        month, day = day, month
    if not is_day(month, day) or re.match(r"0\d{3}", match["y"]):
        return match[0]
    return calendar_day(match["y"], month, day)


def pointed(match: Match) -> str:
    """05.03.2024 has the day first: so write those who use full stops."""
    day, month = int(match[1]), int(match[2])
    return calendar_day(match[3], month, day) if is_day(month, day) else match[0]


def slashed_day(match: Match) -> str:
    """5/3 where a day is expected."""
    month, day = int(match["m"]), int(match["d"])
    when = SHORT_DAYS.get(match["when"], match["when"])
    return f"{when} {MONTHS[month - 1]} {ordinal(day)}" if is_day(month, day) else match[0]


def month_day(match: Match) -> str:
    day = ordinal(int(match["day"]))
    until = f" to {ordinal(int(match['until']))}" if match["until"] else ""
    return f"{month_name(match['month'])} {day}{until}{said_year(match)}"


def day_month(match: Match) -> str:
    the = "" if word_before(match) == "the" else "the "
    return f"{the}{ordinal(int(match['day']))} of {month_name(match['month'])}{said_year(match)}"


def month_year(match: Match) -> str:
    return f"{month_name(match['month'])} {year(int(match['year']))}"


def short_month(match: Match) -> str:
    return month_name(match[0]) + ("." if ends_sentence(match) else "")


def weekday(match: Match) -> str:
    return SHORT_DAYS[match["weekday"]]


def weekdays(match: Match) -> str:
    return f"{SHORT_DAYS[match[1]]} to {SHORT_DAYS[match[2]]}"


def time_of_day(hour: int, minute: int, *, half: bool = False) -> str:
    """Three thirty, nine oh five, nine o'clock, fifteen hundred; `half` where A M or P M follows."""
    if minute:
        return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    if half:
        return cardinal(hour)
    if hour == 0:
        return "midnight"
    return f"{cardinal(hour)} o'clock" if hour <= 12 else f"{cardinal(hour)} hundred"


def half_day(match: Match) -> str:
    """3:30 pm, 10-12 a.m."""
    said = time_of_day(int(match["hour"]), int(match["minute"] or 0), half=True)
    if match["first"]:
        first = time_of_day(int(match["first"]), int(match["first_minute"] or 0), half=True)
        first += f" {match['first_half'].upper()} M" if match["first_half"] else ""
        said = f"{first} to {said}"
    stop = "." if "." in match["half"] and ends_sentence(match) else ""
    return f"{said} {match['half'][0].upper()} M{stop}"


def clock(match: Match) -> str:
    said = time_of_day(int(match["hour"]), int(match["minute"]))
    return f"{said} and {seconds(int(match['second']))}" if match["second"] else said


def clocks(match: Match) -> str:
    """9:00-17:30."""
    return " to ".join(time_of_day(*map(int, match[name].split(":"))) for name in ("from", "to"))


def seconds(number: int) -> str:
    return f"{cardinal(number)} second" + ("s" if number != 1 else "")


HALF = r"(?P<half>[ap](?:\.\s?m\.|m\b))"
TIME = r"(?:[01]?\d|2[0-3]):[0-5]\d"
RULES = (
    rule(
        r"\b(?P<y>\d{4})(?P<by>[-/])(?P<m>\d{2})(?P=by)(?P<d>\d{2})"
        rf"(?:[T ]{CLOCK}(?::\d{{2}}(?:\.\d{{1,9}})?)?(?P<zone>Z)?)?\b",
        iso,
    ),
    rule(rf"{START}(?P<m>\d{{1,2}})/(?P<d>\d{{1,2}})/(?P<y>\d{{4}}|\d{{2}})(?![\w/])", slashed),
    rule(r"(?<![\w.])(\d{1,2})\.(\d{1,2})\.((?:19|20)\d\d)(?!\w|\.\d)", pointed),
    rule(
        rf"\b(?P<when>on|by|until|since|before|after|due|from|{any_of([*DAYS, *SHORT_DAYS])})[.,]?\s"
        r"(?P<m>\d{1,2})/(?P<d>\d{1,2})(?![\w/%])",
        slashed_day,
        ignore_case=True,
    ),
    rule(rf"\b({any_of(SHORT_DAYS)})\.?{DASH}({any_of(SHORT_DAYS)})\b\.?", weekdays),
    rule(rf"\b(?P<weekday>{any_of(SHORT_DAYS)})\.?(?=,?\s(?:{any_of([*MONTHS, *SHORT_MONTHS])}\b|\d))", weekday),
    rule(r"\b(?P<weekday>Mon|Tues?|Wed|Thu(?:rs?)?|Fri)\.(?=\s[a-z]|,)", weekday),
    rule(
        rf"\b{MONTH}\s{DAY}{NTH}(?:{DASH}(?P<until>[12]\d|3[01]|0?[1-9]){NTH})?(?![\d:]|[.,/-]\d)(?:,?\s{YEAR})?",
        month_day,
    ),
    rule(rf"{START}{DAY}{NTH}\s(?:of\s)?{MONTH}(?!\w)(?:,?\s{YEAR})?", day_month),
    rule(rf"\b{MONTH},?\s{YEAR}", month_year),
    rule(rf"\b(?!Mar\b|Dec\b){any_of(SHORT_MONTHS)}\.", short_month),
    rule(
        rf"{START}(?:(?P<first>0?\d|1[0-2])(?::(?P<first_minute>[0-5]\d))?(?:\s?(?P<first_half>[ap])\.?m\.?)?{DASH})?"
        rf"(?P<hour>0?\d|1[0-2])(?::(?P<minute>[0-5]\d))?\s?{HALF}",
        half_day,
        ignore_case=True,
    ),
    rule(rf"{START}(?<!:)(?P<from>{TIME}){DASH}(?P<to>{TIME})(?![\w:])", clocks),
    rule(rf"{START}(?<!:){CLOCK}(?::(?P<second>[0-5]\d))?(?![\w:])(?:\s?o'clock)?", clock),
)
"""`2024-03-05` before `5/3`, days before months, so that each finds what it needs unread."""
