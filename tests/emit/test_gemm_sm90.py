"""The Hopper emitter: golden texts, what it refuses, and that nvcc takes what it writes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.emit.harness import cutlass_include
from ucutlass.emit import Source, emit
from ucutlass.ir.elements import BF16, E4M3, F16, F32, Element
from ucutlass.kernels.access import Access, Output, Reduction, Store
from ucutlass.kernels.arithmetic import Accumulator, Arithmetic, Compute, CoordinateValue, LoadSlot, Round
from ucutlass.kernels.gemm.plan import GemmPlan, GemmProblem, Route, Sm90Schedule

M, N, K = (0,), (1,), (2,)
ACC = Accumulator("f32")
COOPERATIVE = Sm90Schedule((128, 256, 64), (2, 1), 4, "cooperative", "persistent")
PINGPONG = Sm90Schedule((64, 128, 64), (1, 1), 4, "pingpong", "persistent")


def access(pointer: int, elem: Element, **changes: Any) -> Access:
    return replace(Access(pointer, elem, None, None, (), (), 16 // elem.bytes), **changes)


def plan(
    elem: Element,
    arithmetic: Arithmetic,
    moved: Sequence[tuple[Access | Output, Route]],
    schedule: Sm90Schedule = COOPERATIVE,
) -> GemmPlan:
    """A[M, K] times B[N, K], both K-major, without a batch; `moved` are operands, then results."""
    inputs = tuple(tensor for tensor, _ in moved if isinstance(tensor, Access))
    outputs = tuple(tensor for tensor, _ in moved if not isinstance(tensor, Access))
    problem = GemmProblem(
        compute_type=elem,
        accumulate="f32",
        m=M,
        n=N,
        k=(K,),
        batch=(),
        a=access(0, elem, m=K, k=((),)),
        b=access(1, elem, n=K, k=((),)),
        inputs=inputs,
        outputs=outputs,
        arithmetic=arithmetic,
        dims=3,
        pointers=2 + len(moved),
        scalars=0,
    )
    return GemmPlan("sm_90a", problem, schedule, tuple(route for _, route in moved))


def matrix(pointer: int, elem: Element, **changes: Any) -> Access:
    return access(pointer, elem, m=N, n=(), **changes)


def bias_gelu() -> GemmPlan:
    body = (ACC, LoadSlot(0, "f32"), Compute("add", (0, 1), "f32"), Compute("gelu", (2,), "f32"))
    return plan(
        F16, Arithmetic(body, (3,)), ((access(2, F16, n=()), "direct"), (Store(matrix(3, F16)), "tma"))
    )


def batched_with_reductions() -> GemmPlan:
    """Two batch modes, B without the outer one; a residual by TMA, a scalar for each inner batch,
    a store by threads, reductions over N and the outer batch and over M and N."""
    body = (
        ACC,
        LoadSlot(0, "f32"),
        LoadSlot(1, "f32"),
        Compute("add", (0, 1), "f32"),
        Compute("multiply", (2, 3), "f32"),
        CoordinateValue("n", 0, (), N, "i32"),
        CoordinateValue("m", 0, (), M, "i32"),
        Compute("less_equal", (5, 6), "bool"),
        Compute("where", (7, 4, 0), "f32"),
    )
    every = ((0, 1, 4), (0, 1))
    base = plan(
        BF16,
        Arithmetic(body, (8, 8, 8)),
        (
            (matrix(2, F16, batch=every), "tma"),
            (access(3, F32, batch=(None, ())), "direct"),
            (Store(matrix(4, F32, align=1, batch=every)), "direct"),
            (Reduction("sum", access(5, F32, m=(), batch=(None, M))), "direct"),
            (Reduction("max", access(6, BF16, batch=((4,), ()))), "direct"),
        ),
        replace(COOPERATIVE, tile=(128, 128, 64), stages=3, scheduler="stream_k"),
    )
    problem = replace(
        base.problem,
        batch=((3,), (4,)),
        a=replace(base.problem.a, batch=((0, 2, 4), (0, 2))),
        b=replace(base.problem.b, batch=(None, (1, 2))),
        dims=5,
    )
    return replace(base, problem=problem)


def fp8_two_stores() -> GemmPlan:
    """Both results by TMA, one rounded on the way; a k tile that CUTLASS's promotion does not divide."""
    body = (ACC, Compute("relu", (0,), "f32"), Round(0, BF16, "f32"))
    return plan(
        E4M3,
        Arithmetic(body, (1, 2)),
        ((Store(matrix(2, E4M3)), "tma"), (Store(matrix(3, BF16)), "tma")),
        replace(PINGPONG, tile=(64, 64, 96)),
    )


PLANS = {
    "bias_gelu": bias_gelu(),
    "batched_with_reductions": batched_with_reductions(),
    "fp8_two_stores": fp8_two_stores(),
}


@pytest.mark.parametrize("name", PLANS)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"gemm_sm90_{name}.cu", emit(PLANS[name], name).text)


def test_operand_order_decides_the_static_stride() -> None:
    text = emit(PLANS["bias_gelu"], "").code
    assert "using StrideA = Stride<int64_t, _1, _0>;" in text
    turned = replace(PLANS["bias_gelu"].problem, a=access(0, F16, m=(), k=(M,)))
    text = emit(replace(PLANS["bias_gelu"], problem=turned), "").code
    assert "using StrideA = Stride<_1, int64_t, _0>;" in text
    assert "a_stride =\n      make_stride(_1{}, extents[0], _0{});" in text


def test_knobs_are_no_part_of_the_code() -> None:
    """Raster order, swizzle and splits come at run time: stream-K alone takes splits."""
    stream_k, persistent = emit(PLANS["batched_with_reductions"], ""), emit(PLANS["bias_gelu"], "")
    assert "Decomposition::SplitK" in stream_k.code
    assert "splits != 1" in persistent.code


def test_fast_accumulation_is_a_schedule_of_its_own() -> None:
    exact = PLANS["fp8_two_stores"]
    fast = replace(exact, problem=replace(exact.problem, accumulate="fast"))
    assert "mma_promotion_interval = 3;" in emit(exact, "").code
    assert "FP8FastAccum" not in emit(exact, "").code
    assert "KernelTmaWarpSpecializedPingpongFP8FastAccum" in emit(fast, "").code
    assert "mma_promotion_interval" not in emit(fast, "").code


@pytest.mark.parametrize(
    ("columns", "extended"), [(256, False), (96, False), (16, False), (208, True), (48, True)]
)
def test_a_wgmma_is_as_wide_as_the_tile(columns: int, extended: bool) -> None:
    """CuTe's basic headers would make 208 columns of 13 instructions; the others cost build time."""
    base = PLANS["bias_gelu"]
    code = emit(replace(base, schedule=replace(PINGPONG, tile=(64, columns, 64))), "").code
    define = "#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED"
    assert (define in code) == extended
    assert not extended or code.index(define) < code.index('#include "cute/tensor.hpp"')


def test_names_of_several_kernels_stay_apart() -> None:
    sources = [emit(p, "") for p in PLANS.values()]
    assert all(f"namespace {s.entry}_kernel {{" in s.code for s in sources)
    assert len({s.entry for s in sources}) == len(sources)


def test_refuses_two_contracted_modes() -> None:
    problem = PLANS["bias_gelu"].problem
    two = replace(problem, k=(K, K), a=replace(problem.a, k=((), ())), b=replace(problem.b, k=((), ())))
    with pytest.raises(ValueError, match="contracts one mode, the plan has 2"):
        emit(replace(PLANS["bias_gelu"], problem=two), "")


def test_refuses_a_reduction_over_batch_alone() -> None:
    base = PLANS["batched_with_reductions"]
    outputs = (*base.problem.outputs[:2], Reduction("sum", replace(matrix(6, BF16), batch=(None, (0, 1)))))
    with pytest.raises(ValueError, match="over batch modes alone"):
        emit(replace(base, problem=replace(base.problem, outputs=outputs)), "")


def build(sources: Sequence[Source], folder: Path) -> Path:
    """The library of sources that nvcc compiles as one unit: most of its time is CUTLASS's headers."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    path, library = folder / "kernel.cu", folder / "kernel.so"
    path.write_text("\n".join(source.text for source in sources))
    flags = ["-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", f"-I{cutlass_include()}"]
    target = ["-gencode", "arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-shared", "-Xcompiler", "-fPIC"]
    done = subprocess.run(
        [nvcc, *flags, *target, str(path), "-o", str(library)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "C75" not in done.stderr, "ptxas serialises wgmma"
    spills = [line for line in done.stderr.splitlines() if "bytes spill" in line]
    assert spills and all("0 bytes spill stores, 0 bytes spill loads" in line for line in spills)
    return library


@pytest.mark.nvcc
def test_compiles(tmp_path: Path) -> None:
    """Compiles without spills; the entries turn down what their plans were not made for before they ask for a
    device."""
    sources = {name: emit(plan_, name) for name, plan_ in PLANS.items()}
    library = ctypes.CDLL(str(build(list(sources.values()), tmp_path)))
    for name, source in sources.items():
        _refuses(getattr(library, source.entry), PLANS[name])


def _refuses(entry: Any, plan_: GemmPlan) -> None:
    entry.restype = ctypes.c_int32
    size = ctypes.c_uint64()
    dims, pointers = plan_.problem.dims, plan_.problem.pointers
    extents = (ctypes.c_int64 * dims)(*[64] * dims)
    launch_parameters = (ctypes.c_int64 * 3)(0, 1, 1)
    tensors = (ctypes.c_void_p * pointers)(*[4096] * pointers)
    odd = (ctypes.c_int64 * dims)(64, 64, 63, *[64] * (dims - 3))
    empty = (ctypes.c_int64 * dims)(64, 0, 64, *[64] * (dims - 3))
    swizzled = (ctypes.c_int64 * 3)(0, 3, 1)
    assert entry(tensors, None, None, launch_parameters, None, None, None) == 1
    assert entry(tensors, odd, None, launch_parameters, None, None, None) == 1
    assert entry(tensors, empty, None, launch_parameters, None, None, None) == 1
    assert entry(tensors, extents, None, swizzled, None, None, None) == 1
    assert entry(None, extents, None, launch_parameters, None, None, None) == 1
    assert entry(tensors, odd, None, launch_parameters, None, ctypes.byref(size), None) == 1


# --- the devices, prepared once ---------------------------------------------------------

DEVICES = r"""
#include <atomic>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorInvalidDevice = 101 };
struct Device {
  cudaError_t error;
  int sm_count;
  int max_active_clusters;
};
thread_local int current = 0;
std::atomic<int> prepared{0};
bool full = true;
cudaError_t cudaGetDevice(int* ordinal) { return *ordinal = current, cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
Device prepare(int ordinal) {
  ++prepared;
  return {full ? cudaErrorMemoryAllocation : cudaSuccess, 100 + ordinal, 1};
}
%s
int main() {
  int const failed = current_device().error;
  full = false;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      current = i / 4;
      for (int j = 0; j < 100; ++j) wrong += current_device().sm_count != 100 + current;
    });
  }
  for (auto& thread : threads) thread.join();
  current = 64;
  std::printf("failed %%d prepared %%d wrong %%d beyond %%d\n", failed, prepared.load(), wrong.load(),
              int(current_device().error));
}
"""


def test_a_device_is_prepared_once_and_a_failure_is_not_kept(tmp_path: Path) -> None:
    """One failure, then two devices from eight threads."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the look-up for the host")
    code = emit(PLANS["bias_gelu"], "").code
    begin = code.index("Device current_device() {")
    section = code[begin : code.index("}  // namespace", begin)]
    source, binary = tmp_path / "devices.cpp", tmp_path / "devices"
    source.write_text(DEVICES % section)
    subprocess.run([compiler, "-std=c++17", "-pthread", str(source), "-o", str(binary)], check=True)
    output = subprocess.check_output([str(binary)], text=True)
    assert output == "failed 2 prepared 3 wrong 0 beyond 101\n"
