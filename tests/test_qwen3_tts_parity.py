"""Qwen3-TTS against the golden tensors: everything agrees, and each thing that could be wrong would be noticed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import Section
from engine.ledger import Ledger, Row
from engine.models.qwen3_tts import Qwen3TTS, load
from engine.verify import read_expected, verify
from engine.verify_qwen3_tts import check_forced, check_greedy, check_prompt, embed, read_wish

GOLDEN = Path(__file__).parent / "golden" / "qwen3-tts"
CPU = torch.device("cpu")
CASES = 15
TALKER = "talker_config"
PREDICTOR = f"{TALKER}.code_predictor_config"


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return read_expected(GOLDEN / "proj")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN / "proj" / "checkpoint", tmp_path / "checkpoint")


@pytest.mark.parametrize("name", ["proj", "ident"])
def test_every_golden_tensor_agrees(name: str) -> None:
    rows = verify(GOLDEN / name)
    assert [row for row in rows if not row.ok] == []
    kinds = ("ids", "prompt", "states", "logits", "predictor", "codes", "greedy logits")
    groups = {row.group for row in rows}
    cases = json.loads((GOLDEN / name / "cases.json").read_text())
    assert len(cases) == CASES
    layers = {f"m.{case} layers" for case in cases if f"m.{case} layers" in groups}
    assert len(layers) >= 3
    assert groups == {f"m.{case} {kind}" for case in cases for kind in kinds} | layers | {
        "sampling",
        "spectrogram",
        "speaker",
    }


def outcome(folder: Path, expected: Mapping[str, Tensor], case: str) -> list[Row]:
    """The rows of one case of a changed checkpoint."""
    ledger = Ledger(expected)
    with torch.inference_mode():
        model = load(folder, device=CPU, dtype=torch.float32)
        wish = read_wish(
            model, ledger, Section.of(json.loads((GOLDEN / "proj" / "cases.json").read_text())[case], case)
        )
        for check in (check_prompt, check_forced, check_greedy):
            check(model, ledger, f"m.{case}", wish)
    return [row for row in ledger.rows() if "nothing checks it" not in row.group]


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


@pytest.mark.parametrize(
    ("change", "wrong", "right"),
    [
        ({f"{TALKER}.rms_norm_eps": 1e-5}, {"states", "logits"}, {"ids", "prompt"}),
        ({f"{TALKER}.rope_theta": 10000}, {"states", "logits"}, {"ids", "prompt"}),
        ({f"{PREDICTOR}.rms_norm_eps": 1e-6}, {"predictor"}, {"prompt", "states", "logits"}),
        ({f"{PREDICTOR}.rope_theta": 1000000}, {"predictor"}, {"prompt", "states", "logits"}),
        ({f"{TALKER}.codec_pad_id": 135}, {"prompt", "states"}, {"ids"}),
        ({f"{TALKER}.codec_bos_id": 135}, {"prompt", "states"}, {"ids"}),
        ({f"{TALKER}.codec_think_id": 139}, {"prompt", "states"}, {"ids"}),
        ({f"{TALKER}.codec_eos_token_id": 135}, {"greedy logits"}, {"prompt", "states", "logits", "predictor"}),
        ({f"{TALKER}.spk_id.vivian": 1050}, {"prompt", "states"}, {"ids"}),
        ({f"{TALKER}.codec_language_id.english": 37}, {"prompt", "states"}, {"ids"}),
        ({"tts_pad_token_id": 277}, {"prompt", "states"}, {"ids"}),
        ({"tts_eos_token_id": 277}, {"prompt"}, {"ids"}),
    ],
)
def test_a_wrong_number_in_the_config_is_noticed(
    copy: Path, expected: dict[str, Tensor], change: dict[str, Any], wrong: set[str], right: set[str]
) -> None:
    edit(copy / "config.json", change)
    ok = {row.group.partition(" ")[2]: row.ok for row in outcome(copy, expected, "custom.plain.stream")}
    assert not any(ok[kind] for kind in wrong), ok
    assert all(ok[kind] for kind in right), ok


@pytest.mark.parametrize(
    ("name", "case", "kind"),
    [
        ("talker.text_projection.linear_fc2.bias", "custom.plain.nonstream", "prompt"),
        ("talker.model.layers.1.self_attn.k_norm.weight", "custom.plain.nonstream", "states"),
        ("talker.codec_head.weight", "custom.plain.nonstream", "logits"),
        ("talker.code_predictor.small_to_mtp_projection.bias", "custom.plain.nonstream", "predictor"),
        ("talker.code_predictor.model.codec_embedding.13.weight", "base.icl.stream", "predictor"),
        ("talker.code_predictor.model.codec_embedding.14.weight", "base.icl.stream", "prompt"),
        ("talker.code_predictor.lm_head.14.weight", "custom.plain.nonstream", "predictor"),
        ("talker.code_predictor.model.layers.1.self_attn.q_norm.weight", "custom.plain.nonstream", "predictor"),
    ],
)
def test_one_wrong_tensor_is_noticed(copy: Path, expected: dict[str, Tensor], name: str, case: str, kind: str) -> None:
    file = copy / "model.safetensors"
    tensors = load_file(file)
    tensors[name] = (tensors[name].float() * 1.1 + 0.05).bfloat16()
    save_file(tensors, file)
    (row,) = (row for row in outcome(copy, expected, case) if row.group == f"m.{case} {kind}")
    assert not row.ok


@torch.inference_mode()
def test_bf16_stays_as_near_as_the_reference_in_bf16_does(expected: dict[str, Tensor]) -> None:
    rough = load(GOLDEN / "proj" / "checkpoint", device=CPU, dtype=torch.bfloat16)
    assert rough.talker.codec_head.weight.dtype == rough.talker.code_predictor.lm_head.weight.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in rough.codec.parameters()} == {torch.float32}
    name, frames = "m.base.icl.stream", expected["tf.frames"]
    states = torch.cat((expected[f"{name}.prefill_hidden"][-1:], expected[f"{name}.tf.hidden"][:-1])).bfloat16()
    for ours, key, bound in (
        (embedded(rough, expected), "embeds", 0.006),
        (rough.talker.model.causal(expected[f"{name}.embeds"].bfloat16()[None])[0], "prefill_hidden", 0.03),
        (rough.first_logits(states), "logits", 0.02),
        (rough.talker.code_predictor.logits(states, frames)[1], "tf.predictor_logits", 0.02),
    ):
        exact = expected.get(f"{name}.{key}")
        if exact is None:
            exact = torch.cat((expected[f"{name}.prefill_logits"][None], expected[f"{name}.tf.logits"][:-1]))
        assert ours.shape == exact.shape, key
        assert torch.cosine_similarity(ours.float().flatten(), exact.flatten(), dim=0) >= 0.999, key
        assert (ours.float() - exact).abs().max() / exact.abs().max() <= bound, key


def embedded(model: Qwen3TTS, expected: dict[str, Tensor]) -> Tensor:
    case = json.loads((GOLDEN / "proj" / "cases.json").read_text())["base.icl.stream"]
    row = model.layouts.row(read_wish(model, Ledger(expected), Section.of(case, "case")))
    return embed(model, row)[: row.length]
