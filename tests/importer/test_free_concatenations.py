"""Kernels that several stages call concatenate parts of any extents."""

from __future__ import annotations

import torch
from torch import nn

from tests.importer.float64_check import difference


class Growing(nn.Module):
    """Features that each layer adds its own to, as DenseNet has them."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8 + 4 * i, 4, 3, padding=1) for i in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = torch.cat((x, torch.relu(conv(x))), 1)
        return x


class Several(nn.Module):
    """Concatenations of three parts, whose first is one channel in the end, and of what is no whole part."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(7):
            y = torch.cat((x, torch.softmax(x, 1), torch.tanh(x)), 1)
            x = torch.cumsum(torch.cat((y[:, :3], y[:, 4:]), 1), 1)[:, ::3]
        return torch.cat((x[:, :1], torch.softmax(x, 1), x), 1)


def test_layers_share_a_concatenation() -> None:
    torch.manual_seed(0)
    program, wrong = difference(Growing(8).eval(), torch.randn(2, 8, 5, 6))
    assert not wrong, program.text
    assert program.text.count("\nkernel cat") == 1 and "N=C+F" in program.text, program.text


def test_other_concatenations_stay_right() -> None:
    torch.manual_seed(0)
    program, wrong = difference(Several(), torch.randn(2, 6, 5))
    assert not wrong, program.text
    assert program.text.count("(") > 30
