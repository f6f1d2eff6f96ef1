"""agent/toc.py: how long Opus packets last, by RFC 6716's tables and by libopus itself."""

from __future__ import annotations

import pytest

from agent.libopus import libopus
from agent.toc import MAX_TICKS, packet_ticks, silence_follows


@pytest.mark.parametrize(
    ("payload", "milliseconds"),
    [
        (bytes([0 << 3, 1]), 10),  # SILK, narrow band
        (bytes([3 << 3, 1]), 60),
        (bytes([9 << 3 | 1, 1, 1]), 40),  # two frames of 20 ms, equally long
        (bytes([13 << 3, 1]), 20),  # hybrid
        (bytes([16 << 3, 1]), 2.5),  # CELT
        (bytes([31 << 3 | 3, 6, 0]), 120),  # six frames of 20 ms
        (bytes([31 << 3 | 4, 1]), 20),  # stereo lasts as long
    ],
)
def test_a_packet_lasts_as_long_as_the_table_says(payload: bytes, milliseconds: float) -> None:
    assert packet_ticks(payload) == 48 * milliseconds


@pytest.mark.parametrize("payload", [b"", b"\x03", b"\x03\x00", bytes([31 << 3 | 3, 7]), bytes([3 << 3 | 3, 3])])
def test_what_cannot_be_a_packet_lasts_no_time(payload: bytes) -> None:
    assert packet_ticks(payload) == 0


def test_libopus_reads_every_head_alike() -> None:
    for head in range(256):
        for count in range(64):
            payload = bytes([head, count]) + bytes(20)
            theirs = libopus().opus_packet_get_nb_samples(payload, len(payload), 48_000)
            assert packet_ticks(payload) == (theirs if 0 < theirs <= MAX_TICKS else 0)


def test_a_packet_without_content_begins_a_pause() -> None:
    assert silence_follows(b"\x08") and silence_follows(b"\x08\x00")
    assert not silence_follows(b"\x08\x00\x00") and not silence_follows(b"")
