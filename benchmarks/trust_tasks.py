"""What `benchmarks.trust` runs in processes of its own: a kernel against itself, and tricks.

A trick is a candidate that a Python author might write to look fast; each must be caught by a
finding that names it.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ucutlass import frontend
from ucutlass.runtime.bench.bench_device import BenchDevice, Outputs
from ucutlass.runtime.bench.measure import measure
from ucutlass.runtime.bench.outcome import BenchCandidate
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.runtime.bench.regimes import sets_for
from ucutlass.runtime.bench.report import to_json
from ucutlass.runtime.bench.workload import Buffers, bytes_of
from ucutlass.shapes import complete

PRODUCT = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"

Call = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""The set's number, its operands, its result tensor; gives the tensor that holds the result."""


def product(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w.mT, out=y)


def honest(buffers: Buffers) -> Call:
    return lambda i, x, w, y: product(x, w, y)


def one_small_buffer(buffers: Buffers) -> Call:
    """Operands of the first set only: they stay in the L2."""
    x0, w0 = operands(buffers, 0)
    return lambda i, x, w, y: product(x0, w0, y)


def persisting_lines(buffers: Buffers) -> Call:
    """Sets a part of the L2 aside, where lines survive what others read."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(i: int, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        driver.cuCtxSetLimit(ctypes.c_int(6), ctypes.c_size_t(16 * 2**20))  # PERSISTING_L2_CACHE_SIZE
        return product(x, w, y)

    return call


def first_call_cache(buffers: Buffers) -> Call:
    """Computes a set once, then gives that result again without launching anything."""
    results: dict[int, torch.Tensor] = {}

    def call(i: int, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if i not in results:
            results[i] = product(x, w, y)
        return results[i]

    return call


def cache_by_pointer(buffers: Buffers) -> Call:
    """Computes a set once, then copies that result."""
    results: dict[int, torch.Tensor] = {}

    def call(i: int, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() not in results:
            results[x.data_ptr()] = product(x, w, torch.empty_like(y))
        return y.copy_(results[x.data_ptr()])

    return call


def second_stream(buffers: Buffers) -> Call:
    """Launches on another stream and returns at once."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def call(i: int, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(side):
            return product(x, w, y)

    return call


def later_thread(buffers: Buffers) -> Call:
    """Has another thread launch some milliseconds after it returned."""

    def call(i: int, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        threading.Timer(0.005, product, (x, w, y)).start()
        return y

    return call


@dataclass(frozen=True, slots=True)
class Trick:
    """`findings`: any of these must be said of it; none at all of the honest one."""

    make: Callable[[Buffers], Call]
    findings: frozenset[str]


TRICKS: Mapping[str, Trick] = {
    "honest": Trick(honest, frozenset()),
    "one small buffer in the L2": Trick(one_small_buffer, frozenset({"wrong-output"})),
    "persisting lines": Trick(persisting_lines, frozenset({"persisting-l2"})),
    "first-call cache": Trick(first_call_cache, frozenset({"no-kernel", "names-changed"})),
    "cache by pointer": Trick(cache_by_pointer, frozenset({"wrong-output", "names-changed"})),
    "second stream": Trick(second_stream, frozenset({"off-stream"})),
    "later thread": Trick(later_thread, frozenset({"no-kernel", "escaped", "off-stream"})),
}


def operands(buffers: Buffers, at: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = buffers.arguments[at]
    assert isinstance(x, torch.Tensor) and isinstance(w, torch.Tensor)
    return x, w


def candidate(name: str, buffers: Buffers) -> BenchCandidate:
    """The trick of this name on these buffers."""
    outs = [
        torch.empty((x.shape[0], w.shape[0]), dtype=x.dtype, device=x.device)
        for x, w in (operands(buffers, i) for i in range(buffers.sets))
    ]
    call = TRICKS[name].make(buffers)

    def launch(at: int) -> Outputs:
        return (call(at, *operands(buffers, at), outs[at]),)

    moved = bytes_of(buffers.arguments[0]) + bytes_of(outs[:1])
    return BenchCandidate(name, launch, buffers.loose(buffers.program), moved)


def tried(name: str, sizes: Mapping[str, int], gpu: BenchDevice, chosen: Protocol) -> dict[str, Any]:
    """The report on a trick alone."""
    program = frontend.read_text(PRODUCT).module.programs[0]
    full = dict(zip(program.dims, complete(program, sizes), strict=True))
    once = 2 * (full["M"] * full["K"] + full["N"] * full["K"] + full["M"] * full["N"])
    sets = sets_for(once, gpu.l2, chosen.regime)
    buffers = Buffers(program, sizes, sets, gpu.device, chosen.seed, _secret())
    with torch.no_grad():
        return to_json(measure([candidate(name, buffers)], buffers, gpu, chosen), chosen)


def trick(name: str, sizes: dict[str, int], protocol: dict[str, Any]) -> dict[str, Any]:
    """`tried` on the GPU, for `isolate`."""
    from ucutlass.runtime.bench.cuda import Cuda

    return tried(name, sizes, Cuda(), Protocol(**protocol))


def same_twice(
    text: str, sizes: dict[str, int], count: int, protocol: dict[str, Any]
) -> list[dict[str, Any]]:
    """A kernel against itself, `count` measurements, each with buffers of its own; warmed up once."""
    from ucutlass.api import LoadedKernel, loads
    from ucutlass.runtime.bench.cuda import Cuda
    from ucutlass.runtime.inputs import generate
    from ucutlass.tasks.bench import bytes_of_call, candidate_of

    kernel, gpu, reports = loads(text), Cuda(), []
    assert isinstance(kernel, LoadedKernel)
    first = generate(kernel.program, sizes, "normal", seed=0, device=gpu.device)
    once = bytes_of_call(kernel, first)
    with torch.no_grad():
        for number in range(count):
            warmup = 0.3 if number else protocol["warmup"]
            chosen = Protocol(**protocol | {"seed": number, "warmup": warmup})
            sets = sets_for(once, gpu.l2, chosen.regime)
            buffers = Buffers(kernel.program, sizes, sets, gpu.device, number, _secret())
            pair = [candidate_of(kernel, name, buffers) for name in ("candidate", "itself")]
            reports.append(to_json(measure(pair, buffers, gpu, chosen), chosen))
    return reports


def _secret() -> random.Random:
    return random.Random(random.SystemRandom().getrandbits(64))


def findings_of(report: Mapping[str, Any]) -> Sequence[str]:
    """Names of the findings that forbid trust in the report's first candidate."""
    return [f["name"] for f in report["outcomes"][0]["findings"] if f["level"] == "trust"]
