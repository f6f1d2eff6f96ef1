"""The dimensions of published models, as their configs say them, for whoever needs a model's size without its weights.

It knows no weights. Breeze TTS 2: config.json and audio_tokenizer/config.json of
https://huggingface.co/BreezeBlue/Breeze-TTS-2. Qwen3-TTS: config.json and speech_tokenizer/config.json of
https://huggingface.co/Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice and the 0.6B one; the codecs' dimensions are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

ENCODED: Mapping[str, Any] = {
    "input_sample_rate": 24_000,
    "encode_downsample_rate": 1920,
    "encoder_valid_num_quantizers": 16,
}
ENCODER: Mapping[str, Any] = {
    "kernel_size": 7,
    "residual_kernel_size": 3,
    "last_kernel_size": 3,
    "compress": 2,
    "upsampling_ratios": [8, 6, 5, 4],
    "norm_eps": 1e-5,
    "rope_theta": 10_000,
    "num_quantizers": 32,
}

PUBLISHED_CODEC: Mapping[str, Any] = {
    **AUDIO,
    **ENCODED,
    "encoder_config": {
        **ENCODER,
        "num_filters": 64,
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 2048,
        "codebook_size": 2048,
        "codebook_dim": 256,
    },
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
    "audio_tokenizer": PUBLISHED_CODEC,
}
"""What the readers read of both files, the second one below its folder's name."""

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
        **ENCODED,
        "encoder_config": {
            **ENCODER,
            "num_filters": 4,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "intermediate_size": 64,
            "codebook_size": 32,
            "codebook_dim": 16,
        },
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

QWEN3_LAYERS: Mapping[str, Any] = {
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "num_code_groups": 16,
}
TALKER: Mapping[str, Any] = {
    **QWEN3_LAYERS,
    "vocab_size": 3072,
    "num_hidden_layers": 28,
    "max_position_embeddings": 32_768,
    "rope_scaling": {"interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
    "text_hidden_size": 2048,
    "text_vocab_size": 151_936,
    "codec_eos_token_id": 2150,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_language_id": {
        "chinese": 2055,
        "english": 2050,
        "german": 2053,
        "italian": 2070,
        "portuguese": 2071,
        "spanish": 2054,
        "japanese": 2058,
        "korean": 2064,
        "french": 2061,
        "russian": 2069,
        "beijing_dialect": 2074,
        "sichuan_dialect": 2062,
    },
    "spk_id": {
        "serena": 3066,
        "vivian": 3065,
        "uncle_fu": 3010,
        "ryan": 3061,
        "aiden": 2861,
        "ono_anna": 2873,
        "sohee": 2864,
        "eric": 2875,
        "dylan": 2878,
    },
    "spk_is_dialect": {"eric": "sichuan_dialect", "dylan": "beijing_dialect"},
    "code_predictor_config": {
        **QWEN3_LAYERS,
        "vocab_size": 2048,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 5,
    },
}
QWEN3_TTS: Mapping[str, Any] = {
    "model_type": "qwen3_tts",
    "license": LICENCE,
    "tokenizer_type": "qwen3_tts_tokenizer_12hz",
    "tts_model_type": "custom_voice",
    "im_start_token_id": 151_644,
    "im_end_token_id": 151_645,
    "tts_pad_token_id": 151_671,
    "tts_bos_token_id": 151_672,
    "tts_eos_token_id": 151_673,
    "speech_tokenizer": PUBLISHED_CODEC,
}
QWEN3_TTS_0_6B: Mapping[str, Any] = {
    **QWEN3_TTS,
    "tts_model_size": "0b6",
    "talker_config": {**TALKER, "hidden_size": 1024, "intermediate_size": 3072},
}
QWEN3_TTS_1_7B: Mapping[str, Any] = {
    **QWEN3_TTS,
    "tts_model_size": "1b7",
    "talker_config": {**TALKER, "hidden_size": 2048, "intermediate_size": 6144},
}

DIMENSIONS: Mapping[str, Mapping[str, Any]] = {
    "breeze-tts-2": BREEZE_TTS_2,
    "qwen3-tts-0.6b": QWEN3_TTS_0_6B,
    "qwen3-tts-1.7b": QWEN3_TTS_1_7B,
    "tiny": TINY,
}
