"""The command `bench speech`: what a scripted runtime says is waited for, and told. The engine's own is in
test_commands.py.
"""

from collections.abc import Callable
from typing import cast

import pytest
from scripted_runtime import SPEC, ScriptedRuntime

from engine.bench import Listener, first_audio, fitting, fixed, speak
from engine.clock import MonotonicClock
from engine.core import Output, Queued, Request, SamplingParams
from engine.runtime import Runtime


class Queueing(ScriptedRuntime):
    """Tells everybody to wait before it speaks."""

    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int:
        deliver(Queued(0, 0, 0.5))
        return super().submit(request, deliver)


def test_only_the_end_is_the_end() -> None:
    engine = ScriptedRuntime()
    listener = Listener(MonotonicClock(), 0.0, SPEC.sample_rate)
    engine.submit(Request("Hm.", SPEC.sampling), listener.deliver)
    engine.queue(1, 0.5)
    assert not listener.over.is_set()
    engine.say(1, frames=2)
    assert not listener.over.is_set()
    assert [seconds for _, seconds in listener.arrivals] == [0.16]
    engine.finish(1)
    assert listener.over.is_set()
    assert listener.stats is not None


def test_those_who_wait_are_waited_for() -> None:
    with Queueing(pace=0.001) as engine:
        heard = speak(cast("Runtime", engine), [Request("Hallo.", SPEC.sampling), Request("You.", SPEC.sampling)])
    assert [len(listener.arrivals) for listener in heard] == [3, 2]
    assert all(listener.stats for listener in heard)


def test_who_is_refused_is_an_error() -> None:
    engine = ScriptedRuntime()
    engine.retry_after = 1.0
    with pytest.raises(RuntimeError, match="all voices are busy"):
        speak(cast("Runtime", engine), [Request("Hallo.", SPEC.sampling)])


def test_first_audio_is_the_first_chunk_and_the_rest_is_not_wanted() -> None:
    with Queueing(pace=0.02, chunk_frames=4) as engine:
        seconds, frames = first_audio(cast("Runtime", engine), Request("Good morning.", SPEC.sampling))
        assert frames == 4
        assert 0.02 <= seconds < 2.0
        assert engine.cancelled == [1]
        assert engine.jobs[1].frames < 13


def test_who_hears_nothing_is_an_error() -> None:
    with ScriptedRuntime(pace=0.0) as engine, pytest.raises(RuntimeError, match="expected a first chunk"):
        first_audio(cast("Runtime", engine), Request("", SPEC.sampling))


def test_speech_of_a_fixed_length_ends_neither_before_nor_after() -> None:
    assert fixed(SamplingParams(seed=3, max_frames=1500), 75) == SamplingParams(seed=3, min_frames=75, max_frames=75)


def test_numbers_are_those_that_the_engine_is_good_for() -> None:
    assert fitting("--batches", None, (1, 2, 4, 8, 16), 8) == (1, 2, 4, 8)
    assert fitting("--batches", [4, 1, 4], (1, 2), 8) == (1, 4)
    with pytest.raises(ValueError, match="--batches must be at most 8, as many as the engine runs at once, got 16"):
        fitting("--batches", [16], (1, 2), 8)
