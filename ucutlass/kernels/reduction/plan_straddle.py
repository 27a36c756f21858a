"""Vectors that do not divide a row, or a line of an element-wise kernel.

They lie at multiples of their bytes in memory, wherever a row begins, so that rows of an odd length are read and written
16 bytes at a time. Every row has the same number of whole vectors, and threads take the elements before the first and
behind the last of them one by one, its *ends*. Of an element-wise kernel, vectors are of its results as they lie, and what
it reads in another order is gathered. Of windows, vectors begin at a line's first element and straddle its end,
and neighbouring threads shift their results to multiples of 16 bytes.
"""

from __future__ import annotations

from dataclasses import replace

from ucutlass.kernels.addresses import PACK_BYTES
from ucutlass.kernels.reduction.plan import (
    Fetch,
    Inside,
    Load,
    Point,
    ReductionOutput,
    ReductionProblem,
    RowReduce,
    RowValue,
    arguments,
    contiguous_along,
    is_flat,
    lies_flat,
    scans_of,
)

SHIFTED = 4
"""Bytes by which vectors are shifted."""

MOST_STRADDLED = 2**30
"""Elements of a row, whose places are 32-bit numbers."""


def phased(problem: ReductionProblem) -> tuple[Load | ReductionOutput, ...]:
    """Returns what has an element for every row and column: all of it begins a row at the same phase of a vector."""
    every = set(range(len(problem.rows) + len(problem.columns)))
    return tuple(x for x in _tensors(problem) if _modes(x) == every)


def starts(problem: ReductionProblem) -> dict[int, int]:
    """Returns the bytes at whose multiples tensors must start, by pointer, whose vectors straddle the ends of rows."""
    if is_flat(problem):
        return {x.pointer: PACK_BYTES for x in _tensors(problem) if lies_flat(problem, x.axes)}
    return {x.pointer: PACK_BYTES for x in _along(problem)} | {
        x.pointer: x.span * x.elem.bytes for x in problem.loads if not problem.columns and x.span > 1
    }


def straddling_vector(problem: ReductionProblem, aligned: tuple[bool, ...] | None) -> int:
    """Returns the elements of a vector that may straddle the ends of rows: 16 bytes of the narrowest tensor along the
    columns. 1 where none may: columns are one run along which every tensor that varies with them is contiguous, and
    those that vary with rows too are laid out alike; results of an element-wise kernel are contiguous. `aligned` is as `reduction_problem` takes it."""
    along = _along(problem)
    apart = aligned is not None and not all(aligned[pointer] for pointer in starts(problem))
    if apart or problem.vector is None:
        return 1
    widest = min(8, PACK_BYTES // min((x.elem.bytes for x in along), default=PACK_BYTES))
    if is_flat(problem):
        flat = all(lies_flat(problem, o.axes) for o in problem.outputs)
        return min(8, PACK_BYTES // max(o.elem.bytes for o in problem.outputs)) if flat else 1
    if not problem.columns:
        return widest if all(o in along for o in problem.outputs) else 1
    picks = any(isinstance(i, RowReduce) and i.op in ("argmax", "argmin") for i in problem.instructions)
    if not problem.across or len(problem.columns) != 1 or problem.windows or scans_of(problem) or picks:
        return 1
    alike = phased(problem)
    moved = [x for x in _tensors(problem) if problem.vector in _modes(x)]
    if not alike or any(isinstance(x, ReductionOutput) and x not in alike for x in moved):
        return 1
    layouts = {frozenset((a.stride, a.at) for a in x.axes) for x in alike}
    if len(along) < len(moved) or len(layouts) > 1 or any(_gathers_along(problem, x) for x in problem.loads):
        return 1
    return widest


def least_straddling(problem: ReductionProblem) -> int:
    """Returns the elements of the shortest vector that may straddle: every tensor's vector is whole words."""
    return max((SHIFTED // x.elem.bytes for x in _tensors(problem) if problem.vector in _modes(x)), default=1)


def by_lines(problem: ReductionProblem) -> ReductionProblem | None:
    """Returns an element-wise problem as one of rows of which nothing is reduced: the runs of its last mode, along which
    vectors lie. None where they lie elsewhere, or windows are reduced."""
    last = len(problem.rows) - 1
    if problem.columns or problem.windows or last < 0 or problem.vector != last:
        return None
    outputs = tuple(replace(o, whole=True) for o in problem.outputs)
    return replace(problem, rows=problem.rows[:-1], columns=problem.rows[-1:], outputs=outputs)


def reads_vectors(problem: ReductionProblem) -> bool:
    """Whether what windows read along the vector mode comes in vectors."""
    along = _along(problem)
    moved = [x for x in problem.loads if problem.vector in _modes(x) or _gathers_along(problem, x)]
    return all(x in along or x.span > 1 for x in moved)


def access_elements(x: Load | ReductionOutput, vector: int) -> int:
    """Returns the elements of a vector between a row's ends that one access moves."""
    return min(vector, PACK_BYTES // x.elem.bytes)


def most_ends(problem: ReductionProblem, vector: int) -> int:
    """Returns the elements at a row's ends at most. A vector of what all rows share begins anywhere, and is taken from
    the two aligned ones that hold it, of which the second lies within the row too."""
    return (3 if shifts(problem) else 2) * vector - 2


def whole_vectors(problem: ReductionProblem, columns: int, vector: int) -> int:
    """Returns the vectors between the ends of a row of so many elements, wherever it begins."""
    return max(0, (columns - (most_ends(problem, vector) - vector + 1)) // vector)


def shifts(problem: ReductionProblem) -> bool:
    """Whether something that varies with columns does not with every row."""
    return any(x not in phased(problem) for x in problem.loads if problem.vector in _modes(x))


def _tensors(problem: ReductionProblem) -> tuple[Load | ReductionOutput, ...]:
    return (*problem.loads, *problem.outputs)


def _along(problem: ReductionProblem) -> list[Load | ReductionOutput]:
    """Returns what is contiguous along the vector mode at every coordinate."""
    return [
        x
        for x in _tensors(problem)
        if contiguous_along(x.axes, problem.vector)
        and all(a.scale == 1 and a.extent is None and a.gathered is None for a in x.axes)
        and not (isinstance(x, Load) and x.guards)
    ]


def _modes(x: Load | ReductionOutput) -> set[int]:
    return {m for axis in x.axes for m, _ in axis.at.terms}


def _gathers_along(problem: ReductionProblem, load: Load) -> bool:
    """Whether an element's column gives a coordinate of a load's."""
    stack = [a.gathered for a in (*load.axes, *load.guards) if a.gathered is not None]
    while stack:
        instruction = problem.instructions[stack.pop()]
        match instruction:
            case Fetch(load=k) if problem.vector in _modes(problem.loads[k]):
                return True
            case Point(at=at) if problem.vector in dict(at.terms):
                return True
            case Inside(axes=axes) if any(problem.vector in dict(a.at.terms) for a in axes):
                return True
        if not isinstance(instruction, RowValue):
            stack += arguments(instruction, problem.loads)
    return False
