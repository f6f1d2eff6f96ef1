"""The codec's encoder: a recording becomes frames of codes, piece by piece, for several recordings at once.

It does not know where recordings come from or who shall speak like them. It is the encoder of Qwen3-TTS-Tokenizer-12Hz
(model card and checkpoint of that name), which is Mimi's (arXiv:2410.00037), made exactly incremental.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from engine.codec import MAX_CODEBOOKS, MAX_RATE, means
from engine.codec_blocks import CausalConv, CausalDownsample, FullHistory
from engine.codec_transformer import CausalTransformer
from engine.config import Section
from engine.core import RECORDED_RATE, ModelSpec
from engine.prepared import Prepared
from engine.transformer import MAX_LAYERS, LayersConfig, read_dimensions
from engine.weights import CheckpointError, StoredTensor, outlines, stored
from engine.weights import load as load_weights

ONLY = {
    "audio_channels": 1,
    "num_residual_layers": 1,
    "pad_mode": "constant",
    "use_causal_conv": True,
    "use_conv_shortcut": False,
    "hidden_act": "gelu",
    "attention_bias": False,
    "num_semantic_quantizers": 1,
}
"""Options with one value here. `sliding_window` is not read: the official code attends to all that came before."""
PIECE_FRAMES = 12
"""Frames that `rows` takes at once: about a second."""


@dataclass(frozen=True, slots=True)
class EncoderConfig(LayersConfig):
    """The dimensions of an encoder, as its checkpoint says; those of a stack of layers are its transformer's."""

    num_codebooks: int
    """Those that are used; the checkpoint has more."""
    num_stored_codebooks: int
    codebook_size: int
    codebook_dim: int
    num_filters: int
    compress: int
    kernel: int
    residual_kernel: int
    last_kernel: int
    rates: tuple[int, ...]
    """Strides of the convolutions, in the order in which they run."""
    last_rate: int
    """Columns of the transformer that are one frame."""
    sample_rate: int

    @classmethod
    def from_dict(cls, audio: Mapping[str, Any]) -> EncoderConfig:
        """Reads an audio_tokenizer's config. Raises CheckpointError, also on a foreign kind."""
        audio = Section.of(audio, "audio_tokenizer")
        d = audio.section("encoder_config")
        heads, num_stored = d.integer("num_attention_heads"), d.integer("num_quantizers", low=2, high=MAX_CODEBOOKS)
        d.require(ONLY | {"num_key_value_heads": heads})
        ratios = d.integers("upsampling_ratios", high=MAX_RATE)
        samples, columns = audio.integer("encode_downsample_rate"), math.prod(ratios)
        if samples % columns:
            raise audio.misfit("encode_downsample_rate", f"a multiple of the upsampling_ratios' product {columns}")
        compress = d.integer("compress")
        filters = d.integer("num_filters")
        if filters % compress:
            raise d.misfit("compress", f"a divisor of num_filters = {filters}")
        same = {"num_key_value_heads": heads, "rms_norm_eps": d.number("norm_eps")}
        head_dim = {"head_dim": d.integer("head_dim", default=d.integer("hidden_size") // heads)}
        return cls(
            **read_dimensions(Section.of(d | same | head_dim, d.where)),
            num_layers=d.integer("num_hidden_layers", high=MAX_LAYERS),
            rope=d,
            num_codebooks=audio.integer("encoder_valid_num_quantizers", low=2, high=num_stored),
            num_stored_codebooks=num_stored,
            codebook_size=d.integer("codebook_size"),
            codebook_dim=d.integer("codebook_dim"),
            num_filters=filters,
            compress=compress,
            kernel=d.integer("kernel_size", high=MAX_RATE),
            residual_kernel=d.integer("residual_kernel_size", high=MAX_RATE),
            last_kernel=d.integer("last_kernel_size", high=MAX_RATE),
            rates=ratios[::-1],
            last_rate=samples // columns,
            sample_rate=audio.integer("input_sample_rate", low=8000, high=192_000),
        )

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.rates) * self.last_rate

    def num_frames(self, num_samples: int) -> int:
        """Frames that so many samples make: the last one may be partial."""
        return -(-num_samples // self.samples_per_frame)


@dataclass(slots=True)
class EncoderState:
    """What the encoder remembers of B recordings that it began together. Steps replace and update what is here.

    rest [B, samples]: those that make no whole frame yet;
    columns [B, floats]: the last input columns of every place that looks a little back, one place after the other;
    seen: keys and values of all columns so far, a matrix [S * B, width] each, of each layer;
    frames [B] int64: how many frames each recording has had.
    """

    rest: Tensor
    columns: Tensor
    seen: list[Tensor]
    frames: Tensor

    @classmethod
    def joined(cls, states: Sequence[EncoderState]) -> EncoderState:
        """The states of single recordings that have had equally many frames, as one of them all."""
        if len(states) == 1:
            return states[0]
        seen = [torch.stack(places, 1).flatten(0, 1) for places in zip(*(state.seen for state in states), strict=True)]
        return cls(
            torch.cat([state.rest for state in states]),
            torch.cat([state.columns for state in states]),
            seen,
            torch.cat([state.frames for state in states]),
        )

    def parted(self) -> list[EncoderState]:
        """The state of each recording by itself."""
        if len(self.frames) == 1:
            return [self]
        batch = len(self.frames)
        places = [x.view(-1, batch, x.shape[1]) for x in self.seen]
        return [
            EncoderState(
                self.rest[i : i + 1].clone(),
                self.columns[i : i + 1].clone(),
                [place[:, i].contiguous() for place in places],
                self.frames[i : i + 1].clone(),
            )
            for i in range(batch)
        ]

    def keep_first(self, batch: int) -> None:
        """Forgets all but the first so many recordings."""
        before = len(self.frames)
        if batch == before:
            return
        self.rest, self.columns, self.frames = self.rest[:batch], self.columns[:batch], self.frames[:batch]
        self.seen = [x.view(-1, before, x.shape[1])[:, :batch].reshape(-1, x.shape[1]) for x in self.seen]


class EncoderCodebook(nn.Module):
    """Running sums of the vectors that were given each code, and how many there were."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.embed_sum = nn.Parameter(torch.zeros(size, width))
        self.cluster_usage = nn.Parameter(torch.ones(size), requires_grad=False)


class NearestLayer(nn.Module):
    """One codebook, under the name that the checkpoint gives it."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.codebook = EncoderCodebook(size, width)


class NearestStack(Prepared[tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]]):
    """Codebooks that each name, by the nearest entry, what those before them have left of a projected vector."""

    def __init__(self, config: EncoderConfig, num_codebooks: int) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(config.hidden_size, config.codebook_dim, 1, bias=False)
        books = (NearestLayer(config.codebook_size, config.codebook_dim) for _ in range(num_codebooks))
        self.layers = nn.ModuleList(books)

    def forward(self, x: Tensor) -> Tensor:
        """x [N, hidden] -> codes [N, num_codebooks] int64."""
        project, books = self.prepared()
        left, codes = torch.mm(x, project), []
        for entries, columns, halves in books:
            codes.append(torch.addmm(halves, left, columns).argmax(1))
            left = left - F.embedding(codes[-1], entries)
        return torch.stack(codes, 1)

    def _prepare(self) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
        """The projection [hidden, width]; of each book its entries, these as columns, and minus half their squares:
        the nearest entry e to x has the largest x * e - e * e / 2."""
        books = [layer.codebook for layer in cast(Iterable[NearestLayer], self.layers)]
        entries = [means(book.embed_sum, book.cluster_usage) for book in books]
        return self.input_proj.weight[..., 0].t(), [(e, e.t(), e.square().sum(1) / -2) for e in entries]


class NearestQuantizer(nn.Module):
    """Vectors to codes: the first codebook and the residual ones have a projection each, and all start afresh."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.semantic_residual_vector_quantizer = NearestStack(config, 1)
        self.acoustic_residual_vector_quantizer = NearestStack(config, config.num_codebooks - 1)

    def forward(self, x: Tensor) -> Tensor:
        """x [N, hidden] -> codes [N, K] int64."""
        stacks = self.semantic_residual_vector_quantizer, self.acoustic_residual_vector_quantizer
        return torch.cat([stack(x) for stack in stacks], 1)


class EncoderUnit(nn.Module):
    """A convolution to fewer channels and a mixing back, each behind an ELU, added to the input."""

    def __init__(self, config: EncoderConfig, channels: int) -> None:
        super().__init__()
        inner = channels // config.compress
        narrow, widen = CausalConv(channels, inner, config.residual_kernel), CausalConv(inner, channels, 1)
        self.block = nn.ModuleList((nn.ELU(), narrow, nn.ELU(), widen))

    def forward(self, x: Tensor, history: FullHistory) -> Tensor:
        """x [T * B, channels] -> the same shape."""
        _, narrow, _, widen = self.block
        branch: Tensor = widen(F.elu_(narrow(F.elu(x), history)), history)
        return branch.add_(x)


class Seanet(nn.Module):
    """Samples to columns: a convolution, then a unit and a downsampling to twice the channels for each rate, then a
    convolution (arXiv:2210.13438)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.num_filters
        self.layers = nn.ModuleList([CausalConv(1, width, config.kernel)])
        for rate in config.rates:
            down = CausalDownsample(width, 2 * width, 2 * rate, rate)
            self.layers.extend((EncoderUnit(config, width), nn.ELU(), down))
            width *= 2
        self.layers.extend((nn.ELU(), CausalConv(width, config.hidden_size, config.last_kernel)))

    def forward(self, x: Tensor, history: FullHistory, ends: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x [T * B, 1] and where in it recordings end -> [T / product of rates * B, hidden] and where they end there.

        What lies behind an end must not be seen by a convolution that takes it for the rest of a partial column.
        """
        for layer in self.layers:
            if isinstance(layer, nn.ELU):
                x = F.elu_(x)
                continue
            if isinstance(layer, CausalDownsample) and ends is not None:
                x = silenced(x, ends)
                ends = -(-ends // layer.rate)
            x = layer(x, history)
        return x, ends


def silenced(x: Tensor, ends: Tensor) -> Tensor:
    """x [T * B, C] with zeros behind each recording's end [B]."""
    columns = x.view(-1, len(ends), x.shape[1])
    behind = torch.arange(len(columns), device=x.device)[:, None] >= ends
    return columns.masked_fill_(behind[..., None], 0).view_as(x)


def held(x: Tensor, ends: Tensor) -> Tensor:
    """x [T * B, C] whose column before each recording's end [B] repeats behind it."""
    columns = x.view(-1, len(ends), x.shape[1])
    last = torch.arange(len(columns), device=x.device)[:, None].minimum(ends - 1)
    return columns.gather(0, last[..., None].expand_as(columns)).view_as(x)


class CodecEncoder(nn.Module):
    """Samples to codes, float32 only. Its parameters are named as in the checkpoint below `encoder.`.

    B recordings, K codebooks. In eval mode what is derived from the parameters is kept, see engine.prepared.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width, rate = config.hidden_size, config.last_rate
        self.encoder = Seanet(config)
        self.encoder_transformer = CausalTransformer(config, rate)
        self.downsample = CausalDownsample(width, width, 2 * rate, rate, bias=False, repeat_first=True)
        self.quantizer = NearestQuantizer(config)

    def init_state(self, batch: int, device: torch.device | str) -> EncoderState:
        """State for so many recordings that begin."""
        return EncoderState(
            rest=torch.zeros(batch, 0, device=device),
            columns=torch.zeros(batch, self.memory, device=device),
            seen=[],
            frames=torch.zeros(batch, dtype=torch.int64, device=device),
        )

    @property
    def memory(self) -> int:
        """Floats that a recording's past takes, beside keys and values."""
        return sum(getattr(module, "memory", 0) for module in self.modules() if module is not self)

    def forward(self, samples: Tensor) -> Tensor:
        """Whole recordings of one length: samples [B, N] float32 -> codes [B, ceil(N / samples_per_frame), K] int64."""
        return self.step(samples, self.init_state(len(samples), samples.device), last=True)

    def step(self, samples: Tensor, state: EncoderState, last: bool = False) -> Tensor:
        """The next samples [B, N], N any number -> codes [B, T, K] of the frames that they complete.

        The last ones complete their frame, however short it is; the state is of no use behind it.
        """
        return self.codes(self.latents(samples, state, last))

    def latents(self, samples: Tensor, state: EncoderState, last: bool = False) -> Tensor:
        """As `step`, but what the codes are chosen for: [B, T, hidden]."""
        samples = torch.cat((state.rest, samples), 1)
        size = self.config.samples_per_frame
        extra = samples.shape[1] % size
        if not (last and extra):
            whole, state.rest = torch.split(samples, [samples.shape[1] - extra, extra], 1)
            return self._latents(whole, state, None)
        ends = torch.full((len(samples),), samples.shape[1], device=samples.device)
        return self._latents(F.pad(samples, (0, size - extra)), state, ends)

    def codes(self, latents: Tensor) -> Tensor:
        """latents [B, T, hidden] -> codes [B, T, K] int64."""
        codes: Tensor = self.quantizer(latents.flatten(0, 1))
        return codes.view(*latents.shape[:2], self.config.num_codebooks)

    def piece(self, samples: Tensor, lengths: Sequence[int], state: EncoderState) -> Tensor:
        """The next whole frames [B, T * samples_per_frame] -> codes [B, T, K], of which a recording that ends in them,
        after so many samples, has as many as these make; its state is of no use behind it."""
        short = min(lengths) < samples.shape[1]
        return self.codes(
            self._latents(samples, state, torch.tensor(lengths, device=samples.device) if short else None)
        )

    def rows(self, recordings: Sequence[Tensor], piece_frames: int = PIECE_FRAMES) -> list[Tensor]:
        """Recordings [N] float32 of any lengths, each at least a sample -> the codes [T, K] int64 of each.

        Those that last are encoded together, about a second at a time: with their length grow keys and values, and no
        activations. A row equals what forward gives for it alone.
        """
        lengths = [len(recording) for recording in recordings]
        if not lengths:
            return []
        if not all(lengths):
            raise ValueError(f"a recording must have at least one sample, got {lengths}")
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        pieces = self._pieces([recordings[row] for row in order], piece_frames)
        parts: list[list[Tensor]] = [[] for _ in order]
        for codes in pieces:
            for row, part in zip(order, codes, strict=False):  # the shorter ones have ended
                parts[row].append(part)
        whole = map(torch.cat, parts)
        return [codes[: self.config.num_frames(length)] for codes, length in zip(whole, lengths, strict=True)]

    def _pieces(self, recordings: list[Tensor], piece_frames: int) -> Iterator[Tensor]:
        """Recordings, the longest first -> codes [B, T, K] of each piece of those that have not ended."""
        size, lengths = self.config.samples_per_frame, [len(recording) for recording in recordings]
        padded = pad_sequence(recordings, batch_first=True)
        padded = F.pad(padded, (0, -padded.shape[1] % size))
        state = self.init_state(len(padded), padded.device)
        for start in range(0, padded.shape[1], piece_frames * size):
            left = [length - start for length in lengths if length > start]
            piece = padded[: len(left), start : start + piece_frames * size]
            state.keep_first(len(left))
            yield self.piece(piece, left, state)

    def stages(self, samples: Tensor) -> Iterator[tuple[str, Tensor]]:
        """What forward computes on its way: samples [B, N] -> pairs of a name and [B, channels, columns].

        Names in order: seanet_out, transformer_out, downsample_out.
        """
        size = self.config.samples_per_frame
        state = self.init_state(len(samples), samples.device)
        ends = torch.full((len(samples),), samples.shape[1], device=samples.device)
        history = FullHistory(state.columns, state.frames, state.seen)
        for name, x, end in self._stages(F.pad(samples, (0, -samples.shape[1] % size)), history, ends):
            columns = x.view(-1, history.batch, x.shape[1]).permute(1, 2, 0)
            yield name, columns if end is None else columns[..., : int(end[0])]

    def _latents(self, samples: Tensor, state: EncoderState, ends: Tensor | None) -> Tensor:
        """samples [B, T * samples_per_frame], ends [B] of recordings in them, if any -> [B, T, hidden]."""
        if samples.shape[1] == 0:
            return samples.new_zeros(len(samples), 0, self.config.hidden_size)
        history = FullHistory(state.columns, state.frames, state.seen)
        for _, x, _ in self._stages(samples, history, ends):
            last = x
        latents = last.view(-1, history.batch, last.shape[1]).transpose(0, 1)
        state.frames = state.frames + latents.shape[1]
        return latents

    def _stages(
        self, samples: Tensor, history: FullHistory, ends: Tensor | None
    ) -> Iterator[tuple[str, Tensor, Tensor | None]]:
        """Names, activations [columns * B, channels] and where in them recordings end."""
        x, ends = self.encoder(samples.t().reshape(-1, 1), history, ends)
        yield "seanet_out", x, ends
        x = self.encoder_transformer(x, history)
        yield "transformer_out", x, ends
        x = self.downsample(x if ends is None else held(x, ends), history)
        yield "downsample_out", x, None if ends is None else -(-ends // self.downsample.rate)


def skipped(config: EncoderConfig) -> tuple[str, ...]:
    """Name patterns of stored encoder tensors that choosing the used codes does not read."""
    acoustic = "encoder.quantizer.acoustic_residual_vector_quantizer.layers"
    unused = range(config.num_codebooks - 1, config.num_stored_codebooks - 1)
    return ("*.codebook.initialized", "*.output_proj.weight", *(f"{acoustic}.{book}.*" for book in unused))


def load(folder: Path, *, device: torch.device | str) -> CodecEncoder:
    """The encoder in a checkpoint folder of Breeze TTS 2. Raises CheckpointError, also where there is none."""
    codec = folder / "audio_tokenizer"
    encoder = find(Section.read(codec / "config.json"), stored(codec), device=device)
    if encoder is None:
        raise CheckpointError(
            f"{codec}: expected the codec's encoder, found no tensor encoder.*; this voice cannot take a recording as "
            "its reference: give codes, or a checkpoint folder with the encoder"
        )
    return encoder


def encodes(encoder: CodecEncoder | None, spec: ModelSpec) -> bool:
    """Whether there is an encoder whose frames the voice can speak, and that hears recordings as they come."""
    if encoder is None or spec.sample_rate != RECORDED_RATE:
        return False
    same = encoder.config.samples_per_frame, encoder.config.sample_rate, encoder.config.num_codebooks
    return same == (spec.samples_per_frame, spec.sample_rate, spec.num_codebooks)


def find(audio: Section, tensors: Mapping[str, StoredTensor], *, device: torch.device | str) -> CodecEncoder | None:
    """The encoder among a codec's tensors, with the codec's config, if it is there. Raises CheckpointError."""
    if not any(name.startswith("encoder.") for name in tensors):
        return None
    config = EncoderConfig.from_dict(audio)
    with outlines():
        encoder = CodecEncoder(config)
    skip = skipped(config)
    return load_weights(encoder, tensors, "encoder.", dtype=torch.float32, device=device, skip=skip).eval()
