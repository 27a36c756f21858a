"""The grouped GEMM pattern with concrete extents."""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass import ir
from ucutlass.kernels.access import Access, Store
from ucutlass.kernels.addresses import MergedModes, Operand, Sizes, access, runs
from ucutlass.kernels.epilogue import arithmetic
from ucutlass.kernels.gemm.plan import GemmProblem
from ucutlass.kernels.grouped_gemm.match import GroupedGemmPattern
from ucutlass.kernels.grouped_gemm.match_scaled import scaled
from ucutlass.kernels.grouped_gemm.plan import GroupedGemmProblem, Ragged
from ucutlass.kernels.refused import Refused


def grouped_gemm_problem(
    pattern: GroupedGemmPattern, sizes: Sequence[int], aligned: Sequence[bool] | None = None
) -> GroupedGemmProblem:
    """The pattern with concrete extents, in the order of `kernel.dims`.

    `aligned[i]` says whether pointer i is a multiple of 16 bytes; None: all are. Raises Refused UC0305
    where more than one batch mode remains, or k is not one mode.
    """
    at = Sizes(pattern.position, tuple(sizes))
    _fills_bytes(pattern.kernel, at)
    modes = _modes(pattern)
    pointers = sum(isinstance(p.type, ir.TensorType) for p in pattern.kernel.params) + len(
        pattern.kernel.results
    )
    fine = tuple(aligned) if aligned is not None else (True,) * pointers

    def reach(tensor: Operand, k: tuple[tuple[str, ...], ...] = ()) -> Access:
        return access(tensor, MergedModes(modes.m, modes.n, k, modes.batch), at, fine[tensor.pointer])

    dot = pattern.dots[0]
    gemm = GemmProblem(
        compute_type=dot.compute_type,
        accumulate=dot.accumulate,
        m=at.product(modes.m),
        n=at.product(modes.n),
        k=tuple(at.product(run) for run in modes.k),
        batch=tuple(at.product(run) for run in modes.batch),
        a=reach(pattern.a, modes.k),
        b=reach(pattern.b[0], modes.k),
        inputs=tuple(reach(t) for t in pattern.epilogue.inputs),
        outputs=tuple(Store(reach(o.tensor)) for o in pattern.epilogue.outputs),
        arithmetic=arithmetic(pattern.epilogue, modes, at),
        dims=len(pattern.kernel.dims),
        pointers=pointers,
        scalars=sum(isinstance(p.type, ir.ScalarType) for p in pattern.kernel.params),
    )
    second = reach(pattern.b[1], modes.k) if len(pattern.b) > 1 else None
    parts = None if pattern.scaled is None else scaled(pattern.scaled, modes, at, pattern.scaled.total)
    return GroupedGemmProblem(gemm, second, _ragged(pattern), parts)


def _fills_bytes(kernel: ir.Kernel, at: Sizes) -> None:
    """Raises Refused UC0334 for values of which two lie in a byte and one is left over."""
    for param in kernel.params:
        packed = param.type.elem.packed
        if packed == 1 or not isinstance(param.type, ir.TensorType):
            continue
        dims = param.type.axes[-1].dims if param.type.axes else ()
        extent = at.number(at.product(dims))
        if extent % packed:
            names = " ".join(dims) or "no name"
            raise Refused(
                "UC0334",
                f"{packed} values of {param.type.elem.name} lie in a byte of the innermost axis, and "
                f"{param.name} has {extent} along it ({names})",
                param.span,
                f"pad {names} to {extent + 1} with zeros, or store {param.name} as s8",
            )


def _ragged(pattern: GroupedGemmPattern) -> Ragged | None:
    if pattern.groups is None:
        return None
    offsets = pattern.groups.offsets
    tensors = [p.type for p in pattern.kernel.params if isinstance(p.type, ir.TensorType)]
    return Ragged("k" if pattern.groups.rows in pattern.k else "m", offsets, tensors[offsets].elem)


def _modes(pattern: GroupedGemmPattern) -> MergedModes:
    tensors = pattern.tensors
    m, n = runs(pattern.m, tensors), runs(pattern.n, tensors)
    k, batch = runs(pattern.k, (pattern.a, *pattern.b)), runs(pattern.batch, tensors)
    batch += (*m[:-1], *n[:-1])
    if len(k) != 1 or len(batch) > 1:
        what = f"{len(batch)} batch modes" if len(batch) > 1 else f"{len(k)} contracted modes"
        raise Refused(
            "UC0305",
            f"{what} lie apart in memory; a pair of dots, or one over ragged groups, has one at most",
            pattern.dots[0].span,
            "store operands and results with these names next to each other, in one order",
        )
    return MergedModes(m[-1] if m else (), n[-1] if n else (), k, batch)
