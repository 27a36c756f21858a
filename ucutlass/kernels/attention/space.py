"""The schedules around an attention kernel's own."""

from __future__ import annotations

import itertools

from ucutlass.kernels.attention.plan import AttentionPlan, is_tf32
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.space import Axes


def axes(planned: Planned) -> Axes:
    """The values worth trying near a kernel, by field. Stages of TF32 are as many as fit."""
    own, plan = planned.request, planned.plan
    assert own.tile is not None and own.stages is not None and isinstance(plan, AttentionPlan)
    if is_tf32(plan.problem):
        tiles = itertools.product((64, 128, 192), range(32, 257, 32), own.tile[2:])
        return {"tile": tuple(tiles)}
    tiles = itertools.product((64, 128, 192), range(64, 257, 16), own.tile[2:])
    return {"tile": tuple(tiles), "stages": (2, 3, 4)}
