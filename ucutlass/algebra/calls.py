"""What a called kernel computes, in the names of the pipeline that calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ucutlass import ir
from ucutlass.algebra.terms import Terms
from ucutlass.ir import Value
from ucutlass.ir.extents import Combined, Extent, Fixed, Free


class OtherNames(Exception):
    """A call whose kernel cannot be said in the pipeline's names."""


def names_of(
    kernel: ir.Kernel, stage: ir.Stage, types: Mapping[str, ir.TensorType], terms: Terms
) -> dict[str, str]:
    """Returns the pipeline's name of every dimension of a stage's kernel: that of the tensors passed, and for what the
    kernel alone has, one that the pipeline has not. Raises OtherNames where a dimension would have two names, or two
    dimensions one."""
    names = _passed(kernel, stage, types)
    if len({*names.values()}) < len(names):
        raise OtherNames(f"two dimensions of {kernel.name} would have one name")
    for dim, extent in kernel.dims.items():
        if dim not in names:
            names[dim] = terms.own_dimension(dim, _extent(extent, names, terms))
    return names


def is_in_place(kernel: ir.Kernel, stage: ir.Stage, types: Mapping[str, ir.TensorType], terms: Terms) -> bool:
    """Whether a stage is written in place: its kernel has the pipeline's own names."""
    try:
        passed = _passed(kernel, stage, types)
    except OtherNames:
        return False
    own = {*kernel.dims} <= {*terms.extents} and all(dim == name for dim, name in passed.items())
    return own and kernel.name in stage.outputs


def _passed(kernel: ir.Kernel, stage: ir.Stage, types: Mapping[str, ir.TensorType]) -> dict[str, str]:
    """Returns the names that the tensors give which a stage takes and stores. Raises OtherNames."""
    names: dict[str, str] = {}
    passed = [
        (p.type, types[a])
        for p, a in zip(kernel.params, stage.arguments, strict=True)
        if isinstance(p.type, ir.TensorType) and isinstance(a, str)
    ]
    stored = [(r.type, types[o]) for r, o in zip(kernel.results, stage.outputs, strict=True)]
    for inside, outside in (*passed, *stored):
        if [len(axis.dims) for axis in inside.axes] != [len(axis.dims) for axis in outside.axes]:
            raise OtherNames(f"{kernel.name} groups dimensions otherwise")
        for dim, name in zip(inside.dims, outside.dims, strict=True):
            if names.setdefault(dim, name) != name:
                raise OtherNames(f"{dim} of {kernel.name} would be {name} and {names[dim]}")
    return names


def in_names(value: Value, names: Mapping[str, str], terms: Terms) -> Value:
    """Returns a node of a kernel, without its parts, with the pipeline's names of its dimensions."""
    value = replace(value, dims=tuple(names[d] for d in value.dims))
    match value:
        case ir.Size(extent=extent):
            return replace(value, extent=_extent(extent, names, terms))
        case ir.Coordinate() | ir.Gather() | ir.Segment():
            return replace(value, dim=names[value.dim])
        case ir.Scan(along=along):
            return replace(value, along=names[along])
        case ir.Dot() | ir.Reduce() | ir.Softmax():
            return replace(value, over=tuple(names[d] for d in value.over))
        case ir.Read(positions=positions):
            return replace(value, positions=tuple(_position(p, names, terms) for p in positions))
        case _:
            return value


def _position(position: ir.Position, names: Mapping[str, str], terms: Terms) -> ir.Position:
    at = position.at
    moved = ir.Affine(tuple((names[d], factor) for d, factor in at.terms), _extent(at.offset, names, terms))
    return ir.Position(names[position.dim], position.scale, moved)


def _extent(extent: Extent, names: Mapping[str, str], terms: Terms) -> Extent:
    match extent:
        case Fixed():
            return extent
        case Free(dim) if dim in names:
            return terms.extents[names[dim]]
        case Combined(op, left, right):
            return Combined(op, _extent(left, names, terms), _extent(right, names, terms))
        case _:
            raise OtherNames(f"the extent of {extent} is known in the call alone")
