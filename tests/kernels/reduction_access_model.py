"""Which addresses a reduction's planned loads and stores take, by `emit/reduction/loads.py`: vectors along the vector
mode or across all modes, words of a tile that is transposed, spans of windows. Every access is checked where drawn coordinates put
it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from ucutlass.emit.reduction.loads import Loader, LoadSpan
from ucutlass.emit.reduction.writer import Fields, Writer, touched
from ucutlass.ir.extents import evaluate
from ucutlass.kernels.reduction.plan import (
    AxisAccess,
    LinearIndex,
    Load,
    ReductionOutput,
    ReductionPlan,
    RowWindow,
    contiguous_along,
    lies_flat,
)

MOST = 60
"""Places of one access that are looked at."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A plan with the extents and base addresses of a call: pointer i begins at a multiple of 16 bytes where
    `aligned[i]`, else one element behind one."""

    plan: ReductionPlan
    sizes: tuple[int, ...]
    aligned: tuple[bool, ...]

    def modes(self) -> tuple[int, ...]:
        """Extents of rows, columns and windows."""
        problem = self.plan.problem
        every = (*problem.rows, *problem.columns, *problem.windows)
        return tuple(math.prod(self.sizes[d] for d in run) for run in every)

    def at(self, linear: LinearIndex, coordinates: list[int]) -> int:
        named = {str(i): n for i, n in enumerate(self.sizes)}
        return sum(c * coordinates[m] for m, c in linear.terms) + evaluate(linear.offset, named)

    def address(
        self, x: Load | ReductionOutput, axes: tuple[AxisAccess, ...], coordinates: list[int], draw: Random
    ) -> int:
        """The element's number from a multiple of 16 bytes on, along these axes."""
        found = 0 if self.aligned[x.pointer] else 1
        for axis in axes:
            gathered = axis.gathered is not None
            position = draw.randrange(9) if gathered else self.at(axis.at, coordinates) // axis.scale
            found += position * math.prod(self.sizes[d] for d in axis.stride)
        return found


def wrong_accesses(launch: Launch, draw: Random) -> Iterator[str]:
    """What is wrong with the accesses of a plan; each is a sentence with its numbers."""
    plan, schedule = launch.plan, launch.plan.schedule
    problem, transposed_loads = plan.problem, dict(schedule.transposed)
    if plan.flat:
        tensors: list[Load | ReductionOutput] = [*problem.loads, *problem.outputs]
        for i, x in enumerate(tensors):
            if lies_flat(problem, x.axes) and not (isinstance(x, Load) and x.guards):
                yield from _flat(launch, f"tensor {i}", x, draw)
        return
    for k, load in enumerate(problem.loads):
        moved = [a for a in (*load.axes, *load.guards) if problem.vector in touched(plan, [a])]
        if k in transposed_loads:
            yield from _vectors(
                launch, f"load {k}", load, schedule.across, transposed_loads[k], transposed_loads[k], draw
            )
        elif len(moved) == 1 and contiguous_along(load.axes, problem.vector):
            width = min(load.align, schedule.vector)
            yield from _vectors(launch, f"load {k}", load, problem.vector, schedule.vector, width, draw)
    for i, output in enumerate(problem.outputs):
        if contiguous_along(output.axes, problem.vector) and (output.whole or not problem.across):
            width = min(output.align, schedule.vector)
            yield from _vectors(launch, f"result {i}", output, problem.vector, schedule.vector, width, draw)
    loader = Loader(plan, Writer(plan, Fields(), {}, frozenset()))
    for window in problem.instructions:
        if isinstance(window, RowWindow):
            for span in loader.spans(window):
                yield from _span(launch, span, draw)


def _coordinates(launch: Launch, mode: int | None, step: int, draw: Random) -> list[int]:
    """Drawn coordinates of every mode; along `mode` a multiple of `step`."""
    found = [draw.randrange(max(1, n)) for n in launch.modes()]
    if mode is not None:
        found[mode] -= found[mode] % step
    return found


def _vectors(
    launch: Launch,
    what: str,
    x: Load | ReductionOutput,
    mode: int | None,
    step: int,
    width: int,
    draw: Random,
) -> Iterator[str]:
    assert mode is not None
    if launch.modes()[mode] % step:
        yield f"{what}: {step} elements together along a mode of {launch.modes()[mode]}"
    for _ in range(MOST if width > 1 else 0):
        at = _coordinates(launch, mode, step, draw)
        if (address := launch.address(x, x.axes, at, draw)) % width:
            yield f"{what}: {width * x.elem.bytes} bytes at element {address}"


def _flat(launch: Launch, what: str, x: Load | ReductionOutput, draw: Random) -> Iterator[str]:
    """Vectors that run across all modes begin at multiples of themselves, and elements lie in the order of their numbers."""
    lengths, step = launch.modes(), launch.plan.schedule.vector
    for _ in range(MOST):
        number = draw.randrange(math.prod(lengths))
        start = launch.address(x, x.axes, _unravelled(number - number % step, lengths), draw)
        address = launch.address(x, x.axes, _unravelled(number, lengths), draw)
        if start % step or address - start != number % step:
            yield f"{what}: element {number} at {address}, its vector of {step} at {start}"


def _unravelled(number: int, lengths: tuple[int, ...]) -> list[int]:
    found: list[int] = []
    for length in reversed(lengths):
        number, inner = divmod(number, length)
        found.insert(0, inner)
    return found


def _span(launch: Launch, span: LoadSpan, draw: Random) -> Iterator[str]:
    problem = launch.plan.problem
    load, extent = problem.loads[span.load], span.axis.extent
    assert extent is not None
    length = launch.at(LinearIndex((), extent), [])
    others = tuple(a for a in load.axes if a is not span.axis)
    terms = tuple((m, c) for m, c in span.axis.at.terms if m not in dict(span.modes))
    rest = LinearIndex(terms, span.axis.at.offset)
    for _ in range(MOST if span.align > 1 else 0):
        at = _coordinates(launch, problem.vector, launch.plan.schedule.vector, draw)
        start = launch.at(rest, at) - span.shift
        for x in range(start, start + span.packs * span.align, span.align):
            address = launch.address(load, others, at, draw) + x
            inside = [0 <= x + i < length for i in range(span.align)]
            if inside[0] and (address % span.align or not all(inside)):
                yield f"a span of load {span.load}: {span.align} elements at {address}, {x} of {length}"
