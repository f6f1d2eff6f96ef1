"""weights.py: every tensor finds its place, and whatever does not fit is named in one error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.weights import CheckpointError, FusedLinear, load, outlines, read_json, stored


class Attention(nn.Module):
    """Three fused matrices, one plain, and a constant that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = FusedLinear(4, {"q_proj": 3, "k_proj": 2, "v_proj": 2})
        self.o_proj = nn.Linear(3, 4)
        self.register_buffer("angles", torch.arange(3.0, device="cpu"), persistent=False)


def tensors() -> dict[str, Tensor]:
    shapes = {
        "q_proj.weight": (3, 4),
        "k_proj.weight": (2, 4),
        "v_proj.weight": (2, 4),
        "o_proj.weight": (4, 3),
        "o_proj.bias": (4,),
    }
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def on_meta() -> Attention:
    with outlines():
        return Attention()


def fill(module: nn.Module, source: Path | dict[str, Tensor], prefix: str = "", skip: tuple[str, ...] = ()) -> None:
    load(module, source, prefix, dtype=torch.float32, device="cpu", skip=skip)


def test_fused_rows_are_the_checkpoint_matrices_in_order() -> None:
    module, source = on_meta(), tensors()
    fill(module, source)
    q, k, v = module.qkv_proj.weight.split(module.qkv_proj.sizes)
    assert torch.equal(q, source["q_proj.weight"])
    assert torch.equal(k, source["k_proj.weight"])
    assert torch.equal(v, source["v_proj.weight"])
    assert torch.equal(module.o_proj.bias, source["o_proj.bias"])
    assert torch.equal(module.angles, torch.tensor([0.0, 1.0, 2.0]))


def test_fused_names_below_a_path_and_a_prefix() -> None:
    outer = nn.ModuleDict({"layers": nn.ModuleList([on_meta()])})
    source = {f"model.layers.0.{name}": value for name, value in tensors().items()}
    fill(outer, source | {"other.weight": torch.zeros(1)}, "model.")
    assert torch.equal(outer["layers"][0].qkv_proj.weight[3:5], tensors()["k_proj.weight"])


def test_parameters_stay_trainable_and_do_not_alias_the_source() -> None:
    module, source = on_meta(), tensors()
    fill(module, source)
    assert all(parameter.requires_grad for parameter in module.parameters())
    source["o_proj.weight"].zero_()
    assert module.o_proj.weight.abs().sum() > 0


def test_loading_in_inference_mode_gives_ordinary_parameters() -> None:
    with torch.inference_mode():
        module = on_meta()
        fill(module, tensors())
    assert not any(parameter.is_inference() for parameter in module.parameters())


def test_dtype_and_its_exceptions() -> None:
    module = on_meta()
    load(module, tensors(), dtype=torch.bfloat16, device="cpu", float32=("o_proj.*",))
    assert module.qkv_proj.weight.dtype == torch.bfloat16
    assert module.o_proj.weight.dtype == torch.float32
    assert torch.equal(module.o_proj.weight, tensors()["o_proj.weight"])  # not rounded on the way


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_disk_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({name: value.to(dtype) for name, value in tensors().items()}, tmp_path / "model.safetensors")
    module = on_meta()
    fill(module, tmp_path)
    assert torch.equal(module.o_proj.weight, tensors()["o_proj.weight"].to(dtype).float())


def test_shards_with_an_index(tmp_path: Path) -> None:
    names = sorted(tensors())
    parts = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for file, held in parts.items():
        save_file({name: tensors()[name] for name in held}, tmp_path / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    module = on_meta()
    fill(module, tmp_path)
    assert torch.equal(module.qkv_proj.weight[:3], tensors()["q_proj.weight"])
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors, named by the index, is absent"):
        fill(on_meta(), tmp_path)


def test_one_error_names_missing_extra_and_misshapen(tmp_path: Path) -> None:
    broken = tensors() | {"k_proj.weight": torch.zeros(2, 5), "extra.weight": torch.zeros(1, 2)}
    del broken["v_proj.weight"]
    save_file(broken, tmp_path / "model.safetensors")
    module = on_meta()
    with pytest.raises(CheckpointError) as caught:
        fill(module, tmp_path)
    text = str(caught.value)
    assert "missing: v_proj.weight, expected [2, 4], found nothing" in text
    assert "misshapen: k_proj.weight, expected floats [2, 4], found F32 [2, 5] in model.safetensors" in text
    assert "extra: extra.weight, expected nothing, found F32 [1, 2] in model.safetensors" in text
    assert "3 tensors differ" in text
    assert module.o_proj.weight.is_meta  # all of them or none


def test_skipped_tensors_are_no_extras() -> None:
    source = tensors() | {"codec_model.a.weight": torch.zeros(1)}
    fill(on_meta(), source, skip=("codec_model.*",))
    with pytest.raises(CheckpointError, match=r"extra: codec_model\.a\.weight"):
        fill(on_meta(), source)


def test_quantised_integers_are_no_weights() -> None:
    broken = tensors() | {"o_proj.bias": torch.zeros(4, dtype=torch.int8)}
    with pytest.raises(CheckpointError, match=r"o_proj\.bias, expected floats \[4\], found torch\.int8 \[4\]"):
        fill(on_meta(), broken)


def test_a_long_list_is_cut_and_counted() -> None:
    extras = {f"x{i:02}": torch.zeros(1) for i in range(30)}
    with pytest.raises(CheckpointError) as caught:
        fill(on_meta(), tensors() | extras)
    assert "x19" in str(caught.value)
    assert "x20" not in str(caught.value)
    assert str(caught.value).endswith("and 10 more")


def test_the_same_name_in_two_files(tmp_path: Path) -> None:
    for file in ("a.safetensors", "b.safetensors"):
        save_file({"o_proj.bias": torch.zeros(4)}, tmp_path / file)
    with pytest.raises(CheckpointError, match=r"o_proj\.bias is in a\.safetensors and b\.safetensors"):
        stored(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_damaged_file_is_named(tmp_path: Path, keep: int) -> None:
    file = tmp_path / "model.safetensors"
    save_file(tensors(), file)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged"):
        stored(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected \*\.safetensors, found none"):
        stored(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "damaged, expected JSON"), (b"\xff", "damaged"), (b"[1]", "expected a JSON object, found list")],
)
def test_damaged_json(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_json(tmp_path / "config.json")


def test_missing_json(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        read_json(tmp_path / "config.json")


def test_an_index_without_a_map(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    with pytest.raises(CheckpointError, match="expected an object weight_map, found 3"):
        stored(tmp_path)


def test_a_constant_left_on_meta_is_a_programmers_error() -> None:
    module = on_meta()
    module.register_buffer("angles", torch.zeros(3, device="meta"), persistent=False)
    with pytest.raises(AssertionError, match="explicit device='cpu'"):
        fill(module, tensors())


def test_outlines_have_shapes_and_cost_no_compiler() -> None:
    """PyTorch's own initialisation on meta imports torch._dynamo, which takes seconds."""
    script = (
        "import sys, torch; from torch import nn; from engine.weights import outlines\n"
        "with outlines():\n"
        "    made = [nn.Linear(2, 3), nn.Embedding(4, 5), nn.Conv1d(1, 2, 3), nn.ConvTranspose1d(1, 2, 3)]\n"
        "    made.append(nn.Parameter(torch.zeros(6)))\n"
        "print(made[0].weight.shape, all(p.is_meta for m in made[:-1] for p in m.parameters()), made[-1].is_meta)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["torch.Size([3, 2]) True True", "False"]


def test_loading_a_voice_costs_no_compiler() -> None:
    script = (
        "import sys, torch; from engine import models; from engine.messages import EMBEDDED_VOICE\n"
        "models.load(EMBEDDED_VOICE, device=torch.device('cpu'), dtype=torch.float32)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False"]
