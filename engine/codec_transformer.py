"""The codec's transformers: a column sees itself and, in the decoder, a sliding window before it, in the encoder all.

They do not know what their columns mean or how they are kept between calls. The decoder's layers are Llama's
(arXiv:2302.13971), the encoder's GPT-2's with rotary positions, both with a scale on each residual branch (LayerScale,
arXiv:2103.17239).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.codec_blocks import FullHistory, History
from engine.norm import RMSNorm
from engine.prepared import Prepared
from engine.rotary import cos_sin, frequencies, rotate
from engine.transformer import Attention, Layer, LayersConfig, LayerWeights


class LayerScale(nn.Module):
    """A factor for each channel of a residual branch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 0.01))


class ScaledLayer(Layer):
    """One layer's weights, under the names of the checkpoint."""

    def __init__(self, config: LayersConfig) -> None:
        super().__init__(config, qk_norm=False)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def weights(self) -> LayerWeights:
        """The layer's tensors with each scale in the last matrix of its branch."""
        plain = LayerWeights.of(self)
        scaled_o, scaled_down = plain.o * self.self_attn_layer_scale.scale, plain.down * self.mlp_layer_scale.scale
        return replace(plain, o=scaled_o, down=scaled_down)


@dataclass(frozen=True, slots=True)
class View:
    """What T new columns of B streams see.

    rotations [T * B, head_dim, head_dim] turn a row's heads; mask [B, 1, T, S + T] is true where visible, of S earlier
    columns and the new ones; its first dimension may be 1.
    """

    rotations: Tensor
    mask: Tensor


W = TypeVar("W")


class ColumnAttention(Prepared[list[W]]):
    """Layers over columns [T * B, channels] in which each head of a column attends to earlier ones, turned by their
    positions. Which ones it sees, and how a layer goes on, is said by those that are made of it."""

    inv_freq: Tensor
    identity: Tensor

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("inv_freq", frequencies(config.rope, config.head_dim), persistent=False)
        self.register_buffer("identity", torch.eye(config.head_dim, device="cpu"), persistent=False)

    def _rotations(self, positions: Tensor) -> Tensor:
        """positions [T, B] -> [T * B, head_dim, head_dim]."""
        cos, sin = cos_sin(positions.view(-1, 1), self.inv_freq, self.inv_freq.dtype)
        return rotate(self.identity, cos, sin)

    def _attend(self, qkv: Tensor, view: View, extend: Callable[[Tensor], Tensor]) -> Tensor:
        """qkv [T * B, 3 * heads, head_dim] -> attention of the new columns [T * B, heads * head_dim].

        `extend` puts the S earlier ones in front of keys or values [T * B, heads * head_dim].
        """
        heads, head_dim = self.config.num_heads, self.config.head_dim
        batch = len(qkv) // view.mask.shape[2]
        q, k = torch.bmm(qkv[:, : 2 * heads], view.rotations).chunk(2, 1)
        k, v = (extend(part.flatten(1)) for part in (k, qkv[:, 2 * heads :]))
        q, k, v = (part.view(-1, batch, heads, head_dim).permute(1, 2, 0, 3) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=view.mask)
        return mixed.permute(2, 0, 1, 3).flatten(2).flatten(0, 1)


class SlidingTransformer(ColumnAttention[LayerWeights]):
    """Projection, layers, norm, projection; nothing is added around the whole.

    `window` counts the frames that a frame sees, itself included: keys and values of window - 1 are remembered.
    """

    def __init__(self, config: LayersConfig, channels: int, window: int) -> None:
        super().__init__(config)
        self.input_proj = nn.Linear(channels, config.hidden_size)
        self.layers = nn.ModuleList(ScaledLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.eps)
        self.output_proj = nn.Linear(config.hidden_size, channels)
        self._window = window
        self.memory = config.num_layers * 2 * (window - 1) * config.num_heads * config.head_dim

    def forward(self, x: Tensor, history: History) -> Tensor:
        """x [T * B, channels] -> the same shape."""
        view = self._view(len(x) // history.batch, history.frames)
        x = self.input_proj(x)
        for weights in self.prepared():
            qkv = weights.qkv_heads(x, self.config.head_dim)
            x = weights.finish(x, self._attend(qkv, view, lambda part: history.extend(part, self._window - 1)))
        columns: Tensor = self.output_proj(self.norm(x))
        return columns

    def _view(self, num_frames: int, frames: Tensor) -> View:
        new = torch.arange(num_frames, device=frames.device)
        keys = torch.arange(1 - self._window, num_frames, device=frames.device)
        ages, positions = new[:, None] - keys, new[:, None] + frames
        oldest = positions.clamp(max=self._window - 1).t()[:, None, :, None]  # a young stream has no older frames
        return View(self._rotations(positions), (ages >= 0) & (ages <= oldest))

    def _prepare(self) -> list[LayerWeights]:
        return [layer.weights() for layer in cast(Iterable[ScaledLayer], self.layers)]


class FeedForward(nn.Module):
    """The weights of a feed-forward without a gate."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner, bias=False)
        self.fc2 = nn.Linear(inner, width, bias=False)


class CausalLayer(nn.Module):
    """One layer's weights, under the names of the checkpoint."""

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.input_layernorm = nn.LayerNorm(width, config.eps)
        self.self_attn = Attention(config, qk_norm=False)
        self.self_attn_layer_scale = LayerScale(width)
        self.post_attention_layernorm = nn.LayerNorm(width, config.eps)
        self.mlp = FeedForward(width, config.intermediate_size)
        self.mlp_layer_scale = LayerScale(width)


@dataclass(frozen=True, slots=True)
class CausalWeights:
    """A causal layer's matrices [in, out], each scale in the last one of its branch, and its norms."""

    norm: nn.LayerNorm
    qkv: Tensor
    o: Tensor
    mlp_norm: nn.LayerNorm
    widen: Tensor
    narrow: Tensor

    @classmethod
    def of(cls, layer: CausalLayer) -> CausalWeights:
        return cls(
            layer.input_layernorm,
            layer.self_attn.qkv_proj.weight.t(),
            layer.self_attn.o_proj.weight.t() * layer.self_attn_layer_scale.scale,
            layer.post_attention_layernorm,
            layer.mlp.fc1.weight.t(),
            layer.mlp.fc2.weight.t() * layer.mlp_layer_scale.scale,
        )

    def qkv_heads(self, x: Tensor, head_dim: int) -> Tensor:
        """x [N, hidden] -> queries, keys and values [N, 3 * heads, head_dim]."""
        return torch.mm(self.norm(x), self.qkv).view(x.shape[0], -1, head_dim)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """x [N, hidden] and what attention made of it [N, heads * head_dim] -> the layer's output [N, hidden]."""
        x = torch.addmm(x, mixed, self.o)
        return torch.addmm(x, F.gelu(torch.mm(self.mlp_norm(x), self.widen)), self.narrow)


class CausalTransformer(ColumnAttention[CausalWeights]):
    """Layers in which a column sees itself and all before it. `rate` of its columns are a frame of the history's."""

    def __init__(self, config: LayersConfig, rate: int) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(CausalLayer(config) for _ in range(config.num_layers))
        self._rate = rate

    def forward(self, x: Tensor, history: FullHistory) -> Tensor:
        """x [T * B, hidden] -> the same shape."""
        view = self._view(len(x) // history.batch, history)
        for weights in self.prepared():
            qkv = weights.qkv_heads(x, self.config.head_dim)
            x = weights.finish(x, self._attend(qkv, view, history.extend_fully))
        return x

    def _view(self, num_columns: int, history: FullHistory) -> View:
        earlier = len(history.seen[0]) // history.batch if history.seen else 0
        new = torch.arange(num_columns, device=history.frames.device)
        keys = torch.arange(-earlier, num_columns, device=history.frames.device)
        positions = new[:, None] + history.frames * self._rate
        return View(self._rotations(positions), (keys <= new[:, None])[None, None])

    def _prepare(self) -> list[CausalWeights]:
        return [CausalWeights.of(layer) for layer in cast(Iterable[CausalLayer], self.layers)]
