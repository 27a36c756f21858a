"""How a GEMM cuts the dimensions of its program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ucutlass.kernels.access import Access, Product
from ucutlass.kernels.gemm.plan import GemmPlan, GemvSchedule, LaunchParameters, Sm80Schedule, Sm90Schedule
from ucutlass.kernels.gemm.smem import gemv_cover
from ucutlass.kernels.granularity import Granularity, steps


def granularity(plan: GemmPlan, dims: Sequence[str], launch: Sequence[int]) -> Granularity:
    """Of a mode that is several dimensions, the innermost has the tile. Steps make every stride that a
    vector access relies on a multiple of its `Access.align`."""
    (m, n, k), stages = _tile(plan), _stages(plan)
    splits = LaunchParameters(*launch).splits
    problem = plan.problem
    tile: dict[str, int] = {}
    for product, extent in ((problem.m, m), (problem.n, n), (problem.k[-1], k)):
        if product:
            tile[dims[product[-1]]] = extent
    depth = {dims[problem.k[-1][-1]]: k * stages * max(1, splits)} if problem.k[-1] else {}
    return Granularity(tile, {dims[i]: step for i, step in steps(_needs(plan)).items()}, depth)


def _tile(plan: GemmPlan) -> tuple[int, int, int]:
    match plan.schedule:
        case Sm90Schedule(tile=tile) | Sm80Schedule(tile=tile):
            return tile
        case GemvSchedule(columns=columns) as schedule:
            how = gemv_cover(plan.problem, schedule)
            vector = how.vector if how.order == "k" else 1
            return how.tile_m, columns, how.threads_k * how.unroll * vector


def _stages(plan: GemmPlan) -> int:
    match plan.schedule:
        case Sm90Schedule(stages=stages) | Sm80Schedule(stages=stages):
            return stages
        case GemvSchedule():
            return 1


def _needs(plan: GemmPlan) -> Iterator[tuple[Product, int]]:
    """Strides that must be multiples, and of what. Aligns are powers of two."""
    problem = plan.problem
    accesses = [problem.a, problem.b, *problem.inputs, *(o.access for o in problem.outputs)]
    for access in accesses:
        if access.align > 1:
            yield from ((stride, access.align) for stride in _strides(access) if stride)


def _strides(access: Access) -> list[Product | None]:
    return [access.m, access.n, *access.k, *access.batch]
