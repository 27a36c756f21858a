"""Gradients of 1x1 layers' weights where positions are innermost: products that sum over images and positions.

Such a sum lies around the rows of both operands, so that GEMM's kernels of TMA do not take it; its multistage kernel
does. Here TMA reads the positions of one image at a time, and wgmma multiplies rows as they lie.
"""

from __future__ import annotations

from collections.abc import Iterator

from ucutlass import ir
from ucutlass.ir.elements import F32, TF32
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import RASTERS, PartialSchedule
from ucutlass.ir.traversal import find
from ucutlass.kernels.convolution.cost import estimate
from ucutlass.kernels.convolution.cost_f32 import copies_seconds
from ucutlass.kernels.convolution.match import ConvolutionPattern, match_convolution
from ucutlass.kernels.convolution.plan import ConvolutionPlan
from ucutlass.kernels.convolution.problem import convolution_problem
from ucutlass.kernels.convolution.schedule import SWIZZLE, request_of
from ucutlass.kernels.convolution.schedule_wgrad import WGMMA_TYPES, prepared_k_major, wgrad_schedule
from ucutlass.kernels.gemm import planner, space
from ucutlass.kernels.gemm.match import GemmPattern, match_gemm
from ucutlass.kernels.gemm.problem import gemm_problem
from ucutlass.kernels.planned import BY_MODEL, Note, Planned
from ucutlass.kernels.violation import Violation

MULTISTAGE = 1.4
"""How many times its price GEMM's multistage kernel takes of such sums: read off an H200, where it took 1.06 to 5 times
its price of 12 layers, and the kernel of one image at a time less of all of them."""

OWN_FIELDS = frozenset({"warps", "raster", "swizzle"})
"""What a schedule may fix of this kernel."""


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


def plan_pointwise_gradient(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """The kernel of one image at a time where a schedule says `warps cooperative` or its price is lower; else GEMM's.
    Raises Refused."""
    own = None
    if request.warps in (None, "cooperative") and request.fixed().keys() <= OWN_FIELDS:
        own = _by_images(pattern, sizes, arch, device, request, aligned)
    if own is not None and request.warps == "cooperative":
        return own[0]
    other = planner.plan(gemm_problem(_gemm(pattern), sizes, aligned), sizes, arch, device, request)
    if own is None or isinstance(other, tuple) or own[1] > MULTISTAGE * other.estimate.seconds:
        return other
    return own[0]


def pointwise_gradient_schedules(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    free: bool = False,
) -> Iterator[Planned]:
    """Every legal kernel that is worth timing for a request. Raises Refused."""
    if request.fixed().keys() <= OWN_FIELDS and request.warps in (None, "cooperative"):
        own = _by_images(pattern, sizes, arch, device, request, None)
        yield from [own[0]] if own is not None else []
    yield from space.kernels(gemm_problem(_gemm(pattern), sizes), sizes, arch, device, request, free)


def pointwise_gradient_candidates(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Iterator[Planned]:
    """Every legal kernel that the planner would consider for a request, the cheapest first. Raises Refused."""
    return planner.candidates(gemm_problem(_gemm(pattern), sizes), sizes, arch, device, request)


def is_pointwise_gradient(pattern: ConvolutionPattern) -> bool:
    """Whether the pattern is of `match_pointwise_gradient`: the family has no other without windows."""
    return not pattern.a.windowed and not pattern.b.windowed


def _gemm(pattern: ConvolutionPattern) -> GemmPattern:
    return match_gemm(pattern.kernel, pattern.dot)


def _by_images(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None,
) -> tuple[Planned, float] | None:
    """The kernel of one image at a time, and its price in seconds; None where it does not take the problem."""
    ready = prepared_k_major(convolution_problem(pattern, sizes, aligned), sizes) if arch.wgmma else ""
    if isinstance(ready, str):
        return None
    problem, how = ready
    priced = wgrad_schedule(problem, how, sizes, device)
    if priced is None:
        return None
    clocks, splits, schedule = priced
    launch = (RASTERS[request.raster or "heuristic"], request.swizzle or SWIZZLE, splits)
    why = f"TMA reads the positions of an image, wgmma multiplies rows as they lie; {splits} parts of the sum"
    notes = [Note("", "im2col", why)]
    if problem.a.pack is not None:
        copied = "A and B copied to the workspace first, lines of positions padded to 16 bytes"
        notes.append(Note("", "layout", copied))
    price = estimate(problem, schedule, sizes, arch, device, launch)
    plan = ConvolutionPlan(arch.name, problem, schedule)
    own = request_of(schedule, launch)
    planned = Planned(plan, launch, sizes, own, device, price, tuple(notes), BY_MODEL)
    return planned, clocks / device.clock + copies_seconds(problem, sizes, device)
