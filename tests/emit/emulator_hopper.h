// The device functions of attention on the host, in place of those that hold PTX: TMA, mbarriers, named
// barriers and wgmma. Included inside the kernel's namespace, after its constants; `emulator.h` stands
// before it. What is asynchronous happens as late as it may: a copy when someone waits for it, a product
// when its warp does, a store when its thread does. So what is read too early, or overwritten, shows.
// Layouts are those of the PTX manual (wgmma, matrix descriptor, 128-byte swizzle).

struct Barrier { int count = 0, left = 0, bytes = 0; uint32_t phase = 0; };
struct Copying { uint32_t barrier; int bytes; std::function<void()> run; };
struct Named { int arrived = 0; int generation = 0; };
inline std::map<uint32_t, Barrier> barriers;
inline std::vector<Copying> copying;
inline Named named[16];
inline std::map<emu::Fiber*, std::vector<std::function<void()>>> stores;
struct Products { std::vector<std::function<void()>> open; std::deque<std::vector<std::function<void()>>> groups; };
inline std::map<emu::Fiber*, Products> products;
inline int64_t idle = 0;

inline void spin() {
  if (++idle > 50000000) { fprintf(stderr, "deadlock: nothing waited for comes\n"); abort(); }
  emu::yield();
}
inline uint32_t swizzled(uint32_t at) { return at ^ ((at >> 3) & 0x70); }
inline uint16_t& element(uint32_t at) {
  if (at + 2 > emu::memory.size() - 2048) { fprintf(stderr, "shared memory: beyond its end\n"); abort(); }
  return *reinterpret_cast<uint16_t*>(emu::shared() + swizzled(at));
}
inline double lane_value(uint16_t bits) { return EMU_BF16 ? emu::bf16_bits(bits) : emu::half_bits(bits); }
inline uint32_t bits_of(float x, bool bf16) {
  return bf16 ? uint32_t(cutlass::bfloat16_t(x).raw()) : uint32_t(cutlass::half_t(x).raw());
}

inline uint32_t address(void const* p) { return uint32_t(static_cast<uint8_t const*>(p) - emu::shared()); }
inline bool elected() { return threadIdx.x % 32 == 0; }
inline void barrier_init(uint32_t barrier, int arrivals) { barriers[barrier] = {arrivals, arrivals, 0, 0}; }
inline void barriers_fence() {}
inline void settle_barrier(Barrier& b) {
  if (b.left < 0) { fprintf(stderr, "a barrier has too many arrivals\n"); abort(); }
  if (b.left == 0 && b.bytes == 0) { b.phase ^= 1; b.left = b.count; idle = 0; }
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (barriers.at(barrier).phase == parity) {
    bool ran = false;
    for (size_t i = 0; i < copying.size(); ++i) {
      if (copying[i].barrier != barrier) continue;
      auto const one = copying[i];
      copying.erase(copying.begin() + i--);
      one.run();
      barriers.at(barrier).bytes -= one.bytes;
      ran = true;
    }
    if (ran) settle_barrier(barriers.at(barrier)); else spin();
  }
}
inline void barrier_arrive(uint32_t barrier) { auto& b = barriers.at(barrier); --b.left; settle_barrier(b); }
inline void barrier_expect(uint32_t barrier, int bytes) { auto& b = barriers.at(barrier); b.bytes += bytes; --b.left; settle_barrier(b); }

inline int arrive_named(int id, int count) {
  auto& b = named[id];
  int const generation = b.generation;
  if (++b.arrived == count) { b.arrived = 0; ++b.generation; idle = 0; }
  return generation;
}
template <int kId, int kCount> void threads_sync(int offset) {
  int const id = kId + offset, generation = arrive_named(id, kCount);
  while (named[id].generation == generation) spin();
}
template <int kId, int kCount> void threads_arrive(int offset) { arrive_named(kId + offset, kCount); }

inline void multiply_fence() {}
inline void multiply_commit() { auto& p = products[emu::current]; p.groups.push_back(std::move(p.open)); p.open.clear(); }
template <int kLeft> void multiply_wait() {
  auto& p = products[emu::current];
  while (int(p.groups.size()) > kLeft) {
    for (auto& run : p.groups.front()) run();
    p.groups.pop_front();
  }
  emu::shuffle(emu::Op::shuffle_xor, 0, 1);  // the others of the warp have read this lane's registers, too
}
template <int kCount> void keep(float (&)[kCount]) {}
inline float exp2_ftz(float x) { float y = exp2f(x); return y < 0x1p-126f ? 0.0f : y; }
inline float reciprocal(float x) { return 1.0f / x; }
inline uint32_t pack(float low, float high) { return bits_of(low, EMU_BF16) | bits_of(high, EMU_BF16) << 16; }
inline uint32_t pack_out(float low, float high) { return bits_of(low, EMU_OUT_BF16) | bits_of(high, EMU_OUT_BF16) << 16; }
inline void settle(float sum, uint32_t) { if (sum < 0) { fprintf(stderr, "a sum of exponentials below 0\n"); abort(); } }
template <int kCount> void fewer_registers() {}
template <int kCount> void more_registers() {}

inline uint64_t descriptor(uint32_t lower) { return uint64_t(64u | 1u << 30) << 32 | lower; }
inline uint32_t matrix(uint32_t shared, int leading) {
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
template <int kKeeps> void multiply_qk(float (&s)[kScores], uint64_t q, uint64_t k) {
  int const thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
  products[emu::current].open.push_back([&s, q, k, row, column] {
    double a[2][16];
    for (int r = 0; r < 2; ++r) for (int i = 0; i < 16; ++i) a[r][i] = along_k(q, row + 8 * r, i);
    for (int at = 0; at < kScores; ++at) {
      double sum = kKeeps ? s[at] : 0.0f;
      int const n = at / 4 * 8 + column + at % 2;
      for (int i = 0; i < 16; ++i) sum += a[at / 2 % 2][i] * along_k(k, n, i);
      s[at] = float(sum);
    }
  });
}
inline void multiply_pv(float (&o)[kOutcomes], uint32_t const* p, uint64_t v, int keeps) {
  uint32_t const* of[4];
  for (int i = 0; i < 4; ++i) of[i] = reinterpret_cast<uint32_t const*>(emu::shuffle(emu::Op::shuffle_from, reinterpret_cast<uint64_t>(p), i, 4));
  int const column = threadIdx.x % 4 * 2;
  std::array<uint32_t const*, 4> const words = {of[0], of[1], of[2], of[3]};
  products[emu::current].open.push_back([&o, words, v, keeps, column] {
    double a[2][16];
    for (int c = 0; c < 4; ++c) for (int w = 0; w < 4; ++w) for (int e = 0; e < 2; ++e)
      a[w % 2][w / 2 * 8 + 2 * c + e] = lane_value(uint16_t(words[c][w] >> (16 * e)));
    for (int at = 0; at < kOutcomes; ++at) {
      double sum = keeps ? o[at] : 0.0f;
      int const n = at / 4 * 8 + column + at % 2;
      for (int i = 0; i < 16; ++i) sum += a[at / 2 % 2][i] * across_k(v, n, i);
      o[at] = float(sum);
    }
  });
}

template <class... C> void copy(CUtensorMap const& map, uint32_t barrier, uint32_t to, C... coordinates) {
  int const first[] = {int(coordinates)...};
  if (first[0] % 8) { fprintf(stderr, "a TMA load that does not begin at 16 bytes of its innermost axis\n"); abort(); }
  emu::Box const box = emu::box_of(map, {coordinates...});
  copying.push_back({barrier, box.rows * 128, [box, to] {
    for (int r = 0; r < box.rows; ++r) for (int c = 0; c < 64; ++c) {
      uint16_t const* from = box.at(c, r);
      element(to + r * 128 + c * 2) = from ? *from : 0;
    }
  }});
}
template <class... C> void copy_out(CUtensorMap const& map, uint32_t from, C... coordinates) {
  emu::Box const box = emu::box_of(map, {coordinates...});
  stores[emu::current].push_back([box, from] {
    for (int r = 0; r < box.rows; ++r) for (int c = 0; c < 64; ++c)
      if (uint16_t* to = box.at(c, r)) *to = element(from + r * 128 + c * 2);
  });
}
inline void copies_commit() {}
inline void copies_fence() {}
inline void copies_read() { for (auto& run : stores[emu::current]) run(); stores[emu::current].clear(); }
inline void copies_done() { copies_read(); }
inline void store_matrix(uint32_t to, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  // Lane i holds words i of four 8 x 8 matrices; lane 8 * j + r says where row r of matrix j goes.
  uint32_t const words[4] = {r0, r1, r2, r3};
  int const lane = threadIdx.x % 32;
  for (int j = 0; j < 4; ++j) {
    uint32_t const row = emu::shuffle(emu::Op::shuffle_from, to, 0);  // keeps the warp together
    (void)row;
    uint32_t targets[8];
    for (int r = 0; r < 8; ++r) targets[r] = emu::shuffle(emu::Op::shuffle_from, to, 8 * j + r);
    memcpy(emu::shared() + targets[lane / 4] + lane % 4 * 4, &words[j], 4);
  }
}
inline void shared_write(uint32_t to, int value) { memcpy(emu::shared() + to, &value, 4); }
inline int shared_read(uint32_t from) { int value; memcpy(&value, emu::shared() + from, 4); return value; }
inline void let_next_begin() {}
inline void wait_for_launch() {}
inline void warp_together() { emu::shuffle(emu::Op::shuffle_xor, 0, 1); }
inline int counted(int* counter) { return (*counter)++; }
inline bool any_of(bool value) {
  int found = value;
  for (int d = 16; d; d /= 2) found |= emu::shuffle(emu::Op::shuffle_xor, found, d);
  return found;
}
