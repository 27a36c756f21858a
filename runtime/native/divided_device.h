// What the device's side of a divided kernel (emit/division.py) has of the language's and CUDA's headers.

#ifndef UCC_DIVIDED_DEVICE_H
#define UCC_DIVIDED_DEVICE_H

#include <cuda/std/cstdint>
#include <cuda/std/limits>
#include <cuda/std/type_traits>

#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fffffff)

namespace std {
using cuda::std::conditional_t;
using cuda::std::false_type;
using cuda::std::integral_constant;
using cuda::std::is_floating_point_v;
using cuda::std::is_integral_v;
using cuda::std::is_pointer_v;
using cuda::std::is_same_v;
using cuda::std::numeric_limits;
using cuda::std::remove_reference_t;
using cuda::std::true_type;
using cuda::std::void_t;

template <class A, class B>
__host__ __device__ constexpr A gcd(A a, B b) {
  while (b != 0) {
    A const rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}
}  // namespace std

// As cuda.h has it.
#if __CUDACC_VER_MAJOR__ >= 13
struct alignas(128) CUtensorMap { uint64_t opaque[16]; };
#else
struct alignas(64) CUtensorMap { uint64_t opaque[16]; };
#endif

// The types that g++ and nvcc have for whole numbers: functions that are overloaded for `long` alone are chosen alike.
namespace UCC_KERNEL {
using int64_t = long;
using uint64_t = unsigned long;
using intptr_t = long;
using uintptr_t = unsigned long;
}  // namespace UCC_KERNEL

#endif
