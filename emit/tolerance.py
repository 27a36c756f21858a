"""Which values may be computed in fast forms: those that are rounded coarsely before anyone sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ucutlass.ir.elements import F16, Element
from ucutlass.kernels.arithmetic import Compute, Round

T = TypeVar("T")

KEEPING = frozenset(
    {"multiply", "divide", "negate", "abs", "where", "min", "max", "clamp", "hardtanh"}
    | {"relu", "leaky_relu", "sqrt", "rsqrt"}
)
"""Functions whose relative error is at most about the sum of their arguments': no sums, where a
small relative error of a term may be a large one of the result."""


def tolerant(
    instructions: Sequence[T], live: Sequence[int], exact: Iterable[int], read: Callable[[T], Iterable[int]]
) -> frozenset[int]:
    """The live instructions whose values only ever reach, through functions that keep relative errors, a
    rounding to a float of 16 bits or fewer: there the fast forms serve. `exact` are the results that are
    stored wider, `read` what any other instruction reads."""
    strict = set(exact)
    for i in reversed(live):
        match instructions[i]:
            case Compute(function, args) if i in strict or function not in KEEPING:
                strict.update(args)
            case Round(arg, elem) if not coarse(elem) and (i in strict or elem.kind != "float"):
                strict.add(arg)
            case Compute() | Round():
                pass
            case instruction:
                strict.update(read(instruction))
    return frozenset(live) - strict


def coarse(elem: Element) -> bool:
    return elem.kind == "float" and elem.bits <= F16.bits
