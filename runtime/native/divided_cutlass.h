// What the device's side of a divided kernel (emit/division.py) has of CUTLASS's headers where it names nothing else of
// theirs, which take NVRTC longer to read than most kernels to compile. ptxas makes the same code of it, bit by bit.

#ifndef UCC_DIVIDED_CUTLASS_H
#define UCC_DIVIDED_CUTLASS_H

#include <cuda_fp16.h>

#define CUTLASS_DEVICE __forceinline__ __device__
#define CUTLASS_HOST_DEVICE __forceinline__ __device__
#define CUTLASS_PRAGMA_UNROLL _Pragma("unroll")
#define CUTLASS_PRAGMA_NO_UNROLL _Pragma("unroll 1")

namespace cutlass {

struct alignas(2) half_t {
  uint16_t storage;

  half_t() = default;
  CUTLASS_DEVICE explicit half_t(half const& x) : storage(reinterpret_cast<uint16_t const&>(x)) {}
  CUTLASS_DEVICE explicit half_t(float x) : half_t(__float2half_rn(x)) {}
  CUTLASS_DEVICE explicit half_t(int x) : half_t(__int2half_rn(x)) {}
  CUTLASS_DEVICE operator float() const { return __half2float(reinterpret_cast<half const&>(storage)); }
  CUTLASS_DEVICE uint16_t raw() const { return storage; }
  CUTLASS_DEVICE static half_t bitcast(uint16_t bits) {
    half_t x;
    x.storage = bits;
    return x;
  }
};

struct alignas(2) bfloat16_t {
  uint16_t storage;

  bfloat16_t() = default;
  CUTLASS_DEVICE explicit bfloat16_t(float x) { asm("cvt.rn.bf16.f32 %0, %1;\n" : "=h"(storage) : "f"(x)); }
  CUTLASS_DEVICE explicit bfloat16_t(int x) {
    float y = static_cast<float>(x);
    storage = uint16_t(reinterpret_cast<uint32_t&>(y) >> 16);
  }
  CUTLASS_DEVICE operator float() const {
    unsigned bits = unsigned(storage) << 16;
    return reinterpret_cast<float const&>(bits);
  }
  CUTLASS_DEVICE uint16_t raw() const { return storage; }
  CUTLASS_DEVICE static bfloat16_t bitcast(uint16_t bits) {
    bfloat16_t x;
    x.storage = bits;
    return x;
  }
};

struct alignas(4) tfloat32_t {
  uint32_t storage;

  tfloat32_t() = default;
  CUTLASS_DEVICE operator float() const {
    unsigned bits = storage & ~0x1fffu;
    return reinterpret_cast<float const&>(bits);
  }
  CUTLASS_DEVICE uint32_t raw() const { return storage; }
  CUTLASS_DEVICE static tfloat32_t bitcast(uint32_t bits) {
    tfloat32_t x;
    x.storage = bits;
    return x;
  }
};

// Zero by default, as CUTLASS has it.
struct alignas(1) float8_base {
  uint8_t storage;

  CUTLASS_DEVICE float8_base() : storage(0) {}
  CUTLASS_DEVICE uint8_t raw() const { return storage; }
};

struct alignas(1) float_e4m3_t : float8_base {
  float_e4m3_t() = default;
  CUTLASS_DEVICE explicit float_e4m3_t(float x) {
    uint16_t two;
    float const zero = 0.0f;
    asm volatile("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(zero), "f"(x));
    storage = reinterpret_cast<float_e4m3_t&>(two).storage;
  }
  CUTLASS_DEVICE explicit float_e4m3_t(int x) : float_e4m3_t(float(x)) {}
  CUTLASS_DEVICE operator float() const {
    uint16_t const bits = storage;
    uint32_t two;
    asm volatile("cvt.rn.f16x2.e4m3x2 %0, %1;\n" : "=r"(two) : "h"(bits));
    return __half2float(reinterpret_cast<half2 const&>(two).x);
  }
  CUTLASS_DEVICE static float_e4m3_t bitcast(uint8_t bits) {
    float_e4m3_t x;
    x.storage = bits;
    return x;
  }
};

struct alignas(1) float_e5m2_t : float8_base {
  float_e5m2_t() = default;
  CUTLASS_DEVICE explicit float_e5m2_t(float x) {
    uint16_t two;
    float const zero = 0.0f;
    asm volatile("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(zero), "f"(x));
    storage = reinterpret_cast<float_e5m2_t&>(two).storage;
  }
  CUTLASS_DEVICE explicit float_e5m2_t(int x) : float_e5m2_t(float(x)) {}
  CUTLASS_DEVICE operator float() const {
    uint16_t const bits = storage;
    uint32_t two;
    asm volatile("cvt.rn.f16x2.e5m2x2 %0, %1;\n" : "=r"(two) : "h"(bits));
    return __half2float(reinterpret_cast<half2 const&>(two).x);
  }
  CUTLASS_DEVICE static float_e5m2_t bitcast(uint8_t bits) {
    float_e5m2_t x;
    x.storage = bits;
    return x;
  }
};

template <class To, class From>
struct NumericConverter {
  CUTLASS_DEVICE static To convert(From const& x) { return static_cast<To>(x); }
};

template <>
struct NumericConverter<int32_t, float> {
  CUTLASS_DEVICE static int32_t convert(float const& x) { return __float2int_rn(x); }
};

template <>
struct NumericConverter<int8_t, float> {
  CUTLASS_DEVICE static int8_t convert(float const& x) {
    int32_t rounded;
    asm volatile("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return static_cast<int8_t>(rounded);
  }
};

template <>
struct NumericConverter<uint8_t, float> {
  CUTLASS_DEVICE static uint8_t convert(float const& x) {
    int32_t rounded;
    asm volatile("cvt.rni.sat.u8.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return static_cast<uint8_t>(rounded);
  }
};

template <>
struct NumericConverter<tfloat32_t, float> {
  CUTLASS_DEVICE static tfloat32_t convert(float const& x) {
    unsigned bits = reinterpret_cast<unsigned const&>(x);
    asm volatile("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "r"(bits));
    return tfloat32_t::bitcast(bits);
  }
};

struct FastDivmod {
  int32_t divisor = 1;
  uint32_t multiplier = 0, shift_right = 0;

  CUTLASS_DEVICE int div(int dividend) const {
    return (divisor != 1) ? __umulhi(dividend, multiplier) >> shift_right : dividend;
  }
  CUTLASS_DEVICE int rem(int dividend) const { return dividend - div(dividend) * divisor; }
};

}  // namespace cutlass

#endif
