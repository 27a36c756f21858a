// What the host's side of a divided kernel (emit/division.py) has of CUTLASS's and CUDA's headers: element types, of which it knows
// the sizes alone, and what nvcc declares for launches.

#ifndef UCC_DIVIDED_HOST_H
#define UCC_DIVIDED_HOST_H

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define CUTLASS_DEVICE inline
#define CUTLASS_HOST_DEVICE inline
#define CUTLASS_PRAGMA_UNROLL

namespace cute {}

namespace cutlass {
namespace arch {
struct ClusterBarrier { using ValueType = uint64_t; };
}
struct half_t { uint16_t storage; };
struct bfloat16_t { uint16_t storage; };
struct tfloat32_t { uint32_t storage; };
struct float_e4m3_t { uint8_t storage; };
struct float_e5m2_t { uint8_t storage; };

// As cutlass/fast_math.h has it: the host finds the factor by which the device divides.
struct FastDivmod {
  int32_t divisor = 1;
  uint32_t multiplier = 0, shift_right = 0;

  FastDivmod() = default;
  FastDivmod(int of) : divisor(of) {
    if (of == 1) return;
    uint32_t const log2 = 31 - __builtin_clz(of) + ((of & (of - 1)) != 0);  // rounded up
    multiplier = uint32_t(((uint64_t(1) << (31 + log2)) + of - 1) / of);
    shift_right = log2 - 1;
  }
};
}  // namespace cutlass

struct __half { uint16_t storage; };
struct __nv_bfloat16 { uint16_t storage; };
struct __nv_fp8_e4m3 { uint8_t storage; };
struct __nv_fp8_e5m2 { uint8_t storage; };

template <class... Arguments>
inline cudaError_t cudaFuncSetAttribute(void (*kernel)(Arguments...), cudaFuncAttribute attribute, int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<void const*>(kernel), attribute, value);
}

template <class... Arguments>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*kernel)(Arguments...), int threads, size_t bytes) {
  return ::cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<void const*>(kernel), threads, bytes);
}

template <class... Arguments>
inline cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*kernel)(Arguments...), cudaLaunchConfig_t const* config) {
  return ::cudaOccupancyMaxActiveClusters(clusters, reinterpret_cast<void const*>(kernel), config);
}

// Of CUDA's crt/host_runtime.h.
extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFatBinaryEnd(void**);
void __cudaUnregisterFatBinary(void**);
void __cudaRegisterFunction(void**, char const*, char*, char const*, int, uint3*, uint3*, dim3*, dim3*, int*);
extern unsigned char const ucc_image[] __attribute__((visibility("hidden")));
extern char const* const ucc_names[] __attribute__((visibility("hidden")));
}

// The bytes of all parameters of a kernel.
template <class... Arguments>
constexpr uint32_t ucc_parameter_bytes(void (*)(Arguments...)) {
  return uint32_t((sizeof(Arguments) + ... + 0));
}

#define UCC_PARAMETERS __attribute__((section(".ucc_parameters"), used))

namespace {
struct {
  int magic, version;
  void const* image;
  void* file;
} ucc_wrapper __attribute__((section(".nvFatBinSegment"))) = {0x466243b1, 1, ucc_image, nullptr};
void** ucc_handle;

inline void ucc_register_image() { ucc_handle = __cudaRegisterFatBinary(&ucc_wrapper); }

template <class... Arguments>
inline void ucc_register_kernel(int number, void (*kernel)(Arguments...)) {
  char const* const name = ucc_names[number];
  __cudaRegisterFunction(ucc_handle, reinterpret_cast<char const*>(kernel), const_cast<char*>(name), name, -1, nullptr, nullptr,
                         nullptr, nullptr, nullptr);
}

inline void ucc_registered() { __cudaRegisterFatBinaryEnd(ucc_handle); }

__attribute__((destructor)) void ucc_unregister() { __cudaUnregisterFatBinary(ucc_handle); }
}  // namespace

#endif
