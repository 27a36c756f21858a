"""Says along which dimensions a slice of a kernel's results is what it makes of slices of its arguments, and frees
those that a text fixes, so that a reference can be asked at fewer coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ucutlass import ir
from ucutlass.ir import Kernel, MemoryAxis, Program, TensorType, extents
from ucutlass.ir.extents import Extent, Fixed, Free
from ucutlass.ir.traversal import walk


def with_free_rows(program: Program) -> tuple[Program, Mapping[str, int]]:
    """Does as `kernel_with_free_rows`; a pipeline is returned as it is."""
    return kernel_with_free_rows(program) if isinstance(program, Kernel) else (program, {})


def kernel_with_free_rows(kernel: Kernel) -> tuple[Kernel, Mapping[str, int]]:
    """Returns a kernel whose fixed dimensions are free along which each coordinate of every result depends on the
    same coordinate of the arguments alone, and what the text fixes them to. At fewer of their coordinates it
    gives a slice of what the kernel gives."""
    fixed = {dim: extent.value for dim, extent in kernel.dims.items() if isinstance(extent, Fixed)}
    rows = separable(_freed(kernel, fixed)) & fixed.keys()
    lengths = {dim: fixed[dim] for dim in kernel.dims if dim in rows}
    return (_freed(kernel, lengths), lengths) if lengths else (kernel, {})


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
