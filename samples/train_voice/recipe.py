"""Reads the one config file of a training: which numbers it has, and where each step finds what the others wrote.

It does not know what the numbers do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.codec import CodecConfig
from engine.config import Section


@dataclass(frozen=True, slots=True)
class Recipe:
    """The config file's sections, each by its own name there, and the places of files."""

    work: Path
    """Everything that is made stands below it."""
    shape: Path
    """A voice of the official layout: its configs and tokenizer say what is trained."""
    seed: int
    device: str
    sentences: Mapping[str, Any]
    prepare: Mapping[str, Any]
    codec: Mapping[str, Any]
    speech: Mapping[str, Any]
    evaluate: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> Recipe:
        """Raises ValueError for a key that is missing or unknown."""
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        expected = set(cls.__slots__)
        if set(values) != expected:
            differing = sorted(set(values) ^ expected)
            raise ValueError(f"{file}: must have the keys {sorted(expected)}, differs in {differing}; see config.toml")
        return cls(**values | {"work": Path(values["work"]), "shape": Path(values["shape"])})

    @property
    def sentences_file(self) -> Path:
        """A sentence a line; behind a tab, its phonemes, if they are known."""
        return self.work / "sentences.txt"

    @property
    def clips(self) -> Path:
        """The teacher's audio, in shards."""
        return self.work / "clips"

    @property
    def codes(self) -> Path:
        """The same as codes."""
        return self.work / "codes"

    @property
    def codec_config(self) -> CodecConfig:
        return CodecConfig.from_dict(
            Section.read(self.shape / "audio_tokenizer" / "config.json").section("decoder_config")
        )

    @property
    def sample_rate(self) -> int:
        return Section.read(self.shape / "audio_tokenizer" / "config.json").integer("output_sample_rate")
