"""How a convolution cuts the dimensions of its program."""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass.kernels.convolution.plan import (
    ConvolutionPlan,
    DepthwiseWgradSchedule,
    DirectSchedule,
    Im2colSchedule,
    RegisterTileSchedule,
    WgradSchedule,
)
from ucutlass.kernels.granularity import Granularity


def granularity(plan: ConvolutionPlan, dims: Sequence[str], launch: Sequence[int]) -> Granularity:
    """The tile lies on the innermost names of the product's modes; axes that vectors run along, and strides
    of results, keep their alignment."""
    problem, schedule = plan.problem, plan.schedule
    tiled = (
        ()
        if isinstance(schedule, (DirectSchedule, DepthwiseWgradSchedule, RegisterTileSchedule))
        else zip((problem.m, problem.n, problem.k), schedule.tile, strict=True)
    )
    tile = {dims[names[-1]]: extent for names, extent in tiled if names}
    step: dict[int, int] = {}
    for operand in (problem.a, problem.b):
        if operand.contiguous is not None and operand.pack is None:
            step[operand.contiguous.extent] = max(step.get(operand.contiguous.extent, 1), operand.align)
    if isinstance(schedule, DirectSchedule) and problem.batch:
        step[problem.batch[-1][0]] = schedule.width
        if schedule.wide and schedule.items > 1 and problem.a.contiguous is not None:
            step[problem.a.contiguous.extent] = schedule.width
    if isinstance(schedule, RegisterTileSchedule):
        step[problem.k[-1]] = max(step.get(problem.k[-1], 1), schedule.channels)
        for run in problem.batch if schedule.vector > 1 else ():
            step[run[0]] = max(step.get(run[0], 1), schedule.vector)
    if isinstance(schedule, WgradSchedule) and problem.a.contiguous is not None and problem.a.pack is None:
        innermost = problem.a.contiguous.extent  # lines of positions are whole 16 bytes, or words
        line = (schedule.word or 16) // problem.a.read.bytes
        step[innermost] = max(step.get(innermost, 1), line if innermost in problem.k else 1)
    if isinstance(schedule, Im2colSchedule | WgradSchedule) and schedule.joined:
        lines = 16 // problem.a.read.bytes  # of a group, beside others' in one row
        for dim in (problem.n[-1], *(problem.k[-1:] if isinstance(schedule, Im2colSchedule) else ())):
            step[dim] = max(step.get(dim, 1), lines)
        if problem.b.join is not None:
            step[problem.n[-1]] = schedule.tile[1] // problem.b.join.count
    if isinstance(schedule, Im2colSchedule) and problem.a.contiguous is not None:
        channel = problem.a.contiguous.extent  # of a group: whole parts
        step[channel] = max(step.get(channel, 1), schedule.part if problem.batch else 1)
    for access in (*problem.gemm.inputs, *(o.access for o in problem.gemm.outputs)):
        for product in (access.m, access.n, *access.batch):
            if product and access.align > 1 and not any(step.get(i, 1) % access.align == 0 for i in product):
                step[product[-1]] = access.align
    return Granularity(tile, {dims[i]: n for i, n in step.items()}, {})
