"""The pre-norm decoder layer that backbone and depth decoder share (Llama and Qwen3: arXiv:2407.21783, 2505.09388).

It does not know positions, caches or masks: whoever runs the layers says how queries, keys and values mix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config import Section
from engine.norm import RMSNorm, normalise
from engine.weights import FusedLinear

ONLY = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False}
"""Options with one value here."""
MAX_LAYERS = MAX_HEAD_DIM = 1024
"""Bounds on what is built before the files say whether it is there."""


@dataclass(frozen=True, slots=True)
class LayersConfig:
    """The dimensions of a stack of layers."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    rope: Section
    """What `rotary.frequencies` reads."""


def read_layers(d: Section) -> dict[str, Any]:
    """LayersConfig's fields from a checkpoint's config. Raises CheckpointError, also on an unknown variant."""
    d.require(ONLY)
    num_layers = d.integer("num_hidden_layers", high=MAX_LAYERS)
    return {**read_dimensions(d), "num_layers": num_layers, "rope": d}


def read_dimensions(d: Section) -> dict[str, Any]:
    """What every kind of attention layer has, by its name here."""
    heads, kv_heads = d.integer("num_attention_heads"), d.integer("num_key_value_heads")
    if heads % kv_heads:
        raise d.misfit("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    head_dim = d.integer("head_dim", high=MAX_HEAD_DIM)
    if head_dim % 2:
        raise d.misfit("head_dim", "even, since rotation turns pairs of channels")
    return {
        "hidden_size": d.integer("hidden_size"),
        "intermediate_size": d.integer("intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "eps": d.number("rms_norm_eps"),
    }


class Attention(nn.Module):
    """The weights of grouped-query attention, with normed queries and keys if asked for."""

    def __init__(self, config: LayersConfig, qk_norm: bool) -> None:
        super().__init__()
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = {"q_proj": width, "k_proj": kv_width, "v_proj": kv_width}
        self.qkv_proj = FusedLinear(config.hidden_size, parts)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.heads, self.kv_heads = config.num_heads, config.num_kv_heads
        if qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.eps)
            self.k_norm = RMSNorm(config.head_dim, config.eps)

    def qk_norm(self) -> Tensor:
        """The norms' weights for each query and key head, [heads + kv_heads, head_dim]: one product serves all."""
        return torch.cat((self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)))

    def qkv_norm(self) -> Tensor | None:
        """Likewise with a 1 for each value, [heads + 2 * kv_heads, head_dim], if queries and keys are normed."""
        if not hasattr(self, "q_norm"):
            return None
        return torch.cat((self.qk_norm(), torch.ones_like(self.k_norm.weight).expand(self.kv_heads, -1)))


class MLP(nn.Module):
    """The weights of the gated feed-forward."""

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        inner = config.intermediate_size
        self.gate_up_proj = FusedLinear(config.hidden_size, {"gate_proj": inner, "up_proj": inner})
        self.down_proj = nn.Linear(inner, config.hidden_size, bias=False)


class Layer(nn.Module):
    """One layer's weights, under the names of the checkpoint."""

    def __init__(self, config: LayersConfig, qk_norm: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.self_attn = Attention(config, qk_norm)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.mlp = MLP(config)


class Layers(nn.ModuleList):
    """A stack of layers."""

    def __init__(self, config: LayersConfig, qk_norm: bool) -> None:
        super().__init__(Layer(config, qk_norm) for _ in range(config.num_layers))

    def __iter__(self) -> Iterator[Layer]:
        return iter(cast(Iterable[Layer], self._modules.values()))


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A layer's tensors at hand, [in, out], so that a decode step spends no time on finding them."""

    eps: float
    norm: Tensor
    qkv: Tensor
    o: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: Layer) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            layer.input_layernorm.eps,
            layer.input_layernorm.weight,
            attention.qkv_proj.weight.t(),
            attention.o_proj.weight.t(),
            layer.post_attention_layernorm.weight,
            mlp.gate_up_proj.weight.t(),
            mlp.down_proj.weight.t(),
        )

    def attention_input(self, x: Tensor) -> Tensor:
        """x [N, hidden] -> what is projected to queries, keys and values."""
        return normalise(x, self.eps) * self.norm

    def qkv_heads(self, x: Tensor, head_dim: int) -> Tensor:
        """x [N, hidden] -> queries, keys and values [N, heads + 2 * kv_heads, head_dim]."""
        return torch.mm(self.attention_input(x), self.qkv).view(x.shape[0], -1, head_dim)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """x [N, hidden] and what attention made of it [N, heads * head_dim] -> the layer's output [N, hidden]."""
        x = torch.addmm(x, mixed, self.o)
        gate, up = torch.mm(normalise(x, self.eps) * self.mlp_norm, self.gate_up).chunk(2, -1)
        return torch.addmm(x, F.silu(gate) * up, self.down)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Whole sequences at once: q [B, T, heads, head_dim], k and v [B, T, kv_heads, head_dim].

    Returns [B * T, heads * head_dim].
    """
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2).flatten(2).flatten(0, 1)
