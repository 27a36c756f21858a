"""Numbers of tensors on the host."""

from __future__ import annotations

import math

import pytest
import torch

from ucutlass.reference.host_numbers import extremes, extremes_of, numbers


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64]
)
def test_the_ends_of_each_tensor(dtype: torch.dtype) -> None:
    x, y = torch.tensor([[1.0, -3.0], [2.0, 0.0]]).to(dtype), torch.tensor([5.0]).to(dtype)
    empty = torch.empty(0, dtype=dtype)
    assert extremes_of(x, empty, y) == [(-3.0, 2.0), (0.0, 0.0), (5.0, 5.0)]
    assert extremes(x) == (-3.0, 2.0)


def test_nan_is_told_and_infinities_are() -> None:
    least, most = extremes(torch.tensor([1.0, math.nan, 2.0]))
    assert math.isnan(least) and math.isnan(most)
    assert extremes(torch.tensor([-math.inf, 1.0])) == (-math.inf, 1.0)


def test_a_device_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tensor that lies elsewhere is: the stack is what is brought to the host."""
    stacked: list[int] = []

    def stack(tensors: list[torch.Tensor]) -> torch.Tensor:
        stacked.append(len(tensors))
        return torch.zeros(len(tensors), dtype=torch.float64)

    monkeypatch.setattr(torch, "stack", stack)
    there = [torch.empty((), device="meta", dtype=d) for d in (torch.bool, torch.float32, torch.int64)]
    assert numbers(*there) == [0.0, 0.0, 0.0] and stacked == [3]
    assert numbers() == [] and numbers(torch.tensor(True), torch.tensor(2.5)) == [1.0, 2.5]
    assert stacked == [3]
