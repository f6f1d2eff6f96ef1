"""The engine through its handle: audio, cancel, refusals, and the death of its process."""

import multiprocessing
import threading
from dataclasses import replace
from pathlib import Path
from queue import Queue

import numpy as np
import pytest

from engine.core import Chunk, ErrorCode, Failed, Finished, FinishReason, Output, Request
from engine.messages import RuntimeConfig
from engine.runtime import EngineError, Runtime

TEXT = "Good morning, how can I help you today?"


def ask(runtime: Runtime, text: str = TEXT, **sampling: object) -> Request:
    return Request(text, replace(runtime.spec.sampling, **sampling))  # type: ignore[arg-type]


def last_word(outputs: "Queue[Output]") -> Output:
    while isinstance(output := outputs.get(timeout=60), Chunk):
        pass
    return output


def test_it_speaks(runtime: Runtime) -> None:
    *chunks, end = runtime.stream(ask(runtime))
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.END
    frames = [chunk.first_frame for chunk in chunks if isinstance(chunk, Chunk)]
    sizes = [len(chunk.codes) for chunk in chunks if isinstance(chunk, Chunk)]
    assert frames == [sum(sizes[:i]) for i in range(len(sizes))], "each frame once, in order"
    assert sizes[0] == 1, "the first chunk is one frame"
    pcm = np.concatenate([chunk.pcm for chunk in chunks if isinstance(chunk, Chunk)])
    assert len(pcm) == sum(sizes) * runtime.spec.samples_per_frame == end.stats.num_frames * 1920
    assert 1.0 < end.stats.audio_seconds < 5.0, "eight words take seconds, not an instant and not a minute"
    assert np.abs(pcm.astype(float)).mean() > 100, "it is not silence"


def test_the_same_seed_gives_the_same_audio(runtime: Runtime) -> None:
    def codes(seed: int) -> list[list[int]]:
        outputs = runtime.stream(ask(runtime, "Yes, of course.", seed=seed, temperature=0.7, depth_temperature=0.7))
        return [frame for out in outputs if isinstance(out, Chunk) for frame in out.codes.tolist()]

    assert codes(1) == codes(1)
    assert codes(1) != codes(2)


def test_a_limit_ends_the_utterance(runtime: Runtime) -> None:
    *_, end = runtime.stream(ask(runtime, max_frames=5))
    assert isinstance(end, Finished)
    assert (end.reason, end.stats.num_frames) == (FinishReason.LENGTH, 5)


def test_cancel_ends_it_once(runtime: Runtime) -> None:
    outputs: Queue[Output] = Queue()
    request_id = runtime.submit(ask(runtime, TEXT * 5), outputs.put)
    assert isinstance(outputs.get(timeout=60), Chunk)
    runtime.cancel(request_id)
    runtime.cancel(request_id)
    end = last_word(outputs)
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.CANCELLED
    *_, after = runtime.stream(ask(runtime, "Fine.", max_frames=20))
    assert isinstance(after, Finished)
    assert outputs.empty(), "nothing after the last word"


def test_a_caller_that_stops_listening_cancels(runtime: Runtime) -> None:
    outputs = runtime.stream(ask(runtime, TEXT * 5))
    next(outputs)
    outputs.close()
    *_, end = runtime.stream(ask(runtime, "Fine.", max_frames=20))
    assert isinstance(end, Finished)
    assert runtime.snapshot()["open_requests"] == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "something to say"), ("   ", "something to say"), ("a" * 5000, "1024"), ("<|AUDIO|>", "AUDIO")],
)
def test_text_that_cannot_be_spoken_fails_with_a_reason(runtime: Runtime, text: str, says: str) -> None:
    (failed,) = runtime.stream(ask(runtime, text))
    assert isinstance(failed, Failed)
    assert failed.code is ErrorCode.BAD_REQUEST
    assert says in failed.message


def test_a_mode_that_the_voice_lacks_is_refused(runtime: Runtime) -> None:
    (failed,) = runtime.stream(replace(ask(runtime), instruction="whisper"))
    assert isinstance(failed, Failed)
    assert "instruction" in failed.message


def test_many_at_once_all_end(runtime: Runtime) -> None:
    ends: Queue[Output] = Queue()

    def deliver(output: Output) -> None:
        if not isinstance(output, Chunk):
            ends.put(output)

    ids = {runtime.submit(ask(runtime, f"Number {i}.", max_frames=12), deliver) for i in range(20)}
    assert {ends.get(timeout=120).request_id for _ in ids} == ids


def test_death_of_the_engine_is_told_and_mended() -> None:
    with Runtime.start(RuntimeConfig(device="cpu")) as runtime:
        before = set(multiprocessing.active_children())
        outputs: Queue[Output] = Queue()
        runtime.submit(ask(runtime, TEXT * 5), outputs.put)
        assert isinstance(outputs.get(timeout=60), Chunk)
        newest = max(before, key=lambda process: process.pid or 0)
        newest.kill()
        failed = outputs.get(timeout=1)
        while isinstance(failed, Chunk):
            failed = outputs.get(timeout=1)
        assert isinstance(failed, Failed)
        assert failed.code is ErrorCode.ENGINE_DIED
        (refused,) = runtime.stream(ask(runtime))
        assert isinstance(refused, Failed)
        assert (refused.code, refused.retry_after) == (ErrorCode.BUSY, 5.0)
        up = threading.Event()
        while not runtime.snapshot()["engine_up"]:
            up.wait(0.05)  # a new process loads PyTorch: seconds, and nothing tells but the snapshot
        *_, end = runtime.stream(ask(runtime, "Back again."))
        assert isinstance(end, Finished)
        assert runtime.snapshot()["engine_restarts"] == 1


def test_close_waits_for_the_running_and_refuses_the_new() -> None:
    runtime = Runtime.start(RuntimeConfig(device="cpu", in_process=True))
    outputs: Queue[Output] = Queue()
    runtime.submit(ask(runtime, "One more thing."), outputs.put)
    runtime.close(grace=60)
    assert isinstance(last_word(outputs), Finished)
    (failed,) = runtime.stream(ask(runtime))
    assert isinstance(failed, Failed)
    assert failed.code is ErrorCode.CLOSED


def test_close_without_grace_tells_the_running() -> None:
    runtime = Runtime.start(RuntimeConfig(device="cpu", in_process=True))
    outputs: Queue[Output] = Queue()
    runtime.submit(ask(runtime, TEXT * 5), outputs.put)
    runtime.close()
    end = last_word(outputs)
    assert isinstance(end, Failed)
    assert end.code is ErrorCode.CLOSED


def test_a_foreign_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config\.json"):
        Runtime.start(RuntimeConfig(voice=tmp_path, device="cpu", in_process=True))
