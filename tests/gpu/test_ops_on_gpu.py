"""The operators of ucutlass.ops on a GPU, against PyTorch in float64."""

from __future__ import annotations

import shutil
import warnings
from typing import Any

import pytest
import torch

from tests.ops.cases import CALLS, Draw, OperatorCall, as_tuple, converted
from ucutlass import ops
from ucutlass.ops.registry import OPERATORS, warn_once
from ucutlass.ops.table import TABLE

pytestmark = pytest.mark.gpu

MANY_ROWS = {
    "linear": OperatorCall("linear", lambda r: (r(2, 300, 256), r(512, 256), r(512), "gelu")),
    "gated_mlp": OperatorCall(
        "gated_mlp", lambda r: (r(2, 300, 256), r(512, 256), r(512, 256), r(256, 512), "silu")
    ),
}
CASES = [
    (MANY_ROWS["linear"], torch.bfloat16),
    (MANY_ROWS["linear"], torch.float32),
    (MANY_ROWS["gated_mlp"], torch.bfloat16),
    (CALLS["add_rms_norm"], torch.bfloat16),
    (CALLS["layer_norm"], torch.float16),
    (CALLS["cross_entropy"], torch.bfloat16),
    (CALLS["causal attention of grouped queries"], torch.bfloat16),
    (CALLS["token_attention"], torch.float16),
    (CALLS["expert_linear with bias"], torch.bfloat16),
    (CALLS["expert_mlp"], torch.float16),
]
"""One or two of each kind: every one is a kernel to build."""

ERROR = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Norm of the error over the norm of the result, or over 1 where that is less."""


@pytest.fixture(autouse=True)
def compiler() -> None:
    if not torch.cuda.is_available() or shutil.which("nvcc") is None:
        pytest.skip("no NVIDIA GPU or no nvcc")


def normal(dtype: torch.dtype) -> Draw:
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    return draw


def on_gpu(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments)


def assert_close(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert result.shape == expected.shape
    assert float((result.double() - expected).norm()) <= ERROR[dtype] * max(1.0, float(expected.norm()))


@pytest.mark.parametrize(("call", "dtype"), CASES)
def test_operators_are_right(call: OperatorCall, dtype: torch.dtype) -> None:
    """The first time planned and built, the second time from what is remembered."""
    arguments = on_gpu(call.arguments(normal(dtype)))
    exact = as_tuple(TABLE[call.name].equivalent(*converted(arguments, torch.float64)))
    served = not TABLE[call.name].unserved(*arguments)
    warn_once.cache_clear()
    for _ in range(2):
        with warnings.catch_warnings():
            if served and torch.cuda.get_device_capability()[0] == 9:
                warnings.simplefilter("error", ops.UnservedWarning)
            results = as_tuple(OPERATORS[call.name](*arguments))
        for result, expected in zip(results, exact, strict=True):
            assert_close(result, expected, dtype)


def test_training_gives_pytorchs_gradients() -> None:
    torch.manual_seed(0)
    norm, mlp = ops.RMSNorm(64).cuda(), ops.Linear(64, 32, activation="gelu").cuda()
    layer = torch.compile(lambda x: mlp(norm(x)), backend="aot_eager", fullgraph=True)
    for rows in (3, 17, 40):
        x = torch.randn(rows, 64, device="cuda", requires_grad=True)
        (own,) = torch.autograd.grad(layer(x).square().sum(), x)
        normed = torch.nn.functional.rms_norm(x, (64,), norm.weight)
        right = torch.nn.functional.gelu(torch.nn.functional.linear(normed, mlp.weight, mlp.bias))
        (expected,) = torch.autograd.grad(right.square().sum(), x)
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-4)


def test_calls_can_be_captured() -> None:
    x, gain = torch.randn(8, 64, device="cuda"), torch.randn(64, device="cuda")
    ops.rms_norm(x, gain)  # loads the kernel, which a capture must not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.rms_norm(x, gain)
    x.copy_(torch.randn(8, 64, device="cuda"))
    graph.replay()
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (64,), gain), rtol=1e-4, atol=1e-5)
