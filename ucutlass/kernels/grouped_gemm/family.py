"""The grouped GEMM family: pairs of dots, ragged groups, scaled parts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ucutlass import ir
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.ir.traversal import find
from ucutlass.kernels import space
from ucutlass.kernels.family import Family
from ucutlass.kernels.grouped_gemm import cost, planner
from ucutlass.kernels.grouped_gemm.granularity import granularity
from ucutlass.kernels.grouped_gemm.match import GroupedGemmPattern, is_products, match_grouped_gemm
from ucutlass.kernels.grouped_gemm.plan import GroupedGemmPlan
from ucutlass.kernels.grouped_gemm.planner import plan_grouped_gemm
from ucutlass.kernels.grouped_gemm.rules import RULES
from ucutlass.kernels.grouped_gemm.space import axes
from ucutlass.kernels.grouped_gemm.variants import VARIANTS
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.violation import Violation


def match(kernel: ir.Kernel) -> GroupedGemmPattern | None:
    """The pattern of dots over one left operand, over ragged groups or not. Raises Refused."""
    dots = find(kernel, ir.Dot)
    return match_grouped_gemm(kernel, dots) if is_products(kernel, dots) else None


def plan_pattern(
    pattern: GroupedGemmPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """The best legal kernel that the request allows, or why there is none. Raises Refused."""
    plan = partial(plan_grouped_gemm, pattern, sizes, arch, device, aligned=aligned)
    return space.planned(plan, axes, request)


def schedules(
    pattern: GroupedGemmPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    free: bool = False,
) -> Iterator[Planned]:
    """The planner's choice for a request and the other legal kernels around it. Raises Refused."""
    return space.kernels(partial(plan_grouped_gemm, pattern, sizes, arch, device), axes, request, free)


def candidates(
    pattern: GroupedGemmPattern, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Iterator[Planned]:
    """Every legal Hopper kernel that the planner would consider for a request, the cheapest first. Raises
    Refused."""
    return planner.candidates(pattern, sizes, arch, device, request)


FAMILY = Family(
    name="grouped_gemm",
    pattern=GroupedGemmPattern,
    plan=GroupedGemmPlan,
    match=match,
    plan_pattern=plan_pattern,
    schedules=schedules,
    candidates=candidates,
    granularity=granularity,
    resources=cost.resources,
    traffic=cost.traffic,
    tile_cost=cost.tile_cost,
    prices=True,
    rules=RULES,
    variants=VARIANTS,
)
