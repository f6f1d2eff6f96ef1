"""agent/sentences.py: what a sentence is, and that the pieces depend on the text only and lose nothing of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sentences import MIN_CHARS, Sentences, speakable
from engine.markdown import lines


def pieces(text: str, max_chars: int = 300, early_chars: int | None = None) -> list[str]:
    sentences = Sentences(max_chars, early_chars)
    return sentences.push(text) + sentences.end()


def one_by_one(text: str, max_chars: int = 300, early_chars: int | None = None) -> list[str]:
    sentences = Sentences(max_chars, early_chars)
    return [piece for char in text for piece in sentences.push(char)] + sentences.end()


@pytest.mark.parametrize(
    "text",
    [
        "Good morning. | How are you? | Fine! | Thanks",
        "Mr. Smith met Dr. Jones. | They talked.",
        "Bring fruit, e.g. apples. | Then we eat, i.e. you cook.",
        "Pi is 3.14 and e is 2.718. | Both are known.",
        "The U.S. Army came. | I live in the U.S. | He does not.",
        "It is No. 5 of 10. | No. | I will not.",
        "J. P. Morgan met J. R. R. Tolkien. | I am 5. | You are 6. | Sie ist eine Frau. | Er nicht.",
        "J. R. R. Tolkien wrote it. | So do I. | Do you?",
        "Meet me at 5 p.m. tomorrow. | It ends at 6 p.m. | Bring wine, cheese etc. | Then go.",
        "See Fig. 3 and p. 12, on Jan. 5. | It may help.",
        "Go to example.com or read a.txt. | Version v2.0.1 is out.",
        "He said: “Stop!” and left. | “Why?” she asked. | “Because.” | Nobody spoke.",
        '"Is it?" he asked. | "It is." | She left.',
        "Well... maybe. | Wait… | Now it works. | Wait...what?",
        "Really?! | Yes!!! | So it is.",
        "It was in 1990. | Then came 1991.",
        "i see. | that is fine. | ok",
        "He left (she stayed.) | Nobody knew.",
        "Great! | 😀 Next one. | Fun 👨‍👩‍👧 for all!",
        "今日は晴れです。|明日は雨でしょう！|本当ですか？|「行こう。」と彼は言った。|「はい。」|次です。",
        "Er kommt am 3. Mai, z. B. mit dem Zug. | Das kostet ca. 5 Euro bzw. mehr. | Der 2. Versuch, d.h. der letzte. | Gut.",  # noqa: E501
        "„Komm!“ rief er. | Hr. Müller, Nr. 7 usw. kamen. | Schön.",
        "Here is a list:|\n- one thing|\n- another one|\n\nThat is all.",
        "1. Take the bus.|\n2. Get off.|\n3. Walk",
        "a line that is\nwrapped in its middle. | The end.",
        "¿Qué tal? | ¡Bien! | ماذا؟ | نعم.",
        "**Bold.** | Next",
    ],
)
def test_sentences_are_found(text: str) -> None:
    expected = [" ".join(piece.split()) for piece in text.split("|")]
    assert pieces(text.replace("|", "")) == expected
    assert one_by_one(text.replace("|", "")) == expected


def test_a_sentence_is_given_out_as_soon_as_it_is_complete() -> None:
    sentences = Sentences()
    assert sentences.push("Good morn") == []
    assert sentences.push("ing.") == []  # 3.14 and U.S. look the same
    assert sentences.push(" H") == ["Good morning."]
    assert sentences.push("ello\n\n") == ["Hello"]
    assert sentences.push("はい。") == []  # a quote may be closed
    assert sentences.push("次") == ["はい。"]
    assert sentences.end() == ["次"]
    assert sentences.end() == []


def test_the_first_piece_may_be_a_clause() -> None:
    text = "Of course, I can help you, and gladly. One, two, three, four, five, six."
    assert pieces(text, early_chars=10) == [
        "Of course,",
        "I can help you, and gladly.",
        "One, two, three, four, five, six.",
    ]
    assert pieces(text, early_chars=20)[0] == "Of course, I can help you,"
    assert pieces("There are 1,000,000 at 12:30, or so.", early_chars=1)[0] == "There are 1,000,000 at 12:30,"
    assert pieces("そうですね、行きましょう。", early_chars=3) == ["そうですね、", "行きましょう。"]
    assert pieces("... Well, yes.", early_chars=3) == ["...", "Well,", "yes."]  # nothing was said yet


def test_a_long_sentence_is_cut_at_a_clause_then_at_a_space_then_anywhere() -> None:
    clause = "word " * 8 + "end, " + "more " * 8
    assert pieces(clause, 60) == ["word " * 8 + "end,", ("more " * 8).strip()]
    assert pieces("word " * 20, 60) == [("word " * 12).strip(), ("word " * 8).strip()]
    assert pieces("x" * 130, 60) == ["x" * 60, "x" * 60, "x" * 10]
    assert pieces("、".join(["あ" * 25] * 4), 60) == ["あ" * 25 + "、" + "あ" * 25 + "、", "あ" * 25 + "、" + "あ" * 25]


def test_a_cut_takes_no_accent_and_no_joined_emoji_apart() -> None:
    assert pieces("x" * 59 + "e\u0301" + "y" * 10, 60) == ["x" * 59, "e\u0301" + "y" * 10]
    family = "👨\u200d👩\u200d👧"
    assert pieces("x" * 58 + family, 60) == ["x" * 58, family]


def test_what_has_no_letter_and_no_digit_is_not_spoken() -> None:
    assert [speakable(piece) for piece in ("...", "—", "😀", "* * *", "", "「」", "a", "5", "は", "é")] == [
        False, False, False, False, False, False, True, True, True, True,
    ]  # fmt: skip


CODE = "Here is how:\n\n```python\nfor i in range(3):\n    print(i)\n```\nDone. And:\n~~~\nmake. test.\n~~~"


@pytest.mark.parametrize("size", [1, 3, 7, len(CODE)])
def test_a_block_of_code_is_one_piece(size: int) -> None:
    sentences = Sentences()
    found = [piece for at in range(0, len(CODE), size) for piece in sentences.push(CODE[at : at + size])]
    block = "```\nfor i in range(3):\n    print(i)\n```"
    assert [*found, *sentences.end()] == ["Here is how:", block, "Done.", "And:", "~~~\nmake. test.\n~~~"]
    assert lines(block) == ["Code block."]


def test_a_block_of_code_is_shortened_and_needs_no_end() -> None:
    sentences = Sentences(max_chars=48)
    assert sentences.push("```py\n" + "abc. def\n" * 30) == [], "it may go on"
    (block,) = sentences.end()
    assert block.startswith("```\nabc. def\n") and block.endswith("\n```") and len(block) == 48
    assert sentences.push("```\none\n```\nTwo. ") == ["```\none\n```", "Two."]


def test_a_fence_may_stand_behind_words_and_may_be_ornament() -> None:
    sentences = Sentences()
    text = "Look at ```py\nprint(1). x = 2.\n```\nDone. "
    assert sentences.push(text) == ["Look at", "```\nprint(1). x = 2.\n```", "Done."]
    assert sentences.push("Wow~~~\nNice. ") == ["Wow~~~", "Nice."]
    assert sentences.push("~~~\nHello there. And") == []
    assert sentences.end()[1:] == ["Hello there.", "And"]


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="at least 48, got 47"):
        Sentences(MIN_CHARS - 1)
    with pytest.raises(ValueError, match="early_chars"):
        Sentences(100, 0)


FRAGMENTS = (
    'Mr.|U.S.|e.g.|No.|5|3.14| |\n|\n\n|. |...|…|?|! |"|」|。|、|, |I|He|the|word|naïve|e\u0301|😀|- |1. |z. B. |'
    "am 3. Mai|と|:|—|\t|👨\u200d👩"
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS.split("|")) | st.text(max_size=8), max_size=60).map("".join)


@given(TEXTS, st.lists(st.integers(0, 400), max_size=20), st.integers(MIN_CHARS, 90), st.none() | st.integers(1, 40))
def test_the_pieces_depend_on_the_text_only_and_lose_nothing(
    text: str, cuts: list[int], max_chars: int, early_chars: int | None
) -> None:
    whole = pieces(text, max_chars, early_chars)
    at = [0, *sorted(cuts), len(text)]
    sentences = Sentences(max_chars, early_chars)
    parts = [text[start:end] for start, end in pairwise(at)]
    assert [piece for part in parts for piece in sentences.push(part)] + sentences.end() == whole
    assert one_by_one(text, max_chars, early_chars) == whole
    assert "".join("".join(whole).split()) == "".join(text.split())
    assert all(0 < len(piece) <= max_chars for piece in whole)
