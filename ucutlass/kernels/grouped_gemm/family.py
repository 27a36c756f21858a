"""The grouped GEMM family: pairs of dots, ragged groups, scaled parts."""

from __future__ import annotations

from ucutlass import ir
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


def match(kernel: ir.Kernel) -> GroupedGemmPattern | None:
    """The pattern of dots over one left operand, over ragged groups or not. Raises Refused."""
    dots = find(kernel, ir.Dot)
    return match_grouped_gemm(kernel, dots) if is_products(kernel, dots) else None


SPACE = space.PlannerSpace(plan_grouped_gemm, axes)

FAMILY = Family(
    name="grouped_gemm",
    pattern=GroupedGemmPattern,
    plan=GroupedGemmPlan,
    match=match,
    plan_pattern=SPACE.plan_pattern,
    schedules=SPACE.schedules,
    candidates=planner.candidates,
    granularity=granularity,
    resources=cost.resources,
    traffic=cost.traffic,
    tile_cost=cost.tile_cost,
    prices=True,
    rules=RULES,
    variants=VARIANTS,
)
