"""Rows shared by blocks of the whole grid in one launch: they leave their parts of a reduction in global memory, count
themselves there, and go on once all have come (`reduction/exchange.j2`). All of them run at once."""

from __future__ import annotations

from ucutlass.kernels.reduction.plan import ReductionPlan, reductions

SLOT = 32
"""Bytes of global memory in which a block leaves its part of a reduction."""


def _count(plan: ReductionPlan) -> str:
    """Returns how often blocks of the grid meet, as the host computes it."""
    return f"uint64_t(p.rows) * {len(reductions(plan.problem))}"


def counters(plan: ReductionPlan) -> str:
    """Returns the bytes of the counters of blocks that have come, in the workspace."""
    return f"({_count(plan)} * 4 + {SLOT - 1}) / {SLOT} * {SLOT}"


def workspace(plan: ReductionPlan) -> str:
    """Returns the bytes of the counters and of the parts behind them."""
    return f"{counters(plan)} + {_count(plan)} * {plan.schedule.grid * SLOT}"


def meeting(plan: ReductionPlan, i: int) -> str:
    """Returns where the blocks of a row hand each other their parts of reduction i, as a further argument; nothing
    where no blocks of the grid share a row."""
    if plan.schedule.grid == 1:
        return ""
    every = reductions(plan.problem)
    number = f"row * {len(every)} + {every.index(i)}"
    slots = f"p.partial + p.counters + ({number}) * (kGrid * kSlot)"
    return f", Meeting{{reinterpret_cast<uint32_t*>(p.partial) + {number}, {slots}}}"
