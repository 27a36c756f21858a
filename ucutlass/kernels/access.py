"""The access structure of a kernel: how each tensor is addressed by the problem's modes.

Dimensions are referred to by their position in the launch's extent array, tensors by their position in its
pointer array: no name that a program chose gets here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass.ir.elements import Element

Product: TypeAlias = tuple[int, ...]
"""A product of extents, as positions in the extent array; () is 1. An extent, or a stride in
elements."""

MAX_BATCH_MODES = 5
"""Batch modes that a kernel addresses besides m and n; each costs every block a division. A TMA tensor
has five modes in all: CuTe folds those beyond into the last, whose stride divides theirs."""

Stride: TypeAlias = Product | None
"""None: the tensor does not range over this mode (stride 0)."""


@dataclass(frozen=True, slots=True)
class Access:
    """How a tensor is addressed by the problem's modes; strides count elements.

    `pointer` is its position in the pointer array. `align` is the largest power-of-two
    number of elements, up to 16 bytes, that divides the base address and every stride
    but the unit one, along its contiguous mode; 1 if no mode is contiguous. `start` is where in
    the tensor the modes begin: a sum of numbers times strides.
    """

    pointer: int
    elem: Element
    m: Stride
    n: Stride
    k: tuple[Stride, ...]
    batch: tuple[Stride, ...]
    align: int
    start: tuple[tuple[int, Product], ...] = ()

    @property
    def shape(self) -> Literal["scalar", "batch", "row", "column", "full"]:
        """Which of the result's modes it ranges over.

        `row`: values along N, the same in every row (a bias); `column`: values along M;
        `batch`: one value a batch; `full`: over M and N.
        """
        match (self.m is not None, self.n is not None):
            case (True, True):
                return "full"
            case (True, False):
                return "column"
            case (False, True):
                return "row"
            case _:
                return "batch" if any(s is not None for s in self.batch) else "scalar"

    @property
    def contiguous(self) -> Literal["m", "n", "k", None]:
        """The mode of unit stride, if any; modes of extent 1 count as written."""
        for name, stride in (("n", self.n), ("k", self.k[-1] if self.k else None), ("m", self.m)):
            if stride == ():
                return name  # type: ignore[return-value]
        return None


@dataclass(frozen=True, slots=True)
class Store:
    """Writes a value for every (m, n, batch): a result over M and N."""

    access: Access


@dataclass(frozen=True, slots=True)
class Reduction:
    """Combines the values over the modes that `access` lacks (m, n, batch): `sum`, `max`, `min`.

    The result's modes tell which: over N only (access has m), over M only (access has n), or
    both. A mean is a sum of values already divided. A sum of integers takes and adds i64 values and
    saturates to the element at the end (`wide`); everything else arrives in the element's own kind.
    """

    op: Literal["sum", "max", "min"]
    access: Access

    @property
    def of_rows(self) -> bool:
        """Whether each row is reduced over the columns alone."""
        return self.access.m is not None and self.access.n is None

    @property
    def wide(self) -> bool:
        """Whether the values are 64 bits wide."""
        return self.op == "sum" and self.access.elem.kind == "int"


Output: TypeAlias = Store | Reduction
