"""How a grouped GEMM cuts the dimensions of its program."""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass.kernels.granularity import Granularity
from ucutlass.kernels.grouped_gemm.plan import GroupedGemmPlan, WgmmaSchedule


def granularity(plan: GroupedGemmPlan, dims: Sequence[str], launch: Sequence[int]) -> Granularity:
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
    return Granularity(tile, {dims[i]: n for i, n in step.items()}, depth)
