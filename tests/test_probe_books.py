"""agent/probe/books.py: what is read of real processes, one of which leaks, and the arithmetic on literal entries."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from aiohttp import ClientSession, ClientTimeout, web
from aiohttp.test_utils import TestServer

from agent.probe import books
from agent.probe.books import Books, BooksError, Entry, cpu_percent, family, growths, left, read, theil_sen, unlabelled

WITHIN = 30.0

HOLDING = """
import os, sys
print("ready", flush=True)
kept = []
for line in sys.stdin:
    what, count = line.split()
    if what == "memory":
        kept.append(bytearray(os.urandom(int(count))))
    if what == "files":
        kept += [open("/dev/null") for _ in range(int(count))]
    if what == "child":
        import subprocess
        kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    print("done", flush=True)
"""


class Holder:
    """A process that holds more each time it is asked."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", HOLDING]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer("ready")

    @property
    def pid(self) -> int:
        return self.process.pid

    def hold(self, what: str, count: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {count}\n")
        self.process.stdin.flush()
        self._answer("done")

    def _answer(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def holding() -> Iterator[Holder]:
    holder = Holder()
    try:
        yield holder
    finally:
        holder.end()


def entries(value: Callable[[int], float], count: int = 24, every: float = 30.0) -> list[Entry]:
    """Memory by the number of the entry."""
    return [Entry(100.0 + every * n, 2, value(n) + 5, value(n), 30, 8, 1.5 * n) for n in range(count)]


# ---- real processes -----------------------------------------------------------------------------------------------


def test_what_a_process_holds_is_read() -> None:
    with holding() as holder:
        first = read(holder.pid, 1.0)
        holder.hold("memory", 20_000_000)
        holder.hold("files", 7)
        second = read(holder.pid, 2.0)
    assert (first.at, first.processes, first.threads) == (1.0, 1, 1)
    assert first.memory_mb is not None
    assert second.memory_mb is not None
    assert second.memory_mb - first.memory_mb == pytest.approx(20.0, abs=1.5)
    assert first.descriptors is not None
    assert second.descriptors == first.descriptors + 7
    assert second.cpu_seconds >= first.cpu_seconds


def test_children_are_part_of_the_server() -> None:
    with holding() as holder:
        holder.hold("child", 1)
        server, child = family(holder.pid)
        assert server == holder.pid
        entry, alone = read(server, 0.0), read(child, 0.0)
        assert entry.processes == 2
        assert entry.rss_mb is not None
        assert alone.rss_mb is not None
        assert entry.rss_mb > alone.rss_mb


def test_a_process_that_has_ended_is_an_error() -> None:
    with holding() as holder:
        holder.process.kill()
        holder.process.wait()
        with pytest.raises(BooksError, match=f"{holder.pid} has ended"):
            read(holder.pid, 0.0)


@pytest.mark.parametrize("leaks", [True, False])
def test_a_process_that_leaks_is_found_and_one_that_does_not_is_not(leaks: bool) -> None:
    """Half a megabyte and a file each time, entered as if thirty seconds lay between."""
    with holding() as holder:
        noted = []
        for n in range(20):
            if leaks:
                holder.hold("memory", 500_000)
                holder.hold("files", 1)
            noted.append(read(holder.pid, 30.0 * n))
    found = {growth.what: growth for growth in growths(noted)}
    assert found["memory"].flat is not leaks
    assert found["descriptors"].flat is not leaks
    assert found["threads"].flat
    if leaks:
        assert found["memory"].an_hour == pytest.approx(60, rel=0.2)
        assert found["descriptors"].an_hour == pytest.approx(120)


@pytest.mark.parametrize(("host", "family_"), [("127.0.0.1", socket.AF_INET), ("[::1]", socket.AF_INET6)])
def test_the_process_that_listens_is_found(host: str, family_: socket.AddressFamily) -> None:
    with socket.create_server((host.strip("[]"), 0), family=family_) as listening:
        url = f"http://{host}:{listening.getsockname()[1]}"
        assert books.server_pid(url) == os.getpid()
    assert books.server_pid(url) is None, "nobody listens any more"


@pytest.mark.parametrize("url", ["http://192.0.2.1:80", "ftp://127.0.0.1", "nothing"])
def test_a_server_elsewhere_has_no_process_here(url: str) -> None:
    assert books.server_pid(url) is None


SPAWNING = """
import multiprocessing, signal, sys
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=signal.pause, daemon=True)
    process.start()
    print(process.pid, flush=True)
    sys.stdin.read()
"""


def test_the_engine_is_the_child_that_multiprocessing_spawned(tmp_path: os.PathLike[str]) -> None:
    program = os.path.join(tmp_path, "serving.py")  # noqa: PTH118 - a spawned child imports it again
    with open(program, "w") as file:  # noqa: PTH123
        file.write(SPAWNING)
    with subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        engine = int(process.stdout.readline())
        assert len(family(process.pid)) == 3, "the tracker of multiprocessing's resources is there as well"
        assert books.engine_pid(process.pid) == engine
        assert books.engine_pid(engine) is None
        process.kill()


# ---- /metrics -----------------------------------------------------------------------------------------------------


def test_what_is_no_number_without_labels_is_passed_over() -> None:
    text = '# HELP a b\na 3\nb{x="1"} 4\nc 1.5e+03\nd NaN\ne 1 1700000000\n<html>\nf 1.2.3\n'
    assert unlabelled(text) == {"a": 3.0, "c": 1500.0}


async def page(text: str, status: int = 200) -> TestServer:
    async def metrics(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        return web.Response(text=text, status=status)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    server = TestServer(app)
    await server.start_server()
    return server


async def test_the_servers_own_counts_stand_beside_the_systems() -> None:
    server = await page("breezert_peers 3.0\nbreezert_tasks 17.0\n")
    found = Books(str(server.make_url("")), os.getpid(), "secret")
    entry = await found.note()
    await server.close()
    assert entry is not None
    assert (entry.peers, entry.tasks) == (3.0, 17.0)
    assert entry.memory_mb is not None
    assert entry.memory_mb > 10
    assert found.entries == [entry]


@pytest.mark.parametrize("status", [404, 500])
async def test_a_server_without_metrics_has_books_all_the_same(status: int) -> None:
    server = await page("no", status)
    url = str(server.make_url(""))
    entry = await Books(url, os.getpid(), "secret").note()
    assert entry is not None
    assert entry.peers is None
    assert await Books(url, None, "secret").note() is None, "neither process nor metrics: nothing to write down"
    await server.close()
    async with ClientSession(timeout=ClientTimeout(total=1)) as http:
        assert await books.metrics(http, url) == {}


async def test_keeping_books_ends_with_the_server() -> None:
    with holding() as holder:
        kept = Books("http://127.0.0.1:9", holder.pid)
        await kept.note()
        holder.process.kill()
        holder.process.wait()
        began_at = time.monotonic()
        await kept.keep()
    assert time.monotonic() - began_at < WITHIN
    assert len(kept.entries) == 1


# ---- over time ----------------------------------------------------------------------------------------------------


def memory(noted: list[Entry]) -> books.Growth:
    (found,) = [growth for growth in growths(noted) if growth.what == "memory"]
    return found


def test_growth_is_that_of_the_second_half() -> None:
    """Caches fill at first: 600 MB until the middle, then 1 MB a minute."""
    found = memory(entries(lambda n: 50 * n if n < 12 else 600 + 0.5 * (n - 12)))
    assert (found.an_hour, found.median, found.seconds) == (60.0, 602.75, 330.0)
    assert found.rise == pytest.approx(5.5)
    assert not found.flat


def test_one_odd_entry_is_no_growth() -> None:
    assert memory(entries(lambda n: 900.0 if n in (13, 23) else 300.0)).an_hour == 0.0


def test_what_is_within_the_bound_or_the_noise_is_flat() -> None:
    assert memory(entries(lambda n: 300 + n * 9 / 120)).flat, "9 MB an hour"
    assert not memory(entries(lambda n: 300 + n * 60 / 120)).flat
    short = memory(entries(lambda n: 300 + n * 60 / 720, every=5.0))
    assert (short.an_hour, short.flat) == (60.0, True), "0.9 MB in 55 s prove nothing"
    assert short.seen_from == pytest.approx(130.9)
    warming = memory(entries(lambda n: 300 + n, every=15.0))
    assert (warming.an_hour, warming.rise, warming.flat) == (240.0, 11.0, True), "caches fill in the first minutes"
    assert memory(entries(lambda n: 300 - n)).flat


def test_a_few_entries_say_nothing() -> None:
    assert growths(entries(lambda n: 50.0 * n, count=5)) == []


def test_what_could_not_be_read_is_left_out() -> None:
    unread = [replace(entry, pss_mb=None, descriptors=None) for entry in entries(lambda n: 300.0)]
    found = {growth.what: growth.median for growth in growths(unread)}
    assert found == {"memory": 305.0, "threads": 8.0}, "RSS where there is no PSS"


def test_the_slope_of_many_entries_takes_no_more_than_some() -> None:
    assert theil_sen([(float(n), 2.0 * n) for n in range(20_000)]) == 2.0
    assert theil_sen([(1.0, 1.0), (1.0, 2.0)]) == 0.0


def test_cpu_is_that_of_the_time_between() -> None:
    assert cpu_percent(entries(lambda n: 1.0)) == 5.0
    assert cpu_percent(entries(lambda n: 1.0)[:1]) is None


def test_what_is_left_after_the_last_call_is_named() -> None:
    before = Entry(0.0, 2, 300.0, 290.0, 30, 8, 1.0, peers=0.0, tasks=5.0)
    assert left(before, replace(before, descriptors=33, threads=11, rss_mb=900.0)) == []
    after = replace(before, peers=1.0, tasks=6.0, descriptors=34)
    assert left(before, after) == [
        "peers: 0 before, 1 after",
        "tasks: 5 before, 6 after",
        "descriptors: 30 before, 34 after",
    ]
