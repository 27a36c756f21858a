// The bodies of what `hopper.h` declares: compiled once, into an object that every emulated kernel is linked with.
#pragma once
namespace hopper {
void meet(int key, int count) {
  Meeting& m = meetings[key]; uint64_t const round = m.round; ++changes;
  if (++m.arrived == count) { m.arrived = 0; ++m.round; return; }
  while (m.round == round) yield();
}
void box(Map const& m, uint32_t to, int rank, int const (&c)[4], bool load) {
  for (uint32_t j = 0; j < m.box[1]; ++j) for (uint32_t i = 0; i < m.box[0]; ++i) {
    int64_t const x = int64_t(c[0]) + i, y = int64_t(c[1]) + j, z = c[2], w = c[3];
    bool const inside = x >= 0 && y >= 0 && z >= 0 && x < int64_t(m.extent[0]) && y < int64_t(m.extent[1]) && z < int64_t(m.extent[2]) && w >= 0 && w < int64_t(m.extent[3]);
    uint8_t* const s = shared(rank) + swizzled(to + (j * m.box[0] + i) * m.size, m.swizzle);
    uint8_t* const g = m.address + x * m.size + y * int64_t(m.stride[1]) + z * int64_t(m.stride[2]) + w * int64_t(m.stride[3]);
    if (load) {
      if (inside) memcpy(s, g, m.size); else memset(s, 0, m.size);
      if (m.type == 11) { uint32_t w; memcpy(&w, s, 4); w = tf32(w); memcpy(s, &w, 4); }
    } else if (inside) memcpy(g, s, m.size);
  }
}
void load(void const* d, void const* barrier, uint32_t mask, void* smem, int x, int y, int z, int w) {
  Map const& m = map(d); ++epoch; int const c[4] = {x, y, z, w};
  if (offset(smem) % 128) fail("a TMA target is not at 128 bytes");
  if (x * m.size % 16) fail("a TMA load does not begin at 16 bytes of its innermost axis");
  for (int rank = 0; rank < int(memories.size()); ++rank) if (mask >> rank & 1) {
    box(m, offset(smem), rank, c, true);
    Barrier& b = at(barrier, rank); b.tx -= int32_t(m.box[0] * m.box[1] * m.size); settle(b);
  }
}
CUresult encode(void* map, int type, cuuint32_t rank, void* address, cuuint64_t const* extents, cuuint64_t const* strides,
                       cuuint32_t const* box, cuuint32_t const*, int, int swizzle, int, int) {
  static_assert(sizeof(Map) <= 128);
  Map m{}; m.type = type; m.size = type == 0 ? 1 : type == 1 ? 2 : 4; m.address = static_cast<uint8_t*>(address); m.swizzle = swizzle;
  for (auto& extent : m.extent) extent = 1;
  m.box[0] = box[0]; m.box[1] = box[1];
  for (int i = 0; i < int(rank); ++i) { m.extent[i] = extents[i]; m.stride[i] = i ? strides[i - 1] : m.size; if (i && (m.stride[i] % 16 || box[i] > 256)) return CUDA_ERROR_INVALID_VALUE; }
  int const width = int(box[0]) * m.size, widest = swizzle == 3 ? 128 : swizzle == 2 ? 64 : swizzle == 1 ? 32 : 256;
  if (uintptr_t(address) % 16 || width > widest || width % 16) return CUDA_ERROR_INVALID_VALUE;
  memcpy(map, &m, sizeof m); return CUDA_SUCCESS;
}
double element(uint8_t const* p, Lane lane) {
  switch (lane) {
    case Lane::f16: { uint16_t h; memcpy(&h, p, 2); return double(float(cutlass::half_t::bitcast(h))); }
    case Lane::bf16: { uint16_t h; memcpy(&h, p, 2); uint32_t b = uint32_t(h) << 16; float f; memcpy(&f, &b, 4); return f; }
    case Lane::tf32: { uint32_t w; memcpy(&w, p, 4); w &= 0xffffe000u; float f; memcpy(&f, &w, 4); return f; }
    case Lane::e4m3: return double(float(cutlass::float_e4m3_t::bitcast(*p)));
    case Lane::e5m2: return double(float(cutlass::float_e5m2_t::bitcast(*p)));
    case Lane::s8: return double(int8_t(*p));
    default: return double(*p);
  }
}
std::vector<double> const& decode(uint64_t d, int rows, int k, Lane lane, bool across) {
  static Decoded cache[64]; static int next = 0;
  for (auto& c : cache) if (c.key == d && c.when == epoch && c.rank == current->rank && c.rows == rows) return c.value;
  Decoded& c = cache[next++ % 64]; c.key = d; c.when = epoch; c.rank = current->rank; c.rows = rows; c.value.resize(rows * k);
  uint32_t const start = uint32_t(d & 0x3fff) << 4, leading = uint32_t(d >> 16 & 0x3fff) << 4, stride = uint32_t(d >> 32 & 0x3fff) << 4;
  int const code = int(d >> 62), size = bytes(lane), width = code == 1 ? 128 : code == 2 ? 64 : 32, tma = code == 1 ? 3 : code == 2 ? 2 : 1;
  for (int r = 0; r < rows; ++r) for (int i = 0; i < k; ++i) {
    uint32_t const a = across ? start + r * size / width * leading + i / 8 * stride + i % 8 * width + r * size % width
                              : start + r / 8 * stride + r % 8 * width + i * size;
    c.value[r * k + i] = element(shared(current->rank) + swizzled(a, tma), lane);
  }
  return c.value;
}
void stmatrix(bool across, uint32_t to, uint32_t const (&r)[4]) {
  if (to % 16) fail("stmatrix address");
  uint32_t targets[32]; gather(to, targets);
  for (int m = 0; m < 4; ++m) {
    uint32_t all[32]; gather(r[m], all);
    if (current->index % 32 == 0) for (int l = 0; l < 32; ++l) for (int e = 0; e < 2; ++e) {
      int const row = across ? l % 4 * 2 + e : l / 4, column = across ? l / 4 : l % 4 * 2 + e;
      uint16_t const h = uint16_t(all[l] >> (16 * e));
      memcpy(shared(current->rank) + targets[m * 8 + row] + column * 2, &h, 2);
    }
  }
  meet(warp_key(), 32);
}
void run_cluster(int size, unsigned first, size_t bytes) {
  memories.assign(size, std::vector<uint8_t>(bytes + 2048, 0xff)); fibers.resize(size * threads);
  std::fill(meetings.begin(), meetings.end(), Meeting{});
  for (int i = 0; i < size * threads; ++i) {
    Fiber& f = fibers[i]; if (!f.stack) f.stack.reset(new char[kStack]); f.index = i % threads; f.rank = i / threads; f.done = false;
    f.tid = uint3{unsigned(f.index), 0, 0}; f.block = uint3{first + unsigned(f.rank), 0, 0};
    fiber::prepare(f.context, f.stack.get(), kStack, start);
  }
  bool turn = false;
  for (bool left = true; left;) {
    left = false; turn = !turn; uint64_t const before = changes;
    for (int i = 0; i < size * threads; ++i) {
      Fiber& f = fibers[turn ? i : size * threads - 1 - i];
      if (!f.done) { left = true; current = &f; blockIdx = f.block; fiber::exchange(scheduler, f.context); }
    }
    if (left && changes == before) fail("deadlock");
  }
}
}  // namespace hopper
