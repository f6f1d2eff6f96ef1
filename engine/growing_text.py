"""A text that comes in pieces, as the tokens that no later piece can change any more. It knows no prompt and no voice.

A byte-level BPE parts a text first, by a pattern, and merges within the parts only (Sennrich et al. 2016,
arXiv:1508.07909; Radford et al. 2019). So the tokens of a part are certain once the part is: that is, all parts but the
last one that has come, which in English is the last word, and in languages without spaces what follows the last mark.
Held back with it is whatever it may change: white space before it, of which a text's end is stripped, and a character
before a combining mark, with which that would be written as one (NFC). So pieces may be cut anywhere, and the tokens
are those of the whole text.
"""

from __future__ import annotations

import unicodedata

from tokenizers import Tokenizer


class GrowingText:
    """The tokens of `push` after `push`, and then of `end`, are those of all pieces as one text, stripped."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._held = ""
        self._said = False

    def push(self, piece: str) -> list[int]:
        """The tokens that are certain now."""
        held = self._normalised(self._held + piece)
        self._held = held if self._said else held.lstrip()
        cut = self._certain(self._held)
        ready, self._held = self._held[:cut], self._held[cut:]
        return self._ids(ready)

    def end(self) -> list[int]:
        """Those of the rest."""
        rest, self._held = self._held.rstrip(), ""
        return self._ids(rest)

    def _certain(self, text: str) -> int:
        """So many characters are."""
        cut = 0
        for _, (start, _) in self._tokenizer.pre_tokenizer.pre_tokenize_str(text):
            if start and not text[start - 1].isspace() and not unicodedata.category(text[start]).startswith("M"):
                cut = start
        return cut

    def _normalised(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return str(normalizer.normalize_str(text)) if normalizer else text

    def _ids(self, text: str) -> list[int]:
        self._said |= bool(text)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids if text else []
        return ids
