"""The GEMM family: one dot of two stored operands, batched, with a fused epilogue."""

from __future__ import annotations

from collections.abc import Iterator

from ucutlass import ir
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.ir.traversal import find
from ucutlass.kernels.family import Family
from ucutlass.kernels.gemm import cost, planner, space
from ucutlass.kernels.gemm.cost import resources, tile_cost
from ucutlass.kernels.gemm.granularity import granularity
from ucutlass.kernels.gemm.match import GemmPattern, match_gemm
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.kernels.gemm.problem import gemm_problem
from ucutlass.kernels.gemm.rules import RULES
from ucutlass.kernels.gemm.variants import VARIANTS
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.violation import Violation


def match(kernel: ir.Kernel) -> GemmPattern | None:
    """The pattern of one dot. Raises Refused."""
    match find(kernel, ir.Dot):
        case [dot]:
            return match_gemm(kernel, dot)
        case _:
            return None


def plan_pattern(
    pattern: GemmPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """The cheapest legal kernel that the request allows, or why there is none. Raises Refused."""
    return planner.plan(gemm_problem(pattern, sizes, aligned), sizes, arch, device, request)


def schedules(
    pattern: GemmPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    free: bool = False,
) -> Iterator[Planned]:
    """Every legal kernel that the cost model weighs for a request. Raises Refused."""
    return space.kernels(gemm_problem(pattern, sizes), sizes, arch, device, request, free)


def candidates(
    pattern: GemmPattern, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Iterator[Planned]:
    """Every legal kernel that the planner would consider for a request, the cheapest first. Raises Refused."""
    return planner.candidates(gemm_problem(pattern, sizes), sizes, arch, device, request)


FAMILY = Family(
    name="gemm",
    pattern=GemmPattern,
    plan=GemmPlan,
    match=match,
    plan_pattern=plan_pattern,
    schedules=schedules,
    candidates=candidates,
    granularity=granularity,
    resources=resources,
    traffic=cost.traffic,
    tile_cost=tile_cost,
    prices=True,
    rules=RULES,
    variants=VARIANTS,
)
