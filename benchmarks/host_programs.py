"""What `benchmarks.host_overhead` calls besides one kernel: a guarded program and a chain of three.

The chain is gelu(x @ w1), then @ w2 with x added, then @ w3: gelu and residual are epilogues of ours,
and launches of their own in torch, which takes five. It is called kernel by kernel and as one pipeline.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

import ucutlass
from ucutlass import frontend, ir
from ucutlass.backend import build_kernels
from ucutlass.files import put
from ucutlass.ir.schedule import show
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.runtime.launch import BoundKernel, Launcher, LaunchRequest
from ucutlass.runtime.launch_sequence import LaunchSequence
from ucutlass.runtime.launch_spec import spec_of
from ucutlass.runtime.library import KernelEntry, load_entry
from ucutlass.runtime.pipeline import sequence_of
from ucutlass.shapes import complete

ARCH = "sm90a"

GUARDED = """\
kernel guarded(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {
  return dot[K](x, w)

  schedule sm90a when M <= 64 { warps pingpong  tile 64x64x64 }
  schedule sm90a when M <= 256 { warps pingpong  tile 64x128x64 }
  schedule sm90a when M <= 1024 { warps cooperative  tile 128x128x64 }
  schedule sm90a when M > 1024 { warps cooperative  tile 128x256x64 }
}
"""
GUARDED_ROWS = (32, 128, 512, 2048)
"""An M of each guard."""

CHAIN = """\
kernel up(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {
  return gelu(dot[K](x, w))
}

kernel down(h: bf16[M, F], w: bf16[P, F], r: bf16[M, P]) -> bf16[M, P] {
  return dot[F](h, w) + r
}

kernel head(y: bf16[M, D], w: bf16[Q, D]) -> bf16[M, Q] {
  return dot[D](y, w)
}

pipeline whole(x: bf16[M, D], w1: bf16[F, D], w2: bf16[D, F], w3: bf16[Q, D]) -> bf16[M, Q] {
  h = up(x, w1)
  y = down(h, w2, x)
  return head(y, w3)
}
"""

Given: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keywords of a call."""

Make: TypeAlias = Callable[[str, str], Callable[..., Any]]
"""From a text and the name of a kernel in it to that kernel."""


@dataclass(frozen=True, slots=True)
class Variant:
    """`function` is called with each of `calls` in turn; its time is divided by that of `against`."""

    function: Callable[..., Any]
    calls: tuple[Given, ...]
    against: str


# --- kernels -----------------------------------------------------------------------

NOTHING = """#include <stdint.h>
int32_t nothing(void* const* t, int64_t const* e, double const* s, int64_t const* k, void* w,
                uint64_t* size, void* stream) {
  (void)t, (void)e, (void)s, (void)k, (void)w, (void)size, (void)stream;
  return 0;
}
"""


def nothing(folder: Path) -> KernelEntry:
    """An entry that returns at once."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("a C compiler is needed for the entry that does nothing; or give --program")
    source, library = folder / "nothing.c", folder / "nothing.so"
    put(source, NOTHING)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return load_entry(library, "nothing")


def planned(entry: KernelEntry, device: str, chosen: list[str]) -> Make:
    """Kernels that plan each new shape as real ones do and launch `entry`; the schedule of each plan is
    appended to `chosen`."""

    def make(text: str, name: str) -> Callable[..., Any]:
        checked = frontend.read_text(text)
        program = frontend.program(checked, name)

        def choose(request: LaunchRequest) -> BoundKernel | LaunchSequence:
            if isinstance(program, ir.Pipeline):
                plan = plan_pipeline(checked, program, request.extents, ARCH)
                bounds = [BoundKernel(entry.address, (0, 1, 1), 0, entry) for _ in plan.stages]
                return sequence_of(plan.sized, plan.streams, bounds)
            choice = frontend.plan_kernel(checked, program, request.extents, ARCH, aligned=request.aligned)
            chosen.append(show(choice.planned.request))
            return BoundKernel(entry.address, tuple(int(k) for k in choice.planned.launch), 0, entry)

        return Launcher(spec_of(program, device=device), choose)

    return make


def compiled(sizes: Mapping[str, Sequence[Mapping[str, int]]]) -> Make:
    """Real kernels. All that `sizes` names, by text, are built at once before the first call."""
    for text, extents in sizes.items():
        checked = frontend.read_text(text)
        kernels = [p for p in checked.module.programs if isinstance(p, ir.Kernel)]
        build_kernels(
            checked,
            [
                (kernel, complete(kernel, {d: n for d, n in known.items() if d in kernel.dims}))
                for kernel in kernels
                for known in extents
            ],
            ARCH,
        )
    return ucutlass.loads


# --- a guarded program -------------------------------------------------------------


def guarded(make: Make, device: str, extent: int) -> dict[str, Variant]:
    """Shapes in turns, so that each call meets another guard than the one before."""
    kernel = make(GUARDED, "guarded")
    w = torch.zeros(extent, extent, dtype=torch.bfloat16, device=device)
    pairs = [
        (_zeros(m, extent, device), torch.empty(m, extent, dtype=torch.bfloat16, device=device))
        for m in GUARDED_ROWS
    ]
    base = "torch.mm, 4 shapes in turns"
    return {
        "guarded, one shape": Variant(kernel, (((pairs[0][0], w), {}),), "torch.mm"),
        "guarded, 4 guards in turns": Variant(kernel, tuple(((x, w), {}) for x, _ in pairs), base),
        "guarded, 4 guards in turns, out=": Variant(
            kernel, tuple(((x, w), {"out": out}) for x, out in pairs), f"{base}, out="
        ),
        base: Variant(torch.mm, tuple(((_few(x), _few(w).t()), {}) for x, _ in pairs), ""),
        f"{base}, out=": Variant(
            torch.mm, tuple(((_few(x), _few(w).t()), {"out": _few(out)}) for x, out in pairs), ""
        ),
    }


def first_calls(make: Make, device: str, extent: int, count: int) -> dict[str, list[float]]:
    """Microseconds of the first call of each of `count` shapes, ours and torch.mm's in turns. The guard's
    kernel is built and loaded before; a new M still is checked, planned and found in the cache."""
    synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    kernel = make(GUARDED, "guarded")
    w = torch.zeros(extent, extent, dtype=torch.bfloat16, device=device)
    for m in GUARDED_ROWS:
        kernel(_zeros(m, extent, device), w)
        torch.mm(_few(_zeros(m, extent, device)), _few(w).t())
    times: dict[str, list[float]] = {
        "guarded, first call of a shape": [],
        "torch.mm, first call of a shape": [],
    }
    for i in range(count):
        x = _zeros(GUARDED_ROWS[i % len(GUARDED_ROWS)] - 1 - i // len(GUARDED_ROWS), extent, device)
        pairs: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
            (kernel, (x, w)),
            (torch.mm, (_few(x), _few(w).t())),
        )
        for (function, arguments), values in zip(pairs, times.values(), strict=True):
            synchronize()
            start = time.perf_counter_ns()
            function(*arguments)
            values.append((time.perf_counter_ns() - start) / 1000)
    return times


FIRST_CALLS_MOST = 4 * (GUARDED_ROWS[0] - 1)
"""So that each new M stays above 0."""


# --- a chain of three --------------------------------------------------------------


def chain_sizes(extent: int) -> dict[str, int]:
    return dict.fromkeys(("M", "K", "N", "F", "P", "D", "Q"), extent)


def chain(
    make: Make, device: str, extent: int, capture: Callable[[Callable[[], Any]], Any]
) -> dict[str, Variant]:
    """`capture` turns a function into one that replays its launches.

    Raises AssertionError where a replay gives another result than the calls.
    """
    up, down, head = (make(CHAIN, name) for name in ("up", "down", "head"))
    generator = torch.Generator().manual_seed(0)
    scale = extent**-0.5
    x, w1, w2, w3 = (
        (torch.randn(extent, extent, generator=generator) * s).bfloat16().to(device)
        for s in (1.0, scale, scale, scale)
    )
    h, y, z = (torch.empty_like(x) for _ in range(3))
    if device == "cpu":  # there torch's products are the host's work: take the least of them
        few = [t[:1, :1] for t in (x, w1, w2, w3)]
    else:
        few = [x, w1, w2, w3]
    tx, t1, t2, t3 = few[0], *(t.t() for t in few[1:])

    def ours() -> Any:
        return head(down(up(x, w1), w2, x), w3)

    def ours_out() -> Any:
        return head(down(up(x, w1, out=h), w2, x, out=y), w3, out=z)

    pipeline = make(CHAIN, "whole")
    operands = x, w1, w2, w3

    def torchs() -> Any:
        return torch.mm(torch.add(torch.mm(torch.nn.functional.gelu(torch.mm(tx, t1)), t2), tx), t3)

    replay, replay_torch = capture(ours_out), capture(torchs)
    if device == "cuda":
        z.zero_()
        replay()
        assert torch.equal(z, ours()), "the captured chain gives another result than its calls"
        assert torch.equal(z, pipeline(*operands)), "the pipeline gives another result than its kernels"
    once: tuple[Given, ...] = (((), {}),)
    return {
        "chain": Variant(ours, once, "chain, torch"),
        "chain, out=": Variant(ours_out, once, "chain, torch"),
        "chain, pipeline": Variant(pipeline, ((operands, {}),), "chain, torch"),
        "chain, pipeline, out=": Variant(
            pipeline, ((operands, {"out": torch.empty_like(x)}),), "chain, torch"
        ),
        "chain, graph": Variant(replay, once, "chain, torch, graph"),
        "chain, torch": Variant(torchs, once, ""),
        "chain, torch, graph": Variant(replay_torch, once, ""),
    }


def captured(work: Callable[[], Any]) -> Callable[[], Any]:
    """A CUDA graph of `work`, which ran before on a stream of its own: first calls load kernels."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Callable[[], Any] = graph.replay
    return replay


def played(work: Callable[[], Any]) -> Callable[[], Any]:
    """Without a GPU: the calls again, in place of a replay."""
    return work


# --- tensors -----------------------------------------------------------------------


def _zeros(rows: int, columns: int, device: str) -> torch.Tensor:
    return torch.zeros(rows, columns, dtype=torch.bfloat16, device=device)


def _few(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU the product itself is the host's work: the least of it."""
    return tensor[:1, :1] if tensor.device.type == "cpu" else tensor
