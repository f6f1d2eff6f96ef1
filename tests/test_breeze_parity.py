"""Breeze TTS 2 against the golden tensors: everything agrees, and each thing that could be wrong would be noticed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.core import Limits, SamplingParams
from engine.ledger import Ledger, Row
from engine.models import State
from engine.models.breeze_tts_2 import Breeze, load
from engine.verify import (
    check_backbone,
    check_codec,
    check_depth,
    check_encoder,
    check_greedy,
    check_prompts,
    check_text,
    read_expected,
    text_states,
    verify,
)

GOLDEN = Path(__file__).parent / "golden" / "breeze"
CPU = torch.device("cpu")
Check = Callable[[Breeze, Ledger], None]


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return read_expected(GOLDEN)


@pytest.fixture(scope="module")
def model() -> Breeze:
    return load(GOLDEN / "checkpoint", device=CPU, dtype=torch.float32)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN / "checkpoint", tmp_path / "checkpoint")


def test_every_golden_tensor_agrees() -> None:
    rows = verify(GOLDEN)
    assert [row for row in rows if not row.ok] == []
    families = {family: len([row for row in rows if row.group.startswith(family)]) for family in FAMILIES}
    assert families == FAMILIES


FAMILIES = {
    **{"te.": 3, "prompt.": 6, "bb.": 6, "depth.": 3, "greedy.": 18, "sampling": 1},
    **{"e2e": 2, "w12": 3, "w72": 3, "enc": 3},
}
"""How many groups there are of each kind: none has vanished."""


def outcome(folder: Path, check: Check, expected: Mapping[str, Tensor]) -> dict[str, Row]:
    """The rows of one check of a changed checkpoint, by group."""
    ledger = Ledger(expected)
    with torch.inference_mode():
        check(load(folder, device=CPU, dtype=torch.float32), ledger)
    return {row.group: row for row in ledger.rows() if "nothing checks it" not in row.group}


def edit(file: Path, change: Mapping[str, Any]) -> None:
    """Changes values below dotted keys."""
    config = json.loads(file.read_text())
    for path, value in change.items():
        *parents, key = path.split(".")
        place = config
        for parent in parents:
            place = place[parent]
        place[key] = value
    file.write_text(json.dumps(config))


TEXT, BACKBONE, DEPTH = "text_encoder_config", "backbone_config", "depth_decoder_config"


@pytest.mark.parametrize(
    ("check", "change"),
    [
        (check_text, {f"{TEXT}.rms_norm_eps": 1e-5}),
        (check_text, {f"{TEXT}.sliding_window": 7}),
        (check_text, {f"{TEXT}.layer_types": ["full_attention"] * 4}),
        (check_text, {f"{TEXT}.rope_parameters.full_attention.factor": 1.0}),
        (check_text, {f"{TEXT}.query_pre_attn_scalar": 16}),
        (check_text, {f"{TEXT}.eoi_token_index": 298}),
        (check_backbone, {f"{BACKBONE}.rms_norm_eps": 1e-5}),
        (check_backbone, {f"{BACKBONE}.rope_theta": 500000}),
        (check_depth, {f"{DEPTH}.rms_norm_eps": 1e-6}),
        (check_depth, {f"{DEPTH}.rope_theta": 1000000}),
        (check_depth, {f"{DEPTH}.rope_scaling": None}),
        (check_depth, {f"{DEPTH}.rope_scaling.high_freq_factor": 0.003}),
    ],
)
def test_a_wrong_number_in_the_config_is_noticed(
    copy: Path, expected: dict[str, Tensor], check: Check, change: dict[str, Any]
) -> None:
    edit(copy / "config.json", change)
    assert any(not row.ok for row in outcome(copy, check, expected).values())


@pytest.mark.parametrize("change", [{"sliding_window": 11}, {"sliding_window": 13}, {"rms_norm_eps": 1e-6}])
def test_a_wrong_number_in_the_codecs_config_is_noticed(
    copy: Path, expected: dict[str, Tensor], change: dict[str, Any]
) -> None:
    change = {f"decoder_config.{key}": value for key, value in change.items()}
    edit(copy / "audio_tokenizer" / "config.json", change)
    assert any(not row.ok for row in outcome(copy, check_codec, expected).values())


def perturb(folder: Path, name: str) -> None:
    """Makes the largest number of one tensor 3 % and 0.01 larger."""
    for file in folder.rglob("*.safetensors"):
        tensors = load_file(file)
        if name in tensors:
            flat = tensors[name].view(-1)
            place = flat.float().abs().argmax()
            flat[place] = flat[place] * 1.03 + 0.01
            save_file(tensors, file)
            return
    raise AssertionError(f"no {name} in {folder}")


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("text_encoder.embed_tokens.eoi_embedding", check_text),
        ("text_encoder.layers.2.post_feedforward_layernorm.weight", check_text),
        ("text_encoder_proj.weight", check_prompts),
        ("depth_decoder.model.inputs_embeds_projector.weight", check_depth),
        ("backbone_model.layers.1.self_attn.k_norm.weight", check_backbone),
        ("backbone_model.layers.2.mlp.down_proj.weight", check_backbone),
        ("lm_head.weight", check_backbone),
        ("depth_decoder.model.layers.0.self_attn.v_proj.weight", check_depth),
        ("depth_decoder.codebooks_head.weight", check_depth),
        ("lm_head.weight", check_greedy),
        ("decoder.quantizer.rvq_rest.output_proj.weight", check_codec),
        ("decoder.decoder.3.block.2.conv1.conv.weight", check_codec),
        ("encoder.encoder.layers.0.conv.weight", check_encoder),
    ],
)
def test_one_wrong_number_in_one_tensor_is_noticed(
    copy: Path, expected: dict[str, Tensor], name: str, check: Check
) -> None:
    perturb(copy, name)
    failed = [group for group, row in outcome(copy, check, expected).items() if not row.ok]
    assert failed


def test_a_wrong_weight_fails_what_it_touches_and_nothing_else(copy: Path) -> None:
    perturb(copy, "backbone_model.layers.1.self_attn.k_norm.weight")
    shutil.copytree(GOLDEN, copy.parent, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoint"))
    rows = {row.group: row.ok for row in verify(copy.parent)}
    assert not any(ok for group, ok in rows.items() if group in ("bb.clone.cond", "bb.design.uncond"))
    assert all(ok for group, ok in rows.items() if group.startswith(("te.", "prompt.", "depth.", "sampling", "w")))


def test_bf16_stays_as_near_as_the_reference_in_bf16_does(expected: dict[str, Tensor]) -> None:
    rough = load(GOLDEN / "checkpoint", device=CPU, dtype=torch.bfloat16)
    assert rough.backbone_model.layers[0].mlp.down_proj.weight.dtype == torch.bfloat16
    assert rough.lm_head.weight.dtype == rough.depth_decoder.codebooks_head.weight.dtype == torch.float32
    assert {parameter.dtype for parameter in rough.codec.parameters()} == {torch.float32}
    frames, first = expected["tf.frames"], expected["bb.design.cond.prefill_hidden"][-1:]
    states = torch.cat((first, expected["bb.design.cond.decode_hidden"][:-1])).bfloat16()
    embeds = expected["bb.design.cond.prefill_layer0"].bfloat16()
    with torch.inference_mode():
        for ours, name, bound in (
            (text_states(rough, expected["te.B.ids"], torch.tensor([61]))["hidden"], "te.B.hidden", 0.02),
            (rough.backbone_model.causal(embeds[None])[0], "bb.design.cond.prefill_hidden", 0.03),
            (rough.depth_decoder.logits(states, frames)[1], "depth.design.cond.logits", 0.06),
        ):
            exact = expected[name]
            assert torch.cosine_similarity(ours.float(), exact, dim=-1).min() >= 0.99, name
            assert torch.cosine_similarity(ours.float().flatten(), exact.flatten(), dim=0) >= 0.999, name
            assert (ours.float() - exact).abs().max() / exact.abs().max() <= bound, name


# ---- the functions that choose codes ----


def state_of(model: Breeze, params: list[SamplingParams], scales: list[float]) -> State:
    """Slots 1 and up with these settings."""
    state = model.new_state(Limits(num_slots=len(params), num_pages=1))
    for slot, (row, scale) in enumerate(zip(params, scales, strict=True), start=1):
        state.sampling.set(slot, row, scale)
    return state


def hidden_states(count: int) -> Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(5))


SETTINGS = [
    SamplingParams(temperature=0.0, depth_temperature=0.0, repetition_penalty=1.1),
    SamplingParams(temperature=1.5, depth_temperature=1.2, top_k=9, seed=3),
    SamplingParams(temperature=0.8, top_p=0.7, depth_top_p=0.5, repetition_penalty=2.0, min_frames=4, seed=2**62),
]


def choose(model: Breeze, state: State, hidden: Tensor, slots: list[int], frame: int) -> Tensor:
    """Whole frames [B, K] of these slots."""
    rows, frames = state.sampling.rows(torch.tensor(slots)), torch.full((len(slots),), frame)
    code0 = model.first_code(hidden, rows, frames)
    return model.frame(hidden, code0.clamp(max=31), rows, frames)


@torch.inference_mode()
def test_a_row_chooses_the_same_codes_whoever_its_neighbours_are(model: Breeze) -> None:
    state, hidden = state_of(model, SETTINGS, [1.0, 1.0, 1.0]), hidden_states(3)
    state.sampling.seen[1:, :20] = True
    together = choose(model, state, hidden, [1, 2, 3], 2)
    for order in ([2, 0, 1], [1, 1, 0], [2], [0], [1]):
        slots = [place + 1 for place in order]
        assert torch.equal(choose(model, state, hidden[order], slots, 2), together[order])


@torch.inference_mode()
def test_a_row_without_guidance_ignores_what_stands_in_its_second_place(model: Breeze) -> None:
    state, hidden = state_of(model, SETTINGS[:2], [4.0, 1.0]), hidden_states(4)
    pair = choose(model, state, hidden, [1, 2], 0)
    other = hidden.clone()
    other[3] = torch.nan
    assert torch.equal(choose(model, state, other, [1, 2], 0), pair)
    assert torch.equal(choose(model, state, hidden[1:2], [2], 0), pair[1:])
    assert torch.equal(choose(model, state, hidden[[0, 2]], [1], 0), pair[:1])


@torch.inference_mode()
def test_reserved_ids_are_never_drawn_and_the_end_only_after_the_minimum(model: Breeze) -> None:
    hot = SamplingParams(temperature=10.0, depth_temperature=10.0, top_k=0, depth_top_k=0, min_frames=3)
    state, hidden = state_of(model, [hot], [1.0]), hidden_states(1).expand(4000, -1)
    rows = state.sampling.rows(torch.ones(4000, dtype=torch.int64))
    rows = replace(rows, seed=torch.arange(4000))
    early, late = (model.first_code(hidden, rows, torch.full((4000,), frame)) for frame in (2, 3))
    assert set(early.tolist()) == set(range(32))
    assert set(late.tolist()) == {*range(32), 35}
    assert torch.equal(model.is_end(late), late == 35)
    codes = model.frame(hidden, early, rows, torch.full((4000,), 2))
    assert (codes.min(), codes.max()) == (0, 31)
    assert torch.equal(codes[:, 0], early)


@torch.inference_mode()
@pytest.mark.parametrize("temperature", [0.0, 1e-40, 0.8])
def test_broken_logits_never_end_speech(model: Breeze, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, depth_temperature=temperature, min_frames=3)
    state, hidden = state_of(model, [params, params], [1.0, 1.0]), hidden_states(2)
    want = choose(model, state, hidden, [1, 2], 5)
    hidden[0] = torch.nan
    rows, frame = state.sampling.rows([1, 2]), torch.tensor([5, 5])
    code0 = model.first_code(hidden, rows, frame)
    assert model.is_end(code0).tolist() == [False, False]
    codes = model.frame(hidden, code0, rows, frame)
    assert codes[0].tolist() == [0] * 16
    assert torch.equal(codes[1], want[1])


@torch.inference_mode()
def test_seed_and_frame_decide_the_draw(model: Breeze) -> None:
    base = SamplingParams(temperature=1.0, depth_temperature=1.0)
    state = state_of(model, [base, replace(base, seed=43), base], [1.0, 1.0, 1.0])
    first, other, again = choose(model, state, hidden_states(1).expand(3, -1), [1, 2, 3], 7)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, choose(model, state, hidden_states(1), [1], 8)[0])
