"""One utterance on its way, from its speak message to its speech.stopped, and what the client is told of it.

It does not know the queue that it stands in, nor who makes or plays its audio: chunks and cues are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.heard import Loudness, heard_text
from agent.listener import ListenerReports
from agent.playout import Cue, CueKind
from agent.protocol import (
    Speak,
    SpeechContinued,
    SpeechMessage,
    SpeechPaused,
    SpeechProgress,
    SpeechStarted,
    SpeechStopped,
    SpeechUnderrun,
)
from engine.core import Chunk, FinishReason, Request


@dataclass(slots=True)
class Utterance:
    """One thing to say. Instants are those of the server's clock, samples those of the voice."""

    speak: Speak
    request: Request
    sample_rate: int
    language: str
    """In which the voice has the text written out; empty: not at all."""
    asked_at: float
    waited: bool
    """Another utterance was there before it."""
    event: str | None = None
    """The type of the client's message that asked for it, if one did."""
    request_id: int | None = None
    first_pcm_at: float | None = None
    reason: str | None = None
    """Why the engine makes no more of it."""
    played_samples: int | None = None
    """All of it, once it has been played."""
    paused: bool = False
    """It stands still because the engine is late."""
    loudness: Loudness | None = None
    """Of all audio that came so far."""
    underruns: int = 0
    text: str = ""
    """As far as it has come."""
    writing: bool = False
    """More of it is to come."""
    text_event: str | None = None
    """The type of the client's messages that wrote it, if they are all of one."""

    def __post_init__(self) -> None:
        self.text, self.writing, self.text_event = self.speak.text, self.speak.open, self.event

    @property
    def id(self) -> str:
        return self.speak.id

    @property
    def in_engine(self) -> bool:
        return self.request_id is not None and self.reason is None

    @property
    def over(self) -> bool:
        """The engine makes no more of it, and all that it made was played."""
        return self.reason is not None and self.played_samples is not None

    @property
    def ttfa(self) -> float:
        """Seconds from the speak message to the first PCM, which is there."""
        assert self.first_pcm_at is not None
        return self.first_pcm_at - self.asked_at

    def take(self, chunk: Chunk, now: float) -> bool:
        """Some of its audio came; whether it is the first."""
        first = self.first_pcm_at is None
        if first:
            self.first_pcm_at = now
            self.loudness = Loudness(self.sample_rate)
        assert self.loudness is not None
        self.loudness.push(chunk.pcm)
        return first

    def take_cue(self, cue: Cue) -> SpeechMessage | None:
        """Something happened inside a packet: what is to be told of it, if anything."""
        self.paused = cue.kind is CueKind.PAUSED and not cue.for_text
        heard_ms = self._ms(cue.played_samples)
        match cue.kind:
            case CueKind.STARTED:
                return SpeechStarted(id=self.id, ttfa_ms=1000 * self.ttfa)
            case CueKind.RESUMED if not cue.for_text:
                self.underruns += 1
                missed_ms = self._ms(cue.missed_samples)
                return SpeechUnderrun(id=self.id, heard_ms=heard_ms, missed_ms=missed_ms, underruns=self.underruns)
            case CueKind.SUSPENDED:
                return SpeechPaused(id=self.id, heard_ms=heard_ms)
            case CueKind.CONTINUED:
                return SpeechContinued(id=self.id, heard_ms=heard_ms)
            case CueKind.ENDED:
                self.played_samples = cue.played_samples
        return None

    def progress(self, sent_samples: int, buffered: float) -> SpeechProgress:
        """How it is getting on, with so many seconds of audio ready."""
        heard_ms = self._ms(sent_samples)
        return SpeechProgress(id=self.id, heard_ms=heard_ms, buffered_ms=1000 * buffered, underruns=self.underruns)

    def stopped(self, reason: str, sent_samples: int, listener: ListenerReports) -> SpeechStopped:
        """The last word on it; of what was cut, only what came out of the listener's jitter buffer was heard."""
        cut = reason == FinishReason.CANCELLED
        samples = listener.heard_samples(sent_samples, self.sample_rate) if cut else sent_samples
        return SpeechStopped(
            id=self.id,
            reason=str(reason),
            heard_ms=self._ms(samples),
            sent_ms=self._ms(sent_samples),
            heard=self._heard_text(samples),
            underruns=self.underruns,
        )

    def _heard_text(self, samples: int) -> str:
        """Of its text, what these samples of it say; all of it, once it was said to its end."""
        text, whole = self.text, self.reason == FinishReason.END and not self.writing
        if whole and samples == self.played_samples:
            return text
        if self.loudness is None:
            return ""
        return heard_text(text, samples, self.loudness, whole, language=self.language)

    def _ms(self, samples: int) -> float:
        return 1000 * samples / self.sample_rate
