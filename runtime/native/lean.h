// What the host's side of every lean kernel (emit/gemm/lean_host.j2) shares. It includes no header of
// CUDA's or CUTLASS's: it is compiled anew for each kernel, in tens of milliseconds.

#ifndef UCC_LEAN_H
#define UCC_LEAN_H

#include <stddef.h>
#include <stdint.h>

namespace ucc_lean {

constexpr int32_t Mismatch = 1;  // the arguments are not what the plan was made for

struct alignas(64) Descriptor {  // CUtensorMap
  uint64_t words[16];
};

constexpr int MostDevices = 64;

struct Device {
  int sm_count = 0;
  int max_active_clusters = 0;
};

// A kernel in its image, and what is known of it once it was prepared.
struct Kernel {
  unsigned char const* image;
  char const* name;
  uint32_t threads, shared_bytes, cluster_m, cluster_n;
  bool overlaps;  // begins while the stream's kernel before it ends, and waits for that where it first reads
  void* library = nullptr;
  void* function = nullptr;
  int ready[MostDevices] = {};
  Device devices[MostDevices] = {};
};

// What a tile scheduler of CUTLASS is asked for.
struct Problem {
  int64_t tiles_m, tiles_n, batch, tiles_k;
  int tile[3];
  int cluster[2];
  int swizzle, raster, splits;  // as in the entry's launch parameters
  int warp_groups;              // that share a tile
  Device device;
};

inline bool are_extents(int64_t m, int64_t n, int64_t k, int64_t l) {
  auto fits = [](int64_t e) { return e >= 1 && e <= INT32_MAX; };
  return fits(m) && fits(n) && fits(k) && fits(l);
}

// TMA takes addresses and strides of whole 16 bytes.
inline bool tma_takes(void const* address, int64_t outer, int64_t batch) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0 && outer % 16 == 0 && batch % 16 == 0;
}

}  // namespace ucc_lean

// lean.cpp. Those that return a code return the entry's: 0, or 1000 and the driver's error.
extern "C" {
int32_t ucc_lean_prepare(ucc_lean::Kernel* kernel, ucc_lean::Device* device);
int32_t ucc_lean_encode(void* map, int type, void* address, int64_t inner, int64_t outer, int64_t batch,
                        int64_t outer_bytes, int64_t batch_bytes, uint32_t box_inner, uint32_t box_outer, int swizzle);
// The same with a second batch mode.
int32_t ucc_lean_encode_two(void* map, int type, void* address, int64_t inner, int64_t outer, int64_t batch,
                            int64_t second, int64_t outer_bytes, int64_t batch_bytes, int64_t second_bytes,
                            uint32_t box_inner, uint32_t box_outer, int swizzle);
void ucc_lean_persistent(ucc_lean::Problem const& problem, void* scheduler, size_t size, uint32_t* grid);
uint64_t ucc_lean_stream_k_bytes(ucc_lean::Problem const& problem);
int32_t ucc_lean_stream_k(ucc_lean::Problem const& problem, void* scheduler, size_t size, uint32_t* grid,
                          void* workspace, void* stream);
int32_t ucc_lean_launch(ucc_lean::Kernel* kernel, uint32_t const* grid, void* params, void* stream);
// As `ucc_lean_stream_k`, but the launch before the kernel's sets so many locks to 0.
int32_t ucc_lean_stream_k_locks(ucc_lean::Problem const& problem, void* scheduler, size_t size, uint32_t* grid,
                                void* workspace, uint32_t** locks);
int32_t ucc_lean_beside(ucc_lean::Kernel* kernel, char const* name, void** cached_function, int columns, int64_t extent,
                         int64_t batches, void* params, void* stream);
// A kernel that begins while the stream's kernel before it ends, and waits for that where it first reads.
int32_t ucc_lean_overlapping(ucc_lean::Kernel* kernel, char const* name, void** cached_function, int64_t blocks,
                              int64_t batches, void* params, void* stream);
void ucc_lean_divisor(void* divmod, int divisor);
}

#ifndef UCC_LEAN_DRIVER  // which has CUTLASS's own
namespace cutlass {

struct FastDivmod {
  int32_t divisor;
  uint32_t multiplier;
  uint32_t shift_right;

  FastDivmod() = default;
  explicit FastDivmod(int divisor) { ucc_lean_divisor(this, divisor); }
};

}  // namespace cutlass
#endif

#endif
