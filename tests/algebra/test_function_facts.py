"""Every fact of an element-wise function holds for all arguments, and none that holds is left out of the table."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ucutlass.ir.function_facts import FACTS, facts, named
from ucutlass.ir.functions import FUNCTIONS

BORDERS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    2.0**-149,
    -(2.0**-149),
    1e-30,
    88.0,
    -88.0,
    6.0,
    -3.0,
    40.0,
    -40.0,
)
FLOATS = [
    name
    for name, function in FUNCTIONS.items()
    if function.domain in ("float", "number") and function.outcome != "bool"
]
OF_ONE = [name for name in FLOATS if FUNCTIONS[name].arity[0] == 1]
"""Functions of one argument, with constants behind it that have defaults."""

numbers = st.one_of(st.sampled_from(BORDERS), st.floats(-50, 50))


def _value(name: str, *args: float) -> Tensor:
    return FUNCTIONS[name].reference(*(torch.tensor(a, dtype=torch.float64) for a in args))


def _constants(name: str, draw: st.DataObject, least: float) -> list[float]:
    count = len(FUNCTIONS[name].parameters) - 1
    if name in ("clamp", "hardtanh"):
        return sorted(draw.draw(st.floats(-5, 5)) for _ in range(count))
    return [draw.draw(st.floats(least, 5)) for _ in range(count)]


def test_facts_are_of_functions() -> None:
    assert {*FACTS} <= {*FUNCTIONS}


@pytest.mark.parametrize("name", [*OF_ONE, "clamp"])
@given(data=st.data())
@settings(max_examples=60)
def test_a_function_lies_in_its_range_and_keeps_zero_and_order(name: str, data: st.DataObject) -> None:
    known = facts(name)
    special = st.sampled_from((*BORDERS, math.inf, -math.inf))
    a, b = sorted((data.draw(st.one_of(numbers, special)), data.draw(st.one_of(numbers, special))))
    signed = _constants(name, data, -5.0)
    y = _value(name, a, *signed)
    assert bool(y.isnan()) or known.range[0] <= float(y) <= known.range[1]
    if known.keeps_zero:
        assert float(_value(name, 0.0, *signed)) == 0.0
    if known.keeps_positive and b >= 0:
        assert float(_value(name, b, *signed)) == b or b == math.inf
    if known.rises:
        constants = _constants(name, data, 0.0)
        assert float(_value(name, a, *constants)) <= float(_value(name, b, *constants))
        assert bool(_value(name, math.nan, *constants).isnan())


@pytest.mark.parametrize("name", sorted(named("commutes") - {"and", "or"}))
@given(a=st.floats(allow_nan=True), b=st.floats(allow_nan=True))
@settings(max_examples=30)
def test_the_order_of_arguments_does_not_count(name: str, a: float, b: float) -> None:
    one, other = _value(name, a, b), _value(name, b, a)
    assert torch.equal(one, other) or (bool(one.isnan()) and bool(other.isnan()))


def _grid(name: str, *constants: float) -> tuple[Tensor, Tensor]:
    x = torch.cat(
        (torch.tensor(BORDERS, dtype=torch.float64), torch.linspace(-12, 12, 4001, dtype=torch.float64))
    )
    x = x.sort().values
    return x, FUNCTIONS[name].reference(x, *(torch.tensor(c, dtype=torch.float64) for c in constants))


@pytest.mark.parametrize("name", [n for n in OF_ONE if n not in ("clamp", "hardtanh")])
def test_what_holds_is_in_the_table(name: str) -> None:
    """A fact that a grid of arguments does not refute is one that the table has; logarithms and roots give NaN below
    an edge, of which `rises` and `keeps_positive` say nothing."""
    constants = [[c] * (len(FUNCTIONS[name].parameters) - 1) for c in (0.0, 0.5, 2.0)]
    grids = [_grid(name, *c) for c in constants]
    everywhere = not any(bool(y.isnan().any()) for _, y in grids)
    found = {
        "keeps_zero": all(
            float(y[x == 0].abs().max()) == 0.0 for x, y in grids if not bool(y[x == 0].isnan().any())
        ),
        "rises": everywhere
        and bool(_value(name, math.nan, *constants[1]).isnan())
        and all(bool((y.diff() >= 0).all()) for _, y in grids),
        "keeps_positive": all(bool((y[x >= 0] == x[x >= 0]).all()) for x, y in grids),
    }
    assert found == {fact: getattr(facts(name), fact) for fact in found}
