"""What a kernel reads before it writes it, or before another block does, is garbage in every emulated run."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
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


CLUSTER = """
#include <cstdint>
#include <cuda_runtime.h>
__device__ void cluster_sync() {
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
}
__global__ void hand_over(float* out) {
  __shared__ float from[2];
  int const rank = int(__clusterRelativeBlockRank());
  cluster_sync();
  if (threadIdx.x == 0) static_cast<float*>(__cluster_map_shared_rank(from, 1 - rank))[rank] = 10.0f * blockIdx.x + rank;
  MEET
  if (threadIdx.x == 0) out[2 * blockIdx.x + rank] = from[1 - rank];
}
extern "C" int32_t entry(float* out) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {1, 2, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(2, 2);
  config.blockDim = dim3(32);
  config.attrs = &attribute;
  config.numAttrs = 1;
  return int32_t(cudaLaunchKernelEx(&config, hand_over, out));
}
"""


@pytest.mark.parametrize("meets", [True, False])
def test_blocks_of_a_cluster_have_shared_variables_of_their_own(meets: bool, tmp_path: Path) -> None:
    """What a block reads before the cluster's barrier is not there."""
    text = f"#include <cmath>\n{HOST_SHIM}{CLUSTER.replace('MEET', 'cluster_sync();' if meets else '')}"
    entry = emulator.build(Source(text, text, "entry", "sm_90a"), tmp_path)
    out = torch.zeros(4)
    assert entry(ctypes.c_void_p(out.data_ptr())) == 0
    assert out.tolist() == [1, 0, 11, 10] if meets else bool(out.isnan().any())
