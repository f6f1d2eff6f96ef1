"""Reads what machines go by: URLs, e-mail, files, versions, IP addresses, phone and other numbers that are no quantity.

It knows no sentence, and does not look anything up.
"""

from __future__ import annotations

import re

from engine.english.letters import spelled
from engine.english.numerals import cardinal, digits, pairs, whole
from engine.english.rule import Match, any_of, rule, word_before, words

EXTENSIONS = {
    **{name: spelled(name) for name in words("pdf html htm css js ts jsx tsx py rs md csv xml svg png mp3 mp4 exe")},
    **{name: spelled(name) for name in words("sh sql db doc docx xls xlsx ppt pptx rtf jpg gz cpp hpp yml ini dll")},
    "json": "jason",
    "jpeg": "J peg",
    "txt": "text",
    "wav": "wave",
    **{name: name for name in words("yaml toml zip tar gif bin log lock cfg conf java swift")},
}
DOMAINS = {
    **{name: name for name in words("com co net org info biz dev app gov edu tech shop blog cloud online xyz mil me")},
    **{name: spelled(name) for name in words("io ai uk us de fr eu ca au nl ch at jp cn in it es se tv fm gg")},
}
MARKS = {".": "dot", "/": "slash", "-": "dash", "_": "underscore", "+": "plus", "~": "tilde", "@": "at", ":": "colon"}
PARTS = re.compile(r"\d+|[^\W\d_]+|\W|_")
HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
MOST_PATH = 40
"""Characters of a URL's path that a listener can follow; what goes on for longer is not read."""
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62})"
HOST = rf"{NAME}(?:\.{NAME}){{0,5}}\.(?P<top>[A-Za-z]{{2,18}})"
PATH = r"(?P<path>/[^\s?#<>\"]*(?<![.,;:!?)\]'\"]))?(?:[?#][^\s<>\"]*(?<![.,;:!?)\]'\"]))?"
"""The end of a sentence or a clause is no part of it."""


def parts(address: str) -> str:
    """Every word, number and mark of it: bob dot smith at example dot com."""
    return " ".join(part(piece) for piece in PARTS.findall(address) if piece.isalnum() or piece in MARKS)


def part(piece: str) -> str:
    if piece.isdecimal():
        return pairs(piece) if len(piece) in (3, 4) else whole(piece)
    if piece in MARKS:
        return MARKS[piece]
    return HUMP.sub(" ", piece)


def host(name: str) -> str:
    """Example dot com: without www, the last parts as they are called."""
    *labels, top = name.lower().split(".")
    labels = labels[1:] if labels[0] == "www" and len(labels) > 1 else labels
    called = [parts(label) for label in labels]
    return " dot ".join([*called, DOMAINS.get(top, top)])


def url(match: Match) -> str:
    """Host and the path's beginning: nobody says `https colon slash slash`, nor follows a query."""
    path = "".join(f"/{step}" for step in readable(match["path"] or ""))
    port = f" port {parts(match['port'])}" if match["port"] else ""
    where = host(match["host"]) if "." in match["host"] else parts(match["host"])
    return f"{where}{port} {parts(path)}".rstrip()


def readable(path: str) -> list[str]:
    """The steps of the path that fit in MOST_PATH."""
    steps, left = [], MOST_PATH
    for step in filter(None, path.split("/")):
        left -= len(step)
        if left < 0:
            break
        steps.append(step)
    return steps


def mail(match: Match) -> str:
    return f"{parts(match['who'])} at {host(match['host'])}"


def file(match: Match) -> str:
    return f"{parts(match['name'])} dot {EXTENSIONS[match['extension'].lower()]}".strip()


def path(match: Match) -> str:
    return f" {parts(match[0])}"


def version(match: Match) -> str:
    word = "" if word_before(match) in ("version", "release") or not match["v"] else "version "
    return word + " point ".join(whole(number) for number in match["number"].split("."))


def ip(match: Match) -> str:
    groups, _, port = match[0].partition(":")
    said = " dot ".join(pairs(group) for group in groups.split("."))
    return f"{said}, port {pairs(port)}" if port else said


def phone(match: Match) -> str:
    """Digit by digit, a pause between groups; hundreds are read as such: one eight hundred."""
    groups = re.findall(r"\d+", match[0])
    said = [cardinal(int(group)) if group in ("800", "900") else digits(group) for group in groups]
    plus = "plus " if match[0].startswith("+") else ""
    toll_free = groups[0] == "1" and len(groups) > 1 and groups[1] in ("800", "900")
    return plus + ("one " + ", ".join(said[1:]) if toll_free else ", ".join(said))


def toll_free(match: Match) -> str:
    """1-800-FLOWERS."""
    return f"one {cardinal(int(match[1]))} "


def local_phone(match: Match) -> str:
    """555-0199, but not the range 100-2000."""
    return match[0] if match[0].endswith("00") and match[1].endswith("00") else phone(match)


def dialled(match: Match) -> str:
    return f"{match[1]}{digits(match[2])}"


def paired(match: Match) -> str:
    """Room 204, flight 2490, Boeing 747."""
    return f"{match[1].replace('#', 'number ')}{pairs(match[2]) if len(match[2]) < 5 else digits(match[2])}"


def by_digit(match: Match) -> str:
    """Order 12345: a number that is looked up. Two digits are a number still."""
    number = match["number"]
    return match["what"] + ("number " if match["hash"] else "") + (digits(number) if len(number) > 2 else whole(number))


def coded(match: Match) -> str:
    """#A1234: letters and digits one by one."""
    return " ".join(
        spelled(piece) if piece.isalpha() else digits(piece)
        for piece in PARTS.findall(match["code"])
        if piece.isalnum()
    )


def hashed(match: Match) -> str:
    return f"number {digits(match[1]) if len(match[1]) > 4 else whole(match[1])}"


def tagged(match: Match) -> str:
    return f"hashtag {HUMP.sub(' ', match[1]).replace('_', ' ')}"


def handle(match: Match) -> str:
    return f"at {parts(match[1])}"


PAIRED = words(
    "room suite apartment apt flight route highway interstate bus train gate boeing airbus rfc error http status"
)
CARRIER = r"(?!US|UK|EU|UN|AM|PM|AD|BC|CE|AI|IT|TV|PC|OK|NO|IN|OF|TO|IS|AT|BY)[A-Z]{2}"
"""An airline's two letters."""
LOOKED_UP = words(
    "order ticket case invoice tracking confirmation code pin zip account id reference booking extension ext "
    "passcode reservation serial membership claim"
)
COUNTED = r"\s(?!(?:is|was|has|had|will|and|or|for|to|on|in|from|at|with|that|which|shipped|arrived|please)\b)[a-z]{2}"
"""After a quantity: order 100 boxes, not order 12345 is here."""
FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}(?:\.[A-Za-z0-9_-]{1,30}){0,3}"
WORDED = (
    rule(rf"\b(?P<who>[A-Za-z0-9][A-Za-z0-9._%+-]{{0,63}})@(?P<host>{HOST})\b", mail),
    rule(
        rf"(?<!\w)(?:(?:https?|ftp|wss?)://|(?=www\.))(?P<host>{HOST}|localhost|\d{{1,3}}(?:\.\d{{1,3}}){{3}})"
        rf"(?::(?P<port>\d{{1,5}}))?{PATH}/?",
        url,
        ignore_case=True,
    ),
    rule(r"\bhttps?://(?=[A-Za-z0-9])", "", ignore_case=True),
    rule(
        rf"(?<![\w.@/-])(?P<host>{NAME}(?:\.{NAME}){{0,3}}\.{any_of(DOMAINS)})(?::(?P<port>\d{{2,5}}))?"
        rf"{PATH}(?![\w@]|[.-]\w)",
        url,
    ),
    rule(
        rf"(?<![\w./-])(?P<name>{FILE_NAME}|)\.(?P<extension>{any_of(EXTENSIONS)})(?![\w-]|\.\w)",
        file,
        ignore_case=True,
    ),
    rule(r"(?<![\w/.<])(?:~|\.{1,2})?(?:/[A-Za-z_.][\w.-]{0,40}){2,12}/?(?<!\.)", path),
)
NUMBERED = (
    rule(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{2,5})?(?![\w.]*\d)", ip),
    rule(r"(?<![\w.])(?P<v>[vV])?\.?(?P<number>\d{1,5}(?:\.\d{1,5}){2,3})(?![\w.]*\d)", version),
    rule(r"\b(?P<v>[vV])(?P<number>\d{1,5}(?:\.\d{1,5}){0,3})(?!\w)", version),
    rule(r"(?<![\w+])\+\d{1,3}(?:[\s.-]?\(?\d{1,4}\)?){2,5}(?!\w)", phone),
    rule(r"(?<![\w-])(?:1[-.\s])?(?:\(\d{3}\)\s?|\d{3}[-.\s])\d{3}[-.\s]\d{4}(?![\w-])", phone),
    rule(r"\b1-(8\d\d|900)-(?=[A-Z])", toll_free),
    rule(r"\b([A-Z]{2}\s)(\d{5})(?![\w-]|[.,]\d)", dialled),
    rule(r"(?<![\w.,-])(\d{3})-\d{4}(?![\w-]|[.,]\d)", local_phone),
    rule(
        r"\b((?:call|dial|text|called|dialed)\s)(\d{3,6})(?![\w.,:%-]*\d)(?!\s(?:people|times|of|customers))",
        dialled,
        ignore_case=True,
    ),
    rule(r"(?<![\w.,$-])()(911|411)(?![\w-]|[.,]\d)", dialled),
    rule(
        rf"\b((?i:{any_of(PAIRED)})\s(?:number\s|no\.\s|#\s?)?|\b{CARRIER}\s(?=\d{{3,4}}\b))(\d{{3,5}})(?![\w,.]*\d)",
        paired,
    ),
    rule(
        rf"\b(?P<what>(?:{any_of(LOOKED_UP)}|ending\sin|ending\swith)(?:\s(?:number|code|no\.))?\s?(?:is\s|:\s?)?)"
        rf"(?P<hash>#\s?)?(?P<number>\d{{2,15}})(?![\w,.:/-]*\d|{COUNTED})",
        by_digit,
        ignore_case=True,
    ),
    rule(r"#\s?(?P<code>[A-Z]{1,4}-?\d{1,12}(?:-\d{1,6})?)\b", coded),
    rule(r"#\s?(\d{1,15})\b", hashed),
    rule(r"(?<![\w&])#([A-Za-z]\w{0,40})", tagged),
    rule(r"(?<![\w@])@([A-Za-z]\w{0,30})", handle),
)
