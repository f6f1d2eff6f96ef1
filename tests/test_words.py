"""agent/words.py: what is only a listener's word, and what is a complete sentence."""

from __future__ import annotations

import pytest

from agent.words import Backchannels, completeness


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ... ",
        "Mm-hmm.",
        "mhm",
        "Mmmmm",
        "Hmm.",
        "Yeah",
        "Yeahhh!",
        "Uh-huh. Uh-huh.",
        "OK",
        "Okay, right.",
        "Oh yeah, all right, I see.",
        "Ja, ja.",
        "Ach so!",
        "D’accord.",
        "Sí, claro.",
        "oké",
        "はい。",
        "そうですね。",
        "嗯嗯",
        "对对对",
        "네",
        "[BLANK_AUDIO]",
        "(coughs)",
        "*laughs* yeah",
    ],
)
def test_who_only_listens_says_so(text: str) -> None:
    assert Backchannels().cover(text)


@pytest.mark.parametrize(
    "text",
    [
        "Stop!",
        "No.",
        "Wait.",
        "What?",
        "Hold on.",
        "Yeah, but",
        "Okay, stop.",
        "I",
        "I see it",
        "Halt",
        "Nein",
        "不",
        "7",
    ],
)
def test_who_wants_the_turn_says_more(text: str) -> None:
    assert not Backchannels().cover(text)


def test_an_application_adds_its_own() -> None:
    own = Backchannels(["Amen", "you don't say"])
    assert own.cover("Amen! You don't say. Yeah.")
    assert not own.cover("you don't")
    assert not Backchannels().cover("Amen")
    for wrong in ("", "?!", "this is too long"):
        with pytest.raises(ValueError, match="one to 3 words, got"):
            Backchannels(["fine", wrong])


@pytest.mark.parametrize(
    ("text", "likely"),
    [
        ("I would like a ticket to Berlin.", 0.9),
        ("What time is it?", 0.9),
        ("Stop!", 0.9),
        ('He said "yes."', 0.9),
        ("What are you looking for?", 0.9),
        ("你好吗？", 0.9),
        ("I would like a ticket and", 0.1),
        ("I would like a ticket and.", 0.1),
        ("Because...", 0.1),
        ("Well,", 0.1),
        ("My number is —", 0.1),
        ("Um.", 0.1),
        ("Ich komme nicht, weil", 0.1),
        ("A ticket to", 0.1),
        ("A ticket to.", None),
        ("I think so.", None),
        ("Turn it on.", None),
        ("I would like a ticket", None),
        ("", None),
        ("...", None),
        ("[BLANK_AUDIO]", None),
    ],
)
def test_a_sentence_is_complete_or_open_or_nobody_can_tell(text: str, likely: float | None) -> None:
    assert completeness(text) == likely
