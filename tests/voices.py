"""Tiny checkpoints of every model that the engine speaks, as folders that any of its loaders takes."""

from __future__ import annotations

import shutil
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
MODELS = Path(__file__).parents[1] / "engine" / "models"
KINDS = {
    "breeze_tts_2": GOLDEN / "breeze" / "checkpoint",
    "qwen3_tts": GOLDEN / "qwen3-tts" / "proj" / "checkpoint",
    "qwen3_tts.base": GOLDEN / "qwen3-tts" / "proj" / "checkpoint",
    "qwen3_tts.voice_design": GOLDEN / "qwen3-tts" / "proj" / "checkpoint",
    "qwen3_tts.small": GOLDEN / "qwen3-tts" / "ident" / "checkpoint",
}
"""By model file and, where it has several, kind of voice."""


def voice(kind: str, folder: Path) -> Path:
    """A copy of that kind's folder below `folder`."""
    copy = shutil.copytree(KINDS[kind], folder / kind)
    variant = copy / f"config.{kind.partition('.')[2]}.json"
    if variant.exists():
        shutil.copy(variant, copy / "config.json")
    return copy
