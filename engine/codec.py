"""The codec's decoder: frames of codes become samples, for many streams at once, each at its own pace.

It does not know who listens or which model chose the codes. It is the decoder of Qwen3-TTS-Tokenizer-12Hz (model card
and checkpoint of that name), made exactly incremental: no frame is decoded twice and none is approximated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.codec_blocks import KERNEL, CausalConv, CausalUpsample, ConvNeXt, DecoderBlock, History, Snake
from engine.codec_transformer import SlidingTransformer
from engine.config import Section
from engine.prepared import Prepared
from engine.transformer import LayersConfig, read_layers

UNUSED = ("*quantizer.rvq_first.input_proj.weight", "*quantizer.rvq_rest.input_proj.weight")
"""Name patterns of decoder tensors that only encoding reads."""
MAX_CODEBOOKS = MAX_RATE = 1024


@dataclass(frozen=True, slots=True)
class CodecConfig(LayersConfig):
    """The dimensions of a decoder, as its checkpoint says; those of a stack of layers are its transformer's."""

    num_codebooks: int
    codebook_size: int
    codebook_dim: int
    latent_dim: int
    decoder_dim: int
    sliding_window: int
    """Frames that a frame sees in the transformer, itself included."""
    upsampling_ratios: tuple[int, ...]
    upsample_rates: tuple[int, ...]

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> CodecConfig:
        """Reads an audio_tokenizer's `decoder_config`. Raises CheckpointError, also on a foreign kind."""
        d = Section.of(d, "decoder_config")
        only = {"num_semantic_quantizers": 1, "num_key_value_heads": d.integer("num_attention_heads")}
        d.require(only)
        upsample_rates = d.integers("upsample_rates", high=MAX_RATE)
        return cls(
            **read_layers(Section.of(only | d, d.where)),
            codebook_size=d.integer("codebook_size"),
            codebook_dim=d.integer("codebook_dim", low=2),
            latent_dim=d.integer("latent_dim"),
            decoder_dim=d.integer("decoder_dim", low=2 ** len(upsample_rates)),  # each stage halves it
            sliding_window=d.integer("sliding_window"),
            num_codebooks=d.integer("num_quantizers", low=2, high=MAX_CODEBOOKS),
            upsampling_ratios=d.integers("upsampling_ratios", high=MAX_RATE),
            upsample_rates=upsample_rates,
        )

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.upsampling_ratios + self.upsample_rates)


@dataclass(frozen=True, slots=True)
class CodecState:
    """What the decoder remembers of its streams, one a slot, updated in place. Slot 0 belongs to nobody.

    columns [slots, floats] float32: the last input columns of every place that looks back, one place after the other;
    frames [slots] int64: how many frames the stream has had.
    """

    columns: Tensor
    frames: Tensor

    def reset(self, slots: Tensor) -> None:
        """Begins a new stream in each of these slots, int64 [n]."""
        self.columns.index_fill_(0, slots, 0)
        self.frames.index_fill_(0, slots, 0)

    def recall(self, slots: Tensor) -> History:
        """The histories of these slots, int64 [B]."""
        return History(self.columns.index_select(0, slots), self.frames.index_select(0, slots))

    def keep(self, slots: Tensor, history: History, num_frames: int) -> None:
        """Stores what the streams have become after `num_frames` more frames."""
        self.columns.index_copy_(0, slots, history.columns)
        self.frames.index_copy_(0, slots, history.frames + num_frames)


class Codebook(nn.Module):
    """Running sums of the vectors that were given each code, and how many there were."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.embedding_sum = nn.Parameter(torch.zeros(size, width))
        self.cluster_usage = nn.Parameter(torch.ones(size), requires_grad=False)

    def entries(self) -> Tensor:
        """[size, width]: the mean vector of each code; codes that were never used stay finite."""
        return means(self.embedding_sum, self.cluster_usage)


def means(sums: Tensor, usage: Tensor) -> Tensor:
    """sums [size, width] of as many vectors as usage [size] says -> [size, width]."""
    return sums / usage.clamp(min=1e-5)[:, None]


class QuantizerLayer(nn.Module):
    """One codebook, under the name that the checkpoint gives it."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self._codebook = Codebook(size, width)


class QuantizerStack(nn.Module):
    """Codebooks whose entries add up, under the names that the checkpoint gives them."""

    def __init__(self, num_codebooks: int, size: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(QuantizerLayer(size, width) for _ in range(num_codebooks))

    def entries(self) -> Tensor:
        """[num_codebooks * size, width]"""
        return torch.cat([layer._codebook.entries() for layer in cast(Iterable[QuantizerLayer], self.layers)])


class ResidualQuantizer(nn.Module):
    """A stack of codebooks and the projection of what its entries add up to."""

    def __init__(self, config: CodecConfig, num_codebooks: int) -> None:
        super().__init__()
        width = config.codebook_dim // 2
        self.vq = QuantizerStack(num_codebooks, config.codebook_size, width)
        self.output_proj = nn.Conv1d(width, config.codebook_dim, 1, bias=False)

    def entries(self) -> Tensor:
        """[num_codebooks * codebook_size, codebook_dim]: all entries, projected."""
        return F.linear(self.vq.entries(), self.output_proj.weight[..., 0])


class Quantizer(Prepared[Tensor]):
    """Codes to vectors: the first codebook and the residual ones have a projection each."""

    offsets: Tensor

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.rvq_first = ResidualQuantizer(config, 1)
        self.rvq_rest = ResidualQuantizer(config, config.num_codebooks - 1)
        offsets = torch.arange(config.num_codebooks, device="cpu") * config.codebook_size
        self.register_buffer("offsets", offsets, persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        """codes [..., K] int64 -> [..., codebook_dim]."""
        return F.embedding(codes + self.offsets, self.prepared()).sum(-2)

    def _prepare(self) -> Tensor:
        """[K * codebook_size, codebook_dim]"""
        return torch.cat((self.rvq_first.entries(), self.rvq_rest.entries()))


class CodecDecoder(nn.Module):
    """Codes to samples in [-1, 1], float32 only. Its parameters are named as in the checkpoint below `decoder.`.

    In eval mode what is derived from the parameters is kept, see engine.prepared.
    """

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.quantizer = Quantizer(config)
        self.pre_conv = CausalConv(config.codebook_dim, config.latent_dim, 3)
        self.pre_transformer = SlidingTransformer(config, config.latent_dim, config.sliding_window)
        width = config.latent_dim
        self.upsample = nn.ModuleList(
            nn.ModuleList((CausalUpsample(width, width, rate, rate), ConvNeXt(width)))
            for rate in config.upsampling_ratios
        )
        widths = [config.decoder_dim >> halvings for halvings in range(len(config.upsample_rates) + 1)]
        self.decoder = nn.ModuleList(
            (
                CausalConv(config.latent_dim, widths[0], KERNEL),
                *map(DecoderBlock, widths, widths[1:], config.upsample_rates),
                Snake(widths[-1]),
                CausalConv(widths[-1], 1, KERNEL),
            )
        )

    def init_state(self, num_slots: int, device: torch.device | str) -> CodecState:
        """State for `num_slots` streams that begin, the nobody of slot 0 among them."""
        return CodecState(
            columns=torch.zeros(num_slots, self.memory, device=device),
            frames=torch.zeros(num_slots, dtype=torch.int64, device=device),
        )

    @property
    def memory(self) -> int:
        """Floats that a stream's past takes."""
        return sum(getattr(module, "memory", 0) for module in self.modules() if module is not self)

    def forward(self, codes: Tensor) -> Tensor:
        """Whole utterances: codes [B, K, T] int64 -> [B, T * samples_per_frame]."""
        return self._samples(codes.permute(2, 0, 1), self._beginning(codes))

    def step(self, codes: Tensor, state: CodecState, slots: Tensor) -> Tensor:
        """The next T frames of some streams: codes [B, T, K] int64, slots [B] int64 -> [B, T * samples_per_frame].

        Equals what forward gives for these frames of the whole utterance. Slots other than 0 occur once.
        """
        history = state.recall(slots)
        samples = self._samples(codes.transpose(0, 1), history)
        state.keep(slots, history, codes.shape[1])
        return samples

    def stages(self, codes: Tensor) -> Iterator[tuple[str, Tensor]]:
        """What forward computes on its way: codes [B, K, T] -> pairs of a name and [B, channels, columns].

        Names in order: quantized, pre_conv, transformer_out, upsample{i}.tconv, upsample{i}.out, decoder{i}.out;
        the last is the samples before they are clipped.
        """
        history = self._beginning(codes)
        for name, x in self._stages(codes.permute(2, 0, 1), history):
            yield name, x.view(-1, history.batch, x.shape[1]).permute(1, 2, 0)

    def _beginning(self, codes: Tensor) -> History:
        state = self.init_state(len(codes), codes.device)
        return History(state.columns, state.frames)

    def _samples(self, codes: Tensor, history: History) -> Tensor:
        """codes [T, B, K] -> [B, T * samples_per_frame]."""
        for _, x in self._stages(codes, history):
            last = x
        return last.view(-1, history.batch).t().clamp(-1, 1)

    def _stages(self, codes: Tensor, history: History) -> Iterator[tuple[str, Tensor]]:
        """codes [T, B, K] -> names and activations [columns * B, channels]."""
        x = self.quantizer(codes.flatten(0, 1))
        yield "quantized", x
        x = self.pre_conv(x, history)
        yield "pre_conv", x
        x = self.pre_transformer(x, history)
        yield "transformer_out", x
        for index, stage in enumerate(cast(Iterable[nn.ModuleList], self.upsample)):
            x = stage[0](x, history)
            yield f"upsample{index}.tconv", x
            x = stage[1](x, history)
            yield f"upsample{index}.out", x
        for index, module in enumerate(self.decoder):
            x = module(x) if isinstance(module, Snake) else module(x, history)
            yield f"decoder{index}.out", x
