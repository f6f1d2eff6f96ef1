"""Calls over a network that loses, delays, reorders and doubles packets: what is heard, what is guessed, what is freed.

The trouble is the same every time (tests/impaired.py) and hits both directions: the agent's speech on its way to the
listener, and the microphone's on its way to the server. A machine that stands still delays packets, too, so what a
listener may guess is judged by when packets came, never by how long the test took.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from caller import WITHIN
from impaired import Direction, Line, Trouble
from scripted_runtime import ScriptedRuntime
from sounds import clip, int16
from stand_in import no_task

from agent import client
from agent.bench_transport import silent
from agent.client import Client, Spoken
from agent.hearing import Frame, Hearing
from agent.jitter import Arrival, Counts, JitterBuffer, Piece
from agent.opus import OpusDecoder
from agent.protocol import ServerMessage, SpeechProgress, SpeechStopped, TurnEnded, TurnStarted
from agent.server import attach
from agent.session import Session
from agent.transit import MIN_TARGET

RATE = 48_000
PACKET = 0.02
RECOVERS = 50
"""Packets: a second."""
TEXT = "x" * 20
"""1.6 s of speech: the scripted engine says 80 ms a character."""
LONG = " ".join(["one two three"] * 10)
"""11 s."""

TROUBLES = {
    "1 % lost": Trouble(lost=1),
    "5 % lost": Trouble(lost=5),
    "6 % lost in threes": Trouble(lost=6, burst=3),
    "30 ms of jitter in order, some doubled": Trouble(jitter=0.03, reorders=False, doubled=3),
    "30 ms of jitter and reordering": Trouble(jitter=0.03),
    "everything at once": Trouble(lost=5, jitter=0.03, doubled=3),
}


class Tape:
    """What a jitter buffer was given and what came of it; numbers are RTP's sequence numbers, continued."""

    def __init__(self, buffer: JitterBuffer) -> None:
        self.pushed = dict[int, float]()
        """When each packet came first."""
        self.heard = list[int]()
        """Packets that were not given up, in the order in which they went on."""
        self.buffer = buffer
        self.held = list[tuple[int, int]]()
        """The packet that came last, and how many wait, whenever there was something to be given out."""
        inner: Any = buffer
        push, pop, follow = buffer.push, buffer.pop, inner._follow

        def note_push(sequence: int, timestamp: int, payload: bytes, now: float, source: int = 0) -> None:
            self.pushed.setdefault(sequence, now)
            push(sequence, timestamp, payload, now, source)

        def note_follow(head: Arrival) -> None:
            self.heard.append(head.sequence)
            follow(head)

        def note_pop(now: float) -> list[Piece]:
            pieces = pop(now)
            self.held += [(list(self.pushed)[-1], buffer.held)] if pieces else []
            return pieces

        inner.push, inner.pop, inner._follow = note_push, note_pop, note_follow

    @property
    def counts(self) -> Counts:
        return self.buffer.counts

    def heard_of(self, sent: Direction) -> list[int]:
        """`heard`, counted from the first packet that was sent."""
        return [sent.place(number) for number in self.heard]

    def came_of(self, sent: Direction) -> dict[int, float]:
        """`pushed`, counted likewise."""
        return {sent.place(sequence): at for sequence, at in self.pushed.items()}

    def held_of(self, sent: Direction) -> list[tuple[int, int]]:
        """`held`, counted likewise."""
        return [(sent.place(sequence), held) for sequence, held in self.held]


class Taped(Hearing):
    """The client's, with a tape and all that was heard."""

    last: Taped

    def __init__(self, clock: Any, heard: Any) -> None:
        def note(frame: Frame) -> None:
            self.frames.append(frame)
            heard(frame)

        super().__init__(clock, note)
        self.frames, self.tape = list[Frame](), Tape(self._buffer)
        Taped.last = self


class House:
    """A server that speaks when it is told to and listens, with a tape of what it sent and of what it heard."""

    def __init__(self) -> None:
        self.engine = ScriptedRuntime(pace=0.01)
        app = web.Application()
        self.calls = attach(app, self.engine, opened=self._record, answering=silent())
        self.http = TestServer(app)

    def _record(self, session: Session) -> None:
        track: Any = session.track
        wrap, self.payloads = track._wrapped, list[bytes]()
        track._wrapped = lambda payload: (self.payloads.append(payload), wrap(payload))[1]
        stop, self.stopped_at = session.stop, list[int]()
        """How many packets had been sent by then."""
        inner: Any = session
        inner.stop = lambda: (self.stopped_at.append(len(self.payloads)), stop())
        receiver = self.calls._peers[session.id]._hear
        assert receiver is not None
        self.microphone = Tape(receiver._buffer)

    async def empty(self) -> None:
        """Returns when every call is over."""
        async with asyncio.timeout(WITHIN):
            while self.calls.sessions:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.005)


@asynccontextmanager
async def house(line: Line, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[House]:
    """The server, with sockets on this line; afterwards nothing may be left of any call."""
    monkeypatch.setattr(client, "Hearing", Taped)
    built = House()
    with closing(built.engine):
        async with built.http:
            before = asyncio.all_tasks()
            with line.laid():
                yield built
            await built.empty()
            await no_task(before)
            async with asyncio.timeout(WITHIN):
                while line.waiting:  # noqa: ASYNC110 - nothing else tells
                    await asyncio.sleep(0.005)


async def talk(call: Client) -> tuple[Spoken, list[ServerMessage]]:
    """The agent speaks to its end, then the user until the turn is over; with all that the server told."""
    events = call.events()
    spoken = await call.speak(TEXT)
    ended = asyncio.create_task(call.told(TurnEnded))
    await call.send_microphone(int16(clip("user", RATE)), RATE)
    async with asyncio.timeout(WITHIN):
        await ended
    await call.hang_up()
    return spoken, [message async for message in events]


def check_told(spoken: Spoken, told: list[ServerMessage]) -> None:
    """Nobody is stuck: speech reaches its end, messages come, and the user's turn is one."""
    assert (spoken.reason, spoken.heard, spoken.underruns) == ("end", TEXT, 0)
    kinds = [type(message) for message in told]
    assert TurnStarted in kinds
    assert (kinds.count(SpeechStopped), kinds.count(TurnEnded)) == (1, 1)
    assert kinds.count(SpeechProgress) >= 5


def check_guesses(tape: Tape, sent: Direction) -> set[int]:
    """Only what was lost is guessed, or what came after the wait for it was over: at least MIN_TARGET, from when it
    would have come undelayed. Returns what was guessed."""
    heard, came = tape.heard_of(sent), tape.came_of(sent)
    assert heard == sorted(set(heard)), "in order, none twice"
    guessed = set(range(heard[0], heard[-1] + 1)) - set(heard)
    lost = {number for number in sent.lost + sent.cut if heard[0] < number < heard[-1]}
    assert lost <= guessed
    undelayed = min(at - PACKET * number for number, at in came.items())
    for number in guessed - lost:
        assert came[number] - (undelayed + PACKET * number) > MIN_TARGET - 1e-6, f"{number} was there in time"
    return guessed


def check_sound(hearing: Taped, payloads: list[bytes], sent: Direction, guessed: set[int]) -> None:
    """What was heard is, bit for bit, what a decoder makes of the same packets on an even network."""
    heard = hearing.tape.heard_of(sent)
    marked = sum(frame.concealed for frame in hearing.frames)
    assert len(hearing.frames) - marked == len(heard)
    last = hearing.counts.lost - len(guessed)  # the call ended before the packet behind them was let go
    assert 0 <= last <= lost_after(heard[-1], sent)
    if hearing.counts.filled:  # the machine stood still for 200 ms, and the time was filled in that no packet has
        assert len(guessed) <= marked <= len(guessed) + last + hearing.counts.filled // 960
        return
    assert marked == len(guessed) + last
    decoder, samples = OpusDecoder(RATE), []
    for before, number in zip([heard[0] - 1, *heard], heard, strict=False):
        if gap := number - before - 1:
            samples.append(decoder.conceal(960 * gap, payloads[number]))
        decoded = decoder.decode(payloads[number])
        assert decoded is not None
        samples.append(decoded)
    whole = np.concatenate(samples)
    assert np.array_equal(np.concatenate([frame.samples for frame in hearing.frames])[: whole.size], whole)


def lost_after(number: int, sent: Direction) -> int:
    """Packets lost in a row right behind this one."""
    return next(count for count in range(len(sent.lost) + 1) if number + 1 + count not in sent.lost)


def check_recovery(tape: Tape, sent: Direction) -> None:
    """Before a second's packets came after a loss, none of them is held back any more (aiortc#543: all were, for ever).

    Counted in packets, so that a busy machine changes nothing.
    """
    ended = max(tape.came_of(sent))
    for number in sent.lost:
        if number + RECOVERS > ended:
            continue  # the call was over before
        after = [held for last, held in tape.held_of(sent) if number < last <= number + RECOVERS]
        assert not after or 0 in after, f"packets wait after the loss of {number}: {after}"


@pytest.mark.parametrize("name", TROUBLES)
async def test_both_directions_survive_trouble(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = TROUBLES[name]
    line = Line(media=trouble, others=trouble)
    async with house(line, monkeypatch) as server:
        async with Client.connect(str(server.http.make_url("/")), within=WITHIN) as call:
            spoken, told = await talk(call)
        down, up = line.talking  # the microphone begins later
        hearing = Taped.last
        assert bool(trouble.lost) == bool(down.lost) == bool(up.lost)
        check_told(spoken, told)
        check_sound(hearing, server.payloads, down, check_guesses(hearing.tape, down))
        check_guesses(server.microphone, up)
        for tape, sent in ((hearing.tape, down), (server.microphone, up)):
            check_recovery(tape, sent)


@pytest.mark.parametrize("name", TROUBLES)
async def test_through_any_trouble_a_stop_leaves_one_fade_to_be_sent_and_nothing_to_be_heard(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the network does to the stop and to the packets: from the moment in which the server has it, one more
    packet is audible, under a fade, and what is late or doubled of those before brings nothing back."""
    trouble = TROUBLES[name]
    line = Line(media=trouble, others=trouble)
    async with house(line, monkeypatch) as server:
        async with Client.connect(str(server.http.make_url("/")), within=WITHIN) as call:
            utterance, heard = call.speak(LONG), call.listen()
            await until_loud(heard, 25)
            call.stop()
            spoken = await utterance
            sent = len(server.payloads)
            async with asyncio.timeout(WITHIN):
                while len(server.payloads) < sent + RECOVERS:  # noqa: ASYNC110 - nothing else tells
                    await asyncio.sleep(0.01)
        assert spoken.reason == "cancelled"
        assert LONG.startswith(spoken.heard)
        assert spoken.heard != LONG
        loud = loud_packets(server.payloads)
        (at,) = server.stopped_at
        assert sum(loud[:at]) >= 20, "it was speaking"
        assert not any(loud[at + 1 : at + RECOVERS])
        assert not any(is_loud(frame.samples) for frame in Taped.last.frames[-RECOVERS // 2 :])


def loud_packets(payloads: list[bytes]) -> list[bool]:
    """Of each, whether a listener who gets them all hears anything in it."""
    decoder = OpusDecoder(RATE)
    return [is_loud(decoder.decode(payload)) for payload in payloads]


def is_loud(samples: Any) -> bool:
    """Louder than what Opus leaves behind a fade of the scripted tone, whose amplitude is 12,000."""
    return bool(np.abs(samples.astype(int)).max() > 1000)


async def until_loud(frames: Any, count: int) -> None:
    """Returns when so many loud frames were heard."""
    async with asyncio.timeout(WITHIN):
        async for frame in frames:
            count -= is_loud(frame.samples)
            if not count:
                return


async def test_a_call_is_made_though_the_first_of_everything_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """STUN's requests and answers, the DTLS handshake, SCTP's INIT: each is sent again, and more is lost later."""
    trouble = TROUBLES["everything at once"]
    line = Line(trouble, trouble, first_lost=True)
    async with house(line, monkeypatch) as server:
        async with Client.connect(str(server.http.make_url("/")), within=2 * WITHIN) as call:
            spoken = await call.speak(TEXT)
            assert (spoken.reason, spoken.heard, spoken.underruns) == ("end", TEXT, 0)
        assert len(line.first_lost) >= 4


# ---- the trouble itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TROUBLES)
def test_trouble_is_what_it_says(name: str) -> None:
    trouble = TROUBLES[name]
    fates = [trouble.copies(number) for number in range(1000)]
    assert fates == [trouble.copies(number) for number in range(1000)], "the same every time"
    assert fates.count(()) == 10 * trouble.lost
    assert max(delay for fate in fates for delay in fate[:1]) <= trouble.jitter
    assert any(len(fate) == 2 for fate in fates) == bool(trouble.doubled)
    runs = "".join("x" if not fate else " " for fate in fates).split()
    assert {len(run) for run in runs} <= {trouble.burst}
    assert all(trouble.copies(number) for number in range(10))
