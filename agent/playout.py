"""Holds the speech that is ready and gives it out in packets, with no more lead than the engine's lateness asks for.

It knows neither clocks nor networks nor engines: every instant is an argument.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.lateness import Lateness

PCM = NDArray[np.int16]
"""Mono samples, shape [samples]."""

NOTHING: PCM = np.zeros(0, np.int16)

FADE_SECONDS = 0.01
"""How long speech takes to fall silent where it is flushed or paused, and to come back after a pause: a cut at full
level is heard as a click."""
MIN_LEAD = 0.02
"""Seconds that a chunk should come before its audio is needed: one packet, for what lies between engine and packet."""
MAX_HOLD = 0.4
"""Seconds that speech is held at most before it starts or goes on, however late the engine is."""
FIRST_EXTRA = 0.04
"""Seconds that the lead grows by after an underrun; twice as much after the next, and so on."""
EXTRA_HALF_LIFE = 5.0
"""Seconds of steady playback in which half of that is given back."""


class CueKind(StrEnum):
    """What a packet means for an utterance."""

    STARTED = "started"
    PAUSED = "paused"
    """Its audio ran out before its end: an underrun, unless the next thing that comes is that end."""
    RESUMED = "resumed"
    SUSPENDED = "suspended"
    """It plays, or has audio to begin with, and PlayoutBuffer.pause keeps it back: no underrun."""
    CONTINUED = "continued"
    """After SUSPENDED, from that very sample; what had not begun is STARTED instead."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Cue:
    """Something that happens inside a packet, at the sample that is played at instant `at`."""

    kind: CueKind
    utterance: str
    at: float
    played_samples: int
    missed_samples: int = 0
    """RESUMED: the silence since PAUSED, without what fell into a pause."""
    for_text: bool = False
    """PAUSED and RESUMED: its text, which is still being written, was late. That is no underrun."""

    @property
    def running(self) -> bool:
        """Whether the utterance's playback clock runs from here on."""
        return self.kind in (CueKind.STARTED, CueKind.RESUMED, CueKind.CONTINUED)


@dataclass(frozen=True, slots=True)
class Packet:
    """What one pop gave out: `samples` [num_samples], silence where there is no speech.

    `playing` is the utterance that plays through its end, None in silence; `played_samples` of it were played at `at`.
    """

    samples: PCM
    at: float
    cues: tuple[Cue, ...] = ()
    playing: str | None = None
    played_samples: int = 0


class Standing(NamedTuple):
    """What giving out a packet changes in a speech, beside its samples."""

    started: bool
    playing: bool
    suspended: bool
    rise: int
    missed: int
    held_since: float | None


@dataclass(slots=True)
class Speech:
    """One utterance's audio that is still to be played."""

    utterance: str
    pieces: deque[PCM] = field(default_factory=deque)
    buffered: int = 0
    played: int = 0
    missed: int = 0
    complete: bool = False
    started: bool = False
    playing: bool = False
    suspended: bool = False
    """SUSPENDED was told, and neither CONTINUED nor STARTED since."""
    rise: int = 0
    """Samples under the fade-in that are still to be played."""
    held_since: float | None = None
    """Arrival of the first samples since it last stood still."""
    start_at: float = 0.0
    """Not to be played before, while it stands still."""
    due_at: float | None = None
    """When the next chunk is to be there: as predicted, or later, where the engine has time to serve others first."""
    awaits_text: bool = False
    """The next chunk waits for text."""
    text_late: bool = False
    """What it goes on with, once it stands still, did."""

    @property
    def over(self) -> bool:
        return self.complete and not self.buffered

    def add(self, pcm: PCM) -> None:
        self.pieces.append(pcm)
        self.buffered += pcm.size

    def take(self, out: PCM) -> int:
        """Moves samples into `out` until it is full or there are no more; returns how many."""
        filled = 0
        while filled < out.size and self.pieces:
            piece = self.pieces.popleft()
            part = piece[: out.size - filled]
            out[filled : filled + part.size] = part
            filled += part.size
            if part.size < piece.size:
                self.pieces.appendleft(piece[part.size :])
        self.buffered -= filled
        self.played += filled
        return filled

    def put_back(self, samples: PCM) -> None:
        """Undoes a take of these samples."""
        self.pieces.appendleft(samples)
        self.buffered += samples.size
        self.played -= samples.size

    def peek(self, num_samples: int) -> PCM:
        """The samples that come next, as many as there are."""
        out = np.zeros(num_samples, np.int16)
        out = out[: self.take(out)]
        self.put_back(out)
        return out

    @property
    def standing(self) -> Standing:
        return Standing(self.started, self.playing, self.suspended, self.rise, self.missed, self.held_since)

    @standing.setter
    def standing(self, was: Standing) -> None:
        self.started, self.playing, self.suspended, self.rise, self.missed, self.held_since = was


class Part(NamedTuple):
    """What a packet took of a speech: samples as they were before any fade, and how it stood before."""

    speech: Speech
    before: Standing
    taken: PCM


class PlayoutBuffer:
    """Utterances in order, back to back; each starts as soon as what is to come will be there in time.

    A chunk comes with the engine's slack: the seconds by which the next chunk is predicted to be early. How far that is
    to be trusted is learned: `lead` is a decaying quantile of how late chunks came against their prediction, as far as
    that was not the engine's patience with others, plus an extra after every underrun. Slack that covers the lead lets
    speech start at once, otherwise it is held for what is lacking, at most `max_hold`. `jitter` is another quantile, of
    the time that chunks took to come here: the engine learns it, to be done that much sooner. A packet counts as sent
    once the next one is popped; `flush` and `pause` are told about the last.

    A pause fades out over samples that are played again, and resuming begins at the first of them with a fade-in: what
    is heard between the fades is the utterance, no sample lost and none twice. The heard position stands still from
    the first sample of the fade-out on.
    """

    def __init__(self, sample_rate: int, *, max_hold: float = MAX_HOLD) -> None:
        self.sample_rate = sample_rate
        self.epoch = 0
        self._max_hold = max_hold
        self._lateness, self._transit = Lateness(), Lateness()
        self._extra = 0.0
        self._queue: deque[Speech] = deque()
        self._paused = False
        self._fade_samples = int(FADE_SECONDS * sample_rate)
        self._fade = self._last_fade = self._last_samples = NOTHING
        self._last_parts: list[Part] = []
        """Of the packet popped last, in order; a speech that could not play then took nothing."""

    @property
    def paused(self) -> bool:
        """Whether speech is kept back, by `pause`."""
        return self._paused

    @property
    def buffered(self) -> float:
        """Seconds of speech that are ready."""
        return sum(speech.buffered for speech in self._queue) / self.sample_rate

    @property
    def jitter(self) -> float:
        """Seconds that chunks take from the engine's hand to this buffer: the decaying quantile. How much later than
        predicted they come is not in it: that is the engine's own doing where it serves others first, because there is
        time, and told of it the engine would take its patience for urgency."""
        return self._transit.value

    @property
    def lead(self) -> float:
        """Seconds of slack with which speech starts at once."""
        return min(self._max_hold, max(MIN_LEAD, self._lateness.value) + self._extra)

    def enqueue(self, utterance: str) -> None:
        """Gives the utterance its place behind those that are there; its audio may come in any order of arrival."""
        assert all(speech.utterance != utterance for speech in self._queue), f"{utterance} is queued already"
        self._queue.append(Speech(utterance))

    def heard(self, utterance: str) -> int:
        """Samples of a queued utterance that were given out; 0 for any other."""
        speech = self._find(utterance)
        return speech.played if speech else 0

    def push(
        self,
        utterance: str,
        epoch: int,
        pcm: PCM,
        now: float,
        slack: float,
        final: bool = False,
        made_at: float | None = None,
        text_late: bool = False,
    ) -> bool:
        """Takes a chunk that arrived at `now` and left the engine at `made_at`, where that is known; its slack is in
        seconds, infinite where the next one waits for text. `text_late`: it did so itself, for too long. False: it is
        of an older epoch, and dropped."""
        if made_at is not None:
            self._transit.observe(now - made_at)
        speech = self._find(utterance)
        if epoch < self.epoch or speech is None:
            return False
        if speech.due_at is not None:
            self._lateness.observe(now - speech.due_at)
        if pcm.size and not speech.playing and not speech.suspended and speech.held_since is None:
            speech.held_since, speech.text_late = now, text_late
            if speech.started and not text_late:
                self._extra = min(self._max_hold, max(FIRST_EXTRA, 2 * self._extra))
        speech.add(pcm)
        speech.complete |= final
        speech.awaits_text = slack == math.inf and not final
        self._schedule(speech, now, slack)
        return True

    def end(self, utterance: str) -> None:
        """No more audio of it will come. What is held is let go."""
        speech = self._find(utterance)
        if speech is not None:
            speech.complete = True

    def pop(self, num_samples: int, now: float) -> Packet:
        """The next packet, of which the first sample is due at `now`."""
        samples = np.zeros(num_samples, np.int16)
        cues: list[Cue] = []
        self._last_samples, self._last_fade, self._last_parts = samples, self._fade, []
        if self._paused:
            self._suspend(now, cues)
        filled = min(num_samples, self._fade.size)
        samples[:filled], self._fade = self._fade[:filled], self._fade[filled:]
        if not self._paused:
            self._fill(samples, filled, now, cues)
        return self._packet(samples, now, cues)

    def pause(self, *, unsent: bool = False) -> None:
        """Fades out and keeps back all speech, also what is still to come, until `resume` or `flush`.

        `unsent`: the packet popped last was not sent and never will be: it is taken back, with its cues. While paused
        already, this changes nothing, and that packet is to be sent.
        """
        if self._paused:
            return
        self._paused = True
        if unsent:
            self._take_back()
        for speech in self._queue:
            speech.due_at = None  # an engine that is told of a clock that stands still rightly serves others first

    def resume(self) -> None:
        """Goes on with the next packet, where the fade-out began. Without a pause this changes nothing."""
        self._paused = False

    def flush(self, epoch: int, *, unsent: bool = False) -> dict[str, int]:
        """Forgets everything, a pause too, and fades out; returns how many samples of each utterance were sent.

        `unsent`: the packet popped last was not sent and never will be, so the fade begins where it began. From now on
        only chunks of `epoch` are taken.
        """
        assert epoch > self.epoch, f"an epoch only grows: {epoch} after {self.epoch}"
        heard = {speech.utterance: speech.played for speech in self._queue}
        if unsent:
            heard |= self._sent_before()
        samples = self._unsent() if unsent else self._upcoming()
        if samples.size:  # else a fade that is still to be given out stays
            self._fade = faded(samples[: self._fade_samples])
        self._queue.clear()
        self._last_samples, self._last_parts = NOTHING, []
        self._paused = False
        self.epoch = epoch
        return heard

    def _find(self, utterance: str) -> Speech | None:
        return next((speech for speech in self._queue if speech.utterance == utterance), None)

    def _schedule(self, speech: Speech, now: float, slack: float) -> None:
        """Says when the speech may start, and when its next chunk is predicted."""
        start_at = self._assumed_start(speech, now)
        run_out_at = start_at + speech.buffered / self.sample_rate
        foretold = slack < math.inf and not self._paused
        speech.due_at = run_out_at - min(slack, MIN_LEAD) if foretold else None
        if speech.held_since is not None:
            held_since = speech.held_since if speech.started else start_at
            speech.start_at = min(start_at + max(0.0, self.lead - slack), held_since + self._max_hold)

    def _assumed_start(self, speech: Speech, now: float) -> float:
        """The instant from which a chunk's slack takes what is buffered to be played, without a pause.

        At first that is the first delivery; then the listener's clock counts: one that stands still waits for `now`,
        and speech behind other speech follows it.
        """
        if speech is self._queue[0] and not speech.started and speech.held_since is not None:
            return speech.held_since
        ahead = itertools.takewhile(lambda other: other is not speech, self._queue)
        return now + sum(other.buffered for other in ahead) / self.sample_rate

    def _fill(self, samples: PCM, filled: int, now: float, cues: list[Cue]) -> None:
        """Gives out what may play, from `filled` samples of the packet on."""
        while filled < samples.size and self._queue:
            speech = self._queue[0]
            before, taken = speech.standing, NOTHING
            plays = self._advance(speech, now + filled / self.sample_rate, cues)
            if plays:
                taken = self._give(speech, samples[filled:])
            self._last_parts.append(Part(speech, before, taken))
            if not plays:
                break
            filled += taken.size
            self._finish(speech, filled < samples.size, now + filled / self.sample_rate, cues)
        self._account(samples.size, samples.size - filled)

    def _give(self, speech: Speech, out: PCM) -> PCM:
        """Moves samples into `out`, under what is left of a fade-in; returns them without it."""
        given = out[: speech.take(out)]
        taken = given.copy()
        given[:] = self._risen(given, speech)
        speech.rise = max(0, speech.rise - given.size)
        return taken

    def _suspend(self, now: float, cues: list[Cue]) -> None:
        """Lets end what has been played whole, and suspends what plays behind it or has audio to begin with."""
        while self._queue:
            speech = self._queue[0]
            self._last_parts.append(Part(speech, speech.standing, NOTHING))
            if not speech.over:
                break
            self._finish(speech, False, now, cues)
        if not self._queue or speech.suspended:
            return
        if speech.playing:
            self._fade = faded(self._upcoming())
            speech.rise = self._fade_samples
        if speech.playing or (speech.buffered and not speech.started):
            cues.append(Cue(CueKind.SUSPENDED, speech.utterance, now, speech.played))
            speech.playing, speech.suspended = False, True

    def _take_back(self) -> None:
        """Makes the packet popped last one that never was; what was pushed since stays."""
        for part in reversed(self._last_parts):
            part.speech.put_back(part.taken)
            part.speech.standing = part.before
            if not self._queue or self._queue[0] is not part.speech:  # it had ended
                self._queue.appendleft(part.speech)
        self._fade = self._last_fade
        self._last_samples, self._last_parts = NOTHING, []

    def _advance(self, speech: Speech, at: float, cues: list[Cue]) -> bool:
        """Whether the speech plays at `at`, starting it where it may."""
        if speech.playing or speech.over:
            return True
        if speech.suspended and speech.started:
            kind = CueKind.CONTINUED
        elif not speech.buffered or (at < speech.start_at and not speech.complete):
            return False
        else:
            kind = CueKind.RESUMED if speech.started else CueKind.STARTED
        late = kind is CueKind.RESUMED and speech.text_late
        cues.append(Cue(kind, speech.utterance, at, speech.played, speech.missed, late))
        speech.started = speech.playing = True
        speech.suspended, speech.held_since, speech.missed = False, None, 0
        return True

    def _finish(self, speech: Speech, hungry: bool, at: float, cues: list[Cue]) -> None:
        """Ends the speech where it is over, and lets it stand still where the packet wanted more of it."""
        if speech.over:
            cues.append(Cue(CueKind.ENDED, speech.utterance, at, speech.played))
            self._queue.popleft()
            if self._queue and self._queue[0].held_since is not None:
                self._queue[0].held_since = at  # until here it was not held, it had to wait for its turn
        elif hungry:
            cues.append(Cue(CueKind.PAUSED, speech.utterance, at, speech.played, for_text=speech.awaits_text))
            speech.playing = False

    def _account(self, num_samples: int, silent: int) -> None:
        """Counts the silence inside an utterance, and gives back some of the lead in steady playback."""
        head = self._queue[0] if self._queue else None
        if head and head.playing:
            self._extra *= 0.5 ** (num_samples / self.sample_rate / EXTRA_HALF_LIFE)
        elif head and head.started:
            head.missed += silent

    def _packet(self, samples: PCM, now: float, cues: list[Cue]) -> Packet:
        head = self._queue[0] if self._queue and self._queue[0].playing else None
        if head is None:
            return Packet(samples, now, tuple(cues))
        return Packet(samples, now, tuple(cues), head.utterance, self._sent_before()[head.utterance])

    def _sent_before(self) -> dict[str, int]:
        """Of the speech in the packet popped last, the samples that were given out before it."""
        sent: dict[str, int] = {}
        for speech, _, taken in self._last_parts:
            sent[speech.utterance] = sent.get(speech.utterance, speech.played) - taken.size
        return sent

    def _unsent(self) -> PCM:
        """The samples of the packet popped last; none if it came out of a pause, in which nothing was heard."""
        paused = bool(self._last_parts) and self._last_parts[0].before.suspended
        return NOTHING if paused else self._last_samples

    def _upcoming(self) -> PCM:
        """The samples that would be heard next, enough for a fade; none in silence."""
        if not self._queue or not self._queue[0].playing:
            return NOTHING
        return self._risen(self._queue[0].peek(self._fade_samples), self._queue[0])

    def _risen(self, samples: PCM, speech: Speech) -> PCM:
        """The samples that the speech goes on with, under what is left of its fade-in."""
        if not speech.rise:
            return samples
        ramp = rising(self._fade_samples)[self._fade_samples - speech.rise :][: samples.size]
        return np.concatenate([(samples[: ramp.size] * ramp).astype(np.int16), samples[ramp.size :]])


def faded(samples: PCM) -> PCM:
    """The samples under half a cosine, from full level to silence."""
    return (samples * rising(samples.size)[::-1]).astype(np.int16)


def rising(num_samples: int) -> NDArray[np.float64]:
    """Half a cosine from silence to full level, [num_samples], without its end points."""
    return 0.5 - 0.5 * np.cos(np.pi * (np.arange(num_samples) + 1) / (num_samples + 1))
