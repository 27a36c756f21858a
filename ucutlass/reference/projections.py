"""Holds products against their operands by random projections, where their reference has sampled rows alone.

C = A B is right if C r = A (B r) for random signs r (Freivalds, Probabilistic machines can use less running time,
1977), which reads C, A and B once where a reference multiplies them. It looks at every row, which a sample does not,
but sees an error only where that stands out among the rounding errors of a row. For errors that do not depend on r,
|C r - A (B r)| exceeds L sqrt(sum of their squares) with probability 2 exp(-L**2 / 2) at most (Hoeffding). The squares
are bounded at the sampled rows; elsewhere they are taken to grow as those of the products do. So what a projection
objects to is no proof: the whole reference decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ucutlass.ir import Cast, Dims, Dot, Kernel, ParamValue, Position, Read, TensorType, Value
from ucutlass.ir.elements import F64
from ucutlass.reference.chunks import CHUNK
from ucutlass.reference.contract import Operand, contract
from ucutlass.reference.indexing import LazyRead
from ucutlass.reference.interpreter import Argument, dot_operand, evaluate_values, open_call
from ucutlass.reference.liveness import unrealised, window_source
from ucutlass.reference.named_tensor import Named, from_memory
from ucutlass.reference.slices import NOTHING, ReferenceSlice

FAILURE = 1e-9
"""The probability that the errors of a right product add up to more, once their squares are known."""

MOST_ELEMENTS = 2**29
"""Of an operand that is projected: it is held twice in float64 meanwhile."""

MARGIN = 2.0
"""By which errors at other rows may be larger than at those that were sampled."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The result of that `number` is a product, or one that is rounded, and `dim` is to be summed with random
    signs; `in_left`: the left operand has it."""

    number: int
    dot: Dot
    dim: str
    in_left: bool


def projections(kernel: Kernel, sizes: Mapping[str, int], rows: Sequence[str]) -> list[Projection]:
    """Returns a projection for each result that is a product of parameters and has a dimension of one operand alone,
    besides that of `rows`: the longest."""
    chosen: list[Projection] = []
    for number, (result, row) in enumerate(zip(kernel.results, rows, strict=True)):
        dot = result.value.value if isinstance(result.value, Cast) else result.value
        if not isinstance(dot, Dot) or dot.elem.kind != "float" or result.type.elem.kind != "float":
            continue
        left, right = (_movable(operand) for operand in (dot.left, dot.right))
        if (
            left is None
            or right is None
            or max(map(partial(_elements, sizes), (dot.left, dot.right))) > MOST_ELEMENTS
        ):
            continue
        candidates = [
            Projection(number, dot, d, in_left)
            for in_left, own, other in ((True, left, dot.right.dims), (False, right, dot.left.dims))
            for d in own
            if d in result.type.dims and d not in other and d != row
        ]
        if candidates:
            chosen.append(max(candidates, key=lambda p: sizes[p.dim]))
    return chosen


def _movable(operand: Value) -> Dims | None:
    """Returns the dimensions along which an operand is what its parameter holds at the same coordinate; None for an
    operand that is computed, whose errors are not those of the product alone."""
    match operand:
        case ParamValue(dims=dims):
            return dims
        case Cast(value=ParamValue(dims=dims)):
            return dims
        case Cast(value=Read() as window) if unrealised(operand):
            return _movable(window)
        case Read(value=inner, positions=positions, fill=fill) if fill == 0:
            own = _movable(inner)
            return None if own is None else tuple(d for d in own if d not in _positioned(positions))
        case _:
            return None


def _elements(sizes: Mapping[str, int], operand: Value) -> int:
    """Returns the number of elements of the parameter that an operand is read from."""
    source = window_source(operand) if unrealised(operand) else operand
    return math.prod(sizes.get(d, 1) for d in source.dims)


def _positioned(positions: Sequence[Position]) -> frozenset[str]:
    """Returns the dimensions that a read's positions are of, or depend on."""
    return frozenset({p.dim for p in positions} | {d for p in positions for d, _ in p.at.terms})


def projection_errors(
    kernel: Kernel,
    arguments: Sequence[Argument],
    outputs: Sequence[Tensor],
    part: ReferenceSlice,
    seed: int,
    around: Mapping[str, int] = NOTHING,
) -> dict[int, float]:
    """Returns by a result's number its largest error over what a right product may have, more than 1 where it is
    likely wrong. `part` has the reference at sampled coordinates. Results that are no bare products are left out,
    and those whose numbers or bounds are not finite."""
    call = open_call(kernel, arguments, around)
    rows = [r.type.axes[axis].dims[0] for r, axis in zip(kernel.results, part.axes, strict=True)]
    errors: dict[int, float] = {}
    for projection in projections(kernel, call.sizes, rows):
        row = rows[projection.number]
        kind = kernel.results[projection.number].type
        out = outputs[projection.number]
        signs = _signs(call.sizes[projection.dim], seed, out.device)
        operand_of = partial(dot_operand, call=call, value_of=lambda value: evaluate_values([value], call)[0])
        left, right = operand_of(projection.dot.left), operand_of(projection.dot.right)
        dims = tuple(d for d in kind.dims if d != projection.dim)

        def product(
            left: Operand,
            right: Operand,
            weights: Tensor,
            projection: Projection = projection,
            dims: Dims = dims,
        ) -> Named:
            if projection.in_left:
                left = _summed(left, projection.dim, weights)
            else:
                right = _summed(right, projection.dim, weights)
            return Named(contract(left, right, projection.dot.over, dims), dims)

        expected = product(left, right, signs)
        sizes_of_squares = product(_squared(left), _squared(right), torch.ones_like(signs))
        actual = _summed_memory(out, kind, call.sizes, projection.dim, signs)
        sampled_sizes = {**call.sizes, row: len(_index(part))}
        bounds = from_memory(
            part.expected[projection.number].bound, TensorType(F64, kind.axes), sampled_sizes
        )
        permitted = _summed(bounds.like(bounds.data.square()), projection.dim, torch.ones_like(signs))
        error = _error(expected, actual, sizes_of_squares, permitted, row, _index(part))
        if error is not None:
            errors[projection.number] = error
    return errors


def _signs(extent: int, seed: int, device: torch.device) -> Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed & (2**63 - 1))
    signs = torch.randint(0, 2, (extent,), generator=generator, dtype=torch.int64)
    return (2 * signs - 1).to(device=device, dtype=torch.float64)


def _summed(operand: Operand, dim: str, weights: Tensor) -> Operand:
    """Returns the operand summed over one of its dimensions with weights."""
    match operand:
        case Named():
            return _weighted(operand, dim, weights)
        case LazyRead(source=source, node=node):
            dims = tuple(d for d in node.dims if d != dim)
            return replace(operand, source=_weighted(source, dim, weights), node=replace(node, dims=dims))
        case _:
            raise AssertionError("projections are of parameters and their windows")


def _weighted(value: Named, dim: str, weights: Tensor) -> Named:
    axis = value.dims.index(dim)
    total: Tensor | None = None
    step = max(1, CHUNK * 8 // max(1, value.data.numel() // max(1, len(weights))))
    for start in range(0, len(weights), step):
        block = value.data.narrow(axis, start, min(step, len(weights) - start)).to(torch.float64)
        part = torch.tensordot(block, weights[start : start + step], dims=([axis], [0]))
        total = part if total is None else total.add_(part)
    assert total is not None
    return Named(total, tuple(d for d in value.dims if d != dim))


def _squared(operand: Operand) -> Operand:
    match operand:
        case Named():
            return operand.like(operand.data.to(torch.float64).square())
        case _:
            return replace(
                operand, source=operand.source.like(operand.source.data.to(torch.float64).square())
            )


def _summed_memory(
    out: Tensor, kind: TensorType, sizes: Mapping[str, int], dim: str, weights: Tensor
) -> Named:
    """Returns a result as it lies in memory, summed over a dimension with weights."""
    at = next((i for i, axis in enumerate(kind.axes) if axis.dims == (dim,)), None)
    if at is None:
        return _weighted(from_memory(out, kind, sizes), dim, weights)
    # In parts: as a value it takes twice its memory.
    total: Tensor | None = None
    step = max(1, CHUNK * 8 // max(1, out.numel() // max(1, len(weights))))
    for start in range(0, len(weights), step):
        length = min(step, len(weights) - start)
        value = from_memory(out.narrow(at, start, length), kind, {**sizes, dim: length})
        part = _weighted(value, dim, weights[start : start + length])
        total = part.data if total is None else total.add_(part.data)
        dims = part.dims
    assert total is not None
    return Named(total, dims)


def _index(part: ReferenceSlice) -> Tensor:
    assert part.index is not None, "a projection is held against a sample"
    return part.index


def _error(
    expected: Named, actual: Named, squares: Named, permitted: Operand, row: str, index: Tensor
) -> float | None:
    """Returns the largest error over what may be; `permitted` are the sums of squared bounds at coordinates `index`
    of `row`, `squares` those of the products everywhere."""
    assert isinstance(permitted, Named)
    sampled = squares.data.index_select(squares.dims.index(row), index.to(squares.data.device))
    ratios = (permitted.spread(squares.dims).to(sampled.device) / sampled)[sampled > 0]
    if not ratios.numel() or not math.isfinite(growth := float(ratios.max())):
        return None
    if not bool(expected.data.isfinite().all()):
        return None
    deviations = math.sqrt(2 * math.log(2 * expected.data.numel() / FAILURE))
    tolerance = (squares.data * growth).sqrt_().mul_(MARGIN * deviations)
    difference = (actual.spread(expected.dims) - expected.data).abs()
    worst = torch.where(difference == 0, 0.0, difference / tolerance)
    return float(worst.nan_to_num(nan=math.inf).max())
