"""Sampling: golden distributions, exact draws, and rows that have nothing to do with one another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from engine.core import SamplingParams
from engine.sampling import Filter, SamplingState, draw, guide, penalise, probabilities, uniforms

GOLDEN = Path(__file__).parent / "golden" / "breeze" / "expected_model.safetensors"
INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- distributions ----


@pytest.mark.parametrize(
    ("key", "temperature", "top_k", "top_p"),
    [
        ("t0.9_k50_p1", 0.9, 50, 1.0),
        ("t0.9_k8_p1", 0.9, 8, 1.0),
        ("t0.7_k10_p0.8", 0.7, 10, 0.8),
        ("t1.5_k0_p0.9", 1.5, 0, 0.9),
    ],
)
def test_distributions_are_golden(key: str, temperature: float, top_k: int, top_p: float) -> None:
    golden = load_file(GOLDEN)
    got = probabilities(golden["sampling.input_scores"][None], Filter.of([temperature], [top_k], [top_p]))
    torch.testing.assert_close(got[0], golden[f"sampling.{key}.probs"], rtol=0, atol=1e-5)


def test_golden_distributions_share_a_batch() -> None:
    golden = load_file(GOLDEN)
    got = probabilities(
        golden["sampling.input_scores"].expand(4, -1),
        Filter.of([0.9, 0.9, 0.7, 1.5], [50, 8, 10, 0], [1.0, 1.0, 0.8, 0.9]),
    )
    keys = ("t0.9_k50_p1", "t0.9_k8_p1", "t0.7_k10_p0.8", "t1.5_k0_p0.9")
    want = torch.stack([golden[f"sampling.{key}.probs"] for key in keys])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def kept(logits: list[float], **settings: float) -> list[int]:
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **settings}
    filter = Filter.of([values["temperature"]], [int(values["top_k"])], [values["top_p"]])
    return probabilities(torch.tensor([logits]), filter)[0].nonzero().flatten().tolist()


def test_ties_with_the_kth_are_kept() -> None:
    assert kept([3.0, 1.0, 2.0, 1.0, 0.0], top_k=3) == [0, 1, 2, 3]


def test_a_top_k_beyond_the_vocabulary_is_off() -> None:
    assert kept([3.0, 1.0, 2.0], top_k=50) == [0, 1, 2]


def test_the_token_that_crosses_top_p_is_kept() -> None:
    """Mass 0.5, 0.3, 0.15, 0.05."""
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert kept(logits, top_p=0.49) == [0]
    assert kept(logits, top_p=0.51) == [0, 1]
    assert kept(logits, top_p=0.79) == [0, 1]
    assert kept(logits, top_p=0.81) == [0, 1, 2]


def test_top_p_is_of_the_mass_that_top_k_left() -> None:
    """0.5, 0.3 | 0.2 become 0.625, 0.375."""
    assert kept(np.log([0.5, 0.3, 0.2]).tolist(), top_k=2, top_p=0.6) == [0]
    assert kept(np.log([0.5, 0.3, 0.2]).tolist(), top_p=0.6) == [0, 1]


def test_what_is_minus_infinity_stays_out() -> None:
    assert kept([1.0, -INF, 0.0, -INF], top_k=4) == [0, 2]


# ---- draws ----


def test_a_draw_is_where_the_uniform_falls() -> None:
    logits = torch.tensor([0.1, 0.2, 0.7]).log().expand(6, 3)
    uniform = torch.tensor([0.001, 0.099, 0.101, 0.299, 0.301, 0.999], dtype=torch.float64)
    assert draw(logits, Filter.of([1.0] * 6, [0] * 6, [1.0] * 6), uniform).tolist() == [0, 0, 1, 1, 2, 2]


def test_draws_have_the_distribution() -> None:
    """20 000 draws by the counter's own numbers: each frequency within 5 standard deviations."""
    count, filter = 20_000, Filter.of([0.8], [10], [0.95])
    logits = random(1, 40) * 2
    wanted = probabilities(logits, filter)[0].double()
    many = Filter.of([0.8] * count, [10] * count, [0.95] * count)
    uniform = uniforms(torch.full((count,), 42), torch.arange(count), 1)[:, 0]
    ids = draw(logits.expand(count, -1), many, uniform)
    frequencies = torch.bincount(ids, minlength=40) / count
    assert bool(((frequencies - wanted).abs() <= 5 * (wanted * (1 - wanted) / count).sqrt()).all())
    assert set(ids.tolist()) <= set(wanted.nonzero().flatten().tolist())


@given(
    st.integers(0, 2**32 - 1), st.integers(0, 9), st.floats(0.05, 1.0), st.sampled_from([2.0**-53, 0.5, 1 - 2.0**-53])
)
def test_a_dropped_id_is_never_drawn(seed: int, top_k: int, top_p: float, uniform: float) -> None:
    logits = random(1, 9, seed=seed) * 5
    logits[0, ::3] = -INF
    filter = Filter.of([0.5], [top_k], [top_p])
    [drawn] = draw(logits, filter, torch.tensor([uniform], dtype=torch.float64)).tolist()
    assert probabilities(logits, filter)[0, drawn] > 0


def test_greedy_is_the_best_whatever_else_is_set() -> None:
    logits = random(5, 60)
    filter = Filter.of([0.0] * 5, [0, 1, 50, 0, 7], [1.0, 1.0, 1.0, 0.5, 0.1])
    assert torch.equal(draw(logits, filter, torch.linspace(0.01, 0.99, 5).double()), logits.argmax(-1))


BROKEN = {
    "nan": [NAN] * 6,
    "one nan": [1.0, 2.0, NAN, 0.0, -INF, 3.0],
    "inf": [1.0, INF, 2.0, 0.0, 0.0, INF],
    "nothing": [-INF] * 6,
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 3, 1.0), (1.0, 3, 0.9), (0.5, 0, 1.0), (0.0, 0, 1.0)]
)
def test_a_broken_row_gives_0_and_stops_nobody(
    broken: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    """The last id ends speech, so a search that finds nothing must not come to rest there."""
    filter, uniform = Filter.of([temperature] * 2, [top_k] * 2, [top_p] * 2), torch.tensor([0.4, 0.9]).double()
    logits = random(2, 6)
    want = draw(logits, filter, uniform)
    logits[0] = torch.tensor(broken)
    assert draw(logits, filter, uniform).tolist() == [0, want[1]]


@pytest.mark.parametrize("temperature", [1e-40, 1e-5, 0.9e-3])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = random(5, 60) * 100
    filter = Filter.of([temperature] * 5, [0] * 5, [1.0] * 5)
    assert torch.equal(draw(logits, filter, torch.linspace(0.01, 0.99, 5).double()), logits.argmax(-1))


def test_the_least_temperature_draws_what_greedy_does() -> None:
    logits = random(5, 60) * 1e4
    filter = Filter.of([1e-3] * 5, [0] * 5, [1.0] * 5)
    assert torch.equal(draw(logits, filter, torch.linspace(0.01, 0.99, 5).double()), logits.argmax(-1))


SETTINGS = [
    (0.9, 50, 1.0),
    (0.3, 5, 1.0),
    (1.3, 0, 1.0),
    (0.8, 0, 0.9),
    (0.9, 50, 0.7),
    (0.0, 50, 1.0),
    (0.7, 200, 1.0),
]


def test_no_row_depends_on_its_neighbours_settings() -> None:
    """Alone, a row skips the operations that its neighbours need; its draws stay the same."""
    logits, uniform = random(400, 300) * 3, torch.linspace(0.001, 0.999, 400).double()
    logits[:, 7] = logits[:, 9]  # ties
    for own in SETTINGS:
        alone = draw(logits, Filter.of(*([value] * 400 for value in own)), uniform)
        mixed = [own, *SETTINGS]
        rows = logits.repeat_interleave(len(mixed), 0)
        together = draw(rows, Filter.of(*zip(*mixed * 400, strict=True)), uniform.repeat_interleave(len(mixed)))
        assert torch.equal(together[:: len(mixed)], alone), own


# ---- random stream ----


def reference(seed: int, frame: int, codebook: int) -> float:
    """The same in Python's integers."""
    mask = 2**64 - 1
    bits = ((frame * 2**16 + codebook) * 0x9E3779B97F4A7C15 + seed * 0xD1342543DE82EF95) & mask
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & mask
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
    return (((bits ^ (bits >> 31)) >> 12) + 0.5) / 2**52


def test_the_stream_is_a_hash_of_seed_frame_and_codebook() -> None:
    seeds, frames = [0, 42, 42, 2**63 - 1, 2**40], [0, 0, 1, 1499, 7]
    got = uniforms(torch.tensor(seeds), torch.tensor(frames), 16)
    want = [[reference(s, f, k) for k in range(16)] for s, f in zip(seeds, frames, strict=True)]
    assert got.tolist() == want


def test_the_stream_never_changes() -> None:
    """A seed shall give the same voice in later versions."""
    [[first, second]] = uniforms(torch.tensor([42]), torch.tensor([0]), 2).tolist()
    assert (first, second) == (0.8628271382818765, 0.1922484346660306)


def test_numbers_lie_inside_the_unit_interval() -> None:
    """Also at the ends of the range of bits: 0 and 1 themselves would draw what has no mass, or nothing."""
    assert (2**52 - 1 + 0.5) * 2.0**-52 < 1
    numbers = uniforms(torch.arange(1000), torch.arange(1000), 16)
    assert numbers.dtype == torch.float64
    assert 0 < numbers.min() < 1e-3
    assert 1 - 1e-3 < numbers.max() < 1
    assert numbers.unique().numel() == 16_000
    assert abs(numbers.mean() - 0.5) < 0.01


def test_neighbouring_seeds_frames_and_codebooks_are_unrelated() -> None:
    numbers = uniforms(torch.arange(64).repeat_interleave(64), torch.arange(64).repeat(64), 16).view(64, 64, 16)
    for a, b in ((numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1]), (numbers[..., 1:], numbers[..., :-1])):
        assert abs(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1]) < 0.02


# ---- guidance and penalty ----


def test_guidance_goes_beyond_the_condition() -> None:
    cond, uncond = torch.tensor([[1.0, 3.0]] * 4), torch.tensor([[2.0, 1.0]] * 4)
    got = guide(cond, uncond, column(0.0, 1.0, 4.0, 0.5))
    torch.testing.assert_close(got, torch.tensor([[2.0, 1.0], [1.0, 3.0], [-2.0, 9.0], [1.5, 2.0]]))


def test_an_unguided_row_of_a_guided_batch_ignores_its_empty_place() -> None:
    cond = random(2, 9)
    got = guide(cond, torch.full((2, 9), torch.nan), column(1.0, 4.0))
    assert torch.equal(got[0], cond[0])


def test_what_was_seen_is_penalised_once() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0, -INF], [2.0, -2.0, 2.0, 0.0]])
    seen = torch.tensor([[True, True, False, True], [True, True, False, True]])
    got = penalise(logits, seen, column(2.0, 1.0))
    assert got.tolist() == [[1.0, -4.0, 2.0, -INF], [2.0, -2.0, 2.0, 0.0]]


# ---- state ----


@pytest.fixture
def state() -> SamplingState:
    return SamplingState.allocate(4, 36, "cpu")


def test_rows_have_their_slots_settings(state: SamplingState) -> None:
    state.set(1, SamplingParams(temperature=0.5, top_k=7, depth_top_p=0.8, seed=9, min_frames=3), cfg_scale=4.0)
    state.set(2, SamplingParams(temperature=0.0, depth_temperature=0.25, repetition_penalty=1.1, seed=2**63 - 1))
    rows = state.rows(torch.tensor([2, 1, 0]))
    assert rows.first.temperature.flatten().tolist() == [1.0, 0.5, 1.0]
    assert rows.first.last.flatten().tolist() == [0, 6, 0]
    assert rows.depth.temperature.flatten().tolist() == pytest.approx([0.25, 0.9, 1.0])
    assert rows.depth.top_p.flatten().tolist() == pytest.approx([1.0, 0.8, 1.0])
    assert rows.repetition_penalty.flatten().tolist() == pytest.approx([1.1, 1.0, 1.0])
    assert rows.cfg_scale.flatten().tolist() == [1.0, 4.0, 1.0]
    assert rows.seed.tolist() == [2**63 - 1, 9, 42]
    assert rows.min_frames.tolist() == [0, 3, 0]


def flags(state: SamplingState, *slots: int) -> tuple[int, bool, int, bool, bool, bool]:
    rows = state.rows(torch.tensor(slots), state.flags(slots))
    first, depth = rows.first, rows.depth
    return (first.max_top_k, first.any_top_p, depth.max_top_k, depth.any_top_p, rows.any_penalty, rows.any_min_frames)


def test_flags_are_those_of_the_rows_alone(state: SamplingState) -> None:
    """What a request needs costs nobody anything once it is not in the batch."""
    quick = (1, False, 1, False, False, False)
    assert flags(state, 3) == quick
    state.set(1, SamplingParams(top_k=7, top_p=0.5, repetition_penalty=1.1, min_frames=1))
    state.set(2, SamplingParams(top_k=9, depth_top_k=3, depth_top_p=0.5))
    assert flags(state, 3) == quick
    assert flags(state, 0, 1) == (7, True, 50, False, True, True)
    assert flags(state, 2) == (9, False, 3, True, False, False)
    assert flags(state, 1, 2, 3) == (9, True, 50, True, True, True)
    state.set(1, SamplingParams(temperature=0.0, top_k=7, top_p=0.5))
    assert flags(state, 1) == (1, False, 50, False, False, False)


def test_the_flags_of_any_batch_change_no_draw(state: SamplingState) -> None:
    """A captured graph has them."""
    state.set(1, SamplingParams(top_k=7))
    state.set(2, SamplingParams(temperature=0.0, depth_top_p=0.5))
    slots, logits, uniform = [1, 2, 3], random(3, 36), torch.tensor([0.1, 0.5, 0.9]).double()
    known, any_batch = state.rows(torch.tensor(slots), state.flags(slots)), state.rows(torch.tensor(slots))
    for one, other in ((known.first, any_batch.first), (known.depth, any_batch.depth)):
        assert torch.equal(draw(logits, one, uniform), draw(logits, other, uniform))


def test_a_new_request_has_seen_nothing(state: SamplingState) -> None:
    state.seen[torch.tensor([1, 2]), torch.tensor([5, 6])] = True
    state.set(1, SamplingParams())
    assert state.rows(torch.tensor([1, 2])).seen.nonzero().tolist() == [[1, 6]]


def test_a_states_rows_draw_as_the_settings_say(state: SamplingState) -> None:
    params = SamplingParams(temperature=0.6, top_k=4, depth_temperature=1.2, depth_top_k=0, depth_top_p=0.9)
    state.set(1, params)
    rows, logits = state.rows(torch.tensor([1, 0])), random(2, 36)
    torch.testing.assert_close(
        probabilities(logits, rows.first)[:1], probabilities(logits[:1], Filter.of([0.6], [4], [1.0]))
    )
    torch.testing.assert_close(
        probabilities(logits, rows.depth)[:1], probabilities(logits[:1], Filter.of([1.2], [0], [0.9]))
    )
    assert draw(logits, rows.first, torch.tensor([0.5, 0.5]).double())[1] == logits[1].argmax()
