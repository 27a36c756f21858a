"""The schedules around a grouped GEMM's own."""

from __future__ import annotations

import itertools

from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.grouped_gemm.plan import GroupedGemmPlan, SimtSchedule
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.space import ORDER, Axes


def axes(planned: Planned) -> Axes:
    """The values worth trying near a kernel, by field."""
    plan = planned.plan
    assert isinstance(plan, GroupedGemmPlan)
    if isinstance(plan.schedule, SimtSchedule):
        return {"warps": ("pingpong", "cooperative")}
    sliced = ("sliced",) if plan.problem.converts else ()
    return {"warps": ("pingpong", "cooperative", *sliced), **_tiled(planned.request, plan.problem.products)}


def _tiled(own: PartialSchedule, products: int) -> Axes:
    """Stages stay as many as fit, as for one product."""
    assert own.tile is not None
    columns = (64 // products, 128 // products, 256 // products)
    tiles = itertools.product((64, 128, 256), columns, own.tile[2:])
    return {"tile": tuple(tiles), "cluster": ((1, 1), (2, 1), (1, 2)), **ORDER}
