"""Reads generation_config.json: how a checkpoint's publisher draws codes. It does not know how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.checks import RequestError
from engine.config import Section
from engine.core import SamplingParams
from engine.weights import WHOLE_FOLDER, CheckpointError

Defaults = Mapping[str, tuple[str, Any]]
"""SamplingParams' fields: their keys in the file, and the official values where that is silent."""


def read_generation(folder: Path) -> Section:
    """The file, or nothing where there is none. Raises CheckpointError."""
    file = folder / "generation_config.json"
    return Section.read(file) if file.exists() else Section()


def read_sampling(folder: Path, official: Defaults, greedy: Mapping[str, str]) -> SamplingParams:
    """The file's defaults, the official ones where it is silent or absent. `greedy` has flags, true where absent: what
    is false sets the named temperature to 0. Raises CheckpointError."""
    given = read_generation(folder)
    values = {field: _read_default(given, *default) for field, default in official.items()}
    values |= {field: 0.0 for flag, field in greedy.items() if not given.flag(flag, True)}
    try:
        return SamplingParams(**values)
    except RequestError as error:
        raise CheckpointError(f"{folder / 'generation_config.json'}: {error}; {WHOLE_FOLDER}") from error


def _read_default(given: Section, key: str, official: Any) -> Any:
    """A number of the official one's kind."""
    if given.get(key) is None:
        return official
    return given.integer(key, low=0, high=2**31 - 1) if isinstance(official, int) else given.number(key)
