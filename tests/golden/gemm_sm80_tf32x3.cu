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

namespace ucc_189b716d0a251946_kernel {  // of its own, so that kernels compiled together stay apart
namespace {

// --- configuration -------------------------------------------------------------------

constexpr int kTileM = 64, kTileN = 64, kTileK = 32;
constexpr int kWarpsM = 2, kWarpsN = 2, kThreads = 32 * kWarpsM * kWarpsN;
constexpr int kStages = 3;
constexpr int kStageRows = 64;  // rows of the tile that pass the epilogue at a time
constexpr int kWidth = 1;  // elements that a thread takes there at a time
constexpr int kContracted = 1, kBatchModes = 1;
constexpr int kSharedBytes = 49152;

using ElementA = float;
using ElementB = float;
using Sum = float;  // in registers
using Accumulator = float;  // what the arithmetic takes

// --- arithmetic ----------------------------------------------------------------------

struct ArithmeticParams {
};

inline ArithmeticParams arithmetic_params(int64_t const*, double const*) {
  ArithmeticParams p;
  return p;
}

CUTLASS_DEVICE void ucc_arithmetic(
    ArithmeticParams const& p,
    int m, int n,
    float acc,
    float& out0) {
  out0 = acc;  // stored as f32
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
  Slot<float> output0;
  Accumulator* partial_sums;       // [split][tile][accumulator][thread]
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

/// NVRTC keeps a pointer into shared memory in 64 bits; an address in the shared state space has 32.
__device__ __forceinline__ uint32_t load_shared(uint32_t smem) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(smem) : "memory");
  return word;
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

using SharedA = SwizzledTile<kTileM, true, 32, 3, 2, 3>;
using SharedB = SwizzledTile<kTileN, false, 32, 2, 3, 2>;
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

/// Copies kBytes to shared memory where `copies`; those from `valid` on are zeros and are not read.
template <int kBytes>
__device__ void copy_async(uint32_t smem, void const* source, int valid, bool copies = true) {
  if constexpr (kBytes == 16) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; @p cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2; }" :: "r"(smem), "l"(source), "r"(valid), "r"(int(copies)));
  } else {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; @p cp.async.ca.shared.global [%0], [%1], %2, %3; }" :: "r"(smem), "l"(source), "n"(kBytes), "r"(valid), "r"(int(copies)));
  }
}

/// Loads a tile of kRows x kTileK with cp.async, kVector elements at a time. Neighbouring
/// threads go along K where kAlongK, else along the rows; kUnit: that mode has stride 1. kLine
/// is the swizzle's period along that mode; it is 8 along the other.
template <class Element, class Shared, int kRows, bool kAlongK, bool kUnit, int kVector, int kLine>
struct AsyncLoad {
  static constexpr int kBytes = kVector * int(sizeof(Element));
  using Threads = Cover<(kAlongK ? kTileK : kRows) / kVector, kAlongK ? kRows : kTileK>;
  static constexpr int kStepFast = Threads::kThreadsFast * kVector, kStepSlow = Threads::kThreadsSlow;
  static constexpr bool kPeriodic = (Threads::kRepeatFast == 1 || kStepFast % kLine == 0) &&
                                    (Threads::kRepeatSlow == 1 || kStepSlow % 8 == 0);

  char const* source;             // the thread's first unit, at the beginning of K
  int64_t fast_step, slow_step;   // from there to its next ones, in bytes
  int rows;                       // valid ones

  __device__ AsyncLoad(Matrix<Element> const& matrix, int64_t offset, int64_t first_row, int rows) : rows(rows) {
    int64_t const k = matrix.k[kContracted - 1];
    int64_t const fast_stride = kUnit ? 1 : kAlongK ? k : matrix.row, slow_stride = kAlongK ? matrix.row : k;
    source = reinterpret_cast<char const*>(matrix.data + offset + first_row * matrix.row + Threads::fast() * kVector * fast_stride + Threads::slow() * slow_stride);
    fast_step = kStepFast * fast_stride * int(sizeof(Element));
    slow_step = kStepSlow * slow_stride * int(sizeof(Element));
  }

  /// A place in shared memory; `fast` and `slow` count elements.
  __device__ static int offset(int fast, int slow) { return kAlongK ? Shared{}(slow, fast) : Shared{}(fast, slow); }

  /// Loads the tile whose first k lies `begin` elements from the beginning of K. Places beyond
  /// `depth` are zeros. Rows beyond the last one keep what was there: it only reaches sums that
  /// are dropped.
  __device__ void fetch(int64_t begin, int depth, uint32_t smem) {
    char const* line = source + begin * int(sizeof(Element));
    int const fast = Threads::fast() * kVector, slow = Threads::slow();
    int const first = offset(fast, slow);
    Threads::each([&](int f, int s) {
      // Steps of whole periods do not change the swizzle: they add a constant.
      int const place = kPeriodic ? first + offset(f * kStepFast, s * kStepSlow) : offset(fast + f * kStepFast, slow + s * kStepSlow);
      uint32_t const target = smem + uint32_t(sizeof(Element)) * place;
      int const left = max(0, min(kVector, (kAlongK ? depth : rows) - fast - f * kStepFast)) * int(sizeof(Element));
      if constexpr (kAlongK) {
        // A predicate keeps the loop whole, but each copy of 4 bytes that may have fewer would find its source anew.
        bool const inside = slow + s * kStepSlow < rows;
        if (kBytes > 4 || kVector == 1 || inside) copy_async<kBytes>(target, line + f * fast_step, left, inside);
      } else {
        copy_async<kBytes>(target, line + f * fast_step, slow + s * kStepSlow < depth ? left : 0);
      }
      if (f + 1 == Threads::kRepeatFast) line += slow_step;
    });
  }

  __device__ void place(uint32_t) {}
};

using LoadA = AsyncLoad<float, SharedA, kTileM, true, true, 1, 32>;
using LoadB = AsyncLoad<float, SharedB, kTileN, false, true, 1, 32>;

// --- main loop: tensor cores ---------------------------------------------------------

/// Each lane passes the address of a row of 8 elements.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem) : "memory");
}

/// D = A * B + D for a warp, in the fragments that PTX gives to m16n8k8.
__device__ __forceinline__ void mma_sync(float* d, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{ %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

constexpr int kMmaK = 8;                // of one instruction, in elements
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
  int const lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kMmasN; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      int const row = 8 * (warp_n() + kWarpsN * i) + lane / 4;
      int const k = lane % 4 + 4 * j;
      fragment[i][j] = load_shared(smem + uint32_t(sizeof(ElementB)) * (SharedB{}(row, k) + SharedB{}(0, step * kMmaK)));
    }
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

/// To tf32, to nearest, ties to even, as TMA rounds; the low 13 bits are 0.
__device__ inline float round_tf32(float x) {
  uint32_t bits = __float_as_uint(x);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#else
  // The one instruction before Hopper, cvt.rna, takes ties away from zero.
  if ((bits & 0x7f800000u) != 0x7f800000u) {
    bits = (bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u;
  } else if (bits & 0x7fffffu) {
    bits = 0x7fffe000u;
  }
#endif
  return __uint_as_float(bits);
}

/// x = big + small up to 2**-22 |x|, each a tf32. Where x or big is not finite, small is 0 and
/// `cross` too, so that the cross products add no NaN to big * big.
__device__ inline void split(uint32_t x, uint32_t& big, uint32_t& small, uint32_t& cross) {
  float const value = __uint_as_float(x);
  float const high = round_tf32(value);
  float const low = value - high;
  bool const finite = fabsf(low) < INFINITY;
  big = __float_as_uint(high);
  small = finite ? __float_as_uint(round_tf32(low)) : 0u;
  cross = finite ? big : 0u;
}

/// f32 accuracy from three tf32 products; the smallest terms go first.
__device__ inline void multiply(FragmentA const& a, FragmentB const& b, Sum* sums) {
  FragmentA a_big, a_small, a_cross;
  FragmentB b_big, b_small, b_cross;
#pragma unroll
  for (int i = 0; i < 4 * kMmasM; ++i) split(a[i / 4][i % 4], a_big[i / 4][i % 4], a_small[i / 4][i % 4], a_cross[i / 4][i % 4]);
#pragma unroll
  for (int i = 0; i < 2 * kMmasN; ++i) split(b[i / 2][i % 2], b_big[i / 2][i % 2], b_small[i / 2][i % 2], b_cross[i / 2][i % 2]);
  multiply_fragments(a_small, b_cross, sums);
  multiply_fragments(a_cross, b_small, sums);
  multiply_fragments(a_big, b_big, sums);
}

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
  // Tensor cores cut the low bits of their sums, and long sums drift: a k tile's own sum is added in f32.
  Sum partial[kSums];
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
      if (step == 0) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) partial[i] = 0.0f;
      }
      multiply(fragment_a[step], fragment_b[step], partial);
      if (step == kSteps - 1) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i] += partial[i];
      }
    }
  }
  cp_async_wait_group<0>();
  __syncthreads();
}

// --- epilogue ------------------------------------------------------------------------
// Accumulators pass through shared memory, kStageRows rows of the tile at a time, so that
// neighbouring threads take neighbouring elements along N, kWidth each.

constexpr int kStagePitch = kTileN + 8;

__device__ inline int staged(int m, int n) { return m * kStagePitch + n; }

/// How neighbouring elements of a tensor lie: at one address, adjacent, or a stride apart.
enum class AxisStride { kBroadcast, kUnit, kStride };

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

/// Element-wise work, stores and partial reductions of the staged rows first_row..; the stage
/// lies at the beginning of shared memory.
__device__ void epilogue(Params const& p, Tile const& tile, int first_row, uint8_t* shared) {
  auto* const stage = reinterpret_cast<Accumulator*>(shared);
  int const rows = max(0, min(kStageRows, tile.rows - first_row)), columns = tile.columns;
  int64_t const first_m = tile.m + first_row;
  int64_t batch[kBatchModes];
  unravel(tile.batch, p.batch, batch);
  auto* const output0 = p.output0.data + dot(batch, p.output0.batch) + first_m * p.output0.m + tile.n * p.output0.n;

  constexpr int kGroups = kTileN / kWidth;
  int const fast_extent = columns, slow_extent = rows;
#pragma unroll 1
  for (int group = threadIdx.x; group < kGroups * slow_extent; group += kThreads) {
    int const fast = group % kGroups * kWidth, slow = group / kGroups;
    int const count = min(kWidth, fast_extent - fast);
    if (count <= 0) continue;
    int const m = slow, n = fast;
    Accumulator sums[kWidth];
    constexpr int kRead = kWidth < 4 ? kWidth : 4;
#pragma unroll
    for (int i = 0; i < kWidth; i += kRead) {
      auto const pack = load_pack<Accumulator, kRead>(stage + staged(m, n) + i);
#pragma unroll
      for (int j = 0; j < kRead; ++j) sums[i + j] = pack.value[j];
    }
    float out0[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      ucc_arithmetic(p.arithmetic, 0, 0, sums[i], out0[i]);
    }
    write<AxisStride::kUnit, 1>(output0 + m * p.output0.m + n * p.output0.n, p.output0.n, count, out0);
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
}  // namespace ucc_189b716d0a251946_kernel

// --- entry ---------------------------------------------------------------------------

extern "C" int32_t ucc_189b716d0a251946(
    void* const* tensors, int64_t const* e, double const* s, int64_t const* launch_parameters,
    void* workspace, uint64_t* workspace_size, void* cuda_stream) {
  using namespace ucc_189b716d0a251946_kernel;
  for (int i = 0; i < 3; ++i) {
    if (e[i] < 1) return 1;
  }
  Params p;
  p.m = e[0];
  p.n = e[1];
  p.k[0] = e[2];
  p.batches = 1;
  p.batches *= p.batch[0] = 1;
  p.a.data = static_cast<float const*>(tensors[0]);
  p.a.row = e[2];
  p.a.k[0] = 1;
  p.a.batch[0] = 0;
  p.b.data = static_cast<float const*>(tensors[1]);
  p.b.row = 1;
  p.b.k[0] = e[1];
  p.b.batch[0] = 0;
  p.output0.data = static_cast<float*>(tensors[2]);
  p.output0.m = e[1];
  p.output0.n = 1;
  p.output0.batch[0] = 0;
  p.arithmetic = arithmetic_params(e, s);
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
  return 0;
}
