"""What is read through a transposition is stored as it is read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.importer.float64_check import difference
from ucutlass import frontend, ir
from ucutlass.importer import viewed_orders
from ucutlass.shapes import complete

HEADS, WIDTH, ROWS = 4, 16, 24


class Heads(nn.Module):
    """Products by head whose result a linear layer reads with the heads side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(HEADS * WIDTH, 32)

    def forward(self, scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        heads = torch.matmul(scores, values)
        batch, _, rows, _ = heads.shape
        return self.out(heads.transpose(1, 2).reshape(batch, rows, HEADS * WIDTH))


def test_heads_are_stored_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewed_orders, "WORTH", 10.0)  # of products as small as these all take the same time
    torch.manual_seed(0)
    program, wrong = difference(
        Heads().eval(), torch.randn(2, HEADS, ROWS, ROWS), torch.randn(2, HEADS, ROWS, WIDTH)
    )
    assert not wrong
    pipeline = frontend.program(frontend.read_text(program.text))
    assert isinstance(pipeline, ir.Pipeline)
    at = dict(zip(pipeline.dims, complete(pipeline, {}), strict=True))
    ((_, stored),) = pipeline.buffers
    assert [at[axis.dims[0]] for axis in stored.axes] == [2, ROWS, HEADS, WIDTH], program.text
