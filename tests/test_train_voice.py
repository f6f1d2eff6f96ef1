"""samples/train_voice/: every script at toy size, from clips to a voice that the engine speaks with; and its parts."""

# ruff: noqa: E402 (the scripts import each other as neighbours, so their folder comes first)

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "samples" / "train_voice"
VOICE = ROOT / "engine" / "voices" / "breeze-mini"
sys.path.append(str(RECIPE))

import checkpoint
import evaluate
import export
import prepare
import sentences
import speech
import tokenise
import train_codec
import train_speech
from adversary import TOLD, Adversary, sureness
from clips import Clip, Pool, read_clips, write_shard
from discriminators import Discriminators, feature_distance, makers_losses, own_losses
from encoder import Encoder, Learning, quantize
from log import read as read_log
from recipe import Recipe
from scorers import resampled
from spectra import SpectralDistance, high_passed, mel_bank
from teachers import ToneTeacher
from whole import WholeDecoder

from engine.codec import CodecDecoder, Quantizer
from engine.core import Chunk, Finished, Request
from engine.messages import RuntimeConfig
from engine.models.breeze_tts_2 import load
from engine.runtime import Runtime

TINY: dict[str, dict[str, Any]] = {
    "codec": {
        "latent_dim": 16, "codebook_dim": 16, "codebook_size": 16, "decoder_dim": 16, "hidden_size": 16,
        "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": 16, "num_quantizers": 4,
    },
    "top": {"num_codebooks": 4, "vocab_size": 16, "audio_vocab_size": 16, "audio_embed_size": 32, "hidden_size": 32},
    "backbone": {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16,
    },
    "depth": {
        "num_codebooks": 4, "vocab_size": 16, "audio_embed_size": 32, "backbone_hidden_size": 32, "hidden_size": 16,
        "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": 16,
    },
    "text": {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 16,
    },
}  # fmt: skip
"""A voice small enough to take steps on a CPU while nobody waits."""
CHANGED = {
    "device": '"cpu"', "teacher": '"tones"', "processes": "2", "start": '"nothing"', "encoder_widths": "[8, 8, 8, 8]",
    "max_steps": "5", "batch": "2", "stft_windows": "[256]", "stft_magnitudes": "[128]", "stft_channels": "4",
    "periods": "[3]", "period_channels": "[4, 8]", "log_every": "2", "save_every": "3600.0", "shard_clips": "4",
    "max_ratio": "9.9", "held_out_one_in": "4", "windows": "[64, 512]", "mels": "[10, 40]", "context": "4",
    "settle": "2", "frames": "6", "starts_one_in": "3", "positions": "400", "scorers": "[]", "sentences": "2",
    "ramp_from": "1", "ramp": "2",
}  # fmt: skip
"""Settings of config.toml, in every section that has them."""


def tiny_shape(folder: Path) -> Path:
    """Configs and tokenizer of a tiny voice."""
    (folder / "audio_tokenizer").mkdir(parents=True)
    audio = json.loads((VOICE / "audio_tokenizer" / "config.json").read_text())
    audio["decoder_config"] |= TINY["codec"]
    (folder / "audio_tokenizer" / "config.json").write_text(json.dumps(audio))
    main = json.loads((VOICE / "config.json").read_text()) | TINY["top"]
    main["codec_config"] |= {"codebook_size": 16}
    for name, section in (("backbone", "backbone"), ("depth", "depth_decoder"), ("text", "text_encoder")):
        main[f"{section}_config"] |= TINY[name]
    (folder / "config.json").write_text(json.dumps(main))
    given = json.loads((VOICE / "generation_config.json").read_text()) | {"max_new_tokens": 60}
    (folder / "generation_config.json").write_text(json.dumps(given))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).write_bytes((VOICE / name).read_bytes())
    return folder


def toy_config(folder: Path) -> Path:
    """The recipe's own config file with toy sizes, all below `folder`."""
    text = (RECIPE / "config.toml").read_text()
    for name, value in CHANGED.items():
        text, count = re.subn(rf"(?m)^{name} = [^#\n]*", f"{name} = {value}  ", text)
        assert count, f"config.toml has no {name}"
    text = text.replace('"work/voice"', f'"{folder / "work"}"').replace(
        '"engine/voices/breeze-mini"', f'"{folder / "shape"}"'
    )
    (folder / "config.toml").write_text(text)
    return folder / "config.toml"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy's config, with sentences and clips."""
    folder = tmp_path_factory.mktemp("voice")
    tiny_shape(folder / "shape")
    (folder / "work").mkdir()
    lines = [f"Number {i} says hello.\tnumber {i} says helo" if i % 2 else f"Word {i}, if you like?" for i in range(16)]
    (folder / "work" / "sentences.txt").write_text("\n".join(lines) + "\n")
    config = toy_config(folder)
    run(prepare, config)
    return config


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """The scripts take SIGTERM and SIGINT for themselves."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for kind, handler in before.items():
        signal.signal(kind, handler)


def run(script: Any, *arguments: object) -> None:
    """The script's main, as from the command line."""
    given, sys.argv = sys.argv, [script.__name__, *map(str, arguments)]
    try:
        script.main()
    finally:
        sys.argv = given


def sample(text: str, frames: int, held: bool = False) -> Clip:
    chance = np.random.default_rng(len(text))
    return Clip(text, text.lower(), (chance.normal(0, 3000, frames * 1920)).astype(np.int16), frames, held)


# ---- all of it ----


def test_from_sentences_to_a_voice_that_speaks(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Recipe.read(config)
    run(train_codec, config, "a")
    run(train_codec, config, "b")
    run(tokenise, config)
    run(train_speech, config)
    folder = config.parent / "voice"
    run(export, config, folder)
    run(evaluate, config, "--voice", folder, "--output", config.parent / "result.json")

    assert {file.name for file in folder.iterdir()} >= {"config.json", "tokenizer.json", "model.safetensors"}
    codec = load_file(folder / "audio_tokenizer" / "model.safetensors")
    assert codec["decoder.quantizer.rvq_rest.input_proj.weight"].shape == (8, 16, 1)  # as the layout has it
    with Runtime.start(RuntimeConfig(voice=folder, device="cpu", max_wait=math.inf)) as runtime:
        outputs = list(runtime.stream(Request("Hello.", runtime.spec.sampling)))
    assert isinstance(outputs[-1], Finished)
    assert sum(len(output.pcm) for output in outputs if isinstance(output, Chunk)) >= 3 * 1920

    for name in ("codec-a", "codec-b", "speech"):
        steps = [line["step"] for line in read_log(recipe.work / f"{name}.jsonl")]
        assert steps[-1] == 5, f"{name} stopped at {steps}"
        assert (recipe.work / f"{name}.png").exists()
    result = json.loads((config.parent / "result.json").read_text())
    assert result["speech"]["summary"]["utterances"] == result["codec"]["summary"]["utterances"] == 2
    assert result["teacher"]["summary"]["length_ratio"] == 1.0
    assert {file.name for file in config.parent.glob("result*.png")} == {"result.png", "result-spectra.png"}


def test_what_is_started_again_goes_on(config: Path) -> None:
    """A run in two parts ends with the very weights, averages and moments of a run in one."""

    def ended(name: str, *parts: int) -> dict[str, Tensor]:
        folder = config.parent / name
        folder.mkdir()
        for steps in parts:
            text = config.read_text().replace(str(config.parent / "work"), str(folder))
            text = re.sub(r"(?m)^max_steps = 5", f"max_steps = {steps}", text)
            (folder / "config.toml").write_text(re.sub(r"(?m)^anneal = \S+", "anneal = 0.0", text))
            (folder / "clips").exists() or (folder / "clips").symlink_to(config.parent / "work" / "clips")
            torch.manual_seed(3)
            recipe = Recipe.read(folder / "config.toml")
            if not train_codec.encoder_file(recipe).exists():
                train_codec.save_file(
                    train_codec.checkpointless(Encoder(16, 24000, (8, 8, 8, 8))), train_codec.encoder_file(recipe)
                )
            run(train_codec, folder / "config.toml", "b")
        last = checkpoint.latest(folder / "codec-b")
        assert last is not None
        return checkpoint.load(last)[0]

    whole, parts = ended("whole", 4), ended("parts", 2, 4)
    assert whole.keys() == parts.keys()
    assert any(name.startswith("judging.") for name in whole)
    differing = [name for name in whole if not torch.equal(whole[name], parts[name])]
    assert not differing


def test_a_trainer_that_is_told_to_end_keeps_what_it_has(tmp_path: Path) -> None:
    weight, stopped = {"w": torch.zeros(3)}, train_codec.Stopped()
    settings = {"seconds": 3600.0, "max_steps": 100, "log_every": 10, "save_every": 3600.0}

    def step(run: train_codec.Progressing) -> Tensor:
        weight["w"] += 1
        if run.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return weight["w"][:1].clone()

    train_codec.train(tmp_path, "toy", settings, {"own": weight}, step, lambda: {"kept": 1.0}, ("w",), stopped)
    last = checkpoint.latest(tmp_path / "toy")
    assert last is not None and last.name == "step-00000004"
    assert checkpoint.load(last)[0]["own.w"].tolist() == [4, 4, 4]
    assert read_log(tmp_path / "toy.jsonl")[-1]["kept"] == 1.0


def test_numbers_that_are_not_finite_end_a_run(tmp_path: Path) -> None:
    settings = {"seconds": 3600.0, "max_steps": 100, "log_every": 1, "save_every": 3600.0}
    with pytest.raises(FloatingPointError, match="step 1: expected finite numbers"):
        train_codec.train(
            tmp_path, "toy", settings, {}, lambda run: torch.tensor([math.nan]), dict, ("w",), train_codec.Stopped()
        )


# ---- sentences and clips ----


def test_sentences_are_clean_and_some_are_held_out() -> None:
    texts = sentences.chosen(sentences.spoken_by_agents(300, 1), 200, 1)
    assert len(texts) == len(set(texts)) == 200
    assert not any("{" in text for text in texts)
    assert not sentences.acceptable("what a DAY.")
    assert not sentences.acceptable("Strange § sign.")
    assert not sentences.acceptable("What a bitch.")
    assert sentences.sentence("what ever , he said") == "What ever, he said."
    held = [text for text in texts if sentences.is_held_out(text, 10)]
    assert 5 <= len(held) <= 40
    assert [sentences.ordinal(n) for n in (1, 12, 22, 13)] == ["1st", "12th", "22nd", "13th"]


def test_a_clip_is_trimmed_and_its_length_must_fit_its_text(config: Path) -> None:
    recipe = Recipe.read(config)
    sound = np.concatenate([np.zeros(20000), 0.1 * np.ones(9600), np.zeros(20000)]).astype(np.float32)
    cut = prepare.trimmed(sound, 1920)
    assert len(cut) % 1920 == 0
    assert 1440 + 9600 + 3840 <= len(cut) <= 1440 + 9600 + 3840 + 1920
    assert cut[0] == 0 and not len(prepare.trimmed(np.zeros(100, np.float32), 1920))
    settings = dict(recipe.prepare) | {"max_ratio": 2.0}
    assert prepare.likely("a" * 30, 2.2, settings)
    assert not prepare.likely("a" * 30, 0.9, settings)
    assert not prepare.likely("a" * 30, 6.0, settings)


def test_clips_come_back_as_they_were_written(config: Path, tmp_path: Path) -> None:
    clips = [sample("One.", 3), sample("Two two.", 5, held=True)]
    write_shard(tmp_path / "00.npz", clips)
    for clip, given in zip(read_clips(tmp_path, 1920), clips, strict=True):
        assert (clip.text, clip.phonemes, clip.frames, clip.held) == (
            given.text,
            given.phonemes,
            given.frames,
            given.held,
        )
        assert np.array_equal(clip.pcm, given.pcm)
    recipe = Recipe.read(config)
    made = list(read_clips(recipe.clips, 1920))
    assert 0 < sum(clip.held for clip in made) < len(made)
    assert all(len(clip.pcm) == clip.frames * 1920 for clip in made)
    with pytest.raises(FileNotFoundError, match=r"run prepare\.py first"):
        list(read_clips(tmp_path / "absent", 1920))


def test_a_teacher_repeats_itself_for_a_seed() -> None:
    teacher = ToneTeacher("heart")
    assert np.array_equal(teacher.speak(["abc"], 1), teacher.speak(["abc"], 1))
    assert not np.array_equal(teacher.speak(["abc"], 1), teacher.speak(["abd"], 1))


def test_a_batch_of_codes_stands_where_its_samples_do() -> None:
    clips = [sample("One.", 4), sample("Two two.", 6)]
    pool = Pool.of(clips, 1920, torch.device("cpu"))
    pool.codes = torch.arange(10)[:, None].expand(10, 3).to(torch.int16)
    assert pool.starts.tolist() == [0, 4]
    first = torch.tensor([2, 5])
    assert pool.coded(first, 3)[:, 1].tolist() == [[2, 3, 4], [5, 6, 7]]
    assert torch.equal(pool.samples(first, 3)[1], pool.pcm[5 * 1920 : 8 * 1920].float() / 32768)
    chance = torch.Generator().manual_seed(1)
    assert pool.anywhere(200, 4, chance).max() == 6
    assert set(pool.beginnings(50, 2, chance).tolist()) == {0, 4}


def test_codes_of_the_pool_are_those_of_each_clip_by_itself(config: Path) -> None:
    recipe, device = Recipe.read(config), torch.device("cpu")
    torch.manual_seed(0)
    decoder, encoder = train_codec.new_decoder(recipe, device), Encoder(16, 24000, (8, 8, 8, 8))
    for layer in (*decoder.quantizer.rvq_first.vq.layers, *decoder.quantizer.rvq_rest.vq.layers):
        layer._codebook.embedding_sum.data.normal_()
    clips = [sample("One.", 4), sample("Two two.", 6), sample("Three.", 4)]
    pool = Pool.of(clips, 1920, device)
    train_codec.encode_pool(encoder, decoder, pool, batch=2)
    assert pool.codes is not None
    alone = tokenise.tokenised(clips, encoder, decoder, device)
    assert [len(utterance.codes) for utterance in alone] == [4, 6, 4]
    same = np.mean(pool.codes.numpy() == np.concatenate([utterance.codes for utterance in alone]))
    assert same > 0.95  # silence behind a clip, of another length, may change its last frame
    assert len(np.unique(pool.codes)) > 4


# ---- the codec's parts ----


@pytest.fixture(scope="module")
def codec() -> CodecDecoder:
    return load(VOICE, device=torch.device("cpu"), dtype=torch.float32).codec.train()


def test_the_whole_decoder_is_the_engines(codec: CodecDecoder) -> None:
    codes = torch.randint(512, (2, 16, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        made, engines = WholeDecoder(codec).codes(codes), codec(codes)
        late = WholeDecoder(codec).codes(codes, context=3)[:, 7 * 1920 :]
    assert engines.abs().max() > 0.01
    torch.testing.assert_close(made.clamp(-1, 1), engines, atol=2e-6, rtol=0)
    torch.testing.assert_close(late.clamp(-1, 1), engines[:, 10 * 1920 :], atol=1e-4, rtol=0)


def test_the_whole_decoders_gradients_are_the_engines(codec: CodecDecoder) -> None:
    codes = torch.randint(512, (1, 16, 3), generator=torch.Generator().manual_seed(1))
    weights = [codec.decoder[0].conv.weight, codec.pre_conv.conv.bias, codec.decoder[2].block[3].act1.alpha]
    mine = torch.autograd.grad(WholeDecoder(codec).codes(codes).square().mean(), weights)
    engines = torch.autograd.grad(codec(codes).square().mean(), weights)
    for a, b in zip(mine, engines, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-3)


def quantizer_and_encoder(recipe: Recipe) -> tuple[Quantizer, Encoder]:
    torch.manual_seed(0)
    return Quantizer(recipe.codec_config).train(), Encoder(16, 24000, (8, 8, 8, 8))


def test_quantized_vectors_are_what_the_decoder_makes_of_the_codes(config: Path) -> None:
    quantizer, encoder = quantizer_and_encoder(Recipe.read(config))
    z = torch.randn(2, 16, 40)
    quantize(encoder, quantizer, z, Learning(0.9, 0.0, fresh=True))
    made = quantize(encoder, quantizer, z)
    torch.testing.assert_close(made.vectors, quantizer(made.codes.transpose(1, 2)).transpose(1, 2), atol=1e-5, rtol=0)
    left = encoder.project_rest(z - quantizer.rvq_first.entries()[made.codes[:, 0]].transpose(1, 2))
    entries = quantizer.rvq_rest.vq.layers[0]._codebook.entries()
    assert torch.equal(torch.cdist(left.transpose(1, 2), entries[None]).argmin(-1), made.codes[:, 1])
    first_only = quantize(encoder, quantizer, z, kept=torch.tensor([[True, False, False, False]] * 2))
    assert torch.equal(first_only.codes, made.codes)
    expected = quantizer.rvq_first.entries()[made.codes[:, 0]].transpose(1, 2)
    torch.testing.assert_close(first_only.vectors, expected, atol=1e-5, rtol=0)


def test_gradients_pass_straight_through_the_quantizer(config: Path) -> None:
    quantizer, encoder = quantizer_and_encoder(Recipe.read(config))
    z = torch.randn(1, 16, 8, requires_grad=True)
    wish = torch.randn(1, 16, 8)
    (through,) = torch.autograd.grad((quantize(encoder, quantizer, z).vectors * wish).sum(), z)

    def projected(x: Tensor) -> Tensor:
        first = quantizer.rvq_first.output_proj(encoder.project_first(x))
        return first + quantizer.rvq_rest.output_proj(encoder.project_rest(x))

    (expected,) = torch.autograd.grad((projected(z) * wish).sum(), z)
    torch.testing.assert_close(through, expected)


def test_codebooks_follow_what_they_are_given_and_unused_codes_are_born_anew(config: Path) -> None:
    quantizer, encoder = quantizer_and_encoder(Recipe.read(config))
    z = torch.randn(4, 16, 100)
    learning = Learning(0.8, 0.1, fresh=False)
    quantize(encoder, quantizer, z, Learning(0.8, 0.1, fresh=True))
    distances = [float(quantize(encoder, quantizer, z, learning).commitment.detach()) for _ in range(30)]
    assert distances[-1] < 0.8 * distances[0]
    codes = quantize(encoder, quantizer, z).codes
    assert len(codes[:, 0].unique()) == 16


LOWEST = 80 / 24000


def test_discriminators_have_a_score_for_each_place_and_tell_noise_from_tones() -> None:
    torch.manual_seed(0)
    judges = Discriminators([256, 64], [128], 4, [2, 5], [4, 8], LOWEST)
    tones = torch.sin(torch.arange(4800) * torch.tensor([[0.05], [0.11]]))
    noise = 0.5 * torch.randn(2, 4800)
    verdicts = judges(tones)
    shapes = [tuple(scores.shape) for scores, _ in verdicts]
    assert shapes == [(2, 1, 17, 76), (2, 1, 5, 301), (2, 1, 9, 151), (2, 1, 800, 2), (2, 1, 320, 5)]
    assert [len(features) for _, features in verdicts] == [5, 5, 5, 2, 2]
    assert [len(verdicts[part]) for part in (judges.spectra, judges.matched, judges.periods)] == [3, 1, 2]
    assert verdicts[judges.matched][0][0].shape == (2, 1, 9, 151)
    assert feature_distance(verdicts, judges(tones)) == 0
    learning = torch.optim.AdamW(judges.parameters(), 3e-3)
    losses = []
    for _ in range(40):
        loss = own_losses(judges(tones), judges(noise)).sum()
        learning.zero_grad()
        loss.backward()
        learning.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]
    assert makers_losses(judges(noise)).sum() > 2 * makers_losses(judges(tones)).sum()
    assert feature_distance(judges(tones), judges(noise)) > 0.1


def test_discriminators_have_finite_gradients_at_silence() -> None:
    judges = Discriminators([256], [128], 4, [3], [4, 8], LOWEST)
    silence = torch.zeros(1, 2400, requires_grad=True)
    (gradient,) = torch.autograd.grad(makers_losses(judges(silence)).sum(), silence)
    assert gradient.isfinite().all()


def test_a_high_pass_keeps_pitches_and_takes_what_is_below() -> None:
    times = torch.arange(24000, dtype=torch.float64) / 24000
    low, pitch, hum = (torch.sin(2 * math.pi * f * times).float() for f in (40, 120, 50))
    torch.testing.assert_close(high_passed(torch.stack([low, pitch]) + 0.5, LOWEST)[1], pitch, atol=1e-5, rtol=0)
    assert high_passed(low + 0.5 * hum + 0.3, LOWEST).abs().max() < 1e-5
    odd, other = torch.randn(2, 1001, dtype=torch.float32)
    torch.testing.assert_close(
        (high_passed(odd, LOWEST) * other).sum(), (high_passed(other, LOWEST) * odd).sum(), atol=1e-3, rtol=1e-4
    )


def test_no_discriminator_hears_or_tells_of_what_is_below_speech() -> None:
    torch.manual_seed(1)
    judges = Discriminators([256], [128], 4, [3], [4, 8], LOWEST)
    sound = 0.1 * torch.randn(2, 4800)
    hum = 0.2 + 0.1 * torch.sin(2 * math.pi * 40 * torch.arange(4800) / 24000)
    for (clean, _), (dull, _) in zip(judges(sound), judges(sound + hum), strict=True):
        torch.testing.assert_close(clean, dull, atol=1e-5, rtol=1e-4)
    heard = sound.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(makers_losses(judges(heard)).sum(), heard)
    energy = torch.fft.rfft(gradient).abs().square()  # 5 Hz a bin
    assert energy[:, :12].sum() < 1e-8 * energy.sum()


def test_matched_features_do_not_hang_on_phases() -> None:
    judges = Discriminators([256], [256], 4, [3], [4, 8], LOWEST)
    times = torch.arange(4800) / 24000
    sine, cosine = (0.1 * wave(2 * math.pi * 1000 * times)[None] for wave in (torch.sin, torch.cos))
    with torch.no_grad():
        apart = [float(feature_distance([a], [b])) for a, b in zip(judges(sine), judges(cosine), strict=True)]
    assert apart[judges.matched][0] < 0.2 * min(apart[0], apart[2])


def test_spectral_distance_is_zero_for_the_same_and_grows_with_noise() -> None:
    distance = SpectralDistance(24000, [64, 512], [10, 40], 3e-5)
    sound = torch.sin(torch.arange(9600) * 0.1)[None]
    far = [float(distance(sound + size * torch.randn(1, 9600), sound)[0]) for size in (0.0, 0.01, 0.1)]
    assert far[0] == 0 < far[1] < far[2]
    sums = mel_bank(512, 40, 24000).sum(1)
    assert torch.allclose(sums[sums > 0], torch.ones(()), atol=1e-4)


def test_an_adversarial_step_moves_decoder_and_judges_but_no_code(config: Path) -> None:
    recipe, device = Recipe.read(config), torch.device("cpu")
    torch.manual_seed(0)
    decoder = train_codec.new_decoder(recipe, device)
    decoder.quantizer.rvq_first.vq.layers[0]._codebook.embedding_sum.data.normal_()
    distance = SpectralDistance(24000, [64, 512], [10, 40], 3e-5)
    model = Adversary(decoder, recipe.codec["b"], distance, device)
    model.set_rate(1e-2, 1e-2, 1.0)
    before = {name: p.detach().clone() for name, p in [*decoder.named_parameters(), *model.judges.named_parameters()]}
    numbers = model.step(torch.randint(16, (2, 4, 8)), 0.1 * torch.randn(2, 4 * 1920), 2, 2)
    assert len(numbers) == len(TOLD) and numbers.isfinite().all()
    learned = [*model.weights.values(), *model.judges.parameters()]
    assert all(p.grad is not None and p.grad.stride() == p.stride() for p in learned)  # fused optimisers insist
    after = dict([*decoder.named_parameters(), *model.judges.named_parameters()])
    still = [name for name, value in before.items() if torch.equal(value, after[name])]
    assert {name.split(".")[0] for name in still} == {"quantizer"}
    assert not any(name.startswith("quantizer") for name in before if name not in still)


def toy_adversary(recipe: Recipe) -> Adversary:
    device = torch.device("cpu")
    distance = SpectralDistance(24000, [64, 512], [10, 40], 3e-5)
    return Adversary(train_codec.new_decoder(recipe, device), recipe.codec["b"], distance, device)


def test_wishes_weigh_alike_at_the_samples_whatever_their_size(config: Path) -> None:
    model = toy_adversary(Recipe.read(config))
    model.word.fill_(1.0)
    spectral, spectra, periods = torch.randn(3, 4, 2400)
    sure = [torch.ones(())] * 2
    pull, _ = model._balanced(spectral, [spectra, periods], sure)
    other = model._balanced(1000 * spectral, [0.001 * spectra, 30 * periods], sure)[0]
    torch.testing.assert_close(other, pull, atol=5e-4, rtol=5e-3)
    alone = [
        model._balanced(spectral, [spectra, periods], [torch.tensor(float(i == j)) for i in (0, 1)])[0] for j in (0, 1)
    ]
    nobody = model._balanced(spectral, [spectra, periods], [torch.zeros(())] * 2)[0]
    parts = [(one - nobody).norm() for one in alone]
    torch.testing.assert_close(parts[0], parts[1], atol=0, rtol=1e-3)
    torch.testing.assert_close(parts[0], nobody.norm() * model.settings["adversarial"] / 2, atol=0, rtol=1e-3)
    model.word.fill_(0.0)
    torch.testing.assert_close(model._balanced(spectral, [spectra, periods], sure)[0], nobody)


def test_a_constant_in_a_gradient_changes_no_size(config: Path) -> None:
    """Period discriminators' gradients were nearly all below 50 Hz: brought to one size, nothing else was heard."""
    model = toy_adversary(Recipe.read(config))
    model.word.fill_(1.0)
    spectral, spectra, periods = torch.randn(3, 4, 2400)
    sure = [torch.ones(())] * 2
    pull, sizes = model._balanced(spectral, [spectra, periods], sure)
    with_constant, same = model._balanced(spectral + 50, [spectra, periods - 1000], sure)
    torch.testing.assert_close(with_constant, pull, atol=1e-4, rtol=0)
    torch.testing.assert_close(same, sizes, atol=0, rtol=1e-3)
    assert model._share_below(pull) < 1e-3


def test_a_constant_in_the_sound_is_pulled_back(config: Path) -> None:
    model = toy_adversary(Recipe.read(config))
    wanted = 0.1 * torch.randn(2, 2400)
    pull = model._held_low(wanted + 0.05, wanted)
    torch.testing.assert_close(pull, pull[:, :1].expand_as(pull), atol=1e-6, rtol=0)
    assert (pull > 0).all()  # against the pull the samples go down
    torch.testing.assert_close(model._held_low(wanted + 0.1, wanted), 2 * pull, atol=1e-6, rtol=0)
    assert model._held_low(wanted, wanted).abs().max() < 1e-6


def test_judges_who_cannot_tell_have_no_say() -> None:
    assert [float(sureness(torch.tensor(paid))) for paid in (0.6, 0.5, 0.45, 0.4, 0.15)] == pytest.approx(
        [0, 0, 0.5, 1, 1]
    )


def test_one_lucky_step_gives_judges_no_word(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They pay nothing once, then as if they knew nothing: their word is what they paid on average."""
    model, said = toy_adversary(Recipe.read(config)), list[float]()
    balanced = model._balanced
    monkeypatch.setattr(model, "_balanced", lambda a, b, sure: said.append(float(max(sure))) or balanced(a, b, sure))
    codes, wanted = torch.randint(16, (1, 4, 4)), 0.1 * torch.randn(1, 2 * 1920)
    for paid in (0.0, 0.5, 0.5):
        monkeypatch.setattr("adversary.own_losses", lambda real, made, paid=paid: own_losses(real, made) * 0 + paid)
        model.step(codes, wanted, 1, 1)
    assert 0.11 > said[0] > said[1] > said[2] > 0.08


def test_the_discriminators_rate_stays_when_the_decoders_falls(config: Path) -> None:
    model = toy_adversary(Recipe.read(config))
    settings = model.settings | {"anneal": 0.6, "warm_up": 10, "rate": 1e-4}
    rates = []
    for step in (0, 300, 1000):
        run = train_codec.Progressing(0.0, 1000, step)
        model.set_rate(train_codec.rate_of(settings, run), 2e-4, train_codec.word_of(settings, step))
        rates.append((model.maker.param_groups[0]["lr"], model.judging.param_groups[0]["lr"]))
    assert rates == [(pytest.approx(1e-5), 2e-4), (pytest.approx(1e-4), 2e-4), (pytest.approx(2e-6), 2e-4)]


def test_the_decoder_that_was_liked_best_is_kept(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opinions of three saves: the second is the best, and the third does not replace it."""
    recipe = replace(Recipe.read(config), work=tmp_path)
    assert train_codec.opinion_of("") is None
    with pytest.raises(ValueError, match=r"one of \['distillmos', 'dnsmos'\], got 'me'"):
        train_codec.opinion_of("me")
    monkeypatch.setitem(train_codec.JUDGES, "distillmos", lambda _: lambda sound: float(len(sound)))
    opinion = train_codec.opinion_of("distillmos")
    assert opinion is not None
    decoder = train_codec.new_decoder(recipe, torch.device("cpu"))
    held = train_codec.Held(torch.zeros(20, 2 * 1920), torch.zeros(20, 4, 2, dtype=torch.int64))
    assert train_codec.held_out_opinion(decoder, {}, held, opinion) == 2 * 1920
    log = tmp_path / "codec-b.jsonl"
    for number, liked in enumerate((2.0, 3.0, 2.5)):
        train_codec.decoder_file(recipe).write_bytes(bytes([number]))
        train_codec.keep_best(recipe, liked)
        with log.open("a") as out:
            out.write(json.dumps({"step": number, "held_mos": liked}) + "\n" + json.dumps({"step": number}) + "\n")
    assert (tmp_path / "best.safetensors").read_bytes() == bytes([1])


# ---- the speech model's parts ----


def test_packed_sequences_give_each_its_own_states(config: Path) -> None:
    """An example's losses are the same whoever stands beside it, and frames follow the text without a gap."""
    recipe = Recipe.read(config)
    torch.manual_seed(0)
    model = train_speech.new_model(recipe, torch.device("cpu"))
    chance = np.random.default_rng(1)
    given = [speech.Example((2, 70, 71 + n, 1), (1, 2), chance.integers(0, 16, (3 + n, 4))) for n in range(3)]
    batch = speech.Batch.of(given, torch.device("cpu"))
    assert batch.length == 16
    states = model.text_encoder(batch.ids, batch.texts, batch.longest_text)
    never = torch.Generator()
    hidden, places = speech.through_backbone(model, batch, states, 0.0, never)
    alone = speech.Batch.of(given[1:2], torch.device("cpu"))
    own = model.text_encoder(alone.ids, alone.texts, alone.longest_text)
    single, single_places = speech.through_backbone(model, alone, own, 0.0, never)
    torch.testing.assert_close(hidden[places.before[3:7]], single[single_places.before], atol=1e-5, rtol=0)
    torch.testing.assert_close(hidden[places.last[1:2]], single[single_places.last], atol=1e-5, rtol=0)
    assert places.before[:3].tolist() == [3, 4, 5] and places.last.tolist() == [6, 16 + 7, 32 + 8]


def test_a_speech_model_learns_one_sentence_by_heart(config: Path) -> None:
    recipe = Recipe.read(config)
    torch.manual_seed(0)
    model, ear = train_speech.new_model(recipe, torch.device("cpu")), torch.nn.Linear(32, 4)
    codes = np.random.default_rng(1).integers(0, 16, (6, 4))
    batch = speech.Batch.of([speech.Example((2, 70, 71, 72, 73, 1), (1, 2, 3), codes)], torch.device("cpu"))
    settings = dict(recipe.speech) | {"frame_dropout": 0.0, "depth_share": 1.0}
    weights = [*train_speech.trained(model).values(), *ear.parameters()]
    learning, chance = torch.optim.AdamW(weights, 1e-2), torch.Generator()
    told = []
    for _ in range(60):
        paid = speech.losses(model, ear, batch, settings, chance)
        learning.zero_grad()
        sum(paid.values()).backward()  # type: ignore[union-attr]
        learning.step()
        told.append({name: float(value.detach()) for name, value in paid.items()})
    assert told[-1]["first"] < 0.3 < 2 < told[0]["first"]
    assert told[-1]["depth"] < 0.5 * told[0]["depth"] and told[-1]["alignment"] < 0.5 * told[0]["alignment"]


def test_every_example_is_in_an_epoch_once_and_batches_keep_their_size() -> None:
    given = [speech.Example((1,) * (3 + n % 5), (), np.zeros((4 + n % 17, 4))) for n in range(50)]
    groups = list(speech.batches(given, 200, np.random.default_rng(0)))
    assert sorted(id(e) for group in groups for e in group) == sorted(map(id, given))
    assert all(len(g) == 1 or len(g) * -(-max(e.positions for e in g) // 16) * 16 <= 200 for g in groups)
    epochs, again = (train_speech.Epochs(given, 200, 7) for _ in range(2))
    steps = 2 * len(groups) + 1
    seen = [epochs.at(step) for step in range(steps)]
    assert again.at(steps - 1) is not None and [e.positions for e in again.at(steps - 1)] == [
        e.positions for e in seen[-1]
    ]


def test_official_names_part_what_is_fused() -> None:
    """Loading the embedded voice and exporting it again gives its own tensors."""
    model = load(VOICE, device=torch.device("cpu"), dtype=torch.float32)
    own = load_file(VOICE / "model.safetensors")
    names = {name: t for name, t in export.official(model).items() if not name.startswith("audio_tokenizer.")}
    assert names.keys() <= own.keys()
    assert all(torch.equal(t, own[name].float()) for name, t in names.items())
    assert any(name.endswith("k_proj.weight") for name in names)


# ---- checkpoints ----


def test_a_checkpoint_gives_back_every_bit_in_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 1000)
    monkeypatch.setattr(checkpoint.shards, "__defaults__", (1000,))
    layer, chance = torch.nn.Linear(30, 40), torch.Generator().manual_seed(5)
    by = torch.optim.AdamW(layer.parameters())
    layer(torch.randn(2, 30)).sum().backward()
    by.step()
    odd = {"half": torch.randn(700).half(), "count": torch.tensor(7), "none": torch.zeros(0, 3)}
    tensors = checkpoint.named(layer=layer, by=by, chance=chance, odd=odd)
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, tensors, {"seconds": 1.5})
    last = checkpoint.latest(tmp_path)
    assert last is not None and last.name == "step-00000003"
    assert len(list(tmp_path.iterdir())) == checkpoint.KEPT
    files = list(last.glob("*.safetensors"))
    assert len(files) > 5 and all(file.stat().st_size < 1000 + 1500 for file in files)
    back, numbers = checkpoint.load(last)
    assert numbers == {"seconds": 1.5, "step": 3}
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype or not tensor.numel()
        assert torch.equal(back[name].to(tensor.dtype), tensor) and back[name].shape == tensor.shape
    drawn = torch.rand(3, generator=chance)
    other, fresh = torch.nn.Linear(30, 40), torch.Generator()
    again = torch.optim.AdamW(other.parameters())
    checkpoint.restore(back, layer=other, by=again, chance=fresh, odd=odd)
    assert torch.equal(torch.rand(3, generator=fresh), drawn)
    assert torch.equal(again.state_dict()["state"][0]["exp_avg"], by.state_dict()["state"][0]["exp_avg"])


def test_a_checkpoint_that_was_broken_off_is_none(tmp_path: Path) -> None:
    (tmp_path / "unfinished").mkdir()
    assert checkpoint.latest(tmp_path) is None


# ---- evaluation ----


def test_words_are_aligned_with_the_fewest_errors() -> None:
    pairs = list(evaluate.aligned(["a", "b", "c", "d", "e"], ["a", "x", "c", "e", "f"]))
    assert sum(a != b for a, b in pairs) == 3
    assert [a for a, _ in pairs if a] == ["a", "b", "c", "d", "e"]
    assert [b for _, b in pairs if b] == ["a", "x", "c", "e", "f"]
    assert evaluate.longest_loss(list(evaluate.aligned(["one", "two", "three", "four", "five"], ["one", "five"]))) == 3
    assert evaluate.repeats(["so", "it", "goes", "on"], ["so", "it", "goes", "so", "it", "goes", "on"])
    assert not evaluate.repeats(["so", "it", "goes", "so", "it", "goes"], ["so", "it", "goes", "so", "it", "goes"])


def test_a_tone_keeps_its_pitch_and_size_at_the_other_rate() -> None:
    sound = np.sin(2 * np.pi * 440 * np.arange(24000) / 24000).astype(np.float32)
    other = resampled(sound)
    expected = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    assert len(other) == 16000
    assert np.abs(other - expected)[100:-100].max() < 2e-3
    high = np.sin(2 * np.pi * 11000 * np.arange(24000) / 24000).astype(np.float32)
    assert np.abs(resampled(high))[100:-100].max() < 1e-3


def test_a_config_with_a_missing_section_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('work = "w"\n')
    with pytest.raises(ValueError, match="must have the keys"):
        Recipe.read(tmp_path / "c.toml")
