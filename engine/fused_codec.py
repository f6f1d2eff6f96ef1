"""The codec's decoder as fused Triton kernels: one a convolution, with its activation and its residual in it.

It does not know graphs or who listens; its streams' state is laid out as engine.codec's, so that either may take the
next step. Activations are rows [columns * streams, channels] as there. Every place that looks back has its input in one
buffer whose first rows are the past: the convolution before it writes behind them, so that nothing is joined, and a
convolution is a product whose rows overlap (implicit GEMM). Convolutions run on the tensor cores, in TF32 as cuDNN's do
by default, or in three TF32 products that are as exact as float32; other products always in the latter. What TF32
products read is rounded when it is stored, as the tensor cores would cut it, always toward zero: over the decoder's 40
products that adds up to 2 % of the signal instead of 0.1 %.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor, nn

from engine.codec import CodecDecoder, CodecState
from engine.codec_blocks import CausalConv, CausalUpsample, ConvNeXt, DecoderBlock, ResidualUnit, Snake, bias_of
from engine.fused import (
    PLAIN,
    Launch,
    LayerRows,
    Plan,
    Stack,
    Tiles,
    _await,
    _release,
    finish,
    half_turns,
    next_norms,
    options,
    padded,
    size_2,
    take,
)

EXACT = "tf32x3"
"""How products are computed that PyTorch computes in float32 unless told otherwise."""

# ---- kernels ----


@triton.jit
def _sine_squared(x):
    """sin(x)^2 to float32's precision for |x| up to thousands, without the branch that tl.sin has for larger ones."""
    turns = tl.floor(x * 0.3183098861837907 + 0.5)  # sin^2 has the period pi, here in two parts
    r = (x - turns * 3.140625) - turns * 9.67653589793116e-4
    square = r * r
    series = -2.505210838544172e-8 * square + 2.7557319223985893e-6  # Taylor's: the next term is below 6e-8
    series = series * square - 1.984126984126984e-4
    series = series * square + 8.333333333333333e-3
    series = series * square - 0.16666666666666666
    sine = series * square * r + r
    return sine * sine


@triton.jit
def _to_tf32(x):
    """Rounded to the 10 bits that the tensor cores read: they would cut the others off, always toward zero."""
    bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return bits.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["count", "B"])
def _conv_kernel(
    x,
    w,
    bias,
    residual,
    out,
    act,
    frequency,
    size,
    count,
    B,
    C: tl.constexpr,
    N: tl.constexpr,
    TAPS: tl.constexpr,
    DILATION: tl.constexpr,
    RATE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    KEEP: tl.constexpr,
    SNAKE: tl.constexpr,
    GELU: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    ROUND_OUT: tl.constexpr,
    ROUND_ACT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out[n] = bias + sum over taps of x[n + tap * DILATION * B] @ w[tap]^T, w [TAPS, RATE * N, C]; then what follows.

    With RATE > 1 the outputs of a row are RATE columns in time.
    """
    BLOCKS: tl.constexpr = (C + BK - 1) // BK
    OUTPUTS: tl.constexpr = RATE * N
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    row = tl.minimum(rows, count - 1).to(tl.int64)
    column = tl.minimum(columns, OUTPUTS - 1)
    x_at = x + row[:, None] * C + k[None, :]
    w_at = w + column[None, :] * C + k[:, None]
    shift = tl.load(bias + column)
    _await(OVERLAP)
    total = tl.zeros([BM, BN], tl.float32)
    for step in range(0, TAPS * BLOCKS):
        tap, block = step // BLOCKS, step % BLOCKS
        x_there = x_at + (tap * (DILATION * B * C) + block * BK)
        w_there = w_at + (tap * (OUTPUTS * C) + block * BK)
        if EVEN:
            a, b = tl.load(x_there), tl.load(w_there)
        else:
            inside = block * BK + k < C
            a, b = tl.load(x_there, mask=inside[None, :], other=0.0), tl.load(w_there, mask=inside[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    _release(OVERLAP)
    total += shift[None, :]
    if RATE > 1:
        place = (rows // B * RATE)[:, None] * B + (columns // N * B)[None, :] + (rows % B)[:, None]
        channel = columns % N
    else:
        place = rows[:, None] + tl.zeros_like(columns)[None, :]
        channel = columns
    at = place.to(tl.int64) * N + channel[None, :]
    there = (rows < count)[:, None] & (columns < OUTPUTS)[None, :]
    if RESIDUAL:
        total += tl.load(residual + at, mask=there, other=0.0)
    if GELU:
        total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    if KEEP:
        tl.store(out + at, _to_tf32(total) if ROUND_OUT else total, mask=there)
    if SNAKE:
        channel = tl.minimum(channel, N - 1)
        turned = _sine_squared(total * tl.load(frequency + channel)[None, :])
        total += turned * tl.load(size + channel)[None, :]
        tl.store(act + at, _to_tf32(total) if ROUND_ACT else total, mask=there)


@triton.jit
def _quantise_kernel(
    codes,
    table,
    out,
    B: tl.constexpr,
    T: tl.constexpr,
    BOOKS: tl.constexpr,
    SIZE: tl.constexpr,
    H: tl.constexpr,
    H_2: tl.constexpr,
    ROUND: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """codes [B, T, BOOKS] -> rows of out [T * B, H]: the sum of the entries."""
    row = tl.program_id(0)
    h = tl.arange(0, H_2)
    at = codes + ((row % B) * T + row // B) * BOOKS
    total = tl.zeros([H_2], tl.float32)
    _await(OVERLAP)
    for book in tl.static_range(BOOKS):
        entry = tl.load(at + book) + book * SIZE
        total += tl.load(table + entry * H + h, mask=h < H, other=0.0)
    _release(OVERLAP)
    tl.store(out + row * H + h, _to_tf32(total) if ROUND else total, mask=h < H)


@triton.jit
def _remember_kernel(
    state,
    state_step,
    frames,
    slots,
    buffer,
    places,
    B: tl.constexpr,
    T: tl.constexpr,
    BLOCK: tl.constexpr,
    KEEP: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The pasts of all places, from the streams' state into the buffers, or with KEEP back as they are to be next.

    places [places, 5]: where in the state, where in the buffer, floats, channels, rows of a step over B.
    """
    _release(OVERLAP)
    stream, place, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = places + place * 5
    of_state, of_buffer, floats, channels = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    slot = tl.load(slots + stream)
    if block * BLOCK < floats:
        i = block * BLOCK + tl.arange(0, BLOCK)
        column, channel = i // channels, i % channels
        if KEEP:
            column += tl.load(at + 4)
        there = buffer + of_buffer + (column * B + stream) * channels + channel
        here = state + slot * state_step + of_state + i
        if KEEP:
            _await(OVERLAP)
            tl.store(here, tl.load(there, mask=i < floats, other=0.0), mask=i < floats)
        else:
            tl.store(there, tl.load(here, mask=i < floats, other=0.0), mask=i < floats)
    if KEEP:
        _await(OVERLAP)
        if (place == 0) & (block == 0):
            tl.store(frames + slot, tl.load(frames + slot) + T)


@triton.jit
def _slide_kernel(
    qkv,
    turns,
    state,
    state_step,
    of_keys,
    of_values,
    frames,
    slots,
    mixed,
    scale,
    B: tl.constexpr,
    T: tl.constexpr,
    T_2: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    OLD: tl.constexpr,
    OLD_2: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Attention of T new frames of a stream and head over themselves and the OLD frames before; turns keys in place."""
    D: tl.constexpr = 2 * HALF
    stream, head = tl.program_id(0), tl.program_id(1)
    h, d, t, o = tl.arange(0, HALF), tl.arange(0, D), tl.arange(0, T_2), tl.arange(0, OLD_2)
    slot = tl.load(slots + stream)
    past = tl.load(frames + slot)
    new = (t < T)[:, None]
    cos = tl.load(turns + (past + t)[:, None] * D + h[None, :], mask=new, other=0.0)
    sin = tl.load(turns + (past + t)[:, None] * D + HALF + h[None, :], mask=new, other=0.0)
    old_at = state + slot * state_step + o[:, None] * (HEADS * D) + head * D + d[None, :]
    kept = (o < OLD)[:, None]
    old_keys = tl.load(old_at + of_keys, mask=kept, other=0.0)
    old_values = tl.load(old_at + of_values, mask=kept, other=0.0)
    base = qkv + (t[:, None] * B + stream) * (3 * HEADS * D) + head * D
    _await(OVERLAP)
    q_low, q_high = (
        tl.load(base + h[None, :], mask=new, other=0.0),
        tl.load(base + HALF + h[None, :], mask=new, other=0.0),
    )
    k_at = base + HEADS * D + h[None, :]
    k_low, k_high = tl.load(k_at, mask=new, other=0.0), tl.load(k_at + HALF, mask=new, other=0.0)
    v = tl.load(base + 2 * HEADS * D + d[None, :], mask=new, other=0.0)
    q_low, q_high = q_low * cos - q_high * sin, q_high * cos + q_low * sin
    k_low, k_high = k_low * cos - k_high * sin, k_high * cos + k_low * sin
    tl.store(k_at, k_low, mask=new)
    tl.store(k_at + HALF, k_high, mask=new)
    q = tl.reshape(tl.permute(tl.join(q_low, q_high), (0, 2, 1)), (T_2, D))
    k = tl.reshape(tl.permute(tl.join(k_low, k_high), (0, 2, 1)), (T_2, D))
    ages = t[:, None] + OLD - o[None, :]
    far = tl.minimum(past + t, OLD)[:, None]
    seen = (ages <= far) & (o < OLD)[None, :]
    older = tl.where(seen, tl.dot(q, tl.trans(old_keys), input_precision=PRECISION) * scale, float("-inf"))
    apart = t[:, None] - t[None, :]
    own = (apart >= 0) & (apart <= OLD) & (t < T)[None, :]
    newer = tl.where(own, tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale, float("-inf"))
    top = tl.maximum(tl.maximum(tl.max(older, 1), tl.max(newer, 1)), -1e30)[:, None]
    older, newer = tl.exp(older - top), tl.exp(newer - top)
    total = tl.dot(older, old_values, input_precision=PRECISION)
    total = tl.dot(newer, v, total, input_precision=PRECISION) / (tl.sum(older, 1) + tl.sum(newer, 1))[:, None]
    _release(OVERLAP)
    tl.store(mixed + (t[:, None] * B + stream) * (HEADS * D) + head * D + d[None, :], total, mask=new)


@triton.jit
def _shift_kernel(
    qkv,
    qkv_step,
    state,
    state_step,
    of_first,
    slots,
    B: tl.constexpr,
    T: tl.constexpr,
    OLD: tl.constexpr,
    OLD_2: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Each layer's keys and values of the last OLD frames: the oldest T go, the new T come."""
    stream, part, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    o, c = tl.arange(0, OLD_2)[:, None], block * BLOCK + tl.arange(0, BLOCK)[None, :]
    slot = tl.load(slots + stream)
    at = state + slot * state_step + of_first + part * (OLD * WIDTH) + o * WIDTH + c
    _await(OVERLAP)
    stays = (o + T < OLD) & (c < WIDTH)
    comes = (o + T >= OLD) & (o < OLD) & (c < WIDTH)
    fresh = qkv + (part // 2) * qkv_step + ((o + T - OLD) * B + stream) * (3 * WIDTH) + (1 + part % 2) * WIDTH + c
    value = tl.load(at + T * WIDTH, mask=stays, other=0.0) + tl.load(fresh, mask=comes, other=0.0)
    tl.debug_barrier()  # the program owns all that it moves, and has read it now
    _release(OVERLAP)
    tl.store(at, value, mask=stays | comes)


@triton.jit
def _depthwise_kernel(
    x,
    w,
    bias,
    weight,
    shift,
    out,
    B: tl.constexpr,
    C: tl.constexpr,
    C_2: tl.constexpr,
    TAPS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A convolution of each channel by itself, w [TAPS, C], then a layer norm."""
    row = tl.program_id(0)
    c = tl.arange(0, C_2)
    inside = c < C
    total = tl.load(bias + c, mask=inside, other=0.0)
    scale, offset = tl.load(weight + c, mask=inside, other=0.0), tl.load(shift + c, mask=inside, other=0.0)
    _await(OVERLAP)
    for tap in tl.static_range(TAPS):
        there = tl.load(x + (row + tap * B) * C + c, mask=inside, other=0.0)
        total += there * tl.load(w + tap * C + c, mask=inside, other=0.0)
    centred = tl.where(inside, total - tl.sum(total, 0) / C, 0.0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred, 0) / C + 1e-6)
    _release(OVERLAP)
    tl.store(out + row * C + c, normed * scale + offset, mask=inside)


@triton.jit(do_not_specialize=["count"])
def _last_kernel(
    x,
    w,
    bias,
    out,
    count,
    B: tl.constexpr,
    C: tl.constexpr,
    C_2: tl.constexpr,
    TAPS: tl.constexpr,
    BM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The convolution to one channel, clipped: rows -> out [B, count // B]."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.arange(0, C_2)
    inside = c < C
    row = tl.minimum(rows, count - 1).to(tl.int64)
    _await(OVERLAP)
    sums = tl.zeros([BM, C_2], tl.float32)
    for tap in tl.static_range(TAPS):
        weight = tl.load(w + tap * C + c, mask=inside, other=0.0)
        sums += (
            tl.load(x + (row[:, None] + tap * B) * C + c[None, :], mask=inside[None, :], other=0.0) * weight[None, :]
        )
    value = tl.sum(sums, 1) + tl.load(bias)
    value = tl.minimum(tl.maximum(value, -1.0), 1.0)
    _release(OVERLAP)
    tl.store(out + (rows % B) * (count // B) + rows // B, value, mask=rows < count)


# ---- what is prepared ----


@dataclass(frozen=True, slots=True)
class Turn:
    """A Snake's frequency and size, a number a channel."""

    frequency: Tensor
    size: Tensor


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution laid out for the kernel."""

    weight: Tensor
    """[taps, rate * outputs, inputs]"""
    bias: Tensor
    """[rate * outputs]"""
    dilation: int = 1
    rate: int = 1
    linear: bool = False
    """Not a convolution in the checkpoint."""

    @property
    def columns(self) -> int:
        """That it looks back."""
        return (self.weight.shape[0] - 1) * self.dilation

    @property
    def outputs(self) -> int:
        return self.weight.shape[1] // self.rate

    @classmethod
    def of(cls, module: CausalConv | CausalUpsample, rounds: bool) -> Conv:
        kernel, bias = module.prepared()
        weight = kernel.transpose(1, 2).contiguous()
        weight = to_tf32(weight) if rounds else weight
        if isinstance(module, CausalUpsample):
            return cls(weight, bias.contiguous(), rate=module._rate)
        return cls(weight, bias.contiguous(), dilation=module._dilation)

    @classmethod
    def of_linear(cls, module: nn.Linear, scale: Tensor | None = None) -> Conv:
        """A linear layer, its outputs times `scale`."""
        weight, bias = module.weight.detach(), module.bias.detach()
        if scale is not None:
            weight, bias = weight * scale[:, None], bias * scale
        return cls(weight[None].contiguous(), bias.contiguous(), linear=True)


def to_tf32(x: Tensor) -> Tensor:
    """Rounded to TF32's 10 bits, halves away from zero."""
    return ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


def turn_of(snake: Snake) -> Turn:
    return Turn(*(part.contiguous() for part in snake.prepared()))


@dataclass(frozen=True, slots=True)
class ConvNeXtRows:
    """One upsampling stage between transformer and decoder."""

    up: Conv
    depthwise: Tensor
    """[taps, channels]"""
    depthwise_bias: Tensor
    norm: nn.LayerNorm
    widen: Conv
    narrow: Conv

    @classmethod
    def of(cls, stage: nn.ModuleList, rounds: bool) -> ConvNeXtRows:
        up, block = cast(CausalUpsample, stage[0]), cast(ConvNeXt, stage[1])
        return cls(
            Conv.of(up, rounds),
            block.dwconv.conv.weight[:, 0].t().contiguous(),
            bias_of(block.dwconv.conv),
            block.norm,
            Conv.of_linear(block.pwconv1),
            Conv.of_linear(block.pwconv2, block.gamma),
        )


@dataclass(frozen=True, slots=True)
class UnitRows:
    """A residual unit; the turn before its first convolution is the last thing that the one before it does."""

    turn: Turn
    first: Conv
    middle: Turn
    second: Conv


@dataclass(frozen=True, slots=True)
class BlockRows:
    """A decoder block; likewise."""

    turn: Turn
    up: Conv
    units: list[UnitRows]

    @classmethod
    def of(cls, block: DecoderBlock, rounds: bool) -> BlockRows:
        snake, up, *units = cast(Iterable[nn.Module], block.block)
        rows = [
            UnitRows(turn_of(u.act1), Conv.of(u.conv1, rounds), turn_of(u.act2), Conv.of(u.conv2, rounds))
            for u in cast(list[ResidualUnit], units)
        ]
        return cls(turn_of(cast(Snake, snake)), Conv.of(cast(CausalUpsample, up), rounds), rows)


@dataclass(frozen=True, slots=True)
class CodecWeights:
    """What a step reads; shared by all shapes."""

    table: Tensor
    """[codebooks * size, width]: projected entries."""
    num_codebooks: int
    before: Conv
    enter: Conv
    layers: list[LayerRows]
    norm: Tensor
    leave: Conv
    turns: Tensor
    """[max_frames, head_dim], see half_turns."""
    heads: int
    window: int
    stages: list[ConvNeXtRows]
    first: Conv
    blocks: list[BlockRows]
    turn: Turn
    last: Conv
    precision: str

    @classmethod
    def of(cls, decoder: CodecDecoder, max_frames: int, precision: str = "tf32") -> CodecWeights:
        """From a decoder in eval mode; convolutions are computed in `precision`: tf32, tf32x3 or ieee."""
        rounds = precision == "tf32"
        config, transformer = decoder.config, decoder.pre_transformer
        first, *blocks, snake, last = cast(Iterable[nn.Module], decoder.decoder)
        places = torch.arange(max_frames, device=transformer.inv_freq.device)
        return cls(
            table=decoder.quantizer.prepared().contiguous(),
            num_codebooks=config.num_codebooks,
            before=Conv.of(decoder.pre_conv, rounds),
            enter=Conv.of_linear(transformer.input_proj),
            layers=[LayerRows.of(layer) for layer in transformer.prepared()],
            norm=transformer.norm.weight,
            leave=Conv.of_linear(transformer.output_proj),
            turns=half_turns(places, transformer.inv_freq, torch.float32),
            heads=config.num_heads,
            window=config.sliding_window,
            stages=[ConvNeXtRows.of(stage, rounds) for stage in cast(Iterable[nn.ModuleList], decoder.upsample)],
            first=Conv.of(cast(CausalConv, first), rounds),
            blocks=[BlockRows.of(cast(DecoderBlock, block), rounds) for block in blocks],
            turn=turn_of(cast(Snake, snake)),
            last=Conv.of(cast(CausalConv, last), rounds=False),
            precision=precision,
        )

    @property
    def head_dim(self) -> int:
        return self.turns.shape[1]


# ---- a step ----


def codec_plan() -> Plan:
    """Of the transformer's products, which are no convolutions."""
    few = Tiles(16, 64, early=False, precision=EXACT)
    return Plan(few, few, replace(few, columns=32), few, few, few)


@dataclass(frozen=True, slots=True)
class Buffer:
    """The input of a place that looks back: `columns` past columns, then the new ones, each of B rows."""

    whole: Tensor
    """[(columns + new) * B, channels], contiguous."""
    columns: int
    streams: int

    @property
    def new(self) -> Tensor:
        return self.whole[self.columns * self.streams :]


@dataclass(frozen=True, slots=True)
class Tail:
    """A buffer's place in the state."""

    of_state: int
    buffer: Buffer


@dataclass(slots=True)
class CodecStep:
    """`frames` frames of `streams` streams: memory and launches. Made once a shape."""

    weights: CodecWeights
    streams: int
    frames: int
    launch: Launch
    stack: Stack
    qkv: Tensor
    """[layers, rows, 3 * width]"""
    tails: list[Tail]
    of_layers: int
    """Where in the state the transformer's keys and values begin."""
    arena: Tensor
    places: Tensor
    longest: int

    @classmethod
    def allocate(cls, weights: CodecWeights, streams: int, frames: int, launch: Launch = PLAIN) -> CodecStep:
        rows, layer = streams * frames, weights.layers[0]
        stack = Stack.allocate(rows, padded(rows), layer, codec_plan(), launch)
        qkv = layer.o.new_zeros(len(weights.layers), padded(rows), layer.qkv.shape[0])
        shapes = list(looking_back(weights, frames))
        before = shapes[0][0] * shapes[0][1]
        layers = len(weights.layers) * 2 * (weights.window - 1) * layer.o.shape[1]
        arena = layer.o.new_zeros(sum((columns + new) * streams * channels for columns, channels, new in shapes))
        tails, of_state, of_buffer, table = [], 0, 0, []
        for columns, channels, new in shapes:
            floats = (columns + new) * streams * channels
            buffer = arena[of_buffer : of_buffer + floats].view(-1, channels)
            tails.append(Tail(of_state, Buffer(buffer, columns, streams)))
            table.append([of_state, of_buffer, columns * channels, channels, new])
            of_state += columns * channels + (layers if len(tails) == 1 else 0)
            of_buffer += floats
        return cls(
            weights,
            streams,
            frames,
            launch,
            stack,
            qkv,
            tails,
            before,
            arena,
            torch.tensor(table, device=arena.device),
            max(row[2] for row in table),
        )

    @property
    def rounds(self) -> bool:
        """Whether what only convolutions read is rounded to what they see."""
        return self.weights.precision == "tf32"

    def run(self, codes: Tensor, state: CodecState, slots: Tensor) -> Tensor:
        """The next frames: codes [B, T, K], slots [B] -> [B, T * samples_per_frame]."""
        weights, rows = self.weights, self.streams * self.frames
        self._remember(state, slots, keep=False)
        places = iter(tail.buffer for tail in self.tails)
        buffer = next(places)
        self._quantise(codes, buffer)
        x = self._conv(weights.before, buffer.whole, rows)
        x = self._transform(self._conv(weights.enter, x, rows), state, slots)
        buffer = next(places)
        for index, stage in enumerate(weights.stages):
            self._conv(stage.up, x, rows, out=buffer.new)
            rows *= stage.up.rate
            following = next(places)
            out = following.new if index + 1 == len(weights.stages) else None
            x, buffer = self._mend(stage, buffer, rows, out), following
        following = next(places)
        self._conv(weights.first, buffer.whole, rows, keep=False, turn=weights.blocks[0].turn, act=following.new)
        buffer = following
        for index, block in enumerate(weights.blocks):
            after = weights.blocks[index + 1].turn if index + 1 < len(weights.blocks) else weights.turn
            rows, buffer = self._block(block, buffer, rows, after, places)
        pcm = self._last(buffer, rows)
        self._remember(state, slots, keep=True)
        return pcm

    def _block(
        self, block: BlockRows, buffer: Buffer, rows: int, after: Turn, places: Iterator[Buffer]
    ) -> tuple[int, Buffer]:
        """Rows of the block's input, turned, in `buffer` -> rows and buffer of the next place's; `after` turns them."""
        turn = block.units[0].turn
        following = next(places)
        x = self._conv(block.up, buffer.whole, rows, turn=turn, act=following.new)
        rows *= block.up.rate
        for index, unit in enumerate(block.units):
            inner = torch.empty_like(x)
            self._conv(unit.first, following.whole, rows, keep=False, turn=unit.middle, act=inner)
            last = index + 1 == len(block.units)
            turn, following = (after if last else block.units[index + 1].turn), next(places)
            x = self._conv(unit.second, inner, rows, residual=x, keep=not last, turn=turn, act=following.new)
        return rows, following

    def _conv(
        self,
        conv: Conv,
        x: Tensor,
        rows: int,
        *,
        residual: Tensor | None = None,
        keep: bool = True,
        out: Tensor | None = None,
        turn: Turn | None = None,
        act: Tensor | None = None,
        gelu: bool = False,
        rounds: bool = False,
    ) -> Tensor:
        """`rounds`: nothing but convolutions reads what comes out."""
        taps, outputs, inputs = conv.weight.shape
        out = x.new_empty(rows * conv.rate, conv.outputs) if keep and out is None else out
        kept = x if out is None else out
        bm, bn, bk, warps, stages = conv_tiles(rows, outputs, inputs, taps)
        _conv_kernel[(-(-rows // bm), -(-outputs // bn))](
            x,
            conv.weight,
            conv.bias,
            kept if residual is None else residual,
            kept,
            kept if act is None else act,
            conv.bias if turn is None else turn.frequency,
            conv.bias if turn is None else turn.size,
            rows,
            self.streams,
            C=inputs,
            N=conv.outputs,
            TAPS=taps,
            DILATION=conv.dilation,
            RATE=conv.rate,
            RESIDUAL=residual is not None,
            KEEP=keep,
            SNAKE=turn is not None,
            GELU=gelu,
            BM=bm,
            BN=bn,
            BK=bk,
            EVEN=inputs % bk == 0,
            PRECISION=EXACT if conv.linear else self.weights.precision,
            ROUND_OUT=self.rounds and rounds,
            ROUND_ACT=self.rounds,
            OVERLAP=self.launch.overlap,
            **options(self.launch, warps, stages),
        )
        return kept

    def _quantise(self, codes: Tensor, buffer: Buffer) -> None:
        table, books = self.weights.table, self.weights.num_codebooks
        _quantise_kernel[(self.streams * self.frames,)](
            codes,
            table,
            buffer.new,
            B=self.streams,
            T=self.frames,
            BOOKS=books,
            SIZE=table.shape[0] // books,
            H=table.shape[1],
            H_2=size_2(table.shape[1]),
            ROUND=self.rounds,
            OVERLAP=self.launch.overlap,
            **options(self.launch),
        )

    def _remember(self, state: CodecState, slots: Tensor, keep: bool) -> None:
        block = 2048
        _remember_kernel[(self.streams, len(self.places), -(-self.longest // block))](
            state.columns,
            state.columns.stride(0),
            state.frames,
            slots,
            self.arena,
            self.places,
            B=self.streams,
            T=self.frames,
            BLOCK=block,
            KEEP=keep,
            OVERLAP=self.launch.overlap,
            **options(self.launch if keep else PLAIN),
        )

    def _transform(self, x: Tensor, state: CodecState, slots: Tensor) -> Tensor:
        weights, stack, rows = self.weights, self.stack, self.streams * self.frames
        take(x, weights.layers[0].norm, stack.stream, self.launch)
        old, width = weights.window - 1, weights.heads * weights.head_dim
        norms = next_norms(weights.layers, weights.norm)
        for index, (layer, norm) in enumerate(zip(weights.layers, norms, strict=True)):

            def mix_in(qkv: Tensor, mixed: Tensor, index: int = index) -> None:
                self._slide(qkv, mixed, state, slots, self.of_layers + index * 2 * old * width)

            stack.layer(layer, norm, rows, self.qkv[index], mix_in)
        self._shift(state, slots)
        normed = finish(stack.stream, weights.norm, rows, weights.layers[0].eps, self.launch)
        return self._conv(weights.leave, normed, rows, rounds=True)

    def _slide(self, qkv: Tensor, mixed: Tensor, state: CodecState, slots: Tensor, of_keys: int) -> None:
        weights, old = self.weights, self.weights.window - 1
        _slide_kernel[(self.streams, weights.heads)](
            qkv,
            weights.turns,
            state.columns,
            state.columns.stride(0),
            of_keys,
            of_keys + old * weights.heads * weights.head_dim,
            state.frames,
            slots,
            mixed,
            weights.head_dim**-0.5,
            B=self.streams,
            T=self.frames,
            T_2=max(16, size_2(self.frames)),
            HEADS=weights.heads,
            HALF=weights.head_dim // 2,
            OLD=old,
            OLD_2=max(16, size_2(old)),
            PRECISION=EXACT,
            OVERLAP=self.launch.overlap,
            **options(self.launch),
        )

    def _shift(self, state: CodecState, slots: Tensor) -> None:
        weights, old = self.weights, self.weights.window - 1
        width = weights.heads * weights.head_dim
        _shift_kernel[(self.streams, 2 * len(weights.layers), -(-width // 32))](
            self.qkv,
            self.qkv.stride(0),
            state.columns,
            state.columns.stride(0),
            self.of_layers,
            slots,
            B=self.streams,
            T=self.frames,
            OLD=old,
            OLD_2=size_2(old),
            WIDTH=width,
            BLOCK=32,
            OVERLAP=self.launch.overlap,
            **options(self.launch),
        )

    def _mend(self, stage: ConvNeXtRows, buffer: Buffer, rows: int, out: Tensor | None) -> Tensor:
        x = buffer.new
        normed = torch.empty_like(x)
        taps, channels = stage.depthwise.shape
        _depthwise_kernel[(rows,)](
            buffer.whole,
            stage.depthwise,
            stage.depthwise_bias,
            stage.norm.weight,
            stage.norm.bias,
            normed,
            B=self.streams,
            C=channels,
            C_2=size_2(channels),
            TAPS=taps,
            OVERLAP=self.launch.overlap,
            **options(self.launch),
        )
        wide = self._conv(stage.widen, normed, rows, gelu=True)
        return self._conv(stage.narrow, wide, rows, residual=x, out=out, rounds=True)

    def _last(self, buffer: Buffer, rows: int) -> Tensor:
        conv = self.weights.last
        taps, _, channels = conv.weight.shape
        out = buffer.whole.new_empty(self.streams, rows // self.streams)
        _last_kernel[(-(-rows // 32),)](
            buffer.whole,
            conv.weight,
            conv.bias,
            out,
            rows,
            B=self.streams,
            C=channels,
            C_2=size_2(channels),
            TAPS=taps,
            BM=32,
            OVERLAP=self.launch.overlap,
            **options(self.launch),
        )
        return out


def looking_back(weights: CodecWeights, frames: int) -> Iterator[tuple[int, int, int]]:
    """Each place with a buffer, in the order in which they run: past columns, channels, new columns.

    The convolutions' places only; keys and values stand between the first and the second.
    """
    taps, channels = weights.before.weight.shape[0], weights.before.weight.shape[2]
    yield taps - 1, channels, frames
    new = frames
    for stage in weights.stages:
        assert stage.up.columns == 0, "an upsampling stage looks back only in its depthwise convolution"
        new *= stage.up.rate
        yield stage.depthwise.shape[0] - 1, stage.depthwise.shape[1], new
    yield weights.first.columns, weights.first.weight.shape[2], new
    for block in weights.blocks:
        yield block.up.columns, block.up.weight.shape[2], new
        new *= block.up.rate
        for unit in block.units:
            yield unit.first.columns, unit.first.weight.shape[2], new
    yield weights.last.columns, weights.last.weight.shape[2], new


def conv_tiles(rows: int, outputs: int, inputs: int, taps: int) -> tuple[int, int, int, int, int]:
    """Rows, columns and inputs of a program, its warps and stages: many bytes in flight where programs are few."""
    most = max(16, inputs & -inputs)
    if rows <= 32:
        return 16, 16, min(128, most), 4, 8
    if rows <= 64:
        return 64, 32, min(64, most), 4, 6
    if rows <= 256:
        return 32, 32, min(128, most), 4, 5
    if rows <= 640:
        return (64, 64, min(64, most), 4, 5) if inputs >= 512 else (32, 32, min(64, most), 4, 6)
    if rows <= 2560:
        return (64, 64, min(64, most), 4, 5) if inputs >= 192 else (64, 32, 32, 4, 5)
    return 128, 64 if outputs % 64 == 0 else 32, 32, 4, 4
