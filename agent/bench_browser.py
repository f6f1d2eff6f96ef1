"""The command `bench browser`: what a listener in a real Chromium gets from `breezert serve` over loopback.

It measures through browser.py only and knows neither engine nor media code, so the figures are the listener's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import Progress

from agent.bench_report import SENTENCES, Advance, Line, measured, table, words
from agent.browser import QUANTUM_MS, Array, BrowserError, Heard, Listener, chromium, serve, tab
from agent.probe.outcome import Spread
from engine.machine import describe, write_json
from engine.options import positive, positive_number, whole

if TYPE_CHECKING:
    from playwright.async_api import Browser

PACKET_SAMPLES = 960
LEAST_UTTERANCES = 5
"""As many as there are sentences: Stop falls into the pauses of some, and those say nothing about silence."""
DEAD_STUN = "stun:192.0.2.1:3478"
"""An address that nobody has (RFC 5737): what is sent there is never answered."""
ASKS_DEAD_STUN = f"""{{
  const Peer = RTCPeerConnection;
  window.RTCPeerConnection = class extends Peer {{
    constructor(config) {{ super({{ ...config, iceServers: [{{ urls: "{DEAD_STUN}" }}] }}); }}
  }};
}}"""
"""In the page, before its own scripts."""
RINGING_MS = 1000.0
"""How long after Stop sound is looked for."""


@dataclass(frozen=True, slots=True)
class Connects:
    """Calls made one after another."""

    answer_ms: Spread
    """POST /offer to the answer, as the browser's own resource timing has it."""
    ready_ms: Spread
    """Click on Connect to the server's first message."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Utterances spoken into silence and stopped in the middle of a sound."""

    server_ttfa_ms: Spread
    """Speak message to the first PCM, as the server says."""
    first_sound_ms: Spread
    """Click on Speak to the first audible sample."""
    stop_ms: Spread
    """Click on Stop to the last audible sample; only where something was audible when Stop was pressed."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One long stretch of speech, over whole utterances and the short pauses between them."""

    speech_seconds: float
    utterances: int
    audible_concealed_samples: int
    """concealedSamples - silentConcealedSamples: what the listener's decoder had to make up inside sound."""
    concealed_samples: int
    underruns: int
    """Times the server ran dry inside an utterance, in any of the calls: silence that no concealment shows."""
    packets: int
    packets_lost: int
    timestamp_steps: dict[str, int]
    """RTP timestamp differences of consecutive packets, and how often each came."""
    inter_arrival_ms: Spread
    arrival_clock: str
    """Where arrivals were read: at the browser's socket, or later, in the probe's worker."""
    jitter_buffer_ms: float
    """Mean time a sample was held by the listener's jitter buffer."""
    calls_beside: int
    """Other calls that spoke at the same time."""
    engine_busy_share: float
    """Of the time, how much the engine's device was at work."""


# ---- from what was heard to figures -------------------------------------------------------------------------------


def first_sound_ms(heard: Heard) -> float | None:
    """Last click on Speak -> the first audible sample after it."""
    clicked_at = heard.clicked_at("speak")
    loud = heard.loud_at(clicked_at)
    return float(loud[0]) - clicked_at if len(loud) else None


def stop_ms(heard: Heard) -> float | None:
    """Last click on Stop -> the last audible sample; None where the click fell into a pause of the speech."""
    clicked_at = heard.clicked_at("stop")
    if not len(heard.loud_at(clicked_at - 40, clicked_at)):
        return None
    loud = heard.loud_at(clicked_at - 40, clicked_at + RINGING_MS)
    return float(loud[-1]) + QUANTUM_MS - clicked_at


def timestamp_steps(packets: Array) -> dict[str, int]:
    """How often each RTP timestamp difference came, packets in order of arrival. packets: [n, 4], see Heard."""
    steps, counts = np.unique(np.diff(packets[:, 1]) % 2**32, return_counts=True)
    return {str(int(step)): int(count) for step, count in zip(steps, counts, strict=True)}


def arrivals(packets: Array) -> tuple[Array, str]:
    """Instants in ms, and where they were read. packets: [n, 4], see Heard."""
    socket = packets[:, 3]
    return (packets[:, 0], "worker") if np.isnan(socket).any() else (socket, "socket")


# ---- the measurements ---------------------------------------------------------------------------------------------


async def connects(browser: Browser, url: str, count: int, advance: Advance, script: str = "") -> Connects:
    """`count` calls one after another from one page, in which that script runs before its own."""
    ready = []
    async with tab(browser, url) as listener:
        await listener.page.add_init_script(script)
        await listener.page.reload()
        for done in range(count):
            await listener.connect()
            heard = await listener.gather()
            ready.append(heard.of_type("session.created")[-1]["at"] - heard.clicked_at("connect"))
            await listener.hang_up()
            advance(done + 1)
    return Connects(measured(heard.offers, "answer"), measured(ready, "call"))


async def turns(browser: Browser, url: str, count: int, advance: Advance) -> Turns:
    """`count` times Speak into silence, then Stop while it speaks. Two before them warm the engine and are left out."""
    sounds, stops = [], []
    async with tab(browser, url) as listener:
        await listener.connect()
        for turn in range(-2, count):
            await _turn(listener, SENTENCES[turn % len(SENTENCES)], 700 + 53 * (turn % 10))
            if turn >= 0:
                sounds.append(first_sound_ms(listener.heard))
                stops.append(stop_ms(listener.heard))
                advance(turn + 1)
    ttfa = [message["ttfa_ms"] for message in listener.heard.of_type("speech.started")[2:]]
    return Turns(
        measured(ttfa, "start of speech"),
        measured(sounds, "sound after Speak"),
        measured(stops, "sound when Stop was pressed"),
    )


async def _turn(listener: Listener, text: str, spoken_ms: float) -> None:
    await listener.speak(text)
    await listener.until_speaking()
    await listener.page.wait_for_timeout(spoken_ms)
    await listener.stop()
    await listener.until_silent()
    await listener.gather()


async def stretch(browser: Browser, url: str, seconds: float, beside: int, advance: Advance) -> Stretch:
    """At least `seconds` of speech without a break in one call, while `beside` others speak as well, unmeasured."""
    async with AsyncExitStack() as tabs:
        listener = await tabs.enter_async_context(tab(browser, url, watch_packets=True))
        talkers = [listener] + [await tabs.enter_async_context(tab(browser, url)) for _ in range(beside)]
        for talker in talkers:
            await talker.connect()
        await listener.speak(SENTENCES[-1])
        await listener.until_silent()  # the jitter buffer has found its target
        await listener.gather()
        listener.heard.messages.clear()
        before, busy_before, began_at = await listener.stats(), await listener.metric(BUSY), time.monotonic()
        while (spoken := _spoken(listener.heard)) < seconds:
            advance(spoken)
            for talker in talkers:
                await _keep_talking(talker)
            await listener.page.wait_for_timeout(500)  # seldom, so that looking does not disturb what is looked at
            await listener.gather()
        after, busy = await listener.stats(), await listener.metric(BUSY) - busy_before
        underruns = [len((await talker.gather()).of_type("speech.underrun")) for talker in talkers]
        advance(seconds)
    counted = {name: after[name] - before[name] for name in COUNTED}
    return _stretch(listener.heard, counted, underruns, busy / (time.monotonic() - began_at))


async def _keep_talking(talker: Listener) -> None:
    """Sees to it that one utterance plays and the next waits behind it."""
    for _ in range(2 - await talker.page.locator("[data-state=speaking], [data-state=waiting]").count()):
        asked = len(talker.heard.clicks) + await talker.page.evaluate("probe.clicks.length")
        await talker.speak(SENTENCES[asked % len(SENTENCES)])


BUSY = "breezert_engine_device_busy_seconds_total"
COUNTED = (
    "concealedSamples",
    "silentConcealedSamples",
    "packetsLost",
    "jitterBufferDelay",
    "jitterBufferEmittedCount",
)


def _spoken(heard: Heard) -> float:
    return float(sum(message["heard_ms"] for message in heard.of_type("speech.stopped"))) / 1000


def _stretch(heard: Heard, counted: dict[str, float], underruns: list[int], busy_share: float) -> Stretch:
    stopped = heard.of_type("speech.stopped")
    began, ended = heard.of_type("speech.started")[0]["at"], stopped[-1]["at"]
    packets = np.array(heard.packets, dtype=np.float64)
    packets = packets[(packets[:, 0] >= began) & (packets[:, 0] <= ended)]
    arrived, clock = arrivals(packets)
    return Stretch(
        speech_seconds=round(_spoken(heard), 1),
        utterances=len(stopped),
        audible_concealed_samples=int(counted["concealedSamples"] - counted["silentConcealedSamples"]),
        concealed_samples=int(counted["concealedSamples"]),
        underruns=sum(underruns),
        packets=len(packets),
        packets_lost=int(counted["packetsLost"]),
        timestamp_steps=timestamp_steps(packets),
        inter_arrival_ms=measured(np.diff(arrived), "packet"),
        arrival_clock=clock,
        jitter_buffer_ms=round(1000 * counted["jitterBufferDelay"] / counted["jitterBufferEmittedCount"], 1),
        calls_beside=len(underruns) - 1,
        engine_busy_share=round(busy_share, 2),
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that the command measures."""

    connects: Connects
    connects_dead_stun: Connects
    """The same where the browser asks a STUN server that never answers."""
    turns: Turns
    stretch: Stretch


async def measure(url: str, args: argparse.Namespace, progress: Progress) -> tuple[Figures, str]:
    """The measurements, one after another, and the browser's version. Raises BrowserError."""

    def bar(words: str, total: float) -> Advance:
        task = progress.add_task(words, total=total)
        return lambda done: progress.update(task, completed=min(done, total))

    async with chromium(args.chromium) as browser:
        figures = Figures(
            await connects(browser, url, args.connects, bar("calls", args.connects)),
            await connects(browser, url, args.connects, bar("calls, STUN dead", args.connects), ASKS_DEAD_STUN),
            await turns(browser, url, args.utterances, bar("utterances", args.utterances)),
            await stretch(browser, url, args.seconds, args.beside, bar("seconds of speech", args.seconds)),
        )
        return figures, browser.version


# ---- the report ---------------------------------------------------------------------------------------------------


def rows(figures: Figures) -> Iterator[Line]:
    """(what, value, target, whether it was met) of every line."""
    calls, turn, long = figures.connects, figures.turns, figures.stretch
    yield "answer to an offer", words(calls.answer_ms), "p95 < 300 ms", calls.answer_ms.p95 < 300
    yield "Connect -> ready", words(calls.ready_ms), "", None
    dead = figures.connects_dead_stun
    yield "answer, STUN dead", words(dead.answer_ms), "p95 < 300 ms", dead.answer_ms.p95 < 300
    yield "Connect -> ready, STUN dead", words(dead.ready_ms), "", None
    yield "first PCM, server", words(turn.server_ttfa_ms), "p50 <= 150 ms", turn.server_ttfa_ms.p50 <= 150
    yield "Speak -> audible", words(turn.first_sound_ms), "p50 <= 350 ms", turn.first_sound_ms.p50 <= 350
    yield "Stop -> silent", words(turn.stop_ms), "", None
    load = f"engine busy {100 * long.engine_busy_share:.0f} % of it, {long.calls_beside} other calls"
    yield f"{long.speech_seconds:.0f} s of speech", load, "", None
    concealed = long.audible_concealed_samples
    yield "concealed inside sound", f"{concealed} samples", "0", concealed == 0
    yield "underruns", str(long.underruns), "0", long.underruns == 0
    odd = {step: count for step, count in long.timestamp_steps.items() if step != str(PACKET_SAMPLES)}
    yield "RTP steps other than 960", str(odd or 0), "0", not odd
    yield (
        f"packet to packet, at the {long.arrival_clock}",
        f"p50 {long.inter_arrival_ms.p50}, p99 {long.inter_arrival_ms.p99}, max {long.inter_arrival_ms.max} ms",
        "p99 < 26 ms",
        long.inter_arrival_ms.p99 < 26,
    )
    yield "jitter buffer, mean", f"{long.jitter_buffer_ms} ms", "", None


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[str]:
    if args.url:
        yield args.url
        return
    options = ["--device", args.device]
    if args.voice:
        options += ["--voice", str(args.voice)]
    with serve(*options) as served:
        yield served.url


def parser() -> argparse.ArgumentParser:
    """The command line. Unknown options are errors."""
    how = "Starts a server and a headless Chromium, and measures what the listener gets: calls one after another, "
    how += "utterances that are stopped while they sound, then speech without a break. Takes some three minutes."
    p = argparse.ArgumentParser(prog="breezert bench browser", allow_abbrev=False, description=how)
    add = p.add_argument
    add("--url", help="a server that already runs (default: one is started)")
    add("--voice", type=Path, metavar="FOLDER", help="for the server that is started (default: the embedded voice)")
    add("--device", default="auto", metavar="auto|cpu|cuda", help="of that server (default: %(default)s)")
    add("--chromium", metavar="PATH", help="default: the Chromium or Chrome on the PATH")
    add("--connects", type=positive, default=20, metavar="N", help="calls (default: %(default)s)")
    text = f"spoken and stopped, {LEAST_UTTERANCES} or more (default: %(default)s)"
    add("--utterances", type=utterances, default=20, metavar="N", help=text)
    text = "of speech without a break (default: %(default)s)"
    add("--seconds", type=positive_number, default=60.0, metavar="S", help=text)
    text = "other calls that speak during those seconds (default: %(default)s)"
    add("--beside", type=beside, default=0, metavar="N", help=text)
    add("--json", metavar="FILE", help="write all figures there; - is standard output")
    return p


def utterances(text: str) -> int:
    """Enough that Stop falls into sound."""
    if (value := whole(text)) < LEAST_UTTERANCES:
        raise argparse.ArgumentTypeError(f"must be at least {LEAST_UTTERANCES}, got {text}")
    return value


def beside(text: str) -> int:
    """Other calls, or none."""
    if (value := whole(text)) < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table, writes the JSON. A mistake is one line on standard error and exit status 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(argv)
    console = Console(stderr=True)
    load = round(os.getloadavg()[0], 2)  # of others: what they take of the cores is missing here
    try:
        with _server(args) as url, Progress(console=console) as progress:
            figures, browser_version = asyncio.run(measure(url, args, progress))
        console.print(table("measured in Chromium", rows(figures)))
        if args.json:
            versions = {"chromium": browser_version, "aiortc": version("aiortc"), "av": version("av")}
            head = {**describe(args.device, ["bench", "browser", *argv]), **versions}
            write_json(args.json, {**head, "load_average_before": load, **asdict(figures)})
    except (BrowserError, OSError) as error:
        print(f"breezert bench browser: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
