"""The only place where CPU and CUDA differ. It does not know which model runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Body = Callable[[Tensor], tuple[Tensor, ...]]
"""Integers on the device -> what the host is to know."""
Pool = Any
"""Memory that graphs share."""
COMPILERS = 12
"""Threads that compile kernels."""


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


def slots(device: torch.device) -> int:
    """Requests at once that the device is good for."""
    return 8 if device.type == "cpu" else 256


def longest_step(device: torch.device) -> float:
    """Limits.max_step_seconds. On two cores a codec step of 16 frames saves the embedded voice 5 % against two of 8,
    and keeps who interrupts waiting for 74 ms instead of 39 (breeze-mini-cpu, the profile of an AMD EPYC)."""
    return 0.06 if device.type == "cpu" else 0.1


def room(device: torch.device) -> float:
    """Bytes that keys and values may take, beside all that runs: on CUDA, half of what is free."""
    return inf if device.type == "cpu" else free_memory(device) / 2


def captures(device: torch.device) -> bool:
    """Whether work can be captured as graphs and run by fused kernels there."""
    return device.type == "cuda"


def launches_overlap(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it still runs (programmatic dependent launch)."""
    return torch.cuda.get_device_capability(device) >= (9, 0)


def free_memory(device: torch.device) -> int:
    """Bytes, without those that PyTorch keeps for later."""
    if device.type == "cpu":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def memory_told(device: torch.device) -> str:
    """What is free, in words."""
    if device.type == "cpu":
        return "this machine has less free"
    free, total = torch.cuda.mem_get_info(device)
    return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free"


def count_compiles(device: torch.device) -> Callable[[], int]:
    """A counter of the kernels that are compiled from now on."""
    compiled = [0]

    def compiling(*_: object, **__: object) -> None:
        compiled[0] += 1

    if device.type == "cuda":
        import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]  # with PyTorch's CUDA build

        triton.knobs.runtime.jit_post_compile_hook = compiling
    return lambda: compiled[0]


def compile_all(work: Sequence[tuple[Body, int]], device: torch.device) -> None:
    """Runs each body once, on so many zeros, so that its kernels are there; several at a time, as compiling is work of
    the host. They share one stream, so that no two run at once there, whatever memory they share. Raises RuntimeError
    (memory)."""

    def once(body: Body, size: int) -> None:
        with torch.inference_mode():
            body(torch.zeros(size, dtype=torch.int64, device=device))

    with ThreadPoolExecutor(COMPILERS) as pool:
        for done in [pool.submit(once, *one) for one in work]:
            done.result()
    synchronise(device)


def new_pool(device: torch.device) -> Pool:
    """For graphs of which no two run at once."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class Graph:
    """Work that is captured once and replayed (CUDA graphs): it takes integers and returns what the host is to know.
    Nothing in it may wait for the device, nor have a shape that depends on data. The CPU just does it again."""

    def __init__(self, body: Body, size: int, device: torch.device, pool: Pool) -> None:
        self._on_cuda = device.type == "cuda"
        self._staging = torch.zeros(size, dtype=torch.int64, pin_memory=self._on_cuda)
        self._host = self._staging.numpy()
        self._values, self._body = self._staging.to(device), body
        outputs = body(self._values)
        self._outputs = [torch.empty_like(out, device="cpu", pin_memory=self._on_cuda) for out in outputs]
        if self._on_cuda:
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call,unused-ignore]
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool):
                self._run()

    def __call__(self, values: NDArray[np.int64]) -> Sequence[Tensor]:
        """Starts it. What it returns is there for `fetch`, until it is called again."""
        if not self._on_cuda:
            self._host[:] = values
            self._run()
            return self._outputs
        self._done.synchronize()  # or the values of the call before would be written over
        self._host[:] = values
        self._graph.replay()
        self._done.record()
        return self._outputs

    def _run(self) -> None:
        self._values.copy_(self._staging, non_blocking=True)
        for host, out in zip(self._outputs, self._body(self._values), strict=True):
            host.copy_(out, non_blocking=True)


def fetch(outputs: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Waits for the device, and copies what it made."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call,unused-ignore]
        torch.cuda.current_stream().synchronize()
    return [out.cpu().numpy().copy() for out in outputs]


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
