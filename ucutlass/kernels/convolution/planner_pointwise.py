"""Gradients of 1x1 layers' weights where positions are innermost: products that sum over images and positions.

Such a sum lies around the rows of both operands, so that GEMM's kernels of TMA do not take it; its multistage kernel
does. The algorithm of `planner_tma` that reads the positions of one image at a time is compared with it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import replace

from ucutlass import ir
from ucutlass.ir.elements import F32, TF32
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.ir.traversal import find
from ucutlass.kernels.convolution.match import ConvolutionPattern, match_convolution
from ucutlass.kernels.convolution.planner import planned_by
from ucutlass.kernels.convolution.planner_algorithm import Algorithm
from ucutlass.kernels.convolution.planner_tma import cheapest, tma_algorithms
from ucutlass.kernels.convolution.schedule_wgrad import WGMMA_TYPES
from ucutlass.kernels.gemm import planner, space
from ucutlass.kernels.gemm.match import match_gemm
from ucutlass.kernels.gemm.plan import GemmPlan, GemmProblem
from ucutlass.kernels.gemm.problem import gemm_problem
from ucutlass.kernels.planned import BY_MODEL, Planned
from ucutlass.kernels.violation import Violation

MULTISTAGE = 1.4
"""How many times its price GEMM's multistage kernel takes of such sums: read off an H200, where it took 1.06 to 5 times
its price of 12 layers, and the kernel of one image at a time less of all of them."""

OWN_FIELDS = frozenset({"warps", "raster", "swizzle"})
"""What a schedule may fix of the kernel of one image at a time."""


def match_pointwise_gradient(kernel: ir.Kernel) -> ConvolutionPattern | None:
    """The pattern of one dot of stored operands whose summed names lie on both sides of their rows. Raises Refused."""
    dots = find(kernel, ir.Dot)
    if len(dots) != 1 or dots[0].left.elem.name not in (*WGMMA_TYPES, TF32.name):
        return None
    if not all(_lies_around(kernel, dots[0], side) for side in (dots[0].left, dots[0].right)):
        return None
    return match_convolution(kernel)


def _lies_around(kernel: ir.Kernel, dot: ir.Dot, side: ir.Value) -> bool:
    if isinstance(side, ir.Cast) and side.elem is TF32 and side.value.elem is F32:
        side = side.value
    type_ = kernel.params[side.index].type if isinstance(side, ir.ParamValue) else None
    if not isinstance(type_, ir.TensorType) or len(set(type_.dims)) != len(type_.dims):
        return False
    summed = [d in dot.over for d in type_.dims]
    return summed[:1] == summed[-1:] == [True] and not all(summed)


class PointwiseGradientSpace:
    """As `space.PlannerSpace`, where GEMM's kernels are compared with the family's own."""

    def plan_pattern(
        self,
        pattern: ConvolutionPattern,
        sizes: tuple[int, ...],
        arch: Arch,
        device: Device,
        request: PartialSchedule,
        aligned: tuple[bool, ...] | None = None,
    ) -> Planned | tuple[Violation, ...]:
        """As `family.PlanPattern`: the kernel of one image at a time where a schedule says `warps cooperative` or its
        price is lower; else GEMM's. Raises Refused."""
        own = _by_images(pattern, sizes, arch, device, request, aligned)
        if own is not None and request.warps == "cooperative":
            return own[0]
        other = planner.plan(_as_product(pattern, sizes, aligned), sizes, arch, device, request)
        if own is None or isinstance(other, tuple) or own[1] > _seconds_of_gemm(other):
            return other
        return own[0]

    def schedules(
        self,
        pattern: ConvolutionPattern,
        sizes: tuple[int, ...],
        arch: Arch,
        device: Device,
        request: PartialSchedule,
        free: bool = False,
    ) -> Iterator[Planned]:
        """As `family.ListSchedules`. Raises Refused."""
        own = _by_images(pattern, sizes, arch, device, request)
        choice = self.plan_pattern(pattern, sizes, arch, device, request)
        gemms = space.kernels(_as_product(pattern, sizes), sizes, arch, device, request, free)
        if not isinstance(choice, tuple) and isinstance(choice.plan, GemmPlan):
            yield from itertools.islice(gemms, 1)
        yield from [] if own is None else [own[0]]
        yield from gemms

    def candidates(
        self,
        pattern: ConvolutionPattern,
        sizes: tuple[int, ...],
        arch: Arch,
        device: Device,
        request: PartialSchedule,
    ) -> Iterator[Planned]:
        """As `family.ListCandidates`. Raises Refused."""
        own = _by_images(pattern, sizes, arch, device, request)
        gemms = planner.candidates(_as_product(pattern, sizes), sizes, arch, device, request)
        others = ((planned, _seconds_of_gemm(planned)) for planned in gemms)
        ranked = heapq.merge([] if own is None else [own], others, key=lambda pair: pair[1])
        yield from (planned for planned, _ in ranked)


def _as_product(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], aligned: tuple[bool, ...] | None = None
) -> GemmProblem:
    return gemm_problem(match_gemm(pattern.kernel, pattern.dot), sizes, aligned)


def _seconds_of_gemm(planned: Planned) -> float:
    """What GEMM's kernel is compared by: it does not know how its operands lie."""
    return MULTISTAGE * planned.seconds


def _by_images(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> tuple[Planned, float] | None:
    """The kernel of one image at a time, and its price in seconds; None where the schedule or the problem is not its."""
    fixes_others = request.warps not in (None, "cooperative") or not request.fixed().keys() <= OWN_FIELDS
    if fixes_others or not arch.wgmma:
        return None
    compute_type = pattern.dot.compute_type
    algorithm = cheapest(tma_algorithms(pattern, sizes, device, aligned, compute_type, request))
    if not isinstance(algorithm, Algorithm):
        return None
    planned = planned_by(algorithm, pattern, sizes, arch, device, request)
    return (replace(planned, origin=BY_MODEL), algorithm.seconds) if isinstance(planned, Planned) else None
