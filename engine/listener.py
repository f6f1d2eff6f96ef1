"""A simulated listener: plays an utterance as it arrives, and says where it stands. It knows nobody who speaks.

Its time is that of whoever hands it the chunks: the simulator's, or that of a real run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from engine.core import Cancel, End, Event, Finished, FinishReason, Playhead
from engine.metrics import lateness
from engine.traffic import Utterance


@dataclass(slots=True)
class Listener:
    """Plays one utterance as it arrives, after the one that it follows, and keeps what the metrics need."""

    request_id: int
    said: Utterance
    before: Listener | None = None
    arrivals: list[tuple[float, float]] = field(default_factory=list)
    """Instant and seconds of audio of each chunk."""
    audio: float = 0.0
    """Seconds that arrived."""
    plays_at: float = 0.0
    """When the first sample is played."""
    runs_out_at: float = 0.0
    underruns: int = 0
    text_waits: int = 0
    """Silences because its text, which was still being written, was late."""
    text_at: float | None = None
    """When there was enough to begin with, where that was not as scripted."""
    extra_buffer: float = 0.0
    """The delay of the first sample that would have avoided every gap, in seconds."""
    end: End | None = None

    @property
    def ttfa(self) -> float | None:
        return self.arrivals[0][0] - self.begins_at if self.arrivals else None

    @property
    def begins_at(self) -> float:
        """When there was text enough to begin with."""
        return self.said.begins_at if self.text_at is None else self.text_at

    @property
    def unheard(self) -> float:
        """Seconds of audio that nobody listened to."""
        heard = inf if self.said.hears is None else self.said.hears
        if self.said.cancel_at is not None:
            heard = min(heard, max(0.0, self._position(self.said.cancel_at)))
        return max(0.0, self.audio - heard)

    def hear(self, seconds: float, now: float, text_late: bool = False) -> None:
        """A chunk arrives. It is late if it comes after all before it was played, by the listener's own clock; if its
        text was, its time begins anew."""
        if not self.arrivals:
            self.plays_at = self.runs_out_at = self._begins(now)
        if text_late and now > self.runs_out_at:
            self.text_waits += 1
            self.plays_at, self.runs_out_at = now - self._wall(0.0, self.audio), now
        else:
            self.extra_buffer = max(self.extra_buffer, lateness(now, self.plays_at, self._wall(0.0, self.audio)))
            self.underruns += now > self.runs_out_at
        self.arrivals.append((now, seconds))
        self.runs_out_at = max(self.runs_out_at, now) + self._wall(self.audio, seconds)
        self.audio += seconds

    def _begins(self, now: float) -> float:
        """When its first sample is due: at the end of what went before, if that was still heard when it was asked for;
        else as soon as there is one."""
        ends_at = self.before.runs_out_at if self.before else -inf
        return ends_at if ends_at >= self.begins_at else now

    def _wall(self, position: float, seconds: float) -> float:
        """Seconds that it takes to play `seconds` of audio from `position` on."""
        return seconds / self.said.rate + self._stalled(position, position + seconds)

    def _stalled(self, start: float, end: float) -> float:
        return self.said.stall[1] if start < self.said.stall[0] <= end else 0.0

    def _at(self, position: float) -> float:
        """When it plays, or begins to stall at, a position that has arrived."""
        return self.runs_out_at - self._wall(position, self.audio - position)

    def over(self, end: End, now: float) -> None:
        """The last word. What was interrupted is silent from then on."""
        self.end = end
        if isinstance(end, Finished) and end.reason is FinishReason.CANCELLED:
            self.runs_out_at = min(self.runs_out_at, now)

    def events(self, now: float, sample_rate: int) -> Iterator[tuple[float, Event]]:
        """What the listener does and says, once its newest chunk has arrived: where it stands, when it stalls and goes
        on, when it interrupts."""
        start, (stalls_at, pause) = self.audio - self.arrivals[-1][1], self.said.stall
        if self.plays_at < now and len(self.arrivals) > 1:
            yield now, self._playhead(self._position(now), now, sample_rate, running=not self._stands(now))
        if start < stalls_at <= self.audio:
            at = self._at(stalls_at) - pause
            yield at, self._playhead(stalls_at, at, sample_rate, running=False)
            yield at + pause, self._playhead(stalls_at, at + pause, sample_rate)
        if self.said.hears is not None and start < self.said.hears <= self.audio:
            yield max(now, self._at(self.said.hears)), Cancel(self.request_id)

    def _stands(self, now: float) -> bool:
        """Whether it is in its stall."""
        stalls_at, pause = self.said.stall
        return stalls_at <= self.audio and 0 < self._at(stalls_at) - now <= pause

    def _position(self, now: float) -> float:
        """Where it stands, in seconds of audio; of a stall, where it stalled."""
        stalls_at, pause = self.said.stall
        left = max(0.0, self.runs_out_at - now)
        if pause and stalls_at <= self.audio and left > (after := (self.audio - stalls_at) / self.said.rate):
            left = max(after, left - pause)
        return self.audio - left * self.said.rate

    def _playhead(self, position: float, at: float, sample_rate: int, running: bool = True) -> Playhead:
        return Playhead(self.request_id, max(0, round(position * sample_rate)), at, running)


def listeners(script: Sequence[Utterance]) -> list[Listener]:
    """Of a script, one for each utterance, in its order."""
    out: list[Listener] = []
    for number, said in enumerate(script):
        out.append(Listener(number, said, None if said.follows is None else out[said.follows]))
    return out
