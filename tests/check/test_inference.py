"""Extents from shapes: the one solver behind the launcher and the reference interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.inference import (
    DividesByZero,
    ExtentConflict,
    Inferred,
    TooSmall,
    UnevenSplit,
    UnknownExtents,
    infer,
    length,
    operand_axes,
)
from ucutlass.ir import MemoryAxis
from ucutlass.ir.extents import Combined, Extent, Fixed, Free, evaluate

A, B = Free("A"), Free("B")
DIMS: Mapping[str, Extent] = {
    "A": A,
    "B": B,
    "G": Fixed(4),
    "P": Combined("+", Combined("*", Fixed(2), A), Fixed(1)),
    "Q": Combined("//", B, Fixed(2)),
}


ONE = Fixed(1)


def axis(*dims: str, extent: Extent = ONE) -> MemoryAxis:
    return MemoryAxis(dims, extent)


DECLARATIONS = [
    [axis("A"), axis("B"), axis("P"), axis("Q"), axis()],
    [axis("A", "G"), axis("B", "G", "A")],
    [axis("P"), axis("B", "P")],
    [axis(extent=Combined("-", Fixed(1000), A)), axis("Q", "B"), axis("B")],
    [axis("A", "Q"), axis("B"), axis("G")],
]
"""Each determines A and B: by name, out of composites, out of what is computed of them."""


@given(st.sampled_from(DECLARATIONS), st.integers(1, 999), st.integers(2, 10**6))
def test_sizes_come_back_from_the_shapes_that_they_make(axes: list[MemoryAxis], a: int, b: int) -> None:
    sizes = {name: evaluate(extent, {"A": a, "B": b}) for name, extent in DIMS.items()}
    inferred = infer(DIMS, operand_axes("x", axes, [length(one, sizes) for one in axes]))
    assert isinstance(inferred, Inferred)
    assert dict(inferred.sizes) == sizes
    assert list(inferred.sizes) == list(DIMS)
    assert set(inferred.origin) == {"A", "B"}


@given(st.sampled_from(DECLARATIONS), st.integers(1, 99), st.integers(2, 99), st.data())
def test_no_other_shape_passes(axes: list[MemoryAxis], a: int, b: int, data: st.DataObject) -> None:
    """A shape is accepted only where the sizes found make that very shape."""
    sizes = {name: evaluate(extent, {"A": a, "B": b}) for name, extent in DIMS.items()}
    shape = [length(one, sizes) + data.draw(st.integers(-1, 1)) for one in axes]
    inferred = infer(DIMS, operand_axes("x", axes, shape), least=1)
    if isinstance(inferred, Inferred):
        assert [length(one, inferred.sizes) for one in axes] == shape
        assert all(value >= 1 for value in inferred.sizes.values())


@pytest.mark.parametrize(
    ("axes", "shape", "wrong"),
    [
        ([axis("A", "B")], [6], UnknownExtents),
        ([axis("A"), axis("B", "A")], [0, 0], TooSmall),
        ([axis("A"), axis("B")], [3, 0], TooSmall),
        ([axis("A"), axis("B", "G")], [3, 6], UnevenSplit),
        ([axis("A"), axis("B"), axis("A")], [3, 4, 5], ExtentConflict),
        ([axis("A"), axis("B"), axis("P")], [3, 4, 8], ExtentConflict),
    ],
)
def test_each_problem(axes: list[MemoryAxis], shape: list[int], wrong: type) -> None:
    assert isinstance(infer(DIMS, operand_axes("x", axes, shape), least=1), wrong)


def test_a_division_by_zero_is_a_problem() -> None:
    dims = {"A": A, "R": Combined("//", Fixed(8), Combined("-", A, Fixed(3)))}
    assert isinstance(infer(dims, operand_axes("x", [axis("A")], [3])), DividesByZero)


def test_a_stage_takes_what_no_axis_gives_from_its_pipeline() -> None:
    inferred = infer(DIMS, operand_axes("x", [axis("A")], [3]), around={"A": 9, "B": 7})
    assert isinstance(inferred, Inferred)
    assert (inferred.sizes["A"], inferred.sizes["B"]) == (3, 7)
