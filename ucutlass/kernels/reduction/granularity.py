"""How a reduction cuts the dimensions of its program."""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass.kernels.granularity import Granularity
from ucutlass.kernels.reduction.plan import Load, ReductionOutput, ReductionPlan


def granularity(plan: ReductionPlan, dims: Sequence[str], launch: Sequence[int]) -> Granularity:
    """A tile is what a block takes of the vector mode; vectors divide it, and strides their alignment."""
    problem, schedule = plan.problem, plan.schedule
    if problem.vector is None:
        return Granularity({}, {}, {})
    row_threads = schedule.threads if problem.across else schedule.rows
    inner = problem.modes[problem.vector][-1]
    if schedule.straddle:
        return Granularity({dims[inner]: row_threads * schedule.vector}, {}, {})
    step: dict[int, int] = {inner: schedule.vector}
    every: list[Load | ReductionOutput] = [*problem.loads, *problem.outputs]
    for access in every:
        for axis in access.axes:
            whole = any(step.get(i, 1) % access.align == 0 for i in axis.stride)
            if access.align > 1 and axis.stride and not whole:
                step[axis.stride[-1]] = access.align
    return Granularity(
        {dims[inner]: row_threads * schedule.vector}, {dims[i]: n for i, n in step.items()}, {}
    )
