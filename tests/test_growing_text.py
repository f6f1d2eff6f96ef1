"""A text in pieces has the tokens of the whole one, wherever it is cut; and is parted where Qwen2's tokenizer does."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from engine.growing_text import GrowingText
from engine.models.qwen3_tts import SPLIT

README = Path(__file__).parents[1] / "README.md"
HARD = [
    *"abXY  \n\r\t'.,!?19éß中文。 ال 한ᄀ가\u11a8\u0301\u0327\u0323\u09be\u0995\u3099か\u00a0\u2003\x1c🙂\u200d",
    "'s",
    "'re",
    "  ",
]
"""Letters of several scripts, marks that combine with what stands before them, and every kind of white space."""


def trained() -> Tokenizer:
    """Qwen2's layout with merges of its own, over English and whatever else there is."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), letters])
    hard = ["".join(HARD[(i * step + i * i) % len(HARD)] for i in range(400)) for step in range(1, 60)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=6000, initial_alphabet=alphabet, show_progress=False)  # type: ignore[no-untyped-call]
    tokenizer.train_from_iterator([*README.read_text("utf-8").splitlines(), *hard], trainer)
    return tokenizer


TOKENIZER = trained()


def whole(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text.strip()).ids
    return ids


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


@settings(max_examples=400, deadline=None)
@given(
    text=st.lists(st.sampled_from(HARD), max_size=24).map("".join) | st.text(max_size=30),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
@example(text="Hi!\n  \n", cuts=[4, 5, 6])  # white space at an end
@example(text="b\u0303\u0323", cuts=[2])  # the second mark stands first where they are one character with the letter
@example(text="a  \n \n b", cuts=[3, 4, 5])
def test_pieces_may_be_cut_anywhere(text: str, cuts: list[int]) -> None:
    text = text.encode("utf-8", "ignore").decode()
    growing = GrowingText(TOKENIZER)
    ids = [id_ for piece in pieces(text, cuts) for id_ in growing.push(piece)]
    assert ids == whole(text)[: len(ids)]
    assert ids + growing.end() == whole(text)


def test_all_but_the_last_word_is_certain() -> None:
    growing = GrowingText(TOKENIZER)
    assert growing.push("The quick bro") == whole("The quick")
    assert growing.push("wn") == []
    assert growing.push(" ") == TOKENIZER.encode(" brown").ids


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hello, world!", ["Hello", ",", " world", "!"]),
        ("It's 2024: we'LL see", ["It", "'s", " ", "2", "0", "2", "4", ":", " we", "'LL", " see"]),
        ("a  b   \n\n c", ["a", " ", " b", "   \n\n", " c"]),
        ("one...\n\ntwo", ["one", "...\n\n", "two"]),
        ("x = y_z;", ["x", " =", " y", "_z", ";"]),
        ("naïve café", ["naïve", " café"]),
        ("你好，世界。", ["你好", "，世界", "。"]),
        ("tab\tbed", ["tab", "\tbed"]),
        ("end   ", ["end", "   "]),
    ],
)
def test_a_text_is_parted_as_qwen2s_tokenizer_does(text: str, parts: list[str]) -> None:
    """By its pattern, told by hand: contractions, a letter run with one character before it, digits one by one, marks
    with what ends their line, line ends, white space but for the last character before a word."""
    spans = pre_tokenizers.Split(Regex(SPLIT), "isolated").pre_tokenize_str(text)
    assert [part for part, _ in spans] == parts
