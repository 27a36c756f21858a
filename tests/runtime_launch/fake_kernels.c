// Kernels of the binary interface (ucutlass/kernels/gemm/plan.py) that run on the host.
#include <stdint.h>

#define ENTRY(name)                                                                                  \
  int32_t name(void* const* tensors, int64_t const* extents, double const* scalars,                  \
               int64_t const* launch_parameters, void* workspace, uint64_t* workspace_size, void* stream)
#define UNUSED (void)tensors, (void)extents, (void)scalars, (void)launch_parameters, (void)workspace, \
               (void)workspace_size, (void)stream

// extents M, K; y[m, k] = alpha * x[m, k] + b[k]
ENTRY(scale_add) {
  UNUSED;
  float const *x = tensors[0], *b = tensors[1];
  float* y = tensors[2];
  for (int64_t m = 0; m < extents[0]; ++m)
    for (int64_t k = 0; k < extents[1]; ++k)
      y[m * extents[1] + k] = (float)scalars[0] * x[m * extents[1] + k] + b[k];
  return 0;
}

// extents M, K; total[m] = sum of x[m, :], next[m, k] = x[m, k] + 1; sums go through the workspace
ENTRY(sum_and_next) {
  UNUSED;
  if (!workspace || launch_parameters[0] != 7 || launch_parameters[1] != -1) return 1;
  float const* x = tensors[0];
  float *total = tensors[1], *next = tensors[2], *sums = workspace;
  for (int64_t m = 0; m < extents[0]; ++m) {
    sums[m] = 0;
    for (int64_t k = 0; k < extents[1]; ++k) {
      sums[m] += x[m * extents[1] + k];
      next[m * extents[1] + k] = x[m * extents[1] + k] + 1;
    }
    total[m] = sums[m];
  }
  return 0;
}

// Returns its first launch parameter; as a launch that fails.
ENTRY(refuse) {
  UNUSED;
  return (int32_t)launch_parameters[0];
}

// Writes its extents and scalars into the result, whatever they are: y[i] is extent i, then scalars.
ENTRY(report) {
  UNUSED;
  double* y = tensors[2];
  for (int64_t i = 0; i < launch_parameters[0]; ++i) y[i] = (double)extents[i];
  for (int64_t i = 0; i < launch_parameters[1]; ++i) y[launch_parameters[0] + i] = scalars[i];
  return 0;
}

// Succeeds and does nothing.
ENTRY(nothing) {
  UNUSED;
  return 0;
}

// The sum of three hundred tensors of M elements.
ENTRY(sum_of_many) {
  UNUSED;
  float* sums = tensors[300];
  for (int64_t m = 0; m < extents[0]; ++m) {
    sums[m] = 0;
    for (int i = 0; i < 300; ++i) sums[m] += ((float*)tensors[i])[m];
  }
  return 0;
}
