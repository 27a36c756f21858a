"""Says along which dimensions a slice of a kernel's results is what it makes of slices of its arguments, and frees
those that a text fixes, so that a reference can be asked at fewer coordinates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from ucutlass import ir
from ucutlass.ir import Kernel, Pipeline, Program, Stage, TensorType, extents
from ucutlass.ir.extents import Extent, Fixed, Free
from ucutlass.ir.traversal import walk


def with_free_rows(program: Program) -> tuple[Program, Mapping[str, int]]:
    """Does as `kernel_with_free_rows`, of a pipeline where that holds of every stage."""
    match program:
        case Kernel():
            return kernel_with_free_rows(program)
        case Pipeline():
            return _pipeline_with_free_rows(program)


def kernel_with_free_rows(kernel: Kernel) -> tuple[Kernel, Mapping[str, int]]:
    """Returns a kernel whose fixed dimensions are free along which each coordinate of every result depends on the
    same coordinate of the arguments alone, and what the text fixes them to. At fewer of their coordinates it
    gives a slice of what the kernel gives."""
    fixed = {dim: extent.value for dim, extent in kernel.dims.items() if isinstance(extent, Fixed)}
    rows = separable(_freed(kernel, fixed)) & fixed.keys()
    lengths = {dim: fixed[dim] for dim in kernel.dims if dim in rows}
    return (_freed(kernel, lengths), lengths) if lengths else (kernel, {})


def _pipeline_with_free_rows(pipeline: Pipeline) -> tuple[Pipeline, Mapping[str, int]]:
    fixed = {dim: extent.value for dim, extent in pipeline.dims.items() if isinstance(extent, Fixed)}
    lengths: dict[str, int] = {}
    for dim, length in fixed.items():
        freed = free_along(pipeline, dim)
        if freed is not None:
            pipeline, lengths[dim] = freed, length
    return pipeline, lengths


def free_along(pipeline: Pipeline, dim: str) -> Pipeline | None:
    """Returns a pipeline with a free dimension along which each coordinate of every result depends on the same
    coordinate of the arguments alone; None where that does not hold of every stage."""
    types = {p.name: p.type for p in pipeline.params} | dict(pipeline.buffers) | dict(pipeline.results)
    derived = any(dim in extents.names(extent) for other, extent in pipeline.dims.items() if other != dim)
    inner = [_inner_row(stage, types, dim) for stage in pipeline.stages]
    if derived or None in inner or not all(dim in kind.dims for _, kind in pipeline.results):
        return None
    return replace(
        pipeline,
        dims={**pipeline.dims, dim: Free(dim)},
        params=tuple(replace(p, type=_freed_type(p.type, {dim})) for p in pipeline.params),
        buffers=tuple((name, _freed_type(kind, {dim})) for name, kind in pipeline.buffers),
        results=tuple((name, _freed_type(kind, {dim})) for name, kind in pipeline.results),
        stages=tuple(_freed_stage(stage, row) for stage, row in zip(pipeline.stages, inner, strict=True)),
    )


def _inner_row(stage: Stage, types: Mapping[str, ir.ParamType], dim: str) -> str | None:
    """Returns the name of a dimension of a pipeline in a stage's kernel, "" where that does not have it; None where
    coordinates of the stage's results depend on others along it, or nothing says whether they do."""
    outer = [types[name] for name in (*stage.arguments, *stage.outputs) if isinstance(name, str)]
    if not any(dim in kind.dims for kind in outer if isinstance(kind, TensorType)):
        return ""
    kernel = stage.call
    if not isinstance(kernel, Kernel):
        return None
    kinds = [p.type for p, a in zip(kernel.params, stage.arguments, strict=True) if isinstance(a, str)]
    rows: set[str] = set()
    for mine, theirs in zip((*kinds, *(r.type for r in kernel.results)), outer, strict=True):
        if isinstance(mine, TensorType) and isinstance(theirs, TensorType):
            for here, there in zip(mine.axes, theirs.axes, strict=True):
                if dim in there.dims and (there.dims != (dim,) or len(here.dims) != 1):
                    return None
                rows |= {*here.dims} if there.dims == (dim,) else set()
    if len(rows) != 1:
        return None
    (row,) = rows
    elsewhere = any(
        row in here.dims and there.dims != (dim,)
        for mine, theirs in zip((*kinds, *(r.type for r in kernel.results)), outer, strict=True)
        if isinstance(mine, TensorType) and isinstance(theirs, TensorType)
        for here, there in zip(mine.axes, theirs.axes, strict=True)
    )
    return None if elsewhere or row not in separable(_freed(kernel, {row})) else row


def _freed_stage(stage: Stage, row: str | None) -> Stage:
    kernel = stage.call
    return replace(stage, call=_freed(kernel, {row})) if row and isinstance(kernel, Kernel) else stage


_Kind = TypeVar("_Kind", bound=ir.ParamType)


def _freed_type(kind: _Kind, free: Collection[str]) -> _Kind:
    """Returns a type whose axes of these dimensions alone are free."""
    if not isinstance(kind, TensorType):
        return kind
    axes = [
        replace(a, extent=Free(a.dims[0])) if len(a.dims) == 1 and a.dims[0] in free else a for a in kind.axes
    ]
    return replace(kind, axes=tuple(axes))


def _freed(kernel: Kernel, free: Collection[str]) -> Kernel:
    dims: dict[str, Extent] = {d: Free(d) if d in free else extent for d, extent in kernel.dims.items()}
    params = tuple(replace(p, type=_freed_type(p.type, free)) for p in kernel.params)
    results = tuple(replace(r, type=_freed_type(r.type, free)) for r in kernel.results)
    return replace(kernel, dims=dims, params=params, results=results)


def separable(kernel: ir.Kernel) -> frozenset[str]:
    """Returns the dimensions along which every result has an axis and each coordinate depends on the same
    coordinate of the arguments alone: nothing is summed, indexed or counted along them, and no other extent
    is derived from theirs."""
    types = [p.type for p in kernel.params if isinstance(p.type, ir.TensorType)]
    stored = [r.type for r in kernel.results]
    nodes = walk(*(r.value for r in kernel.results), *kernel.requires)
    coupled = {d for node in nodes for d in _coupled_dims(node)}
    for name, extent in kernel.dims.items():
        coupled |= set() if extent == extents.Free(name) else {name, *extents.names(extent)}
    for kind in (*types, *stored):
        for i, axis in enumerate(kind.axes):
            packed = kind.elem.packed > 1 and i == len(kind.axes) - 1
            if len(axis.dims) != 1 or packed:
                coupled |= {*axis.dims, *extents.names(axis.extent)}
    common = frozenset.intersection(*(frozenset(k.dims) for k in stored))
    return common - coupled


def _coupled_dims(node: ir.Value) -> Iterable[str]:
    """Returns the dimensions of which a node's element depends on more than its own coordinate."""
    match node:
        case ir.Size(extent=extent):
            return extents.names(extent)
        case ir.Coordinate(dim=dim) | ir.Scan(along=dim) | ir.Gather(dim=dim) | ir.Segment(dim=dim):
            return (dim,)
        case ir.Dot(over=over) | ir.Reduce(over=over) | ir.Softmax(over=over):
            return over
        case ir.Read(positions=positions):
            terms = {d for p in positions for d, _ in p.at.terms}
            return terms.union(*({p.dim, *extents.names(p.at.offset)} for p in positions))
        case ir.ParamValue() | ir.Constant() | ir.Apply() | ir.Cast():
            return ()
