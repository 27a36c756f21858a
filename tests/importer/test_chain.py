"""Modules that one program cannot hold: several programs in a row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.importer.float64_check import difference
from ucutlass.grammar import parse
from ucutlass.importer.graph import Unsupported
from ucutlass.importer.program import from_torch


class Layer(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 24), nn.Linear(24, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)))).masked_fill(mask, 0.0)


class Deep(nn.Module):
    """Layers that share a mask, with a result in the middle and a buffer that is written."""

    count: Tensor

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.register_buffer("count", torch.zeros(16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mask = torch.arange(16) > 12
        middle = x
        for number, layer in enumerate(self.layers):
            x = layer(x, mask)
            middle = x if number == 1 else middle
        self.count.add_(x.mean(0))
        return middle * 2, x, middle


def test_a_module_that_is_too_long_is_several_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, x = Deep(), torch.randn(5, 16)
    whole = from_torch(module, x)
    assert len(whole.texts) == 1 and whole.texts[0] == whole.text
    monkeypatch.setattr(parse, "MAX_CHARACTERS", 1500)
    program = from_torch(module, x)
    assert 2 <= len(program.texts) <= 8 and max(map(len, program.texts)) <= 1500
    assert program.parameters.keys() == whole.parameters.keys() and program.written == ("count",)
    with torch.no_grad():
        for mine, expected in zip(program.reference(x), module(x), strict=True):
            torch.testing.assert_close(mine, expected)


def test_several_programs_are_compared_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    monkeypatch.setattr(parse, "MAX_CHARACTERS", 1500)
    program, why = difference(Deep(), torch.randn(5, 16))
    assert len(program.texts) > 1 and not why


def test_what_is_written_comes_of_the_last_program(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    module, x = Deep(), torch.randn(5, 16)
    monkeypatch.setattr(parse, "MAX_CHARACTERS", 1500)
    program = from_torch(module, x)
    *_, count = program.kernel.reference(*program.arguments(x))
    with torch.no_grad():
        module(x)
    torch.testing.assert_close(count, module.count)


def test_what_cannot_be_divided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MAX_CHARACTERS", 40)
    with pytest.raises(Unsupported, match="at most 40 are read"):
        from_torch(nn.Linear(8, 8), torch.randn(2, 8))
