// bias_gelu
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
namespace ucc_c5428e88fd617ec8_kernel {

// --- arithmetic -------------------------------------------------------------------

__forceinline__ __device__ float ucc_exp2_ftz(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
#endif
}

// Of a positive x.
__forceinline__ __device__ float ucc_reciprocal_ftz(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  float y = 1.0f / x;
  return y < 0x1p-126f ? 0.0f : y;
#endif
}

__forceinline__ __device__ float ucc_gelu_fast(float x) {
  // 0.5 * erfc(|x| / sqrt(2)) = exp(-x * x / 2) * p(t); p is a minimax fit of relative error
  // 1.1e-6 over |x| < 13.5, t as in Abramowitz and Stegun 7.1.26. The power of two is taken 2 ** 24
  // times too large and p as much too small, so that only their product can be denormal.
  constexpr float small = 0x1p-24f;
  float t = ucc_reciprocal_ftz(fmaf(fabsf(x), 0.268700577f, 1.0f));
  float p = fmaf(t, -0.0625346005f * small, 0.167350829f * small);
  p = fmaf(p, t, -0.0339259654f * small);
  p = fmaf(p, t, 0.123099014f * small);
  p = fmaf(p, t, 0.0906478092f * small);
  p = fmaf(p, t, 0.108212121f * small);
  p = fmaf(p, t, 0.107150286f * small);
  float tail = p * t * ucc_exp2_ftz(fmaf(x * x, -0.721347520f, 24.0f));
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

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
    float in0,
    float& out0) {
  float const v2 = acc + in0;  // add
  float const v3 = ucc_gelu_fast(v2);  // gelu
  out0 = v3;  // stored as f16
}

using namespace cute;
using cutlass::Array;
namespace fusion = cutlass::epilogue::fusion;
namespace collective = cutlass::epilogue::collective;

// --- problem ----------------------------------------------------------------------
// D[m, n, batch] = arithmetic(sum over k of A[m, k, batch] * B[n, k, batch], operands).
// A stride of _1 is the contiguous mode's; one of _0 means that the tensor lacks the mode.

using ElementA = cutlass::half_t;
using ElementB = cutlass::half_t;
using ElementC = void;  // TMA loads no operand of the epilogue
using ElementD = cutlass::half_t;
using ElementAccumulator = float;

using StrideA = Stride<int64_t, _1, _0>;
using StrideB = Stride<int64_t, _1, _0>;
using StrideD = Stride<int64_t, _1, _0>;
using StrideC = StrideD;
using ProblemShape = Shape<int, int, int, int>;  // M, N, K, batch

// --- schedule ---------------------------------------------------------------------

using TileM = Int<128>;
using TileN = Int<256>;
using Tile = Shape<TileM, TileN, Int<64>>;
using Cluster = Shape<Int<2>, Int<1>, _1>;
using Stages = cutlass::gemm::collective::StageCount<4>;
using MainloopSchedule = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecializedCooperative;
using Scheduler = cutlass::gemm::PersistentScheduler;

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

// How CUTLASS walks a tile in the epilogue: the subtile and the buffers for TMA.
using Walk = collective::detail::EpilogueDescriptor<Tile, collective::EpilogueTileAuto, ElementC,
                                                    ElementD, EpilogueSchedule>;

// CUTLASS's nodes, without its fallbacks for null pointers.
template <class Element, class Wide, class Stride>
using LoadRow = fusion::Sm90RowBroadcast<0, Tile, Element, Wide, Stride, 1, false>;

// --- epilogue ---------------------------------------------------------------------

using Input0 = LoadRow<cutlass::half_t, float, Stride<_0, _1, _0>>;
using Nodes = fusion::Sm90VisitorImpl<Parameters, Input0>;

// Operands in, arithmetic, results out: a fragment of a thread's elements at a time.
struct Epilogue : Nodes {
  using Nodes::Nodes;

  template <class Children, class Coordinates>
  struct Callbacks : Children {
    ArithmeticParams const& parameters;

    CUTLASS_DEVICE Callbacks(Children&& children, ArithmeticParams const& parameters)
        : Children(cute::move(children)), parameters(parameters) {}

    template <class Accumulator, int F>
    CUTLASS_DEVICE auto visit(Array<Accumulator, F> const& accumulator, int epi_v, int epi_m, int epi_n) {
      auto x0 = get<1>(this->callbacks_tuple).visit(accumulator, epi_v, epi_m, epi_n);
      Array<float, F> y0;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < F; ++i) {
        float out0;
        ucc_arithmetic(parameters, 0, 0, float(accumulator[i]), float(x0[i]), out0);
        y0[i] = out0;
      }
      return cutlass::NumericArrayConverter<ElementD, float, F>{}(y0);
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::detail::ConsumerStoreArgs<Args...> const& args) {
    auto children = Nodes::template get_consumer_store_callbacks<ReferenceSrc>(args);
    ArithmeticParams const& parameters = *get<0>(this->ops).params;
    return Callbacks<decltype(children), decltype(args.tCcD)>(cute::move(children), parameters);
  }
};

// --- kernel -----------------------------------------------------------------------

using CollectiveEpilogue = typename collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp,
    Tile, Cluster, collective::EpilogueTileAuto,
    ElementAccumulator, float,
    ElementC, StrideC, 1,
    ElementD, StrideD, 8,
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

}  // namespace ucc_c5428e88fd617ec8_kernel

extern "C" int32_t ucc_c5428e88fd617ec8(void* const* tensors, int64_t const* extents, double const* scalars,
                                        int64_t const* launch_parameters, void* workspace, uint64_t* workspace_size,
                                        void* stream_) {
  using namespace ucc_c5428e88fd617ec8_kernel;
  auto stream = static_cast<cudaStream_t>(stream_);
  if (extents == nullptr || launch_parameters == nullptr) {
    return Mismatch;
  }

  // Extents.
  if (!are_extents({extents[0], extents[1], extents[2]})) {
    return Mismatch;
  }
  int const M = int(extents[0]);
  int const N = int(extents[1]);
  int const K = int(extents[2]);
  auto const L = 1;

  // Launch parameters: raster order, largest swizzle, parts of K.
  int64_t const raster = launch_parameters[0], swizzle = launch_parameters[1], splits = launch_parameters[2];
  if (raster < 0 || raster > 2 || (swizzle != 1 && swizzle != 2 && swizzle != 4 && swizzle != 8) ||
      splits != 1) {
    return Mismatch;
  }

  // Tensors; a query of the workspace needs none.
  void* address[4] = {};
  for (int i = 0; i < 4 && workspace_size == nullptr; ++i) {
    if (tensors == nullptr || tensors[i] == nullptr) {
      return Mismatch;
    }
    address[i] = tensors[i];
  }

  // Strides, in elements: the two modes, the batch.
  auto const a_stride =
      make_stride(extents[2], _1{}, _0{});
  auto const b_stride =
      make_stride(extents[2], _1{}, _0{});
  auto const in0_stride =
      make_stride(_0{}, _1{}, _0{});
  auto const out0_stride =
      make_stride(extents[1], _1{}, _0{});
  if (!tma_takes<cutlass::half_t>(address[0], a_stride)) {
    return Mismatch;
  }
  if (!tma_takes<cutlass::half_t>(address[1], b_stride)) {
    return Mismatch;
  }
  if (!tma_takes<cutlass::half_t>(address[3], out0_stride)) {
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
  arguments.mainloop.ptr_A = static_cast<cutlass::half_t*>(address[0]);
  arguments.mainloop.dA = a_stride;
  arguments.mainloop.ptr_B = static_cast<cutlass::half_t*>(address[1]);
  arguments.mainloop.dB = b_stride;
  arguments.epilogue.ptr_D = static_cast<cutlass::half_t*>(address[3]);
  arguments.epilogue.dD = out0_stride;
  arguments.hw_info.sm_count = device.sm_count;
  arguments.hw_info.max_active_clusters = device.max_active_clusters;
  using RasterOrder = decltype(arguments.scheduler.raster_order);
  arguments.scheduler.raster_order =
      raster == 1 ? RasterOrder::AlongM : raster == 2 ? RasterOrder::AlongN : RasterOrder::Heuristic;
  arguments.scheduler.max_swizzle_size = int(swizzle);

  // The workspace: CUTLASS's.
  uint64_t bytes = Kernel::get_workspace_size(arguments);
  if (workspace_size != nullptr) {
    *workspace_size = bytes;
    return 0;
  }
  if (bytes > 0 && (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 16 != 0)) {
    return Mismatch;
  }

  // Operands and results of the epilogue.
  arguments.epilogue.thread = Nodes::Arguments{
      arithmetic_params(extents, scalars),
      {static_cast<cutlass::half_t*>(address[2]), cutlass::half_t(0), in0_stride},  // Input0
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
  return 0;
}
