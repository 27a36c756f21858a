"""What each value of a typed program computes: one function from its operands' values to its own.

Settled here, for the kernels too: NaN propagates through `min`, `max`, sums and scans;
`argmax` and `argmin` take the lowest coordinate among equals and treat NaN as the extreme,
over several dimensions they count row-major in the order written; `var` is the population variance
(divides by n); softmax of a row that is all -inf is NaN; `mean` of integers is float; an integer
divided by 0 is 0; integer dots and element-wise work wrap in their element (two's complement), sums,
products and scans of integers are i64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ucutlass import extents
from ucutlass.elements import Element
from ucutlass.functions import FUNCTIONS, Function
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
)
from ucutlass.reference.contract import Operand, contract, realise
from ucutlass.reference.named import Named, coordinates
from ucutlass.reference.reading import Window, gather, read, segment
from ucutlass.reference.rounding import cast, inner_dtype, wrap


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a kernel: extents, parameters as values, where to compute. A parameter's value, twice as
    large as its tensor and more, is made where it is asked for, so that it may go after its last use."""

    sizes: Mapping[str, int]
    params: Sequence[Callable[[], Named]]
    device: torch.device


def step(node: Value, operands: Sequence[Operand], call: Call) -> Named:
    """The value of `node`, given those of `ucutlass.ir.children(node)`."""
    match node:
        case Dot():
            data = contract(operands[0], operands[1], node.over, node.dims)
            return Named(wrap(data.to(inner_dtype(node.elem)), node.elem), node.dims)
        case _:
            return _step(node, [realise(o) for o in operands], call)


def _step(node: Value, values: Sequence[Named], call: Call) -> Named:
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
            return read(Window(values[0], node, call.sizes))
        case Gather():
            return gather(values[0], node.dim, values[1], node.dims)
        case Segment():
            return segment(node.dim, call.sizes[node.dim], values[0])
        case Dot():
            raise AssertionError("step takes dots")


def _scalar(value: float | int | bool, elem: Element, call: Call) -> Tensor:
    return torch.tensor(value, dtype=inner_dtype(elem), device=call.device)


def apply(node: Apply, args: Sequence[Tensor]) -> Tensor:
    """The element-wise function, its arguments brought to their common kind first."""
    return wrap(unwrapped(node, args), node.elem)


def unwrapped(node: Apply, args: Sequence[Tensor]) -> Tensor:
    """`apply` in 64 bits where the result is i32."""
    function = FUNCTIONS[node.function]
    missing = len(function.parameters) - len(args)
    defaults = function.defaults[len(function.defaults) - missing :]
    supplied = [*args, *(torch.tensor(d, dtype=torch.float64, device=args[0].device) for d in defaults)]
    ready = _common(node, supplied)
    if node.function in ("floor_divide", "modulo") and ready[1].dtype == torch.int64:
        return _whole_division(function, ready[0], ready[1])
    return function.reference(*ready).to(inner_dtype(node.elem))


def _whole_division(function: Function, a: Tensor, b: Tensor) -> Tensor:
    """Dividing an integer by 0 gives 0."""
    none = b == 0
    return torch.where(none, 0, function.reference(a, torch.where(none, 1, b)))


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
    """Positions of `over` in the value's data."""
    return tuple(value.dims.index(d) for d in over)


def last(value: Named, over: Dims) -> Tensor:
    """The data with the dimensions `over` flattened into one last axis, in the order written."""
    kept = [d for d in value.dims if d not in over]
    return value.data.permute([value.dims.index(d) for d in (*kept, *over)]).flatten(len(kept))


def _without(dims: Dims, over: Dims) -> Dims:
    return tuple(d for d in dims if d not in over)


_REDUCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(dim=-1),
    "mean": lambda x: x.to(torch.float64).mean(dim=-1),
    "max": lambda x: x.amax(dim=-1),
    "min": lambda x: x.amin(dim=-1),
    "prod": lambda x: x.prod(dim=-1),
    "var": lambda x: x.to(torch.float64).var(dim=-1, correction=0),
    "argmax": lambda x: x.argmax(dim=-1),
    "argmin": lambda x: x.argmin(dim=-1),
    "logsumexp": lambda x: x.to(torch.float64).logsumexp(dim=-1),
}


def reduce(node: Reduce, value: Named) -> Tensor:
    kept = Named(_REDUCTIONS[node.op](last(value, node.over)), _without(value.dims, node.over))
    return kept.spread(node.dims).to(inner_dtype(node.elem))


def softmax(node: Softmax, value: Named) -> Tensor:
    over = axes(value, node.over)
    x = value.data.to(torch.float64)
    shifted = x - x.amax(dim=over, keepdim=True)
    total = shifted.exp().sum(dim=over, keepdim=True)
    return shifted - total.log() if node.log else shifted.exp() / total


def scan(node: Scan, value: Named) -> Tensor:
    """Exclusive scans start from the neutral element; reverse ones run from the far end."""
    axis = value.dims.index(node.along)
    x = value.data.flip(axis) if node.reverse else value.data
    total = x.cumsum(axis) if node.op == "cumsum" else x.cumprod(axis)
    if node.exclusive:
        neutral = torch.full_like(total.narrow(axis, 0, 1), 0 if node.op == "cumsum" else 1)
        total = torch.cat((neutral, total.narrow(axis, 0, total.shape[axis] - 1)), dim=axis)
    return (total.flip(axis) if node.reverse else total).to(inner_dtype(node.elem))
