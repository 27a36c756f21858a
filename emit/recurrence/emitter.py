"""Recurrent layers as CUDA C++. The template is `recurrence/recurrence.cu.j2`."""

from __future__ import annotations

from ucutlass.emit import text
from ucutlass.emit.cuda_types import plain, types_of
from ucutlass.kernels.recurrence.plan import CELLS, MOST_POLLS, PACKET, ROWS_OF_WARP, RecurrentPlan


def render(plan: RecurrentPlan) -> str:
    """The code of a plan, for `ucutlass.emit.text.finish`."""
    return text.render(
        "recurrence/recurrence.cu.j2",
        plan=plan,
        problem=plan.problem,
        schedule=plan.schedule,
        element=plain(plan.problem.element),
        types=types_of((plan.problem.element,)),
        cells=CELLS,
        rows_of_warp=ROWS_OF_WARP,
        packet=PACKET,
        most_polls=MOST_POLLS,
    )
