// Kernels of the binary interface (ucutlass/kernels/gemm/plan.py) that run on the host, and a driver's streams and
// events that only write down what was asked of them.
#include <stdint.h>

#define ENTRY(name)                                                                                  \
  int32_t name(void* const* tensors, int64_t const* extents, double const* scalars,                  \
               int64_t const* launch_parameters, void* workspace, uint64_t* workspace_size, void* stream)
#define UNUSED (void)tensors, (void)extents, (void)scalars, (void)launch_parameters, (void)workspace, \
               (void)workspace_size, (void)stream

// A log of what happened, four numbers each: what, and of what. Set by the test.
int64_t trace[4096];
int64_t traced = 0;

static void note(int64_t what, int64_t a, int64_t b, int64_t c) {
  if (traced + 4 > 4096) return;
  int64_t const all[] = {what, a, b, c};
  for (int i = 0; i < 4; ++i) trace[traced++] = all[i];
}

enum { LAUNCH = 1, RECORD = 2, WAIT = 3 };

// extents M, N; y = x + scalar, launch parameters: the number that is noted, how many bytes of workspace it takes and
// smears, what it returns.
ENTRY(add) {
  UNUSED;
  if (workspace_size) {
    *workspace_size = (uint64_t)launch_parameters[1];
    return 0;
  }
  note(LAUNCH, launch_parameters[0], (int64_t)(intptr_t)stream, (int64_t)(intptr_t)workspace);
  for (int64_t i = 0; i < launch_parameters[1]; ++i) ((unsigned char*)workspace)[i] = 0xee;
  float const* x = tensors[0];
  float* y = tensors[1];
  for (int64_t i = 0; i < extents[0] * extents[1]; ++i) y[i] = x[i] + (float)scalars[0];
  return (int32_t)launch_parameters[2];
}

// extents M, N; y = a * b and z = a - b
ENTRY(two) {
  UNUSED;
  if (workspace_size) {
    *workspace_size = (uint64_t)launch_parameters[1];
    return 0;
  }
  note(LAUNCH, launch_parameters[0], (int64_t)(intptr_t)stream, (int64_t)(intptr_t)workspace);
  for (int64_t i = 0; i < launch_parameters[1]; ++i) ((unsigned char*)workspace)[i] = 0xee;
  float const *a = tensors[0], *b = tensors[1];
  float *y = tensors[2], *z = tensors[3];
  for (int64_t i = 0; i < extents[0] * extents[1]; ++i) {
    float const p = a[i] * b[i], q = a[i] - b[i];
    y[i] = p;
    z[i] = q;
  }
  return (int32_t)launch_parameters[2];
}

// Whether the calling thread has a context: without one the driver refuses events with CUDA_ERROR_INVALID_CONTEXT.
int32_t has_context = 1;

int32_t fake_record(void* event, void* stream) {
  if (!has_context) return 201;
  note(RECORD, (int64_t)(intptr_t)event, (int64_t)(intptr_t)stream, 0);
  return (int64_t)(intptr_t)event == 666 ? 7 : 0;
}

int32_t fake_wait(void* stream, void* event, uint32_t flags) {
  note(WAIT, (int64_t)(intptr_t)event, (int64_t)(intptr_t)stream, flags);
  return 0;
}

// As add, but it smears 2048 bytes behind its workspace.
ENTRY(spill) {
  if (workspace_size) {
    *workspace_size = (uint64_t)launch_parameters[1];
    return 0;
  }
  int32_t const code = add(tensors, extents, scalars, launch_parameters, workspace, workspace_size, stream);
  for (int64_t i = 0; i < 2048; ++i) ((unsigned char*)workspace)[launch_parameters[1] + i] = 0xee;
  return code;
}
