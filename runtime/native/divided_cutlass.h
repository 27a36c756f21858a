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

// To integers CUTLASS rounds in ways of its own.
template <class To, class From>
struct NumericConverter;

template <>
struct NumericConverter<float, float> {
  CUTLASS_DEVICE static float convert(float const& x) { return x; }
};

template <>
struct NumericConverter<half_t, float> {
  CUTLASS_DEVICE static half_t convert(float const& x) { return half_t(x); }
};

template <>
struct NumericConverter<bfloat16_t, float> {
  CUTLASS_DEVICE static bfloat16_t convert(float const& x) { return bfloat16_t(x); }
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
