"""The verifier on a GPU: emitted kernels stand; a kernel with a mistake falls, and costs its case alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from ucutlass import frontend
from ucutlass.backend import build_kernel
from ucutlass.ir.hardware import arch_for, device_named
from ucutlass.kernels.granularity import Granularity
from ucutlass.runtime.sanitize import SanitizerTool
from ucutlass.runtime.verify import Suite, VerifyCase
from ucutlass.runtime.verify.suite import reduced, suite
from ucutlass.shapes import complete
from ucutlass.tasks import verification
from ucutlass.tasks.verify_cases import facts

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
MULTISTAGE = "schedule sm90a { warps multistage }"
SPLIT = "schedule sm90a { warps multistage  split_k 4 }"


def _gemm(elem: str, out: str, value: str = "dot[K](x, w)", schedule: str = "", more: str = "") -> str:
    head = f"kernel k(x: {elem}[M, K], w: {elem}[N, K]{more}) -> {out}"
    return f"{head} {{ return {value} {schedule} }}"


def _mixed(left: str, right: str) -> str:
    """A dot of two types of fp8."""
    return _gemm(left, "bf16[M, N]").replace(f"w: {left}", f"w: {right}")


KERNELS: dict[str, tuple[str, dict[str, int]]] = {
    "sm90": (
        _gemm("bf16", "bf16[M, N]", "relu(dot[K](x, w) + b)", more=", b: bf16[N]"),
        {"M": 520, "N": 768, "K": 1032},
    ),
    "multistage": (_gemm("f16", "f16[M, N]", schedule=MULTISTAGE), {"M": 257, "N": 200, "K": 333}),
    "split": (_gemm("bf16", "f32[M, N]", schedule=SPLIT), {"M": 64, "N": 128, "K": 4096}),
    "f32": (_gemm("f32", "f32[M, N]"), {"M": 130, "N": 96, "K": 512}),
    "fp8": (_gemm("e4m3", "bf16[M, N]"), {"M": 256, "N": 256, "K": 512}),
    "mixed fp8": (_mixed("e4m3", "e5m2"), {"M": 256, "N": 384, "K": 512}),
    "mixed fp8, e5m2 first": (_mixed("e5m2", "e4m3"), {"M": 300, "N": 256, "K": 1040}),
    "mixed fp8, multistage": (_mixed("e4m3", "e5m2"), {"M": 257, "N": 200, "K": 333}),
    "mixed fp8, vector": (_mixed("e5m2", "e4m3"), {"M": 1, "N": 512, "K": 1024}),
    "vector": (_gemm("bf16", "bf16[M, N]"), {"M": 1, "N": 512, "K": 1024}),
    "top": (
        _gemm("bf16", "(y: bf16[M, N], top: f32[M])", "y = dot[K](x, w), top = max[N](dot[K](x, w))"),
        {"M": 256, "N": 256, "K": 256},
    ),
}


def _planned(text: str, sizes: dict[str, int]) -> verification.VerificationPlan:
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    name = torch.cuda.get_device_name(0)
    arch = arch_for(torch.cuda.get_device_capability(0))
    assert arch is not None
    extents = complete(program, sizes)
    built = build_kernel(checked, program, extents, arch.name, device=device_named(name))
    return verification.plan(checked, program, built, dict(zip(program.dims, extents, strict=True)), seed=20)


@pytest.mark.parametrize("name", KERNELS)
def test_emitted_kernels_stand(name: str) -> None:
    evidence = verification.run(_planned(*KERNELS[name]))
    assert evidence.ok, "\n".join(evidence.failures())


@pytest.mark.parametrize("name", ["sm90", "multistage", "split"])
def test_emitted_kernels_are_clean_under_the_sanitizer(name: str) -> None:
    for report in verification.sanitizers(_planned(*KERNELS[name]), ("memcheck", "initcheck")):
        if report.status == "not available":
            pytest.skip(report.message)
        assert report.ok, (report.message, report.findings)


# --- a kernel with a mistake ----------------------------------------------------------------

BROKEN = "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](x, w) }"
SIZES = {"M": 30, "K": 50, "N": 20}


def _broken(bug: int, folder: Path) -> verification.VerificationPlan:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    library = folder / "broken.so"
    source = Path(__file__).with_name("broken.cu")
    flags = ["-std=c++17", "-arch=native", f"-DBUG={bug}", "-shared", "-Xcompiler=-fPIC", "-w"]
    subprocess.run([nvcc, *flags, str(source), "-o", str(library)], check=True)
    checked = frontend.read_text(BROKEN)
    program = frontend.kernel(checked)
    grain = Granularity({"M": 16, "N": 16, "K": 16}, {}, {})
    return verification.VerificationPlan(
        facts(checked, "k", [(str(library), "ucc_broken", ())]),
        grain,
        suite(program, SIZES, grain, seed=3),
        reduced(program, SIZES, grain, seed=3),
    )


def _few(plan: verification.VerificationPlan) -> verification.VerificationPlan:
    """Two cases of one row among others."""
    rows = [c for c in plan.suite.cases if c.sizes["M"] == 1][:2]
    others: list[VerifyCase] = [c for c in plan.suite.cases if c.sizes["M"] != 1][:3]
    cases = (others[0], rows[0], others[1], rows[1], others[2])
    return verification.VerificationPlan(plan.kernel, plan.granularity, Suite(cases, (), 3), plan.reduced)


def test_the_kernel_without_a_mistake_stands(tmp_path: Path) -> None:
    evidence = verification.run(_broken(0, tmp_path))
    assert evidence.ok, "\n".join(evidence.failures())


@pytest.mark.parametrize(("bug", "words"), [(1, "illegal memory access"), (2, "did not end within 20 s")])
def test_a_fault_of_the_device_costs_its_case_alone(bug: int, words: str, tmp_path: Path) -> None:
    evidence = verification.run(_few(_broken(bug, tmp_path)), case_seconds=20.0)
    assert [r.outcome for r in evidence.results] == ["right", "lost", "right", "lost", "right"]
    assert words in evidence.results[1].message


@pytest.mark.parametrize(("bug", "words"), [(3, "the result was written past"), (4, "nan, reference")])
def test_a_wrong_access_falls(bug: int, words: str, tmp_path: Path) -> None:
    evidence = verification.run(_broken(bug, tmp_path))
    assert not evidence.ok
    assert all(r.outcome == "wrong" for r in evidence.results if r.case.kind != "refusal")
    assert any(words in line for line in evidence.failures())


@pytest.mark.parametrize(
    ("bug", "tool", "words"),
    [
        (3, "memcheck", "Invalid __global__ write of size 4 bytes"),
        (4, "initcheck", "Uninitialized __global__ memory read of size 4 bytes"),
        (5, "racecheck", "Race reported between"),
        (6, "synccheck", "Barrier error detected"),
    ],
)
def test_the_sanitizer_finds_it(bug: int, tool: SanitizerTool, words: str, tmp_path: Path) -> None:
    (report,) = verification.sanitizers(_broken(bug, tmp_path), (tool,))
    if report.status == "not available":
        pytest.skip(report.message)
    assert report.status == "findings", report
    assert any(words in f.error and "broken" in f.kernel for f in report.findings), report.findings


@pytest.mark.parametrize("tool", ["memcheck", "initcheck", "racecheck", "synccheck"])
def test_the_sanitizer_finds_nothing_where_there_is_nothing(tool: SanitizerTool, tmp_path: Path) -> None:
    (report,) = verification.sanitizers(_broken(0, tmp_path), (tool,))
    if report.status == "not available":
        pytest.skip(report.message)
    assert report.ok, report
