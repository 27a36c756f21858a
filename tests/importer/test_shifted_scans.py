"""Scans behind their neutral element are one kernel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.importer.float64_check import difference


class Exclusive(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((torch.zeros_like(x[:, :1]), torch.cumsum(x[:, :-1], 1)), 1)


class Product(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((torch.ones_like(x[:1]), torch.cumprod(x[:-1], 0)), 0)


class Offsets(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((torch.zeros_like(x[:, :2]), torch.cumsum(x, 1)), 1)


class Other(nn.Module):
    """What is concatenated is not neutral, or the scan runs along another axis."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        behind = torch.cat((torch.ones_like(x[:, :1]), torch.cumsum(x, 1)), 1)
        return behind[:, 1:] + torch.cat((torch.zeros_like(x[:, :1]), torch.cumsum(x, 0)), 1)[:, 1:]


@pytest.mark.parametrize(
    ("module", "exclusive", "one"),
    [(Exclusive, True, True), (Product, True, True), (Offsets, False, True), (Other, False, False)],
)
def test_scans_behind_neutral_elements(module: type[nn.Module], exclusive: bool, one: bool) -> None:
    torch.manual_seed(0)
    program, wrong = difference(module(), torch.rand(5, 7) + 0.5)
    assert not wrong, program.text
    assert ("exclusive=true" in program.text) == exclusive
    assert program.text.startswith("kernel") == one
