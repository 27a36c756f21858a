"""This module reads recorded tables: many measured schedules of a shape, as `benchmarks.record` writes them.

A table of one shape stands in for a GPU: its rows are the kernels there are, their times what a
measurement gives. Products that are not ours (`request` null) are left out. A table has schedules of a
person's choice for plain products, or every binary of a program's space, of any family.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ucutlass import frontend
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.hardware import ARCHES, Device, default_device, device_named
from ucutlass.ir.schedule import Request, request_of_json, scheduled
from ucutlass.kernels.gemm import cost as heuristic
from ucutlass.kernels.gemm.candidate import candidate_of
from ucutlass.kernels.gemm.match import GemmForm, problem
from ucutlass.kernels.gemm.rules import legal
from ucutlass.kernels.gemm.schedule import Case, build, case_of
from ucutlass.kernels.gemm.space import planned
from ucutlass.kernels.planned import Plan, Planned
from ucutlass.shapes import complete
from ucutlass.tune.space import BinaryGroup, ScheduleSpace, group_by_binary, least_bound, with_start

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


def read(path: Path, constants: heuristic.Constants = heuristic.DEFAULT) -> tuple[RecordedTable, ...]:
    """Returns every shape of a recording, in its order. Raises OSError, NotATable."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if "tables" in content:
            gpu = device_named(content["machine"]["gpu"])
            return tuple(_exhaustive_table(path.name, table, gpu) for table in content["tables"])
        rows: dict[str, list[Mapping[str, Any]]] = {}
        for row in content["rows"]:
            if row["request"] is not None:
                rows.setdefault(row["shape"], []).append(row)
        return tuple(
            _record_table(path.name, shape, content, mine, constants) for shape, mine in rows.items()
        )
    except (ValueError, KeyError, TypeError) as problem:
        raise NotATable(f"{path} is no recording: {problem!r}") from problem


def _exhaustive_table(file: str, table: Mapping[str, Any], device: Device | None) -> RecordedTable:
    """Returns every kernel that has a time, planned by its own schedule: what the planner weighs today is not
    asked. The start is what the compiler chose when the table was made. Raises ValueError where that has no
    time."""
    checked = frontend.read_text(table["text"])
    program = frontend.kernel(checked)
    extents = complete(program, table["sizes"])
    taken: dict[tuple[Plan, Request], float] = {}
    kernels: list[Planned] = []
    own: Planned | None = None
    for row in table["rows"]:
        if row["us"] is None:
            continue
        as_scheduled = scheduled(program, table["arch"], request_of_json(row["request"]))
        try:
            kernel = frontend.plan_kernel(checked, as_scheduled, extents, table["arch"], device).planned
        except ProgramError:
            continue
        kernels.append(kernel)
        taken[kernel.plan, kernel.request] = row["us"] * 1e-6
        own = kernel if row["request"] == table["own"] else own
    if own is None:
        raise ValueError(f"{table['shape']}: the compiler's own choice has no time")
    space = with_start(program, group_by_binary(kernels), own)
    times = tuple(tuple(taken[g.plan, m.request] for m in g.members) for g in space.groups)
    return RecordedTable(file, table["shape"], space, times, len(table["rows"]) - len(taken))


def _record_table(
    file: str,
    shape: str,
    content: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    constants: heuristic.Constants,
) -> RecordedTable:
    case, program = _case(content, rows[0]["sizes"])
    candidates = [(build(case, request_of_json(row["request"])), row["us"] * 1e-6) for row in rows]
    legal_rows = [(candidate, seconds) for candidate, seconds in candidates if legal(candidate)]
    # A schedule that was written twice was timed twice: the tuner would have had the later time.
    seconds = dict(legal_rows)
    space = repriced(group_by_binary(planned(c, case.device) for c in seconds), constants)
    space = replace(space, bound=least_bound(program, space))
    times = tuple(tuple(seconds[candidate_of(_priced(m))] for m in g.members) for g in space.groups)
    return RecordedTable(file, shape, space, times, len(candidates) - len(legal_rows))


def _case(content: Mapping[str, Any], sizes: Sequence[int]) -> tuple[Case, Any]:
    device = device_named(content["machine"]["gpu"]) or default_device(ARCHES[ARCH])
    batch, m, n, k = sizes
    text = (PLAIN if batch == 1 else BATCHED).format(t=content["dtype"])
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    named = {"M": m, "N": n, "K": k} | ({} if batch == 1 else {"B": batch})
    extents = complete(program, named)
    found = frontend.pattern(checked, program)
    assert isinstance(found, GemmForm)
    what = problem(found, extents)
    return case_of(what, extents, ARCHES[ARCH], device), program


def _priced(kernel: Planned) -> Planned:
    """Returns a recorded kernel: recordings are of one product."""
    assert isinstance(kernel, Planned)
    return kernel


def repriced(space: ScheduleSpace, constants: heuristic.Constants) -> ScheduleSpace:
    """Yields the space as a cost model with other constants orders it."""
    if constants == heuristic.DEFAULT:
        return space

    def members(group: BinaryGroup) -> Iterator[Any]:
        for kernel in map(_priced, group.members):
            yield replace(kernel, estimate=heuristic.estimate(candidate_of(kernel), kernel.device, constants))

    def group(g: BinaryGroup) -> BinaryGroup:
        return BinaryGroup(g.plan, tuple(sorted(members(g), key=lambda p: p.seconds)))

    return replace(space, groups=tuple(sorted(map(group, space.groups), key=lambda g: g.estimate)))
