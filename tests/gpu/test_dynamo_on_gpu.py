"""torch.compile(.., backend="ucutlass") on a GPU, against the module in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ucutlass.dynamo.backend import Report, backend
from ucutlass.dynamo.options import CompileOptions

pytestmark = pytest.mark.gpu

ERROR = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
"""Norm of the error over the norm of the result. f32 is f32-accurate; in bf16 each stage rounds what it stores."""


class Attention(nn.Module):
    def __init__(self, width: int = 128, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128), nn.Softmax(-1)
    )


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(8, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 16),
    )


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "attention": (Attention, (2, 64, 128)),
    "mlp": (mlp, (4, 32, 128)),
    "convolutions": (convolutions, (4, 8, 18, 20)),
}


def compiled(model: nn.Module, **options: Any) -> tuple[Callable[..., Any], Report]:
    report = Report()
    torch._dynamo.reset()
    return torch.compile(model, backend=backend(CompileOptions(**options), report=report)), report


def error(result: torch.Tensor, model: nn.Module, x: torch.Tensor) -> float:
    exact = copy.deepcopy(model).double()(x.double())
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_inference_is_right(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    make, shape = CASES[name]
    model, x = make().cuda().to(dtype).eval(), torch.randn(shape, device="cuda", dtype=dtype)
    fast, report = compiled(model, fallback="eager", check=True)
    with torch.no_grad():
        assert error(fast(x), model, x) < ERROR[dtype]
        assert error(fast(x), model, x) < ERROR[dtype]
    assert all(graph.texts for graph in report.graphs)


def test_extents_that_vary_compile_once() -> None:
    torch.manual_seed(1)
    model = mlp().cuda().bfloat16()
    fast, report = compiled(model, fallback="error")
    for rows in (3, 17, 64, 250):
        x = torch.randn(2, rows, 128, device="cuda", dtype=torch.bfloat16)
        torch._dynamo.mark_dynamic(x, 1, min=2, max=4096)
        with torch.no_grad():
            assert error(fast(x), model, x) < ERROR[torch.bfloat16]
    assert len(report.graphs) == 1


def test_the_rest_is_inductors_and_training_gives_gradients() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32)).cuda()
    x = torch.randn(48, 64, device="cuda", requires_grad=True)
    fast, report = compiled(model)
    torch.sort(fast(x), dim=-1)[0].square().sum().backward()
    mine = [x.grad, *(p.grad for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    torch.sort(model(x), dim=-1)[0].square().sum().backward()
    for gradient, expected in zip(mine, [x.grad, *(p.grad for p in model.parameters())], strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)
    assert len(report.graphs) == 2
