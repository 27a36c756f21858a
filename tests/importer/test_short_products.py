"""Products that sum a handful of elements."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.importer.float64_check import difference
from ucutlass.importer.program import from_torch


class Mixed(nn.Module):
    """Weights of three states for each, and a product of three rows."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("bhkm,bmhw->bhkw", x.exp(), y) + torch.matmul(x, y)


def test_colours_are_taken_one_by_one() -> None:
    torch.manual_seed(0)
    with torch.device("meta"):
        module, x = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU()), torch.randn(64, 3, 128, 128)
    assert "dot[" not in from_torch(module, x).text


def test_longer_products_stay() -> None:
    with torch.device("meta"):
        module, x = nn.Sequential(nn.Conv2d(9, 6, 1), nn.ReLU()), torch.randn(64, 9, 128, 128)
    assert "dot[C](" in from_torch(module, x).text


@pytest.mark.parametrize("module", [nn.Conv2d(3, 5, 1), nn.Linear(4, 4, bias=False)])
def test_terms_are_right(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.importer.short_products.LEAST_GAIN", -10.0)
    torch.manual_seed(0)
    program, wrong = difference(module, torch.randn(2, 3, 5, 4))
    assert not wrong, program.text
    assert "dot[" not in program.text, program.text


def test_terms_of_several_labels_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.importer.short_products.LEAST_GAIN", -10.0)
    torch.manual_seed(0)
    program, wrong = difference(Mixed(), torch.randn(2, 3, 3, 3), torch.randn(2, 3, 3, 7))
    assert not wrong, program.text
    assert "dot[" not in program.text, program.text
