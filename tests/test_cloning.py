"""cloning.py: from a file to a reference, once; what is wrong with it; given up at any moment; with real weights."""

from __future__ import annotations

import io
import subprocess
import threading
import tracemalloc
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from voices import KINDS

from engine import cloning as cloning_module
from engine import reference as decoding
from engine.checks import RequestError
from engine.cloning import Attempt, CloneFailed, Cloning, GivenUp, num_bytes
from engine.codec_encoder import load
from engine.core import (
    Chunk,
    Encoded,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    Mode,
    ModelSpec,
    Output,
    Reference,
    Request,
    RequestStats,
    Samples,
)
from engine.messages import EMBEDDED_VOICE, RuntimeConfig
from engine.reference import decode
from engine.runtime import Runtime
from engine.traffic import SPEC

RATE = 24_000
TEXT = "good day to you"
VOICE = replace(SPEC, encodes=True)
STATS = RequestStats(0.0, None, 0.0, 0, 0.0, {})


def wav(seconds: float, seed: int = 0, level: float = 0.2) -> bytes:
    """Noise, as a file."""
    samples = np.random.default_rng(seed).standard_normal(round(seconds * RATE)) * level
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()


@dataclass
class Scripted:
    """An engine that answers as told; None waits until it is cancelled."""

    spec: ModelSpec = VOICE
    answer: Callable[[int, Samples], list[Output]] | None = None
    heard: list[int] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    cancelled: list[int] = field(default_factory=list)
    deliver: Callable[[Output], None] = lambda output: None

    def encode(self, samples: Samples, deliver: Callable[[Output], None]) -> int:
        self.heard.append(samples.size)
        self.deliver = deliver
        if self.answer is not None:
            for output in self.answer(7, samples):
                deliver(output)
        self.begun.set()
        return 7

    def cancel(self, request_id: int) -> None:
        assert request_id == 7
        self.cancelled.append(request_id)
        self.deliver(Finished(7, 0, FinishReason.CANCELLED, STATS))


def coded(number: int, samples: Samples) -> list[Output]:
    frames = -(-samples.size // 1920)
    codes = np.arange(frames * 16, dtype=np.int16).reshape(frames, 16)
    return [Encoded(number, codes, (float(frames), 0.5)), Finished(number, 0, FinishReason.END, STATS)]


def test_a_file_is_decoded_and_encoded_once_whatever_is_said_with_it() -> None:
    engine = Scripted(answer=coded)
    cloning, data = Cloning(engine), wav(2)
    first = cloning.reference(data, f" {TEXT} ")
    again = cloning.reference(data, "something else")
    assert (first.text, again.text) == (TEXT, "something else")
    assert first.vector == again.vector == (25.0, 0.5)
    assert first.frames == again.frames == tuple(tuple(range(16 * i, 16 * i + 16)) for i in range(25))
    assert engine.heard == [2 * RATE]
    values = cloning.snapshot()
    assert (values["reference_cache_hits_total"], values["reference_cache_misses_total"]) == (1, 1)
    assert values["reference_cache_bytes"] > 25 * 16


def test_what_has_no_room_is_encoded_again() -> None:
    engine = Scripted(answer=coded)
    cloning = Cloning(engine, max_bytes=100)
    for _ in range(2):
        cloning.reference(wav(2), TEXT)
    assert len(engine.heard) == 2
    assert cloning.snapshot()["reference_cache_entries"] == 0


def test_what_is_kept_is_bounded_under_ten_thousand_random_voices(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, most = np.random.default_rng(1), 2**20

    def decoded(data: bytes, doing: object) -> Samples:
        return np.zeros(RATE * (1 + data[-1] % 4), np.float32)

    def drawn(number: int, samples: Samples) -> list[Output]:
        codes = chance.integers(0, 2048, (-(-samples.size // 1920), 16)).astype(np.int16)
        return [Encoded(number, codes), Finished(number, 0, FinishReason.END, STATS)]

    monkeypatch.setattr(cloning_module, "decode_apart", decoded)
    engine = Scripted(answer=drawn)
    cloning = Cloning(engine, max_bytes=most)
    for number in range(10_000):
        last = cloning.reference(number.to_bytes(4), TEXT)
        assert cloning.snapshot()["reference_cache_bytes"] <= most
    assert cloning.snapshot()["reference_cache_bytes"] > most / 2
    assert cloning.reference((9_999).to_bytes(4), TEXT) is last
    assert len(engine.heard) == 10_000


@pytest.mark.parametrize(
    ("data", "text", "field", "says"),
    [
        (wav(2), "  ", "reference text", "must be what the recording says, got nothing"),
        (wav(2), "a", "reference text", "2 to 70 characters, got 1"),
        (wav(2), "word " * 15, "reference text", "2 to 70 characters, got 74"),
        (b"", TEXT, "reference", "must be a recording, got no bytes"),
        (b"<html>", TEXT, "reference", "must be an audio file"),
        (wav(2, level=0.0), TEXT, "reference", "must be speech, got silence"),
        (wav(2, level=9.0), TEXT, "reference", "not clipped"),
        (wav(0.5), TEXT, "reference", "1 to 30 seconds of speech, got 0.5"),
        (wav(31), TEXT, "reference", "1 to 30 seconds of speech, got 31.0"),
        (wav(2)[:-5], TEXT, "reference", "truncated"),
        (b"RIFF" + bytes(10 * 2**20), TEXT, "reference", "at most 10 MiB"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, text: str, field: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as raised:
        Cloning(Scripted(answer=coded)).reference(data, text)
    assert raised.value.field == field


def test_a_voice_that_does_not_clone_or_has_no_encoder_says_so_before_anything_is_decoded() -> None:
    alone = Scripted(replace(VOICE, modes=frozenset({Mode.PLAIN}), name="mini"))
    with pytest.raises(
        RequestError, match="reference must be left out: the voice mini speaks as itself only"
    ) as raised:
        Cloning(alone).reference(b"", "")
    assert raised.value.field == "reference"
    with pytest.raises(RequestError, match="must be left out: the folder of the voice simulated lacks the encoder"):
        Cloning(Scripted(SPEC)).reference(b"", "")


@pytest.mark.parametrize(
    ("data", "text", "field"),
    [("anna.wav", TEXT, "reference"), (None, TEXT, "reference"), (wav(2), 3, "reference text")],
)
def test_what_is_no_file_or_no_text_is_one_clear_error(data: bytes, text: str, field: str) -> None:
    with pytest.raises(RequestError, match=f"{field} must be .*, got ") as raised:
        Cloning(Scripted(answer=coded)).reference(data, text)
    assert raised.value.field == field


def test_a_busy_engine_is_nobodys_fault() -> None:
    failed = Failed(7, 0, ErrorCode.BUSY, "64 recordings are waiting already", 2.5)
    with pytest.raises(CloneFailed, match="64 recordings") as raised:
        Cloning(Scripted(answer=lambda number, samples: [failed])).reference(wav(2), TEXT)
    assert (raised.value.code, raised.value.retry_after) == (ErrorCode.BUSY, 2.5)


def test_a_recording_that_never_has_its_turn_is_no_endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside listeners who always have little slack. It can be sent again, and is then begun anew."""
    monkeypatch.setattr("engine.cloning.PATIENCE", 0.05)
    engine = Scripted()
    cloning = Cloning(engine)
    for turns in (1, 2):
        with pytest.raises(CloneFailed, match=r"waited 0\.05 s for its turn.*again later") as raised:
            cloning.reference(wav(2), TEXT)
        assert (raised.value.code, raised.value.retry_after) == (ErrorCode.BUSY, 10.0)
        assert engine.cancelled == [7] * turns == [7] * len(engine.heard)


def given_up(cloning: Cloning, attempt: Attempt) -> threading.Thread:
    """Somebody who waits for it, until he need not any more."""

    def wait() -> None:
        with pytest.raises(GivenUp):
            cloning.reference(wav(2), TEXT, attempt)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_given_up_before_it_begins() -> None:
    attempt = Attempt()
    attempt.give_up()
    with pytest.raises(GivenUp):
        Cloning(Scripted(answer=coded)).reference(wav(2), TEXT, attempt)


def test_given_up_while_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process that would take for ever."""
    begun, processes = threading.Event(), list[subprocess.Popen[bytes]]()

    class Slow(subprocess.Popen[bytes]):
        def __init__(self, command: object, **options: object) -> None:
            super().__init__(["sleep", "1000"], **options)  # type: ignore[call-overload]
            processes.append(self)
            begun.set()

    monkeypatch.setattr(decoding.subprocess, "Popen", Slow)
    attempt = Attempt()
    thread = given_up(Cloning(Scripted(answer=coded)), attempt)
    assert begun.wait(60)
    attempt.give_up()
    thread.join(60)
    assert not thread.is_alive()
    assert processes[0].returncode == -9


def test_given_up_while_it_is_encoded() -> None:
    engine, attempt = Scripted(), Attempt()
    thread = given_up(cloning := Cloning(engine), attempt)
    assert engine.begun.wait(60)
    attempt.give_up()
    thread.join(60)
    assert not thread.is_alive()
    assert cloning.snapshot()["reference_cache_entries"] == 0


# ---- real weights ----


@pytest.fixture(scope="module")
def tiny() -> Iterator[Runtime]:
    with Runtime.start(RuntimeConfig(KINDS["breeze_tts_2"], "cpu", max_wait=inf)) as runtime:
        yield runtime


def test_the_engines_codes_are_the_encoders(tiny: Runtime) -> None:
    data = wav(3.3, seed=4)
    with torch.inference_mode():
        codes = load(KINDS["breeze_tts_2"], device="cpu")(torch.from_numpy(decode(data))[None])[0]
    assert tiny.clone(data, TEXT).frames == tuple(map(tuple, codes.tolist()))


def codes(runtime: Runtime, reference: Reference) -> list[list[int]]:
    sampling = replace(runtime.spec.sampling, max_frames=5, min_frames=5)
    *chunks, end = runtime.stream(Request("hello there", sampling, reference=reference))
    assert isinstance(end, Finished)
    return [frame for chunk in chunks if isinstance(chunk, Chunk) for frame in chunk.codes.tolist()]


def test_it_speaks_with_the_voice_the_second_time_from_what_it_knows(tiny: Runtime) -> None:
    before = tiny.snapshot()
    first, other = tiny.clone(wav(2, seed=1), TEXT), tiny.clone(wav(2, seed=2), TEXT)
    again = tiny.clone(wav(2, seed=1), TEXT)
    assert first == again != other
    assert codes(tiny, first) == codes(tiny, again) != codes(tiny, other)
    after = tiny.snapshot()
    assert after["reference_cache_hits_total"] == before["reference_cache_hits_total"] + 1


def test_many_come_at_once_and_some_give_up(tiny: Runtime) -> None:
    attempts, ends = [Attempt() for _ in range(8)], dict[int, object]()

    def come(number: int) -> None:
        try:
            ends[number] = tiny.clone(wav(1.5 + 0.1 * number, seed=number), TEXT, attempts[number])
        except GivenUp as error:
            ends[number] = error

    threads = [threading.Thread(target=come, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for attempt in attempts[1::2]:
        attempt.give_up()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert all(isinstance(ends[number], Reference) for number in (0, 2, 4, 6))
    assert all(isinstance(ends[number], GivenUp) for number in (1, 3, 5, 7))


def test_an_engine_that_dies_while_it_listens_is_started_again(tiny: Runtime) -> None:
    outputs, restarts = list[Output](), tiny.snapshot()["engine_restarts"]
    over = threading.Event()

    def deliver(output: Output) -> None:
        outputs.append(output)
        over.set()

    tiny.encode(decode(wav(29)), deliver)
    tiny._link.kill()
    assert over.wait(60)
    assert isinstance(outputs[-1], Failed | Finished | Encoded)
    known = None
    for _ in range(600):
        try:
            known = tiny.clone(wav(2, seed=9), TEXT)
            break
        except CloneFailed as failed:
            assert failed.code in (ErrorCode.BUSY, ErrorCode.ENGINE_DIED)
            threading.Event().wait(0.1)  # while the next one loads its voice
    assert known is not None
    assert tiny.snapshot()["engine_restarts"] == restarts + 1
    assert codes(tiny, known) == codes(tiny, known)


def test_the_embedded_voice_has_one_clear_error() -> None:
    with Runtime.start(RuntimeConfig(EMBEDDED_VOICE, "cpu")) as runtime:
        with pytest.raises(RequestError) as raised:
            runtime.clone(wav(2), TEXT)
        frame = (0,) * runtime.spec.num_codebooks
        request = Request("Hello.", runtime.spec.sampling, reference=Reference(TEXT, (frame,)))
        (failed,) = runtime.stream(request)
    assert isinstance(failed, Failed)
    assert (failed.message, failed.field) == (str(raised.value), "reference")
    assert "speaks as itself only" in failed.message


def test_what_is_no_recording_is_refused(tiny: Runtime) -> None:
    for samples in (np.zeros(0, np.float32), np.zeros(9), np.full(9, np.nan, np.float32), b"sound"):
        with pytest.raises(RequestError, match="samples must be"):
            tiny.encode(samples, lambda output: None)  # type: ignore[arg-type]


def test_paths_and_addresses_are_no_recordings(tiny: Runtime, tmp_path: Path) -> None:
    (tmp_path / "mine.wav").write_bytes(wav(2))
    for data in (str(tmp_path / "mine.wav").encode(), b"http://127.0.0.1/mine.wav", b"file:///etc/passwd"):
        with pytest.raises(RequestError, match="must be an audio file"):
            tiny.clone(data, TEXT)


def test_what_a_reference_weighs_is_counted() -> None:
    codes = np.random.default_rng(0).integers(0, 2048, (375, 16))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = Reference("", tuple(tuple(row) for row in codes.tolist()), tuple(np.arange(2048.0).tolist()))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= num_bytes(made) <= 1.2 * taken
