"""Times a PyTorch module that torch compiles in turns with the module in eager PyTorch.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`. The file's code is executed here.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ucutlass.runtime.bench.gpu_lock import hold_idle_gpu

if TYPE_CHECKING:
    from ucutlass.runtime.bench.bench_device import BenchDevice
    from ucutlass.runtime.bench.outcome import BenchCandidate

NICENESS = 10
"""Of the process while it compiles: candidates are built meanwhile."""

QUIET_SECONDS = 1.0
"""In which nobody used the GPU before a compiled module is timed for some seconds: between two steps of a search it
is idle for less."""


def versus_eager(
    program: dict[str, Any],
    name: str,
    sizes: dict[str, int],
    module: dict[str, Any],
    names: dict[str, str],
    way: str,
    protocol: dict[str, Any],
    gpu: str,
    wait: float,
    releases: bool,
) -> dict[str, Any]:
    """Returns the ratio of eager's time to that of `way`, `median`, `low` and `high`, or `words`, why there is none.
    `program` is a payload of `ucutlass.handoff` that the module meets by `names`: its parameters are the buffers.
    The lock of the GPU with the UUID `gpu` is taken only where nobody waits for it. It is held for all but imports
    and, with `releases`, compilation, in which it is held while a kernel is timed alone: what is on the GPU stays
    there then."""
    from ucutlass import frontend
    from ucutlass.handoff import checked_of
    from ucutlass.runtime.bench.cuda import Cuda
    from ucutlass.runtime.bench.protocol import Protocol

    with _nice():
        _load_compiler()
    typed = frontend.program(checked_of(program), name)
    device = Cuda()  # its context takes seconds, in which nothing is timed
    with GpuTurn(gpu, wait) as turn:
        turn.take(QUIET_SECONDS)
        return timed(
            typed, sizes, module, names, way, Protocol(**protocol), device, turn if releases else None
        )


def _load_compiler() -> None:
    """Imports what takes seconds, and has TorchInductor compile in this process: others are busy."""
    import importlib

    import torch

    for module in ("torch._dynamo.backends.common", "torch._inductor.compile_fx"):
        importlib.import_module(module)
    torch._inductor.config.compile_threads = 1


@dataclass(slots=True)
class GpuTurn:
    """Holds a GPU's lock from `take` to `give`, and to the end of its block at most, as whom nobody waits for."""

    gpu: str
    wait: float
    _stack: ExitStack = field(default_factory=ExitStack)
    held: bool = False

    def __enter__(self) -> GpuTurn:
        return self

    def __exit__(self, *_: object) -> None:
        self.give()

    def take(self, quiet_seconds: float = 0.0) -> None:
        """Waits until nobody has used the GPU for so many seconds. Raises LockTimeout."""
        if not self.held:
            self._stack.enter_context(
                hold_idle_gpu(
                    self.gpu,
                    timeout_seconds=self.wait,
                    quiet_seconds=quiet_seconds,
                    purpose="a module that torch compiled",
                )
            )
            self.held = True

    def give(self) -> None:
        self._stack.close()
        self.held = False


def timed(
    typed: Any,
    sizes: dict[str, int],
    module: dict[str, Any],
    names: dict[str, str],
    way: str,
    chosen: Any,
    gpu: BenchDevice,
    turn: GpuTurn | None,
) -> dict[str, Any]:
    """Does as `versus_eager` on any device; `turn` is given away while torch compiles."""
    import torch

    from ucutlass.runtime.bench.measure import measure
    from ucutlass.runtime.bench.regimes import sets_for
    from ucutlass.runtime.bench.report import to_json
    from ucutlass.runtime.bench.workload import Buffers, bytes_of
    from ucutlass.runtime.inputs import generate
    from ucutlass.tasks.module_baseline import module_candidate

    free = {d: n for d, n in sizes.items() if d in _free(typed)}
    moved = bytes_of(generate(typed, free, "normal", seed=chosen.seed, device=gpu.device))
    sets = sets_for(moved, gpu.l2, chosen.regime)
    chance = random.Random(random.SystemRandom().getrandbits(64))
    with torch.no_grad():
        buffers = Buffers(typed, free, sets, gpu.device, chosen.seed, chance)
        eager = replace(module_candidate("eager", module, names, buffers, gpu.device), check=lambda *_: "")
        compiled = module_candidate(way, module, names, buffers, gpu.device, _backend(way, turn))
        like_eager = replace(compiled, check=_like(eager))
        report = to_json(measure([eager, like_eager], buffers, gpu, chosen), chosen)
    ratio = next((v["ratio"] for v in report["versus"] if v["ratio"]), None)
    if ratio is None:
        reasons = [str(v["reason"]) for v in report["versus"]]
        reasons += [str(o.get("words", "")) for o in report["outcomes"][1:]]
        return {"words": "; ".join(filter(None, reasons))[:500] or "it has no time"}
    return {name: float(ratio[name]) for name in ("median", "low", "high")}


def _free(typed: Any) -> Sequence[str]:
    from ucutlass.shapes import free_dims

    return free_dims(typed)


def _like(eager: BenchCandidate) -> Callable[[int, Sequence[Any]], str]:
    """Returns a check of results against those of eager for the same set."""
    from ucutlass.runtime.bench.workload import far

    def check(at: int, outputs: Sequence[Any]) -> str:
        return "; ".join(filter(None, map(far, outputs, eager.launch(at))))

    return check


def _backend(way: str, turn: GpuTurn | None) -> Callable[[Any, Sequence[Any]], Any] | None:
    """Returns a backend of torch.compile that gives the lock away while TorchInductor compiles, but for the kernels
    that it times; none where it is kept."""
    if turn is None:
        return None

    def compile_graph(graph: Any, inputs: Sequence[Any]) -> Any:
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        from ucutlass.tasks.module_baseline import MODULE_MODES

        options = list_mode_options(MODULE_MODES[way].mode)
        with _giving(turn):
            compiled: Any = compile_fx(graph, inputs, config_patches=options)
        first = True

        def call(*arguments: Any) -> Any:
            nonlocal first
            if not first:
                return compiled(*arguments)
            first = False
            # Coordinate descent compiles and times the variants of each kernel where it is launched first.
            with _giving(turn):
                return compiled(*arguments)

        return call

    return compile_graph


@contextmanager
def _giving(turn: GpuTurn) -> Iterator[None]:
    """Gives the lock away while torch compiles, and holds it at the end."""
    _idle()
    turn.give()
    try:
        with _nice(), _timing_alone(turn):
            yield
        _idle()
    finally:
        turn.take(QUIET_SECONDS)


@contextmanager
def _nice() -> Iterator[None]:
    """Leaves the cores to others for a block. Whoever holds the lock should not wait for them, so that this ends with the
    block, where the system lets a process take back what it gave."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, min(19, before + NICENESS))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


@contextmanager
def _timing_alone(turn: GpuTurn) -> Iterator[None]:
    """Has TorchInductor take the lock for each kernel that it times to choose one."""
    from torch._inductor.runtime import benchmarking

    benchmarker: Any = benchmarking.benchmarker
    plain = benchmarker.benchmark_gpu

    def benchmark_gpu(*arguments: Any, **named: Any) -> Any:
        turn.take()
        try:
            return plain(*arguments, **named)
        finally:
            _idle()
            turn.give()

    benchmarker.benchmark_gpu = benchmark_gpu
    try:
        yield
    finally:
        benchmarker.benchmark_gpu = plain


def _idle() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
