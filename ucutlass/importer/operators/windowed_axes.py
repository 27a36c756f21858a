"""The spatial axes of convolutions and pooling, and the names of their dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ucutlass.grammar.syntax import Expr, IndexItem, Name
from ucutlass.importer.expressions import add, affine, mul, plus, sub
from ucutlass.importer.graph import Axes, Axis

SPATIAL = {1: ("L",), 2: ("H", "W"), 3: ("D", "H", "W")}
OUTPUT = {1: ("P",), 2: ("P", "Q"), 3: ("O", "P", "Q")}
WINDOW = {1: ("R",), 2: ("R", "S"), 3: ("T", "R", "S")}
"""Names of the dimensions of an input, an output and a window, by the number of spatial axes."""


@dataclass(frozen=True, slots=True)
class WindowedAxis:
    """One spatial axis of a window operator: extents of input, window and output, and the geometry."""

    input: str
    window: str
    output: str
    size: int
    width: int
    places: int
    stride: int
    padding: int
    dilation: int

    @property
    def direct(self) -> bool:
        """Returns whether the output lies on the input, element by element. It has the input's label then."""
        return (self.width, self.stride, self.padding) == (1, 1, 0) and self.size == self.places

    def position(self) -> Expr:
        """Returns where the input is read: `2*P + R - 1`."""
        at_output = affine(self.output, self.stride)
        if self.width == 1:
            return plus(at_output, -self.padding)
        return plus(add(at_output, affine(self.window, self.dilation)), -self.padding)

    @property
    def reaches(self) -> bool:
        """Returns whether any place of a transposed convolution lies under the window of any element."""
        starts = (p + self.padding - self.dilation * r for p in range(self.places) for r in range(self.width))
        return any(s % self.stride == 0 and 0 <= s // self.stride < self.size for s in starts)

    def transposed(self) -> IndexItem:
        """Returns the equation of a transposed convolution: `2*H = P + 1 - R`."""
        left: Expr = Name(self.input) if self.stride == 1 else mul(self.stride, self.input)
        right = plus(Name(self.output), self.padding)
        if self.width != 1:
            right = sub(right, affine(self.window, self.dilation))
        return IndexItem(left, right)


def per_axis(value: Any, count: int) -> tuple[int, ...]:
    """Returns a number for each of `count` axes, of one for all or one each."""
    many = [value] if isinstance(value, int) else list(value)
    return tuple(many) * count if len(many) == 1 else tuple(many)


def windowed_axes(
    sizes: Sequence[int],
    widths: Sequence[int],
    places: Sequence[int],
    stride: Any,
    padding: Any,
    dilation: Any,
) -> tuple[WindowedAxis, ...]:
    """Returns the axes of extents `sizes` under windows of `widths` at `places`."""
    count = len(sizes)
    columns = zip(
        SPATIAL[count],
        WINDOW[count],
        OUTPUT[count],
        sizes,
        widths,
        places,
        per_axis(stride, count),
        per_axis(padding, count),
        per_axis(dilation, count),
        strict=True,
    )
    spaces = [WindowedAxis(*column) for column in columns]
    return tuple(replace(s, output=s.input) if s.direct else s for s in spaces)


def extents_of(spaces: Sequence[WindowedAxis]) -> dict[str, int]:
    """Returns the extents of all labels."""
    extents: dict[str, int] = {}
    for s in spaces:
        extents |= {s.input: s.size, s.window: s.width, s.output: s.places}
    return extents


def named_axis(label: str, extents: Mapping[str, int], always: bool = False) -> Axis:
    """Returns an axis of this label, or of one element, which has none."""
    return (label,) if always or extents[label] != 1 else ()


def input_axes(spaces: Sequence[WindowedAxis], extents: Mapping[str, int]) -> Axes:
    """An axis that a window reads has a name even with one element: reads outside of it are 0."""
    return tuple(named_axis(s.input, extents, not s.direct) for s in spaces)
