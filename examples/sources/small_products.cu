// Products of 16x16 bf16 matrices, as many as there are, written by hand with CuTe: no part of it is an emitter's.
//
// A warp does a whole product in registers, so that every byte is read and written once and nothing is padded. Each
// lane reads four neighbours of a row, 8 bytes, and a warp 256 that lie together. The instruction wants elements
// 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of a row in lane t of four, and lane t has 4 t to 4 t + 3: both operands are read
// under the same permutation of k, which changes no sum. Columns of the result are permuted too, so that each lane
// stores four neighbours. A warp has kEach products in flight.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "cute/tensor.hpp"
#include "cute/arch/mma_sm80.hpp"

namespace small_products {
namespace {

using namespace cute;
using Multiply = SM80_16x8x16_F32BF16BF16F32_TN;

constexpr int kSide = 16;  // rows, columns and k of a product
constexpr int kEach = 4;   // products of a warp
constexpr int kWarps = 8;  // of a block

/// Four neighbours of a row: what a lane reads or writes at once.
using Quad = uint2;
using Matrices = Layout<Shape<Int<kSide>, Int<kSide / 4>>, Stride<Int<kSide / 4>, _1>>;
using Lanes = Layout<Shape<_8, _4>, Stride<_4, _1>>;

__device__ uint32_t rounded(float low, float high) {
  __nv_bfloat162 const pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<uint32_t const&>(pair);
}

/// The row of b that slot `slot` of the instruction's eight columns stands for, in its half `half` of the result.
__device__ int column(int slot, int half) { return slot / 2 * 4 + half * 2 + slot % 2; }

__global__ void __launch_bounds__(kWarps * 32) multiply(Quad const* a, Quad const* b, Quad* c, int64_t products) {
  int const lane = threadIdx.x % 32, group = lane / 4, t = lane % 4;
  int64_t const first = (int64_t(blockIdx.x) * kWarps + threadIdx.x / 32) * kEach;
  auto const matrix = [](auto* base, int64_t product) {
    return make_tensor(make_gmem_ptr(base + product * (kSide * kSide / 4)), Matrices{});
  };

  Quad left[kEach][2] = {}, right[kEach][2] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i >= products) continue;
    auto const own = local_partition(matrix(a, first + i), Lanes{}, lane);
    auto const other = matrix(b, first + i);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      left[i][half] = own(half, 0);
      right[i][half] = other(column(group, half), t);
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i >= products) continue;
    float sum[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      auto& d = sum[half];
      Multiply::fma(d[0], d[1], d[2], d[3], left[i][0].x, left[i][1].x, left[i][0].y, left[i][1].y, right[i][half].x,
                    right[i][half].y, 0.0f, 0.0f, 0.0f, 0.0f);
    }
    auto own = local_partition(matrix(c, first + i), Lanes{}, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      own(half, 0) = make_uint2(rounded(sum[0][2 * half], sum[0][2 * half + 1]), rounded(sum[1][2 * half], sum[1][2 * half + 1]));
    }
  }
}

}  // namespace
}  // namespace small_products

extern "C" int32_t ucc_small_products(
    void* const* tensors, int64_t const* extents, double const*, int64_t const*,
    void*, uint64_t* workspace_size, void* stream) {
  using namespace small_products;
  if (workspace_size != nullptr) {
    *workspace_size = 0;
    return 0;
  }
  int64_t const products = extents[0];
  if (products < 1 || extents[1] != kSide || extents[2] != kSide || extents[3] != kSide) return 1;
  for (int i = 0; i < 3; ++i) {
    if (reinterpret_cast<uintptr_t>(tensors[i]) % sizeof(Quad) != 0) return 1;
  }
  int64_t const blocks = (products + kEach * kWarps - 1) / (kEach * kWarps);
  if (blocks > INT32_MAX) return 1;
  multiply<<<unsigned(blocks), kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<Quad const*>(tensors[0]), static_cast<Quad const*>(tensors[1]), static_cast<Quad*>(tensors[2]), products);
  cudaError_t const error = cudaGetLastError();
  return error == cudaSuccess ? 0 : 1000 + int(error);
}
