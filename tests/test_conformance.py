"""What every model file must keep to, whatever it computes: rows, padding, chunks and earlier owners never matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from lockstep import Ask, admitted, lockstep
from torch import Tensor
from voices import KINDS, MODELS, voice

from engine import models
from engine.checks import RequestError
from engine.core import Limits, Mode, Prompt, Reference, Request, Row, SamplingParams, Stage, Step
from engine.executor import Executor
from engine.models import Functions, Model, State

CPU = torch.device("cpu")
LIMITS = Limits(num_slots=6, num_pages=6 * 8, page_size=16, batches=(4,))
PAGES = 8
NEAR = 2e-5
"""Largest difference of float32 states that other shapes may make."""
TEXTS = ("hello there", "see you soon my friend, wherever that may be", "ok")


@pytest.fixture(scope="module", params=sorted(KINDS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return models.load(voice(request.param, tmp_path_factory.mktemp("voice")), device=CPU, dtype=torch.float32)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_every_model_file_is_held_to_this() -> None:
    files = {path.stem for path in MODELS.glob("*.py")} - {"__init__"}
    assert files == {kind.partition(".")[0] for kind in KINDS}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def frames(model: Model, *shape: int, seed: int = 0) -> Tensor:
    """Codes [..., K] that every codebook has."""
    return torch.randint(20, (*shape, model.spec.num_codebooks), generator=torch.Generator().manual_seed(seed))


def near(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=NEAR)


def state_of(model: Model) -> State:
    """Pages for slots 1 to 6, in order."""
    state = model.new_state(LIMITS)
    for slot in range(1, LIMITS.num_slots + 1):
        state.kv.assign(slot, range(1 + (slot - 1) * PAGES, 1 + slot * PAGES))
    return state


def entered(
    functions: Functions, state: State, rows: Sequence[Tensor], slots: Sequence[int], start: int = 0
) -> list[Tensor]:
    """Rows of embeds [L, H], padded to the longest, enter their slots from `start` on -> each one's states [L, H]."""
    padded = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=7.0)
    places = torch.arange(padded.shape[1]).expand(padded.shape[:2])
    valid = places < torch.tensor([[len(row)] for row in rows])
    positions = torch.where(valid, places + start, 0)
    states = functions.prefill(padded, positions, valid, state.kv, torch.tensor(slots), PAGES)
    return [state[: len(row)] for state, row in zip(states, rows, strict=True)]


# ---- backbone ----


def test_a_prompt_in_parts_is_the_whole_prompt(model: Model) -> None:
    functions, embeds = model.plain(), numbers(37, model.width)
    (whole,) = entered(functions, state_of(model), [embeds], [1])
    for sizes in ([1] * 37, [16, 16, 5], [30, 7]):
        state, ends = state_of(model), [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        parts = [entered(functions, state, [embeds[a:b]], [1], a)[0] for a, b in pairwise(ends)]
        near(torch.cat(parts), whole)


def test_rows_neither_see_each_other_nor_their_padding(model: Model) -> None:
    functions, rows = model.plain(), [numbers(length, model.width, seed=length) for length in (9, 23, 1, 17)]
    alone = [entered(functions, state_of(model), [row], [3])[0] for row in rows]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        together = entered(functions, state_of(model), [rows[i] for i in order], [1, 4, 2, 6])
        for ours, i in zip(together, order, strict=True):
            near(ours, alone[i])


def test_masked_rows_leave_everything_as_it_was(model: Model) -> None:
    functions, state = model.plain(), state_of(model)
    entered(functions, state, [numbers(20, model.width)], [2])
    keys, values = state.kv.keys[:, 1:].clone(), state.kv.values[:, 1:].clone()
    masked, slots = torch.zeros(3, dtype=torch.bool), torch.tensor([2, 0, 5])
    embeds, positions = numbers(3, 1, model.width), torch.tensor([4, 0, 9])
    functions.prefill(embeds, positions[:, None], masked[:, None], state.kv, slots, PAGES)
    text = numbers(3, model.width) if model.reads_on else None
    functions.decode(frames(model, 3), text, positions, masked, state.kv, slots, PAGES)
    assert torch.equal(state.kv.keys[:, 1:], keys)
    assert torch.equal(state.kv.values[:, 1:], values)


def test_a_masked_row_beside_another_leaves_its_slot_as_it_was(model: Model) -> None:
    functions, state = model.plain(), state_of(model)
    entered(functions, state, [numbers(20, model.width), numbers(20, model.width, seed=1)], [2, 5])
    before = state.kv.keys.clone(), state.kv.values.clone()
    text = numbers(2, model.width, seed=3) if model.reads_on else None
    valid, slots = torch.tensor([False, True]), torch.tensor([2, 5])
    functions.decode(frames(model, 2), text, torch.tensor([20, 20]), valid, state.kv, slots, PAGES)
    for now, then in zip((state.kv.keys, state.kv.values), before, strict=True):
        changed = (now != then).flatten(2).any(2).any(0)[1:].view(LIMITS.num_slots, PAGES).any(1)
        assert changed.tolist() == [slot == 5 for slot in range(1, LIMITS.num_slots + 1)]


def test_steps_are_the_prefill_of_their_frames(model: Model) -> None:
    """Of rows of two lengths, side by side, one step after the other."""
    functions, lengths, slots = model.plain(), torch.tensor([11, 7]), torch.tensor([1, 4])
    rows = [numbers(int(length), model.width, seed=int(length)) for length in lengths]
    codes, texts = frames(model, 4, 2), numbers(4, 2, model.width, seed=3)
    fed = model.embed_frames(codes.flatten(0, 1)).view(4, 2, -1) + (texts if model.reads_on else 0)
    whole = entered(functions, state_of(model), [torch.cat((row, fed[:, i])) for i, row in enumerate(rows)], [1, 4])
    state, valid = state_of(model), torch.tensor([True, True])
    entered(functions, state, rows, [1, 4])
    for step in range(4):
        text = texts[step] if model.reads_on else None
        states = functions.decode(codes[step], text, lengths + step, valid, state.kv, slots, PAGES)
        for i, length in enumerate(lengths):
            near(states[i], whole[i][length + step])


# ---- text, codes ----


def prompts(model: Model) -> list[tuple[int, ...]]:
    """Token ids of some requests' first segments."""
    return [model.prompt(ask).rows[0].segments[0].ids for ask in requests(model)]  # type: ignore[union-attr]


def test_segments_do_not_see_each_other(model: Model) -> None:
    encode, rows = model.plain().encode_text, [torch.tensor(ids) for ids in prompts(model)]
    alone = [encode(ids, torch.tensor([len(ids)]), len(ids)) for ids in rows]
    padding, longest = torch.zeros(5, dtype=torch.int64), max(map(len, rows))
    for order in (list(range(len(rows))), list(reversed(range(len(rows))))):
        lengths = [len(rows[i]) for i in order]
        packed = torch.cat([*(rows[i] for i in order), padding])
        together = encode(packed, torch.tensor([*lengths, 0]), longest)
        for ours, i in zip(torch.split(together[:-5], lengths), order, strict=True):
            near(ours, alone[i])


SETTINGS = [
    SamplingParams(temperature=0.0, depth_temperature=0.0, repetition_penalty=1.3),
    SamplingParams(temperature=1.5, depth_temperature=1.2, top_k=9, seed=3),
    SamplingParams(temperature=0.8, top_p=0.7, depth_top_p=0.5, min_frames=4, seed=2**62),
]


def chosen(model: Model, state: State, hidden: Tensor, slots: Sequence[int], frame: int) -> Tensor:
    """Whole frames [B, K] of these slots; where speech ends, of code 0."""
    functions, rows = model.plain(), state.sampling.rows(torch.tensor(slots))
    number = torch.full((len(slots),), frame)
    code0 = functions.first_code(hidden, rows, number)
    return functions.frame(hidden, code0.masked_fill(model.is_end(code0), 0), rows, number)


def test_a_row_chooses_the_same_codes_whoever_its_neighbours_are(model: Model) -> None:
    state, hidden = state_of(model), numbers(3, model.width)
    for slot, params in enumerate(SETTINGS, start=1):
        state.sampling.set(slot, params)
        state.sampling.seen[slot, 5 * slot : 5 * slot + 10] = True
    together = chosen(model, state, hidden, [1, 2, 3], 5)
    hidden = torch.cat((hidden, torch.full((1, model.width), torch.nan)))
    for order in ([2, 0, 1], [1, 1, 0], [3, 1], [0, 3, 3, 3]):
        ours = chosen(model, state, hidden[order], [place + 1 for place in order], 5)
        for codes, place in zip(ours, order, strict=True):
            assert place == 3 or torch.equal(codes, together[place])


def test_codes_are_ones_that_the_codec_has_and_speech_can_end(model: Model) -> None:
    state, hot = state_of(model), SamplingParams(10.0, 10.0, 0, 0, min_frames=3)
    state.sampling.set(1, hot)
    rows = replace(state.sampling.rows(torch.ones(3000, dtype=torch.int64)), seed=torch.arange(3000))
    functions, hidden = model.plain(), numbers(1, model.width).expand(3000, -1)
    early, late = (functions.first_code(hidden, rows, torch.full((3000,), frame)) for frame in (2, 3))
    assert not model.is_end(early).any()
    assert model.is_end(late).any()
    codes = functions.frame(hidden, early, rows, torch.full((3000,), 2))
    assert torch.equal(codes[:, 0], early)
    state = state_of(model)
    samples = functions.codec(codes[:, None].flatten(0, 1)[None, :40], state.codec, torch.tensor([1]))
    assert torch.isfinite(samples).all(), "every id that was drawn has an entry"


# ---- codec ----


def test_audio_in_chunks_is_the_whole_audio(model: Model) -> None:
    codec, codes, slot = model.plain().codec, frames(model, 1, 31), torch.tensor([2])
    whole = codec(codes, state_of(model).codec, slot)
    assert whole.shape == (1, 31 * model.spec.samples_per_frame)
    for sizes in ([1, 2, 4, 8, 16], [16, 15], [1] * 31):
        state = state_of(model).codec
        near(torch.cat([codec(part, state, slot) for part in torch.split(codes, sizes, 1)], 1), whole)


def test_streams_do_not_hear_each_other(model: Model) -> None:
    codec, codes = model.plain().codec, frames(model, 3, 12)
    alone = [codec(codes[i : i + 1], state_of(model).codec, torch.tensor([1])) for i in range(3)]
    state = state_of(model).codec
    first = codec(codes[:2, :5], state, torch.tensor([4, 1]))
    others = [2, 3, 5, 6]
    columns, counts = state.columns[others].clone(), state.frames[others].clone()
    second = codec(codes[[2, 0, 1], 5:][:, :7], state, torch.tensor([0, 4, 1]))  # slot 0: padding
    assert torch.equal(state.columns[others], columns)
    assert torch.equal(state.frames[others], counts)
    assert state.frames[[4, 1]].tolist() == [12, 12]
    near(torch.cat((first, second[1:]), 1), torch.cat(alone[:2]))


# ---- through the executor ----


def requests(model: Model) -> list[Request]:
    """Of every mode that the voice knows, each with settings of its own."""
    vector = tuple(numbers(model.width, seed=9).tolist())
    asks = []
    for mode in sorted(model.spec.modes):
        for place, text in enumerate(TEXTS):
            sampling = replace(model.spec.sampling, seed=place, temperature=0.5 * place)
            recorded = tuple(map(tuple, frames(model, 3 + 20 * place, seed=place).tolist()))
            asks.append(
                Request(
                    text,
                    sampling,
                    instruction="slowly" if mode in (Mode.DESIGN, Mode.DIRECTION) else "",
                    reference=Reference("good day", recorded, vector) if mode in (Mode.CLONE, Mode.DIRECTION) else None,
                )
            )
    return asks


def asked(model: Model, count: int) -> list[Ask]:
    """Requests without a second sequence, of as many modes as there are."""
    asks = [(model.prompt(ask), ask.sampling) for ask in requests(model)]
    return [ask for ask in asks if len(ask[0].rows) == 1][:: max(1, len(asks) // 6)][:count]


def test_speech_is_the_same_in_any_place_beside_anyone_and_in_a_used_slot(model: Model) -> None:
    asks, executor = asked(model, 3), Executor(model, LIMITS)
    fresh = [lockstep(Executor(model, LIMITS), LIMITS, [ask], frames=20)[0] for ask in asks]
    assert len({tuple(frame) for frame in fresh[-1].codes}) > 10
    for order in ([0, 1, 2], [2, 0, 1]):
        together = lockstep(executor, LIMITS, [asks[i] for i in order], frames=20)
        for said, i in zip(together, order, strict=True):
            assert said.codes == fresh[i].codes, order
            assert said.pcm == fresh[i].pcm, order
            assert said.ended_at == fresh[i].ended_at


def test_speech_is_the_same_in_prompts_of_any_chunks(model: Model) -> None:
    greedy = {"temperature": 0.0, "depth_temperature": 0.0}
    for prompt, sampling in asked(model, 3):
        ask = prompt, replace(sampling, **greedy)  # type: ignore[arg-type]
        whole, parts = (lockstep(Executor(model, LIMITS), LIMITS, [ask], 10, chunk=size)[0] for size in (256, 3))
        assert parts.codes == whole.codes


def test_what_is_captured_does_what_is_not(model: Model) -> None:
    """On a CPU a graph does its work again; shapes, places and padding are those of CUDA."""
    limits = replace(LIMITS, max_batch=dict.fromkeys(Stage, 4), batches=(1, 2, 4))
    asks, captured = asked(model, 3), Executor(model, limits, frozenset(Stage))
    captured.capture()
    ours = lockstep(captured, limits, asks, frames=12)
    assert captured.snapshot()["uncaptured_works_total"] == 0
    for said, expected in zip(ours, lockstep(Executor(model, limits), limits, asks, frames=12), strict=True):
        assert said.codes == expected.codes
        assert said.pcm == expected.pcm


def test_what_belongs_to_nobody_reaches_nobody(model: Model) -> None:
    """NaN in page 0, slot 0, and every page and slot of others changes no result."""
    (ask,) = asked(model, 1)
    clean = lockstep(Executor(model, LIMITS), LIMITS, [ask], frames=10)[0]
    executor = Executor(model, LIMITS)
    kv, stages = executor.state.kv, executor.stages
    for tensor in (kv.keys, kv.values, executor.state.codec.columns, stages.hidden, stages.prompts):
        tensor.fill_(torch.nan)
    dirty = lockstep(executor, LIMITS, [ask], frames=10)[0]
    assert (dirty.codes, dirty.pcm) == (clean.codes, clean.pcm)


# ---- text that is still being written ----


def test_text_that_comes_meanwhile_is_the_whole_text(model: Model) -> None:
    """Through the executor, in steps of its own between frames, where the voice reads it."""
    sampling = SamplingParams(min_frames=12, max_frames=12, seed=4)
    clone = Mode.PLAIN not in model.spec.modes
    speaker = Reference("", (), (0.1,) * model.width) if clone and model.reads_on else None
    ask = Request("", sampling, reference=speaker, open=True)
    if not model.spec.open_text:
        with pytest.raises(RequestError, match="reads whole texts only"):
            model.reading(ask)
        return
    words = "hello there my friend, see you soon"
    whole, parts = model.reading(ask), model.reading(ask)
    ids = (*whole.append(words), *whole.end())
    begun = (*parts.append(words[:7]), *parts.append(words[7:9]))
    rest = ids[len(begun) :]
    assert ids[: len(begun)] == begun
    executor = Executor(model, LIMITS)
    (expected,) = lockstep(executor, LIMITS, [(whole.prompt, sampling)], frames=12)
    (row,) = admitted(LIMITS, [(parts.prompt, sampling)], 1)
    ours = spoken(executor, row, parts.prompt, [rest[:2], rest[2:]])
    assert ours == expected.codes


def spoken(executor: Executor, row: Row, prompt: Prompt, later: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Twelve frames of a prompt whose text goes on: each part as soon as a frame lacks it."""
    executor.run(Step(Stage.TEXT, (row,)))
    row, parts, known = replace(row, admission=None), list(later), prompt.rows[0].text_end
    executor.run(Step(Stage.PREFILL, (replace(row, count=prompt.length, final=True),)))
    codes = []
    for frame in range(12):
        at = replace(row, start=frame, count=1)
        executor.run(Step(Stage.DEPTH, (at,)))
        codes += [executor.run(Step(Stage.CODEC, (at,))).codes[0][0].tolist()]
        if parts and prompt.length + frame >= known:
            text = parts.pop(0)
            executor.run(Step(Stage.TEXT, (replace(row, start=known, count=len(text), text=text),)))
            known += len(text)
        executor.run(Step(Stage.DECODE, (at,)))
    assert not parts, "all of it was needed"
    return codes
