"""This module reads recorded tables: many measured schedules of a shape, as `benchmarks.record` writes them.

A table of one shape stands in for a GPU: its rows are the kernels there are, their times what a
measurement gives. Products that are not ours (`request` null) are left out. A table has schedules of a
person's choice for plain products, or every binary of a program's space, of any family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ucutlass import frontend, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.hardware import Device, device_named
from ucutlass.ir.schedule import PartialSchedule, partial_schedule_of_json, scheduled
from ucutlass.kernels.planned import Plan, Planned
from ucutlass.shapes import complete
from ucutlass.tune.space import ScheduleSpace, group_by_binary, least_bound, with_start

ARCH = "sm90a"
PLAIN = "kernel k(x: {t}[M, K], w: {t}[N, K]) -> {t}[M, N] {{ return dot[K](x, w) }}"
BATCHED = "kernel k(x: {t}[B, M, K], w: {t}[B, N, K]) -> {t}[B, M, N] {{ return dot[K](x, w) }}"
"""The programs of the recordings: a file holds extents and schedules, no text."""


class NotATable(ValueError):
    """Raised for a file that is no recording."""


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """Describes one shape of one file. `times[i]` are the seconds of the members of group i of `space`, in
    their order. `refused` rows break a rule by now, or have no time."""

    file: str
    shape: str
    space: ScheduleSpace
    times: tuple[tuple[float, ...], ...]
    refused: int

    def best_of(self, group: int) -> float:
        return min(self.times[group])

    @property
    def best(self) -> float:
        """Returns seconds of the fastest kernel of all."""
        return min(map(min, self.times))


def read(path: Path) -> tuple[RecordedTable, ...]:
    """Returns every shape of a recording, in its order. Raises OSError, NotATable."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        gpu = device_named(content["machine"]["gpu"])
        if "tables" in content:
            return tuple(_exhaustive_table(path.name, table, gpu) for table in content["tables"])
        rows: dict[str, list[Mapping[str, Any]]] = {}
        for row in content["rows"]:
            if row["request"] is not None:
                rows.setdefault(row["shape"], []).append(row)
        return tuple(
            _shape_table(path.name, shape, content["dtype"], mine, gpu) for shape, mine in rows.items()
        )
    except (ValueError, KeyError, TypeError) as problem:
        raise NotATable(f"{path} is no recording: {problem!r}") from problem


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The rows of a table that have a time and break no rule, each planned by its own schedule: what the
    planner weighs today is not asked. A schedule that was written twice was timed twice: the tuner would have
    had the later time."""

    program: ir.Kernel
    planned: tuple[Planned, ...]
    seconds: Mapping[tuple[Plan, PartialSchedule], float]

    def times(self, space: ScheduleSpace) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(self.seconds[g.plan, m.request] for m in g.members) for g in space.groups)


def _kernels(
    text: str, sizes: Mapping[str, int], arch: str, rows: Sequence[Mapping[str, Any]], device: Device | None
) -> _Kernels:
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    extents = complete(program, sizes)
    seconds: dict[tuple[Plan, PartialSchedule], float] = {}
    planned: dict[tuple[Plan, PartialSchedule], Planned] = {}
    for row in rows:
        if row["us"] is None:
            continue
        as_scheduled = scheduled(program, arch, partial_schedule_of_json(row["request"]))
        try:
            kernel = frontend.plan_kernel(checked, as_scheduled, extents, arch, device).planned
        except ProgramError:
            continue
        key = kernel.plan, kernel.request
        planned[key], seconds[key] = kernel, row["us"] * 1e-6
    return _Kernels(program, tuple(planned.values()), seconds)


def _exhaustive_table(file: str, table: Mapping[str, Any], device: Device | None) -> RecordedTable:
    """Returns a table of every binary of a program's space. The start is what the compiler chose when the
    table was made. Raises ValueError where that has no time."""
    rows = table["rows"]
    kernels = _kernels(table["text"], table["sizes"], table["arch"], rows, device)
    chosen = partial_schedule_of_json(table["own"])
    own = next((p for p in kernels.planned if p.request == chosen), None)
    if own is None:
        raise ValueError(f"{table['shape']}: the compiler's own choice has no time")
    space = with_start(kernels.program, group_by_binary(kernels.planned), own)
    refused = len(rows) - len(kernels.seconds)
    return RecordedTable(file, table["shape"], space, kernels.times(space), refused)


def _shape_table(
    file: str, shape: str, dtype: str, rows: Sequence[Mapping[str, Any]], device: Device | None
) -> RecordedTable:
    """Returns a table of schedules that a person chose for a plain product."""
    batch, m, n, k = rows[0]["sizes"]
    text = (PLAIN if batch == 1 else BATCHED).format(t=dtype)
    sizes = {"M": m, "N": n, "K": k} | ({} if batch == 1 else {"B": batch})
    kernels = _kernels(text, sizes, ARCH, rows, device)
    space = group_by_binary(kernels.planned)
    space = replace(space, bound=least_bound(kernels.program, space))
    written = {json.dumps(row["request"], sort_keys=True) for row in rows}
    return RecordedTable(file, shape, space, kernels.times(space), len(written) - len(kernels.seconds))
