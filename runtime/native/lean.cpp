// The part of a lean kernel's host side that is the same for all: the driver, and CUTLASS's own arithmetic of
// tile schedulers. Compiled once for a machine and a version of CUTLASS, and linked into every kernel.

#include <cuda.h>
#include <dlfcn.h>

#include <cstring>
#include <mutex>

#include "cutlass/fast_math.h"
#include "cutlass/gemm/kernel/tile_scheduler_params.h"
#define UCC_LEAN_DRIVER
#include "lean.h"

// CUTLASS asks the runtime for a device's size where it is not told, which here it always is: the runtime
// need not be linked.
extern "C" __attribute__((visibility("hidden"))) cudaError_t cudaGetDevice(int*) { return cudaErrorNotSupported; }
extern "C" __attribute__((visibility("hidden"))) cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int) {
  return cudaErrorNotSupported;
}

namespace {

constexpr int32_t DriverError = 1000;

struct Driver {
  decltype(&cuCtxGetCurrent) ctx_get_current = nullptr;
  decltype(&cuCtxSetCurrent) ctx_set_current = nullptr;
  decltype(&cuCtxGetDevice) ctx_get_device = nullptr;
  decltype(&cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) primary_retain = nullptr;
  decltype(&cuInit) init = nullptr;
  decltype(&cuKernelSetAttribute) kernel_set_attribute = nullptr;
  decltype(&cuLaunchKernelEx) launch = nullptr;
  decltype(&cuLibraryGetKernel) library_get_kernel = nullptr;
  decltype(&cuLibraryLoadData) library_load = nullptr;
  decltype(&cuLibraryUnload) library_unload = nullptr;
  decltype(&cuOccupancyMaxActiveClusters) max_active_clusters = nullptr;
  decltype(&cuMemsetD8Async) memset = nullptr;
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;
  bool loaded = false;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      return;
    }
    loaded = look_up(library, "cuCtxGetCurrent", ctx_get_current) && look_up(library, "cuCtxSetCurrent", ctx_set_current) &&
            look_up(library, "cuCtxGetDevice", ctx_get_device) &&
            look_up(library, "cuDeviceGetAttribute", device_get_attribute) &&
            look_up(library, "cuDevicePrimaryCtxRetain", primary_retain) && look_up(library, "cuInit", init) &&
            look_up(library, "cuKernelSetAttribute", kernel_set_attribute) &&
            look_up(library, "cuLaunchKernelEx", launch) && look_up(library, "cuLibraryGetKernel", library_get_kernel) &&
            look_up(library, "cuLibraryLoadData", library_load) && look_up(library, "cuLibraryUnload", library_unload) &&
            look_up(library, "cuOccupancyMaxActiveClusters", max_active_clusters) &&
            look_up(library, "cuMemsetD8Async", memset) && look_up(library, "cuTensorMapEncodeTiled", encode);
  }

  template <class Function>
  static bool look_up(void* library, char const* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }
};

Driver const& driver() {
  static Driver const instance;
  return instance;
}

int32_t code(CUresult error) { return error == CUDA_SUCCESS ? 0 : DriverError + int32_t(error); }

struct Config {
  CUlaunchAttribute attributes[2] = {};  // the cluster alone counts for occupancy
  CUlaunchConfig config{};

  Config(ucc_lean::Kernel const& kernel, uint32_t const* grid, CUstream stream) {
    CUlaunchAttribute& cluster = attributes[0];
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim.x = kernel.cluster_m;
    cluster.value.clusterDim.y = kernel.cluster_n;
    cluster.value.clusterDim.z = grid[2];  // 1, or the parts of K that the blocks of a cluster share
    config.gridDimX = grid[0];
    config.gridDimY = grid[1];
    config.gridDimZ = grid[2];
    config.blockDimX = kernel.threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = kernel.shared_bytes;
    config.hStream = stream;
    attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[1].value.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = 1;
  }
  Config(Config const&) = delete;
};

// The calling thread's device. The runtime makes a device's context current where it is chosen, so a thread
// without one is on the first device.
CUresult current_device(int* ordinal) {
  CUcontext context = nullptr;
  CUresult error = driver().init(0);
  if (error == CUDA_SUCCESS) {
    error = driver().ctx_get_current(&context);
  }
  if (error == CUDA_SUCCESS && context == nullptr) {
    error = driver().primary_retain(&context, 0);
    if (error == CUDA_SUCCESS) {
      error = driver().ctx_set_current(context);
    }
  }
  return error == CUDA_SUCCESS ? driver().ctx_get_device(ordinal) : error;
}

CUresult load(ucc_lean::Kernel& kernel) {
  if (kernel.function != nullptr) {
    return CUDA_SUCCESS;
  }
  CUlibrary library = nullptr;
  CUkernel loaded = nullptr;
  CUresult error = driver().library_load(&library, kernel.image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error != CUDA_SUCCESS) {
    return error;
  }
  error = driver().library_get_kernel(&loaded, library, kernel.name);
  if (error != CUDA_SUCCESS) {
    (void)driver().library_unload(library);
    return error;
  }
  kernel.library = library;
  __atomic_store_n(&kernel.function, static_cast<void*>(loaded), __ATOMIC_RELEASE);
  return CUDA_SUCCESS;
}

CUresult prepare(ucc_lean::Kernel& kernel, int ordinal, ucc_lean::Device& device) {
  CUresult error = load(kernel);
  auto function = static_cast<CUkernel>(kernel.function);
  if (error == CUDA_SUCCESS) {
    error = driver().device_get_attribute(&device.sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal);
  }
  if (error == CUDA_SUCCESS) {
    error = driver().kernel_set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, int(kernel.shared_bytes),
                                          function, ordinal);
  }
  if (error == CUDA_SUCCESS) {
    uint32_t const grid[] = {kernel.cluster_m, kernel.cluster_n, 1};
    Config config(kernel, grid, nullptr);
    error = driver().max_active_clusters(&device.max_active_clusters, reinterpret_cast<CUfunction>(function),
                                         &config.config);
  }
  return error;
}

}  // namespace

// A failure is not kept: it may pass, as that of a device whose memory is full.
extern "C" int32_t ucc_lean_prepare(ucc_lean::Kernel* kernel, ucc_lean::Device* device) {
  static std::mutex mutex;
  if (!driver().loaded) {
    return code(CUDA_ERROR_NOT_FOUND);
  }
  int ordinal = 0;
  if (CUresult const error = current_device(&ordinal)) {
    return code(error);
  }
  if (ordinal >= ucc_lean::MostDevices) {
    return code(CUDA_ERROR_INVALID_DEVICE);
  }
  if (!__atomic_load_n(&kernel->ready[ordinal], __ATOMIC_ACQUIRE)) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!kernel->ready[ordinal]) {
      ucc_lean::Device prepared{};
      if (CUresult const error = prepare(*kernel, ordinal, prepared)) {
        return code(error);
      }
      kernel->devices[ordinal] = prepared;
      __atomic_store_n(&kernel->ready[ordinal], 1, __ATOMIC_RELEASE);
    }
  }
  *device = kernel->devices[ordinal];
  return 0;
}

static int32_t encode(void* map, int type, void* address, int rank, cuuint64_t const* extents, cuuint64_t const* strides,
                      uint32_t box_inner, uint32_t box_outer, int swizzle) {
  cuuint32_t const box[] = {box_inner, box_outer, 1, 1}, steps[] = {1, 1, 1, 1};
  return code(driver().encode(static_cast<CUtensorMap*>(map), static_cast<CUtensorMapDataType>(type), rank, address,
                              extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                              static_cast<CUtensorMapSwizzle>(swizzle), CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

extern "C" int32_t ucc_lean_encode(void* map, int type, void* address, int64_t inner, int64_t outer, int64_t batch,
                                   int64_t outer_bytes, int64_t batch_bytes, uint32_t box_inner, uint32_t box_outer,
                                   int swizzle) {
  cuuint64_t const extents[] = {cuuint64_t(inner), cuuint64_t(outer), cuuint64_t(batch)};
  cuuint64_t const strides[] = {cuuint64_t(outer_bytes), cuuint64_t(batch_bytes)};
  return encode(map, type, address, 3, extents, strides, box_inner, box_outer, swizzle);
}

extern "C" int32_t ucc_lean_encode_two(void* map, int type, void* address, int64_t inner, int64_t outer, int64_t batch,
                                       int64_t second, int64_t outer_bytes, int64_t batch_bytes, int64_t second_bytes,
                                       uint32_t box_inner, uint32_t box_outer, int swizzle) {
  cuuint64_t const extents[] = {cuuint64_t(inner), cuuint64_t(outer), cuuint64_t(batch), cuuint64_t(second)};
  cuuint64_t const strides[] = {cuuint64_t(outer_bytes), cuuint64_t(batch_bytes), cuuint64_t(second_bytes)};
  return encode(map, type, address, 4, extents, strides, box_inner, box_outer, swizzle);
}

// --- tile schedulers --------------------------------------------------------------

namespace {

using Persistent = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90Params;
using StreamK = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90StreamKParams;
using Order = Persistent::RasterOrderOptions;
using cutlass::gemm::GemmCoord;

static_assert(sizeof(Persistent) == 120 && sizeof(StreamK) == 280, "emit/gemm/lean.py reserves so much");

constexpr uint32_t Bits = 32;  // of an accumulator, and of a lock

struct Tiles {
  dim3 blocks;
  GemmCoord tile, cluster;
  cutlass::KernelHardwareInfo hardware;
  Order order;

  explicit Tiles(ucc_lean::Problem const& p)
      : tile(p.tile[0], p.tile[1], p.tile[2]),
        cluster(p.cluster[0], p.cluster[1], 1),
        hardware{0, p.device.sm_count, p.device.max_active_clusters},
        order(p.raster == 1 ? Order::AlongM : p.raster == 2 ? Order::AlongN : Order::Heuristic) {
    cutlass::gemm::BatchedGemmCoord const batch(0, 0, 0, int(p.batch));
    blocks = Persistent::get_tiled_cta_shape_mnl(batch, cluster, uint32_t(p.tiles_m), uint32_t(p.tiles_n));
  }

  // As `GemmUniversal::get_grid_shape` asks: by what the scheduler made of swizzle and order.
  template <class Params>
  void grid(Params const& params, uint32_t* shape) const {
    Order const taken = params.raster_order_ == Persistent::RasterOrder::AlongN ? Order::AlongN : Order::AlongM;
    dim3 const launched = Params::get_grid_shape(blocks, cluster, hardware, 1 << params.log_swizzle_size_, taken);
    shape[0] = launched.x;
    shape[1] = launched.y;
    shape[2] = launched.z;
  }
};

StreamK::DecompositionMode decomposition(ucc_lean::Problem const& p) {
  using Mode = StreamK::DecompositionMode;
  return p.splits == 0 ? Mode::Heuristic : p.splits == 1 ? Mode::DataParallel : Mode::SplitK;
}

int splits(ucc_lean::Problem const& p) { return p.splits > 1 ? p.splits : 1; }

struct Bytes {
  size_t locks = 0, partials = 0;

  explicit Bytes(ucc_lean::Problem const& p) {
    Tiles const tiles(p);
    StreamK::get_workspace_component_sizes(
        tiles.blocks, uint32_t(p.tiles_k), tiles.tile, tiles.cluster, locks, partials, tiles.hardware, splits(p), p.swizzle,
        tiles.order, decomposition(p), StreamK::ReductionMode::Deterministic, uint32_t(p.warp_groups), Bits, Bits, 1);
  }
};

}  // namespace

extern "C" void ucc_lean_persistent(ucc_lean::Problem const& problem, void* scheduler, size_t size, uint32_t* grid) {
  Tiles const tiles(problem);
  Persistent params;
  params.initialize(tiles.blocks, tiles.cluster, tiles.hardware, problem.swizzle, tiles.order);
  std::memcpy(scheduler, &params, size);
  tiles.grid(params, grid);
}

extern "C" uint64_t ucc_lean_stream_k_bytes(ucc_lean::Problem const& problem) {
  Bytes const bytes(problem);
  return bytes.locks + bytes.partials;
}

// The locks must be zero when the kernel begins; the partial sums before them need not. Returns how many they are.
extern "C" int32_t ucc_lean_stream_k_locks(ucc_lean::Problem const& problem, void* scheduler, size_t size, uint32_t* grid,
                                           void* workspace, uint32_t** locks) {
  Tiles const tiles(problem);
  StreamK params;
  params.initialize(tiles.blocks, uint32_t(problem.tiles_k), tiles.cluster, tiles.hardware, splits(problem),
                    problem.swizzle, tiles.order, StreamK::ReductionMode::Deterministic, decomposition(problem),
                    workspace, 1);
  std::memcpy(scheduler, &params, size);
  tiles.grid(params, grid);
  Bytes const bytes(problem);
  *locks = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(workspace) + bytes.partials);
  return int32_t(bytes.locks / sizeof(uint32_t));
}

extern "C" int32_t ucc_lean_stream_k(ucc_lean::Problem const& problem, void* scheduler, size_t size, uint32_t* grid,
                                     void* workspace, void* stream) {
  uint32_t* locks = nullptr;
  int32_t const count = ucc_lean_stream_k_locks(problem, scheduler, size, grid, workspace, &locks);
  if (count == 0) {
    return 0;
  }
  return code(driver().memset(reinterpret_cast<CUdeviceptr>(locks), 0, count * sizeof(uint32_t), static_cast<CUstream>(stream)));
}

extern "C" int32_t ucc_lean_launch(ucc_lean::Kernel* kernel, uint32_t const* grid, void* params, void* stream) {
  Config config(*kernel, grid, static_cast<CUstream>(stream));
  config.config.numAttrs += kernel->overlaps;
  void* arguments[] = {params};
  return code(driver().launch(&config.config, static_cast<CUfunction>(kernel->function), arguments, nullptr));
}

// A kernel of a prepared one's image, looked up at its first launch. One that overlaps waits for the stream's kernel
// before it itself.
static int32_t launch_beside(ucc_lean::Kernel* kernel, char const* name, void** cached_function, int64_t blocks,
                             int64_t batches, void* params, void* stream, bool overlaps) {
  void* function = __atomic_load_n(cached_function, __ATOMIC_ACQUIRE);
  if (function == nullptr) {
    CUkernel looked_up = nullptr;
    if (CUresult const error = driver().library_get_kernel(&looked_up, static_cast<CUlibrary>(kernel->library), name)) {
      return code(error);
    }
    function = looked_up;
    __atomic_store_n(cached_function, function, __ATOMIC_RELEASE);
  }
  CUlaunchConfig config{};
  config.gridDimX = unsigned(blocks);
  config.gridDimY = unsigned(batches < 65535 ? batches : 65535);
  config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 256;
  config.hStream = static_cast<CUstream>(stream);
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlaps;
  void* arguments[] = {params};
  return code(driver().launch(&config, static_cast<CUfunction>(function), arguments, nullptr));
}

extern "C" int32_t ucc_lean_beside(ucc_lean::Kernel* kernel, char const* name, void** cached_function, int columns,
                                    int64_t extent, int64_t batches, void* params, void* stream) {
  return launch_beside(kernel, name, cached_function, (extent + columns - 1) / columns, batches, params, stream, false);
}

extern "C" int32_t ucc_lean_overlapping(ucc_lean::Kernel* kernel, char const* name, void** cached_function, int64_t blocks,
                                        int64_t batches, void* params, void* stream) {
  return launch_beside(kernel, name, cached_function, blocks, batches, params, stream, true);
}

extern "C" void ucc_lean_divisor(void* divmod, int divisor) {
  static_assert(sizeof(cutlass::FastDivmod) == 12, "lean.h declares it so");
  cutlass::FastDivmod const division(divisor);
  std::memcpy(divmod, &division, sizeof(division));
}
