"""Is any time that an H200 took below the speed of light? Every recorded time against its bound.

    python -m benchmarks.sol_measured [FILE ..]     # no GPU: the rows in benchmarks/data

The bound is that of cold operands: the recordings rotate buffers through more than twice the L2. cuBLAS's and
PyTorch's times are rows as well. Exit status 1 where one is below.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gemm_cases import Task, extents_of
from ucutlass import frontend
from ucutlass.ir.hardware import ARCHES, default_device
from ucutlass.shapes import complete
from ucutlass.sol import speed_of_light
from ucutlass.sol.bounds import bounds

DATA = Path(__file__).parent / "data"
FILES = ("h200_bf16.json", "h200_probe.json", "h200_speed.json", "h200_speed_2.json")
DEVICE = default_device(ARCHES["sm90a"])
WHO = ("ours", "mm", "eager", "compile")
"""Whose times a row of fixed shapes holds."""


@dataclass(frozen=True, slots=True)
class Row:
    """A time in microseconds beside its bound; `what` names file, shape and kernel."""

    what: str
    us: float
    bound_us: float
    by: str

    @property
    def share(self) -> float:
        return self.bound_us / self.us


def rows_of(name: str, report: Mapping[str, Any]) -> Iterator[Row]:
    """Of a file of benchmarks.record (`rows`), or of fixed shapes (`gemm`, `fused`)."""
    for row in report.get("rows", ()):
        task = Task("gemm", (row["shape"], *row["sizes"]), report["dtype"])
        yield _row(f"{name}: {row['shape']}: {row['schedule']}", task, row["us"])
    for row in (*report.get("gemm", ()), *report.get("fused", ())):
        batch = () if len(row["sizes"]) == 4 else (1,)
        task = Task(row["kind"], (row["shape"], *batch, *row["sizes"]), row["dtype"])
        for who in WHO:
            if who in row:
                yield _row(f"{name}: {row['kind']} {row['dtype']} {row['shape']}: {who}", task, row[who])


def _row(what: str, task: Task, us: float) -> Row:
    checked = frontend.read_text(task.text)
    program = frontend.kernel(checked)
    sizes = complete(program, extents_of(task.shape))
    bound = speed_of_light(bounds(program, dict(zip(program.dims, sizes, strict=True)), DEVICE))
    return Row(what, us, bound.seconds * 1e6, bound.limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=[DATA / name for name in FILES])
    every: list[Row] = []
    for path in parser.parse_args().files:
        rows = list(rows_of(path.stem, json.loads(path.read_text(encoding="utf-8"))))
        near = max(rows, key=lambda r: r.share)
        print(f"{path.name}: {len(rows)} times, the nearest to its bound: {near.share:.1%}, {near.what}")
        every += rows
    below = [r for r in every if r.share > 1]
    for r in below:
        print(f"below: {r.us:.2f} us, bound {r.bound_us:.2f} by {r.by}: {r.what}")
    print(f"{len(every)} times, {len(below)} below their bound")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
