"""The transposed problem: M and N, and A and B, in each other's place."""

from __future__ import annotations

from dataclasses import replace

from ucutlass.kernels.access import Access
from ucutlass.kernels.arithmetic import CoordinateValue, Instruction
from ucutlass.kernels.gemm.plan import GemmProblem


def transpose(problem: GemmProblem) -> GemmProblem:
    """The same computation with D transposed: what `swap yes` runs. Its own inverse."""
    instructions = tuple(map(_instruction, problem.arithmetic.instructions))
    return replace(
        problem,
        m=problem.n,
        n=problem.m,
        a=_access(problem.b),
        b=_access(problem.a),
        inputs=tuple(map(_access, problem.inputs)),
        outputs=tuple(replace(output, access=_access(output.access)) for output in problem.outputs),
        arithmetic=replace(problem.arithmetic, instructions=instructions),
    )


def _access(access: Access) -> Access:
    return replace(access, m=access.n, n=access.m)


def _instruction(instruction: Instruction) -> Instruction:
    match instruction:
        case CoordinateValue(mode="m"):
            return replace(instruction, mode="n")
        case CoordinateValue(mode="n"):
            return replace(instruction, mode="m")
        case _:
            return instruction
