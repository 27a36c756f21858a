"""1x1 layers whose positions are innermost, as GEMM's kernels of TMA do not take them: gradients of weights, which sum over
images and positions, so that the sum lies around the rows of both operands, and layers and gradients of their input whose
lines of positions are no whole 16 bytes.

GEMM's multistage kernel takes both. The algorithms of `planner_tma` are compared with it: one reads the positions of an
image at a time, the other a copy whose channels are innermost.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from ucutlass import ir
from ucutlass.ir.elements import F32, TF32
from ucutlass.ir.extents import Fixed
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.ir.traversal import find
from ucutlass.kernels.convolution.match import ConvolutionPattern, exchanged, match_convolution
from ucutlass.kernels.convolution.planner import planned_by
from ucutlass.kernels.convolution.planner_algorithm import Algorithm
from ucutlass.kernels.convolution.planner_tma import cheapest, tma_algorithms
from ucutlass.kernels.convolution.schedule_im2col import BYTES
from ucutlass.kernels.convolution.schedule_wgrad import WGMMA_TYPES
from ucutlass.kernels.gemm import planner, space
from ucutlass.kernels.gemm.match import match_gemm
from ucutlass.kernels.gemm.plan import GemmPlan, GemmProblem
from ucutlass.kernels.gemm.problem import gemm_problem
from ucutlass.kernels.planned import BY_MODEL, Planned
from ucutlass.kernels.violation import Violation

MULTISTAGE, MULTISTAGE_OF_ODD = 1.4, 3.0
"""How many times its price GEMM's multistage kernel takes of such sums: read off an H200, where it took 1.06 to 5 times
its price of 12 layers, and the kernel of one image at a time less of all of them. Of images of an odd number of 16 bits,
which it reads one by one, it took 2.7 and 3.1 times its price, and an H100 3.4 times that of a layer of them."""

MULTISTAGE_OF_LINES = 0.7
"""The same of layers whose lines are ragged, but not of odd numbers of 16 bits: an H200 took 0.66 to 1.24 times its price of seven of them."""

OWN_FIELDS = frozenset({"warps", "raster", "swizzle"})
COPIED_FIELDS = OWN_FIELDS | {"tile", "stages", "blocks", "split_k"}
"""What a schedule may fix of the kernel of one image at a time, and of that of a copy."""


def match_pointwise(kernel: ir.Kernel) -> ConvolutionPattern | None:
    """The pattern of one dot of stored operands whose summed names lie on both sides of their rows, or of which one has
    ragged lines. Raises Refused."""
    dots = find(kernel, ir.Dot)
    if len(dots) != 1 or dots[0].left.elem.name not in (*WGMMA_TYPES, TF32.name):
        return None
    sides = (dots[0].left, dots[0].right)
    if all(_lies_around(kernel, dots[0], side) for side in sides):
        return match_convolution(kernel)
    if not _has_ragged_lines(kernel, dots[0]):
        return None
    pattern = match_convolution(kernel)
    return exchanged(pattern) if len(pattern.a.axes) < len(pattern.b.axes) else pattern


def _has_ragged_lines(kernel: ir.Kernel, dot: ir.Dot) -> bool:
    """Whether the dot is of images whose positions are innermost and no whole 16 bytes, as TMA's strides are, and a matrix
    of weights."""
    types = [_stored_type(kernel, side) for side in (dot.left, dot.right)]
    if len(dot.over) != 1 or find(kernel, ir.Reduce):
        return False
    named = [t for t in types if t is not None and len(set(t.dims)) == len(t.dims) > 1]
    images = [t for t in named if len(t.dims) > 2]
    if len(named) != 2 or len(images) != 1:
        return False
    dims = images[0].dims
    extents = [kernel.dims[d] for d in dims[2:]]
    lines = math.prod(e.value for e in extents if isinstance(e, Fixed))
    fixed = all(isinstance(e, Fixed) for e in extents)
    ragged = lines > 1 and lines * images[0].elem.bytes % BYTES > 0
    return fixed and ragged and dims[1] in dot.over and all(d in dot.dims for d in dims[2:])


def _lies_around(kernel: ir.Kernel, dot: ir.Dot, side: ir.Value) -> bool:
    type_ = _stored_type(kernel, side)
    if type_ is None or len(set(type_.dims)) != len(type_.dims):
        return False
    summed = [d in dot.over for d in type_.dims]
    return summed[:1] == summed[-1:] == [True] and not all(summed)


def _stored_type(kernel: ir.Kernel, side: ir.Value) -> ir.TensorType | None:
    if isinstance(side, ir.Cast) and side.elem is TF32 and side.value.elem is F32:
        side = side.value
    type_ = kernel.params[side.index].type if isinstance(side, ir.ParamValue) else None
    return type_ if isinstance(type_, ir.TensorType) else None


class PointwiseSpace:
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
        """As `family.PlanPattern`: the family's own kernel where a schedule says `warps cooperative` or its price is
        lower; else GEMM's. Raises Refused."""
        own = _own(pattern, sizes, arch, device, request, aligned)
        if own is not None and request.warps == "cooperative":
            return own[0]
        other = planner.plan(_as_product(pattern, sizes, aligned), sizes, arch, device, request)
        if own is None or isinstance(other, tuple) or own[1] > _seconds_of_gemm(pattern, sizes, other):
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
        own = _own(pattern, sizes, arch, device, request)
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
        own = _own(pattern, sizes, arch, device, request)
        gemms = planner.candidates(_as_product(pattern, sizes), sizes, arch, device, request)
        others = ((planned, _seconds_of_gemm(pattern, sizes, planned)) for planned in gemms)
        ranked = heapq.merge([] if own is None else [own], others, key=lambda pair: pair[1])
        yield from (planned for planned, _ in ranked)


def _as_product(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], aligned: tuple[bool, ...] | None = None
) -> GemmProblem:
    return gemm_problem(match_gemm(pattern.kernel, pattern.dot), sizes, aligned)


def _seconds_of_gemm(pattern: ConvolutionPattern, sizes: tuple[int, ...], planned: Planned) -> float:
    """What GEMM's kernel is compared by: it does not know how its operands lie."""
    sums = pattern.sums_positions
    innermost = itertools.takewhile(lambda axis: (axis.name in pattern.k) == sums, reversed(pattern.a.axes))
    positions = math.prod(sizes[pattern.position[axis.name]] for axis in innermost)
    if positions % 2 == 1 and pattern.a.elem.bytes == 2:
        return MULTISTAGE_OF_ODD * planned.seconds
    return (MULTISTAGE if sums else MULTISTAGE_OF_LINES) * planned.seconds


def _own(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> tuple[Planned, float] | None:
    """The family's own kernel, and its price in seconds; None where the schedule or the problem is not its."""
    fields = COPIED_FIELDS if request.warps == "cooperative" and not pattern.sums_positions else OWN_FIELDS
    fixes_others = request.warps not in (None, "cooperative") or not request.fixed().keys() <= fields
    if fixes_others or not arch.wgmma:
        return None
    compute_type = pattern.dot.compute_type
    algorithm = cheapest(tma_algorithms(pattern, sizes, device, aligned, compute_type, request))
    if not isinstance(algorithm, Algorithm):
        return None
    planned = planned_by(algorithm, pattern, sizes, arch, device, request)
    return (replace(planned, origin=BY_MODEL), algorithm.seconds) if isinstance(planned, Planned) else None
