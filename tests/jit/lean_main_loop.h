// Stands for the driver and CUTLASS's kernel layer under a lean kernel's entry, so that its main loop and the launch that
// splits operands run on the fibers of tests/emit/hopper.h. Of each tile the accumulators are added to `set_up`'s sums.
#pragma once
#include <tuple>

#define __shared__ static
#define CUTLASS_DEVICE
#define CUTE_HOST_DEVICE
#define CUTLASS_PRAGMA_UNROLL
#define CUTLASS_PRAGMA_NO_UNROLL

using std::get;
inline uint32_t __reduce_max_sync(unsigned mask, uint32_t v) {
  uint32_t all[32], most = 0; hopper::gather(v, all);
  for (int i = 0; i < 32; ++i) if (mask >> i & 1) most = std::max(most, all[i]);
  return most;
}
struct Setup {
  int tile_m, tile_n, groups, cluster, parts;  // of K, one after another
  float* sums;  // [batch][height][width], whole clusters of tiles
  int64_t height, width;
  int batch;
};
inline Setup setup;
void run_block(void const* params, int m, int n, int l, int first, int count);
void run_split(char const* name, void const* params);

namespace cute {
template <int N> struct Int { static constexpr int value = N; };
using _0 = Int<0>;
using _1 = Int<1>;
template <class... T> struct Shape {};
template <class... T> struct Stride {};
template <class... T> int make_shape(T...) { return 0; }
template <class... T> int make_stride(T...) { return 0; }
template <class... T> int make_layout(T...) { return 0; }
template <class... T> auto make_tuple(T... t) { return std::make_tuple(t...); }
template <class T, class N> auto make_tensor(N) { return std::vector<T>(N::value); }
template <class T> int make_tensor(T const*, int) { return 0; }
}  // namespace cute

namespace cutlass::gemm {
template <int, class, class> struct MainloopSm90TmaGmmaWarpSpecialized {};
struct KernelTmaWarpSpecializedCooperative {};
}  // namespace cutlass::gemm
namespace cutlass::arch {
struct Sm90 {};
inline void fence_view_async_shared() { ++hopper::epoch; }
inline void wait_on_dependent_grids() {}
}  // namespace cutlass::arch
namespace cutlass {
template <int N> struct PipelineState {
  int number = 0;
  int index() const { return number % N; }
  uint32_t phase() const { return number / N % 2; }
  int count() const { return number; }
  void operator++() { ++number; }
  void advance(int count) { number += count; }
};
// Every block of a cluster waits for the consumers of all.
template <int N> struct PipelineTmaAsync {
  struct SharedStorage { uint64_t full[N], empty[N]; };
  SharedStorage* storage;
  uint32_t bytes;
  using Barrier = arch::ClusterBarrier;
  void init() {
    for (int i = 0; i < N; ++i) Barrier::init(&storage->full[i], 1), Barrier::init(&storage->empty[i], setup.groups * setup.cluster);
  }
  void producer_acquire(PipelineState<N> s) {
    Barrier::wait(&storage->empty[s.index()], s.phase() ^ 1);
    arch::ClusterTransactionBarrier::arrive_and_expect_tx(&storage->full[s.index()], bytes);
  }
  uint64_t* producer_get_barrier(PipelineState<N> s) { return &storage->full[s.index()]; }
  void producer_tail(PipelineState<N>) {}
  void consumer_wait(PipelineState<N> s) { Barrier::wait(&storage->full[s.index()], s.phase()); }
  // One thread of a warp group arrives for all: here once all have come.
  void consumer_release(PipelineState<N> s) {
    hopper::meet(16 + hopper::current->rank * 16 + 8 + hopper::current->index / 128, 128);
    if (hopper::current->index % 128) return;
    for (int rank = 0; rank < setup.cluster; ++rank) Barrier::arrive(&storage->empty[s.index()], rank, true);
  }
};
}  // namespace cutlass

/// Runs a tile's blocks by `main loop`: warp groups, then the warp that loads.
template <class Mainloop, class Params>
void run_main_loop(Params const& params, int m, int n, int l, int first, int count, int cluster_m) {
  auto* const storage = reinterpret_cast<typename Mainloop::PipelineStorage*>(hopper::memory());
  auto& smem = *reinterpret_cast<typename Mainloop::TensorStorage*>(hopper::memory() + 1024);
  typename Mainloop::MainloopPipeline pipeline{storage, params.mainloop.tma_transaction_bytes};
  int const thread = hopper::current->index, rank = hopper::current->rank;
  if (thread == 0) pipeline.init();
  cute::cluster_wait();
  m += rank % cluster_m, n += rank / cluster_m;
  Mainloop main_loop;
  if (thread >= setup.groups * 128) {
    main_loop.load(params.mainloop, pipeline, {}, 0, std::make_tuple(m, n, 0, l), &first, count, 0, rank, smem);
  } else {
    std::vector<float> accumulators(Mainloop::registers());
    main_loop.mma(pipeline, {}, accumulators, count, thread, smem, params.mainloop);
    main_loop.mma_tail(pipeline, {}, count);
    int const lane = thread % 32, warp = thread % 128 / 32;
    for (int i = 0; i < int(accumulators.size()); ++i) {
      int const atom = i / (setup.tile_n / 2), at = i % (setup.tile_n / 2);
      int64_t const row = int64_t(m) * setup.tile_m + (atom * setup.groups + thread / 128) * 64 + warp * 16 + lane / 4 + at / 2 % 2 * 8;
      int64_t const column = int64_t(n) * setup.tile_n + at / 4 * 8 + lane % 4 * 2 + at % 2;
      setup.sums[(l * setup.height + row) * setup.width + column] += accumulators[i];
    }
  }
  cute::cluster_wait();
}

extern "C" {
void set_up(Setup const* given) { setup = *given; }
int32_t ucc_lean_prepare(ucc_lean::Kernel*, ucc_lean::Device* device) { return *device = {132, 132}, 0; }
int32_t ucc_lean_encode(void* map, int type, void* address, int64_t inner, int64_t outer, int64_t batch, int64_t outer_bytes,
                        int64_t batch_bytes, uint32_t box_inner, uint32_t box_outer, int swizzle) {
  cuuint64_t const extents[] = {cuuint64_t(inner), cuuint64_t(outer), cuuint64_t(batch)};
  cuuint64_t const strides[] = {cuuint64_t(outer_bytes), cuuint64_t(batch_bytes)};
  cuuint32_t const box[] = {box_inner, box_outer, 1}, steps[] = {1, 1, 1};
  return hopper::encode(map, type, 3, address, extents, strides, box, steps, 0, swizzle, 0, 0);
}
int32_t ucc_lean_encode_two(void* map, int type, void* address, int64_t inner, int64_t outer, int64_t batch, int64_t second,
                            int64_t outer_bytes, int64_t batch_bytes, int64_t second_bytes, uint32_t box_inner,
                            uint32_t box_outer, int swizzle) {
  cuuint64_t const extents[] = {cuuint64_t(inner), cuuint64_t(outer), cuuint64_t(batch), cuuint64_t(second)};
  cuuint64_t const strides[] = {cuuint64_t(outer_bytes), cuuint64_t(batch_bytes), cuuint64_t(second_bytes)};
  cuuint32_t const box[] = {box_inner, box_outer, 1, 1}, steps[] = {1, 1, 1, 1};
  return hopper::encode(map, type, 4, address, extents, strides, box, steps, 0, swizzle, 0, 0);
}
static int64_t tiles_k;
static uint32_t* locks;
static int lock_count;
void ucc_lean_persistent(ucc_lean::Problem const& problem, void*, size_t, uint32_t* grid) {
  tiles_k = problem.tiles_k;
  grid[0] = problem.cluster[0], grid[1] = problem.cluster[1];
}
uint64_t ucc_lean_stream_k_bytes(ucc_lean::Problem const&) { return 4 * 300; }
int32_t ucc_lean_stream_k_locks(ucc_lean::Problem const& problem, void* scheduler, size_t size, uint32_t* grid, void* workspace,
                                uint32_t** given) {
  ucc_lean_persistent(problem, scheduler, size, grid);
  *given = locks = static_cast<uint32_t*>(workspace);
  return lock_count = 300;
}
int32_t ucc_lean_launch(ucc_lean::Kernel*, uint32_t const* grid, void* params, void*) {
  hopper::threads = setup.groups * 128 + 32;
  for (int i = 0; i < lock_count; ++i) if (locks[i] != 0) hopper::fail("a lock is not 0");
  int64_t const height = setup.height / setup.tile_m, width = setup.width / setup.tile_n;
  for (int l = 0; l < setup.batch; ++l) for (int m = 0; m < height; m += grid[0]) for (int n = 0; n < width; n += grid[1]) {
    for (int part = 0; part < setup.parts; ++part) {
      int const first = int(part * tiles_k / setup.parts), end = int((part + 1) * tiles_k / setup.parts);
      hopper::body = [&] { run_block(params, m, n, l, first, end - first); };
      hopper::run_cluster(setup.cluster, 0, 1 << 18);
    }
  }
  return 0;
}
int32_t ucc_lean_overlapping(ucc_lean::Kernel*, char const* name, void**, int64_t blocks, int64_t batches, void* params, void*) {
  hopper::threads = 256;
  for (unsigned y = 0; y < batches; ++y) {
    hopper::body = [&] { blockIdx.y = hopper::current->block.y = y; run_split(name, params); };
    for (int64_t x = 0; x < blocks; ++x) hopper::run_cluster(1, unsigned(x), 0);
  }
  return 0;
}
int32_t ucc_lean_beside(ucc_lean::Kernel*, char const* name, void**, int columns, int64_t extent, int64_t batches, void* params, void* stream) {
  return ucc_lean_overlapping(nullptr, name, nullptr, extent / columns, batches, params, stream);
}
}
