"""Sweeps of a gigabyte and more against the copy bandwidth of the same run, eager and torch.compile.

    python -m benchmarks.memory_bound --out memory.json [--only NAME,..] [--no-compile]

Bytes are compulsory: every tensor read or written once. The ratio is the time that a copy of as many bytes
would take over ours, at the bandwidth of copying 1 GiB in the same run, timed in turns with the row: the
better of torch's `copy_` (the driver's copy) and an element-wise kernel, `neg`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ucutlass
from benchmarks import budget, relay
from benchmarks.memory_cases import PROBLEMS, Problem
from benchmarks.report import geomean, machine
from ucutlass import frontend, ir
from ucutlass.backend import build_sources, source_of
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.launch_spec import dtype_of
from ucutlass.runtime.timing import compare
from ucutlass.shapes import complete

ROW_SECONDS = 120.0
COPIED = 2**30
"""Bytes that the copy reads, and as many that it writes."""


def planned(problem: Problem) -> tuple[Any, ir.Kernel, tuple[int, ...], Any]:
    checked = frontend.read_text(problem.text)
    program = frontend.kernel(checked)
    sizes = complete(program, problem.sizes)
    return checked, program, sizes, frontend.plan_kernel(checked, program, sizes, "sm90a").planned


def prebuild(names: list[str]) -> dict[str, str]:
    """Builds every kernel in parallel; why each that was not built was not."""
    pairs = []
    for name in names:
        checked, program, _, plan = planned(PROBLEMS[name])
        pairs.append((source_of(checked, program, plan), plan.plan))
    made = build_sources(pairs)
    return {n: str(m)[:2000] for n, m in zip(names, made, strict=True) if not isinstance(m, Artifact)}


def shape(type_: ir.TensorType, sizes: dict[str, int]) -> tuple[int, ...]:
    def of(axis: ir.MemoryAxis) -> int:
        count = 1
        for d in axis.dims:
            count *= sizes[d]
        return count

    return tuple(of(axis) for axis in type_.axes)


def arguments(program: ir.Kernel, sizes: dict[str, int]) -> list[torch.Tensor]:
    """Normal numbers; they are drawn once, by a seed of the shape."""
    generator = torch.Generator("cuda").manual_seed(1)
    made = []
    for p in program.params:
        assert isinstance(p.type, ir.TensorType)
        x = torch.empty(shape(p.type, sizes), dtype=dtype_of(p.type.elem), device="cuda")
        made.append(x.normal_(generator=generator))
    return made


def row(item: dict[str, Any]) -> dict[str, Any]:
    problem = PROBLEMS[item["problem"]]
    _, program, extents, plan = planned(problem)
    sizes = dict(zip(program.dims, extents, strict=True))
    kernel = ucutlass.loads(problem.text)
    args = arguments(program, sizes)
    out = kernel(*args)
    wanted = problem.eager(*args)
    if item["problem"].startswith("max pool f16"):
        wanted = wanted.permute(0, 2, 3, 1)
    worst = float((out.float() - wanted.float().reshape(out.shape)).abs().max())
    scale = float(wanted.float().abs().max())
    bytes_ = sum(t.numel() * t.element_size() for t in (*args, out))
    del wanted
    source = torch.zeros(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    candidates: dict[str, Callable[[int], object]] = {
        "ours": lambda _: kernel(*args, out=out),
        "eager": lambda _: problem.eager(*args),
        "copy": lambda _: target.copy_(source),
        "negate": lambda _: torch.neg(source, out=target),
    }
    if problem.compiled and item["compile"]:
        torch._dynamo.reset()
        compiled = torch.compile(problem.eager, mode="max-autotune-no-cudagraphs")
        compiled(*args)
        candidates["compile"] = lambda _: compiled(*args)
    times = compare(candidates, 1)
    rate = 2 * COPIED / min(times["copy"].median, times["negate"].median)
    ours = times["ours"].median
    best = min(t.median for name, t in times.items() if name in ("eager", "compile"))
    return {
        "family": problem.family,
        "bytes": bytes_,
        "worst": worst,
        "scale": scale,
        "schedule": str(plan.plan.schedule),
        "copy_bandwidth": rate * 1e-6,
        "bandwidth": bytes_ / ours * 1e-6,
        "of_copy": bytes_ / ours / rate,
        "over_best": best / ours,
        "spread": max(t.spread for t in times.values()),
        "microseconds": {name: t.median for name, t in times.items()},
    }


def rows_here(items: list[relay.Item], rows: str, item_seconds: float) -> int:
    """In the child of `relay.run`."""
    return relay.serve(row, items, rows, item_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-compile", action="store_true")
    budget.add_option(parser)
    options = parser.parse_args()
    only = list(filter(None, options.only.split(",")))
    names = [n for n in PROBLEMS if not only or n in only]
    unbuilt = prebuild(names)
    items = [{"name": n, "problem": n, "compile": not options.no_compile} for n in names if n not in unbuilt]
    done = relay.run(
        "benchmarks.memory_bound:rows_here",
        items,
        options.out.with_suffix(".jsonl"),
        item_seconds=ROW_SECONDS,
        deadline=budget.after(options.seconds),
    )
    report = {"machine": machine(), "rows": done, "unbuilt": unbuilt}
    budget.write(options.out, report)
    print(table(done, unbuilt))
    sys.exit(bool(unbuilt) or any(not r["ok"] for r in done))


def table(rows: list[dict[str, Any]], unbuilt: dict[str, str]) -> str:
    fine = [r for r in rows if r["ok"]]
    lines = [
        f"{r['name']:28} {r['microseconds']['ours']:9.1f} us {r['bandwidth']:6.2f} TB/s  "
        f"of copy {r['of_copy']:.3f}  "
        f"over best {r['over_best']:.3f}  spread {r['spread']:.3f}  worst {r['worst']:.2g} of "
        f"{r['scale']:.2g}  "
        f"{r['schedule'].removeprefix('SweepSchedule')}"
        for r in fine
    ]
    if fine:
        shares = [r["of_copy"] for r in fine]
        lines.append(f"geomean of copy {geomean(shares):.3f}, worst {min(shares):.3f}, {len(fine)} rows")
    lines += [f"lost: {r['name']}: {r['error']}: {str(r['detail'])[:300]}" for r in rows if not r["ok"]]
    return "\n".join([*lines, *(f"not built: {n}: {why[:300]}" for n, why in unbuilt.items())])


if __name__ == "__main__":
    main()
