"""One dot of e4m3 with e5m2: checked, planned, interpreted and emitted for each kernel."""

from __future__ import annotations

import pytest
import torch

from ucutlass import frontend
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import emit
from ucutlass.emit.gemm.lean import lean
from ucutlass.ir.elements import E4M3, E5M2
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.reference import evaluate

PAIRS = (("e4m3", "e5m2"), ("e5m2", "e4m3"))
CPP = {"e4m3": "cutlass::float_e4m3_t", "e5m2": "cutlass::float_e5m2_t"}


def text(a: str, b: str, schedule: str = "", arch: str = "sm90a") -> str:
    block = f"schedule {arch} {{ {schedule} }}" if schedule else ""
    return f"kernel k(x: {a}[M, K], w: {b}[N, K]) -> bf16[M, N] {{ return dot[K](x, w) {block} }}"


def plan(program: str, sizes: tuple[int, int, int] = (256, 512, 384), arch: str = "sm90a") -> GemmPlan:
    checked = frontend.read_text(program)
    made = frontend.plan_kernel(checked, frontend.kernel(checked), sizes, arch).planned.plan
    assert isinstance(made, GemmPlan)
    return made


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize("swap", ["no", "yes"])
def test_wgmma_names_each_operands_type(a: str, b: str, swap: str) -> None:
    gemm_plan = plan(text(a, b, f"warps cooperative  swap {swap}"))
    first, second = (a, b) if swap == "no" else (b, a)
    assert (gemm_plan.problem.a.elem.name, gemm_plan.problem.b.elem.name) == (first, second)
    parts = lean(gemm_plan)
    assert f".f32.{first}.{second}" in parts.device.text
    assert (
        f"ElementA = {CPP[first]}" in parts.device.text and f"ElementB = {CPP[second]}" in parts.device.text
    )
    plain = emit(gemm_plan, "").text
    assert f"using ElementA = {CPP[first]};" in plain and f"using ElementB = {CPP[second]};" in plain


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_multistage_kernel_widens_each_operand(a: str, b: str) -> None:
    gemm_plan = plan(text(a, b), sizes=(256, 512, 384), arch="sm80")
    source = emit(gemm_plan, "").text
    assert f"NumericArrayConverter<cutlass::half_t, {CPP[gemm_plan.problem.a.elem.name]}, 4>" in source
    assert f"NumericArrayConverter<cutlass::half_t, {CPP[gemm_plan.problem.b.elem.name]}, 4>" in source
    assert "widen_b(b[n][half]" in source


def test_operands_of_one_type_are_widened_alike() -> None:
    assert "widen_b" not in emit(plan(text("e4m3", "e4m3"), arch="sm80"), "").text


def test_the_reference_multiplies_the_values() -> None:
    checked = frontend.read_text(text("e4m3", "e5m2"))
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(8, 32, generator=draw).to(torch.float8_e4m3fn)
    w = torch.randn(16, 32, generator=draw).to(torch.float8_e5m2)
    (result,) = evaluate(frontend.kernel(checked), [x, w])
    exact = x.double() @ w.double().T
    torch.testing.assert_close(result.double(), exact.to(torch.bfloat16).double())


@pytest.mark.parametrize(
    "program",
    [
        "kernel k(x: e4m3[M, K], w: e5m2[N, K], u: e5m2[N, K]) -> bf16[M, N] "
        "{ return silu(dot[K](x, w)) * dot[K](x, u) }",
        "kernel k(x: e4m3[T, D], w: e5m2[E, F, D], o: i32[E+1]) -> bf16[T, F] "
        "{ return dot[D](x, w[E = segment(T, o)]) }",
        "kernel k(x: e4m3[N, H, C], w: e5m2[O, R=3, C]) -> bf16[N, P=H, O] "
        "{ return dot[R, C](x[H = P + R - 1], w) }",
    ],
    ids=("pair", "ragged", "convolution"),
)
def test_other_families_refuse_it(program: str) -> None:
    checked = frontend.read_text(program)
    with pytest.raises(ProgramError) as caught:
        frontend.pattern(checked, frontend.kernel(checked))
    (problem,) = caught.value.diagnostics
    assert problem.code == "UC0308" and "f16" in (problem.hint or "")


@pytest.mark.parametrize("elem", ["f16", "s8", "f32"])
def test_fp8_mixes_with_nothing_else(elem: str) -> None:
    with pytest.raises(ProgramError) as caught:
        frontend.read_text(text("e4m3", elem))
    assert {d.code for d in caught.value.diagnostics} == {"UC0203"}
    assert {E4M3.name, E5M2.name} == {"e4m3", "e5m2"}
