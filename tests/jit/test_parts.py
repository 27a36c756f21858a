"""How a kernel is cut: what shares a skeleton, and what the arithmetic alone decides."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.emit.gemm_plans import SMALL as SM80
from tests.emit.test_gemm_sm90 import batched_with_reductions
from tests.jit.staged_plans import biased, everything, gelu, scaled_relu
from ucutlass.emit import emit
from ucutlass.emit.gemm.staged import KERNEL_NAME, NotServed, stage
from ucutlass.kernels.arithmetic import Compute, CoordinateValue, HostScalar
from ucutlass.kernels.gemm.plan import GemmPlan


def test_kernels_that_differ_in_arithmetic_share_a_skeleton() -> None:
    one, other = stage(gelu()), stage(scaled_relu())
    assert one.skeleton == other.skeleton
    assert one.arithmetic != other.arithmetic
    assert emit(gelu(), "").entry != emit(scaled_relu(), "").entry


def scheduled(**changes: object) -> GemmPlan:
    return replace(gelu(), schedule=replace(gelu().schedule, **changes))  # type: ignore[type-var]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(scheduled(tile=(64, 128, 64)), id="tile"),
        pytest.param(scheduled(cluster=(2, 1)), id="cluster"),
        pytest.param(scheduled(stages=3), id="stages"),
        pytest.param(replace(gelu(), routes=("direct", "direct")), id="route"),
        pytest.param(biased(HostScalar(0, "f32"), Compute("add", (2, 3), "f32")), id="a host scalar"),
        pytest.param(
            biased(CoordinateValue("m", 0, (), (0,), "f32"), Compute("add", (2, 3), "f32")), id="coordinates"
        ),
    ],
)
def test_everything_else_is_the_skeletons(other: GemmPlan) -> None:
    assert stage(other).skeleton.entry != stage(gelu()).skeleton.entry


def test_each_function_is_in_one_part() -> None:
    parts = stage(gelu())
    assert "ucc_gelu" in parts.arithmetic and "ucc_gelu" not in parts.skeleton.code
    assert "CollectiveBuilder" in parts.skeleton.code and "cute" not in parts.arithmetic


def test_both_parts_declare_the_same_function_and_struct() -> None:
    parts = stage(everything())
    start = 'extern "C" __device__ void ucc_arithmetic('
    (head,) = (line for line in parts.skeleton.code.splitlines() if line.startswith(start))
    assert head.removesuffix(";").replace(start, f"{start}staged::") + " {" in parts.arithmetic
    struct = parts.skeleton.code[parts.skeleton.code.index("struct ArithmeticParams") :].partition("};")[0]
    assert "scalar0" in struct and struct in parts.arithmetic


def test_each_reduction_has_a_kernel_of_its_own_in_the_image() -> None:
    code = stage(batched_with_reductions()).skeleton.code
    for name in ("ucc_combine_out1", "ucc_combine_out2"):
        assert code.count(f"{name}(") == 1 and code.count(f'looked_up("{name}",') == 1
    assert "<<<" not in code


def test_says_what_is_not_served() -> None:
    with pytest.raises(NotServed, match="TMA kernels"):
        stage(replace(gelu(), schedule=SM80))


IMAGE = r"""
#include <atomic>
#include <cstdio>
#include <cstring>

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
using cudaLibrary_t = struct library*;
using cudaKernel_t = struct function*;
int loads = 0, lookups = 0;
bool full = true;
extern "C" unsigned char const ucc_image[] = {0};
cudaError_t cudaLibraryLoadData(
    cudaLibrary_t* library, void const* image, void*, void*, int, void*, void*, int) {
  ++loads;
  *library = reinterpret_cast<cudaLibrary_t>(8);
  return full || image != ucc_image ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, char const* name) {
  ++lookups;
  bool known = !std::strcmp(name, "%s") && library == reinterpret_cast<cudaLibrary_t>(8);
  *kernel = reinterpret_cast<cudaKernel_t>(16);
  return known ? cudaSuccess : cudaErrorMemoryAllocation;
}
%s
int main() {
  bool const failed = kernel() == nullptr;
  full = false;
  bool const found = kernel() == kernel() && kernel() != nullptr;
  std::printf("failed %%d found %%d loads %%d lookups %%d\n", failed, found, loads, lookups);
}
"""


def test_the_image_is_loaded_once_and_a_failure_is_not_kept(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the look-up for the host")
    code = stage(gelu()).skeleton.code
    begin = code.index('extern "C" unsigned char const ucc_image[];')
    source, binary = tmp_path / "image.cpp", tmp_path / "image"
    source.write_text(IMAGE % (KERNEL_NAME, code[begin : code.index("struct Device {", begin)]))
    subprocess.run([compiler, "-std=c++17", str(source), "-o", str(binary)], check=True)
    said = subprocess.check_output([str(binary)], text=True)
    assert said == "failed 1 found 1 loads 2 lookups 1\n"
