"""A reply as it is written becomes utterances that end where sentences do, whatever pieces it comes in."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.flow import MAX_CHARS, SOFT_CHARS, Flow
from agent.sentences import speakable

SENTENCE = "This is one of the sentences of a long reply. "


def utterances(deltas: list[str], max_chars: int = MAX_CHARS) -> list[str]:
    """What each says."""
    flow, said, ended = Flow(max_chars), list[str](), True
    for delta in deltas:
        for piece, ends in flow.push(delta):
            if ended:
                said.append("")
            said[-1] += piece
            ended = ends
    return said


def test_a_short_reply_is_one_utterance_from_its_first_word_on() -> None:
    flow = Flow()
    assert [list(flow.push(delta)) for delta in (" ", "\n Good", " morning.", " How are you?")] == [
        [],
        [("Good", False)],
        [(" morning.", False)],
        [(" How are you?", False)],
    ]


def test_a_long_one_ends_with_a_sentence() -> None:
    said = utterances([SENTENCE * 20])
    assert len(said) > 1
    assert all(one.rstrip().endswith("reply.") for one in said)
    assert all(SOFT_CHARS <= len(one) < SOFT_CHARS + len(SENTENCE) for one in said[:-1])


def test_wherever_the_pieces_are_cut() -> None:
    whole = SENTENCE * 20
    for size in (1, 3, 7, 50):
        said = utterances([whole[at : at + size] for at in range(0, len(whole), size)])
        assert all(one.rstrip().endswith("reply.") for one in said)
        assert " ".join(said).split() == whole.split()


def test_a_number_or_an_abbreviation_ends_nothing() -> None:
    said = utterances(["word " * 70 + "costs 3.5 and no more. Then more."])
    assert [one.strip()[-8:] for one in said] == ["no more.", "en more."]


def test_what_has_no_sentences_is_cut_between_words() -> None:
    said = utterances(["word " * 100], max_chars=200)
    assert all(len(one) <= 200 for one in said)
    assert " ".join(said).split() == ["word"] * 100


@settings(deadline=None)
@given(st.lists(st.text("ab. \n!。", max_size=40), max_size=30), st.sampled_from([20, 100, MAX_CHARS]))
def test_nothing_is_lost_and_nothing_is_too_long(deltas: list[str], most: int) -> None:
    said = utterances(deltas, most)
    told, whole = ("".join("".join(parts).split()) for parts in (said, deltas))
    assert whole.startswith(told)
    assert not speakable(whole[len(told) :]), "what has nothing to say may be left out at the end"
    assert all(0 < len(one) <= most for one in said)
    assert all(one[0] not in " \n" for one in said)


def test_a_sign_before_the_first_word_is_kept_for_it() -> None:
    assert utterances(["$", "5 it is."]) == ["$5 it is."]
    assert utterances([" (", "“", "Perhaps", ")."]) == ["(“Perhaps)."]
    assert utterances(["-", " ", "…"]) == []
