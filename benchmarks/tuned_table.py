"""The tables of `benchmarks.tuned` in Markdown, for docs/measurements.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.report import geomean
from benchmarks.tuned_rows import KINDS, MAIN, OTHERS

_KINDS = {
    "plain": ("gemm",),
    "fused": ("bias+gelu", "residual+relu"),
    "tf32x3": ("tf32x3",),
    "fp8": ("fp8", "fp8 fast"),
}


def table(report: Mapping[str, Any]) -> str:
    """Every row of every group, with what the groups come to."""
    lines = []
    for group, kinds in _KINDS.items():
        rows = [row for row in report["rows"] if row["kind"] in kinds]
        if rows:
            lines += [f"**{group}**", "", *_rows(rows, KINDS[kinds[0]].rival), *_totals(group, rows), ""]
    if report["wall"]:
        lines += ["**wall**", "", *_wall(report["wall"]), ""]
    lines += [f"lost: {row['name']}: {row['error']}: {row['detail'][:300]}" for row in report["lost"]]
    lines += [f"not built: {name}: {why[:300]}" for name, why in report.get("unbuilt", {}).items()]
    if report["left"]:
        lines.append(f"left for another call: {len(report['left'])} rows")
    return "\n".join(lines)


def _rows(rows: Sequence[Mapping[str, Any]], rival: str) -> Iterable[str]:
    compiled = any("compile" in row for row in rows)
    exact = any("error ours" in row for row in rows)
    head = ["kernel", "M x N x K", "tuned us", f"{rival} us", *(["compile us"] if compiled else [])]
    head += ["best / tuned", "interval", "builds", *(["error, eager's"] if exact else []), "schedule"]
    yield _line(head)
    yield "|" + "---|" * len(head)
    for row in rows:
        _, low, high = row["ratios"][row["best"]]
        cells = [f"{row['kind']} {row['dtype']}", sizes(row["shape"]), f"{row['ours']:.1f}"]
        cells += [f"{row[rival]:.1f}", *([_us(row, "compile")] if compiled else [])]
        cells += [f"{row['ratio']:.3f}", f"{low:.3f} to {high:.3f}"]
        cells += ["the other type's" if row.get("taken") else str(row["builds"])]
        cells += [f"{row['error ours']:.2g}, {row['error eager']:.2g}"] if exact else []
        yield _line([*cells, " ".join(row["schedule"].replace("raster heuristic", "").split())])


def _us(row: Mapping[str, Any], name: str) -> str:
    return f"{row[name]:.1f}" if name in row else "-"


def sizes(shape: Sequence[Any]) -> str:
    _, b, m, n, k = shape
    return ("" if b == 1 else f"{b} of ") + f"{m} x {n} x {k}"


def _totals(group: str, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    yield ""
    yield from (_total(label, mine) for label, mine in _parts(group, rows) if mine)


def _parts(group: str, rows: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, list[Mapping[str, Any]]]]:
    for name in dict.fromkeys((row["kind"], row["dtype"]) for row in rows):
        yield " ".join(name), [row for row in rows if (row["kind"], row["dtype"]) == name]
    if group == "plain":
        for label, shapes in (("the 16 main shapes", MAIN), ("16 more", OTHERS)):
            names = {s[0] for s in shapes}
            yield label, [row for row in rows if row["shape"][0] in names]
    yield "all", list(rows)


def _total(label: str, rows: Sequence[Mapping[str, Any]]) -> str:
    worst = min(rows, key=lambda row: row["ratio"])
    over = {name for row in rows for name in row["ratios"]}
    each = ", ".join(
        f"{geomean([r['ratios'][name][0] for r in rows if name in r['ratios']]):.3f} of {name}"
        for name in sorted(over)
    )
    return (
        f"- {label}: geomean of best rival / tuned {geomean([r['ratio'] for r in rows]):.3f} over "
        f"{len(rows)} rows ({each}), worst {worst['ratio']:.3f} ({worst['name']}), largest spread "
        f"{max(r['spread'] for r in rows):.1%}"
    )


def _wall(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    head = ["kernel", "`ucc tune` s", "of it the search", "builds", "torch.compile s"]
    head += ["of it the call", "ratio"]
    yield _line(head)
    yield "|" + "---|" * len(head)
    for row in rows:
        numbers = [f"{row['ours']:.1f}", f"{row['search']:.1f}", str(row["built"])]
        numbers += [f"{row['compile']:.1f}", f"{row['call']:.1f}", f"{row['ratio']:.2f}"]
        yield _line([row["name"], *numbers])
    yield ""
    yield f"- geomean of torch.compile / `ucc tune`: {geomean([row['ratio'] for row in rows]):.2f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
