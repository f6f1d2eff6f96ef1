"""models/qwen3_tts.py: each kind of voice takes its own requests, bad folders are named, and the runtime speaks it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from voices import KINDS as TINY_VOICES
from voices import voice

from engine import models, random_weights
from engine.checks import RequestError
from engine.codec import CodecDecoder
from engine.core import (
    Chunk,
    Failed,
    Finished,
    Mode,
    Output,
    Reference,
    Request,
    Row,
    Samples,
    SamplingParams,
    TextSegment,
)
from engine.encoder_places import EncoderPlaces
from engine.executor import default_limits
from engine.messages import EMBEDDED_VOICE, RuntimeConfig
from engine.models.qwen3_tts import CODEC, LICENCE, Qwen3TTS, Wish, load, load_tokenizer
from engine.reference import decode
from engine.runtime import Runtime
from engine.speaker import SpeakerConfig, SpeakerEncoder
from engine.verify_qwen3_tts import embed, generate
from engine.wav import header
from engine.weights import CheckpointError, outlines

GOLDEN = Path(__file__).parent / "golden" / "qwen3-tts"
CPU = torch.device("cpu")
SPEAKERS = ("serena", "vivian", "uncle_fu", "ryan", "aiden", "ono_anna", "sohee", "eric", "dylan")
LANGUAGES = "auto chinese english german italian portuguese spanish japanese korean french russian"
GREEDY = SamplingParams(temperature=0.0, depth_temperature=0.0, repetition_penalty=1.05)
KINDS = {"custom": "qwen3_tts", "base": "qwen3_tts.base", "design": "qwen3_tts.voice_design"}
"""The first word of a golden case, and the kind of voice that it is for."""


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return load_file(GOLDEN / "proj" / "expected.safetensors")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: voice(kind, tmp_path_factory.mktemp("voices")) for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def loaded(folders: dict[str, Path]) -> dict[str, Qwen3TTS]:
    return {name: load(folder, device=CPU, dtype=torch.float32) for name, folder in folders.items()}


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint folder to damage."""
    yield voice("qwen3_tts", tmp_path)


def reference(expected: dict[str, Tensor], **changes: Any) -> Reference:
    frames = tuple(map(tuple, expected["ref.short"].tolist()))
    return replace(Reference("good day", frames, tuple(expected["xvec"].tolist())), **changes)


# ---- what may be asked ----


def test_the_folder_says_what_it_is(loaded: dict[str, Qwen3TTS], folders: dict[str, Path]) -> None:
    custom, base, design = loaded["custom"].spec, loaded["base"].spec, loaded["design"].spec
    assert (custom.name, custom.licence) == (folders["custom"].name, "Apache-2.0")
    assert (custom.sample_rate, custom.samples_per_frame, custom.num_codebooks) == (24000, 1920, 16)
    assert custom.max_positions == 2048, "not the published 32768"
    assert custom.sampling == SamplingParams(repetition_penalty=1.05, max_frames=8192)
    assert (custom.speakers, base.speakers, design.speakers) == (SPEAKERS, (), ())
    assert custom.languages == base.languages == tuple(LANGUAGES.split())
    assert custom.modes == design.modes == {Mode.PLAIN, Mode.DESIGN}
    assert base.modes == {Mode.CLONE}
    assert not custom.guided


def test_models_are_found_by_what_the_config_says(folders: dict[str, Path]) -> None:
    assert isinstance(models.load(folders["base"], device=CPU, dtype=torch.float32), Qwen3TTS)


def test_the_small_voices_take_no_instruction(tmp_path: Path) -> None:
    small = load(voice("qwen3_tts.small", tmp_path), device=CPU, dtype=torch.float32)
    assert small.spec.modes == {Mode.PLAIN}
    with pytest.raises(RequestError, match="knows the modes plain, got a request of mode design; leave out the instr"):
        small.prompt(Request("hello", GREEDY, instruction="softly"))


def test_guidance_is_refused_where_there_is_none(loaded: dict[str, Qwen3TTS]) -> None:
    loaded["custom"].prompt(Request("hello", replace(GREEDY, cfg_scale=1.0)))
    with pytest.raises(RequestError, match=r"cfg_scale must be left out: voice .* is not guided, got 2\.5"):
        loaded["custom"].prompt(Request("hello", replace(GREEDY, cfg_scale=2.5)))


def test_the_small_clone_has_an_encoder_of_its_own_width(tmp_path: Path) -> None:
    folder = voice("qwen3_tts.small", tmp_path)
    shutil.copy(folder / "config.base.json", folder / "config.json")
    small = load(folder, device=CPU, dtype=torch.float32)
    assert small.spec.modes == {Mode.CLONE} and small.speaker_encoder is not None
    assert small.speaker_encoder.config.width == small.width


@pytest.mark.parametrize(
    ("case", "request_of"),
    [
        ("custom.plain.nonstream", lambda _: Request("hello there my friend", GREEDY, "Vivian", language="English")),
        ("custom.plain.nonstream", lambda _: Request("\n hello there my friend ", GREEDY, "S1", language="english")),
        (
            "custom.instruct.nonstream",
            lambda _: Request("hello there my friend", GREEDY, "ryan", "speak slowly and calm", language="Auto"),
        ),
        ("custom.dialect.nonstream", lambda _: Request("see you soon", GREEDY, "eric", language="Chinese")),
        ("custom.dialect.nonstream", lambda _: Request("see you soon", GREEDY, "Eric")),
        (
            "design.nonstream",
            lambda _: Request("hello there my friend", GREEDY, "", "a warm calm voice", None, 0, None, "english"),
        ),
        (
            "base.xvec.stream",
            lambda e: Request(
                "hello there my friend", GREEDY, reference=reference(e, text="", frames=()), language="english"
            ),
        ),
        (
            "base.icl.stream",
            lambda e: Request("hello there my friend", GREEDY, "", reference=reference(e), language="english"),
        ),
        (
            "base.icl_longref.stream",
            lambda e: Request(
                "hello there my friend",
                GREEDY,
                reference=reference(e, frames=tuple(map(tuple, e["ref.long"].tolist()))),
                language="english",
            ),
        ),
    ],
)
@torch.inference_mode()
def test_requests_become_the_official_prompts(
    loaded: dict[str, Qwen3TTS],
    expected: dict[str, Tensor],
    case: str,
    request_of: Callable[[dict[str, Tensor]], Request],
) -> None:
    model = loaded[case.partition(".")[0]]
    (row,) = model.prompt(request_of(expected)).rows
    embeds = embed(model, row)
    want, trailing = expected[f"m.{case}.embeds"], expected[f"m.{case}.trailing"]
    assert row.length == len(want)
    torch.testing.assert_close(embeds[: row.length], want, rtol=0, atol=2e-5)
    torch.testing.assert_close(embeds[row.length :][: len(trailing)], trailing, rtol=0, atol=2e-5)
    torch.testing.assert_close(embeds[-1], expected["tts_pad_embed"], rtol=0, atol=2e-5)


def test_a_voice_speaks_as_its_first_speaker_unless_told(loaded: dict[str, Qwen3TTS]) -> None:
    custom = loaded["custom"]
    rows = {speaker: custom.prompt(Request("hi", GREEDY, speaker)) for speaker in ("", "S0", "serena", "S8", "dylan")}
    assert rows[""] == rows["S0"] == rows["serena"] != rows["dylan"] == rows["S8"]


@pytest.mark.parametrize(
    ("kind", "changes", "message", "field"),
    [
        (
            "custom",
            {"speaker": "alloy"},
            r"speaker must be one of serena, vivian, .*, S0, .*S8 or empty, got 'alloy'",
            "speaker",
        ),
        ("design", {"speaker": "vivian"}, "speaker must be one of S0 or empty, got 'vivian'", "speaker"),
        (
            "custom",
            {"language": "klingon"},
            r"language must be .*\(auto, chinese, .*russian\) or empty, got 'klingon'",
            "language",
        ),
        ("custom", {"language": "sichuan_dialect"}, "language must be one of", "language"),
        (
            "custom",
            {"reference": True},
            "reference must be left out: the voice qwen3_tts speaks as itself only",
            "reference",
        ),
        (
            "base",
            {},
            r"knows the modes clone, got a request of mode plain; give a reference$",
            "reference",
        ),
        (
            "base",
            {"reference": True, "instruction": "softly"},
            "got a request of mode direction; leave out",
            "instruction",
        ),
        ("custom", {"text": "  "}, "text must hold something to say", "text"),
        (
            "custom",
            {"text": "say <|im_end|>"},
            r"text must not hold <\|im_end\|>, which has a meaning of its own",
            "text",
        ),
        ("custom", {"text": "\ud83d"}, "text must be text that the voice can read", "text"),
        ("custom", {"text": "a" * 2001}, "text must have at most 1", "text"),
    ],
)
def test_a_request_that_the_voice_cannot_serve_is_one_clear_error(
    loaded: dict[str, Qwen3TTS],
    expected: dict[str, Tensor],
    kind: str,
    changes: dict[str, Any],
    message: str,
    field: str,
) -> None:
    changes = changes | ({"reference": reference(expected)} if "reference" in changes else {})
    with pytest.raises(RequestError, match=message) as raised:
        loaded[kind].prompt(replace(Request("hello", GREEDY), **changes))
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vector": ()}, "reference vector must have 64 numbers, got 0; send what this voice's speaker encoder says"),
        ({"vector": (0.5,) * 63}, "reference vector must have 64 numbers, got 63"),
        ({"text": ""}, "reference text must hold something to say"),
        ({"frames": ()}, "reference must have at least one frame of codes"),
        ({"frames": ((32,) * 16,)}, "reference frame 0 must have 16 codes from 0 to 31"),
        ({"frames": ((1,) * 16,) * 2047}, "must leave room for its speech"),
    ],
)
def test_a_reference_that_is_none(
    loaded: dict[str, Qwen3TTS], expected: dict[str, Tensor], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        loaded["base"].prompt(Request("hello", GREEDY, reference=reference(expected, **changes)))


def test_a_reference_vector_is_plain_numbers() -> None:
    for vector in ([0.5], (inf,), (nan,), (10**1000,), ("a",), (True,)):
        with pytest.raises(RequestError, match="reference vector must be a tuple of numbers that are not huge, got"):
            Reference("a", (), vector)  # type: ignore[arg-type]


# ---- folders ----


def test_the_tokenizer_is_built_from_its_parts(copy: Path) -> None:
    tokenizer = load_tokenizer(copy)
    assert tokenizer.encode("<|im_start|>assistant\nhe's 42, é").tokens == [
        *("<|im_start|>", "assistant", "Ċ", "he", "'", "s", "Ġ", "4", "2", ",", "Ġ", "Ã", "©"),
    ]
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("é").ids, "NFC"
    assert tokenizer.encode("<tts_pad>").ids == [276]


def damage(file: Path, **changes: object) -> None:
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "merges.txt").unlink(), r"merges\.txt: cannot be read"),
        (lambda f: (f / "vocab.json").unlink(), r"vocab\.json: cannot be read"),
        (lambda f: (f / "vocab.json").write_text("{}"), r"vocab\.json and merges\.txt do not fit"),
        (lambda f: (f / "merges.txt").write_text("q"), r"vocab\.json and merges\.txt do not fit"),
        (lambda f: damage(f / "tokenizer_config.json", added_tokens_decoder={"x": {}}), "ids with a content each"),
        (
            lambda f: damage(f / "tokenizer_config.json", added_tokens_decoder={"320": {"content": "<a>"}}),
            "ids below 320",
        ),
        (
            lambda f: damage(f / "config.json", im_start_token_id=5),
            "of a prompt without text, with <.im_start.> = 5 and",
        ),
        (
            lambda f: (f / "merges.txt").write_text("#version: 0.2\na s\n"),
            "must make 8 tokens of a prompt without text",
        ),
        (lambda f: damage(f / "config.json", tts_model_type="singing"), "tts_model_type must be one of base, custom_v"),
        (
            lambda f: damage(f / "config.json", tts_pad_token_id=None),
            "tts_pad_token_id must be an integer from 0 to 319",
        ),
        (lambda f: damage(f / "config.json", talker_config={}), "talker_config: code_predictor_config must be"),
        (
            lambda f: damage(f / "config.json", tokenizer_type="25hz"),
            "tokenizer_type must be 'qwen3_tts_tokenizer_12hz'",
        ),
        (lambda f: (f / "speech_tokenizer" / "config.json").unlink(), r"speech_tokenizer/config\.json: cannot be read"),
        (
            lambda f: (f / "speech_tokenizer" / "model.safetensors").unlink(),
            r"speech_tokenizer: expected \*\.safetensors",
        ),
        (lambda f: damage(f / "generation_config.json", top_k=-1), r"top_k must be an integer from 0"),
    ],
)
def test_a_damaged_folder_is_one_clear_error(copy: Path, break_it: Callable[[Path], object], message: str) -> None:
    break_it(copy)
    with pytest.raises(CheckpointError, match=message):
        load(copy, device=CPU, dtype=torch.float32)


def test_what_only_encoding_reads_may_be_there(copy: Path) -> None:
    """As in the published codec."""
    file = copy / "speech_tokenizer" / "model.safetensors"
    more = ("encoder.downsample.conv.weight", "decoder.quantizer.rvq_rest.input_proj.weight")
    save_file(load_file(file) | {name: torch.zeros(2) for name in more}, file)
    load(copy, device=CPU, dtype=torch.float32)


def test_configs_that_disagree_are_named(copy: Path) -> None:
    file = copy / "speech_tokenizer" / "config.json"
    decoder = json.loads(file.read_text())["decoder_config"]
    damage(file, decoder_config=decoder | {"codebook_size": 31})
    with pytest.raises(CheckpointError, match=r"must agree on codebook_size, found \(32, 32, 31\)"):
        load(copy, device=CPU, dtype=torch.float32)


def test_missing_extra_and_misshapen_tensors_are_one_error(copy: Path) -> None:
    file = copy / "model.safetensors"
    tensors = load_file(file)
    del tensors["talker.code_predictor.lm_head.3.weight"]
    tensors["talker.text_projection.linear_fc2.bias"] = torch.zeros(63)
    tensors["talker.model.surprise"] = torch.zeros(1)
    save_file(tensors, file)
    with pytest.raises(CheckpointError) as raised:
        load(copy, device=CPU, dtype=torch.float32)
    for line in (
        "3 tensors differ",
        "missing: talker.code_predictor.lm_head.3.weight, expected [32, 32], found nothing",
        "misshapen: talker.text_projection.linear_fc2.bias, expected floats [64], found F32 [63]",
        "extra: talker.model.surprise",
    ):
        assert line in str(raised.value)


# ---- choosing codes ----


@torch.inference_mode()
def test_control_ids_are_never_drawn_and_the_end_never_first(loaded: dict[str, Qwen3TTS]) -> None:
    model = loaded["custom"]
    state = model.new_state(default_limits(model, 1))
    state.sampling.set(1, SamplingParams(temperature=10.0, top_k=0, min_frames=0))
    rows = replace(state.sampling.rows(torch.ones(4000, dtype=torch.int64)), seed=torch.arange(4000))
    hidden = torch.randn(1, 64, generator=torch.Generator().manual_seed(5)).expand(4000, -1)
    drawn = [set(model.first_code(hidden, rows, torch.full((4000,), frame)).tolist()) for frame in range(3)]
    assert drawn[0] == drawn[1] == set(range(32)), "whatever min_frames says"
    assert drawn[2] == {*range(32), model.end_id}


# ---- recordings ----


def test_a_recording_becomes_the_vector_of_its_speaker(
    loaded: dict[str, Qwen3TTS], expected: dict[str, Tensor]
) -> None:
    encoder = loaded["base"].speaker_encoder
    assert encoder is not None
    with torch.inference_mode():
        found = encoder.hear(expected["spk.wav"])
        torch.testing.assert_close(found, expected["spk.wav_xvec"], rtol=0, atol=5e-5)
        with pytest.raises(ValueError, match=r"must be at least 2400 samples, got \[2399\]: take a longer one"):
            encoder.hear(torch.zeros(2399))
    vector = tuple(found.tolist())
    only = Reference("", (), vector)
    assert loaded["base"].prompt(Request("hello", GREEDY, reference=only)).rows[0].overlays[0].vector == vector
    assert loaded["custom"].speaker_encoder is None


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone whose codec is whole, as the published ones are: it is that of Breeze TTS 2."""
    folder = voice("qwen3_tts.base", tmp_path_factory.mktemp("hearing"))
    shutil.copytree(TINY_VOICES["breeze_tts_2"] / "audio_tokenizer", folder / CODEC, dirs_exist_ok=True)
    return folder


def noise(seconds: float) -> Samples:
    return np.random.default_rng(3).uniform(-0.5, 0.5, round(24_000 * seconds)).astype(np.float32)


def test_a_file_becomes_frames_and_the_vector_of_its_speaker(hearing: Path) -> None:
    """In pieces, as the engine encodes it; and such a voice speaks. What is no clone needs no encoder."""
    model, pcm = load(hearing, device=CPU, dtype=torch.float32), (noise(3.3) * 32767).astype("<i2").tobytes()
    data = header(24_000, len(pcm)) + pcm
    samples = torch.from_numpy(decode(data))
    assert model.spec.encodes and model.encoder is not None and model.speaker_encoder is not None
    with torch.inference_mode():
        frames = tuple(map(tuple, model.encoder(samples[None])[0].tolist()))
        vector = tuple(model.speaker_encoder.hear(samples).tolist())
    with Runtime.start(RuntimeConfig(voice=hearing, device="cpu", slots=2)) as runtime:
        found = runtime.clone(data, "good day to you")
        sampling = replace(runtime.spec.sampling, min_frames=3, max_frames=3)
        *chunks, end = runtime.stream(Request("hello there", sampling, reference=found))
    assert found == Reference("good day to you", frames, vector)
    assert isinstance(end, Finished) and sum(len(x.pcm) for x in chunks if isinstance(x, Chunk)) == 3 * 1920


def test_recordings_on_their_way_together_keep_their_own_vectors(hearing: Path) -> None:
    model = load(hearing, device=CPU, dtype=torch.float32)
    assert model.encoder is not None and model.speaker_encoder is not None
    places, whole = EncoderPlaces(model.encoder, CPU, model.speaker_encoder), [noise(0.5), -noise(0.4), noise(0.05)]
    found: dict[int, tuple[float, ...]] = {}
    with torch.inference_mode():
        for start in range(0, 7, 2):
            rows = [row_of(number, samples, start, 2) for number, samples in enumerate(whole)]
            rows = [row for row in rows if row.count > 0]
            result = places.run(rows)
            found |= {row.request_id: one for row, one in zip(rows, result.vectors, strict=True) if row.final}
            assert all(one == () for row, one in zip(rows, result.vectors, strict=True) if not row.final)
        longer = [np.pad(samples, (0, max(0, 2400 - samples.size))) for samples in whole]
        expected = [tuple(model.speaker_encoder.hear(torch.from_numpy(samples)).tolist()) for samples in longer]
    assert [found[number] for number in range(3)] == expected


def row_of(number: int, samples: Samples, start: int, count: int) -> Row:
    """The next frames of a recording; none where it has ended."""
    frames = -(-samples.size // 1920)
    last = min(start + count, frames)
    return Row(
        number,
        (number + 1,),
        start,
        last - start,
        last == frames,
        samples=samples[start * 1920 : last * 1920],
        recording=samples,
    )


@pytest.mark.parametrize(("width", "parameters"), [(2048, 12_001_088), (1024, 8_854_336)])
def test_a_speaker_encoder_has_the_size_of_the_published_one(width: int, parameters: int) -> None:
    """What the Base checkpoints have more than the CustomVoice ones; their config may say the width alone."""
    with outlines():
        encoder = SpeakerEncoder(SpeakerConfig.from_dict({"enc_dim": width, "sample_rate": 24000}))
    assert sum(parameter.numel() for parameter in encoder.parameters()) == parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"enc_dim": 63}, "enc_dim must be the talker's width 64, found 63"),
        ({"enc_channels": [16, 16, 48]}, "enc_channels must be as long as"),
        ({"enc_channels": [16, 16, 24, 16, 48]}, "equal but for the last"),
        ({"enc_dilations": [1, 2, 3, 99, 1]}, "enc_dilations must be so small that a block sees less than 9 columns"),
        ({"enc_res2net_scale": 5}, "enc_res2net_scale must be a divisor of 16"),
        (
            {"enc_se_channels": 9},
            r"misshapen: speaker_encoder\.blocks\.1\.se_block\.conv1\.weight, expected floats \[9, 16, 1\]",
        ),
    ],
)
def test_a_speaker_encoder_that_does_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = voice("qwen3_tts.base", tmp_path)
    given = json.loads((folder / "config.json").read_text())["speaker_encoder_config"]
    damage(folder / "config.json", speaker_encoder_config=given | change)
    with pytest.raises(CheckpointError, match=message):
        load(folder, device=CPU, dtype=torch.float32)


# ---- random weights ----


@pytest.mark.parametrize(("size", "parameters"), [("0.6b", 905_788_672), ("1.7b", 1_916_676_352)])
def test_random_voices_have_the_sizes_of_the_published_ones(size: str, parameters: int) -> None:
    """Of the CustomVoice checkpoints; the codec's decoder has 114 323 137, two projections for encoding among them."""
    model = random_weights.outline(f"qwen3-tts-{size}")
    assert isinstance(model, Qwen3TTS)
    assert sum(parameter.numel() for parameter in model.talker.parameters()) == parameters
    assert isinstance(model.codec, CodecDecoder)
    assert sum(parameter.numel() for parameter in model.codec.parameters()) == 114_323_137 - 2 * 512 * 256
    assert (model.spec.name, model.spec.licence) == (f"random-qwen3-tts-{size}", LICENCE)
    assert (Mode.DESIGN in model.spec.modes) == (size == "1.7b")
    assert model.spec.max_text_chars == 1645
    (row,) = model.prompt(Request("one, two three. " * 20, model.spec.sampling, "ryan", language="english")).rows
    assert (row.length, row.trailing) == (3 + 6 + 100 + 2, 1), "role, language and speaker, text, its end and the first"


# ---- the runtime ----


@pytest.fixture(scope="module", params=["custom", "base"])
def speaking(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[tuple[str, Runtime]]:
    with Runtime.start(RuntimeConfig(folders[request.param], device="cpu", in_process=True, max_wait=inf)) as started:
        yield request.param, started


def said(runtime: Runtime, ask: Request) -> tuple[list[Chunk], Finished]:
    *chunks, end = runtime.stream(ask)
    assert isinstance(end, Finished), end
    return [chunk for chunk in chunks if isinstance(chunk, Chunk)], end


@torch.inference_mode()
def test_the_runtime_speaks_and_streamed_audio_is_the_whole(
    speaking: tuple[str, Runtime], loaded: dict[str, Qwen3TTS], expected: dict[str, Tensor]
) -> None:
    kind, runtime = speaking
    assert runtime.spec.name == f"{KINDS[kind]}"
    model, sampling = loaded[kind], replace(GREEDY, max_frames=8)
    case = {"custom": "custom.plain.nonstream", "base": "base.icl.stream"}[kind]
    ask = Request("hello there my friend", sampling, "S0", language="english")
    ask = replace(ask, speaker="vivian") if kind == "custom" else replace(ask, reference=reference(expected))
    chunks, end = said(runtime, ask)
    codes = np.concatenate([chunk.codes for chunk in chunks])
    assert codes.tolist() == expected[f"m.{case}.greedy.frames"].tolist(), "the official frames"
    assert len(chunks) > 1
    heard = torch.tensor(codes).long()
    first = reference(expected).frames if kind == "base" else ()
    before = torch.tensor(first).view(-1, 16).long()
    whole = model.codec(torch.cat((before, heard)).t()[None])[0, len(before) * 1920 :]
    streamed = np.concatenate([chunk.pcm for chunk in chunks]) / 32767
    assert np.abs(streamed - whole.numpy()).max() <= 5e-5 + 1 / 32767
    assert end.stats.num_frames == 8


def test_requests_at_once_get_what_each_gets_alone(speaking: tuple[str, Runtime], expected: dict[str, Tensor]) -> None:
    kind, runtime = speaking
    asks = [
        Request(text, replace(runtime.spec.sampling, seed=seed, max_frames=12, min_frames=12))
        for seed, text in enumerate(("hello there my friend", "ok", "see you soon and good day to you"))
    ]
    if kind == "base":
        asks = [replace(ask, reference=reference(expected)) for ask in asks]
    alone = [np.concatenate([chunk.codes for chunk in said(runtime, ask)[0]]).tolist() for ask in asks]
    streams = [runtime.stream(ask) for ask in asks]
    together = [[out.codes for out in stream if isinstance(out, Chunk)] for stream in streams]
    assert [np.concatenate(codes).tolist() for codes in together] == alone


def test_the_runtime_refuses_what_the_voice_does_not_know(speaking: tuple[str, Runtime]) -> None:
    kind, runtime = speaking
    ask = Request("hello", runtime.spec.sampling, language="klingon")
    (failed,) = runtime.stream(ask)
    assert isinstance(failed, Failed)
    assert ("russian" if kind == "custom" else "knows the modes clone") in failed.message


def test_the_end_of_speech_ends_the_stream(folders: dict[str, Path], expected: dict[str, Tensor]) -> None:
    with Runtime.start(RuntimeConfig(folders["custom"], device="cpu", in_process=True, max_wait=inf)) as runtime:
        chunks, end = said(runtime, Request("ok then", GREEDY, "vivian", language="english"))
    codes = np.concatenate([chunk.codes for chunk in chunks])
    assert codes.tolist() == expected["m.eos.greedy.frames"].tolist()
    assert (end.reason, end.stats.num_frames) == ("end", 5)


# ---- text that is still being written ----

WORDS = "hello there my friend, it is a good day to you and to all of them"


def wishes(expected: dict[str, Tensor]) -> list[tuple[str, Wish, Request]]:
    """Every kind of prompt in the layout of a text that reads on, and the request for it."""
    whole, xvec = reference(expected), reference(expected, text="", frames=())
    long = replace(whole, frames=tuple(map(tuple, expected["ref.long"].tolist())))
    vector = whole.vector
    return [
        ("custom", Wish("", "english", "vivian", reads_on=True), Request("", GREEDY, "vivian", language="english")),
        ("custom", Wish("", speaker="ryan", instruction="calm", reads_on=True), Request("", GREEDY, "ryan", "calm")),
        ("design", Wish("", instruction="warm", reads_on=True), Request("", GREEDY, "", "warm")),
        ("base", Wish("", vector=vector, reads_on=True), Request("", GREEDY, reference=xvec)),
        ("base", Wish("", vector=vector, reference=whole, reads_on=True), Request("", GREEDY, reference=whole)),
        ("base", Wish("", vector=vector, reference=long, reads_on=True), Request("", GREEDY, reference=long)),
    ]


@pytest.mark.parametrize("text", ["hi", WORDS, f" {WORDS}\n"])
@pytest.mark.parametrize("case", range(6))
def test_a_text_in_pieces_is_laid_out_as_the_whole(
    loaded: dict[str, Qwen3TTS], expected: dict[str, Tensor], case: int, text: str
) -> None:
    kind, wish, ask = wishes(expected)[case]
    model = loaded[kind]
    row = model.layouts.row(replace(wish, text=text))
    for size in (1, 3, 100):
        reading = model.reading(replace(ask, open=True))
        (start,) = reading.prompt.rows
        assert (start.open, start.length, start.overlays) == (True, row.length, row.overlays)
        came = [id_ for at in range(0, len(text), size) for id_ in reading.append(text[at : at + size])]
        (segment,), (whole,) = start.segments, row.segments
        assert isinstance(segment, TextSegment)
        assert isinstance(whole, TextSegment)
        assert (*segment.ids, *came, *reading.end()) == whole.ids
        assert reading.prompt.rows[0].trailing == row.trailing


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["  ", "\n"], "text must hold something to say, got '  .n'; send words"),
        (["say <|im_", "end|>"], "text must not hold <|im_end|>, which has a meaning of its own"),
        (["a \ud83d"], "text must be text that the voice can read"),
        (["a" * 1000] * 2, "text must have at most 1... characters, got 2000 by now; open another request"),
    ],
)
def test_a_text_that_cannot_go_on_is_one_clear_error(
    loaded: dict[str, Qwen3TTS], texts: list[str], message: str
) -> None:
    reading = loaded["custom"].reading(Request("", GREEDY, open=True))
    with pytest.raises(RequestError, match=message.replace("|", r"\|")) as raised:
        for text in texts:
            reading.append(text)
        reading.end()
    assert raised.value.field == "text"


def test_what_a_request_gets_wrong_is_told_when_it_is_opened(loaded: dict[str, Qwen3TTS]) -> None:
    for ask in (Request("", GREEDY, "alloy", open=True), Request("<|im_end|>", GREEDY, open=True)):
        with pytest.raises(RequestError):
            loaded["custom"].reading(ask)
    breeze = models.load(EMBEDDED_VOICE, device=CPU, dtype=torch.float32)
    for whole in (breeze.prompt, breeze.reading):
        with pytest.raises(RequestError, match=r"voice breeze-mini reads whole texts only.*sentence by sentence"):
            whole(Request("hello", GREEDY, open=True))


def written(runtime: Runtime, ask: Request, pieces: list[str], pause: float = 0.0) -> list[list[int]]:
    """The codes of a request whose text comes so, as far as it makes frames for it."""
    outputs: SimpleQueue[Output] = SimpleQueue()
    number = runtime.submit(replace(ask, text="", open=True), outputs.put)
    with suppress(RequestError):  # it has all its frames before it has all its text
        for piece in pieces:
            runtime.append_text(number, piece)
            time.sleep(pause)  # justified: so that pieces come between steps
        runtime.end_text(number)
    codes: list[list[int]] = []
    while not isinstance(output := outputs.get(timeout=60), Finished):
        assert isinstance(output, Chunk), output
        codes += output.codes.tolist()
    return codes


@torch.inference_mode()
def test_the_codes_of_a_text_in_pieces_are_those_of_the_whole(
    speaking: tuple[str, Runtime], loaded: dict[str, Qwen3TTS], expected: dict[str, Tensor]
) -> None:
    """Drawn and greedy, whatever the pieces and whenever they come; greedy ones are those of the official layout."""
    kind, runtime = speaking
    for case, (of, wish, ask) in enumerate(wishes(expected)):
        if of != kind:
            continue
        ask = replace(ask, sampling=replace(GREEDY, max_frames=30, min_frames=30))
        greedy = written(runtime, ask, [WORDS])
        official = generate(loaded[kind], replace(wish, text=WORDS), ask.sampling, 31)["frames"]
        assert greedy == official.tolist(), case
        assert written(runtime, ask, [*WORDS], pause=0.002) == greedy, case
        ask = replace(ask, sampling=replace(ask.sampling, temperature=0.9, depth_temperature=0.9, seed=7))
        drawn = written(runtime, ask, [WORDS])
        assert drawn != greedy
        for size in (2, 7, 31):
            pieces = [WORDS[at : at + size] for at in range(0, len(WORDS), size)]
            assert written(runtime, ask, pieces, pause=0.01) == drawn, (case, size)


def test_who_appends_to_what_takes_no_more_text_is_told(speaking: tuple[str, Runtime]) -> None:
    kind, runtime = speaking
    if kind != "custom":
        return
    ended = Event()
    ask = Request("hello", replace(GREEDY, max_frames=500, min_frames=500), open=True)
    number = runtime.submit(ask, lambda output: ended.set() if isinstance(output, Failed | Finished) else None)
    most = runtime.spec.max_text_chars
    with pytest.raises(RequestError, match=f"text must have at most {most} characters, got {most + 1} by now"):
        runtime.append_text(number, "a" * (most - 4))
    runtime.append_text(number, " there")
    runtime.end_text(number)
    for again in (runtime.append_text, runtime.end_text):
        with pytest.raises(RequestError, match=f"request {number} takes no more text: its text is complete") as raised:
            again(number, "more")
        assert raised.value.field == "request_id"
    runtime.cancel(number)
    assert ended.wait(30)
    with pytest.raises(RequestError, match="takes no more text: it is over, or was never submitted"):
        runtime.append_text(number, "more")
    runtime.end_text(number)


def test_a_text_that_nobody_went_on_with_takes_no_more(
    speaking: tuple[str, Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end of it is nobody's mistake."""
    kind, runtime = speaking
    if kind != "custom":
        return
    ended = Event()
    ask = Request("hello", replace(GREEDY, max_frames=500, min_frames=500), open=True)
    number = runtime.submit(ask, lambda output: ended.set() if isinstance(output, Failed | Finished) else None)
    runtime.append_text(number, " there")
    monkeypatch.setattr("engine.runtime.PATIENCE", 0.0)
    with pytest.raises(
        RequestError, match=f"request {number} takes no more text: its text is complete, since nothing came for 0 s"
    ) as raised:
        runtime.append_text(number, " my friend")
    assert raised.value.field == "request_id"
    with pytest.raises(RequestError, match="since nothing came"):
        runtime.end_text(number, " my friend")
    runtime.end_text(number)
    runtime.cancel(number)
    assert ended.wait(30)


def test_a_piece_that_cannot_be_read_ends_its_request_alone(speaking: tuple[str, Runtime]) -> None:
    kind, runtime = speaking
    if kind != "custom":
        return
    outputs: SimpleQueue[Output] = SimpleQueue()
    number = runtime.submit(Request("hello there my ", replace(GREEDY, max_frames=90), open=True), outputs.put)
    runtime.append_text(number, "<|im_end|>")
    while isinstance(output := outputs.get(timeout=30), Chunk):
        pass
    assert isinstance(output, Failed)
    assert (output.code, output.field) == ("bad_request", "text")
    assert said(runtime, Request("hello", replace(GREEDY, max_frames=4)))[1].stats.num_frames == 4


@torch.inference_mode()
def test_where_the_text_has_run_out_its_mark_goes_on(
    speaking: tuple[str, Runtime], loaded: dict[str, Qwen3TTS], expected: dict[str, Tensor]
) -> None:
    kind, runtime = speaking
    only = reference(expected, text="", frames=())
    sampling = replace(GREEDY, max_frames=9, min_frames=9)
    wish = Wish("hi", "english", vector=only.vector, reads_on=True)
    ask = Request("hi", sampling, reference=only, language="english")
    if kind == "custom":
        wish, ask = Wish("hi", "english", "serena"), replace(ask, reference=None)
    chunks, _ = said(runtime, ask)
    made = generate(loaded[kind], wish, sampling, 10)["frames"]
    assert loaded[kind].layouts.row(wish).trailing < len(made) == 9
    assert np.concatenate([chunk.codes for chunk in chunks]).tolist() == made.tolist()
