"""The convolution family: a dot of which an operand is read at affine positions."""

from __future__ import annotations

from collections.abc import Iterator

from ucutlass import ir
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels import space
from ucutlass.kernels.convolution import cost
from ucutlass.kernels.convolution.granularity import granularity
from ucutlass.kernels.convolution.match import ConvolutionPattern, as_gemm, is_convolution, match_convolution
from ucutlass.kernels.convolution.plan import ConvolutionPlan
from ucutlass.kernels.convolution.planner import plan_convolution
from ucutlass.kernels.convolution.planner_pointwise import PointwiseSpace, match_pointwise
from ucutlass.kernels.convolution.rules import RULES
from ucutlass.kernels.convolution.space import axes
from ucutlass.kernels.convolution.variants import VARIANTS
from ucutlass.kernels.family import Family
from ucutlass.kernels.gemm.match import GemmPattern
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.refused import Refused
from ucutlass.kernels.violation import Violation


def match(kernel: ir.Kernel) -> ConvolutionPattern | GemmPattern | None:
    """The pattern of a dot of windows; GEMM's where the windows are of one position. Raises Refused."""
    if not is_convolution(kernel):
        return match_pointwise(kernel)
    pattern = match_convolution(kernel)
    gemm = as_gemm(pattern)
    if gemm is None and not pattern.summed and pattern.dot.left.elem is not pattern.dot.right.elem:
        raise Refused.mixed_fp8(pattern.dot.span)
    return gemm or pattern


WINDOWS = space.PlannerSpace(plan_convolution, axes)
POINTWISE = PointwiseSpace()


def _space(pattern: ConvolutionPattern) -> space.PlannerSpace | PointwiseSpace:
    return WINDOWS if pattern.windowed else POINTWISE


def plan_pattern(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """As `family.PlanPattern`. Raises Refused."""
    return _space(pattern).plan_pattern(pattern, sizes, arch, device, request, aligned)


def schedules(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    free: bool = False,
) -> Iterator[Planned]:
    """As `family.ListSchedules`. Raises Refused."""
    return _space(pattern).schedules(pattern, sizes, arch, device, request, free)


def candidates(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Iterator[Planned]:
    """As `family.ListCandidates`. Raises Refused."""
    return _space(pattern).candidates(pattern, sizes, arch, device, request)


FAMILY = Family(
    name="convolution",
    pattern=ConvolutionPattern,
    plan=ConvolutionPlan,
    match=match,
    plan_pattern=plan_pattern,
    schedules=schedules,
    candidates=candidates,
    granularity=granularity,
    resources=cost.resources,
    traffic=cost.traffic,
    tile_cost=cost.tile_cost,
    prices=False,
    rules=RULES,
    variants=VARIANTS,
)
