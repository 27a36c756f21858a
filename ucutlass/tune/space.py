"""This module has what the tuner chooses from: legal kernels, grouped by the binary that they share.

A plan holds no extents and no launch parameters, so kernels of equal plans have one source and cost one
build; `raster`, `swizzle` and the parts of a split are swept on that binary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ucutlass import ir
from ucutlass.frontend import Checked, alternatives, matching, pattern, plan_kernel
from ucutlass.ir.hardware import ARCHES, Device
from ucutlass.ir.schedule import PartialSchedule, without
from ucutlass.kernels.families import schedules
from ucutlass.kernels.planned import Plan, Planned
from ucutlass.sol.bounds import data_sheet, fused_bound, realistic_bound
from ucutlass.sol.program import compulsory


@dataclass(frozen=True, slots=True)
class BinaryGroup:
    """Holds the kernels that one binary serves, in the order to time them: the cheapest by estimate first."""

    plan: Plan
    members: tuple[Planned, ...]

    @property
    def request(self) -> PartialSchedule:
        return self.members[0].request

    @property
    def estimate(self) -> float:
        """Returns the seconds of the cheapest member."""
        return self.members[0].seconds


@dataclass(frozen=True, slots=True)
class ScheduleSpace:
    """Holds the groups, the cheapest first. `bound` is the least realistic bound of any of them, in seconds
    (`ucc sol`): what the best plan could come to; 0 where none is known. `start` is the group, and the member
    in it, of the kernel that the compiler chooses by itself."""

    groups: tuple[BinaryGroup, ...]
    bound: float = 0.0
    start: tuple[int, int] = (0, 0)

    @property
    def kernels(self) -> int:
        """Returns the number of kernels with every setting of the launch parameters."""
        return sum(len(g.members) for g in self.groups)


def explore(
    checked: Checked,
    program: ir.Kernel,
    sizes: tuple[int, ...],
    arch: str,
    device: Device | None = None,
    free: bool = False,
) -> ScheduleSpace:
    """Returns the kernels that a program denotes for these extents (in the order of `program.dims`): the
    alternatives of the guarded schedule that holds, and for each field left out what the planner weighs.
    `free`: the widest space of the family, whatever the program says.

    What the compiler chooses by itself is always among them. Raises ProgramError as `plan_kernel`.
    """
    own = plan_kernel(checked, program, sizes, arch, device).planned
    requests = [] if free else [r for _, r in alternatives(matching(program, sizes, arch))]
    matched, target = pattern(checked, program), ARCHES[arch]
    around = (schedules(matched, sizes, target, device, r, free) for r in requests or [PartialSchedule()])
    space = group_by_binary([own, *itertools.chain.from_iterable(around)])
    return with_start(program, space, own)


LEADERS, MANY = 4, 300
"""Binaries whose neighbours `explore_near` looks at, where the planner weighs so many kernels: the widest space of what
has fewer takes a few seconds at most."""


def explore_near(
    checked: Checked, program: ir.Kernel, sizes: tuple[int, ...], arch: str, device: Device | None = None
) -> ScheduleSpace:
    """Returns what the planner weighs where nothing is asked, and of its cheapest binaries every schedule of the widest
    space that differs in one field. Raises as `explore`."""
    weighed = explore(checked, program, sizes, arch, device)
    matched, target = pattern(checked, program), ARCHES[arch]
    start_group, start_member = weighed.start
    own = weighed.groups[start_group].members[start_member]
    every = [member for group in weighed.groups for member in group.members]
    for leader in weighed.groups[:LEADERS] if weighed.kernels >= MANY else ():
        # As many stages as fit follow from the rest.
        request = without(leader.request, "stages")
        for name in request.fixed():
            opened = without(request, name, *_FOLLOWING.get(name, ()))
            every += schedules(matched, sizes, target, device, opened, True)
    return with_start(program, group_by_binary([own, *every]), own)


_FOLLOWING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"tile": ("warp_tile", "swizzle"), "split_k": ("partials",), "warps": ("warp_tile",)}
)
"""Fields that follow another one."""


def with_start(program: ir.Kernel, space: ScheduleSpace, own: Planned) -> ScheduleSpace:
    """Returns the space with its bound, begun at one of its kernels. Raises ValueError where that is not in
    it."""
    (at,) = (i for i, g in enumerate(space.groups) if g.plan == own.plan)
    member = [m.request for m in space.groups[at].members].index(own.request)
    return replace(space, bound=least_bound(program, space), start=(at, member))


def group_by_binary(kernels: Iterable[Planned]) -> ScheduleSpace:
    """Returns the kernels, each once, by binary; those of one price in the order in which they came."""
    groups: dict[Plan, dict[PartialSchedule, Planned]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.plan, {}).setdefault(kernel.request, kernel)
    binaries = [
        BinaryGroup(plan, tuple(sorted(members.values(), key=lambda p: p.seconds)))
        for plan, members in groups.items()
    ]
    return ScheduleSpace(tuple(sorted(binaries, key=lambda g: g.estimate)))


def least_bound(program: ir.Kernel, space: ScheduleSpace) -> float:
    """Returns the least realistic bound of the space's kernels, in seconds; 0 for an empty space."""
    if not space.groups:
        return 0.0
    first = space.groups[0].members[0]
    sizes = dict(zip(program.dims, first.sizes, strict=True))
    rates = data_sheet(first.device)
    fused = fused_bound(compulsory(program, sizes), first.device, rates)
    members = itertools.chain.from_iterable(g.members for g in space.groups)
    return min(realistic_bound(fused, first.device, rates, member).seconds for member in members)
