"""Reductions, scans and pointwise kernels of a gigabyte and more, against the copy bandwidth of the same run.

    python -m benchmarks.memory_bound --out memory.json [--only NAME,..] [--no-compile] [--quick]

Claim: kernels that memory bounds take what a copy of as many bytes takes, and no longer than eager PyTorch and
torch.compile. Bytes are compulsory: every tensor read or written once. `of_copy` is the time that a copy of as
many bytes would take over ours, at the bandwidth of copying 1 GiB in the same run, timed in turns with the
row: the better of torch's `copy_` (the driver's copy) and an element-wise kernel, `neg`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

import ucutlass
from benchmarks import campaign, harness
from benchmarks.campaign import Case
from benchmarks.harness import Item, Row
from benchmarks.memory_cases import PROBLEMS, SCANS
from ucutlass import ir
from ucutlass.runtime.launch_spec import dtype_of
from ucutlass.runtime.timing import compare
from ucutlass.shapes import complete

ROW_SECONDS = 120.0
ROWS = {**PROBLEMS, **SCANS}

COPIED = 2**30
"""Bytes that the copy reads, and as many that it writes."""

BEYOND = 2 * 50 * 2**20
"""Bytes of all tensors beyond which the L2 holds nothing of them until their turn comes again."""


def arguments(program: ir.Kernel, sizes: dict[str, int], seed: int) -> list[torch.Tensor]:
    """Returns normal numbers for each parameter."""
    generator = torch.Generator("cuda").manual_seed(1 + seed)
    tensors = []
    for p in program.params:
        assert isinstance(p.type, ir.TensorType)
        shape = tuple(math.prod(sizes[d] for d in axis.dims) for axis in p.type.axes)
        x = torch.empty(shape, dtype=dtype_of(p.type.elem), device="cuda")
        tensors.append(x.normal_(generator=generator))
    return tensors


def row(item: Item) -> Row:
    problem = ROWS[item["name"]]
    _, program, _ = harness.planned(problem.text, problem.sizes)
    sizes = dict(zip(program.dims, complete(program, dict(problem.sizes)), strict=True))
    kernel = ucutlass.loads(problem.text)
    args = arguments(program, sizes, item["seed"])
    out = kernel(*args)
    expected = problem.eager(*args)
    if item["name"].startswith("max pool f16"):
        expected = expected.permute(0, 2, 3, 1)
    worst = float((out.float() - expected.float().reshape(out.shape)).abs().max())
    scale = float(expected.float().abs().max())
    bytes_ = sum(t.numel() * t.element_size() for t in (*args, out))
    del expected
    source = torch.zeros(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    candidates: dict[str, Callable[[int], object]] = {
        "ours": lambda _: kernel(*args, out=out),
        "eager": lambda _: problem.eager(*args),
        "copy": lambda _: target.copy_(source),
        "negate": lambda _: torch.neg(source, out=target),
    }
    if problem.compiled and item["compile"]:
        fast = harness.compiled(problem.eager, *args)
        candidates["compile"] = lambda _: fast(*args)
    times = compare(candidates, 1)
    rate = 2 * COPIED / min(times["copy"].median, times["negate"].median)
    ours = times["ours"].median
    best = min(t.median for name, t in times.items() if name in ("eager", "compile"))
    return {
        "family": problem.family,
        "bytes": bytes_,
        "worst": worst,
        "scale": scale,
        "schedule": item["schedule"],
        "copy_bandwidth": rate * 1e-6,
        "bandwidth": bytes_ / ours * 1e-6,
        "of_copy": bytes_ / ours / rate,
        "over_best": best / ours,
        **harness.summary_of(times),
    }


def main() -> None:
    options = campaign.parser_of(__doc__, compiles=True).parse_args()
    names = harness.selected(ROWS, options, str)
    campaign.report(
        "benchmarks.memory_bound:row",
        [Case(name, ROWS[name].text, ROWS[name].sizes) for name in names],
        options,
        _line,
        lambda rows: {
            "of copy": {r["name"]: r["of_copy"] for r in rows},
            "over best": {r["name"]: r["over_best"] for r in rows},
        },
        row_seconds=ROW_SECONDS,
    )


def _line(r: Row) -> str:
    return (
        f"{r['name']:28} {r['microseconds']['ours']:9.1f} us {r['bandwidth']:6.2f} TB/s  of copy {r['of_copy']:.3f}  "
        f"over best {r['over_best']:.3f}  spread {r['spread']:.3f}  worst {r['worst']:.2g} of {r['scale']:.2g}  "
        f"{r['schedule'].removeprefix('SweepSchedule')}"
    )


if __name__ == "__main__":
    main()
