"""The instructions that epilogues and sweeps become, while they are made."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from ucutlass.elements import BOOL, F32, I32, I64, Element
from ucutlass.plan import Literal_, Round, ScalarKind

ELEMENT: Mapping[ScalarKind, Element] = MappingProxyType({"f32": F32, "i32": I32, "i64": I64, "bool": BOOL})
"""The element whose values a kind holds."""


class _Typed(Protocol):
    @property
    def kind(self) -> ScalarKind: ...


T = TypeVar("T", bound=_Typed)


class Instructions(Generic[T]):
    """Appends instructions, each distinct one once."""

    def __init__(self) -> None:
        self.instructions: list[T | Literal_ | Round] = []
        self._known: dict[T | Literal_ | Round, int] = {}

    def add(self, instruction: T | Literal_ | Round) -> int:
        if instruction not in self._known:
            self._known[instruction] = len(self.instructions)
            self.instructions.append(instruction)
        return self._known[instruction]

    def convert(self, at: int, kind: ScalarKind) -> int:
        """Instruction `at` in another kind; constants change in place."""
        now = self.instructions[at]
        if now.kind == kind:
            return at
        if isinstance(now, Literal_):
            return self.add(Literal_(float(now.value) if kind == "f32" else int(now.value), kind))
        return self.add(Round(at, ELEMENT[kind], kind))

    def kind(self, at: int) -> ScalarKind:
        return self.instructions[at].kind
