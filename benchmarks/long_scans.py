"""Scans of few long rows, in one pass and in two, timed in turns with torch's and with a copy.

    python -m benchmarks.long_scans --out scans.json [--only NAME,..] [--plain]

Bytes are compulsory: every element read and written once. `of copy` is the time that a copy of as many
bytes would take over a kernel's, at the bandwidth of copying 1 GiB in the same run. Every kernel is held
against the first variant's result: the largest difference, as a part of the largest magnitude, nan where two
launches differ. `--plain` leaves out all variants but the planner's own parts in one pass, and two passes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import ucutlass
from benchmarks import budget
from benchmarks.memory_bound import COPIED
from benchmarks.report import machine
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.timing import compare
from ucutlass.shapes import complete


@dataclass(frozen=True, slots=True)
class Row:
    """A cumulative sum along `along` of a tensor of these extents, in the order of its names."""

    elem: str
    sizes: Mapping[str, int]
    along: str = "L"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.elem == "bf16" else torch.float32

    def text(self, fields: str) -> str:
        type_ = f"{self.elem}[{', '.join(self.sizes)}]"
        body = f"return cumsum[{self.along}](x) schedule sm90a {{ {fields} }}"
        return f"kernel k(x: {type_}) -> {type_} {{ {body} }}"


ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "f32 1": Row("f32", {"A": 1, "L": 2**28}),
        "f32 8": Row("f32", {"A": 8, "L": 2**25}),
        "f32 64": Row("f32", {"A": 64, "L": 2**22}),
        "bf16 1": Row("bf16", {"A": 1, "L": 2**28}),
        "bf16 8": Row("bf16", {"A": 8, "L": 2**25}),
        "f32 1 odd": Row("f32", {"A": 1, "L": 2**28 - 57}),
        "f32 down 8": Row("f32", {"L": 2**25, "C": 8}),
        "f32 down 256": Row("f32", {"L": 2**20, "C": 256}),
    }
)

TWICE = "keep reread"
PLAIN = ("keep registers", TWICE)
ACROSS = (
    "threads 128",
    "threads 512",
    "items 4",
    "items 2",
    "threads 512  items 4",
    "threads 128  items 4",
    "threads 1024  items 4",
    "items 3",
    "items 6",
    "items 8",
)
DOWN = ("items 4", "items 6")


def variants(row: Row, plain: bool) -> tuple[str, ...]:
    more = ACROSS if row.along == list(row.sizes)[-1] else DOWN
    return PLAIN if plain else (*PLAIN, *(f"keep registers  {fields}" for fields in more))


def prebuild(texts: list[tuple[str, Mapping[str, int]]]) -> dict[str, str]:
    """Builds every kernel in parallel; why each that was not built was not, by its text."""
    pairs = []
    for text, sizes in texts:
        checked = frontend.read_text(text)
        program = frontend.kernel(checked)
        plan = frontend.plan_kernel(checked, program, complete(program, dict(sizes)), "sm90a").planned
        pairs.append((source_of(checked, program, plan), plan.plan))
    made = build_sources(pairs)
    return {t: str(m)[:2000] for (t, _), m in zip(texts, made, strict=True) if not isinstance(m, Artifact)}


def timed(row: Row, fields: tuple[str, ...]) -> dict[str, Any]:
    """Medians in microseconds by variant, with what each kernel's result differs by."""
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.empty(tuple(row.sizes.values()), dtype=row.dtype, device="cuda").normal_(generator=generator)
    out = torch.empty_like(x)
    axis = list(row.sizes).index(row.along)
    source = torch.zeros(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    kernels = {f: ucutlass.loads(row.text(f)) for f in fields}
    candidates: dict[str, Any] = {
        "torch": lambda _: torch.cumsum(x, axis, out=out),
        "copy": lambda _: target.copy_(source),
        "negate": lambda _: torch.neg(source, out=target),
    }
    first = kernels[fields[0]](x).clone()
    largest, apart = float(first.abs().max()), {}
    for f, kernel in kernels.items():
        candidates[f] = lambda _, kernel=kernel: kernel(x, out=out)
        apart[f] = float((kernel(x).float() - first.float()).abs().max()) / largest
        repeated = kernel(x)
        if not torch.equal(repeated, kernel(x)):
            apart[f] = float("nan")  # not even itself
    times = compare(candidates, 1)
    rate = 2 * COPIED / min(times["copy"].median, times["negate"].median)
    moved = 2 * x.numel() * x.element_size()
    return {
        "bytes": moved,
        "copy_bandwidth": rate * 1e-6,
        "apart": apart,
        "microseconds": {name: t.median for name, t in times.items()},
        "of_copy": {n: moved / t.median / rate for n, t in times.items() if n not in ("copy", "negate")},
        "spread": max(t.spread for t in times.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    only = list(filter(None, options.only.split(",")))
    rows = {n: r for n, r in ROWS.items() if not only or n in only}
    asked = {n: variants(r, options.plain) for n, r in rows.items()}
    unbuilt = prebuild([(rows[n].text(f), rows[n].sizes) for n, fields in asked.items() for f in fields])
    report: dict[str, Any] = {"machine": machine(), "rows": {}, "unbuilt": unbuilt}
    for name, row in rows.items():
        built = tuple(f for f in asked[name] if row.text(f) not in unbuilt)
        if not built:
            continue
        found = report["rows"][name] = timed(row, built)
        budget.write(options.out, report)
        print(f"{name}: copy {found['copy_bandwidth']:.2f} TB/s, spread {found['spread']:.3f}")
        for variant, share in found["of_copy"].items():
            micros, apart = found["microseconds"][variant], found["apart"].get(variant, 0.0)
            print(f"  {variant:36} {micros:9.1f} us  of copy {share:.3f}  apart {apart:.2g}", flush=True)
    for text, why in unbuilt.items():
        print(f"not built: {text}: {why}")
    sys.exit(bool(unbuilt))


if __name__ == "__main__":
    main()
