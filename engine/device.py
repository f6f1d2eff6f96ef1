"""The only place where CPU and CUDA differ. It does not know which model runs."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def choose(name: str) -> torch.device:
    """The device for auto, cpu or cuda. Raises ValueError when it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no CUDA device here; use --device cpu or auto")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"--device must be auto, cpu or cuda, got {name!r}")
    return torch.device(name)


def choose_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """The dtype of backbone, text and depth: bf16 on CUDA and fp32 on CPU unless named."""
    if name is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if name not in dtypes:
        raise ValueError(f"--dtype must be fp32 or bf16, got {name!r}")
    return dtypes[name]


def synchronise(device: torch.device) -> None:
    """Waits until the device has done all that was asked of it. The CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def set_threads(device: torch.device, threads: int | None) -> None:
    """How many threads one operation may use on the CPU; None leaves one core to the media process."""
    if device.type == "cpu":
        torch.set_num_threads(threads or 1)


def keep_freed_memory(device: torch.device) -> None:
    """Lets the C library keep what tensors on the CPU leave free, rather than fetch new pages in every step.

    Freeing one block of nearly 32 MB raises glibc's mmap and trim thresholds to their maximum (mallopt(3),
    M_MMAP_THRESHOLD); the codec's step of 16 frames then takes 71 instead of 82 ms (Zen 4, one thread).
    """
    if device.type == "cpu":
        torch.empty(31 << 20, dtype=torch.uint8, device=device)


def name(device: torch.device) -> str:
    """What the device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def lay_out(weight: Tensor) -> Tensor:
    """The matrix [out, in] in the memory order in which the device multiplies a few rows by it fastest.

    On a CPU a wide one's columns lie together: MKL 2024.2 then reads it a third faster for one or two rows (Zen 4, one
    thread, 192 -> 1024 in float32: 16 instead of 23 us for one row, 31 instead of 40 for two).
    """
    wide = weight.shape[0] > weight.shape[1]
    return weight.t().contiguous().t() if wide and weight.device.type == "cpu" else weight


def sin_(x: Tensor) -> Tensor:
    """The sine, in place. NumPy's is 2.4 times as fast as PyTorch's on one CPU thread (measured on Zen 4)."""
    if x.device.type != "cpu" or x.requires_grad:
        return x.sin_()
    array = x.numpy()
    np.sin(array, out=array)
    return x


def attend(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, write: Tensor, read: Tensor, bias: Tensor
) -> Tensor:
    """Paged attention of one layer: stores new keys and values, then mixes the values that each query sees.

    q [R * T, heads, head_dim], k and v [R * T, kv_heads, head_dim]; keys and values [places, kv_heads, head_dim] are
    written at write [R * T] and looked at in read [R * S]; bias [R, 1, G * T, S] is added to the scores, where G is
    heads / kv_heads: the queries that share a key stand as further queries beside it, so keys are not repeated.
    Returns [R * T, heads * head_dim]. Gathered places and one fused kernel, whose grid depends on shapes alone.
    """
    keys.index_copy_(0, write, k)
    values.index_copy_(0, write, v)
    rows, _, queries, places = bias.shape
    kv_heads, head_dim = k.shape[1:]
    group = q.shape[1] // kv_heads
    split = (rows, queries // group, kv_heads, group, head_dim)
    q = q.reshape(split).transpose(1, 2).reshape(rows, kv_heads, queries, head_dim)
    k, v = (x.index_select(0, read).view(rows, places, kv_heads, head_dim).transpose(1, 2) for x in (keys, values))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return mixed.view(rows, kv_heads, -1, group, head_dim).transpose(1, 2).reshape(q.shape[0] * queries // group, -1)
