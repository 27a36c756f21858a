"""Where two results differ, in words."""

from __future__ import annotations

import math

import pytest
import torch

from ucutlass.runtime.module import reference
from ucutlass.tasks.result_difference import first_difference

WANTED = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])


@pytest.mark.parametrize("part", [2, 2**26])
def test_the_first_and_how_many(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PART", part)
    found = WANTED + torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.5, 1.0]])
    assert first_difference(WANTED, found, 1.0) == ""
    first = "element (1, 1) is 4.5 and should be 4, to 2.5e-01 (2 of 6 elements)"
    assert first_difference(WANTED, found, 0.25) == first
    each = torch.full_like(WANTED, 0.25)
    each[1, 1] = 0.5
    last = "element (1, 2) is 6 and should be 5, to 2.5e-01 (1 of 6 elements)"
    assert first_difference(WANTED, found, each) == last


def test_bounds_are_not_rounded_to_f32() -> None:
    none = torch.zeros(1, dtype=torch.float64)
    assert 0.3 < 0.300000005 < float(torch.tensor(0.3))
    assert first_difference(none, none + 0.300000005, 0.3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_has_to_be_the_same(value: float) -> None:
    odd = WANTED.clone()
    odd[0, 1] = value
    assert first_difference(odd, odd, 0.0) == ""
    assert first_difference(WANTED, odd, math.inf).startswith(
        f"element (0, 1) is {value:.9g} and should be 1,"
    )
    assert first_difference(odd, WANTED, math.inf).startswith(
        f"element (0, 1) is 1 and should be {value:.9g},"
    )


def test_another_shape() -> None:
    assert first_difference(WANTED, WANTED.T, 0.0) == "it has shape (3, 2) and should have (2, 3)"
    assert first_difference(WANTED[:0], WANTED[:0], 0.0) == ""
