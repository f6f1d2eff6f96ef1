"""What one call shows of how it is served, to a client that watches: chunks, steps, and where the first audio's time
went.

It knows neither channels nor clocks nor other calls: all of that are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from agent.protocol import ServerMessage, SpeechWaterfall, View
from agent.saying import Utterance
from engine.core import Chunk, Stage
from engine.recorder import Ran

MAX_CHUNKS = 32
MAX_STEPS = 128
MAX_PEERS = 16
"""In one view; what is more than can be shown is left out: the oldest chunks and steps, the last of the peers."""
REMEMBERED = 8
"""Requests of a call that its steps are told by."""
REMEMBERED_STEPS = 1000
"""Of the engine: those of the last seconds."""
SETTLED_SECONDS = 0.35
"""After its first packet the engine has told of all steps that led to it: every 0.1 s, and it is shown every 0.2 s."""

Peer = tuple[int, float, int]
"""As in View."""
Row = tuple[str, float, float, int]
"""A step as in View, but for whose it is."""


def ms(seconds: float) -> float:
    """In milliseconds, to a hundredth: what is sent five times a second is kept short."""
    return round(1000 * seconds, 2)


@dataclass(frozen=True, slots=True)
class Steps:
    """What the engine ran since the last look: made once for all who watch, as most of it is the same for everybody."""

    ran: tuple[Ran, ...]
    rows: tuple[Row, ...]
    """The last of them."""

    @classmethod
    def of(cls, ran: Iterable[Ran]) -> Steps:
        """In order."""
        ran = tuple(ran)
        rows = (
            (str(step.stage), ms(step.started_at), ms(step.elapsed), len(step.requests)) for step in ran[-MAX_STEPS:]
        )
        return cls(ran, tuple(rows))

    def shown(self, requests: Iterable[int]) -> Iterator[tuple[str, float, float, int, int]]:
        """As in View, to whom these requests are."""
        mine = set(requests)
        for row, step in zip(self.rows, self.ran[-MAX_STEPS:], strict=True):
            yield *row, int(not mine.isdisjoint(step.requests))


@dataclass(frozen=True, slots=True)
class Beginning:
    """An utterance of which some was heard: the chunk that came first, and what led to it."""

    utterance: Utterance
    request_id: int
    made_at: float
    came_at: float
    sent_at: float
    """Its first packet."""

    def waterfall(self, steps: Iterable[Ran]) -> SpeechWaterfall | None:
        """`steps`: those of the engine, at least all in which it took part until its first chunk. None where the engine
        tells of none."""
        own = [step for step in steps if self.request_id in step.requests and step.started_at < self.made_at]
        if not own:
            return None
        began_at = own[0].started_at
        spent = {stage: sum(step.elapsed for step in own if step.stage is stage) for stage in Stage}
        return SpeechWaterfall(
            id=self.utterance.id,
            queued_ms=ms(max(0.0, began_at - self.utterance.asked_at)),
            text_ms=ms(spent[Stage.TEXT]),
            prefill_ms=ms(spent[Stage.PREFILL]),
            decode_ms=ms(spent[Stage.DECODE]),
            depth_ms=ms(spent[Stage.DEPTH]),
            codec_ms=ms(spent[Stage.CODEC]),
            waited_ms=ms(max(0.0, self.made_at - began_at - sum(spent.values()))),
            delivered_ms=ms(self.came_at - self.made_at),
            playout_ms=ms(self.sent_at - self.came_at),
        )


class Sight:
    """From when a client watches until it does so no more."""

    def __init__(self, samples_per_frame: int) -> None:
        self._samples_per_frame = samples_per_frame
        self._chunks: deque[tuple[str, float, int, float | None]] = deque(maxlen=MAX_CHUNKS)
        self._recent: deque[Ran] = deque(maxlen=REMEMBERED_STEPS)
        self._requests: deque[int] = deque(maxlen=REMEMBERED)
        self._first: dict[int, tuple[float, float]] = {}
        """When the first chunk of a request was made and came, until its first packet is sent."""
        self._beginnings: list[Beginning] = []

    def take_chunk(self, utterance: Utterance, chunk: Chunk, now: float) -> None:
        """A chunk came."""
        slack = ms(chunk.slack) if isfinite(chunk.slack) else None
        self._chunks.append((utterance.id, ms(now), chunk.pcm.size // self._samples_per_frame, slack))
        if chunk.request_id not in self._requests:
            self._requests.append(chunk.request_id)
            self._first = {chunk.request_id: (now if chunk.made_at is None else chunk.made_at, now)}

    def take_start(self, utterance: Utterance, now: float) -> None:
        """Its first packet was sent."""
        request_id = utterance.request_id
        if request_id in self._first and not utterance.waited:
            self._beginnings.append(Beginning(utterance, request_id, *self._first.pop(request_id), now))

    def told(
        self, now: float, heard: float, buffered: float, playing: str | None, steps: Steps, peers: Sequence[Peer]
    ) -> list[ServerMessage]:
        """What is to be told now; heard and buffered are seconds of audio, the steps those since the last time."""
        self._recent.extend(steps.ran)
        view = View(
            at=ms(now),
            heard_ms=ms(heard),
            buffered_ms=ms(buffered),
            playing=playing,
            chunks=tuple(self._chunks),
            steps=tuple(steps.shown(self._requests)),
            peers=tuple(peers[:MAX_PEERS]),
            calls=len(peers),
        )
        self._chunks.clear()
        return [*self._waterfalls(now), view]

    def _waterfalls(self, now: float) -> list[SpeechWaterfall]:
        settled = [each for each in self._beginnings if now - each.sent_at >= SETTLED_SECONDS]
        self._beginnings = [each for each in self._beginnings if each not in settled]
        falls = [each.waterfall(self._recent) for each in settled]
        return [fall for fall in falls if fall is not None]
