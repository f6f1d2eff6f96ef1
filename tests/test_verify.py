"""verify.py: other dimensions than the fixtures' work, nothing is skipped in silence, and bad folders are named."""

from __future__ import annotations

import json
import math
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.config import Section
from engine.core import Reference, ReferenceSegment, Request, SamplingParams, TextSegment
from engine.ledger import EXACT, Ledger, Row, distance
from engine.models.breeze_tts_2 import Breeze, BreezeConfig, load, load_tokenizer, read_config, read_spec
from engine.verify import check, report, verify
from engine.weights import CheckpointError, FusedLinear

GOLDEN = Path(__file__).parent / "golden" / "breeze"
CPU = torch.device("cpu")

LAYERS = {"hidden_act": "silu", "rope_theta": 10000.0, "rope_scaling": None, "rms_norm_eps": 1e-6}
MAIN: dict[str, Any] = {
    "model_type": "breeze",
    "num_codebooks": 4,
    "vocab_size": 12,
    "hidden_size": 24,
    "audio_embed_size": 24,
    "audio_token_id": 300,
    "max_position_embeddings": 4096,
    "codec_config": {"codebook_size": 10},
    "backbone_config": LAYERS
    | {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 5000,
    },
    "depth_decoder_config": LAYERS
    | {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_codebooks": 4,
        "vocab_size": 12,
        "audio_embed_size": 24,
        "backbone_hidden_size": 24,
    },
    "text_encoder_config": {
        "vocab_size": 314,
        "hidden_size": 20,
        "intermediate_size": 28,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 10,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {kind: {"rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")},
    },
}
AUDIO: dict[str, Any] = {
    "output_sample_rate": 16000,
    "decoder_config": {
        "num_quantizers": 4,
        "codebook_size": 10,
        "codebook_dim": 12,
        "latent_dim": 14,
        "decoder_dim": 16,
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 6,
        "sliding_window": 5,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "upsampling_ratios": [2],
        "upsample_rates": [3, 2],
    },
}
FRAMES = ((1, 2, 3, 4), (5, 6, 7, 8), (9, 0, 1, 2))
REQUESTS = {
    "plain": Request("hello there", SamplingParams()),
    "design": Request("hello", SamplingParams(), instruction="warm"),
    "clone": Request("see you", SamplingParams(), reference=Reference("good day", FRAMES)),
}


class Recorder(Ledger):
    """Writes the expected tensors instead of comparing with them, so that a model of any size gets a fixture."""

    def __init__(self, inputs: dict[str, Tensor]) -> None:
        super().__init__(inputs)
        self.made = dict(inputs)

    def take(self, name: str) -> Tensor:
        return self.made[name]

    def compare(self, group: str, name: str, ours: Tensor, tolerance: float) -> None:
        self.made[name] = ours.clone().contiguous()

    def contrast(self, group: str, name: str, ours: Tensor, tolerance: float) -> None:
        self.made[name] = ours + 1


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors under the names and in the pieces of a checkpoint."""
    fused = {path: layer for path, layer in model.named_modules() if isinstance(layer, FusedLinear)}
    tensors: dict[str, Tensor] = {}
    for key, value in model.state_dict().items():
        path, _, leaf = key.rpartition(".")
        layer = fused.get(path)
        names = [f"{path.rpartition('.')[0]}.{part}.{leaf}" for part in layer.parts] if layer else [key]
        pieces = value.split(list(layer.sizes)) if layer else [value]
        tensors |= {name: piece.clone() for name, piece in zip(names, pieces, strict=True)}
    return tensors


def write_checkpoint(folder: Path) -> None:
    """Random weights of dimensions that no golden file has."""
    (folder / "audio_tokenizer").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(MAIN))
    (folder / "audio_tokenizer" / "config.json").write_text(json.dumps(AUDIO))
    shutil.copy(GOLDEN / "checkpoint" / "tokenizer.json", folder)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    main, audio = Section.of(MAIN, "main"), Section.of(AUDIO, "audio")
    config: BreezeConfig = read_config(folder, main, audio)
    model = Breeze(config, read_spec(folder, main, audio, config, tokenizer), tokenizer)
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    split: dict[bool, dict[str, Tensor]] = {True: {}, False: {}}
    for name, tensor in tensors_of(model).items():
        split[name.startswith("audio_tokenizer.")][name.removeprefix("audio_tokenizer.")] = tensor
    save_file(split[False], folder / "model.safetensors")
    save_file(split[True], folder / "audio_tokenizer" / "model.safetensors")


def inputs_of(model: Breeze) -> dict[str, Tensor]:
    """What a fixture is made from, and an empty place for each tensor that it is to hold."""
    generator = torch.Generator().manual_seed(8)
    ids = torch.tensor(model.prompt(REQUESTS["plain"]).rows[0].segments[0].ids)
    made = {
        "te.short.ids": ids,
        "te.long.ids": ids.repeat(3),
        "prompt.ref_codes": torch.tensor(FRAMES),
        "tf.frames": torch.randint(10, (3, 4), generator=generator),
        "greedy.ends.prompt_ids": ids[:5].clone(),
        "sampling.input_scores": torch.randn(13, generator=generator),
        "codes6": torch.randint(10, (1, 4, 6), generator=generator),
        "codes17": torch.randint(10, (1, 4, 17), generator=generator),
    }
    for mode, request in REQUESTS.items():
        for kind, row in zip(("cond", "uncond"), model.prompt(request).rows, strict=False):
            made |= prompt_tensors(f"prompt.{mode}.{kind}", row.segments)
    return made | {name: torch.zeros(4, 5) for name in PLACES}


PLACES = [
    *[
        f"te.{name}.{key}"
        for name in ("short", "long")
        for key in ("layer0", "layer1", "layer2", "hidden", "projected")
    ],
    *[f"prompt.{row}.embeds" for row in ("plain.cond", "design.cond", "design.uncond", "clone.cond")],
    *[
        f"bb.design.{row}.prefill_{key}"
        for row in ("cond", "uncond")
        for key in ("layer0", "layer1", "layer2", "hidden")
    ],
    *[
        f"bb.design.{row}.{key}"
        for row in ("cond", "uncond")
        for key in ("prefill_logits", "decode_hidden", "decode_logits")
    ],
    *[f"depth.design.{row}.{key}" for row in ("cond", "uncond") for key in ("hidden", "logits")],
    *[
        f"greedy.{run}.{key}"
        for run in ("plain.cfg1.rp1", "design.cfg2.5.rp1.2", "design.cfg0.rp1", "clone.cfg1.rp1.1", "ends")
        for key in (
            "frames",
            "ended_by_eos",
            "code0_raw_logits",
            "code0_guided",
            "code0_processed",
            "depth_guided_logits",
        )
    ],
    "sampling.t0.7_k3_p0.9.probs",
    "sampling.t2_k0_p1.probs",
    *[f"w5.{name}" for name in ("wav6", "wav17", "quantized", "pre_conv", "upsample0.out", "decoder4.out")],
    *["w9.wav17", "w9.wav17_chunked5_ctx2", "e2e.design_cfg2.5.codes", "e2e.design_cfg2.5.wav"],
]


def prompt_tensors(name: str, segments: tuple[TextSegment | ReferenceSegment, ...]) -> dict[str, Tensor]:
    ids: list[int] = []
    mask: list[int] = []
    for segment in segments:
        text = isinstance(segment, TextSegment)
        ids += segment.ids if isinstance(segment, TextSegment) else [300] * len(segment.frames) + [301]
        mask += [int(text)] * segment.length
    lengths = [segment.length for segment in segments if isinstance(segment, TextSegment)]
    return {
        f"{name}.ids": torch.tensor(ids),
        f"{name}.text_mask": torch.tensor(mask),
        f"{name}.text_lens": torch.tensor(lengths),
    }


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to verify: four codebooks, 16 kHz, twelve samples a frame."""
    folder = tmp_path_factory.mktemp("foreign")
    write_checkpoint(folder / "checkpoint")
    model = load(folder / "checkpoint", device=CPU, dtype=torch.float32)
    recorder = Recorder(inputs_of(model))
    check(model, recorder)
    save_file(recorder.made, folder / "expected_all.safetensors")
    return folder


@pytest.fixture
def copy(foreign: Path, tmp_path: Path) -> Path:
    return shutil.copytree(foreign, tmp_path / "copy")


def edit(folder: Path, **changes: Tensor) -> None:
    """Writes the expected tensors anew with these; names have _ for the first dot."""
    file = folder / "expected_all.safetensors"
    save_file(load_file(file) | {name.replace("__", "."): value for name, value in changes.items()}, file)


def test_other_dimensions(foreign: Path) -> None:
    model = load(foreign / "checkpoint", device=CPU, dtype=torch.float32)
    assert (model.spec.sample_rate, model.spec.samples_per_frame, model.spec.num_codebooks) == (16000, 12, 4)
    rows = verify(foreign)
    assert [row for row in rows if not row.ok] == []
    assert len(rows) == 32
    expected = load_file(foreign / "expected_all.safetensors")
    assert expected["w5.wav17"].shape == (17 * 12,)
    assert expected["greedy.design.cfg2.5.rp1.2.code0_raw_logits"].shape[1:] == (2, 13)
    assert expected["greedy.design.cfg0.rp1.code0_raw_logits"].shape[1:] == (1, 13)


def test_other_dimensions_can_fail(copy: Path) -> None:
    file = copy / "checkpoint" / "model.safetensors"
    tensors = load_file(file)
    tensors["backbone_model.layers.0.mlp.up_proj.weight"][0] *= 1.1
    save_file(tensors, file)
    assert {row.group for row in verify(copy) if not row.ok} >= {"bb.design.cond", "bb.design.uncond logits"}


def test_a_tensor_that_nothing_checks_is_a_failure(copy: Path) -> None:
    edit(copy, w5__decoder9__out=torch.zeros(3), mystery=torch.zeros(1), enc__codes=torch.zeros(1))
    failed = [row for row in verify(copy) if not row.ok]
    assert failed == [
        Row("enc.codes: nothing checks it", math.inf, EXACT),
        Row("mystery: nothing checks it", math.inf, EXACT),
        Row("w5.decoder9.out: nothing checks it", math.inf, EXACT),
    ]


def test_one_wrong_code_is_a_failure(copy: Path) -> None:
    codes = load_file(copy / "expected_all.safetensors")["greedy.plain.cfg1.rp1.frames"]
    codes[1, 2] = (codes[1, 2] + 1) % 10
    edit(copy, greedy__plain__cfg1__rp1__frames=codes)
    assert [row for row in verify(copy) if not row.ok] == [Row("greedy.plain.cfg1.rp1 codes", 1.0, EXACT)]


def test_what_is_wrong_by_design_must_differ(copy: Path) -> None:
    right = load_file(copy / "expected_all.safetensors")["w9.wav17"]
    edit(copy, w9__wav17_chunked5_ctx2=right)
    failed = [row for row in verify(copy) if not row.ok]
    assert [(row.group, row.differs) for row in failed] == [("w9.wav17_chunked5_ctx2 (wrong by design)", True)]


def test_the_configured_window_must_be_among_the_checked_ones(copy: Path) -> None:
    audio = {**AUDIO, "decoder_config": AUDIO["decoder_config"] | {"sliding_window": 6}}
    (copy / "checkpoint" / "audio_tokenizer" / "config.json").write_text(json.dumps(audio))
    assert Row("configured window", 1.0, EXACT) in verify(copy)


def test_a_companion_that_is_missing_is_named(copy: Path) -> None:
    file = copy / "expected_all.safetensors"
    tensors = load_file(file)
    del tensors["codes17"]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match="expected tensors lack codes17"):
        verify(copy)


@pytest.mark.parametrize(
    ("ours", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([1.0], [1.0, 1.0], math.inf),
        ([math.nan], [1.0], math.inf),
        ([1.0], [math.nan], math.inf),
        ([-math.inf, 1.0], [-math.inf, 1.0], 0.0),
        ([-math.inf], [5.0], math.inf),
        ([math.inf], [-math.inf], math.inf),
        ([3, 4, 5], [3, 9, 9], 2.0),
        ([], [], 0.0),
    ],
)
def test_distance(ours: list[float], expected: list[float], error: float) -> None:
    assert distance(torch.tensor(ours), torch.tensor(expected)) == error


def printed(folder: Path) -> tuple[int, str]:
    console = Console(file=StringIO(), width=160)
    status = report(folder, console)
    assert isinstance(console.file, StringIO)
    return status, console.file.getvalue()


def test_report_of_a_good_folder(foreign: Path) -> None:
    status, text = printed(foreign)
    assert status == 0
    assert "all 32 groups agree" in text
    assert "bb.design.cond logits" in text
    assert "≤ 0.0002" in text


def test_report_of_a_bad_folder(copy: Path) -> None:
    edit(copy, sampling__input_scores=torch.zeros(13))
    status, text = printed(copy)
    assert status == 1
    assert "1 of 32 groups failed" in text
    assert "FAILED" in text


def test_folders_that_cannot_be_checked(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere: expected expected\*.safetensors beside checkpoint/, found no"):
        printed(tmp_path / "nowhere")
    (copy / "expected_all.safetensors").write_bytes(b"garbage!")
    with pytest.raises(CheckpointError, match=r"expected_all\.safetensors: damaged"):
        printed(copy)
    shutil.rmtree(copy / "checkpoint")
    shutil.copy(GOLDEN / "expected_codec.safetensors", copy / "expected_all.safetensors")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        printed(copy)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("te.short.ids", torch.ones(3), r"te.short.ids must be ids from 0 to 313 \[any\], found float32 \[3\]"),
        ("te.short.ids", torch.tensor([1, 314]), r"te.short.ids must be ids from 0 to 313 \[any\], found int64"),
        ("te.short.ids", torch.tensor(5), r"te.short.ids must be ids from 0 to 313 \[any\], found int64 \[\]"),
        ("tf.frames", torch.zeros(3, 5).long(), r"tf.frames must be ids from 0 to 9 \[any, 4\], found int64 \[3, 5\]"),
        ("tf.frames", torch.full((3, 4), -1), "tf.frames must be ids from 0 to 9"),
        ("codes17", torch.zeros(4, 17).long(), r"codes17 must be ids from 0 to 9 \[1, 4, any\], found int64 \[4, 17\]"),
        (
            "prompt.plain.cond.text_mask",
            torch.ones(2).long(),
            r"text_mask must be ids from 0 to 1 \[\d+\], found int64",
        ),
        ("bb.design.cond.prefill_layer0", torch.zeros(4, 5), r"must be floats \[any, 24\], found float32 \[4, 5\]"),
        ("sampling.input_scores", torch.zeros(2, 2), r"must be floats \[any\], found float32 \[2, 2\]"),
    ],
)
def test_inputs_that_cannot_be_used_are_named(copy: Path, name: str, tensor: Tensor, message: str) -> None:
    file = copy / "expected_all.safetensors"
    save_file(load_file(file) | {name: tensor}, file)
    with pytest.raises(CheckpointError, match=message):
        verify(copy)
