"""Cuts a text that is still being written into pieces that can be spoken. It does not know who writes or who speaks.

A piece is a sentence, given out as soon as what follows shows that it is one. Decisions read the text from left to
right and look ahead by a bounded number of characters, so the pieces depend on the text only, never on how it came in.
The rules are those of common sentence segmenters, after Kiss and Strunk, "Unsupervised Multilingual Sentence Boundary
Detection" (2006), section 4.2: abbreviations, ordinals and initials first; no statistics, since one reply has none.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

MAX_CHARS = 300
LOOKAHEAD = 24
"""Characters beyond the longest piece that may be looked at: white space, a quote and the next word."""
MIN_CHARS = 2 * LOOKAHEAD
"""A smaller limit on pieces leaves no room for a word."""

WIDE_ENDS = "。！？｡"
"""These end a sentence without a space behind them."""
ENDS = ".!?…।؟۔‼⁇⁈⁉" + WIDE_ENDS
CLOSERS = "\"'”’»)]}」』）】〕》*_`"
WIDE_CLAUSES = "、，；：､"
CLAUSES = ",;:–—،؛" + WIDE_CLAUSES
MARK = re.compile(
    rf"(?P<end>[{re.escape(ENDS)}]+[{re.escape(CLOSERS)}]*)|(?P<clause>[{re.escape(CLAUSES)}])|(?P<line>\n)"
)
WORD = re.compile(r"[^\W\d_]+(?:\.[^\W\d_]+)*$")
"""The word before a full stop, with the full stops inside it: U.S, e.g."""
FENCE = re.compile(r"(?P<fence>`{3,}|^~{3,})(?P<info>[^`\n]*)\n", re.MULTILINE)
"""Opens a block of code (CommonMark, section 4.5), also one of backticks behind words."""
NEXT_WORD = re.compile(r"[^\W\d_]*")
LIST_MARK = re.compile(r"\s*\(?\d{1,3}\.$")
ORDINAL = re.compile(
    r"\b(?<!\bI )(?:am|im|vom|zum|beim|der|die|das|den|dem|des|eine?|einen|ab|bis|seit|vor|nach|und|jede[rn])"
    r"\s+\d{1,3}\.$",
    re.IGNORECASE,
)
"""German: `am 3. Mai`, `der 2. Versuch`; not English: `I am 5.`"""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEVER = words(
    "mr mrs ms mx dr prof rev hon gen col capt lt sgt gov sen rep st mt mme mlle sr sra dott e.g i.e cf vs viz approx "
    "dept hr fr bzw ca evtl ggf inkl vgl sog geb z d bspw z.b d.h u.a o.ä i.d.r zzgl m.e s.o s.u"
)
"""Abbreviations that are always followed by the rest of their sentence."""
BEFORE_NUMBER = words(
    "no nos nr fig figs eq sec vol ch art abs p pp pg s str jan feb mar apr jun jul aug sep sept oct nov dec ver op est"
)
"""Abbreviations where a number follows, and words where none does: No. 5, but No. I will not."""
MAYBE = words("etc usw jr inc ltd corp co bros a.m p.m al ave blvd rd u.s.w uvm")
"""Abbreviations that may end a sentence: they do where the next word has a capital."""
STARTERS = words(
    "he she it we they you i the a an this that these those there here then but and so or if in on at as when while "
    "what who why how where which however yes no not now my your our his her its their let please do does did is are "
    "was were can could will would should after before because although with for from to"
)
"""What begins a sentence after an initial (`the U.S. He left`); a name (`the U.S. Army`) does not."""


def speakable(piece: str) -> bool:
    """Whether there is anything to say: a letter or a digit. Punctuation, dashes and emoji alone are not spoken."""
    return any(char.isalnum() for char in piece)


@dataclass(frozen=True, slots=True)
class Window:
    """The beginning of what is not cut yet; it starts with no white space."""

    text: str
    ended: bool
    """Nothing follows: the text ends here."""

    def undecided(self, at: int) -> bool:
        """Whether what follows would have to be known: `at` is where the known text ends."""
        return at >= len(self.text) and not self.ended

    def skip_space(self, at: int) -> int:
        while at < len(self.text) and self.text[at].isspace():
            at += 1
        return at

    def is_space(self, at: int) -> bool:
        """Also the end of the text."""
        return at >= len(self.text) or self.text[at].isspace()


class Sentences:
    """Takes a text in parts, gives out whole sentences.

    No piece is longer than `max_chars`: a longer sentence is cut at its last clause, else at a space, else anywhere
    between two characters as a reader sees them. With `early_chars` the first piece may end at the first clause that
    has so many characters, so that speech starts sooner. The pieces, joined, are the text but for white space; those
    that are not `speakable` are given out too, so that nothing is lost. Raises ValueError for limits below MIN_CHARS.

    A block of code is one piece, with its lines, so that whoever reads it out can tell that it is one; what does not
    fit of it is left out.
    """

    def __init__(self, max_chars: int = MAX_CHARS, early_chars: int | None = None) -> None:
        if max_chars < MIN_CHARS:
            raise ValueError(f"max_chars must be at least {MIN_CHARS}, got {max_chars}")
        if early_chars is not None and early_chars < 1:
            raise ValueError(f"early_chars must be at least 1, or None, got {early_chars}")
        self._max_chars, self._early_chars, self._rest = max_chars, early_chars, ""

    def push(self, delta: str) -> list[str]:
        """The sentences that `delta` completes."""
        self._rest += delta
        return self._cut(final=False)

    def end(self) -> list[str]:
        """What is left, when the text has ended. A new text may follow."""
        return self._cut(final=True)

    def _cut(self, final: bool) -> list[str]:
        pieces = list[str]()
        while (end := self._piece_end(final)) is not None:
            text, self._rest = self._rest[:end], self._rest[end:]
            piece = shortened(text, self._max_chars) if FENCE.match(text) else " ".join(text.split())
            pieces.append(piece)
            if speakable(piece):
                self._early_chars = None
        return pieces

    def _piece_end(self, final: bool) -> int | None:
        """Where the next piece ends; None where more has to be known, or nothing is left."""
        self._rest = self._rest.lstrip()
        opened = FENCE.search(self._rest)
        if opened and not opened.start():
            return block_end(self._rest, opened, final)
        size = self._max_chars + LOOKAHEAD
        known = opened.start() if opened else len(self._rest)
        window = Window(self._rest[: min(size, known)], ended=(final or opened is not None) and known <= size)
        if not window.text:
            return None
        whole = window.ended or known >= size
        return piece_end(window, whole, self._max_chars, self._early_chars)


def block_end(text: str, opened: re.Match[str], final: bool) -> int | None:
    """Behind the fence that closes the block which the text begins with; None where it is still being written. One that
    is never closed is code if it says of which language, else the fence is no more than ornament."""
    mark = opened["fence"]
    closing = re.compile(rf"^ {{0,3}}{re.escape(mark)}{re.escape(mark[0])}*[ \t]*(?:\n|\Z)", re.MULTILINE)
    closed = closing.search(text, opened.end())
    whole = closed is not None and (final or closed[0].endswith("\n"))
    if closed is not None and whole:
        return closed.end()
    if not final:
        return None
    return len(text) if opened["info"].strip() else opened.end()


def shortened(block: str, max_chars: int) -> str:
    """A block of code, with as much of it between its fences as fits."""
    opening, *lines = block.strip().splitlines()
    fence = opening[:3]
    inside = "\n".join(lines[:-1] if lines and lines[-1].lstrip().startswith(fence) else lines)
    return f"{fence}\n{inside[: max_chars - 2 * len(fence) - 2]}\n{fence}"


def piece_end(window: Window, whole: bool, max_chars: int, early_chars: int | None) -> int | None:
    """Where the window's first piece ends; None where that cannot be known yet, which a `whole` window always tells."""
    for mark in MARK.finditer(window.text):
        if mark.end() > max_chars:
            break
        ends = boundary(window, mark, early_chars)
        if ends is None and not whole:
            return None
        if ends:
            return mark.end()
    if not whole:
        return None
    return len(window.text) if window.ended and len(window.text) <= max_chars else long_end(window.text, max_chars)


def boundary(window: Window, mark: re.Match[str], early_chars: int | None) -> bool | None:
    """Whether a piece ends behind this mark; None where what follows would have to be known."""
    if mark["clause"]:
        return early_chars is not None and early_end(window, mark, early_chars)
    if mark["line"]:
        return line_end(window, mark.end())
    if window.undecided(mark.end()):
        return None
    return sentence_end(window, mark)


def early_end(window: Window, mark: re.Match[str], early_chars: int) -> bool | None:
    """A clause that is long enough; `1,000` and `12:30` are none."""
    if mark.end() < early_chars:
        return False
    if mark[0] in WIDE_CLAUSES:
        return True
    return None if window.undecided(mark.end()) else window.is_space(mark.end())


def line_end(window: Window, at: int) -> bool | None:
    """A blank line, or a next line that does not begin in the middle of a sentence."""
    follows = window.skip_space(at)
    if "\n" in window.text[at:follows]:
        return True
    if window.undecided(follows):
        return None
    return not window.text[follows : follows + 1].islower()


def sentence_end(window: Window, mark: re.Match[str]) -> bool | None:
    """Whether a run of end marks, with the quotes and brackets behind it, ends a sentence."""
    ends = mark[0].rstrip(CLOSERS)
    quoted = len(ends) < len(mark[0])
    if ends[-1] in WIDE_ENDS:
        return not (quoted and window.text[mark.end() : mark.end() + 1] in tuple("とっ"))  # 「行こう。」と言った
    if not window.is_space(mark.end()):
        return False  # 3.14, example.com, U.S
    if quoted or ends in ("…", "...") or (len(ends) > 1 and ends.strip(".…") == ""):
        return begins_anew(window, mark.end())  # "Stop!" he said. Well... maybe
    return full_stop(window, mark.start(), mark.end()) if ends == "." else True


def begins_anew(window: Window, at: int) -> bool | None:
    """Whether what follows is not the rest of a sentence."""
    follows = window.skip_space(at)
    if window.undecided(follows):
        return None
    return not window.text[follows : follows + 1].islower()


def full_stop(window: Window, start: int, end: int) -> bool | None:
    """Whether a single full stop with a space behind it ends a sentence: not after an abbreviation or an ordinal."""
    before = window.text[max(0, start - LOOKAHEAD) : start]
    if before[-1:].isdigit():
        return not (LIST_MARK.fullmatch(window.text[:end]) or ORDINAL.search(before + "."))
    word = WORD.search(before)
    if word is None:
        return True
    return after_word(window, word[0], end)


def after_word(window: Window, word: str, at: int) -> bool | None:
    """Whether a sentence ends with this word and a full stop."""
    lower = word.lower()
    if lower in NEVER:
        return False
    if lower in BEFORE_NUMBER and (number := number_follows(window, at)) is not False:
        return None if number is None else False
    if lower in MAYBE:
        return begins_anew(window, at)
    if is_initial(word):
        return starts_sentence(window, at)
    return True


def number_follows(window: Window, at: int) -> bool | None:
    follows = window.skip_space(at)
    return None if window.undecided(follows) else window.text[follows : follows + 1].isdigit()


def is_initial(word: str) -> bool:
    """J. or U.S., and not the word I."""
    return word != "I" and all(len(part) == 1 for part in word.split("."))


def starts_sentence(window: Window, at: int) -> bool | None:
    """Whether the next word is a usual first one, with a capital; only then does an initial end a sentence."""
    follows = window.skip_space(at)
    word = NEXT_WORD.match(window.text, follows)
    assert word is not None, "it also matches nothing"
    if window.undecided(word.end()):
        return None
    return word[0][:1].isupper() and word[0].lower() in STARTERS


def long_end(text: str, max_chars: int) -> int:
    """Where to cut a sentence that is too long: its last clause beyond a third, else a space, else a letter."""
    clauses = [m.end() for m in MARK.finditer(text) if m["clause"] and max_chars // 3 < m.end() <= max_chars]
    clauses = [end for end in clauses if text[end - 1] in WIDE_CLAUSES or text[end : end + 1].isspace()]
    if clauses:
        return clauses[-1]
    spaces = [at for at in range(1, max_chars + 1) if text[at].isspace()]
    return spaces[-1] if spaces else letter_end(text, max_chars)


def letter_end(text: str, at: int) -> int:
    """The last place up to `at` that does not take an accent, or a joined emoji, from its letter."""
    for end in range(at, max(at - LOOKAHEAD, 1), -1):
        if not (is_joined(text[end]) or text[end - 1] == "\u200d"):
            return end
    return at


def is_joined(char: str) -> bool:
    """Combining marks, variation selectors, skin tones and the zero-width joiner."""
    return unicodedata.category(char) in ("Mn", "Mc", "Me") or char == "\u200d" or 0x1F3FB <= ord(char) <= 0x1F3FF
