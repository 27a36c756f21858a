"""Whole numbers that are made narrower wrap as PyTorch's do, and sums and products are taken in the element that is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.importer.test_from_torch import Function
from ucutlass.importer.program import from_torch

BYTES = torch.tensor([0, 1, 5, 100, 127, 128, 200, 255], dtype=torch.uint8)
SIGNED = torch.tensor([-128, -127, -100, -1, 0, 1, 100, 127], dtype=torch.int8)

WRAPPING: dict[str, Callable[[Tensor], Tensor]] = {
    "sum of two": lambda x: x + x.flip(0),
    "difference": lambda x: x - x.flip(0),
    "product": lambda x: x * x.flip(0),
    "cube": lambda x: x**3,
    "square": lambda x: x * x,
    "negative": lambda x: -x,
    "size": lambda x: x.abs(),
    "shifted": lambda x: x << 3,
    "narrowed": lambda x: (x.int() * 5).to(x.dtype),
    "of the other sign": lambda x: x.to(torch.int8 if x.dtype == torch.uint8 else torch.uint8),
    "added up": lambda x: x.sum(dtype=x.dtype),
    "multiplied": lambda x: x.prod(dtype=x.dtype),
    "running": lambda x: x.cumsum(0, dtype=x.dtype),
}


@pytest.mark.parametrize("x", [BYTES, SIGNED], ids=["u8", "s8"])
@pytest.mark.parametrize("name", WRAPPING)
def test_whole_numbers_of_8_bits_keep_their_low_bits(name: str, x: Tensor) -> None:
    function = WRAPPING[name]
    torch.testing.assert_close(from_torch(Function(function), x).reference(x), function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x % 16,
        lambda x: x >> 4,
        lambda x: x.clamp(3, 90),
        lambda x: torch.where(x > 5, x, 7),
        lambda x: torch.maximum(x, x.flip(0)),
    ],
)
@pytest.mark.parametrize("x", [BYTES, SIGNED], ids=["u8", "s8"])
def test_what_8_bits_hold_is_written_as_it_is(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    program = from_torch(Function(function), x)
    assert "256" not in program.text
    torch.testing.assert_close(program.reference(x), function(x))


def test_64_bits_made_32_keep_their_low_bits() -> None:
    x = torch.tensor([2**32 + 5, -(2**31) - 7, 3, 2**31, -1, 2**40 - 1])
    for function in (lambda x: x.int(), lambda x: x.int() * 3 - 1, lambda x: torch.arange(6).int() + x.int()):
        torch.testing.assert_close(from_torch(Function(function), x).reference(x), function(x))
    program = from_torch(Function(lambda x: torch.arange(6).int() * x), x.int())
    assert "%" not in program.text


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(1, dtype=torch.int64),
        lambda x: x.prod(1, dtype=torch.int32),
        lambda x: x.cumsum(1, dtype=torch.int64),
        lambda x: x[:, :1].cumprod(1, dtype=torch.int64),
        lambda x: x.double().sum(1, dtype=torch.float32),
    ],
)
def test_numbers_are_converted_before_they_are_added_up(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(-3.7, 4.1, 24).view(3, 8)
    torch.testing.assert_close(from_torch(Function(function), x).reference(x), function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: y - x,
        lambda x, y: x * y,
        lambda x, y: torch.maximum(x, y),
        lambda x, y: torch.where(x > y, x, y),
        lambda x, y: x % y,
    ],
)
def test_a_number_of_64_bits_beside_a_tensor_of_32_widens_nothing(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    x = torch.tensor([2**31 - 1, -(2**31), 2**30, 5, -7], dtype=torch.int32)
    y = torch.tensor(3)
    program = from_torch(Function(function), x, y)
    torch.testing.assert_close(program.reference(x, y), function(x, y))
