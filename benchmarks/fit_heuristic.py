"""Fits the cost model's constants to what `benchmarks.record` measured.

    python -m benchmarks.fit_heuristic recorded.json [--rounds 6]

The loss is what a user loses: over the shapes, the mean of log(time of the schedule that the model
ranks first / best measured time), plus a tenth of the root mean square of log(estimate / time), so
that estimates stay seconds. A coordinate search scales one constant at a time. Needs no GPU. Prints
the loss before and after, what each shape loses, and the constants that changed; they go into
`ucutlass.heuristic.Constants` by hand.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.speed import BATCHED, PLAIN
from ucutlass import frontend
from ucutlass.case import build, case_of
from ucutlass.families.gemm import problem
from ucutlass.hardware import ARCHES, Device, default_device, device_named
from ucutlass.heuristic import DEFAULT, Constants, estimate
from ucutlass.rules.candidate import Candidate
from ucutlass.schedule import Request
from ucutlass.shapes import complete

FACTORS = (0.6, 0.8, 0.9, 0.96, 1.04, 1.1, 1.25, 1.6)
"""What a constant is multiplied by in one step of the search."""

SECONDS_WEIGHT = 0.1

SHARES = ("clock", "sustained", "dram", "cached", "mma_sync_hopper", "mma_sync", "simt", "gemv_dram")
"""Constants that are parts of a whole: at most 1.1, since a data sheet's whole is not exact."""

REACH = 4.0
"""A constant stays within this factor of where it began: it has a meaning to keep."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured schedule of one shape."""

    shape: str
    schedule: str
    seconds: float
    candidate: Candidate


def read(path: Path) -> tuple[list[Row], Device]:
    """The measured rows that are our kernels, and the device they ran on."""
    recorded = json.loads(path.read_text())
    arch = ARCHES["sm90a"]
    device = device_named(recorded["machine"]["gpu"]) or default_device(arch)
    rows = []
    for row in recorded["rows"]:
        if row["request"] is None:
            continue
        b, m, n, k = row["sizes"]
        checked = frontend.read_text((PLAIN if b == 1 else BATCHED).format(t=recorded["dtype"]))
        program = frontend.kernel(checked)
        extents = {"M": m, "N": n, "K": k} | ({"B": b} if b > 1 else {})
        sizes = tuple(complete(program, extents))
        case = case_of(problem(frontend.form(checked, program), sizes), sizes, arch, device)
        candidate = build(case, request(row["request"]))
        rows.append(Row(row["shape"], row["schedule"], row["us"] * 1e-6, candidate))
    return rows, device


def request(recorded: Mapping[str, Any]) -> Request:
    """A request out of JSON, which has lists for tuples."""
    return Request(**{name: tuple(v) if isinstance(v, list) else v for name, v in recorded.items()})


def by_shape(rows: Sequence[Row]) -> list[list[Row]]:
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.shape].append(row)
    return list(groups.values())


def losses(
    groups: Sequence[Sequence[Row]], device: Device, constants: Constants
) -> list[tuple[float, float, Row]]:
    """For each shape: the log of what the first choice loses, the mean square of the estimates'
    logs, and that choice."""
    found = []
    for rows in groups:
        estimates = [estimate(row.candidate, device, constants).seconds for row in rows]
        first = min(zip(estimates, rows, strict=True), key=lambda pair: pair[0])[1]
        square = sum(math.log(e / r.seconds) ** 2 for e, r in zip(estimates, rows, strict=True)) / len(rows)
        found.append((math.log(first.seconds / min(r.seconds for r in rows)), square, first))
    return found


def total(groups: Sequence[Sequence[Row]], device: Device, constants: Constants) -> float:
    found = losses(groups, device, constants)
    regret = sum(lost for lost, _, _ in found) / len(found)
    return regret + SECONDS_WEIGHT * math.sqrt(sum(square for _, square, _ in found) / len(found))


def sensible(name: str, constants: Constants) -> bool:
    """Whether a constant still means what its name says."""
    value, began = getattr(constants, name), getattr(DEFAULT, name)
    return began / REACH <= value <= began * REACH and not (name in SHARES and value > 1.1)


def fit(groups: Sequence[Sequence[Row]], device: Device, rounds: int) -> Constants:
    """The best constants that scaling one at a time finds."""
    best, least = DEFAULT, total(groups, device, DEFAULT)
    for _ in range(rounds):
        before = least
        for field in fields(Constants):
            for factor in FACTORS:
                tried = replace(best, **{field.name: getattr(best, field.name) * factor})
                if sensible(field.name, tried) and (loss := total(groups, device, tried)) < least:
                    best, least = tried, loss
        if least == before:
            break
    return best


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    rows, device = read(options.recorded)
    groups = by_shape(rows)
    fitted = fit(groups, device, options.rounds)
    print(f"{len(rows)} rows, {len(groups)} shapes, {device.name}")
    print(f"loss {total(groups, device, DEFAULT):.4f} -> {total(groups, device, fitted):.4f}")
    for lost, _, first in losses(groups, device, fitted):
        print(f"  {first.shape:16} {math.exp(-lost):6.1%} of the best measured: {first.schedule}")
    for field in fields(Constants):
        old, new = getattr(DEFAULT, field.name), getattr(fitted, field.name)
        if old != new:
            print(f"    {field.name}: float = {new:.4g}  # was {old:.4g}")


if __name__ == "__main__":
    main()
