"""Compute types, bytes, dead code, conditions, and what is not counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from module_files import worked

from tests.kernelbench.kernelbench_files import module as problem
from ucutlass.runtime.module.work import ComputePolicy, ModuleWork
from ucutlass.sol.costs import SPECIAL

GEMM = 2 * 64 * 32 * 16


def test_a_gemm_with_an_epilogue(tmp_path: Path) -> None:
    """By hand: x 64x16, weight 32x16, bias 32; mish is one operation and one special function."""
    work = worked(tmp_path, problem("F.mish(self.l(x))", "self.l = nn.Linear(16, 32)", x="64, 16"))
    assert work.fused.operations == {"tf32x3": GEMM, "f32": 64 * 32, SPECIAL: 64 * 32}
    assert work.fused.read == 4 * (64 * 16 + 32 * 16 + 32)
    assert work.fused.written == 4 * 64 * 32
    assert [w.label.split()[0] for w in work.operators] == ["aten.linear.default", "aten.mish.default"]
    assert work.unfused.bytes == work.fused.bytes + 2 * 4 * 64 * 32
    assert work.not_counted == {} and work.conditions == () and work.attempts == ()


@pytest.mark.parametrize(
    ("policy", "compute_type"),
    [("pytorch", "tf32x3"), ("f32", "tf32x3"), ("tf32", "tf32"), ("f16", "f16"), ("bf16", "bf16")],
)
def test_float32_products_count_in_the_declared_compute_type(
    tmp_path: Path, policy: ComputePolicy, compute_type: str
) -> None:
    assert worked(tmp_path, problem("a @ b", a="8, 8", b="8, 8"), policy).fused.operations == {
        compute_type: 1024
    }


def test_convolutions_are_tf32_by_default(tmp_path: Path) -> None:
    text = problem("F.conv1d(x, w)", x="1, 4, 8", w="4, 4, 1")
    assert worked(tmp_path, text).fused.operations == {"tf32": 2 * 4 * 4 * 8}
    assert worked(tmp_path, text, "f32").fused.operations == {"tf32x3": 2 * 4 * 4 * 8}


@pytest.mark.parametrize(("cast", "compute_type"), [("half", "f16"), ("bfloat16", "bf16")])
def test_the_element_type_decides_whatever_the_policy(tmp_path: Path, cast: str, compute_type: str) -> None:
    text = problem("a @ a", a=f"torch.rand(8, 8).{cast}()")
    assert worked(tmp_path, text, "tf32").fused.operations == {compute_type: 1024}


def test_fp8_products_count_in_their_compute_type(tmp_path: Path) -> None:
    text = problem(
        "torch._scaled_mm(a, b.t(), s, s, out_dtype=torch.bfloat16)",
        a="torch.rand(16, 32).to(torch.float8_e4m3fn)",
        b="torch.rand(16, 32).to(torch.float8_e4m3fn)",
        s="torch.ones(())",
    )
    work = worked(tmp_path, text, "tf32")
    assert work.fused.operations == {"e4m3": 2 * 16 * 16 * 32}
    assert (work.fused.read, work.fused.written) == (2 * 16 * 32 + 4, 2 * 16 * 16)


def test_packed_arithmetic_counts_less(tmp_path: Path) -> None:
    text = problem("torch.tanh(x + x)", x="torch.rand(64).half()")
    assert worked(tmp_path, text).fused.operations == {"f32": 16, SPECIAL: 32}


def test_dead_code_and_unused_parameters_cost_nothing(tmp_path: Path) -> None:
    body = "unused = self.big(x)\nreturn torch.exp(x)"
    work = worked(tmp_path, problem(body, "self.big = nn.Linear(16, 4096)", x="64, 16"))
    assert work.products == 0
    assert work.fused.bytes == 2 * 4 * 64 * 16


def test_views_of_inputs_are_not_written(tmp_path: Path) -> None:
    work = worked(tmp_path, problem("return x.T, x, x[1:] * 2.0", x="8, 8"))
    assert (work.fused.read, work.fused.written) == (4 * 7 * 8, 4 * 7 * 8)


def test_a_result_that_is_given_twice_is_written_once(tmp_path: Path) -> None:
    work = worked(tmp_path, problem("y = torch.exp(x)\nreturn y, y.T, y[0]", x="8, 8"))
    assert work.fused.written == 4 * 64


def test_writing_over_a_part_costs_the_part(tmp_path: Path) -> None:
    layers = 'self.register_buffer("cache", torch.zeros(1000, 8))'
    work = worked(tmp_path, problem("self.cache[3:5] = x\nreturn x * 2.0", layers, x="2, 8"))
    assert work.fused.read == 4 * 16
    assert work.fused.written == 4 * (16 + 16)


def test_inputs_that_are_changed_are_written(tmp_path: Path) -> None:
    work = worked(tmp_path, problem("x.mul_(2.0)\nreturn x.sum()", x="8, 8"))
    assert work.fused.written == 4 * (64 + 1)


def test_constants_are_made_not_read(tmp_path: Path) -> None:
    work = worked(tmp_path, problem("x + torch.arange(8)", x="8, 8"))
    assert work.fused.read == 4 * 64


def test_training_batch_norm_writes_its_statistics(tmp_path: Path) -> None:
    work = worked(tmp_path, problem("self.l(x)", "self.l = nn.BatchNorm1d(8)", x="32, 8"))
    weights_and_statistics = 4 * 8 * 4 + 8
    assert work.fused.read == 4 * 256 + weights_and_statistics
    assert work.fused.written == 4 * 256 + 2 * 8 * 4 + 8


def test_what_is_not_counted_is_named(tmp_path: Path) -> None:
    text = problem("torch.sort(x)[0] + torch.fft.fft(x).real, x.double() @ x.double()", x="8, 8")
    work = worked(tmp_path, text)
    assert work.not_counted["aten.sort.default"] == 1
    assert work.not_counted["aten.mm.default of float64"] == 1
    assert any(name.startswith("aten._fft") for name in work.not_counted)
    assert work.fused.written == 4 * 64 + 8 * 64
    # Theirs are missing; the bytes of each are there.
    assert all(part.bytes for part in work.operators)


def _conditions(work: ModuleWork) -> str:
    return " | ".join(work.conditions)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("self.l(x).sum(1)", "summed with only linear steps"),
        ("((self.l(x) + 1.0) / 2.0).mean()", "summed with only linear steps"),
        ("torch.relu(self.l(x)).sum(1)", ""),
        ("(self.l(x) * torch.sigmoid(self.l(x))).sum(1)", ""),
        ("torch.softmax(self.l(x).masked_fill(m, -1e9), 1)", "is masked"),
        ("torch.tril(x @ x.T)", "is masked"),
        ("self.l(x)[:, :8]", "only 512 of 2048 values"),
        ("torch.exp(self.l(x))[:32].contiguous()", "only 1024 of 2048 values"),
        ("torch.cat(self.l(x).chunk(4, 1))", ""),
        ("torch.relu(self.l(x)), self.l(x).sum()", "summed with only linear steps"),
        ("F.conv1d(x.view(1, 64, 16), torch.ones(4, 64, 3))", "Winograd"),
        ("F.conv1d(x.view(1, 64, 16), torch.ones(4, 64, 1))", ""),
    ],
)
def test_where_a_kernel_may_do_less(tmp_path: Path, body: str, said: str) -> None:
    text = problem(body, "self.l = nn.Linear(16, 32)", x="64, 16", m="torch.rand(64, 32) > 0.5")
    found = _conditions(worked(tmp_path, text))
    assert (said in found) if said else found == ""
