"""Plain PyTorch twins of the fused kernels: what each of them computes, in the precision of the tensors that it gets.

It knows no Triton: a twin takes the tensors that a launch takes and returns what the kernel stores. Upcast inputs give
the reference; inputs as they are show what PyTorch itself makes of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.sampling import Filter, SamplingRows, draw, guide, penalise, uniforms

Streams = tuple[Tensor, Tensor, Tensor]
"""x and x times the next norm's weight, [N, hidden]; sums of squares by tile of columns, [tiles, N]."""


def factor(squares: Tensor, width: int, eps: float) -> Tensor:
    """[N, 1]: what a root-mean-square norm multiplies by."""
    return (squares.sum(0) / width + eps).rsqrt()[:, None]


def enter(x: Tensor, norm: Tensor, tile: int) -> Streams:
    """Rows x [N, hidden] of the residual stream."""
    return x, x * norm, x.square().view(len(x), -1, tile).sum(-1).t()


def project(scaled: Tensor, squares: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[N, outputs], of fused.project."""
    return scaled @ weight.t() * factor(squares, scaled.shape[1], eps)


def gate(scaled: Tensor, squares: Tensor, weight: Tensor, eps: float, gelu: bool = False) -> Tensor:
    """[N, inner], of fused.gate."""
    g, up = project(scaled, squares, weight, eps).chunk(2, -1)
    return (F.gelu(g, approximate="tanh") if gelu else F.silu(g)) * up


def add(a: Tensor, weight: Tensor, residual: Tensor | None, norm: Tensor, tile: int) -> Streams:
    """Of fused.add; fused.multiply is the first of the three without a residual."""
    out = a @ weight.t()
    return enter(out if residual is None else residual + out, norm, tile)


def halves_turned(x: Tensor, turns: Tensor) -> Tensor:
    """x [..., head_dim] turned by turns [..., head_dim]: cosines, then sines, of half the channels each."""
    (low, high), (cos, sin) = x.chunk(2, -1), turns.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., width], normed."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def mix(
    slab: Tensor,
    turns: Tensor,
    rows: int,
    first: int,
    new: int,
    counts: tuple[int, int],
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> Tensor:
    """[new * rows, heads * head_dim], of fused.mix."""
    heads, kv = counts
    length = first + new
    order = [1, 0, *range(2, length)] if length > 1 else [0]
    qkv = slab.view(-1, rows, heads + 2 * kv, turns.shape[1])[order[:length]]
    parts = [qkv[:, :, :heads], qkv[:, :, heads : heads + kv]]
    if norms is not None:
        parts = [rms(part, norm, eps) for part, norm in zip(parts, norms, strict=True)]
    q, k = (halves_turned(part, turns[:length, None, None]) for part in parts)
    k, v = (part.repeat_interleave(heads // kv, 2) for part in (k, qkv[:, :, heads + kv :]))
    seen = torch.ones(length, length, dtype=torch.bool, device=slab.device).tril()
    scores = torch.einsum("qrhd,krhd->rhqk", q, k) * turns.shape[1] ** -0.5
    mixed = torch.einsum("rhqk,krhd->qrhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)
    return mixed[[1, 0] if first == 0 else [first]].reshape(new * rows, -1)


def choose(
    logits: Tensor, rows: SamplingRows, filter: Filter, frame: Tensor, book: int, size: int, first: bool = False
) -> Tensor:
    """Ids [B], of fused.choose."""
    requests = frame.shape[0]
    classes = rows.seen.shape[1] if first else size
    scores = logits[:requests, :classes]
    if logits.shape[0] > requests:
        scores = guide(scores, logits[requests : 2 * requests, :classes], rows.cfg_scale)
    if first:
        scores = penalise(scores, rows.seen, rows.repetition_penalty).clone()
        scores[:, size:-1] = -torch.inf
        scores[:, -1].masked_fill_(frame < rows.min_frames, -torch.inf)
    return draw(scores.contiguous(), filter, uniforms(rows.seed, frame, book + 1)[:, book])


def frames(codes: Tensor, table: Tensor, norm: Tensor, tile: int) -> Streams:
    """codes [N, books], table [books * V, hidden]."""
    books = codes.shape[1]
    offsets = torch.arange(books, device=codes.device) * (table.shape[0] // books)
    return enter(F.embedding(codes + offsets, table).sum(1), norm, tile)


def tokens(
    ids: Tensor, table: Tensor, special_row: Tensor, special: int, scale: float, norm: Tensor, tile: int
) -> Streams:
    """ids [N] -> scaled embeddings, but for the special one."""
    x = torch.where((ids == special)[:, None], special_row, F.embedding(ids, table) * scale)
    return enter(x, norm, tile)


def rejoin(branch: Tensor, after: Tensor, x: Tensor, norm: Tensor, tile: int, eps: float) -> Streams:
    """x + norm(branch)."""
    return enter(x + rms(branch, after, eps), norm, tile)


def turned(qkv: Tensor, norms: Tensor, turns: Tensor, eps: float) -> Tensor:
    """qkv [N, heads + 2 * kv, head_dim], norms [heads + kv, head_dim], turns [N, head_dim] -> queries and keys."""
    return halves_turned(rms(qkv[:, : len(norms)], norms, eps), turns[:, None])


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """q [T, heads, head_dim], k and v [S, kv, head_dim], seen [T, S] -> [T, heads * head_dim]."""
    k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v).flatten(1)


# ---- of the codec ----


def conv(
    x: Tensor, weight: Tensor, bias: Tensor, dilation: int, rate: int, streams: int, residual: Tensor | None
) -> Tensor:
    """x [(T + past) * B, C], weight [taps, rate * N, C] -> [T * rate * B, N]."""
    taps = weight.shape[0]
    rows = x.shape[0] - (taps - 1) * dilation * streams
    out = bias + sum(x[i * dilation * streams :][:rows] @ weight[i].t() for i in range(taps))
    out = out.view(-1, streams, rate, bias.shape[0] // rate).transpose(1, 2).flatten(0, 2)
    return out if residual is None else out + residual


def snake(x: Tensor, frequency: Tensor, size: Tensor) -> Tensor:
    """x + sin(x * frequency)^2 * size."""
    return x + (x * frequency).sin().square() * size


def depthwise(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, streams: int) -> Tensor:
    """x [(T + past) * B, C], weight [taps, C] -> [T * B, C], with a layer norm."""
    taps = weight.shape[0]
    rows = x.shape[0] - (taps - 1) * streams
    out = bias + sum(x[i * streams :][:rows] * weight[i] for i in range(taps))
    return F.layer_norm(out, out.shape[1:], scale, shift, 1e-6)
