"""A network in trouble, the same every time: what becomes of a datagram is a function of its number, not of chance.

It does not know what is said in a call, nor whose sockets these are. `Trouble` says the fate of the nth packet, `Way`
carries datagrams accordingly, `Sockets` puts one Way before and one behind each socket of a connection, and notes when
each packet came. Media are told by RTP's own sequence number, which SRTP leaves readable (RFC 3711, section 3.1), so
the same packets are hit however busy the machine is; STUN, DTLS and what runs inside it (SCTP) by their count.

For trouble in the kernel instead, which also hits HTTP and needs root, run the probe in a network namespace. The
server then has to be bound to an address that another host reaches, which it does with a token only:

    ip netns add away
    ip link add near type veth peer name far netns away
    ip addr add 10.9.0.1/24 dev near
    ip link set near up
    ip -n away addr add 10.9.0.2/24 dev far
    ip -n away link set far up
    ip -n away link set lo up
    tc qdisc add dev near root netem loss 5% delay 30ms 10ms
    ip netns exec away tc qdisc add dev far root netem loss 5% delay 30ms 10ms

    head -c 24 /dev/urandom | base64 > token
    breezert serve --brain script --script samples/long_replies.yaml --host 10.9.0.1 --token-file token
    ip netns exec away breezert probe http://10.9.0.1:8080 --token-file token  # in another shell, once that listens

    ip netns del away

With the namespace the devices and their trouble are gone. netem draws lots: no two calls have the same trouble then;
and not every kernel has it (sch_netem). tests/test_probe_netem.py does the same. Beside wire.py and closing.py the file
that reaches below aiortc's interface: neither aiortc nor aioice lets one see or hold up what passes their sockets.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import math
import random
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiortc import RTCPeerConnection

from engine.clock import Clock

STEPS = 2**16
HUNDRED = 100
SPARED = 10
"""Of each hundred packets the first ones are never lost: a call begins, and a listener recovers."""
HEADER_BYTES = 28
"""Of IPv4 and UDP, which take their share of a rate, too."""
DOUBLE_SECONDS = 0.005
"""By which the second copy of a packet comes later."""
SIOCGSTAMPNS = 0x8907
"""linux/sockios.h; socket(7) says what its elder brother SIOCGSTAMP does."""
MOST_LATE = 2.0
"""Seconds: a clock that is set meanwhile shows more."""
KEPT_ARRIVALS = 1024
"""Packets between socket and aiortc's end, of which one comes to nothing now and then: a copy, or a forgery."""

Deliver = Callable[[bytes, Any], None]
"""A datagram, and the address to which or from which it goes."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Of a hundred packets `lost` are lost, in bursts of `burst`; others take up to `jitter` seconds longer, overtaken
    by those behind them where `reorders`, and one of `doubled` comes twice.

    `rate` is the line's, in kbit/s; what it cannot take at once waits, and what would wait longer than `queue` seconds
    is dropped. 0 is no limit. Unlike all else a drop depends on when packets are sent. Raises ValueError.
    """

    lost: float = 0
    burst: int = 1
    jitter: float = 0.0
    reorders: bool = True
    doubled: int = 0
    seed: int = 1
    rate: float = 0.0
    queue: float = 0.2

    def __post_init__(self) -> None:
        numbers = (self.lost, self.jitter, self.rate, self.queue)
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError(f"loss, jitter, rate and queue are numbers from 0 on, got {numbers}")
        if self.doubled < 0 or not 1 <= self.burst <= HUNDRED // 2:
            raise ValueError(f"doubled is from 0 on, burst from 1 to {HUNDRED // 2}, got {self.doubled}, {self.burst}")
        most = len(self._starts) * self.burst
        if self.lost > most:
            raise ValueError(f"in bursts of {self.burst} at most {most} % can be lost, got {self.lost:g}")

    def copies(self, number: int) -> tuple[float, ...]:
        """By how many seconds each copy of this packet is held up; none where it is lost."""
        if self.is_lost(number):
            return ()
        chance = random.Random(f"{self.seed} {number}")
        delay = self.jitter * chance.random()
        return (
            (delay, delay + DOUBLE_SECONDS) if self.doubled and number % self.doubled == 1 % self.doubled else (delay,)
        )

    def is_lost(self, number: int) -> bool:
        """In every hundred, at places that the seed chooses, never in its first ten."""
        if not self.lost:
            return False
        hundred, place = divmod(number, HUNDRED)
        bursts = math.floor((hundred + 1) * self.lost / self.burst) - math.floor(hundred * self.lost / self.burst)
        starts = random.Random(f"{self.seed} {hundred}").sample(self._starts, bursts)
        return any(start <= place < start + self.burst for start in starts)

    @property
    def _starts(self) -> range:
        """Where a burst may begin; the packet behind it comes."""
        return range(SPARED, HUNDRED - self.burst, self.burst + 1)


CALM = Trouble()


@dataclass(frozen=True, slots=True)
class Network:
    """What becomes of what the probe sends, and of what is sent to it."""

    up: Trouble = CALM
    down: Trouble = CALM


NUMBERS: dict[str, tuple[str, Callable[[str], float], float]] = {
    "loss": ("lost", float, 1),
    "burst": ("burst", int, 1),
    "jitter": ("jitter", float, 0.001),
    "double": ("doubled", int, 1),
    "rate": ("rate", float, 1),
    "queue": ("queue", float, 0.001),
    "seed": ("seed", int, 1),
}
"""Words of `parse`: the field of Trouble, how it reads, and what it is multiplied with."""


def parse(text: str) -> Network:
    """The network of a description such as `loss=5,burst=2,jitter=30,reorder,rate=64,seed=3`.

    loss in %, jitter and queue in ms, rate in kbit/s; `double=10` doubles one of ten; with `reorder` packets overtake
    each other within the jitter. It holds in both directions, with a seed of one more for what comes; else they are
    given as `up:loss=5;down:jitter=30`. Raises ValueError that says what was expected.
    """
    ways = dict[str, Trouble]()
    for part in text.split(";"):
        head, named, tail = part.strip().partition(":")
        if named and head not in ("up", "down"):
            raise ValueError(f"a direction is up: or down:, got {head}: in {text!r}")
        for way in (head,) if named else ("up", "down"):
            if way in ways:
                raise ValueError(f"the direction {way} is described twice in {text!r}")
            ways[way] = _trouble(tail if named else part, way)
    return Network(**ways)


def _trouble(text: str, way: str) -> Trouble:
    found: dict[str, Any] = {}
    words = [word.strip() for word in text.split(",")]
    for word in words:
        name, given, value = word.partition("=")
        if word == "reorder":
            continue
        if not given or name not in NUMBERS:
            raise ValueError(f"a network is described by reorder and NAME=NUMBER of {', '.join(NUMBERS)}, got {word!r}")
        if NUMBERS[name][0] in found:
            raise ValueError(f"{name} is given twice in {text!r}")
        found[NUMBERS[name][0]] = _number(name, value)
    if "reorder" in words and not found.get("jitter"):
        raise ValueError(f"reorder needs jitter=MS, within which packets overtake each other, got {text!r}")
    found["seed"] = found.get("seed", CALM.seed) + (way == "down")
    return Trouble(reorders="reorder" in words, **found)


def _number(name: str, value: str) -> float:
    _, read, scale = NUMBERS[name]
    try:
        return read(value) * scale
    except ValueError:
        kind = "a whole number" if read is int else "a number"
        raise ValueError(f"{name} takes {kind}, got {name}={value}") from None


def is_media(data: bytes) -> bool:
    """RTP, not RTCP: RFC 7983, and RFC 5761, section 4."""
    return len(data) >= 12 and 128 <= data[0] <= 191 and not 64 <= data[1] & 0x7F <= 95


@dataclass(slots=True)
class Direction:
    """What was sent one way through one socket, by number."""

    dropped: int = 0
    """Datagrams for which the rate's queue had no room."""
    others: int = 0
    first_sequence: int | None = None
    free_at: float = 0.0
    """Where nothing is overtaken, nothing leaves before."""

    def fate(self, data: bytes, media: Trouble, others: Trouble) -> tuple[float, ...]:
        """By how many seconds each copy of this datagram is held up."""
        if is_media(data):
            return media.copies(self.number(data))
        self.others += 1
        return others.copies(self.others)

    def number(self, data: bytes) -> int:
        """Of an RTP packet that is sent, counted from the first; sequence numbers wrap around."""
        (sequence,) = struct.unpack("!H", data[2:4])
        if self.first_sequence is None:
            self.first_sequence = sequence
        return self.place(sequence)

    def place(self, sequence: int) -> int:
        """The number of the packet with this sequence number, counted from the first that was sent."""
        assert self.first_sequence is not None, "nothing was sent"
        return (sequence - self.first_sequence) % STEPS


class Way:
    """One way through one socket: what is sent into it is delivered when, and as often, as its trouble has it.

    `media` is RTP's trouble, `others` that of all else; the rate is that of `media`, for both.
    """

    def __init__(self, deliver: Deliver, media: Trouble, others: Trouble) -> None:
        self.direction = Direction()
        self._deliver, self._media, self._others = deliver, media, others
        self._loop = asyncio.get_running_loop()
        self._waiting, self._count = dict[int, asyncio.TimerHandle](), itertools.count()
        self._closed = False
        self.due_at = 0.0
        """On the loop's clock, time.monotonic: when what it delivers now was due, however late it does."""
        self._line_free_at = 0.0
        """When the rate has let go what was sent before."""

    @property
    def waiting(self) -> int:
        """Datagrams that are on their way."""
        return len(self._waiting)

    def send(self, data: bytes, address: Any, at: float | None = None) -> None:
        """at: on the loop's clock, when it came to this end; None is now."""
        if self._closed:
            return
        now = self._loop.time() if at is None else at
        for delay in self.direction.fate(data, self._media, self._others):
            if (left_at := self._through(len(data), now)) is not None:
                self._carry(data, address, left_at + delay, now)

    def close(self) -> None:
        """What is on its way never comes, and nothing is taken any more."""
        self._closed = True
        for handle in self._waiting.values():
            handle.cancel()
        self._waiting.clear()

    def _through(self, size: int, now: float) -> float | None:
        """When a datagram has left the queue and was sent at the line's rate; None where there is no room."""
        if not self._media.rate:
            return now
        begins_at = max(now, self._line_free_at)
        if begins_at - now > self._media.queue:
            self.direction.dropped += 1
            return None
        self._line_free_at = begins_at + 8 * (size + HEADER_BYTES) / (1000 * self._media.rate)
        return self._line_free_at

    def _carry(self, data: bytes, address: Any, at: float, now: float) -> None:
        if not self._media.reorders:
            at = self.direction.free_at = max(at, self.direction.free_at + 1e-6)  # the loop's timers are no queue
        if at <= now and not self._waiting:
            self._hand_over(data, address, at)
        else:
            key = next(self._count)
            self._waiting[key] = self._loop.call_at(at, self._arrive, key, data, address, at)

    def _arrive(self, key: int, data: bytes, address: Any, at: float) -> None:
        del self._waiting[key]
        self._hand_over(data, address, at)

    def _hand_over(self, data: bytes, address: Any, at: float) -> None:
        self.due_at = min(at, self._loop.time())
        self._deliver(data, address)


class Sockets:
    """The sockets of a connection whose candidates are gathered: what passes them has the network's trouble.

    To be closed, after the connection, which may say goodbye. In wire.py the same place is taken to watch, without any
    trouble.
    """

    def __init__(self, connection: RTCPeerConnection, network: Network, clock: Clock) -> None:
        self._clock = clock
        self.last_at = clock.now()
        """When a datagram of any kind came last."""
        self.up, self.down = list[Way](), list[Way]()
        """By socket."""
        self._arrivals = dict[tuple[int, int], float]()
        for protocol in _protocols(connection):
            transport = protocol.transport
            way_up, way_down = self._ways(transport, transport.get_protocol(), network)
            protocol.transport = Outlet(transport, way_up)
            transport.set_protocol(Inlet(protocol, way_down, transport.get_extra_info("socket")))
            self.up.append(way_up)
            self.down.append(way_down)

    def came_at(self, source: int, sequence: int) -> float:
        """When the RTP packet came: the instant at which the kernel took it, or the trouble let it go, however late the
        loop was; now where that is not known. To be asked once of each packet."""
        return self._arrivals.pop((source, sequence), self._clock.now())

    def close(self) -> None:
        for way in [*self.up, *self.down]:
            way.close()

    def _ways(self, transport: Any, behind: Any, network: Network) -> tuple[Way, Way]:
        def leave(data: bytes, address: Any) -> None:
            if not transport.is_closing():
                transport.sendto(data, address)

        def come(data: bytes, address: Any) -> None:
            self._note(data, down.due_at)
            behind.datagram_received(data, address)

        down = Way(come, network.down, network.down)
        return Way(leave, network.up, network.up), down

    def _note(self, data: bytes, at: float) -> None:
        self.last_at = at
        if is_media(data):
            sequence, source = struct.unpack("!2xH4xI", data[:12])
            self._arrivals.setdefault((source, sequence), self.last_at)
            while len(self._arrivals) > KEPT_ARRIVALS:
                del self._arrivals[next(iter(self._arrivals))]


class Outlet:
    """Stands where aioice has its transport, and sends through a Way."""

    def __init__(self, transport: Any, way: Way) -> None:
        self._transport, self._way = transport, way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def sendto(self, data: bytes, addr: Any = None) -> None:
        self._way.send(bytes(data), addr)


class Inlet(asyncio.DatagramProtocol):
    """Stands where the socket has its protocol, and receives through a Way."""

    def __init__(self, behind: asyncio.DatagramProtocol, way: Way, sock: Any) -> None:
        self._behind, self._way, self._sock = behind, way, sock

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._way.send(data, addr, taken_at(self._sock.fileno()))

    def error_received(self, exc: Exception) -> None:
        self._behind.error_received(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self._behind.connection_lost(exc)


def taken_at(descriptor: int) -> float:
    """When, by time.monotonic, the kernel took the datagram that was read last from this socket; now where it does not
    tell.

    A loop that has something else to do for 50 ms notices a packet so much later, for which no agent is to blame."""
    try:
        stamp = fcntl.ioctl(descriptor, SIOCGSTAMPNS, bytes(struct.calcsize("ll")))
    except OSError:
        return time.monotonic()
    seconds, nanoseconds = map(float, struct.unpack("ll", stamp))
    wall, now = _both_clocks()
    return now - min(max(0.0, wall - seconds - 1e-9 * nanoseconds), MOST_LATE)


def _both_clocks() -> tuple[float, float]:
    """time.time and time.monotonic at one instant: the closest of three readings, since a machine that does something
    else between the two would put a packet before it was sent."""
    readings = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(3)]
    before, wall, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return wall, (before + after) / 2


def _protocols(connection: RTCPeerConnection) -> list[Any]:
    """aioice's, one for each socket, of a connection whose policy is max-bundle: all its sections share a transport."""
    ice: Any = connection.getTransceivers()[0].receiver.transport.transport
    return list(ice._connection._protocols)
