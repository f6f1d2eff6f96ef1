"""Recordings of calls that never were, for the tests of the probe: what an agent sends is written down sample by
sample, and when each packet came to the millisecond, so that every figure has one right value.

A call is dialled at 100.0 s; the first packet comes at FIRST_AT, and one of 20 ms every 20 ms from then on, also while
nobody speaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from sounds import clip

from agent.opus import OpusDecoder, OpusEncoder
from agent.probe.judge import Verdict, judge
from agent.probe.measure import Measures, measure
from agent.probe.recording import RATE, Heard, Packet, Pcm, Recording, Said
from agent.probe.scenario import Expectation, Scenario, Step
from agent.toc import packet_ticks

DIALLED_AT, CONNECTED_AT, FIRST_AT = 100.0, 100.2, 100.3
PACKET, BLOCK = 960, 480
SOURCE, FIRST_STAMP, FIRST_NUMBER = 0x1234, 0xFFFFF000, 65_500
"""Timestamps and sequence numbers turn over in every call."""
BUFFER = 0.06
"""Seconds that the listener's buffer holds."""
CODER = 312 / RATE
"""libopus' own delay (opus_encoder.c: 4 ms and the 2.5 ms of look-ahead)."""


@cache
def speech() -> Pcm:
    """12 s of the embedded voice: two sentences. It begins at its acoustic onset."""
    samples = np.round(clip("agent", RATE)).astype(np.int16)
    samples = samples[int(np.flatnonzero(np.abs(samples) > 98)[0]) :]
    samples.flags.writeable = False
    return samples


def talk(seconds: float, *parts: tuple[float, Pcm]) -> Pcm:
    """What an agent sends from FIRST_AT on: each part from its instant on, and silence between."""
    samples = np.zeros(round(seconds * RATE) // PACKET * PACKET, np.int16)
    for at, part in parts:
        start = round((at - FIRST_AT) * RATE)
        samples[start : start + part.size] = part[: max(0, samples.size - start)]
    return samples


def encoded(samples: Pcm) -> list[bytes]:
    encoder = OpusEncoder(RATE)
    return [encoder.encode(samples[start : start + PACKET]) for start in range(0, samples.size, PACKET)]


def packets(samples: Pcm, *, interval: float = 0.02, first_at: float = FIRST_AT) -> list[Packet]:
    """One every `interval` seconds."""
    return [
        Packet(
            (FIRST_NUMBER + n) % 0x10000, (FIRST_STAMP + n * PACKET) % 2**32, SOURCE, payload, first_at + n * interval
        )
        for n, payload in enumerate(encoded(samples))
    ]


def paired(some: Sequence[Packet]) -> list[Packet]:
    """The same as packets of 40 ms, each when its second half came (RFC 6716, section 3.2.4). Where the encoder had
    changed its mode between two, both carry the first: what is heard is not the point here."""
    found = list[Packet]()
    for n, (one, other) in enumerate(zip(some[::2], some[1::2], strict=False)):
        first = one.payload[1:]
        second = other.payload[1:] if other.payload[0] == one.payload[0] else first
        size = [len(first)] if len(first) < 252 else [252 + len(first) % 4, (len(first) - 252 - len(first) % 4) // 4]
        payload = bytes([one.payload[0] & 0xFC | 2, *size]) + first + second
        assert packet_ticks(payload) == 2 * PACKET, "40 ms"
        number = (FIRST_NUMBER + n) % 0x10000
        found.append(replace(one, sequence=number, payload=payload, at=other.at))
    return found


def buffered(some: Sequence[Packet], ends_at: float, delay: float = BUFFER) -> Heard:
    """A buffer without faults and without wit: everything comes out `delay` after it should have come; what is not
    there by then is silence, and counts as concealed."""
    count = round((ends_at - DIALLED_AT) / 0.01)
    samples, filled = np.zeros(count * BLOCK, np.int16), np.zeros(count, np.bool_)
    delays = np.full(count, np.nan, np.float32)
    decoder = OpusDecoder(RATE)
    first = min(some, key=lambda packet: packet.at, default=None)
    stamps = [(packet.timestamp - first.timestamp + 2**31) % 2**32 - 2**31 if first else 0 for packet in some]
    for stamp, packet in sorted(zip(stamps, some, strict=True), key=lambda pair: pair[0]):
        out = decoder.decode(packet.payload)
        assert first is not None and out is not None, "an Opus packet"
        block = round((first.at + delay - DIALLED_AT) / 0.01) + stamp // BLOCK
        if packet.at > DIALLED_AT + block * 0.01 + 1e-6 or block < 0:
            continue
        out = out[: max(0, samples.size - block * BLOCK)]
        samples[block * BLOCK : block * BLOCK + out.size] = out
        here = slice(block, block + out.size // BLOCK)
        filled[here] = True
        delays[here] = (DIALLED_AT + np.arange(count)[here] * 0.01) - packet.at
    begun = int(filled.argmax()) if filled.any() else count
    concealed = ~filled
    concealed[:begun] = False
    return Heard(DIALLED_AT, samples, concealed, np.zeros(count, np.bool_), delays)


def recording(some: Sequence[Packet], *said: tuple[str, float, float], ends_at: float | None = None) -> Recording:
    """said: name, beginning and end of each of the user's sounds."""
    last = max((packet.at for packet in some), default=CONNECTED_AT)
    return Recording(
        "trace",
        0,
        1,
        "offer",
        dialled_at=DIALLED_AT,
        answered_at=DIALLED_AT + 0.1,
        connected_at=CONNECTED_AT,
        ended_at=ends_at or last + 0.5,
        packets=sorted(some, key=lambda packet: packet.at),
        said=[Said(name, begin, np.ones(round((end - begin) * RATE), np.int16)) for name, begin, end in said],
    )


def scenario(*expect: Expectation, steps: Sequence[Step] = ()) -> Scenario:
    return Scenario("trace", "continuity", "a test's", (), tuple(steps), expect)


def measured(made: Recording, heard: Heard | None = None) -> Measures:
    return measure(made, buffered(made.packets, made.ended_at) if heard is None else heard, scenario())


def judged(
    made: Recording, *expect: Expectation, steps: Sequence[Step] = (), heard: Heard | None = None, **known: object
) -> Verdict:
    """known: reference and claims."""
    heard = buffered(made.packets, made.ended_at) if heard is None else heard
    wanted = scenario(*expect, steps=steps)
    return judge(made, heard, measure(made, heard, wanted), wanted, **known)  # type: ignore[arg-type]


def names(verdict: Verdict) -> list[str]:
    return [finding.name for finding in verdict.findings]


def sizes(verdict: Verdict) -> dict[str, float]:
    return {finding.name: finding.size for finding in verdict.findings}
