"""What the entry of a reduction checks before it launches: alignments and extents that the plan relies on."""

from __future__ import annotations

from ucutlass.emit.reduction.writer import host_extent
from ucutlass.emit.text import product
from ucutlass.kernels.reduction.plan import (
    Load,
    ReductionOutput,
    ReductionProblem,
    ReductionSchedule,
    is_flat,
)
from ucutlass.kernels.reduction.plan_straddle import MOST_STRADDLED, starts
from ucutlass.kernels.reduction.smem import TILE


def filled(problem: ReductionProblem, schedule: ReductionSchedule) -> str:
    """What a schedule relies on, of the columns or of a tile's sides: a row that lies in registers or in shared memory
    is no longer than they hold."""
    if schedule.straddle and is_flat(problem):
        return f"p.elements <= {MOST_STRADDLED}"
    if schedule.short:
        return f"p.rows <= {MOST_STRADDLED // schedule.vector}"
    if schedule.straddle and problem.columns and problem.vector is not None:
        short = f"{product(problem.modes[problem.vector])} <= {MOST_STRADDLED}"
        some = "p.columns > 0" if _relies(schedule) else ""
        return " && ".join(filter(None, (short, some, _lines(problem, schedule))))
    if schedule.transposed:
        sides = ((problem.vector or 0, TILE), (schedule.across, schedule.tile))
        whole = " && {} % {} == 0" if schedule.full else ""
        lengths = [(f"({product(problem.modes[m])})", side) for m, side in sides]
        return " && ".join(f"{length} <= INT32_MAX{whole.format(length, side)}" for length, side in lengths)
    return _lines(problem, schedule)


def _relies(schedule: ReductionSchedule) -> bool:
    """Whether a schedule relies on vectors between a row's ends."""
    return schedule.full or schedule.dense or schedule.keep == "shared"


def _lines(problem: ReductionProblem, schedule: ReductionSchedule) -> str:
    """The numbers of vectors that fill every thread's items, or all but the last, and that a row's lines hold; "" where
    any number will do."""
    line = schedule.threads * schedule.items
    held = bool(problem.columns) and schedule.keep == "registers" and not schedule.look_back
    if schedule.keep == "shared":
        return f"{'p.share' if schedule.sharers > 1 else 'p.columns'} <= {line}"
    if schedule.full:
        return f"p.columns == {line * schedule.sharers}" if held else f"p.columns % {line} == 0"
    if not held:
        return ""
    most = f"p.columns <= {line * schedule.sharers}"
    if not schedule.dense:
        return most
    before = f" - {schedule.sharers - 1} * p.share" if schedule.sharers > 1 else ""
    return f"p.columns{before} >= {(schedule.items - 1) * schedule.threads} && {most}"


def aligned(problem: ReductionProblem, schedule: ReductionSchedule) -> list[dict[str, object]]:
    """Returns, by pointer, the bytes at whose multiples a tensor must start where they are more than an
    element's."""
    every: list[Load | ReductionOutput] = [*problem.loads, *problem.outputs]
    if schedule.straddle:
        return [{"pointer": pointer, "bytes": n} for pointer, n in sorted(starts(problem).items())]
    words = [(problem.loads[k], word) for k, word in schedule.transposed]
    needs: dict[int, int] = {}
    for x, elements in (*((x, _reach(x)) for x in every), *words):
        if elements > 1:
            needs[x.pointer] = max(elements * x.elem.bytes, needs.get(x.pointer, 0))
    return [{"pointer": pointer, "bytes": n} for pointer, n in sorted(needs.items())]


def multiples(problem: ReductionProblem, schedule: ReductionSchedule) -> list[dict[str, object]]:
    """What the plan relies on: vectors divide their mode, words that of a tile, strides keep alignments."""
    needs: dict[tuple[str, int], None] = {}
    vector = schedule.vector
    for k, word in schedule.transposed:
        if word > 1:
            inner = problem.modes[schedule.across]
            strides = [a.stride for a in problem.loads[k].axes if a.stride]
            needs |= dict.fromkeys((product(x), word) for x in (inner, *strides))
    if problem.vector is not None and vector > 1 and not schedule.straddle:
        needs[product(problem.modes[problem.vector]), vector] = None
    every: list[Load | ReductionOutput] = [*problem.loads, *problem.outputs]
    for access in every:
        for axis in access.axes:
            if min(access.align, vector) > 1 and axis.stride and not schedule.straddle:
                needs[product(axis.stride), min(access.align, vector)] = None
            if isinstance(access, Load) and access.span > 1 and axis.extent is not None:
                needs[product(axis.stride) if axis.stride else host_extent(axis.extent), access.span] = None
    return [{"value": value, "of": of} for value, of in needs]


def _reach(access: Load | ReductionOutput) -> int:
    """Elements at whose multiples the tensor must start."""
    return max(access.align, access.span if isinstance(access, Load) else 1)
