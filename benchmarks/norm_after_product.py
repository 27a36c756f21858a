"""A product and a norm or softmax of its rows, as one program, against the best form of two launches.

    python -m benchmarks.norm_after_product --out FILE [--seed N] [--drawn N] [--only NAME,..] [--no-compile] [--quack]

Claim: where one kernel serves both, it is 1.2 times as fast as the best of two launches: cuBLAS's product, and behind it
our norm, quack's (`--quack`, which `benchmarks.quack_launches` says how to install) or torch's. Where no kernel serves
both, the program is a pipeline of two kernels, and only eager, max-autotune and the two launches are compared with it. A
row says how many launches the program has. Rows of N elements are drawn from 256 to 16k.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import ucutlass
from benchmarks import bars, campaign, harness
from benchmarks.bars import Bar
from benchmarks.campaign import Case
from benchmarks.harness import Item, Row
from benchmarks.product_cases import MOST_OPERATIONS
from benchmarks.quack_launches import launch_of
from benchmarks.rows import TEXTS, TWINS
from ucutlass.diagnostics import ProgramError
from ucutlass.pipeline.pricing import pays
from ucutlass.runtime.timing import compare, sets_for

ROW_SECONDS = 120.0

NORMS = ("layer_norm", "rms_norm", "softmax")
ELEMENTS = {"bf16": torch.bfloat16, "f16": torch.float16}

ONE = "one launch over the best of two"

_PRODUCT = "(x: {e}[T, K], w: {e}[D, K]) -> {e}[T, D] { return dot[K](x, w) }"


@dataclass(frozen=True, slots=True)
class Problem:
    """A product of [T, K] and [D, K], whose rows of D elements are normed."""

    norm: str
    element: str
    t: int
    d: int
    k: int

    @property
    def name(self) -> str:
        return f"{self.norm} {self.element} {self.t}x{self.d}x{self.k}"

    @property
    def sizes(self) -> dict[str, int]:
        return {"T": self.t, "D": self.d, "K": self.k}

    @property
    def product(self) -> str:
        return "kernel product" + _PRODUCT.replace("{e}", self.element)

    @property
    def normed(self) -> str:
        return "kernel normed" + TEXTS[self.norm].replace("{e}", self.element)

    @property
    def _parts(self) -> tuple[str, str, str]:
        """Of the norm of `x`: its further parameters, their names, and its body."""
        head, _, body = TEXTS[self.norm].replace("{e}", self.element).partition("{")
        params = head.partition("]")[2].partition(")")[0]
        names = [param.split(":")[0].strip() for param in params.split(", ") if ":" in param]
        return params, "".join(f", {name}" for name in names), body

    def _head(self, left: str) -> str:
        e = self.element
        return f"whole({left}: {e}[T, K], w: {e}[D, K]{self._parts[0]}) -> {e}[T, D]"

    @property
    def whole(self) -> str:
        """One kernel of both."""
        return f"kernel {self._head('a')} {{ x = dot[K](a, w)\n{self._parts[2]}"

    @property
    def pipeline(self) -> str:
        calls = f"  y = product(x, w)\n  return normed(y{self._parts[1]})\n"
        return f"{self.product}\n{self.normed}\npipeline {self._head('x')} {{\n{calls}}}\n"


def drawn(count: int, seed: int) -> list[Problem]:
    """Returns problems of a seed, each norm in turn."""
    draw = random.Random(f"norm after product {seed}")
    problems: list[Problem] = []
    while len(problems) < count:
        t, d, k = (int(2 ** draw.uniform(*ends)) // 8 * 8 for ends in ((7, 14), (8, 14), (8, 13)))
        if 2.0 * t * d * k <= MOST_OPERATIONS:
            norm = NORMS[len(problems) % len(NORMS)]
            problems.append(Problem(norm, draw.choice(tuple(ELEMENTS)), t, d, k))
    return problems


def launches(problem: Problem) -> int:
    """Returns with how many kernels the problem's program is served: one where the estimates say that it pays, as the
    importer and `ucc fuse` ask."""
    try:
        whole = harness.planned(problem.whole, problem.sizes)[2].seconds
    except ProgramError:
        return 2
    parts = ((problem.product, problem.sizes), (problem.normed, {"T": problem.t, "D": problem.d}))
    return 1 if pays([harness.planned(*part)[2].seconds for part in parts], [whole]) else 2


def case_of(problem: Problem) -> Case:
    one = launches(problem) == 1
    facts = {"problem": asdict(problem), "launches": 1 if one else 2}
    text = problem.whole if one else problem.product
    also = [(problem.normed, {"T": problem.t, "D": problem.d})]
    if one:
        also.append((problem.product, problem.sizes))
    return Case(problem.name, text, problem.sizes, facts, tuple(also))


# --- one row ------------------------------------------------------------------------------


def row(item: Item) -> Row:
    problem = Problem(**item["problem"])
    generator = torch.Generator("cuda").manual_seed(1 + item["seed"])
    like: dict[str, Any] = {"device": "cuda", "dtype": ELEMENTS[problem.element], "generator": generator}
    count = sets_for(2 * (problem.t * problem.k + problem.d * problem.k + 2 * problem.t * problem.d))
    gains = [
        torch.randn(problem.d, **like) for _ in range({"softmax": 0, "rms_norm": 1}.get(problem.norm, 2))
    ]
    sets = [
        (
            torch.randn(problem.t, problem.k, **like),
            torch.randn(problem.d, problem.k, **like) * problem.k**-0.5,
        )
        for _ in range(count)
    ]
    one = item["launches"] == 1
    kernel: Any = ucutlass.loads(problem.whole) if one else ucutlass.loads(problem.pipeline, "whole")
    verdict = harness.check(kernel, [*sets[0], *gains])
    outs = [torch.empty(problem.t, problem.d, device="cuda", dtype=ELEMENTS[problem.element]) for _ in sets]
    between = [torch.empty_like(out) for out in outs]
    norms = _norms(problem, between, gains, outs, item["quack"])

    def eager(x: Tensor, w: Tensor) -> Any:
        return TWINS[problem.norm](F.linear(x, w), *gains)

    def behind_cublas(norm: Callable[[int], object]) -> Callable[[int], object]:
        def launch(i: int) -> None:
            torch.mm(sets[i][0], sets[i][1].mT, out=between[i])
            norm(i)

        return launch

    candidates: dict[str, Callable[[int], object]] = {
        "ours": lambda i: kernel(*sets[i], *gains, out=outs[i]),
        **{f"cublas, {name}": behind_cublas(norm) for name, norm in norms.items()},
        "eager": lambda i: eager(*sets[i]),
    }
    if item["compile"]:
        fast = harness.compiled(eager, *sets[0])
        candidates["compile"] = lambda i: fast(*sets[i])
    times = compare(candidates, count)
    us = {name: time.median for name, time in times.items()}
    return {
        **harness.summary_of(times),
        "verdict": verdict,
        "launches": item["launches"],
        "schedule": item["schedule"],
        "over two": min(t for name, t in us.items() if name != "ours") / us["ours"],
    }


def _norms(
    problem: Problem, between: list[Tensor], gains: list[Tensor], outs: list[Tensor], quack: bool
) -> dict[str, Callable[[int], object]]:
    """Returns launches of norms behind a product, by whose they are."""
    kernel: Any = ucutlass.loads(problem.normed)
    found: dict[str, Callable[[int], object]] = {
        "ours": lambda i: kernel(between[i], *gains, out=outs[i]),
        "torch": lambda i: TWINS[problem.norm](between[i], *gains),
    }
    if quack:
        calls = [launch_of(problem.norm, [y, *gains], out) for y, out in zip(between, outs, strict=True)]
        if all(call is not None for call in calls):
            found["quack"] = lambda i: calls[i]()  # type: ignore[misc]
    return found


def main() -> None:
    parser = campaign.parser_of(__doc__, compiles=True, drawn=16)
    parser.add_argument("--quack", action="store_true", help="time quack's norms too")
    options = parser.parse_args()
    problems = harness.selected(drawn(options.drawn, options.seed), options, lambda p: p.name)
    cases = [case_of(problem) for problem in problems]
    for case in cases:
        case.facts["quack"] = options.quack
    campaign.report(
        "benchmarks.norm_after_product:row",
        cases,
        options,
        _line,
        classes,
        row_seconds=ROW_SECONDS,
        held={ONE: Bar(geomean=1.2)},
    )


def classes(rows: list[Row]) -> dict[str, dict[str, float]]:
    names = {1: ONE, 2: "a pipeline over the best of two"}
    return bars.classed(rows, lambda r: r["over two"], lambda r: names[r["launches"]])


def _line(r: Row) -> str:
    times = "  ".join(f"{name} {us:.1f}" for name, us in r["microseconds"].items())
    return (
        f"{r['name']:34} {r['launches']} launches, over the best of two {r['over two']:.3f}  {times} us  "
        f"spread {r['spread']:.3f}"
    )


if __name__ == "__main__":
    main()
