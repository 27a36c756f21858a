"""The doubling kernel's C++: what a family's folder in emit has, in one file."""

from __future__ import annotations

from typing import Any

CODE = """
#include <cstdint>
#include <cuda_runtime.h>

namespace @ENTRY@_kernel {
namespace {

__global__ void doubling(float const* x, float* y, int64_t count) {
  int64_t const i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < count) y[i] = x[i] + x[i];
}

}  // namespace
}  // namespace @ENTRY@_kernel

extern "C" int32_t @ENTRY@(
    void* const* tensors, int64_t const* e, double const*, int64_t const*,
    void*, uint64_t* workspace_size, void* cuda_stream) {
  if (workspace_size != nullptr) {
    *workspace_size = 0;
    return 0;
  }
  int64_t const count = %(count)s;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned((count + %(threads)d - 1) / %(threads)d));
  config.blockDim = dim3(%(threads)d);
  config.stream = static_cast<cudaStream_t>(cuda_stream);
  cudaError_t const error = cudaLaunchKernelEx(
      &config, @ENTRY@_kernel::doubling,
      static_cast<float const*>(tensors[0]), static_cast<float*>(tensors[1]), count);
  return error == cudaSuccess ? 0 : 1000 + int(error);
}
"""


def render(plan: Any) -> str:
    """The code of a plan, for `ucutlass.emit.text.finish`."""
    count = " * ".join(f"e[{i}]" for i in range(plan.problem.dims))
    return CODE % {"count": count, "threads": plan.schedule.threads}
