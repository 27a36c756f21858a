"""How a plan cuts a program's dimensions: what the shapes of a suite are made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ucutlass.emit import gemv
from ucutlass.plan import Access, GemmPlan, GemvSchedule, Product, Sm80Schedule, Sm90Schedule
from ucutlass.plans import Plan
from ucutlass.plans.attention import AttentionPlan
from ucutlass.plans.sweep import Load, Output, SweepPlan
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
        case SweepPlan():
            return _sweep(plan, dims)
        case AttentionPlan():
            return _attention(plan, dims)


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
            if one.align > 1 and axis.stride and not any(step.get(i, 1) % one.align == 0 for i in axis.stride):
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
