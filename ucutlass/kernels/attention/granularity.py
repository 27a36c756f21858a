"""How an attention kernel cuts the dimensions of its program."""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass.kernels.attention.plan import AttentionPlan
from ucutlass.kernels.granularity import Granularity


def granularity(plan: AttentionPlan, dims: Sequence[str], launch: Sequence[int]) -> Granularity:
    """Rows and keys have tiles; the heads are what the kernel was made for, or it refuses."""
    problem, schedule = plan.problem, plan.schedule
    tile: dict[str, int] = {}
    for product, extent in ((problem.scores.m, 64 * schedule.groups), (problem.scores.n, schedule.keys)):
        if product:
            tile[dims[product[-1]]] = extent
    step = {dims[p[-1]]: 8 for p in (problem.scores.k[0], problem.results.n) if p}
    depth = {dims[problem.scores.n[-1]]: schedule.keys * schedule.stages} if problem.scores.n else {}
    return Granularity(tile, step, depth)
