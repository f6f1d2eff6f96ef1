"""One call to any WebRTC voice agent: the user's side of a scenario is played, and all that comes is written down.

It does not know what any of it means, or whether the agent did well. The agent's packets are taken before aiortc's own
jitter buffer, so a recording has what the network brought and not what one listener made of it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
from aiortc import (
    RTCBundlePolicy,
    RTCConfiguration,
    RTCDataChannel,
    RTCRtpSender,
    RTCRtpTransceiver,
    RTCSessionDescription,
)

from agent.client import LostError, settled
from agent.closing import Connection
from agent.dial import BusyError, ClientError, RefusedError, UnreachableError
from agent.hearing import Frame, Hearing, statistics
from agent.microphone import checked
from agent.probe.dialect import Exchange, Target
from agent.probe.ear import Ear, level_db
from agent.probe.mouth import Air, Echo, Mouth, Sound
from agent.probe.network import Network, Sockets
from agent.probe.prompter import Prompter, reply_key
from agent.probe.recording import RATE, Packet, Pcm, Recording, Told
from agent.probe.scenario import Scenario, Step
from agent.protocol import Ping
from agent.wire import divert
from engine.clock import Clock, MonotonicClock

__all__ = ["Stay", "Target", "call", "reply_key"]

TICK = 0.02
"""Seconds between two looks at whether the call is over."""
SILENCE = 10.0
"""Seconds without any datagram after which the agent is gone: aioice asks for consent every 5 s (RFC 7675), and what
does not send packets while it is silent answers that."""
PING_SECONDS = 1.0
CHANNEL_SECONDS = 5.0
"""In which the data channel opens, where nothing goes without it, once the call is connected."""
MAX_TOLD, MAX_TOLD_BYTES = 20_000, 16 * 1024 * 1024
"""Messages that are kept, and what they may hold together."""
MAX_PACKETS = 100_000
"""Packets that are kept: of the longest scenario three times as many as an agent sends."""
MAX_NUMBER = 1e12


class Stay:
    """For a call that is not hung up when its scenario is over: it stays on the line, silent, until it is let go.

    What is to be heard then is not written down. To be made on the event loop."""

    def __init__(self) -> None:
        self.spoken = asyncio.Event()
        """The scenario is over. Whoever made the call sets it where it ended before."""
        self.let_go = asyncio.Event()


async def call(
    target: Target,
    scenario: Scenario,
    trial: int,
    seed: int,
    *,
    sounds: Callable[[str], Pcm],
    network: Network | None = None,
    lengths: Mapping[str, float] = MappingProxyType({}),
    progress: Callable[[str], None] | None = None,
    room_db: float | None = None,
    stay: Stay | None = None,
) -> Recording:
    """Calls, plays the scenario to its end, hangs up at once or when it is let go, and returns what it was.

    Whatever the other side does, it raises nothing: then the recording has a `failure`. Cancelled, it hangs up first.
    A call without a data channel is none where the protocol can do without, and one in which no packet of the agent's
    voice came is one.

    sounds: int16 [samples] at 48 kHz for a step's `sound`; asked for all of them before the call is made.
    lengths: seconds of the replies in a rehearsal, by `reply_key`. progress: is told in a few words how it goes.
    room_db: RMS of the noise in the user's room, in dB of full scale; None is digital silence.
    Raises ValueError for a scenario that cannot be followed, and what `sounds` and `progress` raise.
    """
    samples = {step.name: checked(sounds(step.sound)) for step in scenario.steps if step.echo_db is None}
    durations = {name: pcm.size / RATE for name, pcm in samples.items()}
    prompter = Prompter(scenario, trial, seed, durations, lengths)
    clock = MonotonicClock()
    recording = Recording(scenario.name, trial, seed, target.protocol, clock.now())
    recording.delayed = network is not None and (network.down.jitter > 0 or network.down.rate > 0)
    attempt = _Attempt(target, scenario, recording, prompter, samples, clock, network or Network(), room_db)
    try:
        await attempt.run(progress or (lambda words: None), stay)
    finally:
        await settled(attempt.close())
    return recording


class _Attempt:
    """One call, from its offer to its end."""

    def __init__(
        self,
        target: Target,
        scenario: Scenario,
        recording: Recording,
        prompter: Prompter,
        samples: Mapping[str, Pcm],
        clock: Clock,
        network: Network,
        room_db: float | None,
    ) -> None:
        self._target, self._scenario, self._recording, self._prompter = target, scenario, recording, prompter
        self._samples, self._clock, self._network = samples, clock, network
        self._ear, self._air, self._hearing = Ear(), Air(), Hearing(clock, self._hear)
        self._mouth = Mouth(clock, self._begin, room_db, seed=recording.seed)
        self._sources = list[Sound | Echo]()
        self._error: ClientError | None = None
        """Why the call is over before its time."""
        self._settled = asyncio.Event()
        """It is connected, or never will be."""
        self._over = self._written = False
        """The call is at its end; nothing of it is written down any more."""
        self._introduced = False
        """It is a BreezeRT server, to which pings and statistics are worth something."""
        self._told_bytes = 0
        self._round_trip: float | None = None
        self._ping_at = 0.0
        self._sockets: Sockets | None = None
        self._connection = Connection(RTCConfiguration(iceServers=[], bundlePolicy=RTCBundlePolicy.MAX_BUNDLE))
        self._transceiver = self._voice()
        self._channel = self._data_channel()
        self._connection.on("connectionstatechange", self._take_state)
        self._exchange = Exchange(target)

    async def run(self, progress: Callable[[str], None], stay: Stay | None) -> None:
        """Returns when the call is over, and why stands in the recording."""
        try:
            await self._connect(progress)
            await self._follow(progress)
            if stay is not None:
                await self._stay(stay)
        except ClientError as error:
            self._recording.failure = str(error)
            self._recording.busy_for = error.retry_after if isinstance(error, BusyError) else None
        finally:
            self._write_end()

    async def _stay(self, stay: Stay) -> None:
        """Returns when it is let go. What is said of the call after its scenario is not written down."""
        self._write_end()
        stay.spoken.set()
        while not stay.let_go.is_set():
            self._check(self._clock.now())
            await self._keep_alive(self._clock.now())
            await asyncio.sleep(TICK)

    async def close(self) -> None:
        """Hangs up, and gives everything back."""
        self._over = True
        self._hearing.close()
        self._mouth.stop()
        try:
            await self._exchange.hang_up()
        finally:
            await self._connection.close()
            if self._sockets is not None:
                self._sockets.close()  # behind the connection, whose goodbye goes through them

    # ---- the connection ---------------------------------------------------------------------------------------

    def _voice(self) -> RTCRtpTransceiver:
        speaks = self._target.dialect.speaks
        track, direction = (self._mouth, "sendrecv") if speaks else ("audio", "recvonly")
        transceiver = self._connection.addTransceiver(track, direction=direction)
        codecs = RTCRtpSender.getCapabilities("audio").codecs
        transceiver.setCodecPreferences([codec for codec in codecs if codec.mimeType.lower() == "audio/opus"])
        divert(transceiver.receiver, self._take_packet)
        return transceiver

    def _data_channel(self) -> RTCDataChannel | None:
        label = self._target.dialect.channel
        if label is None:
            return None
        channel = self._connection.createDataChannel(label)
        channel.on("message", self._take_message)
        return channel

    async def _connect(self, progress: Callable[[str], None]) -> None:
        progress(f"calls {self._target.route}")
        try:
            async with asyncio.timeout(self._target.within):
                await settled(self._connection.setLocalDescription())
                self._sockets = Sockets(self._connection, self._network, self._clock)
                answer = await self._exchange.offer(self._connection.localDescription.sdp)
                self._recording.answered_at = self._clock.now()
                await self._apply(answer.sdp)
                await self._settled.wait()
        except TimeoutError:
            answered = self._recording.answered_at is not None
            what = "no packets come through: is UDP blocked?" if answered else "the agent's server does not answer"
            raise UnreachableError(f"not connected within {self._target.within:g} s; {what}") from None
        self._check(self._clock.now())
        progress("is connected")

    async def _apply(self, sdp: str) -> None:
        description = RTCSessionDescription(usable(sdp), "answer")
        try:
            await settled(self._connection.setRemoteDescription(description))
        except Exception as error:  # whatever is wrong with it: the parser asserts, indexes and looks up
            raise RefusedError(f"the agent's answer cannot be applied: {type(error).__name__} {error}", 200) from error
        if self._target.dialect.speaks and self._scenario.steps and self._is_deaf:
            raise RefusedError("the agent does not listen: its answer takes no microphone", 200)

    @property
    def _is_deaf(self) -> bool:
        return self._transceiver.currentDirection not in ("sendrecv", "sendonly")

    def _take_state(self) -> None:
        state, now = self._connection.connectionState, self._clock.now()
        if state == "connected" and self._recording.connected_at is None:
            self._recording.connected_at = now
            self._prompter.connected(now)
            self._settled.set()
        elif state in ("failed", "closed") and not self._over:
            self._fail(self._lost(state, now))

    def _lost(self, state: str, now: float) -> ClientError:
        connected_at = self._recording.connected_at
        if connected_at is None:
            return UnreachableError(
                "no connection: no packets come through, or the agent ended the call; is UDP blocked?"
            )
        what = "the agent ended the call" if state == "closed" else "the connection broke"
        return LostError(f"{what} {now - connected_at:.1f} s after it was connected")

    def _fail(self, error: ClientError) -> None:
        """The first reason counts."""
        self._error = self._error or error
        self._settled.set()

    # ---- while it goes on -------------------------------------------------------------------------------------

    async def _follow(self, progress: Callable[[str], None]) -> None:
        """Returns when the scenario is over."""
        told = 0
        while not self._prompter.is_over(self._clock.now(), self._ear, deaf=self._is_deaf):
            self._check(self._clock.now())
            for source in self._sources[told:]:
                progress(f"says {source.step}")
            told = len(self._sources)
            await self._keep_alive(self._clock.now())
            await asyncio.sleep(TICK)  # packets and the microphone need nobody here
        self._check(self._clock.now())
        if not self._recording.packets:
            raise UnreachableError("no audio came from the agent in the whole call")

    def _check(self, now: float) -> None:
        """Raises why the call is over before its time."""
        if self._error is not None:
            raise self._error
        assert self._sockets is not None and self._recording.connected_at is not None, "it is connected"
        if (silent := now - self._sockets.last_at) >= SILENCE:
            raise LostError(f"the agent is gone: no packet of any kind for {silent:.1f} s")
        channel, since = self._channel, now - self._recording.connected_at
        needed = self._target.dialect.needs_channel and since >= CHANNEL_SECONDS
        if channel is not None and needed and channel.readyState != "open":
            state = f"its data channel {channel.label} is {channel.readyState}"
            raise RefusedError(f"the agent cannot be talked to: {since:.0f} s after the connection {state}", 200)

    async def _keep_alive(self, now: float) -> None:
        """To a BreezeRT server what its own clients say: a ping, and what the receiver knows."""
        if self._channel is None or not self._introduced or now < self._ping_at:
            return
        self._ping_at = now + PING_SECONDS
        for message in (Ping(t=now), await statistics(self._transceiver.receiver, self._hearing, self._round_trip)):
            if self._channel.readyState == "open":
                self._channel.send(msgspec.json.encode(message).decode())

    def _begin(self, at: float) -> list[Sound | Echo]:
        """What is to be heard before the microphone from this instant on."""
        if self._written or self._recording.connected_at is None:
            return []
        begun = [self._source(step) for step in self._prompter.due(at, self._ear)]
        self._sources += begun
        return begun

    def _source(self, step: Step) -> Sound | Echo:
        if step.echo_db is not None:
            return Echo(step.name, self._air, step.echo_db)
        return Sound(step.name, self._samples[step.name], step.gain_db)

    def _take_packet(self, source: int, sequence: int, timestamp: int, payload: bytes) -> None:
        if not self._written and self._sockets is not None and len(self._recording.packets) < MAX_PACKETS:
            at = self._sockets.came_at(source, sequence)
            if self._recording.packets:
                at = max(at, self._recording.packets[-1].at)  # a late loop may read one behind what was due after it
            self._recording.packets.append(Packet(sequence, timestamp, source, payload, at))
            self._hearing.push(source, sequence, timestamp, payload)

    def _hear(self, frame: Frame) -> None:
        self._air.push(frame.samples, frame.received_at)
        if not frame.concealed:
            self._ear.push(level_db(frame.samples), frame.received_at)

    def _take_message(self, data: str | bytes) -> None:
        self._told_bytes += len(data)
        if self._written or len(self._recording.told) >= MAX_TOLD or self._told_bytes > MAX_TOLD_BYTES:
            return
        now = self._clock.now()
        message = told(data, now)
        self._recording.told.append(message)
        if self._target.protocol == "offer" and message.type == "session.created":
            self._introduced = True
        elif self._introduced and message.type == "pong" and 0 < number(message.body.get("t")) < now:
            self._round_trip = now - number(message.body["t"])

    def _write_end(self) -> None:
        """What only the end shows."""
        if self._written:
            return
        self._written = True
        self._recording.ended_at = self._clock.now()
        if self._recording.connected_at is not None:
            self._recording.missed = self._prompter.missing
        said = [source.said for source in self._sources]
        self._recording.said = sorted((one for one in said if one is not None), key=lambda one: one.begins_at)


def number(value: object) -> float:
    """A number of a message; 0 for what is none, or is beyond all that a clock says."""
    return float(value) if isinstance(value, int | float) and abs(value) < MAX_NUMBER else 0.0


def told(data: str | bytes, at: float) -> Told:
    """A message of the data channel, without what lies deeper in it: nothing there is looked at, and a stranger may
    have nested it without end. What is no JSON object has no type, and is found as `data` in its body."""
    text = data.decode(errors="replace") if isinstance(data, bytes) else data
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return Told(at, "", {"data": text})
    kind = body.get("type")
    flat = {name: value for name, value in body.items() if isinstance(value, str | int | float)}
    return Told(at, kind if isinstance(kind, str) else "", flat)


def usable(sdp: str) -> str:
    """The answer without candidates that are no IP address (`.local` names cost a second each to resolve), and without
    the word that no more will come: without candidates the agent is found by its own packets (RFC 8445, 7.3.1.3)."""
    lines = sdp.splitlines()
    return "".join(f"{line}\r\n" for line in lines if not _is_useless(line))


def _is_useless(line: str) -> bool:
    if not line.startswith("a=candidate:"):
        return line.strip() == "a=end-of-candidates"
    fields = line.split()
    try:
        ipaddress.ip_address(fields[4])
    except (IndexError, ValueError):
        return True
    return False
