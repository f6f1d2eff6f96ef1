"""Reads the head of an Opus packet: how long it lasts, and whether it says that silence follows.

It does not know how to decode one, nor how it came here.
"""

from __future__ import annotations

TICKS = 48_000
"""A second of RTP time: the clock of Opus on the wire, whatever its rate (RFC 7587, section 4.1)."""
MAX_TICKS = 5760
"""120 ms, the longest packet (RFC 6716, section 3.2.5)."""
MAX_DTX_BYTES = 2
"""A packet of no more is only a head: the encoder says that what follows is silence, and then sends nothing for up to
400 ms (RFC 6716, section 2.1.9)."""
SILK_TICKS = (480, 960, 1920, 2880)
HYBRID_TICKS = (480, 960)
CELT_TICKS = (120, 240, 480, 960)


def frame_ticks(head: int) -> int:
    """How long each frame lasts in a packet that begins with the byte `head` (RFC 6716, table 2)."""
    config = head >> 3
    if config < 12:
        return SILK_TICKS[config % 4]
    return HYBRID_TICKS[config % 2] if config < 16 else CELT_TICKS[config % 4]


def packet_ticks(payload: bytes) -> int:
    """How long the packet lasts; 0 where it is none that could be decoded."""
    if not payload:
        return 0
    code = payload[0] & 3
    if code == 3 and len(payload) < 2:
        return 0
    frames = (1, 2, 2, payload[1] & 0x3F if code == 3 else 0)[code]
    ticks = frames * frame_ticks(payload[0])
    return ticks if ticks <= MAX_TICKS else 0


def silence_follows(payload: bytes) -> bool:
    """Whether the packet begins a pause in which nothing is sent (DTX)."""
    return 0 < len(payload) <= MAX_DTX_BYTES
