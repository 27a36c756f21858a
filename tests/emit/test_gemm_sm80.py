"""The multistage GEMM: its rules, its text, and its own source run on the host."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.emit.emulator import build
from tests.emit.gemm_plans import SMALL, plain, rich, square
from tests.emit.harness import cutlass_include
from tests.emit.plan_reference import call, run, worst
from ucutlass.emit import emit
from ucutlass.emit.gemm import sm80 as gemm_sm80
from ucutlass.ir.elements import BF16, E4M3, E5M2, F16, F32, I32, S8, TF32, Element
from ucutlass.kernels.gemm.plan import GemmPlan, LaunchParameters, Sm80Schedule
from ucutlass.kernels.gemm.smem import stage_bytes

SIMT = Sm80Schedule((64, 64, 16), (32, 32), 2, "simt")
BYTES = Sm80Schedule((64, 64, 64), (32, 32), 3, "tensor")
WHOLE, SPLIT = LaunchParameters(), LaunchParameters(raster=2, swizzle=4, splits=3)

PLANS: dict[str, GemmPlan] = {
    "f16_aligned": plain(F16, F16, align=8),
    "f16_transposed_f16_sums": plain(F16, F16, "m", "n", align=8, accumulate="f16"),
    "f16_odd": plain(F16, F32, "m", "k"),
    "f16_strided": square(plain(F16, F16, None, None)),
    "bf16_pairs": plain(BF16, BF16, "k", "n", align=2),
    "tf32": plain(TF32, F32, align=4),
    "tf32_transposed": plain(TF32, F32, "m", "n", schedule=Sm80Schedule((48, 64, 16), (48, 16), 3, "tensor")),
    "tf32x3": plain(F32, F32, "k", "n", schedule=replace(SMALL, math="tf32x3")),
    "simt": plain(F32, F32, schedule=SIMT),
    "simt_transposed": plain(
        F32, F32, "m", "n", align=4, schedule=Sm80Schedule((64, 128, 16), (32, 64), 2, "simt")
    ),
    "s8": plain(S8, I32, align=16, schedule=BYTES),
    "s8_transposed": plain(S8, S8, "m", "n", align=16, schedule=BYTES),
    "e4m3": plain(E4M3, F32, align=16, accumulate="fast", schedule=BYTES),
    "e5m2_mixed": plain(E5M2, BF16, "m", "k", align=4, schedule=BYTES),
    "rich": rich(),
    "rich_along_m": rich(S8, BYTES, "m", S8),
    "rich_simt": rich(F32, SIMT, "m", E5M2),
}
EMULATED = ("f16_odd", "tf32x3", "s8_transposed", "e4m3", "rich")
"""What is emulated: each way to shared memory and most ways to multiply. A GPU runs all of PLANS."""


def extents(plan: GemmPlan) -> list[tuple[int, ...]]:
    if plan.problem.dims == 6:
        return [(64, 64, 64, 1, 1, 1), (70, 67, 37, 3, 2, 3), (1, 1, 1, 2, 3, 1), (130, 65, 5, 2, 1, 2)]
    if plan.problem.m == plan.problem.n:
        return [(1, 1, 1), (70, 70, 70)]
    step = max(plan.problem.a.align, plan.problem.outputs[0].access.align)
    shapes = [(64, 64, 64), (step, step, step), (67, 70, 37), (130, 9, 75), (5, 129, 200)]
    return [tuple(-(-n // step) * step for n in shape) for shape in shapes]


# --- rules -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute_type", "schedule", "reason"),
    [
        (F16, replace(SMALL, tile=(64, 64, 16)), "tile K is 16, not a multiple of 32"),
        (F16, replace(SMALL, warp_tile=(32, 8)), "warp tile N is 8, not a multiple of 16"),
        (F16, replace(SMALL, tile=(96, 64, 32)), "6 warps: a power of two"),
        (F16, replace(SMALL, tile=(96, 64, 32), warp_tile=(32, 64)), "3 warps: a power of two"),
        (F16, replace(SMALL, tile=(80, 64, 32)), "not whole warp tiles of 32x32"),
        (F16, replace(SMALL, stages=1), "1 stages"),
        (F16, replace(SMALL, math="simt"), "compute type f16 accumulated in f32 has no math 'simt'"),
        (F32, SMALL, "compute type f32 accumulated in f32 has no math 'tensor'"),
        (F32, replace(SIMT, warp_tile=(64, 16)), "warp tile N is 16, not a multiple of 32"),
        (S8, SMALL, "tile K is 32, not a multiple of 64"),
        (S8, BYTES, ""),
    ],
)
def test_rules(compute_type: Element, schedule: Sm80Schedule, reason: str) -> None:
    problem = plain(compute_type, F32).problem
    text = gemm_sm80.check(problem, schedule)
    assert (reason in text) if reason else not text


def test_shared_memory_is_the_larger_of_pipeline_and_epilogue() -> None:
    problem = plain(F16, F16, align=8).problem
    schedule = Sm80Schedule((128, 128, 32), (64, 32), 4, "tensor")
    assert schedule.stages * stage_bytes(problem, schedule.tile) == 4 * 32 * (128 + 128) * 2
    assert gemm_sm80.rows_staged(problem, schedule) == 64
    assert gemm_sm80.shared_bytes(problem, schedule) == 65536
    shallow = replace(schedule, stages=2)
    assert gemm_sm80.rows_staged(problem, shallow) == 32
    tall = Sm80Schedule((16, 256, 32), (16, 64), 2, "tensor")
    assert gemm_sm80.shared_bytes(problem, tall) == max(2 * 32 * 272 * 2, 16 * 264 * 4)


# --- text ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f16_aligned", "tf32x3", "rich_along_m"])
def test_golden_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"gemm_sm80_{name}.cu", emit(PLANS[name], "").text)


@pytest.mark.parametrize("name", PLANS)
def test_text_is_whole(name: str) -> None:
    source = emit(PLANS[name], "a header\n*/ with // marks")
    assert source.text.count(f"int32_t {source.entry}(") == 1
    assert not re.search(r"{{|}}|{%|None|[(<]<Pass::", re.sub(r"\{\}\{|\{\}\}|\{\{\}", "", source.code))


# --- values ----------------------------------------------------------------------


def _emulate(name: str, folder: Path) -> None:
    plan = PLANS[name]
    entry = build(emit(plan, ""), folder)
    for sizes in extents(plan):
        for launch_parameters in (WHOLE, SPLIT):
            done = run(entry, plan, sizes, launch_parameters, (0.5,) * plan.problem.scalars)
            assert done.code == 0
            assert worst(done, plan.problem) == [0.0] * len(plan.problem.outputs), (sizes, launch_parameters)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [EMULATED[0], *(pytest.param(name, marks=pytest.mark.slow) for name in EMULATED[1:])]
)
def test_integers_come_out_exact_on_the_host(name: str, tmp_path: Path) -> None:
    _emulate(name, tmp_path)


@pytest.mark.slow
def test_arguments_that_break_the_plan_are_refused(tmp_path: Path) -> None:
    plan = plain(F16, F16, align=8)
    entry = build(emit(plan, ""), tmp_path)
    assert run(entry, plan, (8, 8, 8)).code == 0
    assert run(entry, plan, (8, 8, 12)).code == 1
    assert call(entry, [0, 0, 0], (8, 0, 8), (), WHOLE, "cpu", 0) == 1


# --- compiling -------------------------------------------------------------------


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["80", pytest.param("90a", marks=pytest.mark.slow)])
def test_nvcc_takes_it_without_spills(arch: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    schedule = Sm80Schedule((128, 128, 32), (64, 64), 4, "tensor")
    source = tmp_path / "kernel.cu"
    source.write_text(emit(plain(F16, F16, align=8, schedule=schedule), "").text)
    target = f"arch=compute_{arch},code=sm_{arch}"
    command = [nvcc, "-std=c++17", "-gencode", target, f"-I{cutlass_include()}", "-Xptxas", "-v", "-cubin"]
    done = subprocess.run(
        [*command, str(source), "-o", str(tmp_path / "kernel.cubin")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    spills = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert spills and set(spills) == {"0"}
