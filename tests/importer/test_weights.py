"""Weights of convolutions are put channels last by launches of their own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.importer.float64_check import difference
from ucutlass import frontend, ir
from ucutlass.importer import weights
from ucutlass.shapes import complete


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Conv2d(4, 16, 3), *(nn.Conv2d(16, 16, 3) for _ in range(2)), nn.ConvTranspose2d(16, 16, 3)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


@pytest.mark.parametrize("least", [4, 5], ids=["enough convolutions", "too few"])
def test_weights_are_turned_ahead(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setattr(weights, "LEAST_CONVOLUTIONS", least)
    monkeypatch.setattr(weights, "LEAST_GAIN", -1.0)
    monkeypatch.setattr(weights, "LEAST_SHARE", -1.0)
    torch.manual_seed(0)
    program, wrong = difference(Convolutions().eval(), torch.randn(2, 4, 20, 24))
    assert not wrong
    pipeline = frontend.program(frontend.read_text(program.text))
    assert isinstance(pipeline, ir.Pipeline)
    copies = [
        s for s in pipeline.stages if isinstance(s.call, ir.Kernel) and s.outputs[0].startswith("weights")
    ]
    assert len(copies) == (3 if least == 4 else 0), program.text
    at = dict(zip(pipeline.dims, complete(pipeline, {}), strict=True))
    for copy in copies:
        ((_, type_),) = [(n, t) for n, t in pipeline.buffers if n == copy.outputs[0]]
        assert [at[axis.dims[0]] for axis in type_.axes] == [16, 3, 3, 16]
