"""Turn taking with literal times: frames of 20 ms, so that frame n ends at (n + 1) / 50."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.turn import (
    Action,
    AgentState,
    Heard,
    Interrupt,
    Judge,
    Pause,
    Resume,
    Settings,
    SpeechStarted,
    SpeechStopped,
    TurnEnded,
    TurnTaking,
)

FRAME = 0.02
SILENT, SPEAKING, UNINTERRUPTIBLE = AgentState
SETTINGS = Settings(
    first_evidence=0.04,
    wary=2.0,
    wary_evidence=0.1,
    gap=0.2,
    min_speech=0.1,
    interruption=0.6,
    max_pause=1.5,
    words_from=0.14,
    words_after=0.1,
    words_wait=0.4,
    silence=0.5,
    short_silence=0.3,
    long_silence=1.2,
)


@dataclass
class Talk:
    """Frames in a row, and what came of them."""

    turns: TurnTaking = field(default_factory=lambda: TurnTaking(FRAME, SETTINGS))
    num_frames: int = 0
    actions: list[Action] = field(default_factory=list)

    @property
    def now(self) -> float:
        return self.num_frames * FRAME

    def hear(self, seconds: float, probability: float, agent: AgentState, echo: float = 0.0) -> list[Action]:
        """The actions of so many seconds of equal frames, with instants rounded to a millisecond."""
        found = []
        for _ in range(round(seconds / FRAME)):
            self.num_frames += 1
            found += self.turns.hear(Heard(probability, self.now, echo), agent)
        self.actions += found
        return [rounded(action) for action in found]

    def speech(self, seconds: float, agent: AgentState, echo: float = 0.0) -> list[Action]:
        return self.hear(seconds, 0.9, agent, echo)

    def silence(self, seconds: float, agent: AgentState) -> list[Action]:
        return self.hear(seconds, 0.02, agent)


def rounded(action: Action) -> Action:
    times = {name: round(getattr(action, name), 3) for name in action.__slots__}
    return type(action)(**times)


# ---- a user's turn while the agent is silent -------------------------------------------------------------------


def test_a_turn_from_its_first_word_to_the_end_of_the_silence_behind_it() -> None:
    talk = Talk()
    assert talk.silence(1.0, SILENT) == []
    assert talk.speech(1.0, SILENT) == [SpeechStarted(onset_at=1.0, at=1.1)]
    assert talk.turns.user_speaks
    assert talk.silence(1.0, SILENT) == [SpeechStopped(2.0, 2.2), TurnEnded(1.0, 2.0, 2.5)]
    assert not talk.turns.user_speaks


def test_speech_that_is_too_short_makes_no_turn() -> None:
    talk = Talk()
    assert talk.speech(0.08, SILENT) == []
    assert talk.silence(2.0, SILENT) == []


def test_speech_goes_on_down_to_the_lower_threshold_and_begins_only_at_the_upper() -> None:
    talk = Talk()
    assert talk.hear(1.0, 0.45, SILENT) == []
    talk.speech(0.04, SILENT)
    assert talk.hear(1.0, 0.45, SILENT) == [SpeechStarted(1.0, 1.1)]
    talk.hear(0.02, 0.2, SILENT)
    assert talk.hear(1.0, 0.45, SILENT) == [SpeechStopped(2.04, 2.24), TurnEnded(1.0, 2.04, 2.54)]


def test_a_breath_inside_a_phrase_is_no_end_and_a_pause_of_thought_belongs_to_the_turn() -> None:
    talk = Talk()
    talk.speech(1.0, SILENT)
    assert talk.silence(0.18, SILENT) == []
    assert talk.speech(0.5, SILENT) == []
    assert talk.silence(0.4, SILENT) == [SpeechStopped(1.68, 1.88)]
    assert talk.speech(1.0, SILENT) == [SpeechStarted(2.08, 2.18)]
    assert talk.silence(1.0, SILENT) == [SpeechStopped(3.08, 3.28), TurnEnded(0.0, 3.08, 3.58)]


def test_a_cough_behind_the_last_word_does_not_make_the_turn_longer() -> None:
    talk = Talk()
    talk.speech(1.0, SILENT)
    talk.silence(0.4, SILENT)
    assert talk.speech(0.08, SILENT) == []
    assert talk.silence(1.0, SILENT) == [TurnEnded(0.0, 1.0, 1.68)]  # once it is known to be no word


@dataclass
class Knowing:
    """A judge that says what a test has it say, and notes what it is asked, of each question once, and what is dropped.

    While `asking`, it knows nothing.
    """

    says: float | None = None
    means_it: bool = False
    asking: bool = False
    asked: list[tuple[float, float] | str] = field(default_factory=list)

    def interrupts(self, onset_at: float, ended_at: float) -> bool:
        self._note((round(onset_at, 3), round(ended_at, 3)))
        return self.means_it and not self.asking

    def over(self, onset_at: float, ended_at: float) -> float | None:
        self._note((round(onset_at, 3), round(ended_at, 3)))
        return None if self.asking else self.says

    def drop(self) -> None:
        self.asked.append("drop")

    def _note(self, question: tuple[float, float]) -> None:
        if self.asked[-1:] != [question]:
            self.asked.append(question)


def judged(**known: Any) -> tuple[Talk, Knowing]:
    judge = Knowing(**known)
    fits: Judge = judge
    return Talk(TurnTaking(FRAME, SETTINGS, fits)), judge


@pytest.mark.parametrize(
    ("says", "wait"), [(None, 0.5), (0.5, 0.5), (0.8, 0.3), (1.0, 0.3), (0.2, 1.2), (0.0, 1.2), (0.21, 0.5)]
)
def test_a_model_that_is_sure_makes_the_wait_shorter_or_longer(says: float | None, wait: float) -> None:
    talk, judge = judged(says=says)
    talk.speech(1.0, SILENT)
    assert talk.silence(2.0, SILENT)[-1] == TurnEnded(0.0, 1.0, pytest.approx(1.0 + wait))
    assert judge.asked == [(0.0, 1.0)], "no sooner than the speech has ended"


def test_a_judge_that_changes_its_mind_is_followed_at_once() -> None:
    talk, judge = judged(says=0.0)
    talk.speech(1.0, SILENT)
    assert talk.silence(0.8, SILENT) == [SpeechStopped(1.0, 1.2)]
    judge.says = 0.9
    assert talk.silence(0.1, SILENT) == [TurnEnded(0.0, 1.0, 1.82)]


def test_a_judge_that_looks_into_it_is_waited_for_and_its_answer_followed() -> None:
    talk, judge = judged(says=0.9, asking=True)
    talk.speech(1.0, SILENT)
    assert talk.silence(0.7, SILENT) == [SpeechStopped(1.0, 1.2)]
    judge.asking = False
    assert talk.silence(0.1, SILENT) == [TurnEnded(0.0, 1.0, 1.72)]


def test_a_judge_that_takes_too_long_does_not_keep_the_turn_open() -> None:
    talk, _ = judged(says=0.0, asking=True)
    talk.speech(1.0, SILENT)
    assert talk.silence(2.0, SILENT) == [SpeechStopped(1.0, 1.2), TurnEnded(0.0, 1.0, 1.9)]


def test_a_user_who_goes_on_makes_the_judge_drop_it_and_a_cough_does_not() -> None:
    talk, judge = judged(says=0.0)
    talk.speech(1.0, SILENT)
    talk.silence(0.3, SILENT)
    talk.speech(0.06, SILENT)
    talk.silence(0.3, SILENT)
    assert judge.asked == [(0.0, 1.0)]
    talk.speech(0.5, SILENT)
    talk.silence(0.3, SILENT)
    assert judge.asked == [(0.0, 1.0), "drop", (0.0, 2.16)]


def test_where_all_silences_are_equal_the_judge_is_not_asked() -> None:
    judge = Knowing(says=0.0)
    talk = Talk(TurnTaking(FRAME, Settings(silence=0.5, short_silence=0.5, long_silence=0.5), judge))
    talk.speech(1.0, SILENT)
    assert talk.silence(1.0, SILENT)[-1] == TurnEnded(0.0, 1.0, 1.5)
    assert judge.asked == []


# ---- barge-in --------------------------------------------------------------------------------------------------


def test_the_first_evidence_pauses_and_speech_that_lasts_interrupts_while_the_user_still_speaks() -> None:
    talk = Talk()
    talk.silence(1.0, SPEAKING)
    assert talk.speech(0.5, SPEAKING) == [Pause(1.0, 1.02)]
    assert talk.turns.paused
    assert talk.speech(0.5, SPEAKING) == [Interrupt(1.0, 1.6), SpeechStarted(1.0, 1.6)]
    assert not talk.turns.paused
    assert talk.speech(1.0, SILENT) == []
    assert talk.silence(1.0, SILENT) == [SpeechStopped(3.0, 3.2), TurnEnded(1.0, 3.0, 3.5)]


def test_weak_evidence_must_last_before_it_pauses() -> None:
    talk = Talk()
    assert talk.hear(0.02, 0.6, SPEAKING) == []
    talk.silence(0.1, SPEAKING)
    assert talk.hear(0.1, 0.6, SPEAKING) == [Pause(0.0, 0.16)]


@pytest.mark.parametrize("seconds", [0.15, 0.3, 0.5])
def test_a_cough_or_a_backchannel_pauses_and_the_reply_goes_on(seconds: float) -> None:
    talk = Talk()
    frames = round(seconds / FRAME) * FRAME
    assert talk.speech(seconds, SPEAKING) == [Pause(0.0, 0.02)]
    assert talk.silence(3.0, SPEAKING) == [Resume(pytest.approx(frames + 0.2))]  # and no turn: nobody answers "mhm"


def test_soon_after_a_false_alarm_even_strong_evidence_must_last() -> None:
    talk = Talk()
    talk.speech(0.1, SPEAKING)
    assert talk.silence(0.5, SPEAKING) == [Resume(0.3)]
    assert talk.speech(0.08, SPEAKING) == []
    talk.silence(0.5, SPEAKING)
    assert talk.speech(0.3, SPEAKING) == [Pause(1.18, 1.28)]
    assert talk.silence(2.5, SPEAKING) == [Resume(1.68)]
    assert talk.speech(0.02, SPEAKING) == [Pause(3.98, 4.0)]


def test_words_with_a_gap_between_them_are_one_interruption() -> None:
    talk = Talk()
    talk.speech(0.4, SPEAKING)
    assert talk.silence(0.18, SPEAKING) == []
    assert talk.speech(0.3, SPEAKING) == [Interrupt(0.0, 0.78), SpeechStarted(0.0, 0.78)]  # 0.6 s of speech


def test_an_utterance_interrupts_once_even_where_the_reply_is_not_gone_at_once() -> None:
    talk = Talk()
    talk.speech(3.0, SPEAKING)
    assert [type(action) for action in talk.actions] == [Pause, Interrupt, SpeechStarted]
    assert talk.silence(0.3, SPEAKING) == [SpeechStopped(3.0, 3.2)]
    assert talk.speech(1.0, SPEAKING) == [Pause(3.3, 3.32), Interrupt(3.3, 3.9), SpeechStarted(3.3, 3.9)]


def test_flickering_noise_does_not_silence_the_agent_for_longer_than_the_longest_pause() -> None:
    talk = Talk()
    for _ in range(20):
        talk.speech(0.02, SPEAKING)
        talk.silence(0.14, SPEAKING)
    assert [rounded(action) for action in talk.actions] == [Pause(0.0, 0.02), Resume(1.52)]
    for _ in range(11):  # it still counts: after 0.6 s of it somebody must be speaking
        talk.speech(0.02, SPEAKING)
        talk.silence(0.02, SPEAKING)
    assert [type(action) for action in talk.actions][2:] == [Interrupt, SpeechStarted]


def test_speech_that_outlasts_the_reply_is_a_turn_and_leaves_no_pause_behind() -> None:
    talk = Talk()
    talk.speech(0.3, SPEAKING)
    assert talk.speech(0.02, SILENT) == [SpeechStarted(0.0, 0.32)]  # somebody else has stopped it
    assert not talk.turns.paused
    assert talk.silence(1.0, SILENT)[-1] == TurnEnded(0.0, 0.32, 0.82)


def test_a_reply_that_begins_over_the_users_speech_is_interrupted_at_once() -> None:
    talk = Talk()
    talk.speech(1.0, SILENT)
    assert talk.speech(0.1, SPEAKING) == [Interrupt(0.0, 1.02)]


# ---- barge-in by words -----------------------------------------------------------------------------------------


def test_a_short_word_that_means_it_interrupts_and_is_a_turn() -> None:
    talk, judge = judged(means_it=True)
    assert talk.speech(0.3, SPEAKING) == [Pause(0.0, 0.02)]
    assert talk.silence(0.1, SPEAKING) == [Interrupt(0.0, 0.4), SpeechStarted(0.0, 0.4)]
    assert talk.silence(1.0, SILENT) == [SpeechStopped(0.3, 0.5), TurnEnded(0.0, 0.3, 0.8)]
    assert judge.asked == [(0.0, 0.3)], "the turn's end is asked about the same instants: its words are known"


def test_the_pause_lasts_until_the_words_are_known() -> None:
    talk, judge = judged(means_it=True, asking=True)
    talk.speech(0.3, SPEAKING)
    assert talk.silence(0.5, SPEAKING) == []
    judge.asking = False
    assert talk.silence(0.02, SPEAKING) == [
        Interrupt(0.0, 0.82),
        SpeechStarted(0.0, 0.82),
        SpeechStopped(0.3, 0.82),
        TurnEnded(0.0, 0.3, 0.82),
    ]


def test_a_backchannel_is_known_for_one_and_the_reply_goes_on() -> None:
    talk, judge = judged(asking=True)
    talk.speech(0.3, SPEAKING)
    assert talk.silence(0.4, SPEAKING) == []
    judge.asking = False
    assert talk.silence(1.0, SPEAKING) == [Resume(0.72)]
    assert judge.asked == [(0.0, 0.3), "drop"]


def test_words_that_are_known_at_once_make_no_pause_longer() -> None:
    talk, _ = judged()
    talk.speech(0.3, SPEAKING)
    assert talk.silence(1.0, SPEAKING) == [Resume(0.5)]


def test_words_that_come_too_late_are_not_waited_for() -> None:
    talk, judge = judged(means_it=True, asking=True)
    talk.speech(0.3, SPEAKING)
    assert talk.silence(1.0, SPEAKING) == [Resume(0.9)]  # gap 0.2 and words_wait 0.4
    assert judge.asked == [(0.0, 0.3), "drop"]
    judge.asking = False
    assert talk.silence(1.0, SPEAKING) == []


def test_whose_words_always_come_too_late_is_not_asked_any_more() -> None:
    talk, judge = judged(asking=True)
    for n in range(5):
        began = talk.num_frames
        talk.silence(2.0, SPEAKING)
        talk.speech(0.3, SPEAKING)
        (resumed,) = talk.silence(1.0, SPEAKING)
        assert round(resumed.at - began * FRAME, 3) == (2.9 if n < 3 else 2.5)
    assert judge.asked.count("drop") == 3


def test_an_answer_in_time_makes_up_for_late_ones() -> None:
    talk, judge = judged()
    for n in range(8):
        judge.asking = n != 2
        talk.speech(0.3, SPEAKING)
        talk.silence(3.0, SPEAKING)
    assert judge.asked.count("drop") == 6, "two late, one in time, three late, and then it is let be"


@pytest.mark.parametrize("seconds", [0.06, 0.12])
def test_a_cough_is_too_short_to_be_asked_about(seconds: float) -> None:
    talk, judge = judged(means_it=True)
    talk.speech(seconds, SPEAKING)
    assert talk.silence(1.0, SPEAKING) == [Resume(pytest.approx(seconds + 0.2))]
    assert judge.asked == []


def test_a_closure_inside_a_word_is_not_asked_about() -> None:
    talk, judge = judged(means_it=True)
    talk.speech(0.2, SPEAKING)
    talk.silence(0.08, SPEAKING)
    talk.speech(0.1, SPEAKING)
    talk.silence(0.1, SPEAKING)
    assert judge.asked == [(0.0, 0.38)]


def test_who_goes_on_speaking_is_asked_about_anew_and_interrupts_by_duration_without_words() -> None:
    talk, judge = judged(means_it=True, asking=True)
    talk.speech(0.3, SPEAKING)
    talk.silence(0.14, SPEAKING)
    assert talk.speech(0.4, SPEAKING) == [Interrupt(0.0, 0.74), SpeechStarted(0.0, 0.74)]
    assert judge.asked == [(0.0, 0.3), "drop"]


def test_who_goes_on_after_the_gap_begins_to_be_counted_again_but_is_one_with_what_was_before() -> None:
    talk, judge = judged(asking=True)
    talk.speech(0.4, SPEAKING)
    talk.silence(0.4, SPEAKING)
    assert talk.speech(0.3, SPEAKING) == [], "mhm ... mhm"
    talk.silence(0.1, SPEAKING)
    assert judge.asked == [(0.0, 0.4), "drop", (0.0, 1.1)]
    judge.asking, judge.means_it = False, True
    assert talk.silence(0.02, SPEAKING) == [Interrupt(0.0, 1.22), SpeechStarted(0.0, 1.22)]


def test_no_more_than_three_questions_are_asked_about_one_burst() -> None:
    talk, judge = judged(asking=True)
    talk.speech(0.2, SPEAKING)
    for _ in range(6):
        talk.silence(0.14, SPEAKING)
        talk.speech(0.04, SPEAKING)
    assert judge.asked.count("drop") == 3
    assert len(judge.asked) == 6


def test_the_longest_pause_holds_with_words_too() -> None:
    judge = Knowing(asking=True)
    talk = Talk(TurnTaking(FRAME, Settings(words_wait=9.0), judge))
    talk.speech(0.3, SPEAKING)
    assert talk.silence(3.0, SPEAKING) == [Resume(1.52)]
    assert judge.asked[-1] == "drop"


@pytest.mark.parametrize("state", [SILENT, UNINTERRUPTIBLE])
def test_a_reply_that_ends_or_must_be_heard_makes_the_words_irrelevant(state: AgentState) -> None:
    talk, judge = judged(means_it=True, asking=True)
    talk.speech(0.3, SPEAKING)
    talk.silence(0.14, SPEAKING)
    resumed = [Resume(0.46)] if state is UNINTERRUPTIBLE else []
    assert talk.silence(0.02, state) == resumed
    assert judge.asked == [(0.0, 0.3), "drop"]
    judge.asking = False
    assert talk.silence(2.0, state) == []
    assert not talk.turns.waiting


def test_what_is_said_into_silence_is_not_asked_about_before_it_ends() -> None:
    talk, judge = judged(means_it=True)
    talk.speech(0.3, SILENT)
    talk.silence(0.18, SILENT)
    assert judge.asked == []


# ---- uninterruptible -------------------------------------------------------------------------------------------


def test_an_uninterruptible_reply_goes_on_and_the_users_speech_is_a_turn() -> None:
    talk = Talk()
    assert talk.speech(1.0, UNINTERRUPTIBLE) == [SpeechStarted(0.0, 0.6)]
    assert talk.silence(1.0, UNINTERRUPTIBLE) == [SpeechStopped(1.0, 1.2), TurnEnded(0.0, 1.0, 1.5)]


def test_a_backchannel_over_an_uninterruptible_reply_is_no_turn() -> None:
    talk = Talk()
    assert talk.speech(0.4, UNINTERRUPTIBLE) == []
    assert talk.silence(2.0, UNINTERRUPTIBLE) == []


def test_a_reply_that_becomes_uninterruptible_goes_on_at_once() -> None:
    talk = Talk()
    talk.speech(0.3, SPEAKING)
    assert talk.speech(0.1, UNINTERRUPTIBLE) == [Resume(0.32)]


# ---- echo ------------------------------------------------------------------------------------------------------


def test_an_echo_is_no_evidence_however_long_it_lasts() -> None:
    talk = Talk()
    assert talk.speech(10.0, SPEAKING, echo=0.6) == []


def test_an_echo_that_is_recognised_late_pauses_and_the_reply_goes_on() -> None:
    talk = Talk()
    assert talk.speech(0.3, SPEAKING) == [Pause(0.0, 0.02)]
    assert talk.speech(1.0, SPEAKING, echo=0.95) == [Resume(0.5)]


def test_who_speaks_over_an_echo_is_heard_from_the_first_frame_on() -> None:
    talk = Talk()
    talk.speech(2.0, SPEAKING, echo=0.95)
    assert talk.speech(0.7, SPEAKING, echo=0.1) == [Pause(2.0, 2.02), Interrupt(2.0, 2.6), SpeechStarted(2.0, 2.6)]


# ---- settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"leave": 0.6},
        {"leave": 0.0},
        {"sure": 0.4},
        {"sure": 1.1},
        {"first_evidence": 0.0},
        {"first_evidence": 0.7},
        {"wary_evidence": 0.05},
        {"wary": -1.0},
        {"min_speech": 0.7},
        {"max_pause": 0.5},
        {"gap": 0.0},
        {"short_silence": 0.1},
        {"silence": 2.0},
        {"silence": float("nan")},
        {"over": 0.1},
        {"not_over": -0.1},
        {"words_from": -0.1},
        {"words_after": -0.1},
        {"words_wait": float("nan")},
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is to hold, not"):
        Settings(**wrong)


# ---- properties ------------------------------------------------------------------------------------------------

FRAMES = st.tuples(st.sampled_from([0.0, 0.4, 0.6, 0.95]), st.sampled_from([0.0, 0.9]), st.sampled_from(AgentState))


@given(
    st.lists(st.tuples(st.integers(1, 40), FRAMES), max_size=25),
    st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.booleans(), st.sampled_from([None, 0.0, 1.0]))),
)
@settings(deadline=None, max_examples=150)
def test_whatever_is_heard_and_judged_the_actions_fit_together(
    runs: list[tuple[int, tuple[float, float, AgentState]]], moods: list[tuple[int, bool, bool, float | None]]
) -> None:
    (talk, judge), witness = judged(), Witness()
    changes = [mood for count, *mood in moods for _ in range(count)]
    for count, (probability, echo, state) in [*runs, (250, (0.0, 0.0, SILENT))]:
        for _ in range(count):
            if changes:
                judge.asking, judge.means_it, judge.says = changes.pop()
            actions = talk.hear(FRAME, probability, state, echo)
            witness.see(actions, state)
            assert talk.turns.paused is witness.paused
            assert talk.turns.user_speaks is witness.speaking
    assert not talk.turns.waiting
    assert not witness.turn_open


@dataclass
class Witness:
    """Checks every order that is promised."""

    last_at: float = 0.0
    paused: bool = False
    speaking: bool = False
    turn_open: bool = False
    interrupted: set[float] = field(default_factory=set)

    def see(self, actions: list[Action], state: AgentState) -> None:
        self.paused &= state is not SILENT  # whoever ended the reply ended its pause
        for action in actions:
            assert action.at >= self.last_at - 1e-3
            self.last_at = action.at
            self.take(rounded(action), state)

    def take(self, action: Action, state: AgentState) -> None:
        match action:
            case Pause():
                assert state is SPEAKING
                assert not self.paused
                self.paused = True
            case Resume():
                assert self.paused
                self.paused = False
            case Interrupt():
                assert state is SPEAKING
                assert action.onset_at not in self.interrupted
                self.interrupted.add(action.onset_at)
                self.paused = False
            case SpeechStarted():
                assert not self.speaking
                self.speaking = self.turn_open = True
            case SpeechStopped():
                assert self.speaking
                assert action.ended_at < action.at
                self.speaking = False
            case TurnEnded():
                assert self.turn_open
                assert not self.speaking
                assert action.onset_at < action.ended_at < action.at
                self.turn_open = False
