// A driver without a GPU: it writes down what it is asked, and fails where it was told to.

#include <cuda.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char* said = NULL;
static size_t length = 0, room = 0;
static char failing[64] = "";
static int failure = 0, failures = 0;
static size_t params_bytes = 0;
static int first_device = 0, encoded = 0;
static __thread CUcontext current = NULL;

static void say(char const* format, ...) {
  va_list arguments;
  if (room - length < 65536) {
    said = realloc(said, room += 1 << 20);
  }
  va_start(arguments, format);
  length += vsnprintf(said + length, room - length, format, arguments);
  va_end(arguments);
}

// --- for the test -----------------------------------------------------------------

void fake_fail(char const* function, int error, int times) {
  snprintf(failing, sizeof failing, "%s", function);
  failure = error;
  failures = times;
}
void fake_params(size_t bytes) { params_bytes = bytes; }
void fake_device(int ordinal) { first_device = ordinal; }
void fake_context(int there) { current = there ? (CUcontext)(size_t)(first_device + 1) : NULL; }
char const* fake_said(void) { return said == NULL ? "" : said; }
void fake_forget(void) {
  length = 0;
  if (said != NULL) {
    *said = 0;
  }
}

#define BESIDE 0x300      // a kernel of the image besides the one that a plan is for
#define BESIDE_BYTES 96  // of its parameters

// --- the driver -------------------------------------------------------------------

#define CALL(name, ...)                             \
  pthread_mutex_lock(&mutex);                       \
  say("{\"call\": \"" name "\", " __VA_ARGS__);     \
  if (failures > 0 && strcmp(failing, name) == 0) { \
    --failures;                                     \
    say(", \"error\": %d}\n", failure);             \
    pthread_mutex_unlock(&mutex);                   \
    return failure;                                 \
  }                                                 \
  say("}\n");

#define DONE                      \
  pthread_mutex_unlock(&mutex);   \
  return CUDA_SUCCESS

CUresult cuInit(unsigned flags) {
  CALL("cuInit", "\"flags\": %u", flags);
  DONE;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  CALL("cuCtxGetCurrent", "\"there\": %d", current != NULL);
  *context = current;
  DONE;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  CALL("cuCtxSetCurrent", "\"context\": %zu", (size_t)context);
  current = context;
  DONE;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  CALL("cuCtxGetDevice", "\"context\": %zu", (size_t)current);
  *device = (int)(size_t)current - 1;
  DONE;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  CALL("cuDeviceGetAttribute", "\"attribute\": %d, \"device\": %d", attribute, device);
  *value = 100 + device;
  DONE;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  CALL("cuDevicePrimaryCtxRetain", "\"device\": %d", device);
  *context = (CUcontext)(size_t)(device + 1);
  DONE;
}
CUresult cuLibraryLoadData(CUlibrary* library, void const* image, CUjit_option* options, void** values, unsigned count,
                           CUlibraryOption* library_options, void** library_values, unsigned library_count) {
  usleep(20000);  // so that threads that do not wait for one another meet here
  CALL("cuLibraryLoadData", "\"image\": \"%.4s\"", (char const*)image);
  *library = (CUlibrary)(size_t)0x100;
  DONE;
}
CUresult cuLibraryUnload(CUlibrary library) {
  CALL("cuLibraryUnload", "\"library\": %zu", (size_t)library);
  DONE;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, char const* name) {
  CALL("cuLibraryGetKernel", "\"name\": \"%s\"", name);
  *kernel = (CUkernel)(size_t)(strcmp(name, "ucc_cutlass_kernel") == 0 ? 0x200 : BESIDE);
  DONE;
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  CALL("cuKernelSetAttribute", "\"attribute\": %d, \"value\": %d, \"device\": %d", attribute, value, device);
  DONE;
}
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, CUlaunchConfig const* config) {
  CALL("cuOccupancyMaxActiveClusters", "\"grid\": [%u, %u, %u], \"shared\": %u", config->gridDimX, config->gridDimY,
       config->gridDimZ, config->sharedMemBytes);
  CUlaunchAttributeValue const* cluster = &config->attrs[0].value;
  *clusters = 96 / (int)(cluster->clusterDim.x * cluster->clusterDim.y);
  DONE;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                cuuint64_t const* extents, cuuint64_t const* strides, cuuint32_t const* box,
                                cuuint32_t const* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  CALL("cuTensorMapEncodeTiled",
       "\"number\": %d, \"aligned\": %d, \"type\": %d, \"rank\": %u, \"address\": %zu, \"extents\": [%zu, %zu, %zu], "
       "\"strides\": [%zu, %zu], \"box\": [%u, %u, %u], \"steps\": [%u, %u, %u], \"interleave\": %d, \"swizzle\": %d, "
       "\"fill\": %d",
       encoded + 1, (size_t)map % 64 == 0, type, rank, (size_t)address, (size_t)extents[0], (size_t)extents[1],
       (size_t)extents[2], (size_t)strides[0], (size_t)strides[1], box[0], box[1], box[2], steps[0], steps[1], steps[2],
       interleave, swizzle, fill);
  ++encoded;
  for (int i = 0; i < 16; ++i) {
    map->opaque[i] = (cuuint64_t)encoded;  // which map the kernel is given
  }
  DONE;
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
  CALL("cuMemsetD8Async", "\"address\": %zu, \"value\": %d, \"bytes\": %zu, \"stream\": %zu", (size_t)address, value, bytes,
       (size_t)stream);
  DONE;
}
CUresult cuLaunchKernelEx(CUlaunchConfig const* config, CUfunction function, void** params, void** extra) {
  CUlaunchAttribute const none = {0}, *attribute = config->numAttrs ? config->attrs : &none;
  CALL("cuLaunchKernelEx",
       "\"function\": %zu, \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"shared\": %u, \"stream\": %zu, \"attributes\": "
       "%u, \"attribute\": %d, \"cluster\": [%u, %u, %u], \"second\": [%d, %d], \"context\": %zu",
       (size_t)function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
       config->blockDimZ, config->sharedMemBytes, (size_t)config->hStream, config->numAttrs, attribute->id,
       attribute->value.clusterDim.x, attribute->value.clusterDim.y, attribute->value.clusterDim.z,
       config->numAttrs > 1 ? attribute[1].id : 0,
       config->numAttrs > 1 ? attribute[1].value.programmaticStreamSerializationAllowed : 0, (size_t)current);
  length -= 2;
  say(", \"params\": \"");
  for (size_t i = 0; i < ((size_t)function == BESIDE ? BESIDE_BYTES : params_bytes); ++i) {
    say("%02x", ((unsigned char const*)params[0])[i]);
  }
  say("\"}\n");
  DONE;
}
