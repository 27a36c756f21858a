"""What a kernel reads before it writes it is garbage in every emulated run."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from tests.emit import emulator
from tests.emit.harness import HOST_SHIM
from ucutlass.emit import Source

KERNEL = """
#include <cstdint>
#include <cuda_runtime.h>
__global__ void early(float* out) {
  __shared__ float tile[32];
  float held[4];
  int const t = int(threadIdx.x);
  out[t] = tile[t];
  out[32 + t] = held[t % 4];
  tile[t] = 1.0f;
}
extern "C" int32_t entry(float* out) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(2);
  config.blockDim = dim3(32);
  return int32_t(cudaLaunchKernelEx(&config, early, out));
}
"""


def test_memory_begins_as_garbage(tmp_path: Path) -> None:
    """The second block's shared memory does too, whatever the first left there."""
    text = f"#include <cmath>\n{HOST_SHIM}{KERNEL}"
    entry = emulator.build(Source(text, text, "entry", "sm_90a"), tmp_path)
    out = torch.zeros(64)
    assert entry(ctypes.c_void_p(out.data_ptr())) == 0
    assert bool(out[:32].isnan().all())
    assert bool((out[32:].abs() > 1e30).all())
