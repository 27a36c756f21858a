"""A PyTorch module as a baseline: timed beside a program, on the same buffers, in the comparison's process.

The file's code is executed here: this runs in an isolated process only (`ucutlass.tasks.bench`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ucutlass.files import put

if TYPE_CHECKING:
    from torch import Tensor

    from ucutlass.runtime.bench.outcome import Candidate
    from ucutlass.runtime.bench.workload import Buffers


@dataclass(frozen=True, slots=True)
class Way:
    """How a module runs: whether f32 matrix products may use TF32, and torch.compile's mode, "" for eager.
    Convolutions may use TF32 either way: that is PyTorch's default."""

    tf32: bool = False
    mode: str = ""


WAYS: Mapping[str, Way] = {
    "eager": Way(),
    "eager-tf32": Way(tf32=True),
    "compile": Way(mode="default"),
    "compile-max-autotune": Way(mode="max-autotune-no-cudagraphs"),
}
"""By the name of the baseline."""


def module_candidate(
    name: str, told: Mapping[str, Any], names: Mapping[str, str], buffers: Buffers, device: str
) -> Candidate:
    """The module on the buffers of a program that meets it. `told` is as `ucutlass.tasks.problem_file.same` takes
    it, `names` too. Its own weights are those of the buffers where the program takes them. Raises Unusable,
    and what torch raises."""
    import torch

    from ucutlass.runtime.bench.outcome import Candidate
    from ucutlass.runtime.bench.workload import bytes_of
    from ucutlass.runtime.module.inspection import load, results

    way = WAYS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.py"
        put(path, told["source"])
        loaded = load(str(path), told["mode"], told["precision"])
        own = [_there(x, device) for x in loaded.inputs(1)]
    model = loaded.model.to(device)
    forward = _compiled(model, way)
    places = [names[p.name].partition(" ") for p in buffers.program.params]
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def launch(at: int) -> Sequence[Any]:
        given: list[Any] = list(own)
        for (kind, _, which), argument in zip(places, buffers.arguments[at], strict=True):
            if kind == "input":
                given[int(which)] = argument
            elif isinstance(argument, torch.Tensor):
                state[which].data = argument
        with _products(way.tf32):
            return results(loaded.file, forward(*given))

    moved = bytes_of(buffers.arguments[0]) + bytes_of(launch(0))
    return Candidate(name, launch, buffers.loose(buffers.program), moved)


def _compiled(model: Any, way: Way) -> Callable[..., Any]:
    import torch

    compiled: Callable[..., Any] = torch.compile(model, mode=way.mode, dynamic=False) if way.mode else model
    return compiled


def _there(x: Any, device: str) -> Tensor | Any:
    import torch

    return x.to(device) if isinstance(x, torch.Tensor) else x


@contextmanager
def _products(tf32: bool) -> Iterator[None]:
    """Torch's switches as a fresh process has them, but for TF32 in matrix products."""
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32)
    matmul.allow_tf32, cudnn.allow_tf32 = tf32, True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
