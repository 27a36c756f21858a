"""The arithmetic of a kernel: instructions over scalars in static single assignment, which never read memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass.ir.elements import Element
from ucutlass.kernels.access import Product

ScalarKind: TypeAlias = Literal["f32", "i32", "i64", "bool"]
"""What an instruction computes in; narrower floats are widened on load, rounded by casts."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A dot's value at this element: f32 (also when accumulated in f16), or i32. `index` tells dots
    apart where a kernel has several."""

    kind: ScalarKind
    index: int = 0


@dataclass(frozen=True, slots=True)
class LoadSlot:
    """The value of epilogue operand `slot` (position in `GemmProblem.inputs`) at this element."""

    slot: int
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class HostScalar:
    """Entry `index` of the scalars array."""

    index: int
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class LiteralValue:
    value: float | int | bool
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class ExtentValue:
    """A product of extents, as a number."""

    extent: Product
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class CoordinateValue:
    """The coordinate along one dimension: `(mode / product(inner)) % product(extent)`, where
    `mode` is the element's coordinate along "m", "n" or batch mode `batch`."""

    mode: Literal["m", "n", "batch"]
    batch: int
    inner: Product
    extent: Product
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class Compute:
    """A function of `ucutlass.ir.functions.FUNCTIONS` over earlier instructions."""

    function: str
    args: tuple[int, ...]
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class Round:
    """Rounds to a narrower element and back (a cast in the program)."""

    arg: int
    elem: Element
    kind: ScalarKind


Instruction: TypeAlias = (
    Accumulator | LoadSlot | HostScalar | LiteralValue | ExtentValue | CoordinateValue | Compute | Round
)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A pure function of scalars in static single assignment: instruction i may use those
    before it; `results[j]` is the instruction that output j receives. Never reads memory."""

    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]
