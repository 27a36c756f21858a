"""Fits the cost model's constants to what `benchmarks.record` and `products` measured.

    python -m benchmarks.fit_heuristic recorded.json products.json [--cross]

Least squares over log(estimate / time). A row weighs its shape's best time over its own: what a slow
schedule takes exactly does not matter; and every shape weighs the same, but for those with few rows, which
weigh less. Few rows far off may stay off (pseudo-Huber). The search is Levenberg-Marquardt over the logs of
the constants. Needs no GPU. Prints for every shape what the schedule that ranks first loses against the best
measured one, and how far estimates are off, before and after; and the constants, which go into
`ucutlass.kernels.gemm.cost.Constants` by hand.

`--cross` also fits as often as there are shapes, without one each, and prints what the shape left out
then loses: fitted shapes that do better than shapes left out are over-fitted.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.gemm_cases import BATCHED, PLAIN, Shape, extents_of
from benchmarks.product_cases import Problem
from ucutlass import frontend
from ucutlass.ir.hardware import ARCHES, Device, default_device, device_named
from ucutlass.ir.schedule import partial_schedule_of_json
from ucutlass.kernels.gemm.cost import DEFAULT, Constants, estimate
from ucutlass.kernels.gemm.match import GemmPattern
from ucutlass.kernels.gemm.problem import gemm_problem
from ucutlass.kernels.gemm.schedule import GemmCandidate, PlanningCase, build, candidate_of, case_of
from ucutlass.shapes import complete

FITTED = (
    "sustained",
    "norm",
    "dram",
    "l2_bytes",
    "sm_bytes",
    "beyond_bytes",
    "shared",
    "start",
    "tile",
    "element",
    "direct",
    "split",
    "handover",
    "reduce_bytes",
    "mma_sync_hopper",
    "shortest_step",
    "widen",
)
"""The others are estimates that these rows do not tell apart."""

MOST: Mapping[str, float] = {"sustained": 1.0, "dram": 1.0, "sm_bytes": 68.0}
"""No part of a whole is above 1, and an SM takes in 64 bytes a cycle of the highest clock."""

REACH = 4.0
"""A constant stays within this factor of where it began: it has a meaning to keep."""

FEW = 20
"""From so many rows on, a shape has its full weight."""

FAR = 0.05
"""Rows further off than this pull less than in proportion."""

PRICED = ("bf16", "f16", "batched")
"""Kinds of drawn products that tell these constants."""

Group: TypeAlias = "list[Row]"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured schedule of one shape."""

    shape: str
    schedule: str
    seconds: float
    candidate: GemmCandidate


@dataclass(frozen=True, slots=True)
class Loss:
    """`regret`: log of what the schedule that ranks `first` takes over the best measured one. `error`: root
    of the weighted mean square of the estimates' logs."""

    regret: float
    error: float
    first: Row


# --- rows --------------------------------------------------------------------------------


def read(path: Path) -> tuple[list[Row], Device]:
    """The measured rows that are our kernels, and the device they ran on."""
    recorded = json.loads(path.read_text(encoding="utf-8"))
    device = device_named(recorded["machine"]["gpu"]) or default_device(ARCHES["sm90a"])
    if any("candidates" in row for row in recorded.get("rows", ())):
        rows = _drawn(recorded, device)
    else:
        rows = _timed(recorded, device) if "gemm" in recorded else _recorded(recorded, device)
    return list(rows), device


def _drawn(report: Mapping[str, Any], device: Device) -> Iterator[Row]:
    """Of `benchmarks.products`: candidates of drawn products."""
    for row in (row for row in report["rows"] if row["ok"]):
        problem = Problem(*row["problem"])
        if problem.kind not in PRICED:
            continue
        case = planning_case(problem.text, problem.sizes, device)
        for timed in row["candidates"]:
            candidate = build(case, partial_schedule_of_json(timed["request"]))
            yield Row(row["name"], timed["schedule"], timed["us"] * 1e-6, candidate)


def _recorded(recorded: Mapping[str, Any], device: Device) -> Iterator[Row]:
    """Of `benchmarks.record`: many schedules a shape."""
    for row in recorded["rows"]:
        if row["request"] is None:
            continue
        shape = (row["shape"], *row["sizes"])
        case = planning_case(_text(shape, recorded["dtype"]), extents_of(shape), device)
        candidate = build(case, partial_schedule_of_json(row["request"]))
        yield Row(row["shape"], row["schedule"], row["us"] * 1e-6, candidate)


def _timed(report: Mapping[str, Any], device: Device) -> Iterator[Row]:
    """Of fixed shapes: the schedule that was chosen then."""
    for row in report["gemm"]:
        shape = (row["shape"], *row["sizes"])
        schedule = f" schedule sm90a {{ {row['schedule']} }} }}"
        checked = frontend.read_text(_text(shape, row["dtype"]).removesuffix("}") + schedule)
        program = frontend.kernel(checked)
        planned = frontend.plan_kernel(
            checked, program, complete(program, extents_of(shape)), "sm90a"
        ).planned
        yield Row(row["shape"], row["schedule"], row["ours"] * 1e-6, candidate_of(planned))


def _text(shape: Shape, dtype: str) -> str:
    return (PLAIN if shape[1] == 1 else BATCHED).format(t=dtype)


def planning_case(text: str, extents: Mapping[str, int], device: Device) -> PlanningCase:
    """The product of a text at these extents."""
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    sizes = tuple(complete(program, extents))
    pattern = frontend.pattern(checked, program)
    assert isinstance(pattern, GemmPattern), type(pattern)
    return case_of(gemm_problem(pattern, sizes), sizes, ARCHES["sm90a"], device)


def by_shape(rows: Sequence[Row]) -> list[Group]:
    groups: defaultdict[str, Group] = defaultdict(list)
    for row in rows:
        groups[row.shape].append(row)
    return list(groups.values())


# --- loss --------------------------------------------------------------------------------


def weights(rows: Sequence[Row]) -> list[float]:
    """Of a shape's rows: many together weigh one shape."""
    best = min(row.seconds for row in rows)
    return [best / row.seconds / math.sqrt(max(FEW, len(rows))) for row in rows]


def loss(rows: Sequence[Row], device: Device, constants: Constants) -> Loss:
    """Of one shape."""
    prices = [estimate(row.candidate, device, constants).seconds for row in rows]
    first = rows[prices.index(min(prices))]
    squares = [w * w for w in weights(rows)]
    off = sum(
        s * math.log(p / row.seconds) ** 2 for s, p, row in zip(squares, prices, rows, strict=True)
    ) / sum(squares)
    return Loss(math.log(first.seconds / min(r.seconds for r in rows)), math.sqrt(off), first)


# --- fit ---------------------------------------------------------------------------------


def fit(groups: Sequence[Group], device: Device, start: Constants, rounds: int) -> Constants:
    """The constants that Levenberg-Marquardt finds from `start` on."""
    rows = [row for group in groups for row in group]
    weight = torch.tensor([w for group in groups for w in weights(group)], dtype=torch.float64)
    times = torch.tensor([row.seconds for row in rows], dtype=torch.float64).log()

    def residuals(constants: Constants) -> torch.Tensor:
        prices = [estimate(row.candidate, device, constants).seconds for row in rows]
        return (torch.tensor(prices, dtype=torch.float64).log() - times) * weight

    def cost(r: torch.Tensor) -> float:
        return float(((1 + (r / FAR) ** 2).sqrt() - 1).sum())

    best, damping = start, 1e-2
    r = residuals(best)
    for _ in range(rounds):
        slopes = [(residuals(_moved(best, {n: _STEP})) - r) / _STEP for n in FITTED]
        jacobian = torch.stack(slopes, dim=1)
        pull = (1 + (r / FAR) ** 2).rsqrt()  # how much less than a square's the loss rises there
        normal = jacobian.T @ (jacobian * pull[:, None])
        down = jacobian.T @ (r * pull)
        for _ in range(_TRIES):
            ridge = damping * (normal.diagonal() + 1e-9).diag()
            steps = torch.linalg.solve(normal + ridge, -down).clamp(-_LONGEST, _LONGEST)
            tried = _moved(best, dict(zip(FITTED, steps.tolist(), strict=True)))
            new = residuals(tried)
            if cost(new) < cost(r):
                best, r, damping = tried, new, damping / 3
                break
            damping *= 4
        else:
            return best
    return best


_STEP = 1e-3
_TRIES = 6
_LONGEST = 0.7


def _moved(constants: Constants, logs: Mapping[str, float]) -> Constants:
    """Constants times e to the power of `logs`, as far as they still mean what their names say."""
    moved = {}
    for name, log in logs.items():
        began = getattr(DEFAULT, name)
        most = max(began, min(began * REACH, MOST.get(name, math.inf)))
        moved[name] = min(most, max(began / REACH, getattr(constants, name) * math.exp(log)))
    return replace(constants, **moved)


# --- report ------------------------------------------------------------------------------


def table(groups: Sequence[Group], device: Device, constants: Mapping[str, Sequence[Constants]]) -> list[str]:
    """A line a shape and one of means; under each title there is either a set of constants for all shapes
    or one for each."""
    losses = {
        title: [loss(g, device, sets[i % len(sets)]) for i, g in enumerate(groups)]
        for title, sets in constants.items()
    }
    titles = "".join(f"{title:>22}" for title in losses)
    lines = [f"{'first choice, error':20}{titles}"]
    for i, group in enumerate(groups):
        cells = "".join(f"{math.exp(-f[i].regret):15.1%}{f[i].error:7.3f}" for f in losses.values())
        first = " ".join(list(losses.values())[-1][i].first.schedule.replace("raster heuristic", "").split())
        lines.append(f"{group[0].shape:14}{len(group):5} {cells}  {first}")
    chosen = [i for i, group in enumerate(groups) if len({row.schedule for row in group}) > 1]
    cells = "".join(
        f"{math.exp(-sum(f[i].regret for i in chosen) / len(chosen)):15.1%}"
        f"{math.sqrt(sum(x.error**2 for x in f) / len(f)):7.3f}"
        for f in losses.values()
    )
    return [*lines, f"{'mean':14}{sum(map(len, groups)):5} {cells}"]


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("recorded", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--cross", action="store_true", help="fit without each shape too")
    options = parser.parse_args()
    files = [read(path) for path in options.recorded]
    device = files[0][1]
    groups = by_shape([row for rows, _ in files for row in rows])
    fitted = fit(groups, device, DEFAULT, options.rounds)
    sets: dict[str, Sequence[Constants]] = {"as it is": [DEFAULT], "fitted": [fitted]}
    if options.cross:
        others = [[g for g in groups if g is not group] for group in groups]
        sets["left out"] = [fit(rest, device, fitted, options.rounds) for rest in others]
    print("\n".join(table(groups, device, sets)))
    for name in FITTED:
        print(f"    {name}: float = {getattr(fitted, name):.3g}  # was {getattr(DEFAULT, name):.4g}")


if __name__ == "__main__":
    main()
