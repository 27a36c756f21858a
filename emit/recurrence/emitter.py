"""Recurrent layers as CUDA C++. The template is `recurrence/recurrence.cu.j2`."""

from __future__ import annotations

from ucutlass.emit import text
from ucutlass.kernels.recurrence.plan import CELLS, PACKET, ROWS_OF_WARP, RecurrentPlan


def render(plan: RecurrentPlan) -> str:
    """The code of a plan, for `ucutlass.emit.text.finish`."""
    return text.render(
        "recurrence/recurrence.cu.j2",
        plan=plan,
        problem=plan.problem,
        schedule=plan.schedule,
        cells=CELLS,
        rows_of_warp=ROWS_OF_WARP,
        packet=PACKET,
    )
