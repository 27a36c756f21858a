"""Captures a call into a CUDA graph.

The graph holds the addresses of its tensors: kernels take descriptors of memory (TMA) as arguments, which
nothing can change in a graph but launching anew. So inputs are static, and a replay costs the host one
launch, whatever the program's stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ucutlass.runtime.arguments import WrongCount


class CapturedCall:
    """`g = k.graph(x, w)`: what `k(x, w)` launches, captured.

    `g.replay()` runs it again on the current stream, on what `g.arguments` (the tensors it was captured
    with) hold then; `g.results` are always the same tensors, in the graph's own memory. `g(*others)` copies
    tensors that are not the captured ones into those first. Host scalars are as captured.
    """

    arguments: tuple[Any, ...]
    results: Any

    def __init__(self, call: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Raises as the call does, and what torch raises where nothing can be captured."""
        self.arguments = tuple(arguments)
        call(*self.arguments)  # what a first call does (planning, building, loading) cannot be captured
        self._graph = torch.cuda.CUDAGraph()
        device = next(a.device for a in arguments if isinstance(a, Tensor))
        with torch.cuda.device(device), torch.cuda.graph(self._graph):
            self.results = call(*self.arguments)

    def replay(self) -> Any:
        """Runs it on the current stream; the results."""
        self._graph.replay()
        return self.results

    def __call__(self, *arguments: Any) -> Any:
        """Raises WrongCount, and what `Tensor.copy_` raises."""
        if len(arguments) != len(self.arguments):
            raise WrongCount(f"the graph takes {len(self.arguments)} arguments, but got {len(arguments)}")
        for own, argument in zip(self.arguments, arguments, strict=True):
            if isinstance(own, Tensor) and argument is not own:
                own.copy_(argument)
        return self.replay()
