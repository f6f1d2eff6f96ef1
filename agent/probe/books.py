"""What a server of this machine holds while it is probed: memory, descriptors, threads and CPU of it and its children.

It does not know calls or audio; it reads /proc and the server's /metrics, and judges whether that keeps growing.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil, isfinite
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from aiohttp import ClientError, ClientSession, ClientTimeout

from agent.dial import body_of

PROC = Path("/proc")
EVERY_SECONDS = 5.0
METRICS_SECONDS = 2.0
"""What /metrics may take: a server that is asked and does not answer is not waited for."""
MAX_METRICS_BYTES = 4 * 2**20
LISTEN = "0A"
"""TCP_LISTEN as /proc/net/tcp has it (linux/include/net/tcp_states.h)."""
GROWTH_MB_AN_HOUR = 10.0
"""What memory may grow by over the second half of a soak and still be called flat: 240 MB a day."""
MEMORY_SECONDS = 240.0
"""Of the second half, in which memory's growth can be told from what is filled on first use: caches, threads' shares of
the heap."""
NOISE_MB = 2.0
"""A rise that is no more than this proves nothing, whatever it would be in an hour: the allocator breathes."""
NOISE_COUNT = 3.0
"""Descriptors or threads: as much as comes and goes with what happens to be open."""
MOST_POINTS = 600
"""Between whose pairs a slope takes the median; of more entries, every nth is taken."""
TICKS = os.sysconf("SC_CLK_TCK")


class BooksError(Exception):
    """The server's process cannot be found or read; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a server and its children held at an instant; None where that could not be read."""

    at: float
    processes: int
    rss_mb: float | None
    pss_mb: float | None
    """Pages that several of its processes share are counted once, in parts (RSS counts them in each)."""
    descriptors: int | None
    threads: int
    cpu_seconds: float
    """Since the server began, children that have ended included."""
    peers: float | None = None
    """Of the server's own /metrics: breezert_peers."""
    tasks: float | None = None
    """The same: breezert_tasks, of its event loop."""

    @property
    def memory_mb(self) -> float | None:
        return self.rss_mb if self.pss_mb is None else self.pss_mb


# ---- /proc --------------------------------------------------------------------------------------------------------


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (the state) on; proc(5). Raises OSError where there is no process."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def family(pid: int) -> list[int]:
    """The process and all below it, itself first; empty where it has ended."""
    children: dict[int, list[int]] = {}
    for other in pids():
        try:
            children.setdefault(int(stat(other)[1]), []).append(other)
        except OSError:  # it has ended meanwhile
            continue
    found = [pid] if alive(pid) else []
    for each in found:
        found += children.get(each, [])
    return found


def pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]


def alive(pid: int) -> bool:
    """There is such a process, and it is more than a zombie."""
    try:
        return stat(pid)[0] not in "ZX"
    except OSError:
        return False


def memory(pid: int) -> tuple[float | None, float | None]:
    """RSS and PSS in MB of 10^6 bytes; PSS is only told to who may trace the process."""
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text()
        found = {name: int(kib) * 1024 / 1e6 for name, kib in re.findall(r"^(Rss|Pss):\s+(\d+) kB$", text, re.M)}
        return found["Rss"], found["Pss"]
    except (OSError, KeyError):
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, None


def descriptors(pid: int) -> int | None:
    try:
        return sum(1 for _ in (PROC / str(pid) / "fd").iterdir())
    except OSError:
        return None


def read(pid: int, now: float) -> Entry:
    """An entry of the process and its children. Raises BooksError where it has ended."""
    rows = [row for each in family(pid) if (row := _row(each)) is not None]
    if not rows:
        raise BooksError(f"the server's process {pid} has ended")
    rss, pss, open_files, threads, cpu = zip(*rows, strict=True)
    return Entry(now, len(rows), _sum(rss), _sum(pss), _count(open_files), sum(threads), round(sum(cpu), 2))


Row = tuple[float | None, float | None, int | None, int, float]


def _row(pid: int) -> Row | None:
    """RSS, PSS, descriptors, threads, CPU seconds; None where it has just ended."""
    try:
        fields = stat(pid)
        cpu = sum(map(int, fields[11:15])) / TICKS  # utime, stime, and both of children that were waited for
        return (*memory(pid), descriptors(pid), int(fields[17]), cpu)
    except OSError:
        return None


def _sum(values: Sequence[float | None]) -> float | None:
    """None where one of them could not be read: a part of a family's memory is no measure of it."""
    known = [value for value in values if value is not None]
    return round(sum(known), 2) if len(known) == len(values) else None


def _count(values: Sequence[int | None]) -> int | None:
    total = _sum(values)
    return None if total is None else int(total)


# ---- which process ------------------------------------------------------------------------------------------------


def server_pid(url: str) -> int | None:
    """Of the server that listens at this address, where it is one of this machine's own and may be seen. Of several
    processes that share the socket it is the one whose parent does not have it."""
    address = urlsplit(url)
    port = address.port or {"http": 80, "https": 443}.get(address.scheme, 0)
    if not port or not _here(address.hostname or ""):
        return None
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    holders = {pid for pid in pids() if sockets and sockets & _links(pid)}
    first = [pid for pid in holders if _parent(pid) not in holders]
    return min(first, default=None)


def _here(host: str) -> bool:
    """The host is this machine: one of its addresses can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_can_bind(kind, address) for kind, _, _, _, address in found)


def _can_bind(kind: int, address: tuple[object, ...]) -> bool:
    with socket.socket(kind, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind(address)
        except OSError:
            return False
        return True


def _listening(port: int) -> Iterator[int]:
    """Inodes of the sockets that listen there, of IPv4 and IPv6."""
    for table in ("net/tcp", "net/tcp6"):
        path = PROC / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            _, local, _, state, *rest = line.split()
            if state == LISTEN and int(local.rpartition(":")[2], 16) == port:
                yield int(rest[5])


def _links(pid: int) -> set[str]:
    """What its descriptors are; empty where it is another user's, or has ended."""
    try:
        return {link for entry in (PROC / str(pid) / "fd").iterdir() if (link := _link(entry))}
    except OSError:
        return set()


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:  # closed meanwhile
        return ""


def _parent(pid: int) -> int:
    try:
        return int(stat(pid)[1])
    except OSError:
        return 0


def engine_pid(server: int) -> int | None:
    """The server's engine: the largest of its direct children that Python's multiprocessing has spawned."""
    spawned = [pid for pid in pids() if _parent(pid) == server and b"spawn_main" in _command(pid)]
    return max(spawned, key=lambda pid: memory(pid)[0] or 0.0, default=None)


def _command(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


# ---- /metrics -----------------------------------------------------------------------------------------------------


async def metrics(http: ClientSession, url: str, token: str | None = None) -> dict[str, float]:
    """What has no labels, of Prometheus' text format; empty where the server has no such page."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with http.get(f"{url.rstrip('/')}/metrics", headers=headers, allow_redirects=False) as answer:
            text = await body_of(answer, MAX_METRICS_BYTES) if answer.status == 200 else b""
    except (ClientError, OSError, ValueError):  # a TimeoutError, too
        return {}
    return unlabelled(text.decode(errors="replace"))


def unlabelled(text: str) -> dict[str, float]:
    """Lines of a name and a number; whatever else a stranger's page has is passed over."""
    found = re.findall(r"^([A-Za-z_:][\w:]*) ([-+]?[\d.]+(?:e[-+]?\d+)?)$", text, re.M)
    numbers: dict[str, float] = {}
    for name, value in found:
        with suppress(ValueError):
            numbers[name] = float(value)
    return {name: number for name, number in numbers.items() if isfinite(number)}


# ---- over time ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Books:
    """A server's entries as time goes by. To be used on the event loop; reading takes some ms on a thread of its own.

    pid None: only what /metrics says is asked."""

    url: str
    pid: int | None
    token: str | None = None
    entries: list[Entry] = field(default_factory=list)

    async def note(self) -> Entry | None:
        """Appends what is held now. None, and nothing is appended, where nothing can be read. Raises BooksError where
        the process has ended."""
        async with ClientSession(timeout=ClientTimeout(total=METRICS_SECONDS)) as http:
            told = await metrics(http, self.url, self.token)
        now = time.monotonic()
        if self.pid is not None:
            entry = await asyncio.to_thread(read, self.pid, now)
        elif told:
            entry = Entry(now, 0, None, None, None, 0, 0.0)
        else:
            return None
        entry = _with(entry, told)
        self.entries.append(entry)
        return entry

    async def keep(self, every: float = EVERY_SECONDS) -> None:
        """Notes for ever; ends by itself where the process has ended."""
        while True:
            began_at = time.monotonic()
            try:
                await self.note()
            except BooksError:
                return
            await asyncio.sleep(max(0.0, began_at + every - time.monotonic()))


def _with(entry: Entry, told: dict[str, float]) -> Entry:
    return replace(entry, peers=told.get("breezert_peers"), tasks=told.get("breezert_tasks"))


@dataclass(frozen=True, slots=True)
class Growth:
    """How one thing that is held went over the second half of the time."""

    what: str
    unit: str
    seconds: float
    """From the first entry of that half to the last."""
    median: float
    an_hour: float
    """Theil-Sen: the median slope of all pairs of entries, which a few odd ones do not move (Sen, 1968)."""
    rise: float
    """That slope over the second half."""
    bound: float
    """That `an_hour` may be."""
    noise: float
    """That `rise` has to be above, to be called growth at all."""
    least_seconds: float = 0.0
    """That `seconds` have to be, to say anything."""

    @property
    def judged(self) -> bool:
        """It lasted long enough to say anything."""
        return self.seconds >= self.least_seconds

    @property
    def flat(self) -> bool:
        return not self.judged or self.an_hour <= self.bound or self.rise <= self.noise

    @property
    def seen_from(self) -> float:
        """The growth in an hour that this soak was long enough to see."""
        return max(self.bound, round(3600 * self.noise / self.seconds, 1))


def growths(entries: Sequence[Entry], bound_mb: float = GROWTH_MB_AN_HOUR) -> list[Growth]:
    """Of memory, descriptors, threads and tasks, over the second half of the entries; fewer than six say nothing."""
    asked: tuple[tuple[str, str, Callable[[Entry], float | None], float, float, float], ...] = (
        ("memory", "MB", lambda entry: entry.memory_mb, bound_mb, NOISE_MB, MEMORY_SECONDS),
        ("descriptors", "", lambda entry: entry.descriptors, NOISE_COUNT, NOISE_COUNT, 0.0),
        ("threads", "", lambda entry: entry.threads or None, NOISE_COUNT, NOISE_COUNT, 0.0),
        ("tasks", "", lambda entry: entry.tasks, NOISE_COUNT, NOISE_COUNT, 0.0),
    )
    late = second_half(entries)
    found = []
    for what, unit, value, *bounds in asked:
        points = [(entry.at, known) for entry in late if (known := value(entry)) is not None]
        if len(points) >= 3:
            found.append(_growth(what, unit, points, *bounds))
    return found


def second_half(entries: Sequence[Entry]) -> list[Entry]:
    """Those later than the middle of the time."""
    if len(entries) < 6:
        return []
    middle = (entries[0].at + entries[-1].at) / 2
    return [entry for entry in entries if entry.at >= middle]


def _growth(what: str, unit: str, points: list[tuple[float, float]], *bounds: float) -> Growth:
    slope, seconds = theil_sen(points), points[-1][0] - points[0][0]
    median = float(np.median([value for _, value in points]))
    figures = round(seconds, 1), round(median, 2), round(3600 * slope, 2), round(slope * seconds, 3)
    return Growth(what, unit, *figures, *bounds)


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points (x, y) with different x; 0 where there is none."""
    step = max(1, ceil(len(points) / MOST_POINTS))
    slopes = [(y - b) / (x - a) for (a, b), (x, y) in combinations(points[::step], 2) if x != a]
    return float(np.median(slopes)) if slopes else 0.0


def cpu_percent(entries: Sequence[Entry]) -> float | None:
    """Of one core, from the first entry to the last; None where no process was read."""
    if len(entries) < 2 or not entries[0].processes or entries[-1].at == entries[0].at:
        return None
    first, last = entries[0], entries[-1]
    return round(100 * (last.cpu_seconds - first.cpu_seconds) / (last.at - first.at), 1)


def left(before: Entry, after: Entry) -> list[str]:
    """What a server without calls has more of than it had before the first, in words; empty where nothing is left."""
    found = []
    for name, more in (("peers", 0.0), ("tasks", 0.0), ("descriptors", NOISE_COUNT), ("threads", NOISE_COUNT)):
        was, now = getattr(before, name), getattr(after, name)
        if was is not None and now is not None and now > was + more:
            found.append(f"{name}: {was:g} before, {now:g} after")
    return found
