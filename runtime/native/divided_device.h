// What the device's side of a divided kernel (emit/division.py) has of the language's and CUDA's headers.

#ifndef UCC_DIVIDED_DEVICE_H
#define UCC_DIVIDED_DEVICE_H

#include <cuda/std/cstdint>
#include <cuda/std/limits>

#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fffffff)

namespace std {
using cuda::std::numeric_limits;

template <class T, T Value>
struct integral_constant {
  static constexpr T value = Value;
  using value_type = T;
  constexpr operator T() const { return Value; }
};
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;

template <bool, class Then, class>
struct conditional { using type = Then; };
template <class Then, class Else>
struct conditional<false, Then, Else> { using type = Else; };
template <bool Condition, class Then, class Else>
using conditional_t = typename conditional<Condition, Then, Else>::type;

template <class...>
using void_t = void;

template <class T>
struct remove_reference { using type = T; };
template <class T>
struct remove_reference<T&> { using type = T; };
template <class T>
struct remove_reference<T&&> { using type = T; };
template <class T>
using remove_reference_t = typename remove_reference<T>::type;

template <class, class>
inline constexpr bool is_same_v = false;
template <class T>
inline constexpr bool is_same_v<T, T> = true;

template <class>
inline constexpr bool is_pointer_v = false;
template <class T>
inline constexpr bool is_pointer_v<T*> = true;

template <class T>
inline constexpr bool is_integral_v = numeric_limits<T>::is_integer;
template <class T>
inline constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;

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
