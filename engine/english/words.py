"""Reads what stands for words: abbreviations, symbols, arrows, quotes, and puts the punctuation in order.

It knows no numbers; they are words by the time symbols are read.
"""

from __future__ import annotations

import re
import unicodedata

from engine.english.rule import Match, after, any_of, ends_sentence, rule, words

# ---- characters -----------------------------------------------------------------------------------------------------

FRACTIONS = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5",
    "⅙": "1/6", "⅚": "5/6", "⅐": "1/7", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8", "⅑": "1/9", "⅒": "1/10",
}  # fmt: skip
SAME = {
    **dict.fromkeys("‘’‛ʼ`´", "'"),
    **dict.fromkeys("“”„‟«»", '"'),
    **dict.fromkeys("‐‑‒−", "-"),
    **dict.fromkeys("―", "—"),
    "…": "...",
    "⁄": "/",
    **dict.fromkeys("™®℠", ""),
}
KEPT = frozenset("⁰¹²³⁴⁵⁶⁷⁸⁹⁻µΩ")
"""Read as they are: NFKC would make 52 of 5²."""
CHARACTERS = str.maketrans(SAME)
FRACTION = re.compile(rf"(\d?)\s?([{''.join(FRACTIONS)}])")


def cleaned(text: str) -> str:
    """Compatibility forms, quotes, dashes and fractions as their plain ones; nothing that is not seen."""
    if text.isascii() and text.isprintable():
        return " ".join(text.translate(CHARACTERS).split())
    text = FRACTION.sub(lambda match: f"{match[1]}{' ' if match[1] else ''}{FRACTIONS[match[2]]} ", text)
    text = "".join(char if char in KEPT or char in SAME else unicodedata.normalize("NFKC", char) for char in text)
    text = "".join(char for char in text.translate(CHARACTERS) if seen(char))
    return " ".join(unicodedata.normalize("NFC", text).split())


def seen(char: str) -> bool:
    """No control characters, zero-width spaces, private or lone surrogate ones; joiners are a part of words."""
    return char in "\n\t\u200c\u200d" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn")


# ---- abbreviations --------------------------------------------------------------------------------------------------

TITLES = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Dr": "Doctor", "Prof": "Professor", "Rev": "Reverend",
    "Hon": "Honorable", "Gen": "General", "Col": "Colonel", "Capt": "Captain", "Lt": "Lieutenant", "Sgt": "Sergeant",
    "Gov": "Governor", "Sen": "Senator", "Rep": "Representative", "Pres": "President", "Messrs": "Messieurs",
    "Mt": "Mount", "Ft": "Fort",
}  # fmt: skip
"""Before a name."""
STREETS = {
    "St": "Street", "Dr": "Drive", "Ave": "Avenue", "Av": "Avenue", "Blvd": "Boulevard", "Rd": "Road", "Ln": "Lane",
    "Ct": "Court", "Pl": "Place", "Sq": "Square", "Hwy": "Highway", "Pkwy": "Parkway",
}  # fmt: skip
"""After a name."""
NUMBERED = {
    "No": "number", "Nos": "numbers", "no": "number", "nos": "numbers", "Fig": "figure", "fig": "figure",
    "Figs": "figures", "p": "page", "pp": "pages", "Vol": "volume", "vol": "volume", "Ch": "chapter", "ch": "chapter",
    "Sec": "section", "sec": "section", "Art": "article", "Eq": "equation", "Apt": "apartment", "Ste": "suite",
    "ca": "about", "c": "about", "ver": "version", "Nr": "number", "tel": "telephone", "Tel": "telephone",
    "ext": "extension", "Ext": "extension", "est": "established", "Est": "established",
}  # fmt: skip
"""Before a number."""
PLAIN = {
    "e.g": "for example", "i.e": "that is", "etc": "et cetera", "vs": "versus", "approx": "approximately",
    "dept": "department", "appt": "appointment", "Inc": "Incorporated", "Ltd": "Limited", "Corp": "Corporation",
    "Co": "Company", "Bros": "Brothers", "Jr": "Junior", "Sr": "Senior", "cf": "compare", "viz": "namely",
    "et al": "and others", "a.k.a": "also known as", "govt": "government", "incl": "including", "Assn": "Association",
    "Univ": "University", "N.B": "note", "op. cit": "in the work cited", "resp": "respectively",
    "misc": "miscellaneous", "avg": "average", "esp": "especially", "P.S": "P S,",
}  # fmt: skip
"""With a full stop."""
BARE = {
    "vs": "versus", "etc": "et cetera", "aka": "also known as", "approx": "approximately", "w/": "with ",
    "w/o": "without", "b/c": "because", "c/o": "care of", "n/a": "not applicable", "N/A": "not applicable",
    "and/or": "and or", "he/she": "he or she", "she/he": "she or he", "his/her": "his or her",
    "him/her": "him or her", "s/he": "she or he", "yes/no": "yes or no", "eg": "for example", "tbh": "to be honest",
    "btw": "by the way", "BTW": "by the way", "IMHO": "in my opinion", "pls": "please", "thx": "thanks",
    "TL;DR": "in short",
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Dr": "Doctor",
}  # fmt: skip
"""Without one."""
LOWER = {name.lower(): said for name, said in PLAIN.items()}
STARTERS = (
    "In|On|The|It|He|She|We|They|I|You|Then|Turn|And|Are|Is|Was|Do|Can|What|Where|When|How|Please|Your|My|There|That|"
    "This|Take|Go|But|So|Our|At|If"
)
"""Begin a sentence after a street."""
NO_NAMES = words("in at the on from to near visit of for by with via and or but is was since when how why")


def title(match: Match) -> str:
    return TITLES[match[1]]


def street(match: Match) -> str:
    """Main St.: after a name. A name follows St. Peter, so a word in lower case or nothing must follow a street."""
    if match["name"].lower() in NO_NAMES:
        return match[0]
    stop = "." if match["stop"] and re.match(r"\s*$|\s+(?!(?:[NS][EW]?|[EW])\b)[A-Z]", after(match)) else ""
    return f"{match['name']} {STREETS[match['kind']]}{stop}"


def numbered(match: Match) -> str:
    return NUMBERED[match[1]]


def plain(match: Match) -> str:
    """Et cetera: a full stop remains where a sentence ends with it."""
    said = PLAIN.get(match[1]) or LOWER[match[1].lower()]
    middle = match[1].lower() in ("e.g", "i.e", "vs", "cf", "viz", "approx", "n.b", "p.s", "incl", "esp")
    return said + ("." if not middle and ends_sentence(match) else "")


def bare(match: Match) -> str:
    return BARE[match[0]]


ABBREVIATIONS = (
    rule(rf"(?<![\w/]){any_of(sorted(BARE))}(?![\w/.]|'\w)", bare),
    rule(r"(?<![\w/])w/(?=\w)", "with "),
    rule(
        rf"\b(?P<name>[A-Z][a-z]{{1,20}}|\d{{1,3}}(?:st|nd|rd|th))\s(?P<kind>{any_of(STREETS)})(?P<stop>\.|(?=,|$|\n))"
        rf"(?!\s(?!(?:{STARTERS})\b)[A-Z][a-z])",
        street,
    ),
    rule(r"\bSt\.?(?=\s[A-Z])", "Saint"),
    rule(rf"\b({any_of(TITLES)})\.(?=\s?[A-Z])", title),
    rule(r"\b(Mrs?|Ms|Dr)\.", title),
    rule(r"\b(Vol|Ch|Sec|Fig|Art)\.(?=\s[IVXL]{1,7}\b)", numbered),
    rule(rf"(?<![\w.])({any_of(NUMBERED)})\.\s?(?=[\d#])", lambda match: numbered(match) + " "),
    rule(rf"(?<![\w.])({any_of(PLAIN)})\.(?!\w)", plain, ignore_case=True),
)

# ---- symbols --------------------------------------------------------------------------------------------------------

SYMBOLS = {
    "&": "and", "@": "at", "%": "percent", "+": "plus", "=": "equals", "<": "less than", ">": "greater than",
    "≤": "at most", "≥": "at least", "≠": "is not equal to", "≈": "about", "±": "plus or minus", "×": "times",
    "÷": "divided by", "√": "square root of", "∞": "infinity", "§": "section", "©": "copyright", "°": "degrees",
    "€": "euros", "£": "pounds", "$": "dollars", "¥": "yen", "¢": "cents", "#": "number", "~": "about", "*": "star",
    "∑": "sum", "∫": "integral", "∂": "partial", "π": "pi", "Ω": "ohm", "µ": "micro",
    "^": "caret", "\\": "backslash", "_": "underscore",
}  # fmt: skip
SILENT = "*_`~^\\#•·●○◦▪▫‣⁃¶†‡"
"""Not read where other words stand: what is left of markup, and bullets."""
FACES = (
    rule(r"(?<=\bI )<3(?!\w)", "love"),
    rule(r"(?:(?<=\w )|(?<=\w[.,!?] ))(?:[:;=][-o']?[DPpOo3]|<3|[xX]D)(?=\s*[.!?]*(?:\s[A-Z]|$))", " "),
    rule(r"(?<![\w:;])(?:[:;=][-o']?[)(\]\[/|*]+|\^_+\^)(?!\w)", " "),
)
"""Drawn with signs; those with a letter or a digit stand behind a word."""


def joined_by_slash(match: Match) -> str:
    """TCP/IP by its letters alone; client/server with the slash."""
    return match["a"] + (" " if match["a"].isupper() and match["b"].isupper() else " slash ")


SYMBOLIC = (
    rule(r"\bC#", "C sharp"),
    rule(r"\bF#", "F sharp"),
    rule(r"\b([A-Za-z])\+\+", lambda match: f"{match[1]} plus plus"),
    rule(r"(?<![<=-])(?:<[-=]{1,2}>|[↔⇔])", " to and from "),
    rule(r"\s?(?:[→⇒⟶➔➜↦]|[-=]{1,3}>)\s?", " to "),
    rule(r"\b(?P<a>[A-Za-z]\w{0,30})/(?=(?P<b>[A-Za-z]\w{0,30}))", joined_by_slash),
    rule(r"\b([A-Z]{1,3})&([A-Z]{1,3})\b", lambda match: f"{' '.join(match[1])} and {' '.join(match[2])}"),
    rule(r"(?<=\w)\s?&{1,2}\s?(?=\w)", " and "),
    rule(r"[$€£¥]{2,}", " "),
    rule(r"(?<=\w)\+(?!\w)", " plus"),
    rule(r"<=", " at most "),
    rule(r">=", " at least "),
    rule(r"!=", " is not equal to "),
    rule(r"={1,3}", " equals "),
    rule(r"(?<=\w)~(?=\w)", " to "),
    rule(r"(?<!\w)([A-D])-(?=[\s.,;!?]|$)", lambda match: f"{match[1]} minus"),
    rule(r"~(?=\s?\w)", "about "),
    rule(rf"[{re.escape(SILENT)}]+", " "),
    rule(any_of(SYMBOLS), lambda match: f" {SYMBOLS[match[0]]} "),
)

# ---- punctuation ----------------------------------------------------------------------------------------------------


def run(match: Match) -> str:
    """The one mark of several that counts: a question, a cry, an ellipsis, a full stop."""
    marks = match[0]
    for mark in "?!":
        if mark in marks:
            return mark
    if "..." in marks:
        return "..."
    return next((mark for mark in ".:;" if mark in marks), ",")


def unknown(match: Match) -> str:
    """A symbol that nobody reads."""
    return match[0] if unicodedata.category(match[0])[0] in "LMNP" and match[0] not in "/|\\" else " "


PUNCTUATION = (
    rule(r"\s?[—–]+\s?|\s-{1,3}\s|-{2,}", ", "),
    rule(r"[(\[{]\s?[)\]}]", " "),
    rule(r"[(\[{|]", ", "),
    rule(r"[)\]}](?=\w)", ", "),
    rule(r"[)\]}]", ","),
    rule(r"[^\w\s.,;:?!'\"-]", unknown),
    rule(r"(?<!\w)-+|-+(?!\w)", " "),
    rule(r"(?<!\w)'(?!\w)", ""),
    rule(r"\s+", " "),
    rule(r"[.,;:?!](?:\s?[.,;:?!])+", run),
    rule(r" (?=[.,;:?!])", ""),
    rule(r"(?<=[,;:?!])(?=[^\W\d_])", " "),
    rule(r"^[\s.,;:?!]+(?=\S)", ""),
    rule(r"[\s,;:-]+$", ""),
)
