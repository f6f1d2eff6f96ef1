"""The stages of a model as few fused Triton kernels: the depth decoder's frame, the backbone, the text encoder.

It does not know graphs, slots or when a step runs: it launches kernels on the current stream, and whoever captures
them replays them. At a few rows a step is a stream of weights through a chain of short kernels, so they are cut thus.
(1) Products leave nothing but their own output: norms, rotations and residual sums are in them or beside them, and a
tile is small enough that all multiprocessors take part. (2) A kernel leaves the residual stream as the next product
reads it: times the norm's weight, with the sums of squares beside it; the norm's factor is applied to the product.
(3) A kernel starts while the one before it still runs (programmatic dependent launch, CUDA C++ Programming Guide
section 6.2), reads or fetches weights (the idea: CUTLASS example 63), and waits before it reads anything else. What a
whole step only reads may be read before the wait too, since a step's first kernel waits for all before it. (4) A large
product lets the next kernel start only when it has read its inputs: programs that come earlier crowd those
multiprocessors that it leaves free, which made a whole decode step slower.

Rows are padded to a block that the tensor cores take, and a row's result does not depend on what stands in the others:
tiles and the order of every sum are fixed by the shape. The only atomic operations count finished parts.

Against the plain code in bfloat16, what a norm hands to a product is rounded before its factor rather than after, and
gates, attention's weights and sums of split products stay in float32: the error against float64 is a little smaller.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor
from triton.language.extra.cuda import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    gdc_launch_dependents,
    gdc_wait,
)

from engine.backbone import Backbone
from engine.depth import FrameDecoder
from engine.kv_cache import PagedKV
from engine.norm import RMSNorm
from engine.rotary import cos_sin
from engine.sampling import Filter, SamplingRows
from engine.text import FULL, TextEncoder, TextLayer
from engine.transformer import LayerWeights

MIN_ROWS, MAX_ROWS = 8, 64
"""Rows of a block: what the tensor cores take at least, and what fits beside a tile of weights at most."""
MIN_TILE, MAX_TILE = 16, 128
LINE = 64
"""Inputs in bfloat16 of a line of the L2 cache: fewer at once are not fetched ahead."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a product is cut."""

    columns: int
    """Outputs of a program."""
    depth: int
    """Inputs that are read at once."""
    parts: int = 1
    """Groups of warps that share a program's inputs; their sums are added in order."""
    splits: int = 1
    """Programs that share a tile's inputs; the last one to finish adds their sums in order."""
    warps: int = 4
    stages: int = 4
    ahead: int = 0
    """Inputs whose weights are fetched into the L2 cache before the kernel before this one is over."""
    early: bool = True
    """The next kernel may start at once, rather than when all inputs are read."""
    precision: str = "ieee"
    """How float32 numbers are multiplied: ieee, tf32x3 (about as exact, on the tensor cores) or tf32."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How kernels follow each other."""

    overlap: bool = True
    """Each starts while the one before it still runs (compute capability 9.0)."""
    prefetch: bool = True
    """Each fetches weights into the L2 cache before it waits."""


Norms = tuple[Tensor, Tensor] | None
"""The weights [head_dim] by which a layer norms queries and keys, if it does."""
PLAIN = Launch(False, False)
"""For devices before Hopper, and Triton's interpreter."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The residual stream of up to `rows` rows between two kernels, padded with rows of zeros."""

    x: Tensor
    """[rows, hidden]"""
    scaled: Tensor
    """[rows, hidden]: x times the weight of the norm that comes next."""
    squares: Tensor
    """[tiles, rows] float32: the sums of x squared over each tile of columns."""

    @classmethod
    def allocate(cls, rows: int, hidden: int, tile: int, like: Tensor) -> Stream:
        """`tile` columns a tile."""
        x, scaled = like.new_zeros(rows, hidden), like.new_zeros(rows, hidden)
        return cls(x, scaled, like.new_zeros(hidden // tile, rows, dtype=torch.float32))


# ---- device functions ----


@triton.jit
def _await(OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_wait()


@triton.jit
def _release(OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def _prefetch(w, columns, start, K: tl.constexpr, AHEAD: tl.constexpr, BK: tl.constexpr):
    """Asks for w[columns, start : start + AHEAD] to come into the L2 cache, in the order in which it is read."""
    line = tl.arange(0, BK * w.dtype.element_ty.primitive_bitwidth // 1024) * (
        1024 // w.dtype.element_ty.primitive_bitwidth
    )
    at = w + columns[:, None] * K + start + line[None, :]
    for step in tl.static_range(0, AHEAD, BK):
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at + step], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def _product(
    a,
    w,
    beside,
    seen,
    rows,
    columns,
    start,
    K: tl.constexpr,
    SPAN: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """w[columns, start : start + SPAN] @ a[rows, the same] transposed, [BN, BM] float32; and what is at `beside`.

    Waits for a and for `beside`, which is read where `seen`, but not for w.
    """
    if AHEAD > 0:
        _prefetch(w, columns, start, K, AHEAD, BK)
    if PARTS == 1:
        k = start + tl.arange(0, BK)
        w_at = w + columns[:, None] * K + k[None, :]
        a_at = a + rows[None, :] * K + k[:, None]
        _await(OVERLAP)
        more = tl.load(beside, mask=seen, other=0.0)
        total = tl.zeros([BN, BM], tl.float32)
        for step in range(0, SPAN, BK):
            total = tl.dot(tl.load(w_at + step), tl.load(a_at + step), total, input_precision=PRECISION)
    else:
        k = start + tl.arange(0, PARTS)[:, None] * BK + tl.arange(0, BK)[None, :]
        w_at = w + columns[None, :, None] * K + k[:, None, :]
        a_at = a + rows[None, None, :] * K + k[:, :, None]
        if PARTS * BK == SPAN:
            whole = tl.load(w_at)
            _await(OVERLAP)
            more = tl.load(beside, mask=seen, other=0.0)
            sums = tl.dot(whole, tl.load(a_at), input_precision=PRECISION)
        else:
            _await(OVERLAP)
            more = tl.load(beside, mask=seen, other=0.0)
            sums = tl.zeros([PARTS, BN, BM], tl.float32)
            for step in range(0, SPAN, PARTS * BK):
                sums = tl.dot(tl.load(w_at + step), tl.load(a_at + step), sums, input_precision=PRECISION)
        total = tl.sum(sums, 0)
    return total, more


# ---- products ----


@triton.jit(do_not_specialize=["count", "num_rows"])
def _project_kernel(
    scaled,
    squares,
    w,
    out,
    count,
    num_rows,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    TILES: tl.constexpr,
    TILES_2: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
    EARLY: tl.constexpr,
    AHEAD: tl.constexpr,
):
    if EARLY:
        _release(OVERLAP)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    tile = tl.arange(0, TILES_2)
    beside = squares + tile[:, None] * num_rows + rows[None, :]
    total, sums = _product(
        scaled, w, beside, (tile < TILES)[:, None], rows, columns, 0, K, K, BN, BM, BK, PARTS, PRECISION, OVERLAP, AHEAD
    )
    if not EARLY:
        _release(OVERLAP)
    normed = total * tl.rsqrt(tl.sum(sums, 0) / K + eps)[None, :]
    at = out + rows[None, :] * N + columns[:, None]
    tl.store(at, normed.to(out.dtype.element_ty), mask=(rows < count)[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _gate_kernel(
    scaled,
    squares,
    w,
    out,
    num_rows,
    eps,
    INNER: tl.constexpr,
    K: tl.constexpr,
    TILES: tl.constexpr,
    TILES_2: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    GELU: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
    EARLY: tl.constexpr,
    AHEAD: tl.constexpr,
):
    if EARLY:
        _release(OVERLAP)
    HALF: tl.constexpr = BN // 2
    place = tl.arange(0, BN)
    inner = tl.program_id(1) * HALF + place % HALF
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = inner + (place // HALF) * INNER  # half of them gates, half of them what is gated
    tile = tl.arange(0, TILES_2)
    beside = squares + tile[:, None] * num_rows + rows[None, :]
    total, sums = _product(
        scaled, w, beside, (tile < TILES)[:, None], rows, columns, 0, K, K, BN, BM, BK, 1, PRECISION, OVERLAP, AHEAD
    )
    if not EARLY:
        _release(OVERLAP)
    total = total * tl.rsqrt(tl.sum(sums, 0) / K + eps)[None, :]
    gate, up = tl.split(tl.permute(tl.reshape(total, (2, HALF, BM)), (1, 2, 0)))
    if GELU:  # the tanh form: x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x^3))
        gated = gate * up / (1.0 + tl.exp(-1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)))
    else:
        gated = gate * up / (1.0 + tl.exp(-gate))
    inner = tl.program_id(1) * HALF + tl.arange(0, HALF)
    tl.store(out + rows[None, :] * INNER + inner[:, None], gated.to(out.dtype.element_ty))


@triton.jit
def _leave(total, weight, x, scaled, squares, tile, rows, columns, num_rows, N: tl.constexpr, SCALED: tl.constexpr):
    """Stores a tile of the residual stream, total [BN, BM]; weight [BN] is the next norm's."""
    at = rows[None, :] * N + columns[:, None]
    rounded = total.to(x.dtype.element_ty)
    if SCALED:
        exact = rounded.to(tl.float32)
        tl.store(squares + tile * num_rows + rows, tl.sum(exact * exact, 0))
        tl.store(scaled + at, (exact * weight[:, None]).to(scaled.dtype.element_ty))
    tl.store(x + at, rounded)


@triton.jit(do_not_specialize=["num_rows"])
def _add_kernel(
    a,
    w,
    residual,
    norm,
    x,
    scaled,
    squares,
    sums,
    finished,
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ADD: tl.constexpr,
    SCALED: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
    EARLY: tl.constexpr,
    AHEAD: tl.constexpr,
):
    if EARLY:
        _release(OVERLAP)
    SPAN: tl.constexpr = K // SPLITS
    block, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = tile * BN + tl.arange(0, BN)
    rows = block * BM + tl.arange(0, BM)
    weight = tl.load(norm + columns).to(tl.float32)
    beside = residual + rows[None, :] * N + columns[:, None]
    total, before = _product(
        a, w, beside, ADD, rows, columns, split * SPAN, K, SPAN, BN, BM, BK, PARTS, PRECISION, OVERLAP, AHEAD
    )
    if not EARLY:
        _release(OVERLAP)
    if SPLITS == 1:
        _leave(total + before, weight, x, scaled, squares, tile, rows, columns, num_rows, N, SCALED)
    else:
        own = block * tl.num_programs(1) + tile
        piece = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
        at = sums + own * (SPLITS * BN * BM) + piece
        tl.store(at + split * (BN * BM), total)
        tl.debug_barrier()  # all of the program's stores come before its count
        if tl.atomic_add(finished + own, 1, sem="acq_rel") == SPLITS - 1:
            total = tl.load(at, cache_modifier=".cg")
            for other in tl.static_range(1, SPLITS):
                total += tl.load(at + other * (BN * BM), cache_modifier=".cg")
            _leave(total + before, weight, x, scaled, squares, tile, rows, columns, num_rows, N, SCALED)
            tl.store(finished + own, 0)


# ---- attention in a frame ----


@triton.jit
def _turn(low, high, cos, sin):
    """Two halves of channels, turned; computed in float32, rounded once."""
    kind = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    return (low * cos - high * sin).to(kind), (high * cos + low * sin).to(kind)


@triton.jit
def _norm_and_turn(low, high, low_weight, high_weight, cos, sin, eps, HALF: tl.constexpr, ONCE: tl.constexpr):
    """Two halves [n, HALF_2] of channels, normed, then turned; rounded each time, or with ONCE as Gemma's norm is."""
    kind = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    factor = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF) + eps)[:, None]
    low, high = low * factor, high * factor
    if not ONCE:
        low, high = low.to(kind).to(tl.float32), high.to(kind).to(tl.float32)
    return _turn((low * low_weight).to(kind), (high * high_weight).to(kind), cos, sin)


@triton.jit(do_not_specialize=["first", "num_rows"])
def _mix_kernel(
    qkv,
    q_norm,
    k_norm,
    turns,
    mixed,
    num_rows,
    first,
    scale,
    eps,
    NORMED: tl.constexpr,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    HALF: tl.constexpr,
    HALF_2: tl.constexpr,
    POSITIONS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    _release(OVERLAP)
    D: tl.constexpr = 2 * HALF
    WIDTH: tl.constexpr = (HEADS + 2 * KV) * D
    row, head, new = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    # The first pass has positions 1 and 0, in this order: the rows that go on stand first.
    position = tl.where(first == 0, 1 - new, first)
    p, d = tl.arange(0, POSITIONS), tl.arange(0, HALF_2)
    place = tl.where(p < 2, 1 - p, p)
    inside = d < HALF
    seen = (p <= position)[:, None] & inside[None, :]
    there = turns + p[:, None] * D + d[None, :]
    cos = tl.load(there, mask=seen, other=0.0).to(tl.float32)
    sin = tl.load(there + HALF, mask=seen, other=0.0).to(tl.float32)
    asked = inside[None, :]
    own_there = turns + position * D + d[None, :]
    own_cos = tl.load(own_there, mask=asked, other=0.0).to(tl.float32)
    own_sin = tl.load(own_there + HALF, mask=asked, other=0.0).to(tl.float32)
    own = qkv + (tl.where(position < 2, 1 - position, position) * num_rows + row) * WIDTH + head * D + d[None, :]
    keys = qkv + (place[:, None] * num_rows + row) * WIDTH + (HEADS + head // (HEADS // KV)) * D + d[None, :]
    if NORMED:
        q_low_norm = tl.load(q_norm + d, mask=inside, other=0.0).to(tl.float32)[None, :]
        q_high_norm = tl.load(q_norm + HALF + d, mask=inside, other=0.0).to(tl.float32)[None, :]
        k_low_norm = tl.load(k_norm + d, mask=inside, other=0.0).to(tl.float32)[None, :]
        k_high_norm = tl.load(k_norm + HALF + d, mask=inside, other=0.0).to(tl.float32)[None, :]
    _await(OVERLAP)
    v_low = tl.load(keys + KV * D, mask=seen, other=0.0)
    v_high = tl.load(keys + KV * D + HALF, mask=seen, other=0.0)
    q_low, q_high = tl.load(own, mask=asked, other=0.0), tl.load(own + HALF, mask=asked, other=0.0)
    k_low, k_high = tl.load(keys, mask=seen, other=0.0), tl.load(keys + HALF, mask=seen, other=0.0)
    if NORMED:
        q_low, q_high = _norm_and_turn(q_low, q_high, q_low_norm, q_high_norm, own_cos, own_sin, eps, HALF, False)
        k_low, k_high = _norm_and_turn(k_low, k_high, k_low_norm, k_high_norm, cos, sin, eps, HALF, False)
    else:
        q_low, q_high = _turn(q_low, q_high, own_cos, own_sin)
        k_low, k_high = _turn(k_low, k_high, cos, sin)
    products = q_low.to(tl.float32) * k_low.to(tl.float32) + q_high.to(tl.float32) * k_high.to(tl.float32)
    scores = tl.sum(products, 1) * scale
    scores = tl.where(p <= position, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 0))
    weights = weights / tl.sum(weights, 0)
    out = mixed + (new * num_rows + row) * (HEADS * D) + head * D + d
    low = tl.sum(weights[:, None] * v_low.to(tl.float32), 0)
    high = tl.sum(weights[:, None] * v_high.to(tl.float32), 0)
    tl.store(out, low.to(mixed.dtype.element_ty), mask=inside)
    tl.store(out + HALF, high.to(mixed.dtype.element_ty), mask=inside)


# ---- what enters the residual stream, and what is drawn from its end ----


@triton.jit
def _enter(value, norm, x, scaled, squares, row, num_rows, H: tl.constexpr, H_2: tl.constexpr, TILE: tl.constexpr):
    """Stores one row of the residual stream, value [H_2] already rounded."""
    h = tl.arange(0, H_2)
    tl.store(x + row * H + h, value, mask=h < H)
    exact = value.to(tl.float32)
    weight = tl.load(norm + h, mask=h < H, other=0.0).to(tl.float32)
    tl.store(scaled + row * H + h, (exact * weight).to(scaled.dtype.element_ty), mask=h < H)
    tile = tl.arange(0, H_2 // TILE)
    sums = tl.sum(tl.reshape(exact * exact, (H_2 // TILE, TILE)), 1)
    tl.store(squares + tile * num_rows + row, sums, mask=tile < H // TILE)


@triton.jit
def _uniform(seed, frame, codebook):
    """The number of engine.sampling.uniforms, float64."""
    bits = frame.to(tl.uint64, bitcast=True) * 65536 + codebook.to(tl.uint64)
    bits = bits * 0x9E3779B97F4A7C15 + seed.to(tl.uint64, bitcast=True) * 0xD1342543DE82EF95
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    bits = bits ^ (bits >> 31)
    return ((bits >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _kept(key, keep):
    """The keep-th largest of key [V] uint32, found two bits at a time."""
    cut = tl.zeros([], tl.uint32)
    for step in range(16):
        one = tl.full([], 1, tl.uint32) << (30 - 2 * step)
        # Three counts in one sum: a vocabulary has fewer than 2^20 ids.
        counts = (key >= cut + one).to(tl.int64) + ((key >= cut + 2 * one).to(tl.int64) << 20)
        counts = tl.sum(counts + ((key >= cut + 3 * one).to(tl.int64) << 40), 0)
        digit = ((counts & 0xFFFFF) >= keep).to(tl.uint32) + (((counts >> 20) & 0xFFFFF) >= keep).to(tl.uint32)
        cut += (digit + ((counts >> 40) >= keep).to(tl.uint32)) * one
    return cut


@triton.jit
def _nucleus(key, mass, top_p):
    """The smallest key above whose equals at most top_p of mass [V] float64 lies."""
    limit = tl.sum(mass, 0) * top_p
    cut = tl.zeros([], tl.uint32)
    for step in range(32):
        bit = tl.full([], 1, tl.uint32) << (31 - step)
        above = tl.sum(tl.where(key > (cut | (bit - 1)), mass, 0.0), 0)
        cut = tl.where(above <= limit, cut, cut | bit)
    return cut


@triton.jit
def _drawn(scaled, v, uniform, keep, top_p, V: tl.constexpr):
    """The id that engine.sampling.draw finds for logits over temperature, scaled [BV] with minus infinity from V on."""
    inside = v < V
    bits = (scaled + 0.0).to(tl.int32, bitcast=True)  # -0.0 equals 0.0
    key = tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)
    key = tl.where(inside, key, 0)
    broken = scaled != scaled
    weight = tl.exp(scaled - tl.max(scaled, 0))
    cut = _kept(key, keep)
    if top_p < 1.0:
        mass = tl.where((key >= cut) & inside, weight, 0.0).to(tl.float64)
        cut = tl.maximum(cut, _nucleus(key, mass, top_p))
    weight = tl.where(((key >= cut) & inside) | broken, weight, 0.0)
    share = tl.math.div_rn(weight, tl.sum(weight, 0) + tl.zeros_like(weight))
    mass = tl.cumsum(share.to(tl.float64), 0)
    total = tl.sum(tl.where(v == V - 1, mass, 0.0), 0)
    # A row of NaN compares false throughout and draws 0.
    return tl.sum(((mass < total * uniform) & inside).to(tl.int32), 0)


@triton.jit(do_not_specialize=["codebook", "num_rows"])
def _choose_kernel(
    logits,
    logits_step,
    seen,
    seen_step,
    penalty,
    penalty_step,
    min_frames,
    min_step,
    temperature,
    temperature_step,
    last,
    last_step,
    top_p,
    top_p_step,
    cfg_scale,
    cfg_step,
    seed,
    seed_step,
    frame,
    codes,
    codebook,
    num_codebooks,
    table,
    norm,
    x,
    scaled,
    squares,
    num_rows,
    V: tl.constexpr,
    V_2: tl.constexpr,
    SIZE: tl.constexpr,
    H: tl.constexpr,
    H_2: tl.constexpr,
    TILE: tl.constexpr,
    GUIDED: tl.constexpr,
    FIRST: tl.constexpr,
    EMBED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    _release(OVERLAP)
    row, requests = tl.program_id(0), tl.num_programs(0)
    v = tl.arange(0, V_2)
    heat, place = tl.load(temperature + row * temperature_step), tl.load(last + row * last_step)
    nucleus = tl.load(top_p + row * top_p_step)
    uniform = _uniform(tl.load(seed + row * seed_step), tl.load(frame + row), codebook)
    _await(OVERLAP)
    scores = tl.load(logits + row * logits_step + v, mask=v < V, other=float("-inf"))
    if GUIDED:
        # As engine.sampling.guide; torch.lerp starts from the nearer end.
        other = tl.load(logits + (row + requests) * logits_step + v, mask=v < V, other=float("-inf"))
        scale = tl.load(cfg_scale + row * cfg_step)
        step = scores - other
        towards = tl.where(scale < 0.5, other + scale * step, scores - step * (1.0 - scale))
        towards = tl.where(scale == 1.0, scores, towards)
        scores = tl.where(v < V, towards, float("-inf"))
    if FIRST:
        # As engine.sampling.penalise; ids from SIZE on are reserved but for the last, which ends speech.
        had = tl.load(seen + row * seen_step + v, mask=v < V, other=0) != 0
        factor = tl.load(penalty + row * penalty_step) + tl.zeros_like(scores)
        scores = tl.where(had, tl.where(scores > 0, tl.math.div_rn(scores, factor), scores * factor), scores)
        short = tl.load(frame + row) < tl.load(min_frames + row * min_step)
        end = tl.where(short, V, V - 1)
        scores = tl.where((v < SIZE) | (v >= end), scores, float("-inf"))
    scores = tl.math.div_rn(scores, heat + tl.zeros_like(scores))
    keep = tl.minimum(place + 1, V).to(tl.int32)
    code = _drawn(scores, v, uniform, keep, nucleus, V)
    tl.store(codes + row * num_codebooks + codebook, code.to(tl.int64))
    if EMBED:
        h = tl.arange(0, H_2)
        value = tl.load(table + code * H + h, mask=h < H, other=0.0)
        _enter(value, norm, x, scaled, squares, row, num_rows, H, H_2, TILE)
        if GUIDED:
            _enter(value, norm, x, scaled, squares, row + requests, num_rows, H, H_2, TILE)


@triton.jit(do_not_specialize=["num_rows"])
def _begin_kernel(
    code0,
    codes,
    num_codebooks,
    table,
    norm,
    x,
    scaled,
    squares,
    num_rows,
    H: tl.constexpr,
    H_2: tl.constexpr,
    TILE: tl.constexpr,
    GUIDED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    _release(OVERLAP)
    row, requests = tl.program_id(0), tl.num_programs(0)
    h = tl.arange(0, H_2)
    _await(OVERLAP)
    code = tl.load(code0 + row)
    tl.store(codes + row * num_codebooks, code)
    value = tl.load(table + code * H + h, mask=h < H, other=0.0)
    _enter(value, norm, x, scaled, squares, row, num_rows, H, H_2, TILE)
    if GUIDED:
        _enter(value, norm, x, scaled, squares, row + requests, num_rows, H, H_2, TILE)


@triton.jit(do_not_specialize=["num_rows", "requests"])
def _frames_kernel(
    codes,
    table,
    norm,
    x,
    scaled,
    squares,
    num_rows,
    requests,
    BOOKS: tl.constexpr,
    VOCABULARY: tl.constexpr,
    H: tl.constexpr,
    H_2: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    _release(OVERLAP)
    row = tl.program_id(0)
    h = tl.arange(0, H_2)
    _await(OVERLAP)
    total = tl.zeros([H_2], tl.float32)
    for book in tl.static_range(BOOKS):
        code = tl.load(codes + (row % requests) * BOOKS + book) + book * VOCABULARY
        total += tl.load(table + code * H + h, mask=h < H, other=0.0).to(tl.float32)
    _enter(total.to(x.dtype.element_ty), norm, x, scaled, squares, row, num_rows, H, H_2, TILE)


@triton.jit(do_not_specialize=["num_rows"])
def _take_kernel(
    rows_in,
    norm,
    x,
    scaled,
    squares,
    num_rows,
    H: tl.constexpr,
    H_2: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    _release(OVERLAP)
    row = tl.program_id(0)
    h = tl.arange(0, H_2)
    _await(OVERLAP)
    value = tl.load(rows_in + row * H + h, mask=h < H, other=0.0)
    _enter(value, norm, x, scaled, squares, row, num_rows, H, H_2, TILE)


@triton.jit(do_not_specialize=["num_rows", "special"])
def _tokens_kernel(
    ids,
    table,
    special_row,
    special,
    factor,
    norm,
    x,
    scaled,
    squares,
    num_rows,
    H: tl.constexpr,
    H_2: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    _release(OVERLAP)
    row = tl.program_id(0)
    h = tl.arange(0, H_2)
    _await(OVERLAP)
    code = tl.load(ids + row)
    value = tl.load(table + code * H + h, mask=h < H, other=0.0)
    value = (value.to(tl.float32) * factor).to(x.dtype.element_ty)
    value = tl.where(code == special, tl.load(special_row + h, mask=h < H, other=0.0), value)
    _enter(value, norm, x, scaled, squares, row, num_rows, H, H_2, TILE)


@triton.jit(do_not_specialize=["num_rows"])
def _rejoin_kernel(
    branch,
    after,
    norm,
    x,
    scaled,
    squares,
    num_rows,
    eps,
    H: tl.constexpr,
    H_2: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    _release(OVERLAP)
    row = tl.program_id(0)
    h = tl.arange(0, H_2)
    weight = tl.load(after + h, mask=h < H, other=0.0).to(tl.float32)
    _await(OVERLAP)
    value = tl.load(branch + row * H + h, mask=h < H, other=0.0).to(tl.float32)
    before = tl.load(x + row * H + h, mask=h < H, other=0.0).to(tl.float32)
    normed = value * tl.rsqrt(tl.sum(value * value, 0) / H + eps) * weight
    value = (before + normed.to(x.dtype.element_ty).to(tl.float32)).to(x.dtype.element_ty)
    _enter(value, norm, x, scaled, squares, row, num_rows, H, H_2, TILE)


@triton.jit
def _finish_kernel(x, norm, out, eps, H: tl.constexpr, H_2: tl.constexpr, OVERLAP: tl.constexpr):
    _release(OVERLAP)
    h = tl.arange(0, H_2)
    at = tl.program_id(0) * H + h
    weight = tl.load(norm + h, mask=h < H, other=0.0).to(tl.float32)
    _await(OVERLAP)
    value = tl.load(x + at, mask=h < H, other=0.0).to(tl.float32)
    normed = value * tl.rsqrt(tl.sum(value * value, 0) / H + eps)
    normed = normed.to(out.dtype.element_ty).to(tl.float32) * weight
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=h < H)


# ---- attention over pages, and within segments ----


@triton.jit
def _whole(low, high):
    """Two halves [n, HALF] -> [n, 2 * HALF]."""
    joined = tl.permute(tl.join(low, high), (0, 2, 1))
    return tl.reshape(joined, (low.shape[0], 2 * low.shape[1]))


@triton.jit
def _pages_kernel(
    qkv,
    q_norm,
    k_norm,
    turns,
    keys,
    values,
    page_table,
    table_step,
    slots,
    positions,
    valid,
    mixed,
    sums,
    finished,
    scale,
    eps,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    HALF: tl.constexpr,
    GROUP_2: tl.constexpr,
    PAGE: tl.constexpr,
    BS: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    _release(OVERLAP)
    GROUP: tl.constexpr = HEADS // KV
    D: tl.constexpr = 2 * HALF
    ROWS: tl.constexpr = 16  # queries that share a key, padded for the tensor cores
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    h, d, g, s = tl.arange(0, HALF), tl.arange(0, D), tl.arange(0, ROWS), tl.arange(0, BS)
    asked = (g < GROUP)[:, None]
    slot, position = tl.load(slots + row), tl.load(positions + row)
    real = tl.load(valid + row) != 0
    position = tl.where(real, position, 0)
    cos = tl.load(turns + position * D + h).to(tl.float32)[None, :]
    sin = tl.load(turns + position * D + HALF + h).to(tl.float32)[None, :]
    q_low_norm, q_high_norm = (
        tl.load(q_norm + h).to(tl.float32)[None, :],
        tl.load(q_norm + HALF + h).to(tl.float32)[None, :],
    )
    k_low_norm, k_high_norm = (
        tl.load(k_norm + h).to(tl.float32)[None, :],
        tl.load(k_norm + HALF + h).to(tl.float32)[None, :],
    )
    pages = page_table + slot * table_step
    own = tl.where(real, tl.load(pages + position // PAGE) * PAGE + position % PAGE, 0)
    base = qkv + row * ((HEADS + 2 * KV) * D)
    q_at = base + (head * GROUP + g[:, None]) * D + h[None, :]
    k_at = base + (HEADS + head) * D + h[None, :]
    _await(OVERLAP)
    q_low, q_high = tl.load(q_at, mask=asked, other=0.0), tl.load(q_at + HALF, mask=asked, other=0.0)
    k_low, k_high = tl.load(k_at), tl.load(k_at + HALF)
    value = tl.load(base + (HEADS + KV + head) * D + d)
    q_low, q_high = _norm_and_turn(q_low, q_high, q_low_norm, q_high_norm, cos, sin, eps, HALF, False)
    k_low, k_high = _norm_and_turn(k_low, k_high, k_low_norm, k_high_norm, cos, sin, eps, HALF, False)
    if split == 0:
        new_at = (own * KV + head) * D
        tl.store(keys + new_at + h[None, :], k_low)
        tl.store(keys + new_at + HALF + h[None, :], k_high)
        tl.store(values + new_at + d, value)
    # The own position is the first split's beginning; what is read from pages was written by earlier steps.
    score = tl.sum(q_low.to(tl.float32) * k_low.to(tl.float32) + q_high.to(tl.float32) * k_high.to(tl.float32), 1)
    top = tl.where(split == 0, score * scale, -1e30)
    begun = tl.where(split == 0, 1.0, 0.0)
    mass = tl.zeros([ROWS], tl.float32) + begun
    total = tl.zeros([ROWS, D], tl.float32) + value.to(tl.float32)[None, :] * begun
    q = _whole(q_low, q_high)
    for block in range(split * BS, position, SPLITS * BS):
        p = block + s
        seen = p < position
        spot = tl.load(pages + p // PAGE, mask=seen, other=0) * PAGE + p % PAGE
        there = (spot[:, None] * KV + head) * D + d[None, :]
        k = tl.load(keys + there, mask=seen[:, None], other=0.0)
        v = tl.load(values + there, mask=seen[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        weights, fade = tl.exp(scores - new[:, None]), tl.exp(top - new)
        mass = mass * fade + tl.sum(weights, 1)
        total = tl.dot(weights.to(v.dtype), v, total * fade[:, None], input_precision="ieee")
        top = new
    if SPLITS == 1:
        out = mixed + row * (HEADS * D) + (head * GROUP + g[:, None]) * D + d[None, :]
        tl.store(out, (total / mass[:, None]).to(mixed.dtype.element_ty), mask=asked)
    else:
        area = row * KV + head
        STEP: tl.constexpr = GROUP_2 * (D + 2)
        piece = sums + (area * SPLITS + split) * STEP
        kept = g < GROUP_2
        tl.store(piece + g[:, None] * D + d[None, :], total, mask=kept[:, None])
        tl.store(piece + GROUP_2 * D + g, top, mask=kept)
        tl.store(piece + GROUP_2 * D + GROUP_2 + g, mass, mask=kept)
        tl.debug_barrier()
        if tl.atomic_add(finished + area, 1, sem="acq_rel") == SPLITS - 1:
            i, j = tl.arange(0, SPLITS)[:, None], tl.arange(0, GROUP_2)
            pieces = sums + area * SPLITS * STEP + i * STEP
            tops = tl.load(pieces + GROUP_2 * D + j[None, :], cache_modifier=".cg")
            masses = tl.load(pieces + GROUP_2 * D + GROUP_2 + j[None, :], cache_modifier=".cg")
            totals = tl.load(pieces[:, :, None] + j[None, :, None] * D + d[None, None, :], cache_modifier=".cg")
            shares = tl.exp(tops - tl.max(tops, 0)[None, :])
            joined = tl.sum(totals * shares[:, :, None], 0) / tl.sum(masses * shares, 0)[:, None]
            out = mixed + row * (HEADS * D) + (head * GROUP + j[:, None]) * D + d[None, :]
            tl.store(out, joined.to(mixed.dtype.element_ty), mask=(j < GROUP)[:, None])
            tl.store(finished + area, 0)


@triton.jit(do_not_specialize=["length", "segments"])
def _turn_kernel(
    qkv,
    norms,
    turns,
    positions,
    valid,
    page_table,
    table_step,
    slots,
    keys,
    values,
    starts,
    segments,
    length,
    eps,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    HEADS_2: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    SEGMENTS_2: tl.constexpr,
    ONCE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Norms and turns a row's queries and keys where they stand; with PAGE > 0 stores keys and values in pages, else
    the row is a token of one of `segments` segments, which begin at `starts` in order."""
    _release(OVERLAP)
    D: tl.constexpr = 2 * HALF
    row = tl.program_id(0)
    n, h = tl.arange(0, HEADS_2)[:, None], tl.arange(0, HALF)[None, :]
    there = n < HEADS + KV
    low_weight = tl.load(norms + n * D + h, mask=there, other=0.0).to(tl.float32)
    high_weight = tl.load(norms + n * D + HALF + h, mask=there, other=0.0).to(tl.float32)
    if PAGE > 0:
        real = tl.load(valid + row) != 0
        position = tl.where(real, tl.load(positions + row), 0)
        pages = page_table + tl.load(slots + row // length) * table_step
        own = tl.where(real, tl.load(pages + position // PAGE) * PAGE + position % PAGE, 0)
    else:
        segment = tl.arange(0, SEGMENTS_2)
        start = tl.load(starts + segment, mask=segment < segments, other=0)
        position = row - tl.max(tl.where(start <= row, start, 0), 0)
    cos = tl.load(turns + position * D + h).to(tl.float32)
    sin = tl.load(turns + position * D + HALF + h).to(tl.float32)
    base = qkv + row * ((HEADS + 2 * KV) * D)
    at = base + n * D + h
    _await(OVERLAP)
    low, high = tl.load(at, mask=there, other=0.0), tl.load(at + HALF, mask=there, other=0.0)
    low, high = _norm_and_turn(low, high, low_weight, high_weight, cos, sin, eps, HALF, ONCE)
    if PAGE > 0:
        tl.store(at, low, mask=n < HEADS)
        tl.store(at + HALF, high, mask=n < HEADS)
        place = (own * KV + n - HEADS) * D + h
        key = there & (n >= HEADS)
        tl.store(keys + place, low, mask=key)
        tl.store(keys + place + HALF, high, mask=key)
        tl.store(values + place, tl.load(at + KV * D, mask=key, other=0.0), mask=key)
        tl.store(values + place + HALF, tl.load(at + KV * D + HALF, mask=key, other=0.0), mask=key)
    else:
        tl.store(at, low, mask=there)
        tl.store(at + HALF, high, mask=there)


@triton.jit(do_not_specialize=["length"])
def _spread_kernel(
    qkv,
    positions,
    valid,
    page_table,
    table_step,
    slots,
    keys,
    values,
    starts,
    lengths,
    mixed,
    length,
    scale,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    BQ: tl.constexpr,
    BS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Attention of BQ turned queries of one sequence: over its pages up to each position, or over its segment, whose
    blocks are counted from its own start: what stands before and behind it changes no sum."""
    _release(OVERLAP)
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    WIDTH: tl.constexpr = (HEADS + 2 * KV) * D
    d, s = tl.arange(0, D), tl.arange(0, BS)
    t = block * BQ + tl.arange(0, BQ)
    if PAGE > 0:
        inside = t < length
        base = sequence * length
        real = (tl.load(valid + sequence * length + t, mask=inside, other=0) != 0) & inside
        position = tl.where(real, tl.load(positions + sequence * length + t, mask=inside, other=0), 0)
        end = tl.max(position, 0) + 1
        pages = page_table + tl.load(slots + sequence) * table_step
    else:
        position = t.to(tl.int64)
        base = tl.load(starts + sequence)
        size = tl.load(lengths + sequence)
        inside = t < size
        end = tl.where(block * BQ < size, size, 0)  # a block behind the segment has nothing to do
        pages = qkv + base * WIDTH  # of that segment's rows
    kv_head = head // (HEADS // KV)
    at = qkv + (base + t[:, None]) * WIDTH + head * D + d[None, :]
    _await(OVERLAP)
    q = tl.load(at, mask=inside[:, None], other=0.0)
    top = tl.zeros([BQ], tl.float32) - 1e30
    mass = tl.zeros([BQ], tl.float32)
    total = tl.zeros([BQ, D], tl.float32)
    for first in range(0, end, BS):
        p = first + s
        there = p < end
        if PAGE > 0:
            spot = tl.load(pages + p // PAGE, mask=there, other=0) * PAGE + p % PAGE
            k_at = keys + (spot[:, None] * KV + kv_head) * D + d[None, :]
            v_at = values + (spot[:, None] * KV + kv_head) * D + d[None, :]
            seen = p[None, :] <= position[:, None]
        else:
            k_at = pages + p[:, None] * WIDTH + (HEADS + kv_head) * D + d[None, :]
            v_at = k_at + KV * D
            distance = position[:, None] - p[None, :]
            seen = there[None, :]
            if WINDOW > 0:
                seen = seen & (distance < (WINDOW + 1) // 2) & (distance > -(WINDOW // 2) - 1)
        k = tl.load(k_at, mask=there[:, None], other=0.0)
        v = tl.load(v_at, mask=there[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        weights, fade = tl.exp(scores - new[:, None]), tl.exp(top - new)
        mass = mass * fade + tl.sum(weights, 1)
        total = tl.dot(weights.to(v.dtype), v, total * fade[:, None], input_precision="ieee")
        top = new
    out = mixed + (base + t[:, None]) * (HEADS * D) + head * D + d[None, :]
    share = total / tl.maximum(mass, 1e-30)[:, None]
    tl.store(out, share.to(mixed.dtype.element_ty), mask=inside[:, None])


# ---- launches ----


def block_rows(rows: int) -> int:
    """How many rows a block has."""
    return min(max(MIN_ROWS, size_2(rows)), MAX_ROWS)


def padded(rows: int) -> int:
    """Rows in whole blocks."""
    block = block_rows(rows)
    return -(-rows // block) * block


def tile_width(width: int, most: int = MAX_TILE) -> int:
    """The largest power of two, at most `most`, that divides the width."""
    return min(width & -width, most)


def fitted(tiles: Tiles, outputs: int, inputs: int) -> Tiles:
    """The same tiles where they divide the matrix, else the nearest below that do; inputs in multiples of MIN_TILE."""
    splits = next(n for n in range(tiles.splits, 0, -1) if inputs % (MIN_TILE * n) == 0)
    span = inputs // splits
    parts = tiles.parts if span % (tiles.parts * MIN_TILE) == 0 else 1
    columns, depth = tile_width(outputs, tiles.columns), tile_width(span // parts, tiles.depth)
    ahead = min(tiles.ahead, span) if depth >= LINE else 0
    return replace(tiles, columns=columns, depth=depth, parts=parts, splits=splits, ahead=ahead)


def options(launch: Launch, warps: int = 4, stages: int = 1) -> dict[str, int | bool]:
    """Keyword arguments of a launch. The first kernel of a step waits for all before it: it has no `overlap`."""
    return {"num_warps": warps, "num_stages": stages} | ({"launch_pdl": True} if launch.overlap else {})


def check_widths(*matrices: Tensor) -> None:
    """Raises ValueError for widths that no tile divides."""
    if any(width % MIN_TILE for matrix in matrices for width in matrix.shape):
        shapes = ", ".join(str(list(matrix.shape)) for matrix in matrices)
        raise ValueError(f"expected widths in multiples of {MIN_TILE}, got matrices {shapes}")


@dataclass(frozen=True, slots=True)
class LayerRows:
    """A layer's tensors with matrices as they are stored, [out, in]."""

    eps: float
    norm: Tensor
    qkv: Tensor
    o: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, weights: LayerWeights) -> LayerRows:
        """Raises ValueError, see check_widths."""
        matrices = weights.qkv, weights.o, weights.gate_up, weights.down
        check_widths(*matrices)
        qkv, o, gate_up, down = (matrix.t().contiguous() for matrix in matrices)
        return cls(weights.eps, weights.norm, qkv, o, weights.mlp_norm, gate_up, down)


@dataclass(frozen=True, slots=True)
class Plan:
    """How each product of a stack of layers is cut."""

    qkv: Tiles
    o: Tiles
    gate: Tiles
    down: Tiles
    head: Tiles
    enter: Tiles


ONE_SHOT = Tiles(16, 256, parts=4, stages=1)
"""All weights of a program in one piece, read before the wait."""


def depth_plan(rows: int) -> Plan:
    """Measured on an H200 at 1024 wide, MLP 8192."""
    enter, small = Tiles(64, 128, splits=8), Tiles(16, 64, parts=2, warps=2, stages=6, ahead=1024)
    if rows <= 16:
        gate, down = Tiles(64, 128, ahead=256, early=False), Tiles(64, 128, splits=8)
        return Plan(ONE_SHOT, small if rows > 8 else ONE_SHOT, gate, down, ONE_SHOT, enter)
    gate = Tiles(64, 128, stages=4 if rows <= 32 else 3, ahead=512, early=False)
    down = Tiles(32, 128, splits=4, stages=6, early=False)
    return Plan(small, Tiles(16, 128, ahead=1024), gate, down, Tiles(32, 128, stages=6, ahead=1024), enter)


def backbone_plan(rows: int) -> Plan:
    """One position a sequence; tuned on an H200 at 2048 wide, MLP 6144."""
    head, few = Tiles(16, 128), rows <= 16
    qkv = Tiles(32, 128, stages=5) if few else Tiles(64, 128)
    o = Tiles(16, 128, parts=2, warps=2, stages=5) if rows <= 8 else Tiles(64, 128, splits=4)
    gate = Tiles(64, 128, ahead=256, early=False) if few else Tiles(64, 128, stages=3, early=False)
    return Plan(qkv, o, gate, Tiles(64, 128, splits=4, early=few), head, head)


def chunk_plan(rows: int) -> Plan:
    """Many positions a sequence; tuned there too."""
    if rows <= 16:
        return backbone_plan(rows)
    many, head = rows > 64, Tiles(16, 128)
    qkv, o = (Tiles(64, 64, stages=6), Tiles(64, 128)) if many else (Tiles(64, 128), Tiles(64, 128, splits=4))
    gate = Tiles(128, 64, stages=5, early=False) if many else Tiles(64, 128, stages=3, early=False)
    return Plan(qkv, o, gate, Tiles(64, 128, splits=2 if many else 3, early=False), head, head)


def text_plan(rows: int) -> Plan:
    """Measured on an H200 at 1152 wide, MLP 6912."""
    few = rows <= 64
    return Plan(
        qkv=Tiles(16 if few else 32, 128, early=False),
        o=Tiles(64, 128, splits=2),
        gate=Tiles(64, 128, stages=3, early=False),
        down=Tiles(64, 128, splits=6 if few else 3, early=few),
        head=Tiles(16 if few else 32, 128),
        enter=Tiles(64, 128),
    )


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory of products whose inputs several programs share."""

    sums: Tensor
    finished: Tensor

    @classmethod
    def allocate(cls, floats: int, counters: int, device: torch.device) -> Scratch:
        return cls(torch.zeros(floats, device=device), torch.zeros(counters, dtype=torch.int32, device=device))


def project(stream: Stream, weight: Tensor, out: Tensor, rows: int, eps: float, tiles: Tiles, launch: Launch) -> None:
    """out[:rows] = norm(x) @ weight^T, weight [N, hidden], out [at least rows, N] in its own dtype."""
    outputs, inputs = weight.shape
    tiles, block, count = fitted(tiles, outputs, inputs), block_rows(rows), stream.squares.shape[0]
    _project_kernel[(padded(rows) // block, outputs // tiles.columns)](
        stream.scaled,
        stream.squares,
        weight,
        out,
        rows,
        stream.squares.stride(0),
        eps,
        N=outputs,
        K=inputs,
        TILES=count,
        TILES_2=size_2(count),
        BN=tiles.columns,
        BM=block,
        BK=tiles.depth,
        PARTS=tiles.parts,
        OVERLAP=launch.overlap,
        PRECISION=tiles.precision,
        EARLY=tiles.early,
        AHEAD=tiles.ahead // tiles.depth * tiles.depth if launch.overlap and launch.prefetch else 0,
        **options(launch, tiles.warps, tiles.stages),
    )


def gate(
    stream: Stream,
    weight: Tensor,
    out: Tensor,
    rows: int,
    eps: float,
    tiles: Tiles,
    launch: Launch,
    gelu: bool = False,
) -> None:
    """out = silu(g) * u of norm(x) @ weight^T = (g, u), weight [2 * inner, hidden], out [padded rows, inner].

    With `gelu` the tanh form of GELU stands for SiLU.
    """
    inner, inputs = weight.shape[0] // 2, weight.shape[1]
    tiles = fitted(replace(tiles, columns=tiles.columns // 2), inner, inputs)
    tiles = replace(tiles, columns=tiles.columns * 2, parts=1)
    block, count = block_rows(rows), stream.squares.shape[0]
    _gate_kernel[(padded(rows) // block, 2 * inner // tiles.columns)](
        stream.scaled,
        stream.squares,
        weight,
        out,
        stream.squares.stride(0),
        eps,
        INNER=inner,
        K=inputs,
        TILES=count,
        TILES_2=size_2(count),
        BN=tiles.columns,
        BM=block,
        BK=tiles.depth,
        GELU=gelu,
        OVERLAP=launch.overlap,
        PRECISION=tiles.precision,
        EARLY=tiles.early,
        AHEAD=tiles.ahead // tiles.depth * tiles.depth if launch.overlap and launch.prefetch else 0,
        **options(launch, tiles.warps, tiles.stages),
    )


def add(
    a: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    norm: Tensor,
    out: Stream,
    rows: int,
    scratch: Scratch,
    tiles: Tiles,
    launch: Launch,
) -> None:
    """out = residual + a @ weight^T, weight [hidden, inputs], a [padded rows, inputs]; `norm` is the one that is next.

    `out` may be the residual's own memory.
    """
    tile = weight.shape[0] // out.squares.shape[0]
    assert tile == tile_width(tile), f"the stream's tiles must be a power of two wide, got {tile}"
    before, tiles = out.x if residual is None else residual, replace(tiles, columns=tile)
    _add(a, weight, before, norm, out, rows, scratch, tiles, launch, residual is not None, True)


def multiply(a: Tensor, weight: Tensor, out: Tensor, rows: int, scratch: Scratch, tiles: Tiles, launch: Launch) -> None:
    """out = a @ weight^T, weight [outputs, inputs], a [padded rows, inputs], out [padded rows, outputs]."""
    _add(a, weight, out, weight, Stream(out, out, scratch.sums[None]), rows, scratch, tiles, launch, False, False)


def _add(
    a: Tensor,
    weight: Tensor,
    before: Tensor,
    norm: Tensor,
    out: Stream,
    rows: int,
    scratch: Scratch,
    tiles: Tiles,
    launch: Launch,
    add: bool,
    scaled: bool,
) -> None:
    outputs, inputs = weight.shape
    tiles, block = fitted(tiles, outputs, inputs), block_rows(rows)
    _add_kernel[(padded(rows) // block, outputs // tiles.columns, tiles.splits)](
        a,
        weight,
        before,
        norm,
        out.x,
        out.scaled,
        out.squares,
        scratch.sums,
        scratch.finished,
        out.squares.stride(0),
        N=outputs,
        K=inputs,
        BN=tiles.columns,
        BM=block,
        BK=tiles.depth,
        PARTS=tiles.parts,
        SPLITS=tiles.splits,
        ADD=add,
        SCALED=scaled,
        OVERLAP=launch.overlap,
        PRECISION=tiles.precision,
        EARLY=tiles.early,
        AHEAD=tiles.ahead // tiles.depth * tiles.depth if launch.overlap and launch.prefetch else 0,
        **options(launch, tiles.warps, tiles.stages),
    )


def size_2(width: int) -> int:
    """A block's width must be a power of two."""
    size: int = triton.next_power_of_2(width)
    return size


def stream_tile(stream: Stream) -> int:
    return stream.x.shape[1] // stream.squares.shape[0]


def widths(stream: Stream) -> dict[str, int]:
    """What kernels that store whole rows of the stream are compiled for."""
    hidden = stream.x.shape[1]
    return {"H": hidden, "H_2": size_2(hidden), "TILE": stream_tile(stream)}


def take(rows: Tensor, norm: Tensor, stream: Stream, launch: Launch) -> None:
    """Rows [N, hidden] enter the stream; a step begins here."""
    memory = stream.x, stream.scaled, stream.squares, stream.squares.stride(0)
    _take_kernel[(rows.shape[0],)](rows, norm, *memory, **widths(stream), OVERLAP=launch.overlap, **options(PLAIN))


def finish(stream: Stream, norm: Tensor, rows: int, eps: float, launch: Launch) -> Tensor:
    """The first rows of the stream, normed: [rows, hidden]."""
    hidden = stream.x.shape[1]
    out = torch.empty_like(stream.x[:rows])
    _finish_kernel[(rows,)](
        stream.x, norm, out, eps, H=hidden, H_2=size_2(hidden), OVERLAP=launch.overlap, **options(launch, 8)
    )
    return out


@dataclass(frozen=True, slots=True)
class Stack:
    """The memory in which up to `rows` rows pass through pre-norm layers."""

    rows: int
    plan: Plan
    launch: Launch
    stream: Stream
    """After a layer's end."""
    middle: Stream
    """After its attention."""
    mixed: Tensor
    act: Tensor
    scratch: Scratch

    @classmethod
    def allocate(cls, rows: int, room: int, layer: LayerRows, plan: Plan, launch: Launch) -> Stack:
        """`room` rows are stored, of which blocks at the end may be padding."""
        hidden, tile_o = layer.o.shape[0], tile_width(layer.o.shape[0], plan.o.columns)
        tile, like = tile_width(hidden, plan.down.columns), layer.o
        splits = max(plan.down.splits, plan.o.splits, plan.enter.splits)
        return cls(
            rows,
            plan,
            launch,
            stream=Stream.allocate(room, hidden, tile, like),
            middle=Stream.allocate(room, hidden, tile_o, like),
            mixed=like.new_zeros(room, layer.o.shape[1]),
            act=like.new_zeros(room, layer.down.shape[1]),
            scratch=Scratch.allocate(splits * hidden * room, hidden * room // MIN_ROWS, like.device),
        )

    def layer(
        self, layer: LayerRows, norm: Tensor, rows: int, qkv: Tensor, mix: Callable[[Tensor, Tensor], None]
    ) -> None:
        """One layer of `rows` rows. `mix` makes of qkv [rows, ...] what stands in `mixed`; `norm` is the next one's."""
        plan, launch, scratch = self.plan, self.launch, self.scratch
        project(self.stream, layer.qkv, qkv, rows, layer.eps, plan.qkv, launch)
        mix(qkv, self.mixed)
        add(self.mixed, layer.o, self.stream.x, layer.mlp_norm, self.middle, rows, scratch, plan.o, launch)
        gate(self.middle, layer.gate_up, self.act, rows, layer.eps, plan.gate, launch)
        add(self.act, layer.down, self.middle.x, norm, self.stream, rows, scratch, plan.down, launch)


def next_norms(layers: Sequence[LayerRows], last: Tensor) -> list[Tensor]:
    """What each layer's output is scaled by."""
    return [*(layer.norm for layer in layers[1:]), last]


# ---- the depth decoder's frame ----


@dataclass(frozen=True, slots=True)
class DepthWeights:
    """What a frame reads, laid out for the kernels; shared by all shapes."""

    layers: list[LayerRows]
    qk_norms: list[Norms]
    """For each layer that norms queries and keys: [head_dim] of either."""
    project: Tensor | None
    """[hidden, backbone_hidden]; None where the two widths are one."""
    bias: Tensor | None
    """[hidden], that the projection adds."""
    inputs: list[Tensor]
    """For each codebook but the last: its embeddings after the projection, [V, hidden]."""
    heads: Tensor
    """[codebooks - 1, codebook_size, hidden]"""
    norm: Tensor
    turns: Tensor
    """[codebooks, head_dim], see half_turns."""
    counts: tuple[int, int]
    """Query heads and key heads of a layer."""

    @classmethod
    def of(cls, decoder: FrameDecoder, codebook_size: int) -> DepthWeights:
        """From a decoder in eval mode; ids from `codebook_size` on are never drawn. Raises ValueError, see exactly
        and check_widths."""
        tables, config, projection = decoder.prepared(), decoder.config, decoder.projection
        norm, heads = tables.norm, torch.stack([head[:, :codebook_size].t() for head in tables.heads])
        places = torch.arange(config.num_codebooks, device=norm.device)
        check_widths(heads[0], *(() if projection is None else (projection.weight,)))
        return cls(
            layers=[LayerRows.of(layer) for layer in tables.layers],
            qk_norms=[None if rows is None else (rows[0], rows[config.num_heads]) for rows in tables.qk_norms],
            project=None if projection is None else projection.weight.contiguous(),
            bias=None if projection is None else projection.bias,
            inputs=tables.inputs,
            heads=exactly(heads, norm.dtype),
            norm=norm,
            turns=half_turns(places, decoder.inv_freq, norm.dtype),
            counts=(config.num_heads, config.num_kv_heads),
        )

    @property
    def backbone_hidden(self) -> int:
        return len(self.norm) if self.project is None else self.project.shape[1]


def half_turns(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> Tensor:
    """positions [n] -> [n, head_dim]: the cosines, then the sines of each pair's angle."""
    cos, sin = cos_sin(positions, inv_freq, dtype)
    half = inv_freq.shape[0]
    return torch.cat((cos[:, :half], sin[:, :half]), 1)


def exactly(head: Tensor, dtype: torch.dtype) -> Tensor:
    """A head's float32 weights in `dtype`, if nothing is lost.

    Products of two bfloat16 numbers are exact in float32: a checkpoint whose heads are bfloat16 numbers needs no
    float32 ones. Raises ValueError for other heads.
    """
    rounded = head.to(dtype)
    if not torch.equal(rounded.float(), head.float()):
        raise ValueError(f"expected a head that is {dtype} numbers, got others; run this stage unfused")
    return rounded.contiguous()


@dataclass(frozen=True, slots=True)
class DepthFrame:
    """One frame of up to `rows` rows: memory and launches. Made once a shape."""

    weights: DepthWeights
    stack: Stack
    hidden: Tensor
    """[padded rows, backbone_hidden]"""
    bias: Tensor | None
    """[padded rows, hidden]: what the projection adds to each."""
    qkv: Tensor
    """[layers, codebooks * rows, (heads + 2 * kv_heads) * head_dim], position by position."""
    logits: Tensor
    """[rows, codebook_size] float32"""

    @classmethod
    def allocate(cls, weights: DepthWeights, rows: int, launch: Launch = PLAIN, plan: Plan | None = None) -> DepthFrame:
        like, books, first = weights.norm, len(weights.inputs) + 1, weights.layers[0]
        room = max(padded(2 * rows), -(-(rows + padded(rows)) // MAX_ROWS) * MAX_ROWS)
        return cls(
            weights,
            Stack.allocate(rows, room, first, plan or depth_plan(rows), launch),
            hidden=like.new_zeros(padded(rows), weights.backbone_hidden),
            bias=None if weights.bias is None else weights.bias.repeat(padded(rows), 1),
            qkv=like.new_zeros(len(weights.layers), books * rows, first.qkv.shape[0]),
            logits=torch.zeros(rows, weights.heads.shape[1], device=like.device),
        )

    def run(self, hidden: Tensor, code0: Tensor, rows: SamplingRows, frame: Tensor) -> Tensor:
        """hidden [R, backbone_hidden], code0 and frame [B] -> codes [B, K], R = rows = B, or 2 B with guidance."""
        weights, stack, books = self.weights, self.stack, len(self.weights.inputs) + 1
        assert hidden.shape[0] == stack.rows, f"memory of {stack.rows} rows, got {hidden.shape[0]}"
        codes = torch.empty(code0.shape[0], books, dtype=torch.int64, device=code0.device)
        self.hidden[: stack.rows].copy_(hidden)
        self._begin(code0, codes)
        for book in range(1, books):
            self._layers(0 if book == 1 else book, 2 if book == 1 else 1)
            head, eps = weights.heads[book - 1], weights.layers[0].eps
            project(stack.stream, head, self.logits, stack.rows, eps, stack.plan.head, stack.launch)
            self._choose(rows, frame, codes, book)
        return codes

    def _begin(self, code0: Tensor, codes: Tensor) -> None:
        """Rows of position 1 first, so that those that go on stand in one place; then the rows of position 0."""
        stack, weights, stream = self.stack, self.weights, self.stack.stream
        norm, rows = weights.layers[0].norm, stack.rows
        _begin_kernel[(code0.shape[0],)](
            code0,
            codes,
            codes.shape[1],
            weights.inputs[0],
            norm,
            stream.x,
            stream.scaled,
            stream.squares,
            stream.squares.stride(0),
            **widths(stream),
            GUIDED=rows > code0.shape[0],
            OVERLAP=stack.launch.overlap,
            **options(PLAIN),  # it waits for all before it, so that the step's inputs are there for the others
        )
        tail = Stream(stream.x[rows:], stream.scaled[rows:], stream.squares[:, rows:])
        if weights.project is None:
            take(self.hidden[:rows], norm, tail, stack.launch)
            return
        plan, launch = stack.plan, stack.launch
        add(self.hidden, weights.project, self.bias, norm, tail, rows, stack.scratch, plan.enter, launch)

    def _layers(self, first: int, new: int) -> None:
        """`new` positions from `first` on through all layers."""
        weights, stack = self.weights, self.stack
        rows = stack.rows
        norms = next_norms(weights.layers, weights.norm)
        for layer, norm, slab, qk_norms in zip(weights.layers, norms, self.qkv, weights.qk_norms, strict=True):

            def mix_in(qkv: Tensor, mixed: Tensor, slab: Tensor = slab, qk_norms: Norms = qk_norms) -> None:
                counts, eps = weights.counts, weights.layers[0].eps
                mix(slab, weights.turns, mixed, rows, first, new, counts, stack.launch, qk_norms, eps)

            stack.layer(layer, norm, new * rows, slab[first * rows :], mix_in)

    def _choose(self, rows: SamplingRows, frame: Tensor, codes: Tensor, book: int) -> None:
        """Draws codes[:, book] from the logits; unless it is the last, its embedding enters the stream."""
        embed = None if book == codes.shape[1] - 1 else self.weights.inputs[book]
        size = self.logits.shape[1]
        stack, norm = self.stack, self.weights.layers[0].norm
        guided = stack.rows > codes.shape[0]
        rows.depth.note(lambda: self.logits)
        choose(self.logits, rows, rows.depth, frame, codes, book, guided, size, stack.stream, norm, embed, stack.launch)


def choose(
    logits: Tensor,
    rows: SamplingRows,
    filter: Filter,
    frame: Tensor,
    codes: Tensor,
    book: int,
    guided: bool,
    size: int,
    stream: Stream,
    norm: Tensor,
    embed: Tensor | None,
    launch: Launch,
    first: bool = False,
) -> None:
    """codes[:, book] from logits [R, V or more] as engine.sampling says; `embed` [V, hidden] of them enters the stream.

    With `first`, V = size + reserved ids + the end of speech, and what code 0 needs is heeded: values that were had,
    reserved ids, the least length. Else V = size.
    """
    ids = rows.seen.shape[1] if first else size
    _choose_kernel[(codes.shape[0],)](
        logits,
        logits.stride(0),
        rows.seen,
        rows.seen.stride(0),
        rows.repetition_penalty,
        rows.repetition_penalty.stride(0),
        rows.min_frames,
        rows.min_frames.stride(0),
        filter.temperature,
        filter.temperature.stride(0),
        filter.last,
        filter.last.stride(0),
        filter.top_p,
        filter.top_p.stride(0),
        rows.cfg_scale,
        rows.cfg_scale.stride(0),
        rows.seed,
        rows.seed.stride(0),
        frame,
        codes,
        book,
        codes.shape[1],
        stream.x if embed is None else embed,
        norm,
        stream.x,
        stream.scaled,
        stream.squares,
        stream.squares.stride(0),
        V=ids,
        V_2=size_2(ids),
        SIZE=size,
        **widths(stream),
        GUIDED=guided,
        FIRST=first,
        EMBED=embed is not None,
        OVERLAP=launch.overlap,
        **options(launch),
    )


def mix(
    slab: Tensor,
    turns: Tensor,
    mixed: Tensor,
    rows: int,
    first: int,
    new: int,
    heads: tuple[int, int],
    launch: Launch,
    norms: Norms = None,
    eps: float = 0.0,
) -> None:
    """Attention of `new` positions from `first` on over all so far, whose queries and keys are normed by `norms`.

    slab [positions * rows, (heads + 2 * kv_heads) * head_dim] -> mixed [new * rows, heads * head_dim]. The first two
    positions are computed together and stand in falling order.
    """
    positions, head_dim = turns.shape
    q_norm, k_norm = norms or (turns, turns)
    _mix_kernel[(rows, heads[0], new)](
        slab,
        q_norm,
        k_norm,
        turns,
        mixed,
        rows,
        first,
        head_dim**-0.5,
        eps,
        NORMED=norms is not None,
        HEADS=heads[0],
        KV=heads[1],
        HALF=head_dim // 2,
        HALF_2=size_2(head_dim // 2),
        POSITIONS=size_2(positions),
        OVERLAP=launch.overlap,
        **options(launch, 1),  # within a warp no sum needs a barrier
    )


# ---- the backbone ----


@dataclass(frozen=True, slots=True)
class BackboneWeights:
    """What decode and prefill read, laid out for the kernels; shared by all shapes."""

    layers: list[LayerRows]
    qk_norms: list[Tensor]
    """Each layer's, [heads + kv_heads, head_dim]."""
    norm: Tensor
    turns: Tensor
    """[max_positions, head_dim], see half_turns."""
    table: Tensor
    """[codebooks * V, hidden]: audio embeddings."""
    num_codebooks: int
    head: Tensor
    """[V + 1 and padding, hidden], of code 0."""
    counts: tuple[int, int]
    """Query heads and key heads of a layer."""

    @classmethod
    def of(
        cls, backbone: Backbone, table: Tensor, num_codebooks: int, head: Tensor, max_positions: int
    ) -> BackboneWeights:
        """From a backbone in eval mode and the float32 head [V + 1, hidden]. Raises ValueError, see exactly."""
        config, layers = backbone.config, backbone.prepared()
        room = F.pad(head, (0, 0, 0, -head.shape[0] % MAX_ROWS))
        return cls(
            layers=[LayerRows.of(layer) for layer, _ in layers],
            qk_norms=[norm.contiguous() for _, norm in layers],
            norm=backbone.norm.weight,
            turns=half_turns(torch.arange(max_positions, device=table.device), backbone.inv_freq, table.dtype),
            table=table,
            num_codebooks=num_codebooks,
            head=exactly(room, table.dtype),
            counts=(config.num_heads, config.num_kv_heads),
        )

    @property
    def head_dim(self) -> int:
        return self.turns.shape[1]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the new positions of R sequences stand: T of each, position and validity [R, T], slot [R]."""

    kv: PagedKV
    positions: Tensor
    valid: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class BackboneStep:
    """One position of up to `rows` sequences: memory and launches. Made once a shape."""

    weights: BackboneWeights
    stack: Stack
    qkv: Tensor
    sums: Scratch
    """Of attention, whose positions `splits` programs share."""
    splits: int

    @classmethod
    def allocate(
        cls, weights: BackboneWeights, rows: int, launch: Launch = PLAIN, plan: Plan | None = None
    ) -> BackboneStep:
        first, (heads, kv_heads) = weights.layers[0], weights.counts
        splits = attention_splits(rows * kv_heads)
        piece = size_2(heads // kv_heads) * (weights.head_dim + 2)
        device = weights.table.device
        return cls(
            weights,
            Stack.allocate(rows, padded(rows), first, plan or backbone_plan(rows), launch),
            qkv=weights.table.new_zeros(padded(rows), first.qkv.shape[0]),
            sums=Scratch.allocate(rows * kv_heads * splits * piece, rows * kv_heads, device),
            splits=splits,
        )

    def run(self, codes: Tensor, places: Places) -> Tensor:
        """codes [B, K] of the last frame -> normed states [R, hidden]; R = rows = B, or 2 B with the same codes.

        Valid rows enter the cache.
        """
        weights, stack = self.weights, self.stack
        self._begin(codes)
        norms = next_norms(weights.layers, weights.norm)
        for index, (layer, norm) in enumerate(zip(weights.layers, norms, strict=True)):

            def mix_in(qkv: Tensor, mixed: Tensor, index: int = index) -> None:
                self.attend(index, places)

            stack.layer(layer, norm, stack.rows, self.qkv, mix_in)
        return finish(stack.stream, weights.norm, stack.rows, weights.layers[0].eps, stack.launch)

    def _begin(self, codes: Tensor) -> None:
        """The frames' embeddings, added, enter the stream."""
        weights, stack, stream = self.weights, self.stack, self.stack.stream
        _frames_kernel[(stack.rows,)](
            codes,
            weights.table,
            weights.layers[0].norm,
            stream.x,
            stream.scaled,
            stream.squares,
            stream.squares.stride(0),
            codes.shape[0],
            BOOKS=weights.num_codebooks,
            VOCABULARY=weights.table.shape[0] // weights.num_codebooks,
            **widths(stream),
            OVERLAP=stack.launch.overlap,
            **options(PLAIN, 8),  # it waits for all before it, so that the step's inputs are there for the others
        )

    def attend(self, index: int, places: Places) -> None:
        """Norms and turns queries and keys, stores the new position, and mixes the values of all so far."""
        weights, stack, kv = self.weights, self.stack, places.kv
        heads, kv_heads = weights.counts
        norms = weights.qk_norms[index]
        _pages_kernel[(stack.rows, kv_heads, self.splits)](
            self.qkv,
            norms[0],
            norms[-1],
            weights.turns,
            kv.keys[index],
            kv.values[index],
            kv.page_table,
            kv.page_table.stride(0),
            places.slots,
            places.positions,
            places.valid,
            stack.mixed,
            self.sums.sums,
            self.sums.finished,
            weights.head_dim**-0.5,
            weights.layers[index].eps,
            HEADS=heads,
            KV=kv_heads,
            HALF=weights.head_dim // 2,
            GROUP_2=size_2(heads // kv_heads),
            PAGE=kv.page_size,
            BS=64,
            SPLITS=self.splits,
            OVERLAP=stack.launch.overlap,
            **options(stack.launch, 4, 3),
        )


def attention_splits(programs: int, wanted: int = 256) -> int:
    """How many share one of the `programs` pieces of attention, so that there is work for all multiprocessors."""
    return max(1, min(16, size_2(wanted // programs)))


@dataclass(frozen=True, slots=True)
class FirstCode:
    """Code 0 of up to `rows` sequences: memory and launches. Made once a shape."""

    weights: BackboneWeights
    rows: int
    launch: Launch
    stream: Stream
    """Holds the states; nothing enters it."""
    logits: Tensor
    """[padded rows, V + 1 and padding] float32"""
    scratch: Scratch

    @classmethod
    def allocate(cls, weights: BackboneWeights, rows: int, launch: Launch = PLAIN) -> FirstCode:
        (outputs, hidden), room, device = weights.head.shape, padded(rows), weights.head.device
        stream = Stream.allocate(room, hidden, tile_width(hidden), weights.head)
        logits = torch.zeros(room, outputs, device=device)
        return cls(weights, rows, launch, stream, logits, Scratch.allocate(1, 1, device))

    def run(self, hidden: Tensor, rows: SamplingRows, frame: Tensor, size: int) -> Tensor:
        """Normed states [R, hidden] of each sequence's last position, frame [B] -> code 0 of that frame, [B].

        Ids from `size` on are reserved, but for the last, which ends speech.
        """
        codes = torch.empty(frame.shape[0], 1, dtype=torch.int64, device=frame.device)
        self.stream.x[: self.rows].copy_(hidden)
        tiles = backbone_plan(self.rows).head
        multiply(self.stream.x, self.weights.head, self.logits, self.rows, self.scratch, tiles, self.launch)
        guided, norm = self.rows > codes.shape[0], self.weights.norm
        choose(
            self.logits,
            rows,
            rows.first,
            frame,
            codes,
            0,
            guided,
            size,
            self.stream,
            norm,
            None,
            self.launch,
            first=True,
        )
        return codes[:, 0]


@dataclass(frozen=True, slots=True)
class BackboneChunk:
    """`length` positions of up to `sequences` sequences: memory and launches. Made once a shape."""

    weights: BackboneWeights
    stack: Stack
    sequences: int
    length: int
    qkv: Tensor

    @classmethod
    def allocate(
        cls, weights: BackboneWeights, sequences: int, length: int, launch: Launch = PLAIN, plan: Plan | None = None
    ) -> BackboneChunk:
        rows, first = sequences * length, weights.layers[0]
        stack = Stack.allocate(rows, padded(rows), first, plan or chunk_plan(rows), launch)
        return cls(weights, stack, sequences, length, weights.table.new_zeros(padded(rows), first.qkv.shape[0]))

    def run(self, embeds: Tensor, places: Places) -> Tensor:
        """embeds [R, T, hidden] -> normed states [R, T, hidden]; valid positions enter the cache."""
        weights, stack = self.weights, self.stack
        take(embeds.flatten(0, 1), weights.layers[0].norm, stack.stream, stack.launch)
        norms = next_norms(weights.layers, weights.norm)
        for index, (layer, norm) in enumerate(zip(weights.layers, norms, strict=True)):

            def mix_in(qkv: Tensor, mixed: Tensor, index: int = index) -> None:
                self._turn(index, places)
                self._spread(index, places)

            stack.layer(layer, norm, stack.rows, self.qkv, mix_in)
        return finish(stack.stream, weights.norm, stack.rows, weights.layers[0].eps, stack.launch).view(embeds.shape)

    def _turn(self, index: int, places: Places) -> None:
        weights, kv = self.weights, places.kv
        heads, kv_heads = weights.counts
        _turn_kernel[(self.stack.rows,)](
            self.qkv,
            weights.qk_norms[index],
            weights.turns,
            places.positions,
            places.valid,
            kv.page_table,
            kv.page_table.stride(0),
            places.slots,
            kv.keys[index],
            kv.values[index],
            places.slots,
            0,
            self.length,
            weights.layers[index].eps,
            HEADS=heads,
            KV=kv_heads,
            HEADS_2=size_2(heads + kv_heads),
            HALF=weights.head_dim // 2,
            PAGE=kv.page_size,
            SEGMENTS_2=16,
            ONCE=False,
            OVERLAP=self.stack.launch.overlap,
            **options(self.stack.launch),
        )

    def _spread(self, index: int, places: Places) -> None:
        weights, kv, queries = self.weights, places.kv, min(32, max(16, size_2(self.length)))
        heads, kv_heads = weights.counts
        _spread_kernel[(-(-self.length // queries), heads, self.sequences)](
            self.qkv,
            places.positions,
            places.valid,
            kv.page_table,
            kv.page_table.stride(0),
            places.slots,
            kv.keys[index],
            kv.values[index],
            places.slots,
            places.slots,
            self.stack.mixed,
            self.length,
            weights.head_dim**-0.5,
            HEADS=heads,
            KV=kv_heads,
            D=weights.head_dim,
            PAGE=kv.page_size,
            WINDOW=0,
            BQ=queries,
            BS=64,
            OVERLAP=self.stack.launch.overlap,
            **options(self.stack.launch, 4, 3),
        )


# ---- the text encoder ----


@dataclass(frozen=True, slots=True)
class TextLayerRows:
    """A layer's tensors; norms as float32 1 + weight, matrices as they are stored, [out, in]."""

    before_attention: Tensor
    qkv: Tensor
    qk_norm: Tensor
    """[heads + kv_heads, head_dim]"""
    o: Tensor
    after_attention: Tensor
    before_mlp: Tensor
    gate_up: Tensor
    down: Tensor
    after_mlp: Tensor
    kind: str

    @classmethod
    def of(cls, layer: TextLayer, kind: str, counts: tuple[int, int]) -> TextLayerRows:
        attention, (heads, kv_heads) = layer.self_attn, counts
        norms = raised(attention.q_norm).expand(heads, -1), raised(attention.k_norm).expand(kv_heads, -1)
        return cls(
            raised(layer.pre_self_attn_layernorm),
            attention.qkv_proj.weight,
            torch.cat(norms),
            attention.o_proj.weight,
            raised(layer.post_self_attn_layernorm),
            raised(layer.pre_feedforward_layernorm),
            layer.mlp.gate_up_proj.weight,
            layer.mlp.down_proj.weight,
            raised(layer.post_feedforward_layernorm),
            kind,
        )


def raised(norm: RMSNorm) -> Tensor:
    """What a zero-centred norm multiplies by, float32."""
    return 1.0 + norm.weight.float()


@dataclass(frozen=True, slots=True)
class TextWeights:
    """What the encoder reads, laid out for the kernels; shared by all shapes."""

    encoder: TextEncoder
    layers: list[TextLayerRows]
    norm: Tensor
    projection: Tensor
    """[backbone_hidden, hidden]"""
    turns: dict[str, Tensor]
    """By kind of layer: [max_length, head_dim], see half_turns."""

    @classmethod
    def of(cls, encoder: TextEncoder, projection: Tensor, max_length: int) -> TextWeights:
        config, places = encoder.config, torch.arange(max_length, device=projection.device)
        counts = config.num_heads, config.num_kv_heads
        layers = cast(Iterable[TextLayer], encoder.layers)
        return cls(
            encoder,
            [TextLayerRows.of(layer, kind, counts) for layer, kind in zip(layers, config.layer_types, strict=True)],
            raised(encoder.norm),
            projection,
            {k: half_turns(places, encoder.get_buffer(f"inv_freq_{k}"), projection.dtype) for k in config.rope},
        )


@dataclass(frozen=True, slots=True)
class TextPack:
    """`tokens` tokens of up to `segments` segments, each of up to `longest`: memory and launches. Made once a shape."""

    weights: TextWeights
    segments: int
    tokens: int
    longest: int
    plan: Plan
    launch: Launch
    stream: Stream
    branch: Tensor
    """[padded rows, hidden]: what a residual branch brings."""
    qkv: Tensor
    mixed: Tensor
    act: Tensor
    scratch: Scratch
    out: Tensor
    """[padded rows, backbone_hidden]"""

    @classmethod
    def allocate(
        cls, weights: TextWeights, segments: int, tokens: int, longest: int, launch: Launch = PLAIN
    ) -> TextPack:
        first, like, plan = weights.layers[0], weights.projection, text_plan(tokens)
        room, hidden = padded(tokens), like.shape[1]
        splits = max(plan.o.splits, plan.down.splits)
        return cls(
            weights,
            segments,
            tokens,
            longest,
            plan,
            launch,
            stream=Stream.allocate(room, hidden, tile_width(hidden, plan.enter.columns), like),
            branch=like.new_zeros(room, hidden),
            qkv=like.new_zeros(room, first.qkv.shape[0]),
            mixed=like.new_zeros(room, first.o.shape[1]),
            act=like.new_zeros(room, first.down.shape[1]),
            scratch=Scratch.allocate(splits * hidden * room, hidden * room // MIN_ROWS, like.device),
            out=like.new_zeros(room, like.shape[0]),
        )

    def run(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """ids [T] of segments one after the other, lengths [B], 0 where there is none -> what the backbone receives,
        [T, backbone_hidden]. Behind the last segment it means nothing."""
        weights, eps = self.weights, self.weights.encoder.config.eps
        places = lengths.cumsum(0) - lengths, lengths
        self._begin(ids)
        norms = [*(layer.before_attention for layer in weights.layers[1:]), weights.norm]
        for layer, norm in zip(weights.layers, norms, strict=True):
            self._layer(layer, norm, places, eps)
        project(self.stream, weights.projection, self.out, self.tokens, eps, self.plan.head, self.launch)
        return self.out[: self.tokens]

    def _begin(self, ids: Tensor) -> None:
        weights, stream, embedding = self.weights, self.stream, self.weights.encoder.embed_tokens
        factor = torch.tensor(stream.x.shape[1] ** 0.5).to(stream.x.dtype).item()
        _tokens_kernel[(self.tokens,)](
            ids,
            embedding.weight,
            embedding.eoi_embedding,
            weights.encoder.config.eoi_id,
            factor,
            weights.layers[0].before_attention,
            stream.x,
            stream.scaled,
            stream.squares,
            stream.squares.stride(0),
            **widths(stream),
            OVERLAP=self.launch.overlap,
            **options(PLAIN),
        )

    def _layer(self, layer: TextLayerRows, norm: Tensor, places: tuple[Tensor, Tensor], eps: float) -> None:
        plan, launch, stream, scratch, rows = self.plan, self.launch, self.stream, self.scratch, self.tokens
        project(stream, layer.qkv, self.qkv, rows, eps, plan.qkv, launch)
        self._turn(layer, places[0], eps)
        self._spread(layer, *places)
        multiply(self.mixed, layer.o, self.branch, rows, scratch, plan.o, launch)
        self._rejoin(layer.after_attention, layer.before_mlp, eps)
        gate(stream, layer.gate_up, self.act, rows, eps, plan.gate, launch, gelu=True)
        multiply(self.act, layer.down, self.branch, rows, scratch, plan.down, launch)
        self._rejoin(layer.after_mlp, norm, eps)

    def _turn(self, layer: TextLayerRows, starts: Tensor, eps: float) -> None:
        config, turns = self.weights.encoder.config, self.weights.turns[layer.kind]
        heads, kv_heads = config.num_heads, config.num_kv_heads
        nothing = starts, starts, starts, 0, starts, self.qkv, self.qkv
        _turn_kernel[(self.tokens,)](
            self.qkv,
            layer.qk_norm,
            turns,
            *nothing,
            starts,
            self.segments,
            1,
            eps,
            HEADS=heads,
            KV=kv_heads,
            HEADS_2=size_2(heads + kv_heads),
            HALF=config.head_dim // 2,
            PAGE=0,
            SEGMENTS_2=max(16, size_2(self.segments)),
            ONCE=True,
            OVERLAP=self.launch.overlap,
            **options(self.launch),
        )

    def _spread(self, layer: TextLayerRows, starts: Tensor, lengths: Tensor) -> None:
        config, queries = self.weights.encoder.config, min(32, max(16, size_2(self.longest)))
        nothing = starts, starts, starts, 0, starts, self.qkv, self.qkv
        _spread_kernel[(-(-self.longest // queries), config.num_heads, self.segments)](
            self.qkv,
            *nothing,
            starts,
            lengths,
            self.mixed,
            1,
            config.score_scale,
            HEADS=config.num_heads,
            KV=config.num_kv_heads,
            D=config.head_dim,
            PAGE=0,
            WINDOW=0 if layer.kind == FULL else config.window,
            BQ=queries,
            BS=32,
            OVERLAP=self.launch.overlap,
            **options(self.launch, 4, 2),
        )

    def _rejoin(self, after: Tensor, norm: Tensor, eps: float) -> None:
        """The branch, normed with `after`, is added to the stream; `norm` is the one that is next."""
        stream = self.stream
        _rejoin_kernel[(self.tokens,)](
            self.branch,
            after,
            norm,
            stream.x,
            stream.scaled,
            stream.squares,
            stream.squares.stride(0),
            eps,
            **widths(stream),
            OVERLAP=self.launch.overlap,
            **options(self.launch),
        )
