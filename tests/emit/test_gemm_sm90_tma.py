"""How a Hopper kernel finds the driver's descriptor encoder, run against a driver made up here.

The program is the emitted text up to CUTLASS's includes, then CUTLASS's own wrapper, through which
every descriptor goes, and a `cudaGetDriverEntryPoint*` of the test's own in the runtime's place.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.emit.harness import cuda_includes, cutlass_include
from tests.emit.test_gemm_sm90 import PLANS
from ucutlass.emit import emit

BEGIN, END = "// --- TMA descriptors", '#include "cute/tensor.hpp"'

PROGRAM = r"""
#include "cutlass/cuda_host_adapter.hpp"
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

std::atomic<int> lookups{0}, encodings{0}, wrong{0};
cudaError_t answer = cudaSuccess;
cudaDriverEntryPointQueryResult query = cudaDriverEntryPointSuccess;
thread_local CUresult verdict = CUDA_SUCCESS;
thread_local bool bound = true;  // whether the thread has a context

CUresult retain(CUcontext* context, CUdevice device) {
  wrong += device != 0;
  *context = CUcontext(&lookups);
  return CUDA_SUCCESS;
}
CUresult set(CUcontext context) {
  wrong += context != CUcontext(&lookups);
  bound = true;
  return CUDA_SUCCESS;
}

CUresult encode(CUtensorMap*, CUtensorMapDataType type, cuuint32_t rank, void* address, cuuint64_t const*,
                cuuint64_t const*, cuuint32_t const*, cuuint32_t const*, CUtensorMapInterleave,
                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  wrong += type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || rank != 3 || address != &lookups;
  ++encodings;
  return bound ? verdict : CUDA_ERROR_INVALID_CONTEXT;
}

cudaError_t look_up(char const* name, void** address, cudaDriverEntryPointQueryResult* found) {
  *found = query;
  if (!std::strcmp(name, "cuDevicePrimaryCtxRetain")) return *address = (void*)retain, answer;
  if (!std::strcmp(name, "cuCtxSetCurrent")) return *address = (void*)set, answer;
  wrong += std::strcmp(name, "cuTensorMapEncodeTiled") != 0;
  ++lookups;
  *address = answer == cudaSuccess && query == cudaDriverEntryPointSuccess ? (void*)encode : nullptr;
  return answer;
}

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(char const* name, void** address,
                                                        unsigned version, unsigned long long,
                                                        cudaDriverEntryPointQueryResult* found) {
  wrong += version != 12000;
  return look_up(name, address, found);
}
#if CUDART_VERSION < 13000
extern "C" cudaError_t cudaGetDriverEntryPoint(char const* name, void** address, unsigned long long,
                                               cudaDriverEntryPointQueryResult* found) {
  return look_up(name, address, found);
}
#endif

extern "C" cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

CUresult descriptor() {  // as cute/atom/copy_traits_sm90_tma.hpp makes one
  CUtensorMap map;
  uint64_t extents[5], strides[5];
  uint32_t box[5], steps[5];
  return CUTLASS_CUDA_DRIVER_WRAPPER_CALL(cuTensorMapEncodeTiled)(
      &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, (void*)&lookups, extents, strides + 1, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

int main(int, char** argv) {
  std::string const driver = argv[1];
  if (driver == "absent") query = cudaDriverEntryPointSymbolNotFound;
  if (driver == "broken") answer = cudaErrorInsufficientDriver;
  int refused = 0;
  if (driver == "present") {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([] { for (int j = 0; j < 100; ++j) wrong += descriptor() != CUDA_SUCCESS; });
    }
    for (auto& thread : threads) thread.join();
    std::thread([] {
      bound = false;
      wrong += descriptor() != CUDA_SUCCESS || !bound || ucc_tma::refusal != CUDA_SUCCESS;
    }).join();
    std::thread([&] {
      verdict = CUDA_ERROR_INVALID_VALUE;
      wrong += descriptor() != CUDA_SUCCESS;  // CUTLASS hears nothing of it
      verdict = CUDA_SUCCESS;
      wrong += descriptor() != CUDA_SUCCESS;
      refused = ucc_tma::refusal;  // a later success hides no refusal
    }).join();
  }
  int const error = ucc_tma::encoder().error;
  std::printf("error %d lookups %d encodings %d wrong %d refused there %d here %d\n", error, lookups.load(),
              encodings.load(), wrong.load(), refused, int(ucc_tma::refusal));
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the look-up for the host")
    folder = tmp_path_factory.mktemp("tma")
    code = emit(PLANS["bias_gelu"], "").code
    section = code[code.index(BEGIN) : code.index(END)]
    source, binary = folder / "look_up.cpp", folder / "look_up"
    source.write_text(section + PROGRAM)
    # CUTLASS declares its wrapper for nvcc 12 and newer alone.
    flags = ("-std=c++17", "-O2", "-w", "-pthread", "-D__CUDACC_VER_MAJOR__=13", "-D__CUDACC_VER_MINOR__=0")
    includes = (f"-I{cutlass_include()}", *cuda_includes())
    command = [compiler, *flags, *includes, str(source), "-o", str(binary)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return binary


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("present", "error 0 lookups 1 encodings 804 wrong 0 refused there 1 here 0"),
        ("absent", "error 500 lookups 1 encodings 0 wrong 0 refused there 0 here 0"),
        ("broken", "error 35 lookups 1 encodings 0 wrong 0 refused there 0 here 0"),
    ],
)
def test_looks_up_once_and_keeps_refusals(program: Path, driver: str, said: str) -> None:
    """Eight threads at once look up once; a driver without the function is an error to return."""
    assert subprocess.check_output([str(program), driver], text=True).strip() == said


def test_the_entry_returns_what_the_descriptors_met() -> None:
    """An absent encoder is found before a descriptor is made, a refusal before the launch."""
    code = emit(PLANS["bias_gelu"], "").code
    entry = code[code.index('extern "C"') :]
    steps = (
        "current_device();",
        "return code(device.error);",
        "ucc_tma::refusal = CUDA_SUCCESS;",
        "Kernel::to_underlying_arguments(",
        "code(cudaError_t(ucc_tma::refusal))",
        "cudaLaunchKernelExC(",
    )
    at = [entry.index(step) for step in steps]
    assert at == sorted(at)
    assert "device.error = ucc_tma::encoder().error;" in code
    assert code.index("#define cuTensorMapEncodeTiled ucc_tma::encode_tiled") < code.index(END)
