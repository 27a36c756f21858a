"""Compute types: the element type in which `dot` multiplies, and how it may accumulate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.ir.elements import BF16, E4M3, E5M2, F16, F32, I32, S8, TF32, Element


@dataclass(frozen=True, slots=True)
class ComputeType:
    """A compute type: operands' element, what lies in memory, the dot's own element type.

    `accumulations` are the words that `dot[K](a, b, acc=WORD)` takes, the default first.
    f32 and s32 add in full width; `f16` adds in half precision; `fast` leaves fp8 sums in the
    tensor core, which keeps about 14 bits of them.
    """

    elem: Element
    memory: Element
    result: Element
    accumulations: tuple[str, ...]


COMPUTE_TYPES: Mapping[str, ComputeType] = MappingProxyType(
    {
        compute_type.elem.name: compute_type
        for compute_type in (
            ComputeType(F16, F16, F32, ("f32", "f16")),
            ComputeType(BF16, BF16, F32, ("f32",)),
            ComputeType(TF32, F32, F32, ("f32",)),
            ComputeType(F32, F32, F32, ("f32",)),
            ComputeType(E4M3, E4M3, F32, ("f32", "fast")),
            ComputeType(E5M2, E5M2, F32, ("f32", "fast")),
            ComputeType(S8, S8, I32, ("s32",)),
        )
    }
)
"""By the operands' element type. f32 is multiplied on tensor cores in three tf32 passes or
without them: the schedule's `math` decides, the accuracy is f32's either way."""

FP8: frozenset[Element] = frozenset({E4M3, E5M2})
"""The elements that a dot may mix: an instruction names the type of each operand."""


def multiply_together(left: Element, right: Element) -> bool:
    """Whether a dot takes operands of these elements: equal ones, or two of fp8."""
    return left is right or {left, right} <= FP8
