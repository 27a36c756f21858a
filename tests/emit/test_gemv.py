"""The matrix-vector product: its rules, its text, and its own source run on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.emit.emulator import build
from tests.emit.gemm_plans import plain, rich
from tests.emit.plan_reference import run, worst
from ucutlass.emit import emit
from ucutlass.emit.gemm import gemv
from ucutlass.ir.elements import BF16, E4M3, F16, F32, I32, S8, TF32
from ucutlass.kernels.gemm.plan import GemmPlan, GemvSchedule, LaunchParameters

WHOLE, SPLIT = LaunchParameters(), LaunchParameters(raster=2, swizzle=4, splits=3)

PLANS: dict[str, GemmPlan] = {
    "bf16": plain(BF16, F32, align=8, schedule=GemvSchedule(4, 2, 64)),
    "f16_odd": plain(F16, F16, schedule=GemvSchedule(2, 1, 64)),
    "f16_along_m": plain(F16, F16, "m", "k", align=8, schedule=GemvSchedule(8, 4, 16)),
    "f32_along_m_odd": plain(F32, F32, "m", "n", schedule=GemvSchedule(32, 8, 8)),
    "s8": plain(S8, I32, align=16, schedule=GemvSchedule(4, 8, 64)),
    "e4m3_along_m": plain(E4M3, BF16, "m", "n", align=4, schedule=GemvSchedule(16, 2, 8)),
    "tf32": plain(TF32, F32, align=4, schedule=GemvSchedule(1, 1, 128)),
    "rich": rich(BF16, GemvSchedule(4, 2, 64)),
    "rich_along_m": rich(F16, GemvSchedule(2, 4, 32), "m"),
}
EMULATED = ("f16_along_m", "s8", "tf32", "rich")


def extents(plan: GemmPlan) -> list[tuple[int, ...]]:
    if plan.problem.dims == 6:
        return [(64, 2, 64, 1, 1, 1), (70, 3, 37, 3, 2, 3), (1, 1, 1, 2, 3, 1)]
    step = max(plan.problem.a.align, plan.problem.outputs[0].access.align)
    shapes = [(64, 1, 64), (step, step, step), (67, 2, 37), (130, 9, 1075), (5, 3, 2200)]
    return [tuple(-(-n // step) * step for n in shape) for shape in shapes]


@pytest.mark.parametrize(
    ("a", "schedule", "reason"),
    [
        ("k", GemvSchedule(3, 1, 128), "rows is 3, not a power of two"),
        ("k", GemvSchedule(4, 16, 128), "16 columns: at most 8"),
        ("k", GemvSchedule(4, 1, 16), "16 threads a block"),
        ("m", GemvSchedule(64, 1, 32), "2048 threads a block"),
        ("k", GemvSchedule(32, 1, 128), "32 rows: at most 16"),
        ("m", GemvSchedule(32, 1, 8), ""),
        ("k", GemvSchedule(4, 1, 128), ""),
    ],
)
def test_rules(a: str, schedule: GemvSchedule, reason: str) -> None:
    text = gemv.check(plain(BF16, F32, a).problem, schedule)  # type: ignore[arg-type]
    assert (reason in text) if reason else not text


@pytest.mark.parametrize("name", ["bf16", "f16_along_m"])
def test_golden_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"gemv_{name}.cu", emit(PLANS[name], "").text)


@pytest.mark.parametrize(
    "name", [EMULATED[0], *(pytest.param(name, marks=pytest.mark.slow) for name in EMULATED[1:])]
)
def test_integers_come_out_exact_on_the_host(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    entry = build(emit(plan, ""), tmp_path)
    for sizes in extents(plan):
        for launch_parameters in (WHOLE, SPLIT):
            done = run(entry, plan, sizes, launch_parameters, (0.5,) * plan.problem.scalars)
            assert done.code == 0
            assert worst(done, plan.problem) == [0.0] * len(plan.problem.outputs), (sizes, launch_parameters)


def test_columns_beyond_the_schedule_are_more_tiles(tmp_path: Path) -> None:
    plan = replace(PLANS["f16_odd"], schedule=GemvSchedule(1, 1, 32))
    done = run(build(emit(plan, ""), tmp_path), plan, (3, 5, 70))
    assert worst(done, plan.problem) == [0.0]
