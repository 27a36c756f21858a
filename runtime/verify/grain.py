"""How a plan cuts a program's dimensions: what the shapes of a suite are made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ucutlass.emit.gemm import gemv
from ucutlass.kernels.access import Access, Product
from ucutlass.kernels.attention.plan import AttentionPlan
from ucutlass.kernels.convolution.plan import ConvPlan, DirectSchedule, Im2colSchedule
from ucutlass.kernels.gemm.plan import GemmPlan, GemvSchedule, Sm80Schedule, Sm90Schedule
from ucutlass.kernels.grouped_gemm.plan import ProductsPlan, WgmmaSchedule
from ucutlass.kernels.plans import Plan
from ucutlass.kernels.reduction.plan import Load, Output, SweepPlan
from ucutlass.runtime.verify.suite import Grain


def grain_of(plan: Plan, dims: Sequence[str], splits: int = 1) -> Grain:
    """A plan's grain; `dims` names the program's dimensions by position, as `Kernel.dims` does.
    `splits` is that of the launch: each part of K has a pipeline of its own to fill.

    Of a mode that is several dimensions, the innermost has the tile. Steps make every stride that a
    vector access relies on a multiple of its `Access.align`.
    """
    match plan:
        case GemmPlan():
            return _gemm(plan, dims, splits)
        case ProductsPlan():
            return _products(plan, dims)
        case SweepPlan():
            return _sweep(plan, dims)
        case ConvPlan():
            return _convolution(plan, dims)
        case AttentionPlan():
            return _attention(plan, dims)


def _convolution(plan: ConvPlan, dims: Sequence[str]) -> Grain:
    """The tile lies on the innermost names of the product's modes; axes that vectors run along, and strides
    of results, keep their alignment."""
    problem, schedule = plan.problem, plan.schedule
    tiled = (
        ()
        if isinstance(schedule, DirectSchedule)
        else zip((problem.m, problem.n, problem.k), schedule.tile, strict=True)
    )
    tile = {dims[names[-1]]: extent for names, extent in tiled if names}
    step: dict[int, int] = {}
    for walk in (problem.a, problem.b):
        if walk.contiguous is not None and walk.pack is None:
            step[walk.contiguous.extent] = max(step.get(walk.contiguous.extent, 1), walk.align)
    if isinstance(schedule, DirectSchedule) and problem.batch:
        step[problem.batch[-1][0]] = schedule.width
    if isinstance(schedule, Im2colSchedule) and problem.a.contiguous is not None:
        channel = problem.a.contiguous.extent  # of a group: whole parts
        step[channel] = max(step.get(channel, 1), schedule.part if problem.batch else 1)
    for access in (*problem.gemm.inputs, *(o.access for o in problem.gemm.outputs)):
        for product in (access.m, access.n, *access.batch):
            if product and access.align > 1 and not any(step.get(i, 1) % access.align == 0 for i in product):
                step[product[-1]] = access.align
    return Grain(tile, {dims[i]: n for i, n in step.items()}, {})


def _products(plan: ProductsPlan, dims: Sequence[str]) -> Grain:
    """As a GEMM's: the tile of each mode lies on its innermost dimension."""
    gemm, schedule, second = plan.problem.gemm, plan.schedule, plan.problem.second
    modes = (gemm.m, gemm.n, gemm.k[0])
    tile = {dims[mode[-1]]: extent for mode, extent in zip(modes, schedule.tile, strict=True) if mode}
    operands = (gemm.a, gemm.b, *(() if second is None else (second,)))
    outputs = tuple(output.access for output in gemm.outputs)
    aligned = (*operands, *gemm.inputs, *outputs) if isinstance(schedule, WgmmaSchedule) else ()
    step: dict[int, int] = {}
    for access in aligned:
        contiguous = {"m": gemm.m, "n": gemm.n, "k": gemm.k[0]}.get(access.contiguous or "", ())
        strides = [s for s in (access.m, access.n, *access.k, *access.batch) if s]
        for product in (contiguous, *strides):
            if product and not any(step.get(i, 1) % access.align == 0 for i in product):
                step[product[-1]] = max(step.get(product[-1], 1), access.align)
    stages = schedule.stages if isinstance(schedule, WgmmaSchedule) else 1
    depth = {dims[gemm.k[0][-1]]: schedule.tile[2] * stages} if gemm.k[0] else {}
    return Grain(tile, {dims[i]: n for i, n in step.items()}, depth)


def _attention(plan: AttentionPlan, dims: Sequence[str]) -> Grain:
    """Rows and keys have tiles; the heads are what the kernel was made for, or it refuses."""
    problem, schedule = plan.problem, plan.schedule
    tile: dict[str, int] = {}
    for product, extent in ((problem.scores.m, 64 * schedule.groups), (problem.scores.n, schedule.keys)):
        if product:
            tile[dims[product[-1]]] = extent
    step = {dims[p[-1]]: 8 for p in (problem.scores.k[0], problem.results.n) if p}
    depth = {dims[problem.scores.n[-1]]: schedule.keys * schedule.stages} if problem.scores.n else {}
    return Grain(tile, step, depth)


def _sweep(plan: SweepPlan, dims: Sequence[str]) -> Grain:
    """A tile is what a block takes of the vector mode; vectors divide it, and strides their alignment."""
    problem, schedule = plan.problem, plan.schedule
    if problem.vector is None:
        return Grain({}, {}, {})
    along = schedule.threads if problem.across else schedule.rows
    inner = problem.modes[problem.vector][-1]
    step: dict[int, int] = {inner: schedule.vector}
    every: list[Load | Output] = [*problem.loads, *problem.outputs]
    for one in every:
        for axis in one.axes:
            whole = any(step.get(i, 1) % one.align == 0 for i in axis.stride)
            if one.align > 1 and axis.stride and not whole:
                step[axis.stride[-1]] = one.align
    return Grain({dims[inner]: along * schedule.vector}, {dims[i]: n for i, n in step.items()}, {})


def _gemm(plan: GemmPlan, dims: Sequence[str], splits: int) -> Grain:
    (m, n, k), stages = _tile(plan), _stages(plan)
    problem = plan.problem
    tile: dict[str, int] = {}
    for product, extent in ((problem.m, m), (problem.n, n), (problem.k[-1], k)):
        if product:
            tile[dims[product[-1]]] = extent
    depth = {dims[problem.k[-1][-1]]: k * stages * max(1, splits)} if problem.k[-1] else {}
    return Grain(tile, {dims[i]: step for i, step in _steps(plan).items()}, depth)


def _tile(plan: GemmPlan) -> tuple[int, int, int]:
    match plan.schedule:
        case Sm90Schedule(tile=tile) | Sm80Schedule(tile=tile):
            return tile
        case GemvSchedule(columns=columns) as schedule:
            how = gemv.shape(plan.problem, schedule)
            vector = how.vector if how.order == "k" else 1
            return how.tile_m, columns, how.threads_k * how.unroll * vector


def _stages(plan: GemmPlan) -> int:
    match plan.schedule:
        case Sm90Schedule(stages=stages) | Sm80Schedule(stages=stages):
            return stages
        case GemvSchedule():
            return 1


def _steps(plan: GemmPlan) -> dict[int, int]:
    """By dimension. A product of several extents puts its factor on the innermost, unless
    another one of them carries it already."""
    found: dict[int, int] = {}
    needs = sorted(_needs(plan), key=lambda need: len(need[0]))
    for product, align in needs:
        if not any(found.get(i, 1) % align == 0 for i in product):
            found[product[-1]] = max(found.get(product[-1], 1), align)
    return found


def _needs(plan: GemmPlan) -> Iterator[tuple[Product, int]]:
    """Strides that must be multiples, and of what. Aligns are powers of two."""
    problem = plan.problem
    accesses = [problem.a, problem.b, *problem.inputs, *(o.access for o in problem.outputs)]
    for access in accesses:
        if access.align > 1:
            yield from ((stride, access.align) for stride in _strides(access) if stride)


def _strides(access: Access) -> list[Product | None]:
    return [access.m, access.n, *access.k, *access.batch]
