"""Radii of reductions, scans and softmax; see `ucutlass.reference.bounds` for the scheme.

Sums may be taken in any order: `radius.growth`. exp and log err as `FUNCTIONS` says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ucutlass.functions import FUNCTIONS
from ucutlass.ir import Dims, Reduce, Scan, Segment, Softmax, Value
from ucutlass.reference.named import Named
from ucutlass.reference.nodes import axes, last, scan
from ucutlass.reference.radius import UNIT, Bounded, exactly, finite, growth


def radius(node: Value, parts: Sequence[Bounded], value: Named) -> Tensor | None:
    """The radius of a reduction, scan or softmax; of anything else that has no rounding, none."""
    match node:
        case Reduce():
            return _reduce(node, parts[0], value)
        case Scan():
            return _scan(node, parts[0], value)
        case Softmax():
            return _softmax(node, parts[0], value)
        case Segment():
            return parts[0].radius
        case _:
            return None


def _flat(part: Bounded, over: Dims) -> tuple[Tensor, Tensor]:
    """Data and radius with `over` flattened to one last axis."""
    x = part.value
    return last(x, over), last(x.like(_spread(part)), over)


def _spread(part: Bounded) -> Tensor:
    """The radius; that of exact values takes no memory."""
    if part.radius is not None:
        return part.radius
    zero = torch.zeros((), dtype=torch.float64, device=part.value.data.device)
    return zero.expand(part.value.data.shape)


def _sum(x: Tensor, e: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
    """Of a sum along the last axis its radius, from its terms' and its own rounding, of one addition fewer
    than terms (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2), and the sum
    of magnitudes. `exact`: all of `e` is 0."""
    size = (x.abs() if exact else x.abs().add_(e)).sum(dim=-1)
    own = growth(max(x.shape[-1] - 1, 0), size.numel()) * UNIT * size
    if not exact:
        return e.sum(dim=-1) + own, size
    sure = exactly(size, 2.0**24, x)
    return own if sure is None else own.masked_fill_(sure, 0.0), size


def _reduce(node: Reduce, part: Bounded, value: Named) -> Tensor | None:
    if part.radius is None and (node.op in ("max", "min", "argmax", "argmin") or node.elem.kind == "int"):
        return None
    x, e = _flat(part, node.over)
    n, exact = x.shape[-1], part.radius is None
    x = x.to(torch.float64)
    out = _of_row(node, x, e, n, exact)
    kept = Named(out, tuple(d for d in part.value.dims if d not in node.over))
    return kept.spread(node.dims)


def _of_row(node: Reduce, x: Tensor, e: Tensor, n: int, exact: bool) -> Tensor:
    match node.op:
        case "sum":
            return _sum(x, e, exact)[0]
        case "mean":
            return _mean(x, e, exact)
        case "max" | "min":
            return e.amax(dim=-1)
        case "prod":
            size = x.abs().prod(dim=-1)
            return (x.abs() + e).prod(dim=-1) * (1 + growth(n, size.numel()) * 2 * UNIT) - size
        case "var":
            return _variance(x, e)
        case "argmax" | "argmin":
            sign = 1.0 if node.op == "argmax" else -1.0
            best = (sign * x - e).amax(dim=-1, keepdim=True)
            return torch.where((sign * x + e >= best).sum(dim=-1) > 1, float(n), 0.0).to(torch.float64)
        case "logsumexp":
            return _logsumexp(x, e)


def _mean(x: Tensor, e: Tensor, exact: bool) -> Tensor:
    """A sum divided by n, multiplied by the rounded 1/n, or of terms divided before, which no longer
    add exactly: at most two roundings of each term more, none if n is a power of two."""
    n = x.shape[-1]
    whole = n & (n - 1) == 0
    total, size = _sum(x, e, exact and whole)
    return total / n if whole else total / n + 2 * UNIT * (size / n)


def _variance(x: Tensor, e: Tensor) -> Tensor:
    """mean((x - mean(x))**2), computed so or by Welford's recurrence."""
    d = x - x.mean(dim=-1, keepdim=True)
    size = d.abs()
    ed = e + _mean(x, e, False).unsqueeze(-1)
    ed += (size + ed).mul_(UNIT)
    es = size.mul_(2).mul_(ed).add_(ed.square_())
    squares = d.square_()
    return _mean(squares, es.add_((squares + es).mul_(UNIT)), False)


def _shift(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp's weights p, the rounding of its arguments, and the row's largest value: x - m, or
    x * log2(e) - m * log2(e) in one step, errs by UNIT times either's magnitude."""
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
    """The logarithm of p moves by its own argument's radius and by its row's."""
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
        out = moved.expm1_().mul_(p).add_(2.0**-126)
    return _unflat(out, node.over, part.value)


def _unflat(flat: Tensor, over: Dims, value: Named) -> Tensor:
    """`last` undone."""
    kept = [d for d in value.dims if d not in over]
    order = (*kept, *over)
    shape = [value.data.shape[value.dims.index(d)] for d in order]
    return Named(flat.reshape(shape), order).spread(value.dims)


def _scan(node: Scan, part: Bounded, value: Named) -> Tensor | None:
    if node.elem.kind == "int" and part.radius is None:
        return None
    x = part.value.data.to(torch.float64)
    e = _spread(part)
    (axis,) = axes(part.value, (node.along,))
    n = x.shape[axis]
    size = scan(node, part.value.like(x.abs() if part.radius is None else x.abs().add_(e)))
    own = growth(n, x.numel()) * UNIT
    if node.op == "cumprod":
        return size * (1 + 2 * own) - scan(node, part.value.like(x.abs()))
    if part.radius is None:
        sure = exactly(size, 2.0**24, x)
        return size.mul_(own) if sure is None else size.mul_(own).masked_fill_(sure, 0.0)
    return size.mul_(own).add_(scan(node, part.value.like(e)))
