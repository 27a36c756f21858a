"""f32 by wgmma in three passes of f16: main loop and launches as they are emitted, run on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.jit.lean_plans import CLUSTERS
from tests.jit.machine_code import CALLS, HGMMA, kernels, operations
from tests.jit.test_lean_registers import Case, as_matrices, operand, product
from tests.kernels.gemm.problems import gemm
from ucutlass.emit import emit
from ucutlass.emit.gemm.arithmetic_unit import KERNEL_NAME
from ucutlass.emit.gemm.lean import lean
from ucutlass.ir.hardware import ARCHES, DEVICES
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.gemm.plan import GemmPlan, Sm90Schedule
from ucutlass.kernels.gemm.rules import violations
from ucutlass.kernels.gemm.rules.tiles import COOPERATIVE_M, WIDTHS
from ucutlass.kernels.gemm.schedule import build, case_of
from ucutlass.runtime.build import make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.jit import link, nvjitlink, nvrtc
from ucutlass.runtime.toolchain import find

CASES = {
    "K-major": Case(math="f16x3", schedule="tile 128x16x64  swap no", sizes=(1, 140, 20, 200)),
    "weights along N": Case(
        math="f16x3", w="K, N", schedule="tile 128x32x32  swap no", sizes=(1, 140, 20, 68)
    ),
    "rows along M": Case(math="f16x3", x="K, M", schedule="tile 128x16x64  swap no", sizes=(1, 140, 12, 68)),
    "neither along K": Case(
        math="f16x3", x="K, M", w="K, N", schedule="tile 128x64x32  swap no", sizes=(1, 140, 76, 68)
    ),
    "turned": Case(math="f16x3", w="K, N", schedule="tile 128x16x64  swap yes", sizes=(1, 13, 140, 100)),
    "batched": Case(
        math="f16x3", x="B, M, K", w="B, K, N", schedule="tile 128x16x32  swap no", sizes=(2, 36, 12, 40)
    ),
    "batch of one operand": Case(
        math="f16x3", x="M, K", w="B, K, N", schedule="tile 128x16x32  swap no", sizes=(3, 13, 36, 40)
    ),
    "interleaved batch": Case(
        math="f16x3", x="M, B, K", w="N, B, K", schedule="tile 128x16x32  swap no", sizes=(2, 13, 36, 40)
    ),
    "K of less than a group": Case(math="f16x3", schedule="tile 128x16x16  swap no", sizes=(1, 140, 20, 4)),
    "two atoms": Case(math="f16x3", schedule="tile 256x16x32  swap no", sizes=(1, 260, 13, 68)),
    "parts of K": Case(math="f16x3", schedule="tile 128x16x16  swap no", sizes=(1, 13, 20, 196), parts=3),
    "cluster": Case(
        math="f16x3",
        x="K, M",
        w="K, N",
        schedule="tile 128x32x32  swap no  cluster 2x2",
        sizes=(1, 260, 60, 68),
    ),
}

SCALES = {"K-major": (1, 1), "batched": (2.0**40, 1), "weights along N": (1, 2.0**-90)}
"""Of operands that the usual exponent serves; the others have one of their own."""

QUICK = ("K-major", "neither along K", "batched")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_products_are_those_of_f32(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    sizes = dict(zip("BMNK", case.sizes, strict=True))
    x, w = operand(case.x, sizes, 1), operand(case.w, sizes, 2)
    x_scale, w_scale = SCALES.get(name, (2.0**40, 2.0**-90))
    x *= np.float32(x_scale)
    w *= np.float32(w_scale)
    a, b = as_matrices(case.x, x, "M"), as_matrices(case.w, w, "N")
    actual = product(case, x, w, tmp_path).astype(np.float64)
    exact, magnitude = a @ b.swapaxes(1, 2), np.abs(a) @ np.abs(b).swapaxes(1, 2)
    assert (np.abs(actual - exact) <= 2.0**-20 * magnitude).all()


@pytest.mark.parametrize(
    "name",
    [name if name == "neither along K" else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_operands_of_too_wide_a_range_are_multiplied_as_they_stand(name: str, tmp_path: Path) -> None:
    """One large element takes no bits from what it does not meet."""
    case = CASES[name]
    sizes = dict(zip("BMNK", case.sizes, strict=True))
    x, w = operand(case.x, sizes, 1), operand(case.w, sizes, 2)
    x.reshape(-1)[5] = 2.0**80
    a, b = as_matrices(case.x, x, "M"), as_matrices(case.w, w, "N")
    actual = product(case, x, w, tmp_path).astype(np.float64)
    exact, magnitude = a @ b.swapaxes(1, 2), np.abs(a) @ np.abs(b).swapaxes(1, 2)
    assert (np.abs(actual - exact) <= 2.0**-20 * magnitude).all()


def test_what_is_not_finite_stays_where_it_is(tmp_path: Path) -> None:
    """Infinities and NaN in each operand beside zeros, infinities, the other's largest and its smallest numbers."""
    case = Case(math="f16x3", schedule="tile 128x16x32  swap no", sizes=(1, 8, 16, 40))
    generator = np.random.default_rng(0)
    x = generator.standard_normal((8, 40), np.float32)
    w = generator.standard_normal((16, 40), np.float32) * np.float32(2.0**-30)
    payloads = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    x[5, 9], x[6, 9], w[5, 7], w[6, 7] = 1e-30, -1e-45, 1e-38, -1e-45
    for values, at in ((x, 7), (w, 9)):
        values[0, at], values[1, at], values[2, at], values[3, at] = np.inf, -np.inf, *payloads
        values[4, :], values[7, 33] = 0, np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        expected = (x.astype(np.float64) @ w.astype(np.float64).T).astype(np.float32)
    actual = product(case, x, w, tmp_path)[0]
    assert (np.isnan(actual) == np.isnan(expected)).all() and np.isnan(expected).any()
    infinite = np.isinf(expected)
    assert infinite.any() and (actual[infinite] == expected[infinite]).all()
    finite = np.isfinite(expected)
    magnitude = (
        np.abs(np.where(np.isfinite(x), x, 0)).astype(np.float64) @ np.abs(np.where(np.isfinite(w), w, 0)).T
    )
    assert (np.abs(actual[finite] - expected[finite]) <= 2.0**-19 * magnitude[finite]).all()


BUILT = {
    "K-major": Case(math="f16x3", schedule="tile 128x128x64  cluster 2x1  swap no", sizes=(1, 512, 512, 512)),
    "neither along K": Case(
        math="f16x3", x="K, M", w="K, N", schedule="tile 128x128x64  swap no", sizes=(1, 512, 512, 512)
    ),
    "two atoms": Case(math="f16x3", schedule="tile 256x64x64  swap no", sizes=(1, 512, 512, 512)),
}


@pytest.mark.nvcc
@pytest.mark.parametrize("name", BUILT)
def test_machine_code_is_lean(
    name: str, tmp_path: Path, compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink
) -> None:
    """No spill, no call, no serialised wgmma; three of them for each step of K of a k tile."""
    plan = BUILT[name].planned.plan
    assert isinstance(plan, GemmPlan) and isinstance(plan.schedule, Sm90Schedule)
    cache = Cache(tmp_path, 2**30)
    artifact = make(link.recipe(emit(plan, ""), lean(plan), find(), cache), cache)
    assert not artifact.report.findings
    assert {usage.kernel for usage in artifact.report.usage} == {"ucc_split", "ucc_split_again", KERNEL_NAME}
    assert not any(usage.spill_stores or usage.spill_loads or usage.stack for usage in artifact.report.usage)
    counted = operations(kernels((artifact.folder / link.IMAGE).read_bytes())[KERNEL_NAME])
    tile_m, _, tile_k = plan.schedule.tile
    assert counted[HGMMA] == tile_m // 128 * tile_k // 16 * 3
    assert not any(counted[call] for call in CALLS)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(COOPERATIVE_M),
    st.sampled_from(WIDTHS),
    st.integers(1, 8),
    st.sampled_from(CLUSTERS),
    st.sampled_from(("no", "yes")),
    st.sampled_from(("k", "n")),
    st.sampled_from(("k", "m")),
)
def test_what_the_rules_allow_is_served(
    rows: int, columns: int, steps: int, cluster: tuple[int, int], swap: Any, b: str, a: str
) -> None:
    problem, sizes = gemm(512, 512, 512, compute_type="f32")
    if b == "n":
        problem = replace(problem, b=replace(problem.b, n=(), k=(problem.n,)))
    if a == "m":
        problem = replace(problem, a=replace(problem.a, m=(), k=(problem.m,)))
    request = PartialSchedule(
        warps="cooperative", math="f16x3", tile=(rows, columns, 16 * steps), cluster=cluster, swap=swap
    )
    candidate = build(case_of(problem, sizes, ARCHES["sm90a"], DEVICES["H200"]), request)
    plan = GemmPlan("sm90a", candidate.problem, candidate.schedule, candidate.routes)
    if not violations(candidate):
        assert lean(plan)
