"""The command `bench bargein`: how fast the agent falls silent when a user speaks over it, link by link.

It knows the server by its address and its messages only, and neither VAD nor playout: what is audible was measured on
samples at the listener, in Chromium (browser.py) and at the output of libwebrtc's jitter buffer (wrtc.py). What the
links are, and what becomes a figure, bench_silence.py says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from itertools import count, cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent import wrtc
from agent.bench_report import SENTENCES, Advance, Line, judged, measured, words
from agent.bench_silence import (
    ROOM,
    SPEAKS,
    TICKS,
    Cycles,
    Silences,
    Trial,
    began_at,
    forget,
    in_ms,
    microphone,
    next_sound_ms,
    onset_at,
    planned,
    trial,
    write_wav,
)
from agent.browser import QUANTUM_MS, BrowserError, chromium, serve, tab
from agent.sounds import NAMES, sentence
from engine.machine import check_writable, describe, write_json
from engine.options import positive

if TYPE_CHECKING:
    from playwright.async_api import Browser

BLOCK_MS = 1000 * wrtc.BLOCK_SECONDS
WITHIN_MS = 2000.0
"""Who still speaks that long after the onset has not noticed the user: a miss, which counts as so long."""
STOPPED_WITHIN_MS = 500.0
"""The same after a client's stop."""
NEXT_SOUND_MS = 250.0
SPARE = 10
"""As many trials as are wanted may be repeated, and these."""
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


# ---- the measurements ---------------------------------------------------------------------------------------------

SCRIPT = json.dumps({"greeting": " ".join(SENTENCES), "replies": [" ".join(SENTENCES)], "loop": True})
"""JSON is YAML. The agent is never done before somebody speaks over it."""


class Trials:
    """Trials as they come, until there are as many as wanted; where they are of sentences, of each as many as of the
    others, whichever of them are repeated."""

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

    def lacks(self, name: str) -> bool:
        """This sentence has not its share yet; what does not divide goes to the first of them."""
        share, rest = divmod(self._wanted, len(NAMES))
        return sum(row.said == name for row in self.rows) < share + (NAMES.index(name) < rest)


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
                if found.lacks(speaking.name):
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
            name = next(filter(found.lacks, names))
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
    rng, rows, begun = random.Random(3), list[float](), list[tuple[float, float]]()
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
            started = next(message for message in call.heard.of_type("speech.started") if message["id"] == name)
            begun.append((started["ttfa_ms"], 1000 * started["at"] - stopped_at))
            advance(number + 1)
    after = await settled(url, books(before))
    return Cycles(
        cycles=len(rows),
        late=sum(row > NEXT_SOUND_MS for row in rows),
        next_sound_ms=measured(rows, "sound after a stop"),
        ttfa_ms=measured((ttfa for ttfa, _ in begun), "start of speech"),
        started_ms=measured((at for _, at in begun), "start of speech"),
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
        return await stopped_in_chromium(browser, url, args.stops, advance), {"chromium": browser.version}


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
    "stopped_chromium": Part("stopped, Chromium", stopped_chromium, "stops"),
    "stopped_wrtc": Part("stopped, libwebrtc", stopped_wrtc, "stops"),
    "cycles": Part("stop and speak again", cycled, "cycles"),
}


# ---- the report ---------------------------------------------------------------------------------------------------


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
        "queued and the listener's buffer come on top: about 380 ms in all, by adding up the parts",
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
    Elsewhere(
        "Kyutai Unmute",
        None,
        "a pause score of its recogniser; how late that comes is not published",
        "https://github.com/kyutai-labs/unmute",
    ),
    Elsewhere(
        "Hugging Face speech-to-speech",
        None,
        "a VAD; how late that comes is not published",
        "https://github.com/huggingface/speech-to-speech",
    ),
)


def table(measured: Mapping[str, Figures]) -> Table:
    """The figures as a person reads them, each with the project's target where there is one."""
    out = Table("how fast the agent falls silent", "", "target", "")
    for name, figures in measured.items():
        out.add_section()
        for what, value, target, met in rows(name, figures):
            out.add_row(what, value, target, judged(met))
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
    yield "  of it, to the first PCM, server", words(figures.ttfa_ms), "", None
    yield "  of it, to the first packet", words(figures.started_ms), "", None
    ends = f"{figures.accounted} of {figures.submitted} requests ended"
    yield "  what the server holds afterwards", ends, "as before", figures.balanced


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
    how += "link by link, when a user speaks over it or a client stops it. Takes some twenty minutes."
    p = argparse.ArgumentParser(prog="breezert bench bargein", allow_abbrev=False, description=how)
    add = p.add_argument
    add("--only", action="append", choices=PARTS, help="measure this part alone; repeatable (default: all)")
    add("--trials", type=positive, default=50, metavar="N", help="by voice (default: %(default)s)")
    add("--stops", type=positive, default=200, metavar="N", help="by a client's stop (default: %(default)s)")
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
