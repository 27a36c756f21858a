"""The arithmetic of a kernel: instructions over scalars in static single assignment, which never read memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
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


@dataclass(frozen=True, slots=True)
class RowStatistic:
    """Statistic `index` of the element's row: its terms combined over the columns (`Arithmetic.statistics`). In the term of
    the statistic behind it, where that is one of `PAIRED`, of the columns of the block alone."""

    index: int
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class KeptValue:
    """What the kernel keeps of the element from its first pass over a tile: `Arithmetic.kept`."""

    kind: ScalarKind


Instruction: TypeAlias = (
    Accumulator
    | LoadSlot
    | HostScalar
    | LiteralValue
    | ExtentValue
    | CoordinateValue
    | Compute
    | Round
    | RowStatistic
    | KeptValue
)


StatisticOp: TypeAlias = Literal["sum", "mean", "max", "min", "variance", "exponentials", "softmax"]

PAIRED: Mapping[StatisticOp, StatisticOp] = MappingProxyType(
    {"variance": "mean", "exponentials": "max", "softmax": "max"}
)
"""Statistics that blocks take around their own value of the one before them, and then combine together with it."""


@dataclass(frozen=True, slots=True)
class Statistic:
    """The values of instruction `term`, combined along a mode, over all of it.

    The term of a "variance" is the square of the distance to the mean before it, that of "exponentials" the exponential
    of the distance to the largest value before it, whose sum they are. "softmax" has the same term, leaves it in the place
    of the accumulator, and is the factor by which it is then to be multiplied."""

    op: StatisticOp
    term: int
    along: Literal["m", "n"]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A pure function of scalars in static single assignment: instruction i may use those
    before it; `results[j]` is the instruction that output j receives. Never reads memory.

    The term of a statistic depends on statistics before it alone. `kept` is the instruction whose value takes the
    accumulator's place once operands over M and N have been read; None where `KeptValue` is not used."""

    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]
    statistics: tuple[Statistic, ...] = ()
    kept: int | None = None
