"""Norms, softmax and cross entropy over drawn rows of 256 to 256k elements, against the copy, eager and torch.compile.

    python -m benchmarks.rows --out rows.json [--drawn N] [--seed N] [--only NAME,..] [--schedule TEXT]... [--no-compile]
        [--quack]

Claim: a row of any length and type is reduced at the speed of the copy, and no slower than eager PyTorch and
torch.compile, and, with `--quack`, than quack (`benchmarks.quack_launches` says how to install it). A problem's name says all of it, as in "softmax bf16 512x131072"; `--only` takes names that were not
drawn too. Each `--schedule`, such as "stages 4  cluster 1x4", is timed in turns with the planner's own choice.
`python -m benchmarks.memory_bound` explains `of_copy`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

import ucutlass
from benchmarks import campaign, harness
from benchmarks.bars import Bar
from benchmarks.campaign import Case
from benchmarks.harness import Item, Row
from benchmarks.memory_bound import BEYOND, COPIED
from benchmarks.memory_cases import Problem
from benchmarks.quack_launches import launch_of
from ucutlass import ir
from ucutlass.diagnostics import ProgramError
from ucutlass.runtime.launch_spec import dtype_of
from ucutlass.runtime.timing import compare

ROW_SECONDS = 60.0
ELEMENTS = ("bf16", "f32", "f16")
SHORTEST, LONGEST = 2**8, 2**18
CHANNELS = 8
"""Of a group, which are normed together."""

RIVALS = ("eager", "compile", "quack")

BYTES = 2**28
"""What the operand of a drawn problem has."""

COPY, BEST = "of the copy, beyond the L2", "over the best of eager, torch.compile and quack"
BARS = {COPY: Bar(least=0.90), BEST: Bar(geomean=1.0, least=0.95)}

_NORM = "d = x - mean[D](x)\n return d * rsqrt(mean[D](d * d) + 1e-5) * g + b"
_RMS = "return x * rsqrt(mean[D](x * x) + 1e-5) * g"
_WHOLE = "-> {e}[T, D]"

TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "softmax": "(x: {e}[T, D]) " + _WHOLE + " { return softmax[D](x) }",
        "log_softmax": "(x: {e}[T, D]) " + _WHOLE + " { return log_softmax[D](x) }",
        "layer_norm": "(x: {e}[T, D], g: {e}[D], b: {e}[D]) " + _WHOLE + " { " + _NORM + " }",
        "rms_norm": "(x: {e}[T, D], g: {e}[D]) " + _WHOLE + " { " + _RMS + " }",
        "group_norm": "(x: {e}[T, C=8, P], g: {e}[C], b: {e}[C]) -> {e}[T, C, P] { "
        "d = x - mean[C, P](x)\n return d * rsqrt(mean[C, P](d * d) + 1e-5) * g + b }",
        "cross_entropy": "(x: {e}[T, D], t: i64[T]) -> f32[T] { return logsumexp[D](x) - x[D = t] }",
    }
)

TWINS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "softmax": lambda x: torch.softmax(x, -1),
        "log_softmax": lambda x: torch.log_softmax(x, -1),
        "layer_norm": lambda x, g, b: F.layer_norm(x, (x.shape[-1],), g, b),
        "rms_norm": lambda x, g: F.rms_norm(x, (x.shape[-1],), g, 1e-5),
        "group_norm": lambda x, g, b: (
            F.group_norm(x.flatten(0, 1)[None], len(x), None, None).view_as(x) * g[:, None] + b[:, None]
        ),
        "cross_entropy": lambda x, t: F.cross_entropy(x, t, reduction="none"),
    }
)


def drawn(count: int, seed: int) -> list[str]:
    """Returns names of problems: rows of lengths that are even in the logarithm, some of no convenient length."""
    draw = random.Random(f"rows {seed}")
    names = []
    for _ in range(count):
        operator, elem = draw.choice([name for name in TEXTS if name != "group_norm"]), draw.choice(ELEMENTS)
        length = round(SHORTEST * (LONGEST / SHORTEST) ** draw.random())
        step = draw.choice((1, 8, 8, 64, 256))
        columns = max(step, length // step * step)
        rows = max(1, BYTES // (columns * (4 if elem == "f32" else 2)))
        names.append(f"{operator} {elem} {rows}x{columns}")
    return names


def problem_of(name: str, schedule: str = "") -> Problem:
    """Returns the problem of a name, with a schedule in its text. Raises ValueError for no name of a problem."""
    operator, elem, shape = name.split()
    rows, columns = map(int, shape.split("x"))
    text = "kernel k" + TEXTS[operator].replace("{e}", elem)
    if schedule:
        text = f"{text.rstrip()[:-1]} schedule sm90a {{ {schedule} }} }}"
    sizes = {"T": rows, "P": columns // CHANNELS} if operator == "group_norm" else {"T": rows, "D": columns}
    return Problem("row-wise", text, sizes, TWINS[operator], True)


def arguments(name: str, seed: int) -> list[torch.Tensor]:
    """Returns normal numbers, and for labels columns."""
    problem = problem_of(name)
    generator = torch.Generator("cuda").manual_seed(1 + seed)
    tensors = []
    for p in harness.planned(problem.text, problem.sizes)[1].params:
        assert isinstance(p.type, ir.TensorType)
        shape = tuple({"C": CHANNELS, **problem.sizes}[d] for axis in p.type.axes for d in axis.dims)
        x = torch.empty(shape, dtype=dtype_of(p.type.elem), device="cuda")
        labels = not x.is_floating_point()
        tensors.append(
            x.random_(0, problem.sizes["D"], generator=generator)
            if labels
            else x.normal_(generator=generator)
        )
    return tensors


def row(item: Item) -> Row:
    problem = problem_of(item["name"])
    args = arguments(item["name"], item["seed"])
    kernels = {"ours": ucutlass.loads(problem.text)}
    refused = {}
    for schedule in item["schedules"]:
        try:
            harness.planned(problem_of(item["name"], schedule).text, problem.sizes)
        except ProgramError as error:
            refused[schedule] = str(error)[:300]
        else:
            kernels[schedule] = ucutlass.loads(problem_of(item["name"], schedule).text)
    outs, verdicts = {}, {}
    for label, kernel in kernels.items():
        verdicts[label] = harness.check(kernel, args)
        outs[label] = kernel(*args)
    bytes_ = sum(t.numel() * t.element_size() for t in (*args, outs["ours"]))
    source = torch.zeros(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    candidates: dict[str, Callable[[int], object]] = {
        label: _launch(kernel, args, outs[label]) for label, kernel in kernels.items()
    }
    candidates |= {
        "eager": lambda _: problem.eager(*args),
        "copy": lambda _: target.copy_(source),
        "negate": lambda _: torch.neg(source, out=target),
    }
    if item["compile"]:
        fast = harness.compiled(problem.eager, *args)
        candidates["compile"] = lambda _: fast(*args)
    theirs = torch.empty_like(outs["ours"])
    rival = launch_of(item["name"].split()[0], args, theirs) if item["quack"] else None
    if rival is not None:
        try:
            rival()
        except RuntimeError as error:  # some of its kernels do not launch
            refused["quack"], rival = str(error)[:300], None
    if rival is not None:
        launch = rival
        candidates["quack"] = lambda _: launch()
    times = compare(candidates, 1)
    rate = 2 * COPIED / min(times["copy"].median, times["negate"].median)
    best = min(t.median for name, t in times.items() if name in RIVALS)
    return {
        "verdict": verdicts["ours"],
        "bytes": bytes_,
        "schedule": item["schedule"],
        "refused": refused,
        "copy_bandwidth": rate * 1e-6,
        "of_copy": {label: bytes_ / times[label].median / rate for label in kernels},
        "over_best": {label: best / times[label].median for label in kernels},
        "over_quack": times["quack"].median / times["ours"].median if rival is not None else None,
        **harness.summary_of(times),
    }


def _launch(kernel: Any, args: list[torch.Tensor], out: torch.Tensor) -> Callable[[int], object]:
    return lambda _: kernel(*args, out=out)


def main() -> None:
    parser = campaign.parser_of(__doc__, compiles=True, drawn=24)
    parser.add_argument(
        "--schedule", action="append", default=[], metavar="TEXT", help="timed beside the own one"
    )
    parser.add_argument("--quack", action="store_true", help="time quack's kernels too")
    options = parser.parse_args()
    campaign.report(
        "benchmarks.rows:row",
        [_case(name, options.schedule, options.quack) for name in _names(options)],
        options,
        _lines,
        _classes,
        row_seconds=ROW_SECONDS,
        held=BARS,
    )


def _case(name: str, schedules: list[str], quack: bool) -> Case:
    problem = problem_of(name)
    also = tuple((problem_of(name, schedule).text, problem.sizes) for schedule in schedules)
    return Case(name, problem.text, problem.sizes, {"schedules": schedules, "quack": quack}, also)


def _names(options: argparse.Namespace) -> list[str]:
    names = options.only.split(",") if options.only else drawn(options.drawn, options.seed)
    return names[:: harness.QUICK] if options.quick else names


def _lines(r: Row) -> str:
    lines = [f"{r['name']}: spread {r['spread']:.3f}  {r['schedule']}"]
    for label, us in r["microseconds"].items():
        ratios = ""
        if label in r["of_copy"]:
            ratios = f"of copy {r['of_copy'][label]:.3f}, over best {r['over_best'][label]:.3f}"
        lines.append(f"    {label:40} {us:9.1f} us  {ratios}")
    return "\n".join([*lines, *(f"    refused {schedule}: {why}" for schedule, why in r["refused"].items())])


def _classes(rows: list[Row]) -> dict[str, dict[str, float]]:
    return {
        COPY: {r["name"]: r["of_copy"]["ours"] for r in rows if r["bytes"] > BEYOND},
        BEST: {r["name"]: r["over_best"]["ours"] for r in rows},
        "over quack": {r["name"]: r["over_quack"] for r in rows if r["over_quack"] is not None},
    }


if __name__ == "__main__":
    main()
