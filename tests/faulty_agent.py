"""A voice agent with exactly one fault, or none, whose every act is written down: what `breezert probe` is tested with.

It knows neither the probe nor words: it hears whether somebody is loud, and answers with speech that was made before.
The fault is named in the address, so that one server has all of them:

    python tests/faulty_agent.py                   says its port, and ends with its standard input
    POST /AGENT/TAG/offer                          {sdp, type} -> {sdp, type, id}; data channel `breezert`
    POST /AGENT/TAG/v1/realtime/calls              an offer's SDP -> the answer's; data channel `oai-events`
    GET  /AGENT/TAG/truth                          what the last call of that tag was, as JSON of Truth

AGENT is `perfect`, or fields of Agent such as `pads_ms=60,pads=3`; TAG is anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from aiohttp import ClientSession, web
from aiortc import RTCConfiguration, RTCRtpSender, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from av.stream import Stream
from numpy.typing import NDArray

from agent import protocol
from agent.closing import Connection
from agent.heard import USUAL_BUFFER_SECONDS
from agent.leftovers import Leftovers
from agent.offer import OfferError, usable
from agent.opus import OpusDecoder, OpusEncoder
from agent.pace import Pace
from agent.probe.call import Target, call
from agent.probe.dialect import DIALECTS, claims
from agent.probe.judge import Verdict, judge
from agent.probe.judging import Judges, heard_of, reply_seconds
from agent.probe.measure import Measures, measure
from agent.probe.network import is_media
from agent.probe.recording import Heard, Recording
from agent.probe.run import STAGGER_SECONDS, rehearsals
from agent.probe.scenario import Scenario, built_in
from agent.probe.sounds import sound
from agent.protocol import CHANNEL, ServerMessage, encode
from agent.sounds import sentence
from agent.wire import divert

Pcm = NDArray[np.int16]

RATE = 48_000
SIZE = 960
"""Samples in 20 ms."""
HEARING_SIZE = 320
"""The same at the decoder's 16 kHz."""


@dataclass(frozen=True, slots=True)
class Agent:
    """How an agent is; what is left as it is, is right. Durations in ms."""

    pads_ms: int = 0
    pads: int = 1
    """So often a reply has that much exact digital silence inside a word: it starved, and went on."""
    gap_ms: int = 0
    gaps: int = 1
    """So often nothing is sent for that long inside a word of a reply; then it goes on."""
    gap_jumps: bool = True
    """Timestamps go on during a gap, as of a sender that reads them off a clock; or they do not: it stalled."""
    packet_ms: int = 20
    twins: bool = False
    """Every 40 ms two packets with one timestamp: what aiortc makes of frames of 40 ms (aiortc#1357)."""
    burst: int = 1
    """So many packets are sent at once, and then none for as long as they last."""
    drift: float = 0.0
    """Its clock runs so much faster (0.005: half a percent), or slower below 0."""
    cuts_ms: int = 0
    """Of the beginning of each reply that are missing."""
    talks_on_ms: int = 0
    """It says at once that it stopped, and is heard for so much longer."""
    stale_ms: int = 0
    """Of the old reply that are said after it was silent for a moment, while the user goes on."""
    skips_ms: int = 0
    """After a pause it does not go on where it stood still: so much further on, or back below 0."""
    resumes: bool = True
    """Off: a cough ends the reply for good."""
    stops: bool = True
    answers: bool = True
    late_ms: int = 0
    """It takes so much longer to answer."""
    greets_ms: int = 3000
    """It speaks first where the user says nothing for that long; it never does without `answers`."""
    turn_end_ms: int = 1300
    """Silence after which the user's turn is over: longer than people hesitate."""
    threshold: int = 1300
    """RMS of 20 ms from which on somebody is heard: above its own echo, and what is said to others in the room."""
    hangs_up_ms: int = 0
    """So far into its first reply it ends the call."""
    claims_all: bool = False
    """It says that a reply which was interrupted had been heard to its end."""


FIELDS = {one.name: one.type for one in fields(Agent)}
READ: dict[Any, Callable[[str], Any]] = {"int": int, "float": float, "bool": lambda text: text == "True"}


def named(agent: str) -> Agent:
    """The agent of an address. Raises ValueError for what is no field of Agent."""
    if agent == "perfect":
        return Agent()
    options = dict(part.partition("=")[::2] for part in agent.split(","))
    if unknown := options.keys() - FIELDS.keys():
        raise ValueError(f"an agent has {sorted(FIELDS)}, not {sorted(unknown)}")
    return Agent(**{name: READ[FIELDS[name]](value) for name, value in options.items()})


# ---- what it says ---------------------------------------------------------------------------------------------------

TEXTS = {
    "wait": "Wait, that is not the train I asked for.",
    "stop": "Stop, please, I know that part already.",
    "sorry": "Sorry, what was the price of the ticket?",
    "hold": "Hold on, can we go back to the first one?",
    "actually": "Actually, I would rather leave on Sunday.",
    "no": "No, I meant the other hotel.",
    "excuse": "Excuse me, how long does the whole journey take?",
    "can": "Can you tell me something else instead?",
}
REPLIES = (("hold", "actually", "can"), ("excuse", "wait"), ("sorry", "no", "can"))
"""In turn, of 4.8 to 6.7 s: sentences of agent.sounds. The first begins with a long word."""
LEVEL = 0.5
"""Of those sentences' own, -30 dB of full scale: so its echo at -12 dB stays below Agent.threshold."""
BREATH_SECONDS = 0.12
"""Between two sentences."""
NOISE_RMS = 20.0
"""Of the room in which the voice was recorded: within a reply nothing is exactly silent."""
LOUD = 700.0
"""RMS of 20 ms inside a word."""
FADE_SAMPLES = 240
LEAD_SECONDS = 0.8
"""Before the first place that is spoiled, and between two of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """One reply: int16 [packets, samples], encoded once, as it is where nobody interrupts."""

    text: str
    pcm: Pcm
    packets: tuple[bytes, ...]
    places: tuple[int, ...]
    """Packets within words, where something may go wrong."""


@cache
def voice(index: int) -> tuple[str, Pcm]:
    """A reply's text and sound, int16 [samples] at 48 kHz."""
    names = REPLIES[index % len(REPLIES)]
    noise = np.random.default_rng(index)
    breath = np.zeros(round(BREATH_SECONDS * RATE))
    parts = [part for name in names for part in (LEVEL * sentence(name), breath)][:-1]
    samples = np.concatenate(parts)
    samples = samples + noise.normal(0.0, NOISE_RMS, samples.size)
    return " ".join(TEXTS[name] for name in names), np.rint(samples).astype(np.int16)


def replies(agent: Agent) -> tuple[Reply, ...]:
    """All that this agent says, in turn. Takes 0.3 s the first time that an agent's sound is like that."""
    return spoiled(replace(SOUND, **{name: getattr(agent, name) for name in SPOILS}))


SOUND = Agent()
SPOILS = ("cuts_ms", "pads_ms", "pads", "packet_ms", "gaps")


@cache
def spoiled(agent: Agent) -> tuple[Reply, ...]:
    return tuple(reply(agent, *voice(index)) for index in range(len(REPLIES)))


def reply(agent: Agent, text: str, samples: Pcm) -> Reply:
    """The reply as this agent has it."""
    samples = padded(samples[agent.cuts_ms * RATE // 1000 :], agent.pads_ms * RATE // 1000, agent.pads)
    size = agent.packet_ms * RATE // 1000
    samples = np.concatenate([samples, np.zeros(-samples.size % size, np.int16)])
    pcm = samples.reshape(-1, size)
    encoder = encoder_of(size)
    for _ in range(LIVE_PACKETS):
        encoder.encode(np.zeros(size, np.int16))
    return Reply(text, pcm, tuple(encoder.encode(block) for block in pcm), loud_places(samples, size, agent.gaps))


def padded(samples: Pcm, size: int, count: int) -> Pcm:
    """With `size` zeros at so many places within words. What is there of the speech is sent to its last sample, and
    what comes late begins with a packet: so it is with a sender that fills up."""
    if not size:
        return samples
    parts, begin, length = list[Pcm](), 0, 0
    for place in loud_places(samples, SIZE, count):
        end = SIZE * place - (length + SIZE * place - begin + size) % SIZE
        parts += [samples[begin:end], np.zeros(size, np.int16)]
        length, begin = length + end - begin + size, end
    return np.concatenate([*parts, samples[begin:]])


def loud_places(samples: Pcm, size: int, count: int) -> tuple[int, ...]:
    """The first packets before which, and in which, a word is loud, LEAD_SECONDS apart at least."""
    blocks = samples[: samples.size // size * size].astype(np.float64).reshape(-1, size)
    loud = np.sqrt((blocks**2).mean(axis=1)) > LOUD
    places, lead = list[int](), round(LEAD_SECONDS * RATE / size)
    for place in np.flatnonzero(loud[1:] & loud[:-1]) + 1:
        if place >= (places[-1] if places else 0) + lead and len(places) < count:
            places.append(int(place))
    return tuple(places)


# ---- how it speaks --------------------------------------------------------------------------------------------------

LIVE_PACKETS = 5
"""After a turn that nobody foresaw so many packets are encoded anew; then the encoder is where it was before."""
STALE_AFTER = 12
"""Packets of silence before what is stale: a shorter one might be inside a word."""


def encoder_of(size: int) -> OpusEncoder:
    encoder = OpusEncoder(RATE)
    encoder.packet_samples = size
    return encoder


@cache
def silence(size: int) -> bytes:
    """The packet of an encoder that has known nothing else."""
    encoder = encoder_of(size)
    return [encoder.encode(np.zeros(size, np.int16)) for _ in range(2 * LIVE_PACKETS)][-1]


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """The sound that is sent next, where it comes from, and whether it is a reply's in the way in which that was
    encoded."""

    pcm: Pcm
    place: int | None = None
    plain: bool = True


class Mouth:
    """A reply's packets one by one, and silence where there is none; falls silent and goes on as it is told."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._size = agent, agent.packet_ms * RATE // 1000
        self._zeros = np.zeros(self._size, np.int16)
        self._encoder = encoder_of(self._size)
        self._past: deque[Pcm] = deque(maxlen=LIVE_PACKETS)
        self._live = 0
        self._reply: Reply | None = None
        self._script: Iterator[Spoken] | None = None
        """What is said now instead of the reply from `position` on."""
        self.position = 0
        """Packets of the reply that were sent in full."""
        self.quiet = True
        """Nothing is being said, whether it paused or is over."""
        self.ended: Callable[[], None] = lambda: None

    @property
    def seconds(self) -> float:
        """Of the reply that were sent."""
        return self.position * self._size / RATE

    @property
    def length(self) -> float:
        return 0.0 if self._reply is None else self._reply.pcm.size / RATE

    def say(self, reply: Reply) -> None:
        self._reply, self._script, self.position, self.quiet = reply, None, 0, False

    def pause(self, on_ms: int = 0) -> None:
        """Fades out with the next packet, or that much later."""
        self._script = chain(self._fading(on_ms * RATE // 1000 // self._size), self._stale())

    def resume(self) -> None:
        """Goes on with the sample at which it faded out."""
        self.position = max(0, self.position + self._agent.skips_ms * RATE // 1000 // self._size)
        self._script, self.quiet = self._rising(), False

    def forget(self) -> None:
        """The reply will not be resumed."""
        self.quiet = True

    def pop(self) -> bytes:
        """The next packet."""
        return self._encoded(self._next())

    def _next(self) -> Spoken:
        if self._script is not None:
            for spoken in self._script:
                return spoken
            self._script = None
        return Spoken(self._zeros) if self.quiet else self._go_on()

    def _go_on(self) -> Spoken:
        """The reply's next packet, as it was encoded."""
        assert self._reply is not None
        place = self.position
        if place >= len(self._reply.packets):
            self.quiet, self._reply = True, None
            self.ended()
            return Spoken(self._zeros)
        self.position += 1
        return Spoken(self._reply.pcm[place], place)

    def _fading(self, packets: int) -> Iterator[Spoken]:
        for _ in range(packets):
            if not self.quiet:
                yield self._go_on()
        if not self.quiet and self._reply is not None and self.position < len(self._reply.pcm):
            self.quiet = True
            yield Spoken(faded(self._reply.pcm[self.position]), plain=False)
        self.quiet = True

    def _rising(self) -> Iterator[Spoken]:
        if self._reply is not None and self.position < len(self._reply.pcm):
            self.position += 1
            yield Spoken(risen(self._reply.pcm[self.position - 1]), plain=False)

    def _stale(self) -> Iterator[Spoken]:
        packets = self._agent.stale_ms * RATE // 1000 // self._size
        rest: Iterable[Pcm] = self._reply.pcm[self.position :][: packets + 1] if self._reply and packets else []
        for _ in range(STALE_AFTER if packets else 0):
            yield Spoken(self._zeros)
        for index, pcm in enumerate(rest):
            yield Spoken(risen(pcm) if index == 0 else faded(pcm) if index == packets else pcm, plain=False)

    def _encoded(self, spoken: Spoken) -> bytes:
        """What is not plain is encoded after all that was sent before, as are the packets after it."""
        if not spoken.plain and not self._live:
            self._encoder = encoder_of(self._size)
            for past in self._past:
                self._encoder.encode(past)
        self._past.append(spoken.pcm)
        self._live = LIVE_PACKETS if not spoken.plain else max(0, self._live - 1)
        if self._live:
            return self._encoder.encode(spoken.pcm)
        if spoken.place is not None and self._reply is not None:
            return self._reply.packets[spoken.place]
        return silence(self._size)


def faded(pcm: Pcm) -> Pcm:
    """Falls to nothing within 5 ms, and stays there."""
    ramp = np.concatenate([np.linspace(1, 0, FADE_SAMPLES), np.zeros(pcm.size - FADE_SAMPLES)])
    return (ramp * pcm).astype(np.int16)


def risen(pcm: Pcm) -> Pcm:
    """Comes from nothing within 5 ms."""
    ramp = np.concatenate([np.linspace(0, 1, FADE_SAMPLES), np.ones(pcm.size - FADE_SAMPLES)])
    return (ramp * pcm).astype(np.int16)


# ---- what it was ----------------------------------------------------------------------------------------------------

AUDIBLE = 98
"""Of 32768: a sample with a larger amplitude is heard."""


@dataclass(slots=True)
class Sent:
    """One packet in the moment in which it was handed to the socket."""

    at: float
    sequence: int
    timestamp: int
    audible: tuple[float, float] | None
    """In seconds from the packet's first sample, the first that is heard when it is decoded, and the end of the last;
    None where there is none."""
    reply: int | None
    """Whose sound it is."""


@dataclass(slots=True)
class Truth:
    """A call, in seconds of time.monotonic."""

    id: str
    answered_at: float = 0.0
    connected_at: float | None = None
    sent: list[Sent] = field(default_factory=list)
    onsets: list[float] = field(default_factory=list)
    """When it noticed that the user speaks."""
    turn_ends: list[float] = field(default_factory=list)
    late: float = 0.0
    """By how much it missed the beat at most, in seconds: what its machine did, and no fault of Agent."""
    microphone: list[float] = field(default_factory=list)
    """When each packet of the user's came."""
    told: list[tuple[float, str]] = field(default_factory=list)
    ended_at: float | None = None


class Meter:
    """What is audible of packets when they are decoded."""

    def __init__(self) -> None:
        self._decoder = OpusDecoder(RATE)

    def of(self, payload: bytes) -> tuple[float, float] | None:
        heard = self._decoder.decode(payload)
        assert heard is not None, "it is Opus"
        loud = np.flatnonzero(np.abs(heard.astype(np.int32)) > AUDIBLE)
        return (float(loud[0] / RATE), float((loud[-1] + 1) / RATE)) if loud.size else None


# ---- when it speaks -------------------------------------------------------------------------------------------------


class Track(MediaStreamTrack):
    """Sends what the mouth says, in its own time. `leaving` is told of every packet."""

    kind = "audio"

    def __init__(self, agent: Agent, mouth: Mouth, leaving: Callable[[bytes], None]) -> None:
        super().__init__()
        self._agent, self._mouth, self._leaving = agent, mouth, leaving
        self._pace, self._rate = Pace(), 1 + agent.drift
        self._together = 2 if agent.twins else agent.burst
        self._index = self._pts = 0
        self.late = 0.0
        """By how much it missed the beat at most."""
        self._gaps: set[int] = set()

    def spoil(self, places: tuple[int, ...]) -> None:
        """Of the reply that begins: here nothing is sent for a while."""
        self._gaps = set(places) if self._agent.gap_ms else set()

    async def recv(self) -> av.Packet[Stream]:
        if self._index % self._together == 0:
            await self._wait(self._together * self._agent.packet_ms // 20)
            if not self._mouth.quiet and self._mouth.position in self._gaps:
                self._gaps.discard(self._mouth.position)
                await self._gap()
        if self.readyState != "live":
            raise MediaStreamError
        payload = self._mouth.pop()
        self._leaving(payload)
        return self._wrapped(payload)

    async def _wait(self, packets: int) -> None:
        now = time.monotonic() * self._rate
        due_at = max(self._pace.next_due(now) for _ in range(packets))
        await asyncio.sleep(max(0.0, due_at - now) / self._rate)
        self.late = max(self.late, time.monotonic() - due_at / self._rate)

    async def _gap(self) -> None:
        packets = self._agent.gap_ms // 20
        for _ in range(packets):
            await self._wait(1)
        self._pts += packets * SIZE * self._agent.gap_jumps

    def _wrapped(self, payload: bytes) -> av.Packet[Stream]:
        packet = av.Packet(payload)
        packet.time_base = Fraction(1, RATE)
        packet.pts = packet.dts = self._pts
        self._index += 1
        if self._index % self._together == 0 or not self._agent.twins:
            self._pts += SIZE * (2 if self._agent.twins else self._agent.packet_ms // 20)
        return packet


# ---- what it hears --------------------------------------------------------------------------------------------------

ONSET_FRAMES = 3
"""60 ms of sound are somebody."""
INTERRUPTION_FRAMES = 30
"""600 ms from the first sound to the last: who says so much means it."""
GOING_ON = 0.4
"""Of the threshold: who is heard already is heard to the end of the word."""
DOUBT_FRAMES = 18
"""Silence, longer than those inside a sentence, after which it was no interruption."""


class Ear:
    """Tells by loudness when somebody begins and ends. `onset`, `meant`, `nothing`, `turn_end` are called."""

    def __init__(self, agent: Agent, on: Turns) -> None:
        self._agent, self._on = agent, on
        self._decoder = OpusDecoder()
        self.came = list[float]()
        """When packets did."""
        self._loud = 0
        """Frames in a row."""
        self._length = self._silence = 0
        """Frames since the sound began, and since it was last there."""
        self._hears = self._meant = False

    def take(self, source: int, sequence: int, timestamp: int, payload: bytes) -> None:
        self.came.append(time.monotonic())
        samples = self._decoder.decode(payload)
        if samples is not None:
            for start in range(0, samples.size - HEARING_SIZE + 1, HEARING_SIZE):
                self._feed(samples[start : start + HEARING_SIZE].astype(np.float64))

    def _feed(self, samples: NDArray[np.float64]) -> None:
        threshold = self._agent.threshold * (GOING_ON if self._hears else 1.0)
        loud = float(np.sqrt((samples**2).mean())) > threshold
        self._loud = self._loud + 1 if loud else 0
        if self._hears:
            self._follow(loud)
        elif self._loud >= ONSET_FRAMES:
            self._hears, self._meant = True, False
            self._length, self._silence = self._loud, 0
            self._on.onset()

    def _follow(self, loud: bool) -> None:
        self._length, self._silence = self._length + 1, 0 if loud else self._silence + 1
        if not self._meant and self._length - self._silence >= INTERRUPTION_FRAMES:
            self._meant = True
            self._on.meant()
        if not self._meant and self._silence >= DOUBT_FRAMES:
            self._hears = False
            self._on.nothing()
        elif self._silence * 20 >= self._agent.turn_end_ms:
            self._hears = False
            self._on.turn_end((self._length - self._silence) * 0.02)


# ---- what it does ---------------------------------------------------------------------------------------------------


class Turns:
    """Who has the turn, and what becomes of replies."""

    def __init__(self, agent: Agent, mouth: Mouth, spoil: Callable[[tuple[int, ...]], None], call: Call) -> None:
        self._agent, self._mouth, self._spoil, self._call = agent, mouth, spoil, call
        self._replies = replies(agent)
        self.count = 0
        """Replies so far."""
        self._open = False
        """One is being said, or paused."""
        mouth.ended = self._end
        self._later: asyncio.TimerHandle | None = None

    @property
    def reply(self) -> int:
        return self.count - 1

    @property
    def _id(self) -> str:
        return f"reply-{self.count}"

    def onset(self) -> None:
        self._call.truth.onsets.append(time.monotonic())
        self._call.tell(protocol.TurnStarted())
        if self._open and self._agent.stops:
            if self._agent.talks_on_ms or self._agent.stale_ms:
                self._stopped("cancelled")
            else:
                self._call.tell(protocol.SpeechPaused(id=f"{self._id}.1", heard_ms=self._heard_ms()))
            self._mouth.pause(self._agent.talks_on_ms)

    def meant(self) -> None:
        """It is an interruption: the reply is over."""
        if self._open and self._agent.stops:
            self._stopped("cancelled")
            self._mouth.forget()

    def nothing(self) -> None:
        """It was a cough, or a word in passing."""
        self._call.tell(protocol.TurnStopped())
        if not self._open or not self._agent.stops:
            return
        if self._agent.resumes:
            self._call.tell(protocol.SpeechContinued(id=f"{self._id}.1", heard_ms=self._heard_ms()))
            self._mouth.resume()
        else:
            self._stopped("cancelled")
            self._mouth.forget()

    def begin(self) -> None:
        """The call is up."""
        self._later = asyncio.get_running_loop().call_later(self._agent.greets_ms / 1000, self._greet)

    def _greet(self) -> None:
        if self._agent.answers and not self._call.truth.onsets:
            self._answer()

    def turn_end(self, seconds: float) -> None:
        self._call.truth.turn_ends.append(time.monotonic())
        self._call.tell(protocol.TurnEnded(seconds=seconds))
        if self._agent.answers and not self._open:
            self._later = asyncio.get_running_loop().call_later(self._agent.late_ms / 1000, self._answer)

    def close(self) -> None:
        if self._later is not None:
            self._later.cancel()

    def _answer(self) -> None:
        chosen = self._replies[self.count % len(self._replies)]
        self.count += 1
        self._open = True
        self._mouth.say(chosen)
        self._spoil(chosen.places)
        self._call.tell(protocol.ReplyStarted(id=self._id))
        self._call.tell(protocol.ReplyText(id=f"{self._id}.1", text=chosen.text))
        self._call.tell(protocol.SpeechStarted(id=f"{self._id}.1", ttfa_ms=0.0))
        if self._agent.hangs_up_ms:
            asyncio.get_running_loop().call_later(self._agent.hangs_up_ms / 1000, self._call.end)

    def _heard_ms(self) -> float:
        """What came out of a usual listener's buffer."""
        sent = 1000 * self._mouth.seconds
        return 1000 * self._mouth.length if self._agent.claims_all else max(0.0, sent - 1000 * USUAL_BUFFER_SECONDS)

    def _end(self) -> None:
        if self._open:
            self._stopped("end")

    def _stopped(self, reason: str) -> None:
        self._open = False
        sent = 1000 * self._mouth.seconds
        heard = sent if reason == "end" else self._heard_ms()
        self._call.tell(protocol.SpeechStopped(id=f"{self._id}.1", reason=reason, heard_ms=heard, sent_ms=sent))
        over = "end" if reason == "end" else "interrupted"
        self._call.tell(protocol.ReplyEnded(id=self._id, reason=over, heard=""))


class Call:
    """One connection."""

    def __init__(self, agent: Agent, name: str) -> None:
        self.truth = Truth(name)
        self._connection = Connection(RTCConfiguration(iceServers=[]))
        self._channel: Any = None
        self._mouth = Mouth(agent)
        self._track = Track(agent, self._mouth, self._leaving)
        self._turns = Turns(agent, self._mouth, self._track.spoil, self)
        self._ear = Ear(agent, self._turns)
        self._meter = Meter()
        self._next: tuple[tuple[float, float] | None, int | None] = (None, None)
        self._ending: asyncio.Task[None] | None = None

    async def answer(self, sdp: str) -> str:
        connection = self._connection
        connection.on("datachannel", self._take_channel)
        connection.on("connectionstatechange", self._take_state)
        transceiver = connection.addTransceiver(self._track, direction="sendrecv")
        divert(transceiver.receiver, self._ear.take)
        codecs = RTCRtpSender.getCapabilities("audio").codecs
        transceiver.setCodecPreferences([codec for codec in codecs if codec.mimeType.lower() == "audio/opus"])
        await connection.setRemoteDescription(RTCSessionDescription(usable(sdp), "offer"))
        await connection.setLocalDescription()
        self._watch(transceiver.sender)
        self.truth.answered_at = time.monotonic()
        return str(connection.localDescription.sdp)

    def told_truth(self) -> Truth:
        self.truth.late, self.truth.microphone = self._track.late, self._ear.came
        return self.truth

    def tell(self, message: ServerMessage) -> None:
        """On the data channel, in its dialect."""
        if self._channel is not None and self._channel.readyState == "open":
            texts = [encode(message)] if self._channel.label == CHANNEL else map(json.dumps, translated(message))
            for text in texts:
                self._channel.send(text)
                self.truth.told.append((time.monotonic(), text))

    def end(self) -> None:
        """Hangs up."""
        if self._ending is None:
            self._ending = asyncio.create_task(self.close())

    async def close(self) -> None:
        self._turns.close()
        if self.truth.ended_at is None:
            self.truth.ended_at = time.monotonic()
        await self._connection.close()

    def _leaving(self, payload: bytes) -> None:
        self._next = self._meter.of(payload), None if self._turns.reply < 0 else self._turns.reply

    def _watch(self, sender: RTCRtpSender) -> None:
        """Notes each packet of media where it is handed over to be encrypted and sent, in one go."""
        transport: Any = sender.transport
        send = transport._send_rtp

        async def noted(data: bytes) -> None:
            if is_media(data):
                sequence, timestamp = struct.unpack("!HI", data[2:8])
                self.truth.sent.append(Sent(time.monotonic(), sequence, timestamp, *self._next))
            await send(data)

        transport._send_rtp = noted

    def _take_state(self) -> None:
        state = self._connection.connectionState
        if state == "connected" and self.truth.connected_at is None:
            self.truth.connected_at = time.monotonic()
            self._turns.begin()
        if state in ("failed", "closed"):
            self.end()

    def _take_channel(self, channel: Any) -> None:
        self._channel = channel
        created = protocol.SessionCreated(
            id=self.truth.id,
            voice="prerecorded",
            licence="",
            sample_rate=RATE,
            modes=(),
            max_text_chars=0,
            max_queued=0,
        )
        self.tell(created)


def translated(message: ServerMessage) -> list[dict[str, Any]]:
    """The same in events of OpenAI Realtime, as far as they have it."""
    match message:
        case protocol.SessionCreated():
            return [{"type": "session.created", "session": {"id": message.id}}]
        case protocol.TurnStarted():
            return [{"type": "input_audio_buffer.speech_started"}]
        case protocol.TurnEnded():
            return [{"type": "input_audio_buffer.speech_stopped"}, {"type": "input_audio_buffer.committed"}]
        case protocol.ReplyStarted():
            return [{"type": "response.created", "response": {"id": message.id}}]
        case protocol.SpeechStarted():
            return [{"type": "output_audio_buffer.started", "response_id": message.id.partition(".")[0]}]
        case protocol.SpeechStopped():
            kind = "stopped" if message.reason == "end" else "cleared"
            return [{"type": f"output_audio_buffer.{kind}", "response_id": message.id.partition(".")[0]}]
        case protocol.ReplyEnded():
            status = "completed" if message.reason == "end" else "cancelled"
            return [{"type": "response.done", "response": {"id": message.id, "status": status}}]
    return []


# ---- where it is ----------------------------------------------------------------------------------------------------


KEPT = 2 * 8
"""Twice as many as call at once."""


class Server:
    """All agents at one address. What calls were is kept of the last ones only: the more there is to be gone through
    when garbage is collected, the later packets leave meanwhile."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._numbers = count()
        self._calls: dict[str, Call] = {}
        self._tags: dict[str, Call] = {}
        self._ended = ended

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/{agent}/{tag}/offer", self._offer)
        app.router.add_post("/{agent}/{tag}/v1/realtime/calls", self._realtime)
        app.router.add_post("/{agent}/{tag}/v1/realtime/calls/{id}/hangup", self._hang_up)
        app.router.add_delete("/{agent}/{tag}/calls/{id}", self._hang_up)
        app.router.add_get("/{agent}/{tag}/truth", self._truth)
        app.cleanup_ctx.append(self._life)
        return app

    async def _life(self, app: web.Application) -> AsyncIterator[None]:
        yield
        await asyncio.gather(*(call.close() for call in self._calls.values()))

    async def _open(self, request: web.Request, sdp: str) -> tuple[str, str]:
        try:
            agent = named(request.match_info["agent"])
            await asyncio.to_thread(replies, agent)  # so that other calls go on meanwhile
            name = f"call-{next(self._numbers)}"
            call = self._calls[name] = self._tags[request.match_info["tag"]] = Call(agent, name)
            if len(self._tags) > KEPT:
                del self._tags[next(iter(self._tags))]
            return name, await call.answer(sdp)
        except (ValueError, OfferError) as error:
            raise web.HTTPBadRequest(text=json.dumps({"error": {"message": str(error)}})) from error

    async def _offer(self, request: web.Request) -> web.Response:
        name, sdp = await self._open(request, str((await request.json())["sdp"]))
        return web.json_response({"sdp": sdp, "type": "answer", "id": name})

    async def _realtime(self, request: web.Request) -> web.Response:
        name, sdp = await self._open(request, await request.text())
        location = {"Location": f"{request.path}/{name}"}
        return web.Response(status=201, text=sdp, content_type="application/sdp", headers=location)

    async def _hang_up(self, request: web.Request) -> web.Response:
        if call := self._calls.pop(request.match_info["id"], None):
            await call.close()
            self._ended()
        return web.Response(status=204)

    async def _truth(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self._tags[request.match_info["tag"]].told_truth()))


def hurry() -> None:
    """From now on this thread goes before everything else on the machine, where that may be asked for: who keeps a beat
    of 20 ms is not to be measured by who else is busy. Niceness would not do: Linux weighs it within a session only
    (sched(7), autogroup)."""
    with suppress(AttributeError, PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


@contextmanager
def hurried() -> Iterator[None]:
    """The same for a while, and not for processes and threads that are started meanwhile."""
    with suppress(AttributeError, PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(AttributeError, PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


async def serve(address: str = "127.0.0.1", port: str = "0") -> None:
    """Says the port, and ends with standard input."""
    replies(Agent())
    leftovers = Leftovers()
    runner = web.AppRunner(Server(leftovers.free_soon).application())
    await runner.setup()
    site = web.TCPSite(runner, address, int(port))
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server in a process of its own, such as http://127.0.0.1:4711: so that it keeps its time while
    the probe reckons."""
    command = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.wait(10)


async def truth(url: str) -> Truth:
    """Of the last call to the agent at `url`, which ends with a tag."""
    async with ClientSession() as session, session.get(f"{url}/truth") as response:
        found = await response.json()
    found["sent"] = [Sent(**sent) for sent in found["sent"]]
    return Truth(**found)


# ---- how it is probed -----------------------------------------------------------------------------------------------

SEED = 1
PARALLEL = 8
ATTEMPTS = 5
SENT_LATE, CAME_LATE, HEARD_LATE = 0.02, 0.02, 0.06
"""Seconds. A call in which packets left, came or were heard later than that is not the agent's own: this machine had
other things to do. It is made again."""


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One call, what was measured of it, and what it was. `calm`: it was not disturbed."""

    scenario: Scenario
    recording: Recording
    heard: Heard
    measures: Measures
    verdict: Verdict
    truth: Truth
    calm: bool

    @property
    def findings(self) -> dict[str, float]:
        """Sizes by name."""
        return {found.name: found.size for found in self.verdict.findings}

    @property
    def broken(self) -> set[str]:
        """Expectations that did not hold or could not be judged, but for `absent`, such as `stops interruption`."""
        unheld = (each.expectation for each in self.verdict.held if not each.held and each.expectation.kind != "absent")
        return {f"{each.kind} {each.of}".strip() for each in unheld} | {f"missed {it}" for it in self.recording.missed}

    @property
    def says(self) -> str:
        """For a person who wants to know why a test failed."""
        said = [f"{found.name} {found.size:.0f} {found.unit}: {found.text}" for found in self.verdict.findings]
        said += [f"{each.expectation}: {each.text}" for each in self.verdict.held if not each.held]
        return "\n".join([f"{self.scenario.name} {self.recording.trial}, calm: {self.calm}", *said])


def way(recording: Recording, truth: Truth) -> NDArray[np.float64]:
    """[packets]: seconds from the socket to the recording, of each that came."""
    sent = {(one.sequence, one.timestamp): one.at for one in truth.sent}
    return np.array([one.at - sent[one.sequence, one.timestamp] for one in recording.packets])


def calm(recording: Recording, truth: Truth) -> bool:
    """Whether only what the agent is was to be seen."""
    late, microphone = way(recording, truth), np.diff(truth.microphone[10:])
    return bool(
        recording.answered_at is not None
        and truth.late < SENT_LATE
        and late.max(initial=0.0) < CAME_LATE
        and microphone.max(initial=0.0) < HEARD_LATE
    )


def weighed(recording: Recording, scenario: Scenario) -> tuple[Heard, Measures, Verdict]:
    heard = heard_of(recording)
    measures = measure(recording, heard, scenario)
    return heard, measures, judge(recording, heard, measures, scenario, voice(0)[1], claims(recording.told))


class Wanted(NamedTuple):
    """One trial: an agent, a scenario's name, the trial's number, and the protocol of the call."""

    agent: str
    scenario: str
    number: int = 0
    protocol: str = "offer"


class Probing:
    """Calls to agents at `base`, a few at once; they are judged while others go on."""

    def __init__(self, base: str, judges: Judges, parallel: int = PARALLEL) -> None:
        self._base, self._judges = base, judges
        self._scenarios = built_in()
        self._lines = asyncio.Semaphore(parallel)
        self._lengths = dict[tuple[str, str], dict[str, float]]()
        self._tags = 0
        self._next_at = 0.0

    async def tried(self, wanted: Wanted) -> Trial:
        scenario = self._scenarios[wanted.scenario]
        async with self._lines:
            lengths = await self._rehearsed(wanted, scenario)
            recording, truth, is_calm = await self._called(wanted, scenario, lengths)
        return Trial(scenario, recording, *await self._judges.run(weighed, recording, scenario), truth, is_calm)

    async def _turn(self) -> None:
        """Calls begin one after another: a handshake costs more than talking, and those who talk would notice."""
        begins_at = max(time.monotonic(), self._next_at)
        self._next_at = begins_at + STAGGER_SECONDS
        await asyncio.sleep(begins_at - time.monotonic())

    async def _rehearsed(self, wanted: Wanted, scenario: Scenario) -> dict[str, float]:
        lengths = self._lengths.setdefault((wanted.agent, scenario.name), {})
        for part, key in rehearsals(scenario):
            if key not in lengths:
                recording, *_ = await self._called(wanted._replace(number=0), part, {})
                seconds: float | None = await self._judges.run(reply_seconds, recording)
                lengths |= {} if seconds is None else {key: seconds}
        return lengths

    async def _called(
        self, wanted: Wanted, scenario: Scenario, lengths: dict[str, float]
    ) -> tuple[Recording, Truth, bool]:
        for _ in range(ATTEMPTS):
            await self._turn()
            self._tags += 1
            url = f"{self._base}/{wanted.agent}/{self._tags}"
            target = Target(url + DIALECTS[wanted.protocol].path, wanted.protocol)
            recording = await call(target, scenario, wanted.number, SEED, sounds=sound, lengths=lengths)
            known = await truth(url)
            if calm(recording, known):
                return recording, known, True
        return recording, known, False


@cache
def trials(wanted: tuple[Wanted, ...], parallel: int = PARALLEL) -> dict[Wanted, Trial]:
    """All of them, each once however often it is asked for."""

    async def all_of_them(base: str, judges: Judges) -> list[Trial]:
        probing = Probing(base, judges, parallel)
        return await asyncio.gather(*map(probing.tried, wanted))

    judges = Judges(1)
    try:
        with hurried(), serving() as base:
            return dict(zip(wanted, asyncio.run(all_of_them(base, judges)), strict=True))
    finally:
        judges.close()


PERFECT = "perfect"


def perfect(number: int = 0) -> tuple[Wanted, ...]:
    """One trial of every scenario."""
    return tuple(Wanted(PERFECT, name, number) for name in built_in())


if __name__ == "__main__":
    hurry()
    asyncio.run(serve(*sys.argv[1:]))
