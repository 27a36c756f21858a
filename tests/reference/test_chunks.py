"""Element-wise work in pieces is the whole's, and takes little memory and few passes."""

from __future__ import annotations

import pytest
import torch

from tests.reference.counting import Counted, counted
from ucutlass import frontend, ir
from ucutlass.reference import chunks, expect, radius

A, L = 64, 128
CHAIN = (
    "(x: f32[A, L], y: f32[A, L]) -> f32[A, L] {\n"
    "  a = gelu(x + y)\n  b = tanh(a * 0.5 + x)\n  c = silu(b) * y\n  return c * c + relu(c - b) }"
)
MSE = "(x: f32[A, L], y: f32[A, L]) -> f32[] { d = x - y\n return mean[A, L](d * d) }"
WIDE = "(x: f32[A, L], w: f32[L], b: f32[A]) -> f32[A, L] { return gelu(x * w) / (abs(x) + 1.0) + b }"
WRAPS = "(x: i32[A, L], y: f32[L]) -> i32[A, L] { return i32(f32(x) * exp(y)) * x }"


def kernel(text: str) -> ir.Kernel:
    program = frontend.program(frontend.read_text(f"kernel k{text}\n"))
    assert isinstance(program, ir.Kernel)
    return program


def arguments(program: ir.Kernel, wild: bool = False) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    made = []
    for param in program.params:
        assert isinstance(param.type, ir.TensorType)
        x = torch.randn([{"A": A, "L": L}[d] for d in param.type.dims], generator=draw)
        if wild and param.type.elem.kind == "float":
            x.view(-1)[3:8] = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e38, 1e-42])
        made.append((x * 1000).to(torch.int32) if param.type.elem.kind == "int" else x)
    return made


@pytest.mark.parametrize("piece", [1, 100, 1000, A * L - 1])
@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("text", [CHAIN, MSE, WIDE, WRAPS])
def test_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch, text: str, wild: bool, piece: int) -> None:
    program = kernel(text)
    tensors = arguments(program, wild)
    (whole,) = expect(program, tensors)
    monkeypatch.setattr(chunks, "CHUNK", piece)
    (found,) = expect(program, tensors)
    torch.testing.assert_close(found.reference, whole.reference, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.bound, whole.bound)


def work(text: str) -> Counted:
    program = kernel(text)
    tensors = arguments(program)
    return counted(lambda: expect(program, tensors), A * L)


PEAKS = {
    "relu": ("(x: f32[A, L]) -> f32[A, L] { return relu(x) }", 3),
    "gelu": ("(x: f32[A, L]) -> f32[A, L] { return gelu(x) }", 4),
    "chain": (CHAIN, 8),
    "full reduction": (MSE, 4),
    "softmax": ("(x: f32[A, L]) -> f32[A, L] { return softmax[L](x) }", 5),
    "scan": ("(x: f32[A, L]) -> f32[A, L] { return cumsum[L](x) }", 5),
}


@pytest.mark.parametrize(("text", "arrays"), PEAKS.values(), ids=PEAKS)
def test_peaks(monkeypatch: pytest.MonkeyPatch, text: str, arrays: int) -> None:
    monkeypatch.setattr(chunks, "CHUNK", A * L // 32)
    assert work(text).peak <= (arrays + 0.7) * A * L * 8  # beside it what a piece makes for a while


AFFINE = "(x: f32[A, L]) -> f32[A, L] { return (x - mean[A, L](x)) * 2.0 + 1.0 }"
PASSES = {
    "affine": (AFFINE, 60),
    "relu": ("(x: f32[A, L]) -> f32[A, L] { return relu(x) }", 6),
    "gelu": ("(x: f32[A, L]) -> f32[A, L] { return gelu(x) }", 32),
    "sum": ("(x: f32[A, L]) -> f32[] { return sum[A, L](x) }", 6),
    "scan": ("(x: f32[A, L]) -> f32[A, L] { return cumsum[L](x) }", 31),
}


@pytest.mark.parametrize(("text", "most"), PASSES.values(), ids=PASSES)
def test_passes_over_memory(monkeypatch: pytest.MonkeyPatch, text: str, most: int) -> None:
    monkeypatch.setattr(radius, "_FEW", 64)
    assert work(text).passes <= most


@pytest.mark.parametrize(
    ("last", "first", "scale", "exact"),
    [(1.0, 1.0, 1.0, True), (0.1, 1.0, 1.0, False), (1.0, 0.0, 2.0**20, True), (2.0**-20, 0.0, 1.0, False)],
)
def test_a_few_terms_do_not_decide_that_a_sum_is_exact(
    monkeypatch: pytest.MonkeyPatch, last: float, first: float, scale: float, exact: bool
) -> None:
    monkeypatch.setattr(radius, "_FEW", 8)
    monkeypatch.setattr(radius, "CHUNK", 16)
    x = torch.full((64,), 3.0)
    x[:20], x[-1] = first, last
    (found,) = expect(kernel("(x: f32[L]) -> f32[] { return sum[L](x) }"), [x * scale])
    assert bool(found.bound == 0) is exact


def test_a_case_of_which_all_becomes_nan_takes_few_passes() -> None:
    """A suite asks it of every stage. It took 154 passes."""
    program = kernel(AFFINE)
    (odd,) = arguments(program)
    odd[0, 0] = torch.nan
    assert counted(lambda: expect(program, [odd]), A * L).passes <= 121
