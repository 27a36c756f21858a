"""The emulator ends a launch where an access is not aligned to its type, and says which."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tests.emit import emulator
from ucutlass.emit import Source

MISALIGNED = 1000 + 716
"""cudaErrorMisalignedAddress, as entries return it."""

KERNEL = """
#include <initializer_list>
template <int kBytes>
__device__ void copy_async(uint32_t smem, void const* source, int valid) {
  asm volatile("cp.async");
}
__global__ void kernel(float* data, int place) {
  extern __shared__ __align__(128) uint8_t shared[];
  float* const own = data + threadIdx.x * 4;
  STATEMENT;
}
extern "C" int32_t entry(
    void* const* tensors, int64_t const* e, double const*, int64_t const*, void*, uint64_t*, void*) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(2), config.blockDim = dim3(32), config.dynamicSmemBytes = 4096;
  cudaError_t const error = cudaLaunchKernelEx(&config, kernel, static_cast<float*>(tensors[0]), int(e[0]));
  return error == cudaSuccess ? 0 : 1000 + int(error);
}
"""

FORMS = {
    "load": ("volatile unsigned x = reinterpret_cast<uint2 const*>(own + place)->x", 2),
    "store": ("*reinterpret_cast<uint4*>(own + place) = uint4()", 4),
    "cp.async": ("copy_async<8>(0, own + place, 8)", 2),
    "cp.async of nothing": ("copy_async<16>(0, own + place, 0)", 4),
    "cp.async's target": ("copy_async<8>(4 * place, own, 8)", 2),
}
"""By name: a statement, and of how many floats its address must be a multiple."""


@pytest.mark.parametrize("form", FORMS)
def test_misaligned_accesses_end_the_launch(
    form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    statement, multiple = FORMS[form]
    text = KERNEL.replace("STATEMENT", statement)
    entry = emulator.build(Source(text, text, "entry", "sm_80"), tmp_path)
    data = (ctypes.c_float * 1024)()
    start = (16 - ctypes.addressof(data) % 16) % 16 + ctypes.addressof(data)
    tensors = (ctypes.c_void_p * 1)(start)
    codes = [entry(tensors, (ctypes.c_int64 * 1)(place), None, None, None, None, None) for place in range(5)]
    assert codes == [0 if place % multiple == 0 else MISALIGNED for place in range(5)]
    said = capfd.readouterr().err.splitlines()
    assert len(said) == codes.count(MISALIGNED) and all("cp.async of" in s or "misaligned" in s for s in said)
