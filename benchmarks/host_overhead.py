"""Host microseconds of a call: a kernel against torch.mm, and a pipeline of three kernels against torch's five.

    python -m benchmarks.host_overhead [--extent 256] [--json host.json]
    python -m benchmarks.host_overhead --dry          # without a GPU

The kernel is a linear layer; the pipeline is gelu(x @ w1), then @ w2 with x added, then @ w3, of which gelu and
the sum are epilogues of ours and launches of their own in torch. It is called kernel by kernel and as one. With
`--dry` each shape is planned as on a GPU, and what is launched returns at once: of the figures only what the
launcher itself costs means something.

Protocol: every variant is called in batches, few enough that the device's queue never fills, with the device
idle before each batch; batches of all variants alternate, in an order that rotates; garbage collection is off.
Prints the median, 5th and 95th percentile over batches of a batch's time divided by its calls, and the median
ratio of each batch to that of the same round of what the variant is held against.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch

import ucutlass
from ucutlass import frontend, ir
from ucutlass.files import put, write
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.runtime.launch import BoundKernel, Launcher, LaunchRequest
from ucutlass.runtime.launch_sequence import LaunchSequence
from ucutlass.runtime.launch_spec import spec_of
from ucutlass.runtime.library import KernelEntry, load_entry
from ucutlass.runtime.pipeline import sequence_of

ARCH = "sm90a"
WARMUP_CALLS = 200

LINEAR = (Path(__file__).parent.parent / "examples" / "linear_gelu.ucu").read_text(encoding="utf-8")

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

Loader: TypeAlias = Callable[[str, str], Callable[..., Any]]
"""From a text and the name of a program in it to what calls it."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A call; its time is divided by that of the variant named `against`."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    against: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)


# --- entries that do nothing ---------------------------------------------------------

NOTHING = """#include <stdint.h>
int32_t nothing(void* const* t, int64_t const* e, double const* s, int64_t const* k, void* w,
                uint64_t* size, void* stream) {
  (void)t, (void)e, (void)s, (void)k, (void)w, (void)size, (void)stream;
  return 0;
}
"""


def nothing(folder: Path) -> KernelEntry:
    """Returns an entry that returns at once."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("a C compiler is needed for the entry that does nothing")
    source, library = folder / "nothing.c", folder / "nothing.so"
    put(source, NOTHING)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return load_entry(library, "nothing")


def planned(entry: KernelEntry) -> Loader:
    """Returns a loader of programs that plan each new shape as real ones do, and launch `entry`."""

    def load(text: str, name: str) -> Callable[..., Any]:
        checked = frontend.read_text(text)
        program = frontend.program(checked, name)

        def choose(request: LaunchRequest) -> BoundKernel | LaunchSequence:
            if isinstance(program, ir.Pipeline):
                plan = plan_pipeline(checked, program, request.extents, ARCH)
                stages = [BoundKernel(entry.address, (0, 1, 1), 0, entry) for _ in plan.stages]
                return sequence_of(plan.sized, plan.streams, stages)
            choice = frontend.plan_kernel(checked, program, request.extents, ARCH, aligned=request.aligned)
            return BoundKernel(entry.address, tuple(int(k) for k in choice.planned.launch), 0, entry)

        return Launcher(spec_of(program, device="cpu"), choose)

    return load


# --- what is timed -------------------------------------------------------------------


def variants(load: Loader, device: str, extent: int) -> dict[str, Variant]:
    """Returns what is timed, by name. On the CPU a product itself is the host's work, so that torch has the
    least of it.

    Raises AssertionError where the pipeline gives another result on the GPU than its kernels.
    """
    draw = torch.Generator().manual_seed(0)
    x, w1, w2, w3, y = (
        (torch.randn(extent, extent, generator=draw) * extent**-0.5).bfloat16().to(device) for _ in range(5)
    )
    bias = torch.zeros(extent, dtype=torch.bfloat16, device=device)
    few = [t if device == "cuda" else t[:1, :1] for t in (x, w1, w2, w3)]
    linear, whole = load(LINEAR, "linear_gelu"), load(CHAIN, "whole")
    up, down, head = (load(CHAIN, name) for name in ("up", "down", "head"))

    def in_turn() -> Any:
        return head(down(up(x, w1), w2, x), w3)

    def torchs() -> Any:
        h = torch.nn.functional.gelu(torch.mm(few[0], few[1].t()))
        return torch.mm(torch.add(torch.mm(h, few[2].t()), few[0]), few[3].t())

    if device == "cuda":
        assert torch.equal(whole(x, w1, w2, w3), in_turn()), "the pipeline gives another result"
    return {
        "kernel": Variant(linear, (x, w1, bias), "torch.mm"),
        "kernel, out=": Variant(linear, (x, w1, bias), "torch.mm", {"out": y}),
        "torch.mm": Variant(torch.mm, (few[0], few[1].t())),
        "three kernels": Variant(in_turn, (), "five torch calls"),
        "pipeline": Variant(whole, (x, w1, w2, w3), "five torch calls"),
        "five torch calls": Variant(torchs, ()),
    }


def measure(timed: Mapping[str, Variant], device: str, rounds: int, batch: int) -> dict[str, list[float]]:
    """Returns microseconds per call of every batch."""
    synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in timed}
    names = list(timed)
    for variant in timed.values():
        for _ in range(WARMUP_CALLS):
            variant.function(*variant.arguments, **variant.keywords)
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                function, arguments, keywords = (
                    timed[name].function,
                    timed[name].arguments,
                    timed[name].keywords,
                )
                synchronize()
                start = time.perf_counter_ns()
                for _ in range(batch):
                    function(*arguments, **keywords)
                times[name].append((time.perf_counter_ns() - start) / batch / 1000)
    finally:
        gc.enable()
    return times


def summary(times: Mapping[str, Sequence[float]], against: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Returns each variant's microseconds, and its ratio to its base, round by round."""
    rows: dict[str, dict[str, Any]] = {}
    for name, values in times.items():
        ordered, last = sorted(values), len(values) - 1
        p05, p95 = ordered[round(0.05 * last)], ordered[round(0.95 * last)]
        rows[name] = {"median_us": statistics.median(ordered), "p05_us": p05, "p95_us": p95}
        if base := against.get(name):
            ratios = [ours / theirs for ours, theirs in zip(values, times[base], strict=True)]
            rows[name] |= {"against": base, "ratio": statistics.median(ratios)}
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--extent", type=int, default=256, help="of every dimension")
    parser.add_argument("--dry", action="store_true", help="on the CPU, with entries that do nothing")
    parser.add_argument("--rounds", type=int, default=200, help="batches of each variant")
    parser.add_argument("--batch", type=int, default=100, help="calls in a batch")
    parser.add_argument("--json", type=Path, help="also write the report here")
    options = parser.parse_args(arguments)
    device = "cpu" if options.dry else "cuda"
    with tempfile.TemporaryDirectory() as folder:
        load = planned(nothing(Path(folder))) if options.dry else ucutlass.loads
        timed = variants(load, device, options.extent)
        times = measure(timed, device, options.rounds, options.batch)
    rows = summary(times, {name: variant.against for name, variant in timed.items()})
    for name, row in rows.items():
        ratio = f"  {row['ratio']:.3f} of {row['against']}" if "ratio" in row else ""
        print(f"{name:<20}{row['median_us']:9.3f} us ({row['p05_us']:.3f} to {row['p95_us']:.3f}){ratio}")
    if options.json is not None:
        write(options.json, json.dumps({"dry": options.dry, "results": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
