"""agent/sight.py: what one call shows of how it is served, by literal times."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from agent.protocol import Speak, SpeechWaterfall, View
from agent.saying import Utterance
from agent.sight import MAX_STEPS, Sight, Steps
from engine.core import Chunk, Request, SamplingParams, Stage
from engine.recorder import Ran

NONE = Steps.of(())


def utterance(name: str = "a", request_id: int = 7, asked_at: float = 10.0, waited: bool = False) -> Utterance:
    said = Utterance(Speak(id=name, text="Hello."), Request("Hello.", SamplingParams()), 24_000, "", asked_at, waited)
    said.request_id = request_id
    return said


def chunk(frames: int = 1, request_id: int = 7, slack: float = 0.05, made_at: float | None = None) -> Chunk:
    pcm, codes = np.zeros(1920 * frames, np.int16), np.zeros((frames, 1), np.int16)
    return Chunk(request_id, 0, 0, pcm, codes, slack, made_at=made_at)


def step(stage: Stage, started_at: float, elapsed: float, *requests: int) -> Ran:
    return Ran(stage, len(requests), 1, started_at, elapsed, False, requests)


def view(messages: list[object]) -> View:
    (shown,) = (message for message in messages if isinstance(message, View))
    return shown


def test_chunks_and_steps_are_shown_once_with_what_is_ours() -> None:
    sight, said = Sight(1920), utterance()
    sight.take_chunk(said, chunk(1), 10.10)
    sight.take_chunk(said, chunk(2, slack=inf), 10.14)
    steps = Steps.of([step(Stage.DEPTH, 10.11, 0.02, 7, 8), step(Stage.CODEC, 10.13, 0.01, 8)])
    shown = view(sight.told(10.2, 0.04, 0.2, "a", steps, [(3, 80.0, 1)]))
    assert shown.chunks == (("a", pytest.approx(10_100), 1, pytest.approx(50)), ("a", pytest.approx(10_140), 2, None))
    assert shown.steps == (
        ("depth", pytest.approx(10_110), pytest.approx(20), 2, 1),
        ("codec", pytest.approx(10_130), pytest.approx(10), 1, 0),
    )
    assert (shown.at, shown.playing, shown.peers) == (10_200, "a", ((3, 80.0, 1),))
    later = view(sight.told(10.3, 0.14, 0.1, "a", NONE, []))
    assert (later.chunks, later.steps) == ((), ())


def test_the_waterfall_adds_up_to_the_time_from_asking_to_the_first_packet() -> None:
    sight, said = Sight(1920), utterance(asked_at=10.0)
    steps = Steps.of(
        [
            step(Stage.DEPTH, 9.98, 0.015, 1),
            step(Stage.TEXT, 10.004, 0.010, 7),
            step(Stage.PREFILL, 10.014, 0.012, 7),
            step(Stage.DEPTH, 10.026, 0.015, 1),  # another's
            step(Stage.DEPTH, 10.041, 0.016, 1, 7),
            step(Stage.CODEC, 10.057, 0.011, 7),
            step(Stage.DECODE, 10.069, 0.005, 7),  # for the next frame
        ]
    )
    said.take(chunk(made_at=10.068), 10.070)
    sight.take_chunk(said, chunk(made_at=10.068), 10.070)
    sight.take_start(said, 10.082)
    assert [type(message) for message in sight.told(10.1, 0.0, 0.0, "a", steps, [])] == [View], "not settled yet"
    waterfall, shown = sight.told(10.44, 0.0, 0.0, "a", NONE, [])
    assert isinstance(waterfall, SpeechWaterfall)
    assert isinstance(shown, View)
    parts = {name: getattr(waterfall, name) for name in waterfall.__struct_fields__ if name != "id"}
    assert parts == {
        "queued_ms": pytest.approx(4),
        "text_ms": pytest.approx(10),
        "prefill_ms": pytest.approx(12),
        "decode_ms": 0.0,
        "depth_ms": pytest.approx(16),
        "codec_ms": pytest.approx(11),
        "waited_ms": pytest.approx(15),
        "delivered_ms": pytest.approx(2),
        "playout_ms": pytest.approx(12),
    }
    assert sum(parts.values()) == pytest.approx(82)
    assert len(sight.told(10.54, 0.0, 0.0, "a", NONE, [])) == 1, "it is told once"


def test_what_waited_for_another_utterance_has_no_waterfall() -> None:
    sight, said = Sight(1920), utterance(waited=True)
    said.take(chunk(), 10.07)
    sight.take_chunk(said, chunk(), 10.07)
    sight.take_start(said, 10.08)
    assert [type(message) for message in sight.told(11.0, 0.0, 0.0, "a", NONE, [])] == [View]


def test_a_view_is_bounded_whatever_happens() -> None:
    sight, said = Sight(1920), utterance()
    for count in range(1000):
        sight.take_chunk(said, chunk(request_id=count), 10.0)
        sight.take_start(said, 10.0)
    steps = Steps.of([step(Stage.DEPTH, 10.0, 0.01, *range(64))] * 1000)
    shown = view(sight.told(10.1, 0.0, 0.0, None, steps, [(number, 0.0, 2) for number in range(100)]))
    assert (len(shown.chunks), len(shown.steps), len(shown.peers), shown.calls) == (32, MAX_STEPS, 16, 100)
