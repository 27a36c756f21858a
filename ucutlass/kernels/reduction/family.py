"""The reduction family: kernels without a dot."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ucutlass import ir
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.ir.traversal import find
from ucutlass.kernels import space
from ucutlass.kernels.family import Family
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.reduction import cost
from ucutlass.kernels.reduction.granularity import granularity
from ucutlass.kernels.reduction.match import ReductionPattern, match_reduction
from ucutlass.kernels.reduction.plan import ReductionPlan
from ucutlass.kernels.reduction.planner import plan_reduction
from ucutlass.kernels.reduction.rules import RULES
from ucutlass.kernels.reduction.space import axes
from ucutlass.kernels.reduction.variants import VARIANTS
from ucutlass.kernels.violation import Violation


def match(kernel: ir.Kernel) -> ReductionPattern | None:
    """The pattern of a kernel without a dot. Raises Refused."""
    return None if find(kernel, ir.Dot) else match_reduction(kernel)


def plan_pattern(
    pattern: ReductionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """The best legal kernel that the request allows, or why there is none. Raises Refused."""
    planner = partial(plan_reduction, pattern, sizes, arch, device, aligned=aligned)
    return space.planned(planner, axes, request)


def schedules(
    pattern: ReductionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    free: bool = False,
) -> Iterator[Planned]:
    """The planner's choice for a request and the other legal kernels around it. Raises Refused."""
    return space.kernels(partial(plan_reduction, pattern, sizes, arch, device), axes, request, free)


def candidates(
    pattern: ReductionPattern, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Iterator[Planned]:
    """Kernels near the planner's choice for a request, the cheapest first. Raises Refused."""
    return space.candidates(partial(plan_reduction, pattern, sizes, arch, device), axes, request)


FAMILY = Family(
    name="reduction",
    pattern=ReductionPattern,
    plan=ReductionPlan,
    match=match,
    plan_pattern=plan_pattern,
    schedules=schedules,
    candidates=candidates,
    granularity=granularity,
    resources=cost.resources,
    traffic=space.no_traffic,
    tile_cost=space.no_tile_cost,
    prices=False,
    rules=RULES,
    variants=VARIANTS,
    refuses_extents=True,
)
