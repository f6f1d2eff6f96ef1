"""A call between two network namespaces, over the kernel's own IP and UDP and a router that loses, delays, reorders.

The router is a thread of this process between two TUN devices, one in each namespace, so that the trouble is the same
every time (tests/impaired.py): netem would draw lots, and not every kernel has it. Needs root, `ip` and /dev/net/tun;
what the kernel and the rights do not give is no step of an install that was forgotten, so it is a skip with CI set,
too, and only a missing `ip` fails there.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from impaired import Direction, Trouble
from netns_call import TEXT

TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
"""linux/if_tun.h"""
UDP = 17
SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
WITHIN = 90.0
"""Seconds after which a call has failed."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def lacking() -> str | None:
    """What this machine lacks; None where the test can run. A failure where only an install is missing, in CI."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        reason = "network namespaces need the command ip: install iproute2"
        return pytest.fail(reason) if os.environ.get("CI") else reason
    try:
        os.close(os.open(TUN, os.O_RDWR))
        with namespace(f"brt{os.getpid()}"):
            return None
    except OSError as error:
        return f"{TUN} cannot be opened: {error.strerror}"
    except subprocess.CalledProcessError as error:
        return f"no network namespace can be made: {error.stderr.strip()}"


@contextmanager
def namespace(name: str) -> Iterator[str]:
    ip("netns", "add", name)
    try:
        yield name
    finally:
        ip("netns", "del", name)


@contextmanager
def tun(space: str, address: str) -> Iterator[int]:
    """A TUN device in a namespace; what is sent to its network can be read from the descriptor, and the other way."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", space.encode(), IFF_TUN | IFF_NO_PI))
        ip("link", "set", space, "netns", space)
        ip("-n", space, "addr", "add", f"{address}/24", "dev", space)
        for device in ("lo", space):
            ip("-n", space, "link", "set", device, "up")
        yield descriptor
    finally:
        os.close(descriptor)  # and the device is gone


class Router:
    """Carries IP packets between two descriptors, until it is closed. The trouble hits all of them, TCP's too."""

    def __init__(self, ends: tuple[int, int], trouble: Trouble) -> None:
        self.directions = (Direction(), Direction())
        """From the first end, and from the second."""
        self._ends, self._trouble = ends, trouble
        self._waiting, self._order = list[tuple[float, int, int, bytes]](), itertools.count()
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        os.close(self._wake)
        self._thread.join()
        os.close(self._woken)

    def _run(self) -> None:
        while True:
            patience = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            ready, _, _ = select.select([*self._ends, self._woken], [], [], patience)
            if self._woken in ready:
                return
            for end in ready:
                self._take(self._ends.index(end), os.read(end, 65536))
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(self._waiting)
                os.write(end, packet)

    def _take(self, index: int, packet: bytes) -> None:
        if packet[0] >> 4 != 4:  # IPv6: neighbours are looked for
            return
        now, data = time.monotonic(), udp_payload(packet)
        for delay in self.directions[index].fate(data, self._trouble, self._trouble):
            heapq.heappush(self._waiting, (now + delay, next(self._order), self._ends[1 - index], packet))


def udp_payload(packet: bytes) -> bytes:
    """Of an IPv4 packet; empty for other protocols."""
    return packet[4 * (packet[0] & 15) + 8 :] if packet[9] == UDP else b""


@contextmanager
def network(trouble: Trouble) -> Iterator[tuple[str, str, Router]]:
    """Two namespaces, the server's and the client's, and the router between them."""
    with ExitStack() as stack:
        spaces = [stack.enter_context(namespace(f"brt{os.getpid()}{end}")) for end in "ab"]
        ends = [stack.enter_context(tun(*end)) for end in zip(spaces, (SERVER, CLIENT), strict=True)]
        router = Router((ends[0], ends[1]), trouble)
        stack.callback(router.close)
        yield spaces[0], spaces[1], router


@contextmanager
def run(space: str, role: str) -> Iterator[subprocess.Popen[str]]:
    """One end of the call; killed where it does not end by itself."""
    call = [sys.executable, str(Path(__file__).with_name("netns_call.py")), role, SERVER]
    command = ["ip", "netns", "exec", space, *call]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it says in its end."""
    out, _ = process.communicate(timeout=WITHIN)
    assert process.returncode == 0, out
    return dict(json.loads(out.splitlines()[-1]))


@pytest.mark.parametrize("lost", [1, 5])
def test_a_call_between_namespaces_survives_trouble(lost: int) -> None:
    if reason := lacking():
        pytest.skip(reason)
    with network(Trouble(lost=lost, jitter=0.03)) as (home, away, router), run(home, "server") as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        with run(away, "client") as client:
            heard = said(client)
        assert said(server) == {"calls": 0}
    down, up = router.directions
    assert (heard["spoken"], heard["stopped"], heard["turns"]) == (["end", TEXT, 0], 1, 1)
    gone = missing(heard["came"], down)
    assert gone == [number for number in down.lost if within(number, heard["came"], down)]
    assert down.lost and up.lost
    assert len(gone) <= heard["given_up"] - heard["late"] <= len(down.lost)  # only what never came, or came too late
    assert len(gone) <= heard["guessed"] <= heard["given_up"] + heard["filled"]
    assert not [name for name in os.listdir("/run/netns") if name.startswith(f"brt{os.getpid()}")]  # noqa: PTH208


def missing(came: list[int], sent: Direction) -> list[int]:
    """What did not come, of what was sent between the first and the last that did."""
    there = set(map(sent.place, came))
    return [number for number in range(min(there), max(there)) if number not in there]


def within(number: int, came: list[int], sent: Direction) -> bool:
    places = [sent.place(sequence) for sequence in came]
    return min(places) < number < max(places)
