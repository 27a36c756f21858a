"""Statistics of concatenations, of each part once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.importer.float64_check import difference
from ucutlass.importer import parts_statistics


class Dense(nn.Module):
    """A block of DenseNet in training, whose batch norms have statistics of all that was concatenated."""

    def __init__(self, layers: int = 5) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(4 + 2 * i) for i in range(layers))
        self.convs = nn.ModuleList(nn.Conv2d(4 + 2 * i, 2, 3, padding=1, bias=False) for i in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(torch.relu(norm(torch.cat(features, 1)))))
        return torch.cat(features, 1)


class Others(nn.Module):
    """Reductions along what is concatenated, of parts of one element, and of other functions."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        whole = torch.cat((x, y, x[:, :1]), 1)
        kept = whole.amax((0, 2), keepdim=True) + whole.sum((0, 2), keepdim=True)
        return (
            whole * kept + whole.mean(1, keepdim=True) - whole.var((1, 2), keepdim=True) + whole.sum(2).sum()
        )


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_statistics, "LEAST", 1)


def test_layers_reduce_what_is_new() -> None:
    torch.manual_seed(0)
    program, wrong = difference(Dense(), torch.randn(3, 4, 5, 6))
    assert not wrong, program.text
    assert not [line for line in program.text.splitlines() if "mean[" in line and "cat" in line], program.text


def test_other_reductions_stay_right() -> None:
    torch.manual_seed(0)
    program, wrong = difference(Others(), torch.randn(2, 3, 5), torch.randn(2, 4, 5))
    assert not wrong, program.text
