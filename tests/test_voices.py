"""agent/voices.py, voices_http.py, voice_making.py, manner.py: voices of recordings are made, and spoken like."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from aiohttp import FormData, MultipartReader, StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import TestClient, TestServer
from caller import Caller
from numpy.typing import NDArray
from scripted_call import Call
from scripted_runtime import SPEC, ScriptedRuntime
from test_cloning import TEXT, wav
from test_voice_folder import ANNA
from voices import KINDS
from waiting import until

from agent import voices_http
from agent.asking import to_request
from agent.calls import USUAL
from agent.guard import Access
from agent.manner import Manner
from agent.server import attach
from agent.voices import AT_ONCE, MAX_WAITING, Voices, VoicesBusy
from agent.voices_http import Body
from engine.checks import RequestError
from engine.cloning import Attempt, CloneFailed, GivenUp
from engine.core import ErrorCode, Failed, Mode, ModelSpec, Reference
from engine.messages import EMBEDDED_VOICE, RuntimeConfig
from engine.runtime import Runtime
from engine.voice_folder import NamedVoice, VoiceFolder
from engine.wav import HEADER_BYTES

WITHIN = 60.0
CLONING = replace(SPEC, modes=frozenset({Mode.PLAIN, Mode.CLONE}), guided=True, encodes=True)
FRAMES = tuple((i,) for i in range(25))
TOKEN = "correct-horse-battery"


class Studio(ScriptedRuntime):
    """An engine that makes a reference of anything, at once or when it is let; `b"bad"` is no recording."""

    def __init__(self, spec: ModelSpec = CLONING, at_once: bool = True) -> None:
        super().__init__(spec, pace=0.001)
        self.asked: list[tuple[bytes, str]] = []
        self.given_up = 0
        self.let = threading.Event()
        if at_once:
            self.let.set()

    def clone(self, data: bytes, text: str, attempt: Attempt | None = None) -> Reference:
        assert attempt is not None, "an agent can always give up"
        self.asked.append((data, text))
        if data == b"bad":
            raise RequestError("reference must be an audio file, got bad", "reference")
        if data == b"busy":
            raise CloneFailed(Failed(1, 0, ErrorCode.BUSY, "64 recordings are waiting already", 2.5))
        try:
            with attempt.doing(self.let.set):
                assert self.let.wait(WITHIN)
        except GivenUp:
            self.given_up += 1
            raise
        return Reference(text, FRAMES)


# ---- whom one may speak like ----


async def test_a_voice_that_was_made_is_found_by_its_id_and_by_nothing_else() -> None:
    voices = Voices(Studio())
    made = await voices.make(b"sound", TEXT)
    assert voices.find(made.id) == Reference(TEXT, FRAMES)
    assert made.seconds == pytest.approx(2.0)
    assert (await voices.make(b"sound", TEXT)).id != made.id, "an id is nobody else's"
    for wrong in (made.id[:-1], "anna", "", "../anna", "voice_"):
        with pytest.raises(RequestError, match=r"voice must be the id of one that was made here") as raised:
            voices.find(wrong)
        assert raised.value.field == "voice"
    assert voices.forget(made.id)
    assert not voices.forget(made.id)
    with pytest.raises(RequestError, match="make it again"):
        voices.find(made.id)
    await voices.close()


async def test_those_of_the_folder_have_names_and_a_file_that_changes_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.voices.LOOK_SECONDS", 0.01)
    folder = VoiceFolder(tmp_path)
    voice = replace(ANNA, reference=Reference(TEXT, FRAMES), name="anna")
    folder.write(voice)
    damaged = tmp_path / "bert.json"
    damaged.write_text("{}")
    voices = Voices(Studio(), folder)
    assert voices.names == ("anna", "bert")
    assert voices.find("anna") is voices.find("anna"), "it is kept"
    assert [voices.has(name) for name in ("anna", "bert", "carl", "voice_x", "S1")] == [True, True, False, True, False]
    for name, words in (("bert", "voice bert must be whole"), ("carl", r"one of those with a name \(anna, bert\)")):
        with pytest.raises(RequestError, match=words) as raised:
            voices.find(name)
        assert raised.value.field == "voice"
    folder.remove("anna")
    await until(lambda: voices.names == ("bert",))
    with pytest.raises(RequestError, match=r"one of those with a name \(bert\)"):
        voices.find("anna")
    folder.write(replace(voice, reference=Reference("other words", FRAMES)))
    await until(lambda: voices.has("anna"))
    assert voices.find("anna").text == "other words"
    folder.write(replace(ANNA, name="wide"))
    await until(lambda: voices.has("wide"))
    with pytest.raises(RequestError, match="must have 1 codes"):
        voices.find("wide")
    await voices.close()


async def test_no_names_are_offered_where_nobody_can_be_spoken_like(tmp_path: Path) -> None:
    folder = VoiceFolder(tmp_path)
    folder.write(replace(ANNA, name="anna"))
    voices = Voices(Studio(replace(CLONING, modes=frozenset({Mode.PLAIN}))), folder)
    assert voices.names == ()
    with pytest.raises(RequestError, match="speaks as itself only"):
        voices.find("anna")
    await voices.close()


class Disk(VoiceFolder):
    """Notes who reads it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.readers = set[threading.Thread]()
        self.reads = list[str]()
        self.looks = 0

    def names(self) -> list[str]:
        self.looks += 1
        self.readers.add(threading.current_thread())
        return super().names()

    def changed(self, name: str) -> int:
        self.readers.add(threading.current_thread())
        return super().changed(name)

    def read(self, name: str) -> NamedVoice:
        self.readers.add(threading.current_thread())
        self.reads.append(name)
        return super().read(name)


async def test_nobody_who_is_served_waits_for_the_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.write(replace(ANNA, reference=Reference(TEXT, FRAMES), name="anna"))
    voices = Voices(Studio(), disk)
    disk.readers.clear()
    assert voices.has("anna")
    assert voices.names == ("anna",)
    assert voices.find("anna").text == TEXT
    with pytest.raises(RequestError):
        voices.find("bert")
    assert threading.current_thread() not in disk.readers
    await voices.close()


async def test_voices_of_another_checkpoint_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers may share a folder."""
    monkeypatch.setattr("agent.voices.LOOK_SECONDS", 0.01)
    disk = Disk(tmp_path)
    disk.write(replace(ANNA, name="wide"))
    voices = Voices(Studio(), disk)
    await until(lambda: disk.looks > 3)
    assert disk.reads == ["wide"]
    with pytest.raises(RequestError, match="must have 1 codes"):
        voices.find("wide")
    await voices.close()


async def test_the_loop_goes_on_while_the_last_recordings_are_given_up() -> None:
    ended = threading.Event()

    class Slow(Studio):
        def clone(self, data: bytes, text: str, attempt: Attempt | None = None) -> Reference:
            self.asked.append((data, text))
            assert ended.wait(WITHIN)
            raise GivenUp

    voices = Voices(engine := Slow())
    making = [asyncio.create_task(voices.make(b"sound", str(i))) for i in range(AT_ONCE + 1)]
    await until(lambda: len(engine.asked) == AT_ONCE)
    closing = asyncio.create_task(voices.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    ended.set()
    await closing
    told = await asyncio.gather(*making, return_exceptions=True)
    assert [one.code for one in told if isinstance(one, VoicesBusy)] == [ErrorCode.CLOSED] * len(making)
    assert len(engine.asked) == AT_ONCE, "who waited is not begun"


async def test_who_waits_and_goes_takes_the_recording_along() -> None:
    voices = Voices(engine := Studio(at_once=False))
    busy = [asyncio.create_task(voices.make(b"sound", str(i))) for i in range(AT_ONCE)]
    await until(lambda: len(engine.asked) == AT_ONCE)
    for i in range(3 * MAX_WAITING):
        waiting = asyncio.create_task(voices.make(b"large", str(i)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert voices._threads._work_queue.qsize() == 0
    engine.let.set()
    await asyncio.gather(*busy)
    assert len(engine.asked) == AT_ONCE
    await voices.close()


async def test_ten_thousand_voices_take_no_more_than_they_may() -> None:
    voices = Voices(Studio(), max_bytes=50_000)
    ids = [(await voices.make(b"sound", str(number))).id for number in range(200)]
    for _ in range(49):
        ids += [voices._keep(Reference("more", FRAMES)).id for _ in range(200)]
    assert voices._made.num_bytes <= 50_000
    assert voices.find(ids[-1])
    with pytest.raises(RequestError):
        voices.find(ids[0])
    await voices.close()


async def test_more_recordings_than_there_is_room_for_are_refused_and_the_others_made() -> None:
    engine = Studio(at_once=False)
    voices = Voices(engine)
    making = [asyncio.create_task(voices.make(b"sound", str(i))) for i in range(AT_ONCE + MAX_WAITING)]
    await until(lambda: len(engine.asked) == AT_ONCE)
    with pytest.raises(VoicesBusy) as raised:
        await voices.make(b"sound", "one more")
    assert (raised.value.code, raised.value.retry_after) == (ErrorCode.BUSY, 2.0)
    making[-1].cancel()
    making[0].cancel()
    await asyncio.wait(making[:1])
    engine.let.set()
    done = await asyncio.gather(*making, return_exceptions=True)
    assert [type(one).__name__ for one in done] == ["CancelledError", *["Made"] * (len(making) - 2), "CancelledError"]
    assert len(engine.asked) == len(making) - 1, "who gave up while he waited was never begun"
    await until(lambda: engine.given_up == 1)
    await voices.close()


# ---- how a text is said ----


def test_a_message_says_what_the_session_does_not() -> None:
    from agent.protocol import Speak

    manner = Manner(speaker="S1", language="german", instruction="slowly", voice="anna", cfg_scale=2.0)
    assert manner.of(Speak(id="a", text="x")) == manner
    said = manner.of(Speak(id="a", text="x", speaker="S2", instruction="", voice=""))
    assert said == Manner(speaker="S2", language="german", instruction="", voice="", cfg_scale=2.0)
    request = to_request(Speak(id="a", text="x"), manner, SPEC, None, 3)
    assert (request.speaker, request.language, request.instruction) == ("S1", "german", "slowly")
    assert (request.sampling.cfg_scale, request.epoch) == (2.0, 3)
    plain = to_request(Speak(id="a", text="x"), Manner(), SPEC, None, 0)
    assert (plain.speaker, plain.language, plain.instruction, plain.sampling) == ("S0", "", "", SPEC.sampling)


# ---- in a call ----


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def call_with(executor: ThreadPoolExecutor, engine: Studio) -> Call:
    return Call(executor, spec=CLONING, voices=Voices(engine))


def audio(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_a_call_makes_a_voice_and_speaks_like_it(executor: ThreadPoolExecutor) -> None:
    engine = Studio()
    call = call_with(executor, engine)
    call.client(type="voice.create", id="mine", text=TEXT, audio=audio(b"sound"))
    await until(lambda: call.told("voice.created"))
    (created,) = call.told("voice.created")
    assert (created["id"], created["seconds"]) == ("mine", pytest.approx(2.0))
    assert engine.asked == [(b"sound", TEXT)]
    call.speak("a", voice=created["voice"], cfg_scale=3.0)
    call.speak("b")
    first, second = (job.request for job in call.engine.jobs.values())
    assert (first.reference, first.sampling.cfg_scale) == (Reference(TEXT, FRAMES), 3.0)
    assert second.reference is None
    call.session.manner = Manner(voice=created["voice"])
    call.session.stop()
    call.speak("c")
    assert list(call.engine.jobs.values())[-1].request.reference == Reference(TEXT, FRAMES)
    call.session.close()


@pytest.mark.parametrize(
    ("data", "code", "field", "words"),
    [
        (audio(b"bad"), "bad_request", "audio", "must be an audio file"),
        ("no base64!", "bad_request", "audio", "base64"),
        (audio(b"busy"), "busy", None, "64 recordings"),
    ],
)
async def test_what_cannot_be_made_is_an_error_with_its_id(
    executor: ThreadPoolExecutor, data: str, code: str, field: str | None, words: str
) -> None:
    call = call_with(executor, Studio())
    call.client(type="voice.create", id="mine", text=TEXT, audio=data)
    await until(lambda: call.told("error"))
    (error,) = call.told("error")
    assert (error["id"], error["event"], error["code"]) == ("mine", "voice.create", code)
    assert error.get("field") == field
    assert words in error["message"]
    assert error.get("retry_after_ms") == (2500 if code == "busy" else None)
    call.session.close()


async def test_one_at_a_time_and_given_up_with_the_call(executor: ThreadPoolExecutor) -> None:
    engine = Studio(at_once=False)
    call = call_with(executor, engine)
    call.client(type="voice.create", id="a", text=TEXT, audio=audio(b"sound"))
    await until(lambda: engine.asked)
    call.client(type="voice.create", id="b", text=TEXT, audio=audio(b"sound"))
    assert [(error["id"], error["code"]) for error in call.told("error")] == [("b", "busy")]
    call.session.close()
    await until(lambda: engine.given_up == 1)
    assert not call.told("voice.created")


@pytest.mark.parametrize("voice", ["anna", "voice_unknown", "../../etc/passwd"])
async def test_a_voice_that_is_not_there_is_the_messages_fault(executor: ThreadPoolExecutor, voice: str) -> None:
    call = call_with(executor, Studio())
    call.speak("a", voice=voice)
    (error,) = call.told("error")
    assert (error["id"], error["field"], error["event"]) == ("a", "voice", "speak")
    assert not call.engine.jobs
    without = Call(executor, spec=CLONING)
    without.speak("a", voice=voice)
    without.client(type="voice.create", id="b", text=TEXT, audio="")
    assert [error["id"] for error in without.told("error")] == ["a", "b"]


@pytest.mark.parametrize("field", ["reference", "reference text"])
async def test_what_the_engine_finds_wrong_with_a_voice_is_the_field_voice(
    executor: ThreadPoolExecutor, field: str
) -> None:
    call = call_with(executor, Studio())
    call.speak("a")
    call.engine.fail(1, ErrorCode.BAD_REQUEST, f"{field} must be another", field=field)
    await asyncio.sleep(0)
    (error,) = call.told("error")
    assert (error["id"], error["event"], error["field"]) == ("a", "speak", "voice")


# ---- over HTTP ----


class Site:
    """A whole server."""

    def __init__(
        self, engine: Any, folder: Path | None = None, access: Access | None = None, manner: Manner = USUAL
    ) -> None:
        self.engine, self._folder, self._access = engine, folder, access or Access(rate=1000.0)
        self._manner = manner

    async def __aenter__(self) -> Site:
        app = web.Application()
        voices = Voices(self.engine, VoiceFolder(self._folder) if self._folder else None)
        self.calls = attach(app, self.engine, access=self._access, voices=voices, manner=self._manner)
        self.client = TestClient(TestServer(app))
        await self.client.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def make(self, data: bytes = b"sound", text: str = TEXT) -> tuple[int, dict[str, Any]]:
        form = FormData()
        form.add_field("audio", io.BytesIO(data), filename="me.wav")
        form.add_field("text", text)
        async with self.client.post("/voices", data=form) as response:
            return response.status, await response.json()

    async def speech(self, **fields: Any) -> tuple[int, bytes]:
        async with self.client.post("/v1/audio/speech", json=fields) as response:
            return response.status, await response.read()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    with Studio() as engine:
        async with Site(engine) as opened:
            yield opened


async def test_a_form_with_a_recording_is_answered_with_a_voice(site: Site) -> None:
    status, made = await site.make(bytes(10 * 2**20), "größer")
    assert (status, made["seconds"], made["licence"]) == (201, 2.0, "Apache-2.0")
    assert site.engine.asked == [(bytes(10 * 2**20), "größer")]
    status, _ = await site.speech(input="Hello.", voice=made["id"], cfg_scale=2.0)
    assert status == 200
    request = site.engine.jobs[1].request
    assert (request.reference, request.speaker, request.sampling.cfg_scale) == (Reference("größer", FRAMES), "S0", 2.0)
    async with site.client.delete(f"/voices/{made['id']}") as response:
        assert response.status == 204
    async with site.client.delete(f"/voices/{made['id']}") as response:
        assert response.status == 404
    status, _ = await site.speech(input="Hello.", voice=made["id"])
    assert status == 400


@pytest.mark.parametrize(
    ("parts", "status", "words"),
    [
        ([("audio", b"bad"), ("text", b"x")], 400, "must be an audio file"),
        ([("audio", b"busy"), ("text", b"x")], 503, "64 recordings"),
        ([("audio", bytes(10 * 2**20 + 1)), ("text", b"x")], 413, "audio has at most"),
        ([("audio", b"sound"), ("text", b"x" * 9000)], 413, "text has at most"),
        ([("audio", b"sound"), ("url", b"http://example.org/a.wav")], 400, "got 'url'"),
        ([("audio", b"sound"), ("audio", b"sound")], 400, "once each"),
    ],
)
async def test_what_is_wrong_with_a_form(site: Site, parts: list[tuple[str, bytes]], status: int, words: str) -> None:
    form = FormData()
    for name, data in parts:
        form.add_field(name, io.BytesIO(data), filename="x")
    async with site.client.post("/voices", data=form) as response:
        answer = await response.json()
        assert response.status == status, answer
        assert ("Retry-After" in response.headers) == (status == 503)
    assert words in answer["error"]["message"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"sound", "audio/wav", 415),
        (b"{}", "application/json", 415),
        (b"sound", "multipart/form-data", 400),
        (b"sound", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n\r\nsound", "multipart/form-data; boundary=x", 400),
        (b"--x\r\nnocolon\r\n\r\nsound\r\n--x--\r\n", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n" + 200 * b"a: b\r\n" + b"\r\nsound\r\n--x--\r\n", "multipart/form-data; boundary=x", 400),
        (b"--x\r\na: " + 9000 * b"b" + b"\r\n\r\nsound\r\n--x--\r\n", "multipart/form-data; boundary=x", 400),
        (b"a preamble\r\n--x\r\n\r\nsound\r\n--x--\r\n", "multipart/form-data; boundary=x", 400),
        (2**20 * b"\n", "multipart/form-data; boundary=x", 400),
    ],
)
async def test_a_body_that_is_no_form(site: Site, body: bytes, kind: str, status: int) -> None:
    async with site.client.post("/voices", data=body, headers={"Content-Type": kind}) as response:
        answer = await response.json()
    assert response.status == status, answer
    assert not site.engine.asked


async def test_a_form_without_a_beginning_is_not_read_on() -> None:
    """Line after line is read without letting anybody else do anything."""
    stream = StreamReader(BaseProtocol(asyncio.get_running_loop()), 2**16)
    stream.feed_data(2**16 * b"\n")
    with pytest.raises(ValueError, match="begin with its boundary"):
        await MultipartReader(
            {"Content-Type": "multipart/form-data; boundary=x"}, cast(StreamReader, Body(stream, b"x"))
        ).next()
    assert stream.total_bytes - len(await stream.readany()) == 1


async def test_it_needs_the_token() -> None:
    async with Site(Studio(), access=Access(token=TOKEN, rate=1000.0)) as site:
        assert (await site.make())[0] == 401
        async with site.client.delete("/voices/x") as response:
            assert response.status == 401


async def test_who_hangs_up_is_given_up() -> None:
    with Studio(at_once=False) as engine:
        async with Site(engine) as site:
            asking = asyncio.create_task(site.make())
            await until(lambda: engine.asked)
            asking.cancel()
            await until(lambda: engine.given_up == 1)


async def test_a_recording_that_does_not_come_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voices_http, "UPLOAD_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection(site.client.host, site.client.port)
    head = "POST /voices HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    writer.write(f"{head}Content-Length: 1000\r\n\r\n--x\r\n".encode())
    assert b" 408 " in await asyncio.wait_for(reader.readline(), WITHIN)
    writer.close()


async def test_too_many_at_once_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voices_http, "MAX_UPLOADS", 1)
    with Studio(at_once=False) as engine:
        async with Site(engine) as site:
            first = asyncio.create_task(site.make())
            await until(lambda: engine.asked)
            status, refused = await site.make()
            assert (status, refused["error"]["message"]) == (503, "too many recordings are being sent or worked on")
            engine.let.set()
            assert (await first)[0] == 201


async def test_an_offer_says_how_all_of_the_call_is_said(tmp_path: Path) -> None:
    """Over a real data channel: the session's manner, and a recording that takes most of a message."""
    VoiceFolder(tmp_path).write(replace(ANNA, name="anna", reference=Reference(TEXT, FRAMES)))
    with Studio() as engine:
        async with Site(engine, tmp_path) as site:
            for session, words in (
                ({"voice": "bert"}, "(anna)"),
                ({"color": "red"}, "color"),
                ({"speaker": 3}, "speaker"),
                ({"speaker": "\udfff"}, "speaker must be text that the voice can read"),
                ({"language": "x" * 201}, "language must have at most 200 characters, got 201"),
                ({"instruction": "x" * 201}, "instruction must have at most 200 characters, got 201"),
                ({"instruction": "so\ud800"}, "instruction must be text that the voice can read"),
                ({"cfg_scale": "2"}, "cfg_scale"),
                ({"cfg_scale": 21}, "cfg_scale must be from 0.0 to 20.0, got 21"),
                ({"cfg_scale": float("nan")}, "cfg_scale must be from 0.0 to 20.0, got nan"),
                ([], "session"),
            ):
                body = {"sdp": "v=0", "type": "offer", "session": session}
                async with site.client.post("/offer", json=body) as response:
                    assert response.status == 400
                    assert words in (await response.json())["error"]["message"]
            caller = Caller()
            manner = {"voice": "anna", "speaker": "S1", "cfg_scale": 1.5}
            body = {"sdp": await caller.offer(), "type": "offer", "session": manner}
            async with site.client.post("/offer", json=body) as response:
                assert response.status == 200
                await caller.accept((await response.json())["sdp"])
            await caller.wait(lambda: caller.told("session.created"))
            assert caller.told("session.created")[0]["voices"] == ["anna"]
            caller.send(type="voice.create", id="mine", text=TEXT, audio=audio(bytes(45_000)))
            await caller.wait(lambda: caller.told("voice.created"))
            caller.send(type="speak", id="a", text="Hello.")
            caller.send(
                type="speak", id="b", text="Hello.", voice=caller.told("voice.created")[0]["voice"], speaker="S2"
            )
            await caller.wait(lambda: len(engine.jobs) == 2)
            first, second = (job.request for job in engine.jobs.values())
            assert (first.reference, first.speaker, first.sampling.cfg_scale) == (Reference(TEXT, FRAMES), "S1", 1.5)
            assert (second.speaker, engine.asked) == ("S2", [(bytes(45_000), TEXT)])
            await caller.close()


async def test_a_server_says_all_in_its_own_manner_unless_a_call_says_otherwise(tmp_path: Path) -> None:
    VoiceFolder(tmp_path).write(replace(ANNA, name="anna", reference=Reference(TEXT, FRAMES)))
    with Studio() as engine:
        async with Site(engine, tmp_path, manner=Manner(voice="anna", speaker="S1")) as site:
            for session, expected in (({}, (FRAMES, "S1")), ({"voice": "", "speaker": "S2"}, (None, "S2"))):
                caller = Caller()
                body = {"sdp": await caller.offer(), "type": "offer", "session": session}
                async with site.client.post("/offer", json=body) as response:
                    await caller.accept((await response.json())["sdp"])
                caller.send(type="speak", id="a", text="Hello.")
                await caller.wait(lambda caller=caller: caller.told("speech.started"))
                request = list(engine.jobs.values())[-1].request
                assert (request.reference and request.reference.frames, request.speaker) == expected
                await caller.close()


async def test_a_manner_that_cannot_be_is_told_before_anybody_calls(tmp_path: Path) -> None:
    with Studio() as engine, pytest.raises(RequestError, match=r"voice must be .* got 'bert'"):
        attach(web.Application(), engine, voices=Voices(engine, VoiceFolder(tmp_path)), manner=Manner(voice="bert"))


# ---- real engines ----


def heard(sound: bytes) -> NDArray[np.int32]:
    """The samples of a WAV that was streamed."""
    return np.frombuffer(sound[HEADER_BYTES:], "<i2").astype(np.int32)


async def test_from_a_file_to_speech_with_real_weights() -> None:
    with Runtime.start(RuntimeConfig(KINDS["breeze_tts_2"], "cpu")) as runtime:
        async with Site(runtime) as site:
            status, made = await site.make(wav(2, seed=5))
            assert status == 201, made
            status, sound = await site.speech(input="hello there", voice=made["id"], seed=1)
            _, again = await site.speech(input="hello there", voice=made["id"], seed=1)
            _, plain = await site.speech(input="hello there", seed=1)
            assert status == 200
            assert heard(sound).size == heard(again).size
            assert np.abs(heard(sound) - heard(again)).max() <= 1, "codes are equal, and audio within a step of 16 bits"
            size = min(heard(sound).size, heard(plain).size)
            assert np.abs(heard(sound)[:size] - heard(plain)[:size]).max() > 100
            status, refused = await site.make(wav(2, level=0.0))
            assert status == 400
            assert "must be speech, got silence" in refused["error"]["message"]
            async with site.client.get("/metrics") as response:
                told = await response.text()
            assert "reference_cache_bytes" in told
            assert "prefix_hits_total" in told


async def test_the_embedded_voice_says_the_same_everywhere(executor: ThreadPoolExecutor) -> None:
    with Runtime.start(RuntimeConfig(EMBEDDED_VOICE, "cpu")) as runtime:
        async with Site(runtime) as site:
            told = [(await site.make(wav(2)))[1]["error"]["message"]]
            status, body = await site.speech(input="Hello.", voice="voice_x")
            assert status == 400
            told.append(body.decode())
            assert json.loads(body)["error"]["param"] == "voice"
            offer = {"sdp": "v=0", "type": "offer", "session": {"voice": "voice_x"}}
            async with site.client.post("/offer", json=offer) as response:
                told.append((await response.json())["error"]["message"])
            call = Call(executor, spec=runtime.spec, voices=site.calls.voices)
            call.speak("a", voice="voice_x")
            call.client(type="voice.create", id="b", text=TEXT, audio=audio(wav(1.5)[:40_000]))
            await until(lambda: len(call.told("error")) == 2)
            told += [error["message"] for error in call.told("error")]
            assert {error["id"]: error["field"] for error in call.told("error")} == {"a": "voice", "b": "audio"}
            call.session.close()
    words = told[0].removeprefix("audio ")
    assert "speaks as itself only" in words
    assert all(words in message for message in told), told
    assert all(f"voice {words}" in message for message in told[1:4]), told
