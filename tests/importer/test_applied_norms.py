"""Batch norms whose work its reader does in its own pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.importer.float64_check import difference
from ucutlass.importer.program import from_torch


class Normalised(nn.Module):
    def __init__(self, reader: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.reader = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), reader

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.reader(self.norm(self.conv(x)))


@pytest.mark.parametrize(
    "reader", [nn.Softmax(-1), nn.Sequential(nn.Tanh(), nn.MaxPool2d(2), nn.GroupNorm(2, 8))]
)
def test_a_reader_applies_a_batch_norm(reader: nn.Module) -> None:
    torch.manual_seed(0)
    small, wrong = difference(Normalised(reader), torch.randn(4, 3, 18, 20))
    assert not wrong, small.text
    with torch.device("meta"):
        large = from_torch(Normalised(reader).to("meta"), torch.randn(64, 3, 130, 130))
    assert "(conv - mean) * rsqrt(var + 1e-5)" in large.text, large.text
    assert "mean: f32[1, " in large.text and "var: f32[1, " in large.text, large.text
