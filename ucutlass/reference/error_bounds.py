"""Bounds how far an honest kernel may be from the reference: an error analysis of the typed program.

Every value carries a radius, as in ball arithmetic: the device's number lies within it of the reference's.
Exact values carry none. A radius comes from

- `dot` and sums: the rounding of partial sums (`ucutlass.reference.accumulation`);
- element-wise functions: the farthest that the function gets from its centre on the box
  of its arguments' radii, found at the box's corners and at the function's own turning points
  (every function of the table is monotone in each argument between those), plus its own error:
  one rounding to f32 for exactly rounded work, known exactly where the arguments are exact,
  else `ElementwiseFunction.error` units of 2**-24, or a fast form's error where `fast_math` allows one;
- casts and stores: rounding is monotone, so the rounded ends of the interval bound it.

A function whose argument's interval holds one of its jumps (`round`, `sign`, a comparison, a cast to
integers) is bounded by the jump, since the ends of the interval lie on both sides of it; so is an integer
`dot` of such values. Where an interval leaves f32's range, or an operation on infinities differs from that on
the numbers that overflowed, a kernel may return anything and the radius is infinite (`radius.Bounded`).

Nothing is tuned. Where the arithmetic of a program is exact (small integers) all radii are none or 0 and the
comparison is bitwise. One choice is statistical: see `accumulation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from types import MappingProxyType

import torch
from torch import Tensor

from ucutlass.ir import Apply, Cast, Constant, Dot, Gather, ParamValue, Read, Value, children
from ucutlass.ir.elements import BOOL, E4M3, E5M2, F32, F64, I32, Element
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.reference import reductions
from ucutlass.reference.accumulation import dot_with_radius, from_operands
from ucutlass.reference.chunks import in_chunks
from ucutlass.reference.contract import Operand
from ucutlass.reference.fast_math import FAST_UNITS
from ucutlass.reference.host_numbers import extremes
from ucutlass.reference.indexing import gather
from ucutlass.reference.interpreter import dot_operand
from ucutlass.reference.liveness import steps, unrealised, window_source
from ucutlass.reference.lower_bounds import lower_bound
from ucutlass.reference.named_tensor import Named
from ucutlass.reference.nodes import KernelCall, dot_in_range, dot_total, step, unwrapped
from ucutlass.reference.radius import UNIT, Bounded, bounded, finite, rounding
from ucutlass.reference.rounding import FORMATS, RANGES, cast, overflow_of

EXACT: frozenset[str] = frozenset(
    {
        "negate",
        "where",
        "min",
        "max",
        "abs",
        "clamp",
        "hardtanh",
        "relu",
        "floor",
        "round",
        "sign",
        "less",
        "less_equal",
        "greater",
        "greater_equal",
        "equal",
        "not_equal",
        "and",
        "or",
        "not",
    }
)
"""Functions whose f32 form does not round."""

TURNS: Mapping[str, float] = MappingProxyType(
    {
        "abs": 0.0,
        "power": 0.0,
        "pow": 0.0,
        "leaky_relu": 0.0,
        "elu": 0.0,
        "gelu": -0.7517915246,
        "gelu_tanh": -0.7524614221,
        "silu": -1.2784645428,
        "mish": -1.1924312,
        "hardswish": -1.5,
    }
)
"""Where a function of its first argument turns: the zero of its derivative, or its kink. An error in the last
digit here changes the value there by its square only."""


STEEP: frozenset[str] = frozenset({"divide", "log", "log1p", "pow", "power", "rsqrt", "sqrt"})
"""Functions with an edge, at which an interval ends where its argument does (`ucutlass.reference.lower_bounds`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """A call whose parameters may be inexact. `radii[i]` is the radius over the value's data, None where it
    is exact. `lenient` holds the values that may use fast forms, and `early` the casts of a softmax that may
    be rounded before they are divided by their row's sum (`ucutlass.reference.fast_math`). With `least` radii of
    dots are lower estimates (`ucutlass.reference.accumulation`), and since no radius falls where another
    rises, so are all that follow."""

    call: KernelCall
    radii: Sequence[Tensor | None]
    lenient: frozenset[Value] = frozenset()
    early: frozenset[Value] = frozenset()
    least: bool = False


def analyse(roots: Sequence[Value], inputs: Inputs) -> list[Bounded]:
    """Returns the values of the roots with their radii. A value that is used twice is computed once and is
    released after its last use."""
    bounds: dict[Value, Bounded] = {}
    for node, ending in steps(roots):
        bounds[node] = _bounded(node, inputs, bounds.__getitem__)
        for value in ending:
            del bounds[value]
    return [bounds[root] for root in roots]


def _bounded(node: Value, inputs: Inputs, bound_of: Callable[[Value], Bounded]) -> Bounded:
    if isinstance(node, Dot):
        return _dot(node, inputs, bound_of)
    parts = [bound_of(c) for c in children(node)]
    value = step(node, [p.value for p in parts], inputs.call)
    match node:
        case ParamValue(index=index):
            radius = inputs.radii[index]
            if radius is None and node.elem is F64:
                radius = rounding(value.data)
            return Bounded(value, radius)
        case Constant():
            if value.data.dtype != torch.float64:
                return Bounded(value, None)
            return bounded(value, rounding(value.data))
        case Apply():
            return _apply(node, parts, value, node in inputs.lenient)
        case Cast() if node in inputs.early:
            return bounded(value, _rounded_early(node, parts[0], value.data))
        case Cast():
            return bounded(value, cast_radius(parts[0], value.data, node.elem))
        case Read() | Gather():
            return _movement(node, parts, value, inputs.call)
        case _:
            return bounded(value, reductions.radius(node, parts, value))


def cast_radius(part: Bounded, centre: Tensor, elem: Element) -> Tensor | None:
    """Returns the distance to the farther rounded end of the interval; for a bool also to 0, where the
    interval holds it. A float that saturates keeps an infinite radius, because an unknown value may be NaN,
    which stays NaN."""
    if part.radius is None:
        return None

    def farther_end(x: Tensor, radius: Tensor, centre: Tensor) -> Tensor:
        low, high = _ends(x, radius)
        ends = [low, high]
        if elem is BOOL and x.dtype != torch.bool:
            ends.append(torch.zeros_like(x).maximum(low).minimum(high))
        distance = farthest([cast(end, elem) for end in ends], centre, radius)
        return distance.masked_fill_(radius.isinf(), torch.inf) if elem in (E4M3, E5M2) else distance

    return in_chunks(farther_end, centre.shape, part.value.data, part.radius, centre)


def _rounded_early(node: Cast, part: Bounded, centre: Tensor) -> Tensor:
    """Returns the radius of p = e / sum(e), where e is rounded and p is not: the relative error of one
    rounding, or half of the smallest number, or the number at which an f32 is flushed, since e is at least p.
    The row's sum is that of the exact e."""
    x = part.value.data.to(torch.float64)
    spread = torch.zeros_like(x) if part.radius is None else part.radius
    form = FORMATS[node.elem.name]
    unit, least = 2.0**-form.precision, 2.0 ** max(form.smallest - form.precision, -126)
    return difference(x, centre) + spread + unit * (x.abs() + spread) + least


def difference(a: Tensor, b: Tensor) -> Tensor:
    """Returns |a - b| in float64: 0 where they are equal, infinity where it is undefined."""
    same = (a == b) | (a.isnan() & b.isnan())
    gap = (a.to(torch.float64) - b.to(torch.float64)).abs_()
    return gap.nan_to_num_(nan=torch.inf, posinf=torch.inf).masked_fill_(same, 0.0)


def farthest(ends: Sequence[Tensor], centre: Tensor, radius: Tensor | None = None) -> Tensor:
    """Returns the largest `difference` from the centre; infinity where that is NaN, whose interval has no ends, and
    its `radius` infinite."""
    middle = centre.to(torch.float64)
    worst = reduce(torch.maximum, ((end.to(torch.float64) - middle).abs_() for end in ends))
    if finite(worst):  # then so was everything
        return worst
    # A distance that is a number, or infinite, is the difference.
    undefined, shape = worst.isnan(), worst.shape
    of_centre = centre.expand(shape)[undefined]
    worst[undefined] = reduce(
        torch.maximum, (difference(end.expand(shape)[undefined], of_centre) for end in ends)
    )
    return worst if radius is None else worst.masked_fill_(radius.isinf() & middle.isnan(), torch.inf)


# --- element-wise work -----------------------------------------------------------


def _apply(node: Apply, parts: Sequence[Bounded], value: Named, lenient: bool) -> Bounded:
    args = [p.value.spread(node.dims) for p in parts]
    radii = [None if p.radius is None else p.value.like(p.radius).spread(node.dims) for p in parts]
    radii = _widened(node, args, radii)
    is_exact, is_float = all(r is None for r in radii), value.data.dtype == torch.float64
    radius = _own_error(node, value.data, None, lenient) if is_exact else None
    if not is_float or not value.data.numel() or (is_exact and radius is None):
        return bounded(value, radius if is_exact else _total_error(node, args, radii, value.data, lenient))
    ends = extremes(value.data)
    steady = all(map(math.isfinite, ends))
    if radius is None:
        radius = _total_error(node, args, radii, value.data, lenient, steady=steady)
    least, most = extremes(radius)
    if max(map(abs, ends)) + most < FORMATS[F32.name].largest:
        return Bounded(value, None if least == most == 0 else radius.expand(value.data.shape))
    if steady if is_exact else node.elem is not F32:
        return bounded(value, radius)
    unknown = node.function != "where" and any(p.unknown for p in parts)
    return bounded(value, _at_the_end(node, args, radii, value.data.shape, lenient, unknown))


def _total_error(
    node: Apply,
    args: Sequence[Tensor],
    radii: Sequence[Tensor | None],
    value: Tensor,
    lenient: bool,
    steady: bool = False,
) -> Tensor:
    """Returns what the arguments' radii come to and the function's own error. `steady` says that the value is finite."""

    def total(centre: Tensor, *tensors: Tensor | None) -> Tensor:
        arg_pieces = [a for a in tensors[: len(args)] if a is not None]
        propagated = None
        if steady and node.function in _BILINEAR:
            propagated = _of_sums_and_products(node, arg_pieces, tensors[len(args) :])
        if propagated is None or not finite(propagated):
            propagated = _propagated(node, arg_pieces, tensors[len(args) :], centre)
        own_error = _own_error(node, centre, propagated, lenient)
        return propagated if own_error is None else own_error.add_(propagated)

    return in_chunks(total, value.shape, value, *args, *radii)


def _at_the_end(
    node: Apply,
    args: Sequence[Tensor],
    radii: Sequence[Tensor | None],
    shape: Sequence[int],
    lenient: bool,
    unknown: bool,
) -> Tensor:
    """Returns the radius of f32 work where numbers overflow, from its float64 value before it does. An
    interval that is beyond the range on one side is certainly an infinity; one that reaches the end is
    unknown. So is a function of an unknown value, and a sum with a product that overflows, which a fused
    operation does not."""

    def radius_of(*tensors: Tensor | None) -> Tensor:
        pieces = [a for a in tensors[: len(args)] if a is not None]
        return _radius_at_the_end(node, pieces, tensors[len(args) :], lenient, unknown)

    return in_chunks(radius_of, shape, *args, *radii)


def _radius_at_the_end(
    node: Apply, args: Sequence[Tensor], radii: Sequence[Tensor | None], lenient: bool, unknown: bool
) -> Tensor:
    centre = unwrapped(node, args)
    propagated = None
    if any(r is not None for r in radii):
        propagated = _propagated(node, args, radii, centre).expand(centre.shape)
    own_error = _own_error(node, centre, propagated, lenient)
    radius = (
        torch.zeros_like(centre)
        if propagated is None
        else propagated.nan_to_num(nan=torch.inf, posinf=torch.inf)
    )
    size = centre.abs()
    is_finite = size < torch.inf
    if own_error is not None:
        own_error = torch.where(size < FORMATS[F32.name].largest, own_error, size * UNIT)
        radius = torch.where(is_finite, radius + own_error, radius)
    for argument, r, child in zip(args, radii, node.args, strict=True):
        if unknown and r is not None:
            radius = torch.where(r.isinf(), torch.inf, radius)
        if node.function in ("add", "subtract") and _is_product(child):
            radius = torch.where(argument.isinf(), torch.inf, radius)
    certain = (size - radius >= overflow_of(F32)) & is_finite
    may_overflow = (size + radius >= FORMATS[F32.name].largest) & is_finite & ~certain
    return radius.masked_fill_(certain, 0.0).masked_fill_(may_overflow, torch.inf)


def _is_product(node: Value) -> bool:
    return isinstance(node, Apply) and node.function == "multiply"


def _widened(node: Apply, args: Sequence[Tensor], radii: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Widens radii of integers among floats, which become f32 and are exact up to 2**24."""
    floats = FUNCTIONS[node.function].domain == "float" or any(a.dtype == torch.float64 for a in args)
    out: list[Tensor | None] = []
    for a, r in zip(args, radii, strict=True):
        if not floats or a.dtype != torch.int64 or not a.numel() or int(a.abs().max()) <= 1 << 24:
            out.append(r)
            continue
        x = a.to(torch.float64)
        out.append(rounding(x) if r is None else r + rounding(x))
    return out


def _propagated(
    node: Apply, args: Sequence[Tensor], radii: Sequence[Tensor | None], centre: Tensor
) -> Tensor:
    """Returns how far the result moves when the arguments move within their radii."""
    match node.function:
        case "sin" | "cos":
            assert radii[0] is not None
            return radii[0].clamp(max=2.0)
        case "equal" | "not_equal":
            reach = torch.as_tensor(_zero(radii[0]) + _zero(radii[1]))
            return ((difference(args[0], args[1]) <= reach) & (reach > 0)).to(torch.float64)
        case "divide" | "floor_divide" | "modulo":
            positive = lower_bound(node.args[1]) > 0
            crosses = args[1].abs() <= _zero(radii[1]) if radii[1] is not None and not positive else None
            modulo = node.function == "modulo"
            worst = _modulo(args, radii) if modulo else _corners(node, args, radii, centre)
            return worst if crosses is None else worst.masked_fill(crosses, torch.inf)
        case _:
            return _corners(node, args, radii, centre)


_BILINEAR: frozenset[str] = frozenset({"add", "subtract", "multiply"})


def _of_sums_and_products(node: Apply, args: Sequence[Tensor], radii: Sequence[Tensor | None]) -> Tensor:
    """Returns what `_corners` does of finite numbers, in a third of its passes over memory: eA + eB of a sum, and
    |A| eB + eA |B| + eA eB of a product."""
    (a, b), (ea, eb) = args, radii
    if node.function != "multiply":
        return torch.as_tensor(_zero(ea) + _zero(eb))
    if ea is None or eb is None:
        return torch.as_tensor((b if eb is None else a).abs() * _zero(ea if eb is None else eb))
    return torch.addcmul(a.abs() * eb, b.abs().add(eb), ea)


def _zero(radius: Tensor | None) -> Tensor | float:
    return 0.0 if radius is None else radius


def _modulo(args: Sequence[Tensor], radii: Sequence[Tensor | None]) -> Tensor:
    """Returns the radius of a remainder: the result stays below the divisor, and follows its arguments while
    the floor of the quotient is constant."""
    a, b = args[0].to(torch.float64), args[1].to(torch.float64)
    ea, eb = torch.as_tensor(_zero(radii[0])), torch.as_tensor(_zero(radii[1]))
    floors = [(a + s * ea).div(b + t * eb, rounding_mode="floor") for s, t in product((-1, 1), (-1, 1))]
    steady = torch.stack([f == floors[0] for f in floors]).all(dim=0)
    return torch.where(steady, ea + floors[0].abs() * eb, torch.inf).minimum(b.abs() + eb)


def _corners(node: Apply, args: Sequence[Tensor], radii: Sequence[Tensor | None], centre: Tensor) -> Tensor:
    choices: list[tuple[Tensor, ...]] = []
    for i, (arg, radius) in enumerate(zip(args, radii, strict=True)):
        if radius is None:
            choices.append((arg,))
            continue
        ends = list(_ends(arg, radius))
        if node.function in STEEP and arg.dtype == torch.float64:
            ends[0] = torch.minimum(arg, ends[0].clamp(min=lower_bound(node.args[i])))
        if i == 0 and node.function in TURNS:
            ends.append(torch.full_like(arg, TURNS[node.function]).maximum(ends[0]).minimum(ends[1]))
        choices.append(tuple(ends))
    wraps = node.elem is I32
    middle = unwrapped(node, args) if wraps else centre
    ends = [unwrapped(node, corner) for corner in _outer(node.function, choices)]
    worst = farthest(ends, middle)
    if not wraps:
        return worst
    low, high = RANGES[I32.name]
    beyond = torch.stack([(end < low) | (end > high) for end in ends]).any(dim=0)
    return worst.masked_fill(beyond, float(high - low))  # what wraps may come out anywhere


FALLING: Mapping[str, tuple[int, ...]] = MappingProxyType({"add": (), "subtract": (1,), "min": (), "max": ()})
"""Functions of two arguments that rise in each argument except the listed ones, in which they fall. So do
their float64 forms, because rounding is monotone: what lies between two corners is no farther than they
are."""


def _outer(function: str, choices: Sequence[tuple[Tensor, ...]]) -> Iterable[tuple[Tensor, ...]]:
    """Returns the corners of a box at which the function may be farthest from its centre."""
    if function not in FALLING:
        return product(*choices)
    falls = FALLING[function]
    low = tuple(c[-1 if i in falls else 0] for i, c in enumerate(choices))
    high = tuple(c[0 if i in falls else -1] for i, c in enumerate(choices))
    return (low, high)


_FAR = 2.0**52
"""Integers are moved by at most this; beyond it their float64 radius has no meaning."""


def _ends(arg: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the ends of an interval in the argument's own dtype; an uncertain bool is both values."""
    match arg.dtype:
        case torch.bool:
            uncertain = radius > 0
            return arg & ~uncertain, arg | uncertain
        case torch.int64:
            steps = radius.clamp(max=_FAR).ceil().to(torch.int64)
            return arg - steps, arg + steps
        case _:
            return arg - radius, arg + radius


def _own_error(node: Apply, value: Tensor, propagated: Tensor | None, lenient: bool) -> Tensor | None:
    """Returns the function's own f32 error."""
    if value.dtype != torch.float64 or node.function in EXACT:
        return None
    if node.function in ("floor_divide", "modulo") and propagated is None:
        return _of_division(node.function, value)
    name = "pow" if node.function == "power" else node.function
    units = FUNCTIONS[name].error
    if units == 0 and propagated is None:
        return rounding(value)
    if units and lenient:
        units = max(units, FAST_UNITS)
    size = value.abs() if propagated is None else value.abs().add_(propagated)
    return size.mul_(max(units, 1.0) * UNIT).add_(2.0**-126)


def _of_division(function: str, value: Tensor) -> Tensor:
    """Returns the own error of an integer division: a quotient rounded down is exact up to 2**24, a remainder
    is rounded where the divisor is added."""
    if function == "modulo":
        return rounding(value)
    return torch.where(value.abs() <= 2.0**24, 0.0, value.abs() * (2 * UNIT))


# --- movement and products -------------------------------------------------------


def _movement(node: Read | Gather, parts: Sequence[Bounded], value: Named, call: KernelCall) -> Bounded:
    """Moves radii as their values move; an uncertain gather coordinate may read any element along its
    dimension."""
    if isinstance(node, Gather) and parts[1].radius is not None and bool((parts[1].radius > 0).any()):
        return bounded(value, _any_along(node, parts, value))
    if parts[0].radius is None:
        return Bounded(value, None)
    inner = parts[0].value.like(parts[0].radius)
    match node:
        case Read(positions=positions, dims=dims):
            blank = Read(node.value, positions, 0.0, F64, dims)
            return bounded(value, step(blank, [inner], call).data)
        case Gather():
            return bounded(value, step(node, [inner, parts[1].value], call).data)


def _any_along(node: Gather, parts: Sequence[Bounded], value: Named) -> Tensor:
    """Returns the distance to the farthest element that a coordinate may select; where the coordinate is
    certain, that element's radius."""
    source, ids = parts
    assert ids.radius is not None
    x = source.value.data.to(torch.float64)
    e = torch.zeros_like(x) if source.radius is None else source.radius
    axis = source.value.dims.index(node.dim)
    names = tuple(d for d in source.value.dims if d != node.dim)
    low, high = (Named(t, names).spread(node.dims) for t in ((x - e).amin(axis), (x + e).amax(axis)))
    certain_radius = gather(source.value.like(e), node.dim, ids.value, node.dims).data
    distance = torch.maximum((high - value.data).abs(), (value.data - low).abs())
    return torch.where(ids.value.like(ids.radius).spread(node.dims) > 0, distance, certain_radius)


def _dot(node: Dot, inputs: Inputs, bound_of: Callable[[Value], Bounded]) -> Bounded:
    left, right = (_operand(c, inputs.call, bound_of) for c in (node.left, node.right))
    radii = (left.radius, right.radius)
    if node.elem.kind == "float":
        total, radius = dot_with_radius(node, left.value, right.value, radii, inputs.least)
        return bounded(Named(dot_in_range(node, total), node.dims), radius)
    total = dot_total(node, [left.value, right.value])
    value = Named(dot_in_range(node, total), node.dims)
    propagated = from_operands(node, left.value, right.value, radii)
    return bounded(value, None if propagated is None else wrapping(total, propagated))


def wrapping(total: Tensor, radius: Tensor) -> Tensor:
    """Returns the radius of an i32 number; a number that wraps may take any value."""
    low, high = RANGES[I32.name]
    return radius.masked_fill((total - radius < low) | (total + radius > high), float(high - low))


@dataclass(frozen=True, slots=True, eq=False)
class _DotOperand:
    value: Operand
    radius: Operand | None


def _operand(node: Value, call: KernelCall, bound_of: Callable[[Value], Bounded]) -> _DotOperand:
    def value(inner: Value) -> Named:
        return bound_of(inner).value

    def radius(inner: Value) -> Named:
        bounded_value = bound_of(inner)
        if isinstance(node, Cast) and isinstance(node.value, Read) and unrealised(node):
            rounded = cast(bounded_value.value.data, node.elem)
            bounded_value = bounded(
                bounded_value.value.like(rounded), cast_radius(bounded_value, rounded, node.elem)
            )
        if isinstance(node, Gather) and inner is node.ids:
            return bounded_value.value
        exact = torch.zeros_like(bounded_value.value.data, dtype=torch.float64)
        return bounded_value.value.like(exact if bounded_value.radius is None else bounded_value.radius)

    source = window_source(node) if unrealised(node) else node
    inexact = bound_of(source).radius is not None
    return _DotOperand(dot_operand(node, call, value), dot_operand(node, call, radius) if inexact else None)
