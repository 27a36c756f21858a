// The device functions of attention on the host, in place of those that hold PTX: TMA, mbarriers, named
// barriers and wgmma. Included inside the kernel's namespace, after its constants; `emulator.h` stands
// before it. What is asynchronous happens as late as it may: a copy when someone waits for it, a product
// when its warp does, a store when its thread does. So what is read too early, or overwritten, shows.
// Layouts are those of the PTX manual (wgmma, matrix descriptor, 128-byte swizzle).

#pragma GCC push_options
#pragma GCC optimize("O1")  // most of a kernel's emulated time is spent here
struct Named { int arrived = 0; int generation = 0; };
inline Named named[16];
inline uint32_t swizzled(uint32_t at) { return at ^ ((at >> 3) & 0x70); }
inline uint16_t& element(uint32_t at) {
  if (at + 2 > emu::memory.size() - 2048) { fprintf(stderr, "shared memory: beyond its end\n"); abort(); }
  return *reinterpret_cast<uint16_t*>(emu::shared() + swizzled(at));
}
/// To nearest, ties to even, as TMA does.
inline void round_tf32(void* at) {
  uint32_t bits; memcpy(&bits, at, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u;
  memcpy(at, &bits, 4);
}
#if EMU_TF32
// A comes from registers: element (row, k) is in lane 4 * (row % 8) + k % 4, of four as (row / 8, k / 4). B is read,
// and sums are written, when they are waited for. The multipliers do not read the low bits.
inline double tf32_value(uint32_t bits) { float x; bits &= 0xffffe000u; memcpy(&x, &bits, 4); return x; }
inline void multiply_tf32(float* d, uint32_t const* a, uint64_t desc, int scale_d, int registers);
namespace qk { inline void wgmma(float* d, uint32_t const* a, uint64_t desc, int scale_d) { multiply_tf32(d, a, desc, scale_d, kScores); } }
namespace pv { inline void wgmma(float* d, uint32_t const* a, uint64_t desc, int scale_d) { multiply_tf32(d, a, desc, scale_d, kPieceOutputs); } }
inline uint64_t make_smem_desc(uint32_t smem, uint32_t leading_offset, uint32_t stride_offset, uint32_t swizzle) {
  if (smem % 1024) { fprintf(stderr, "an operand that is not aligned to its swizzle\n"); abort(); }
  return uint64_t((smem & 0x3FFFF) >> 4) | uint64_t(leading_offset) << 16 | uint64_t(stride_offset) << 32 | uint64_t(swizzle) << 62;
}
#else
inline double lane_value(uint16_t bits) { return EMU_BF16 ? emu::bf16_bits(bits) : emu::half_bits(bits); }
inline uint32_t bits_of(float x, bool bf16) {
  return bf16 ? uint32_t(cutlass::bfloat16_t(x).raw()) : uint32_t(cutlass::half_t(x).raw());
}

#endif

inline uint32_t cast_smem_ptr_to_uint(void const* p) { return uint32_t(static_cast<uint8_t const*>(p) - emu::shared()); }
inline bool elect_one_sync() { return threadIdx.x % 32 == 0; }
inline void mbarrier_init(uint32_t barrier, int arrivals) { emu::init_barrier(emu::shared() + barrier, arrivals); }
inline void fence_mbarrier_init() {}
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) { emu::wait_for_copies(emu::shared() + barrier, parity); }
inline void mbarrier_arrive(uint32_t barrier) { emu::arrive(emu::shared() + barrier, 0); }
inline void mbarrier_arrive_expect_tx(uint32_t barrier, int bytes) { emu::arrive(emu::shared() + barrier, bytes); }

inline int arrive_named(int id, int count) {
  auto& b = named[id];
  int const generation = b.generation;
  if (++b.arrived == count) { b.arrived = 0; ++b.generation; emu::idle = 0; }
  return generation;
}
template <int kCount> void named_barrier_sync(int id) {
  int const generation = arrive_named(id, kCount);
  while (named[id].generation == generation) emu::spin();
}
template <int kCount> void named_barrier_arrive(int id) { arrive_named(id, kCount); }

inline void wgmma_fence() {}
inline void wgmma_commit_group() { emu::close(emu::current->products); }
template <int kLeft> void wgmma_wait_group() {
  emu::wait(emu::current->products, kLeft);
  emu::shuffle(emu::Op::shuffle_xor, 0, 1);  // the others of the warp have read this lane's registers, too
}
template <int kCount> void warpgroup_fence_operand(float*) {}
inline float exp2_approx_ftz(float x) { float y = exp2f(x); return y < 0x1p-126f ? 0.0f : y; }
inline float rcp_approx_ftz(float x) { return 1.0f / x; }
#if !EMU_TF32
inline uint32_t pack_operand(float low, float high) { return bits_of(low, EMU_BF16) | bits_of(high, EMU_BF16) << 16; }
inline uint32_t pack_result(float low, float high) { return bits_of(low, EMU_OUT_BF16) | bits_of(high, EMU_OUT_BF16) << 16; }
#endif
inline void store_if_negative(uint32_t, float sum) { if (sum < 0) { fprintf(stderr, "a sum of exponentials below 0\n"); abort(); } }
template <int kCount> void setmaxnreg_dec() {}
template <int kCount> void setmaxnreg_inc() {}

#if EMU_TF32
inline void multiply_tf32(float* d, uint32_t const* a, uint64_t desc, int scale_d, int registers) {
  std::array<double, 16> x;
  for (int k = 0; k < 4; ++k) for (int i = 0; i < 4; ++i) x[i % 2 * 8 + i / 2 * 4 + k] = tf32_value(uint32_t(emu::shuffle(emu::Op::shuffle_from, a[i], k, 4)));
  int const column = threadIdx.x % 4 * 2;
  emu::current->products.open.push_back([d, x, desc, scale_d, registers, column] {
    for (int at = 0; at < registers; ++at) {
      double sum = scale_d ? d[at] : 0.0f;
      int const n = at / 4 * 8 + column + at % 2;
      for (int k = 0; k < 8; ++k) {
        uint32_t bits;
        memcpy(&bits, &element((uint32_t(desc & 0x3FFF) << 4) + n / 8 * (uint32_t(desc >> 32 & 0x3FFF) << 4) + n % 8 * 128 + k * 4), 4);
        sum += x[at / 2 % 2 * 8 + k] * tf32_value(bits);
      }
      d[at] = float(sum);
    }
  });
}
#else
inline uint64_t desc_of(uint32_t lower) { return uint64_t(64u | 1u << 30) << 32 | lower; }
inline uint32_t make_smem_desc_low(uint32_t shared, int leading) {
  if (shared % 1024) { fprintf(stderr, "an operand that is not aligned to its swizzle\n"); abort(); }
  return (shared & 0x3FFFF) >> 4 | uint32_t(leading >> 4) << 16;
}
inline uint32_t start_of(uint64_t d) { return uint32_t(d & 0x3FFF) << 4; }
inline uint32_t leading_of(uint64_t d) { return uint32_t(d >> 16 & 0x3FFF) << 4; }
inline uint32_t stride_of(uint64_t d) { return uint32_t(d >> 32 & 0x3FFF) << 4; }
inline double along_k(uint64_t d, int row, int k) {
  return lane_value(element(start_of(d) + row / 8 * stride_of(d) + row % 8 * 128 + k * 2));
}
inline double across_k(uint64_t d, int column, int k) {
  return lane_value(element(start_of(d) + column / 64 * leading_of(d) + k / 8 * stride_of(d) + k % 8 * 128 + column % 64 * 2));
}
template <int kScaleD> void wgmma(float (&s)[kScores], uint64_t q, uint64_t k) {
  int const thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
  emu::current->products.open.push_back([&s, q, k, row, column] {
    double a[2][16];
    for (int r = 0; r < 2; ++r) for (int i = 0; i < 16; ++i) a[r][i] = along_k(q, row + 8 * r, i);
    for (int at = 0; at < kScores; ++at) {
      double sum = kScaleD ? s[at] : 0.0f;
      int const n = at / 4 * 8 + column + at % 2;
      for (int i = 0; i < 16; ++i) sum += a[at / 2 % 2][i] * along_k(k, n, i);
      s[at] = float(sum);
    }
  });
}
inline void wgmma(float (&o)[kOutputs], uint32_t const* p, uint64_t v, int scale_d) {
  uint32_t const* of[4];
  for (int i = 0; i < 4; ++i) of[i] = reinterpret_cast<uint32_t const*>(emu::shuffle(emu::Op::shuffle_from, reinterpret_cast<uint64_t>(p), i, 4));
  int const column = threadIdx.x % 4 * 2;
  std::array<uint32_t const*, 4> const words = {of[0], of[1], of[2], of[3]};
  emu::current->products.open.push_back([&o, words, v, scale_d, column] {
    double a[2][16];
    for (int c = 0; c < 4; ++c) for (int w = 0; w < 4; ++w) for (int e = 0; e < 2; ++e)
      a[w % 2][w / 2 * 8 + 2 * c + e] = lane_value(uint16_t(words[c][w] >> (16 * e)));
    for (int at = 0; at < kOutputs; ++at) {
      double sum = scale_d ? o[at] : 0.0f;
      int const n = at / 4 * 8 + column + at % 2;
      for (int i = 0; i < 16; ++i) sum += a[at / 2 % 2][i] * across_k(v, n, i);
      o[at] = float(sum);
    }
  });
}

#endif

template <class... C> void tma_load(CUtensorMap const& map, uint32_t barrier, uint32_t to, C... coordinates) {
  int const first[] = {int(coordinates)...};
  emu::Box const box = emu::box_of(map, {coordinates...});
  int const bytes = box.map.bytes;
  if (first[0] * bytes % 16) { fprintf(stderr, "a TMA load that does not begin at 16 bytes of its innermost axis\n"); abort(); }
  emu::copy_later(emu::shared() + barrier, box.rows * 128, [box, to, bytes] {
    for (int r = 0; r < box.rows; ++r) for (int c = 0; c < 128 / bytes; ++c) {
      uint8_t const* from = box.at(c, r);
      uint16_t* const target = &element(to + r * 128 + c * bytes);
      if (from) memcpy(target, from, bytes); else memset(target, 0, bytes);
      if (box.map.tf32) round_tf32(target);
    }
  });
}
template <class... C> void tma_store(CUtensorMap const& map, uint32_t from, C... coordinates) {
  emu::Box const box = emu::box_of(map, {coordinates...});
  emu::current->stores.push_back([box, from] {
    for (int r = 0; r < box.rows; ++r) for (int c = 0; c < 64; ++c)
      if (uint8_t* to = box.at(c, r)) memcpy(to, &element(from + r * 128 + c * 2), 2);
  });
}
inline void cp_async_bulk_commit_group() {}
inline void fence_proxy_async() {}
template <int kPending> void cp_async_bulk_wait_group_read() { for (auto& run : emu::current->stores) run(); emu::current->stores.clear(); }
template <int kPending> void cp_async_bulk_wait_group() { cp_async_bulk_wait_group_read<kPending>(); }
inline void stmatrix_x4(uint32_t to, uint32_t const (&words)[4]) {
  // Lane i holds words i of four 8 x 8 matrices; lane 8 * j + r says where row r of matrix j goes.
  int const lane = threadIdx.x % 32;
  for (int j = 0; j < 4; ++j) {
    uint32_t const row = emu::shuffle(emu::Op::shuffle_from, to, 0);  // keeps the warp together
    (void)row;
    uint32_t targets[8];
    for (int r = 0; r < 8; ++r) targets[r] = emu::shuffle(emu::Op::shuffle_from, to, 8 * j + r);
    memcpy(emu::shared() + targets[lane / 4] + lane % 4 * 4, &words[j], 4);
  }
}
inline void st_shared(uint32_t to, int value) { memcpy(emu::shared() + to, &value, 4); }
inline int ld_shared(uint32_t from) { int value; memcpy(&value, emu::shared() + from, 4); return value; }
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline void sync_warp() { emu::shuffle(emu::Op::shuffle_xor, 0, 1); }
inline int atomic_increment(int* counter) { return (*counter)++; }
inline bool any_of(bool value) {
  int found = value;
  for (int d = 16; d; d /= 2) found |= emu::shuffle(emu::Op::shuffle_xor, found, d);
  return found;
}
#pragma GCC pop_options
