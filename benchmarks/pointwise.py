"""Element-wise kernels over drawn shapes, types and memory orders, against eager PyTorch and torch.compile.

    python -m benchmarks.pointwise --out pointwise.json [--drawn N] [--seed N] [--only NAME,..] [--no-compile]

Claim: element-wise work of any size, type, extents, broadcast and transpose, of several inputs and results, is no slower
than eager PyTorch and torch.compile. A problem's name says all of it, as in "scale_shift bf16 300x64x1001"; `--only`
takes names that were not drawn too. Operands and results rotate through more than twice the L2: a rival's results are kept
until their set's turn comes again, since the allocator would give it one buffer, which stays in the L2.
`python -m benchmarks.memory_bound` explains `of_copy`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from ucutlass import ir
from ucutlass.runtime.launch_spec import dtype_of
from ucutlass.runtime.timing import compare, sets_for

ROW_SECONDS = 60.0
BEST = "over the best of eager and torch.compile"
ELEMENTS = ("bf16", "f32", "f16")
SMALLEST, LARGEST = 2**14, 2**28
"""Elements of the largest operand of a drawn problem."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A kernel's text for an element type {e}, with dimensions A, B, C outermost first, and its eager twin."""

    text: str
    eager: Callable[..., Any]


_ALL = "{e}[A, B, C]"

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        "gelu": Operator(f"(x: {_ALL}) -> {_ALL} {{{{ return gelu(x) }}}}", F.gelu),
        "relu": Operator(f"(x: {_ALL}) -> {_ALL} {{{{ return relu(x) }}}}", F.relu),
        "add": Operator(f"(x: {_ALL}, y: {_ALL}) -> {_ALL} {{{{ return x + y }}}}", lambda x, y: x + y),
        "silu_times": Operator(
            f"(x: {_ALL}, y: {_ALL}) -> {_ALL} {{{{ return silu(x) * y }}}}", lambda x, y: F.silu(x) * y
        ),
        "blend": Operator(
            f"(x: {_ALL}, y: {_ALL}, z: {_ALL}) -> {_ALL} {{{{ return x * y + z }}}}",
            lambda x, y, z: x * y + z,
        ),
        "bias": Operator(
            f"(x: {_ALL}, b: {{e}}[C]) -> {_ALL} {{{{ return relu(x + b) }}}}", lambda x, b: F.relu(x + b)
        ),
        "scale_shift": Operator(
            f"(x: {_ALL}, g: {{e}}[B], b: {{e}}[B]) -> {_ALL} {{{{ return x * g + b }}}}",
            lambda x, g, b: x * g[:, None] + b[:, None],
        ),
        "outer": Operator(
            f"(x: {{e}}[A, B], y: {{e}}[A, C]) -> {_ALL} {{{{ return x * y }}}}",
            lambda x, y: x[:, :, None] * y[:, None],
        ),
        "widen": Operator(f"(x: {_ALL}) -> f32[A, B, C] {{{{ return x * 2.0 }}}}", lambda x: x.float() * 2.0),
        "narrow": Operator(
            f"(x: f32[A, B, C], y: {_ALL}) -> {_ALL} {{{{ return x + y }}}}", lambda x, y: (x + y).to(y.dtype)
        ),
        "two": Operator(
            f"(x: {_ALL}, y: {_ALL}) -> (s: {_ALL}, d: {_ALL}) {{{{ return s = x + y, d = x - y }}}}",
            lambda x, y: (x + y, x - y),
        ),
        "swap_last": Operator(
            f"(x: {_ALL}) -> {{e}}[A, C, B] {{{{ return x }}}}", lambda x: x.mT.contiguous()
        ),
        "swap_first": Operator(
            f"(x: {_ALL}) -> {{e}}[B, A, C] {{{{ return x }}}}", lambda x: x.transpose(0, 1).contiguous()
        ),
        "add_swapped": Operator(
            f"(x: {_ALL}, y: {{e}}[A, C, B]) -> {_ALL} {{{{ return x + y }}}}", lambda x, y: x + y.mT
        ),
    }
)


def drawn(count: int, seed: int) -> list[str]:
    """Returns names of problems: sizes that are even in the logarithm, some of no convenient extents."""
    draw = random.Random(f"pointwise {seed}")
    names = []
    for _ in range(count):
        operator, elem = draw.choice(list(OPERATORS)), draw.choice(ELEMENTS)
        total = SMALLEST * (LARGEST / SMALLEST) ** draw.random()
        if elem == "f32" or operator in ("widen", "narrow"):
            total /= 2
        last = _extent(draw, min(2**13, max(8, round(total / 64))))
        middle = _extent(draw, max(2, min(2**10, round(total / last / 4))))
        names.append(f"{operator} {elem} {max(1, round(total / last / middle))}x{middle}x{last}")
    return names


def _extent(draw: random.Random, most: int) -> int:
    """Returns an extent of at most so many, half of the time odd or otherwise no multiple of 8."""
    extent = round(2.0 * (most / 2) ** draw.random())
    step = draw.choice((1, 1, 8, 64))
    return int(max(step, extent // step * step))


def program_of(name: str) -> tuple[str, dict[str, int]]:
    """Returns the text and the sizes of a name. Raises ValueError for no name of a problem."""
    operator, elem, shape = name.split()
    return "kernel k" + OPERATORS[operator].text.format(e=elem), dict(
        zip("ABC", map(int, shape.split("x")), strict=True)
    )


def parameters(name: str) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Returns the shape and the type of each parameter."""
    text, sizes = program_of(name)
    tensors = []
    for p in harness.planned(text, sizes)[1].params:
        assert isinstance(p.type, ir.TensorType)
        tensors.append((tuple(sizes[d] for axis in p.type.axes for d in axis.dims), dtype_of(p.type.elem)))
    return tensors


def row(item: Item) -> Row:
    name = item["name"]
    text, _ = program_of(name)
    eager = OPERATORS[name.split()[0]].eager
    kernel = ucutlass.loads(text)
    generator = torch.Generator("cuda").manual_seed(1 + item["seed"])
    shapes = parameters(name)

    def draw() -> list[torch.Tensor]:
        return [torch.randn(s, device="cuda", generator=generator).to(t) for s, t in shapes]

    args = draw()
    verdict = harness.check(kernel, args)
    out = kernel(*args)
    results = out if isinstance(out, tuple) else (out,)
    bytes_ = sum(t.numel() * t.element_size() for t in (*args, *results))
    sets = [args, *(draw() for _ in range(sets_for(bytes_) - 1))]
    outs = [out, *(kernel(*s) for s in sets[1:])]
    source = torch.zeros(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    candidates: dict[str, Callable[[int], object]] = {
        "ours": lambda i: kernel(*sets[i % len(sets)], out=outs[i % len(sets)]),
        "eager": _rotating(eager, sets),
        "negate": lambda _: torch.neg(source, out=target),
    }
    if item["compile"]:
        candidates["compile"] = _rotating(harness.compiled(eager, *args), sets)
    times = compare(candidates, len(sets))
    best = min(t.median for label, t in times.items() if label in ("eager", "compile"))
    return {
        "verdict": verdict,
        "bytes": bytes_,
        "schedule": item["schedule"],
        "of_copy": bytes_ / times["ours"].median / (2 * COPIED / times["negate"].median),
        "over_best": best / times["ours"].median,
        **harness.summary_of(times),
    }


def _rotating(function: Callable[..., Any], sets: list[list[torch.Tensor]]) -> Callable[[int], None]:
    """Returns a launch of a function that allocates its results, which keeps those of every set."""
    results: list[Any] = [None] * len(sets)

    def launch(i: int) -> None:
        results[i % len(sets)] = function(*sets[i % len(sets)])

    return launch


def main() -> None:
    options = campaign.parser_of(__doc__, compiles=True, drawn=24).parse_args()
    campaign.report(
        "benchmarks.pointwise:row",
        [Case(name, *program_of(name)) for name in _names(options)],
        options,
        _line,
        lambda rows: {
            BEST: {r["name"]: r["over_best"] for r in rows},
            "of the copy, beyond the L2": {r["name"]: r["of_copy"] for r in rows if r["bytes"] > BEYOND},
        },
        row_seconds=ROW_SECONDS,
        held={BEST: Bar(least=0.98)},
    )


def _names(options: argparse.Namespace) -> list[str]:
    names = options.only.split(",") if options.only else drawn(options.drawn, options.seed)
    return names[:: harness.QUICK] if options.quick else names


def _line(r: Row) -> str:
    times = "  ".join(f"{label} {us:.2f}" for label, us in r["microseconds"].items() if label != "negate")
    return (
        f"{r['name']:34} over best {r['over_best']:.3f}  of copy {r['of_copy']:.3f}  {times} us  "
        f"{r['schedule'].removeprefix('ReductionSchedule')}"
    )


if __name__ == "__main__":
    main()
