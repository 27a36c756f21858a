"""Semantics of each value of a typed program: one function from its operands' values to its own.

These rules hold for the kernels too. NaN propagates through `min`, `max`, sums and scans. `argmax` and
`argmin` take the lowest coordinate among equals and treat NaN as the extreme; over several dimensions they
count row-major in the order written. `var` is the population variance (it divides by n). Softmax of a row
that is all -inf is NaN. `mean` of integers is float. An integer divided by 0 is 0. Integer dots and
element-wise work wrap in their element type (two's complement); sums, products and scans of integers are i64.

Over an extent of 0, sums are 0, products 1, means and variances NaN, logsumexp -inf, and softmax and scans
empty; a largest or smallest element does not exist, which raises ExtentRangeError. Float work is f32: values
beyond its range are infinite (beyond f16's range in a dot that accumulates in f16), though the reference has
float64's precision within it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ucutlass.ir import (
    Apply,
    Cast,
    Constant,
    Coordinate,
    Dims,
    Dot,
    Gather,
    ParamValue,
    Read,
    Reduce,
    Scan,
    Segment,
    Size,
    Softmax,
    Value,
    extents,
)
from ucutlass.ir.elements import F16, F32, Element
from ucutlass.ir.functions import FUNCTIONS, ElementwiseFunction
from ucutlass.ir.neutral import NEUTRAL
from ucutlass.reference.contract import Operand, contract, realise
from ucutlass.reference.errors import ExtentRangeError
from ucutlass.reference.indexing import LazyRead, gather, read, segment
from ucutlass.reference.named_tensor import Named, coordinates
from ucutlass.reference.rounding import cast, in_range, inner_dtype, wrap

_WITHIN = frozenset(
    {
        "negate",
        "where",
        "min",
        "max",
        "abs",
        "clamp",
        "hardtanh",
        "relu",
        "gelu",
        "gelu_tanh",
        "silu",
        "sigmoid",
        "tanh",
        "mish",
        "hardswish",
        "log",
        "log1p",
        "sqrt",
        "erf",
        "sin",
        "cos",
        "floor",
        "round",
        "sign",
    }
)
"""Functions whose results are no larger than their arguments, or than 1024."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelCall:
    """One call of a kernel: extents, parameters as values, and the device to compute on. A parameter's value,
    at least twice as large as its tensor, is made when it is needed, so that it can be released after its
    last use."""

    sizes: Mapping[str, int]
    params: Sequence[Callable[[], Named]]
    device: torch.device


def step(node: Value, operands: Sequence[Operand], call: KernelCall) -> Named:
    """Returns the value of `node`, given those of `ucutlass.ir.children(node)`."""
    match node:
        case Dot():
            return Named(dot_in_range(node, dot_total(node, operands)), node.dims)
        case Apply(function=name) if name in _WITHIN:
            return _step(node, [realise(o) for o in operands], call)
        case Apply() | Reduce() | Scan() if node.elem is F32:
            value = _step(node, [realise(o) for o in operands], call)
            return value.like(in_range(value.data, F32))
        case _:
            return _step(node, [realise(o) for o in operands], call)


def dot_total(node: Dot, operands: Sequence[Operand]) -> Tensor:
    """Returns the sum of products before it is rounded to the accumulator's range."""
    return contract(operands[0], operands[1], node.over, node.dims)


def dot_in_range(node: Dot, total: Tensor) -> Tensor:
    if node.elem.kind == "int":
        return wrap(total.to(torch.int64), node.elem)
    if node.elem is not F32:
        return total
    return in_range(total, F16 if node.accumulate == F16.name else F32)


def _step(node: Value, values: Sequence[Named], call: KernelCall) -> Named:
    match node:
        case ParamValue(index=index):
            return call.params[index]()
        case Constant(value=value):
            return Named(_scalar(value, node.elem, call), ())
        case Size(extent=extent):
            return Named(_scalar(extents.evaluate(extent, call.sizes), node.elem, call), ())
        case Coordinate(dim=dim):
            return Named(coordinates(call.sizes[dim], call.device), (dim,))
        case Apply():
            return Named(apply(node, [v.spread(node.dims) for v in values]), node.dims)
        case Cast():
            return values[0].like(cast(values[0].data, node.elem))
        case Reduce():
            return Named(reduce(node, values[0]), node.dims)
        case Softmax():
            return values[0].like(softmax(node, values[0]))
        case Scan():
            return values[0].like(scan(node, values[0]))
        case Read():
            return read(LazyRead(values[0], node, call.sizes))
        case Gather():
            return gather(values[0], node.dim, values[1], node.dims)
        case Segment():
            return segment(node.dim, call.sizes[node.dim], values[0])
        case Dot():
            raise AssertionError("step takes dots")


def _scalar(value: float | int | bool, elem: Element, call: KernelCall) -> Tensor:
    number = torch.tensor(value, dtype=inner_dtype(elem), device=call.device)
    return in_range(number, elem) if elem is F32 else number


def apply(node: Apply, args: Sequence[Tensor]) -> Tensor:
    """Returns the element-wise function of its arguments, which are converted to their common kind first."""
    return wrap(unwrapped(node, args), node.elem)


def unwrapped(node: Apply, args: Sequence[Tensor]) -> Tensor:
    """Returns what `apply` does, in 64 bits where the result is i32."""
    function = FUNCTIONS[node.function]
    missing = len(function.parameters) - len(args)
    defaults = function.defaults[len(function.defaults) - missing :]
    supplied = [*args, *(torch.tensor(d, dtype=torch.float64, device=args[0].device) for d in defaults)]
    ready = _common(node, supplied)
    if node.function in ("floor_divide", "modulo") and ready[1].dtype == torch.int64:
        return _whole_division(function, ready[0], ready[1])
    return function.reference(*ready).to(inner_dtype(node.elem))


def _whole_division(function: ElementwiseFunction, a: Tensor, b: Tensor) -> Tensor:
    """Returns an integer division in which dividing by 0 gives 0."""
    zero_divisor = b == 0
    return torch.where(zero_divisor, 0, function.reference(a, torch.where(zero_divisor, 1, b)))


def _common(node: Apply, args: Sequence[Tensor]) -> list[Tensor]:
    match FUNCTIONS[node.function].domain:
        case "float":
            return [a.to(torch.float64) for a in args]
        case "number":
            floats = any(a.dtype == torch.float64 for a in args)
            return [a.to(torch.float64 if floats else torch.int64) for a in args]
        case "any":
            return [args[0].to(torch.bool), *(a.to(inner_dtype(node.elem)) for a in args[1:])]
        case "bool":
            return [a.to(torch.bool) for a in args]


def axes(value: Named, over: Dims) -> tuple[int, ...]:
    """Returns the positions of `over` in the value's data."""
    return tuple(value.dims.index(d) for d in over)


def flattened_last(value: Named, over: Dims) -> Tensor:
    """Returns the data with the dimensions `over` flattened into one last axis, in the order written."""
    kept_dims = [d for d in value.dims if d not in over]
    return value.data.permute([value.dims.index(d) for d in (*kept_dims, *over)]).flatten(len(kept_dims))


def _without(dims: Dims, over: Dims) -> Dims:
    return tuple(d for d in dims if d not in over)


_REDUCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(dim=-1),
    "mean": lambda x: x.to(torch.float64).mean(dim=-1),
    "max": lambda x: x.amax(dim=-1),
    "min": lambda x: x.amin(dim=-1),
    "prod": lambda x: _product(x),
    "var": lambda x: _variance(x.to(torch.float64)),
    "argmax": lambda x: x.argmax(dim=-1),
    "argmin": lambda x: x.argmin(dim=-1),
    "logsumexp": lambda x: x.to(torch.float64).logsumexp(dim=-1),
}


def _product(x: Tensor) -> Tensor:
    """Returns 0 where a factor is 0 and none is infinite, even if the other factors leave float64's range."""
    total = x.prod(dim=-1)
    if not x.is_floating_point() or bool(total.isfinite().all()):
        return total
    return total.masked_fill_((x == 0).any(dim=-1) & x.isfinite().all(dim=-1), 0.0)


def _variance(x: Tensor) -> Tensor:
    """Returns the population variance; of no elements it is NaN, as the mean is."""
    return (x - x.mean(dim=-1, keepdim=True)).square_().mean(dim=-1)


_SELECTIONS = frozenset({"max", "min", "argmax", "argmin"})
"""Reductions that return one of the elements, or its coordinate; over no elements they are undefined."""


def reduce(node: Reduce, value: Named) -> Tensor:
    """Returns the reduction. Raises ExtentRangeError where a selection has nothing to select from."""
    empty = [d for d in node.over if value.data.shape[value.dims.index(d)] == 0]
    if empty and node.op in _SELECTIONS:
        raise ExtentRangeError(
            f"{node.op} runs over {', '.join(node.over)}, and the extent of {empty[0]} is 0: "
            f"there is no element to give; call it with at least one"
        )
    reduced = Named(_REDUCTIONS[node.op](flattened_last(value, node.over)), _without(value.dims, node.over))
    return reduced.spread(node.dims).to(inner_dtype(node.elem))


def softmax(node: Softmax, value: Named) -> Tensor:
    over = axes(value, node.over)
    x = value.data.to(torch.float64)
    if not x.numel():
        return x
    shifted = x - x.amax(dim=over, keepdim=True)
    total = shifted.exp().sum(dim=over, keepdim=True)
    return shifted - total.log() if node.log else shifted.exp() / total


def scan(node: Scan, value: Named) -> Tensor:
    """Returns the scan. Exclusive scans start from the neutral element; reverse ones run from the far end."""
    axis = value.dims.index(node.along)
    x = value.data.flip(axis) if node.reverse else value.data
    total = x.cumsum(axis) if node.op == "cumsum" else x.cumprod(axis)
    if node.exclusive:
        length_before = max(total.shape[axis] - 1, 0)
        neutral = torch.full_like(
            total.narrow(axis, length_before, total.shape[axis] - length_before), NEUTRAL[node.op]
        )
        total = torch.cat((neutral, total.narrow(axis, 0, length_before)), dim=axis)
    return (total.flip(axis) if node.reverse else total).to(inner_dtype(node.elem))
