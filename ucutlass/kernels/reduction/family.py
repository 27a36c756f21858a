"""The reduction family: kernels without a dot."""

from __future__ import annotations

from ucutlass import ir
from ucutlass.ir.traversal import find
from ucutlass.kernels import space
from ucutlass.kernels.family import Family
from ucutlass.kernels.reduction import cost
from ucutlass.kernels.reduction.granularity import granularity
from ucutlass.kernels.reduction.match import ReductionPattern, match_reduction
from ucutlass.kernels.reduction.plan import ReductionPlan
from ucutlass.kernels.reduction.planner import plan_reduction
from ucutlass.kernels.reduction.rules import RULES
from ucutlass.kernels.reduction.space import axes
from ucutlass.kernels.reduction.variants import VARIANTS


def match(kernel: ir.Kernel) -> ReductionPattern | None:
    """The pattern of a kernel without a dot. Raises Refused."""
    return None if find(kernel, ir.Dot) else match_reduction(kernel)


SPACE = space.PlannerSpace(plan_reduction, axes)

FAMILY = Family(
    name="reduction",
    pattern=ReductionPattern,
    plan=ReductionPlan,
    match=match,
    plan_pattern=SPACE.plan_pattern,
    schedules=SPACE.schedules,
    candidates=SPACE.candidates,
    granularity=granularity,
    resources=cost.resources,
    traffic=space.no_traffic,
    tile_cost=space.no_tile_cost,
    prices=False,
    rules=RULES,
    variants=VARIANTS,
    refuses_extents=True,
)
