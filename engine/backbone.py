"""The backbone: one vector a position in, one hidden state a position out, each seeing the positions before it.

It does not know what the vectors mean, nor how codes are drawn. It is the Qwen3 decoder (arXiv:2505.09388) without
its token embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.config import Section
from engine.device import attend
from engine.kv_cache import PagedKV
from engine.norm import RMSNorm, normalise
from engine.prepared import Prepared
from engine.rotary import cos_sin, frequencies, rotate
from engine.transformer import Layers, LayersConfig, LayerWeights, causal_attention, read_layers

Mix = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""A layer's index and its q [N, heads, head_dim], k and v [N, kv_heads, head_dim] -> [N, heads * head_dim]."""


@dataclass(frozen=True, slots=True)
class BackboneConfig(LayersConfig):
    """The dimensions of a backbone, as its checkpoint says."""

    max_positions: int

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> BackboneConfig:
        """Reads `backbone_config`. Raises CheckpointError."""
        d = Section.of(d, "backbone_config")
        return cls(**read_layers(d), max_positions=d.integer("max_position_embeddings"))


class Backbone(Prepared[list[tuple[LayerWeights, Tensor]]]):
    """The whole stack; parameter names as in the checkpoint below `backbone_model.`."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = Layers(config, qk_norm=True)
        self.norm = RMSNorm(config.hidden_size, config.eps)
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", frequencies(config.rope, config.head_dim), persistent=False)

    def forward(
        self, embeds: Tensor, positions: Tensor, valid: Tensor, kv: PagedKV, slots: Tensor, num_pages: int
    ) -> Tensor:
        """embeds [R, T, H], positions and valid [R, T], slots [R] -> normed states [R, T, H].

        Valid positions are written to `kv`; each sees the positions of its slot up to its own. `num_pages` (a bucket,
        so that shapes stay few) covers the last of them. States of invalid positions mean nothing.
        """
        window, pages = kv.window(positions, valid, slots, num_pages), kv.layers

        def mix(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(q, k, v, *pages[index], window.write, window.read, window.bias)

        return self._run(embeds, positions, mix)

    def causal(self, embeds: Tensor) -> Tensor:
        """Whole sequences from position 0, without a cache, as in training: embeds [B, T, H] -> [B, T, H]."""
        batch, length, _ = embeds.shape

        def mix(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return causal_attention(*(part.view(batch, length, *part.shape[1:]) for part in (q, k, v)))

        return self._run(embeds, torch.arange(length, device=embeds.device).repeat(batch), mix)

    def _run(self, embeds: Tensor, positions: Tensor, mix: Mix) -> Tensor:
        x = embeds.flatten(0, 1)
        cos, sin = cos_sin(positions.flatten()[:, None], self.inv_freq, x.dtype)
        for index, (weights, qk_norm) in enumerate(self.prepared()):
            q, k, v = self._qkv(weights.qkv_heads(x, self.config.head_dim), qk_norm, cos, sin)
            x = weights.finish(x, mix(index, q, k, v))
        states: Tensor = self.norm(x)
        return states.view(embeds.shape)

    def _qkv(self, qkv: Tensor, qk_norm: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Norms and turns queries and keys together: [N, heads + 2 * kv_heads, head_dim] -> q, k, v."""
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        qk, v = torch.split(qkv, [heads + kv_heads, kv_heads], 1)
        q, k = torch.split(rotate(normalise(qk, self.config.eps) * qk_norm, cos, sin), [heads, kv_heads], 1)
        return q, k, v

    def _prepare(self) -> list[tuple[LayerWeights, Tensor]]:
        """Each layer's tensors, and the weights of its query and key norms."""
        return [(LayerWeights.of(layer), layer.self_attn.qk_norm()) for layer in self.layers]
