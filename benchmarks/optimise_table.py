"""The summary of `benchmarks.optimise`, from its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.report import geomean

Row = dict[str, Any]

AGAINST = ("eager", "eager_tf32", "compile", "default", "random")
"""What is delivered is held against: times of each over ours."""


def latest(rows: Iterable[Row]) -> list[Row]:
    """Of each problem the row with the most attempts, one with torch.compile before one without, and one
    that was not compared at all last."""
    found: dict[str, Row] = {}
    for row in rows:
        task = str(row.get("task", row["name"].rpartition(" x")[0]))
        best = found.get(task)
        if best is None or _worth(row) >= _worth(best):
            found[task] = row
    return list(found.values())


def _worth(row: Row) -> tuple[bool, int, bool]:
    return "us" in row, int(row.get("attempts", 0)), "compile" in row.get("us", {})


def delivered(row: Row) -> float:
    """Microseconds of what the agent would hand over: the fastest that `rules` found, or the compiler's own
    choice where nothing beats it turn by turn."""
    us = row["us"]
    return float(min(us[name] for name in ("rules", "default") if name in us))


def ratio(row: Row, name: str) -> float | None:
    """How many times as fast as `name` what is delivered is. Random search may keep the default, too."""
    us = row["us"]
    if us.get(name) is None:
        return None
    other = min(us[name], us["default"]) if name == "random" else us[name]
    return float(other / delivered(row))


def means(rows: Sequence[Row]) -> dict[str, Any]:
    found: dict[str, Any] = {"problems": len(rows), "right": sum(r["ok"] for r in rows)}
    for name in AGAINST:
        ratios = [x for r in rows if r["ok"] and (x := ratio(r, name)) is not None]
        found[name] = (
            None if not ratios else {"geomean": geomean(ratios), "least": min(ratios), "of": len(ratios)}
        )
    return found


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """By lane, by class and of all."""
    timed = [r for r in rows if "us" in r]
    lanes = sorted({r["lane"] for r in timed})
    letters = [x for x in "ERWMSAP" if any(r["letter"] == x for r in timed)]
    return {
        "lane": {x: means([r for r in timed if r["lane"] == x]) for x in lanes},
        "class": {x: means([r for r in timed if r["letter"] == x]) for x in letters},
        "all": means(timed) if timed else None,
        "lost": [r["name"] for r in rows if "us" not in r],
    }


# --- as text --------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    found = summary(rows)
    lines = [f"{'problem':42} {'class':5} {'tries':>5} {'us':>9} " + _heads() + "  bound  wall s  gpu s"]
    lines += [_line(r) for r in rows]
    lines += ["", f"{'geomeans':42} {'':5} {'n':>5} {'right':>9} " + _heads()]
    lines += [_mean(f"lane {x}", m) for x, m in found["lane"].items()]
    lines += [_mean(f"class {x}", m) for x, m in found["class"].items()]
    if found["all"]:
        lines.append(_mean("all", found["all"]))
    return "\n".join(lines)


def _heads() -> str:
    return " ".join(f"{name:>10}" for name in AGAINST)


def _line(row: Row) -> str:
    if "us" not in row:
        said = f"{row.get('error')}: {row.get('detail')}"
        return f"{row['name']:42} lost: {said[:160]}"
    share = row["searches"].get("rules", {}).get("bound")
    bound = f"{share / delivered(row):6.2f}" if share else "     -"
    spent = sum(s["gpu_seconds"] for s in row["searches"].values()) + row["spent"]
    words = "" if row["ok"] else f"  WRONG: {'; '.join(row['wrong'])[:120]}"
    if open_ := row.get("verdicts", {}).get("undecided"):
        words += f"  {open_} of {row['cases']} cases undecided"
    return (
        f"{row['task']:42} {row['letter']:5} {row['attempts']:5} {delivered(row):9.1f} "
        + " ".join(f"{_shown(ratio(row, name)):>10}" for name in AGAINST)
        + f" {bound} {row['wall_seconds']:7.1f} {spent:6.1f}{words}"
    )


def _mean(name: str, found: Row) -> str:
    held = " ".join(f"{_shown(m['geomean'] if (m := found[x]) else None):>10}" for x in AGAINST)
    return f"{name:42} {'':5} {found['problems']:5} {found['right']:9} {held}"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
