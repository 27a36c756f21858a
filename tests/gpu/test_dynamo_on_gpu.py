"""torch.compile(.., backend="ucutlass") on a GPU, against the module in float64."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from pathlib import Path
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
    settings = CompileOptions(**{"choose": "always", **options})
    return torch.compile(model, backend=backend(settings, report=report)), report


def error(result: torch.Tensor, model: nn.Module, x: torch.Tensor) -> float:
    exact = copy.deepcopy(model).double()(x.double())
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_inference_is_right(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    make, shape = CASES[name]
    model, x = make().cuda().to(dtype).eval(), torch.randn(shape, device="cuda", dtype=dtype)
    fast, report = compiled(model, fallback="eager", check=True)
    with torch.no_grad():
        assert error(fast(x), model, x) < ERROR[dtype]
        assert error(fast(x), model, x) < ERROR[dtype]
    assert all(graph.texts for graph in report.graphs)


def test_f32_multiplies_in_tf32_where_eager_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose numbers have three more binary digits than bf16's."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.manual_seed(0)
    model, x = convolutions().cuda().eval(), torch.randn(4, 8, 18, 20, device="cuda")
    fast, report = compiled(model, fallback="eager", check=True)
    with torch.no_grad():
        assert ERROR[torch.float32] < error(fast(x), model, x) < ERROR[torch.bfloat16] / 8
    assert all("tf32(" in text for graph in report.graphs for text in graph.texts.values())


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


@pytest.mark.parametrize("training", [False, True])
def test_the_faster_serves_and_the_choice_is_remembered(
    training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    torch.manual_seed(3)
    model, x = mlp().cuda(), torch.randn(8, 32, 128, device="cuda")
    for remembered in (False, True):
        fast, report = compiled(model, choose="time")
        with torch.set_grad_enabled(training):
            for _ in range(3):
                assert error(fast(x).detach(), model, x) < ERROR[torch.float32]
        (choice,) = report.choices
        assert choice.remembered == remembered and choice.programs_us > 0 and choice.fallback_us > 0
        print(choice)


def test_the_fallback_computes_until_kernels_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    torch.manual_seed(4)
    model, x = mlp().cuda().bfloat16(), torch.randn(4, 32, 128, device="cuda", dtype=torch.bfloat16)
    fast, _ = compiled(model, fallback="eager", wait=False)
    with torch.no_grad():
        assert error(fast(x), model, x) < ERROR[torch.bfloat16]
        for _ in range(600):
            if not any(t.name == "ucutlass-builds" for t in threading.enumerate()):
                break
            time.sleep(0.1)
        for _ in range(3):
            assert error(fast(x), model, x) < ERROR[torch.bfloat16]


@pytest.mark.parametrize("name", CASES)
def test_calls_are_replayed_on_several_streams_and_threads(name: str) -> None:
    torch.manual_seed(5)
    make, shape = CASES[name]
    model = make().cuda().bfloat16().eval()
    fast, _ = compiled(model, fallback="eager", cuda_graphs=True)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    results: list[torch.Tensor] = [torch.empty(0)] * 8
    with torch.no_grad():
        for _ in range(2):
            fast(inputs[0])
    torch.cuda.synchronize()

    def run(number: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                results[number] = fast(inputs[number])
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, result in zip(inputs, results, strict=True):
        assert error(result, model, x) < ERROR[torch.bfloat16]


@pytest.mark.filterwarnings("error::ucutlass.dynamo.fallback.FallbackWarning")
def test_replays_read_weights_that_change() -> None:
    torch.manual_seed(6)
    model, x = mlp().cuda().eval(), torch.randn(4, 32, 128, device="cuda")
    fast, _ = compiled(model, fallback="eager", cuda_graphs=True)
    with torch.no_grad():
        for _ in range(3):
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.01)
            for _ in range(2):
                assert error(fast(x), model, x) < ERROR[torch.float32]


class Decoder(nn.Module):
    """Attention whose mask is made in each call: a window of keys behind each row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[-2], device=x.device)
        distance = place[:, None] - place
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=(distance >= 0) & (distance < 70))


@pytest.mark.parametrize("length", [300, 512])
@pytest.mark.parametrize("dtype", ERROR, ids=str)
def test_a_mask_that_is_a_window_of_keys_is_right(dtype: torch.dtype, length: int) -> None:
    torch.manual_seed(8)
    model, x = Decoder(), torch.randn(2, 4, length, 64, device="cuda", dtype=dtype)
    fast, report = compiled(model, fallback="error")
    with torch.no_grad():
        assert error(fast(x), model, x) < ERROR[dtype]
    assert all("bool" not in text for graph in report.graphs for text in graph.texts.values())
