"""Times a PyTorch module as a baseline beside a program, on the same buffers, in the comparison's process.

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

    from ucutlass.runtime.bench.outcome import BenchCandidate
    from ucutlass.runtime.bench.workload import Buffers


@dataclass(frozen=True, slots=True)
class ModuleMode:
    """How a module runs: whether f32 matrix products may use TF32, and torch.compile's mode, "" for eager.
    Convolutions may use TF32 either way: that is PyTorch's default."""

    tf32: bool = False
    mode: str = ""


MODULE_MODES: Mapping[str, ModuleMode] = {
    "eager": ModuleMode(),
    "eager-tf32": ModuleMode(tf32=True),
    "compile": ModuleMode(mode="default"),
    "compile-max-autotune": ModuleMode(mode="max-autotune-no-cudagraphs"),
}
"""By the name of the baseline."""


def module_candidate(
    name: str,
    problem: Mapping[str, Any],
    names: Mapping[str, str],
    buffers: Buffers,
    device: str,
    backend: Callable[..., Any] | None = None,
) -> BenchCandidate:
    """Returns the module on the buffers of a program that meets it. `problem` is as
    `ucutlass.tasks.problem_file.same` takes it, `names` too. Its own weights are those of the buffers where
    the program takes them. `backend` is torch.compile's where it compiles, TorchInductor by default. Raises
    Unusable, and what torch raises."""
    import torch

    from ucutlass.runtime.bench.outcome import BenchCandidate
    from ucutlass.runtime.bench.workload import bytes_of
    from ucutlass.runtime.module.inspection import load_bound, results

    way = MODULE_MODES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.py"
        put(path, problem["source"])
        bound = {key.partition(" ")[2] for key in names.values() if key.startswith("state ")}
        loaded = load_bound(str(path), problem["mode"], problem["precision"], bound, device)
        own = [_there(x, device) for x in loaded.inputs(1, device)]
    model = loaded.model.to(device)
    forward = _compiled(model, way, backend)
    labels = [names[p.name].partition(" ") for p in buffers.program.params]
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for kind, _, which in labels:
        if kind == "input" and isinstance(own[int(which)], torch.Tensor):
            own[int(which)] = None  # each launch has another in its place

    def launch(at: int) -> Sequence[Any]:
        operands: list[Any] = list(own)
        for (kind, _, which), argument in zip(labels, buffers.arguments[at], strict=True):
            if kind == "input":
                operands[int(which)] = argument
            elif isinstance(argument, torch.Tensor):
                state[which].data = argument
        with _products(way.tf32):
            return results(loaded.file, forward(*operands))

    moved = bytes_of(buffers.arguments[0]) + bytes_of(launch(0))
    return BenchCandidate(name, launch, buffers.loose(buffers.program), moved)


def _compiled(model: Any, way: ModuleMode, backend: Callable[..., Any] | None) -> Callable[..., Any]:
    import torch

    if not way.mode:
        return model  # type: ignore[no-any-return]
    if backend is not None:
        own: Callable[..., Any] = torch.compile(model, backend=backend, dynamic=False)
        return own
    compiled: Callable[..., Any] = torch.compile(model, mode=way.mode, dynamic=False)
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
