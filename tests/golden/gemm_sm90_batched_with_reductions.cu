// batched_with_reductions
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <mutex>

// --- TMA descriptors --------------------------------------------------------------
// CUTLASS looks up the driver's encoder for each descriptor of each launch, and launches with a
// descriptor that the encoder refused. Here it is looked up once a process, and a refusal is kept
// for the entry to return. The same in every kernel, so shared by those of one program.

#ifndef UCC_TMA
#define UCC_TMA

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

// --- the context of a thread -----------------------------------------------------------

#ifndef UCC_CONTEXT
#define UCC_CONTEXT

namespace ucc_context {

/// Looks a function of the driver up. Returns why there is none, which is null then.
template <class Function>
cudaError_t look_up(char const* name, Function& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 13000
  cudaError_t const error = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
#else
  cudaError_t const error = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found);
#endif
  bool const there = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
  function = there ? reinterpret_cast<Function>(address) : nullptr;
  return error != cudaSuccess || there ? error : cudaErrorSymbolNotFound;
}

/// A function of the driver, or null where it has none.
template <class Function>
Function driver(char const* name) {
  Function function = nullptr;
  look_up(name, function);
  return function;
}

/// Makes the primary context of the thread's device current, as a launch would. Returns whether it is.
inline bool bind() {
  using Context = struct CUctx_st*;
  int ordinal = 0;
  auto const retain = driver<CUresult (*)(Context*, int)>("cuDevicePrimaryCtxRetain");
  auto const set = driver<CUresult (*)(Context)>("cuCtxSetCurrent");
  Context context = nullptr;
  return retain != nullptr && set != nullptr && cudaGetDevice(&ordinal) == cudaSuccess &&
         retain(&context, ordinal) == CUDA_SUCCESS && set(context) == CUDA_SUCCESS;
}

/// Calls `encode`, which encodes a tensor map, again in a context where the thread had none: the driver refuses without.
template <class Encode>
CUresult encoded(Encode encode) {
  CUresult const result = encode();
  return result == CUDA_ERROR_INVALID_CONTEXT && bind() ? encode() : result;
}

}  // namespace ucc_context

#endif

namespace ucc_tma {

struct Encoder {
  PFN_cuTensorMapEncodeTiled_v12000 encode;
  cudaError_t error;
};

inline Encoder const& encoder() {
  static Encoder const found = [] {
    Encoder encoder;
    encoder.error = ucc_context::look_up("cuTensorMapEncodeTiled", encoder.encode);
    return encoder;
  }();
  return found;
}

inline thread_local CUresult refusal = CUDA_SUCCESS;  // of a descriptor since the entry cleared it

template <class... Args>
CUresult encode_tiled(Args... args) {
  CUresult const result = ucc_context::encoded([&] { return encoder().encode(args...); });
  if (result != CUDA_SUCCESS) {
    refusal = result;
  }
  return CUDA_SUCCESS;  // at anything else CUTLASS prints, and goes on
}

}  // namespace ucc_tma

// CUTLASS's name for a driver that the program is linked with.
#define CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL
#define cuTensorMapEncodeTiled ucc_tma::encode_tiled

#endif

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/device_kernel.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/fast_math.h"
#include "cutlass/functional.h"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/numeric_conversion.h"

// Of its own, so that kernels linked into one program stay apart.
namespace ucc_fc366f08b418dc7e_kernel {

// --- arithmetic -------------------------------------------------------------------

struct ArithmeticParams {
};

inline ArithmeticParams arithmetic_params(int64_t const*, double const*) {
  ArithmeticParams p;
  return p;
}

CUTLASS_DEVICE void ucc_arithmetic(
    ArithmeticParams const& p,
    int m, int n, int b0, int b1,
    float acc,
    float in0, float in1,
    float& out0, float& out1, float& out2) {
  float const v3 = acc + in0;  // add
  float const v4 = in1 * v3;  // multiply
  int32_t const v5 = n;  // coordinate
  int32_t const v6 = m;  // coordinate
  bool const v7 = v5 <= v6;  // less_equal
  float const v8 = v7 ? v4 : acc;  // where
  out0 = v8;  // stored as f32
  out1 = v8;  // stored as f32
  out2 = v8;  // stored as bf16
}

using namespace cute;
using cutlass::Array;
namespace fusion = cutlass::epilogue::fusion;
namespace collective = cutlass::epilogue::collective;

// --- problem ----------------------------------------------------------------------
// D[m, n, batch] = arithmetic(sum over k of A[m, k, batch] * B[n, k, batch], operands).
// A stride of _1 is the contiguous mode's; one of _0 means that the tensor lacks the mode.

using ElementA = cutlass::bfloat16_t;
using ElementB = cutlass::bfloat16_t;
using ElementC = cutlass::half_t;
using ElementD = void;  // TMA stores no result
using ElementAccumulator = float;

using StrideA = Stride<int64_t, _1, Stride<int64_t, int64_t>>;
using StrideB = Stride<int64_t, _1, Stride<_0, int64_t>>;
using StrideD = Stride<int64_t, _1, Stride<_0, _0>>;
using StrideC = Stride<int64_t, _1, Stride<int64_t, int64_t>>;
using ProblemShape = Shape<int, int, int, Shape<int, int>>;  // M, N, K, batch

// --- schedule ---------------------------------------------------------------------

using TileM = Int<128>;
using TileN = Int<128>;
using Tile = Shape<TileM, TileN, Int<64>>;
using Cluster = Shape<Int<2>, Int<1>, _1>;
using Stages = cutlass::gemm::collective::StageCount<3>;
using MainloopSchedule = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecializedCooperative;
using Scheduler = cutlass::gemm::StreamKScheduler;

// --- visitor nodes ----------------------------------------------------------------
// CUTLASS's own nodes carry vectors and matrices; these carry the rest.

// What every node without shared memory, workspace and TMA loads has in common.
template <class Arguments_>
struct Leaf {
  struct SharedStorage {};
  using Arguments = Arguments_;
  using Params = Arguments_;

  template <class Problem>
  static constexpr Params to_underlying_arguments(Problem const&, Arguments const& arguments, void*) {
    return arguments;
  }
  template <class Problem>
  static bool can_implement(Problem const&, Arguments const&) { return true; }
  template <class Problem>
  static size_t get_workspace_size(Problem const&, Arguments const&) { return 0; }
  template <class Problem>
  static cutlass::Status initialize_workspace(Problem const&, Arguments const&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE Leaf() {}
  CUTLASS_HOST_DEVICE Leaf(Params const& params, SharedStorage const&) : params(&params) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }

  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(fusion::detail::ProducerLoadArgs<Args...> const&) {
    return fusion::detail::EmptyProducerLoadCallbacks{};
  }

  Params const* params = nullptr;
};

// What the arithmetic takes besides elements.
struct Parameters : Leaf<ArithmeticParams> {
  using Leaf::Leaf;

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::detail::ConsumerStoreArgs<Args...> const&) {
    return fusion::detail::EmptyConsumerStoreCallbacks{};
  }
};

// One value in device memory for each batch, or for all. CUTLASS's Sm90ScalarBroadcast reads
// element 0 for every batch where the batch has several modes.
template <class Element, class StrideL>
struct SingleArguments {
  Element const* pointer;
  StrideL stride;
};

template <class Element, class StrideL>
struct LoadSingle : Leaf<SingleArguments<Element, StrideL>> {
  using Base = Leaf<SingleArguments<Element, StrideL>>;
  using Base::Base;

  struct Callbacks : fusion::detail::EmptyConsumerStoreCallbacks {
    Element value;
    CUTLASS_DEVICE Callbacks(Element value) : value(value) {}

    template <class Accumulator, int F>
    CUTLASS_DEVICE Array<Element, F> visit(Array<Accumulator, F> const&, int, int, int) {
      Array<Element, F> values;
      values.fill(value);
      return values;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::detail::ConsumerStoreArgs<Args...> const& args) {
    auto shape = get<3>(args.problem_shape_mnkl);
    auto at = get<3>(args.tile_coord_mnkl);
    return Callbacks(this->params->pointer[crd2idx(at, shape, this->params->stride)]);
  }
};

// How CUTLASS walks a tile in the epilogue: the subtile and the buffers for TMA.
using ElementStep = cutlass::half_t;  // with no D, decides the walk alone
using Walk = collective::detail::EpilogueDescriptor<Tile, collective::EpilogueTileAuto, ElementC,
                                                    ElementStep, EpilogueSchedule>;

// CUTLASS's nodes, without its fallbacks for null pointers.
using LoadSource = fusion::Sm90SrcFetch<ElementC>;
template <class Element, class Stride, int Vector>
using StoreDirect = fusion::Sm90AuxStore<0, void, Element, cutlass::FloatRoundStyle::round_to_nearest, Stride, void,
                                         void, Vector, false>;

// --- reductions --------------------------------------------------------------------
// Every thread block leaves partial results in the workspace and `combine` finishes them in
// a second launch, always in the same order: no atomics, so results repeat bit by bit.

template <class T>
struct Sum {
  static constexpr T identity() { return T(0); }
  CUTLASS_DEVICE T operator()(T a, T b) const { return a + b; }
};

template <class T>
struct Max {
  using Limits = std::numeric_limits<T>;
  static constexpr T identity() { return Limits::has_infinity ? -Limits::infinity() : Limits::lowest(); }
  CUTLASS_DEVICE T operator()(T a, T b) const { return cutlass::maximum<T, true>{}(a, b); }  // NaN wins
};

template <class T>
struct Min {
  using Limits = std::numeric_limits<T>;
  static constexpr T identity() { return Limits::has_infinity ? Limits::infinity() : Limits::max(); }
  CUTLASS_DEVICE T operator()(T a, T b) const { return cutlass::minimum<T, true>{}(a, b); }  // NaN wins
};

constexpr int Warps = 8;  // that share a tile's epilogue

template <class T>
struct Partials {
  T* data;  // (extent that stays, batches, parts), the first contiguous
};

// In a warp's part of a wgmma accumulator the four lanes of a quad share rows and the eight
// lanes of equal lane % 4 share columns (PTX ISA, "wgmma fragments of D").
template <class Op, class T>
CUTLASS_DEVICE T reduce_lanes(T value, int first, int last) {
  CUTLASS_PRAGMA_UNROLL
  for (int distance = first; distance <= last; distance *= 2) {
    value = Op{}(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

template <class Op, class Values, class Coordinates, class Residue, class Inputs>
CUTLASS_DEVICE void reduce_elements(Values&& values, Coordinates const& coordinates, Residue const& residue,
                                    Inputs const& inputs, int first) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Inputs::kElements; ++i) {
    if (elem_less(coordinates(first + i), residue)) {
      values(first + i) = Op{}(values(first + i), inputs[i]);
    }
  }
}

// Over N: one result a row. A thread meets all of its rows' elements before `end`.
template <class Op, class T>
struct ReduceN : Leaf<Partials<T>> {
  using Base = Leaf<Partials<T>>;
  using Base::Base;

  template <class Values, class Coordinates, class Residue>
  struct Callbacks : fusion::detail::EmptyConsumerStoreCallbacks {
    Values values;  // one a row that this thread meets
    Coordinates coordinates;
    Residue residue;
    T* row0;        // of the partials, at coordinate 0
    int lane;
    bool inside;    // the tile starts within N

    CUTLASS_DEVICE Callbacks(Values const& values, Coordinates const& coordinates, Residue const& residue,
                             T* row0, int lane, bool inside)
        : values(values), coordinates(coordinates), residue(residue), row0(row0), lane(lane), inside(inside) {}

    template <class Accumulator, int F>
    CUTLASS_DEVICE void visit(Array<Accumulator, F> const&, int epi_v, int epi_m, int epi_n,
                              Array<T, F> const& inputs) {
      Tensor at = coordinates(_, _, _, epi_m, epi_n);
      reduce_elements<Op>(values(_, _, _, epi_m, epi_n), at, residue, inputs, epi_v * F);
    }

    CUTLASS_DEVICE void end() {
      Tensor results = filter_zeros(values);
      Tensor element_coordinates = filter_zeros(coordinates, values.stride());
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < size(results); ++i) {
        T value = reduce_lanes<Op>(results(i), 1, 2);
        if (lane % 4 == 0 && inside && get<0>(element_coordinates(i)) < get<0>(residue)) {
          row0[get<0>(element_coordinates(i))] = value;
        }
      }
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::detail::ConsumerStoreArgs<Args...> const& args) {
    auto [M, N, K, L] = args.problem_shape_mnkl;
    auto [m, n, k, l] = args.tile_coord_mnkl;
    auto rows = make_tensor(make_gmem_ptr(static_cast<T*>(nullptr)), Layout<Shape<TileM, TileN>, Stride<_1, _0>>{});
    Tensor values = make_tensor_like<T>(fusion::sm90_partition_for_epilogue<ReferenceSrc>(
        rows, args.epi_tile, args.tiled_copy, args.thread_idx));
    fill(values, Op::identity());
    int64_t part = int64_t(n) * size(L) + crd2idx(l, L);
    T* row0 = this->params->data + part * M + (M - get<0>(args.residue_tCcD));
    return Callbacks<decltype(values), decltype(args.tCcD), decltype(args.residue_tCcD)>(
        values, args.tCcD, args.residue_tCcD, row0, args.thread_idx % 32, get<1>(args.residue_cD) > 0);
  }
};

// Over M and N: one result a warp.
template <class Op, class T>
struct ReduceMN : Leaf<Partials<T>> {
  using Base = Leaf<Partials<T>>;
  using Base::Base;

  template <class Coordinates, class Residue>
  struct Callbacks : fusion::detail::EmptyConsumerStoreCallbacks {
    T value = Op::identity();
    Coordinates coordinates;
    Residue residue;
    T* place;
    bool writes;

    CUTLASS_DEVICE Callbacks(Coordinates const& coordinates, Residue const& residue, T* place, bool writes)
        : coordinates(coordinates), residue(residue), place(place), writes(writes) {}

    template <class Accumulator, int F>
    CUTLASS_DEVICE void visit(Array<Accumulator, F> const&, int epi_v, int epi_m, int epi_n,
                              Array<T, F> const& inputs) {
      Tensor at = coordinates(_, _, _, epi_m, epi_n);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < F; ++i) {
        if (elem_less(at(epi_v * F + i), residue)) {
          value = Op{}(value, inputs[i]);
        }
      }
    }

    CUTLASS_DEVICE void end() {
      value = reduce_lanes<Op>(value, 1, 16);
      if (writes) {
        *place = value;
      }
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::detail::ConsumerStoreArgs<Args...> const& args) {
    auto [M, N, K, L] = args.problem_shape_mnkl;
    auto [m, n, k, l] = args.tile_coord_mnkl;
    int64_t tile = int64_t(n) * ceil_div(M, TileM{}) + m;
    int64_t part = tile * Warps + args.thread_idx / 32;
    bool writes = args.thread_idx % 32 == 0 && get<0>(args.residue_cD) > 0 && get<1>(args.residue_cD) > 0;
    return Callbacks<decltype(args.tCcD), decltype(args.residue_tCcD)>(
        args.tCcD, args.residue_tCcD, this->params->data + part * size(L) + crd2idx(l, L), writes);
  }
};

// A sum of integers is 64 bits wide until here, and saturates.
template <class Element, class T>
CUTLASS_DEVICE Element stored(T value) {
  if constexpr (std::is_same_v<T, int64_t>) {
    using Limits = std::numeric_limits<Element>;
    return Element(value < Limits::lowest() ? Limits::lowest() : value > Limits::max() ? Limits::max() : value);
  } else {
    return cutlass::NumericConverter<Element, T>{}(value);
  }
}

// out[batch, x] = Op over parts and summed batches of partials[part, batch, x]. 256 threads, `Columns`
// of them along x and the others along what is reduced.
template <class Op, int Columns, class T, class Element, class Kept, class Placed, class Summed>
__global__ void combine_partials(T const* partials, Element* out, int64_t parts, int64_t batches, int extent,
                                 int64_t stride, Kept kept, Placed placed, Summed summed) {
  constexpr int Rows = 256 / Columns;
  __shared__ T shared[Rows][Columns];
  int column = threadIdx.x % Columns, row = threadIdx.x / Columns;
  int x = blockIdx.x * Columns + column;
  for (int batch = blockIdx.y; batch < size(kept); batch += gridDim.y) {
    T value = Op::identity();
    for (int i = 0; i < size(summed) && x < extent; ++i) {
      int64_t l = kept(batch) + summed(i);
      for (int64_t part = row; part < parts; part += Rows) {
        value = Op{}(value, partials[(part * batches + l) * extent + x]);
      }
    }
    shared[row][column] = value;
    __syncthreads();
    CUTLASS_PRAGMA_UNROLL
    for (int half = Rows / 2; half > 0; half /= 2) {
      if (row < half) {
        shared[row][column] = Op{}(shared[row][column], shared[row + half][column]);
      }
      __syncthreads();
    }
    if (row == 0 && x < extent) {
      out[placed(batch) + x * stride] = stored<Element>(shared[0][column]);
    }
    __syncthreads();
  }
}

template <class Op, int Columns, class T, class Element, class Kept, class Placed, class Summed>
void combine(T const* partials, Element* out, int64_t parts, int64_t batches, int extent, int64_t stride, Kept kept,
             Placed placed, Summed summed, cudaStream_t stream) {
  dim3 grid(ceil_div(extent, Columns), std::min(int(size(kept)), 65535));
  combine_partials<Op, Columns>
      <<<grid, 256, 0, stream>>>(partials, out, parts, batches, extent, stride, kept, placed, summed);
}

// --- epilogue ---------------------------------------------------------------------

using Input0 = LoadSource;
using Input1 = LoadSingle<float, Stride<_0, int64_t>>;
using Output0 = StoreDirect<float, Stride<int64_t, _1, Stride<int64_t, int64_t>>, 1>;
using Output1 = ReduceN<Sum<float>, float>;
using Output2 = ReduceMN<Max<float>, float>;
using Nodes = fusion::Sm90VisitorImpl<Parameters, Input0, Input1, Output0, Output1, Output2>;

// Operands in, arithmetic, results out: a fragment of a thread's elements at a time.
struct Epilogue : Nodes {
  using Nodes::Nodes;
  using ElementAux = ElementStep;

  template <class Children, class Coordinates>
  struct Callbacks : Children {
    ArithmeticParams const& parameters;
    Coordinates coordinates;  // of this thread's elements, relative to its first
    int m0, n0, b0, b1;  // the first's

    CUTLASS_DEVICE Callbacks(Children&& children, ArithmeticParams const& parameters, Coordinates const& coordinates,
                             int m0, int n0, int b0, int b1)
        : Children(cute::move(children)), parameters(parameters), coordinates(coordinates),
          m0(m0), n0(n0), b0(b0), b1(b1) {}

    template <class Accumulator, int F>
    CUTLASS_DEVICE auto visit(Array<Accumulator, F> const& accumulator, int epi_v, int epi_m, int epi_n) {
      auto x0 = get<1>(this->callbacks_tuple).visit(accumulator, epi_v, epi_m, epi_n);
      auto x1 = get<2>(this->callbacks_tuple).visit(accumulator, epi_v, epi_m, epi_n);
      Array<float, F> y0;
      Array<float, F> y1;
      Array<float, F> y2;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < F; ++i) {
        auto at = coordinates(_, _, _, epi_m, epi_n)(epi_v * F + i);
        float out0;
        float out1;
        float out2;
        ucc_arithmetic(parameters, m0 + get<0>(at), n0 + get<1>(at), b0, b1, float(accumulator[i]),
            float(x0[i]), float(x1[i]), out0, out1, out2);
        y0[i] = out0;
        y1[i] = out1;
        y2[i] = out2;
      }
      get<3>(this->callbacks_tuple).visit(accumulator, epi_v, epi_m, epi_n, y0);
      get<4>(this->callbacks_tuple).visit(accumulator, epi_v, epi_m, epi_n, y1);
      get<5>(this->callbacks_tuple).visit(accumulator, epi_v, epi_m, epi_n, y2);
      Array<ElementStep, F> nothing;
      nothing.clear();
      return nothing;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::detail::ConsumerStoreArgs<Args...> const& args) {
    auto children = Nodes::template get_consumer_store_callbacks<ReferenceSrc>(args);
    ArithmeticParams const& parameters = *get<0>(this->ops).params;
    int m0 = get<0>(args.problem_shape_mnkl) - get<0>(args.residue_tCcD);
    int n0 = get<1>(args.problem_shape_mnkl) - get<1>(args.residue_tCcD);
    auto l = get<3>(args.tile_coord_mnkl);
    return Callbacks<decltype(children), decltype(args.tCcD)>(
        cute::move(children), parameters, args.tCcD, m0, n0, get<0>(l), get<1>(l));
  }
};

}  // namespace ucc_fc366f08b418dc7e_kernel

// Registers keep the source's own type; CUTLASS would turn some sources into the accumulator's.
template <>
struct cutlass::epilogue::fusion::FusionCallbacksTraits<ucc_fc366f08b418dc7e_kernel::Epilogue> {
  using DispatchPolicy = void;
  using Callbacks = ucc_fc366f08b418dc7e_kernel::Epilogue;
  using Operation = FusionOperation;
  using CtaTile_MNK = void;
  using EpilogueTile_MN = void;
  using ElementCompute = ucc_fc366f08b418dc7e_kernel::ElementC;
};

namespace ucc_fc366f08b418dc7e_kernel {

// --- kernel -----------------------------------------------------------------------

using CollectiveEpilogue = typename collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp,
    Tile, Cluster, collective::EpilogueTileAuto,
    ElementAccumulator, float,
    ElementC, StrideC, 8,
    ElementD, StrideD, 1,
    EpilogueSchedule, Epilogue>::CollectiveOp;

using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp,
    ElementA, StrideA, 8,
    ElementB, StrideB, 8,
    ElementAccumulator,
    Tile, Cluster, Stages, MainloopSchedule>::CollectiveOp;

struct Kernel
    : cutlass::gemm::kernel::GemmUniversal<ProblemShape, CollectiveMainloop, CollectiveEpilogue, Scheduler> {};

static_assert(Kernel::SharedStorageSize <= cutlass::gemm::collective::detail::sm90_smem_capacity_bytes,
              "too many stages for shared memory");

// --- launch -----------------------------------------------------------------------

constexpr int32_t Mismatch = 1;  // the arguments are not what the plan was made for

// An error that is returned is not left for the caller's next check to find.
int32_t code(cudaError_t error) {
  if (error == cudaSuccess) return 0;
  (void)cudaGetLastError();
  return 1000 + int32_t(error);
}
int32_t code(cutlass::Status status) { return status == cutlass::Status::kSuccess ? 0 : 2000 + int32_t(status); }

bool are_extents(std::initializer_list<int64_t> extents) {
  return std::all_of(extents.begin(), extents.end(), [](int64_t e) { return e >= 1 && e <= INT32_MAX; });
}

// TMA takes addresses and strides of whole 16 bytes.
template <class Element, class Stride>
bool tma_takes(void const* address, Stride const& stride) {
  bool whole = reinterpret_cast<uintptr_t>(address) % 16 == 0;
  for_each(flatten(stride), [&](auto s) {
    if constexpr (not is_static<decltype(s)>::value) {
      whole = whole && s * int64_t(sizeof(Element)) % 16 == 0;
    }
  });
  return whole;
}

struct Launch {
  cudaLaunchAttribute cluster{};
  cudaLaunchConfig_t config{};

  Launch(dim3 grid, cudaStream_t stream) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = size<0>(Cluster{});
    cluster.val.clusterDim.y = size<1>(Cluster{});
    cluster.val.clusterDim.z = 1;
    config.gridDim = grid;
    config.blockDim = Kernel::get_block_shape();
    config.dynamicSmemBytes = Kernel::SharedStorageSize;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  Launch(Launch const&) = delete;
};

void const* kernel() { return reinterpret_cast<void const*>(cutlass::device_kernel<Kernel>); }

struct Device {
  cudaError_t error;
  int sm_count;
  int max_active_clusters;
};

Device prepare(int ordinal) {
  Device device{};
  Launch launch(dim3(size<0>(Cluster{}), size<1>(Cluster{}), 1), nullptr);
  device.error = ucc_tma::encoder().error;
  if (device.error == cudaSuccess) {
    device.error = cudaDeviceGetAttribute(&device.sm_count, cudaDevAttrMultiProcessorCount, ordinal);
  }
  if (device.error == cudaSuccess) {
    device.error =
        cudaFuncSetAttribute(kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::SharedStorageSize);
  }
  if (device.error == cudaSuccess) {
    device.error = cudaOccupancyMaxActiveClusters(&device.max_active_clusters, kernel(), &launch.config);
  }
  return device;
}

// The calling thread's device, prepared for the kernel once. A failure is not kept: it may pass, as
// that of a device whose memory is full, or of a first launch inside a stream's capture.
Device current_device() {
  constexpr int Most = 64;
  static std::mutex mutex;
  static std::atomic<bool> ready[Most];
  static Device devices[Most];
  int ordinal = 0;
  if (cudaError_t error = cudaGetDevice(&ordinal)) {
    return {error, 0, 0};
  }
  if (ordinal >= Most) {
    return {cudaErrorInvalidDevice, 0, 0};
  }
  if (!ready[ordinal]) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!ready[ordinal]) {
      Device const device = prepare(ordinal);
      if (device.error != cudaSuccess) {
        return device;
      }
      devices[ordinal] = device;
      ready[ordinal] = true;
    }
  }
  return devices[ordinal];
}

}  // namespace ucc_fc366f08b418dc7e_kernel

extern "C" int32_t ucc_fc366f08b418dc7e(void* const* tensors, int64_t const* extents, double const* scalars,
                                        int64_t const* launch_parameters, void* workspace, uint64_t* workspace_size,
                                        void* stream_) {
  using namespace ucc_fc366f08b418dc7e_kernel;
  auto stream = static_cast<cudaStream_t>(stream_);
  if (extents == nullptr || launch_parameters == nullptr) {
    return Mismatch;
  }

  // Extents.
  if (!are_extents({extents[0], extents[1], extents[2], extents[3], extents[4]})) {
    return Mismatch;
  }
  int const M = int(extents[0]);
  int const N = int(extents[1]);
  int const K = int(extents[2]);
  int const B0 = int(extents[3]);
  int const B1 = int(extents[4]);
  auto const L = make_shape(B0, B1);
  if (!are_extents({int64_t(B0) * B1})) {
    return Mismatch;
  }

  // Launch parameters: raster order, largest swizzle, parts of K.
  int64_t const raster = launch_parameters[0], swizzle = launch_parameters[1], splits = launch_parameters[2];
  if (raster < 0 || raster > 2 || (swizzle != 1 && swizzle != 2 && swizzle != 4 && swizzle != 8) ||
      splits < 0 || splits > 1024) {
    return Mismatch;
  }

  // Tensors; a query of the workspace needs none.
  void* address[7] = {};
  for (int i = 0; i < 7 && workspace_size == nullptr; ++i) {
    if (tensors == nullptr || tensors[i] == nullptr) {
      return Mismatch;
    }
    address[i] = tensors[i];
  }

  // Strides, in elements: the two modes, the batch.
  auto const a_stride =
      make_stride(extents[2], _1{}, make_stride(extents[0] * extents[2] * extents[4], extents[0] * extents[2]));
  auto const b_stride =
      make_stride(extents[2], _1{}, make_stride(_0{}, extents[1] * extents[2]));
  auto const in0_stride =
      make_stride(extents[1], _1{}, make_stride(extents[0] * extents[1] * extents[4], extents[0] * extents[1]));
  auto const in1_stride =
      make_stride(_0{}, _0{}, make_stride(_0{}, int64_t(1)));
  auto const out0_stride =
      make_stride(extents[1], _1{}, make_stride(extents[0] * extents[1] * extents[4], extents[0] * extents[1]));
  if (!tma_takes<cutlass::bfloat16_t>(address[0], a_stride)) {
    return Mismatch;
  }
  if (!tma_takes<cutlass::bfloat16_t>(address[1], b_stride)) {
    return Mismatch;
  }
  if (!tma_takes<cutlass::half_t>(address[2], in0_stride)) {
    return Mismatch;
  }

  Device const device = current_device();
  if (device.error != cudaSuccess) {
    return code(device.error);
  }

  // Arguments of the main loop, of D and of the tile scheduler.
  Kernel::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = make_shape(M, N, K, L);
  arguments.mainloop.ptr_A = static_cast<cutlass::bfloat16_t*>(address[0]);
  arguments.mainloop.dA = a_stride;
  arguments.mainloop.ptr_B = static_cast<cutlass::bfloat16_t*>(address[1]);
  arguments.mainloop.dB = b_stride;
  arguments.epilogue.ptr_C = static_cast<cutlass::half_t*>(address[2]);
  arguments.epilogue.dC = in0_stride;
  arguments.hw_info.sm_count = device.sm_count;
  arguments.hw_info.max_active_clusters = device.max_active_clusters;
  using RasterOrder = decltype(arguments.scheduler.raster_order);
  arguments.scheduler.raster_order =
      raster == 1 ? RasterOrder::AlongM : raster == 2 ? RasterOrder::AlongN : RasterOrder::Heuristic;
  arguments.scheduler.max_swizzle_size = int(swizzle);
  using Decomposition = decltype(arguments.scheduler.decomposition_mode);
  arguments.scheduler.decomposition_mode =
      splits == 0 ? Decomposition::Heuristic : splits == 1 ? Decomposition::DataParallel : Decomposition::SplitK;
  arguments.scheduler.splits = std::max(1, int(splits));

  // The workspace: CUTLASS's, then the partial results of the reductions.
  uint64_t bytes = Kernel::get_workspace_size(arguments);
  uint64_t const out1_offset = round_up(bytes, 256);
  int64_t const out1_parts = ceil_div(N, TileN{});
  bytes = out1_offset + sizeof(float) * out1_parts * size(L) * M;
  uint64_t const out2_offset = round_up(bytes, 256);
  int64_t const out2_parts = int64_t(ceil_div(M, TileM{})) * ceil_div(N, TileN{}) * Warps;
  bytes = out2_offset + sizeof(float) * out2_parts * size(L) * 1;
  if (workspace_size != nullptr) {
    *workspace_size = bytes;
    return 0;
  }
  if (bytes > 0 && (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 16 != 0)) {
    return Mismatch;
  }

  // Operands and results of the epilogue.
  auto* out1_partials =
      reinterpret_cast<float*>(static_cast<uint8_t*>(workspace) + out1_offset);
  auto* out2_partials =
      reinterpret_cast<float*>(static_cast<uint8_t*>(workspace) + out2_offset);
  arguments.epilogue.thread = Nodes::Arguments{
      arithmetic_params(extents, scalars),
      {},  // Input0
      {static_cast<float*>(address[3]), get<2>(in1_stride)},  // Input1
      {static_cast<float*>(address[4]), out0_stride},  // Output0
      {out1_partials},  // Output1
      {out2_partials},  // Output2
  };

  if (!Kernel::can_implement(arguments)) {
    return code(cutlass::Status::kErrorInvalidProblem);
  }
  if (int32_t failure = code(Kernel::initialize_workspace(arguments, workspace, stream))) {
    return failure;
  }
  ucc_tma::refusal = CUDA_SUCCESS;
  Kernel::Params params = Kernel::to_underlying_arguments(arguments, workspace);
  if (int32_t failure = code(cudaError_t(ucc_tma::refusal))) {  // CUresult has cudaError_t's values
    return failure;
  }
  Launch launch(Kernel::get_grid_shape(params), stream);
  void* parameters[] = {&params};
  if (int32_t failure = code(cudaLaunchKernelExC(&launch.config, kernel(), parameters))) {
    return failure;
  }
  combine<Sum<float>, 32>(
      out1_partials, static_cast<float*>(address[5]), out1_parts, size(L), M, int64_t(1),
      make_layout(make_shape(B1), make_stride(int64_t(B0))),
      make_layout(make_shape(B1), make_stride(extents[0])),
      make_layout(make_shape(B0), make_stride(int64_t(1))), stream);
  combine<Max<float>, 1>(
      out2_partials, static_cast<cutlass::bfloat16_t*>(address[6]), out2_parts, size(L), 1, int64_t(1),
      make_layout(make_shape(B0, B1), make_stride(int64_t(1), int64_t(B0))),
      make_layout(make_shape(B0, B1), make_stride(extents[4], int64_t(1))),
      Layout<_1, _0>{}, stream);
  return code(cudaGetLastError());
}
