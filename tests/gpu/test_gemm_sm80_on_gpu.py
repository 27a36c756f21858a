"""The mma.sync GEMM and the matrix-vector product on a GPU, against torch in float64.

Every plan of the host tests is built once, in parallel. Integers must come out exact; random
floats within a component-wise bound of the compute type.
"""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.emit import test_gemm_sm80, test_gemv
from tests.emit.gemm_plans import plain
from tests.emit.plan_reference import call, run, worst
from tests.gpu.turns import turn
from ucutlass.backend import toolchain
from ucutlass.emit import Source, emit
from ucutlass.ir.elements import BF16, E4M3, E5M2, F16, F32, I32, S8, TF32
from ucutlass.ir.hardware import arch_for
from ucutlass.kernels.gemm.plan import GemmPlan, GemvSchedule, LaunchParameters, Sm80Schedule
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.parallel import BuildFailure, build_many

pytestmark = pytest.mark.gpu

WIDE = Sm80Schedule((128, 128, 32), (64, 64), 4, "tensor")
BYTES = Sm80Schedule((128, 128, 64), (64, 32), 4, "tensor")
FLOATS: dict[str, GemmPlan] = {
    "f16_wide": plain(F16, F16, align=8, schedule=WIDE),
    "f16_wide_odd": plain(F16, F32, schedule=Sm80Schedule((128, 128, 32), (64, 32), 3, "tensor")),
    "bf16_wide_transposed": plain(BF16, F32, "m", "n", align=8, schedule=WIDE),
    "tf32_wide": plain(TF32, F32, align=4, schedule=Sm80Schedule((128, 128, 32), (64, 32), 3, "tensor")),
    "tf32x3_wide": plain(F32, F32, schedule=Sm80Schedule((128, 128, 16), (64, 32), 4, "tf32x3")),
    "simt_wide": plain(F32, F32, "m", "n", schedule=Sm80Schedule((128, 128, 16), (32, 64), 3, "simt")),
    "e4m3_wide": plain(E4M3, F32, align=16, schedule=BYTES),
    "e5m2_wide": plain(E5M2, F32, "m", "n", schedule=BYTES),
    "bf16_gemv": plain(BF16, F32, align=8, schedule=GemvSchedule(4, 1, 128)),
    "f32_gemv_along_m": plain(F32, F32, "m", "k", schedule=GemvSchedule(32, 2, 8)),
}
EXACT: dict[str, GemmPlan] = {
    **{f"gemm_{name}": plan for name, plan in test_gemm_sm80.PLANS.items()},
    **{f"gemv_{name}": plan for name, plan in test_gemv.PLANS.items()},
    "s8_wide": plain(S8, I32, align=16, schedule=Sm80Schedule((128, 128, 64), (64, 64), 4, "tensor")),
}
ROUNDING = {"tf32x3_wide": 2.0**-20}
"""What a compute type loses in each product, where products are not exact."""


def sources(arch: str) -> dict[str, Source]:
    """The source of every plan, by name, for nvcc's name of a target."""
    return {name: replace(emit(plan, ""), arch=arch) for name, plan in (FLOATS | EXACT).items()}


@pytest.fixture(scope="module")
def entries() -> dict[str, Any]:
    """The entry of every plan, by name."""
    if not torch.cuda.is_available() or shutil.which("nvcc") is None:
        pytest.skip("no NVIDIA GPU or no nvcc")
    arch = arch_for(torch.cuda.get_device_capability())
    assert arch is not None
    found = sources("sm_" + arch.name.removeprefix("sm"))
    with turn("gemm_sm80"):
        outcomes = build_many(list(found.values()), toolchain(), Cache.from_switches(), group=4)
    return {name: _entry(result) for name, result in zip(found, outcomes, strict=True)}


def _entry(made: Artifact | BuildFailure) -> Any:
    assert isinstance(made, Artifact), made
    entry = getattr(ctypes.CDLL(str(made.library)), made.entry)
    entry.restype = ctypes.c_int32
    return entry


def _extents(plan: GemmPlan) -> list[tuple[int, ...]]:
    gemv = isinstance(plan.schedule, GemvSchedule)
    shapes = (test_gemv if gemv else test_gemm_sm80).extents(plan)
    if plan.problem.dims == 6:
        return [*shapes, (257, 8 if gemv else 131, 67, 3, 3, 2)]
    if plan.problem.m == plan.problem.n:
        return [*shapes, (257, 257, 257)]
    step = max(plan.problem.a.align, plan.problem.outputs[0].access.align)
    more = [(1031, 7 if gemv else 509, 2053), (1, 1, 4099), (4099, 1, 3), (2, 9, 1)]
    return [*shapes, *(tuple(-(-n // step) * step for n in shape) for shape in more)]


@pytest.mark.parametrize("name", EXACT)
def test_integers_come_out_exact(name: str, entries: dict[str, Any]) -> None:
    plan = EXACT[name]
    for sizes in _extents(plan):
        for launch_parameters in (
            LaunchParameters(),
            LaunchParameters(raster=1, swizzle=2),
            LaunchParameters(raster=2, swizzle=4, splits=3),
        ):
            done = run(
                entries[name], plan, sizes, launch_parameters, (0.5,) * plan.problem.scalars, device="cuda"
            )
            assert done.code == 0, (sizes, launch_parameters)
            errors = worst(done, plan.problem)
            if "f16_sums" in name and sizes[-1] > 200:
                continue
            assert errors == [0.0] * len(errors), (sizes, launch_parameters)


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_within_the_compute_types_bound(name: str, entries: dict[str, Any]) -> None:
    plan = FLOATS[name]
    for sizes in _extents(plan):
        for launch_parameters in (LaunchParameters(), LaunchParameters(splits=4)):
            done = run(entries[name], plan, sizes, launch_parameters, device="cuda", fill="floats")
            assert done.code == 0
            a, b, out = (buffer.view for buffer in done.buffers)
            magnitude = a[:, 0, :].double().abs() @ b[0, :, :].double().abs().T
            # Tensor cores add with truncation: 2**-22 for every addition covers it.
            bound = magnitude * (ROUNDING.get(name, 0.0) + (sizes[-1] + 4) * 2.0**-22)
            if plan.problem.compute_type == TF32:
                bound = bound + magnitude * 2.0**-30
            store = 2.0 ** -plan.problem.outputs[0].access.elem.mantissa
            error = (out.double() - done.expected[0]).abs()
            allowed = bound + done.expected[0].abs() * store + 2.0**-24
            assert bool((error <= allowed).all()), (sizes, launch_parameters, float((error - allowed).max()))


@pytest.mark.parametrize("name", ["tf32x3_wide", "simt_wide"])
def test_infinities_and_nans_are_those_of_f32(name: str, entries: dict[str, Any]) -> None:
    m = n = k = 64
    a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    a[3, 5], a[7, 9], b[11, 5], b[13, 1] = torch.inf, torch.nan, -torch.inf, torch.inf
    expected = a @ b.T
    stored_a, stored_b = (a.T.contiguous(), b.T.contiguous()) if name == "simt_wide" else (a, b)
    out = torch.empty(m, n, device="cuda")
    addresses = [t.data_ptr() for t in (stored_a, stored_b, out)]
    assert call(entries[name], addresses, (m, n, k), (), LaunchParameters(), "cuda", 0) == 0
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.isinf(), expected.isinf())


@pytest.mark.alone  # for its memory: tens of gigabytes
@pytest.mark.parametrize(("name", "n"), [("f16_wide", 8), ("bf16_gemv", 8)])
def test_more_than_two_to_the_31_elements(name: str, n: int, entries: dict[str, Any]) -> None:
    m, k = 70000, 32768
    dtype = torch.float16 if name == "f16_wide" else torch.bfloat16
    out_type = torch.float16 if name == "f16_wide" else torch.float32
    a = torch.randint(-1, 2, (m, k), device="cuda", dtype=torch.int8).to(dtype)
    b = torch.randint(-1, 2, (n, k), device="cuda", dtype=torch.int8).to(dtype)
    out = torch.empty(m, n, device="cuda", dtype=out_type)
    assert (
        call(entries[name], [t.data_ptr() for t in (a, b, out)], (m, n, k), (), LaunchParameters(), "cuda", 0)
        == 0
    )
    for rows in (slice(0, 100), slice(m - 100, m)):
        assert torch.equal(out[rows].double(), (a[rows].double() @ b.double().T).to(out_type).double())


@pytest.mark.parametrize("name", ["gemm_rich", "gemv_rich"])
def test_results_do_not_depend_on_the_run(name: str, entries: dict[str, Any]) -> None:
    plan, sizes = EXACT[name], (257, 8, 131, 3, 3, 2)
    runs = [
        run(entries[name], plan, sizes, LaunchParameters(splits=5), (0.5,), device="cuda", fill="floats")
        for _ in range(3)
    ]
    for other in runs[1:]:
        for output in plan.problem.outputs:
            p = output.access.pointer
            first, again = runs[0].buffers[p].flat, other.buffers[p].flat
            assert torch.equal(first.view(torch.uint8), again.view(torch.uint8))
