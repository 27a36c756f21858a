"""Values that take the place of what they are computed from, where rows lie in registers.

A norm of `gelu(x)` needs it in each of its passes, and `x` nowhere else: a thread computes it once, as the row comes, and
keeps it in the registers that held `x`. Only f32 has room for what is computed in f32.
"""

from __future__ import annotations

from ucutlass.kernels.arithmetic import Compute, ExtentValue, HostScalar, LiteralValue
from ucutlass.kernels.reduction.cost import kept
from ucutlass.kernels.reduction.plan import Fetch, ReductionProblem, RowReduce, RowScan, RowWindow, arguments

CHEAP = frozenset({"add", "subtract", "multiply", "negate", "abs", "max", "min", "square"})
"""Functions that cost no more than to read what was kept."""


def applied_values(problem: ReductionProblem) -> dict[int, int]:
    """Returns the loads whose elements a value may replace, by the value's instruction."""
    instructions = problem.instructions
    if any(isinstance(i, RowWindow | RowScan) for i in instructions):
        return {}
    live = _live(problem)
    constants = {i for i in live if isinstance(instructions[i], LiteralValue | HostScalar | ExtentValue)}
    values = {}
    for k in (problem.loads.index(load) for load in kept(problem) if load.elem.name == "f32"):
        fetches = [i for i in live if instructions[i] == Fetch(k, "f32")]
        if len(fetches) == 1 and (value := _replacement(problem, live, constants, fetches[0])) is not None:
            values[value] = k
    return values


def _live(problem: ReductionProblem) -> list[int]:
    """Returns the instructions that a result needs, in order."""
    reached: set[int] = set()
    stack = [o.value for o in problem.outputs]
    for load in problem.loads:
        stack += [a.gathered for a in (*load.axes, *load.guards) if a.gathered is not None]
    while stack:
        i = stack.pop()
        if i not in reached:
            reached.add(i)
            stack += arguments(problem.instructions[i], problem.loads)
    return sorted(reached)


def _replacement(problem: ReductionProblem, live: list[int], constants: set[int], fetch: int) -> int | None:
    """Returns the last instruction through which all that is computed from an element passes, None where that saves
    nothing."""
    instructions = problem.instructions
    below = {fetch}
    for i in live:
        used = set(arguments(instructions[i], problem.loads))
        if isinstance(instructions[i], Compute) and used & below and used <= below | constants:
            below.add(i)
    ends = {
        a for i in live if i not in below for a in arguments(instructions[i], problem.loads) if a in below
    } | {o.value for o in problem.outputs if o.value in below}
    for value in sorted(below - {fetch}, reverse=True):
        through = {fetch}
        for i in sorted(below - {fetch, value}):
            if through.intersection(arguments(instructions[i], problem.loads)):
                through.add(i)
        needed = _needed(problem, value) & below
        dear = any(_function(problem, i) not in CHEAP for i in needed)
        if not through & ends and instructions[value].kind == "f32" and dear:
            return value if any(isinstance(instructions[i], RowReduce) for i in live) else None
    return None


def _needed(problem: ReductionProblem, value: int) -> set[int]:
    """Returns what a value is computed from, and itself."""
    reached: set[int] = set()
    stack = [value]
    while stack:
        i = stack.pop()
        if i not in reached:
            reached.add(i)
            stack += arguments(problem.instructions[i], problem.loads)
    return reached


def _function(problem: ReductionProblem, i: int) -> str:
    instruction = problem.instructions[i]
    return instruction.function if isinstance(instruction, Compute) else "add"
