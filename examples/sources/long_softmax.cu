// Softmax of bf16 rows of 131072, written by hand with CuTe: no part of it is an emitter's.
//
// A cluster of kCluster thread blocks shares a row, and goes on to another: clusters stay for the whole launch. A
// ring of kStages buffers in shared memory has a part of one row each. While one row is worked on, the next is on
// its way in and the one before on its way out, by bulk copies; a kernel that keeps a row in registers waits for all
// of it before it computes, and for all of that before it reads on.
//
// The emitter has such rings since, and its kernel of these rows takes as long.
//
// Blocks exchange the largest value and the sum of each warp once a row, by st.async into each other's shared memory.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "cute/tensor.hpp"
#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/arch/barrier.h"

namespace long_softmax {
namespace {

using namespace cute;
using Barrier = cutlass::arch::ClusterTransactionBarrier;

constexpr int kColumns = 131072;  // of a row
constexpr int kCluster = 4;       // blocks that share a row
constexpr int kStages = 2;
constexpr int kThreads = 512;

constexpr int kPart = kColumns / kCluster;  // elements that a block has of a row
constexpr int kPartBytes = kPart * 2;
constexpr int kVectors = kPart / 8 / kThreads;  // of 16 bytes, that a thread has of it
constexpr int kWarps = kThreads / 32, kPairs = kCluster * kWarps;
constexpr float kLog2E = 1.44269504f;

static_assert(kPart % (8 * kThreads) == 0 && kPairs % 32 == 0);

/// The largest value of a part of a row, and the sum of exponentials about it.
struct alignas(8) Pair {
  float top, sum;
};

struct Shared {
  alignas(128) __nv_bfloat16 stage[kStages][kPart];
  Pair pairs[2][kPairs];  // of every warp of the cluster, for this row and the next
  Barrier loaded[kStages], exchanged[2];
};

__device__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// exp(top - about): 0 where there is nothing, of which `top` is minus infinity.
__device__ float weight(float top, float about) { return top == -INFINITY ? 0.0f : power_of_two((top - about) * kLog2E); }

/// What exponentials are taken about: an infinity would make all of them NaN.
__device__ float pivot(float top) { return isinf(top) ? 0.0f : top; }

__device__ Pair merged(Pair a, Pair b) {
  float const top = fmaxf(a.top, b.top), about = pivot(top);
  return {top, a.sum * weight(a.top, about) + b.sum * weight(b.top, about)};
}

__device__ Pair warp_merged(Pair a) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    a = merged(a, {__shfl_xor_sync(~0u, a.top, distance), __shfl_xor_sync(~0u, a.sum, distance)});
  }
  return a;
}

/// Writes a pair into the shared memory of a block of the cluster, whose barrier counts its bytes.
__device__ void send(Pair const& pair, Pair* to, Barrier* barrier, uint32_t rank) {
  uint32_t const target = set_block_rank(cast_smem_ptr_to_uint(to), rank);
  uint32_t const counter = set_block_rank(cast_smem_ptr_to_uint(barrier), rank);
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
               :: "r"(target), "f"(pair.top), "f"(pair.sum), "r"(counter) : "memory");
}

__global__ void __launch_bounds__(kThreads, 1) softmax(__nv_bfloat16 const* x, __nv_bfloat16* y, int64_t rows) {
  extern __shared__ __align__(128) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  uint32_t const rank = block_rank_in_cluster();
  int64_t const first = blockIdx.x / kCluster, step = gridDim.x / kCluster;
  int const thread = threadIdx.x, lane = thread % 32, warp = thread / 32;

  auto const parts = make_layout(make_shape(rows, Int<kCluster>{}, Int<kPart>{}), LayoutRight{});
  auto const in = make_tensor(make_gmem_ptr(x), parts);
  auto const out = make_tensor(make_gmem_ptr(y), parts);
  auto const load = [&](int64_t row, int stage) {
    if (row >= rows) return;
    shared.loaded[stage].arrive_and_expect_tx(kPartBytes);
    SM90_BULK_COPY_G2S::copy(&in(row, int(rank), 0), reinterpret_cast<uint64_t*>(&shared.loaded[stage]),
                             shared.stage[stage], kPartBytes);
  };

  if (thread == 0) {
    for (auto& barrier : shared.loaded) barrier.init(1);
    for (auto& barrier : shared.exchanged) barrier.init(1);
    cutlass::arch::fence_barrier_init();
  }
  __syncwarp();
  cluster_sync();  // before anybody writes into another block's memory
  if (thread == 0) {
    for (int i = 0; i < kStages - 1; ++i) load(first + i * step, i);
  }

  int stage = 0, phase = 0, number = 0;
  for (int64_t row = first; row < rows; row += step, ++number) {
    int const buffer = number % 2;
    if (thread == 0) shared.exchanged[buffer].arrive_and_expect_tx(kPairs * sizeof(Pair));
    auto* const vectors = reinterpret_cast<uint4*>(shared.stage[stage]);
    shared.loaded[stage].wait(phase);

    float value[kVectors][8];
    Pair own = {-INFINITY, 0.0f};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      uint4 const words = vectors[v * kThreads + thread];
      uint32_t const word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        value[v][i] = __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xffff0000u);
        own.top = fmaxf(own.top, value[v][i]);
      }
    }
    float const about = pivot(own.top);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        value[v][i] = power_of_two((value[v][i] - about) * kLog2E);
        own.sum += value[v][i];
      }
    }

    Pair const of_warp = warp_merged(own);
    if (lane < kCluster) {
      send(of_warp, &shared.pairs[buffer][rank * kWarps + warp], &shared.exchanged[buffer], lane);
    }
    // The row before has had all of this time to leave its buffer, which the row after the next takes.
    if (thread == 0 && row + (kStages - 1) * step < rows) {
      tma_store_wait<0>();
      load(row + (kStages - 1) * step, (stage + kStages - 1) % kStages);
    }
    shared.exchanged[buffer].wait(number / 2 % 2);
    Pair whole = shared.pairs[buffer][lane];
#pragma unroll
    for (int i = 32; i < kPairs; i += 32) whole = merged(whole, shared.pairs[buffer][i + lane]);
    whole = warp_merged(whole);
    float const total = whole.top == INFINITY ? NAN : whole.sum;  // a row with an infinity has no softmax
    float const factor = weight(own.top, pivot(whole.top)) / total;

#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word[i]) : "f"(value[v][2 * i + 1] * factor), "f"(value[v][2 * i] * factor));
      }
      vectors[v * kThreads + thread] = make_uint4(word[0], word[1], word[2], word[3]);
    }
    tma_store_fence();
    __syncthreads();
    if (thread == 0) {
      SM90_BULK_COPY_S2G::copy(shared.stage[stage], &out(row, int(rank), 0), kPartBytes);
      tma_store_arrive();
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    phase ^= stage == 0;
  }
  if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  __syncwarp();
  cluster_sync();  // no block ends while another may still write into its memory
}

int32_t code(cudaError_t error) {
  if (error == cudaSuccess) return 0;
  (void)cudaGetLastError();
  return 1000 + int(error);
}

}  // namespace
}  // namespace long_softmax

extern "C" int32_t ucc_long_softmax(
    void* const* tensors, int64_t const* extents, double const*, int64_t const*,
    void*, uint64_t* workspace_size, void* stream) {
  using namespace long_softmax;
  if (workspace_size != nullptr) {
    *workspace_size = 0;
    return 0;
  }
  int64_t const rows = extents[0];
  if (rows < 1 || extents[1] != kColumns) return 1;
  if (reinterpret_cast<uintptr_t>(tensors[0]) % 16 != 0 || reinterpret_cast<uintptr_t>(tensors[1]) % 16 != 0) return 1;

  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(kThreads);
  config.gridDim = dim3(kCluster);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  if (int32_t const failure = code(cudaFuncSetAttribute(softmax, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)))) return failure;
  if (int32_t const failure = code(cudaOccupancyMaxActiveClusters(&clusters, softmax, &config))) return failure;
  if (clusters < 1) return 1000 + int(cudaErrorInvalidConfiguration);
  config.gridDim.x = kCluster * unsigned(rows < clusters ? rows : clusters);
  return code(cudaLaunchKernelEx(&config, softmax, static_cast<__nv_bfloat16 const*>(tensors[0]),
                                 static_cast<__nv_bfloat16*>(tensors[1]), rows));
}
