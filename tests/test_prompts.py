"""models/breeze_tts_2.py, prompts: the four layouts give the official ids, and every bad request is one clear error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer, models

from engine import models as voices
from engine.core import (
    Mode,
    ModelSpec,
    Prompt,
    PromptRow,
    Reference,
    ReferenceSegment,
    Request,
    RequestError,
    SamplingParams,
    TextSegment,
)
from engine.models.breeze_tts_2 import LICENCE, Breeze, Layouts, load
from engine.weights import CheckpointError

GOLDEN = Path(__file__).parent / "golden" / "breeze"
MINI = Path(__file__).parents[1] / "engine" / "voices" / "breeze-mini"
FRAMES = tuple(tuple(range(i, i + 16)) for i in range(5))
REFERENCE = Reference("good day to you", FRAMES)
CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def model() -> Breeze:
    return load(GOLDEN / "checkpoint", device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def mini() -> Breeze:
    return load(MINI, device=CPU, dtype=torch.float32)


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint folder to damage."""
    yield shutil.copytree(GOLDEN / "checkpoint", tmp_path / "voice")


def official(name: str) -> list[int]:
    with safe_open(GOLDEN / "expected_model.safetensors", framework="pt") as file:
        ids: list[int] = file.get_tensor(name).tolist()
        return ids


def flat(row: PromptRow) -> list[int]:
    """The row as the official code writes it: frames as <|AUDIO|> 300, the end of audio as 301."""
    ids: list[int] = []
    for segment in row.segments:
        ids += segment.ids if isinstance(segment, TextSegment) else [300] * len(segment.frames) + [301]
    return ids


REQUESTS = {
    "plain": Request("hello there", GREEDY),
    "design": Request("hello there my friend", GREEDY, instruction="a warm calm voice"),
    "clone": Request("hello there", GREEDY, reference=REFERENCE),
    "direction": Request("see you soon", GREEDY, instruction="slow and sad", reference=REFERENCE),
}


@pytest.mark.parametrize("mode", REQUESTS)
def test_layouts_are_the_official_ids(model: Breeze, mode: str) -> None:
    prompt = model.prompt(REQUESTS[mode])
    names = ["cond", "uncond"][: len(prompt.rows)]
    assert [flat(row) for row in prompt.rows] == [official(f"prompt.{mode}.{name}.ids") for name in names]
    lengths = [[s.length for s in row.segments if isinstance(s, TextSegment)] for row in prompt.rows]
    assert lengths == [official(f"prompt.{mode}.{name}.text_lens") for name in names]


def test_guidance_by_mode(model: Breeze) -> None:
    shapes = {mode: (len(p.rows), p.cfg_scale) for mode, p in prompts(model, REQUESTS).items()}
    assert shapes == {"plain": (1, 1.0), "design": (2, 4.0), "clone": (1, 1.0), "direction": (2, 4.0)}


def prompts(model: Breeze, requests: dict[str, Request]) -> dict[str, Prompt]:
    return {mode: model.prompt(request) for mode, request in requests.items()}


def with_scale(request: Request, scale: float) -> Request:
    return replace(request, sampling=SamplingParams(cfg_scale=scale))


def test_guidance_as_asked(model: Breeze) -> None:
    design = REQUESTS["design"]
    both = model.prompt(design)
    assert model.prompt(with_scale(design, 2.5)) == replace(both, cfg_scale=2.5)
    assert model.prompt(with_scale(design, 1.0)) == Prompt(both.rows[:1])
    assert model.prompt(with_scale(design, 0.0)) == Prompt(both.rows[1:])  # without the instruction, alone
    assert model.prompt(with_scale(REQUESTS["clone"], 3.0)) == model.prompt(REQUESTS["clone"])


def test_without_the_instruction_design_is_plain_and_direction_is_clone(model: Breeze) -> None:
    for mode, base in (("design", "plain"), ("direction", "clone")):
        without = replace(REQUESTS[mode], instruction="")
        assert without.mode == Mode(base)
        assert model.prompt(REQUESTS[mode]).rows[1:] == model.prompt(without).rows


def test_speakers(model: Breeze) -> None:
    def first_ids(speaker: str) -> list[int]:
        return flat(model.prompt(Request("a", GREEDY, speaker)).rows[0])

    assert first_ids("S0") == first_ids("[S0]") == [2, 302, 261]
    assert first_ids("S9") == [2, 311, 261]
    assert first_ids("") == [2, 261]
    for speaker in ("S10", "s0", "[S0", "S0]", "[[S0]]", "[]", "Anna", " S0"):
        with pytest.raises(RequestError, match=r"speaker must be one of S0, S1, .*S9 or empty, got"):
            first_ids(speaker)


def test_the_reference_carries_the_speaker_too(model: Breeze) -> None:
    row = model.prompt(replace(REQUESTS["clone"], speaker="S4")).rows[0]
    assert isinstance(row.segments[0], TextSegment)
    assert isinstance(row.segments[1], ReferenceSegment)
    assert row.segments[0].ids[:2] == (2, 306)
    assert row.segments[1].frames == FRAMES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text must hold something to say, got ''"),
        (" \n\t ", "text must hold something to say"),
        ("a <|AUDIO|> b", r"text must not hold <\|AUDIO\|>"),
        ("<|audio_eos|>", r"text must not hold <\|audio_eos\|>"),
        ("x" * 257, "text must have at most 256 characters, got 257"),
        ("x" * 255, r"leave room for a frame within 256 positions, got 257 of them"),
        ("a\ud800b", r"text must be text that the voice can read, got '\\ud800'; take that out"),
    ],
)
def test_bad_text(model: Breeze, text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        model.prompt(Request(text, GREEDY))


def test_bad_instruction_and_transcript(model: Breeze) -> None:
    with pytest.raises(RequestError, match="instruction must hold something"):
        model.prompt(Request("a", GREEDY, instruction="  "))
    with pytest.raises(RequestError, match=r"instruction must not hold <\|AUDIO\|>"):
        model.prompt(Request("a", GREEDY, instruction="<|AUDIO|>"))
    with pytest.raises(RequestError, match="reference text must hold something"):
        model.prompt(Request("a", GREEDY, reference=Reference("", FRAMES)))


def test_the_longest_prompt_leaves_room_for_one_frame(model: Breeze) -> None:
    assert model.prompt(Request("x" * 253, GREEDY)).length == 255
    with pytest.raises(RequestError, match="got 256 of them; send less text or a shorter reference"):
        model.prompt(Request("x" * 254, GREEDY))


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ((), "at least one frame"),
        ((FRAMES[0], FRAMES[0][:15]), r"reference frame 1 must have 16 codes from 0 to 31, got \[0, 1, .*14\]"),
        (((*FRAMES[0][:15], 32),), "reference frame 0 must have 16 codes from 0 to 31"),
        (((*FRAMES[0][:15], -1),), "reference frame 0 must have 16 codes from 0 to 31"),
    ],
)
def test_bad_reference(model: Breeze, frames: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        model.prompt(Request("a", GREEDY, reference=Reference("b", frames)))


@pytest.mark.parametrize("mode", ["design", "clone", "direction"])
def test_the_small_voice_has_one_mode(mini: Breeze, mode: str) -> None:
    assert mini.spec.modes == {Mode.PLAIN}
    with pytest.raises(RequestError, match=f"breeze-mini knows the modes plain, got a request of mode {mode}; leave"):
        mini.prompt(REQUESTS[mode])


def test_a_text_of_which_no_token_is_left(mini: Breeze) -> None:
    with pytest.raises(RequestError, match=r"text must hold something to say, got '\[S0\]'"):
        mini.prompt(Request("[S0]", GREEDY))


def test_the_small_voice_reads_bytes_and_knows_one_speaker(mini: Breeze) -> None:
    ids = [2, *(byte + 3 for byte in "é 😀".encode()), 1]
    assert flat(mini.prompt(Request("é 😀", GREEDY)).rows[0]) == ids
    assert flat(mini.prompt(Request("é 😀", GREEDY, speaker="")).rows[0]) == ids
    with pytest.raises(RequestError, match="speaker must be one of S0 or empty, got 'S1'"):
        mini.prompt(Request("hello", GREEDY, speaker="S1"))


def test_specs(model: Breeze, mini: Breeze) -> None:
    assert model.spec == ModelSpec(
        name="checkpoint",
        licence=LICENCE,
        sample_rate=24000,
        samples_per_frame=1920,
        num_codebooks=16,
        max_positions=256,
        modes=frozenset(Mode),
        sampling=SamplingParams(repetition_penalty=1.1, max_frames=750),
        max_text_chars=256,
    )
    assert mini.spec.licence == "apache-2.0"
    assert mini.spec.name == "breeze-mini"
    assert mini.spec.max_positions == 1024
    assert mini.spec.sampling == SamplingParams(
        temperature=0.3, depth_temperature=0.3, repetition_penalty=1.0, min_frames=3, max_frames=375
    )


def words(unknown: str | None) -> Layouts:
    """A tokenizer of three words, or of single letters without an unknown token."""
    spec = ModelSpec("words", "", 24000, 1920, 16, 64, frozenset({Mode.PLAIN}), GREEDY)
    if unknown is None:
        return Layouts(Tokenizer(models.BPE({"a": 0, "b": 1}, [])), spec, 32)
    return Layouts(Tokenizer(models.WordLevel({unknown: 0, "hello": 1, "[S0]": 2}, unk_token=unknown)), spec, 32)


def test_text_beyond_the_vocabulary() -> None:
    with pytest.raises(RequestError, match=r"can read, got 'ciao'; take that out"):
        words("<unk>").prompt(Request("ciao", GREEDY, speaker=""))
    assert words("<unk>").prompt(Request("hello", GREEDY, speaker="")).length == 1
    with pytest.raises(RequestError, match=r"can read, got 'c', 'é'; take that out"):
        words(None).prompt(Request("abécab", GREEDY, speaker=""))


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_generation_defaults_are_official_where_the_folder_is_silent(copy: Path) -> None:
    (copy / "generation_config.json").unlink()
    official = SamplingParams(0.9, 0.9, 50, 50, 1.0, 1.0, 1.1, None, 42, 0, 1500)
    assert load(copy, device=CPU, dtype=torch.float32).spec.sampling == official


def test_generation_defaults_of_the_folder(copy: Path) -> None:
    given = {
        "temperature": 0.5,
        "depth_decoder_temperature": 0.6,
        "top_k": 7,
        "depth_decoder_top_k": 8,
        "top_p": 0.7,
        "depth_decoder_top_p": 0.8,
        "repetition_penalty": 1.3,
        "guidance_scale": 2.0,
        "min_new_tokens": 2,
        "max_new_tokens": 99,
    }
    (copy / "generation_config.json").write_text(json.dumps(given))
    expected = SamplingParams(0.5, 0.6, 7, 8, 0.7, 0.8, 1.3, 2.0, 42, 2, 99)
    assert load(copy, device=CPU, dtype=torch.float32).spec.sampling == expected
    edit(copy / "generation_config.json", do_sample=False, depth_decoder_do_sample=False, top_k=None)
    sampling = load(copy, device=CPU, dtype=torch.float32).spec.sampling
    assert (sampling.temperature, sampling.depth_temperature, sampling.top_k) == (0.0, 0.0, 50)


def test_name_and_licence_of_the_folder(copy: Path) -> None:
    edit(copy / "config.json", name="anna", license="cc0-1.0")
    spec = load(copy, device=CPU, dtype=torch.float32).spec
    assert (spec.name, spec.licence) == ("anna", "cc0-1.0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "csm"}, r"expected a model_type of breeze, found 'csm'"),
        ({"model_type": None}, r"expected a model_type of breeze, found None"),
        ({"backbone_model_type": "llama"}, "backbone_model_type must be 'qwen3', found 'llama'"),
        ({"codebook_eos_token_id": 1}, "codebook_eos_token_id must be 0, found 1"),
        ({"backbone_config": None}, "configs hold a wrong value"),
        ({"num_codebooks": 8}, r"must agree on number of codebooks, found \(8, 16, 16\)"),
        ({"hidden_size": 65}, "must agree on backbone width"),
        ({"codec_config": {}}, "configs lack 'codebook_size'"),
    ],
)
def test_a_foreign_or_contradictory_config(copy: Path, change: dict[str, object], message: str) -> None:
    edit(copy / "config.json", **change)
    with pytest.raises(CheckpointError, match=message):
        voices.load(copy, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "audio_tokenizer/config.json"])
def test_missing_and_damaged_files(copy: Path, name: str) -> None:
    for content in ("{", "{}", None):
        (copy / name).unlink(missing_ok=True)
        if content is not None:
            (copy / name).write_text(content)
        with pytest.raises(CheckpointError, match=str(copy)):
            voices.load(copy, device=CPU, dtype=torch.float32)


def test_a_generation_default_out_of_range(copy: Path) -> None:
    edit(copy / "generation_config.json", temperature=-1)
    with pytest.raises(CheckpointError, match=r"wrong value \(temperature must be from 0.0 to 10.0, got -1\)"):
        voices.load(copy, device=CPU, dtype=torch.float32)


def test_a_tokenizer_of_another_model(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["text_encoder_config"]["vocab_size"] = 300
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json must have ids below 300, found 313"):
        voices.load(copy, device=CPU, dtype=torch.float32)


def test_a_config_of_another_size_names_the_tensors(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["depth_decoder_config"]["intermediate_size"] = 97
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        voices.load(copy, device=CPU, dtype=torch.float32)
    expected = "depth_decoder.model.layers.0.mlp.gate_proj.weight, expected floats [97, 32], found BF16 [96, 32]"
    assert expected in str(caught.value)
    assert "9 tensors differ" in str(caught.value)
