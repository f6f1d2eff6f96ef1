"""The codec's transformer: each frame sees itself and the frames of a sliding window before it.

It does not know what its columns mean or how they are kept between calls. The layers are Llama's (arXiv:2302.13971)
with a scale on each residual branch (LayerScale, arXiv:2103.17239).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.codec_blocks import History
from engine.norm import RMSNorm
from engine.prepared import Prepared
from engine.rotary import cos_sin, frequencies, rotate
from engine.transformer import Layer, LayersConfig, LayerWeights


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
    """What T new frames of B streams see.

    rotations [T * B, head_dim, head_dim] turn a row's heads; mask [B, 1, T, window - 1 + T] is true where visible.
    """

    rotations: Tensor
    mask: Tensor


class SlidingTransformer(Prepared[list[LayerWeights]]):
    """Projection, layers, norm, projection; nothing is added around the whole.

    `window` counts the frames that a frame sees, itself included: keys and values of window - 1 are remembered.
    """

    inv_freq: Tensor
    identity: Tensor

    def __init__(self, config: LayersConfig, channels: int, window: int) -> None:
        super().__init__()
        self.config = config
        self.input_proj = nn.Linear(channels, config.hidden_size)
        self.layers = nn.ModuleList(ScaledLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.eps)
        self.output_proj = nn.Linear(config.hidden_size, channels)
        self._window = window
        self.memory = config.num_layers * 2 * (window - 1) * config.num_heads * config.head_dim
        self.register_buffer("inv_freq", frequencies(config.rope, config.head_dim), persistent=False)
        self.register_buffer("identity", torch.eye(config.head_dim, device="cpu"), persistent=False)

    def forward(self, x: Tensor, history: History) -> Tensor:
        """x [T * B, channels] -> the same shape."""
        view = self._view(len(x) // history.batch, history.frames)
        x = self.input_proj(x)
        for weights in self.prepared():
            mixed = self._mix(weights.qkv_heads(x, self.config.head_dim), view, history)
            x = weights.finish(x, mixed)
        columns: Tensor = self.output_proj(self.norm(x))
        return columns

    def _view(self, num_frames: int, frames: Tensor) -> View:
        new = torch.arange(num_frames, device=frames.device)
        keys = torch.arange(1 - self._window, num_frames, device=frames.device)
        ages, positions = new[:, None] - keys, new[:, None] + frames
        oldest = positions.clamp(max=self._window - 1).t()[:, None, :, None]  # a young stream has no older frames
        cos, sin = cos_sin(positions.view(-1, 1), self.inv_freq, self.inv_freq.dtype)
        return View(rotate(self.identity, cos, sin), (ages >= 0) & (ages <= oldest))

    def _mix(self, qkv: Tensor, view: View, history: History) -> Tensor:
        """qkv [T * B, 3 * heads, head_dim] -> attention of the new frames [T * B, heads * head_dim]."""
        heads, head_dim = self.config.num_heads, self.config.head_dim
        q, k = torch.bmm(qkv[:, : 2 * heads], view.rotations).chunk(2, 1)
        k, v = (history.extend(part.flatten(1), self._window - 1) for part in (k, qkv[:, 2 * heads :]))
        q, k, v = (part.view(-1, history.batch, heads, head_dim).permute(1, 2, 0, 3) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=view.mask)
        return mixed.permute(2, 0, 1, 3).flatten(2).flatten(0, 1)

    def _prepare(self) -> list[LayerWeights]:
        return [layer.weights() for layer in cast(Iterable[ScaledLayer], self.layers)]
