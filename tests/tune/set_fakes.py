"""Workshops over the recorded shapes of one program, for sets of shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tune_fakes import TABLES

from ucutlass import frontend
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.planned import Planned
from ucutlass.tune.job import TuningJob
from ucutlass.tune.shapes_file import WeightedShape
from ucutlass.tune.space import BinaryGroup
from ucutlass.tune.tables import PLAIN, RecordedTable
from ucutlass.tune.tune import ConfirmedKernel, FailedTrial, TimedGroup

CHECKED = frontend.read_text(PLAIN.format(t="bf16"), "k.ucu")
PROGRAM = frontend.kernel(CHECKED)
BY_SIZES = {tuple(t.space.groups[0].members[0].sizes): t for t in TABLES.values()}
MACHINE = {"device": "NVIDIA H200", "uuid": "GPU-1", "versions": {"ucutlass": "0.1.0", "driver": "580"}}


def shape(name: str, weight: float = 1.0) -> WeightedShape:
    sizes = TABLES[name].space.groups[0].members[0].sizes
    return WeightedShape(dict(zip(PROGRAM.dims, sizes, strict=True)), weight)


def job_of(sizes: Mapping[str, int]) -> TuningJob:
    table = BY_SIZES[tuple(sizes[d] for d in PROGRAM.dims)]
    return TuningJob(CHECKED, PROGRAM, sizes, None, table.space)


@dataclass
class TableShop:
    """One shape's. `wrong` are schedules that compute something else there; `turns` divides what a fresh
    process measures of a schedule; `binaries` are the plans that were ever built, in any shop."""

    table: RecordedTable
    library: Path
    wrong: frozenset[PartialSchedule] = frozenset()
    turns: Mapping[PartialSchedule, float] = field(default_factory=dict)
    binaries: list[Any] = field(default_factory=list)
    timed: list[PartialSchedule] = field(default_factory=list)
    confirmed: list[tuple[PartialSchedule, ...]] = field(default_factory=list)
    closed: bool = False
    cancelled: bool = False
    clock: float = 0.0
    machine: dict[str, Any] = field(default_factory=lambda: dict(MACHINE))

    @property
    def times(self) -> dict[PartialSchedule, float]:
        pairs = zip(self.table.space.groups, self.table.times, strict=True)
        return {m.request: s for g, row in pairs for m, s in zip(g.members, row, strict=True)}

    def prepare(self) -> None:
        assert not self.closed

    def build(self, groups: Sequence[BinaryGroup]) -> Sequence[FailedTrial | None]:
        assert not (self.closed or self.cancelled)
        self.clock += 10.0
        self.binaries += [g.plan for g in groups]
        return [None] * len(groups)

    def time(self, groups: Sequence[BinaryGroup]) -> Sequence[TimedGroup | FailedTrial]:
        members = [m.request for g in groups for m in g.members]
        self.timed += members
        times = self.times
        return [TimedGroup(tuple(times.get(m.request) for m in g.members)) for g in groups]

    def confirm(self, finalists: Sequence[Planned]) -> Sequence[ConfirmedKernel | FailedTrial]:
        assert not self.closed
        self.confirmed.append(tuple(f.request for f in finalists))
        return [self._confirmed(f.request) for f in finalists]

    def _confirmed(self, request: PartialSchedule) -> ConfirmedKernel | FailedTrial:
        if request in self.wrong:
            return FailedTrial("verification", "normal: beyond its bound")
        return ConfirmedKernel((self.times[request] / self.turns.get(request, 1.0),) * 24)

    def cancel(self) -> None:
        self.cancelled = True

    def now(self) -> float:
        return self.clock

    def built(self, kernel: Planned) -> Any:
        artifact = SimpleNamespace(library=self.library, versions={"nvcc": "13.0.88"})
        return SimpleNamespace(
            planned=kernel, source=SimpleNamespace(code="code"), artifact=artifact, adopted=False
        )

    def close(self) -> None:
        self.closed = True


@dataclass
class Floor:
    """All the shops of one test, the latest of each shape last."""

    library: Path
    wrong: Mapping[str, frozenset[PartialSchedule]] = field(default_factory=dict)
    turns: Mapping[str, Mapping[PartialSchedule, float]] = field(default_factory=dict)
    shops: list[TableShop] = field(default_factory=list)

    def shop_of(self, job: TuningJob) -> TableShop:
        table = BY_SIZES[job.first.sizes]
        name = table.shape
        shop = TableShop(table, self.library, self.wrong.get(name, frozenset()), self.turns.get(name, {}))
        self.shops.append(shop)
        return shop

    def of(self, name: str) -> list[TableShop]:
        return [s for s in self.shops if s.table.shape == name]
