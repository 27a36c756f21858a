"""Finds which parameters of a pipeline are weights, and how many products each of their sums has.

A product of unit numbers summed K times has a variance of K, and that of its product with the next weights
K * K: after a few layers of unit weights a softmax picks one element, and what it picks depends on roundings.
Weights of variance 1 / K keep a layer's numbers as large as the one's before (LeCun, Bottou, Orr, Mueller,
Efficient BackProp, 1998, section 4.6).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ucutlass.ir import (
    Cast,
    Dot,
    Gather,
    Kernel,
    ParamValue,
    Pipeline,
    Program,
    Read,
    Stage,
    TensorType,
    TorchCall,
    Value,
)
from ucutlass.ir.extents import Fixed
from ucutlass.ir.traversal import walk
from ucutlass.pipeline.names import stage_names
from ucutlass.reference.binding import shape_of
from ucutlass.torch_functions import RECURRENCES


def fan_in(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns, by a pipeline's parameter, the length of the first dot that contracts it as a weight: as the
    right operand, or as the left one where the right is no parameter. A kernel has none: nothing follows
    it."""
    if not isinstance(program, Pipeline):
        return {}
    lengths: dict[str, int] = {}
    for stage in program.stages:
        match stage.call:
            case Kernel() as kernel:
                pairs = _of_stage(program, stage, kernel, sizes)
            case TorchCall(function):
                pairs = _of_layers(program, stage, sizes) if function in RECURRENCES else iter(())
        for name, count in pairs:
            lengths.setdefault(name, count)
    return lengths


def recurrent_fan_in(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns what `fan_in` says of the weights of recurrent layers alone."""
    if not isinstance(program, Pipeline):
        return {}
    calls = [s for s in program.stages if isinstance(s.call, TorchCall) and s.call.function in RECURRENCES]
    return dict(pair for stage in calls for pair in _of_layers(program, stage, sizes))


def _of_stage(
    program: Pipeline, stage: Stage, kernel: Kernel, sizes: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    types = {p.name: p.type for p in program.params}
    for node in walk(*(r.value for r in kernel.results)):
        if not isinstance(node, Dot):
            continue
        for index in (_parameter(node.right), _parameter(node.left)):
            name = None if index is None else stage.arguments[index]
            if index is None or not isinstance(name, str) or not isinstance(types.get(name), TensorType):
                continue
            yield name, _length(program, stage, kernel, index, types[name], node.over, sizes)  # type: ignore[arg-type]
            break


def _of_layers(program: Pipeline, stage: Stage, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yields the weights of recurrent layers, which are their tensors of two axes. Larger ones would make states that
    no two evaluations agree on after some hundred steps."""
    for param in program.params:
        if param.name in stage.arguments and isinstance(param.type, TensorType) and len(param.type.axes) == 2:
            yield param.name, shape_of(param.type, sizes)[-1]


def _parameter(value: Value) -> int | None:
    """Returns the parameter that a dot's operand is, seen through what moves or rounds its elements."""
    while isinstance(value, (Cast, Read, Gather)):
        value = value.value
    return value.index if isinstance(value, ParamValue) else None


def _length(
    program: Pipeline,
    stage: Stage,
    kernel: Kernel,
    index: int,
    outer: TensorType,
    over: tuple[str, ...],
    sizes: Mapping[str, int],
) -> int:
    """Returns the number of products of a sum: the product of the extents of the parameter's summed axes, as
    the pipeline has them."""
    inner = kernel.params[index].type
    assert isinstance(inner, TensorType)
    names = stage_names(program, stage)
    length = 1
    for axis, extent in zip(inner.axes, shape_of(outer, sizes), strict=True):
        summed = [d for d in axis.dims if d in over]
        if summed and len(summed) == len(axis.dims):
            length *= extent
        else:
            length *= math.prod(_extent(kernel, d, names, sizes) for d in summed)
    return length


def _extent(kernel: Kernel, dim: str, names: Mapping[str, str], sizes: Mapping[str, int]) -> int:
    extent = kernel.dims[dim]
    return extent.value if isinstance(extent, Fixed) else sizes.get(names.get(dim, ""), 1)
