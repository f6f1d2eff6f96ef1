"""Qwen3-TTS on a CUDA device, at full size with random weights: graphs in which no row depends on its neighbours, text
that comes in pieces, and the codec's fused kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from queue import SimpleQueue

import pytest
import torch
from lockstep import Ask, Said, lockstep

from engine import random_weights
from engine.core import Chunk, Finished, Limits, Output, Request, Row, Stage, Step
from engine.executor import Executor
from engine.messages import RuntimeConfig
from engine.models import Model
from engine.models.qwen3_tts import Qwen3TTS
from engine.runtime import Runtime

pytestmark = [
    pytest.mark.cuda,
    # justified: CI has no GPU
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
]
NAME = "qwen3-tts-1.7b"
LIMITS = Limits(num_slots=12, num_pages=12 * 128, max_batch=dict.fromkeys(Stage, 4), batches=(4,))
TEXT = "The same words, whoever else is speaking, and as many of them as it takes. " * 2
FRAMES = 24


@pytest.fixture(scope="module")
def full() -> Iterator[Model]:
    yield random_weights.load(NAME, device=torch.device("cuda"), dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def captured(full: Model) -> Executor:
    executor = Executor(full, LIMITS, frozenset(Stage))
    executor.capture()
    return executor


def ask(model: Model, text: str, **settings: float) -> Ask:
    sampling = replace(model.spec.sampling, min_frames=FRAMES, max_frames=FRAMES, **settings)
    return model.prompt(Request(text, sampling)), sampling


def same(one: Said, other: Said) -> bool:
    return one.codes == other.codes and one.pcm == other.pcm


def test_codes_are_bit_equal_whatever_the_neighbours(full: Model, captured: Executor) -> None:
    """In bfloat16: alone, in every place among others, and in slots that others had."""
    ours = ask(full, TEXT, seed=5)
    others = [
        ask(full, "A neighbour.", temperature=0.0, depth_temperature=0.0),
        ask(full, "Somebody else.", top_k=5, top_p=0.7, seed=6),
        ask(full, "The third one.", repetition_penalty=1.3, depth_top_p=0.5, seed=7),
    ]
    (alone,) = lockstep(captured, LIMITS, [ours], frames=FRAMES)
    assert len({tuple(frame) for frame in alone.codes}) > FRAMES // 2
    for place in range(4):
        together = lockstep(captured, LIMITS, [*others[:place], ours, *others[place:]], frames=FRAMES)
        assert same(together[place], alone), place
    (elsewhere,) = lockstep(captured, LIMITS, [ours], frames=FRAMES, first_slot=9)
    assert same(elsewhere, alone)
    assert not any(captured.snapshot().values()), "no work without a graph, and nothing compiled"


def test_a_captured_frame_is_that_of_plain_operations(full: Model, captured: Executor) -> None:
    """Of the same weights in float32: the states that graphs leave are no farther from them than those op by op."""
    exact = random_weights.load(NAME, device=torch.device("cuda"), dtype=torch.float32)
    reference, plain = Executor(exact, LIMITS), Executor(full, LIMITS)
    asks, rows = [ask(full, TEXT, temperature=0.0, depth_temperature=0.0)], (Row(0, (1,)),)
    for executor in (captured, plain, reference):
        lockstep(executor, LIMITS, asks, frames=0)
    reference.run(Step(Stage.DEPTH, rows))
    for executor in (captured, plain):
        executor.stages.codes[1] = reference.stages.codes[1]
    for executor in (captured, plain, reference):
        executor.run(Step(Stage.DECODE, rows))
    ours, others, expected = (executor.stages.hidden[1].float() for executor in (captured, plain, reference))
    assert error(ours, expected) < 1.2 * error(others, expected)


def test_the_codecs_kernels_say_what_its_plain_operations_say(full: Model, captured: Executor) -> None:
    plain, asks = Executor(full, LIMITS), [ask(full, TEXT, seed=3)]
    (ours,) = lockstep(captured, LIMITS, asks, frames=8)
    lockstep(plain, LIMITS, asks, frames=0)
    plain.stages.codes[1, :8] = captured.stages.codes[1, :8]
    heard = [plain.run(Step(Stage.CODEC, (Row(0, (1,), frame),))).pcm[0] for frame in range(8)]
    waves = torch.tensor(ours.pcm), torch.cat([torch.from_numpy(pcm) for pcm in heard])
    assert error(waves[0].double(), waves[1].double()) < 0.01, "TF32 against TF32"


def error(ours: torch.Tensor, expected: torch.Tensor) -> float:
    return float((ours.double() - expected.double()).norm() / expected.double().norm())


def test_text_in_pieces_gives_the_codes_of_the_whole() -> None:
    """Also while others speak; and nothing runs without a graph."""
    config = RuntimeConfig(device="cuda", random_weights=NAME, in_process=True, slots=8, max_wait=inf)
    with Runtime.start(config) as runtime:
        sampling = replace(runtime.spec.sampling, min_frames=40, max_frames=40, seed=11)
        whole = written(runtime, Request("", sampling, open=True), [TEXT])
        for size in (1, 5, 40):
            pieces = [TEXT[at : at + size] for at in range(0, len(TEXT), size)]
            assert written(runtime, Request("", sampling, open=True), pieces) == whole, size
        values = runtime.snapshot()
    assert (values["uncaptured_works_total"], values["kernels_compiled_total"]) == (0, 0)


def written(runtime: Runtime, request: Request, pieces: list[str]) -> list[list[int]]:
    outputs: SimpleQueue[Output] = SimpleQueue()
    number = runtime.submit(request, outputs.put)
    for piece in pieces:
        runtime.append_text(number, piece)
    runtime.end_text(number)
    codes: list[list[int]] = []
    while not isinstance(output := outputs.get(timeout=60), Finished):
        assert isinstance(output, Chunk), output
        codes += output.codes.tolist()
    return codes


@pytest.mark.parametrize("name", ["qwen3-tts-0.6b", NAME])
def test_a_fused_depth_step_draws_the_likeliest_codes(name: str) -> None:
    """In bfloat16, greedy: in some rows, in more than one tile of them, in as many as are captured. Plain operations
    say how likely each code was after those before it: none is far behind the likeliest one."""
    model = random_weights.load(name, device=torch.device("cuda"), dtype=torch.bfloat16)
    assert isinstance(model, Qwen3TTS)
    limits = Limits(num_slots=32, num_pages=32 * 16, max_batch=dict.fromkeys(Stage, 32), batches=(4, 12, 32))
    executor = Executor(model, limits, frozenset({Stage.DEPTH}))
    executor.capture()
    asks = [ask(model, f"Number {number}.", temperature=0.0, depth_temperature=0.0) for number in range(32)]
    lockstep(executor, limits, asks, frames=0)
    for count in (4, 12, 32):
        executor.run(Step(Stage.DEPTH, tuple(Row(number, (1 + number,)) for number in range(count))))
        hidden, codes = executor.stages.hidden[1 : 1 + count], executor.stages.codes[1 : 1 + count, 0]
        assert len({tuple(frame) for frame in codes.tolist()}) > 1
        with torch.inference_mode():
            _, logits = model.talker.code_predictor.logits(hidden, codes)
        chosen = logits.gather(2, codes[:, 1:, None])[..., 0]
        behind = (logits.amax(2) - chosen) / logits.std(2)
        assert behind.max() < 0.2, f"{count} rows: {behind.amax(0).tolist()}"
