"""The depth decoder: a backbone state and a frame's first code become the frame's other codes, one after the other.

It does not know how codes are drawn, nor what came before the frame. FrameDecoder is the loop over a frame's codes (the
idea: RQ-Transformer, arXiv:2203.01941), whatever a checkpoint calls the weights; DepthDecoder is that of CSM (Sesame
AI, 2025) as Breeze TTS 2 ships it, and owns the audio embeddings that the backbone shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config import Section
from engine.norm import RMSNorm, normalise
from engine.prepared import Prepared
from engine.rotary import frequencies, rotations
from engine.transformer import Layers, LayersConfig, LayerWeights, causal_attention, read_layers

Draw = Callable[[Tensor, int], Tensor]
"""logits [R, V] float32 and the codebook's index -> ids [B]."""
MAX_CODEBOOKS = 1024


@dataclass(frozen=True, slots=True)
class DepthConfig(LayersConfig):
    """The dimensions of a depth decoder, as its checkpoint says."""

    num_codebooks: int
    vocab_size: int
    audio_embed_size: int
    backbone_hidden_size: int

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> DepthConfig:
        """Reads `depth_decoder_config`. Raises CheckpointError."""
        d = Section.of(d, "depth_decoder_config")
        return cls(
            **read_layers(d),
            num_codebooks=d.integer("num_codebooks", low=2, high=MAX_CODEBOOKS),
            vocab_size=d.integer("vocab_size"),
            audio_embed_size=d.integer("audio_embed_size"),
            backbone_hidden_size=d.integer("backbone_hidden_size"),
        )


class DepthModel(nn.Module):
    """The weights below the heads, under the names of the checkpoint."""

    def __init__(self, config: DepthConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.num_codebooks * config.vocab_size, config.audio_embed_size)
        self.inputs_embeds_projector = nn.Linear(config.backbone_hidden_size, config.hidden_size, bias=False)
        self.layers = Layers(config, qk_norm=False)
        self.norm = RMSNorm(config.hidden_size, config.eps)


class Heads(nn.Module):
    """One matrix for each codebook but the first, [codebooks - 1, hidden, vocabulary]."""

    def __init__(self, config: DepthConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_codebooks - 1, config.hidden_size, config.vocab_size))


@dataclass(frozen=True, slots=True)
class Pass:
    """One layer's scratch memory in one pass: where to write, and what the new positions' queries see."""

    qkv: Tensor
    """[T * R, (heads + 2 * kv_heads) * head_dim]"""
    heads: Tensor
    """The same memory, [T, R * (heads + 2 * kv_heads), head_dim]."""
    turned: Tensor
    """Memory of that shape for the same with each position's rotation."""
    views: list[tuple[Tensor, Tensor, Tensor]]
    """For each of the T positions: q [R, kv_heads, G, head_dim]; k, v [R, kv_heads, positions so far, head_dim]."""

    def mix(self) -> Tensor:
        """Attention of the new positions, [T * R, heads * head_dim]."""
        mixed = [F.scaled_dot_product_attention(*view).flatten(1) for view in self.views]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


@dataclass(frozen=True, slots=True)
class Tables:
    """What the frame loop needs at hand."""

    layers: list[LayerWeights]
    qk_norms: list[Tensor | None]
    """For each layer that norms queries and keys: [heads + 2 * kv_heads, head_dim], the weights, and 1 for values."""
    inputs: list[Tensor]
    """For each codebook but the last, which is not fed back: its embeddings after the projection, [V, hidden]."""
    heads: list[Tensor]
    """For each codebook but the first: [hidden, V], in the dtype of the product with it."""
    norm: Tensor
    """[hidden], of the states that the heads receive."""
    rotations: list[Tensor]
    """For each pass: the rotations of its positions, [T, head_dim, head_dim]."""
    passes: dict[int, list[list[Pass]]]
    """By R: for each pass, each layer's scratch memory. A frame never reads what an earlier one wrote."""

    def embed(self, ids: Tensor, codebook: int, rows: int) -> Tensor:
        """ids [B] -> what the layers receive for them, [rows, hidden]: once, or twice for guidance."""
        inputs = self.inputs[codebook].index_select(0, ids)
        return inputs if rows == len(ids) else torch.cat((inputs, inputs))


class Stack(Protocol):
    """The weights below the heads."""

    layers: Layers
    norm: RMSNorm


class FrameDecoder(Prepared[Tables]):
    """The loop over a frame's codes. A subclass has `model` and says what else the checkpoint holds."""

    model: Any
    """A Stack and an nn.Module."""

    def __init__(self, config: DepthConfig) -> None:
        super().__init__()
        self.config = config
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", frequencies(config.rope, config.head_dim), persistent=False)

    @property
    def projection(self) -> nn.Linear | None:
        """From the backbone's width to that of the layers; None where the two are one."""
        raise NotImplementedError

    def project(self, x: Tensor) -> Tensor:
        """What the layers receive for backbone states and embeddings: [N, backbone_hidden] -> [N, hidden]."""
        return x if self.projection is None else self.projection(x)

    def embedded(self, codes: Tensor) -> Tensor:
        """codes [N, K - 1], all but the last -> their embeddings, each codebook's own, [N, K - 1, backbone_hidden]."""
        raise NotImplementedError

    def inputs(self) -> list[Tensor]:
        """For each codebook but the last: its embeddings, projected, [V, hidden]."""
        raise NotImplementedError

    def heads(self) -> list[Tensor]:
        """For each codebook but the first: [hidden, V], in the dtype of the product with it."""
        raise NotImplementedError

    @property
    def stack(self) -> Stack:
        stack: Stack = self.model
        return stack

    @torch.no_grad()
    def forward(self, hidden: Tensor, code0: Tensor, draw: Draw) -> Tensor:
        """One frame: hidden [R, backbone_hidden], code0 [B] -> codes [B, K].

        R is B, or 2 B: all conditional rows, then all unconditional ones in the same order; both get the codes that
        `draw` makes of their logits. 2 positions in the first pass, 1 in each of the K - 2 others.
        """
        tables, rows = self.prepared(), hidden.shape[0]
        codes = [code0]
        for index, memory in enumerate(self._passes(tables, rows)):
            x = tables.embed(codes[-1], index, rows)
            if index == 0:
                x = torch.cat((self.project(hidden), x))
            x = self._pass(tables, x, tables.rotations[index], memory)
            codes.append(draw(self._logits(tables, x[-rows:], index), index + 1))
        return torch.stack(codes, 1)

    def _pass(self, tables: Tables, x: Tensor, rotation: Tensor, memory: list[Pass]) -> Tensor:
        """The next T positions through all layers: x [T * R, hidden] -> the same, not normed."""
        for weights, qk_norm, layer in zip(tables.layers, tables.qk_norms, memory, strict=True):
            torch.mm(weights.attention_input(x), weights.qkv, out=layer.qkv)
            torch.bmm(self._normed(layer.heads, qk_norm), rotation, out=layer.turned)
            x = weights.finish(x, layer.mix())
        return x

    def _normed(self, heads: Tensor, qk_norm: Tensor | None) -> Tensor:
        """[T, R * (heads + 2 * kv_heads), head_dim], queries and keys normed; what becomes of values, nobody reads."""
        if qk_norm is None:
            return heads
        apart = heads.view(len(heads), -1, *qk_norm.shape)
        return (normalise(apart, self.config.eps) * qk_norm).flatten(1, 2)

    def _logits(self, tables: Tables, x: Tensor, index: int) -> Tensor:
        normed, head = normalise(x, self.config.eps) * tables.norm, tables.heads[index]
        return torch.mm(normed.to(head.dtype), head).float()

    def logits(self, hidden: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Whole frames whose codes are known: hidden [N, backbone_hidden], codes [N, K] -> states, logits.

        Normed states [N, K, hidden] of all positions; logits [N, K - 1, V] float32, of codes 1 to K - 1.
        """
        inputs = torch.cat((hidden[:, None], self.embedded(codes[:, :-1])), 1)
        frames, length, _ = inputs.shape
        x = self.project(inputs.flatten(0, 1))
        turns = rotations(length, self.inv_freq, x.dtype)
        for layer, qk_norm in zip(self.stack.layers, self._qk_norms(), strict=True):
            weights = LayerWeights.of(layer)
            qkv = weights.qkv_heads(x, self.config.head_dim)
            normed = self._normed(qkv.flatten(0, 1)[None], qk_norm)
            qkv, normed = (part.view(frames, length, *qkv.shape[1:]) for part in (qkv, normed))
            x = weights.finish(x, causal_attention(*self._split(qkv, normed @ turns)))
        states, heads = self.stack.norm(x).view(frames, length, -1), torch.stack(self.heads())
        return states, torch.einsum("nkh,khv->nkv", states[:, 1:].to(heads.dtype), heads).float()

    def _split(self, qkv: Tensor, turned: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both [..., heads + 2 * kv_heads, head_dim]: queries and keys from the turned ones, values as they are."""
        heads, end = self.config.num_heads, self.config.num_heads + self.config.num_kv_heads
        return turned[..., :heads, :], turned[..., heads:end, :], qkv[..., end:, :]

    # ---- what is prepared ----

    def _prepare(self) -> Tables:
        norm = self.stack.norm.weight
        turns = rotations(self.config.num_codebooks, self.inv_freq, norm.dtype)
        return Tables(
            layers=[LayerWeights.of(layer) for layer in self.stack.layers],
            qk_norms=self._qk_norms(),
            inputs=self.inputs(),
            heads=self.heads(),
            norm=norm,
            rotations=[turns[:2], *torch.split(turns[2:], 1)],
            passes={},
        )

    def _qk_norms(self) -> list[Tensor | None]:
        return [layer.self_attn.qkv_norm() for layer in self.stack.layers]

    def _passes(self, tables: Tables, rows: int) -> list[list[Pass]]:
        """The scratch memory for `rows` rows: made once, as finding it anew would cost as much as a layer."""
        if rows not in tables.passes:
            with torch.inference_mode(tables.norm.is_inference()):
                layers = [self._layer_passes(rows, tables.norm) for _ in tables.layers]
            tables.passes[rows] = [list(memory) for memory in zip(*layers, strict=True)]
        return tables.passes[rows]

    def _layer_passes(self, rows: int, like: Tensor) -> list[Pass]:
        """One layer's scratch memory, position by position, so that a pass writes one piece and copies nothing."""
        config = self.config
        shape = config.num_codebooks, rows, config.num_heads + 2 * config.num_kv_heads, config.head_dim
        qkv, turned = like.new_zeros(shape), like.new_zeros(shape)
        views = [self._views(qkv[: last + 1], turned[: last + 1]) for last in range(config.num_codebooks)]
        spans = [slice(0, 2), *(slice(p, p + 1) for p in range(2, config.num_codebooks))]
        return [
            Pass(qkv[s].flatten(2).flatten(0, 1), qkv[s].flatten(1, 2), turned[s].flatten(1, 2), views[s])
            for s in spans
        ]

    def _views(self, qkv: Tensor, turned: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both [positions so far, R, heads + 2 * kv_heads, head_dim] -> q of the last one; k, v of all."""
        q, k, v = self._split(qkv, turned)
        grouped = q[-1].view(q.shape[1], self.config.num_kv_heads, -1, q.shape[-1])
        return grouped, k.permute(1, 2, 0, 3), v.permute(1, 2, 0, 3)


class DepthDecoder(FrameDecoder):
    """Layers, embeddings and heads; parameter names as in the checkpoint below `depth_decoder.`."""

    model: DepthModel

    def __init__(self, config: DepthConfig) -> None:
        super().__init__(config)
        self.model = DepthModel(config)
        self.codebooks_head = Heads(config)
        self.offsets: Tensor
        offsets = torch.arange(config.num_codebooks, device="cpu") * config.vocab_size
        self.register_buffer("offsets", offsets, persistent=False)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """codes [..., K] -> the sum of their embeddings, added in float32 and rounded once, [..., audio_embed]."""
        embeds = F.embedding(codes + self.offsets, self.model.embed_tokens.weight)
        return embeds.sum(-2, dtype=torch.float32).to(embeds.dtype)

    @property
    def projection(self) -> nn.Linear:
        return self.model.inputs_embeds_projector

    def embedded(self, codes: Tensor) -> Tensor:
        embeds: Tensor = self.model.embed_tokens(codes + self.offsets[:-1])
        return embeds

    def inputs(self) -> list[Tensor]:
        embeds = self.project(self.model.embed_tokens.weight[: -self.config.vocab_size])
        return list(torch.split(embeds, self.config.vocab_size))

    def heads(self) -> list[Tensor]:
        """Float32, whatever the layers are."""
        return list(self.codebooks_head.weight.float())
