"""A workshop that answers from a table: the search's loop without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from ucutlass.kernels.planned import Planned
from ucutlass.tune import tables
from ucutlass.tune.space import BinaryGroup
from ucutlass.tune.tables import RecordedTable
from ucutlass.tune.tune import ConfirmedKernel, FailedTrial, TimedGroup

RECORDING = Path(__file__).parent.parent.parent / "benchmarks" / "data" / "h200_bf16.json"

TABLES = {table.shape: table for table in tables.read(RECORDING)}


@dataclass
class Recorded:
    """`unbuilt`, `lost` and `wrong` are groups that fail there; every build takes `seconds` of a clock
    that nothing else moves. `luck` divides what the search measures."""

    table: RecordedTable
    unbuilt: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    wrong: frozenset[int] = frozenset()
    seconds: float = 1.0
    luck: float = 1.0
    hang: bool = False
    clock: float = 0.0
    built: list[int] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)
    cancelled: Event = field(default_factory=Event)

    def number(self, group: BinaryGroup) -> int:
        return self.table.space.groups.index(group)

    def build(self, groups: Sequence[BinaryGroup]) -> Sequence[FailedTrial | None]:
        self.clock += self.seconds
        self.units.append(len(groups))
        numbers = [self.number(g) for g in groups]
        self.built += numbers
        if self.hang:
            assert self.cancelled.wait(60)
        return [FailedTrial("build", "nvcc says no") if n in self.unbuilt else None for n in numbers]

    def time(self, groups: Sequence[BinaryGroup]) -> Sequence[TimedGroup | FailedTrial]:
        return [self._timed(self.number(g)) for g in groups]

    def _timed(self, number: int) -> TimedGroup | FailedTrial:
        if number in self.lost:
            return FailedTrial("timing", "the timing's process was ended by SIGSEGV")
        return TimedGroup(tuple(t / self.luck for t in self.table.times[number]))

    def confirm(self, finalists: Sequence[Planned]) -> Sequence[ConfirmedKernel | FailedTrial]:
        return [self._confirmed(one) for one in finalists]

    def _confirmed(self, kernel: Planned) -> ConfirmedKernel | FailedTrial:
        groups = self.table.space.groups
        number = next(i for i, g in enumerate(groups) if g.plan == kernel.plan)
        self.confirmed.append(number)
        if number in self.wrong:
            return FailedTrial("verification", "normal: beyond its bound")
        return ConfirmedKernel((self.table.times[number][groups[number].members.index(kernel)],) * 24)

    def cancel(self) -> None:
        self.cancelled.set()

    def now(self) -> float:
        return self.clock
