"""The convolution family: a dot of which an operand is read at affine positions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ucutlass import ir
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels import space
from ucutlass.kernels.convolution import cost
from ucutlass.kernels.convolution.granularity import granularity
from ucutlass.kernels.convolution.match import ConvolutionPattern, as_gemm, is_convolution, match_convolution
from ucutlass.kernels.convolution.plan import ConvPlan
from ucutlass.kernels.convolution.planner import plan_convolution
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
        return None
    pattern = match_convolution(kernel)
    gemm = as_gemm(pattern)
    if gemm is None and not pattern.summed and pattern.dot.left.elem is not pattern.dot.right.elem:
        raise Refused.mixed_fp8(pattern.dot.span)
    return gemm or pattern


def plan_pattern(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """The best legal kernel that the request allows, or why there is none. Raises Refused."""
    planner = partial(plan_convolution, pattern, sizes, arch, device, aligned=aligned)
    return space.planned(planner, axes, request)


def schedules(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    free: bool = False,
) -> Iterator[Planned]:
    """The planner's choice for a request and the other legal kernels around it. Raises Refused."""
    return space.kernels(partial(plan_convolution, pattern, sizes, arch, device), axes, request, free)


def candidates(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Iterator[Planned]:
    """Kernels near the planner's choice for a request, the cheapest first. Raises Refused."""
    return space.candidates(partial(plan_convolution, pattern, sizes, arch, device), axes, request)


FAMILY = Family(
    name="convolution",
    pattern=ConvolutionPattern,
    plan=ConvPlan,
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
