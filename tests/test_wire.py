"""agent/wire.py: a microphone's packets over loopback between two real peers, and what RTCP says of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription, rtcrtpreceiver
from aiortc.mediastreams import AudioStreamTrack, MediaStreamTrack
from aiortc.rtp import RtcpReceiverInfo, RtpPacket
from caller import WITHIN
from scripted_runtime import TONE_HZ, tone

from agent.opus import OpusEncoder
from agent.peer import Peer, with_fec
from agent.receive import FRAME_SAMPLES, Heard, Receiver
from agent.wire import MAX_SOURCES
from engine.clock import MonotonicClock


class Voice(MediaStreamTrack):
    """A tone in packets of 20 ms, one every `every` seconds."""

    kind = "audio"

    def __init__(self, every: float = 0.02) -> None:
        super().__init__()
        self.every, self.sent = every, 0
        self._encoder = OpusEncoder(16_000)

    async def recv(self) -> Any:
        await asyncio.sleep(self.every)
        packet: Any = av.Packet(self._encoder.encode(tone(self.sent * 320, 320, 16_000)))
        packet.pts = packet.dts = self.sent * 960
        packet.time_base = Fraction(1, 48_000)
        self.sent += 1
        return packet


class Silent:
    """What a peer needs of a session that has nothing to say."""

    def __init__(self) -> None:
        self.id, self.pinged, self.track = "silent", False, AudioStreamTrack()

    def receive(self, data: str | bytes) -> None: ...

    def listen(self, send: Callable[[Any], None]) -> None: ...

    def close(self) -> None:
        self.track.stop()


class Call:
    """A caller with a microphone, and the peer that answers and hears it."""

    def __init__(self) -> None:
        self.executor, self.clock = ThreadPoolExecutor(1), MonotonicClock()
        self.heard: list[Heard] = []
        self._came = asyncio.Event()
        self.hear = Receiver(self.executor, self.clock, self._take)
        session: Any = Silent()
        self.peer = Peer(session, self.clock, lambda peer, why: None, hear=self.hear)
        self.caller = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.voice = Voice()
        self.answer = ""

    def _take(self, heard: Heard) -> None:
        self.heard.append(heard)
        self._came.set()

    async def open(self, direction: str = "sendrecv") -> None:
        self.sender = self.caller.addTransceiver(self.voice, direction=direction).sender
        await self.caller.setLocalDescription()
        self.answer = await self.peer.answer(self.caller.localDescription.sdp)
        await self.caller.setRemoteDescription(RTCSessionDescription(self.answer, "answer"))

    def lose(self, lost: Callable[[int], bool]) -> None:
        """Of the RTP packets from the caller, counted from 0, those are not sent."""
        transport, count = self.sender.transport, iter(range(2**31))
        send = transport._send_rtp

        async def some(data: bytes) -> None:
            is_rtcp = 64 <= data[1] & 0x7F <= 95  # RFC 5761, section 4
            if is_rtcp or not lost(next(count)):
                await send(data)

        transport._send_rtp = some

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when the condition holds; it is looked at with every frame."""
        async with asyncio.timeout(WITHIN):
            while not condition():
                self._came.clear()
                await self._came.wait()

    @property
    def receiver(self) -> Any:
        (receiver,) = self.peer._connection.getReceivers()
        return receiver

    async def close(self) -> None:
        await self.caller.close()
        await self.peer.close("over")
        self.executor.shutdown()


@pytest.fixture
async def call() -> AsyncIterator[Call]:
    call = Call()
    yield call
    await call.close()


async def test_a_microphone_is_heard_in_order_and_without_a_gap(call: Call) -> None:
    await call.open()
    await call.until(lambda: sum(not heard.concealed for heard in call.heard) >= 70)
    frames = [heard for heard in call.heard if not heard.concealed]  # a busy machine may let so much time pass
    assert [heard.position for heard in call.heard] == [FRAME_SAMPLES * n for n in range(len(call.heard))]
    assert len(call.heard) - len(frames) == call.hear.counts.filled // 960
    assert call.hear.counts.lost == call.hear.broken == call.hear.dropped == 0
    samples = np.concatenate([heard.samples for heard in frames[20:70]])
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(samples.size)))
    assert np.argmax(spectrum) * 16_000 / samples.size == pytest.approx(TONE_HZ, abs=2)


async def test_aiortc_decodes_nothing_keeps_nothing_and_starts_no_thread(call: Call) -> None:
    before = set(threading.enumerate())
    await call.open()
    await call.until(lambda: len(call.heard) >= 20)
    threads = [thread.name for thread in set(threading.enumerate()) - before if thread.name == "audio-decoder"]
    assert len(threads) <= 1  # the caller's own
    assert call.receiver._RTCRtpReceiver__decoder_thread is None
    assert call.receiver._RTCRtpReceiver__decoder_queue.empty()
    assert call.receiver.track._queue.qsize() <= 1  # the word that its decoder ended


async def test_losses_are_given_up_guessed_and_reported(call: Call) -> None:
    await call.open()
    call.lose(lambda n: n % 10 == 5 and n < 60)
    await call.until(lambda: call.voice.sent >= 80 and len(call.heard) >= 75)
    assert [heard.position for heard in call.heard] == [FRAME_SAMPLES * n for n in range(len(call.heard))]
    counts = call.hear.counts
    assert 5 <= counts.lost <= 6  # the first packets may be sent before the loss begins
    assert counts.lost <= sum(heard.concealed for heard in call.heard) <= counts.lost + counts.filled // 960
    reports = [report for report in (await call.receiver.getStats()).values() if report.type == "inbound-rtp"]
    assert [report.packetsReceived for report in reports] == [counts.received]
    assert [report.packetsLost for report in reports] == [counts.lost]


async def test_the_sender_is_told_of_its_losses(call: Call) -> None:
    await call.open()
    call.lose(lambda n: n % 4 == 1)

    def told() -> list[Any]:
        sender: Any = call.sender
        reports = sender._RTCRtpSender__stats.values()
        return [report for report in reports if report.type == "remote-inbound-rtp"]

    await call.until(lambda: bool(told()) and told()[0].packetsLost > 0)
    (report,) = told()
    assert report.fractionLost > 0
    assert report.jitter < 48_000


async def test_a_peer_that_makes_up_senders_is_kept_account_of_up_to_a_limit(call: Call) -> None:
    await call.open()
    await call.until(lambda: len(call.heard) >= 3)
    payload_type = next(iter(call.receiver._RTCRtpReceiver__codecs))
    router = call.receiver.transport._rtp_router
    for ssrc in range(1000, 1500):
        packet = RtpPacket(payload_type=payload_type, ssrc=ssrc, sequence_number=1, timestamp=1, payload=b"\x48\x00")
        assert router.route_rtp(packet) is call.receiver
        await call.receiver._handle_rtp_packet(packet, arrival_time_ms=0)
    for table in ("remote_streams", "active_ssrc", "lsr", "lsr_time"):
        assert len(getattr(call.receiver, f"_RTCRtpReceiver__{table}")) <= MAX_SOURCES
    assert len(router.ssrc_table) <= MAX_SOURCES
    heard = len(call.heard)
    await call.until(lambda: len(call.heard) >= heard + 5)  # and the real one goes on


async def test_a_sender_whose_timestamps_jump_cannot_break_the_reports(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back by the whole range after ten seconds, forth at once, so that aiortc's jitter grows beyond 32 bits."""
    await call.open()
    await call.until(lambda: len(call.heard) >= 3)
    payload_type = next(iter(call.receiver._RTCRtpReceiver__codecs))
    arrivals = iter(10.0 * (n // 2) for n in range(600))
    monkeypatch.setattr(rtcrtpreceiver, "StreamStatistics", lambda rate: Scripted(rate, arrivals))
    for n in range(600):
        packet = RtpPacket(payload_type=payload_type, ssrc=9, sequence_number=n, timestamp=n % 2 * (2**32 - 1))
        await call.receiver._handle_rtp_packet(packet, arrival_time_ms=0)
    statistics = call.receiver._RTCRtpReceiver__remote_streams[9]
    told = RtcpReceiverInfo(
        ssrc=9, fraction_lost=0, packets_lost=0, highest_sequence=599, jitter=statistics.jitter, lsr=0, dlsr=0
    )
    assert len(bytes(told)) == 24
    assert statistics.jitter > 2**30


class Scripted(rtcrtpreceiver.StreamStatistics):
    """Statistics on a clock of their own."""

    def __init__(self, rate: int, arrivals: Iterator[float]) -> None:
        super().__init__(rate)
        self._arrivals = arrivals

    def add(self, packet: RtpPacket) -> None:
        now = next(self._arrivals)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rtcrtpreceiver, "time", SimpleNamespace(time=lambda: now))
            super().add(packet)


# ---- the answer -----------------------------------------------------------------------------------------------


async def test_the_answer_takes_the_microphone_and_asks_for_fec(call: Call) -> None:
    await call.open()
    rows = call.answer.split("\r\n")
    assert "a=sendrecv" in rows
    codec = rows.index(next(row for row in rows if row.startswith("a=rtpmap:")))
    assert rows[codec] == "a=rtpmap:96 opus/48000/2"
    assert rows[codec + 1] == "a=fmtp:96 useinbandfec=1"


async def test_who_offers_no_microphone_is_not_asked_for_one(call: Call) -> None:
    await call.open(direction="recvonly")
    assert "a=sendonly" in call.answer
    assert not call.receiver._RTCRtpReceiver__started


def test_an_answer_that_says_something_of_its_codec_is_left_alone() -> None:
    answer = "a=rtpmap:111 opus/48000/2\r\na=fmtp:111 stereo=0\r\n"
    assert with_fec(answer) == answer


async def test_when_the_call_ends_nothing_is_heard_any_more(call: Call) -> None:
    await call.open()
    await call.until(lambda: len(call.heard) >= 5)
    await call.peer.close("over")
    heard = len(call.heard)
    call.hear.push(1, 1, 1, b"\x48\x00\x00")
    call.hear.poll()
    await asyncio.sleep(0.05)
    assert len(call.heard) == heard
