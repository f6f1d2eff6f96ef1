"""What a listener heard of an agent that had to fall silent, made into figures, link by link.

It knows neither servers nor how anything was heard: samples' amplitudes and the server's messages are arguments.

The chain of one trial, all in ms; the links add up to the total:

    onset     the first sample of a user's sentence, which begins at its acoustic onset (see `sounds`). With wrtc it is
              the instant at which libwebrtc gets it as microphone. In Chromium it is the instant at which the track
              of the microphone gives the sender the first audible block, behind echo cancellation, noise suppression
              and gain control. Both take it 10 ms at a time.
    noticed   onset -> end of the first frame that the VAD takes for speech: Opus and network there, the VAD, and the
              way of the message speech.silenced back, from whose arrival the server's own links are counted back
    turn      -> the decision to stand still              } from the server's message speech.silenced
    flush     -> nothing but the fade is left to be sent  }
    wire      -> the last audible packet was handed over  }
    listener  -> end of the last audible sample: Opus and network back, the fade, the listener's jitter buffer; in
              Chromium as the page's audio thread has it, some 10 to 20 ms later

Of a stop that the client asks for, `noticed` is the way of its message there and back, and there is no turn. A pause
of the agent's own, or an underrun, hides when it fell silent: a trial in which nothing was audible when it was told to
is repeated, and counted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from agent import wrtc
from agent.bench_report import measured
from agent.browser import AUDIBLE, BrowserError, Heard
from agent.probe.outcome import Spread
from agent.sounds import NAMES, RATE, Pcm, sentence
from engine.wav import header

UNTOLD_MS = 300.0
"""Where speech.silenced never came, nothing was playing when the user was noticed; what is audible for longer than this
after the onset is no rest in the listener's buffer but a miss."""
STILL_MS = 100.0
"""Silence that reaches over the end of that time: longer than a closure inside a word."""
GAP_MS = 35.0
"""Silence between the old utterance and the new: the engine needs longer for its first audio."""
ROOM = 0.0004
"""Amplitude of a quiet microphone's noise, of 1 at full scale: 72 dB below it."""
TICKS = tuple(0.5 + 0.25 * n for n in range(8))
"""Seconds at which the microphone's file has a burst of noise, to find its place on the page's clock."""
TICK_SECONDS, TICK, TICK_HEARD = 0.01, 0.5, 0.05
NEAR_MS = 300.0
"""Around the instant at which the file says a sentence, its onset is looked for: it is quiet for longer before."""
FIRST_ONSET = 6.0
"""Seconds: connecting and the agent's first words take one or two."""
SPEAKS = 0.6, 1.8
"""Seconds for which the agent has spoken when somebody speaks over it."""
ANSWERS = 1.2
"""Seconds from the end of a sentence to the answer, of which 0.5 are the silence that ends a turn."""


# ---- the figures --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """One time that the agent had to fall silent, see above; ms. All links are None where it did not: a miss."""

    said: str
    """The user's sentence, of agent/sounds; empty for a stop."""
    noticed_ms: float | None = None
    turn_ms: float | None = None
    flush_ms: float | None = None
    wire_ms: float | None = None
    listener_ms: float | None = None
    total_ms: float | None = None
    over: bool = False
    """The reply or utterance ended there, interrupted, instead of going on later."""

    @property
    def packet_ms(self) -> float | None:
        """Decision -> last audible packet."""
        return None if self.flush_ms is None or self.wire_ms is None else self.flush_ms + self.wire_ms


@dataclass(frozen=True, slots=True)
class Silences:
    """Many trials, at one listener."""

    trials: int
    missed: int
    """Of them, those in which the agent did not fall silent: they count with `missed_as_ms` in total_ms."""
    missed_as_ms: float
    over: int
    """Of them, those in which the reply ended for good."""
    repeated: int
    """Trials beside them, in which the agent was in a pause of its own."""
    noticed_ms: Spread
    turn_ms: Spread | None
    """None for stops."""
    flush_ms: Spread
    wire_ms: Spread
    packet_ms: Spread
    """flush + wire."""
    listener_ms: Spread
    total_ms: Spread
    rows: tuple[Trial, ...]

    @classmethod
    def of(cls, rows: Sequence[Trial], repeated: int, missed_as_ms: float) -> Silences:
        """Raises BrowserError where not one fell silent."""

        def spread(values: Iterator[float | None]) -> Spread:
            return measured(values, "falling silent")

        return cls(
            trials=len(rows),
            missed=sum(row.total_ms is None for row in rows),
            missed_as_ms=missed_as_ms,
            over=sum(row.over for row in rows),
            repeated=repeated,
            noticed_ms=spread(row.noticed_ms for row in rows),
            turn_ms=spread(row.turn_ms for row in rows) if any(row.turn_ms is not None for row in rows) else None,
            flush_ms=spread(row.flush_ms for row in rows),
            wire_ms=spread(row.wire_ms for row in rows),
            packet_ms=spread(row.packet_ms for row in rows),
            listener_ms=spread(row.listener_ms for row in rows),
            total_ms=spread(missed_as_ms if row.total_ms is None else row.total_ms for row in rows),
            rows=tuple(rows),
        )


@dataclass(frozen=True, slots=True)
class Cycles:
    """Stop and speak at once, over and over in one call."""

    cycles: int
    late: int
    """Of them, those whose next sound came more than 250 ms after the stop."""
    next_sound_ms: Spread
    """Stop, with the next speak message behind it -> the first audible block of the new utterance, at the output of
    libwebrtc's jitter buffer."""
    ttfa_ms: Spread
    """Of it, speak message -> first PCM, as the server says."""
    started_ms: Spread
    """Of it, stop -> the server's word that the first packet was sent; the rest is the way to the listener's ear: its
    jitter buffer, and how softly the utterance begins."""
    books_before: dict[str, float]
    """Of the server's /metrics, before the call."""
    books_after: dict[str, float]
    """After it."""
    submitted: int
    """Utterances that the engine was asked for in all of it."""
    accounted: int
    """Of them, those that it calls finished, cancelled or refused."""
    rows: tuple[float, ...]
    """next_sound_ms of each."""

    @property
    def balanced(self) -> bool:
        """The server has again what it had, and every request an end."""
        return self.books_before == self.books_after and self.submitted == self.accounted


# ---- from what was heard to a trial -------------------------------------------------------------------------------


def trial(heard: Heard, since: float, within_ms: float, block_ms: float, said: str = "") -> Trial | None:
    """What became of the agent's speech after the onset or stop at instant `since`, as far as `within_ms`; ms. None
    where the agent was in a pause. block_ms: how long a block is, of which `heard` has the loudest sample."""
    silenced = next((m for m in heard.of_type("speech.silenced") if since <= m["at"] <= since + within_ms), None)
    until = min([since + within_ms, *(m["at"] for m in heard.of_type("speech.started") if _follows(m, silenced))])
    loud = heard.loud_at(since - STILL_MS, until)
    if not len(loud) or loud[-1] <= (silenced["at"] if silenced else since + UNTOLD_MS):
        return None
    if silenced is None or loud[-1] > since + within_ms - STILL_MS:
        return Trial(said)
    told = {name: silenced.get(name) for name in ("turn_ms", "flush_ms", "wire_ms")}
    silent_at = float(loud[-1]) + block_ms
    return Trial(
        said,
        noticed_ms=silenced["at"] - since - sum(ms or 0.0 for ms in told.values()),
        **told,
        listener_ms=silent_at - silenced["at"],
        total_ms=silent_at - since,
        over=_over(heard, since, since + within_ms),
    )


def _follows(started: Mapping[str, Any], silenced: Mapping[str, Any] | None) -> bool:
    """It is the answer to what the user said, or the next utterance."""
    return silenced is not None and bool(started["at"] > silenced["at"])


def _over(heard: Heard, since: float, until: float) -> bool:
    stopped = heard.of_type("speech.stopped")
    return any(m["reason"] == "cancelled" and since <= m["at"] <= until for m in stopped)


def in_ms(heard: wrtc.Heard) -> Heard:
    """The same with milliseconds, as browser.py has it."""
    peaks = [[1000 * at, peak] for at, peak in heard.blocks]
    return Heard(peaks=peaks, messages=[{**message, "at": 1000 * message["at"]} for message in heard.messages])


def forget(heard: Heard, before: float) -> None:
    """Drops what was heard earlier: looking through all of a call again and again would disturb what is measured."""
    heard.peaks = [row for row in heard.peaks if row[0] >= before]
    heard.spoken = [row for row in heard.spoken if row[0] >= before]
    heard.messages = [message for message in heard.messages if message["at"] >= before]


def next_sound_ms(heard: Heard, stopped_at: float, utterance: str) -> float | None:
    """Stop -> the first audible block of that utterance: after its start, and after the rest of the old one, which may
    still have been in the listener's buffer then; None where there is none."""
    started_at = next((m["at"] for m in heard.of_type("speech.started") if m["id"] == utterance), float("inf"))
    loud = heard.loud_at(stopped_at)
    fresh = loud[(np.diff(loud, prepend=-np.inf) > GAP_MS) & (loud >= started_at)]
    return float(fresh[0]) - stopped_at if len(fresh) else None


# ---- the user's side ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Speaking:
    """A user's sentence, `at` seconds after the microphone's beginning."""

    name: str
    at: float


def planned(wanted: int, rng: random.Random) -> list[Speaking]:
    """Each sentence in turn, with pauses of any length in which the agent is to answer."""
    plan, at = [], FIRST_ONSET
    for name in islice(cycle(NAMES), wanted):
        plan.append(Speaking(name, at))
        at += sentence(name).size / RATE + ANSWERS + rng.uniform(*SPEAKS)
    return plan


def microphone(plan: Sequence[Speaking]) -> Pcm:
    """A quiet room with ticks at its beginning and then the sentences, int16 [samples] at RATE."""
    rng = np.random.default_rng(0)
    sound = 32767 * ROOM * rng.uniform(-1, 1, round((plan[-1].at + 10.0) * RATE))
    for at in TICKS:
        tick = 32767 * TICK * rng.choice((-1, 1), round(TICK_SECONDS * RATE))
        sound[round(at * RATE) :][: tick.size] += tick
    for speaking in plan:
        said = sentence(speaking.name)
        sound[round(speaking.at * RATE) :][: said.size] += said
    return np.clip(np.round(sound), -32768, 32767).astype(np.int16)


def write_wav(file: Path, samples: Pcm) -> Path:
    file.write_bytes(header(RATE, samples.nbytes) + samples.astype("<i2").tobytes())
    return file


def began_at(heard: Heard) -> float:
    """When the microphone's file began, from its ticks: the median of all, the last of which is surely heard.

    Raises BrowserError where there were none."""
    table = np.array(heard.spoken, dtype=np.float64).reshape(-1, 2)
    loud = table[table[:, 1] > TICK_HEARD, 0]
    ticks = loud[np.diff(loud, prepend=-np.inf) > 100]
    if not 3 <= len(ticks) <= len(TICKS):
        raise BrowserError(f"the page heard {len(ticks)} of {len(TICKS)} ticks of its microphone: is it Chromium's?")
    return float(np.median(ticks - 1000 * np.array(TICKS[-len(ticks) :])))


def onset_at(heard: Heard, expected: float) -> float:
    """When the microphone's first audible block came, of the sentence that is expected then. Raises BrowserError."""
    near = [at for at, peak in heard.spoken if peak > AUDIBLE and abs(at - expected) < NEAR_MS]
    if not near:
        raise BrowserError("the page did not hear its microphone's sentence where the file has it")
    return near[0]
