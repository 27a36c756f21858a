"""`ucc tune --replay`: search policies over recordings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail
from ucutlass.tune import replay, tables
from ucutlass.tune.policy import POLICIES


def replayed(files: Sequence[Path], as_json: bool) -> None:
    try:
        lines = [replay.line(table) for path in files for table in tables.read(path)]
    except tables.NotATable as problem:
        fail(Status.CALL, str(problem), as_json)
    if not lines:
        fail(Status.CALL, "these files have no kernels of ours", as_json)
    if as_json:
        show.data(replay.to_json(lines))
        return
    counts = " ".join(f"{b:>5}" for b in replay.BUILDS)
    names = tuple(POLICIES)
    head = ("shape", "binaries", *(f"{n}, builds {counts}" for n in names), "guided stops at")
    rows = [
        (
            line.shape,
            str(line.binaries),
            *(_shares(line.shares[n]) for n in names),
            f"{line.builds} builds, {line.share:.1%}: {line.stopped}",
        )
        for line in lines
    ]
    for file in dict.fromkeys(line.file for line in lines):
        rows += _totals(file, [line for line in lines if line.file == file])
    show.table(head, rows)


def _totals(file: str, lines: Sequence[replay.ReplayRow]) -> list[tuple[str, ...]]:
    """A file's mean, its worst shape, and how many shapes have what the tuner is held to."""
    names, total = tuple(POLICIES), replay.summary(lines)
    own = sum(line.share >= replay.ENOUGH for line in lines)
    enough = (" ".join(f"{c:>6}" for c in total.enough[n]) for n in names)
    return [
        (f"{file}: mean", "", *(_shares(total.mean[n]) for n in names), ""),
        (f"{file}: least", "", *(_shares(total.least[n]) for n in names), ""),
        (f"{file}: of {total.shapes} with {replay.ENOUGH:.0%}", "", *enough, f"{own} of {total.shapes}"),
    ]


def _shares(shares: Sequence[float]) -> str:
    return " ".join(f"{s:6.1%}" for s in shares)
