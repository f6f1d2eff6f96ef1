"""Finds the file here that speaks a checkpoint folder's model, and says what every such file offers.

It knows no model: a file belongs to a model because it says so in MODEL_TYPE.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from engine.codec import CodecDecoder, CodecState
from engine.codec_encoder import CodecEncoder
from engine.config import Section
from engine.core import Limits, ModelSpec, Prompt, Request
from engine.kv_cache import PagedKV
from engine.sampling import SamplingRows, SamplingState
from engine.speaker import SpeakerEncoder


@dataclass(slots=True)
class State:
    """All that outlives a step in the model: tensors with a leading slots dimension, updated in place."""

    kv: PagedKV
    sampling: SamplingState
    codec: CodecState


@dataclass(frozen=True, slots=True)
class Functions:
    """The device work of a model's stages. Nothing here synchronises with the device.

    B requests are R = B sequences, or R = 2B: all conditional ones, then all unconditional ones in the same order.
    T positions (of text: tokens of all segments), K codebooks, H = the model's width.
    """

    encode_text: Callable[[Tensor, Tensor, int], Tensor]
    """ids [T] of segments that stand one after the other; lengths [B] of them, 0 where there is none; tokens of the
    longest at most -> [T, H]. A segment sees nothing of the others, and nothing of the padding behind the last."""
    prefill: Callable[[Tensor, Tensor, Tensor, PagedKV, Tensor, int], Tensor]
    """embeds [R, T, H], positions and valid [R, T], kv, slots [R], pages -> [R, T, H]; valid ones enter kv."""
    decode: Callable[[Tensor, Tensor | None, Tensor, Tensor, PagedKV, Tensor, int], Tensor]
    """codes [B, K] of the last frame, text [R, H] that is added to it (None unless the model reads on), positions and
    valid [R], kv, slots [R], pages -> [R, H]; valid ones enter kv."""
    first_code: Callable[[Tensor, SamplingRows, Tensor], Tensor]
    """hidden [R, H] of each sequence's last position, settings, frame [B] -> code 0 of that frame, [B]."""
    frame: Callable[[Tensor, Tensor, SamplingRows, Tensor], Tensor]
    """hidden [R, H], code0 [B], settings, frame [B] -> the frame's codes [B, K]."""
    codec: Callable[[Tensor, CodecState, Tensor], Tensor]
    """The next frames' codes [B, T, K], state, slots [B] -> samples in [-1, 1], [B, T * samples_per_frame]."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A model's modules, for who counts what its steps read. Of tables a step reads the rows that it looks up."""

    text: tuple[nn.Module, ...]
    """What TEXT reads whole, whatever its tokens."""
    backbone: tuple[nn.Module, ...]
    """The same of PREFILL and DECODE, with the head of code 0."""
    depth: nn.Module
    depth_layers: nn.Module
    """Read once for each codebook but the first."""
    codec: CodecDecoder
    tokens: nn.Module
    """The table of text."""
    codes: tuple[nn.Module, ...]
    """Those of codes, of which a frame looks up a row for each codebook."""


class Reading(Protocol):
    """What a model makes of a text that is still being written."""

    @property
    def prompt(self) -> Prompt:
        """With what has come of the text."""

    def append(self, text: str) -> tuple[int, ...]:
        """The tokens that have become certain. Raises RequestError."""

    def end(self) -> tuple[int, ...]:
        """The last ones. Raises RequestError."""


class Model(Protocol):
    """What the executor needs of a voice."""

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def width(self) -> int: ...
    @property
    def reads_on(self) -> bool:
        """Whether each frame that is fed back comes with text, what stands behind the prompt: PromptRow.trailing."""

    @property
    def position_bytes(self) -> int:
        """Of the keys and values of one backbone position."""

    @property
    def encoder(self) -> CodecEncoder | None:
        """What turns recordings into codes, where the checkpoint has it."""

    @property
    def speaker_encoder(self) -> SpeakerEncoder | None:
        """What tells who speaks in a recording, where the voice reads that."""

    @property
    def parts(self) -> Parts:
        """Its modules, for `bench stages`."""

    @property
    def float32(self) -> Sequence[str]:
        """Name patterns of the parameters that are float32 whatever the dtype."""

    def prompt(self, request: Request) -> Prompt:
        """What the backbone shall receive for the request. Raises RequestError."""

    def reading(self, request: Request) -> Reading:
        """Of a request whose text is open, where the spec says that it may be. Raises RequestError."""

    def new_state(self, limits: Limits) -> State:
        """State for `limits`, with page 0 and slot 0 besides, which belong to nobody."""

    def embed_frames(self, codes: Tensor) -> Tensor:
        """codes [..., K] -> [..., H]."""

    def is_end(self, code0: Tensor) -> Tensor:
        """code0 [B] -> bool [B], true where speech ends and there is no frame."""

    def plain(self) -> Functions:
        """The stages in PyTorch's own operations."""

    def fused(self) -> Functions:
        """The stages by the kernels of engine.fused, where they fit this voice: for a device that has Triton."""


def load(folder: Path, *, device: torch.device, dtype: torch.dtype) -> Model:
    """Loads a checkpoint folder. Raises CheckpointError when it is damaged, incomplete or foreign."""
    config = Section.read(folder / "config.json")
    model_type = config.text("model_type", "")
    files = {module.MODEL_TYPE: module for module in _files()}
    if model_type not in files:
        raise config.misfit("model_type", f"one of {', '.join(sorted(files))}")
    model: Model = files[model_type].load(folder, device=device, dtype=dtype)
    return model


def _files() -> list[Any]:
    return [import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
