"""A reduction pattern with concrete extents: modes, addresses, instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ucutlass import ir
from ucutlass.ir.elements import F32
from ucutlass.ir.extents import Extent, Fixed, evaluate
from ucutlass.ir.traversal import upwards
from ucutlass.kernels.addresses import PACK_BYTES, Operand, Sizes, vector_width
from ucutlass.kernels.reduction.match import ReductionPattern
from ucutlass.kernels.reduction.plan import Load, ReductionOutput, ReductionProblem, contiguous_along
from ucutlass.kernels.reduction.problem_values import Builder, ModeIndex, fused_moments


def reduction_problem(
    pattern: ReductionPattern, sizes: Sequence[int], aligned: Sequence[bool] | None = None
) -> ReductionProblem:
    """The pattern with concrete extents, in the order of `kernel.dims`.

    `aligned[i]` says whether pointer i is a multiple of 16 bytes; None: all are. Raises Refused for
    coordinates that a launch cannot follow.
    """
    kernel = pattern.kernel
    at = Sizes({name: i for i, name in enumerate(kernel.dims)}, tuple(sizes))
    tensors = _tensors(kernel)
    results = tensors[len(tensors) - len(kernel.results) :]
    vector = _vector_dim(pattern, tensors, at)
    modes = ModeIndex(
        _last(_runs(pattern.rows, pattern, results, tensors), vector),
        _last(_runs(pattern.columns, pattern, results, tensors), vector),
        tuple((d,) for d in pattern.windows),
    )
    build = Builder(pattern, at, modes)
    values = [build.result(r) for r in kernel.results]
    outputs = tuple(
        ReductionOutput(t.pointer, t.elem, build.axes(t.order), value, _whole(pattern, t), 1)
        for t, value in zip(results, values, strict=True)
    )
    mode = next((i for i, run in enumerate(modes.all) if vector is not None and run[-1] == vector), None)
    problem = ReductionProblem(
        rows=tuple(at.product(run) for run in modes.rows),
        columns=tuple(at.product(run) for run in modes.columns),
        windows=tuple(at.product(run) for run in modes.windows),
        taps=tuple(_fixed(kernel.dims[d]) for d in pattern.windows),
        vector=mode,
        loads=tuple(build.loads),
        instructions=tuple(fused_moments(build.instructions, build.loads)),
        outputs=outputs,
        dims=len(kernel.dims),
        pointers=len(tensors),
        scalars=sum(isinstance(p.type, ir.ScalarType) for p in kernel.params),
        compute_type=F32,
    )
    return _with_alignments(problem, at, tuple(aligned) if aligned is not None else (True,) * len(tensors))


def _fixed(extent: Extent) -> int:
    return extent.value if isinstance(extent, Fixed) else 0


def _tensors(kernel: ir.Kernel) -> tuple[Operand, ...]:
    """Every tensor in the order of the pointer array."""
    types = [p.type for p in kernel.params if isinstance(p.type, ir.TensorType)]
    types += [r.type for r in kernel.results]
    return tuple(Operand(i, t.elem, t.dims) for i, t in enumerate(types))


def _whole(pattern: ReductionPattern, tensor: Operand) -> bool:
    return bool(pattern.columns) and set(pattern.columns) <= set(tensor.order)


NEGLIGIBLE_PART = 64
"""A tensor of less than one part in so many of the largest tensor's bytes has no say in the dimension along which vectors of
element-wise work lie, since caches hold it. With a shift and a factor of 128 channels that alone lie as x does, and not as the result, 64 x 126 x 126 x 128
f32 take 298 us on an H200 by tiles, and 1883 where vectors lie along channels. A norm of 384 bf16 that is written in
another order takes 396 us along its lines, and 288 along channels."""


def _vector_dim(pattern: ReductionPattern, tensors: tuple[Operand, ...], at: Sizes) -> str | None:
    """The name along which most bytes lie side by side; results weigh more among equals, and in
    element-wise work what is a small part of the largest tensor, which caches hold, weighs nothing. Where windows are reduced further, one that moves a window along the
    innermost axis counts as well: neighbours read a few elements apart, which caches bring together."""
    moving, single = _movers(pattern) if pattern.columns else {}, _read_at_one_place(pattern)
    bytes_of = {
        t: at.number(at.product(tuple(d for d in t.order if d not in single))) * t.elem.bytes for t in tensors
    }
    least = 0 if pattern.columns else max(bytes_of.values()) // NEGLIGIBLE_PART
    weights: dict[str, tuple[int, int]] = {}
    for t in tensors:
        name = moving.get(t.order[-1], t.order[-1]) if t.order else None
        if name is not None and name in {*pattern.rows, *pattern.columns}:
            size = bytes_of[t] if bytes_of[t] >= least else 0
            have = weights.get(name, (0, 0))
            weights[name] = (have[0] + size, t.pointer)
    return max(weights, key=lambda d: weights[d], default=None)


def _read_at_one_place(pattern: ReductionPattern) -> frozenset[str]:
    """The axes of which a launch reads one place alone: a number, or what a parameter says."""
    places: set[str] = set()
    for node in upwards(*(r.value for r in pattern.kernel.results)):
        match node:
            case ir.Gather(dim=dim, ids=ids) if not ids.dims:
                places.add(dim)
            case ir.Read(positions=positions):
                places.update(p.dim for p in positions if not p.at.terms)
    return frozenset(places - {*pattern.rows, *pattern.columns})


def _movers(pattern: ReductionPattern) -> dict[str, str]:
    """By the axes that windows are read along: the one row or column that moves the window."""
    windows, own = set(pattern.windows), {*pattern.rows, *pattern.columns}
    movers: dict[str, set[str]] = {}
    for node in upwards(*(r.value for r in pattern.kernel.results)):
        for p in node.positions if isinstance(node, ir.Read) else ():
            names = {d for d, _ in p.at.terms}
            if names & windows:
                movers.setdefault(p.dim, set()).update(names & own)
    return {dim: next(iter(names)) for dim, names in movers.items() if len(names) == 1 and dim not in own}


def _runs(
    names: tuple[str, ...],
    pattern: ReductionPattern,
    results: tuple[Operand, ...],
    tensors: tuple[Operand, ...],
) -> tuple[tuple[str, ...], ...]:
    """Names in memory order, merged where every tensor stores them side by side or has neither."""
    first = next((t for t in (*results, *tensors) if set(names) <= set(t.order)), None)
    order = names if first is None else tuple(d for d in first.order if d in names)
    merged: list[tuple[str, ...]] = []
    for name in order:
        if merged and _merge(merged[-1][-1], name, pattern, tensors):
            merged[-1] = (*merged[-1], name)
        else:
            merged.append((name,))
    return tuple(merged)


def _merge(outer: str, inner: str, pattern: ReductionPattern, tensors: tuple[Operand, ...]) -> bool:
    if outer in pattern.isolated or inner in pattern.isolated:
        return False
    return all(_adjacent(outer, inner, t.order) for t in tensors)


def _adjacent(outer: str, inner: str, order: tuple[str, ...]) -> bool:
    if outer in order and inner in order:
        return order.index(inner) == order.index(outer) + 1
    return outer not in order and inner not in order


def _last(runs: tuple[tuple[str, ...], ...], vector: str | None) -> tuple[tuple[str, ...], ...]:
    """The runs with that of the vector name innermost."""
    return tuple(sorted(runs, key=lambda run: run[-1] == vector))


# --- alignment --------------------------------------------------------------------


def _with_alignments(problem: ReductionProblem, at: Sizes, fine: tuple[bool, ...]) -> ReductionProblem:
    def align(x: Load | ReductionOutput) -> int:
        return alignment(problem, problem.vector, x, at, fine[x.pointer])

    return replace(
        problem,
        loads=tuple(replace(x, align=align(x), span=_span(x, at, fine[x.pointer])) for x in problem.loads),
        outputs=tuple(replace(x, align=align(x)) for x in problem.outputs),
    )


def alignment(
    problem: ReductionProblem,
    mode: int | None,
    x: Load | ReductionOutput,
    at: Sizes,
    aligned: bool,
    most: int = PACK_BYTES,
) -> int:
    """`vector_width` of vectors along a mode; 1 where elements do not lie side by side along it."""
    if mode is None or not contiguous_along(x.axes, mode):
        return 1
    steps = (problem.modes[mode], *(axis.stride for axis in x.axes if axis.stride != ()))
    return vector_width(8 * x.elem.bytes, aligned, map(at.number, steps), most)


def _span(load: Load, at: Sizes, aligned: bool) -> int:
    """`vector_width` along the contiguous axis, so that vectors of it start and end inside."""
    names = {str(i): n for i, n in enumerate(at.values)}
    around = [at.number(axis.stride) for axis in load.axes if axis.stride != ()]
    inner = [axis.extent for axis in load.axes if axis.stride == ()]
    lengths = [evaluate(extent, names) for extent in inner if extent is not None]
    if len(lengths) < len(inner):
        return 1
    return vector_width(8 * load.elem.bytes, aligned, (*around, *lengths))
