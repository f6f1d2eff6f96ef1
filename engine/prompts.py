"""What every voice asks of a request before it becomes a prompt: words it can read, room to say them, codes it knows.

It does not know how a prompt is laid out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from engine.checks import RequestError, check_written
from engine.core import KNOWN_VOICES, ModelSpec, Prefix, Reference, Request
from engine.weights import WHOLE_FOLDER, CheckpointError

MAX_TEXT_CHARS = 2000
"""Of any voice: several minutes of speech in one piece serve nobody."""
SLOW_CHARS_PER_SECOND = 12.0
"""The slow side: 150 English words a minute are 15, and the embedded voice has 15.7 to 21 (sentences of 50 to 118
characters, measured). Text that fits at this rate is heard to its end."""
SAMPLE = "Good morning, the train to the coast leaves from platform nine in about twelve minutes."
"""Shows how many tokens a voice's tokenizer makes of a character."""


class Reader:
    """What a tokenizer makes of text, and of what it makes nothing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._unknown_id = unknown_id(tokenizer)
        self._readable = lru_cache(4096)(self._encodes)

    def ids(self, text: str) -> list[int]:
        """The text's tokens, without any that the tokenizer adds to every text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def unreadable(self, text: str) -> list[str]:
        """What of the text, which has no halves of characters, the tokenizer cannot encode."""
        if self._unknown_id is None:
            return sorted(c for c in set(text) if not self._readable(c))
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return sorted({text[start:end] for id_, (start, end) in pairs if id_ == self._unknown_id})

    def _encodes(self, character: str) -> bool:
        """False if the character silently has no token, though nobody meant it to be dropped."""
        normalizer = self._tokenizer.normalizer
        kept = normalizer.normalize_str(character) if normalizer else character
        return not kept.strip() or bool(self.ids(character))


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """The id that stands for what the vocabulary lacks, if there is one."""
    token = getattr(tokenizer.model, "unk_token", None)
    return None if token is None else tokenizer.token_to_id(token)


def check_text(what: str, text: str, spec: ModelSpec, reader: Reader, marks: Sequence[str], use: str) -> None:
    """Raises RequestError for text that cannot be read, or that holds one of the `marks`, of which each `use`."""
    check_readable(what, text, spec, reader, marks, use)
    if not text.strip() or not reader.ids(text):
        raise RequestError(f"{what} must hold something to say, got {text!r}; send words", what)


def check_readable(what: str, text: str, spec: ModelSpec, reader: Reader, marks: Sequence[str], use: str) -> None:
    """The same for text that need not say anything."""
    check_written(what, text, spec.max_text_chars)
    for mark in marks:
        if mark in text:
            raise RequestError(f"{what} must not hold {mark}, which {use} in the prompt; take it out", what)
    if unknown := ", ".join(map(repr, reader.unreadable(text))):
        raise RequestError(f"{what} must be text that the voice can read, got {unknown}; take that out", what)


def check_frames(reference: Reference, books: int, size: int) -> None:
    """Raises RequestError for frames that the codec does not have: `books` codes, each below `size`."""
    if not reference.frames:
        raise RequestError(
            "reference must have at least one frame of codes, got none; send a recording's codes", "reference"
        )
    i = first_unknown(reference.frames, books, size)
    if i < len(reference.frames):
        raise RequestError(
            f"reference frame {i} must have {books} codes from 0 to {size - 1}, got {list(reference.frames[i])}; "
            "encode the reference with this voice's codec",
            "reference",
        )


@lru_cache(KNOWN_VOICES)
def first_unknown(frames: tuple[tuple[int, ...], ...], books: int, size: int) -> int:
    """The number of the first frame that the codec does not have, or that of all frames."""
    wrong = (i for i, frame in enumerate(frames) if len(frame) != books or not all(0 <= code < size for code in frame))
    return next(wrong, len(frames))


def prefix(length: int, frames: tuple[tuple[int, ...], ...], *others: Sequence[int] | Sequence[float]) -> Prefix:
    """Of so many positions, in which the backbone receives what these numbers say: a recording's frames, and others."""
    digest = blake2b(_numbers_of(frames), digest_size=32)
    for part in others:
        digest.update(_numbers(part))
    return Prefix(digest.digest(), length)


def _numbers(part: Sequence[int] | Sequence[Sequence[int]] | Sequence[float]) -> bytes:
    """With their type and shape."""
    array = np.asarray(part)
    return f"{array.dtype} {array.shape} ".encode() + array.tobytes()


_numbers_of = lru_cache(KNOWN_VOICES)(_numbers)
"""Of what comes again and again."""


def check_room(request: Request, prompt_length: int, spec: ModelSpec, least: int = 0) -> None:
    """Speech that would be cut off, because the prompt takes its place, is refused; there is room for `least` frames
    in every case. Raises RequestError."""
    frames = math.ceil(len(request.text) * frames_per_char(spec.frame_seconds))
    frames = max(least, min(frames, request.sampling.max_frames))
    room = max(0, spec.max_positions - prompt_length - 1)
    if frames > room:
        raise RequestError(
            f"a prompt of {prompt_length} positions must leave room for its speech, about {frames} frames, within "
            f"{spec.max_positions} positions, got {room}; send less text, instruction or reference"
        )


def frames_per_char(frame_seconds: float) -> float:
    """Frames that a character of text takes at the slow side of speaking."""
    return 1 / (SLOW_CHARS_PER_SECOND * frame_seconds)


def text_limit(spec: ModelSpec, around: int, sample: int) -> int:
    """The longest text whose speech is heard to its end: prompt and frames within the positions, frames within the
    voice's own max_frames, if it is like SAMPLE and spoken slowly. A prompt has `around` positions that are not text,
    and SAMPLE `sample` tokens."""
    frames = frames_per_char(spec.frame_seconds)
    tokens = sample / len(SAMPLE) or 1.0  # 1: it cannot read SAMPLE
    fitting = (spec.max_positions - around - 2) / (tokens + frames)  # 2: a frame is whole, and the last makes no other
    return max(1, math.floor(min(MAX_TEXT_CHARS, spec.sampling.max_frames / frames, fitting)))


def check_vocabulary(file: Path, tokenizer: Tokenizer, size: int) -> None:
    """Raises CheckpointError for a tokenizer, read from the file, with ids that have no embedding."""
    last_id = max(tokenizer.get_vocab().values(), default=0)
    if last_id >= size:
        raise CheckpointError(f"{file} must have ids below {size}, found {last_id}; {WHOLE_FOLDER}")
