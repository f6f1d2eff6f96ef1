"""Captured shapes: on the CPU a graph does its work again, so that all of the logic but CUDA's is held here."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from lockstep import Ask, lockstep

from engine import device as devices
from engine import random_weights
from engine.core import SPEAKING, Limits, Reference, Request, Stage
from engine.executor import MAX_RECORDINGS, Executor, default_limits, load
from engine.messages import RuntimeConfig
from engine.models import Model
from engine.shapes import Shape, Work

CPU = torch.device("cpu")
LIMITS = Limits(num_slots=6, num_pages=6 * 32, max_batch=dict.fromkeys(Stage, 4), batches=(1, 2, 4))
ALL = frozenset(Stage)


@pytest.fixture(scope="module")
def tiny() -> Model:
    return random_weights.load("tiny", device=CPU, dtype=torch.float32)


def asks(model: Model) -> list[Ask]:
    sampling = replace(model.spec.sampling, min_frames=0)
    reference = Reference("What was said there.", tuple((code,) * 16 for code in range(9)))
    requests = [
        Request("A short one.", sampling),
        Request("A longer one, of some more words than that. " * 8, replace(sampling, seed=7, depth_top_p=0.5)),
        Request("Guided.", replace(sampling, seed=8), instruction="slowly"),
        Request("Cloned.", replace(sampling, seed=9), reference=reference),
    ]
    return [(model.prompt(request), request.sampling) for request in requests]


def test_what_is_captured_does_what_is_not(tiny: Model) -> None:
    plain, captured = Executor(tiny, LIMITS), Executor(tiny, LIMITS, ALL)
    captured.capture()
    expected = lockstep(plain, LIMITS, asks(tiny), frames=20, chunk=100)
    said = lockstep(captured, LIMITS, asks(tiny), frames=20, chunk=100)
    assert captured.snapshot() == {"uncaptured_works_total": 0, "kernels_compiled_total": 0}
    for one, other in zip(said, expected, strict=True):
        assert one.codes == other.codes
        assert one.pcm == other.pcm
        assert one.ended_at == other.ended_at


def test_only_the_stages_asked_for_are_captured(tiny: Model) -> None:
    some, none = Executor(tiny, LIMITS, frozenset({Stage.DEPTH})), Executor(tiny, LIMITS)
    some.capture()
    none.capture()
    assert {shape.work for shape in some.memory} == {Work.DEPTH}
    assert not none.memory


def test_work_that_nothing_was_captured_for_is_counted(tiny: Model) -> None:
    executor = Executor(tiny, LIMITS, ALL)
    lockstep(executor, LIMITS, asks(tiny)[:1], frames=2)
    told = executor.snapshot()["uncaptured_works_total"]
    assert told == 1 + 1 + 1 + 3 * 2, "text, prefill, first code; depth, codec and decode of two frames"


def test_largest_shapes_are_captured_first(tiny: Model) -> None:
    executor, order = Executor(tiny, LIMITS, ALL), []

    def progress(shapes: Sequence[Shape]) -> Sequence[Shape]:
        order.extend(shapes)
        return shapes

    executor.capture(progress)
    assert list(executor.memory) == order
    sizes = [shape.size for shape in order]
    assert sizes == sorted(sizes, reverse=True)


def test_a_captured_graph_reads_its_values_anew_and_lends_its_outputs() -> None:
    total = torch.zeros(3, dtype=torch.int64)

    def body(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total.add_(values)
        return (total * 2,)

    graph = devices.Graph(body, 3, CPU, None)
    total.zero_()
    (first,) = devices.fetch(graph(torch.tensor([1, 2, 3]).numpy()))
    (second,) = devices.fetch(graph(torch.tensor([1, 0, 0]).numpy()))
    assert first.tolist() == [2, 4, 6], "a copy: the next call does not change it"
    assert second.tolist() == [4, 4, 6]


def test_too_little_memory_is_told_with_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: object) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 28.00 GiB. GPU 0 has a total capacity of ..."
        )

    monkeypatch.setattr("engine.executor.Executor", allocate)
    with pytest.raises(RuntimeError) as error:
        load(RuntimeConfig(device="cpu", random_weights="tiny", slots=3))
    assert str(error.value) == (
        "expected memory for the voice, its slots and their pages, this machine has less free; lower --slots, or take "
        "a device with more (CUDA out of memory. Tried to allocate 28.00 GiB)"
    )


def test_pages_are_as_many_as_there_is_memory_for(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of one head of 16 numbers, keys and values, float32: 256 bytes a position, 4096 a page."""
    assert default_limits(tiny, 3).num_pages == 3 * 512 // 16
    assert default_limits(tiny, 3).max_step_seconds == 0.06, "it is a CPU"
    monkeypatch.setattr(devices, "room", lambda _: 50 * 4096 + 4000)
    limits = default_limits(tiny, 300)
    assert (limits.num_slots, limits.num_pages) == (300, 50)
    assert limits.max_batch == {Stage.ENCODE: MAX_RECORDINGS, **dict.fromkeys(SPEAKING, 64)}
    monkeypatch.setattr(devices, "room", lambda _: 31 * 4096)
    with pytest.raises(RuntimeError, match="expected memory for 32 pages, so that one request fits"):
        default_limits(tiny, 1)
