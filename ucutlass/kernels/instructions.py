"""The instructions that epilogues and reductions become, while they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from ucutlass.ir.elements import BOOL, F32, I32, I64, Element
from ucutlass.ir.functions import ElementwiseFunction
from ucutlass.kernels.arithmetic import LiteralValue, Round, ScalarKind

ELEMENT: Mapping[ScalarKind, Element] = MappingProxyType({"f32": F32, "i32": I32, "i64": I64, "bool": BOOL})
"""The element whose values a kind holds."""


class _Typed(Protocol):
    @property
    def kind(self) -> ScalarKind: ...


T = TypeVar("T", bound=_Typed)


class Instructions(Generic[T]):
    """Appends instructions, each distinct one once."""

    def __init__(self) -> None:
        self.instructions: list[T | LiteralValue | Round] = []
        self._known: dict[T | LiteralValue | Round, int] = {}

    def add(self, instruction: T | LiteralValue | Round) -> int:
        if instruction not in self._known:
            self._known[instruction] = len(self.instructions)
            self.instructions.append(instruction)
        return self._known[instruction]

    def convert(self, at: int, kind: ScalarKind) -> int:
        """Instruction `at` in another kind; constants change in place."""
        now = self.instructions[at]
        if now.kind == kind:
            return at
        if isinstance(now, LiteralValue):
            return self.add(LiteralValue(converted(now.value, kind), kind))
        return self.add(Round(at, ELEMENT[kind], kind))

    def kind(self, at: int) -> ScalarKind:
        return self.instructions[at].kind

    def operand_kind(
        self, function: ElementwiseFunction, at: Sequence[int], outcome: ScalarKind
    ) -> ScalarKind:
        """In which kind a function takes these operands (of `where` those behind the condition) for an
        outcome of that kind. Comparisons meet as arithmetic does: literals adapt where they fit."""
        if function.domain in ("float", "bool"):
            return "f32" if function.domain == "float" else "bool"
        if function.outcome != "bool":
            return outcome
        operands = [self.instructions[i] for i in at]
        if any(operand.kind == "f32" for operand in operands):
            return "f32"
        wide = [operand for operand in operands if operand.kind == "i64" and not _fits(operand)]
        alone = all(isinstance(operand, LiteralValue) for operand in operands)
        return "i64" if wide or alone else "i32"


def _fits(instruction: _Typed) -> bool:
    """Whether it is a literal within i32."""
    return isinstance(instruction, LiteralValue) and -(2**31) <= instruction.value < 2**31


def converted(value: float | int | bool, kind: ScalarKind) -> float | int | bool:
    """A constant in another kind, as a cast gives it: to integers to nearest, ties to even, saturated."""
    match kind:
        case "f32":
            return float(value)
        case "bool":
            return value != 0
        case "i32" | "i64":
            last = 2 ** (31 if kind == "i32" else 63) - 1
            if math.isnan(value):
                return 0
            return int(max(-last - 1, min(last, value if math.isinf(value) else round(value))))
