"""The attention family: two dots around a softmax."""

from __future__ import annotations

from ucutlass import ir
from ucutlass.ir.traversal import find
from ucutlass.kernels import space
from ucutlass.kernels.attention import cost
from ucutlass.kernels.attention.granularity import granularity
from ucutlass.kernels.attention.match import AttentionPattern, is_attention, match_attention
from ucutlass.kernels.attention.plan import AttentionPlan
from ucutlass.kernels.attention.planner import plan_attention
from ucutlass.kernels.attention.rules import RULES
from ucutlass.kernels.attention.space import axes
from ucutlass.kernels.attention.variants import VARIANTS
from ucutlass.kernels.family import Family


def match(kernel: ir.Kernel) -> AttentionPattern | None:
    """The pattern of two dots around a softmax. Raises Refused."""
    dots = find(kernel, ir.Dot)
    return match_attention(kernel, dots) if is_attention(dots) else None


SPACE = space.PlannerSpace(plan_attention, axes)

FAMILY = Family(
    name="attention",
    pattern=AttentionPattern,
    plan=AttentionPlan,
    match=match,
    plan_pattern=SPACE.plan_pattern,
    schedules=SPACE.schedules,
    candidates=SPACE.candidates,
    granularity=granularity,
    resources=cost.resources,
    traffic=cost.traffic,
    tile_cost=cost.tile_cost,
    prices=False,
    refuses_extents=True,
    rules=RULES,
    variants=VARIANTS,
)
