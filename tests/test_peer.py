"""agent/peer.py and agent/calls.py: real calls over loopback, from the offer to the last packet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
from caller import WITHIN, Caller, level
from scripted_runtime import ScriptedRuntime

from agent.calls import CallLimits, CallRefused, Calls
from agent.offer import OfferError
from agent.peer import MAX_UNREAD_BYTES, MAX_WAITING_BYTES, Peer
from agent.protocol import MAX_MESSAGE_BYTES, Pong, SpeechWaterfall, View


class Line:
    """Calls with a speaking engine behind them."""

    def __init__(self, limits: CallLimits) -> None:
        self.engine = ScriptedRuntime(pace=0.02)
        self.calls = Calls(self.engine, limits)
        self.callers: list[Caller] = []

    async def call(self) -> Caller:
        caller = Caller()
        self.callers.append(caller)
        _, answer = await self.calls.open(await caller.offer())
        await caller.accept(answer)
        return caller

    async def ended(self) -> None:
        """Returns when every call was given back."""
        async with asyncio.timeout(WITHIN):
            while self.calls.sessions:  # noqa: ASYNC110  (there is nothing to wait on: that is what is tested)
                await asyncio.sleep(0.02)

    def why(self) -> list[str]:
        lines = self.calls.metrics.render().decode().splitlines()
        return [line.split('"')[1] for line in lines if line.startswith("breezert_calls_ended_total{")]


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    line = Line(CallLimits(max_peers=3, silence=1.8, pinged_silence=0.6))
    yield line
    await asyncio.gather(*(caller.close() for caller in line.callers))
    await line.calls.close()
    line.engine.close()


async def test_a_call_is_heard_and_its_timestamps_are_960_apart(line: Line) -> None:
    caller = await line.call()
    assert level(await caller.ear(10)) < 1e-3
    caller.send(type="speak", id="a", text="x" * 12)  # 12 frames: 0.96 s
    await caller.wait(lambda: caller.told("speech.stopped"))
    await caller.ear(10)  # what the jitter buffer still holds
    heard = np.concatenate(caller.frames)
    loud = np.abs(heard) > 3000
    first, last = np.flatnonzero(loud)[[0, -1]]
    assert (last - first) / 48_000 == pytest.approx(0.96, abs=0.02)
    assert level(heard[first:last]) == pytest.approx(12_000 / 32768 / np.sqrt(2), rel=0.1)
    assert set(np.diff(caller.timestamps)) == {960}
    assert len(caller.timestamps) > 60
    assert [m["type"] for m in caller.messages if m["type"] != "speech.progress"] == [
        "session.created",
        "speech.started",
        "speech.stopped",
    ]
    assert caller.told("speech.stopped")[0]["heard_ms"] == pytest.approx(960)


async def test_stop_silences_within_two_packets(line: Line) -> None:
    caller = await line.call()
    caller.send(type="speak", id="a", text="x" * 100)
    await caller.wait(lambda: caller.told("speech.progress"))
    (session,) = line.calls.sessions
    sent: list[bool] = []
    notice = session.track._sent
    session.track._sent = lambda packet: (sent.append(bool(packet.samples[-1])), notice(packet))[1]
    await caller.wait(lambda: len(sent) > 5)
    assert all(sent)
    session.stop()
    before = len(sent)
    await caller.wait(lambda: caller.told("speech.stopped") and len(sent) > before + 5)
    assert not any(sent[before:])  # even the packet with the fade ends in silence
    assert level(await caller.ear(25)) < 1 and level(await caller.ear(10)) < 1e-3
    stopped = caller.told("speech.stopped")[0]
    assert stopped["reason"] == "cancelled"
    assert 0 < stopped["heard_ms"] < 8000
    assert line.engine.cancelled == [1]
    assert set(np.diff(caller.timestamps)) == {960}


async def test_a_client_that_hangs_up_is_let_go_at_once(line: Line) -> None:
    caller = await line.call()
    caller.send(type="speak", id="a", text="x" * 100)
    await caller.wait(lambda: caller.told("speech.started"))
    await caller.close()
    await line.ended()
    assert line.engine.cancelled == [1]
    assert line.why() == ["hung up"]


async def vanish(line: Line, pings: bool) -> float:
    """A caller goes while the engine speaks to it; seconds until it was let go."""
    caller = await line.call()
    caller.send(type="speak", id="a", text="x" * 200)  # the engine works on it for two seconds
    await caller.wait(lambda: caller.told("speech.started"))
    if pings:
        caller.send(type="ping")
        await caller.wait(lambda: caller.told("pong"))
    vanished_at = asyncio.get_running_loop().time()
    caller.vanish()
    await line.ended()
    assert line.engine.cancelled == [1]
    assert line.why() == ["vanished"]
    return asyncio.get_running_loop().time() - vanished_at


async def test_a_client_that_pinged_and_vanishes_is_let_go_by_the_shorter_limit(line: Line) -> None:
    line.calls.limits = CallLimits(silence=60.0, pinged_silence=0.5)  # by the longer one, this test would fail
    await vanish(line, pings=True)


async def test_a_stock_client_that_vanishes_is_let_go_by_the_longer_limit(line: Line) -> None:
    line.calls.limits = CallLimits(silence=1.3, pinged_silence=0.01)
    assert await vanish(line, pings=False) > 1.0


async def test_a_client_that_is_there_stays_however_little_it_says(line: Line) -> None:
    line.calls.limits = CallLimits(silence=2.5, pinged_silence=0.1)
    caller = await line.call()
    await asyncio.sleep(3.0)  # justified: longer than both limits, with nothing but an RTCP report every 0.5 to 1.5 s
    caller.send(type="ping", t=1)
    await caller.wait(lambda: caller.told("pong"))
    assert len(line.calls.sessions) == 1


async def test_an_offer_that_nobody_follows_up_is_let_go(line: Line) -> None:
    caller = Caller()
    line.callers.append(caller)
    await line.calls.open(await caller.offer())
    await line.ended()
    assert line.why() == ["vanished"]


async def test_an_offer_without_candidates_connects(line: Line) -> None:
    caller = Caller()
    line.callers.append(caller)
    offer = await caller.offer()
    bare = "\r\n".join(row for row in offer.splitlines() if "candidate" not in row) + "\r\n"
    _, answer = await line.calls.open(bare)
    await caller.accept(answer)


async def test_the_answer_does_not_wait_for_names_that_cannot_be_resolved(line: Line) -> None:
    caller = Caller()
    line.callers.append(caller)
    offer = await caller.offer()
    local = "a=candidate:1 1 udp 2113937151 6b1dff11-0000-4000-8000-aabbccddeeff.local 54321 typ host"
    rows = [row for row in offer.splitlines() if "candidate" not in row]
    rows.insert(next(n for n, row in enumerate(rows) if row.startswith("m=audio")) + 1, local)
    async with asyncio.timeout(0.9):  # resolving it takes a second, and then fails
        _, answer = await line.calls.open("\r\n".join(rows) + "\r\n")
    await caller.accept(answer)


async def test_other_channels_are_closed_and_the_call_goes_on(line: Line) -> None:
    caller = await line.call()
    other = caller.connection.createDataChannel("chat")
    second = caller.connection.createDataChannel("breezert")
    for channel in (other, second):
        channel.on("close", caller._heard.set)
    await caller.wait(lambda: other.readyState == second.readyState == "closed")
    caller.send(type="ping")
    await caller.wait(lambda: caller.told("pong"))
    assert len(caller.told("session.created")) == 1


async def test_where_nobody_answers_the_realtime_protocol_is_not_spoken(line: Line) -> None:
    caller = await line.call()
    other = caller.connection.createDataChannel("oai-events")
    other.on("close", caller._heard.set)
    await caller.wait(lambda: other.readyState == "closed")


async def test_a_client_that_asks_and_takes_no_answers_is_let_go(line: Line) -> None:
    caller = await line.call()
    (peer,) = line.calls._peers.values()
    assert peer._channel is not None
    peer._channel._RTCDataChannel__bufferedAmount = MAX_WAITING_BYTES + 1
    caller.send(type="ping")
    await line.ended()
    assert line.why() == ["takes no answers"]


async def test_a_client_that_is_behind_is_told_what_matters_only(line: Line) -> None:
    caller = await line.call()
    (peer,) = line.calls._peers.values()
    assert peer._channel is not None
    peer._channel._RTCDataChannel__bufferedAmount = MAX_UNREAD_BYTES + 1
    peer._send(View(at=1.0, heard_ms=0.0, buffered_ms=0.0))
    peer._send(SpeechWaterfall(id="a", **dict.fromkeys(SpeechWaterfall.__struct_fields__[1:], 1.0)))
    peer._send(Pong(t=7.0))
    await caller.wait(lambda: caller.told("pong"))
    assert not caller.told("view") + caller.told("speech.waterfall")


async def test_a_huge_message_is_an_error_event(line: Line) -> None:
    caller = await line.call()
    caller.send(type="speak", id="a", text="x" * MAX_MESSAGE_BYTES)
    await caller.wait(lambda: caller.told("error"))
    assert f"{MAX_MESSAGE_BYTES} bytes" in caller.told("error")[0]["message"]


async def test_inbound_audio_is_not_asked_for_and_not_decoded(line: Line) -> None:
    caller = Caller()
    line.callers.append(caller)
    offer = (await caller.offer()).replace("a=recvonly", "a=sendrecv")
    _, answer = await line.calls.open(offer)
    assert "a=sendonly" in answer
    (peer,) = line.calls._peers.values()
    (receiver,) = peer._connection.getReceivers()
    assert not receiver._RTCRtpReceiver__started


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("a=recvonly", "a=sendonly"), "recvonly or sendrecv"),
        (("a=recvonly", "a=inactive"), "recvonly or sendrecv"),
        (("opus/48000", "speex/48000"), "must offer opus/48000"),
        (("a=ice-ufrag", "a=ice-nothing"), "ice-ufrag"),
        (("a=rtcp-mux", "a=nothing"), "rtcp-mux"),
        (("a=fingerprint", "a=nothing"), "fingerprint"),
        (("a=setup:actpass", "a=setup:sideways"), "no SDP"),
        (("a=mid:1", "a=mid:0"), "mid"),
        (("BUNDLE 0 1", "BUNDLE 0 7"), "mid"),
        (("m=audio", "m=video"), "audio section"),
        (("m=audio ", "m=audio x "), "no SDP"),
    ],
)
async def test_an_offer_that_cannot_be_served_is_refused_with_its_reason_and_leaves_nothing(
    line: Line, change: tuple[str, str], reason: str
) -> None:
    caller = Caller()
    line.callers.append(caller)
    with pytest.raises(OfferError, match=reason):
        await line.calls.open((await caller.offer()).replace(*change))
    assert line.calls.sessions == []


@pytest.mark.parametrize("sdp", ["", "hello", "v=0\r\n", "\x00" * 100, "m=audio\r\n"])
async def test_what_is_no_offer_at_all_is_refused(line: Line, sdp: str) -> None:
    with pytest.raises(OfferError):
        await line.calls.open(sdp)
    assert line.calls.sessions == []


async def test_a_video_section_is_refused(line: Line) -> None:
    caller = Caller()
    line.callers.append(caller)
    caller.connection.addTransceiver("video")
    with pytest.raises(OfferError, match="video"):
        await line.calls.open(await caller.offer())


async def test_opus_is_what_is_sent_even_where_it_is_offered_last(line: Line) -> None:
    caller = Caller()
    line.callers.append(caller)
    offer = await caller.offer()
    (media,) = [row for row in offer.splitlines() if row.startswith("m=audio")]
    head, formats = media.split(" ")[:3], media.split(" ")[3:]
    _, answer = await line.calls.open(offer.replace(media, " ".join(head + formats[::-1])))
    assert [row.split()[1] for row in answer.splitlines() if row.startswith("a=rtpmap")] == ["opus/48000/2"]
    await caller.accept(answer)


async def test_one_peer_more_than_there_are_lines_is_refused(line: Line) -> None:
    for _ in range(3):
        await line.call()
    caller = Caller()
    line.callers.append(caller)
    with pytest.raises(CallRefused, match="all 3 lines"):
        await line.calls.open(await caller.offer())
    ended = list[int]()
    line.calls.ended = lambda: ended.append(len(line.calls.sessions))
    assert await line.calls.hang_up(line.calls.sessions[0].id)
    assert ended == [2], "whoever frees what is left is told of each call that is over"
    _, answer = await line.calls.open(await caller.offer())
    await caller.accept(answer)


async def test_hanging_up_an_unknown_call_says_so(line: Line) -> None:
    assert not await line.calls.hang_up("nobody")


async def test_draining_lets_speech_end_and_takes_nothing_new(line: Line) -> None:
    caller = await line.call()
    caller.send(type="speak", id="a", text="x" * 5)
    await caller.wait(lambda: caller.told("speech.started"))
    draining = asyncio.ensure_future(line.calls.drain(WITHIN))
    await asyncio.sleep(0)
    with pytest.raises(CallRefused, match="about to end"):
        await line.calls.open("")
    caller.send(type="speak", id="b", text="more")
    await caller.wait(lambda: caller.told("error"))
    assert caller.told("error")[0]["code"] == "closed"
    await draining
    assert caller.told("speech.stopped")[0]["reason"] == "end"


async def test_draining_does_not_wait_longer_than_it_was_told(line: Line) -> None:
    caller = await line.call()
    caller.send(type="speak", id="a", text="x" * 100)
    await caller.wait(lambda: caller.told("speech.started"))
    await line.calls.drain(0.05)
    assert not line.calls.sessions[0].quiet


async def test_draining_with_nobody_speaking_is_over_at_once(line: Line) -> None:
    await line.call()
    async with asyncio.timeout(0.25):  # less than the time that is left to a listener
        await line.calls.drain(WITHIN)


async def test_a_peer_that_overruns_its_window_is_let_go(line: Line) -> None:
    await line.call()
    (peer,) = line.calls._peers.values()
    assert isinstance(peer, Peer)
    peer._connection.sctp._advertised_rwnd = -1  # as aiortc counts a message that never ends
    await line.ended()
    assert line.why() == ["overran its window"]


async def test_a_voice_at_a_rate_that_opus_does_not_take_is_refused_at_the_start() -> None:
    engine = ScriptedRuntime()
    engine.spec = replace(engine.spec, sample_rate=22_050)
    with pytest.raises(ValueError, match="22050"):
        Calls(engine)
