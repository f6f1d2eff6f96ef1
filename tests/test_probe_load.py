"""agent/probe/load.py against real servers with a scripted engine: one that is as it should be, one that leaks with
every call, and one whose engine is killed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.opus import OpusEncoder
from agent.probe import load
from agent.probe.books import Books, Entry
from agent.probe.call import Target
from agent.probe.judging import Judges
from agent.probe.load import CONNECT, Loading, Wanted, after_death, cycle, dying, settled, soak
from agent.probe.outcome import Outcome
from agent.probe.prompter import check
from agent.probe.recording import RATE, Packet, Recording, Said, Told
from agent.probe.run import ProbeError, Run
from agent.probe.scenario import Cue, Expectation, Scenario, Step

TESTS = Path(__file__).parent
SERVING = """
import multiprocessing, sys, threading, time
sys.path[:0] = [{tests!r}, {root!r}]

def serve(kind):
    from dataclasses import replace
    from scripted_runtime import SPEC, ScriptedRuntime
    import agent.__main__, agent.calls, agent.serve
    from engine.core import ErrorCode

    class Mortal(ScriptedRuntime):
        '''Says nothing more when its process has died, and has another one a second later.'''

        def __init__(self):
            super().__init__(replace(SPEC, max_text_chars=2000), pace=0.07)  # nearly as slow as it is played
            self.lives = 0
            self.live()

        def live(self):
            self.process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), daemon=True)
            self.process.start()
            self.lives, self.retry_after = self.lives + 1, 0.0
            threading.Thread(target=self.mourn, daemon=True).start()

        def mourn(self):
            self.process.join()
            self.retry_after = 1.0
            time.sleep(1.0)  # what a new engine takes
            self.live()

        def _speak(self, job, pace):
            lives = self.lives
            for n in range(len(job.request.text)):
                if self.retry_after or self.lives != lives:
                    return self.fail(job.request_id, ErrorCode.ENGINE_DIED, "the engine died")
                if job.cancelled.wait(pace):
                    break
                self.say(job.request_id, 1)
            self.finish(job.request_id)

    kept = []
    opened = agent.calls.Calls.open

    async def leaking(calls, *arguments, **options):
        kept.append((open("/dev/null"), bytearray(b"x" * 4_000_000)))
        return await opened(calls, *arguments, **options)

    if kind == "leaking":
        agent.calls.Calls.open = leaking
    run = agent.serve.run
    agent.serve.run = lambda config: run(config, lambda _: Mortal())
    agent.__main__.main(["serve", "--port", "0", "--max-rate", "100", "--brain", "script", "--script", sys.argv[2]])

if __name__ == "__main__":
    serve(sys.argv[1])
"""
SCRIPT = "replies: [" + 100 * "x" + "]\nloop: true\n"
"""A reply has a frame of 80 ms for each letter."""


@contextmanager
def serving(folder: Path, kind: str = "sound") -> Iterator[tuple[str, int]]:
    """A server's address and process."""
    program, script = folder / "serving.py", folder / "script.yaml"
    program.write_text(SERVING.format(tests=str(TESTS), root=str(TESTS.parent)))
    script.write_text(SCRIPT)
    command = [sys.executable, str(program), kind, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1].rstrip("/"), process.pid
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def running(url: str) -> Iterator[Run]:
    judges = Judges(1)
    try:
        yield Run(Target(url), judges)
    finally:
        judges.close()


def nothing(_: str) -> None: ...


# ---- connecting and closing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sound", "leaking"])
async def test_a_server_that_leaks_with_each_connection_is_found(tmp_path: Path, kind: str) -> None:
    wanted, told = Wanted(cycles=24, parallel=4), list[str]()
    with serving(tmp_path, kind) as (url, pid), running(url) as run:
        loading = Loading(Books(url, pid))
        await cycle(run, loading, wanted, told.append)
    found = loading.cycles
    assert found is not None
    assert len(told) == 24
    assert (found.cycles, found.failed, found.bound_mb) == (24, 0, 24.0)
    assert found.grown_mb is not None
    assert found.first is not None
    assert found.first.peers == 0
    broken = loading.load(wanted, []).broken
    if kind == "sound":
        assert broken == []
    else:
        assert [words.split(":")[0] for words in broken[:1]] == ["left after 24 connect/close cycles"]
        assert "descriptors" in broken[0]
        assert found.grown_mb > 40
        assert broken[-1].startswith("memory grew by ")


async def test_nobody_there_is_an_error() -> None:
    with running("http://127.0.0.1:9") as run, pytest.raises(ProbeError, match="cannot be reached"):
        await cycle(run, Loading(Books("http://127.0.0.1:9", None)), Wanted(cycles=3), nothing)


async def test_a_server_that_keeps_its_calls_is_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(load, "LOOK_SECONDS", 0.05)
    entry = Entry(0.0, 1, 100.0, 90.0, 10, 3, 1.0, peers=0.0)

    class Stuck(Books):
        async def note(self) -> Entry:
            return replace(entry, peers=1.0)

    began_at = time.monotonic()
    after = await settled(Stuck("", None), entry)
    assert time.monotonic() - began_at >= 0.2
    assert after is not None
    assert load.left(entry, after) == ["peers: 0 before, 1 after"]
    assert await settled(Books("http://127.0.0.1:9", None), None) is None


# ---- many calls ---------------------------------------------------------------------------------------------------

LISTENING = Scenario(
    "hello", "continuity", "", (), (Step("ask", Cue("connected", 0.1, 0.1), "stop"),), (), seconds=0.5, limit=3.0
)
"""Somebody asks, and has heard enough after three seconds."""


async def test_a_load_keeps_books_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.probe.books.Books.keep.__defaults__", (0.25,))
    wanted = Wanted(peers=3, seconds=4.0)
    with serving(tmp_path) as (url, pid), running(url) as run:
        loading = Loading(Books(url, pid))
        await soak(run, [replace(LISTENING, name=name) for name in "abcd"], loading, wanted, nothing)
        outcomes = list(run.outcomes)
    found = loading.load(wanted, outcomes)
    assert found.left == ()
    assert found.calls == len(outcomes) >= 6, "each peer calls again when its call is over"
    assert len({outcome.scenario for outcome in outcomes}) > 1, "one or another"
    assert sorted(outcome.trial for outcome in outcomes) == [*range(len(outcomes))]
    assert max(entry.peers or 0 for entry in found.entries) == 3
    assert {growth.what for growth in found.growths} == {"memory", "descriptors", "threads", "tasks"}
    assert found.entries[-1].peers == 0


async def test_peers_take_turns_and_stay_on_the_line_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.probe.books.Books.keep.__defaults__", (0.25,))
    wanted, talking, most = Wanted(peers=3, talking=1, seconds=8.0), 0, 0
    with serving(tmp_path) as (url, pid), running(url) as run:
        attempt = run.attempt

        async def watched(*arguments: Any) -> None:
            nonlocal talking, most
            talking += 1
            most = max(most, talking)
            calling = asyncio.create_task(attempt(*arguments))
            await arguments[-1].spoken.wait()
            talking -= 1
            await calling

        monkeypatch.setattr(run, "attempt", watched)
        loading = Loading(Books(url, pid))
        await soak(run, [LISTENING], loading, wanted, nothing)
        outcomes = list(run.outcomes)
    found = loading.load(wanted, outcomes)
    assert most == 1
    assert max(entry.peers or 0 for entry in found.entries) == 3
    assert [outcome.failure for outcome in outcomes] == [None] * len(outcomes)
    assert max(outcome.seconds for outcome in outcomes) < 5.0, "what is on the line is not written down"
    assert (found.peers, found.talking, found.left) == (3, 1, ())


async def test_a_cancelled_load_leaves_no_call(tmp_path: Path) -> None:
    with serving(tmp_path) as (url, pid), running(url) as run:
        books = Books(url, pid)
        loading = Loading(books)
        work = asyncio.create_task(soak(run, [LISTENING], loading, Wanted(peers=2, seconds=60.0), nothing))
        async with asyncio.timeout(30):
            while (await books.note()).peers != 2:  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # the server is another process: nothing here tells
        work.cancel()
        await asyncio.wait([work])
        after = await settled(books, books.entries[0])
        assert after is not None
        assert after.peers == 0


# ---- the engine's death -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("until_kill", [0.5, 12.0, 29.9])
def test_somebody_speaks_with_the_agent_until_its_engine_dies_and_after(until_kill: float) -> None:
    scenario = dying(until_kill)
    check(scenario)
    waits = [step.cue.least for step in scenario.steps if step.name.startswith("after")]
    assert waits[0] == pytest.approx(until_kill + 0.3)
    assert waits[-1] < until_kill + load.WATCHED_SECONDS <= scenario.limit


def tone_packets(*spans: tuple[float, float], seconds: float) -> list[Packet]:
    """Opus of a tone in these spans, silence else; a packet each 20 ms from 100 s on."""
    encoder, packets = OpusEncoder(RATE), []
    wave = (8000 * np.sin(2 * np.pi * 440 * np.arange(960) / RATE)).astype(np.int16)
    for n in range(round(seconds / 0.02)):
        loud = any(begin <= 0.02 * n < end for begin, end in spans)
        packets.append(Packet(n, 960 * n, 1, encoder.encode(wave if loud else 0 * wave), 100 + 0.02 * n))
    return packets


def recorded(*spans: tuple[float, float], asked: tuple[float, ...], errors: tuple[float, ...]) -> Recording:
    said = [Said(f"ask{at}", 100 + at, np.zeros(RATE // 2, np.int16)) for at in asked]
    told = [Told(100 + at, "error", {}) for at in errors]
    packets = tone_packets(*spans, seconds=10.0)
    return Recording("engine_death", 0, 1, "offer", 100.0, 100.0, 100.0, 110.0, packets, said, told)


def test_after_the_death_the_next_turn_is_looked_for() -> None:
    """Killed at 3 s, while the agent speaks; what had been made is heard to its end."""
    recording = recorded((1.0, 3.8), (7.0, 9.0), asked=(0.2, 2.8, 4.5, 6.0), errors=(0.5, 3.2))
    told, spoke = after_death(recording, 103.0)
    assert told == 0.2
    assert spoke == pytest.approx(4.05, abs=0.1)


def test_who_neither_says_a_word_nor_speaks_again_is_found_out() -> None:
    assert after_death(recorded((1.0, 3.8), asked=(0.2, 4.5), errors=(0.5,)), 103.0) == (None, None)
    assert after_death(recorded((1.0, 3.8), (7.0, 9.0), asked=(0.2,), errors=()), 103.0) == (None, None), "unasked"


@pytest.mark.parametrize(("talking", "kill_at", "ahead"), [(0, 5.0, 30.0), (1, 10.0, 6.0)])
async def test_an_engine_that_is_killed_is_told_of_and_speaks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, talking: int, kill_at: float, ahead: float
) -> None:
    """With and without turns: when it dies, all are in a call that asks for speech."""
    monkeypatch.setattr(load, "WATCHED_SECONDS", 8.0)
    monkeypatch.setattr(load, "AHEAD_SECONDS", ahead)
    wanted = Wanted(peers=2, talking=talking, seconds=kill_at + 1.0, kill_at=kill_at)
    with serving(tmp_path) as (url, pid), running(url) as run:
        loading = Loading(Books(url, pid))
        await soak(run, [LISTENING], loading, wanted, nothing)
    killed = loading.load(wanted, run.outcomes).killed
    assert killed is not None
    assert killed.calls == 2
    assert killed.at == pytest.approx(kill_at, abs=1.0)
    assert (talking > 0) == bool(run.outcomes), "who spoke by turns before is judged"
    assert all(at is not None and at < 2.0 for at in killed.told)
    assert all(at is not None and 1.0 < at < 8.0 for at in killed.spoke)
    assert loading.left == []


@contextmanager
def childless() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


async def test_what_has_no_engine_of_its_own_cannot_lose_it() -> None:
    with running("http://127.0.0.1:9") as run:
        wanted = Wanted(peers=1, seconds=1.0, kill_at=0.5)
        with pytest.raises(ProbeError, match="--server-pid"):
            await soak(run, [LISTENING], Loading(Books("http://127.0.0.1:9", None)), wanted, nothing)
        with childless() as pid, pytest.raises(ProbeError, match="no engine in a process of its own"):
            await soak(run, [LISTENING], Loading(Books("http://127.0.0.1:9", pid)), wanted, nothing)


def test_gaps_are_those_of_a_call() -> None:
    outcomes = [Outcome("a", n, 1, "offer", 9.0, {"concealed_ms": (80.0,) * n}) for n in range(4)]
    found = Loading(Books("", None)).load(Wanted(peers=1, seconds=1.0), outcomes)
    assert (found.calls, found.gaps_a_call) == (4, 1.5)
    assert CONNECT.steps == ()
    assert Expectation("absent", absent="any") not in CONNECT.expect
