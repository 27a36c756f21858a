"""Frees extents that a program's text fixes, so that its reference can be asked at fewer coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ucutlass.ir import Kernel, MemoryAxis, Program, TensorType
from ucutlass.ir.extents import Extent, Fixed, Free
from ucutlass.reference.slices import separable


def with_free_rows(program: Program) -> tuple[Program, Mapping[str, int]]:
    """Returns a kernel whose fixed dimensions are free along which each coordinate of every result depends on the
    same coordinate of the arguments alone, and what the text fixes them to. At fewer of their coordinates it
    gives a slice of what the program gives. A pipeline is returned as it is."""
    if not isinstance(program, Kernel):
        return program, {}
    fixed = {dim: extent.value for dim, extent in program.dims.items() if isinstance(extent, Fixed)}
    rows = separable(_freed(program, fixed)) & fixed.keys()
    lengths = {dim: fixed[dim] for dim in program.dims if dim in rows}
    return (_freed(program, lengths), lengths) if lengths else (program, {})


def _freed(kernel: Kernel, lengths: Mapping[str, int]) -> Kernel:
    dims: dict[str, Extent] = {d: Free(d) if d in lengths else extent for d, extent in kernel.dims.items()}

    def freed(kind: TensorType) -> TensorType:
        return replace(kind, axes=tuple(map(axis_of, kind.axes)))

    def axis_of(axis: MemoryAxis) -> MemoryAxis:
        whole = len(axis.dims) == 1 and axis.dims[0] in lengths
        return replace(axis, extent=Free(axis.dims[0])) if whole else axis

    params = tuple(
        replace(p, type=freed(p.type)) if isinstance(p.type, TensorType) else p for p in kernel.params
    )
    results = tuple(replace(r, type=freed(r.type)) for r in kernel.results)
    return replace(kernel, dims=dims, params=params, results=results)
