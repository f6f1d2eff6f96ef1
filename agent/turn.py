"""Turns speech probabilities into what a conversation does: pause, resume or interrupt the agent, end a user's turn.

It does not know audio, words, clocks or the reply itself: every instant is an argument, every decision a plain value;
who knows words is a Judge.

Barge-in has two steps. The first evidence of speech pauses the agent, which is what the user hears; only speech that
lasts interrupts it for good, or words that are known to be none of a listener's. Without a transcript, duration is what
tells an interruption from a backchannel ("mhm", "yeah": 0.2 to 0.45 s; Full-Duplex-Bench counts as one what is shorter
than 1 s and has at most two words), and a lone "Stop." is taken for one. Others wait 0.5 s (LiveKit's min_duration,
Tencent RTC) or 0.8 s (Hume EVI) before the agent falls silent at all; here the wait costs nothing audible.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

MAX_QUESTIONS = 3
"""About one burst, which may fall silent and go on more often."""
MAX_LATE = 3
"""Questions in a row of which the answer came too late: then no more are asked, and no pause waits for one."""


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


class Judge(Protocol):
    """Knows more than durations tell: words, or what a model makes of the sound.

    Asked at every frame of silence, it gives the answer that it has and never waits for a better one. At most one
    question is open, about the last instants that it was asked for.
    """

    @property
    def asking(self) -> bool:
        """The last question is still being looked into."""
        ...

    def interrupts(self, onset_at: float, ended_at: float) -> bool:
        """What was said over the agent between these instants is known to be more than a backchannel."""
        ...

    def over(self, onset_at: float, ended_at: float) -> float | None:
        """How likely the turn between these instants is over, 0 to 1; None without an opinion, or none yet."""
        ...

    def drop(self) -> None:
        """The last question does not matter any more."""
        ...


class Durations:
    """Knows nothing but durations: short speech interrupts nobody, and a turn is over after `Settings.silence`."""

    asking = False

    def interrupts(self, onset_at: float, ended_at: float) -> bool:
        return False

    def over(self, onset_at: float, ended_at: float) -> float | None:
        return None

    def drop(self) -> None:
        """Nothing is asked."""


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
    words_from: float = 0.15
    """Speech over the agent that is worth asking for its words: a cough is shorter, and "no" is not."""
    words_after: float = 0.1
    """Silence behind it after which they are asked for, of `gap` at most: the closure of a plosive is shorter."""
    words_wait: float = 0.5
    """How much longer than `gap` a pause lasts, and than `silence` a turn, while the judge still looks into it."""
    silence: float = 0.5
    """Silence that ends a turn of which the judge has no opinion. OpenAI's server VAD and LiveKit wait as long."""
    short_silence: float = 0.3
    """Where the judge is sure that it is over."""
    long_silence: float = 1.5
    """Where the judge is sure that it is not."""
    over: float = 0.8
    """The judge is sure that the turn is over from here on."""
    not_over: float = 0.2
    """The judge is sure that it is not over up to here."""

    def __post_init__(self) -> None:
        ascending("0 < leave <= enter <= sure <= 1", 0.0, self.leave, self.enter, self.sure, 1.0)
        ascending("0 <= not_over < over <= 1", -1e-9, self.not_over, self.over, 1.0)
        evidence = (self.first_evidence, self.wary_evidence, self.interruption)
        ascending("0 < first_evidence <= wary_evidence <= interruption", 0.0, *evidence)
        for name in ("wary", "words_from", "words_after", "words_wait"):
            ascending(f"0 <= {name}", -1e-9, getattr(self, name))
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
    asked: bool = False
    """The judge was asked about it up to `last_at`."""
    questions: int = 0
    """That it was asked until now."""


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

    def __init__(self, frame_seconds: float, settings: Settings | None = None, judge: Judge | None = None) -> None:
        self._frame_seconds = frame_seconds
        self._settings, self._judge = settings or Settings(), judge or Durations()
        self._burst: Burst | None = None
        self._turn: Turn | None = None
        self._paused_at: float | None = None
        self._resumed_at = -math.inf
        self._late = 0
        """Answers in a row that came too late for a pause."""

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
        return actions + self._fall_silent(self._burst, heard.at)

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
        self._go_on(burst, heard.at - self._frame_seconds)
        burst.last_at = heard.at
        burst.voiced += self._frame_seconds
        burst.streak += self._frame_seconds
        return True

    def _go_on(self, burst: Burst, at: float) -> None:
        """Speech again, or still: what was asked about the part before it is out of date."""
        if burst.asked and at - burst.last_at >= self._settings.gap - 1e-9:
            burst.voiced = 0.0  # only the question has kept it open: what lasts is what begins now
        self._forget()

    def _forget(self) -> None:
        if self._burst and self._burst.asked:
            self._burst.asked = False
            self._judge.drop()

    def _close_pause(self, at: float, agent: AgentState) -> list[Action]:
        """Ends a pause that is too long, or whose reply may not be paused any more or has gone."""
        if self._paused_at is None:
            return []
        late = at - self._paused_at >= self._settings.max_pause - 1e-9
        if agent is AgentState.SILENT:
            self._end_pause()
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
        self._late += self._unanswered
        self._end_pause()
        self._resumed_at = at
        return [Resume(at)]

    def _end_pause(self) -> None:
        """Not by an interruption: what was said is of no interest any more."""
        self._paused_at = None
        self._forget()

    def _start(self, burst: Burst, at: float) -> list[Action]:
        """The burst makes a turn, or goes on with the open one."""
        if burst.started:
            return []
        burst.started = True
        if self._turn:
            self._judge.drop()
        self._turn = self._turn or Turn(burst.onset_at, burst.last_at)
        return [SpeechStarted(burst.onset_at, at)]

    def _fall_silent(self, burst: Burst, at: float) -> list[Action]:
        """What one more frame of silence behind a burst means."""
        settings, silence = self._settings, at - burst.last_at + 1e-9
        actions = self._ask(burst, at) if self.paused and self._worth_asking(burst, silence) else []
        patience = settings.gap + (settings.words_wait if self._unanswered else 0.0)
        return actions if silence < patience else actions + self._end_burst(burst, at)

    @property
    def _unanswered(self) -> bool:
        """The agent stands still, and what was said meanwhile is being looked into."""
        return self.paused and self._burst is not None and self._burst.asked and self._judge.asking

    def _worth_asking(self, burst: Burst, silence: float) -> bool:
        """Whether the judge is to be asked about it, once more if it was already."""
        settings = self._settings
        if silence < min(settings.words_after, settings.gap) or self._late >= MAX_LATE:
            return burst.asked
        lasting = burst.questions > 0 or burst.voiced >= settings.words_from - 1e-9
        return burst.asked or (lasting and burst.questions < MAX_QUESTIONS)

    def _ask(self, burst: Burst, at: float) -> list[Action]:
        """Interrupts for what was said, however short, where its words are known to mean that."""
        burst.questions += not burst.asked
        burst.asked = True
        interrupts = self._judge.interrupts(burst.onset_at, burst.last_at)
        if not self._judge.asking:
            self._late = 0
        return self._interrupt(burst, at) if interrupts else []

    def _end_burst(self, burst: Burst, at: float) -> list[Action]:
        actions = self._resume(at)
        self._burst = None
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
        if settings.short_silence == settings.long_silence:
            return settings.silence
        probability = self._judge.over(turn.onset_at, turn.ended_at)
        if probability is None:
            return settings.silence + (settings.words_wait if self._judge.asking else 0.0)
        if settings.not_over < probability < settings.over:
            return settings.silence
        return settings.short_silence if probability >= settings.over else settings.long_silence
