// The device functions of the convolution by TMA on the host, in place of those that hold PTX. Included
// inside the kernel's namespace after its constants; `emulator.h` and `emulator_im2col_maps.h` stand before
// it. Copies and products happen where they are asked for: layouts and places are what is tried here.
// Layouts are those of the PTX manual (wgmma, matrix descriptor, swizzles; im2col mode of tensor copies).

#pragma GCC push_options
#pragma GCC optimize("O1")  // most of a kernel's emulated time is spent here
inline uint32_t cast_smem_ptr_to_uint(void const* p) { return uint32_t(static_cast<uint8_t const*>(p) - emu::shared()); }
inline void mbarrier_init(uint64_t* at, int arrivals) { emu::init_barrier(at, arrivals); }
inline void fence_mbarrier_init() {}
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline void fence_proxy_async() {}
inline void mbarrier_wait(uint64_t* at, int parity) {
  static int64_t waits = 0;
  int64_t const own = ++waits;
  while (int(emu::phase_of(at)) == parity) {
    emu::current->waiting = own;
    emu::yield();
  }
  emu::current->waiting = 0;
}
inline void mbarrier_arrive(uint64_t* at) { emu::arrive(at, 0); }
inline void mbarrier_arrive_expect_tx(uint64_t* at, uint32_t bytes) { emu::arrive(at, bytes); }
inline void prefetch_tensormap(CUtensorMap const&) {}
constexpr uint64_t kEvictNormal = 0;
inline uint32_t swizzled(uint32_t at, int row) { return at ^ ((at >> 3) & (row == 128 ? 0x70 : row == 64 ? 0x30 : 0x10)); }
inline void mbarrier_arrive_remote(uint64_t* at, int rank) { mbarrier_arrive(static_cast<uint64_t*>(emu::of_rank(at, rank))); }
inline uint8_t* place(uint32_t at, int row) {
  if (at + 4 > emu::memory.size() - 2048) { fprintf(stderr, "shared memory: beyond its end\n"); abort(); }
  return emu::shared() + swizzled(at, row);
}
inline emu_im2col::Map const& known(CUtensorMap const* map, bool windows) {
  auto const& found = emu_im2col::maps.at(*reinterpret_cast<int64_t const*>(map));
  if (found.windows != windows) { fprintf(stderr, "a copy of another mode than its descriptor\n"); abort(); }
  return found;
}
inline void put(emu_im2col::Map const& map, uint32_t to, int64_t const* at, int rank = emu::rank_in_cluster) {
  int64_t offset = 0;
  bool inside = true;
  for (int i = 0; i < map.rank; ++i) { inside = inside && at[i] >= 0 && at[i] < map.sizes[i]; offset += at[i] * map.strides[i]; }
  auto* const target = static_cast<uint8_t*>(emu::of_rank(place(to, map.row), rank));
  if (inside) memcpy(target, map.data + offset, map.element); else memset(target, 0, map.element);
  if (map.tf32) { float x; memcpy(&x, target, 4); x = emu_im2col::round_tf32(x); memcpy(target, &x, 4); }
}
template <class... Places>
void tma_load_im2col(CUtensorMap const& given, uint64_t* barrier, void* target, Places... places) {
  auto const& map = known(&given, true);
  int64_t const from[] = {int64_t(places)...};
  int const spatial = map.rank - 2;
  if (int(sizeof...(Places)) != map.rank + spatial) { fprintf(stderr, "a copy of another rank than its descriptor\n"); abort(); }
  int64_t at[5];
  std::copy(from, from + map.rank, at);
  for (int i = 0; i < spatial; ++i) {
    if (at[i + 1] < map.lower[i] || at[i + 1] > map.sizes[i + 1] - 1 + map.upper[i]) { fprintf(stderr, "a window begins outside the box\n"); abort(); }
  }
  if (cast_smem_ptr_to_uint(target) % (map.row * 8)) { fprintf(stderr, "a part that is not aligned to its swizzle\n"); abort(); }
  if (from[0] * map.element % 16) { fprintf(stderr, "a copy that does not begin at 16 bytes of its innermost axis\n"); abort(); }
  for (int pixel = 0; pixel < map.rows; ++pixel) {
    int64_t own[5];
    std::copy(at, at + 5, own);
    for (int i = 0; i < spatial; ++i) own[i + 1] += from[map.rank + i];
    for (int c = 0; c < map.row / map.element; ++c, ++own[0]) put(map, cast_smem_ptr_to_uint(target) + pixel * map.row + c * map.element, own);
    bool carry = true;
    for (int i = 0; carry && i < spatial; ++i) {
      at[i + 1] += map.steps[i];
      carry = at[i + 1] > map.sizes[i + 1] - 1 + map.upper[i];
      if (carry) at[i + 1] = map.lower[i];
    }
    if (carry) ++at[map.rank - 1];
  }
  emu::complete_bytes(barrier, int64_t(map.rows) * map.row);
}
template <class... Places>
void tma_load_multicast(CUtensorMap const& given, uint64_t* barrier, uint64_t, uint16_t mask, void* target, Places... places) {
  auto const& map = known(&given, false);
  int64_t const from[5] = {int64_t(places)...};
  if (int(sizeof...(Places)) != map.rank) { fprintf(stderr, "a copy of another rank than its descriptor\n"); abort(); }
  if (cast_smem_ptr_to_uint(target) % (map.row * 8)) { fprintf(stderr, "a part that is not aligned to its swizzle\n"); abort(); }
  if (from[0] * map.element % 16) { fprintf(stderr, "a copy that does not begin at 16 bytes of its innermost axis\n"); abort(); }
  for (int r = 0; r < map.rows; ++r) {
    int64_t at[5];
    int rest = r;
    for (int i = 0; i < 5; ++i) { at[i] = from[i]; if (i > 0) { at[i] += rest % map.box[i]; rest /= map.box[i]; } }
    for (int c = 0; c < map.row / map.element; ++c, ++at[0]) {
      for (int rank = 0; rank < 16; ++rank) if (mask >> rank & 1) put(map, cast_smem_ptr_to_uint(target) + r * map.row + c * map.element, at, rank);
    }
  }
  for (int rank = 0; rank < 16; ++rank) if (mask >> rank & 1) emu::complete_bytes(static_cast<uint64_t*>(emu::of_rank(barrier, rank)), int64_t(map.rows) * map.row);
}
template <class... Places>
void tma_load(CUtensorMap const& given, uint64_t* barrier, uint64_t policy, void* target, Places... places) {
  tma_load_multicast(given, barrier, policy, uint16_t(1 << emu::rank_in_cluster), target, places...);
}
template <int kRegisterCount> void setmaxnreg_dec() {}
template <int kRegisterCount> void setmaxnreg_inc() {}
inline void wgmma_fence() {}
inline void wgmma_commit_group() {}
template <int kLeft> void wgmma_wait_group() {}
template <int kCount> void warpgroup_fence_operand(float*) {}
inline uint64_t make_smem_desc(uint32_t smem, uint32_t leading_offset, uint32_t stride_offset, uint32_t swizzle) {
  return uint64_t((smem & 0x3FFFF) >> 4) | uint64_t(leading_offset) << 16 | uint64_t(stride_offset) << 32 | uint64_t(swizzle) << 62;
}
// The multipliers do not read the low bits.
inline double tf32_value(uint32_t bits) { float x; bits &= 0xffffe000u; memcpy(&x, &bits, 4); return x; }
inline double value_at(uint8_t const* from, bool bf16) {
  if (EMU_ELEMENT == 4) { uint32_t bits; memcpy(&bits, from, 4); return tf32_value(bits); }
  uint16_t bits; memcpy(&bits, from, 2);
  return bf16 ? emu::bf16_bits(bits) : emu::half_bits(bits);
}
inline double along_k(uint64_t d, int row, int k, bool bf16 = EMU_BF16) {
  int const bytes = 256 >> (d >> 62);
  return value_at(place((uint32_t(d & 0x3FFF) << 4) + row / 8 * (uint32_t(d >> 32 & 0x3FFF) << 4) + row % 8 * bytes + k * EMU_ELEMENT, bytes), bf16);
}
inline double across_k(uint64_t d, int column, int k, bool bf16 = EMU_BF16) {
  int const bytes = 256 >> (d >> 62), wide = bytes / 2;
  return value_at(place((uint32_t(d & 0x3FFF) << 4) + column / wide * (uint32_t(d >> 16 & 0x3FFF) << 4) + k / 8 * (uint32_t(d >> 32 & 0x3FFF) << 4) + k % 8 * bytes + column % wide * 2, bytes), bf16);
}
#if EMU_WGMMA
inline void wgmma(float* d, uint64_t a, uint64_t b, int scale_d, bool bf16 = EMU_BF16) {
  int const thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
  constexpr int kDepth = 32 / EMU_ELEMENT;
  double x[2][kDepth];
  for (int r = 0; r < 2; ++r) for (int k = 0; k < kDepth; ++k) x[r][k] = EMU_ACROSS_A ? across_k(a, row + 8 * r, k, bf16) : along_k(a, row + 8 * r, k, bf16);
  // Two of a thread's sums, eight rows apart, are of one column.
  for (int i = 0; i < kRegisters; i += i % 4 ? 3 : 1) {
    int const n = i / 4 * 8 + column + i % 2;
    double first = scale_d ? d[i] : 0.0f, second = scale_d ? d[i + 2] : 0.0f;
    for (int k = 0; k < kDepth; ++k) {
      double const y = EMU_ACROSS ? across_k(b, n, k, bf16) : along_k(b, n, k, bf16);
      first += x[0][k] * y;
      second += x[1][k] * y;
    }
    d[i] = float(first);
    d[i + 2] = float(second);
  }
}
inline void wgmma_bf16(float* d, uint64_t a, uint64_t b, int scale_d) { wgmma(d, a, b, scale_d, true); }
// A comes from registers: element (row, k) is in lane 4 * (row % 8) + k % 4, of four as (row / 8, k / 4).
inline void wgmma(float* d, uint32_t const* a, uint64_t b, int scale_d) {
  int const column = threadIdx.x % 4 * 2;
  double x[2][8];
  for (int k = 0; k < 4; ++k) for (int i = 0; i < 4; ++i) x[i % 2][i / 2 * 4 + k] = tf32_value(uint32_t(emu::shuffle(emu::Op::shuffle_from, a[i], k, 4)));
  for (int i = 0; i < kRegisters; i += i % 4 ? 3 : 1) {
    int const n = i / 4 * 8 + column + i % 2;
    double first = scale_d ? d[i] : 0.0f, second = scale_d ? d[i + 2] : 0.0f;
    for (int k = 0; k < 8; ++k) {
      double const y = along_k(b, n, k);
      first += x[0][k] * y;
      second += x[1][k] * y;
    }
    d[i] = float(first);
    d[i + 2] = float(second);
  }
}
#endif
#pragma GCC pop_options
