"""Complex tensors become their parts where every operator that they pass has parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.dynamo.test_backend import compiled
from tests.importer.float64_check import difference
from ucutlass.dynamo.partition import NO_WORK
from ucutlass.importer.graph import Unsupported
from ucutlass.importer.program import from_torch


def turns(positions: int, width: int) -> torch.Tensor:
    angles = torch.outer(torch.arange(positions).float(), 1 / 100 ** (torch.arange(width) / width))
    return torch.polar(torch.ones_like(angles), angles)


def as_complex(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))


def as_real(z: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(z).flatten(-2)


class Rotary(nn.Module):
    """Rotary positions as Llama's reference code has them: `kept` in a buffer, or made anew by each call."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.kept = kept
        self.q = nn.Linear(16, 16)
        if kept:
            self.register_buffer("turns", turns(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        own = (self.turns if self.kept else turns(32, 4))[:length]
        z = as_complex(self.q(x).view(*x.shape[:2], 2, 8)) * own.view(1, length, 1, 4)
        return as_real(z).flatten(-2)


class Moved(nn.Module):
    """What moves complex elements, and what is computed of each."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor, table: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = as_complex(x)
        chosen = table[places].unsqueeze(0)
        y = (z - chosen) * self.scale.conj() + -z * 0.5
        both = torch.cat([y, z], -1).transpose(-2, -3)
        pairs = torch.stack([both, both * x[..., :1].transpose(0, 1)], 0).expand(2, -1, -1, -1)
        return (
            torch.view_as_real(pairs[:, 1:]),
            pairs.real,
            pairs.permute(0, -1, 2, 1).imag,
            as_real(y.clone()),
        )


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "made"])
def test_rotary_positions_are_one_program(kept: bool) -> None:
    torch.manual_seed(0)
    module, x = Rotary(kept), torch.randn(2, 5, 16)
    program, wrong = difference(module, x)
    assert not wrong and "torch." not in program.text
    assert ("turns: f32[" in program.text) == kept
    fast, report = compiled(module)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
    (graph,) = report.graphs
    assert len(graph.texts) == 1 and {o.why for o in graph.outside} <= NO_WORK


def test_their_gradients_are_right() -> None:
    torch.manual_seed(0)
    module, x = Rotary(True), torch.randn(2, 5, 16, requires_grad=True)
    fast, _ = compiled(module)
    (expected,) = torch.autograd.grad(module(x).square().sum(), x)
    (gradient,) = torch.autograd.grad(fast(x).square().sum(), x)
    torch.testing.assert_close(gradient, expected)


def test_moved_elements_and_complex_arguments() -> None:
    torch.manual_seed(0)
    module, inputs = Moved(), (torch.randn(3, 5, 8), turns(9, 4), torch.tensor([1, 0, 3, 2, 8]))
    program = from_torch(module, *inputs)
    assert "torch." not in program.text
    fast, report = compiled(module)
    with torch.no_grad():
        expected = module(*inputs)
        for results in (program.reference(*inputs), fast(*inputs)):
            for result, e in zip(results, expected, strict=True):
                torch.testing.assert_close(result, e)
        conjugates = inputs[0], inputs[1].conj(), inputs[2]
        torch.testing.assert_close(program.reference(*conjugates), module(*conjugates))
    assert all(len(graph.texts) == 1 for graph in report.graphs)


class Transposed(nn.Module):
    """A product of transposed tensors whose memory order a view and the reader of the result rely on."""

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = as_complex(x).transpose(1, 2) * turns
        return as_real(z.transpose(1, 2).view(*x.shape[:2], -1)), torch.view_as_real(z) * 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_lie_as_the_complex_tensor_does(dynamic: bool) -> None:
    torch.manual_seed(0)
    module, inputs = Transposed(), (torch.randn(2, 5, 3, 8), turns(5, 4))
    expected, imported = module(*inputs), from_torch(module, *inputs).reference(*inputs)
    fast, report = compiled(module)
    for tensor, axis in zip(inputs, (1, 0), strict=True) if dynamic else ():
        torch._dynamo.mark_dynamic(tensor, axis)
    with torch.no_grad():
        results = imported, fast(*inputs)
    for result in results:
        torch.testing.assert_close(result, expected)
    assert [r.stride() for r in results[1]] == [e.stride() for e in expected]
    assert len(report.graphs[0].texts) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.view_as_real(torch.fft.fft(torch.complex(x, x * 2))),
        lambda x: torch.view_as_real(torch.complex(x, x) + 1.0),
        lambda x: torch.view_as_real(torch.complex(x, x) * 1j),
        lambda x: torch.complex(x, x).abs(),
        lambda x: torch.complex(x, x * 2) * 2,
    ],
    ids=["spectrum", "number", "imaginary number", "length", "result"],
)
def test_others_stay_complex_and_right(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Other(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(torch.sin(x))

    x = torch.randn(3, 4)
    with pytest.raises(Unsupported):
        from_torch(Other(), x)
    fast, report = compiled(Other())
    with torch.no_grad():
        torch.testing.assert_close(fast(x), Other()(x))
    assert [len(graph.texts) for graph in report.graphs] == [1]
