"""Checkpoints of a training: tensors by name, in files of at most 16 MiB, which any host takes.

It does not know what the tensors are. A checkpoint is whole or absent: it is written aside and then renamed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

SHARD_BYTES = 16 * 2**20 - 2**16
"""A little below 16 MiB: the files have a header."""
KEPT = 2
INDEX = "index.json"


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> Path:
    """Writes checkpoint `step` into `folder` and removes all but the last KEPT."""
    target, aside = folder / f"step-{step:08d}", folder / "unfinished"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    for number, shard in enumerate(shards(tensors)):
        save_file(shard, aside / f"{number:04d}.safetensors")
    (aside / INDEX).write_text(json.dumps({"step": step, "shapes": shapes, "numbers": dict(numbers)}), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)
    for old in sorted(folder.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old)
    return target


def shards(tensors: Mapping[str, Tensor], most: int = SHARD_BYTES) -> Iterator[dict[str, Tensor]]:
    """The tensors, flat and cut where they must be, in portions of at most `most` bytes; pieces are named name@n."""
    shard, room = dict[str, Tensor](), most
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().flatten()
        length = most // flat.element_size()
        for number, piece in enumerate(torch.split(flat, length)):
            size = piece.numel() * piece.element_size()
            if size > room:
                yield shard
                shard, room = {}, most
            shard[f"{name}@{number}"] = piece.clone()
            room -= size
    yield shard


def latest(folder: Path) -> Path | None:
    """The last whole checkpoint, if there is one."""
    return max(folder.glob("step-*"), default=None)


def load(checkpoint: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save` was given: tensors, and numbers with `step`."""
    index = json.loads((checkpoint / INDEX).read_text(encoding="utf-8"))
    pieces: dict[str, Tensor] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        pieces |= load_file(file)
    parts: dict[str, list[tuple[int, Tensor]]] = {}
    for key, piece in pieces.items():
        name, _, number = key.rpartition("@")
        parts.setdefault(name, []).append((int(number), piece))
    tensors = {
        name: torch.cat([piece for _, piece in sorted(parts[name], key=lambda part: part[0])]).view(shape)
        if name in parts
        else torch.empty(shape)
        for name, shape in index["shapes"].items()
    }
    return tensors, index["numbers"] | {"step": index["step"]}


def named(**owners: Any) -> dict[str, Tensor]:
    """The state of modules, optimisers, generators and dictionaries of tensors, by owner and name."""
    return {f"{owner}.{name}": value for owner, thing in owners.items() for name, value in _state(thing).items()}


def restore(tensors: Mapping[str, Tensor], **owners: Any) -> None:
    """Puts what `named` gave back into its owners."""
    for owner, thing in owners.items():
        own = {name[len(owner) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{owner}.")}
        _put(thing, own)


def _state(thing: Any) -> dict[str, Tensor]:
    if isinstance(thing, nn.Module):
        return dict(thing.state_dict())
    if isinstance(thing, torch.Generator):
        return {"state": thing.get_state()}
    if isinstance(thing, Optimizer):
        states = thing.state_dict()["state"]
        return {f"{index}.{name}": value for index, state in states.items() for name, value in state.items()}
    return dict(thing)


def _put(thing: Any, own: Mapping[str, Tensor]) -> None:
    if isinstance(thing, nn.Module):
        thing.load_state_dict(dict(own))
    elif isinstance(thing, torch.Generator):
        thing.set_state(own["state"])
    elif isinstance(thing, Optimizer):
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in own.items():
            index, _, key = name.partition(".")
            states.setdefault(int(index), {})[key] = value
        thing.load_state_dict(thing.state_dict() | {"state": states})
    else:
        for name, value in own.items():
            thing[name].data.copy_(value)
