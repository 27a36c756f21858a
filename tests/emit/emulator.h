// Runs CUDA thread blocks on the host: every thread is a fiber, warp instructions are executed by
// the last lane that arrives, cp.async copies when it is waited for. Shared memory begins as NaN. An access that is
// not aligned to its type ends the launch with cudaErrorMisalignedAddress, as it does on a GPU: g++ checks them all
// (-fsanitize=alignment), cp.async and ldmatrix are checked here.
// Fragment layouts are those of the PTX manual (mma.m16n8k8, k16, k32 and ldmatrix).
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
#include "once.h"

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
struct Fiber {
  fiber::Context context; std::unique_ptr<char[]> stack; uint3 tid; int index; bool done = false, ready = true; int64_t waiting = 0;  // the number of a wait
  Request* request = nullptr;
  std::deque<std::vector<std::function<void()>>> groups; std::vector<std::function<void()>> open;
  Fiber(); Fiber(Fiber&&) noexcept; Fiber& operator=(Fiber&&) noexcept; ~Fiber();
};
}  // namespace emu
#if !defined(EMULATED_ONCE) && !defined(EMULATOR_THREADS)
extern template class std::vector<std::function<void()>>;
extern template class std::deque<std::vector<std::function<void()>>>;
extern template class std::vector<uint8_t>;
extern template class std::vector<int>;
#elif defined(EMULATED_ONCE)
template class std::vector<std::function<void()>>;
template class std::deque<std::vector<std::function<void()>>>;
template class std::vector<uint8_t>;
template class std::vector<int>;
#endif
namespace emu {
EMULATED Fiber::Fiber() = default;
EMULATED Fiber::Fiber(Fiber&&) noexcept = default;
EMULATED Fiber& Fiber::operator=(Fiber&&) noexcept = default;
EMULATED Fiber::~Fiber() = default;
constexpr size_t kStack = 1 << 18;  // bytes of a thread
inline EMULATED_LOCAL fiber::Context scheduler; inline EMULATED_LOCAL std::vector<Fiber> fibers; inline EMULATED_LOCAL Fiber* current;
inline EMULATED_LOCAL std::vector<uint8_t> memory; inline EMULATED_LOCAL int at_barrier, ended;
inline EMULATED_LOCAL unsigned long blocks = 0;
inline std::function<void()> body;
inline EMULATED_LOCAL std::vector<int> arrived;
EMULATED uint8_t* shared() { return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 1023) / 1024 * 1024); }
inline std::atomic<cudaError_t> failure{cudaSuccess};
/// Ends the launch with an error: its fibers are not resumed.
[[noreturn]] EMULATED void fault(cudaError_t error) {
#ifndef EMULATOR_THREADS  // else blocks that wait for this one would wait forever
  if (current != nullptr) {
    failure = error;
    fiber::exchange(current->context, scheduler);
  }
#endif
  abort();
}
/// What is stored as in global memory must not lie in shared memory.
EMULATED void check_global(void const* target) {
  auto const* const at = static_cast<uint8_t const*>(target);
  if (at >= shared() && at < memory.data() + memory.size()) { fprintf(stderr, "global store to shared memory\n"); fault(cudaErrorInvalidAddressSpace); }
}
EMULATED void yield() { fiber::exchange(current->context, scheduler); }
EMULATED void barrier() {
  if (++at_barrier == int(fibers.size()) - ended) { at_barrier = 0; for (auto& f : fibers) f.ready = true; return; }
  current->ready = false; yield();
}
EMULATED float half_bits(uint16_t h) { return float(cutlass::half_t::bitcast(h)); }
EMULATED float bf16_bits(uint16_t h) { uint32_t b = uint32_t(h) << 16; float f; memcpy(&f, &b, 4); return f; }
EMULATED uint16_t to_half(float f) { return cutlass::half_t(f).raw(); }
EMULATED void execute_mma(Fiber* lanes);
EMULATED void execute(Fiber* lanes) {
  Request& r = *lanes[0].request;
  for (int i = 1; i < 32; ++i) if (lanes[i].request->op != r.op || lanes[i].request->name != r.name) { fprintf(stderr, "diverged warp\n"); abort(); }
  switch (r.op) {
    case Op::ldmatrix: case Op::ldmatrix_trans: {
      uint16_t m[4][8][8];
      for (int i = 0; i < 32; ++i) {
        uint8_t const* row = static_cast<uint8_t const*>(lanes[i].request->in[0]);
        if (row < shared() || row + 16 > shared() + memory.size() - 1024 || (row - shared()) % 16) { fprintf(stderr, "ldmatrix address\n"); fault(cudaErrorMisalignedAddress); }
        memcpy(m[i / 8][i % 8], row, 16);
      }
      for (int i = 0; i < 32; ++i) for (int j = 0; j < 4; ++j) {
        int a = i / 4, b = 2 * (i % 4);
        uint32_t lo = r.op == Op::ldmatrix ? m[j][a][b] : m[j][b][a], hi = r.op == Op::ldmatrix ? m[j][a][b + 1] : m[j][b + 1][a];
        *static_cast<uint32_t*>(lanes[i].request->out[j]) = lo | hi << 16;
      }
      break;
    }
    case Op::shuffle_xor: case Op::shuffle_up: case Op::shuffle_from: {
      uint64_t v[32];
      for (int i = 0; i < 32; ++i) memcpy(&v[i], lanes[i].request->in[0], 8);
      for (int i = 0; i < 32; ++i) {
        int const d = lanes[i].request->distance, width = lanes[i].request->width, first = i / width * width;
        int const from = r.op == Op::shuffle_xor ? i ^ d : r.op == Op::shuffle_up ? (i - d >= first ? i - d : i) : first + d % width;
        if (from / width != i / width) { fprintf(stderr, "shuffle across widths\n"); abort(); }
        memcpy(lanes[i].request->out[0], &v[from], 8);
      }
      break;
    }
    case Op::mma: execute_mma(lanes);
  }
}
EMULATED void execute_mma(Fiber* lanes) {
  Request& r0 = *lanes[0].request;
  std::string const name = r0.name;
  auto word = [&](int lane, int i) { return *static_cast<uint32_t const*>(lanes[lane].request->in[i]); };
  bool const k32 = name.find("m16n8k32") != std::string::npos, k8 = name.find("m16n8k8") != std::string::npos;
  int const K = k32 ? 32 : k8 ? 8 : 16;
  auto tf = [](uint32_t w) { w &= 0xffffe000u; float f; memcpy(&f, &w, 4); return f; };
  auto value = [&](uint32_t w, int e) -> double {
    if (k32) return double(int8_t(w >> (8 * e)));
    if (k8) return double(tf(w));
    uint16_t h = uint16_t(w >> (16 * e));
    return name.find("bf16") != std::string::npos ? bf16_bits(h) : half_bits(h);
  };
  int const per = k32 ? 4 : k8 ? 1 : 2;
  double A[16][32], B[8][32], C[16][8];
  for (int l = 0; l < 32; ++l) {
    int g = l / 4, t = l % 4;
    for (int i = 0; i < 4; ++i) for (int e = 0; e < per; ++e) A[g + 8 * (i % 2)][t * per + e + (i / 2) * per * 4] = value(word(l, i), e);
    for (int i = 0; i < 2; ++i) for (int e = 0; e < per; ++e) B[g][t * per + e + i * per * 4] = value(word(l, 4 + i), e);
    bool const h = name.find(".f16.f16.f16.f16") != std::string::npos;
    for (int i = 0; i < 4; ++i) {
      double c;
      if (h) c = half_bits(uint16_t(word(l, 6 + i / 2) >> (16 * (i % 2))));
      else if (k32) c = double(int32_t(word(l, 6 + i)));
      else { float f; uint32_t w = word(l, 6 + i); memcpy(&f, &w, 4); c = f; }
      C[g + 8 * (i / 2)][2 * t + i % 2] = c;
    }
  }
  for (int m = 0; m < 16; ++m) for (int n = 0; n < 8; ++n) for (int k = 0; k < K; ++k) C[m][n] += A[m][k] * B[n][k];
  for (int l = 0; l < 32; ++l) {
    int g = l / 4, t = l % 4;
    bool const h = name.find(".f16.f16.f16.f16") != std::string::npos;
    for (int i = 0; i < (h ? 2 : 4); ++i) {
      uint32_t w;
      if (h) w = to_half(float(C[g + 8 * i][2 * t])) | uint32_t(to_half(float(C[g + 8 * i][2 * t + 1]))) << 16;
      else if (k32) w = uint32_t(int32_t(int64_t(C[g + 8 * (i / 2)][2 * t + i % 2])));
      else { float f = float(C[g + 8 * (i / 2)][2 * t + i % 2]); memcpy(&w, &f, 4); }
      memcpy(lanes[l].request->out[i], &w, 4);
    }
  }
}
EMULATED void collective(Request& request) {
  current->request = &request;
  int const warp = current->index / 32;
  if (++arrived[warp] == 32) {
    execute(&fibers[warp * 32]); arrived[warp] = 0;
    for (int i = 0; i < 32; ++i) fibers[warp * 32 + i].ready = true;
    return;
  }
  current->ready = false; yield();
}
template <class... O, class... I>
void mma(char const* name, std::tuple<O&...> out, std::tuple<I const&...> in) {
  Request r{Op::mma, name};
  int i = 0; std::apply([&](auto&... o) { ((r.out[i++] = &o), ...); }, out);
  i = 0; std::apply([&](auto const&... o) { ((r.in[i++] = &o), ...); }, in);
  collective(r);
}
EMULATED void ldmatrix(bool trans, void const* row, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  Request r{trans ? Op::ldmatrix_trans : Op::ldmatrix, ""};
  r.in[0] = row; r.out[0] = &a; r.out[1] = &b; r.out[2] = &c; r.out[3] = &d;
  collective(r);
}
template <class T> T shuffle(Op op, T value, int distance, int width = 32) {
  uint64_t in = 0, out = 0; memcpy(&in, &value, sizeof(T));
  Request r{op, ""}; r.in[0] = &in; r.out[0] = &out; r.distance = distance; r.width = width;
  collective(r);
  memcpy(&value, &out, sizeof(T)); return value;
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
  current->open.push_back([=] { memset(target, 0, kBytes); if (valid) memcpy(target, source, valid); });
}
EMULATED void fence() { current->groups.push_back(std::move(current->open)); current->open.clear(); }
EMULATED void wait(int left) { while (int(current->groups.size()) > left) { for (auto& f : current->groups.front()) f(); current->groups.pop_front(); } }
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
EMULATED CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, cuuint64_t const* sizes, cuuint64_t const* bytes,
                       cuuint32_t const* box, cuuint32_t const*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  bool const tf32 = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  int const element = tf32 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  TensorMap made = {static_cast<uint8_t*>(data), {}, {}, int32_t(rank), int32_t(box[1]), element, tf32};
  if (uintptr_t(data) % 16 || rank > 5 || int(box[0]) * element != 128 || box[1] > 256) return CUDA_ERROR_INVALID_VALUE;
  for (cuuint32_t i = 0; i < rank; ++i) {
    made.sizes[i] = int64_t(sizes[i]); made.strides[i] = i ? int64_t(bytes[i - 1]) : element;
    if (sizes[i] == 0 || (i && bytes[i - 1] % 16) || (i > 1 && box[i] != 1)) return CUDA_ERROR_INVALID_VALUE;
  }
  memcpy(map, &made, sizeof(made));
  return CUDA_SUCCESS;
}
EMULATED Box box_of(CUtensorMap const& map, std::initializer_list<int> from) {
  Box box = {}; memcpy(&box.map, &map, sizeof(TensorMap)); box.rows = box.map.rows;
  if (int(from.size()) != box.map.rank) { fprintf(stderr, "a copy of another rank than its descriptor\n"); abort(); }
  std::copy(from.begin(), from.end(), box.from);
  return box;
}
EMULATED void start() {
  body();
  current->done = true; current->ready = false;
  // A barrier waits for no thread that has ended.
  if (++ended < int(fibers.size()) && at_barrier > 0 && at_barrier == int(fibers.size()) - ended) {
    at_barrier = 0;
    for (auto& f : fibers) f.ready = !f.done;
  }
  fiber::exchange(current->context, scheduler);
}
// A variable in shared memory begins every block as NaN: the first thread that comes to it writes that.
template <class T> void begin(T& variable, unsigned long& block) {
  if (block != blocks) { block = blocks; memset(static_cast<void*>(&variable), 0xff, sizeof(T)); }
}
EMULATED void begin_block(int threads) {
  // Where a caller launches by itself, threads stand in one line.
  unsigned const wide = int(blockDim.x * blockDim.y) == threads ? blockDim.x : unsigned(threads);
  fibers.resize(threads); at_barrier = ended = 0; arrived.assign((threads + 31) / 32, 0);
  std::fill(memory.begin(), memory.end(), uint8_t(0xff)); ++blocks;
  for (int i = 0; i < threads; ++i) {
    Fiber& f = fibers[i];
    if (!f.stack) f.stack.reset(new char[kStack]);
    f.tid = uint3{unsigned(i) % wide, unsigned(i) / wide, 0}; f.index = i; f.done = false; f.ready = true; f.waiting = 0; f.groups.clear(); f.open.clear();
    fiber::prepare(f.context, f.stack.get(), kStack, start);
  }
}
/// Runs the block's threads until none of them goes on. False where none did: all of them wait.
EMULATED bool run_threads() {
  int const threads = int(fibers.size());
  bool any = false;
  bool turn = std::getenv("EMULATOR_BACKWARDS") != nullptr;
  for (bool progress = true; progress;) {
    progress = false;
    // Backwards every other round: a missing barrier shows in one order or the other.
    turn = !turn;
    for (int i = 0; i < threads; ++i) {
      Fiber& f = fibers[turn ? i : threads - 1 - i];
      if (!f.ready || f.done) continue;
      int64_t const waited = f.waiting;
      current = &f; fiber::exchange(scheduler, f.context);
      progress = progress || waited == 0 || waited != f.waiting;
      if (failure != cudaSuccess) { current = nullptr; return false; }
    }
    any = any || progress;
  }
  current = nullptr;
  return any;
}
EMULATED void end_block() {
  for (auto& f : fibers) if (!f.done) { fprintf(stderr, "deadlock\n"); abort(); }
}
EMULATED void run_block(int threads) {
  begin_block(threads);
  run_threads();
  if (failure == cudaSuccess) end_block();
}
// The blocks of a cluster take turns: one runs until all of its threads have ended or wait for the others'.
struct Block {
  std::vector<Fiber> fibers; std::vector<uint8_t> memory; std::vector<int> arrived; int at_barrier = 0, ended = 0;
  Block(); Block(Block&&) noexcept; Block& operator=(Block&&) noexcept; ~Block();
  void exchange() {
    std::swap(fibers, emu::fibers); std::swap(memory, emu::memory); std::swap(arrived, emu::arrived);
    std::swap(at_barrier, emu::at_barrier); std::swap(ended, emu::ended);
  }
};
EMULATED Block::Block() = default;
EMULATED Block::Block(Block&&) noexcept = default;
EMULATED Block& Block::operator=(Block&&) noexcept = default;
EMULATED Block::~Block() = default;
inline std::vector<Block> cluster; inline int rank_in_cluster = 0, at_cluster_barrier = 0;
EMULATED void wait_for_cluster() { ++at_cluster_barrier; current->ready = false; yield(); }
/// The place in another block's shared memory of what lies at this place in this block's.
EMULATED void* of_rank(void const* place, int rank) {
  uint8_t* const first = shared();
  if (rank == rank_in_cluster) return const_cast<void*>(place);
  auto const other = (reinterpret_cast<uintptr_t>(cluster[rank].memory.data()) + 1023) / 1024 * 1024;
  return reinterpret_cast<uint8_t*>(other) + (static_cast<uint8_t const*>(place) - first);
}
EMULATED void run_cluster(unsigned first, int size, int threads, size_t bytes) {
  cluster = std::vector<Block>(size);
  auto const each = [&](auto const& work) {
    for (rank_in_cluster = 0; rank_in_cluster < size; ++rank_in_cluster) {
      blockIdx = uint3{first + rank_in_cluster, 0, 0};
      cluster[rank_in_cluster].exchange();
      work();
      cluster[rank_in_cluster].exchange();
    }
  };
  each([&] { memory.resize(bytes + 2048); begin_block(threads); });
  for (bool progress = true; progress && failure == cudaSuccess;) {
    int left = 0;
    progress = false;
    each([&] { progress = run_threads() || progress; left += threads - ended; });
    if (left > 0 && left == at_cluster_barrier) {
      at_cluster_barrier = 0;
      progress = true;
      each([&] { for (auto& f : fibers) f.ready = !f.done; });
    }
  }
  if (failure == cudaSuccess) each(end_block);
}
template <int kSize, class... E, class... A>
cudaError_t launch_clusters(cudaLaunchConfig_t const* c, void (*kernel)(E...), A const&... args) {
  gridDim = c->gridDim; blockDim = c->blockDim;
  body = [&] { kernel(args...); };
  for (unsigned x = 0; x < gridDim.x && failure == cudaSuccess; x += kSize) {
    run_cluster(x, std::min(kSize, int(gridDim.x - x)), int(blockDim.x), c->dynamicSmemBytes);
  }
  return failure.exchange(cudaSuccess);
}
template <class... E, class... A>
cudaError_t launch(cudaLaunchConfig_t const* c, void (*kernel)(E...), A const&... args) {
  gridDim = c->gridDim; blockDim = c->blockDim;
  body = [&] { kernel(args...); };
#ifdef EMULATOR_THREADS
  // In an order of their own at each launch, as the hardware may start them.
  static std::mt19937 numbers(1);
  std::vector<uint3> blocks;
  for (unsigned y = 0; y < gridDim.y; ++y) for (unsigned x = 0; x < gridDim.x; ++x) blocks.push_back(uint3{x, y, 0});
  std::shuffle(blocks.begin(), blocks.end(), numbers);
  std::atomic<size_t> next{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < EMULATOR_THREADS; ++i) workers.emplace_back([&] {
    memory.resize(c->dynamicSmemBytes + 2048); fibers.clear();
    for (size_t at; (at = next++) < blocks.size();) { blockIdx = blocks[at]; run_block(int(blockDim.x * blockDim.y)); }
  });
  for (auto& worker : workers) worker.join();
  return cudaSuccess;
#endif
  memory.resize(c->dynamicSmemBytes + 2048); fibers.clear();
  for (unsigned y = 0; y < gridDim.y; ++y) for (unsigned x = 0; x < gridDim.x; ++x) {
    blockIdx = uint3{x, y, 0};
    run_block(int(blockDim.x * blockDim.y));
    if (failure != cudaSuccess) return failure.exchange(cudaSuccess);
  }
  return cudaSuccess;
}
}  // namespace emu
#include "alignment.h"
EMULATED void emulated_fault(cudaError_t error) { emu::fault(error); }
EMULATED bool emulated_local(uintptr_t address) { return emu::current != nullptr && address - uintptr_t(emu::current->stack.get()) < emu::kStack; }
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
#define __syncwarp() ((void)emu::shuffle(emu::Op::shuffle_from, 0, 0))
#define threadIdx (emu::current->tid)
#define __syncthreads emu::barrier
EMULATED uint32_t atomicMax(uint32_t* to, uint32_t x) { uint32_t const before = *to; *to = std::max(before, x); return before; }
EMULATED uint32_t atomicMin(uint32_t* to, uint32_t x) { uint32_t const before = *to; *to = std::min(before, x); return before; }
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
#define cudaGetLastError() cudaSuccess
template <class T> T __ldg(T const* p) { return *p; }
template <class T> T __ldcg(T const* p) { return *p; }
using std::min; using std::max;
EMULATED int __dp4a(int a, int b, int c) { for (int i = 0; i < 4; ++i) c += int(int8_t(a >> (8 * i))) * int(int8_t(b >> (8 * i))); return c; }

EMULATED float __uint_as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
EMULATED uint32_t __float_as_uint(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
