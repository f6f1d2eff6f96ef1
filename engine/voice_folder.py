"""Voices with a name: a folder of them, one file each, with codes, transcript, a speaker's vector where
the voice reads one, and a card that says who agreed to what.

It does not know who speaks like them, nor how a recording becomes codes. A file holds no sound: NAME.json, as
`NamedVoice.to_dict` writes it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.checks import RequestError, shown
from engine.core import ModelSpec, Reference

NAME = re.compile(r"[a-z0-9-]{1,64}")
MAX_BYTES = 2**20
"""Of a file: half a minute of codes has 30 kB, a speaker's vector some 40."""
MAX_FIELD_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Card:
    """What has to be known of a person's voice. Raises RequestError where something is missing."""

    consent: str
    """Whose voice it is, and how that person agreed to this."""
    licence: str
    """Under which others may speak with it."""
    model: str
    """The checkpoint whose encoder made the codes."""
    model_licence: str

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            given = isinstance(value, str) and 0 < len(value.strip()) <= MAX_FIELD_CHARS
            if not given:
                raise RequestError(f"{name} must be 1 to {MAX_FIELD_CHARS} characters, got {shown(value)}", name)


@dataclass(frozen=True, slots=True)
class NamedVoice:
    """A voice to speak like."""

    name: str
    reference: Reference
    card: Card
    frame_seconds: float
    """Of the codec whose codes these are."""

    def __post_init__(self) -> None:
        check_name(self.name)

    @property
    def seconds(self) -> float:
        """Of the recording."""
        return len(self.reference.frames) * self.frame_seconds

    def check(self, spec: ModelSpec) -> None:
        """Raises RequestError where its codes, or its speaker's vector, are not those of this voice."""
        books, frame = len(self.reference.frames[0]), spec.frame_seconds
        if (books, round(self.frame_seconds, 6)) != (spec.num_codebooks, round(frame, 6)):
            raise RequestError(
                f"voice must have {spec.num_codebooks} codes in each {1000 * frame:.0f} ms for {spec.name}, but "
                f"{self.name} has {books} in {1000 * self.frame_seconds:.0f} ms; add it again with this checkpoint",
                "voice",
            )
        given = len(self.reference.vector)
        if spec.vector_width and given != spec.vector_width:
            raise RequestError(
                f"voice must have a speaker's vector of {spec.vector_width} numbers for {spec.name}, but "
                f"{self.name} has {given or 'none'}; add it again with this checkpoint",
                "voice",
            )

    def to_dict(self) -> dict[str, Any]:
        """What from_dict reads."""
        reference = {"text": self.reference.text, "frames": self.reference.frames, "vector": self.reference.vector}
        return {"card": asdict(self.card), "frame_seconds": self.frame_seconds, **reference}

    @classmethod
    def from_dict(cls, name: str, data: Mapping[str, Any]) -> NamedVoice:
        """Raises RequestError, KeyError and TypeError."""
        frames = tuple(tuple(frame) for frame in data["frames"])
        reference = Reference(data["text"], frames, tuple(map(float, data["vector"])))
        if not frames or not frames[0] or not 0 < float(data["frame_seconds"]) < 1:
            raise RequestError("frames must be those of a recording, got none")
        return cls(name, reference, Card(**data["card"]), float(data["frame_seconds"]))


def check_name(name: str) -> None:
    """Raises RequestError for what is no voice's name: it becomes a file's."""
    if not NAME.fullmatch(name):
        raise RequestError(f"voice must be a name of a-z, 0-9 and -, at most 64 of them, got {shown(name)}", "voice")


class VoiceFolder:
    """Voices by name. Everything but `read` raises OSError where the folder does not allow it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Those that are there."""
        return sorted(file.stem for file in self.path.glob("*.json") if NAME.fullmatch(file.stem))

    def changed(self, name: str) -> int:
        """When its file was last written, in ns; 0 where there is none."""
        check_name(name)
        try:
            return self._file(name).stat().st_mtime_ns
        except OSError:
            return 0

    def read(self, name: str) -> NamedVoice:
        """The voice of that name. Raises RequestError where there is none, and for a damaged one."""
        check_name(name)
        try:
            with self._file(name).open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            known = ", ".join(self.names()) or "none"
            raise RequestError(f"voice must be one of those that are there ({known}), got {name!r}", "voice") from None
        except OSError as error:
            raise RequestError(f"voice {name} cannot be read: {error.strerror}", "voice") from error
        try:
            return NamedVoice.from_dict(name, json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            problem = f"{self._file(name)} is damaged ({type(error).__name__}: {error})"
            raise RequestError(f"voice {name} must be whole, {problem}; add it again", "voice") from error

    def write(self, voice: NamedVoice) -> None:
        """Saves it, whole or not at all. Raises FileExistsError where its name is taken."""
        self.path.mkdir(parents=True, exist_ok=True)
        part = self.path / f".{voice.name}.{os.getpid()}"
        try:
            part.write_text(json.dumps(voice.to_dict()) + "\n", encoding="utf-8")
            os.link(part, self._file(voice.name))  # which never replaces what is there
        finally:
            part.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Deletes it. Raises RequestError where there is none."""
        check_name(name)
        try:
            self._file(name).unlink()
        except FileNotFoundError:
            known = ", ".join(self.names()) or "none"
            raise RequestError(f"voice must be one of those that are there ({known}), got {name!r}", "voice") from None

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.json"
