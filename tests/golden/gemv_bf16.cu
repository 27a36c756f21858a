#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <cuda_runtime.h>
#include <cuda/std/limits>
#include <cmath>
#include "cutlass/array.h"
#include "cutlass/cutlass.h"
#include "cutlass/fast_math.h"
#include "cutlass/functional.h"
#include "cutlass/numeric_conversion.h"

namespace ucc_68d59d7d2ef8c74b_kernel {  // of its own, so that kernels compiled together stay apart
namespace {

// --- configuration -------------------------------------------------------------------
// The matrix lies along K: 4 rows a thread block, its threads side by side along K.

constexpr int kTileM = 4, kTileN = 2;
constexpr int kThreadsM = 1, kThreadsK = 64, kThreads = kThreadsM * kThreadsK;
constexpr int kVector = 8;  // elements of the matrix that a load takes
constexpr int kUnroll = 2;  // loads in flight along K
constexpr int kTileK = kThreadsK * kUnroll * kVector;
constexpr int kStageRows = kTileM;
constexpr int kWidth = 2;  // elements that a thread takes in the epilogue at a time
constexpr int kContracted = 1, kBatchModes = 1;
// Thread blocks that an SM shall hold at once: with few, nothing is loaded while they multiply.
constexpr int kBlocks = kTileM * kTileN <= 8 && kThreads < 512 ? 512 / kThreads : 1;
constexpr int kParts = 2;  // groups of threads whose sums meet in shared memory
constexpr int kPartBytes = kParts * kTileM * kTileN * 4;
constexpr int kSharedBytes = 192;

using ElementA = cutlass::bfloat16_t;
using ElementB = cutlass::bfloat16_t;
using Accumulator = float;

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

// --- main loop -----------------------------------------------------------------------

/// kCount elements a stride apart, kPack at a time where that is above 1 (then adjacent); those
/// from `valid` on are zeros and are not read.
template <int kPack, int kCount, class Element>
__device__ Pack<Element, kCount> load(Element const* source, int64_t stride, int valid) {
  Pack<Element, kCount> x;
  if (kPack > 1 && valid >= kCount) {
#pragma unroll
    for (int i = 0; i < kCount; i += kPack) {
      auto const pack = *reinterpret_cast<Pack<Element, kPack> const*>(source + i);
#pragma unroll
      for (int j = 0; j < kPack; ++j) x.value[i + j] = pack.value[j];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x.value[i] = i < valid ? source[i * stride] : Element(0);
  }
  return x;
}

template <class Element, int kCount>
__device__ Pack<float, kCount> widen(Pack<Element, kCount> const& x) {
  using Narrow = cutlass::Array<Element, kCount>;
  auto const wide = cutlass::NumericArrayConverter<float, Element, kCount>::convert(reinterpret_cast<Narrow const&>(x));
  Pack<float, kCount> result;
#pragma unroll
  for (int i = 0; i < kCount; ++i) result.value[i] = wide[i];
  return result;
}

/// Adds the values of lanes that are equal modulo kApart, in an order that is always the same.
template <int kApart>
__device__ Accumulator sum_lanes(Accumulator value) {
#pragma unroll
  for (int distance = 16; distance >= kApart; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

/// Sum over k-tiles first..last-1 of this thread's rows and K, into parts[part][row][column].
__device__ void accumulate(Params const& p, Tile const& tile, int first, int last, Accumulator* parts) {
  int64_t batch[kBatchModes];
  unravel(tile.batch, p.batch, batch);
  ElementA const* const base_a = p.a.data + dot(batch, p.a.batch) + tile.m * p.a.row;
  ElementB const* const base_b = p.b.data + dot(batch, p.b.batch) + tile.n * p.b.row;
  int64_t const step_a = 1, step_b = 1;
  Contraction at(p, first);
  Accumulator sums[kTileM][kTileN] = {};
  using Rows = Pack<ElementA, kVector>[kUnroll][kTileM];
  auto const fetch = [&](Rows& x, Contraction const& at, auto whole) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      int const k = (u * kThreads + int(threadIdx.x)) * kVector;
#pragma unroll
      for (int m = 0; m < kTileM; ++m) {
        // Rows beyond the last one repeat it: their sums are dropped.
        ElementA const* const source = base_a + at.offset_a + min(m, tile.rows - 1) * p.a.row + k * step_a;
        x[u][m] = load<8, kVector>(source, step_a, whole ? kVector : at.depth(p) - k);
      }
    }
  };
  auto const multiply = [&](Rows const& x, Contraction const& at, auto whole) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      int const k = (u * kThreads + int(threadIdx.x)) * kVector;
      int const valid = whole ? kVector : at.depth(p) - k;
      Pack<Accumulator, kVector> y[kTileN];
#pragma unroll
      for (int n = 0; n < kTileN; ++n) {
        ElementB const* const source = base_b + at.offset_b + min(n, tile.columns - 1) * p.b.row + k * step_b;
        y[n] = widen(load<8, kVector>(source, step_b, valid));
      }
#pragma unroll
      for (int m = 0; m < kTileM; ++m) {
        auto const wide = widen(x[u][m]);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
#pragma unroll
          for (int n = 0; n < kTileN; ++n) sums[m][n] += wide.value[i] * y[n].value[i];
        }
      }
    }
  };
  auto const is_whole = [&](Contraction const& at) { return at.depth(p) == kTileK; };
  // The matrix's next elements are under way while these are multiplied.
  Rows even, odd;
  int left = last - first;
  auto const turn = [&](Rows const& x, Rows& ahead) {
    Contraction next = at;
    if (--left > 0) {
      next.advance(p);
      if (is_whole(next)) fetch(ahead, next, std::true_type{}); else fetch(ahead, next, std::false_type{});
    }
    if (is_whole(at)) multiply(x, at, std::true_type{}); else multiply(x, at, std::false_type{});
    at = next;
  };
  if (left > 0) {
    if (is_whole(at)) fetch(even, at, std::true_type{}); else fetch(even, at, std::false_type{});
  }
#pragma unroll 1
  while (left > 0) {
    turn(even, odd);
    if (left > 0) turn(odd, even);
  }
  int const lane = threadIdx.x % 32, part = threadIdx.x / 32;
#pragma unroll
  for (int m = 0; m < kTileM; ++m) {
#pragma unroll
    for (int n = 0; n < kTileN; ++n) {
      Accumulator const sum = sum_lanes<1>(sums[m][n]);
      if (lane == 0) parts[(part * kTileM + m) * kTileN + n] = sum;
    }
  }
}

// --- epilogue ------------------------------------------------------------------------
// Accumulators pass through shared memory, kStageRows rows of the tile at a time, so that
// neighbouring threads take neighbouring elements along N, kWidth each.

constexpr int kStagePitch = kTileN;

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
    write<AxisStride::kUnit, 2>(output0 + m * p.output0.m + n * p.output0.n, p.output0.n, count, out0);
  }
}

// --- kernels -------------------------------------------------------------------------

/// kWhole computes a tile; with K split, kPartial leaves sums of its part of K in the
/// workspace and kFinish adds them, always in the same order.
enum class Pass { kWhole, kPartial, kFinish };

template <Pass kPass>
__global__ void __launch_bounds__(kThreads, kBlocks) gemv(__grid_constant__ Params const p) {
  extern __shared__ __align__(128) uint8_t shared[];
  int64_t const block = block_index();
  int64_t const tiles = int64_t(p.tiles_m) * p.tiles_n * p.batches;
  if (block >= tiles * (kPass == Pass::kPartial ? p.splits : 1)) return;
  Tile const tile = locate(p, block);
  constexpr int kSums = kTileM * kTileN;
  auto* const stage = reinterpret_cast<Accumulator*>(shared + kPartBytes);
  auto* const parts = reinterpret_cast<Accumulator*>(shared);
  if constexpr (kPass != Pass::kFinish) {
    int const first = int(int64_t(p.k_tiles) * tile.split / p.splits);
    int const last = int(int64_t(p.k_tiles) * (tile.split + 1) / p.splits);
    accumulate(p, tile, first, last, parts);
    __syncthreads();
  }
  for (int i = threadIdx.x; i < kSums; i += kThreads) {
    Accumulator sum = 0;
    if constexpr (kPass == Pass::kFinish) {
      for (int split = 0; split < p.splits; ++split) sum += p.partial_sums[(split * tiles + tile.tile) * kSums + i];
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part) sum += parts[part * kSums + i];
    }
    if constexpr (kPass == Pass::kPartial) {
      p.partial_sums[(tile.split * tiles + tile.tile) * kSums + i] = sum;
    } else {
      stage[staged(i / kTileN, i % kTileN)] = sum;
    }
  }
  if constexpr (kPass != Pass::kPartial) {
    __syncthreads();
    epilogue(p, tile, 0, shared + kPartBytes);
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
}  // namespace ucc_68d59d7d2ef8c74b_kernel

// --- entry ---------------------------------------------------------------------------

extern "C" int32_t ucc_68d59d7d2ef8c74b(
    void* const* tensors, int64_t const* e, double const* s, int64_t const* launch_parameters,
    void* workspace, uint64_t* workspace_size, void* cuda_stream) {
  using namespace ucc_68d59d7d2ef8c74b_kernel;
  for (int i = 0; i < 3; ++i) {
    if (e[i] < 1) return 1;
  }
  Params p;
  p.m = e[0];
  p.n = e[1];
  p.k[0] = e[2];
  p.batches = 1;
  p.batches *= p.batch[0] = 1;
  p.a.data = static_cast<cutlass::bfloat16_t const*>(tensors[0]);
  p.a.row = e[2];
  p.a.k[0] = 1;
  p.a.batch[0] = 0;
  p.b.data = static_cast<cutlass::bfloat16_t const*>(tensors[1]);
  p.b.row = e[2];
  p.b.k[0] = 1;
  p.b.batch[0] = 0;
  p.output0.data = static_cast<float*>(tensors[2]);
  p.output0.m = e[1];
  p.output0.n = 1;
  p.output0.batch[0] = 0;
  p.arithmetic = arithmetic_params(e, s);
  if (workspace_size == nullptr) {
    if (!aligned(p.a.data, 8, { e[2] })) return 1;
    if (!aligned(p.b.data, 8, { e[2] })) return 1;
    if (!aligned(p.output0.data, 4, { e[1] })) return 1;
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
  if (workspace_size != nullptr) {
    *workspace_size = size;
    return 0;
  }
  if (size > 0 && (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 16 != 0)) return 1;

  auto const stream = static_cast<cudaStream_t>(cuda_stream);
  int64_t const blocks = tiles_m * tiles_n * p.batches;
  if (p.splits == 1) {
    if (int const error = launch<gemv<Pass::kWhole>>(blocks, kThreads, kSharedBytes, stream, p)) return error;
  } else {
    if (int const error = launch<gemv<Pass::kPartial>>(blocks * p.splits, kThreads, kSharedBytes, stream, p)) return error;
    if (int const error = launch<gemv<Pass::kFinish>>(blocks, kThreads, kSharedBytes, stream, p)) return error;
  }
  return 0;
}
