// Runs Hopper kernels of plain code on the host: thread blocks of a cluster as fibers, TMA, mbarriers and wgmma as
// the PTX manual describes them (swizzles by address, matrix descriptors, fragments). What it cannot show: what is
// still under way, since copies and multiplications are done when they are asked for.
// Longer bodies stand in `hopper_once.h`, which is compiled once for all kernels.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <cuda.h>
#include <cuda_runtime.h>

#include "alignment.h"
#include "fiber.h"
inline uint3 blockIdx; inline dim3 blockDim, gridDim;
namespace hopper {
[[noreturn]] inline void fail(char const* what) { fprintf(stderr, "%s\n", what); abort(); }
struct Fiber { fiber::Context context; std::unique_ptr<char[]> stack; uint3 tid, block; int index, rank; bool done; };
constexpr size_t kStack = 1 << 17;  // bytes of a thread
inline fiber::Context scheduler; inline std::vector<Fiber> fibers; inline Fiber* current; inline int threads;
inline std::vector<std::vector<uint8_t>> memories; inline uint64_t changes, epoch;
inline std::function<void()> body;
inline uint8_t* shared(int rank) { return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memories[rank].data()) + 1023) / 1024 * 1024); }
inline char* memory() { return reinterpret_cast<char*>(shared(current->rank)); }
inline uint32_t offset(void const* p) { return uint32_t(static_cast<uint8_t const*>(p) - shared(current->rank)); }
inline void yield() { fiber::exchange(current->context, scheduler); }
// Barriers among so many threads, by what they share.
struct Meeting { int arrived = 0; uint64_t round = 0; };
inline std::vector<Meeting> meetings(1 << 12);
void meet(int key, int count);
inline int warp_key() { return 1024 + (current->rank * threads + current->index) / 32; }
inline uint64_t exchanged[2048][32];
/// Every lane's value, for all lanes of a warp.
template <class T> void gather(T value, T (&all)[32]) {
  int const warp = (current->rank * threads + current->index) / 32, lane = current->index % 32;
  memcpy(&exchanged[warp][lane], &value, sizeof(T)); meet(warp_key(), 32);
  for (int i = 0; i < 32; ++i) memcpy(&all[i], &exchanged[warp][i], sizeof(T));
  meet(warp_key(), 32);
}
// --- mbarriers
struct Barrier { int32_t tx; uint16_t pending; uint8_t count, phase; };
static_assert(sizeof(Barrier) == 8);
inline void settle(Barrier& b) { ++changes; if (b.pending == 0 && b.tx == 0) { b.phase ^= 1; b.pending = b.count; } }
inline Barrier& at(void const* p, int rank) { return *reinterpret_cast<Barrier*>(shared(rank) + offset(p)); }
// --- TMA
struct Map { int type, size; uint8_t* address; uint64_t extent[4], stride[4]; uint32_t box[2]; int swizzle; };
inline uint32_t swizzled(uint32_t a, int code) { return a ^ ((a >> 3) & (code == 3 ? 0x70 : code == 2 ? 0x30 : code == 1 ? 0x10 : 0)); }
inline uint32_t tf32(uint32_t bits) { return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu; }
void box(Map const& m, uint32_t to, int rank, int const (&c)[4], bool load);
inline Map const& map(void const* d) { return *static_cast<Map const*>(d); }
void load(void const* d, void const* barrier, uint32_t mask, void* smem, int x, int y, int z, int w = 0);
CUresult encode(void* map, int type, cuuint32_t rank, void* address, cuuint64_t const* extents, cuuint64_t const* strides,
                       cuuint32_t const* box, cuuint32_t const*, int, int swizzle, int, int);
// --- wgmma
enum class Lane { f16, bf16, tf32, e4m3, e5m2, s8, u8 };
double element(uint8_t const* p, Lane lane);
inline int bytes(Lane lane) { return lane == Lane::tf32 ? 4 : lane == Lane::f16 || lane == Lane::bf16 ? 2 : 1; }
struct Decoded { uint64_t key = 0, when = 0; int rank = -1, rows = 0; std::vector<double> value; };
/// rows x k of the matrix of a descriptor.
std::vector<double> const& decode(uint64_t d, int rows, int k, Lane lane, bool across);
template <class A>
void multiply(A* d, double const (&rows)[2][32], std::vector<double> const& b, int n, int k, int keeps) {
  int const lane = current->index % 32;
  for (int j = 0; j < n / 8; ++j) for (int i = 0; i < 2; ++i) for (int e = 0; e < 2; ++e) {
    double sum = keeps ? double(d[j * 4 + i * 2 + e]) : 0.0;
    for (int x = 0; x < k; ++x) sum += rows[i][x] * b[(j * 8 + lane % 4 * 2 + e) * k + x];
    d[j * 4 + i * 2 + e] = A(sum);
  }
}
template <class A>
void wgmma(A* d, uint64_t a, uint64_t b, int keeps, int n, Lane lane, bool across_a, bool across_b) {
  int const k = 32 / bytes(lane), row = current->index % 128 / 32 * 16 + current->index % 32 / 4;
  auto const va = decode(a, 64, k, lane, across_a);
  double rows[2][32];
  for (int i = 0; i < 2; ++i) for (int x = 0; x < k; ++x) rows[i][x] = va[(row + 8 * i) * k + x];
  multiply(d, rows, decode(b, n, k, lane, across_b), n, k, keeps);
}
template <class A>
void wgmma(A* d, uint32_t const* a, uint64_t b, int keeps, int n, Lane lane, bool, bool across_b) {
  double rows[2][32];
  if (lane == Lane::tf32) {
    for (int r = 0; r < 4; ++r) {
      uint32_t all[32]; gather(a[r], all);
      for (int q = 0; q < 4; ++q) rows[r % 2][r / 2 * 4 + q] = element(reinterpret_cast<uint8_t const*>(&all[current->index % 32 / 4 * 4 + q]), lane);
    }
    multiply(d, rows, decode(b, n, 8, lane, across_b), n, 8, keeps);
    return meet(warp_key(), 32);  // no lane releases what others still read
  }
  for (int r = 0; r < 4; ++r) {
    uint32_t all[32]; gather(a[r], all);
    for (int q = 0; q < 4; ++q) for (int e = 0; e < 2; ++e) {
      uint16_t const h = uint16_t(all[current->index % 32 / 4 * 4 + q] >> (16 * e));
      rows[r % 2][r / 2 * 8 + q * 2 + e] = element(reinterpret_cast<uint8_t const*>(&h), lane);
    }
  }
  multiply(d, rows, decode(b, n, 16, lane, across_b), n, 16, keeps);
  meet(warp_key(), 32);  // no lane releases what others still read
}
void stmatrix(bool across, uint32_t to, uint32_t const (&r)[4]);
template <class... T> void get(uint32_t from, T&... x) { if (from % (0 + ... + sizeof x)) fail("ld.shared address"); uint8_t const* p = shared(current->rank) + from; ((memcpy(&x, p, sizeof x), p += sizeof x), ...); }
template <class... T> void put(uint32_t to, T... x) { if (to % (0 + ... + sizeof x)) fail("st.shared address"); uint8_t* p = shared(current->rank) + to; ((memcpy(p, &x, sizeof x), p += sizeof x), ...); }
inline uint4 get_from(uint32_t from, int rank) { uint4 v; if (from % 16) fail("ld.shared::cluster address"); memcpy(&v, shared(rank) + from, 16); return v; }
template <class T> T shuffle(T v, int from) { T all[32]; gather(v, all); return all[from & 31]; }
template <class T> T shuffle_up(T v, int by) { T all[32]; gather(v, all); int const lane = current->index % 32; return all[lane < by ? lane : lane - by]; }
inline unsigned ballot(bool v) { int all[32]; gather(int(v), all); unsigned bits = 0; for (int i = 0; i < 32; ++i) bits |= unsigned(all[i] != 0) << i; return bits; }
// --- launch
inline void start() { body(); current->done = true; ++changes; fiber::exchange(current->context, scheduler); }
void run_cluster(int size, unsigned first, size_t bytes);
template <class... E, class... A>
cudaError_t launch(cudaLaunchConfig_t const* c, void (*kernel)(E...), A const&... args) {
  gridDim = c->gridDim; blockDim = c->blockDim; threads = int(blockDim.x);
  int const size = c->numAttrs ? int(c->attrs[0].val.clusterDim.x) : 1;
  body = [&] { kernel(args...); };
  for (unsigned x = 0; x < gridDim.x; x += size) run_cluster(size, x, c->dynamicSmemBytes);
  return cudaSuccess;
}
template <class K> cudaError_t occupancy(int* clusters, K, cudaLaunchConfig_t const*) { *clusters = 3; return cudaSuccess; }
}  // namespace hopper
inline void emulated_fault(cudaError_t) { abort(); }
inline bool emulated_local(uintptr_t address) { return hopper::current != nullptr && address - uintptr_t(hopper::current->stack.get()) < hopper::kStack; }
#ifdef EMULATED_ONCE
#include "hopper_once.h"
#endif

namespace ucc_tma {
struct Encoder { cudaError_t error = cudaSuccess; CUresult (*encode)(void*, int, cuuint32_t, void*, cuuint64_t const*, cuuint64_t const*, cuuint32_t const*, cuuint32_t const*, int, int, int, int) = hopper::encode; };
inline Encoder const& encoder() { static Encoder const found; return found; }
}  // namespace ucc_tma

namespace cute {
struct alignas(64) TmaDescriptor { uint64_t words[16]; };
namespace TMA { enum class CacheHintSm90 : uint64_t { EVICT_NORMAL = 0 }; }
inline uint32_t block_rank_in_cluster() { return hopper::current->rank; }
inline void cluster_arrive_relaxed() {}
inline void cluster_arrive() {}
inline void cluster_wait() { hopper::meet(1, int(hopper::fibers.size())); }
inline bool elect_one_sync() { return hopper::current->index % 32 == 0; }
inline void prefetch_tma_descriptor(TmaDescriptor const*) {}
inline uint32_t cast_smem_ptr_to_uint(void const* p) { return hopper::offset(p); }
inline void tma_store_fence() {}
inline void tma_store_arrive() {}
template <int N> void tma_store_wait() {}
struct SM90_TMA_LOAD_3D { static void copy(void const* d, uint64_t* b, uint64_t, void* s, int x, int y, int z) { hopper::load(d, b, 1u << hopper::current->rank, s, x, y, z); } };
struct SM90_TMA_LOAD_4D { static void copy(void const* d, uint64_t* b, uint64_t, void* s, int x, int y, int z, int w) { hopper::load(d, b, 1u << hopper::current->rank, s, x, y, z, w); } };
struct SM90_TMA_LOAD_MULTICAST_4D { static void copy(void const* d, uint64_t* b, uint16_t mask, uint64_t, void* s, int x, int y, int z, int w) { hopper::load(d, b, mask, s, x, y, z, w); } };
struct SM90_TMA_LOAD_MULTICAST_3D { static void copy(void const* d, uint64_t* b, uint16_t mask, uint64_t, void* s, int x, int y, int z) { hopper::load(d, b, mask, s, x, y, z); } };
struct SM90_TMA_STORE_3D { static void copy(void const* d, void const* s, int x, int y, int z) { int const c[4] = {x, y, z, 0}; hopper::box(hopper::map(d), hopper::offset(s), hopper::current->rank, c, false); } };
}  // namespace cute
namespace cutlass::arch {
struct ClusterBarrier {
  using ValueType = uint64_t;
  static void init(uint64_t const* p, int count) { hopper::at(p, hopper::current->rank) = {0, uint16_t(count), uint8_t(count), 0}; }
  static void wait(uint64_t const* p, uint32_t parity) { while (hopper::at(p, hopper::current->rank).phase == parity) hopper::yield(); }
  static void arrive(uint64_t const* p) { arrive(p, hopper::current->rank, true); }
  static void arrive(uint64_t const* p, uint32_t rank, bool pred) { if (pred) { auto& b = hopper::at(p, rank); --b.pending; hopper::settle(b); } }
};
struct ClusterTransactionBarrier { static void arrive_and_expect_tx(uint64_t const* p, uint32_t bytes) { auto& b = hopper::at(p, hopper::current->rank); b.tx += bytes; --b.pending; hopper::settle(b); } };
struct NamedBarrier { static void sync(uint32_t count, uint32_t id) { hopper::meet(16 + hopper::current->rank * 16 + id, count); } };
inline void fence_barrier_init() {}
template <int> void warpgroup_reg_alloc() {}
template <int> void warpgroup_reg_dealloc() {}
}  // namespace cutlass::arch
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __grid_constant__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define threadIdx (hopper::current->tid)
#define __syncwarp() hopper::meet(hopper::warp_key(), 32)
#define __syncthreads() hopper::meet(2 + hopper::current->rank, hopper::threads)
#define __shfl_sync(mask, v, from) hopper::shuffle(v, from)
#define __shfl_up_sync(mask, v, by) hopper::shuffle_up(v, by)
#define __ballot_sync(mask, v) hopper::ballot(v)
#define __ffs(x) __builtin_ffs(x)
#define cudaLaunchKernelEx hopper::launch
#define cudaOccupancyMaxActiveClusters hopper::occupancy
#define cudaFuncSetAttribute(...) cudaSuccess
#define cudaGetDevice(...) cudaSuccess
#define cudaGetLastError() cudaSuccess
using std::min; using std::max;
inline float __uint_as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
inline uint32_t __float_as_uint(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
