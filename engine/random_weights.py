"""Voices with random weights at a model's real dimensions: for benches, which measure time and not speech.

It does not know who measures. What such a voice says is noise, and its end never comes by itself when a request sets
min_frames to max_frames. Dimensions: config.json and audio_tokenizer/config.json of Breeze TTS 2
(https://huggingface.co/BreezeBlue/Breeze-TTS-2; code: https://github.com/breezeblue-ai/breeze-tts).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers, processors
from tokenizers.models import BPE
from torch import Tensor, nn

from engine.config import Section
from engine.models.breeze_tts_2 import AUDIO_MARKS, INS_BOS, INS_EOS, SPEAKERS, Breeze, read_config, read_spec
from engine.norm import RMSNorm
from engine.weights import outlines

SEED = 20251130
CHARS_PER_TOKEN = 4
"""Gemma 3 has the tokenizer of Gemini 2.0 (arXiv:2503.19786, section 2), of which a token is about four characters
(https://ai.google.dev/gemini-api/docs/tokens)."""
LICENCE = "Apache-2.0"
"""The numbers are nobody's."""

SHARED: Mapping[str, Any] = {
    "model_type": "breeze",
    "license": LICENCE,
    "backbone_model_type": "qwen3",
    "text_encoder_proj_type": "linear",
    "tie_codebooks_embeddings": True,
    "codebook_eos_token_id": 0,
    "num_codebooks": 16,
}
LLAMA3: Mapping[str, Any] = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 0.001953125,
    "high_freq_factor": 0.0078125,
    "original_max_position_embeddings": 16,
}
TEXT: Mapping[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
AUDIO: Mapping[str, Any] = {"output_sample_rate": 24_000}
CODEC: Mapping[str, Any] = {
    "num_quantizers": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
}

BREEZE_TTS_2: Mapping[str, Any] = {
    **SHARED,
    "vocab_size": 2051,
    "audio_embed_size": 2048,
    "hidden_size": 2048,
    "audio_token_id": 262_144,
    "max_position_embeddings": 2048,
    "codec_config": {"codebook_size": 2048},
    "backbone_config": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "max_position_embeddings": 40_960,
    },
    "depth_decoder_config": {
        "hidden_size": 1024,
        "backbone_hidden_size": 2048,
        "audio_embed_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "hidden_act": "silu",
        "vocab_size": 2051,
        "num_codebooks": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000,
        "rope_scaling": LLAMA3,
    },
    "text_encoder_config": {
        **TEXT,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "eoi_token_index": 256_000,
        "vocab_size": 262_158,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4 + ["sliding_attention"] * 2,
    },
    "audio_tokenizer": {
        **AUDIO,
        "decoder_config": {
            **CODEC,
            "codebook_size": 2048,
            "codebook_dim": 512,
            "latent_dim": 1024,
            "decoder_dim": 1536,
            "hidden_size": 512,
            "intermediate_size": 1024,
            "num_hidden_layers": 8,
            "num_attention_heads": 16,
            "head_dim": 64,
            "sliding_window": 72,
        },
    },
}
"""What the readers read of both files, the second one below `audio_tokenizer`."""

TINY: Mapping[str, Any] = {
    **SHARED,
    "vocab_size": 35,
    "audio_embed_size": 32,
    "hidden_size": 32,
    "audio_token_id": 300,
    "max_position_embeddings": 512,
    "codec_config": {"codebook_size": 32},
    "backbone_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "max_position_embeddings": 40_960,
    },
    "depth_decoder_config": {
        "hidden_size": 16,
        "backbone_hidden_size": 32,
        "audio_embed_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "vocab_size": 35,
        "num_codebooks": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000,
        "rope_scaling": LLAMA3,
    },
    "text_encoder_config": {
        **TEXT,
        "hidden_size": 24,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "eoi_token_index": 299,
        "vocab_size": 314,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "audio_tokenizer": {
        **AUDIO,
        "decoder_config": {
            **CODEC,
            "codebook_size": 32,
            "codebook_dim": 32,
            "latent_dim": 32,
            "decoder_dim": 64,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 8,
            "sliding_window": 12,
        },
    },
}
"""The same model so small that a CPU runs it in no time: for tests."""

DIMENSIONS: Mapping[str, Mapping[str, Any]] = {"breeze-tts-2": BREEZE_TTS_2, "tiny": TINY}
HERE = Path(__file__)
"""What its errors name: the configs stand in this file, and no generation_config.json lies in it."""


def load(name: str, *, device: torch.device, dtype: torch.dtype) -> Breeze:
    """The model of these dimensions, with weights made on the device, the same in every process on one kind of device.

    Raises ValueError for an unknown name."""
    model = outline(name)
    fill(model, device, dtype)
    return model.eval()


def outline(name: str) -> Breeze:
    """The model on meta, without numbers. Raises ValueError for an unknown name."""
    if name not in DIMENSIONS:
        raise ValueError(f"--random-weights must be one of {', '.join(DIMENSIONS)}, got {name!r}")
    main = Section.of({**DIMENSIONS[name], "name": f"random-{name}"}, f"random weights {name}")
    audio = main.section("audio_tokenizer")
    config, words = read_config(HERE, main, audio), tokenizer(main.integer("audio_token_id"))
    with outlines():
        return Breeze(config, read_spec(HERE, main, audio, config, words), words)


def tokenizer(first_mark: int) -> Tokenizer:
    """Text as one token for every four characters, the first of them; <bos> in front of every text, as in Gemma.

    The marks of prompts have the ids from `first_mark` on, in the checkpoint's order.
    """
    marks = (*AUDIO_MARKS, *(f"[{speaker}]" for speaker in SPEAKERS), INS_BOS, INS_EOS)
    special = {"<pad>": 0, "<eos>": 1, "<bos>": 2} | {mark: first_mark + i for i, mark in enumerate(marks)}
    letters = {letter: 3 + i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    out = Tokenizer(BPE(special | letters, []))
    pieces = pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{CHARS_PER_TOKEN}}}"), "isolated")
    rest = pre_tokenizers.Split(Regex(r"(?<=\A[\s\S])[\s\S]+"), "removed")
    letters_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    out.pre_tokenizer = pre_tokenizers.Sequence([pieces, rest, letters_only])
    out.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    out.add_special_tokens([AddedToken(word, normalized=False) for word in special])
    return out


@torch.inference_mode(False)  # as engine.weights: parameters like any other
def fill(model: Breeze, device: torch.device, dtype: torch.dtype) -> None:
    """Puts random weights in the place of those on meta, and moves the constants.

    All but the codec's are bf16 numbers, as the published ones are, whatever they are stored as.
    """
    generator = torch.Generator(device).manual_seed(SEED)
    for path, module in model.named_modules():
        codec = path.startswith("audio_tokenizer")
        stored = torch.float32 if codec or path in ("lm_head", "depth_decoder.codebooks_head") else dtype
        drawn = torch.float32 if codec else torch.bfloat16
        for name, shape in [(name, value.shape) for name, value in module.named_parameters(recurse=False)]:
            value = torch.empty(shape, dtype=drawn, device=device)
            draw(value, module, name, generator)
            setattr(module, name, nn.Parameter(value.to(stored), requires_grad=False))
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
