"""What words alone tell of a turn: whether it is only a listener's "mhm", and whether a sentence is complete.

It does not know who has heard the words, nor what follows from them. The tables are small and meant to be: they hold
what is said again and again, in a few languages.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

BACKCHANNELS = """
mhm, mm, hm, uh huh, ah huh, uh, um, ah, oh, aha, eh, huh, yeah, yep, yup, yes, ok, okay, right, all right, alright,
sure, i see, got it, true, exactly, indeed, of course, wow, cool, nice, great, good, fine, really,
ja, jaja, jo, genau, stimmt, klar, ach, ach so, achso, soso, gut, verstehe, alles klar, richtig,
oui, ouais, d'accord, ah bon, bon, bien, voilà, exactement, je vois,
sí, ajá, vale, claro, ya, bueno, bien, entiendo,
sì, già, certo, va bene, capito, esatto, sim, tá, certo, isso,
oké, precies, klopt, da, tak, dobrze, evet, tamam,
はい, うん, ええ, へえ, ああ, そう, そうですね, そうですか, なるほど,
嗯, 哦, 对, 好, 好的, 是, 是的, 네, 응, 어, 그래, 그렇군요
"""
"""What a listener says who wants the other to go on. "No", "what" and "but" are none of it."""
MAX_WORDS = 3
"""Of one backchannel."""
NOISE = re.compile(r"\[[^\]]*\]|\([^)]*\)|\*[^*]*\*")
"""What transcribers write of what is no speech: [BLANK_AUDIO], (coughs), *laughs*."""

OPEN = """
and or but because if when while although whose the a my your our their its than um uh uhm er erm hmm i'm
und oder aber weil wenn dass als ob eine einen meine ähm äh öh
et ou parce que quand le les un une mon ma mes euh y o pero porque cuando los las una eh
"""
"""After these a sentence goes on, whatever mark a transcriber has put there."""
LINKS = """
to of for from with at by in on into about between without so that which who like as an is are was were am i
zu von für aus mit bei nach über zwischen ohne der die das dem den ein mein denn
de du à pour avec dans sur sans mais si la del al para con en por sin el mi este
"""
"""After these it does without a mark. With one nobody can tell: "I think so." is whole, "a ticket to." is not."""
MARKS = ".!?。！？"
PENDING = (",", ";", ":", "-", "–", "—", "...", "…", "、", "，")
"""A transcriber that writes one of these at the end has heard that there is more."""
OVER, NOT_OVER = 0.9, 0.1
"""How likely a turn is over: words are no proof."""


def plain(text: str) -> tuple[str, ...]:
    """The words without marks, accents, capitals and drawn-out letters, so that "Mm-hmm, yeahh!" is found."""
    letters = unicodedata.normalize("NFKD", NOISE.sub(" ", text)).casefold()
    letters = "".join(char for char in letters if not unicodedata.combining(char) and char not in "'’")
    letters = re.sub(r"(\w)\1+", r"\1", letters)
    return tuple(re.findall(r"\w+", letters))


class Backchannels:
    """What is said only to show that one listens: the table, and what an application adds, as words or short phrases.

    Raises ValueError for a phrase of no words, or of more than MAX_WORDS.
    """

    def __init__(self, more: Iterable[str] = ()) -> None:
        added = list(more)
        self._phrases = {plain(phrase) for phrase in [*BACKCHANNELS.split(","), *added]}
        if wrong := [phrase for phrase in added if not 0 < len(plain(phrase)) <= MAX_WORDS]:
            raise ValueError(f"a backchannel has one to {MAX_WORDS} words, got {wrong[0]!r:.80}")

    def cover(self, text: str) -> bool:
        """Whether the text is nothing else, or nothing at all."""
        words = plain(text)
        while words:
            sizes = range(min(MAX_WORDS, len(words)), 0, -1)
            size = next((size for size in sizes if words[:size] in self._phrases), 0)
            if size == 0:
                return False
            words = words[size:]
        return True


def completeness(text: str) -> float | None:
    """How likely a turn of these words is over, 0 to 1; None where they do not tell.

    They do where the transcriber writes marks, as Whisper does, and where the last word wants another one.
    """
    text = NOISE.sub(" ", text).strip().rstrip("\"'”’»)")
    words = text.casefold().replace("’", "'").rstrip("".join(PENDING) + MARKS).split()
    if not words:
        return None
    if text.endswith(PENDING) or (words[-1] in OPEN.split() and not text.endswith(("?", "？"))):
        return NOT_OVER
    if words[-1] in LINKS.split() and not text.endswith(("?", "？")):
        return None if text[-1] in MARKS else NOT_OVER
    return OVER if text[-1] in MARKS else None
