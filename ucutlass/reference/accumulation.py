"""Bounds the rounding error of `dot` for each compute type.

Products of f16, bf16, e4m3, e5m2 and tf32 operands are exact in f32, so a dot's error is that of adding them.
Adding a term to a partial sum S errs by at most `unit * |S|`. A bound on S is derived from the data: the
summed dimensions are cut into blocks, and a partial sum inside block c, of a part of the dot that began at
any earlier block, is at most

    R_c = |prefix_c| + max over b < c of |prefix_b| + (|A| |B|)_c .

Errors of rounding to nearest have no preferred sign: over all steps they add up to `lambda * unit * sqrt(sum
R_c**2)` (`radius.deviation`). Tensor cores truncate instead (Fasi, Higham, Mikaitis, Pranesh, PeerJ CS
7:e330, 2021): each truncation error is between 0 and one unit of f32's spacing, 2**-23 |S|, so the sum also
drifts by half of that per step. The bound never exceeds the worst case, `steps * unit * |A| |B|`. For data of
one sign the drift alone is half of that worst case; for random signs the bound grows as sqrt(K).

Where some order of the sum leaves the accumulator's range and its total may not, a kernel may return an
infinity or NaN, and the radius is infinite. `reductions` derives this; the sum of positive products is half
of |A| |B| + AB, that of negative ones half of |A| |B| - AB.

R_c is at least (|A| |B|)_c, whatever the prefixes. With B blocks the squares sum to at least (|A| |B|)**2 / B then, and
the radius is at least a multiple of |A| |B|, which takes two products and no blocks: a least radius. What lies within
it lies within the radius.

Where every partial sum is a multiple of one power of two and small enough for the accumulator, nothing rounds
and the radius is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

from ucutlass.ir import Cast, Dot, Read, Value
from ucutlass.ir.elements import F16, F32, TF32
from ucutlass.reference.chunks import CHUNK
from ucutlass.reference.contract import (
    UNROLLED,
    Operand,
    ascending,
    block_count,
    blocks,
    contract,
    contract_with_magnitudes,
    extent,
    joined,
    magnitude,
    narrow,
    realise,
    residues,
)
from ucutlass.reference.host_numbers import extremes_of
from ucutlass.reference.indexing import LazyGather, LazyRead
from ucutlass.reference.named_tensor import Named
from ucutlass.reference.radius import UNIT, deviation, exact_sums, finite, granule, with_nonfinite
from ucutlass.reference.rounding import FORMATS, overflow_of, round_float


@dataclass(frozen=True, slots=True)
class F16Ends:
    """Where f16 parts of an operand end: `own` of its largest element, or, where that is at least `least` and below 2**5,
    at `usual`."""

    own: float
    usual: float
    least: float

    def below(self, largest: float) -> float:
        """Returns what parts of a tensor err by at least: half of the last bit, with an exponent of its own or the usual
        one."""
        return max(self.own * largest, self.usual if self.least <= largest < 2.0**5 else 0.0)


@dataclass(frozen=True, slots=True)
class AccumulationModel:
    """How a compute type accumulates.

    `unit` is the relative error of one step and `products` the number of products that enter a step. With
    `truncates`, low bits are truncated rather than rounded. Integers up to `exact` add exactly. After
    `promoted` products the sum moves to an f32 register and restarts; 0 means never. `passes` is the number
    of products that a term takes, `split` the relative error of a product itself. Where operands may be multiplied as f16,
    these have `ends`, too.
    """

    unit: float
    products: int
    truncates: bool
    exact: float
    promoted: int = 0
    passes: int = 1
    split: float = 0.0
    ends: F16Ends | None = None


_TENSOR = AccumulationModel(2 * UNIT, 1, True, 2.0**24)
_HALF = AccumulationModel(2.0**-11, 8, False, 2.0**11)
_FAST = AccumulationModel(2.0**-13, 1, True, 2.0**13)
_PROMOTED = AccumulationModel(2.0**-13, 1, True, 2.0**13, promoted=128)
_ONE_F16 = replace(_TENSOR, ends=F16Ends(2.0**-38, 2.0**-34, 2.0**-7))
_SPLIT = AccumulationModel(
    2 * UNIT, 1, True, 2.0**24, passes=3, split=3 * 2.0**-22, ends=F16Ends(2.0**-50, 2.0**-46, 2.0**-18)
)

ACCUMULATORS: Mapping[tuple[str, str], AccumulationModel] = MappingProxyType(
    {
        ("f16", "f32"): _TENSOR,
        ("f16", "f16"): _HALF,
        ("bf16", "f32"): _TENSOR,
        ("tf32", "f32"): _TENSOR,
        ("f32", "f32"): _SPLIT,
        ("e4m3", "f32"): _PROMOTED,
        ("e4m3", "fast"): _FAST,
        ("e5m2", "f32"): _PROMOTED,
        ("e5m2", "fast"): _FAST,
    }
)
"""How each compute type accumulates, by compute type and accumulation.

- f16 sums: mma.sync rounds to nearest once an instruction of at least 8 products, some of which are padding in
  a convolution.
- fp8 on Hopper aligns addends to the largest and keeps 13 bits below its leading one
  (DeepSeek-V3, arXiv 2412.19437, section 3.3.2); CUTLASS moves the sum to f32 registers at
  least every four instructions of 32 products (the rules keep k tiles to that), the fast form never.
- f32 is FFMA or three passes of tf32 or f16, as the schedule says; the larger error, the passes', counts:
  an operand is two parts within 2**-22, and the product of the low parts, 2**-22, is dropped. Parts of f16
  end 2**-50 below the tensor's largest element, or at 2**-46 (emit/hopper/f16x3.j2).
- tf32 of convolutions may be multiplied as one f16 that has all its bits, and ends 2**-38 below the largest element or at
  2**-34 (`model_of`).
"""

_BLOCK = 128
_BLOCKS = 64
"""The sum is cut into at most `_BLOCKS` blocks of at least `_BLOCK` products. There are more where a dot is
so long that the magnitude of a block would outweigh the sums before it, which grow as the root of its
length."""


Radii: TypeAlias = tuple[Operand | None, Operand | None]


def model_of(node: Dot) -> AccumulationModel:
    """Returns how a dot accumulates."""
    if node.compute_type == TF32 and may_be_convolution(node):
        return _ONE_F16
    return ACCUMULATORS[node.compute_type.name, node.accumulate]


def may_be_convolution(node: Dot) -> bool:
    """Whether a kernel of convolutions may serve a dot: where an operand is read at positions; and 1x1 layers, which are
    the products of a tensor of more than two names and a matrix, and the gradients of weights, which sum over several
    names. The orders of names do not tell more, since a pipeline's planner may store a buffer in another one."""
    sides = (_stored(node.left), _stored(node.right))
    fewer, more = sorted(len(side.dims) for side in sides)
    return len(node.over) > 1 or fewer == 2 < more or any(isinstance(side, Read) for side in sides)


def _stored(value: Value) -> Value:
    """The value without casts."""
    while isinstance(value, Cast):
        value = value.value
    return value


def dot_with_radius(
    node: Dot, left: Operand, right: Operand, radii: Radii, least: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns the value of a float dot before it overflows, and its radius, or the `least` one."""
    model = model_of(node)
    model = replace(
        model, products=min(model.products, _products_together(node, left, right, model.products))
    )
    steps = max(1, math.prod(extent((left, right), d) for d in node.over))
    blocked = _blocked_sum(node, left, right, steps, model, least)
    total = blocked.total
    propagated = from_operands(node, left, right, radii)
    rounding = blocked.rounding
    if model.ends is not None:
        rounding = rounding.add_(steps * _below_f16(model.ends, left, right))
    if propagated is not None:
        rounding = rounding.add_(propagated.mul_(1 + model.passes * steps * model.unit))
    elif not model.split or all(_is_one_part(model, operand) for operand in (left, right)):
        exact = exact_sums(blocked.largest, model.exact, _data(left), _data(right))
        rounding = rounding if exact is None else rounding.masked_fill_(exact, 0.0)
    undetermined = _undetermined(node, total, blocked.magnitude_sum, rounding, left, right, radii)
    return total, with_nonfinite(total, rounding, undetermined)


def _products_together(node: Dot, left: Operand, right: Operand, most: int) -> int:
    """Returns how many products at least, up to `most`, enter each step on average: the channels of each tap of a
    window are padded to whole steps, as kernels copy them."""
    positions = [p for x in (left, right) if isinstance(x, LazyRead) for p in x.node.positions]
    taps = {d for p in positions if len(p.at.terms) > 1 for d, _ in p.at.terms}
    if not taps & set(node.over):
        return most
    channels = math.prod(extent((left, right), d) for d in node.over if d not in taps)
    return channels // -(-channels // most)


def _undetermined(
    node: Dot,
    total: Tensor,
    magnitude_sum: Tensor,
    radius: Tensor,
    left: Operand,
    right: Operand,
    radii: Radii,
) -> Tensor | None:
    """Returns where a partial sum may overflow and the total may not, and where an operand may hold any
    value, or what is outside of a window meets an infinity or a NaN."""
    float_format = FORMATS[F16.name if node.accumulate == F16.name else F32.name]
    mask = None
    (_, most), (_, spread) = extremes_of(magnitude_sum, radius)
    if not most + spread < float_format.largest:
        high, low = (magnitude_sum + total) / 2 + radius, (magnitude_sum - total) / 2 + radius
        may_overflow, overflows_both_ways = (
            torch.maximum(high, low) >= float_format.largest,
            torch.minimum(high, low) >= float_format.largest,
        )
        certain = (
            total.abs() - radius >= overflow_of(F16 if float_format.largest < 2.0**16 else F32)
        ) & ~overflows_both_ways
        mask = may_overflow & ~certain & magnitude_sum.isfinite()
    for window, other in ((left, right), (right, left)):
        skipped = _skipped(node, window, other)
        if skipped is not None:
            mask = skipped if mask is None else mask | skipped
    for operand, other in zip(radii, (right, left), strict=True):
        if operand is not None and not finite(_data(operand)):
            infinities = _mapped(operand, lambda x: x.isinf().to(torch.float64))
            ones = _mapped(other, lambda x: torch.ones_like(x, dtype=torch.float64))
            touched = contract(infinities, ones, node.over, node.dims) > 0
            mask = touched if mask is None else mask | touched
    return mask if mask is not None and bool(mask.any()) else None


def _skipped(node: Dot, window: Operand, other: Operand) -> Tensor | None:
    """Returns where a window reads the 0 outside of its tensor and the other operand is not finite: a kernel that
    leaves such products out, as those of a strided transposed convolution, does not see the NaN. None where there
    are none."""
    if not isinstance(window, LazyRead) or window.node.fill != 0 or finite(_data(other)):
        return None
    outside = replace(
        window,
        source=window.source.like(torch.zeros_like(window.source.data)),
        node=replace(window.node, fill=1.0),
    )
    nonfinite = _mapped(other, lambda x: (~x.isfinite()).to(torch.float64))
    return contract(outside, nonfinite, node.over, node.dims) > 0


def _mapped(operand: Operand, change: Callable[[Tensor], Tensor]) -> Operand:
    """Returns the operand with `change` applied to its source's numbers."""
    match operand:
        case Named():
            return operand.like(change(operand.data))
        case LazyRead() | LazyGather():
            return replace(operand, source=operand.source.like(change(operand.source.data)))


@dataclass(frozen=True, slots=True, eq=False)
class _BlockedSum:
    """`total` is A B, `rounding` its radius, `largest` the largest sum of magnitudes that an accumulator holds, and
    `magnitude_sum` is |A| |B|."""

    total: Tensor
    rounding: Tensor
    largest: Tensor
    magnitude_sum: Tensor


def _blocked_sum(
    node: Dot, left: Operand, right: Operand, steps: int, model: AccumulationModel, least: bool
) -> _BlockedSum:
    """Sums each residue of a window with gaps apart: products with the zeros between round nothing."""
    left, right = ascending(left, right, node.over)
    parts = residues(left, right, node.over, node.dims)
    if len(parts) == 1:
        return _sliced_sum(node, left, right, steps, model, least)

    def of_part(a: Operand, b: Operand) -> tuple[Tensor, ...]:
        sums = _sliced_sum(node, a, b, steps, model, least)
        return sums.total, sums.rounding, sums.largest, sums.magnitude_sum

    return _BlockedSum(*joined(parts, (left, right), node.dims, of_part))


def _sliced_sum(
    node: Dot, left: Operand, right: Operand, steps: int, model: AccumulationModel, least: bool
) -> _BlockedSum:
    """Sums a slice of the result at a time, so that what is added to stays in a cache and the numbers of a window in one
    block of the sum can be unrolled into one product."""
    count = max(_BLOCK, min(-(-steps // _BLOCKS), math.isqrt(steps)))
    shape, device = [extent((left, right), d) for d in node.dims], _data(left).device
    results = math.prod(shape)
    sum_of = _least_sum if least else _slice_sum
    cut = _slices(
        node, left, right, shape, steps if least else min(count, steps), math.inf if least else CHUNK
    )
    if cut is None:
        return sum_of(node, left, right, steps, count, model, results)
    dim, length = cut
    axis = node.dims.index(dim)
    total, rounding, magnitude_sum = (
        torch.empty(shape, dtype=torch.float64, device=device) for _ in range(3)
    )
    largest = torch.empty_like(total) if model.promoted else magnitude_sum
    for start in range(0, shape[axis], length):
        size = min(length, shape[axis] - start)
        operands = (narrow(left, dim, start, size), narrow(right, dim, start, size))
        part = sum_of(node, *operands, steps, count, model, results)
        total.narrow(axis, start, size).copy_(part.total)
        rounding.narrow(axis, start, size).copy_(part.rounding)
        magnitude_sum.narrow(axis, start, size).copy_(part.magnitude_sum)
        if model.promoted:
            largest.narrow(axis, start, size).copy_(part.largest)
    return _BlockedSum(total, rounding, largest, magnitude_sum)


def _slices(
    node: Dot, left: Operand, right: Operand, shape: Sequence[int], products: int, most: float
) -> tuple[str, int] | None:
    """Returns the dimension of the result that is cut into slices, and the length of one: of at most so many numbers, and
    UNROLLED of a window with so many products of each sum. The dimension is a window's, since the other operand's would
    unroll the window again for each slice. None where one slice serves."""
    window = next((x for x in (left, right) if isinstance(x, LazyRead)), None)
    free = [d for d in node.dims if window is None or d in window.dims]
    if not free:
        return None
    dim = max(free, key=lambda d: extent((left, right), d))
    parts = math.prod(shape) / most
    if window is not None:
        parts = max(parts, products * math.prod(len(window.range_of(d)) for d in free) / UNROLLED)
    return (dim, max(1, int(extent((left, right), dim) / parts))) if parts > 1 else None


def _slice_sum(
    node: Dot, left: Operand, right: Operand, steps: int, count: int, model: AccumulationModel, results: int
) -> _BlockedSum:
    """Returns the sums of a slice, `count` products a block, of a result of `results` numbers."""
    additions = model.passes * max(1.0, min(count, steps) / model.products)
    shape, device = [extent((left, right), d) for d in node.dims], _data(left).device
    prefix, peak, magnitude_sum, squares, linear = (
        torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(5)
    )
    largest = torch.zeros_like(prefix) if model.promoted else magnitude_sum
    for a, b in blocks(left, right, node.over, count):
        part, magnitudes = contract_with_magnitudes(a, b, node.over, node.dims)
        scale = magnitudes.clone() if model.promoted else prefix.abs().add_(peak).add_(magnitudes)
        squares.addcmul_(scale, scale, value=additions)
        linear.add_(scale, alpha=additions)
        magnitude_sum += magnitudes
        prefix += part
        torch.maximum(peak, prefix.abs(), out=peak)
        if model.promoted:
            torch.maximum(largest, magnitudes, out=largest)
    events = model.passes * max(1, steps // model.products)
    rounding = squares.sqrt_().mul_(deviation(events, results) * model.unit)
    if model.truncates:
        rounding += linear.mul_(model.unit / 2)
    torch.minimum(rounding, magnitude_sum * (events * model.unit), out=rounding)
    if relative := _of_each_product(steps, model):
        rounding += magnitude_sum * relative
    return _BlockedSum(prefix, rounding.add_(2.0**-126), largest, magnitude_sum)


def _least_sum(
    node: Dot, left: Operand, right: Operand, steps: int, count: int, model: AccumulationModel, results: int
) -> _BlockedSum:
    """Does as `_slice_sum` with the least radius, and the least that `largest` is."""
    total, magnitude_sum = contract_with_magnitudes(left, right, node.over, node.dims)
    cuts = block_count(left, right, node.over, count)
    additions = model.passes * max(1.0, min(count, steps) / model.products)
    events = model.passes * max(1, steps // model.products)
    drift = additions / 2 if model.truncates else 0.0
    relative = min(deviation(events, results) * math.sqrt(additions / cuts) + drift, events) * model.unit
    rounding = magnitude_sum * (relative + _of_each_product(steps, model))
    largest = magnitude_sum / cuts if model.promoted else magnitude_sum
    return _BlockedSum(total, rounding.add_(2.0**-126), largest, magnitude_sum)


def _of_each_product(steps: int, model: AccumulationModel) -> float:
    """Returns the relative error of a product, and of the moves to a register of the sum that it is in."""
    return (math.ceil(steps / model.promoted) * UNIT if model.promoted else 0.0) + model.split


def from_operands(node: Dot, left: Operand, right: Operand, radii: Radii) -> Tensor | None:
    """Returns the error that inexact operands contribute: eA |B| + |A| eB + eA eB."""
    terms: list[Tensor] = []
    el, er = radii
    if el is not None:
        terms.append(contract(el, magnitude(right), node.over, node.dims))
    if er is not None:
        terms.append(contract(magnitude(left), er, node.over, node.dims))
    if el is not None and er is not None:
        terms.append(contract(el, er, node.over, node.dims))
    return torch.stack(terms).sum(dim=0) if terms else None


def _data(operand: Operand) -> Tensor:
    """Returns the numbers that an operand is made of, each at least once."""
    return operand.source.data if isinstance(operand, (LazyRead, LazyGather)) else realise(operand).data


def _largest_finite(operand: Operand) -> float:
    magnitudes = _data(operand).abs()
    return float(magnitudes.where(magnitudes.isfinite(), 0.0).max()) if magnitudes.numel() else 0.0


def _below_f16(ends: F16Ends, left: Operand, right: Operand) -> float:
    """The most by which a product errs since parts of f16 end."""
    a, b = _largest_finite(left), _largest_finite(right)
    return ends.below(a) * b + a * ends.below(b)


def _is_one_part(model: AccumulationModel, operand: Operand) -> bool:
    """Whether the first of two parts is the element: of tf32 by its bits, and of f16 by the tensor's range, too."""
    x = _data(operand)
    last = 0.0 if model.ends is None else 2.0**12 * model.ends.below(_largest_finite(operand))
    return bool((round_float(x, TF32) == x).all()) and last <= granule(x)
