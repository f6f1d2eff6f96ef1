"""The text encoder: token ids of a segment become one state a token, each seeing the whole segment.

Segments are packed: everything but attention works on the tokens of all of them, without padding between them.
It does not know prompts, tokenizers or what reads its states. It is the T5Gemma2 encoder (Gemma 3 layers with
bidirectional attention) that Breeze TTS 2 ships; equations after the Gemma 3 report, arXiv:2503.19786.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config import TINY, Section
from engine.norm import RMSNorm
from engine.rotary import cos_sin, frequencies, rotate
from engine.transformer import read_dimensions
from engine.weights import FusedLinear

FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULT_EOI_ID = 256000
"""What the official class assumes when the config does not say."""
ONLY = {"hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": None, "attention_bias": False}
"""Options with one value here."""


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The dimensions of a text encoder, as its checkpoint says."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    vocab_size: int
    score_scale: float
    window: int
    eoi_id: int
    layer_types: tuple[str, ...]
    rope: Mapping[str, Section]
    """Rotary parameters by layer type."""

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> TextConfig:
        """Reads `text_encoder_config`. Raises CheckpointError, also on a foreign variant."""
        d = Section.of(d, "text_encoder_config")
        d.require(ONLY)
        layer_types = d.texts("layer_types", FULL, SLIDING)
        return cls(
            **read_dimensions(d),
            vocab_size=d.integer("vocab_size"),
            score_scale=d.number("query_pre_attn_scalar", low=TINY) ** -0.5,
            window=d.integer("sliding_window"),
            eoi_id=d.integer("eoi_token_index", low=0, default=DEFAULT_EOI_ID),
            layer_types=layer_types,
            rope=_rope(d),
        )


def _rope(d: Section) -> dict[str, Section]:
    """Rotary parameters by layer type, from the newer form of the config or from the one of Gemma 3."""
    if "rope_parameters" in d:
        given = d.section("rope_parameters")
        return {kind: given.section(kind) for kind in (FULL, SLIDING)}
    sliding = {"rope_theta": d.number("rope_local_base_freq", low=1)}
    return {FULL: d, SLIDING: Section.of(sliding, d.where)}


@dataclass(frozen=True, slots=True)
class Pack:
    """Where T packed tokens stand in attention's view of them, in which each of B segments has a row of L places."""

    places: Tensor
    """[T]: of each token in its segment."""
    tokens: Tensor
    """[B, L]: which one stands at each place; the first, where there is none."""
    real: Tensor
    """[B, L]: true where there is one."""
    spots: Tensor
    """[T]: of each token in the view, its rows one after the other; any, for padding."""

    @classmethod
    def of(cls, lengths: Tensor, tokens: int, longest: int) -> Pack:
        """lengths [B], none above `longest` = L; `tokens` = T. Made on the device, without a word to the host."""
        rows, ends = len(lengths), lengths.cumsum(0)
        starts, places = ends - lengths, torch.arange(longest, device=lengths.device)
        each = torch.arange(tokens, device=lengths.device)
        segments = torch.searchsorted(ends, each, right=True).clamp(max=rows - 1)
        real, own = places < lengths[:, None], each - starts[segments]
        spots = (segments * longest + own).clamp(max=rows * longest - 1)
        return cls(own, torch.where(real, starts[:, None] + places, 0), real, spots)


@dataclass(frozen=True, slots=True)
class View:
    """What a kind of layer sees: rotary cos, sin [T, 1, head_dim]; mask [B, 1, L, L], true where visible."""

    pack: Pack
    cos: Tensor
    sin: Tensor
    mask: Tensor


class TextEmbedding(nn.Module):
    """Token embeddings, scaled but for the one end-of-image token, which has a vector of its own."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.eoi_embedding = nn.Parameter(torch.empty(config.hidden_size))
        self._eoi_id = config.eoi_id

    def forward(self, ids: Tensor) -> Tensor:
        """ids [T] -> [T, hidden]. The factor is rounded to the weights' dtype first, as in Gemma."""
        scale = torch.tensor(self.weight.shape[1] ** 0.5).to(self.weight.dtype).item()
        return torch.where((ids == self._eoi_id)[..., None], self.eoi_embedding, F.embedding(ids, self.weight) * scale)


class TextAttention(nn.Module):
    """Grouped-query attention with normed queries and keys."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self._config = config
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = {"q_proj": width, "k_proj": kv_width, "v_proj": kv_width}
        self.qkv_proj = FusedLinear(config.hidden_size, parts)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.eps, zero_centred=True)
        self.k_norm = RMSNorm(config.head_dim, config.eps, zero_centred=True)

    def forward(self, x: Tensor, view: View) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        config, pack = self._config, view.pack
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        q, k, v = torch.split(self.qkv_proj(x).view(len(x), -1, config.head_dim), sizes, 1)
        turned = rotate(torch.cat((self.q_norm(q), self.k_norm(k)), 1), view.cos, view.sin)
        rows = torch.cat((turned, v), 1)[pack.tokens]
        # Not left to the mask: a NaN of a neighbour times a weight of zero is NaN.
        rows = rows.masked_fill(~pack.real[..., None, None], 0)
        q, k, v = torch.split(rows.transpose(1, 2), sizes, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=view.mask, scale=config.score_scale, enable_gqa=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2).flatten(0, 1)[pack.spots])
        return out


class TextMLP(nn.Module):
    """Gated feed-forward with tanh-GELU."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        inner = config.intermediate_size
        self.gate_up_proj = FusedLinear(config.hidden_size, {"gate_proj": inner, "up_proj": inner})
        self.down_proj = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        out: Tensor = self.down_proj(F.gelu(gate, approximate="tanh") * up)
        return out


class TextLayer(nn.Module):
    """Attention, then feed-forward, each between two norms."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.pre_self_attn_layernorm = RMSNorm(config.hidden_size, config.eps, zero_centred=True)
        self.self_attn = TextAttention(config)
        self.post_self_attn_layernorm = RMSNorm(config.hidden_size, config.eps, zero_centred=True)
        self.pre_feedforward_layernorm = RMSNorm(config.hidden_size, config.eps, zero_centred=True)
        self.mlp = TextMLP(config)
        self.post_feedforward_layernorm = RMSNorm(config.hidden_size, config.eps, zero_centred=True)

    def forward(self, x: Tensor, view: View) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        x = x + self.post_self_attn_layernorm(self.self_attn(self.pre_self_attn_layernorm(x), view))
        fed: Tensor = self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x + fed


class TextEncoder(nn.Module):
    """The whole encoder; parameter names as in the checkpoint below `text_encoder.`."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = TextEmbedding(config)
        self.layers = nn.ModuleList(TextLayer(config) for _ in config.layer_types)
        self.norm = RMSNorm(config.hidden_size, config.eps, zero_centred=True)
        for kind, rope in config.rope.items():
            self.register_buffer(f"inv_freq_{kind}", frequencies(rope, config.head_dim), persistent=False)

    def forward(self, ids: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """ids [T] of segments one after the other, lengths [B] of up to `longest` tokens, 0 where there is none
        -> last normed states [T, hidden]. States of the padding behind the last segment mean nothing.
        """
        x: Tensor = self.embed_tokens(ids)
        pack = Pack.of(lengths, len(ids), longest)
        views = {kind: self._view(kind, pack, x.dtype) for kind in set(self.config.layer_types)}
        for layer, kind in zip(self.layers, self.config.layer_types, strict=True):
            x = layer(x, views[kind])
        x = self.norm(x)
        return x

    def _view(self, kind: str, pack: Pack, dtype: torch.dtype) -> View:
        places = torch.arange(pack.real.shape[1], device=pack.real.device)
        distance = places[:, None] - places
        real = pack.real[:, None, None]
        near = real if kind == FULL else real & within(distance, self.config.window)
        cos, sin = cos_sin(pack.places[:, None], self.get_buffer(f"inv_freq_{kind}"), dtype)
        # Padding sees itself: a query that saw nothing would be NaN, and NaN leaks through masked values.
        return View(pack, cos, sin, near | (distance == 0))


def within(distance: Tensor, window: int) -> Tensor:
    """True where a sliding layer sees, by distance = query - key. Even windows are longer on the right."""
    return (distance < (window + 1) // 2) & (distance > -(window // 2) - 1)
