"""The command `bench page`: what the demo page costs: its picture in Chromium, the messages for it on the server, and
what is transferred. What its caller hears of each policy stands in bench_policies.py.

It knows the page by its buttons and the timeline by its elements, and nothing of what is painted. What is compared
alternates within seconds, because the rest of a machine changes within minutes: the picture drawn and its panel closed,
ten calls that watch and the same that do not. Frames are counted in periods of their own: counting costs CPU. All CPU
is utime + stime of whole processes, as percent of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from aiohttp import web
from rich.console import Console
from rich.progress import Progress

from agent.bench_arrivals import BenchError
from agent.bench_browser import BUSY, beside
from agent.bench_policies import Compared, compared, slide
from agent.bench_report import SENTENCES, Advance, Line, measured, table
from agent.bench_transport import (
    BATCH,
    PATIENCE,
    SETTLE_SECONDS,
    Listener,
    Recording,
    Speech,
    ask,
    asked,
    ping,
    process,
    receive,
    recorded,
)
from agent.browser import BrowserError, chromium, serve
from agent.browser import Listener as Tab
from agent.calls import CallLimits
from agent.demo import POLICIES
from agent.dial import ClientError
from agent.dial import Line as Dial
from agent.guard import Access
from agent.probe.outcome import Spread
from agent.protocol import Watch
from agent.scene import Scene
from agent.server import attach
from engine.clock import MonotonicClock
from engine.core import Output, Request, Stage
from engine.machine import check_writable, describe, write_json
from engine.options import positive, positive_number
from engine.recorder import Ran
from engine.runtime import EngineError

if TYPE_CHECKING:
    from playwright.async_api import Browser, CDPSession, Page

TARGET_FRAMES, TARGET_CPU_PERCENT, TARGET_BYTES, TARGET_ADDED_PERCENT = 60.0, 30.0, 150_000, 2.0
FRAMES_SLACK = 0.5
"""Frames a second that a period may miss of the target: its ends do not fall on frames."""
SIZE = {"width": 1440, "height": 1000}
"""Of the window, in CSS pixels: the panel's whole picture is in view."""
AHEAD = 3
"""Utterances that are pending when a period begins: it is shorter than they are."""
CLOSED_SECONDS = 0.3
"""What a panel that opens or closes, or a client that begins to watch, may do before it is measured."""
TELL_SECONDS = 0.1
"""Between two tellings of an engine's steps, as `serve` has it."""
STEPS = (Stage.DECODE, Stage.DEPTH, Stage.DECODE, Stage.DEPTH, Stage.DECODE, Stage.DEPTH, Stage.CODEC)
"""In each: 30 frames a second in one batch of all calls, where 12.5 would do."""
FINER = 4
"""So many more rounds, of so much shorter periods, have the messages than the picture: what they add is less than what
others on the machine add and take away again within seconds."""
TICKS = os.sysconf("SC_CLK_TCK")

OPEN = """(on) => {
  const see = document.querySelector(".see");
  see.style.display = on ? "" : "none";
  see.scrollIntoView(); // what is out of view is not drawn, and a button that was pressed may have scrolled
}"""
FRAMES = """(seconds) => new Promise((resolve) => {
  const strip = document.querySelector(".strip");
  const frames = [];
  let moves = 0;
  let place = "";
  const look = (now) => {
    frames.push(now);
    const { transform } = getComputedStyle(strip);
    moves += transform !== place;
    place = transform;
    now - frames[0] < 1000 * seconds ? requestAnimationFrame(look) : resolve({ frames, moves });
  };
  requestAnimationFrame(look);
})"""
"""The instants of the frames that the browser asks the page for, in ms, and how many of them moved the picture."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """Of one process or several, in percent of one core: medians over the rounds, and of the differences in them."""

    drawn: float
    counted: float
    """While its frames are counted as well: the browser then asks the page for each."""
    closed: float
    """With the panel See not displayed; its messages still come."""
    picture: float
    """What the panel costs: drawn less closed."""

    @classmethod
    def of(cls, drawn: Sequence[float], counted: Sequence[float], closed: Sequence[float]) -> Cpu:
        rows = median(drawn), median(counted), median(closed), added(closed, drawn)
        return cls(*(round(value, 1) for value in rows))


@dataclass(frozen=True, slots=True)
class Drawn:
    """The timeline while a reply plays without a break."""

    synthetic_listeners: int
    seconds: float
    """In which its frames were counted."""
    frames_a_second: float
    frame_ms: Spread
    """From one requestAnimationFrame to the next, by the frames' own timestamps."""
    moves_a_second: float
    """Frames in which the picture had moved: it does by whole pixels of the screen, of which a second has some 40."""
    renderer: Cpu
    """The page's own process: its scripts, layout and painting, and its WebRTC, decoder and meters."""
    chromium: Cpu
    """All of the browser's processes: without a graphics card one of them composes the picture."""
    speaking_share: float
    """Of the periods, those at whose end the agent spoke."""
    engine_busy_share: float
    """Of the time, how much the engine's device, on the same cores, was at work."""


@dataclass(frozen=True, slots=True)
class Events:
    """What the messages for the picture add to a server, all of whose calls watch or none."""

    peers: int
    rounds: int
    period_seconds: float
    """Of each half of a round."""
    cpu_off_percent: float
    cpu_on_percent: float
    cpu_added_percent: float
    """Of one core; median of the rounds' differences."""
    cpu_added_share_percent: float
    """Of what the server takes without."""
    loop_added_percent: float
    """Of one core, by the event loop's thread alone, which makes and sends all messages: what encoding the speech takes
    beside it, more or less as somebody speaks or pauses, is not in it."""
    p99_off_ms: float
    p99_on_ms: float
    """From packet to packet of a call, over all calls; medians of the periods' p99."""
    p99_added_ms: float
    p99_scatter_ms: float
    """Between the quartiles of the periods without: what a difference means nothing below."""
    views_a_second: float
    """Of one call."""
    view_bytes: float
    """Mean."""


@dataclass(frozen=True, slots=True)
class Weight:
    """What opening the page transfers."""

    files: int
    bytes: int
    """Of all bodies, as they are transferred."""
    header_bytes: int
    foreign: tuple[str, ...]
    """Addresses beyond the server that were asked."""
    first_paint_ms: float
    """Of something to see, from the navigation on."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that the command measures."""

    weight: Weight
    drawn: list[Drawn]
    heard: Compared
    events: Events


def added(without: Sequence[float], with_it: Sequence[float]) -> float:
    """Median of what the second has more than the first, round by round."""
    return median(more - less for less, more in zip(without, with_it, strict=True))


Kind = TypeVar("Kind")


def turns(rounds: int, kinds: tuple[Kind, ...]) -> Iterator[Kind]:
    """Each kind once in a round; every other round the other way round, so that what only rises or falls cancels."""
    for count in range(rounds):
        yield from kinds if count % 2 == 0 else reversed(kinds)


# ---- in the browser -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(browser: Browser) -> AsyncIterator[Page]:
    """A page in a profile of its own, as a visitor has it: browser.py's probe would cost more than the picture."""
    context = await browser.new_context(viewport=SIZE)  # type: ignore[arg-type]
    try:
        yield await context.new_page()
    finally:
        await context.close()


async def weighed(browser: Browser, url: str) -> Weight:
    """Opens the page in a browser that has nothing of it."""
    async with opened(browser) as page:
        requests: list[Any] = []
        page.on("request", lambda request: requests.append(request))  # playwright marks what it calls
        await page.goto(url, wait_until="networkidle")
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        painted = await page.evaluate(paint)
        sizes = [await request.sizes() for request in requests]
    return Weight(
        files=len(requests),
        bytes=sum(size["responseBodySize"] for size in sizes),
        header_bytes=sum(size["responseHeadersSize"] for size in sizes),
        foreign=tuple(sorted({request.url for request in requests if not request.url.startswith(url)})),
        first_paint_ms=round(painted, 1),
    )


SHOWN, COUNTED, CLOSED = "shown", "counted", "closed"


@dataclass(frozen=True, slots=True)
class Period:
    """A few seconds of speech with the picture, with its frames counted, or without it."""

    seconds: float
    cpu: Mapping[str, float]
    """Percent of one core, by the kind of the browser's processes."""
    frames: Sequence[float]
    """Instants in ms, where they are counted."""
    moves: int
    speaks: bool
    """The agent still speaks at its end."""


async def drawing(
    browser: Browser, url: str, load: int, rounds: int, seconds: float, advance: Advance = lambda done: None
) -> Drawn:
    """The picture and the panel without it, in turn, while the agent speaks. Raises BrowserError.

    load: synthetic listeners, on a server that is for show."""
    devtools = await browser.new_browser_cdp_session()
    async with opened(browser) as page:
        await page.goto(url)
        tab = Tab(page)
        await tab.connect()
        await keep_talking(tab)
        await tab.until_speaking()  # before the load: it might be refused behind it
        await slide(page, load)
        busy, began_at = await tab.metric(BUSY), time.monotonic()
        periods: dict[str, list[Period]] = {SHOWN: [], COUNTED: [], CLOSED: []}
        for count, kind in enumerate(turns(rounds, tuple(periods))):
            await keep_talking(tab)
            periods[kind].append(await period(page, devtools, kind, seconds))
            advance(count + 1)
        busy = await tab.metric(BUSY) - busy
        passed = time.monotonic() - began_at
        await slide(page, 0)
    return drawn(load, periods[SHOWN], periods[COUNTED], periods[CLOSED], busy / passed)


async def keep_talking(tab: Tab) -> None:
    """Sees to it that speech lasts beyond the next period."""
    pending = await tab.page.locator("[data-state=speaking], [data-state=waiting]").count()
    for index in range(pending, AHEAD):
        await tab.speak(" ".join(SENTENCES[index:] + SENTENCES[:index])[:240])


async def period(page: Page, devtools: CDPSession, kind: str, seconds: float) -> Period:
    await page.evaluate(OPEN, kind != CLOSED)
    await page.wait_for_timeout(1000 * CLOSED_SECONDS)
    processes, began_at = await browser_processes(devtools), time.monotonic()
    before = cpu_seconds(processes)
    found: dict[str, Any] = {"frames": [], "moves": 0}
    if kind == COUNTED:
        found = await page.evaluate(FRAMES, seconds)
        if not found["moves"]:
            raise BrowserError("the timeline stands still: is it out of view, or held?")
    else:
        await asyncio.sleep(seconds)  # the measurement lasts so long
    passed, after = time.monotonic() - began_at, cpu_seconds(processes)
    cpu = {kind: 100 * (after[kind] - before[kind]) / passed for kind in after}
    speaks = await page.is_visible("#status[data-phase=speaking]")
    return Period(passed, cpu, found["frames"], found["moves"], speaks)


def drawn(
    load: int, shown: Sequence[Period], counted: Sequence[Period], closed: Sequence[Period], busy_share: float
) -> Drawn:
    """Raises BrowserError where no frame came."""
    deltas, seconds = np.concatenate([np.diff(each.frames) for each in counted]), sum(each.seconds for each in counted)

    def cpu(of: Callable[[Mapping[str, float]], float]) -> Cpu:
        return Cpu.of(*([of(each.cpu) for each in some] for some in (shown, counted, closed)))

    return Drawn(
        synthetic_listeners=load,
        seconds=round(seconds, 1),
        frames_a_second=round(1000 * len(deltas) / float(np.sum(deltas)), 1) if len(deltas) else 0.0,
        frame_ms=measured(deltas, "frame"),
        moves_a_second=round(sum(each.moves for each in counted) / seconds, 1),
        renderer=cpu(lambda by_kind: by_kind["renderer"]),
        chromium=cpu(lambda by_kind: sum(by_kind.values())),
        speaking_share=round(float(np.mean([each.speaks for each in (*shown, *counted, *closed)])), 2),
        engine_busy_share=round(busy_share, 2),
    )


async def browser_processes(devtools: CDPSession) -> dict[int, str]:
    """The kind of each of the browser's processes by its id."""
    told = await devtools.send("SystemInfo.getProcessInfo")
    return {int(each["id"]): each["type"] for each in told["processInfo"]}


def cpu_seconds(processes: Mapping[int, str]) -> dict[str, float]:
    """By kind, what its processes have taken so far; those that are gone have taken nothing."""
    taken = dict.fromkeys(processes.values(), 0.0)
    for number, kind in processes.items():
        stat = Path(f"/proc/{number}/stat")
        if stat.exists():
            taken[kind] += stat_seconds(stat.read_text())
    return taken


def stat_seconds(line: str) -> float:
    """utime + stime of a line of /proc/*/stat (proc(5)); a name in brackets may hold anything."""
    fields = line.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


# ---- the server's process -----------------------------------------------------------------------------------------


class Showing(Recording):
    """A recording that can be shown like an engine: it has steps to tell of."""

    def __init__(self, speech: Speech, peers: int) -> None:
        super().__init__(speech)
        self._now, self._recent = MonotonicClock().now, deque[int](maxlen=2 * peers)  # one plays, one waits

    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int:
        self._recent.append(super().submit(request, deliver))
        return self._recent[-1]

    def use_policy(self, name: str) -> None: ...

    async def tell(self, scene: Scene) -> None:
        """What an engine would have run for all calls since it was last asked, for ever: watched or not."""
        while True:
            await asyncio.sleep(TELL_SECONDS)
            scene.take(self._steps(self._now() - TELL_SECONDS))

    def _steps(self, began_at: float) -> tuple[Ran, ...]:
        took, requests = TELL_SECONDS / len(STEPS), tuple(self._recent)
        return tuple(
            Ran(stage, len(requests), 1, began_at + index * took, took, False, requests)
            for index, stage in enumerate(STEPS)
        )


def serve_calls(pipe: Pipe, speech: Speech, peers: int) -> None:
    """The server's process, until the pipe is closed. It sends its address, then answers with the CPU seconds
    of all its threads and of its event loop's."""
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_serve_calls(pipe, speech, peers))


async def _serve_calls(pipe: Pipe, speech: Speech, peers: int) -> None:
    app, engine = web.Application(), Showing(speech, peers)
    calls = attach(app, engine, access=Access(rate=1000.0), limits=CallLimits(max_peers=peers), show=engine)
    runner = web.AppRunner(app)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening).start()
    telling = asyncio.create_task(engine.tell(calls.scene))
    pipe.send(f"http://127.0.0.1:{listening.getsockname()[1]}")
    async for _ in asked(pipe):
        pipe.send((time.process_time(), time.thread_time()))
    telling.cancel()
    await runner.cleanup()


# ---- the process of those who listen ------------------------------------------------------------------------------


class Watcher(Listener):
    """A listener that can be shown how it is served, and counts what it is shown."""

    def __init__(self, line: Dial) -> None:
        self.views = self.view_bytes = 0
        super().__init__(line)

    def watch(self, on: bool) -> None:
        self._tell(Watch(on=on))

    def _take(self, data: str | bytes) -> None:
        super()._take(data)
        if data.startswith('{"type":"view"') if isinstance(data, str) else data.startswith(b'{"type":"view"'):
            self.views += 1
            self.view_bytes += len(data)


def watch_calls(pipe: Pipe, url: str, peers: int) -> None:
    """The process of all listeners: sends a word when all calls speak. Told True or False, they watch or do not; asked
    for two instants, it answers what came between them; asked for nothing, what was seen."""
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_watch_calls(pipe, url, peers))


async def _watch_calls(pipe: Pipe, url: str, peers: int) -> None:
    line = Dial(url, None, None)
    watchers = [Watcher(line) for _ in range(peers)]
    pinging = asyncio.create_task(ping([*watchers]))
    try:
        async with asyncio.timeout(PATIENCE):
            for start in range(0, peers, BATCH):
                await asyncio.gather(*(watcher.call() for watcher in watchers[start : start + BATCH]))
        pipe.send("ready")
        async for question in asked(pipe):
            pipe.send(answered(question, watchers))
    except (ClientError, TimeoutError) as error:
        pipe.send(BenchError(f"not all of {peers} calls could be made: {error or type(error).__name__}"))
    finally:
        pinging.cancel()
        await asyncio.gather(*(watcher.close() for watcher in watchers))
        await line.close()


def answered(question: bool | tuple[float, float] | None, watchers: Sequence[Watcher]) -> Any:
    if question is None:
        return sum(each.views for each in watchers), sum(each.view_bytes for each in watchers)
    if isinstance(question, bool):
        for watcher in watchers:
            watcher.watch(question)
        return None
    return [gap for watcher in watchers for gap in gaps_ms(watcher.arrivals, *question)]


def gaps_ms(arrivals: Sequence[float], began_at: float, ended_at: float) -> list[float]:
    """From packet to packet of one call, between two instants."""
    at = np.asarray(arrivals)
    return [float(gap) for gap in 1000 * np.diff(at[(at >= began_at) & (at <= ended_at)])]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A few seconds in which all calls watched or none did."""

    seconds: float
    cpu_percent: float
    loop_percent: float
    p99_ms: float
    views: int
    view_bytes: int


def watched(speech: Speech, peers: int, rounds: int, seconds: float, advance: Advance = lambda done: None) -> Events:
    """So many calls hear speech, and watch or do not, in turn. Raises BenchError."""
    stretches: dict[bool, list[Stretch]] = {False: [], True: []}
    with process(serve_calls, speech, peers) as server:
        url = receive(server)
        with process(watch_calls, url, peers) as listeners:
            receive(listeners, 2 * PATIENCE)
            time.sleep(SETTLE_SECONDS)  # calls that have just begun are not measured
            for count, on in enumerate(turns(rounds, (False, True))):
                ask(listeners, on)
                time.sleep(CLOSED_SECONDS)  # what was not told while nobody watched comes with the first view
                stretches[on].append(stretch(server, listeners, seconds))
                advance(count + 1)
    return events(peers, stretches[False], stretches[True])


def stretch(server: Pipe, listeners: Pipe, seconds: float) -> Stretch:
    (views, view_bytes), before, began_at = ask(listeners), ask(server), time.monotonic()
    time.sleep(seconds)  # the measurement lasts so long
    after, ended_at, seen = ask(server), time.monotonic(), ask(listeners)
    gaps = ask(listeners, (began_at, ended_at))
    if not gaps:
        raise BenchError("the calls heard nothing: look at what the server printed")
    cpu, loop = (100 * (late - early) / (ended_at - began_at) for early, late in zip(before, after, strict=True))
    p99 = float(np.quantile(gaps, 0.99))
    return Stretch(ended_at - began_at, cpu, loop, p99, seen[0] - views, seen[1] - view_bytes)


def events(peers: int, off: Sequence[Stretch], on: Sequence[Stretch]) -> Events:
    """Raises BenchError where nobody was shown anything."""
    views, watching = sum(each.views for each in on), sum(each.seconds for each in on)
    if not views:
        raise BenchError("no call was shown anything: look at what the server printed")
    cpu_off, cpu_on = ([each.cpu_percent for each in some] for some in (off, on))
    loop_off, loop_on = ([each.loop_percent for each in some] for some in (off, on))
    p99_off, p99_on = ([each.p99_ms for each in some] for some in (off, on))
    more = added(cpu_off, cpu_on)
    return Events(
        peers=peers,
        rounds=len(on),
        period_seconds=round(watching / len(on), 1),
        cpu_off_percent=round(median(cpu_off), 1),
        cpu_on_percent=round(median(cpu_on), 1),
        cpu_added_percent=round(more, 2),
        cpu_added_share_percent=round(100 * more / median(cpu_off), 1),
        loop_added_percent=round(added(loop_off, loop_on), 2),
        p99_off_ms=round(median(p99_off), 1),
        p99_on_ms=round(median(p99_on), 1),
        p99_added_ms=round(added(p99_off, p99_on), 2),
        p99_scatter_ms=round(float(np.subtract(*np.quantile(p99_off, [0.75, 0.25]))), 2),
        views_a_second=round(views / watching / peers, 1),
        view_bytes=round(sum(each.view_bytes for each in on) / views),
    )


# ---- the report ---------------------------------------------------------------------------------------------------


async def seen(url: str, args: argparse.Namespace, progress: Progress) -> tuple[Weight, list[Drawn], Compared, str]:
    """What the browser shows, takes and plays, and its version. Raises BrowserError."""
    async with chromium(args.chromium) as browser:
        weight = await weighed(browser, url)
        found = []
        for load in args.load:
            advance = bar(progress, f"picture, {load} synthetic listeners", 3 * args.rounds)
            found.append(await drawing(browser, url, load, args.rounds, args.seconds, advance))
        advance = bar(progress, f"policies, {args.beside} synthetic listeners", 2 * args.rounds)
        heard = await compared(browser, url, args.beside, turns(args.rounds, POLICIES), advance)
        return weight, found, heard, browser.version


def bar(progress: Progress, words: str, total: int) -> Advance:
    task = progress.add_task(words, total=total)
    return lambda done: progress.update(task, completed=done)


def measure(args: argparse.Namespace, progress: Progress) -> tuple[Figures, str]:
    """All of it, one after another, and the browser's version. Raises BrowserError, BenchError and EngineError."""
    with serve("--device", args.device, "--demo") as served:
        weight, found, heard, browser_version = asyncio.run(seen(served.url, args, progress))
    speech = recorded()
    rounds, seconds = FINER * args.rounds, args.seconds / FINER
    advance = bar(progress, f"messages, {args.peers} calls", 2 * rounds)
    told = watched(speech, args.peers, rounds, seconds, advance)
    return Figures(weight, found, heard, told), browser_version


def rows(figures: Figures) -> Iterator[Line]:
    """(what, value, target, whether it was met) of every line."""
    for one in figures.drawn:
        yield from drawn_rows(one)
    yield from heard_rows(figures.heard)
    yield from event_rows(figures.events)
    yield from weight_rows(figures.weight)


def drawn_rows(one: Drawn) -> Iterator[Line]:
    gap, met = one.frame_ms, one.frames_a_second >= TARGET_FRAMES - FRAMES_SLACK
    value = f"{one.frames_a_second} a second; p50 {gap.p50}, p99 {gap.p99}, max {gap.max} ms"
    yield f"{one.synthetic_listeners} synthetic listeners: frames", value, f"{TARGET_FRAMES:.0f} a second", met
    yield "  of which the picture moved", f"{one.moves_a_second} a second", "", None
    for words, cpu in (("the page's process", one.renderer), ("all of Chromium", one.chromium)):
        value = f"{cpu.drawn} % (counted {cpu.counted} %), panel closed {cpu.closed} %: the picture {cpu.picture} %"
        whole = cpu is one.renderer  # the others also play the sound and receive the packets
        taken, limit = cpu.drawn if whole else cpu.picture, "" if whole else "the picture "
        yield f"  {words}", value, f"{limit}< {TARGET_CPU_PERCENT:.0f} % of a core", taken < TARGET_CPU_PERCENT
    value = f"{100 * one.engine_busy_share:.0f} % of the time; the agent spoke in {100 * one.speaking_share:.0f} %"
    yield "  engine busy", value, "", None


def heard_rows(heard: Compared) -> Iterator[Line]:
    for one in heard.policies:
        value = f"{one.replies_with_stutters} of {one.replies} replies stutter, by {one.missed_ms:.0f} ms in all"
        value += f", {one.longest_ms:.0f} in one; first audio p50 {one.first_audio_ms:.0f} ms; {one.refused} refused"
        yield f"{one.policy}, beside {heard.synthetic_listeners} synthetic listeners", value, "", None


def event_rows(told: Events) -> Iterator[Line]:
    value = f"{told.cpu_off_percent} % -> {told.cpu_on_percent} %: {told.cpu_added_percent:+} % of a core, "
    value += f"{told.cpu_added_share_percent:+} % of its own"
    value += f"; its event loop {told.loop_added_percent:+} %"
    target, met = f"< {TARGET_ADDED_PERCENT:.0f} % of a core", told.cpu_added_percent < TARGET_ADDED_PERCENT
    yield f"{told.peers} calls watch: server's CPU", value, target, met
    value = f"{told.p99_off_ms} -> {told.p99_on_ms}: {told.p99_added_ms:+} ms (scatter {told.p99_scatter_ms})"
    met = told.p99_added_ms <= told.p99_scatter_ms
    yield "  packet to packet, p99", value, "nothing beyond the scatter", met
    yield "  messages", f"{told.views_a_second} a second to each, {told.view_bytes:.0f} bytes", "", None


def weight_rows(weight: Weight) -> Iterator[Line]:
    what = f"{weight.bytes} bytes in {weight.files} files, and {weight.header_bytes} of headers"
    yield "transferred", what, f"<= {TARGET_BYTES}", weight.bytes <= TARGET_BYTES
    yield "requests beyond the server", str(len(weight.foreign)), "0", not weight.foreign
    yield "first paint", f"{weight.first_paint_ms:.0f} ms", "", None


def parser() -> argparse.ArgumentParser:
    """The command line. Unknown options are errors."""
    how = "Measures what the demo page costs: frames and CPU in a headless Chromium while a reply plays, what its "
    how += "messages add to a server whose calls all watch, and what is transferred; and what its caller hears of "
    how += "either policy. Everything stays on loopback. Takes some six minutes."
    p = argparse.ArgumentParser(prog="breezert bench page", allow_abbrev=False, description=how)
    add = p.add_argument
    add("--device", default="auto", metavar="auto|cpu|cuda", help="of the page's server (default: %(default)s)")
    add("--chromium", metavar="PATH", help="default: the Chromium or Chrome on the PATH")
    text = "synthetic listeners beside the page; several are measured one after another (default: %(default)s)"
    add("--load", type=beside, nargs="+", default=[0, 4], metavar="N", help=text)
    text = "synthetic listeners beside the caller who hears both policies (default: %(default)s)"
    add("--beside", type=beside, default=4, metavar="N", help=text)
    add("--peers", type=positive, default=10, metavar="N", help="calls that watch (default: %(default)s)")
    text = "in each of which all kinds of period come once (default: %(default)s)"
    add("--rounds", type=positive, default=5, metavar="N", help=text)
    text = f"of each period; the messages have {FINER} times the rounds, each as much shorter (default: %(default)s)"
    add("--seconds", type=positive_number, default=3.0, metavar="S", help=text)
    add("--json", metavar="FILE", help="write all figures there; - is standard output")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table, writes the JSON. A mistake is one line on standard error and exit status 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(argv)
    console = Console(stderr=True)
    load = round(os.getloadavg()[0], 2)  # of others: what they take of the cores is missing here
    try:
        if args.json:
            check_writable(args.json)
        with Progress(console=console) as progress:
            figures, browser_version = measure(args, progress)
        console.print(table("the page", rows(figures)))
        if args.json:
            versions = {"chromium": browser_version, **{name: version(name) for name in ("aiortc", "av")}}
            head = {**describe(args.device, ["bench", "page", *argv]), **versions}
            write_json(args.json, {**head, "load_average_before": load, **asdict(figures)})
    except (BrowserError, BenchError, EngineError, OSError, ValueError) as error:
        print(f"breezert bench page: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
