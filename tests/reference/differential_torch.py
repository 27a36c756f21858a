"""The language's operations as plain calls of torch and numpy on positional tensors, in float64 with a
running error: an oracle for the reference interpreter that shares none of its code.

A float's error bounds how far float64's own roundings may have carried it; a function of uncertain arguments
is evaluated at the corners of their intervals. Where docs/language.md settles something that torch does
otherwise, this file follows the page: casts round once and to nearest even, integers saturate on conversion,
an integer divided by 0 is 0, e5m2 saturates, work is infinite beyond f32's range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

UNIT = 2.0**-53


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """`data` is float64, int64 or bool, with an axis for each of `dims`; `error` is float64 of that shape.
    `elem` is the language's element, `literal` says that it adapts to what stands beside it."""

    data: Tensor
    dims: tuple[str, ...]
    elem: str
    error: Tensor
    literal: bool = False

    @property
    def kind(self) -> str:
        return {torch.float64: "float", torch.int64: "int", torch.bool: "bool"}[self.data.dtype]


class Undefined(Exception):
    """The operation has no result: the reference must raise a CallError. `value` has the shape of one."""

    def __init__(self, value: Value) -> None:
        super().__init__("no result")
        self.value = value


def exact(data: Tensor, dims: tuple[str, ...], elem: str, literal: bool = False) -> Value:
    return Value(data, dims, elem, torch.zeros(data.shape, dtype=torch.float64), literal)


def aligned(values: Sequence[Value]) -> tuple[tuple[str, ...], list[Tensor], list[Tensor]]:
    """The names of all, and data and errors with an axis for each."""
    dims = tuple(dict.fromkeys(d for v in values for d in v.dims))
    out: tuple[list[Tensor], list[Tensor]] = ([], [])
    for v in values:
        order = [v.dims.index(d) for d in dims if d in v.dims]
        shape = [v.data.shape[v.dims.index(d)] if d in v.dims else 1 for d in dims]
        out[0].append(v.data.permute(order).reshape(shape))
        out[1].append(v.error.permute(order).reshape(shape))
    return dims, *out


def in_range(x: Tensor) -> Tensor:
    return torch.where(x.float().isinf(), x.float().double(), x) if x.dtype == torch.float64 else x


def gap(a: Tensor, b: Tensor) -> Tensor:
    """|a - b|, 0 where they are the same, infinite where there is none."""
    same = (a == b) | ((a != a) & (b != b))
    far = (a.double() - b.double()).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.where(same, 0.0, far)


def at_corners(function: Callable[..., Tensor], data: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    """How far the function gets from its centre within the errors."""
    centre = function(*data)
    if not any(bool((e != 0).any()) for e in errors):
        return torch.zeros(centre.shape, dtype=torch.float64)
    choices = [
        (x, x - e, x + e)
        if x.dtype == torch.float64
        else (x, x - far(e), x + far(e))
        if x.dtype == torch.int64
        else (x, x & (e == 0), x | (e > 0))
        for x, e in zip(data, errors, strict=True)
    ]
    return torch.stack([gap(function(*corner), centre) for corner in product(*choices)]).amax(0)


def far(error: Tensor) -> Tensor:
    return error.clamp(max=2.0**40).ceil().long()


# --- element-wise -----------------------------------------------------------------------------------------

UNARY: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "softplus": lambda x: F.softplus(x, threshold=700),
        "mish": F.mish,
        "elu": F.elu,
        "selu": F.selu,
        "hardswish": F.hardswish,
        "hardtanh": F.hardtanh,
        "leaky_relu": F.leaky_relu,
        "exp": torch.exp,
        "log": torch.log,
        "log1p": torch.log1p,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "erf": torch.erf,
        "sin": torch.sin,
        "cos": torch.cos,
        "floor": torch.floor,
        "round": torch.round,
        "sign": torch.sign,
        "abs": torch.abs,
    }
)
LOOSE: Mapping[str, float] = MappingProxyType({"mish": 1e-8, "softplus": 1e-12, "leaky_relu": 1e-9})
"""Relative errors of torch's own forms: mish is linear beyond 20, slopes are rounded."""

JUMPING = frozenset({"floor", "round", "sign"})

BINARY: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "+": torch.add,
        "-": torch.sub,
        "*": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
        "//": lambda a, b: torch.div(a, b, rounding_mode="floor"),
        "%": torch.remainder,
    }
)
COMPARISONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne}
)


def computed(function: Callable[..., Tensor], args: Sequence[Value], elem: str, loose: float = 0.0) -> Value:
    """A function of aligned arguments, of outcome `elem`; own error some units, or `loose`."""
    dims, data, errors = aligned(args)
    out = function(*data)
    error = at_corners(function, data, errors)
    if out.dtype == torch.float64:
        own = (4 * UNIT + loose) * out.abs() + (16 * UNIT * data[0].double().abs() if loose else 0)
        error = error + torch.where(out.isfinite(), own, 0.0)
        out = in_range(out)
        error = torch.where(out.isfinite() | error.isinf(), error, 0.0)
    if elem == "i32":
        out = out.to(torch.int32).long()
    return Value(out, dims, elem, error.nan_to_num(nan=0.0, posinf=math.inf).expand(out.shape))


def to_float(v: Value) -> Value:
    return v if v.kind == "float" else replace(v, data=v.data.double(), elem="f32")


def common(args: Sequence[Value]) -> str:
    """In which element numbers meet."""
    if any(v.kind == "float" for v in args):
        return "f32"
    firm = [v for v in args if not v.literal or not fits(v)] or list(args)
    return "i64" if any(v.elem == "i64" for v in firm) else "i32"


def fits(v: Value) -> bool:
    return -(2**31) <= int(v.data) < 2**31


def function(name: str, x: Value) -> Value:
    if name == "abs" and x.kind == "int":
        return computed(torch.abs, [x], common([x]))
    loose = LOOSE.get(name, 0.0 if name in JUMPING or name == "abs" else 16 * UNIT)
    return computed(UNARY[name], [to_float(x)], "f32", loose)


def of_literals(name: str, a: int, b: int) -> int | None:
    """Literals make a literal, where 64 bits hold it."""
    if name in ("//", "%") and b == 0:
        return None
    out = {
        "+": a + b,
        "-": a - b,
        "*": a * b,
        "min": min(a, b),
        "max": max(a, b),
        "//": a // (b or 1),
        "%": a % (b or 1),
    }[name]
    return out if abs(out) < 2**63 else None


def operator(name: str, a: Value, b: Value) -> Value:
    firm = [v for v in (a, b) if not v.literal]
    whole_numbers = a.kind == b.kind == "int"
    if whole_numbers and not firm and (folded := of_literals(name, int(a.data), int(b.data))) is not None:
        return exact(torch.tensor(folded), (), "i64", True)
    if name in "+-*" and whole_numbers and firm and all(v.elem != "i64" for v in firm):
        a, b = (v if not v.literal or fits(v) else replace(v, data=v.data.int().long()) for v in (a, b))
    elem = common([a, b])
    if elem == "f32":
        return computed(BINARY[name], [to_float(a), to_float(b)], elem)
    if name in ("//", "%"):
        function = BINARY[name]
        guarded = lambda x, y: torch.where(y == 0, 0, function(x, torch.where(y == 0, 1, y)))  # noqa: E731
        return computed(guarded, [a, b], elem)
    return computed(BINARY[name], [a, b], elem)


def quotient(a: Value, b: Value) -> Value:
    return computed(torch.div, [to_float(a), to_float(b)], "f32")


def power(a: Value, b: Value) -> Value:
    return computed(torch.pow, [to_float(a), to_float(b)], "f32", 16 * UNIT)


def compared(name: str, a: Value, b: Value) -> Value:
    a, b = (to_float(a), to_float(b)) if common([a, b]) == "f32" else (a, b)
    return computed(COMPARISONS[name], [a, b], "bool")


def where(c: Value, a: Value, b: Value) -> Value:
    if a.kind == "bool":
        return computed(torch.where, [c, a, b], "bool")
    elem = common([a, b])
    a, b = (to_float(a), to_float(b)) if elem == "f32" else (a, b)
    dims, (mask, x, y), (_, ex, ey) = aligned([c, a, b])
    out = torch.where(mask, x, y)
    out = out.int().long() if elem == "i32" else out
    return Value(out, dims, elem, torch.where(mask, ex, ey).expand(out.shape))


def logical(name: str, *args: Value) -> Value:
    call = {"and": torch.logical_and, "or": torch.logical_or, "not": torch.logical_not}[name]
    return computed(call, args, "bool")


# --- casts ------------------------------------------------------------------------------------------------

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "f64": torch.float64,
        "f32": torch.float32,
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "e4m3": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
        "s8": torch.int8,
        "u8": torch.uint8,
        "i32": torch.int32,
        "i64": torch.int64,
        "bool": torch.bool,
    }
)


def to_odd(x: Tensor) -> Tensor:
    """float64 in f32, the last bit set where it is inexact: rounding that again rounds once (Boldo,
    Melquiond, IEEE Trans. Comput. 57, 2008)."""
    near = x.float()
    wide = near.double()
    toward_zero = torch.where(
        near.isinf() & x.isfinite(),
        torch.copysign(torch.full_like(near, torch.finfo(near.dtype).max), near),
        torch.where(wide.abs() > x.abs(), torch.nextafter(near, torch.zeros_like(near)), near),
    )
    odd = (toward_zero.view(torch.int32) | 1).view(torch.float32)
    return torch.where((wide == x) | x.isnan(), near, odd)


def rounded(x: Tensor, elem: str) -> Tensor:
    """A number of any kind as a value of the element, in the kind that expressions have it in."""
    if elem == "bool":
        return x != 0
    if elem in ("s8", "u8", "i32", "i64"):
        return whole(x, elem)
    x = x.double()
    if elem == "f64":
        return x
    if elem == "f32":
        return x.float().double()
    if elem == "tf32":
        bits = to_odd(x).view(torch.int32)
        cut = (bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF
        return torch.where(x.isfinite(), cut.view(torch.float32).double(), x)
    if elem in ("e4m3", "e5m2"):
        most = torch.finfo(DTYPES[elem]).max
        return torch.where(x.isnan(), x, to_odd(x).clamp(-most, most).to(DTYPES[elem]).double())
    return to_odd(x).to(DTYPES[elem]).double()


def whole(x: Tensor, elem: str) -> Tensor:
    ends = torch.iinfo(DTYPES[elem])
    if x.dtype != torch.float64:
        return x.long().clamp(ends.min, ends.max)
    numbers = [
        0 if math.isnan(v) else ends.max if v == math.inf else ends.min if v == -math.inf else round(v)
        for v in x.reshape(-1).tolist()
    ]
    cut = [max(ends.min, min(ends.max, v)) for v in numbers]
    return torch.tensor(cut, dtype=torch.int64).reshape(x.shape)


def cast(v: Value, elem: str) -> Value:
    if v.elem == elem and not v.literal:
        return v
    return stored(v, elem)


def stored(v: Value, elem: str) -> Value:
    """As memory holds it."""
    data = rounded(v.data, elem)
    return Value(data, v.dims, elem, at_corners(lambda x: rounded(x, elem), [v.data], [v.error]))


# --- reductions, scans ------------------------------------------------------------------------------------


def rows(v: Value, over: Sequence[str]) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """What stays, and data and error with `over` as one last axis."""
    rest = tuple(d for d in v.dims if d not in over)
    order = [v.dims.index(d) for d in (*rest, *over)]
    shape = [v.data.shape[v.dims.index(d)] for d in rest]
    length = math.prod(v.data.shape[v.dims.index(d)] for d in over)
    data, error = (t.permute(order).reshape([*shape, length]) for t in (v.data, v.error))
    return rest, data, error


def first(x: Tensor, largest: bool) -> Tensor:
    """numpy's argmax: the first of equals, a NaN before all."""
    call = np.argmax if largest else np.argmin
    return torch.from_numpy(np.asarray(call(x.numpy(), axis=-1))).long()


REDUCED: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "sum": lambda x: torch.sum(x, -1),
        "prod": lambda x: torch.prod(x, -1),
        "max": lambda x: torch.max(x, -1).values,
        "min": lambda x: torch.min(x, -1).values,
        "argmax": lambda x: first(x, True),
        "argmin": lambda x: first(x, False),
        "mean": lambda x: torch.mean(x.double(), -1),
        "logsumexp": lambda x: torch.logsumexp(x.double(), -1),
        "var": lambda x: ((x.double() - x.double().mean(-1, keepdim=True)) ** 2).mean(-1),
    }
)


def reduced(op: str, over: Sequence[str], v: Value) -> Value:
    rest, x, e = rows(v, over)
    n = x.shape[-1]
    elem = "i64" if op.startswith("arg") else "f32"
    if v.kind == "int" and op in ("sum", "prod", "max", "min"):
        elem = "i64" if op in ("sum", "prod") else v.elem
    if n == 0 and op in ("max", "min", "argmax", "argmin"):
        kind = torch.float64 if elem == "f32" else torch.int64
        raise Undefined(exact(torch.zeros(x.shape[:-1], dtype=kind), rest, elem))
    out = REDUCED[op](x)
    error = torch.zeros(out.shape, dtype=torch.float64)
    if n and (elem == "f32" or bool((e != 0).any())):
        error = spread_of(op, x.double(), e, out.double(), n)
    out = in_range(out)
    error = torch.where(out.isfinite() if out.is_floating_point() else out == out, error, 0.0)
    return Value(out, rest, elem, error.nan_to_num(nan=0.0, posinf=math.inf))


def spread_of(op: str, x: Tensor, e: Tensor, out: Tensor, n: int) -> Tensor:
    size = x.abs() + e
    match op:
        case "sum" | "mean":
            return (e.sum(-1) + 2 * n * UNIT * size.sum(-1)) / (n if op == "mean" else 1)
        case "max" | "min":
            return e.amax(-1)
        case "argmax" | "argmin":
            return torch.where(e.amax(-1) > 0, math.inf, 0.0)
        case "prod":
            return (size * (1 + 2 * UNIT)).prod(-1) - x.abs().prod(-1) + 2 * n * UNIT * size.prod(-1)
        case "var":
            return 8 * (e + (n + 2) * UNIT * size).amax(-1) * size.amax(-1) + 8 * n * UNIT * out.abs()
        case _:
            finite = torch.where(x.isfinite(), x.abs(), 0.0).amax(-1)
            return e.amax(-1) * 2 + 8 * (n + 4) * UNIT * (1 + finite)


def softmax(over: Sequence[str], v: Value, log: bool) -> Value:
    rest, x, e = rows(to_float(v), over)
    if not x.numel():
        return to_float(v) if v.kind == "float" else exact(v.data.double(), v.dims, "f32")
    out = (torch.log_softmax if log else torch.softmax)(x, -1)
    finite = torch.where(x.isfinite(), x.abs(), 0.0)
    moved = 4 * e.amax(-1, keepdim=True) + 16 * (x.shape[-1] + 4) * UNIT * (1 + finite.amax(-1, keepdim=True))
    error = (moved * (1 if log else out)).expand(out.shape)
    if log:
        error = error + 16 * UNIT * out.abs()
    shape = [v.data.shape[v.dims.index(d)] for d in (*rest, *over)]
    clean = torch.where(out.isfinite(), error, 0.0).nan_to_num(nan=0.0, posinf=math.inf)
    return Value(out.reshape(shape), (*rest, *over), "f32", clean.reshape(shape))


def scanned(op: str, along: str, v: Value, exclusive: bool, reverse: bool) -> Value:
    rest, x, e = rows(v, [along])
    turn = (lambda t: t.flip(-1)) if reverse else (lambda t: t)
    parts = [running(op, t, exclusive) for t in (turn(x), turn(x.double().abs() + e), turn(x.double().abs()))]
    out, most, size = (turn(t) for t in parts)
    error = torch.zeros(out.shape, dtype=torch.float64)
    if v.kind == "float" or bool((e != 0).any()):
        error = most - size + 4 * max(x.shape[-1], 1) * UNIT * most
    out = in_range(out)
    error = torch.where(out.isfinite() if out.is_floating_point() else out == out, error, 0.0)
    elem = "i64" if v.kind == "int" else "f32"
    return Value(out, (*rest, along), elem, error.nan_to_num(nan=0.0, posinf=math.inf))


def running(op: str, x: Tensor, exclusive: bool) -> Tensor:
    """One step after the other along the last axis."""
    total = torch.full(x.shape[:-1], 0 if op == "cumsum" else 1, dtype=x.dtype)
    out = torch.empty_like(x)
    for i in range(x.shape[-1]):
        before = total
        total = total + x[..., i] if op == "cumsum" else total * x[..., i]
        out[..., i] = before if exclusive else total
    return out


# --- positions, products ----------------------------------------------------------------------------------


def neutral(op: str, elem: str) -> float | int | bool:
    """What a position outside reads directly inside a reduction."""
    if op in ("max", "argmax", "logsumexp", "min", "argmin"):
        largest = op in ("min", "argmin")
        if elem in ("s8", "u8", "i32", "i64"):
            return torch.iinfo(DTYPES[elem]).max if largest else torch.iinfo(DTYPES[elem]).min
        return largest if elem == "bool" else math.inf if largest else -math.inf
    return 1 if op == "prod" else 0


@dataclass(frozen=True, slots=True)
class Equation:
    """`scale * dim = sum of factor * name + offset`, in numbers."""

    dim: str
    scale: int
    terms: tuple[tuple[str, int], ...]
    offset: int


def read(v: Value, equations: Sequence[Equation], sizes: Mapping[str, int], fill: float = 0) -> Value:
    """Every element looked up by its coordinates in a flat copy with `fill` behind it."""
    moved = {q.dim: q for q in equations}
    dims = tuple(
        dict.fromkeys([d for d in v.dims if d not in moved] + [n for q in equations for n, _ in q.terms])
    )
    shape = [sizes[d] for d in dims]
    axes = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij") if dims else ()
    grid = dict(zip(dims, axes, strict=True))
    flat, inside = torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.bool)
    for d, n in zip(v.dims, v.data.shape, strict=True):
        at = grid.get(d)
        if d in moved:
            q = moved[d]
            total = sum((f * grid[name] for name, f in q.terms), torch.full(shape, q.offset))
            at = torch.div(total, q.scale, rounding_mode="floor")
            inside = inside & (total % q.scale == 0) & (at >= 0) & (at < n)
        assert at is not None
        flat = flat * n + at
    behind = torch.where(inside, flat, v.data.numel())
    data = torch.cat([v.data.reshape(-1), torch.tensor([fill]).to(v.data.dtype)])
    if fill in (math.inf, -math.inf) or isinstance(fill, int):
        data[-1] = fill
    error = torch.cat([v.error.reshape(-1), torch.zeros(1, dtype=torch.float64)])
    return Value(data[behind], dims, v.elem, error[behind])


def gathered(v: Value, dim: str, ids: Value) -> Value:
    """Raises Undefined where a coordinate is none."""
    extent = v.data.shape[v.dims.index(dim)]
    here = tuple("#" if d == dim else d for d in v.dims)
    _, (x, index), (e, unsure) = aligned([replace(v, dims=here), ids])
    names = tuple(dict.fromkeys([*here, *ids.dims]))
    axis = names.index("#")
    shape = [max(a, b) if min(a, b) else 0 for a, b in zip(x.shape, index.shape, strict=True)]
    single, all_ = ([*shape[:axis], n, *shape[axis + 1 :]] for n in (index.shape[axis], extent))
    rest = tuple(d for d in names if d != "#")
    if ids.data.numel() and (int(ids.data.min()) < 0 or int(ids.data.max()) >= extent):
        lost = torch.zeros([*shape[:axis], *shape[axis + 1 :]], dtype=v.data.dtype)
        raise Undefined(exact(lost, rest, v.elem))
    index = index.expand(single)
    out, error = (t.expand(all_).gather(axis, index).squeeze(axis) for t in (x, e))
    doubt = unsure.expand(single).squeeze(axis) > 0
    return Value(out, rest, v.elem, torch.where(doubt, math.inf, error))


def dot(over: Sequence[str], a: Value, b: Value, compute_type: str, accumulate: str) -> Value:
    dims, (x, y), (ex, ey) = aligned([a, b])
    axes = [dims.index(d) for d in over]
    rest = tuple(d for d in dims if d not in over)
    steps = math.prod(max(x.shape[i], y.shape[i]) if min(x.shape[i], y.shape[i]) else 0 for i in axes)
    if compute_type == "s8":
        return exact((x * y).sum(axes).to(torch.int32).long(), rest, "i32")
    terms = x * y
    size = (x.abs() + ex) * (y.abs() + ey)
    error = (size - x.abs() * y.abs() + 4 * (steps + 2) * UNIT * size).sum(axes)
    out = terms.sum(axes)
    if accumulate == "f16":
        beyond = out.isfinite() & (out.abs() >= 65520.0)
        out = torch.where(beyond, out.sign() * math.inf, out)
    out = in_range(out)
    error = torch.where(out.isfinite(), error, 0.0).nan_to_num(nan=0.0, posinf=math.inf)
    return Value(out, rest, "f32", error)
