"""The engine through its handle: audio, cancel, refusals, and the death of its process."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import Queue

import numpy as np
import pytest

from engine import link
from engine import runtime as runtimes
from engine.checks import RequestError
from engine.clock import MonotonicClock
from engine.core import (
    SPEAKING,
    Chunk,
    End,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    Limits,
    Mode,
    ModelSpec,
    Output,
    Playhead,
    Request,
    SamplingParams,
    Stage,
)
from engine.messages import Ready, RuntimeConfig, StartUp
from engine.recorder import Ran
from engine.runtime import EngineError, Runtime

ROOT = Path(__file__).resolve().parent.parent
TEXT = "Good morning, how can I help you today?"


def ask(runtime: Runtime, text: str = TEXT, **sampling: object) -> Request:
    return Request(text, replace(runtime.spec.sampling, **sampling))  # type: ignore[arg-type]


def last_word(outputs: "Queue[Output]") -> Output:
    while not isinstance(output := outputs.get(timeout=60), End):
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
    [("", "something to say"), ("   ", "something to say"), ("a" * 5000, "360")],
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
        if isinstance(output, End):
            ends.put(output)

    ids = {runtime.submit(ask(runtime, f"Number {i}.", max_frames=12), deliver) for i in range(20)}
    assert {ends.get(timeout=120).request_id for _ in ids} == ids


class Locked(str):
    """A caller's own kind of text, which cannot be sent."""

    def __reduce__(self) -> str:
        raise TypeError("cannot pickle 'lock' object")


class Foreign(str):
    """A caller's own kind of text, which the engine's process cannot read."""

    def __reduce__(self) -> tuple[object, tuple[object]]:
        return __import__, ("theirs",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\ud800", "text that the voice can read"),
        (Locked("Hi."), "text must be plain data that can be pickled, got 'Hi.'"),
        (Foreign("Hi."), "No module named 'theirs'"),
    ],
)
def test_a_malformed_request_is_its_own_failure(runtime: Runtime, text: str, says: str) -> None:
    bystander: Queue[Output] = Queue()
    runtime.submit(ask(runtime, max_frames=8), bystander.put)
    (failed,) = runtime.stream(replace(ask(runtime, text), epoch=5))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.epoch) == (ErrorCode.BAD_REQUEST, 5)
    assert says in failed.message
    assert isinstance(last_word(bystander), Finished)
    snapshot = runtime.snapshot()
    assert (snapshot["engine_up"], snapshot["engine_restarts"], snapshot["open_requests"]) == (1, 0, 0)


def test_what_is_no_request_no_id_and_no_playhead_is_its_callers_error(runtime: Runtime) -> None:
    """It does not leave the caller's thread. What is wrong in them: tests/test_core.py."""
    now = MonotonicClock().now()
    with pytest.raises(RequestError, match=r"a request must be a Request, got 'Hi\.'"):
        runtime.submit("Hi.", print)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"request_id must be a whole number, got \[1\]"):
        runtime.cancel([1])  # type: ignore[arg-type]
    for write in (runtime.append_text, runtime.end_text):
        with pytest.raises(RequestError, match=r"request_id must be a whole number, got \[\]"):
            write([], "more")  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=r"request_id must be from 0 to \d+, got -1"):
            write(-1, "more")
        with pytest.raises(RequestError, match=r"text must be text, got b'more'"):
            write(1, b"more")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="a playhead must be a Playhead, got None"):
        runtime.playhead(None)  # type: ignore[arg-type]
    for at in (1e12, now + 60.0, -1e12, -60.0):
        with pytest.raises(RequestError, match=r"at must be an instant of the engine's clock, at .* now, got "):
            runtime.playhead(Playhead(1, 0, at))
    runtime.playhead(Playhead(10**9, 2**53, now, jitter=1e15))
    runtime.cancel(10**9)
    *_, end = runtime.stream(replace(ask(runtime, "Still here.", max_frames=8), follows=10**9))
    assert isinstance(end, Finished)


def test_a_deliver_that_raises_harms_nobody_else(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    def deliver(output: Output) -> None:
        raise OSError("a caller's own trouble")

    outputs: Queue[Output] = Queue()
    runtime.submit(ask(runtime, TEXT), deliver)
    runtime.submit(ask(runtime, TEXT), outputs.put)
    assert isinstance(last_word(outputs), Finished)
    assert runtime.snapshot()["engine_up"] == 1
    assert "a caller could not take its output" in caplog.text


def test_a_storm_from_many_threads_ends_every_request_once(runtime: Runtime) -> None:
    """Submits, bad texts, cancels and playheads in both directions at once: the pipe must not lock up."""
    ends: Queue[int] = Queue()
    ids: Queue[int] = Queue()

    def deliver(output: Output) -> None:
        if isinstance(output, End):
            ends.put(output.request_id)

    def storm(seed: int) -> None:
        for i in range(150):
            text = "" if i % 3 else f"{seed} {i}."
            request_id = runtime.submit(ask(runtime, text, max_frames=4), deliver)
            ids.put(request_id)
            runtime.playhead(Playhead(request_id, 0, 0.0))
            if i % 2:
                runtime.cancel(request_id)

    threads = [threading.Thread(target=storm, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a submit must never wait for the engine"
    asked = sorted(ids.get() for _ in range(600))
    assert sorted(ends.get(timeout=60) for _ in asked) == asked
    assert ends.empty()


def test_the_policy_may_be_changed_while_somebody_is_served(runtime: Runtime) -> None:
    with pytest.raises(RequestError, match=r"a policy must be one of .*newest-first.*, got 'fastest'"):
        runtime.use_policy("fastest")
    ends = []
    for name in ("newest-first", "predictor"):
        speech = runtime.stream(ask(runtime))
        next(speech)
        runtime.use_policy(name)
        ends += [output for output in speech if isinstance(output, End)]
    assert [end.reason for end in ends if isinstance(end, Finished)] == [FinishReason.END] * 2


def test_who_follows_the_steps_gets_them_as_they_are_told(runtime: Runtime) -> None:
    told: Queue[Sequence[Ran]] = Queue()
    runtime.follow(told.put)
    try:
        runtime.ran()
        outputs: Queue[Output] = Queue()
        request_id = runtime.submit(ask(runtime), outputs.put)
        last_word(outputs)
        stages = set[Stage]()
        while stages < set(SPEAKING):
            stages |= {ran.stage for ran in told.get(timeout=60) if request_id in ran.requests}
        assert not runtime.ran(), "nothing is kept beside that"
    finally:
        runtime.follow(None)


def test_everything_is_given_back(runtime: Runtime) -> None:
    """Also what was cancelled at any moment of its life: as text, in prefill, between frames, in audio."""
    outputs: Queue[Output] = Queue()
    for pause in (0.0, 0.005, 0.02, 0.04, 0.08, 0.16, 0.32):
        request_id = runtime.submit(ask(runtime, TEXT * 4), outputs.put)
        threading.Event().wait(pause)  # the moment at which it is cancelled is the point
        runtime.cancel(request_id)
        assert isinstance(last_word(outputs), Finished)
    *_, end = runtime.stream(ask(runtime, "And on.", max_frames=8))
    assert isinstance(end, Finished)
    free = {"slots_free": runtime.limits.num_slots, "pages_free": runtime.limits.num_pages, "open_requests": 0}
    for _ in range(100):
        if free.items() <= runtime.snapshot().items():
            return
        threading.Event().wait(0.05)  # the engine tells when it has nothing left to do
    assert free.items() <= runtime.snapshot().items()


def test_ttfa_counts_from_the_call_of_submit(runtime: Runtime) -> None:
    clock = MonotonicClock()
    first: Queue[float] = Queue()
    ends: Queue[Output] = Queue()

    def deliver(output: Output) -> None:
        if isinstance(output, Chunk):
            first.put(clock.now())
        elif isinstance(output, End):
            ends.put(output)

    before = clock.now()
    runtime.submit(ask(runtime, TEXT, max_frames=3), deliver)
    after = clock.now()
    end = ends.get(timeout=60)
    assert isinstance(end, Finished)
    assert before <= end.stats.submitted_at <= after
    assert end.stats.first_chunk_at is not None
    assert end.stats.first_chunk_at <= first.get()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_leaves_the_end_to_the_owner(runtime: Runtime, number: signal.Signals) -> None:
    for process in multiprocessing.active_children():
        assert process.pid is not None
        os.kill(process.pid, number)
    *_, end = runtime.stream(ask(runtime, "Still here.", max_frames=8))
    assert isinstance(end, Finished)


FORGETFUL = """
import multiprocessing
from engine.messages import RuntimeConfig
from engine.runtime import Runtime
if __name__ == "__main__":
    runtime = Runtime.start(RuntimeConfig(device="cpu"))
    (engine,) = multiprocessing.active_children()
    print(engine.pid, flush=True)
    raise SystemExit(3)
"""


def test_a_program_that_forgets_to_close_its_runtime_ends_all_the_same(tmp_path: Path) -> None:
    script = tmp_path / "forgetful.py"
    script.write_text(FORGETFUL)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_death_of_the_engine_is_told_and_mended() -> None:
    others = set(multiprocessing.active_children())
    with Runtime.start(RuntimeConfig(device="cpu")) as runtime:
        (engine,) = set(multiprocessing.active_children()) - others
        outputs: Queue[Output] = Queue()
        runtime.submit(ask(runtime, TEXT * 5), outputs.put)
        assert isinstance(outputs.get(timeout=60), Chunk)
        runtime.use_policy("newest-first")
        engine.kill()
        failed = outputs.get(timeout=1)
        while not isinstance(failed, End):
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
        assert runtime.config.policy == "newest-first", "as it was asked for, in the new one too"


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


def test_close_ends_an_engine_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "KILL_SECONDS", 0.2)
    before = set(multiprocessing.active_children())
    runtime = Runtime.start(RuntimeConfig(device="cpu"))
    (engine,) = set(multiprocessing.active_children()) - before
    assert engine.pid is not None
    outputs: Queue[Output] = Queue()
    runtime.submit(ask(runtime, TEXT * 5), outputs.put)
    os.kill(engine.pid, signal.SIGSTOP)
    runtime.close()
    end = last_word(outputs)
    assert isinstance(end, Failed)
    assert end.code is ErrorCode.CLOSED


class DyingLink:
    """An engine that loads and then dies, as often as it is started; `broken`: from then on it does not even load."""

    started = 0
    broken: int | None = None

    def __init__(self, config: RuntimeConfig) -> None:
        DyingLink.started += 1

    def ready(self) -> Ready:
        if DyingLink.broken is not None and DyingLink.started > DyingLink.broken:
            raise EngineError("its folder is gone")
        spec = ModelSpec("dying", "none", 24000, 1920, 16, 100, frozenset({Mode.PLAIN}), SamplingParams())
        return Ready(spec, Limits(), "nothing", StartUp(0.0, 0.0, 0.0, 0, 0))

    def receive(self) -> Output:
        raise EOFError

    def send(self, message: object) -> None: ...
    def release(self) -> None: ...
    def end(self) -> None: ...


@pytest.mark.parametrize(("broken", "starts", "says"), [(None, 4, "4 times in a row"), (1, 2, "its folder is gone")])
def test_an_engine_that_keeps_dying_stays_down_and_says_so(
    broken: int | None, starts: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "Link", DyingLink)
    monkeypatch.setattr(runtimes, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(DyingLink, "started", 0)
    monkeypatch.setattr(DyingLink, "broken", broken)
    with Runtime.start() as runtime:
        runtime._reader.join(timeout=10)
        assert DyingLink.started == starts
        (failed,) = runtime.stream(ask(runtime))
        assert isinstance(failed, Failed)
        assert (failed.code, failed.retry_after) == (ErrorCode.ENGINE_DIED, None)
        assert says in failed.message
        assert runtime.snapshot()["engine_up"] == 0


class ListeningLink(DyingLink):
    """An engine that is told things and says nothing until it is told to end."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.sent: list[object] = []
        self.over = threading.Event()

    def receive(self) -> Output:
        self.over.wait()
        raise EOFError

    def send(self, message: object) -> None:
        self.sent.append(message)

    def end(self) -> None:
        self.over.set()


def test_playheads_go_on_when_a_request_was_made_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its audio is still being played, and what follows it is due at its end."""
    monkeypatch.setattr(runtimes, "Link", ListeningLink)
    with Runtime.start() as runtime:
        playhead = Playhead(request_id=1, played_samples=480, at=2.0)
        runtime.playhead(playhead)
        assert runtime._link.sent == [playhead]  # type: ignore[attr-defined]


def test_a_foreign_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config\.json"):
        Runtime.start(RuntimeConfig(voice=tmp_path, device="cpu", in_process=True))
