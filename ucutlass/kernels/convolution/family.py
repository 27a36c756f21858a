"""The convolution family: a dot of which an operand is read at affine positions."""

from __future__ import annotations

from ucutlass import ir
from ucutlass.kernels import space
from ucutlass.kernels.convolution import cost
from ucutlass.kernels.convolution.granularity import granularity
from ucutlass.kernels.convolution.match import ConvolutionPattern, as_gemm, is_convolution, match_convolution
from ucutlass.kernels.convolution.plan import ConvolutionPlan
from ucutlass.kernels.convolution.planner import plan_convolution
from ucutlass.kernels.convolution.rules import RULES
from ucutlass.kernels.convolution.space import axes
from ucutlass.kernels.convolution.variants import VARIANTS
from ucutlass.kernels.family import Family
from ucutlass.kernels.gemm.match import GemmPattern
from ucutlass.kernels.refused import Refused


def match(kernel: ir.Kernel) -> ConvolutionPattern | GemmPattern | None:
    """The pattern of a dot of windows; GEMM's where the windows are of one position. Raises Refused."""
    if not is_convolution(kernel):
        return None
    pattern = match_convolution(kernel)
    gemm = as_gemm(pattern)
    if gemm is None and not pattern.summed and pattern.dot.left.elem is not pattern.dot.right.elem:
        raise Refused.mixed_fp8(pattern.dot.span)
    return gemm or pattern


SPACE = space.PlannerSpace(plan_convolution, axes)

FAMILY = Family(
    name="convolution",
    pattern=ConvolutionPattern,
    plan=ConvolutionPlan,
    match=match,
    plan_pattern=SPACE.plan_pattern,
    schedules=SPACE.schedules,
    candidates=SPACE.candidates,
    granularity=granularity,
    resources=cost.resources,
    traffic=cost.traffic,
    tile_cost=cost.tile_cost,
    prices=False,
    rules=RULES,
    variants=VARIANTS,
)
