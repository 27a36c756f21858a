"""What every kernel family gives, and nothing outside of `kernels` and `emit` asks a family by its name.

A family is a package of `ucutlass.kernels` with the same file names as the others, those that it needs:

    match.py        the typed kernel to the family's pattern: which name has which role
    problem.py      the pattern with concrete extents: strides as products of extents by position
    variants.py     the kernels of the family: the words of `warps` that choose each, and its fields
    schedule.py     a program's schedule for them: what is fixed is kept, the rest follows
    rules.py        legality: each rule once, with its code, its source and the nearest legal neighbour
    cost.py         the price of a schedule on a device, in seconds
    smem.py         the layout of shared memory, which the rules and the emitter both read
    planner.py      the cheapest legal schedule
    space.py        the schedules around it, which `ucc tune` times
    plan.py         what the emitter reads
    granularity.py  how the plan cuts the dimensions
    family.py       these, gathered in one `Family` named FAMILY
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ucutlass import ir
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.granularity import Granularity
from ucutlass.kernels.planned import Planned, Resources, TileCost, Traffic
from ucutlass.kernels.rule import Rule
from ucutlass.kernels.variant import Variant
from ucutlass.kernels.violation import Violation


class PlanPattern(Protocol):
    """The best legal kernel of a pattern that a schedule allows, or why there is none. Raises Refused.

    `sizes` are in the order of the kernel's dimensions; `aligned` says whether each pointer is a multiple of
    16 bytes (None: all are). Each violation's `nearest` is a legal schedule near the one that was asked for,
    where there is one.
    """

    def __call__(
        self,
        pattern: Any,
        sizes: tuple[int, ...],
        arch: Arch,
        device: Device,
        request: PartialSchedule,
        aligned: tuple[bool, ...] | None = None,
    ) -> Planned | tuple[Violation, ...]: ...


class ListSchedules(Protocol):
    """Every legal kernel that a schedule stands for, the planner's own choice first, no kernel twice: what
    `ucc tune` times and advice looks at. `free`: the widest space that is worth a search. Raises Refused."""

    def __call__(
        self,
        pattern: Any,
        sizes: tuple[int, ...],
        arch: Arch,
        device: Device,
        request: PartialSchedule,
        free: bool = False,
    ) -> Iterator[Planned]: ...


class ListCandidates(Protocol):
    """Legal kernels that a schedule allows, the cheapest by the cost model first, those that it does not tell
    apart in the order of `ListSchedules`: what an edit of a schedule chooses from. Raises Refused."""

    def __call__(
        self, pattern: Any, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
    ) -> Iterator[Planned]: ...


@dataclass(frozen=True, slots=True)
class Family:
    """One kernel family.

    `match` gives the pattern of a kernel that is the family's to serve, None for another's, and raises
    Refused where the family cannot serve it in one launch. `pattern` and `plan` are the types by which a
    pattern's and a plan's family is told. `granularity` takes a plan, the names of the program's dimensions
    and the launch parameters. `resources` gives what a kernel takes of an SM; `traffic` and `tile_cost` are
    None where the kernel has no tiles that read operands again. `prices`: whether the cost model tells
    schedules of one problem apart; otherwise only a measurement does. `rules` are those of legality,
    `variants` the kernels with the words of `warps` and the fields of each.
    `refuses_extents`: whether some programs are refused only once their extents are known.
    """

    name: str
    pattern: type
    plan: type
    match: Callable[[ir.Kernel], object | None]
    plan_pattern: PlanPattern
    schedules: ListSchedules
    candidates: ListCandidates
    granularity: Callable[[Any, Sequence[str], Sequence[int]], Granularity]
    resources: Callable[[Planned], Resources]
    traffic: Callable[[Planned], Traffic | None]
    tile_cost: Callable[[Planned], TileCost | None]
    prices: bool
    rules: tuple[Rule[Any], ...]
    variants: tuple[Variant, ...]
    refuses_extents: bool = False
