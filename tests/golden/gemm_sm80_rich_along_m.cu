#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <type_traits>
#include <cuda_runtime.h>
#include <cuda/std/limits>
#include <cmath>
#include "cutlass/cutlass.h"
#include "cutlass/fast_math.h"
#include "cutlass/functional.h"
#include "cutlass/numeric_conversion.h"

namespace ucc_fbfb003bf52d08ec_kernel {  // of its own, so that kernels compiled together stay apart
namespace {

// --- configuration -------------------------------------------------------------------

constexpr int kTileM = 64, kTileN = 64, kTileK = 64;
constexpr int kWarpsM = 2, kWarpsN = 2, kThreads = 32 * kWarpsM * kWarpsN;
constexpr int kStages = 3;
constexpr int kStageRows = 32;  // rows of the tile that pass the epilogue at a time
constexpr int kWidth = 1;  // elements that a thread takes there at a time
constexpr int kContracted = 2, kBatchModes = 2;
constexpr int kSharedBytes = 46080;

using ElementA = int8_t;
using ElementB = int8_t;
using Sum = int32_t;  // in registers
using Accumulator = int32_t;  // what the arithmetic takes

// --- arithmetic ----------------------------------------------------------------------

template <int64_t Lowest, int64_t Highest, class Integer>
__forceinline__ __device__ Integer ucc_integer(float x) {
  float r = rintf(x);
  if (!(r > float(Lowest))) return x == x ? Integer(Lowest) : Integer(0);
  return r >= float(Highest) ? Integer(Highest) : Integer(r);
}

template <int64_t Lowest, int64_t Highest, class Integer>
__forceinline__ __device__ Integer ucc_integer(int64_t x) {
  return Integer(x < Lowest ? Lowest : x > Highest ? Highest : x);
}

struct ArithmeticParams {
  float scalar0;  // host scalar 0
  int64_t extent0;  // e[1]
};

inline ArithmeticParams arithmetic_params(int64_t const* e, double const* s) {
  ArithmeticParams p;
  p.scalar0 = float(s[0]);
  p.extent0 = int64_t(e[1]);
  return p;
}

CUTLASS_DEVICE void ucc_arithmetic(
    ArithmeticParams const& p,
    int m, int n, int b0, int b1,
    int32_t acc,
    float in0, float in1, float in2, float in3, int32_t in4,
    int32_t& out0, float& out1, float& out2, float& out3, float& out4, bool& out5, float& out6) {
  float const v6 = float(acc) + in0;  // add
  float const v7 = v6 + in1;  // add
  float const v8 = v7 + in2;  // add
  float const v9 = v8 + in3;  // add
  float const v10 = v9 + float(in4);  // add
  int64_t const v11 = int64_t(m);  // coordinate
  int64_t const v12 = int64_t(b1);  // coordinate
  float const v13 = v10 + float(v11);  // add
  float const v14 = v13 - float(v12);  // subtract
  float const v16 = v14 * p.scalar0;  // multiply
  bool const v18 = v16 > 0.0f;  // greater
  float const v20 = v16 - float(p.extent0);  // subtract
  out0 = ucc_integer<-128, 127, int32_t>(v20);  // stored as s8
  out1 = v16;  // stored as f32
  out2 = v20;  // stored as f16
  out3 = v16;  // stored as f32
  out4 = v16;  // stored as f32
  out5 = v18;  // stored as bool
  out6 = v16;  // stored as f32
}

// --- problem -------------------------------------------------------------------------

/// A matrix operand. Strides count elements; those of modes it does not range over are 0.
template <class Element>
struct Matrix {
  Element const* data;
  int64_t row;
  int64_t k[kContracted];
  int64_t batch[kBatchModes];
};

/// A tensor of the epilogue: an operand or a result.
template <class Element>
struct Slot {
  Element* data;
  int64_t m, n;
  int64_t batch[kBatchModes];
};

struct Params {
  int64_t m, n;
  int64_t k[kContracted];
  int64_t batch[kBatchModes];
  int64_t batches;
  int32_t k_tiles;                 // over all contracted modes
  int32_t inner_k_tiles;           // along the innermost one
  int32_t splits;
  uint32_t tiles_m, tiles_n;
  bool along_m;                    // neighbouring thread blocks advance along M
  uint32_t swizzle;                // width of a band of tiles, for reuse in L2
  Matrix<ElementA> a;
  Matrix<ElementB> b;
  Slot<float const> input0;
  Slot<cutlass::half_t const> input1;
  Slot<cutlass::bfloat16_t const> input2;
  Slot<float const> input3;
  Slot<int32_t const> input4;
  Slot<int8_t> output0;
  Slot<float> output1;
  Slot<cutlass::half_t> output2;
  Slot<float> output3;
  Slot<float> output4;
  Slot<bool> output5;
  Slot<float> output6;
  Accumulator* partial_sums;       // [split][tile][accumulator][thread]
  float* partial1;  // [batch][kept modes][part]
  float* partial2;  // [batch][kept modes][part]
  float* partial3;  // [batch][kept modes][part]
  float* partial4;  // [batch][kept modes][part]
  float* partial6;  // [batch][kept modes][part]
  ArithmeticParams arithmetic;
};

/// Neighbouring elements that one access moves.
template <class Element, int kCount>
struct alignas(sizeof(Element) * kCount) Pack {
  Element value[kCount];
};

/// As many bytes as a pack has: what of narrow elements is moved as such, the compiler may take apart.
template <int kBytes>
using Bits = std::conditional_t<kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>>;

template <class Element, int kCount>
__device__ Pack<Element, kCount> load_pack(Element const* source) {
  static_assert(sizeof(Pack<Element, kCount>) <= 16, "one access");
  auto const bits = *reinterpret_cast<Bits<int(sizeof(Pack<Element, kCount>))> const*>(source);
  Pack<Element, kCount> pack;
  memcpy(&pack, &bits, sizeof(pack));
  return pack;
}

template <class Element, int kCount>
__device__ void store_pack(Element* target, Pack<Element, kCount> const& pack) {
  static_assert(sizeof(pack) <= 16, "one access");
  Bits<int(sizeof(pack))> bits;
  memcpy(&bits, &pack, sizeof(pack));
#if defined(__CUDA_ARCH__)
  // In words: nvcc takes a store of a pack apart. No kernel reads what it stores so.
  if constexpr (sizeof(pack) == 16) {
    asm volatile("st.global.v4.b32 [%0], { %1, %2, %3, %4};" :: "l"(target), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w));
  } else if constexpr (sizeof(pack) == 8) {
    asm volatile("st.global.v2.b32 [%0], { %1, %2};" :: "l"(target), "r"(bits.x), "r"(bits.y));
  } else {
    *reinterpret_cast<Bits<int(sizeof(pack))>*>(target) = bits;
  }
#else
  *reinterpret_cast<Bits<int(sizeof(pack))>*>(target) = bits;
#endif
}

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Which part of the problem a thread block computes.
struct Tile {
  int64_t m, n;                    // first row and column
  int rows, columns;               // valid ones
  uint32_t tile_m, tile_n;
  int64_t batch;                   // over all batch modes, the last one fastest
  int64_t tile;                    // over all tiles and batches
  int split;
};

__device__ inline int64_t block_index() { return int64_t(blockIdx.y) * gridDim.x + blockIdx.x; }

/// Tiles go in bands of `swizzle` tiles across the raster's direction, so that the thread
/// blocks that run at one time share rows and columns.
__device__ inline Tile locate(Params const& p, int64_t block) {
  Tile tile;
  uint32_t const tiles = p.tiles_m * p.tiles_n;
  int64_t const tiles_and_batches = tiles * p.batches;
  tile.split = 0;
  tile.tile = block;
  tile.batch = 0;
  if (block >= tiles) {  // divisions of 64 bits, before which nothing can be loaded
    tile.split = int(block / tiles_and_batches);
    tile.tile = block % tiles_and_batches;
    tile.batch = tile.tile / tiles;
  }
  uint32_t const index = uint32_t(tile.tile - tile.batch * tiles);
  uint32_t const fast = p.along_m ? p.tiles_m : p.tiles_n;
  uint32_t const slow = p.along_m ? p.tiles_n : p.tiles_m;
  uint32_t const band = index / (p.swizzle * fast);
  uint32_t const width = min(p.swizzle, slow - band * p.swizzle);
  uint32_t const rest = index - band * p.swizzle * fast;
  uint32_t const along = rest / width;
  uint32_t const across = band * p.swizzle + rest % width;
  tile.tile_m = p.along_m ? along : across;
  tile.tile_n = p.along_m ? across : along;
  tile.m = int64_t(tile.tile_m) * kTileM;
  tile.n = int64_t(tile.tile_n) * kTileN;
  tile.rows = int(min(int64_t(kTileM), p.m - tile.m));
  tile.columns = int(min(int64_t(kTileN), p.n - tile.n));
  return tile;
}

/// The coordinates of a batch, or of any row-major index.
template <int kModes>
__device__ void unravel(int64_t index, int64_t const (&extent)[kModes], int64_t (&coordinate)[kModes]) {
#pragma unroll
  for (int i = kModes - 1; i > 0; --i) {
    coordinate[i] = index % extent[i];
    index /= extent[i];
  }
  coordinate[0] = index;
}

template <int kModes>
__device__ int64_t dot(int64_t const (&coordinate)[kModes], int64_t const (&stride)[kModes]) {
  int64_t sum = 0;
#pragma unroll
  for (int i = 0; i < kModes; ++i) sum += coordinate[i] * stride[i];
  return sum;
}

// --- shared memory -------------------------------------------------------------------
// A stage holds a tile of A and one of B, swizzled so that neither the copies that fill it nor
// the reads to registers meet in a bank.

/// The address in the shared state space, as PTX instructions take it.
__device__ __forceinline__ uint32_t cast_smem_ptr_to_uint(void const* pointer) {
  return uint32_t(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void store_shared(uint32_t smem, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(smem), "r"(word) : "memory");
}

__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until all but so many of the thread's groups have arrived.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() { asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory"); }

/// The offset in elements of an element of a tile of kRows x kTileK. Eight lines of kLine elements, along K where
/// kAlongK and else along the rows, are an atom, and atoms stand along the rows first. Within an atom, kBits bits of
/// the offset from bit kBase + kShift on are added to those from bit kBase on, modulo 2 (CuTe's Swizzle).
template <int kRows, bool kAlongK, int kLine, int kBits, int kBase, int kShift>
struct SwizzledTile {
  __device__ constexpr int operator()(int row, int k) const {
    constexpr int kAtomRows = kAlongK ? 8 : kLine, kAtomK = kAlongK ? kLine : 8;
    unsigned const r = unsigned(row), c = unsigned(k);
    unsigned const atom = r / kAtomRows + c / kAtomK * (kRows / kAtomRows);
    unsigned const offset = atom * (8 * kLine) + (kAlongK ? r % kAtomRows * kLine + c % kAtomK : c % kAtomK * kLine + r % kAtomRows);
    return int(offset ^ (offset >> kShift & ((1u << kBits) - 1) << kBase));
  }
};

using SharedA = SwizzledTile<kTileM, true, 64, 2, 4, 3>;
using SharedB = SwizzledTile<kTileN, true, 64, 2, 4, 3>;
constexpr int kElementsA = kTileM * kTileK, kElementsB = kTileN * kTileK;

/// Addresses of the tiles of a stage, in 32 bits throughout: NVRTC would keep a pointer's 64, and add the begin of the tiles in each step.
__device__ inline uint32_t tile_a(uint32_t smem, int stage) { return smem + uint32_t(sizeof(ElementA)) * kElementsA * stage; }
__device__ inline uint32_t tile_b(uint32_t smem, int stage) {
  return smem + uint32_t(sizeof(ElementA)) * kElementsA * kStages + uint32_t(sizeof(ElementB)) * kElementsB * stage;
}

// --- global to shared memory ---------------------------------------------------------

/// Where the contraction stands: a tile along the innermost contracted mode, under
/// coordinates of the outer ones.
struct Contraction {
  int64_t outer[kContracted];      // the last entry is unused
  int64_t offset_a, offset_b;      // of the tile's first k, in elements
  int inner;                       // tile along the innermost mode

  __device__ Contraction(Params const& p, int tile) {
    int64_t extent[kContracted];
#pragma unroll
    for (int i = 0; i < kContracted; ++i) extent[i] = i + 1 < kContracted ? p.k[i] : p.inner_k_tiles;
    unravel(tile, extent, outer);
    inner = int(outer[kContracted - 1]);
    locate(p);
  }

  __device__ void locate(Params const& p) {
    offset_a = int64_t(inner) * kTileK * p.a.k[kContracted - 1];
    offset_b = int64_t(inner) * kTileK * p.b.k[kContracted - 1];
#pragma unroll
    for (int i = 0; i + 1 < kContracted; ++i) {
      offset_a += outer[i] * p.a.k[i];
      offset_b += outer[i] * p.b.k[i];
    }
  }

  /// Valid elements along K in this tile.
  __device__ int depth(Params const& p) const {
    return int(min(int64_t(kTileK), p.k[kContracted - 1] - int64_t(inner) * kTileK));
  }

  __device__ void advance(Params const& p) {
    if (++inner == p.inner_k_tiles) {
      inner = 0;
      bool carry = true;
#pragma unroll
      for (int i = kContracted - 2; i >= 0; --i) {
        if (carry && ++outer[i] == p.k[i]) outer[i] = 0; else carry = false;
      }
    }
    locate(p);
  }
};

/// How the threads of a block cover kFast x kSlow units; neighbours take neighbours along
/// the first mode, and every thread repeats its place in steps of kThreadsFast, kThreadsSlow.
template <int kFast, int kSlow>
struct Cover {
  static constexpr int kThreadsFast = std::gcd(kFast, kThreads);
  static constexpr int kThreadsSlow = kThreads / kThreadsFast;
  static constexpr int kRepeatFast = kFast / kThreadsFast;
  static constexpr int kRepeatSlow = (kSlow + kThreadsSlow - 1) / kThreadsSlow;

  __device__ static int fast() { return threadIdx.x % kThreadsFast; }
  __device__ static int slow() { return threadIdx.x / kThreadsFast; }

  /// Calls visit(f, s) for each of the thread's repeats.
  template <class Visit>
  __device__ static void each(Visit&& visit) {
#pragma unroll
    for (int s = 0; s < kRepeatSlow; ++s) {
      if (kSlow % kThreadsSlow != 0 && slow() + s * kThreadsSlow >= kSlow) break;
#pragma unroll
      for (int f = 0; f < kRepeatFast; ++f) visit(f, s);
    }
  }
};

/// Loads a tile of kRows x kTileK through registers, element by element: for operands that
/// cp.async, which takes 4 bytes or more, cannot place. A unit is the 4 bytes that are
/// adjacent in shared memory, along K where kSharedK, else along the rows.
template <class Element, class Shared, int kRows, bool kAlongK, bool kUnit, bool kSharedK>
struct StagedLoad {
  static constexpr int kPack = 4 / int(sizeof(Element));
  static constexpr int kUnitsK = kSharedK ? kTileK / kPack : kTileK;
  static constexpr int kUnitRows = kSharedK ? kRows : kRows / kPack;
  using Threads = Cover<kAlongK ? kUnitsK : kUnitRows, kAlongK ? kUnitRows : kUnitsK>;
  using Bits = std::conditional_t<sizeof(Element) == 2, uint16_t, uint8_t>;

  // Elements from a thread's place to its next ones, in rows and along K.
  static constexpr int kFastK = kSharedK ? kPack : 1, kFastRows = kSharedK ? 1 : kPack;

  Bits const* source;  // the thread's first unit, at the beginning of K
  int64_t row_stride, k_stride;
  int rows;
  uint32_t word[Threads::kRepeatFast * Threads::kRepeatSlow];

  __device__ StagedLoad(Matrix<Element> const& matrix, int64_t offset, int64_t first_row, int rows) : rows(rows) {
    row_stride = !kAlongK && kUnit ? 1 : matrix.row;
    k_stride = kAlongK && kUnit ? 1 : matrix.k[kContracted - 1];
    source = reinterpret_cast<Bits const*>(matrix.data) + offset + (first_row + first(false)) * row_stride + first(true) * k_stride;
  }

  /// The thread's first place, along K or in rows.
  __device__ static int first(bool along_k) {
    return (along_k == kAlongK ? Threads::fast() : Threads::slow()) * (along_k ? kFastK : kFastRows);
  }

  /// Calls visit(word, rows on, k on) for each of the thread's units, with the steps from its
  /// first place.
  template <class Visit>
  __device__ void each(Visit&& visit) {
    Threads::each([&](int f, int s) {
      int const fast = f * Threads::kThreadsFast, slow = s * Threads::kThreadsSlow;
      visit(word[s * Threads::kRepeatFast + f], (kAlongK ? slow : fast) * kFastRows, (kAlongK ? fast : slow) * kFastK);
    });
  }

  /// Reads the tile whose first k lies `begin` elements from the beginning of K.
  __device__ void fetch(int64_t begin, int depth, uint32_t) {
    Bits const* line = source + begin;
    int64_t const step = kAlongK ? Threads::kThreadsSlow * kFastRows * row_stride : Threads::kThreadsSlow * kFastK * k_stride;
    int const rows_left = rows - first(false), depth_left = depth - first(true);
    int column = 0;
    each([&](uint32_t& packed, int row, int k) {
      Bits const* const unit = line + (kAlongK ? k * k_stride : row * row_stride);
      packed = 0;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        bool const inside = row + (kSharedK ? 0 : i) < rows_left && k + (kSharedK ? i : 0) < depth_left;
        uint32_t const value = inside ? uint32_t(__ldg(unit + i * (kSharedK ? k_stride : row_stride))) : 0;
        packed |= value << (i * 8 * int(sizeof(Element)));
      }
      if (++column == Threads::kRepeatFast) {
        column = 0;
        line += step;
      }
    });
  }

  __device__ void place(uint32_t smem) {
    each([&](uint32_t packed, int row, int k) {
      store_shared(smem + uint32_t(sizeof(Element)) * Shared{}(first(false) + row, first(true) + k), packed);
    });
  }
};

using LoadA = StagedLoad<int8_t, SharedA, kTileM, true, true, true>;
using LoadB = StagedLoad<int8_t, SharedB, kTileN, false, true, true>;

// --- main loop: tensor cores ---------------------------------------------------------

/// Each lane passes the address of a row of 8 elements.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem) : "memory");
}

/// D = A * B + D for a warp, in the fragments that PTX gives to m16n8k32.
__device__ __forceinline__ void mma_sync(int32_t* d, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{ %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

constexpr int kMmaK = 32;                // of one instruction, in elements
constexpr int kSteps = kTileK / kMmaK;
constexpr int kMmasM = kTileM / (16 * kWarpsM), kMmasN = kTileN / (8 * kWarpsN);
constexpr int kSums = 4 * kMmasM * kMmasN;  // of a thread
static_assert(kSteps >= 2, "the register pipeline needs two steps along K");
static_assert(kMmasN % 2 == 0, "ldmatrix reads two columns of fragments of B");

__device__ inline int warp_m() { return threadIdx.x / 32 % kWarpsM; }
__device__ inline int warp_n() { return threadIdx.x / 32 / kWarpsM; }

// Fragments of one step along K, in 32-bit registers.
using FragmentA = uint32_t[kMmasM][4];
using FragmentB = uint32_t[kMmasN][2];

/// Reads the fragments of A of a step along K. Instruction i of the warp takes rows from
/// 16 * (warp_m() + kWarpsM * i) on.
__device__ inline void read_a(uint32_t smem, int step, FragmentA& fragment) {
  // Lane 8 * j + r passes row r of matrix j.
  int const matrix = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
  constexpr int kChunk = 16 / int(sizeof(ElementA));
  int const row = 16 * warp_m() + 8 * (matrix % 2) + line;
  int const first = SharedA{}(row, step * kMmaK + kChunk * (matrix / 2));
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
    int const offset = first + SharedA{}(16 * kWarpsM * i, 0);  // whole atoms on
    ldmatrix_x4(fragment[i], smem + uint32_t(sizeof(ElementA)) * offset);
  }
}

/// Reads the fragments of B of a step along K. Instruction i of the warp takes columns from
/// 8 * (warp_n() + kWarpsN * i) on.
__device__ inline void read_b(uint32_t smem, int step, FragmentB& fragment) {
  // Lane 8 * j + r passes row r of matrix j.
  int const matrix = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
  constexpr int kChunk = 16 / int(sizeof(ElementB));
  int const row = 8 * (warp_n() + kWarpsN * (matrix / 2)) + line;
  int const first = SharedB{}(row, step * kMmaK + kChunk * (matrix % 2));
#pragma unroll
  for (int i = 0; i < kMmasN / 2; ++i) {
    int const offset = first + SharedB{}(16 * kWarpsN * i, 0);  // whole atoms on
    uint32_t both[4];
    ldmatrix_x4(both, smem + uint32_t(sizeof(ElementB)) * offset);
    fragment[2 * i][0] = both[0], fragment[2 * i][1] = both[1];
    fragment[2 * i + 1][0] = both[2], fragment[2 * i + 1][1] = both[3];
  }
}

/// Adds the products of fragments, whose neighbours share registers: every second column goes back up.
__device__ inline void multiply_fragments(FragmentA const& a, FragmentB const& b, Sum* sums) {
#pragma unroll
  for (int n = 0; n < kMmasN; ++n) {
#pragma unroll
    for (int i = 0; i < kMmasM; ++i) {
      int const m = n % 2 ? kMmasM - 1 - i : i;
      mma_sync(sums + 4 * (m + kMmasM * n), a[m], b[n]);
    }
  }
}

__device__ inline void multiply(FragmentA& a, FragmentB& b, Sum* sums) { multiply_fragments(a, b, sums); }

/// The row and the column in the tile of a thread's i-th sum.
__device__ inline int accumulator_row(int i) {
  return 16 * (warp_m() + kWarpsM * (i / 4 % kMmasM)) + 8 * (i % 4 / 2) + threadIdx.x % 32 / 4;
}
__device__ inline int accumulator_column(int i) {
  return 8 * (warp_n() + kWarpsN * (i / 4 / kMmasM)) + 2 * (threadIdx.x % 4) + i % 2;
}

/// Adds the products of k-tiles first..last-1. While one tile is multiplied, kStages - 1 are on
/// their way to shared memory and the next step's fragments on theirs to registers.
__device__ inline void accumulate(Params const& p, Tile const& tile, int first, int last, uint8_t* shared, Sum* sums) {
  int64_t batch[kBatchModes];
  unravel(tile.batch, p.batch, batch);

  uint32_t const smem = cast_smem_ptr_to_uint(shared);
  FragmentA fragment_a[kSteps];
  FragmentB fragment_b[kSteps];
  auto const read = [&](int step, int stage) {
    read_a(tile_a(smem, stage), step, fragment_a[step]);
    read_b(tile_b(smem, stage), step, fragment_b[step]);
  };

  LoadA load_a(p.a, dot(batch, p.a.batch), tile.m, tile.rows);
  LoadB load_b(p.b, dot(batch, p.b.batch), tile.n, tile.columns);
  Contraction next(p, first);
  int left = last - first;  // tiles yet to be fetched
  auto const fetch = [&](int stage) {
    if (left <= 0) return;
    int const depth = next.depth(p);
    load_a.fetch(next.offset_a, depth, tile_a(smem, stage));
    load_b.fetch(next.offset_b, depth, tile_b(smem, stage));
  };
  auto const place = [&](int stage) {
    if (left <= 0) return;
    load_a.place(tile_a(smem, stage));
    load_b.place(tile_b(smem, stage));
    --left;
    if (left > 0) next.advance(p);
  };

#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) {
    fetch(stage);
    place(stage);
    cp_async_commit_group();
  }
  int reading = 0, writing = kStages - 1;
  cp_async_wait_group<kStages - 2>();
  __syncthreads();
  read(0, reading);

#pragma unroll 1
  for (int count = last - first; count > 0; --count) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps - 1) {
        // Every thread has read this stage: the next one may be read, the oldest overwritten.
        place(writing);
        cp_async_wait_group<kStages - 2>();
        __syncthreads();
        writing = reading;
        reading = reading + 1 == kStages ? 0 : reading + 1;
      }
      read((step + 1) % kSteps, reading);
      if (step == 0) {
        fetch(writing);
        cp_async_commit_group();
      }
      multiply(fragment_a[step], fragment_b[step], sums);
    }
  }
  cp_async_wait_group<0>();
  __syncthreads();
}

// --- epilogue ------------------------------------------------------------------------
// Accumulators pass through shared memory, kStageRows rows of the tile at a time, so that
// neighbouring threads take neighbouring elements along M, kWidth each.

constexpr int kStagePitch = kStageRows + 4;
constexpr int kStageElements = kTileN * kStagePitch;

__device__ inline int staged(int m, int n) { return n * kStagePitch + m; }

/// How neighbouring elements of a tensor lie: at one address, adjacent, or a stride apart.
enum class AxisStride { kBroadcast, kUnit, kStride };

/// kWidth neighbouring elements, kVector at a time where all are valid; others are 0.
template <AxisStride kAxisStride, int kVector, class Element, class Value>
__device__ void read(Element const* source, int64_t stride, int count, Value (&value)[kWidth]) {
  if constexpr (kAxisStride == AxisStride::kBroadcast) {
    Value const x = Value(*source);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) value[i] = x;
  } else {
    if (kVector > 1 && count == kWidth) {
#pragma unroll
      for (int i = 0; i < kWidth; i += kVector) {
        auto const pack = load_pack<Element, kVector>(source + i);
#pragma unroll
        for (int j = 0; j < kVector; ++j) value[i + j] = Value(pack.value[j]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        value[i] = i < count ? Value(source[kAxisStride == AxisStride::kUnit ? i : i * stride]) : Value(0);
      }
    }
  }
}

template <class Element, class Value>
__device__ Element narrow(Value x) {
  if constexpr (std::is_same_v<Element, Value>) {
    return x;
  } else if constexpr (std::is_same_v<Value, float>) {
    return cutlass::NumericConverter<Element, float>::convert(x);
  } else if constexpr (std::is_same_v<Value, int64_t>) {  // a sum of integers saturates
    using Limits = cuda::std::numeric_limits<Element>;
    return Element(x < Limits::lowest() ? Limits::lowest() : x > Limits::max() ? Limits::max() : x);
  } else {
    return Element(x);
  }
}

/// Stores the first `count` of kWidth neighbouring elements, kVector at a time where all are valid.
template <AxisStride kAxisStride, int kVector, class Element, class Value>
__device__ void write(Element* target, int64_t stride, int count, Value const (&value)[kWidth]) {
  if (kVector > 1 && count == kWidth) {
#pragma unroll
    for (int i = 0; i < kWidth; i += kVector) {
      Pack<Element, kVector> pack;
#pragma unroll
      for (int j = 0; j < kVector; ++j) pack.value[j] = narrow<Element>(value[i + j]);
      store_pack(target + i, pack);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (i < count) target[kAxisStride == AxisStride::kUnit ? i : i * stride] = narrow<Element>(value[i]);
    }
  }
}

struct Add {
  template <class T> __device__ static T neutral() { return T(0); }
  template <class T> __device__ static T combine(T a, T b) { return a + b; }
};

/// NaN wins, as in PyTorch.
struct Maximum {
  template <class T> __device__ static T neutral() { return std::is_same_v<T, float> ? T(-INFINITY) : cuda::std::numeric_limits<T>::lowest(); }
  template <class T> __device__ static T combine(T a, T b) { return a > b || a != a ? a : b; }
};

struct Minimum {
  template <class T> __device__ static T neutral() { return std::is_same_v<T, float> ? T(INFINITY) : cuda::std::numeric_limits<T>::max(); }
  template <class T> __device__ static T combine(T a, T b) { return a < b || a != a ? a : b; }
};

/// Combines the values of a warp's lanes, in an order that is always the same.
template <class Op, class T>
__device__ T combine_lanes(T value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = Op::combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

/// Reduces the staged values of rows x columns over N, over M or over both. A partial result
/// of kept element i goes to partial[i * parts + part].
template <class Op, bool kKeepM, bool kKeepN, class T>
__device__ void reduce_stage(T* stage, int rows, int columns, T* partial, int64_t parts, int64_t part) {
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kWarps = kThreads / 32;
  if constexpr (kKeepM && kKeepN) {
    return;
  } else if constexpr (kKeepM) {
    for (int m = warp; m < rows; m += kWarps) {
      T value = Op::template neutral<T>();
      for (int n = lane; n < columns; n += 32) value = Op::combine(value, stage[staged(m, n)]);
      value = combine_lanes<Op>(value);
      if (lane == 0) partial[m * parts + part] = value;
    }
  } else if constexpr (kKeepN) {
    for (int n = threadIdx.x; n < columns; n += kThreads) {
      T value = Op::template neutral<T>();
      for (int m = 0; m < rows; ++m) value = Op::combine(value, stage[staged(m, n)]);
      partial[n * parts + part] = value;
    }
  } else {
    T value = Op::template neutral<T>();
    for (int i = threadIdx.x; i < rows * kTileN; i += kThreads) {
      int const m = i / kTileN, n = i % kTileN;
      if (n < columns) value = Op::combine(value, stage[staged(m, n)]);
    }
    value = combine_lanes<Op>(value);
    __syncthreads();
    if (lane == 0) stage[warp] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 1; i < kWarps; ++i) value = Op::combine(value, stage[i]);
      partial[part] = value;
    }
  }
}

/// Element-wise work, stores and partial reductions of the staged rows first_row..; the stage
/// lies at the beginning of shared memory, one of every reduction's values behind it.
__device__ void epilogue(Params const& p, Tile const& tile, int first_row, uint8_t* shared) {
  auto* const stage = reinterpret_cast<Accumulator*>(shared);
  auto* const stage1 = reinterpret_cast<float*>(shared + 4 * kStageElements);
  auto* const stage2 = reinterpret_cast<float*>(shared + 8 * kStageElements);
  auto* const stage3 = reinterpret_cast<float*>(shared + 12 * kStageElements);
  auto* const stage4 = reinterpret_cast<float*>(shared + 16 * kStageElements);
  auto* const stage6 = reinterpret_cast<float*>(shared + 16 * kStageElements);
  int const rows = max(0, min(kStageRows, tile.rows - first_row)), columns = tile.columns;
  int64_t const first_m = tile.m + first_row;
  int64_t batch[kBatchModes];
  unravel(tile.batch, p.batch, batch);
  auto const* const input0 = p.input0.data + dot(batch, p.input0.batch) + first_m * p.input0.m + tile.n * p.input0.n;
  auto const* const input1 = p.input1.data + dot(batch, p.input1.batch) + first_m * p.input1.m + tile.n * p.input1.n;
  auto const* const input2 = p.input2.data + dot(batch, p.input2.batch) + first_m * p.input2.m + tile.n * p.input2.n;
  auto const* const input3 = p.input3.data + dot(batch, p.input3.batch) + first_m * p.input3.m + tile.n * p.input3.n;
  auto const* const input4 = p.input4.data + dot(batch, p.input4.batch) + first_m * p.input4.m + tile.n * p.input4.n;
  auto* const output0 = p.output0.data + dot(batch, p.output0.batch) + first_m * p.output0.m + tile.n * p.output0.n;
  auto* const output5 = p.output5.data + dot(batch, p.output5.batch) + first_m * p.output5.m + tile.n * p.output5.n;

  constexpr int kGroups = kStageRows / kWidth;
  int const fast_extent = rows, slow_extent = columns;
#pragma unroll 1
  for (int group = threadIdx.x; group < kGroups * slow_extent; group += kThreads) {
    int const fast = group % kGroups * kWidth, slow = group / kGroups;
    int const count = min(kWidth, fast_extent - fast);
    if (count <= 0) continue;
    int const m = fast, n = slow;
    Accumulator sums[kWidth];
    constexpr int kRead = kWidth < 4 ? kWidth : 4;
#pragma unroll
    for (int i = 0; i < kWidth; i += kRead) {
      auto const pack = load_pack<Accumulator, kRead>(stage + staged(m, n) + i);
#pragma unroll
      for (int j = 0; j < kRead; ++j) sums[i + j] = pack.value[j];
    }
    float in0[kWidth];
    read<AxisStride::kBroadcast, 1>(input0 + m * p.input0.m + n * p.input0.n, p.input0.m, count, in0);
    float in1[kWidth];
    read<AxisStride::kUnit, 1>(input1 + m * p.input1.m + n * p.input1.n, p.input1.m, count, in1);
    float in2[kWidth];
    read<AxisStride::kUnit, 1>(input2 + m * p.input2.m + n * p.input2.n, p.input2.m, count, in2);
    float in3[kWidth];
    read<AxisStride::kBroadcast, 1>(input3 + m * p.input3.m + n * p.input3.n, p.input3.m, count, in3);
    int32_t in4[kWidth];
    read<AxisStride::kBroadcast, 1>(input4 + m * p.input4.m + n * p.input4.n, p.input4.m, count, in4);
    int32_t out0[kWidth];
    float out1[kWidth];
    float out2[kWidth];
    float out3[kWidth];
    float out4[kWidth];
    bool out5[kWidth];
    float out6[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      ucc_arithmetic(p.arithmetic, int(first_m) + m + i, int(tile.n) + n, int(batch[0]), int(batch[1]), sums[i], in0[i], in1[i], in2[i], in3[i], in4[i], out0[i], out1[i], out2[i], out3[i], out4[i], out5[i], out6[i]);
    }
    write<AxisStride::kUnit, 1>(output0 + m * p.output0.m + n * p.output0.n, p.output0.m, count, out0);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (i < count) stage1[staged(m + i, n)] = out1[i];
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (i < count) stage2[staged(m + i, n)] = out2[i];
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (i < count) stage3[staged(m + i, n)] = out3[i];
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (i < count) p.partial4[(tile.batch * p.m + first_m + m + i) * p.n + tile.n + n] = out4[i];
    }
    write<AxisStride::kUnit, 1>(output5 + m * p.output5.m + n * p.output5.n, p.output5.m, count, out5);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (i < count) stage6[staged(m + i, n)] = out6[i];
    }
  }
  __syncthreads();
  int64_t const row_parts = int64_t(p.tiles_m) * (kTileM / kStageRows);
  int64_t const row_part = tile.tile_m * int64_t(kTileM / kStageRows) + first_row / kStageRows;
  reduce_stage<Add, true, false>(stage1, rows, columns,
      p.partial1 + (tile.batch * p.m + first_m) * p.tiles_n, p.tiles_n, tile.tile_n);
  reduce_stage<Maximum, false, true>(stage2, rows, columns,
      p.partial2 + (tile.batch * p.n + tile.n) * row_parts, row_parts, row_part);
  reduce_stage<Add, false, false>(stage3, rows, columns,
      p.partial3 + tile.batch * row_parts * p.tiles_n, 1, row_part * p.tiles_n + tile.tile_n);
  reduce_stage<Maximum, false, false>(stage6, rows, columns,
      p.partial6 + tile.batch * row_parts * p.tiles_n, 1, row_part * p.tiles_n + tile.tile_n);
}

/// How the parts of a reduction lie: partial[batch][kept m][kept n][part].
template <class T, class Element>
struct Reduced {
  T const* partial;
  Slot<Element> target;
  int64_t parts;
  int64_t kept_m, kept_n, kept_batches;  // extents of what is kept; 1 of what is not
  int64_t reduced_batches;
};

/// Combines every `step`-th part of an element from `begin` on, and gives the place of its result.
template <class Op, uint32_t kKeptBatch, class T, class Element>
__device__ inline T combine_parts(Params const& p, Reduced<T, Element> const& r, int64_t element, int64_t begin, int64_t step, int64_t& offset) {
  int64_t const n = element % r.kept_n, m = element / r.kept_n % r.kept_m;
  int64_t rest = element / r.kept_n / r.kept_m;
  int64_t pitch = 1, first_batch = 0;
  offset = m * r.target.m + n * r.target.n;
#pragma unroll
  for (int i = kBatchModes - 1; i >= 0; --i) {
    if (kKeptBatch >> i & 1) {
      first_batch += rest % p.batch[i] * pitch;
      offset += rest % p.batch[i] * r.target.batch[i];
      rest /= p.batch[i];
    }
    pitch *= p.batch[i];
  }
  T value = Op::template neutral<T>();
#pragma unroll 4
  for (int64_t i = begin; i < r.reduced_batches * r.parts; i += step) {
    int64_t batch = first_batch, left = i / r.parts;
    pitch = 1;
#pragma unroll
    for (int j = kBatchModes - 1; j >= 0; --j) {
      if (!(kKeptBatch >> j & 1)) {
        batch += left % p.batch[j] * pitch;
        left /= p.batch[j];
      }
      pitch *= p.batch[j];
    }
    value = Op::combine(value, r.partial[((batch * r.kept_m + m) * r.kept_n + n) * r.parts + i % r.parts]);
  }
  return value;
}

/// One thread combines the parts of one element, which are few.
template <class Op, uint32_t kKeptBatch, class T, class Element>
__global__ void finish_few(__grid_constant__ Params const p, __grid_constant__ Reduced<T, Element> const r) {
  int64_t const element = block_index() * blockDim.x + threadIdx.x;
  if (element >= r.kept_batches * r.kept_m * r.kept_n) return;
  int64_t offset;
  T const value = combine_parts<Op, kKeptBatch>(p, r, element, 0, 1, offset);
  r.target.data[offset] = narrow<Element>(value);
}

/// One thread block combines the parts of one element, in an order that is always the same.
template <class Op, uint32_t kKeptBatch, class T, class Element>
__global__ void finish_reduction(__grid_constant__ Params const p, __grid_constant__ Reduced<T, Element> const r) {
  __shared__ T warps[32];
  int64_t const elements = r.kept_batches * r.kept_m * r.kept_n;
  for (int64_t element = block_index(); element < elements; element += int64_t(gridDim.x) * gridDim.y) {
    int64_t offset;
    T value = combine_lanes<Op>(combine_parts<Op, kKeptBatch>(p, r, element, threadIdx.x, blockDim.x, offset));
    if (blockDim.x > 32) {
      if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
      __syncthreads();
      value = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : Op::template neutral<T>();
      if (threadIdx.x < 32) value = combine_lanes<Op>(value);
      __syncthreads();
    }
    if (threadIdx.x == 0) r.target.data[offset] = narrow<Element>(value);
  }
}

// --- kernels -------------------------------------------------------------------------

/// kWhole computes a tile; with K split, kPartial leaves sums of its part of K in the
/// workspace and kFinish adds them, always in the same order.
enum class Pass { kWhole, kPartial, kFinish };

/// Blocks for which an SM has registers, where a thread has its sums and a hundred others: an allocation of a few more would cost
/// one of them its place.
constexpr int kRegisters = 65536, kOthers = 104, kFit = kRegisters / (kThreads * (kSums + kOthers));

template <Pass kPass>
__global__ void __launch_bounds__(kThreads, kPass == Pass::kFinish || kFit < 2 ? 1 : kFit) gemm(__grid_constant__ Params const p) {
  extern __shared__ __align__(128) uint8_t shared[];
  int64_t const block = block_index();
  int64_t const tiles = int64_t(p.tiles_m) * p.tiles_n * p.batches;
  if (block >= tiles * (kPass == Pass::kPartial ? p.splits : 1)) return;
  Tile const tile = locate(p, block);
  alignas(16) std::conditional_t<kPass == Pass::kFinish, Accumulator, Sum> sums[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) sums[i] = {};

  if constexpr (kPass == Pass::kFinish) {
    for (int split = 0; split < p.splits; ++split) {
      Accumulator const* const source = p.partial_sums + (split * tiles + tile.tile) * (kSums * kThreads) + threadIdx.x;
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] += source[i * kThreads];
    }
  } else {
    int const first = int(int64_t(p.k_tiles) * tile.split / p.splits);
    int const last = int(int64_t(p.k_tiles) * (tile.split + 1) / p.splits);
    accumulate(p, tile, first, last, shared, sums);
  }
  if constexpr (kPass == Pass::kPartial) {
    Accumulator* const target = p.partial_sums + (tile.split * tiles + tile.tile) * (kSums * kThreads) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kSums; ++i) target[i * kThreads] = Accumulator(sums[i]);
  } else {
    auto* const stage = reinterpret_cast<Accumulator*>(shared);
#pragma unroll 1
    for (int first_row = 0; first_row < kTileM; first_row += kStageRows) {
      if (first_row > 0) __syncthreads();
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        int const m = accumulator_row(i) - first_row, n = accumulator_column(i);
        if (kStageRows == kTileM || (m >= 0 && m < kStageRows)) stage[staged(m, n)] = Accumulator(sums[i]);
      }
      __syncthreads();
      epilogue(p, tile, first_row, shared);
    }
  }
}

// --- launch --------------------------------------------------------------------------

/// Lets a kernel take this much shared memory on the calling thread's device, asked once a device.
template <auto kKernel>
cudaError_t allow_shared(int bytes) {
  constexpr int kMost = 64;
  static std::atomic<bool> allowed[kMost];
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  bool const known = error == cudaSuccess && device < kMost && allowed[device];
  if (error == cudaSuccess && !known) {
    error = cudaFuncSetAttribute(reinterpret_cast<void const*>(kKernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess && device < kMost) allowed[device] = true;
  }
  return error;
}

/// Launches `blocks` thread blocks; 0, or 1000 and the CUDA error. More blocks than one grid
/// dimension takes go over two.
template <auto kKernel, class... Args>
int launch(int64_t blocks, int threads, int shared_bytes, cudaStream_t stream, Args const&... args) {
  constexpr int64_t kMaximum = INT32_MAX;
  cudaError_t error = shared_bytes > 48 * 1024 ? allow_shared<kKernel>(shared_bytes) : cudaSuccess;
  if (error == cudaSuccess) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(unsigned(std::min(blocks, kMaximum)), unsigned(ceil_div(blocks, kMaximum)));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    error = cudaLaunchKernelEx(&config, kKernel, args...);
  }
  if (error == cudaSuccess) return 0;
  (void)cudaGetLastError();  // it is returned, and not left for the caller's next check to find
  return 1000 + int(error);
}

/// Whether the address and the strides are multiples of `elements` elements.
template <class Element>
bool aligned(Element const* data, int elements, std::initializer_list<int64_t> strides) {
  bool fine = reinterpret_cast<uintptr_t>(data) % (elements * sizeof(Element)) == 0;
  for (int64_t const stride : strides) fine = fine && (stride % elements == 0);
  return fine;
}

}  // namespace
}  // namespace ucc_fbfb003bf52d08ec_kernel

// --- entry ---------------------------------------------------------------------------

extern "C" int32_t ucc_fbfb003bf52d08ec(
    void* const* tensors, int64_t const* e, double const* s, int64_t const* launch_parameters,
    void* workspace, uint64_t* workspace_size, void* cuda_stream) {
  using namespace ucc_fbfb003bf52d08ec_kernel;
  for (int i = 0; i < 6; ++i) {
    if (e[i] < 1) return 1;
  }
  Params p;
  p.m = e[0];
  p.n = e[1];
  p.k[0] = e[3];
  p.k[1] = e[2];
  p.batches = 1;
  p.batches *= p.batch[0] = e[4];
  p.batches *= p.batch[1] = e[5];
  p.a.data = static_cast<int8_t const*>(tensors[0]);
  p.a.row = e[3] * e[2];
  p.a.k[0] = e[2];
  p.a.k[1] = 1;
  p.a.batch[0] = e[0] * e[3] * e[2];
  p.a.batch[1] = 0;
  p.b.data = static_cast<int8_t const*>(tensors[1]);
  p.b.row = 1;
  p.b.k[0] = e[5] * e[2] * e[1];
  p.b.k[1] = e[1];
  p.b.batch[0] = e[3] * e[5] * e[2] * e[1];
  p.b.batch[1] = e[2] * e[1];
  p.input0.data = static_cast<float const*>(tensors[2]);
  p.input0.m = 0;
  p.input0.n = 1;
  p.input0.batch[0] = 0;
  p.input0.batch[1] = 0;
  p.input1.data = static_cast<cutlass::half_t const*>(tensors[3]);
  p.input1.m = 1;
  p.input1.n = 0;
  p.input1.batch[0] = 0;
  p.input1.batch[1] = e[0];
  p.input2.data = static_cast<cutlass::bfloat16_t const*>(tensors[4]);
  p.input2.m = 1;
  p.input2.n = e[0];
  p.input2.batch[0] = e[5] * e[1] * e[0];
  p.input2.batch[1] = e[1] * e[0];
  p.input3.data = static_cast<float const*>(tensors[5]);
  p.input3.m = 0;
  p.input3.n = 0;
  p.input3.batch[0] = 1;
  p.input3.batch[1] = 0;
  p.input4.data = static_cast<int32_t const*>(tensors[6]);
  p.input4.m = 0;
  p.input4.n = 0;
  p.input4.batch[0] = 0;
  p.input4.batch[1] = 0;
  p.output0.data = static_cast<int8_t*>(tensors[7]);
  p.output0.m = 1;
  p.output0.n = e[0];
  p.output0.batch[0] = e[5] * e[1] * e[0];
  p.output0.batch[1] = e[1] * e[0];
  p.output1.data = static_cast<float*>(tensors[8]);
  p.output1.m = 1;
  p.output1.n = 0;
  p.output1.batch[0] = e[5] * e[0];
  p.output1.batch[1] = e[0];
  p.output2.data = static_cast<cutlass::half_t*>(tensors[9]);
  p.output2.m = 0;
  p.output2.n = 1;
  p.output2.batch[0] = e[1];
  p.output2.batch[1] = 0;
  p.output3.data = static_cast<float*>(tensors[10]);
  p.output3.m = 0;
  p.output3.n = 0;
  p.output3.batch[0] = 0;
  p.output3.batch[1] = 0;
  p.output4.data = static_cast<float*>(tensors[11]);
  p.output4.m = e[1];
  p.output4.n = 1;
  p.output4.batch[0] = e[0] * e[1];
  p.output4.batch[1] = 0;
  p.output5.data = static_cast<bool*>(tensors[12]);
  p.output5.m = 1;
  p.output5.n = e[0];
  p.output5.batch[0] = e[5] * e[1] * e[0];
  p.output5.batch[1] = e[1] * e[0];
  p.output6.data = static_cast<float*>(tensors[13]);
  p.output6.m = 0;
  p.output6.n = 0;
  p.output6.batch[0] = 0;
  p.output6.batch[1] = 1;
  p.arithmetic = arithmetic_params(e, s);
  // The arithmetic counts coordinates in 32 bits.
  if (p.m > INT32_MAX || p.n > INT32_MAX) return 1;
  for (int64_t const extent : p.batch) {
    if (extent > INT32_MAX) return 1;
  }
  int64_t const tiles_m = ceil_div(p.m, kTileM), tiles_n = ceil_div(p.n, kTileN);
  if (tiles_m > INT32_MAX || tiles_n > INT32_MAX || tiles_m * tiles_n > INT32_MAX) return 1;
  p.tiles_m = uint32_t(tiles_m);
  p.tiles_n = uint32_t(tiles_n);
  // Along the shorter side: a band of the other one is then reread soonest.
  p.along_m = launch_parameters[0] == 1 || (launch_parameters[0] != 2 && tiles_m < tiles_n);
  p.swizzle = uint32_t(std::max<int64_t>(1, std::min<int64_t>(launch_parameters[1], p.along_m ? tiles_n : tiles_m)));
  int64_t const inner = ceil_div(p.k[kContracted - 1], kTileK);
  int64_t k_tiles = inner;
  for (int i = 0; i + 1 < kContracted; ++i) k_tiles *= p.k[i];
  if (k_tiles > INT32_MAX) return 1;
  p.inner_k_tiles = int32_t(inner);
  p.k_tiles = int32_t(k_tiles);
  p.splits = int32_t(std::max<int64_t>(1, std::min(launch_parameters[2], k_tiles)));

  // The workspace: partial sums of the splits, then of every reduction, 256-byte aligned.
  uint64_t size = 0;
  auto const reserve = [&](uint64_t bytes) {
    uint64_t const offset = size;
    size += (bytes + 255) / 256 * 256;
    return static_cast<uint8_t*>(workspace) + offset;
  };
  p.partial_sums = nullptr;
  if (p.splits > 1) {
    p.partial_sums = reinterpret_cast<Accumulator*>(reserve(uint64_t(p.splits) * tiles_m * tiles_n * p.batches * kTileM * kTileN * sizeof(Accumulator)));
  }
  int64_t const row_parts = tiles_m * (kTileM / kStageRows);
  p.partial1 = reinterpret_cast<float*>(reserve(uint64_t(p.batches) * p.m * (tiles_n) * sizeof(float)));
  p.partial2 = reinterpret_cast<float*>(reserve(uint64_t(p.batches) * p.n * (row_parts) * sizeof(float)));
  p.partial3 = reinterpret_cast<float*>(reserve(uint64_t(p.batches) * 1 * (row_parts * tiles_n) * sizeof(float)));
  p.partial4 = reinterpret_cast<float*>(reserve(uint64_t(p.batches) * p.m * p.n * (1) * sizeof(float)));
  p.partial6 = reinterpret_cast<float*>(reserve(uint64_t(p.batches) * 1 * (row_parts * tiles_n) * sizeof(float)));
  if (workspace_size != nullptr) {
    *workspace_size = size;
    return 0;
  }
  if (size > 0 && (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 16 != 0)) return 1;

  auto const stream = static_cast<cudaStream_t>(cuda_stream);
  int64_t const blocks = tiles_m * tiles_n * p.batches;
  if (p.splits == 1) {
    if (int const error = launch<gemm<Pass::kWhole>>(blocks, kThreads, kSharedBytes, stream, p)) return error;
  } else {
    if (int const error = launch<gemm<Pass::kPartial>>(blocks * p.splits, kThreads, kSharedBytes, stream, p)) return error;
    if (int const error = launch<gemm<Pass::kFinish>>(blocks, kThreads, kSharedBytes, stream, p)) return error;
  }
  {
    Reduced<float, float> r;
    r.partial = p.partial1;
    r.target = p.output1;
    r.parts = tiles_n;
    r.kept_m = p.m;
    r.kept_n = 1;
    r.kept_batches = p.batch[0] * p.batch[1];
    r.reduced_batches = p.batches / r.kept_batches;
    int const threads = r.parts * r.reduced_batches > 256 ? 1024 : 32;
    int64_t const elements = r.kept_batches * r.kept_m * r.kept_n;
    if (r.parts * r.reduced_batches <= 8) {
      if (int const error = launch<finish_few<Add, 3, float, float>>(ceil_div(elements, 128), 128, 0, stream, p, r)) return error;
    } else {
      if (int const error = launch<finish_reduction<Add, 3, float, float>>(elements, threads, 0, stream, p, r)) return error;
    }
  }
  {
    Reduced<float, cutlass::half_t> r;
    r.partial = p.partial2;
    r.target = p.output2;
    r.parts = row_parts;
    r.kept_m = 1;
    r.kept_n = p.n;
    r.kept_batches = p.batch[0];
    r.reduced_batches = p.batches / r.kept_batches;
    int const threads = r.parts * r.reduced_batches > 256 ? 1024 : 32;
    int64_t const elements = r.kept_batches * r.kept_m * r.kept_n;
    if (r.parts * r.reduced_batches <= 8) {
      if (int const error = launch<finish_few<Maximum, 1, float, cutlass::half_t>>(ceil_div(elements, 128), 128, 0, stream, p, r)) return error;
    } else {
      if (int const error = launch<finish_reduction<Maximum, 1, float, cutlass::half_t>>(elements, threads, 0, stream, p, r)) return error;
    }
  }
  {
    Reduced<float, float> r;
    r.partial = p.partial3;
    r.target = p.output3;
    r.parts = row_parts * tiles_n;
    r.kept_m = 1;
    r.kept_n = 1;
    r.kept_batches = 1;
    r.reduced_batches = p.batches / r.kept_batches;
    int const threads = r.parts * r.reduced_batches > 256 ? 1024 : 32;
    int64_t const elements = r.kept_batches * r.kept_m * r.kept_n;
    if (r.parts * r.reduced_batches <= 8) {
      if (int const error = launch<finish_few<Add, 0, float, float>>(ceil_div(elements, 128), 128, 0, stream, p, r)) return error;
    } else {
      if (int const error = launch<finish_reduction<Add, 0, float, float>>(elements, threads, 0, stream, p, r)) return error;
    }
  }
  {
    Reduced<float, float> r;
    r.partial = p.partial4;
    r.target = p.output4;
    r.parts = 1;
    r.kept_m = p.m;
    r.kept_n = p.n;
    r.kept_batches = p.batch[0];
    r.reduced_batches = p.batches / r.kept_batches;
    int const threads = r.parts * r.reduced_batches > 256 ? 1024 : 32;
    int64_t const elements = r.kept_batches * r.kept_m * r.kept_n;
    if (r.parts * r.reduced_batches <= 8) {
      if (int const error = launch<finish_few<Minimum, 1, float, float>>(ceil_div(elements, 128), 128, 0, stream, p, r)) return error;
    } else {
      if (int const error = launch<finish_reduction<Minimum, 1, float, float>>(elements, threads, 0, stream, p, r)) return error;
    }
  }
  {
    Reduced<float, float> r;
    r.partial = p.partial6;
    r.target = p.output6;
    r.parts = row_parts * tiles_n;
    r.kept_m = 1;
    r.kept_n = 1;
    r.kept_batches = p.batch[1];
    r.reduced_batches = p.batches / r.kept_batches;
    int const threads = r.parts * r.reduced_batches > 256 ? 1024 : 32;
    int64_t const elements = r.kept_batches * r.kept_m * r.kept_n;
    if (r.parts * r.reduced_batches <= 8) {
      if (int const error = launch<finish_few<Maximum, 2, float, float>>(ceil_div(elements, 128), 128, 0, stream, p, r)) return error;
    } else {
      if (int const error = launch<finish_reduction<Maximum, 2, float, float>>(elements, threads, 0, stream, p, r)) return error;
    }
  }
  return 0;
}
