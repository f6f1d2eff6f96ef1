"""agent/speech_http.py, reading.py and container.py: speech over HTTP, whole, early, bounded, and every way to fail."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import wave
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest
from aiohttp import ClientPayloadError, ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from numpy.typing import NDArray
from scripted_engine import Engine, submit
from scripted_runtime import SPEC, ScriptedRuntime, tone
from waiting import until

from agent import reading, speech_http
from agent.calls import Calls
from agent.container import CONTAINERS, OggOpus, Plain
from agent.guard import Access, Guard, Handler
from agent.reading import LOOKAHEAD, ReadingFailed, pieces, read_aloud
from agent.speech_http import MAX_INPUT_CHARS
from engine.clock import MonotonicClock
from engine.core import Chunk, ErrorCode, Finished, FinishReason, Mode, Output, Request
from engine.runtime import Runtime
from engine.wav import HEADER_BYTES

PATH = "/v1/audio/speech"
WITHIN = 30.0
TOKEN = "correct-horse-battery"
PAGE = "https://app.example.org"
SIZE = SPEC.samples_per_frame
SENTENCE = "The train to the coast leaves from platform nine."
Samples = NDArray[np.int16]


class Site:
    """The route and nothing else, and a client."""

    def __init__(self, engine: Any, access: Access | None = None, **options: Any) -> None:
        self.engine, self._access, self._options = engine, access or Access(rate=1000.0), options

    async def __aenter__(self) -> Site:
        app, clock = web.Application(), MonotonicClock()
        self.calls = Calls(self.engine)
        self.refused: list[int] = []
        guard = Guard(self._access, clock, self.refused.append)

        def add(method: str, path: str, handler: Handler, needs_token: bool = False) -> None:
            app.router.add_route(method, f"/{path}", guard.wrap(handler, needs_token=needs_token))

        speech_http.add_routes(add, guard, self.calls, self.engine, **self._options)
        app.middlewares.append(guard.wrap_unmatched(""))
        self.client = TestClient(TestServer(app))
        await self.client.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.calls.close()

    def post(self, **fields: Any) -> Any:
        return self.client.post(PATH, json=fields)

    async def begun(self, **fields: Any) -> tuple[asyncio.Task[ClientResponse], int]:
        """A request whose utterance has come to the engine, and its number there."""
        before = len(self.engine.jobs)
        asking = asyncio.create_task(self.client.post(PATH, json=fields))
        await until(lambda: len(self.engine.jobs) > before)
        return asking, before + 1

    async def fault(self, status: int, **fields: Any) -> dict[str, Any]:
        """The error object that this order gets."""
        async with self.post(**fields) as response:
            body = await response.json()
            assert response.status == status, body
        assert body.keys() == {"error"}
        error = body["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
        return dict(error)

    def utterances(self) -> str:
        lines = self.calls.metrics.render().decode().splitlines()
        return " ".join(line for line in lines if line.startswith("breezert_utterances_total{"))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """An engine that speaks by itself."""
    with ScriptedRuntime(pace=0.001) as engine:
        async with Site(engine) as opened:
            yield opened


@pytest.fixture
async def by_hand() -> AsyncIterator[Site]:
    """An engine that speaks when a test says so."""
    async with Site(ScriptedRuntime()) as opened:
        yield opened


def decoded(data: bytes, rate: int) -> Samples:
    """What a stock decoder makes of a file, at that rate."""
    with av.open(io.BytesIO(data)) as file:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
        frames = [out for frame in file.decode(audio=0) for out in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])


def likeness(a: Samples, b: Samples) -> float:
    """Correlation, without the first 20 ms, in which a codec finds its feet."""
    return float(np.corrcoef(a[480:], b[480:])[0, 1])


# ---- what is heard --------------------------------------------------------------------------------------------


async def test_pcm_is_the_engines_samples(site: Site) -> None:
    async with site.post(input="abcde", response_format="pcm") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "audio/pcm; rate=24000; channels=1"
        assert response.headers["Transfer-Encoding"] == "chunked"
        assert np.array_equal(np.frombuffer(await response.read(), "<i2"), tone(0, 5 * SIZE))
    assert 'breezert_utterances_total{reason="end"} 1.0' in site.utterances()


async def test_wav_is_the_same_behind_a_head_of_unknown_length(site: Site) -> None:
    async with site.post(input="abcde") as response:
        assert response.headers["Content-Type"] == "audio/wav"
        data = await response.read()
    assert np.array_equal(np.frombuffer(data[HEADER_BYTES:], "<i2"), tone(0, 5 * SIZE))
    assert np.array_equal(decoded(data, 24_000), tone(0, 5 * SIZE))
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)


async def test_opus_comes_back_as_long_and_alike(site: Site) -> None:
    async with site.post(input="x" * 25, response_format="opus") as response:
        assert response.headers["Content-Type"] == "audio/ogg; codecs=opus"
        heard = decoded(await response.read(), 24_000)
    assert heard.size == 25 * SIZE
    assert likeness(heard, tone(0, 25 * SIZE)) > 0.95


@pytest.mark.parametrize("name", CONTAINERS)
async def test_the_embedded_voice_is_heard_in_every_format(runtime: Runtime, name: str) -> None:
    request = Request(SENTENCE, replace(runtime.spec.sampling, seed=5))
    said = np.concatenate([out.pcm for out in runtime.stream(request) if isinstance(out, Chunk)])
    async with Site(runtime) as site, site.post(input=SENTENCE, seed=5, response_format=name) as response:
        data = await response.read()
    heard = np.frombuffer(data, "<i2") if name == "pcm" else decoded(data, 24_000)
    assert heard.size == said.size > 24_000
    if name == "opus":
        assert likeness(heard, said) > 0.9
    else:
        assert np.abs(heard.astype(int) - said).max() <= 2, "chunks of other sizes round otherwise"


async def test_a_long_text_of_the_embedded_voice_is_read_to_its_end(runtime: Runtime) -> None:
    text = f"{SENTENCE} " * 7
    assert len(pieces(text, 300)) == 2
    async with Site(runtime) as site, site.post(input=text, response_format="pcm") as response:
        seconds = len(await response.read()) / 2 / runtime.spec.sample_rate
    assert 7 * 1.5 < seconds < 7 * 6


async def test_the_first_bytes_leave_with_the_first_chunk(by_hand: Site) -> None:
    for number, name in enumerate(CONTAINERS, 1):
        asking, job = await by_hand.begun(input="Hello.", response_format=name)
        assert job == number
        by_hand.engine.say(job, frames=1)
        async with asyncio.timeout(WITHIN):
            response = await asking
            early = await response.content.readany()
        assert early, "and the engine has not gone on"
        by_hand.engine.say(job, frames=3, final=True)
        by_hand.engine.finish(job)
        data = early + await response.read()
        heard = np.frombuffer(data, "<i2") if name == "pcm" else decoded(data, 24_000)
        assert heard.size == 4 * SIZE


async def test_the_engine_is_asked_as_the_client_asks(by_hand: Site) -> None:
    fields = {"model": "tts-1", "voice": "S3", "seed": 11, "temperature": 1, "speed": 1, "stream_format": "audio"}
    asking, job = await by_hand.begun(input="Hello.", **fields)
    by_hand.engine.say(job)
    by_hand.engine.finish(job)
    async with await asking as response:
        assert response.headers["OpenAI-Model"] == "tts-1"
        assert "default-src 'self'" in response.headers["Content-Security-Policy"]
        await response.read()
    request = by_hand.engine.jobs[job].request
    assert (request.text, request.speaker, request.instruction, request.follows) == ("Hello.", "S3", "", None)
    assert request.sampling == replace(SPEC.sampling, seed=11, temperature=1.0)


@pytest.mark.parametrize("fields", [{}, {"voice": ""}, {"voice": "default"}, {"voice": "scripted"}])
async def test_what_is_left_out_is_the_voices_own(site: Site, fields: dict[str, str]) -> None:
    async with site.post(input="Hi.", **fields) as response:
        assert response.headers["OpenAI-Model"] == "scripted"
        await response.read()
    request = site.engine.jobs[1].request
    assert (request.speaker, request.sampling) == ("S0", SPEC.sampling)


async def test_instructions_reach_a_voice_that_follows_them() -> None:
    spec = replace(SPEC, modes=frozenset({Mode.PLAIN, Mode.DESIGN}))
    with ScriptedRuntime(spec, pace=0.001) as engine:
        async with Site(engine) as site, site.post(input="Hi.", instructions="Whisper.") as response:
            assert response.status == 200
            await response.read()
        assert engine.jobs[1].request.instruction == "Whisper."


@pytest.mark.parametrize("name", CONTAINERS)
async def test_a_voice_that_says_nothing_makes_an_empty_file(by_hand: Site, name: str) -> None:
    asking, job = await by_hand.begun(input="Hm.", response_format=name)
    by_hand.engine.finish(job)
    async with await asking as response:
        assert response.status == 200
        data = await response.read()
    if name == "wav":
        assert len(data) == HEADER_BYTES
    elif name == "opus":
        assert data.startswith(b"OggS")


def test_what_is_pushed_bit_by_bit_is_one_stream() -> None:
    """Chunks that are no multiple of a packet; the last one is cut to its length."""
    for sizes in ([1, 2, 479, 481, 5000], [24_000], [7] * 300):
        file, said = OggOpus(24_000), tone(0, sum(sizes))
        ends = np.cumsum(sizes)
        data = b"".join(file.push(said[end - size : end]) for size, end in zip(sizes, ends, strict=True)) + file.end()
        assert decoded(data, 48_000).size == 2 * said.size


def test_opus_keeps_no_more_than_a_page_back() -> None:
    file = OggOpus(24_000)
    assert file.push(tone(0, 1920)).count(b"OggS") == 5, "two heads, and three of four packets"
    assert file.push(tone(1920, 1920)).count(b"OggS") == 4


def test_a_rate_that_opus_does_not_take_is_refused() -> None:
    with pytest.raises(ValueError, match="22050"):
        OggOpus(22_050)
    assert Plain(22_050).media_type == "audio/pcm; rate=22050; channels=1"


# ---- when it is due -------------------------------------------------------------------------------------------


class Scheduled(ScriptedRuntime):
    """The production scheduler behind the route; `step` runs one of its steps, on a clock that moves by what steps
    cost (tests/scripted_engine.py). Each utterance has so many frames."""

    def __init__(self, *frames: int) -> None:
        super().__init__()
        self.scheduled = Engine(frames=dict(enumerate(frames, 1)))

    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int:
        request_id = super().submit(request, deliver)
        self.scheduled.submit(submit(request_id, follows=request.follows))
        return request_id

    def step(self) -> list[Output]:
        """What it delivers."""
        before = len(self.scheduled.outputs)
        assert self.scheduled.step() is not None, "there is work"
        outputs = self.scheduled.outputs[before:]
        for output in outputs:
            self.jobs[output.request_id].deliver(output)
        return outputs

    def due_at(self, request_id: int) -> float | None:
        """When the scheduler wants the next chunk of it; None once it is over."""
        stream = self.scheduled.scheduler._find(request_id)
        return stream and stream.playback.deadline(self.scheduled.now)


async def test_the_next_chunk_is_due_when_all_audio_since_the_first_output_has_been_played() -> None:
    """Nobody says where the listener is: the deadline is the instant of the first output plus all audio since, over
    every utterance of a text, however far ahead of that the engine is."""
    engine, text = Scheduled(12, 12), " ".join([SENTENCE] * 8)
    async with Site(engine) as site:
        asking, _ = await site.begun(input=text, response_format="pcm")
        await until(lambda: len(engine.jobs) == 2)
        first_at, audio, ended, due = None, 0.0, 0, list[float | None]()
        while ended < 2:
            for output in engine.step():
                ended += isinstance(output, Finished)
                if isinstance(output, Chunk):
                    first_at = first_at or engine.scheduled.now
                    audio += output.pcm.size / 24_000
                    due.append(engine.due_at(output.request_id))
                    assert due[-1] in (None, pytest.approx(first_at + audio))
        heard = await (await asking).read()
    assert len(heard) == 2 * round(24_000 * audio) == 2 * 24 * SIZE
    assert len(due) - due.count(None) >= 6
    assert first_at is not None and engine.scheduled.now < first_at + audio - 0.5, "the engine was ahead"
    assert not engine.playheads


# ---- long texts -----------------------------------------------------------------------------------------------


def test_a_text_is_cut_at_sentences_as_many_in_a_piece_as_fit() -> None:
    text = "One is here. Two is here.  Three\nis here. - Four is quite a bit longer than all the others."
    assert pieces(text, 60) == [
        "One is here. Two is here. Three is here.",
        "- Four is quite a bit longer than all the others.",
    ]
    assert pieces(text, 200) == [text]
    assert pieces("a" * 100, 48) == ["a" * 48, "a" * 48, "aaaa"]
    assert pieces(f"{'a' * 40}. {'?! ' * 30} b.", 48) == [f"{'a' * 40}. b."]
    assert pieces("x" * 50, 10) == ["x" * 48, "xx"]


async def test_a_long_text_is_read_as_utterances_that_follow_each_other(site: Site) -> None:
    sentences = [f"{number}" + " word" * 30 + "." for number in range(6)]  # of 152 characters; the voice takes 200
    async with site.post(input=" ".join(sentences), response_format="pcm") as response:
        heard = np.frombuffer(await response.read(), "<i2")
    jobs = site.engine.jobs.values()
    assert [job.request.text for job in jobs] == sentences
    assert [job.request.follows for job in jobs] == [None, 1, 2, 3, 4, 5]
    parts = [tone(0, len(sentence) * SIZE) for sentence in sentences]
    assert np.array_equal(heard, np.concatenate(parts)), "without a gap"


async def test_no_more_is_made_than_its_reader_takes() -> None:
    engine = ScriptedRuntime()
    audio = read_aloud(engine, [Request(f"Part {number}.", SPEC.sampling) for number in range(5)])
    first = asyncio.ensure_future(anext(audio))
    await asyncio.sleep(0)
    assert len(engine.jobs) == LOOKAHEAD
    for job in list(engine.jobs):
        engine.say(job, frames=3)
        engine.finish(job)
    assert (await first).size == 3 * SIZE
    assert len(engine.jobs) == LOOKAHEAD, "the first one is not read to its end"
    second = asyncio.ensure_future(anext(audio))
    assert (await second).size == 3 * SIZE
    assert len(engine.jobs) == LOOKAHEAD + 1
    await audio.aclose()
    assert engine.cancelled == [2, 3]


async def test_an_utterance_that_fails_ends_the_text_and_cancels_the_next() -> None:
    engine = ScriptedRuntime()
    audio = read_aloud(engine, [Request("One.", SPEC.sampling), Request("Two.", SPEC.sampling)])
    first = asyncio.ensure_future(anext(audio))
    await asyncio.sleep(0)
    engine.queue(1, 2.0)
    engine.fail(1, ErrorCode.BUSY, "all voices are busy", 1.5)
    with pytest.raises(ReadingFailed, match="all voices are busy") as caught:
        await first
    assert (caught.value.code, caught.value.retry_after) == (ErrorCode.BUSY, 1.5)
    assert engine.cancelled == [2]


async def test_an_utterance_that_is_cut_by_its_limit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedRuntime()
    audio = read_aloud(engine, [Request("One.", SPEC.sampling)])
    first = asyncio.ensure_future(anext(audio, None))
    await asyncio.sleep(0)
    engine.finish(1, FinishReason.LENGTH)
    assert await first is None
    assert "ends before its own end: length" in caplog.text


def test_what_comes_after_the_loop_has_closed_is_dropped() -> None:
    engine = ScriptedRuntime()

    async def submit() -> None:
        reading.submitted(engine, Request("One.", SPEC.sampling))

    asyncio.run(submit())
    engine.finish(1)


# ---- who leaves, who stalls, what breaks ----------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
async def test_who_hangs_up_is_cancelled_at_once(by_hand: Site, begun: bool) -> None:
    asking, job = await by_hand.begun(input="Hello there.")
    if begun:
        by_hand.engine.say(job)
        (await asking).close()
    else:
        asking.cancel()
    await until(lambda: by_hand.engine.cancelled == [job])
    await until(lambda: 'breezert_utterances_total{reason="cancelled"} 1.0' in by_hand.utterances())
    asking, job = await by_hand.begun(input="The next one is served.")
    by_hand.engine.say(job)
    by_hand.engine.finish(job)
    assert len(await (await asking).read()) == HEADER_BYTES + 2 * SIZE


async def test_who_takes_nothing_is_given_up(
    by_hand: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(speech_http, "STALLED_SECONDS", 0.1)
    server = by_hand.client.server
    reader, writer = await asyncio.open_connection(server.host, server.port, limit=1024)
    body = json.dumps({"input": "Hello."}).encode()
    writer.write(
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(body)) + body
    )
    await until(lambda: by_hand.engine.jobs)
    for _ in range(20):
        by_hand.engine.say(1, frames=250)  # 1 MB each: more than both sockets hold
    await until(lambda: by_hand.engine.cancelled == [1])
    await until(lambda: "took nothing for 0.1 s" in caplog.text)
    with pytest.raises(ConnectionError):
        while await reader.read(65_536):
            pass
        raise ConnectionResetError  # the reset may be seen as an end
    writer.close()


async def test_a_failure_before_the_first_byte_is_an_error_object(by_hand: Site) -> None:
    for code, status in ((ErrorCode.ENGINE_DIED, 503), (ErrorCode.CLOSED, 503), (ErrorCode.TOO_LONG, 400)):
        asking, job = await by_hand.begun(input="Hello.")
        by_hand.engine.fail(job, code, "the engine says why")
        async with await asking as response:
            assert (response.status, "Retry-After" in response.headers) == (status, False)
            assert (await response.json())["error"]["code"] == code
            assert (await response.json())["error"]["message"] == "the engine says why"
    assert by_hand.refused == [503, 503, 400]
    assert 'breezert_utterances_total{reason="failed"} 3.0' in by_hand.utterances()


async def test_a_failure_later_ends_the_body_without_its_end(by_hand: Site, caplog: pytest.LogCaptureFixture) -> None:
    asking, job = await by_hand.begun(input="Hello.", response_format="pcm")
    by_hand.engine.say(job, frames=2)
    response = await asking
    assert response.status == 200
    by_hand.engine.fail(job, ErrorCode.ENGINE_DIED, "the engine ended while this was being spoken")
    heard = b""
    with pytest.raises(ClientPayloadError):
        async for part in response.content.iter_any():
            heard += part
    assert heard == tone(0, 2 * SIZE).tobytes(), "what was made came through"
    assert "a speech breaks off: the engine ended" in caplog.text
    assert 'breezert_utterances_total{reason="failed"} 1.0' in by_hand.utterances()


async def test_a_mistake_of_ours_in_the_middle_writes_no_answer_into_the_body(
    by_hand: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Plain):
        def end(self) -> bytes:
            raise LookupError("a secret of the inside")

    monkeypatch.setitem(speech_http.CONTAINERS, "pcm", Broken)
    asking, job = await by_hand.begun(input="Hello.", response_format="pcm")
    by_hand.engine.say(job)
    response = await asking
    by_hand.engine.finish(job)
    with pytest.raises(ClientPayloadError):
        await response.read()
    assert "a secret of the inside" in caplog.text
    assert any(record.levelno == logging.ERROR for record in caplog.records)


async def test_a_server_that_ends_leaves_nothing_in_the_engine(by_hand: Site) -> None:
    asking, job = await by_hand.begun(input="Hello.")
    by_hand.engine.say(job)
    response = await asking
    by_hand.client.server.runner._shutdown_timeout = 0.05  # serve's own is 1 s
    await by_hand.client.server.close()
    assert by_hand.engine.cancelled == [job]
    with pytest.raises(ClientPayloadError):
        await response.read()


# ---- busy -----------------------------------------------------------------------------------------------------


async def test_a_busy_engine_is_a_503_with_a_time_to_come_back(site: Site) -> None:
    site.engine.retry_after = 2.1
    async with site.post(input="Hello.") as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "3")
        error = (await response.json())["error"]
    assert error == {"message": "all voices are busy", "type": "server_error", "param": None, "code": "busy"}
    site.engine.retry_after = 0.0
    async with site.post(input="Hello.") as response:
        assert response.status == 200


async def test_one_speech_too_many_is_a_503(by_hand: Site) -> None:
    async with Site(by_hand.engine, max_speeches=1) as site:
        asking, job = await site.begun(input="Hello.")
        error = await site.fault(503, input="Hello.")
        assert (error["code"], error["message"]) == ("busy", "1 texts are being read already: ask again later")
        site.engine.finish(job)
        await (await asking).read()
        asking, job = await site.begun(input="Hello.")
        site.engine.finish(job)
        assert (await asking).status == 200


async def test_a_server_that_is_about_to_end_takes_no_more(site: Site) -> None:
    await site.calls.drain(0.0)
    async with site.post(input="Hello.") as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "10")
    assert not site.engine.jobs


# ---- bad fields -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": None}, "input", "Expected `str`"),
        ({"input": 5}, "input", "Expected `str`"),
        ({"input": ""}, "input", "something to say"),
        ({"input": " \n"}, "input", "something to say"),
        ({"input": "?!"}, "input", "something to say"),
        ({"input": "a" * (MAX_INPUT_CHARS + 1)}, "input", "at most 4096 characters, got 4097"),
        ({"model": 5}, "model", "Expected `str`"),
        ({"model": "a\r\nX: y"}, "model", "regex"),
        ({"model": "a\n"}, "model", "regex"),
        ({"voice": {"id": "voice_1"}}, "voice", "Expected `str`"),
        ({"response_format": "mp3"}, "response_format", "one of wav, pcm, opus"),
        ({"response_format": 1}, "response_format", "Expected `str`"),
        ({"speed": 1.5}, "speed", "must be 1.0"),
        ({"speed": "fast"}, "speed", "Expected `float`"),
        ({"stream_format": "sse"}, "stream_format", "must be audio"),
        ({"instructions": "Whisper."}, "instructions", "the voice scripted follows none"),
        ({"instructions": []}, "instructions", "Expected `str`"),
        ({"seed": -1}, "seed", "seed must be from 0"),
        ({"seed": 10**30}, "seed", "seed"),
        ({"seed": 1.5}, "seed", "Expected `int | null`"),
        ({"temperature": 11}, "temperature", "temperature must be from 0.0 to 10.0"),
        ({"temperature": "hot"}, "temperature", "Expected `float | null`"),
        ({"sped": 1.0}, "sped", "unknown field"),
    ],
)
async def test_a_field_that_cannot_be_is_named(site: Site, fields: dict[str, Any], param: str, words: str) -> None:
    error = await site.fault(400, **{"input": "Hello.", **fields})
    assert (error["param"], error["code"]) == (param, "bad_request")
    assert words in error["message"]
    assert not site.engine.jobs
    assert site.refused == [400]


@pytest.mark.parametrize(
    ("message", "field", "param"),
    [
        ("speaker must be one of S0, S1 or empty, got 'alloy'; choose one of them", "speaker", "voice"),
        ("text must be text that the voice can read, got 'x'; take that out", "text", "input"),
        ("instruction must have at most 200 characters, got 300; send it in parts", "instruction", "instructions"),
        ("voice x knows the modes clone, got a request of mode plain; give a reference", "reference", "voice"),
        ("reference text must hold something to say, got ' '; send words", "reference text", "voice"),
        ("language must be one of those that voice x knows (none) or empty, got 'de'", "language", "language"),
        ("a prompt of 9 positions must leave room for its speech", None, None),
    ],
)
async def test_what_the_engine_cannot_take_is_named_as_the_client_calls_it(
    by_hand: Site, message: str, field: str | None, param: str | None
) -> None:
    asking, job = await by_hand.begun(input="Hello.", voice="alloy")
    by_hand.engine.fail(job, ErrorCode.BAD_REQUEST, message, field=field)
    async with await asking as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"], error["message"]) == (400, param, message)


async def test_the_embedded_voice_names_its_speakers(runtime: Runtime) -> None:
    async with Site(runtime) as site:
        error = await site.fault(400, input="Hello.", voice="alloy")
    assert error["param"] == "voice"
    assert "'alloy'" in error["message"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"\xff", 400, None),
        (b'{"input": "\xff"}', 400, None),
        (b"[]", 400, None),
        (b"[" * 60_000, 400, None),
        (b"{}", 400, "input"),
        (b'{"input": "%s"}' % (b"x" * 70_000), 413, None),
    ],
)
async def test_a_body_that_is_no_order_is_refused(site: Site, body: bytes, status: int, param: str | None) -> None:
    async with site.client.post(PATH, data=body) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


# ---- methods, origins, tokens ---------------------------------------------------------------------------------


async def test_nothing_is_to_be_had_by_get_or_head(site: Site) -> None:
    for method in ("GET", "HEAD", "PUT"):
        async with site.client.request(method, PATH) as response:
            assert (response.status, response.headers["Allow"]) == (405, "OPTIONS, POST")


async def test_a_page_of_an_allowed_origin_may_have_things_said() -> None:
    with ScriptedRuntime(pace=0.001) as engine:
        async with Site(engine, Access(allow_origins=(PAGE,))) as site:
            async with site.client.options(PATH, headers={"Origin": PAGE}) as response:
                assert response.status == 204
                assert "POST" in response.headers["Access-Control-Allow-Methods"]
            async with site.client.post(PATH, json={"input": "Hi."}, headers={"Origin": PAGE}) as response:
                assert response.headers["Access-Control-Allow-Origin"] == PAGE, "also where the body streams"
                await response.read()
            async with site.client.post(PATH, json={"input": "Hi."}, headers={"Origin": "https://x.org"}) as response:
                assert response.status == 403


async def test_a_token_guards_it() -> None:
    with ScriptedRuntime(pace=0.001) as engine:
        async with Site(engine, Access(token=TOKEN)) as site:
            async with site.post(input="Hi.") as response:
                assert response.status == 401
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with site.client.post(PATH, json={"input": "Hi."}, headers=headers) as response:
                assert response.status == 200
                await response.read()
