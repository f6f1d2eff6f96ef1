"""Turn taking with literal times: frames of 20 ms, so that frame n ends at (n + 1) / 50."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.turn import (
    Action,
    AgentState,
    Heard,
    Interrupt,
    Pause,
    Resume,
    Settings,
    SpeechStarted,
    SpeechStopped,
    TurnEnded,
    TurnEndModel,
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
class Opinion:
    """A model with one opinion, that notes what it is asked."""

    says: float | None
    asked: list[tuple[float, float]] = field(default_factory=list)

    def probability(self, onset_at: float, ended_at: float) -> float | None:
        self.asked.append((round(onset_at, 3), round(ended_at, 3)))
        return self.says


@pytest.mark.parametrize(
    ("says", "wait"), [(None, 0.5), (0.5, 0.5), (0.8, 0.3), (1.0, 0.3), (0.2, 1.2), (0.0, 1.2), (0.21, 0.5)]
)
def test_a_model_that_is_sure_makes_the_wait_shorter_or_longer(says: float | None, wait: float) -> None:
    model: TurnEndModel = Opinion(says)
    talk = Talk(TurnTaking(FRAME, SETTINGS, model))
    talk.speech(1.0, SILENT)
    assert talk.silence(2.0, SILENT)[-1] == TurnEnded(0.0, 1.0, pytest.approx(1.0 + wait))
    assert isinstance(model, Opinion)
    assert set(model.asked) == {(0.0, 1.0)}


def test_a_model_that_changes_its_mind_is_followed_at_once() -> None:
    model = Opinion(0.0)
    talk = Talk(TurnTaking(FRAME, SETTINGS, model))
    talk.speech(1.0, SILENT)
    assert talk.silence(0.8, SILENT) == [SpeechStopped(1.0, 1.2)]
    model.says = 0.9
    assert talk.silence(0.1, SILENT) == [TurnEnded(0.0, 1.0, 1.82)]


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


def test_a_transcript_confirms_before_the_speech_has_lasted() -> None:
    talk = Talk()
    talk.speech(0.3, SPEAKING)
    assert talk.turns.confirm(0.3) == [Interrupt(0.0, 0.3), SpeechStarted(0.0, 0.3)]
    assert talk.turns.confirm(0.3) == []
    assert talk.silence(1.0, SILENT)[-1] == TurnEnded(0.0, 0.3, 0.8)


def test_a_transcript_without_an_open_pause_confirms_nothing() -> None:
    talk = Talk()
    assert talk.turns.confirm(0.0) == []
    talk.speech(0.06, SILENT)
    assert talk.turns.confirm(0.06) == []


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
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is to hold, not"):
        Settings(**wrong)


# ---- properties ------------------------------------------------------------------------------------------------

FRAMES = st.tuples(st.sampled_from([0.0, 0.4, 0.6, 0.95]), st.sampled_from([0.0, 0.9]), st.sampled_from(AgentState))


@given(st.lists(st.tuples(st.integers(1, 40), FRAMES), max_size=25), st.sets(st.integers(0, 400)))
@settings(deadline=None, max_examples=150)
def test_whatever_is_heard_the_actions_fit_together(
    runs: list[tuple[int, tuple[float, float, AgentState]]], confirmed: set[int]
) -> None:
    talk, witness = Talk(), Witness()
    for count, (probability, echo, state) in [*runs, (250, (0.0, 0.0, SILENT))]:
        for _ in range(count):
            actions = talk.hear(FRAME, probability, state, echo)
            witness.see(actions, state)
            if talk.num_frames in confirmed:
                witness.see(talk.turns.confirm(talk.now), state)
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
