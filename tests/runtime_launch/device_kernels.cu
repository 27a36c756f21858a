// Kernels of the binary interface (ucutlass/plan.py) for tests on a GPU.
#include <cstdint>
#include <cuda_runtime.h>

__global__ void scale_add_kernel(float const* x, float const* b, float* y, float alpha, int64_t count,
                                 int64_t columns) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < count) y[i] = alpha * x[i] + b[i % columns];
}

__global__ void spin_kernel(int64_t cycles) {
  int64_t const start = clock64();
  while (clock64() - start < cycles) {
  }
}

// extents M, K; y[m, k] = alpha * x[m, k] + b[k]; with launch parameter 1 above 0, parameter 0 clock cycles later;
// where a workspace is given, it is overwritten, as a kernel may.
extern "C" int32_t scale_add(void* const* tensors, int64_t const* extents, double const* scalars,
                             int64_t const* launch_parameters, void* workspace, uint64_t* workspace_size,
                             void* stream) {
  if (workspace_size) {
    *workspace_size = 0;
    return 0;
  }
  cudaStream_t const queue = static_cast<cudaStream_t>(stream);
  int64_t const count = extents[0] * extents[1];
  if (workspace) cudaMemsetAsync(workspace, 0xff, 1024, queue);
  if (launch_parameters[1] > 0) spin_kernel<<<1, 1, 0, queue>>>(launch_parameters[0]);
  scale_add_kernel<<<unsigned((count + 255) / 256), 256, 0, queue>>>(
      static_cast<float const*>(tensors[0]), static_cast<float const*>(tensors[1]),
      static_cast<float*>(tensors[2]), float(scalars[0]), count, extents[1]);
  cudaError_t const status = cudaGetLastError();
  return status == cudaSuccess ? 0 : 1000 + int32_t(status);
}

// Fails as a launch with too many threads does.
extern "C" int32_t too_many_threads(void* const*, int64_t const*, double const*, int64_t const*, void*,
                                    uint64_t*, void* stream) {
  spin_kernel<<<1, 4096, 0, static_cast<cudaStream_t>(stream)>>>(0);
  return 1000 + int32_t(cudaGetLastError());
}
