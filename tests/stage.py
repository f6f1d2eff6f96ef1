"""One stage of a checkpoint folder, loaded alone, and the values that the golden fixture expects of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from engine import weights

GOLDEN = Path(__file__).parent / "golden" / "breeze"
VOICE = Path(__file__).parents[1] / "engine" / "voices" / "breeze-mini"
ROWS = ("design.cond", "design.uncond", "clone.cond")
"""The fixture's sequences of which backbone and depth states are recorded."""

M = TypeVar("M", bound=nn.Module)


def load_stage(folder: Path, section: str, prefix: str, build: Callable[[Mapping[str, Any]], M]) -> M:
    """`build` makes the module from the config's section; its weights stand below `prefix`."""
    config = json.loads((folder / "config.json").read_text())[section]
    with weights.outlines():
        module = build(config)
    return weights.load(module, folder, prefix, dtype=torch.float32, device="cpu").eval()
