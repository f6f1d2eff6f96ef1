"""Runs a training step again and again: on CUDA as one graph, captured once, elsewhere as it is.

It does not know what the step does. A step takes tensors of fixed shapes, waits for nothing and returns one tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[..., Tensor]
WARM_UP = 3
"""Runs before the capture, in which libraries choose their kernels. They count as steps."""


class Repeated:
    """The step, with inputs of the shapes of `examples`."""

    def __init__(self, step: Step, examples: tuple[Tensor, ...], capture: bool) -> None:
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        if capture and examples[0].is_cuda:
            self._capture(examples)

    def _capture(self, examples: tuple[Tensor, ...]) -> None:
        self._inputs = [example.clone() for example in examples]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._step(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._output = self._step(*self._inputs)
        self._graph = graph

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The step's output; the next call writes over it."""
        if self._graph is None:
            return self._step(*inputs)
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        self._graph.replay()
        return self._output


def fused(function: Callable[..., Tensor], *examples: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """The function compiled for all shapes, if that works here for the examples and their gradients."""
    try:
        quick = torch.compile(function, dynamic=True)
        for example in examples:
            torch.autograd.grad(quick(*example).sum(), example)
    except Exception as error:  # whatever a compiler may raise: the plain function does the same
        print(f"not compiled: {str(error).splitlines()[0][:200]}", flush=True)
        return function
    return quick
