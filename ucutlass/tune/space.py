"""What the tuner chooses from: legal kernels, grouped by the binary that they share.

A plan holds no extents and no launch knobs, so kernels of equal plans have one source and cost one
build; `raster`, `swizzle` and the parts of a split are swept on that binary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.frontend import Checked, alternatives, matching, pattern, plan_kernel
from ucutlass.ir.hardware import ARCHES, Device
from ucutlass.ir.schedule import Request
from ucutlass.kernels.families import schedules
from ucutlass.kernels.planned import Plan, Planned
from ucutlass.sol.bounds import data_sheet, fused_bound, realistic_bound
from ucutlass.sol.program import compulsory


@dataclass(frozen=True, slots=True)
class BinaryGroup:
    """Kernels that one binary serves, in the order to time them: the cheapest by estimate first."""

    plan: Plan
    members: tuple[Planned, ...]

    @property
    def request(self) -> Request:
        return self.members[0].request

    @property
    def estimate(self) -> float:
        """Seconds, of the cheapest member."""
        return self.members[0].seconds


@dataclass(frozen=True, slots=True)
class ScheduleSpace:
    """Groups, the cheapest first. `bound` is the least realistic bound of any of them, in seconds
    (`ucc sol`): what the best plan could come to; 0 where none is known. `start` is the group, and
    the member in it, of the kernel that the compiler chooses by itself."""

    groups: tuple[BinaryGroup, ...]
    bound: float = 0.0
    start: tuple[int, int] = (0, 0)

    @property
    def kernels(self) -> int:
        """With every setting of the knobs."""
        return sum(len(g.members) for g in self.groups)


def explore(
    checked: Checked,
    program: ir.Kernel,
    sizes: tuple[int, ...],
    arch: str,
    device: Device | None = None,
    free: bool = False,
) -> ScheduleSpace:
    """The kernels that a program denotes for these extents (in the order of `program.dims`): the
    alternatives of the guarded schedule that holds, and for each field left out what the planner
    weighs. `free`: every schedule of `ucutlass.tune.free`, whatever the program says.

    What the compiler chooses by itself is always among them. Raises ProgramError as `plan_kernel`.
    """
    own = plan_kernel(checked, program, sizes, arch, device).planned
    requests = [] if free else [r for _, r in alternatives(matching(program, sizes, arch))]
    found, target = pattern(checked, program), ARCHES[arch]
    around = (schedules(found, sizes, target, device, r, free) for r in requests or [Request()])
    made = grouped([own, *itertools.chain.from_iterable(around)])
    return started(program, made, own)


def started(program: ir.Kernel, made: ScheduleSpace, own: Planned) -> ScheduleSpace:
    """The space with its bound, begun at one of its kernels. Raises ValueError where that is not in it."""
    (at,) = (i for i, g in enumerate(made.groups) if g.plan == own.plan)
    member = [m.request for m in made.groups[at].members].index(own.request)
    return replace(made, bound=least_bound(program, made), start=(at, member))


def grouped(found: Iterable[Planned]) -> ScheduleSpace:
    """The kernels, each once, by binary; those of one price in the order in which they came."""
    groups: dict[Plan, dict[Request, Planned]] = {}
    for one in found:
        groups.setdefault(one.plan, {}).setdefault(one.request, one)
    made = [
        BinaryGroup(plan, tuple(sorted(members.values(), key=lambda p: p.seconds)))
        for plan, members in groups.items()
    ]
    return ScheduleSpace(tuple(sorted(made, key=lambda g: g.estimate)))


def least_bound(program: ir.Kernel, space: ScheduleSpace) -> float:
    """The least realistic bound of the space's kernels, in seconds; 0 for an empty space."""
    if not space.groups:
        return 0.0
    first = space.groups[0].members[0]
    sizes = dict(zip(program.dims, first.sizes, strict=True))
    rates = data_sheet(first.device)
    fused = fused_bound(compulsory(program, sizes), first.device, rates)
    members = itertools.chain.from_iterable(g.members for g in space.groups)
    return min(realistic_bound(fused, first.device, rates, one).seconds for one in members)
