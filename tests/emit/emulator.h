// Runs CUDA thread blocks on the host: every thread is a fiber, warp instructions are executed by
// the last lane that arrives, cp.async copies when it is waited for. Shared memory begins as NaN. An access that is
// not aligned to its type ends the launch with cudaErrorMisalignedAddress, as it does on a GPU: g++ checks them all
// (-fsanitize=alignment), cp.async and ldmatrix are checked here.
// Fragment layouts are those of the PTX manual (mma.m16n8k8, k16, k32 and ldmatrix).
// Bodies stand in `emulator_once.h`: g++ would write them, and the templates that they use, again for every kernel.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <math.h>
#include <memory>
#include <string>
#include <tuple>
#include <vector>
#include <array>
#include <map>
#include <cuda.h>
#include <cuda_runtime.h>
#include "fiber.h"

#ifdef EMULATOR_THREADS  // blocks run side by side, on so many threads of the host
#include <random>
#include <thread>
#define EMULATED_LOCAL thread_local
#else
#define EMULATED_LOCAL
#endif

inline EMULATED_LOCAL uint3 blockIdx; inline dim3 blockDim, gridDim;
namespace emu {
enum class Op { ldmatrix, ldmatrix_trans, mma, shuffle_xor, shuffle_up, shuffle_from };
struct Request { Op op; char const* name; void const* in[16]; void* out[4]; int distance; int width = 32; };
// What a thread has asked for and not waited for, by groups, the oldest first.
struct Groups { std::deque<std::vector<std::function<void()>>> closed; std::vector<std::function<void()>> open; };
struct Fiber {
  fiber::Context context; std::unique_ptr<char[]> stack; uint3 tid; int index; bool done = false, ready = true; int64_t waiting = 0;  // the number of a wait
  Request* request = nullptr;
  Groups copies, products; std::vector<std::function<void()>> stores;
  Fiber(); Fiber(Fiber&&) noexcept; Fiber& operator=(Fiber&&) noexcept; ~Fiber();
};
}  // namespace emu
#ifndef EMULATOR_THREADS  // what follows is compiled once, as the bodies are
#ifdef EMULATED_ONCE
#define EXTERN
#else
#define EXTERN extern
#endif
EXTERN template class std::vector<std::function<void()>>;
EXTERN template class std::deque<std::vector<std::function<void()>>>;
EXTERN template class std::vector<uint8_t>;
EXTERN template class std::vector<int>;
#undef EXTERN
#endif
namespace emu {
constexpr size_t kStack = 1 << 18;  // bytes of a thread
inline EMULATED_LOCAL fiber::Context scheduler; inline EMULATED_LOCAL std::vector<Fiber> fibers; inline EMULATED_LOCAL Fiber* current;
inline EMULATED_LOCAL std::vector<uint8_t> memory; inline EMULATED_LOCAL int at_barrier, ended;
inline EMULATED_LOCAL unsigned long blocks = 0;
inline std::function<void()> body;
inline EMULATED_LOCAL std::vector<int> arrived;
uint8_t* shared();
inline std::atomic<cudaError_t> failure{cudaSuccess};
/// Ends the launch with an error: its fibers are not resumed.
[[noreturn]] void fault(cudaError_t error);
/// What is stored as in global memory must not lie in shared memory.
void check_global(void const* target);
void yield();
void barrier();
struct Named { int arrived = 0, generation = 0; };
inline EMULATED_LOCAL std::array<Named, 16> named_barriers;
int arrive_named(int id, int count);
void sync_named(int id, int count);
float half_bits(uint16_t h);
float bf16_bits(uint16_t h);
uint16_t to_half(float f);
void execute(Fiber* lanes);
void execute_mma(Fiber* lanes);
void collective(Request& request);
template <class... O, class... I>
void mma(char const* name, std::tuple<O&...> out, std::tuple<I const&...> in) {
  Request r{Op::mma, name};
  int i = 0; std::apply([&](auto&... o) { ((r.out[i++] = &o), ...); }, out);
  i = 0; std::apply([&](auto const&... o) { ((r.in[i++] = &o), ...); }, in);
  collective(r);
}
void ldmatrix(bool trans, void const* row, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d);
uint64_t shuffle_bits(Op op, uint64_t value, int distance, int width);
template <class T> T shuffle(Op op, T value, int distance, int width = 32) {
  uint64_t bits = 0; memcpy(&bits, &value, sizeof(T));
  bits = shuffle_bits(op, bits, distance, width);
  memcpy(&value, &bits, sizeof(T)); return value;
}
template <int kBytes> void copy_async(void* target, void const* source, int valid) {
  if (valid < 0 || valid > kBytes) { fprintf(stderr, "cp.async: %d bytes of %d\n", valid, kBytes); abort(); }
  // Also where nothing is read: the instruction needs an aligned source.
  if (uintptr_t(target) % kBytes || uintptr_t(source) % kBytes) {
    fprintf(stderr, "cp.async of %d bytes from %p to %p\n", kBytes, source, target);
    fault(cudaErrorMisalignedAddress);
  }
  uint8_t* t = static_cast<uint8_t*>(target);
  if (t < shared() || t + kBytes > shared() + memory.size() - 1024) { fprintf(stderr, "cp.async target\n"); abort(); }
  current->copies.open.push_back([=] { memset(target, 0, kBytes); if (valid) memcpy(target, source, valid); });
}
void close(Groups& groups);
void wait(Groups& groups, int left);
inline void fence() { close(current->copies); }
inline void wait(int left) { wait(current->copies, left); }
// mbarriers, by their addresses. A bulk copy happens as late as it may: when someone waits for its barrier.
inline EMULATED_LOCAL int64_t idle = 0;  // waits since anything happened
void spin();
void init_barrier(void const* barrier, int arrivals);
void arrive(void const* barrier, int64_t bytes);
void complete_bytes(void const* barrier, int64_t bytes);
uint32_t phase_of(void const* barrier);
void wait_for_copies(void const* barrier, uint32_t parity);
void copy_later(void const* barrier, int bytes, std::function<void()> copy);
// A TMA descriptor: what cuTensorMapEncodeTiled was given, kept in the map itself.
struct TensorMap { uint8_t* data; int64_t sizes[5], strides[5]; int32_t rank, rows, bytes; bool tf32; };  // bytes of an element
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap), "it lies in a map");
struct Box {
  TensorMap map; int64_t from[5]; int rows;
  // The element in column c and row r, null outside the tensor.
  uint8_t* at(int c, int r) const {
    int64_t place = 0;
    for (int i = 0; i < map.rank; ++i) {
      int64_t const x = from[i] + (i == 0 ? c : i == 1 ? r : 0);
      if (x < 0 || x >= map.sizes[i]) return nullptr;
      place += x * map.strides[i];
    }
    return map.data + place;
  }
};
CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, cuuint64_t const* sizes, cuuint64_t const* bytes,
                       cuuint32_t const* box, cuuint32_t const*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
Box box_of(CUtensorMap const& map, std::initializer_list<int> from);
void start();
// A variable in shared memory that a cluster's blocks have each of their own, and what tells the block that it is of.
struct Variable { uint8_t* data; size_t size; unsigned long* block; };
inline std::vector<Variable> variables;
void register_variable(Variable variable);
// A variable in shared memory begins every block as NaN: the first thread that comes to it writes that.
template <class T> void begin(T& variable, unsigned long& block) {
  if (block == blocks) return;
  register_variable({reinterpret_cast<uint8_t*>(&variable), sizeof(T), &block});
  block = blocks; memset(static_cast<void*>(&variable), 0xff, sizeof(T));
}
void begin_block(int threads);
/// Runs the block's threads until none of them goes on. False where none did: all of them wait.
bool run_threads();
void end_block();
void run_block(int threads);
// The blocks of a cluster take turns: one runs until all of its threads have ended or wait for the others'.
struct Block {
  struct Copy { std::vector<uint8_t> bytes; unsigned long block = 0; };
  std::vector<Fiber> fibers; std::vector<uint8_t> memory; std::vector<int> arrived; int at_barrier = 0, ended = 0;
  std::vector<Copy> copies; unsigned long blocks = 0;  // of `variables`, while another block runs
  Block(); Block(Block&&) noexcept; Block& operator=(Block&&) noexcept; ~Block();
  void exchange();
  Copy& copy(size_t variable);
};
inline std::vector<Block> cluster; inline int rank_in_cluster = 0, at_cluster_barrier = 0;
void wait_for_cluster();
/// The place in another block's shared memory of what lies at this place in this block's.
void* of_rank(void const* place, int rank);
/// Runs the blocks of a cluster, of which `at` gives the place by the rank.
void run_cluster(std::function<uint3(unsigned)> const& at, int size, int threads, size_t bytes);
cudaError_t run_clusters(cudaLaunchConfig_t const* c, int size);
/// The same where a launch's attribute has a cluster of so many blocks, all that there are along y.
cudaError_t run_columns(cudaLaunchConfig_t const* c, int size);
cudaError_t run_blocks(cudaLaunchConfig_t const* c);
template <int kSize, class... E, class... A>
cudaError_t launch_clusters(cudaLaunchConfig_t const* c, void (*kernel)(E...), A const&... args) {
  body = [&] { kernel(args...); };
  return run_clusters(c, kSize);
}
template <class... E, class... A>
cudaError_t launch(cudaLaunchConfig_t const* c, void (*kernel)(E...), A const&... args) {
  body = [&] { kernel(args...); };
  return run_blocks(c);
}
}  // namespace emu
#include "alignment.h"
#if defined(EMULATED_ONCE) || defined(EMULATOR_THREADS)
#include "emulator_once.h"
#endif
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __grid_constant__
#undef __launch_bounds__
#undef __cluster_dims__
#define __global__
#define __device__
#define __host__
#define __shared__ static EMULATED_LOCAL
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __cluster_barrier_arrive()
#define __cluster_barrier_wait emu::wait_for_cluster
#define __cluster_map_shared_rank emu::of_rank
#define __clusterRelativeBlockRank() unsigned(emu::rank_in_cluster)
#define __syncwarp() ((void)emu::shuffle(emu::Op::shuffle_from, 0, 0))
#define threadIdx (emu::current->tid)
#define __syncthreads emu::barrier
inline uint32_t atomicMax(uint32_t* to, uint32_t x) { uint32_t const before = *to; *to = std::max(before, x); return before; }
inline uint32_t atomicMin(uint32_t* to, uint32_t x) { uint32_t const before = *to; *to = std::min(before, x); return before; }
#define __shfl_xor_sync(mask, v, ...) emu::shuffle(emu::Op::shuffle_xor, v, __VA_ARGS__)
#define __shfl_up_sync(mask, v, ...) emu::shuffle(emu::Op::shuffle_up, v, __VA_ARGS__)
#define __shfl_sync(mask, v, ...) emu::shuffle(emu::Op::shuffle_from, v, __VA_ARGS__)
// Of an aligned group of lanes.
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t v) {
  for (int distance = 1; distance < __builtin_popcount(mask); distance *= 2) v = std::max(v, uint32_t(__shfl_xor_sync(mask, v, distance)));
  return v;
}
#define __any_sync(mask, v) any_of(v)
#define __cvta_generic_to_shared(p) (p)
#define cudaDeviceGetAttribute(value, ...) (*(value) = 3, cudaSuccess)
#define cudaGetDriverEntryPointByVersion(name, address, version, flags, found) \
  (*(address) = reinterpret_cast<void*>(&emu::encode), *(found) = cudaDriverEntryPointSuccess, cudaSuccess)
#define cudaLaunchKernelEx emu::launch
#define cudaMemsetAsync(to, value, bytes, stream) (memset(to, value, bytes), cudaSuccess)
#define cudaFuncSetAttribute(...) cudaSuccess
#define cudaGetDevice(device) (*(device) = 0, cudaSuccess)
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, ...) (*(blocks) = 1, cudaSuccess)
#define cudaOccupancyMaxActiveClusters(clusters, ...) (*(clusters) = 2, cudaSuccess)
#define cudaGetLastError() cudaSuccess
template <class T> T __ldg(T const* p) { return *p; }
template <class T> T __ldcg(T const* p) { return *p; }
using std::min; using std::max;

inline int __dp4a(int a, int b, int c) { for (int i = 0; i < 4; ++i) c += int(int8_t(a >> (8 * i))) * int(int8_t(b >> (8 * i))); return c; }
inline float __uint_as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
inline uint32_t __float_as_uint(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
