"""models/breeze_tts_2.py, prompts: the four layouts give the official ids, and every bad request is one clear error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer, models

from engine import models as voices
from engine.checks import RequestError
from engine.core import (
    Mode,
    ModelSpec,
    Prompt,
    PromptRow,
    Reference,
    ReferenceSegment,
    Request,
    SamplingParams,
    TextSegment,
)
from engine.models import breeze_tts_2
from engine.models.breeze_tts_2 import LICENCE, Breeze, Layouts, load, load_tokenizer, text_limit
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
        ("x" * 128, "text must have at most 127 characters, got 128"),
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


def test_the_longest_prompt_leaves_room_for_its_speech(model: Breeze) -> None:
    """12.5 frames a second, 12 characters a second: 123 characters take 129 of the 256 - 125 - 1 positions left."""
    assert model.prompt(Request("x" * 123, GREEDY)).length == 125
    problem = "prompt of 126 positions must leave room for its speech, about 130 frames, within 256 positions, got 129"
    with pytest.raises(RequestError, match=problem):
        model.prompt(Request("x" * 124, GREEDY))
    assert model.prompt(Request("x" * 124, SamplingParams(max_frames=129))).length == 126, "more was not asked for"


def test_an_instruction_and_a_reference_take_room_from_speech(model: Breeze) -> None:
    text = "x" * 61
    assert model.prompt(Request(text, GREEDY)).length == 63
    long = Reference("good day to you", FRAMES * 25)
    with pytest.raises(RequestError, match=r"about 64 frames, within 256 positions, got [1-5][0-9]; send less text"):
        model.prompt(Request(text, GREEDY, reference=long))
    with pytest.raises(
        RequestError, match=r"of 192 positions .* about 64 frames, within 256 positions, got 63; send less"
    ):
        model.prompt(Request(text, GREEDY, instruction="z" * 127))
    with pytest.raises(RequestError, match="about 1 frames, within 256 positions, got 0"):
        model.prompt(Request("x", SamplingParams(max_frames=1), reference=Reference("b", FRAMES * 51)))


def test_the_stated_limit_is_that_of_the_speech_that_fits() -> None:
    """Bytes: 1 token and 12.5 / 12 frames a character. The tag is dropped, <bos> and <eos> stay."""
    tokenizer = load_tokenizer(MINI / "tokenizer.json")

    def limit(max_positions: int, max_frames: int, samples_per_frame: int = 1920) -> int:
        sampling = SamplingParams(max_frames=max_frames)
        spec = ModelSpec("", "", 24000, samples_per_frame, 16, max_positions, frozenset(Mode), sampling)
        return text_limit(spec, tokenizer)

    assert limit(1024, 375) == 360, "375 frames of 80 ms at 12 characters a second"
    assert limit(1024, 1500) == int((1024 - 4) / (1 + 12.5 / 12))
    assert limit(100_000, 100_000) == 2000
    assert limit(1024, 375, samples_per_frame=960) == 180, "frames half as long"
    assert limit(4, 375) == 1


def test_a_limit_where_the_tokenizer_cannot_read_the_sample() -> None:
    spec = ModelSpec("", "", 24000, 1920, 16, 64, frozenset({Mode.PLAIN}), GREEDY)
    assert text_limit(spec, Tokenizer(models.BPE({"é": 0}, []))) == int((64 - 2) / (1 + 12.5 / 12))


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
    with pytest.raises(RequestError, match=message) as raised:
        model.prompt(Request("a", GREEDY, reference=Reference("b", frames)))
    assert raised.value.field == "reference"


@pytest.mark.parametrize("mode", ["design", "clone", "direction"])
def test_the_small_voice_has_one_mode(mini: Breeze, mode: str) -> None:
    assert mini.spec.modes == {Mode.PLAIN}
    design = f"breeze-mini knows the modes plain, got a request of mode {mode}; leave"
    with pytest.raises(RequestError, match=design if mode == "design" else "breeze-mini speaks as itself only"):
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
        max_text_chars=127,
        speakers=tuple(f"S{i}" for i in range(10)),
        guided=True,
        encodes=True,
    )
    assert not mini.spec.encodes
    assert (mini.spec.speakers, mini.spec.languages, mini.spec.guided) == (("S0",), (), False)
    assert mini.spec.licence == "apache-2.0"
    assert mini.spec.name == "breeze-mini"
    assert mini.spec.max_positions == 1024
    assert mini.spec.max_text_chars == 360
    assert mini.spec.normalise == "en"
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
        ({"model_type": "csm"}, r"config\.json: model_type must be one of breeze, qwen3_tts, found 'csm'"),
        ({"model_type": None}, r"config\.json: model_type must be one of breeze, qwen3_tts, found None"),
        ({"model_type": ["breeze"]}, r"config\.json: model_type must be a string, found \['breeze'\]"),
        ({"backbone_model_type": "llama"}, "backbone_model_type must be 'qwen3', found 'llama'"),
        ({"codebook_eos_token_id": 1}, "codebook_eos_token_id must be 0, found 1"),
        ({"backbone_config": None}, r"config\.json: backbone_config must be an object, found None"),
        ({"num_codebooks": 8}, r"must agree on number of codebooks, found \(8, 16, 16\)"),
        ({"hidden_size": 65}, "must agree on backbone width"),
        (
            {"codec_config": {}},
            r"config\.json: codec_config: codebook_size must be an integer from 1 to \d+, found nothing",
        ),
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
    with pytest.raises(CheckpointError, match=r"generation_config\.json: temperature must be a number from 0 to"):
        voices.load(copy, device=CPU, dtype=torch.float32)


def put(file: Path, keys: str, value: object) -> None:
    """Sets the value at the dotted keys."""
    config = json.loads(file.read_text())
    *path, last = keys.split(".")
    inner = config
    for key in path:
        inner = inner[key]
    inner[last] = value
    file.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("file", "keys", "value", "expected"),
    [
        ("config", "backbone_config.intermediate_size", "96", "an integer from 1 to 16777216, found '96'"),
        ("config", "backbone_config.hidden_size", -64, "an integer from 1 to 16777216, found -64"),
        ("config", "backbone_config.rope_theta", None, "a number from 1 to 1e+30, found None"),
        ("config", "backbone_config.head_dim", 15, "even, since rotation turns pairs of channels, found 15"),
        ("config", "backbone_config.num_hidden_layers", 10**9, "an integer from 1 to 1024, found 1000000000"),
        ("config", "backbone_config.max_position_embeddings", 0, "an integer from 1 to 16777216, found 0"),
        ("config", "text_encoder_config.rms_norm_eps", "small", "a number from 0 to 1e+30, found 'small'"),
        ("config", "text_encoder_config.num_key_value_heads", 3, "a divisor of num_attention_heads = 4, found 3"),
        ("config", "text_encoder_config.query_pre_attn_scalar", 0, "a number from 1e-12 to 1e+30, found 0"),
        ("config", "text_encoder_config.layer_types", "full_attention", "a list of full_attention, sliding_attention"),
        ("config", "text_encoder_config.rope_parameters.full_attention", [], "an object, found []"),
        ("config", "depth_decoder_config.num_codebooks", 1, "an integer from 2 to 1024, found 1"),
        ("config", "depth_decoder_config.num_attention_heads", True, "an integer from 1 to 16777216, found True"),
        ("config", "vocab_size", 36.0, "an integer from 1 to 16777216, found 36.0"),
        ("config", "license", 5, "a string, found 5"),
        ("audio_tokenizer/config", "output_sample_rate", 0, "an integer from 8000 to 192000, found 0"),
        ("audio_tokenizer/config", "decoder_config.upsample_rates", 8, "a list of integers from 1 to 1024, found 8"),
        ("audio_tokenizer/config", "decoder_config.upsample_rates", [8, 0], "a list of integers from 1 to 1024"),
        ("audio_tokenizer/config", "decoder_config.rms_norm_eps", float("nan"), "a number from 0 to 1e+30, found nan"),
        ("audio_tokenizer/config", "decoder_config.decoder_dim", 2, "an integer from 16 to 16777216, found 2"),
        ("generation_config", "top_k", 1.5, "an integer from 0 to 2147483647, found 1.5"),
        ("generation_config", "do_sample", "no", "true or false, found 'no'"),
    ],
)
def test_a_wrong_setting_is_named(copy: Path, file: str, keys: str, value: object, expected: str) -> None:
    put(copy / f"{file}.json", keys, value)
    with pytest.raises(CheckpointError) as caught:
        voices.load(copy, device=CPU, dtype=torch.float32)
    assert f"{copy / file}.json: {keys.replace('.', ': ')} must be {expected}" in str(caught.value)


def settings(value: object, path: str = "") -> Iterator[str]:
    """The dotted keys of everything in a JSON object."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield f"{path}{key}"
        yield from settings(inner, f"{path}{key}.")


@pytest.mark.parametrize("file", ["config", "audio_tokenizer/config", "generation_config"])
@pytest.mark.parametrize("wrong", ["x", 0, 10**40], ids=str)
def test_whatever_is_wrong_is_one_error(copy: Path, file: str, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting in turn, without the tensors. What is not read, or what may be so, does no harm."""
    tokenizer = load_tokenizer(copy / "tokenizer.json")
    monkeypatch.setattr(breeze_tts_2, "load_tokenizer", lambda file: tokenizer)
    monkeypatch.setattr(breeze_tts_2, "stored", lambda folder: {})
    monkeypatch.setattr(breeze_tts_2, "load_weights", lambda module, tensors, **_: module)
    path = copy / f"{file}.json"
    good = path.read_text()
    for keys in settings(json.loads(good)):
        put(path, keys, wrong)
        with suppress(CheckpointError, RequestError):
            voices.load(copy, device=CPU, dtype=torch.float32).prompt(Request("hello there", GREEDY))
        path.write_text(good)


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
