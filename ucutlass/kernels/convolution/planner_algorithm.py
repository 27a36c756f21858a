"""A way to compute a convolution, with what planners ask of the problem to choose one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ucutlass.kernels.convolution.plan import ConvolutionProblem, ConvolutionSchedule, OperandAccess
from ucutlass.kernels.planned import Note

FEW_CHANNELS = 16
"""Channels up to which a window's taps may count as channels, and threads may have register tiles."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A kernel for a convolution: the problem with the orders in which it reads operands, a schedule, the thread blocks
    that share a sum, and why it is taken. `seconds` is the price with copies by which algorithms are compared; that of
    one that is compared with no other is infinite."""

    problem: ConvolutionProblem
    schedule: ConvolutionSchedule
    splits: int
    notes: tuple[Note, ...]
    seconds: float = math.inf


def copies_note(problem: ConvolutionProblem) -> tuple[Note, ...]:
    """Returns the note on operands that are copied, where there are any."""
    names = " and ".join(n for n, w in (("A", problem.a), ("B", problem.b)) if w.pack is not None)
    if not names:
        return ()
    return (
        Note("", "layout", f"{names} copied to the workspace first, channels innermost, padded to 16 bytes"),
    )


def summed_channel(problem: ConvolutionProblem, sizes: tuple[int, ...]) -> int | None:
    """The longest contracted dimension that is one plain axis of each operand, and in no window."""

    def plain(operand: OperandAccess, dim: int) -> bool:
        users = [a for a in operand.axes if dim == a.extent and a.window is None]
        windowed = any(dim == d for a in operand.axes if a.window for d, _ in a.window.terms)
        return len(users) == 1 and not windowed

    channels = [d for d in problem.k if plain(problem.a, d) and plain(problem.b, d)]
    return max(channels, key=lambda d: sizes[d], default=None)


def taps_and_results(problem: ConvolutionProblem, sizes: tuple[int, ...]) -> tuple[int, int]:
    """The products of A's windows that a result sums, and the results that windows stand at: a gradient of weights has
    more of the former."""
    terms = {d for axis in problem.a.axes if axis.window is not None for d, _ in axis.window.terms}
    taps, results = (
        math.prod(sizes[d] for d in terms if (d in problem.k) == summed) for summed in (True, False)
    )
    return taps, results
