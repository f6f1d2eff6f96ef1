"""Reads quantities: money, units, ranges, fractions, years, sums, any number that is left. It knows no dates."""

from __future__ import annotations

import re

from engine.english.numerals import cardinal, decimal, digits, ordinal, pairs, plural, whole, year
from engine.english.rule import DASH, MINUS, NUMBER, START, Match, after, any_of, before, rule, word_before, words

# ---- one number -----------------------------------------------------------------------------------------------------

YEAR = r"1[1-9]\d\d|20\d\d"
VERBS = words("was is has does vs as its his this thus us always perhaps")
"""End like a plural, but count nothing."""
COUNTED = words("people men women children percent dollars degrees feet cattle sheep fish or")


def number(match: Match) -> str:
    """One that nothing else has read."""
    text = match["number"]
    minus = "minus " if match["minus"] else ""
    early = text.startswith("10") and word_before(match) in ("in", "since", "year", "until", "by", "from", "around")
    if re.fullmatch(r"1\d{3}" if early else YEAR, text) and not minus and not counts(match):
        return year(int(text))
    return minus + decimal(text)


def counts(match: Match) -> bool:
    """Whether a four-digit number is how many: a plural follows, and no `the` stands before it (the 2024 games)."""
    following = re.match(r"\s([a-z]{3,20})", after(match))
    noun = following[1] if following else ""
    plural_follows = noun in COUNTED or (noun.endswith("s") and not noun.endswith("ss") and noun not in VERBS)
    return plural_follows and word_before(match) not in ("the", "in", "since", "this")


def said(number_: str) -> str:
    """A number of a pattern, with its sign."""
    return f"minus {decimal(number_[1:])}" if number_[0] in "-−" else decimal(number_)


def is_one(number_: str) -> bool:
    return number_ == "1"


def attributive(match: Match) -> bool:
    """Whether a noun follows that it belongs to: a five dollar bill."""
    article = re.search(r"(?:^|[^\w'])(?:an?|another|one)\s$", before(match), re.IGNORECASE)
    noun = re.match(
        r"[\s-](?!(?:to|and|or|on|in|for|a|per|more|of|at|by|from|is|was|each|an|the|with|that)\b)[a-z]", after(match)
    )
    return bool(article and noun)


# ---- money ----------------------------------------------------------------------------------------------------------

MONEY = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "US$": ("U S dollar", "U S dollars", "cent", "cents"),
    "A$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "C$": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₩": ("won", "won", "jeon", "jeon"),
    "₽": ("ruble", "rubles", "kopek", "kopeks"),
    "₿": ("bitcoin", "bitcoins", "", ""),
    "₺": ("lira", "lira", "kurush", "kurush"),
    "₴": ("hryvnia", "hryvnias", "kopek", "kopeks"),
}
CODES = {
    "USD": MONEY["$"],
    "EUR": MONEY["€"],
    "GBP": MONEY["£"],
    "JPY": MONEY["¥"],
    "INR": MONEY["₹"],
    "AUD": MONEY["A$"],
    "CAD": MONEY["C$"],
    "NZD": ("New Zealand dollar", "New Zealand dollars", "cent", "cents"),
    "CHF": ("Swiss franc", "Swiss francs", "centime", "centimes"),
    "CNY": ("yuan", "yuan", "fen", "fen"),
    "SEK": ("Swedish krona", "Swedish kronor", "ore", "ore"),
    "NOK": ("Norwegian krone", "Norwegian kroner", "ore", "ore"),
    "DKK": ("Danish krone", "Danish kroner", "ore", "ore"),
    "MXN": ("Mexican peso", "Mexican pesos", "centavo", "centavos"),
    "BTC": MONEY["₿"],
}
CURRENCIES = MONEY | CODES
SCALE = {
    **dict.fromkeys(("k", "K", "thousand"), "thousand"),
    **dict.fromkeys(("m", "M", "mm", "MM", "mn", "million"), "million"),
    **dict.fromkeys(("b", "B", "bn", "Bn", "billion"), "billion"),
    **dict.fromkeys(("t", "T", "tn", "trillion"), "trillion"),
}
PER = {
    "mo": "month", "yr": "year", "hr": "hour", "h": "hour", "wk": "week", "d": "day", "min": "minute", "s": "second",
    "sec": "second", "lb": "pound", "kg": "kilogram", "oz": "ounce", "sq": "square", "gal": "gallon", "L": "liter",
    "GB": "gigabyte", "kWh": "kilowatt hour", "mi": "mile", "km": "kilometer", "m": "meter", "pp": "person",
}  # fmt: skip
PER_PATTERN = r"(?:\s?/\s?(?P<per>[A-Za-z]{1,8})(?!\w))?"


def per(match: Match) -> str:
    unit = match["per"]
    return f" per {PER.get(unit, unit)}" if unit else ""


def amount(match: Match) -> str:
    """$3.50, £5m, USD 20, 20 €, $5-10, $5/month."""
    one, many, cent, cents = CURRENCIES[match["money"]]
    first, until, scale = match["number"], match["until"], SCALE.get(match["scale"] or "", "")
    minus = "minus " if match["minus"] else ""
    if until or scale or not cents or not re.fullmatch(r"[\d,]*\.\d\d", first):
        to = f" to {decimal(until)}" if until else ""
        name = one if attributive(match) or (is_one(first) and not until and not scale) else many
        return f"{minus}{decimal(first)}{to}{f' {scale}' if scale else ''} {name}{per(match)}"
    return minus + with_cents(first, (one, many, cent, cents)) + per(match)


def with_cents(number_: str, names: tuple[str, str, str, str]) -> str:
    """Three dollars and fifty cents; ninety-nine cents; three dollars."""
    one, many, cent, cents = names
    before_, _, after_ = number_.partition(".")
    big = [f"{whole(before_)} {one if is_one(before_) else many}"] if before_.strip("0,") else []
    small = [f"{cardinal(int(after_))} {cent if int(after_) == 1 else cents}"] if int(after_) else []
    return " and ".join(big + small) or f"zero {many}"


def cents(match: Match) -> str:
    return f"{decimal(match['number'])} cent" + ("" if is_one(match["number"]) else "s")


# ---- units ----------------------------------------------------------------------------------------------------------

UNITS = {
    "km": "kilometer", "m": "meter", "cm": "centimeter", "mm": "millimeter", "µm": "micrometer", "nm": "nanometer",
    "mi": "mile", "yd": "yard", "yds": "yard", "in.": "inch", "kg": "kilogram", "g": "gram", "mg": "milligram",
    "µg": "microgram", "mcg": "microgram", "lb": "pound", "lbs": "pound", "lb.": "pound", "lbs.": "pound",
    "oz": "ounce", "oz.": "ounce", "fl oz": "fluid ounce",
    "tbsp": "tablespoon", "tbsp.": "tablespoon", "tsp.": "teaspoon", "mi.": "mile", "tsp": "teaspoon",
    "gal": "gallon", "L": "liter", "l": "liter",
    "mL": "milliliter", "ml": "milliliter", "cl": "centiliter", "dl": "deciliter",
    "KB": "kilobyte", "kB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte",
    "PB": "petabyte", "KiB": "kibibyte", "MiB": "mebibyte", "GiB": "gibibyte", "TiB": "tebibyte",
    "kbps": "kilobit per second", "Kbps": "kilobit per second", "Mbps": "megabit per second",
    "Gbps": "gigabit per second", "W": "watt", "kW": "kilowatt", "MW": "megawatt", "GW": "gigawatt",
    "Wh": "watt hour", "kWh": "kilowatt hour", "MWh": "megawatt hour", "V": "volt", "mV": "millivolt", "kV": "kilovolt",
    "mA": "milliamp", "mAh": "milliamp hour", "dB": "decibel", "kcal": "kilocalorie", "cal": "calorie",
    "kJ": "kilojoule", "Pa": "pascal", "kPa": "kilopascal", "s": "second",
    "sec": "second", "secs": "second", "ms": "millisecond", "µs": "microsecond", "ns": "nanosecond",
    "min": "minute", "mins": "minute", "min.": "minute", "h": "hour", "hr": "hour", "hrs": "hour", "hr.": "hour",
    "hrs.": "hour", "yr": "year", "yrs": "year", "mo": "month", "mos": "month", "wk": "week", "wks": "week",
    "px": "pixel", "MP": "megapixel", "ha": "hectare", "°": "degree", "fps": "frame per second",
    "rpm": "revolution per minute", "bpm": "beat per minute", "mph": "mile per hour", "kph": "kilometer per hour",
    "km/h": "kilometer per hour", "kmh": "kilometer per hour", "sq ft": "square foot", "sq. ft.": "square foot",
    "sq km": "square kilometer", "sq mi": "square mile", "sq m": "square meter", "cu ft": "cubic foot",
    "mol": "mole", "psi": "P S I", "ppm": "part per million", "ft": "foot", "ft.": "foot",
    "°C": "degree Celsius", "°F": "degree Fahrenheit", "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz",
    "GHz": "gigahertz", "THz": "terahertz", "dpi": "D P I", "ohm": "ohm", "Ω": "ohm", "kΩ": "kiloohm",
}  # fmt: skip
LARGE = {"M": "million", "bn": "billion", "mn": "million"}
FIRST_WORD = words("degree mile kilometer kilobit megabit gigabit frame revolution beat part")
UNCHANGED = ("hertz", "P S I", "D P I")
POWERS = {"²": "square", "³": "cubic", "^2": "square", "^3": "cubic"}


def several(unit: str) -> str:
    """Square feet, degrees Celsius, inches."""
    if unit.endswith(UNCHANGED):
        return unit
    if unit.endswith("foot"):
        return f"{unit[:-4]}feet"
    first, space, rest = unit.partition(" ")
    if first in FIRST_WORD:
        return f"{first}s{space}{rest}"
    return f"{unit}es" if unit.endswith("inch") else f"{unit}s"


def measure(match: Match) -> str:
    """5 km, 20°C, 16GB, 5-10 kg, 5 m², 9.8 m/s²; a five kilometer run."""
    unit, power = UNITS[match["unit"]], POWERS.get(match["power"] or "", "")
    if power:
        unit = f"{power} {unit}"
    to = f" to {said(match['until'])}" if match["until"] else ""
    one = (is_one(match["number"]) and not to) or attributive(match) or match["hyphen"]
    if match["per"] and match["per"] not in PER:
        return match[0]
    squared = f" {POWERS[match['per_power']]}d".replace("cubicd", "cubed") if match["per_power"] else ""
    minus = "minus " if match["minus"] else ""
    stop = "." if match["unit"].endswith(".") and re.match(r"\s*$|\s+[A-Z]", after(match)) else ""
    return f"{minus}{decimal(match['number'])}{to} {unit if one else several(unit)}{per(match)}{squared}{stop}"


def large(match: Match) -> str:
    """5M users, 2bn."""
    return f"{decimal(match['number'])} {LARGE[match['scale']]}"


def feet_inches(match: Match) -> str:
    feet, inches = whole(match[1]), match[2]
    return f"{feet} foot {decimal(inches)}" if inches else f"{feet} feet"


def inches(match: Match) -> str:
    """Where the quotes do not pair, 27" is a length."""
    if match.string.count('"') % 2 == 0:
        return match[0]
    return f"{decimal(match[1])} inch" + ("" if re.match(r"\s[a-z]", after(match)) else "es")


def hours_minutes(match: Match) -> str:
    hours, minutes = match[1], match[2]
    return f"{whole(hours)} hour{'' if is_one(hours) else 's'} {whole(minutes)} minute{'' if is_one(minutes) else 's'}"


def percent(match: Match) -> str:
    until = f" to {said(match['until'])}" if match["until"] else ""
    minus = "minus " if match["minus"] else ""
    return f"{minus}{decimal(match['number'])}{until} percent"


def times(match: Match) -> str:
    return f"{decimal(match['number'])} times" if not attributive(match) else f"{decimal(match['number'])} X"


def by(match: Match) -> str:
    """1920x1080, 4 x 6."""
    numbers = re.findall(r"[\d.]+", match[0])
    return " by ".join(pairs(each) if each.isdecimal() and len(each) == 4 else decimal(each) for each in numbers)


# ---- ordinals, fractions, ranges ------------------------------------------------------------------------------------


def nth(match: Match) -> str:
    return ordinal(int(match[1].replace(",", "")))


def decade(match: Match) -> str:
    """1990s, the '90s, 80s, the 2000s."""
    digits_ = match["decade"]
    said = year(int(digits_)) if len(digits_) == 4 else cardinal(int(digits_))
    return (match["the"] or "") + plural(said)


def fraction(match: Match) -> str:
    """1/2, 2 3/4; 8/10 as a grade; 17/230."""
    whole_part, above, below = match["whole"], match["above"], match["below"]
    if not whole_part and (above, below) in SAYINGS:
        return SAYINGS[above, below]
    if int(below) in (10, 100) and not whole_part:
        return f"{whole(above)} out of {whole(below)}"
    if int(below) < 2 or int(below) > 99 or (int(below) > 20 and not whole_part):
        return f"{whole(above)} over {whole(below)}"
    part = f"{whole(above)} {part_name(int(below), int(above) == 1)}"
    if not whole_part:
        return part
    return f"{whole(whole_part)} and {f'a {part[4:]}' if int(above) == 1 else part}"


SAYINGS = {
    ("24", "7"): "twenty-four seven",
    ("9", "11"): "nine eleven",
    ("7", "11"): "seven eleven",
    ("50", "50"): "fifty-fifty",
    ("20", "20"): "twenty-twenty",
}


def measured_fraction(match: Match) -> str:
    """1/4 tsp, 2 1/2 kg."""
    unit = UNITS[match["unit"]]
    return f"{fraction(match)} {several(unit) if match['whole'] else unit}"


def part_name(below: int, single: bool) -> str:
    if below == 2:
        return "half" if single else "halves"
    name = "quarter" if below == 4 else ordinal(below)
    return name if single else f"{name}s"


def span(match: Match) -> str:
    """5-10, a score of 3-2, 1990-1995, 2019-20."""
    first, last = match["from"], match["until"]
    if is_year(first) and (is_year(last) or len(last) == 2):
        return f"{year(int(first))} to {year(int(last)) if len(last) == 4 else whole(last)}"
    return f"{decimal(first)} to {decimal(last)}"


def is_year(number_: str) -> bool:
    return re.fullmatch(YEAR, number_) is not None


def ratio(match: Match) -> str:
    return f"{whole(match[1])} to {whole(match[2])}"


def chain(match: Match) -> str:
    """50-50-20: numbers that are neither a range nor a date."""
    return " ".join(whole(each) for each in re.split(r"[-–]", match[0]))


# ---- sums -----------------------------------------------------------------------------------------------------------

SIGNS = {
    "+": "plus", "-": "minus", "−": "minus", "–": "minus", "*": "times", "×": "times", "·": "times",
    "/": "divided by", "÷": "divided by", "=": "equals", "==": "equals", "<": "is less than", ">": "is greater than",
    "<=": "is at most", ">=": "is at least", "≤": "is at most", "≥": "is at least", "≠": "is not equal to",
    "!=": "is not equal to", "≈": "is about", "±": "plus or minus",
}  # fmt: skip


def sign(match: Match) -> str:
    """Behind `is`, less than; else is less than."""
    said = SIGNS[match[0].strip()]
    return f" {said.removeprefix('is ') if word_before(match) == 'is' else said} "


def power(match: Match) -> str:
    """10^6, x²."""
    exponent = match["exponent"].translate(PLAIN)
    if exponent in ("2", "3"):
        return " squared" if exponent == "2" else " cubed"
    return f" to the {'minus ' if exponent[0] == '-' else ''}{ordinal(int(exponent.lstrip('-')))}"


RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
PLAIN = str.maketrans(RAISED, "0123456789-")
N = rf"(?P<minus>{MINUS}){START}(?P<number>{NUMBER})"
UNTIL = rf"(?:{DASH}(?P<until>{NUMBER}))?"
MONEY_SCALE = rf"(?:\s?(?P<scale>{any_of(SCALE)})(?!\w))?"
TO_UNTIL = rf"(?:{DASH}(?:[$€£¥]\s?)?(?P<until>{NUMBER}))?"
FRACTION = r"(?<![\w.,/])(?:(?P<whole>\d{1,3})\s)?(?P<above>\d{1,4})/(?P<below>\d{1,4})"
THE = "(?:the|his|her|their|our|my|your|mid|early|late)"
MEASURED = (
    rule(
        rf"(?P<minus>{MINUS})(?P<money>{any_of(MONEY)}|\b{any_of(CODES)})\s?(?P<number>{NUMBER})"
        rf"{TO_UNTIL}{MONEY_SCALE}{PER_PATTERN}",
        amount,
    ),
    rule(rf"{N}{UNTIL}{MONEY_SCALE}\s?(?P<money>{any_of(MONEY)}|{any_of(CODES)}\b)(?!\d){PER_PATTERN}", amount),
    rule(rf"{N}\s?¢", cents),
    rule(rf"{N}(?:\s?%)?{UNTIL}\s?%", percent),
    rule(r"(?<![\w.'])(\d{1,2})['′]\s?(\d{1,2}(?:\.5)?)(?:[\"″]|'')", feet_inches),
    rule(r"(?<![\w.'])(\d{1,2})\s?(?:ft\b\.?|feet|foot)\s?(\d{1,2})\s?(?:inches|in\b\.?)", feet_inches),
    rule(r"(?<![\w.'])(\d{1,2})[\"″](?!\w)", inches),
    rule(r"(?<![\w.'])(\d{1,3})()(?:'|′)(?=\s(?:tall|long|wide|deep|high|by)\b)", feet_inches),
    rule(r"(?<![\w.])(\d{1,2})\s?h\s?(\d{1,2})(?:\s?m(?:in)?)?(?!\w)", hours_minutes),
    rule(
        rf"{START}(?<!')(?P<the>\b{THE}[\s-])?'?(?P<decade>1\d\d0|20\d0)'?s(?!\w)",
        decade,
    ),
    rule(r"(?P<the>)(?<!\w)'(?P<decade>[1-9]0)s(?!\w)", decade),
    rule(
        rf"\b(?P<the>{THE}[\s-])'?(?P<decade>[2-9]0)'?s(?!\w)",
        decade,
        ignore_case=True,
    ),
    rule(
        r"(?P<the>)(?<![\w.,])(?P<decade>[2-9]0)s(?=\s(?:music|style|movies?|fashion|kids?|shows?|hits|songs?|rock|pop)\b)",
        decade,
    ),
    rule(r"(?<![\w.,])(\d{1,3}(?:,\d{3}){1,3}|\d{1,12})(?:st|nd|rd|th)(?!\w)", nth, ignore_case=True),
    rule(rf"{FRACTION}\s?(?P<unit>{any_of(UNITS)})(?![\w/°])", measured_fraction),
    rule(
        rf"{N}{UNTIL}(?P<hyphen>\s?-)?\s?(?P<unit>{any_of(UNITS)})"
        r"(?P<power>[²³]|\^[23])?(?:\s?/\s?(?P<per>[A-Za-z]{1,5})(?P<per_power>[²³])?)?(?![\w°])",
        measure,
    ),
    rule(rf"{N}(?P<scale>M|bn|mn)(?!\w)", large),
    rule(rf"{START}\d{{1,5}}(?:\.\d{{1,3}})?(?:\s?[x×]\s?\d{{1,5}}(?:\.\d{{1,3}})?){{1,2}}(?!\w|\s?=)", by),
    rule(rf"{N}\s?[x×](?![\w×])", times),
    rule(rf"{FRACTION}(?![\w/]|[.,]\d)", fraction),
    rule(rf"{START}(?<!-)(?P<from>{NUMBER}){DASH}(?P<until>{NUMBER})(?![\w=-]|\s?[=+*×÷])", span),
    rule(r"(?<![\w.,:])(\d{1,3}):(\d{1,3})(?![\w:]|\.\d)", ratio),
    rule(r"(?<![\w.,-])\d{1,4}(?:[-–]\d{1,4}){2,6}(?![\w-])", chain),
    rule(rf"(?<=[\w)])(?P<exponent>[{RAISED}]{{1,3}})", power),
    rule(r"(?<=\w)\^(?P<exponent>-?\d{1,3})(?!\w)", power),
    rule(r"(?<=[\d)])\s?([+*×·÷=−-]|==)\s?(?=[\d(])|(?<=[\d)])\s/\s(?=[\d(])", sign),
    rule(r"(?<=\d)/(?=\d)", " slash "),
    rule(rf"(?<=[\w)])\s?({any_of(each for each in SIGNS if each not in '-–/*')})\s?(?=[\w(-])", sign),
    rule(r"(?<=\b[a-zA-Z\d])\s([-−*/])\s(?=[a-zA-Z\d]\b|\d)", sign),
)
BARE = (
    rule(rf"(?P<minus>{MINUS})(?<!\d)(?P<number>{NUMBER})", number),
    rule(r"\d+", lambda match: digits(match[0])),
)
