"""Voices with random weights at a model's real dimensions: for benches, which measure time and not speech.

It does not know who measures. What such a voice says is noise, and its end never comes by itself when a request sets
min_frames to max_frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers, processors
from tokenizers.models import BPE
from torch import Tensor, nn

from engine import dimensions
from engine.codec_encoder import CodecEncoder, EncoderConfig
from engine.config import Section
from engine.dimensions import DIMENSIONS
from engine.models import breeze_tts_2, qwen3_tts
from engine.models.breeze_tts_2 import AUDIO_MARKS, INS_BOS, INS_EOS, SPEAKERS, Breeze
from engine.models.qwen3_tts import Qwen3TTS
from engine.norm import RMSNorm
from engine.weights import outlines

SEED = 20251130
CHARS_PER_TOKEN = 4
"""Gemma 3 has the tokenizer of Gemini 2.0 (arXiv:2503.19786, section 2), of which a token is about four characters
(https://ai.google.dev/gemini-api/docs/tokens)."""
Voice = Breeze | Qwen3TTS
HERE = Path(dimensions.__file__)
"""What its errors name: the configs stand in this file, and no generation_config.json lies in it."""


def load(name: str, *, device: torch.device, dtype: torch.dtype) -> Voice:
    """The model of these dimensions, with weights made on the device, the same in every process on one kind of device.

    Raises ValueError for an unknown name."""
    model = outline(name)
    fill(model, device, dtype)
    if model.encoder is not None:
        fill_encoder(model.encoder, device)
        model.encoder.eval()
    return model.eval()


def outline(name: str) -> Voice:
    """The model on meta, without numbers. Raises ValueError for an unknown name."""
    if name not in DIMENSIONS:
        raise ValueError(f"--random-weights must be one of {', '.join(DIMENSIONS)}, got {name!r}")
    main = Section.of({**DIMENSIONS[name], "name": f"random-{name}"}, f"random weights {name}")
    return OUTLINES[main.text("model_type", "")](main)


def breeze(main: Section) -> Breeze:
    audio, first = main.section("audio_tokenizer"), main.integer("audio_token_id")
    marks = (*AUDIO_MARKS, *(f"[{speaker}]" for speaker in SPEAKERS), INS_BOS, INS_EOS)
    words = tokenizer({"<pad>": 0, "<eos>": 1, "<bos>": 2} | {mark: first + i for i, mark in enumerate(marks)})
    words.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    config = breeze_tts_2.read_config(HERE, main, audio)
    spec = replace(breeze_tts_2.read_spec(HERE, main, audio, config, words), encodes=True)
    with outlines():
        return Breeze(config, spec, words, CodecEncoder(EncoderConfig.from_dict(audio)))


def encoder(name: str, *, device: torch.device) -> CodecEncoder:
    """The codec's encoder alone, of a model of these dimensions."""
    audio = Section.of(DIMENSIONS[name], f"random weights {name}").section("audio_tokenizer")
    with outlines():
        made = CodecEncoder(EncoderConfig.from_dict(audio))
    fill_encoder(made, device)
    return made.eval()


def qwen(main: Section) -> Qwen3TTS:
    """Text as one token for each piece that the published tokenizer parts it into before it merges, words and marks: so
    its templates have as many tokens, and an open text has one at least for each word."""
    marks = {"<|im_start|>": main.integer("im_start_token_id"), "<|im_end|>": main.integer("im_end_token_id")}
    words, audio = tokenizer(marks, qwen3_tts.SPLIT), main.section(qwen3_tts.CODEC)
    return qwen3_tts.outline(HERE, main, audio, qwen3_tts.read_config(HERE, main, audio), words)


OUTLINES: Mapping[str, Callable[[Section], Voice]] = {breeze_tts_2.MODEL_TYPE: breeze, qwen3_tts.MODEL_TYPE: qwen}


def tokenizer(special: Mapping[str, int], pattern: str = rf"[\s\S]{{1,{CHARS_PER_TOKEN}}}") -> Tokenizer:
    """Text as one token for each piece of the pattern, its first letter."""
    letters = {letter: 3 + i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    out = Tokenizer(BPE(dict(special) | letters, []))
    pieces = pre_tokenizers.Split(Regex(pattern), "isolated")
    rest = pre_tokenizers.Split(Regex(r"(?<=\A[\s\S])[\s\S]+"), "removed")
    letters_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    out.pre_tokenizer = pre_tokenizers.Sequence([pieces, rest, letters_only])
    out.add_special_tokens([AddedToken(word, normalized=False) for word in special])
    return out


@torch.inference_mode(False)  # as engine.weights: parameters like any other
def fill(model: Voice, device: torch.device, dtype: torch.dtype) -> None:
    """Puts random weights in the place of those on meta, and moves the constants.

    All but the codec's are bf16 numbers, as the published ones are, whatever they are stored as.
    """
    generator = torch.Generator(device).manual_seed(SEED)
    codec = set(model.codec.modules())
    for path, module in model.named_modules():
        kept = any(fnmatchcase(f"{path}.", pattern) for pattern in model.float32)
        stored = torch.float32 if kept else dtype
        drawn = torch.float32 if module in codec else torch.bfloat16
        for name, shape in [(name, value.shape) for name, value in module.named_parameters(recurse=False)]:
            value = torch.empty(shape, dtype=drawn, device=device)
            draw(value, module, name, generator)
            setattr(module, name, nn.Parameter(value.to(stored), requires_grad=False))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


@torch.inference_mode(False)
def fill_encoder(made: CodecEncoder, device: torch.device) -> None:
    """The same for an encoder, which is float32."""
    generator = torch.Generator(device).manual_seed(SEED)
    for module in made.modules():
        for name, shape in [(name, value.shape) for name, value in module.named_parameters(recurse=False)]:
            value = torch.empty(shape, device=device)
            draw(value, module, name, generator)
            setattr(module, name, nn.Parameter(value, requires_grad=False))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


def draw(value: Tensor, module: nn.Module, name: str, generator: torch.Generator) -> None:
    """Matrices keep the size of what they multiply; norms and vectors leave things as they are; the codec's are half
    as large, since the residual blocks of its decoder, which nothing norms, would end in clipped samples."""
    if value.dim() > 1:
        gain = 0.5 if value.dtype == torch.float32 else 1.0
        value.normal_(0.0, gain * fan_in(module, name, value) ** -0.5, generator=generator)
    elif name in ("bias", "alpha", "beta") or (isinstance(module, RMSNorm) and module.zero_centred):
        value.zero_()
    else:
        value.fill_(1.0)


def fan_in(module: nn.Module, name: str, value: Tensor) -> float:
    """Values that add up to one output, for the weights of each kind of module."""
    if isinstance(module, nn.Embedding) or name == "embedding_sum":
        return 1.0
    if isinstance(module, nn.ConvTranspose1d):
        return value.shape[0] * value.shape[2] / module.stride[0]
    if isinstance(module, nn.Linear | nn.Conv1d):
        return float(value[0].numel())
    return float(value.shape[1])  # Heads [heads, in, out], and the text embedding, which is multiplied by sqrt(width)
