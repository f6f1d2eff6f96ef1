"""Every fused kernel against its plain twin in float64, on fresh inputs and poisoned outputs.

On a GPU; without one, in Triton's interpreter, which has to be chosen before Triton is imported: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

# justified: without Triton there is no kernel to compare; the twins are compared with it in an interpreter or on a GPU
pytest.importorskip("triton", reason="the kernels need Triton, which comes with PyTorch's CUDA build")

from engine import fused, fused_codec
from engine import fused_twins as twin
from engine.config import Section
from engine.core import SamplingParams
from engine.depth import DepthConfig
from engine.fused import Launch, Scratch, Stream, Tiles
from engine.fused_codec import Conv
from engine.kv_cache import PagedKV
from engine.models import qwen3_tts
from engine.models.qwen3_tts import CodePredictor
from engine.sampling import SamplingState, draw, uniforms
from engine.text import FULL, SLIDING, TextConfig, TextEncoder, within

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEV = "cpu" if INTERPRETED else "cuda"
DT = torch.float32 if INTERPRETED else torch.bfloat16
LAUNCH = fused.PLAIN if INTERPRETED else Launch()
errors: dict[str, float] = {}


def r(*shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    return (torch.randn(*shape, device=DEV) * scale).to(dtype or DT)


def note(name: str, got: Tensor, want: Tensor) -> None:
    error = float((got.double() - want.double()).norm() / want.double().norm())
    errors[name] = max(errors.get(name, 0.0), error)


def poisoned(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.full(shape, torch.nan, device=DEV, dtype=dtype or DT)


def stream_of(rows: int, hidden: int, tile: int) -> Stream:
    room = fused.padded(rows)
    return Stream(r(room, hidden), r(room, hidden), torch.rand(hidden // tile, room, device=DEV) + 0.5)


def blank(rows: int, hidden: int, tile: int) -> Stream:
    room = fused.padded(rows)
    return Stream(poisoned(room, hidden), poisoned(room, hidden), poisoned(hidden // tile, room, dtype=torch.float32))


def streams(name: str, got: Stream, want: tuple[Tensor, Tensor, Tensor], rows: int) -> None:
    parts = got.x[:rows], got.scaled[:rows], got.squares[:, :rows]
    for part, a, b in zip(("x", "scaled", "squares"), parts, want, strict=True):
        note(f"{name}.{part}", a, b)


def products(rows: int, hidden: int, inner: int, outputs: int) -> None:
    d = torch.float64
    s = stream_of(rows, hidden, 16)
    scratch = Scratch.allocate(16 * inner * fused.padded(rows), 100000, torch.device(DEV))
    for tiles in (Tiles(16, 64), Tiles(16, 64, parts=2, warps=2), Tiles(64, 64), Tiles(16, 16, parts=4, stages=1)):
        w, out = r(outputs, hidden, scale=hidden**-0.5), poisoned(fused.padded(rows), outputs)
        fused.project(s, w, out, rows, 1e-5, tiles, LAUNCH)
        note("project", out[:rows], twin.project(s.scaled.to(d), s.squares.to(d), w.to(d), 1e-5)[:rows])
        logits = poisoned(fused.padded(rows), outputs, dtype=torch.float32)
        fused.project(s, w, logits, rows, 1e-5, tiles, LAUNCH)
        note("project to float32", logits[:rows], twin.project(s.scaled.to(d), s.squares.to(d), w.to(d), 1e-5)[:rows])
    for gelu in (False, True):
        w, out = r(2 * inner, hidden, scale=hidden**-0.5), poisoned(fused.padded(rows), inner)
        fused.gate(s, w, out, rows, 1e-5, Tiles(64, 64), LAUNCH, gelu)
        note("gate", out[:rows], twin.gate(s.scaled.to(d), s.squares.to(d), w.to(d), 1e-5, gelu)[:rows])
    for tiles in (Tiles(16, 64), Tiles(32, 64, splits=2), Tiles(64, 32, splits=4), Tiles(16, 64, parts=2, warps=2)):
        a, w, norm, before = (
            r(fused.padded(rows), inner),
            r(hidden, inner, scale=inner**-0.5),
            r(hidden),
            stream_of(rows, hidden, 16),
        )
        tile = fused.tile_width(hidden, tiles.columns)
        for residual in (None, before):
            out = blank(rows, hidden, tile)
            fused.add(a, w, None if residual is None else residual.x, norm, out, rows, scratch, tiles, LAUNCH)
            want = twin.add(a.to(d), w.to(d), None if residual is None else residual.x.to(d), norm.to(d), tile)
            streams("add", out, (want[0][:rows], want[1][:rows], want[2][:, :rows]), rows)
        out = poisoned(fused.padded(rows), hidden)
        fused.multiply(a, w, out, rows, scratch, tiles, LAUNCH)
        note("multiply", out[:rows], (a.to(d) @ w.to(d).t())[:rows])


def frame_attention(rows: int, heads: int, kv: int, head_dim: int, positions: int = 16) -> None:
    slab, turns = r(positions * rows, (heads + 2 * kv) * head_dim), r(positions, head_dim)
    for first, new in ((0, 2), (2, 1), (7, 1), (positions - 1, 1)):
        mixed = poisoned(new * rows, heads * head_dim)
        fused.mix(slab, turns, mixed, rows, first, new, (heads, kv), LAUNCH)
        note("mix", mixed, twin.mix(slab.double(), turns.double(), rows, first, new, (heads, kv)))
        norms, eps = (r(head_dim), r(head_dim)), 1e-6
        mixed = poisoned(new * rows, heads * head_dim)
        fused.mix(slab, turns, mixed, rows, first, new, (heads, kv), LAUNCH, norms, eps)
        exact = norms[0].double(), norms[1].double()
        want = twin.mix(slab.double(), turns.double(), rows, first, new, (heads, kv), exact, eps)
        note("mix with norms", mixed, want)


def draws(requests: int, size: int, hidden: int) -> None:
    state = SamplingState.allocate(requests + 1, size + 4, DEV)
    for i in range(requests):
        params = SamplingParams(
            temperature=(0.9, 0.0, 1.5)[i % 3],
            top_k=(50, 0, 7)[i % 3],
            top_p=(1.0, 0.8, 0.5)[i % 3],
            repetition_penalty=1.3,
            min_frames=i,
            depth_temperature=(0.9, 1.2, 0.0)[i % 3],
            depth_top_k=(50, 0, 3)[i % 3],
            depth_top_p=(0.7, 1.0, 0.9)[i % 3],
            seed=i << 40,
        )
        state.set(i + 1, params, (1.0, 3.0, 0.3)[i % 3])
    state.seen[1:] = torch.rand(requests, size + 4, device=DEV) < 0.2
    rows, frame = state.rows(torch.arange(1, requests + 1, device=DEV)), torch.arange(requests, device=DEV) + 3
    stack = fused.Stack.allocate(
        2 * requests,
        fused.padded(2 * requests),
        fused.LayerRows(
            1e-5,
            *(
                r(hidden) if n in ("norm", "mlp_norm") else r(hidden, hidden)
                for n in ("norm", "qkv", "o", "mlp_norm", "gate_up", "down")
            ),
        ),
        fused.depth_plan(1),
        LAUNCH,
    )
    equal = []
    for first in (False, True):
        for guided in (False, True):
            for book in (0, 5, 15):
                logits = r(2 * requests, size + 8, dtype=torch.float32, scale=3.0)
                logits[0, 3] = torch.nan if book == 5 else logits[0, 3]
                codes = torch.full((requests, 16), -1, dtype=torch.int64, device=DEV)
                table, norm = r(size + 3, hidden), r(hidden)
                fused.choose(
                    logits,
                    rows,
                    rows.first if first else rows.depth,
                    frame,
                    codes,
                    book,
                    guided,
                    size,
                    stack.stream,
                    norm,
                    None if first else table,
                    LAUNCH,
                    first,
                )
                want = twin.choose(
                    logits if guided else logits[:requests],
                    rows,
                    rows.first if first else rows.depth,
                    frame,
                    book,
                    size,
                    first,
                )
                equal.append((codes[:, book] == want).float().mean().item())
                if not first:
                    count = requests * (2 if guided else 1)
                    x = table[codes[:, book]].repeat(2 if guided else 1, 1)
                    streams(
                        "choose",
                        stack.stream,
                        twin.enter(x.double(), norm.double(), fused.stream_tile(stack.stream)),
                        count,
                    )
    errors["choose: other ids"] = 1 - sum(equal) / len(equal)


def whole_rows(rows: int, hidden: int) -> None:
    x, norm, out = r(rows, hidden), r(hidden), blank(rows, hidden, 16)
    fused.take(x, norm, out, LAUNCH)
    streams("take", out, twin.enter(x.double(), norm.double(), 16), rows)
    source = stream_of(rows, hidden, 16)
    note(
        "finish",
        fused.finish(source, norm, rows, 1e-5, LAUNCH),
        twin.rms(source.x[:rows].double(), norm.double(), 1e-5),
    )


def backbone_rows(rows: int, hidden: int, heads: int, kv: int, head_dim: int) -> None:
    """Kernels that a stage launches itself, through stages of one layer whose products are not looked at."""
    d, layer = (
        torch.float64,
        fused.LayerRows(
            1e-6,
            r(hidden),
            r((heads + 2 * kv) * head_dim, hidden),
            r(hidden, heads * head_dim),
            r(hidden),
            r(2 * hidden, hidden),
            r(hidden, hidden),
        ),
    )
    table, norms = r(4 * 50, hidden), r(heads + kv, head_dim)
    norms[:heads], norms[heads:] = norms[0].clone(), norms[-1].clone()
    weights = fused.BackboneWeights([layer], [norms], r(hidden), r(400, head_dim), table, 4, r(64, hidden), (heads, kv))
    config = type("C", (), {"num_layers": 1, "num_kv_heads": kv, "num_heads": heads, "head_dim": head_dim})
    kv_cache = PagedKV.allocate(
        config, num_pages=rows * 20 + 1, page_size=16, num_slots=rows + 1, max_positions=320, dtype=DT, device=DEV
    )
    kv_cache.keys.copy_(r(*kv_cache.keys.shape)), kv_cache.values.copy_(r(*kv_cache.values.shape))
    order = torch.randperm(rows * 20).tolist()
    for slot in range(1, rows + 1):
        kv_cache.assign(slot, [1 + order[20 * (slot - 1) + i] for i in range(20)])
    slots, valid = torch.arange(1, rows + 1, device=DEV), torch.ones(rows, dtype=torch.bool, device=DEV)
    positions = torch.randint(0, 300, (rows,), device=DEV)
    step = fused.BackboneStep.allocate(weights, rows, LAUNCH)
    codes = torch.randint(0, 50, (rows, 4), device=DEV)
    step._begin(codes)
    streams(
        "frames",
        step.stack.stream,
        twin.frames(codes, table.to(d), layer.norm.to(d), fused.stream_tile(step.stack.stream)),
        rows,
    )
    step.qkv.copy_(r(*step.qkv.shape)), step.stack.mixed.fill_(torch.nan)

    def places(slot: int, count: int) -> Tensor:
        p = torch.arange(count, device=DEV)
        return kv_cache.page_table[slot][p // 16] * 16 + p % 16

    keys, values = (t[0].flatten(0, 1).to(d) for t in (kv_cache.keys, kv_cache.values))
    qkv = step.qkv[:rows].view(rows, -1, head_dim).to(d)
    moved = twin.turned(qkv, norms.to(d), weights.turns[positions].to(d), 1e-6)
    want = []
    for i in range(rows):
        at = places(i + 1, int(positions[i]) + 1)
        keys[at[-1]], values[at[-1]] = moved[i, heads:], qkv[i, heads + kv :]
        seen = torch.ones(1, len(at), dtype=torch.bool, device=DEV)
        want.append(twin.attend(moved[i : i + 1, :heads], keys[at], values[at], seen, head_dim**-0.5))
    step.attend(0, fused.Places(kv_cache, positions, valid, slots))
    note("pages", step.stack.mixed[:rows], torch.cat(want))
    note("pages: keys", kv_cache.keys[0].flatten(0, 1)[1:], keys[1:])
    note("pages: values", kv_cache.values[0].flatten(0, 1)[1:], values[1:])
    # a chunk of 20 positions a sequence
    length, start = 20, torch.randint(0, 250, (rows, 1), device=DEV)
    positions = start + torch.arange(length, device=DEV)
    chunk = fused.BackboneChunk.allocate(weights, rows, length, LAUNCH)
    chunk.qkv.copy_(r(*chunk.qkv.shape)), chunk.stack.mixed.fill_(torch.nan)
    where = fused.Places(kv_cache, positions, torch.ones_like(positions, dtype=torch.bool), slots)
    qkv = chunk.qkv[: rows * length].view(rows * length, -1, head_dim).to(d)
    moved = twin.turned(qkv, norms.to(d), weights.turns[positions.flatten()].to(d), 1e-6).view(
        rows, length, heads + kv, head_dim
    )
    want = []
    for i in range(rows):
        at = places(i + 1, int(positions[i, -1]) + 1)
        keys[at[-length:]], values[at[-length:]] = (
            moved[i, :, heads:],
            qkv.view(rows, length, -1, head_dim)[i, :, heads + kv :],
        )
        seen = torch.arange(len(at), device=DEV) <= positions[i][:, None]
        want.append(twin.attend(moved[i, :, :heads], keys[at], values[at], seen, head_dim**-0.5))
    chunk._turn(0, where)
    chunk._spread(0, where)
    note("turn and spread", chunk.stack.mixed[: rows * length], torch.cat(want))
    note("turn: keys", kv_cache.keys[0].flatten(0, 1)[1:], keys[1:])


def text_rows(rows: int, hidden: int) -> None:
    d, out = torch.float64, blank(rows, hidden, 16)
    ids, table, special, norm, after = (
        torch.randint(0, 40, (rows,), device=DEV),
        r(40, hidden),
        r(hidden),
        r(hidden, dtype=torch.float32),
        r(hidden, dtype=torch.float32),
    )
    ids[1] = 7
    memory = out.x, out.scaled, out.squares, out.squares.stride(0)
    fused._tokens_kernel[(rows,)](
        ids, table, special, 7, 33.0, norm, *memory, **fused.widths(out), OVERLAP=False, **fused.options(fused.PLAIN)
    )
    streams("tokens", out, twin.tokens(ids, table.to(d), special.to(d), 7, 33.0, norm.to(d), 16), rows)
    branch, before = r(rows, hidden), out.x[:rows].to(d)
    fused._rejoin_kernel[(rows,)](
        branch,
        after,
        norm,
        *memory[:3],
        memory[3],
        1e-6,
        **fused.widths(out),
        OVERLAP=False,
        **fused.options(fused.PLAIN),
    )
    streams("rejoin", out, twin.rejoin(branch.to(d), after.to(d), before, norm.to(d), 16, 1e-6), rows)


def text_weights(hidden: int, heads: int, kv: int, head_dim: int) -> fused.TextWeights:
    """A layer of each kind; token 39 looks up NaN."""
    encoder = TextEncoder(
        TextConfig.from_dict(
            {
                "vocab_size": 40,
                "hidden_size": hidden,
                "intermediate_size": 2 * hidden,
                "num_attention_heads": heads,
                "num_key_value_heads": kv,
                "head_dim": head_dim,
                "rms_norm_eps": 1e-6,
                "query_pre_attn_scalar": head_dim,
                "sliding_window": 12,
                "eoi_token_index": 39,
                "layer_types": [SLIDING, FULL],
                "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in (FULL, SLIDING)},
            }
        )
    )
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=hidden**-0.5 if parameter.dim() > 1 else 0.3)
    encoder = encoder.to(DEV, DT).requires_grad_(False)
    encoder.embed_tokens.eoi_embedding.fill_(torch.nan)
    return fused.TextWeights.of(encoder, r(2 * hidden, hidden, scale=hidden**-0.5), 128)


def text_attention(weights: fused.TextWeights, lengths: list[int], tokens: int, longest: int) -> None:
    """Turned and attended, segment by segment; where no segment stands nothing is written."""
    d, config = torch.float64, weights.encoder.config
    heads, kv, width = config.num_heads, config.num_kv_heads, config.head_dim
    pack = fused.TextPack.allocate(weights, len(lengths), tokens, longest, LAUNCH)
    sizes = torch.tensor(lengths, device=DEV)
    for layer in weights.layers:
        pack.qkv.copy_(r(*pack.qkv.shape)), pack.mixed.fill_(torch.nan)
        qkv = pack.qkv[: sum(lengths)].view(sum(lengths), -1, width).to(d)
        want = []
        for part in qkv.split(lengths):
            place = torch.arange(len(part), device=DEV)
            moved = twin.turned(part, layer.qk_norm.to(d), weights.turns[layer.kind][: len(part)].to(d), 1e-6)
            seen = torch.ones(len(part), len(part), dtype=torch.bool, device=DEV)
            seen = seen if layer.kind == FULL else within(place[:, None] - place, config.window)
            want.append(twin.attend(moved[:, :heads], moved[:, heads:], part[:, heads + kv :], seen, width**-0.5))
        starts = sizes.cumsum(0) - sizes
        pack._turn(layer, starts, 1e-6)
        pack._spread(layer, starts, sizes)
        note(f"pack {layer.kind}", pack.mixed[: sum(lengths)], torch.cat(want))
        assert pack.mixed[sum(lengths) :].isnan().all()


def text_packs(weights: fused.TextWeights, tokens: int, longest: int) -> None:
    """The whole encoder against the plain one in float64; then no bit of a segment changes with its place, what stands
    before and behind it, and a NaN there."""
    plain = copy.deepcopy(weights.encoder).double()
    pack = fused.TextPack.allocate(weights, 4, tokens, longest, LAUNCH)
    ours, *others = (torch.randint(0, 39, (n,), device=DEV) for n in (11, 5, 16, 3, longest))
    broken = torch.full((9,), 39, device=DEV)

    def encode(*rows: Tensor) -> list[Tensor]:
        sizes = torch.tensor([len(row) for row in rows] + [0] * (4 - len(rows)), device=DEV)
        ids = torch.cat((*rows, torch.zeros(tokens, dtype=torch.int64, device=DEV)))[:tokens]
        states = pack.run(ids, sizes).clone()
        if not (ids == 39).any():
            want = plain(ids, sizes, longest) @ weights.projection.double().t()
            note("text", states[: int(sizes.sum())], want[: int(sizes.sum())])
        return list(states.split([*sizes.tolist(), tokens - int(sizes.sum())]))

    (alone, *_) = encode(ours)
    assert torch.isfinite(alone).all()
    for rows in (
        (ours, *others[:3]),
        (others[0], ours, others[3]),
        (others[3], others[1], ours),
        (broken, ours, broken),
        (others[2], broken, others[0], ours),
        (ours,),
    ):
        place = next(i for i, row in enumerate(rows) if row is ours)
        assert torch.equal(encode(*rows)[place], alone), [len(row) for row in rows]


def text() -> None:
    weights = text_weights(64, 4, 2, 16) if INTERPRETED else text_weights(1152, 4, 1, 256)
    text_attention(weights, [16], 16, 16)
    text_attention(weights, [3, 40, 1, 17, 0, 0], 64, 48)
    for tokens, longest in ((64, 32), (128, 64)):
        text_packs(weights, tokens, longest)


def parts() -> list[Any]:
    """What is checked, in pieces that can be compiled side by side."""
    if INTERPRETED:
        return [
            lambda: [products(rows, 64, 128, 64) for rows in (2, 17)],
            lambda: (frame_attention(3, 4, 2, 16), frame_attention(2, 3, 3, 8), draws(3, 100, 64), whole_rows(3, 48)),
            lambda: (backbone_rows(3, 64, 4, 2, 16), backbone_rows(1, 48, 3, 1, 16), text_rows(4, 48)),
            text,
            codec,
        ]
    return [
        lambda: products(1, 1024, 8192, 1536),
        lambda: products(16, 1024, 8192, 1536),
        lambda: products(128, 1024, 2048, 1536),
        lambda: (frame_attention(5, 8, 2, 128), frame_attention(3, 3, 3, 64), whole_rows(3, 1152), text_rows(4, 1152)),
        lambda: draws(30, 2048, 1024),
        lambda: backbone_rows(5, 2048, 16, 8, 128),
        lambda: backbone_rows(40, 2048, 16, 8, 128),
        text,
        codec,
    ]


def codec() -> None:
    big = not INTERPRETED
    for precision, _inexact in (("ieee", False), ("tf32x3", False), ("tf32", True)):
        rounds = precision == "tf32"
        step = SimpleNamespace(streams=3, launch=LAUNCH, rounds=rounds, weights=SimpleNamespace(precision=precision))
        for taps, c, n, dilation, rate, t in (
            ((7, 96, 96, 9, 1, 40), (2, 192, 96, 1, 3, 20), (1, 384, 384, 1, 1, 160), (7, 768, 768, 3, 1, 11))
            if big
            else ((3, 32, 16, 2, 1, 5), (2, 24, 16, 1, 3, 4))
        ):
            f = torch.float32
            x = r((t + (taps - 1) * dilation) * 3, c, dtype=f)
            w, bias, residual = (
                r(taps, rate * n, c, dtype=f, scale=(taps * c) ** -0.5),
                r(rate * n, dtype=f),
                r(t * rate * 3, n, dtype=f),
            )
            turn = fused_codec.Turn(r(n, dtype=f).exp(), r(n, dtype=f).abs())
            rounded = fused_codec.to_tf32 if rounds else (lambda v: v)
            conv, act = Conv(rounded(w), bias, dilation, rate), poisoned(t * rate * 3, n, dtype=f)
            got = fused_codec.CodecStep._conv(step, conv, rounded(x), t * 3, residual=residual, turn=turn, act=act)
            want = twin.conv(x.double(), w.double(), bias.double(), dilation, rate, 3, residual.double())
            note(f"conv {precision}", got, want)
            note(f"conv {precision} and snake", act, twin.snake(want, turn.frequency.double(), turn.size.double()))
    c = 1024 if big else 24
    f = torch.float32
    x, w, b, s, o, out = (
        r(13 * 3, c, dtype=f),
        r(7, c, dtype=f),
        r(c, dtype=f),
        r(c, dtype=f),
        r(c, dtype=f),
        poisoned(7 * 3, c, dtype=f),
    )
    fused_codec._depthwise_kernel[(21,)](
        x, w, b, s, o, out, B=3, C=c, C_2=fused.size_2(c), TAPS=7, OVERLAP=LAUNCH.overlap, **fused.options(LAUNCH)
    )
    note("depthwise", out, twin.depthwise(x.double(), w.double(), b.double(), s.double(), o.double(), 3))


# justified: kernels run on a GPU, or anywhere in the interpreter, which is to be chosen before Triton is imported
launches = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="no CUDA device, and TRITON_INTERPRET is not 1"
)


@launches
def test_every_kernel_does_what_its_twin_does() -> None:
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    with torch.inference_mode():
        for part in parts():
            part()
    most = 1e-5 if INTERPRETED else 1e-2  # one rounding to bfloat16 is near 2e-3
    allowed = {"text": 3 * most}  # all layers of the encoder, each with a few of them
    allowed |= {name: 2e-3 for name in errors if "tf32" in name}
    worst = {name: error for name, error in errors.items() if not error <= allowed.get(name, most)}
    assert errors
    assert not worst, worst


@launches
@pytest.mark.parametrize("width", [48, 64])
@torch.inference_mode()
def test_a_frame_with_norms_of_queries_and_keys(width: int) -> None:
    """Of Qwen3-TTS: with a projection and its bias, or with none."""
    torch.manual_seed(0)
    requests, books, size, outer = 3, 16, 32, 64
    layers = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 32, "intermediate_size": 80, "num_layers": 2, "eps": 1e-6}
    config = DepthConfig(
        hidden_size=width,
        rope=Section.of({"rope_theta": 10_000}, "a test"),
        num_codebooks=books,
        vocab_size=size,
        audio_embed_size=outer,
        backbone_hidden_size=outer,
        **layers,
    )
    decoder = CodePredictor(config, torch.nn.Embedding(size + 8, outer).to(DEV)).to(DEV).eval()
    for parameter in (*decoder.parameters(), decoder._first[0].weight):
        parameter.copy_(torch.randn(parameter.shape, device=DEV) * (0.2 if parameter.dim() > 1 else 1.0))
    state = SamplingState.allocate(requests + 1, size + 8, torch.device(DEV))
    for i in range(requests):
        state.set(i + 1, SamplingParams(depth_temperature=(0.9, 0.0, 1.5)[i], seed=i << 40))
    rows, frame = state.rows(torch.arange(1, requests + 1, device=DEV)), torch.arange(requests, device=DEV) + 3
    hidden, code0 = torch.randn(requests, outer, device=DEV), torch.randint(size, (requests,), device=DEV)
    uniform = uniforms(rows.seed, frame, books)
    plain = decoder(hidden, code0, lambda logits, book: draw(logits, rows.depth, uniform[:, book]))
    memory = fused.DepthFrame.allocate(fused.DepthWeights.of(decoder, size), requests, LAUNCH)
    assert torch.equal(memory.run(hidden, code0, rows, frame), plain)
    assert len(set(plain.flatten().tolist())) > 10


@launches
def test_widths_that_no_tile_divides_run_unfused() -> None:
    folder = Path(__file__).parent / "golden" / "qwen3-tts" / "proj" / "checkpoint"
    model = qwen3_tts.load(folder, device=torch.device(DEV), dtype=torch.float32)
    with pytest.raises(ValueError, match="expected widths in multiples of 16, got matrices"):
        fused.DepthWeights.of(model.talker.code_predictor, 32)
