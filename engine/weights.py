"""Puts the tensors of safetensors files into a module's parameters, all of them or none.

It knows no model: a module's parameter names are the checkpoint's, and all that does not fit is one error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

M = TypeVar("M", bound=nn.Module)
FLOATS = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
MAX_NAMED = 20
WHOLE_FOLDER = "give a complete checkpoint folder"


class CheckpointError(ValueError):
    """Not the checkpoint it should be: says which file or tensor, what was expected and what was found."""


class FusedLinear(nn.Linear):
    """One matrix whose rows are those of several checkpoint matrices, in the order given.

    `FusedLinear(64, {"q_proj": 128, "k_proj": 64, "v_proj": 64})` named `attn.qkv_proj` is filled from
    `attn.q_proj.weight`, `attn.k_proj.weight`, `attn.v_proj.weight`; `out.split(layer.sizes, -1)` parts them.
    """

    def __init__(self, in_features: int, parts: Mapping[str, int], bias: bool = False) -> None:
        super().__init__(in_features, sum(parts.values()), bias=bias)
        self.parts = dict(parts)
        self.sizes = tuple(parts.values())


class FusedEmbedding(nn.Embedding):
    """Likewise one table whose rows are those of several: `FusedEmbedding(64, {"table.0": 10, "table.1": 10})`."""

    def __init__(self, embedding_dim: int, parts: Mapping[str, int]) -> None:
        super().__init__(sum(parts.values()), embedding_dim)
        self.parts = dict(parts)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that is still in its file. `kind` is the format's own name of the dtype, e.g. BF16."""

    shape: tuple[int, ...]
    kind: str
    file: str
    read: Callable[[], Tensor]

    def __str__(self) -> str:
        return f"{self.kind} {list(self.shape)} in {self.file}"


class _Unfilled(TorchFunctionMode):
    """Leaves out what torch.nn.init would put into new parameters: on meta that imports PyTorch's compiler, which takes
    longer than loading a small voice."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def outlines() -> Iterator[None]:
    """What is built within has its shapes, on meta, and no numbers: for `load`."""
    with torch.device("meta"), _Unfilled():
        yield


Source = Path | Mapping[str, StoredTensor | Tensor]
"""A folder of *.safetensors, or tensors by name."""


def read_json(file: Path) -> dict[str, Any]:
    """The file's JSON object. Raises CheckpointError if it is missing, damaged or no object."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}); {WHOLE_FOLDER}") from error
    except ValueError as error:
        raise CheckpointError(f"{file}: damaged, expected JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: expected a JSON object, found {type(value).__name__}")
    return value


def stored(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's *.safetensors, by name, unread. Raises CheckpointError on bad files."""
    files = sorted(folder.glob("*.safetensors"))
    absent = sorted(_indexed(folder) - {file.name for file in files})
    if absent:
        raise CheckpointError(f"{folder}: {', '.join(absent)}, named by the index, is absent; {WHOLE_FOLDER}")
    if not files:
        raise CheckpointError(f"{folder}: expected *.safetensors, found none; {WHOLE_FOLDER}")
    tensors: dict[str, StoredTensor] = {}
    for name, tensor in (pair for file in files for pair in _tensors(file)):
        if name in tensors:
            raise CheckpointError(f"{folder}: {name} is in {tensors[name].file} and {tensor.file}; keep one")
        tensors[name] = tensor
    return tensors


@torch.inference_mode(False)  # the parameters can be trained, wherever they were loaded
def load(
    module: M,
    source: Source,
    prefix: str = "",
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    skip: Sequence[str] = (),
    float32: Sequence[str] = (),
) -> M:
    """Fill `module`, best built within `outlines()`, from the tensors named `prefix`...

    The names of its parameters and persistent buffers are the checkpoint's below the prefix; a FusedLinear
    stands for its parts. `skip` (left aside) and `float32` (kept so whatever `dtype` is) are glob patterns of
    full names. Tensors are converted and moved one at a time, so that nothing is held twice. Constants that a
    module computes are non-persistent buffers, made with an explicit `device="cpu"` to exist under meta too;
    they are moved. Raises one CheckpointError that lists every missing, extra and misshapen tensor.
    """
    found = {
        name: tensor
        for name, tensor in _as_stored(source).items()
        if name.startswith(prefix) and not _matches(name, skip)
    }
    wanted = _parts(module, prefix)
    _raise_if_any(list(_misfits(wanted, found)), source)
    state = {
        key: _joined(
            [found[name] for name in parts],
            torch.float32 if _matches(prefix + key, float32) else dtype,
            device,
        )
        for key, parts in wanted.items()
    }
    module.load_state_dict(state, assign=True)
    _move_constants(module, device)
    return module


def _indexed(folder: Path) -> set[str]:
    names: set[str] = set()
    for file in folder.glob("*.safetensors.index.json"):
        weight_map = read_json(file).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{file}: expected an object weight_map, found {weight_map!r}; fetch it again")
        names.update(map(str, weight_map.values()))
    return names


def _tensors(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    try:
        opened: Any = safe_open(file, framework="pt")
        for name in opened.keys():  # noqa: SIM118 (no mapping)
            part = opened.get_slice(name)
            read = partial(_read, opened, name, file)
            yield name, StoredTensor(tuple(part.get_shape()), part.get_dtype(), file.name, read)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: damaged, expected safetensors ({error}); fetch it again") from error


def _read(opened: Any, name: str, file: Path) -> Tensor:
    try:
        tensor: Tensor = opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: {name} cannot be read ({error}); fetch it again") from error
    return tensor


def _as_stored(source: Source) -> Mapping[str, StoredTensor]:
    if isinstance(source, Path):
        return stored(source)
    return {name: _in_memory(value) if isinstance(value, Tensor) else value for name, value in source.items()}


def _in_memory(value: Tensor) -> StoredTensor:
    kind = FLOATS.get(value.dtype, str(value.dtype))
    return StoredTensor(tuple(value.shape), kind, "memory", lambda: value)


def _parts(module: nn.Module, prefix: str) -> dict[str, dict[str, tuple[int, ...]]]:
    """For each entry of the module's state: names and shapes of the checkpoint tensors that it is made of."""
    kinds = FusedLinear | FusedEmbedding
    fused = {path: layer for path, layer in module.named_modules() if isinstance(layer, kinds)}
    parts: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, value in module.state_dict().items():
        path, _, leaf = key.rpartition(".")
        layer, parent = fused.get(path), prefix + path[: path.rfind(".") + 1]
        rows = {f"{parent}{part}.{leaf}": size for part, size in layer.parts.items()} if layer else {}
        parts[key] = {name: (size, *value.shape[1:]) for name, size in rows.items()}
        parts[key] = parts[key] or {prefix + key: tuple(value.shape)}
    return parts


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _misfits(wanted: Mapping[str, Mapping[str, tuple[int, ...]]], found: Mapping[str, StoredTensor]) -> Iterator[str]:
    shapes = {name: shape for parts in wanted.values() for name, shape in parts.items()}
    for name, shape in shapes.items():
        tensor = found.get(name)
        if tensor is None:
            yield f"missing: {name}, expected {list(shape)}, found nothing"
        elif tensor.shape != shape or tensor.kind not in FLOATS.values():
            yield f"misshapen: {name}, expected floats {list(shape)}, found {tensor}"
    for name in sorted(found.keys() - shapes.keys()):
        yield f"extra: {name}, expected nothing, found {found[name]}"


def _raise_if_any(misfits: list[str], source: object) -> None:
    if not misfits:
        return
    where = source if isinstance(source, Path) else "the checkpoint"
    lines = misfits[:MAX_NAMED]
    if len(misfits) > MAX_NAMED:
        lines.append(f"and {len(misfits) - MAX_NAMED} more")
    head = f"{where} does not fit its config ({len(misfits)} tensors differ); fetch both from one revision"
    raise CheckpointError("\n  ".join([head, *lines]))


def _joined(parts: list[StoredTensor], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """The parts, one below the other, copied so that no file mapping outlives the load."""
    heights = [part.shape[0] for part in parts]
    joined = torch.empty(sum(heights), *parts[0].shape[1:], dtype=dtype, device=device)
    for target, part in zip(torch.split(joined, heights), parts, strict=True):
        target.copy_(part.read())
    return joined


def _move_constants(module: nn.Module, device: torch.device | str) -> None:
    for path, layer in module.named_modules():
        for name, value in layer.named_buffers(recurse=False):
            assert not value.is_meta, f"{path}.{name} is on meta: make it with an explicit device='cpu'"
            setattr(layer, name, value.to(device))
