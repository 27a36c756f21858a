"""f32 by wgmma in three passes, with A split in registers or with f16 parts in the workspace: main loop and split as they
are emitted, run on the host; and machine code."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.jit.lean_main_loop import Setup, built
from tests.jit.lean_plans import CLUSTERS
from tests.jit.machine_code import CALLS, HGMMA, kernels, operations
from tests.kernels.gemm.problems import gemm
from ucutlass import frontend
from ucutlass.emit import emit
from ucutlass.emit.gemm.arithmetic_unit import KERNEL_NAME
from ucutlass.emit.gemm.lean import lean
from ucutlass.ir.hardware import ARCHES, DEVICES
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.gemm.plan import GemmPlan, Sm90Schedule
from ucutlass.kernels.gemm.rules import violations
from ucutlass.kernels.gemm.rules.tiles import COOPERATIVE_M, WIDTHS
from ucutlass.kernels.gemm.schedule import build, case_of
from ucutlass.kernels.planned import Planned
from ucutlass.runtime.build import make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.jit import link, nvjitlink, nvrtc
from ucutlass.runtime.toolchain import find
from ucutlass.shapes import complete

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A product of x and w as they lie in memory, the schedule's other fields, and parts of K."""

    x: str = "M, K"
    w: str = "N, K"
    schedule: str = "tile 128x16x32  swap yes"
    sizes: tuple[int, int, int, int] = (1, 13, 140, 100)  # batch, M, N, K
    parts: int = 1
    math: str = "tf32x3_rs"

    @property
    def planned(self) -> Planned:
        out = "B, M, N" if "B" in self.x + self.w else "M, N"
        split = "" if "split_k" in self.schedule else "split_k 1"
        tf32 = self.math == "tensor"
        value = "dot[K](tf32(x), tf32(w))" if tf32 else "dot[K](x, w)"
        math = "" if tf32 else f"math {self.math}"
        checked = frontend.read_text(
            f"kernel k(x: f32[{self.x}], w: f32[{self.w}]) -> f32[{out}] {{\n  return {value}\n"
            f"  schedule sm90a {{ warps cooperative  {math}  {self.schedule}  {split} }}\n}}\n"
        )
        kernel = frontend.kernel(checked)
        named = dict(zip("BMNK", self.sizes, strict=True))
        extents = complete(kernel, {name: extent for name, extent in named.items() if name in kernel.dims})
        return frontend.plan_kernel(checked, kernel, extents, "sm90a").planned


def library_of(case: Case, folder: Path) -> ctypes.CDLL:
    plan = case.planned.plan
    assert isinstance(plan, GemmPlan)
    return built(lean(plan), folder)


def product(case: Case, x: Array, w: Array, library: ctypes.CDLL) -> Array:
    """D as the accumulators of all tiles have it, `[batch, M, N]`."""
    planned = case.planned
    plan = planned.plan
    assert isinstance(plan, GemmPlan) and isinstance(plan.schedule, Sm90Schedule)
    (tile_m, tile_n, _), (cluster_m, cluster_n) = plan.schedule.tile, plan.schedule.cluster
    batch, m, n, _ = case.sizes
    swapped = planned.request.swap == "yes"
    rows, columns = (n, m) if swapped else (m, n)
    height, width = (-(-e // t) * t for e, t in ((rows, tile_m * cluster_m), (columns, tile_n * cluster_n)))
    sums = np.zeros((batch, height, width), np.float32)
    setup = Setup(
        tile_m, tile_n, 2, cluster_m * cluster_n, case.parts, sums.ctypes.data, height, width, batch
    )
    library.set_up(ctypes.byref(setup))
    d = np.zeros((batch, m, n), np.float32)
    entry = getattr(library, lean(plan).device.entry)
    size = ctypes.c_uint64()
    tensors = (ctypes.c_void_p * 3)(x.ctypes.data, w.ctypes.data, d.ctypes.data)
    extents = (ctypes.c_int64 * len(planned.sizes))(*planned.sizes)
    launch = (ctypes.c_int64 * 3)(*planned.launch)
    scalars = (ctypes.c_double * 1)()
    assert entry(tensors, extents, scalars, launch, None, ctypes.byref(size), None) == 0
    memory = np.full(size.value + 512, 0xA5, np.uint8)
    workspace = ctypes.c_void_p(-(-memory.ctypes.data // 256) * 256)
    assert entry(tensors, extents, scalars, launch, workspace, None, None) == 0
    tiles = sums[:, :rows, :columns]
    return tiles.swapaxes(1, 2) if swapped else tiles


def operand(order: str, sizes: dict[str, int], seed: int) -> Array:
    shape = [sizes[name] for name in order.split(", ")]
    values: Array = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return values


def as_matrices(order: str, values: Array, rows: str) -> Array:
    """`[batch, rows, K]` in f64, of as many batches as there are."""
    names = order.split(", ")
    axes = [names.index(name) for name in ("B", rows, "K") if name in names]
    turned = values.astype(np.float64).transpose(axes)
    return turned if "B" in names else turned[None]


CASES = {
    "few rows": Case(),
    "weights along N": Case(w="K, N"),
    "rows along M": Case(x="K, M", sizes=(1, 12, 140, 100)),
    "neither along K": Case(x="K, M", w="K, N", sizes=(1, 12, 140, 100)),
    "as written": Case(schedule="tile 128x32x32  swap no", sizes=(1, 140, 20, 68)),
    "K of no whole group": Case(w="K, N", sizes=(1, 13, 140, 36)),
    "K of less than a group": Case(w="K, N", sizes=(1, 13, 140, 4)),
    "parts of K": Case(parts=3, sizes=(1, 13, 140, 196)),
    "locks": Case(schedule="tile 128x16x32  swap yes  split_k 2", sizes=(1, 13, 140, 196), parts=2),
    "batched": Case(x="B, M, K", w="B, K, N", sizes=(2, 13, 36, 40)),
    "batch of one operand": Case(x="M, K", w="B, K, N", sizes=(3, 13, 36, 40)),
    "interleaved batch": Case(x="M, B, K", w="N, B, K", sizes=(2, 13, 36, 40)),
    "two atoms": Case(schedule="tile 256x16x32  swap yes", sizes=(1, 13, 260, 68)),
    "two atoms along N": Case(w="K, N", schedule="tile 256x16x32  swap yes", sizes=(1, 13, 260, 68)),
    "deep": Case(schedule="tile 128x16x64  swap yes"),
    "deep along N": Case(w="K, N", schedule="tile 128x16x64  swap yes"),
    "shallow": Case(schedule="tile 128x16x16  swap yes"),
    "least": Case(schedule="tile 128x16x8  swap yes"),
    "cluster over N": Case(schedule="tile 128x16x32  swap yes  cluster 2x1", sizes=(1, 13, 260, 68)),
    "cluster over M": Case(schedule="tile 128x16x32  swap yes  cluster 1x2", sizes=(1, 30, 140, 68)),
    "cluster along N": Case(
        w="K, N", schedule="tile 128x16x32  swap yes  cluster 1x2", sizes=(1, 30, 140, 68)
    ),
    "many rows": Case(schedule="tile 128x64x32  swap no", sizes=(1, 130, 60, 68)),
    "fused": Case(math="tf32x3_fused"),
    "fused, weights along N": Case(math="tf32x3_fused", w="K, N"),
    "fused, deep along N": Case(math="tf32x3_fused", w="K, N", schedule="tile 128x16x64  swap yes"),
    "fused, shallow along N": Case(math="tf32x3_fused", w="K, N", schedule="tile 128x16x16  swap yes"),
    "fused, least along N": Case(math="tf32x3_fused", w="K, N", schedule="tile 128x16x8  swap yes"),
    "fused, turned": Case(
        math="tf32x3_fused", x="K, M", w="K, N", schedule="tile 128x32x32  swap yes", sizes=(1, 28, 140, 100)
    ),
    "fused, turned beside weights along K": Case(
        math="tf32x3_fused", x="K, M", schedule="tile 128x16x64  swap yes", sizes=(1, 12, 140, 200)
    ),
    "fused, turned, shallow": Case(
        math="tf32x3_fused", x="K, M", w="K, N", schedule="tile 128x48x16  swap yes", sizes=(1, 44, 140, 36)
    ),
    "fused, turned in a cluster": Case(
        math="tf32x3_fused",
        x="K, M",
        w="K, N",
        schedule="tile 128x32x32  swap yes  cluster 2x2",
        sizes=(1, 60, 260, 68),
    ),
    "fused, turned, batched": Case(math="tf32x3_fused", x="B, K, M", w="B, K, N", sizes=(2, 12, 36, 40)),
    "fused, two atoms": Case(
        math="tf32x3_fused", schedule="tile 256x16x32  swap yes", sizes=(1, 13, 260, 68)
    ),
    "fused, rows along M": Case(
        math="tf32x3_fused", x="K, M", schedule="tile 128x48x32  swap no", sizes=(1, 140, 36, 68)
    ),
    "fused, batched": Case(math="tf32x3_fused", x="B, M, K", w="B, K, N", sizes=(2, 13, 36, 40)),
    "fused, cluster": Case(
        math="tf32x3_fused", schedule="tile 128x16x32  swap yes  cluster 2x2", sizes=(1, 30, 260, 68)
    ),
    "fused, parts of K": Case(math="tf32x3_fused", parts=3, sizes=(1, 13, 140, 196)),
    "f16, K-major": Case(math="f16x3", schedule="tile 128x16x64  swap no", sizes=(1, 140, 20, 200)),
    "f16, weights along N": Case(
        math="f16x3", w="K, N", schedule="tile 128x32x32  swap no", sizes=(1, 140, 20, 68)
    ),
    "f16, rows along M": Case(
        math="f16x3", x="K, M", schedule="tile 128x16x64  swap no", sizes=(1, 140, 12, 68)
    ),
    "f16, neither along K": Case(
        math="f16x3", x="K, M", w="K, N", schedule="tile 128x64x32  swap no", sizes=(1, 140, 76, 68)
    ),
    "f16, turned": Case(math="f16x3", w="K, N", schedule="tile 128x16x64  swap yes", sizes=(1, 13, 140, 100)),
    "f16, batched": Case(
        math="f16x3", x="B, M, K", w="B, K, N", schedule="tile 128x16x32  swap no", sizes=(2, 36, 12, 40)
    ),
    "f16, batch of one operand": Case(
        math="f16x3", x="M, K", w="B, K, N", schedule="tile 128x16x32  swap no", sizes=(3, 13, 36, 40)
    ),
    "f16, interleaved batch": Case(
        math="f16x3", x="M, B, K", w="N, B, K", schedule="tile 128x16x32  swap no", sizes=(2, 13, 36, 40)
    ),
    "f16, K of less than a group": Case(
        math="f16x3", schedule="tile 128x16x16  swap no", sizes=(1, 140, 20, 4)
    ),
    "f16, two atoms": Case(math="f16x3", schedule="tile 256x16x32  swap no", sizes=(1, 260, 13, 68)),
    "f16, parts of K": Case(
        math="f16x3", schedule="tile 128x16x16  swap no", sizes=(1, 13, 20, 196), parts=3
    ),
    "f16, cluster": Case(
        math="f16x3",
        x="K, M",
        w="K, N",
        schedule="tile 128x32x32  swap no  cluster 2x2",
        sizes=(1, 260, 60, 68),
    ),
}


QUICK = (
    "neither along K",
    "locks",
    "batched",
    "two atoms",
    "cluster along N",
    "fused, deep along N",
    "fused, turned",
    "f16, K-major",
    "f16, neither along K",
    "f16, batched",
)

SCALES = {"f16, K-major": (1, 1), "f16, batched": (2.0**40, 1), "f16, weights along N": (1, 2.0**-90)}
"""Of operands of f16 parts that the usual exponent serves; the others have one of their own."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_products_are_those_of_f32(name: str, tmp_path: Path) -> None:
    """In f16 parts also where one element is large: it takes no bits from what it does not meet."""
    case = CASES[name]
    library = library_of(case, tmp_path)
    own_scales = (2.0**40, 2.0**-90) if case.math == "f16x3" else (1, 1)
    x_scale, w_scale = SCALES.get(name, own_scales)
    x, w = operands(case)
    x *= np.float32(x_scale)
    w *= np.float32(w_scale)
    judged(case, x, w, library)
    if case.math == "f16x3":
        x, w = operands(case)
        x.reshape(-1)[5] = 2.0**80
        judged(case, x, w, library)


def operands(case: Case) -> tuple[Array, Array]:
    sizes = dict(zip("BMNK", case.sizes, strict=True))
    return operand(case.x, sizes, 1), operand(case.w, sizes, 2)


def judged(case: Case, x: Array, w: Array, library: ctypes.CDLL) -> None:
    a, b = as_matrices(case.x, x, "M"), as_matrices(case.w, w, "N")
    actual = product(case, x, w, library).astype(np.float64)
    exact, magnitude = a @ b.swapaxes(1, 2), np.abs(a) @ np.abs(b).swapaxes(1, 2)
    assert (np.abs(actual - exact) <= 2.0**-20 * magnitude).all()


@pytest.mark.parametrize("order", ["M, K", pytest.param("K, M", marks=pytest.mark.slow)])
def test_a_small_row_keeps_its_bits(order: str, tmp_path: Path) -> None:
    case = Case(math="f16x3", x=order, schedule="tile 128x16x64  swap no", sizes=(1, 140, 20, 68))
    x, w = operands(case)
    x[(7,) if order == "M, K" else (slice(None), 7)] *= np.float32(2.0**-60)
    judged(case, x, w, library_of(case, tmp_path))


def same_numbers(actual: np.ndarray, expected: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    """What of the product is NaN or infinite is so in both; the rest is as near as f32."""
    with np.errstate(over="ignore"):
        rounded = expected.astype(np.float32)
    assert (np.isnan(actual) == np.isnan(rounded)).all() and np.isnan(rounded).any()
    infinite, finite = np.isinf(rounded), np.isfinite(rounded)
    assert infinite.any() and (actual[infinite] == rounded[infinite]).all()
    a, b = (np.abs(np.where(np.isfinite(v), v, 0)).astype(np.float64) for v in (x, w))
    magnitude = a @ b.T
    assert (np.abs(actual[finite] - expected[finite]) <= 2.0**-19 * magnitude[finite]).all()


@pytest.mark.parametrize("math", ["tf32x3_rs", "tf32x3_fused"])
def test_what_is_not_finite_stays_where_it_is(math: str, tmp_path: Path) -> None:
    """Infinities, NaN of any payload and what TF32 would round to infinity, in each operand beside the other's
    numbers without small parts, zeros, and infinities."""
    case = Case(sizes=(1, 8, 16, 40), math=math)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((8, 40), np.float32)
    w = generator.standard_normal((16, 40), np.float32) * np.float32(2.0**-30)
    payloads = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    large = np.finfo(np.float32).max
    x[:, 9] *= np.float32(2.0**-30)
    for values, at in ((x, 7), (w, 9)):
        values[0, 7], values[1, 7], values[2, 7], values[3, 7] = np.inf, -np.inf, *payloads
        values[4, :7], values[5, at], values[6, :], values[7, 33] = 1, large, 0, np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        expected = x.astype(np.float64) @ w.astype(np.float64).T
    same_numbers(product(case, x, w, library_of(case, tmp_path))[0], expected, x, w)


@pytest.mark.parametrize("wide", [False, True])
def test_what_is_not_finite_stays_where_it_is_in_f16_parts(wide: bool, tmp_path: Path) -> None:
    """Infinities and NaN in each operand beside zeros, infinities, the other's largest and its smallest numbers."""
    case = Case(math="f16x3", schedule="tile 128x16x32  swap no", sizes=(1, 8, 16, 40))
    generator = np.random.default_rng(0)
    x = generator.standard_normal((8, 40), np.float32)
    w = generator.standard_normal((16, 40), np.float32) * np.float32(2.0**-30)
    payloads = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    x[5, 9], x[6, 9], w[5, 7], w[6, 7] = 1e-30, -1e-45, 1e-38, -1e-45
    if wide:
        x[5, 3] = 1e30
    for values, at in ((x, 7), (w, 9)):
        values[0, at], values[1, at], values[2, at], values[3, at] = np.inf, -np.inf, *payloads
        values[4, :], values[7, 33] = 0, np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        expected = x.astype(np.float64) @ w.astype(np.float64).T
    same_numbers(product(case, x, w, library_of(case, tmp_path))[0], expected, x, w)


TF32 = {
    "weights along N": Case(math="tensor", w="K, N", schedule="tile 128x32x32  swap yes"),
    "rows along M": Case(
        math="tensor", x="K, M", schedule="tile 128x32x32  swap no", sizes=(1, 140, 20, 100)
    ),
    "two atoms": Case(math="tensor", w="K, N", schedule="tile 256x32x32  swap yes", sizes=(1, 13, 260, 132)),
    "deep": Case(math="tensor", w="K, N", schedule="tile 128x32x64  swap yes"),
    "shallow": Case(math="tensor", w="K, N", schedule="tile 128x32x8  swap yes", sizes=(1, 13, 140, 60)),
    "turned": Case(math="tensor", w="K, N", schedule="tile 128x96x32  swap no", sizes=(1, 140, 76, 100)),
    "turned, neither along K": Case(
        math="tensor", x="K, M", w="K, N", schedule="tile 128x160x32  swap no", sizes=(1, 140, 148, 132)
    ),
    "turned, two atoms": Case(
        math="tensor", x="K, M", w="K, N", schedule="tile 256x64x32  swap yes", sizes=(1, 60, 260, 100)
    ),
    "turned, deep": Case(
        math="tensor", x="K, M", schedule="tile 128x32x64  swap yes", sizes=(1, 12, 140, 100)
    ),
    "turned, cluster": Case(
        math="tensor",
        x="K, M",
        w="K, N",
        schedule="tile 128x32x32  swap no  cluster 2x2",
        sizes=(1, 260, 60, 68),
    ),
    "cluster": Case(
        math="tensor", w="K, N", schedule="tile 128x32x32  swap yes  cluster 2x2", sizes=(1, 30, 260, 68)
    ),
}


@pytest.mark.parametrize(
    "name", [name if name == "two atoms" else pytest.param(name, marks=pytest.mark.slow) for name in TF32]
)
def test_tf32_passes_through_registers(name: str, tmp_path: Path) -> None:
    case = TF32[name]
    x, w = operands(case)
    a, b = as_matrices(case.x, x, "M"), as_matrices(case.w, w, "N")
    actual = product(case, x, w, library_of(case, tmp_path)).astype(np.float64)
    exact, magnitude = a @ b.swapaxes(1, 2), np.abs(a) @ np.abs(b).swapaxes(1, 2)
    assert (np.abs(actual - exact) <= 2.0**-10 * magnitude).all()
    assert (np.abs(actual - exact) > 0).any()


BUILT = {
    "few rows": Case(),
    "widest": Case(schedule="tile 128x144x32  swap yes", sizes=(1, 144, 512, 512)),
    "widest along N": Case(w="K, N", schedule="tile 128x144x32  swap yes", sizes=(1, 144, 512, 512)),
    "stream-K": Case(schedule="tile 128x112x32  swap yes  split_k 4", sizes=(1, 112, 512, 4096)),
    "two atoms along N": Case(w="K, N", schedule="tile 256x48x32  swap yes", sizes=(1, 48, 512, 512)),
    "fused": Case(
        math="tf32x3_fused", schedule="tile 128x128x32  cluster 2x1  swap yes", sizes=(1, 128, 512, 512)
    ),
    "fused along N": Case(
        math="tf32x3_fused", w="K, N", schedule="tile 128x64x64  swap yes", sizes=(1, 64, 512, 512)
    ),
    "f16, K-major": Case(
        math="f16x3", schedule="tile 128x128x64  cluster 2x1  swap no", sizes=(1, 512, 512, 512)
    ),
    "f16, neither along K": Case(
        math="f16x3", x="K, M", w="K, N", schedule="tile 128x128x64  swap no", sizes=(1, 512, 512, 512)
    ),
    "f16, two atoms": Case(math="f16x3", schedule="tile 256x64x64  swap no", sizes=(1, 512, 512, 512)),
}


@pytest.mark.nvcc
@pytest.mark.parametrize("name", BUILT)
def test_machine_code_is_lean(
    name: str, tmp_path: Path, compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink
) -> None:
    """No spill, no call, no serialised wgmma; for each step of K of a k tile three of them, of f16 parts six of bf16 more."""
    plan = BUILT[name].planned.plan
    assert isinstance(plan, GemmPlan) and isinstance(plan.schedule, Sm90Schedule)
    cache = Cache(tmp_path, 2**30)
    artifact = make(link.recipe(emit(plan, ""), lean(plan), find(), cache), cache)
    assert not artifact.report.findings
    math = BUILT[name].math
    launched = {"tf32x3_fused": set(), "f16x3": {"ucc_split", "ucc_split_again"}}.get(math, {"ucc_split"})
    assert {usage.kernel for usage in artifact.report.usage} == {*launched, KERNEL_NAME}
    assert not any(usage.spill_stores or usage.spill_loads or usage.stack for usage in artifact.report.usage)
    counted = operations(kernels((artifact.folder / link.IMAGE).read_bytes())[KERNEL_NAME])
    tile_m, tile_n, tile_k = plan.schedule.tile
    # The loop that splits a turn ahead is written twice where a k tile is one turn.
    widest = {"tf32x3_rs": 128, "tf32x3_fused": 112}.get(math, 0)
    copies = 2 if tile_m == 128 and tile_n <= widest and tile_k == 32 else 1
    steps = tile_k // 16 * (3 + 6) if math == "f16x3" else tile_k // 8 * 3
    assert counted[HGMMA] == copies * tile_m // 128 * steps
    assert not any(counted[call] for call in CALLS)


H200, SM90 = DEVICES["H200"], ARCHES["sm90a"]


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(COOPERATIVE_M),
    st.sampled_from(WIDTHS),
    st.integers(1, 16),
    st.sampled_from(CLUSTERS),
    st.sampled_from(("no", "yes")),
    st.sampled_from(("k", "n")),
    st.sampled_from(("k", "m")),
    st.sampled_from(("tf32x3_rs", "tf32x3_fused", "f16x3")),
)
def test_what_the_rules_allow_is_served(
    rows: int, columns: int, steps: int, cluster: tuple[int, int], swap: Any, b: str, a: str, math: Any
) -> None:
    problem, sizes = gemm(512, 512, 512, compute_type="f32")
    if b == "n":
        problem = replace(problem, b=replace(problem.b, n=(), k=(problem.n,)))
    if a == "m" and math == "f16x3":
        problem = replace(problem, a=replace(problem.a, m=(), k=(problem.m,)))
    request = PartialSchedule(
        warps="cooperative", math=math, tile=(rows, columns, 8 * steps), cluster=cluster, swap=swap
    )
    candidate = build(case_of(problem, sizes, SM90, H200), request)
    plan = GemmPlan("sm90a", candidate.problem, candidate.schedule, candidate.routes)
    if not violations(candidate):
        assert lean(plan)
