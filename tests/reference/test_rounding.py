"""Rounding to every element type, against independent enumerations and torch."""

from __future__ import annotations

import math

import pytest
import torch

from ucutlass.ir.elements import BF16, E4M3, E5M2, ELEMENTS, F16, F32, I32, I64, S8, TF32, U8, Element
from ucutlass.reference.errors import UnsupportedError
from ucutlass.reference.rounding import cast, outer_dtype, round_float, store

NARROW = [F16, BF16, E4M3, E5M2]


def _all_finite(elem: Element) -> torch.Tensor:
    """Every finite number of a type of 8 or 16 bits, ascending."""
    carrier = torch.uint8 if elem.bits == 8 else torch.int16
    codes = torch.arange(2**elem.bits, dtype=torch.int64)
    bits = codes.to(torch.uint8) if elem.bits == 8 else (codes - 2**15).to(carrier)
    values = bits.view(outer_dtype(elem)).double()
    return values[values.isfinite()].unique()


@pytest.mark.parametrize("elem", NARROW, ids=lambda e: e.name)
def test_numbers_of_the_type_stay(elem: Element) -> None:
    values = _all_finite(elem)
    assert torch.equal(round_float(values, elem), values)
    assert torch.equal(store(values, elem).double(), values)


@pytest.mark.parametrize("elem", NARROW, ids=lambda e: e.name)
def test_between_neighbours_the_nearer_wins_and_ties_go_to_even(elem: Element) -> None:
    values = _all_finite(elem)
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    assert torch.equal(round_float(torch.nextafter(middle, low), elem), low)
    assert torch.equal(round_float(torch.nextafter(middle, high), elem), high)
    even = store(low, elem).view(torch.uint8 if elem.bits == 8 else torch.int16) % 2 == 0
    assert torch.equal(round_float(middle, elem), torch.where(even, low, high))


def test_rounds_once_where_torch_rounds_twice() -> None:
    x = torch.tensor([1 + 2**-8 + 2**-40], dtype=torch.float64)
    assert x.to(torch.bfloat16).item() == 1.0  # by way of float32, where it becomes a tie
    assert round_float(x, BF16).item() == 1 + 2**-7


def test_f32_rounds_to_the_nearer_neighbour_and_ties_to_even() -> None:
    draw = torch.Generator().manual_seed(0)
    low = torch.randint(0, 0x7F7FFFFE, (10000,), dtype=torch.int32, generator=draw)
    low[:10] = torch.arange(10)  # denormal numbers
    x, y = low.view(torch.float32).double(), (low + 1).view(torch.float32).double()
    middle = (x + y) / 2
    assert torch.equal(round_float(torch.nextafter(middle, x), F32), x)
    assert torch.equal(round_float(torch.nextafter(middle, y), F32), y)
    assert torch.equal(round_float(-middle, F32), -torch.where(low % 2 == 0, x, y))


@pytest.mark.parametrize(
    ("elem", "x", "wanted"),
    [
        (F16, 65519.0, 65504.0),
        (F16, 65520.0, math.inf),
        (F16, -1e9, -math.inf),
        (BF16, 3.4e38, math.inf),
        (F32, 1e39, math.inf),
        (F32, 3.4028235677973366e38, math.inf),
        (F32, 3.4028235677973362e38, (2 - 2**-23) * 2.0**127),
        (TF32, -1e39, -math.inf),
        (E4M3, 449.0, 448.0),
        (E4M3, math.inf, 448.0),
        (E4M3, -1e9, -448.0),
        (E5M2, 1e9, 57344.0),
        (E5M2, -math.inf, -57344.0),
        (F16, math.inf, math.inf),
        (F16, 2.0**-25, 0.0),
        (F16, 2.0**-25 * 1.01, 2.0**-24),
    ],
)
def test_overflow_and_underflow(elem: Element, x: float, wanted: float) -> None:
    assert round_float(torch.tensor([x], dtype=torch.float64), elem).item() == wanted


@pytest.mark.parametrize("elem", [F32, TF32, *NARROW], ids=lambda e: e.name)
def test_nan_stays_nan(elem: Element) -> None:
    assert round_float(torch.tensor([math.nan], dtype=torch.float64), elem).isnan().all()


def test_tf32_keeps_ten_fraction_bits() -> None:
    x = torch.tensor([1 + 2**-11, -(1 + 2**-11), 1 + 3 * 2**-11, 1 + 2**-11 - 2**-30], dtype=torch.float64)
    assert round_float(x, TF32).tolist() == [1.0, -1.0, 1 + 2**-9, 1.0]


def test_integers_round_to_even_and_saturate() -> None:
    x = torch.tensor([0.5, 1.5, -2.5, 127.5, 1e30, -1e30, math.nan, math.inf], dtype=torch.float64)
    assert cast(x, S8).tolist() == [0, 2, -2, 127, 127, -128, 0, 127]
    assert cast(x, U8).tolist() == [0, 2, 0, 128, 255, 0, 0, 255]
    assert cast(x, I32).tolist()[4:] == [2**31 - 1, -(2**31), 0, 2**31 - 1]
    assert cast(x, I64).tolist()[4:] == [2**63 - 1, -(2**63), 0, 2**63 - 1]
    assert cast(torch.tensor([300, -300]), S8).tolist() == [127, -128]


def test_bool_is_nonzero() -> None:
    assert cast(torch.tensor([0.0, -0.0, 0.5, math.nan], dtype=torch.float64), ELEMENTS["bool"]).tolist() == [
        False,
        False,
        True,
        True,
    ]


def test_types_that_never_lie_in_memory_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="tf32"):
        outer_dtype(ELEMENTS["tf32"])


def test_types_of_which_several_lie_in_a_byte_are_not_written() -> None:
    with pytest.raises(UnsupportedError, match="s4"):
        store(torch.zeros(4), ELEMENTS["s4"])
