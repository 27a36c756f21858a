"""Radii of reductions, scans and softmax; `ucutlass.reference.error_bounds` describes the scheme.

Sums may be taken in any order: `radius.growth`. exp and log err as `FUNCTIONS` says.

Some order may leave f32's range where the outcome lies within it. No partial sum of a row exceeds the sum of
its positive terms or lies below that of its negative ones, and both are partial sums of some order. Where one
of the two is beyond the range and the outcome is not certainly so, a kernel may return an infinity, or NaN
where both are, and the radius is infinite. The same holds for a product whose factors above 1 alone leave the
range; factors below 1 that alone are denormal cost each step up to the smallest normal number, times the
factors above 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ucutlass.ir import Dims, Reduce, Scan, Segment, Softmax, Value
from ucutlass.ir.elements import F32, F64
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.reference.host_numbers import extremes, extremes_of
from ucutlass.reference.named_tensor import Named
from ucutlass.reference.nodes import axes, flattened_last, scan
from ucutlass.reference.radius import UNIT, Bounded, exact_sums, finite, growth, rounding, with_nonfinite
from ucutlass.reference.rounding import FORMATS, overflow_of

LARGEST = FORMATS[F32.name].largest


def radius(node: Value, parts: Sequence[Bounded], value: Named) -> Tensor | None:
    """Returns the radius of a reduction, scan or softmax; None for other nodes, which do not round."""
    if not parts or not parts[0].value.data.numel():
        return None
    match node:
        case Reduce():
            return _reduce(node, _as_float(node, parts[0]), value)
        case Scan():
            return _scan(node, parts[0], value)
        case Softmax():
            return _softmax(node, _as_float(node, parts[0]), value)
        case Segment():
            return parts[0].radius
        case _:
            return None


_WIDENING = frozenset({"mean", "var", "logsumexp"})


def _as_float(node: Reduce | Softmax, part: Bounded) -> Bounded:
    """Returns the operand with integers rounded to f32 where they are reduced as floats."""
    x = part.value.data
    if x.dtype != torch.int64 or (isinstance(node, Reduce) and node.op not in _WIDENING):
        return part
    if max(map(abs, extremes(x))) <= 1 << 24:
        return part
    rounded = rounding(x.to(torch.float64))
    return Bounded(part.value, rounded if part.radius is None else part.radius + rounded, part.unknown)


def _flat(part: Bounded, over: Dims) -> tuple[Tensor, Tensor]:
    """Returns data and radius with `over` flattened into one last axis."""
    x = part.value
    return flattened_last(x, over), flattened_last(x.like(_spread(part)), over)


def _spread(part: Bounded) -> Tensor:
    """Returns the radius over the data; that of exact values takes no memory."""
    if part.radius is not None:
        return part.radius
    zero = torch.zeros((), dtype=torch.float64, device=part.value.data.device)
    return zero.expand(part.value.data.shape)


def _sum(x: Tensor, e: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
    """Returns the radius of a sum along the last axis, from its terms' and its own rounding of one addition
    fewer than terms (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2), and
    the sum of magnitudes. `exact` says that all of `e` is 0."""
    size = (x.abs() if exact else x.abs().add_(e)).sum(dim=-1)
    own_error = growth(max(x.shape[-1] - 1, 0), size.numel()) * UNIT * size
    if not exact:
        return e.sum(dim=-1) + own_error, size
    exact_rows = exact_sums(size, 2.0**24, x)
    return own_error if exact_rows is None else own_error.masked_fill_(exact_rows, 0.0), size


def _reduce(node: Reduce, part: Bounded, value: Named) -> Tensor | None:
    if part.radius is None and (node.op in ("max", "min", "argmax", "argmin") or node.elem.kind == "int"):
        return None
    x, e = _flat(part, node.over)
    n, exact = x.shape[-1], part.radius is None
    x = x.to(torch.float64)
    radius, size = _of_row(node, x, e, n, exact)
    if node.elem.kind == "float":
        result_value = value.like(value.data).spread([d for d in part.value.dims if d not in node.over])
        unknown = e.isinf().any(dim=-1) if part.unknown else None
        radius = with_nonfinite(result_value, radius, _either(unknown, _overflowing(node, x, e, size)))
    kept_dims = tuple(d for d in part.value.dims if d not in node.over)
    return Named(radius, kept_dims).spread(node.dims)


def _either(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a | b


def _overflowing(node: Reduce, x: Tensor, e: Tensor, size: Tensor) -> Tensor | None:
    """Returns the rows for which some order leaves f32's range and the outcome may lie within it; None where
    there are none. `size` is as `_of_row` returns it."""
    n, most = x.shape[-1], extremes(size)[1]
    match node.op:
        case "sum" | "mean" if not most < LARGEST:
            high, low = (x + e).clamp_(min=0).sum(dim=-1), (e - x).clamp_(min=0).sum(dim=-1)
            return _beyond(high, low, growth(n, high.numel()) * UNIT * (high + low), node.op == "sum")
        case "var" if not most < LARGEST:
            return ((x - x.mean(dim=-1, keepdim=True)).abs() + 2 * e).square_().sum(dim=-1) >= LARGEST
        case "prod" if not most < LARGEST:
            return _product_beyond(x, e, size)
        case _:
            return None


def _beyond(high: Tensor, low: Tensor, own_error: Tensor, infinite_stays: bool) -> Tensor | None:
    """Returns where sums with positive terms up to `high` and negative ones up to `low` may have infinite
    partial sums but a finite total. With `infinite_stays`, a total that is infinite remains so."""
    may_overflow = (high >= LARGEST) | (low >= LARGEST)
    overflows_both_ways = (high >= LARGEST) & (low >= LARGEST)
    certain = (
        ((high - low).abs() - own_error >= overflow_of(F32)) & ~overflows_both_ways
        if infinite_stays
        else torch.zeros_like(may_overflow)
    )
    mask = may_overflow & ~certain & high.isfinite() & low.isfinite()
    return mask if bool(mask.any()) else None


def _product_beyond(x: Tensor, e: Tensor, above: Tensor) -> Tensor | None:
    """Returns where factors above 1, or that may be above 1, alone leave the range and others are below 1."""
    grows = (x.abs() - e >= 1).all(dim=-1)
    # `above` may leave float64's range too, which factors that are infinite themselves do not count for.
    out = (above >= LARGEST) & x.isfinite().all(dim=-1) & ~(grows & (above >= 2 * LARGEST))
    return out if bool(out.any()) else None


def _of_row(node: Reduce, x: Tensor, e: Tensor, n: int, exact: bool) -> tuple[Tensor, Tensor]:
    """Returns the radius of each row, and a bound on its intermediate values: for a sum or a mean the sum of
    magnitudes, for a product that of the factors above 1, for a variance the sum of squares."""
    match node.op:
        case "sum":
            return _sum(x, e, exact)
        case "mean":
            return _mean(x, e, exact)
        case "max" | "min":
            radius = e.amax(dim=-1)
        case "prod":
            return _product(x, e, n)
        case "var":
            return _variance(x, e)
        case "argmax" | "argmin":
            sign = 1.0 if node.op == "argmax" else -1.0
            best = (sign * x - e).amax(dim=-1, keepdim=True)
            radius = torch.where((sign * x + e >= best).sum(dim=-1) > 1, float(n), 0.0).to(torch.float64)
        case "logsumexp":
            radius = _logsumexp(x, e)
    return radius, torch.zeros((), dtype=torch.float64)


def _product(x: Tensor, e: Tensor, n: int) -> tuple[Tensor, Tensor]:
    size = x.abs().prod(dim=-1)
    own = (x.abs() + e).prod(dim=-1) * (1 + growth(n, size.numel()) * 2 * UNIT) - size
    above = (x.abs() + e).clamp_(min=1).prod(dim=-1)
    return own.add_(_flushed(x.abs().clamp(max=1).prod(dim=-1), above, n)), above


def _flushed(below: Tensor, above: Tensor, n: int) -> Tensor:
    """Returns what a product of `n` factors loses where those below 1 alone, `below`, are denormal."""
    lost = above * (n * 2.0**-126)
    return torch.where((below < 2.0**-126) & (below > 0), lost, torch.zeros_like(lost))


def _mean(x: Tensor, e: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
    """Returns the radius of a sum that is divided by n, multiplied by the rounded 1/n, or taken of terms that
    were divided before, which no longer add exactly: at most two more roundings of each term, none if n is a
    power of two."""
    n = x.shape[-1]
    power_of_two = n & (n - 1) == 0
    total, size = _sum(x, e, exact and power_of_two)
    return (total / n if power_of_two else total / n + 2 * UNIT * (size / n)), size


def _variance(x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the radius of mean((x - mean(x))**2), computed so or by Welford's recurrence."""
    d = x - x.mean(dim=-1, keepdim=True)
    size = d.abs()
    ed = e + _mean(x, e, False)[0].unsqueeze(-1)
    ed += (size + ed).mul_(UNIT)
    es = size.mul_(2).mul_(ed).add_(ed.square_())
    squares = d.square_()
    return _mean(squares, es.add_((squares + es).mul_(UNIT)), False)


def _shift(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns exp's weights p, the rounding of its arguments, and the row's largest value. Computing x - m,
    or x * log2(e) - m * log2(e) in one step, errs by UNIT times the magnitude of either."""
    m = x.amax(dim=-1, keepdim=True)
    p = (x - m).exp_()
    p /= p.sum(dim=-1, keepdim=True)
    rounding = x.abs().add_(m.abs()).mul_(2 * UNIT)
    if not finite(x):
        rounding = torch.where(x.isfinite(), rounding, torch.zeros_like(x))
    return p, rounding, m.squeeze(-1)


def _logsumexp(x: Tensor, e: Tensor) -> Tensor:
    p, rounding, m = _shift(x)
    relative = growth(x.shape[-1], m.numel()) * UNIT + FUNCTIONS["exp"].error * UNIT
    inner = rounding.add_(e).mul_(p).nan_to_num_(nan=0.0).sum(dim=-1) + e.amax(dim=-1) + relative
    tail = x.logsumexp(dim=-1) - m
    logarithm = FUNCTIONS["log"].error * UNIT * (tail.abs() + inner)
    return inner + logarithm + UNIT * (m.abs() + tail.abs() + inner)


def _softmax(node: Softmax, part: Bounded, value: Named) -> Tensor:
    """Returns the radius of a softmax: the logarithm of p moves by its own argument's radius and by its
    row's."""
    x, e = _flat(part, node.over)
    x = x.to(torch.float64)
    p, rounding, m = _shift(x)
    n = x.shape[-1]
    relative = (growth(n, m.numel()) + 2 * FUNCTIONS["exp"].error + 4) * UNIT
    row = e.amax(dim=-1, keepdim=True) + (p * rounding).nan_to_num_(nan=0.0).sum(dim=-1, keepdim=True)
    moved = rounding.add_(e).add_(row).add_(relative)
    if node.log:
        tail = (x.logsumexp(dim=-1) - m).abs().unsqueeze(-1)
        own = (x - m.unsqueeze(-1)).abs_().add_(tail).mul_(UNIT)
        out = moved.add_(FUNCTIONS["log"].error * UNIT * tail).add_(own)
    else:
        out = moved.expm1_().mul_(p).add_(2.0**-126).clamp_(max=1.0)  # a share of 1, whatever moves
    unknown = e.isinf().any(dim=-1, keepdim=True).expand(out.shape) if part.unknown else None
    out = with_nonfinite(flattened_last(value, node.over), out, unknown)
    return _unflat(out, node.over, part.value)


def _unflat(flat: Tensor, over: Dims, value: Named) -> Tensor:
    """Inverts `flattened_last`."""
    kept_dims = [d for d in value.dims if d not in over]
    order = (*kept_dims, *over)
    shape = [value.data.shape[value.dims.index(d)] for d in order]
    return Named(flat.reshape(shape), order).spread(value.dims)


def _scan(node: Scan, part: Bounded, value: Named) -> Tensor | None:
    if node.elem.kind == "int" and part.radius is None:
        return None
    x = part.value.data.to(torch.float64)
    e = _spread(part)
    (axis,) = axes(part.value, (node.along,))
    node = replace(node, elem=F64)
    out = _of_scan(node, part, x, e, x.shape[axis])
    if value.data.dtype != torch.float64:
        return out
    sums = replace(node, op="cumsum")
    unknown = scan(sums, part.value.like(e.isinf().to(torch.float64))) > 0 if part.unknown else None
    return with_nonfinite(value.data, out, _either(unknown, _scan_overflows(node, part, x, e, x.shape[axis])))


def _scan_overflows(node: Scan, part: Bounded, x: Tensor, e: Tensor, n: int) -> Tensor | None:
    """Returns what `_overflowing` does, element by element."""
    of_value, *of_radius = extremes_of(x, *(() if part.radius is None else (e,)))
    most = max(map(abs, of_value)) + sum(largest for _, largest in of_radius)
    if node.op == "cumprod":
        return None if most <= 1 else scan(node, part.value.like(x.abs().add(e).clamp_(min=1))) >= LARGEST
    if n * most < LARGEST:
        return None
    high, low = (scan(node, part.value.like(t.clamp_(min=0))) for t in (x + e, e - x))
    return _beyond(high, low, growth(n, x.numel()) * UNIT * (high + low), True)


def _of_scan(node: Scan, part: Bounded, x: Tensor, e: Tensor, n: int) -> Tensor:
    size = scan(node, part.value.like(x.abs() if part.radius is None else x.abs().add_(e)))
    own = growth(n, x.numel()) * UNIT
    if node.op == "cumprod":
        factors = x.abs().clamp(max=1), x.abs().add(e).clamp_(min=1)
        below, above = (scan(node, part.value.like(t)) for t in factors)
        return (size * (1 + 2 * own) - scan(node, part.value.like(x.abs()))).add_(_flushed(below, above, n))
    if part.radius is None:
        sure = exact_sums(size, 2.0**24, x)
        return size.mul_(own) if sure is None else size.mul_(own).masked_fill_(sure, 0.0)
    return size.mul_(own).add_(scan(node, part.value.like(e)))
