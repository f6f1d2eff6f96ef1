"""The command `bench bargein`: how fast the agent falls silent when a user speaks over it, link by link.

It knows the server by its address and its messages only, and neither VAD nor playout: what is audible was measured on
samples at the listener, in Chromium (browser.py) and at the output of libwebrtc's jitter buffer (wrtc.py).

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

import argparse
import asyncio
import json
import os
import random
import sys
import time
import wave
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from itertools import count, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent import wrtc
from agent.bench_browser import SENTENCES, Advance, Line, Spread
from agent.browser import AUDIBLE, QUANTUM_MS, BrowserError, Heard, chromium, serve, tab
from agent.sounds import NAMES, RATE, Pcm, sentence
from engine.machine import check_writable, describe, write_json
from engine.options import positive

if TYPE_CHECKING:
    from playwright.async_api import Browser

BLOCK_MS = 1000 * wrtc.BLOCK_SECONDS
WITHIN_MS = 2000.0
"""Who still speaks that long after the onset has not noticed the user: a miss, which counts as so long."""
STOPPED_WITHIN_MS = 500.0
"""The same after a client's stop."""
UNTOLD_MS = 300.0
"""Where speech.silenced never came, nothing was playing when the user was noticed; what is audible for longer than this
after the onset is no rest in the listener's buffer but a miss."""
STILL_MS = 100.0
"""Silence that reaches over the end of that time: longer than a closure inside a word."""
NEXT_SOUND_MS = 250.0
GAP_MS = 35.0
"""Silence between the old utterance and the new: the engine needs longer for its first audio."""
SPARE = 10
"""As many trials as are wanted may be repeated, and these."""
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
LOOK_SECONDS = 0.1
BOOKS = (
    "breezert_peers",
    "breezert_engine_open_requests",
    "breezert_engine_requests_active",
    "breezert_engine_requests_queued",
    "breezert_engine_slots_free",
    "breezert_engine_pages_free",
)
"""What a server without calls has as many of as at its beginning."""


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
            return Spread.of(values, "falling silent")

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


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What another project's documentation says about when it stops; nothing of it was measured here."""

    name: str
    ms: float | None
    """None where no figure is published."""
    what: str
    source: str


ELSEWHERE = (
    Elsewhere(
        "Pipecat",
        200.0,
        "start_secs: speech that its VAD must have heard without a break before it acts at all, by default; what is "
        "queued and the listener's buffer come on top",
        "https://docs.pipecat.ai/api-reference/server/utilities/audio/silero-vad-analyzer",
    ),
    Elsewhere(
        "LiveKit Agents",
        500.0,
        "interruption.min_duration: speech that interrupts, by default; the VAD's own delay, what is queued and the "
        "listener's buffer come on top",
        "https://docs.livekit.io/reference/agents/turn-handling-options/",
    ),
    Elsewhere(
        "Tencent RTC",
        500.0,
        "interruption duration: speech that interrupts, by default (300 ms is the least)",
        "https://trtc.io/document/65319",
    ),
    Elsewhere(
        "Hume EVI",
        800.0,
        "min_interruption_ms: speech after which it yields, by default (50 ms is the least)",
        "https://dev.hume.ai/docs/speech-to-speech-evi/configuration/interruption",
    ),
    Elsewhere(
        "OpenAI Realtime",
        None,
        "server_vad interrupts when it says speech_started; how late that comes is not published",
        "https://developers.openai.com/api/docs/guides/realtime-vad",
    ),
    Elsewhere(
        "FastRTC",
        None,
        "ReplyOnPause: goes on speaking until the user pauses",
        "https://github.com/gradio-app/fastrtc/issues/341",
    ),
)


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
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(samples.tobytes())
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


# ---- the measurements ---------------------------------------------------------------------------------------------

SCRIPT = json.dumps({"greeting": " ".join(SENTENCES), "replies": [" ".join(SENTENCES)], "loop": True})
"""JSON is YAML. The agent is never done before somebody speaks over it."""


class Trials:
    """Trials as they come, until there are as many as wanted."""

    def __init__(self, wanted: int, advance: Advance) -> None:
        self.rows: list[Trial] = []
        self.repeated = 0
        self._wanted, self._advance = wanted, advance

    def add(self, row: Trial | None) -> None:
        """Raises BrowserError where most had to be repeated."""
        if row is None:
            self.repeated += 1
        else:
            self.rows.append(row)
        self._advance(len(self.rows))
        if self.repeated > self._wanted + SPARE:
            raise BrowserError(f"{self.repeated} times nothing was audible when the agent fell silent: is it too slow?")

    @property
    def enough(self) -> bool:
        return len(self.rows) >= self._wanted


async def spoken_in_chromium(url: str, path: str | None, trials: int, advance: Advance) -> tuple[Silences, str]:
    """A user speaks over the agent in a real browser, whose version is returned as well."""
    plan = planned(2 * trials + SPARE + 1, random.Random(1))
    found = Trials(trials, advance)
    with TemporaryDirectory(prefix="breezert-bargein-") as folder:
        file = write_wav(Path(folder) / "user.wav", microphone(plan))
        async with chromium(path, file) as browser, tab(browser, url) as listener:
            await listener.page.check("#microphone")
            await listener.connect()
            await asyncio.sleep(TICKS[-1] + 1.0)  # of the browser nothing tells when a tick was heard
            began = began_at(await listener.gather())
            for speaking in plan:
                expected = began + 1000 * speaking.at
                await until(expected + WITHIN_MS)
                onset = onset_at(await listener.gather(), expected)
                began += onset - expected  # a device that was late goes on late
                found.add(trial(listener.heard, onset, WITHIN_MS, QUANTUM_MS, speaking.name))
                if found.enough:
                    break
                forget(listener.heard, onset + WITHIN_MS)
            return Silences.of(found.rows, found.repeated, WITHIN_MS), browser.version


async def until(at_ms: float) -> None:
    """Of milliseconds since 1970, and a little more, so that all of it has come out of the page's threads."""
    await asyncio.sleep(at_ms / 1000 + 0.2 - time.time())


async def spoken_to_wrtc(url: str, folder: Path, trials: int, advance: Advance) -> Silences:
    """The same at libwebrtc's jitter buffer."""
    rng, found, names = random.Random(1), Trials(trials, advance), cycle(NAMES)
    async with wrtc.listener(url, folder, noise=ROOM) as call:
        while not found.enough:
            since = call.heard.messages[-1]["at"]
            await call.wait(partial(started, call, since))
            await asyncio.sleep(rng.uniform(*SPEAKS))
            name = next(names)
            onset = await call.say(sentence(name))
            await asyncio.sleep(WITHIN_MS / 1000 + 0.1)
            found.add(trial(in_ms(call.heard), 1000 * onset, WITHIN_MS, BLOCK_MS, name))
            await call.wait(partial(ended, call, onset))
            call.heard.blocks.clear()
            del call.heard.messages[:-1]
    return Silences.of(found.rows, found.repeated, WITHIN_MS)


def started(call: wrtc.Call, since: float) -> bool:
    """The agent speaks, since later than that."""
    return any(message["at"] > since for message in call.heard.of_type("speech.started"))


def ended(call: wrtc.Call, since: float) -> bool:
    """The user's turn is over."""
    return any(message["at"] > since for message in call.heard.of_type("turn.ended"))


async def stopped_in_chromium(browser: Browser, url: str, trials: int, advance: Advance) -> Silences:
    """Stop is pressed while the agent speaks."""
    rng, found = random.Random(2), Trials(trials, advance)
    async with tab(browser, url) as listener:
        await listener.connect()
        for text in cycle(SENTENCES):
            await listener.speak(text)
            await listener.until_speaking()
            await asyncio.sleep(rng.uniform(0.4, 1.2))
            await listener.stop()
            await listener.until_silent()
            heard = await listener.gather()
            clicked_at = heard.clicked_at("stop")
            found.add(trial(heard, clicked_at, STOPPED_WITHIN_MS, QUANTUM_MS))
            if found.enough:
                break
            forget(heard, clicked_at + STOPPED_WITHIN_MS)
    return Silences.of(found.rows, found.repeated, STOPPED_WITHIN_MS)


async def stopped_at_wrtc(url: str, folder: Path, trials: int, advance: Advance) -> Silences:
    """A client sends stop while the agent speaks."""
    rng, found, numbers = random.Random(2), Trials(trials, advance), count()
    async with wrtc.listener(url, folder, noise=ROOM) as call:
        while not found.enough:
            number = next(numbers)
            await speaking(call, f"stopped{number}", SENTENCES[number % len(SENTENCES)])
            await asyncio.sleep(rng.uniform(0.2, 0.7))
            asked_at = await call.send(type="stop")
            await asyncio.sleep(STOPPED_WITHIN_MS / 1000 + 0.06)
            found.add(trial(in_ms(call.heard), 1000 * asked_at, STOPPED_WITHIN_MS, BLOCK_MS))
            call.heard.blocks.clear()
            call.heard.messages.clear()
    return Silences.of(found.rows, found.repeated, STOPPED_WITHIN_MS)


async def speaking(call: wrtc.Call, utterance: str, text: str) -> None:
    """Has it spoken, until it is audible."""
    call.send(type="speak", id=utterance, text=text)
    await heard_of(call, utterance)


async def heard_of(call: wrtc.Call, utterance: str, stopped_at: float = 0.0) -> float:
    """Waits for the first audible block of it; returns how long after that instant it came, in ms."""
    sound = await call.wait(lambda: next_sound_ms(in_ms(call.heard), stopped_at, utterance))
    assert sound is not None, "it was waited for"
    return sound


async def cycles(url: str, folder: Path, wanted: int, advance: Advance) -> Cycles:
    """Stop, speak at once, listen: `wanted` times in one call."""
    rng, rows, ttfa = random.Random(3), list[float](), list[float]()
    before = await metrics(url)
    async with wrtc.listener(url, folder, noise=ROOM) as call:
        await speaking(call, "cycle", SENTENCES[0])
        for number in range(wanted):
            await asyncio.sleep(rng.uniform(0.2, 0.6))
            call.heard.blocks.clear()
            call.heard.messages.clear()
            name = f"cycle{number}"
            stopped = call.send(type="stop")
            call.send(type="speak", id=name, text=SENTENCES[(number + 1) % len(SENTENCES)])
            stopped_at = 1000 * await stopped
            rows.append(await heard_of(call, name, stopped_at))
            ttfa += [message["ttfa_ms"] for message in call.heard.of_type("speech.started") if message["id"] == name]
            advance(number + 1)
    after = await settled(url, books(before))
    return Cycles(
        cycles=len(rows),
        late=sum(row > NEXT_SOUND_MS for row in rows),
        next_sound_ms=Spread.of(rows, "sound after a stop"),
        ttfa_ms=Spread.of(ttfa, "start of speech"),
        books_before=books(before),
        books_after=books(after),
        submitted=counted(after, "submitted") - counted(before, "submitted"),
        accounted=sum(counted(after, end) - counted(before, end) for end in ("finished", "cancelled", "refused")),
        rows=tuple(round(row, 1) for row in rows),
    )


async def settled(url: str, wanted: dict[str, float], within: float = 5.0) -> dict[str, float]:
    """The server's metrics once it has those books, or as they are after so long: a call that was hung up is given back
    in its own time, and what the engine tells of itself comes a little later."""
    for _ in range(round(within / LOOK_SECONDS)):
        if books(found := await metrics(url)) == wanted:
            break
        await asyncio.sleep(LOOK_SECONDS)  # it is another process: nothing here tells
    return found


async def metrics(url: str) -> dict[str, float]:
    """The unlabelled numbers of the server's /metrics."""

    def fetch() -> str:
        with urlopen(f"{url}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    return unlabelled(await asyncio.to_thread(fetch))


def unlabelled(text: str) -> dict[str, float]:
    """Of Prometheus' text format, what has no labels."""
    lines = [line for line in text.splitlines() if "{" not in line and not line.startswith("#")]
    return {name: float(value) for name, value in map(str.split, lines)}


def books(found: Mapping[str, float]) -> dict[str, float]:
    """Raises BrowserError where the server has other metrics."""
    if missing := [name for name in BOOKS if name not in found]:
        raise BrowserError(f"the server's /metrics has no {', '.join(missing)}")
    return {name: found[name] for name in BOOKS}


def counted(found: Mapping[str, float], what: str) -> int:
    return int(found[f"breezert_engine_requests_{what}_total"])


# ---- the parts ----------------------------------------------------------------------------------------------------

Figures = Silences | Cycles
Versions = dict[str, str]
WRTC_VERSION = {"wrtc": wrtc.VERSION}


@asynccontextmanager
async def served(*options: str) -> AsyncIterator[str]:
    with serve(*options) as server:
        yield server.url


@asynccontextmanager
async def scripted(device: str) -> AsyncIterator[str]:
    """A server whose agent answers at length whatever is said."""
    with TemporaryDirectory(prefix="breezert-bargein-") as folder:
        script = Path(folder) / "script.yaml"
        script.write_text(SCRIPT)
        async with served("--device", device, "--brain", "script", "--script", str(script)) as url:
            yield url


async def spoken_chromium(args: argparse.Namespace, advance: Advance) -> tuple[Figures, Versions]:
    async with scripted(args.device) as url:
        figures, browser_version = await spoken_in_chromium(url, args.chromium, args.trials, advance)
    return figures, {"chromium": browser_version}


async def spoken_wrtc(args: argparse.Namespace, advance: Advance) -> tuple[Figures, Versions]:
    with wrtc.installed() as folder:
        async with scripted(args.device) as url:
            return await spoken_to_wrtc(url, folder, args.trials, advance), WRTC_VERSION


async def stopped_chromium(args: argparse.Namespace, advance: Advance) -> tuple[Figures, Versions]:
    async with served("--device", args.device) as url, chromium(args.chromium) as browser:
        return await stopped_in_chromium(browser, url, args.trials, advance), {"chromium": browser.version}


async def stopped_wrtc(args: argparse.Namespace, advance: Advance) -> tuple[Figures, Versions]:
    with wrtc.installed() as folder:
        async with served("--device", args.device) as url:
            return await stopped_at_wrtc(url, folder, args.stops, advance), WRTC_VERSION


async def cycled(args: argparse.Namespace, advance: Advance) -> tuple[Figures, Versions]:
    with wrtc.installed() as folder:
        async with served("--device", args.device) as url:
            return await cycles(url, folder, args.cycles, advance), WRTC_VERSION


@dataclass(frozen=True, slots=True)
class Part:
    """One of the measurements: how it is made, and the option that says how often."""

    words: str
    measure: Callable[[argparse.Namespace, Advance], Awaitable[tuple[Figures, Versions]]]
    option: str


PARTS = {
    "spoken_chromium": Part("spoken over, Chromium", spoken_chromium, "trials"),
    "spoken_wrtc": Part("spoken over, libwebrtc", spoken_wrtc, "trials"),
    "stopped_chromium": Part("stopped, Chromium", stopped_chromium, "trials"),
    "stopped_wrtc": Part("stopped, libwebrtc", stopped_wrtc, "stops"),
    "cycles": Part("stop and speak again", cycled, "cycles"),
}


# ---- the report ---------------------------------------------------------------------------------------------------


def table(measured: Mapping[str, Figures]) -> Table:
    """The figures as a person reads them, each with the project's target where there is one."""
    out = Table("how fast the agent falls silent", "", "target", "")
    for name, figures in measured.items():
        out.add_section()
        for words, value, target, met in rows(name, figures):
            out.add_row(words, value, target, "" if met is None else "[green]met" if met else "[red]missed")
    return out


def rows(name: str, figures: Figures) -> Iterator[Line]:
    """(what, value, target, whether it was met) of every line of one part."""
    if isinstance(figures, Cycles):
        yield from cycle_rows(figures)
        return
    yield PARTS[name].words, f"{figures.trials} trials, {figures.repeated} repeated", "", None
    yield "  missed", str(figures.missed), "0", figures.missed == 0
    yield "  the reply was over", str(figures.over), "all", figures.over == figures.trials
    for link in ("noticed", "turn", "flush", "wire", "listener"):
        if spread := getattr(figures, f"{link}_ms"):
            yield f"  {link}", words(spread), "", None
    packet = figures.packet_ms
    yield "  decision -> last audible packet", words(packet), "p99 <= 26 ms", packet.p99 <= 26
    total, most = figures.total_ms, MOST.get(name)
    yield "  total", words(total), f"p95 <= {most} ms" if most else "", total.p95 <= most if most else None


MOST = {"spoken_chromium": 300, "stopped_wrtc": 100}
"""ms in which 95 % are to be silent."""


def cycle_rows(figures: Cycles) -> Iterator[Line]:
    sound = figures.next_sound_ms
    yield "stop and speak at once, libwebrtc", f"{figures.cycles} cycles", "", None
    yield "  stop -> next audible", words(sound), f"max <= {NEXT_SOUND_MS:.0f} ms", sound.max <= NEXT_SOUND_MS
    yield "  first PCM of it, server", words(figures.ttfa_ms), "", None
    ends = f"{figures.accounted} of {figures.submitted} requests ended"
    yield "  what the server holds afterwards", ends, "as before", figures.balanced


def words(spread: Spread) -> str:
    return f"p50 {spread.p50:.1f}, p95 {spread.p95:.1f}, p99 {spread.p99:.1f}, max {spread.max:.1f} ms ({spread.count})"


def sources() -> Table:
    """What others publish."""
    out = Table("elsewhere", "ms", "of what, as they say; not measured here", "source")
    for other in ELSEWHERE:
        out.add_row(other.name, "" if other.ms is None else f"{other.ms:.0f}", other.what, other.source)
    return out


async def measure(args: argparse.Namespace, progress: Progress) -> tuple[dict[str, Figures], dict[str, Any]]:
    """The parts asked for, one after another, and the same as JSON data, each with the machine it was measured on.
    Raises BrowserError, WrtcError and OSError."""

    def bar(words: str, total: int) -> Advance:
        task = progress.add_task(words, total=total)
        return lambda done: progress.update(task, completed=done)

    measured, data = dict[str, Figures](), dict[str, Any]()
    for name in args.only or PARTS:
        part = PARTS[name]
        advance = bar(part.words, getattr(args, part.option))
        load = round(os.getloadavg()[0], 2)  # of others: what they take of the cores is missing here
        measured[name], versions = await part.measure(args, advance)
        head = {**describe(args.device, args.command), **versions, "aiortc": version("aiortc"), "av": version("av")}
        data[name] = {**head, "load_average_before": load, **asdict(measured[name])}
    return measured, data


def kept(path: str | None, only: Sequence[str] | None) -> dict[str, Any]:
    """What the file has of other parts, where only some are measured anew. Raises BrowserError for another file, and
    OSError for one that could not be written after minutes of measuring."""
    if not path:
        return {}
    check_writable(path)
    if not only or path == "-" or not Path(path).is_file():
        return {}
    try:
        data = json.loads(Path(path).read_text())
    except ValueError:
        data = None
    if not isinstance(data, dict) or not set(data) <= {*PARTS, "elsewhere"}:
        raise BrowserError(f"{path} is not a file of bench bargein: name another, or delete it")
    return data


def parser() -> argparse.ArgumentParser:
    """The command line. Unknown options are errors."""
    how = (
        "Starts servers, a headless Chromium and a libwebrtc in Node.js, and measures how fast the agent falls silent, "
    )
    how += "link by link, when a user speaks over it or a client stops it. Takes some fifteen minutes."
    p = argparse.ArgumentParser(prog="breezert bench bargein", allow_abbrev=False, description=how)
    add = p.add_argument
    add("--only", action="append", choices=PARTS, help="measure this part alone; repeatable (default: all)")
    add(
        "--trials",
        type=positive,
        default=50,
        metavar="N",
        help="by voice, and of Stop in Chromium (default: %(default)s)",
    )
    add("--stops", type=positive, default=200, metavar="N", help="of libwebrtc's client (default: %(default)s)")
    add("--cycles", type=positive, default=100, metavar="N", help="of stop and speak (default: %(default)s)")
    add("--device", default="cpu", metavar="auto|cpu|cuda", help="of the servers (default: %(default)s)")
    add("--chromium", metavar="PATH", help="default: the Chromium or Chrome on the PATH")
    text = "write all figures there; with --only, what the file has of other parts stays; - is standard output"
    add("--json", metavar="FILE", help=text)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints tables, writes the JSON. A mistake is one line on standard error and exit status 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(argv)
    args.command = ["bench", "bargein", *argv]
    console = Console(stderr=True)
    try:
        others = kept(args.json, args.only)
        with Progress(console=console) as progress:
            measured, data = asyncio.run(measure(args, progress))
        console.print(table(measured))
        console.print(sources())
        if args.json:
            elsewhere = {"elsewhere": [asdict(other) for other in ELSEWHERE]}
            merged = {**others, **data}
            write_json(args.json, {name: merged[name] for name in PARTS if name in merged} | elsewhere)
    except (BrowserError, wrtc.WrtcError, OSError) as error:
        print(f"breezert bench bargein: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
