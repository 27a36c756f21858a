"""Closed forms against plain enumeration."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.runtime.module.count import attention_pairs, touched, window_pairs
from ucutlass.runtime.module.operators import counted_whole, counter
from ucutlass.runtime.module.regions import triangle

windows = st.tuples(
    st.integers(1, 30),
    st.integers(0, 30),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(0, 6),
    st.integers(1, 4),
)


def _met(extent: int, outs: int, kernel: int, stride: int, padding: int, dilation: int) -> list[int]:
    places = (o * stride - padding + j * dilation for o in range(outs) for j in range(kernel))
    return [p for p in places if 0 <= p < extent]


@given(windows)
def test_pairs_of_outputs_and_inputs(window: tuple[int, int, int, int, int, int]) -> None:
    assert window_pairs(*window) == len(_met(*window))


@given(windows)
def test_inputs_that_windows_meet(window: tuple[int, int, int, int, int, int]) -> None:
    assert touched(*window) == len(set(_met(*window)))


@given(st.integers(1, 20), st.integers(1, 20))
def test_scores_below_the_causal_mask(queries: int, keys: int) -> None:
    mask = torch.ones(queries, keys).tril()  # as scaled_dot_product_attention documents is_causal
    assert attention_pairs(queries, keys, True) == int(mask.sum())
    assert attention_pairs(queries, keys, False) == queries * keys


@given(st.integers(0, 8), st.integers(0, 8), st.integers(-9, 9))
def test_triangles(rows: int, columns: int, diagonal: int) -> None:
    ones = torch.ones(rows, columns)
    assert triangle(rows, columns, diagonal, True) == int(ones.triu(diagonal).sum())
    assert triangle(rows, columns, diagonal, False) == int(ones.tril(diagonal).sum())


def test_the_more_exact_name_counts() -> None:
    """max of one tensor is a reduction, of two a selection."""
    assert counter("aten.max.other") is not None
    assert counter("aten.no_such_operator.default") is None
    assert counted_whole("aten.mish.default")
    assert not counted_whole("aten.view.default")


def test_every_name_is_an_operator_of_torch() -> None:
    """A misspelt entry would count nothing for ever."""
    from ucutlass.runtime.module.operators import OPERATORS

    packets = {name.split(".")[1] for name in OPERATORS}
    assert [name for name in sorted(packets) if not hasattr(torch.ops.aten, name)] == []
