"""The codec's decoder over whole stretches of time, fast in training: the engine's modules and parameters, convolutions
as cuDNN has them.

The engine's own forward is one sum of matrix products a tap, best for a few frames of many streams on a CPU. Over
thousands of columns, forwards and backwards, that would write every activation seven times; what runs at up to 50
columns a second is left to it, and what is above is done here. A test holds both to the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.codec import CodecDecoder
from engine.codec_blocks import CausalConv, CausalUpsample, DecoderBlock, History, ResidualUnit, Snake

Bend = Callable[[Tensor, Tensor, Tensor], Tensor]


def bend(x: Tensor, frequency: Tensor, size: Tensor) -> Tensor:
    """x [B, channels, T], frequency and size [1, channels, 1] -> x + size * sin(frequency * x)^2."""
    return x + size * torch.sin(x * frequency).square()


class WholeDecoder:
    """Runs a decoder in training mode over vectors or codes, without clipping."""

    def __init__(self, decoder: CodecDecoder, bend: Bend = bend) -> None:
        self.decoder = decoder
        self.bend = bend

    def codes(self, codes: Tensor, context: int = 0) -> Tensor:
        """codes [B, K, T] -> [B, (T - context) * samples_per_frame]."""
        vectors = self.decoder.quantizer(codes.permute(2, 0, 1))
        return self._run(vectors, context)

    def vectors(self, vectors: Tensor, context: int = 0) -> Tensor:
        """vectors [B, codebook_dim, T] -> [B, (T - context) * samples_per_frame].

        The first `context` frames are heard by the transformer only: what follows is as in the middle of a stream, but
        for the convolutions' first columns, which begin with silence.
        """
        return self._run(vectors.permute(2, 0, 1), context)

    def _run(self, vectors: Tensor, context: int) -> Tensor:
        """vectors [T, B, codebook_dim] -> samples."""
        decoder, batch = self.decoder, vectors.shape[1]
        state = decoder.init_state(batch, vectors.device)
        x = decoder.pre_conv(vectors.flatten(0, 1), history := History(state.columns, state.frames))
        x = decoder.pre_transformer(x, history)[context * batch :]
        for stage in cast(Iterable[nn.ModuleList], decoder.upsample):
            x = stage[1](stage[0](x, history), history)
        x = x.view(-1, batch, x.shape[1]).permute(1, 2, 0).contiguous()
        for module in decoder.decoder:
            x = self._module(module, x)
        samples: Tensor = x[:, 0]
        return samples

    def _module(self, module: nn.Module, x: Tensor) -> Tensor:
        """x [B, channels, T] through one module of the upper decoder."""
        if isinstance(module, Snake):
            return self.bend(x, module.alpha.exp()[None, :, None], (1 / (module.beta.exp() + 1e-9))[None, :, None])
        if isinstance(module, CausalConv):
            return causal(module, x)
        if isinstance(module, CausalUpsample):
            return upsampled(module, x)
        if isinstance(module, ResidualUnit):
            units = (module.act1, module.conv1, module.act2, module.conv2)
            return x + self._chain(units, x)
        assert isinstance(module, DecoderBlock), f"the decoder has a module unknown here: {type(module).__name__}"
        return self._chain(cast(Iterable[nn.Module], module.block), x)

    def _chain(self, modules: Iterable[nn.Module], x: Tensor) -> Tensor:
        for module in modules:
            x = self._module(module, x)
        return x


def causal(module: CausalConv, x: Tensor) -> Tensor:
    """The convolution with silence before the first column."""
    conv, dilation = module.conv, module._dilation
    before = (conv.weight.shape[-1] - 1) * dilation
    return F.conv1d(F.pad(x, (before, 0)), conv.weight, conv.bias, dilation=dilation)


def upsampled(module: CausalUpsample, x: Tensor) -> Tensor:
    """The transposed convolution, without what lies beyond the end of its input."""
    conv, rate = module.conv, module._rate
    return F.conv_transpose1d(x, conv.weight, conv.bias, stride=rate)[..., : x.shape[-1] * rate]
