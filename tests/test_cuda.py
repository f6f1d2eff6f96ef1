"""On a CUDA device: the codes of the CPU under greedy in float32, audio in bfloat16, and graphs of fused kernels in
which no row depends on its neighbours."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
import torch
from lockstep import Ask, Said, admitted, lockstep, wave
from test_cloning import wav
from voices import KINDS

from engine import models, random_weights
from engine.batch import TOKENS, bucket
from engine.core import Chunk, Finished, Limits, Request, Row, Stage, Step
from engine.executor import Executor
from engine.messages import EMBEDDED_VOICE, RuntimeConfig
from engine.models import Model
from engine.runtime import Runtime
from engine.sampling import Filter, draw

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
]
LIMITS = Limits(num_slots=4, num_pages=4 * 64)
FULL = Limits(num_slots=12, num_pages=12 * 128, max_batch=dict.fromkeys(Stage, 4), batches=(4,))
ALL = frozenset(Stage)
TEXTS = ("Good morning.", "The same words on another device.", "And a third sentence, of some length.")


def spoken(
    device: str, dtype: torch.dtype, graphs: frozenset[Stage] = ALL
) -> list[tuple[list[list[int]], torch.Tensor]]:
    model = models.load(EMBEDDED_VOICE, device=torch.device(device), dtype=dtype)
    sampling = replace(model.spec.sampling, temperature=0.0, depth_temperature=0.0)
    asks = [(model.prompt(Request(text, sampling)), sampling) for text in TEXTS]
    executor = Executor(model, LIMITS, graphs)
    executor.capture()
    said = lockstep(executor, LIMITS, asks, frames=20)
    assert not any(executor.snapshot().values()), "no work without a graph, and nothing compiled"
    return [(one.codes, torch.from_numpy(wave(one))) for one in said]


@pytest.mark.parametrize("graphs", [ALL, frozenset()])
def test_greedy_codes_in_float32_are_the_cpus(graphs: frozenset[Stage]) -> None:
    ours, cpus = spoken("cuda", torch.float32, graphs), spoken("cpu", torch.float32, frozenset())
    for (codes, audio), (theirs, their_audio) in zip(ours, cpus, strict=True):
        assert codes == theirs
        assert (audio - their_audio).abs().max() < 2e-3  # convolutions use TF32


def test_bfloat16_speaks() -> None:
    for codes, audio in spoken("cuda", torch.bfloat16):
        assert len({tuple(frame) for frame in codes}) > 10
        assert 0.01 < audio.square().mean().sqrt() < 0.5


@pytest.fixture(scope="module")
def full() -> Iterator[Model]:
    """All dimensions of Breeze TTS 2, all stages fused."""
    yield random_weights.load("breeze-tts-2", device=torch.device("cuda"), dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def captured(full: Model) -> Executor:
    executor = Executor(full, FULL, ALL)
    executor.capture()
    return executor


def ask(model: Model, text: str, **settings: float) -> Ask:
    sampling = replace(model.spec.sampling, min_frames=24, max_frames=24, **settings)
    instruction = "slowly" if "cfg_scale" in settings else ""
    return model.prompt(Request(text, sampling, instruction=instruction)), sampling


def tokens(*asks: Ask) -> int:
    """The capacity of the pack that their texts are in."""
    return bucket(sum(prompt.text_tokens for prompt, _ in asks), TOKENS)


def same(one: Said, other: Said) -> bool:
    return one.codes == other.codes and one.pcm == other.pcm


def test_codes_are_bit_equal_whatever_the_neighbours(full: Model, captured: Executor) -> None:
    """In bfloat16, in one shape of every stage: alone, in every place among others, and in slots that others had."""
    ours = ask(full, "The same words, whoever else is speaking, and as many of them as it takes. " * 2, seed=5)
    others = [
        ask(full, "A neighbour.", temperature=0.0, depth_temperature=0.0),
        ask(full, "Somebody else.", top_k=5, top_p=0.7, seed=6),
        ask(full, "The third one.", repetition_penalty=1.3, depth_top_p=0.5, seed=7),
    ]
    assert tokens(ours) == tokens(ours, *others), "one shape of text; and of prefill, where ours is the longest"
    (alone,) = lockstep(captured, FULL, [ours], frames=24)
    assert len({tuple(frame) for frame in alone.codes}) > 12
    for place in range(4):
        together = lockstep(captured, FULL, [*others[:place], ours, *others[place:]], frames=24)
        assert same(together[place], alone), place
    (elsewhere,) = lockstep(captured, FULL, [ours], frames=24, first_slot=9)
    assert same(elsewhere, alone)
    assert not any(captured.snapshot().values()), "no work without a graph, and nothing compiled"


def test_codes_are_bit_equal_beside_a_guided_request(full: Model, captured: Executor) -> None:
    """Which doubles the backbone's batch: the plain one beside it is in one shape with itself beside another."""
    plain = ask(full, "Without.", seed=3)
    texts = (
        "With guidance, and some more words than the other one has.",
        "As well, and just as many of them as that one has.",
    )
    guided = [ask(full, text, seed=4, cfg_scale=3.0) for text in texts]
    assert len({tokens(one, *rest) for one in guided for rest in ((), (plain,))}) == 1
    beside = [lockstep(captured, FULL, [one, plain], frames=24) for one in guided]
    (alone,) = lockstep(captured, FULL, guided[:1], frames=24)
    assert same(beside[0][1], beside[1][1])
    assert same(beside[0][0], alone)


def test_what_belongs_to_others_reaches_nobody(full: Model, captured: Executor) -> None:
    """NaN in page 0, slot 0 and every page and slot of others changes no result."""
    ours = ask(full, "Untouched.", seed=9)
    (clean,) = lockstep(captured, FULL, [ours], frames=24)
    state, stages = captured.state, captured.stages
    for tensor in (state.kv.keys, state.kv.values, state.codec.columns, stages.prompts, stages.hidden):
        tensor.fill_(nan)
    (dirty,) = lockstep(captured, FULL, [ours], frames=24)
    assert same(dirty, clean)


def test_no_bit_of_a_text_depends_on_its_pack(full: Model, captured: Executor) -> None:
    """Wherever it stands there (long ones come first), and whether its neighbour's tokens are numbers or NaN."""
    ours, long = ask(full, "In the middle of them all, or at an end. " * 2), ask(full, "Longer. " * 16)
    short, shorter, beyond = (
        ask(full, text) for text in ("Short, but not as short as that. ", "Short.", "Beyond. " * 12)
    )
    packs = [[ours, short, shorter], [long, ours], [shorter, beyond, ours], [short, ours, beyond]]
    assert {tokens(*asks) for asks in packs} == {64}
    first = own_states(captured, packs[0], 0)
    for asks in packs:
        assert torch.equal(own_states(captured, asks, asks.index(ours)), first), len(asks)
    table, said = full.text_encoder.embed_tokens.weight, ids_of(ours)  # type: ignore[attr-defined]
    broken = next(i for i in ids_of(long) if i not in said)
    kept = table[broken].clone()
    table[broken] = nan
    try:
        assert own_states(captured, [long, ours], 0).isnan().all()
        assert torch.equal(own_states(captured, [long, ours], 1), first)
    finally:
        table[broken] = kept


def ids_of(ask: Ask) -> list[int]:
    return [i for row in ask[0].rows for segment in row.segments for i in segment.ids]  # type: ignore[union-attr]


def own_states(executor: Executor, asks: list[Ask], place: int) -> torch.Tensor:
    """What a text step leaves for the backbone, of one of the requests."""
    executor.stages.prompts.zero_()
    executor.run(Step(Stage.TEXT, tuple(admitted(FULL, asks, 1))))
    return executor.stages.prompts[1 + place, : asks[place][0].length].clone()


def test_fused_stages_are_as_exact_as_plain_ones(full: Model, captured: Executor) -> None:
    """Against the same weights in float32: text and prefill by the states they leave, then a codec step and a decode
    step for the same codes."""
    exact = random_weights.load("breeze-tts-2", device=torch.device("cuda"), dtype=torch.float32)
    reference, plain = Executor(exact, FULL), Executor(full, FULL)
    asks, slots = [ask(full, text, temperature=0.0, depth_temperature=0.0) for text in TEXTS], slice(1, 1 + len(TEXTS))
    executors = (captured, plain, reference)
    for executor in executors:
        lockstep(executor, FULL, asks, frames=0)
    hidden = [executor.stages.hidden[slots].float() for executor in executors]
    assert error(hidden[0], hidden[2]) < 1.2 * error(hidden[1], hidden[2])
    rows = tuple(Row(i, (1 + i,)) for i in range(len(asks)))
    reference.run(Step(Stage.DEPTH, rows))
    for executor in executors[:2]:
        executor.stages.codes[slots] = reference.stages.codes[slots]
    audio = [torch.from_numpy(np.stack(executor.run(Step(Stage.CODEC, rows)).pcm)) for executor in executors]
    assert error(audio[0], audio[2]) < 0.01, "TF32 against TF32"
    for executor in executors:
        executor.run(Step(Stage.DECODE, rows))
    hidden = [executor.stages.hidden[slots].float() for executor in executors]
    assert error(hidden[0], hidden[2]) < 1.2 * error(hidden[1], hidden[2])


def error(ours: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, of all together."""
    return float((ours.double() - expected.double()).norm() / expected.double().norm())


def test_a_broken_row_draws_0_there_too() -> None:
    """The search for a NaN must end where it ends on the CPU."""
    logits = torch.zeros(2, 500)
    logits[0, 7] = torch.nan
    logits[1, 3] = 50.0
    filter = Filter.of([1.0] * 2, [0] * 2, [1.0] * 2)
    rows = replace(filter, **{name: getattr(filter, name).cuda() for name in ("temperature", "last", "top_p")})
    assert draw(logits.cuda(), rows, torch.full((2,), 0.9, dtype=torch.float64).cuda()).tolist() == [0, 3]


def test_a_recording_becomes_a_voice_whose_pages_are_shared() -> None:
    """In one shape of batches its codes are the same the first time and later; all but its encoding are graphs."""
    limits = Limits(num_slots=4, num_pages=200, batches=(4,))
    with Runtime.start(RuntimeConfig(KINDS["breeze_tts_2"], "cuda", limits=limits, max_wait=inf)) as runtime:
        reference = runtime.clone(wav(3.3, seed=4), "good day to you")
        sampling = replace(runtime.spec.sampling, min_frames=6, max_frames=6)
        request = Request("hello there", sampling, reference=reference)
        said = [[out.codes.tolist() for out in runtime.stream(request) if isinstance(out, Chunk)] for _ in range(3)]
        *_, end = runtime.stream(request)
        seen = runtime.snapshot()
    assert len(reference.frames) == 42
    assert said[0] == said[1] == said[2]
    assert isinstance(end, Finished)
    assert seen["prefix_hits_total"] >= 2
    assert seen["uncaptured_works_total"] == 0
