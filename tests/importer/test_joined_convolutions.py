"""Convolutions of one input whose results are concatenated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.importer.float64_check import difference
from ucutlass.importer.program import from_torch


class Fire(nn.Module):
    """A fire module, with the narrow branch first or last, without biases, or with other functions of the branches."""

    def __init__(
        self, columns: int = 24, taps: tuple[int, int] = (3, 3), bias: bool = True, stride: int = 1
    ) -> None:
        super().__init__()
        around = tuple((n - 1) // 2 for n in taps)
        self.narrow = nn.Conv2d(6, columns, 1, bias=bias, stride=stride)
        self.wide = nn.Conv2d(6, 16, taps, padding=around, bias=bias, stride=stride)
        self.last: Callable[[Tensor], Tensor] = torch.relu
        self.narrow_first = True

    def forward(self, x: Tensor) -> Tensor:
        parts = [torch.relu(self.narrow(x)), self.last(self.wide(x))]
        return torch.cat(parts if self.narrow_first else parts[::-1], 1)


def _wide_first() -> Fire:
    module = Fire()
    module.narrow_first = False
    return module


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(Fire(), id="narrow first"),
        pytest.param(_wide_first(), id="wide first"),
        pytest.param(Fire(bias=False), id="no bias"),
        pytest.param(Fire(taps=(5, 3)), id="other windows"),
        pytest.param(nn.Sequential(Fire(), nn.Conv2d(40, 6, 1), Fire()), id="two"),
    ],
)
def test_branches_become_one_convolution(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.importer.joined_convolutions.pays", lambda *_: True)
    torch.manual_seed(0)
    program, wrong = difference(module, torch.randn(2, 6, 7, 9))
    assert not wrong, program.text
    dots, fires = program.text.count("dot["), sum(isinstance(m, Fire) for m in module.modules())
    assert dots <= 2 * fires - 1, program.text


def _gelu_last() -> Fire:
    module = Fire()
    module.last = torch.nn.functional.gelu
    return module


class Shared(Fire):
    """The narrow branch's result is used twice."""

    def forward(self, x: Tensor) -> Tensor:
        narrow = torch.relu(self.narrow(x))
        return torch.cat([narrow, torch.relu(self.wide(x))], 1).sum(1) + narrow.sum(1)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(_gelu_last(), id="other functions"),
        pytest.param(Fire(stride=2), id="strides"),
        pytest.param(Fire(taps=(1, 1)), id="single pixels alone"),
        pytest.param(Shared(), id="a branch that others read"),
    ],
)
def test_other_branches_stay(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.importer.joined_convolutions.pays", lambda *_: True)
    torch.manual_seed(0)
    program, wrong = difference(module, torch.randn(2, 6, 8, 8))
    assert not wrong, program.text
    assert program.text.count("dot[") == 2, program.text


def test_the_estimate_decides() -> None:
    with torch.device("meta"):
        few, many = Fire(64), Fire(64)
        many.narrow, many.wide = nn.Conv2d(512, 512, 1), nn.Conv2d(512, 16, 3, padding=1)
        images, channels = torch.randn(64, 6, 128, 128), torch.randn(64, 512, 28, 28)
    assert from_torch(few, images).text.count("dot[") == 1
    assert from_torch(many, channels).text.count("dot[") == 2
