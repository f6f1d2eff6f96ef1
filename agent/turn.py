"""Turns speech probabilities into what a conversation does: pause, resume or interrupt the agent, end a user's turn.

It does not know audio, words, clocks or the reply itself: every instant is an argument, every decision a plain value.

Barge-in has two steps. The first evidence of speech pauses the agent, which is what the user hears; only speech that
lasts interrupts it for good. Without a transcript, duration is what tells an interruption from a backchannel ("mhm",
"yeah": 0.2 to 0.45 s; Full-Duplex-Bench counts as one what is shorter than 1 s and has at most two words). Others wait
0.5 s (LiveKit's min_duration, Tencent RTC) or 0.8 s (Hume EVI) before the agent falls silent at all; here the wait
costs nothing audible.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class AgentState(StrEnum):
    """What the agent does, as far as the user may stop it."""

    SILENT = "silent"
    SPEAKING = "speaking"
    """A reply is being played, or stands still in a pause."""
    UNINTERRUPTIBLE = "uninterruptible"
    """A reply that nobody may stop, such as a legal notice; what the user says meanwhile is a turn all the same."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What is known of one frame that ends at instant `at`: how likely it is speech, and the agent's own echo."""

    probability: float
    at: float
    echo: float = 0.0

    @property
    def evidence(self) -> float:
        """That the user speaks, 0 to 1. There are no seconds of deafness: an echo only weighs less."""
        return self.probability * (1.0 - self.echo)


@dataclass(frozen=True, slots=True)
class Pause:
    """First evidence that the user speaks over the agent, since `onset_at`: the agent is to stand still at once."""

    onset_at: float
    at: float


@dataclass(frozen=True, slots=True)
class Resume:
    """It was a cough or a backchannel: the agent is to go on where it stood still."""

    at: float


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The user means it: the reply ends here. SpeechStarted is next, unless the turn was open already."""

    onset_at: float
    at: float


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The user speaks since `onset_at`. It begins a turn, or goes on with one that has not ended."""

    onset_at: float
    at: float


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The user has been silent since `ended_at`; the turn may go on."""

    ended_at: float
    at: float


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The user's turn, from `onset_at` to `ended_at`, is over: the agent may answer."""

    onset_at: float
    ended_at: float
    at: float


Action = Pause | Resume | Interrupt | SpeechStarted | SpeechStopped | TurnEnded


class TurnEndModel(Protocol):
    """Judges from words or sound whether a silent user has said all."""

    def probability(self, onset_at: float, ended_at: float) -> float | None:
        """How likely the turn between these instants is over, 0 to 1; None without an opinion.

        Asked at every frame of silence, so it gives the opinion that it has and never waits for a better one.
        """
        ...


class FixedSilence:
    """No opinion: a turn is over after `Settings.silence`."""

    def probability(self, onset_at: float, ended_at: float) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Settings:
    """When speech is speech, an interruption an interruption and a turn over; seconds and probabilities.

    Raises ValueError for values that contradict each other.
    """

    enter: float = 0.5
    """Evidence from which a frame is speech: Silero's own threshold."""
    leave: float = 0.35
    """Evidence down to which it still is, right after speech: Silero's threshold less 0.15."""
    sure: float = 0.75
    """Evidence of which one frame is enough to pause; less must last for `first_evidence`."""
    first_evidence: float = 0.06
    """Two of Silero's frames. An echo that is not fully recognised makes single weak ones."""
    wary: float = 2.0
    """How long after a Resume evidence must last for `wary_evidence`, however strong it is: noise and echo come back,
    and the second stumble of a reply is worse than the first."""
    wary_evidence: float = 0.128
    """Four of Silero's frames: by then a new echo has been recognised."""
    gap: float = 0.3
    """Silence that ends speech: more than a plosive or a breath inside a phrase. It ends a pause as well."""
    min_speech: float = 0.12
    """Speech that makes a turn while the agent is silent. The shortest "mhm" measured gives Silero 0.16 s."""
    interruption: float = 0.6
    """Speech that makes a turn while the agent speaks, counted in frames of speech, after which the user still speaks.
    VADs lengthen a word by some 0.1 s: of 30 backchannels of 0.22 to 0.47 s, Silero lets none reach it, Earshot one."""
    max_pause: float = 1.5
    """A pause that is neither confirmed nor given up by then ends; flickering noise must not silence the agent."""
    silence: float = 0.5
    """Silence that ends a turn of which the model has no opinion. OpenAI's server VAD and LiveKit wait as long."""
    short_silence: float = 0.3
    """Where the model is sure that it is over."""
    long_silence: float = 1.5
    """Where the model is sure that it is not."""
    over: float = 0.8
    """The model is sure that the turn is over from here on."""
    not_over: float = 0.2
    """The model is sure that it is not over up to here."""

    def __post_init__(self) -> None:
        ascending("0 < leave <= enter <= sure <= 1", 0.0, self.leave, self.enter, self.sure, 1.0)
        ascending("0 <= not_over < over <= 1", -1e-9, self.not_over, self.over, 1.0)
        evidence = (self.first_evidence, self.wary_evidence, self.interruption)
        ascending("0 < first_evidence <= wary_evidence <= interruption", 0.0, *evidence)
        ascending("0 <= wary", -1e-9, self.wary)
        ascending(
            "0 < min_speech <= interruption <= max_pause", 0.0, self.min_speech, self.interruption, self.max_pause
        )
        silences = (self.gap, self.short_silence, self.silence, self.long_silence)
        ascending("0 < gap <= short_silence <= silence <= long_silence", 0.0, *silences)


def ascending(rule: str, lowest: float, *values: float) -> None:
    """Raises ValueError with the rule unless the values rise from above `lowest`; NaN never does."""
    rising = all(a <= b for a, b in itertools.pairwise(values))
    if not (rising and values[0] > lowest):
        raise ValueError(f"{rule} is to hold, not {', '.join(f'{value:g}' for value in values)}")


@dataclass(slots=True)
class Burst:
    """Speech without a gap of silence in it."""

    onset_at: float
    last_at: float
    """The end of its last frame of speech."""
    voiced: float = 0.0
    """Seconds of frames that are speech."""
    streak: float = 0.0
    """Those without a break, up to now."""
    started: bool = False
    """It has made a turn, or goes on with one."""
    interrupted: bool = False
    given_up: bool = False
    """A pause for it was too long: it may interrupt, but pauses no more."""


@dataclass(slots=True)
class Turn:
    """What the user says, from the first burst's start; over once they were silent long enough."""

    onset_at: float
    ended_at: float


class TurnTaking:
    """Takes every frame of one user's microphone in order of time, and says what is to be done.

    A microphone that stands still is to be told as silence, else an open pause stays open. At most one pause is open;
    Resume comes only for an open one; one burst of speech interrupts at most once, so no reply should begin while
    `user_speaks`; instants never go back.
    """

    def __init__(
        self, frame_seconds: float, settings: Settings | None = None, model: TurnEndModel | None = None
    ) -> None:
        self._frame_seconds = frame_seconds
        self._settings, self._model = settings or Settings(), model or FixedSilence()
        self._burst: Burst | None = None
        self._turn: Turn | None = None
        self._paused_at: float | None = None
        self._resumed_at = -math.inf

    @property
    def paused(self) -> bool:
        """The agent stands still until Resume or Interrupt."""
        return self._paused_at is not None

    @property
    def user_speaks(self) -> bool:
        """Somebody speaks who has the turn."""
        return self._burst is not None and self._burst.started

    @property
    def waiting(self) -> bool:
        """Something is open that silence will end: speech, a pause, a turn."""
        return self._burst is not None or self._turn is not None or self.paused

    def hear(self, heard: Heard, agent: AgentState) -> list[Action]:
        """What follows from one frame, while the agent is in the state given."""
        voiced = self._listen(heard)
        actions = self._close_pause(heard.at, agent)
        if self._burst is None:
            return actions + self._end_turn(heard.at)
        if voiced:
            return actions + self._weigh(self._burst, heard, agent)
        if heard.at - self._burst.last_at >= self._settings.gap - 1e-9:
            return actions + self._end_burst(self._burst, heard.at)
        return actions

    def confirm(self, at: float) -> list[Action]:
        """Interrupts for what is being said, however short: a transcript ("stop") knows better than its duration."""
        if self._burst is None or not self.paused:
            return []
        return self._interrupt(self._burst, at)

    def _listen(self, heard: Heard) -> bool:
        """Whether the frame is speech; if so, it is counted."""
        burst = self._burst
        threshold = self._settings.leave if burst and burst.streak else self._settings.enter
        if heard.evidence < threshold:
            if burst:
                burst.streak = 0.0
            return False
        if burst is None:
            burst = self._burst = Burst(heard.at - self._frame_seconds, heard.at)
        burst.last_at = heard.at
        burst.voiced += self._frame_seconds
        burst.streak += self._frame_seconds
        return True

    def _close_pause(self, at: float, agent: AgentState) -> list[Action]:
        """Ends a pause that is too long, or whose reply may not be paused any more or has gone."""
        if self._paused_at is None:
            return []
        late = at - self._paused_at >= self._settings.max_pause - 1e-9
        if agent is AgentState.SILENT:
            self._paused_at = None
            return []
        if late and self._burst:
            self._burst.given_up = True
        return self._resume(at) if late or agent is AgentState.UNINTERRUPTIBLE else []

    def _weigh(self, burst: Burst, heard: Heard, agent: AgentState) -> list[Action]:
        """What one more frame of speech means."""
        settings = self._settings
        enough = settings.min_speech if agent is AgentState.SILENT else settings.interruption
        lasting = burst.voiced >= enough - 1e-9
        if agent is AgentState.SPEAKING and not burst.interrupted:
            if lasting:
                return self._interrupt(burst, heard.at)
            return self._pause(burst, heard)
        return self._start(burst, heard.at) if lasting else []

    def _pause(self, burst: Burst, heard: Heard) -> list[Action]:
        if self.paused or burst.given_up or not self._evident(burst, heard):
            return []
        self._paused_at = heard.at
        return [Pause(burst.onset_at, heard.at)]

    def _evident(self, burst: Burst, heard: Heard) -> bool:
        """Whether this is evidence enough to pause."""
        settings = self._settings
        if heard.at - self._resumed_at < settings.wary:
            return burst.streak >= settings.wary_evidence - 1e-9
        return heard.evidence >= settings.sure or burst.streak >= settings.first_evidence - 1e-9

    def _interrupt(self, burst: Burst, at: float) -> list[Action]:
        self._paused_at, burst.interrupted = None, True
        return [Interrupt(burst.onset_at, at), *self._start(burst, at)]

    def _resume(self, at: float) -> list[Action]:
        if not self.paused:
            return []
        self._paused_at, self._resumed_at = None, at
        return [Resume(at)]

    def _start(self, burst: Burst, at: float) -> list[Action]:
        """The burst makes a turn, or goes on with the open one."""
        if burst.started:
            return []
        burst.started = True
        self._turn = self._turn or Turn(burst.onset_at, burst.last_at)
        return [SpeechStarted(burst.onset_at, at)]

    def _end_burst(self, burst: Burst, at: float) -> list[Action]:
        self._burst = None
        actions = self._resume(at)
        if burst.started and self._turn:
            self._turn.ended_at = burst.last_at
            actions.append(SpeechStopped(burst.last_at, at))
        return actions + self._end_turn(at)

    def _end_turn(self, at: float) -> list[Action]:
        turn = self._turn
        if turn is None or at - turn.ended_at < self._patience(turn) - 1e-9:
            return []
        self._turn = None
        return [TurnEnded(turn.onset_at, turn.ended_at, at)]

    def _patience(self, turn: Turn) -> float:
        """Seconds of silence that end this turn."""
        settings = self._settings
        probability = self._model.probability(turn.onset_at, turn.ended_at)
        if probability is None or settings.not_over < probability < settings.over:
            return settings.silence
        return settings.short_silence if probability >= settings.over else settings.long_silence
