// Stands for the driver and the kernel layer under a lean kernel's entry: each launch runs the kernel's own text on
// the fibers of tests/emit/emulator.h. Before it come the emulator and lean.h; after it `run_tile`, `run_combine`.
#pragma once
#include <type_traits>

// What the epilogue uses of CuTe, without CuTe.
using std::get;
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

struct Setup {
  int tile_m, tile_n, registers, threads;
  void const* product;  // [batch][height][width], the problem's and what lies beyond it
  int64_t height, width;
  int batch;
};
inline Setup setup;

void run_tile(void const* params, int m, int n, int l, int thread, void* accumulators);
void run_combine(char const* name, void const* params);

// What a thread holds of a tile (PTX ISA, "wgmma", fragments of D): the warps of each group have 64 rows.
template <class T>
std::vector<T> fragment(int m, int n, int l, int thread) {
  std::vector<T> held(setup.registers);
  int const groups = setup.threads / 128, lane = thread % 32, warp = thread % 128 / 32;
  for (int i = 0; i < setup.registers; ++i) {
    int const atom = i / (setup.tile_n / 2), at = i % (setup.tile_n / 2);
    int64_t const row = int64_t(m) * setup.tile_m + (atom * groups + thread / 128) * 64 + warp * 16 + lane / 4 + at / 2 % 2 * 8;
    int64_t const column = int64_t(n) * setup.tile_n + at / 4 * 8 + lane % 4 * 2 + at % 2;
    held[i] = static_cast<T const*>(setup.product)[(l * setup.height + row) * setup.width + column];
  }
  return held;
}

extern "C" {
void set_up(Setup const* given) { setup = *given; }
int32_t ucc_lean_prepare(ucc_lean::Kernel*, ucc_lean::Device* device) { return *device = {132, 132}, 0; }
int32_t ucc_lean_encode(void*, int, void*, int64_t, int64_t, int64_t, int64_t, int64_t, uint32_t, uint32_t, int) { return 0; }
int32_t ucc_lean_encode_two(void*, int, void*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint32_t, uint32_t, int) { return 0; }
void ucc_lean_persistent(ucc_lean::Problem const&, void*, size_t, uint32_t*) {}

int32_t ucc_lean_launch(ucc_lean::Kernel*, uint32_t const*, void* params, void*) {
  emu::memory.resize(2048);
  // Schedulers hand out tiles beyond the problem too, where clusters do not divide it.
  for (int l = 0; l < setup.batch; ++l) {
    for (int m = 0; m < setup.height / setup.tile_m; ++m) {
      for (int n = 0; n < setup.width / setup.tile_n; ++n) {
        emu::body = [&] {
          int const thread = emu::current->index;
          auto held = fragment<ACCUMULATOR>(m, n, l, thread);
          run_tile(params, m, n, l, thread, held.data());
        };
        emu::run_block(setup.threads);
      }
    }
  }
  return 0;
}

int32_t ucc_lean_beside(ucc_lean::Kernel*, char const* name, void**, int columns, int64_t extent, int64_t batches,
                         void* params, void*) {
  gridDim = {unsigned((extent + columns - 1) / columns), unsigned(std::min<int64_t>(batches, 2)), 1};
  for (unsigned y = 0; y < gridDim.y; ++y) {
    for (unsigned x = 0; x < gridDim.x; ++x) {
      blockIdx = uint3{x, y, 0};
      emu::body = [&] { run_combine(name, params); };
      emu::run_block(256);
    }
  }
  return 0;
}
}
