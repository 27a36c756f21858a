// A matrix product with the entry of emitted kernels, and one mistake a build: BUG says which.
#include <cstdint>
#include <cuda_runtime.h>

constexpr int kIllegalAddress = 1, kHang = 2, kPastResult = 3, kReadsWorkspace = 4, kRace = 5, kDivergent = 6;
constexpr int kThreads = 64;

__global__ void broken(float const* x, float const* w, float* out, float* sums, int m, int k, int n) {
  __shared__ float shared[kThreads];
  int const i = blockIdx.x * kThreads + threadIdx.x;
  if (BUG == kHang && m == 1) {
    while (true) __nanosleep(1000);
  }
  float sum = 0;
  if (i < m * n) {
    if (BUG == kReadsWorkspace) sum = sums[i] * 0.0f;
    for (int j = 0; j < k; ++j) sum += x[i / n * k + j] * w[i % n * k + j];
    sums[i] = sum;
  }
  if (BUG == kRace) {
    shared[threadIdx.x] = sum;
    sum += 0.0f * shared[threadIdx.x ^ 32];  // of the other warp, with no barrier between
  }
  if (BUG == kDivergent && threadIdx.x < 16) __syncthreads();
  if (i < m * n) out[i] = sum;
  if (BUG == kIllegalAddress && m == 1 && i == 0) *reinterpret_cast<float*>(uintptr_t{8}) = sum;
  if (BUG == kPastResult && i == 0) out[m * n] = sum;
}

extern "C" int32_t ucc_broken(void* const* tensors, int64_t const* extents, double const*, int64_t const*,
                              void* workspace, uint64_t* workspace_size, void* stream) {
  int const m = int(extents[0]), k = int(extents[1]), n = int(extents[2]);
  if (workspace_size != nullptr) {
    *workspace_size = uint64_t(m) * n * sizeof(float);
    return 0;
  }
  if (workspace == nullptr) return 1;
  broken<<<(m * n + kThreads - 1) / kThreads, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<float const*>(tensors[0]), static_cast<float const*>(tensors[1]),
      static_cast<float*>(tensors[2]), static_cast<float*>(workspace), m, k, n);
  cudaError_t const error = cudaGetLastError();
  return error == cudaSuccess ? 0 : 1000 + int(error);
}
