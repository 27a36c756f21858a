// The bodies of what `emulator.h` declares: compiled once, into an object that every emulated kernel is linked with.
#pragma once
namespace emu {
Fiber::Fiber() = default;
Fiber::Fiber(Fiber&&) noexcept = default;
Fiber& Fiber::operator=(Fiber&&) noexcept = default;
Fiber::~Fiber() = default;
uint8_t* shared() { return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 1023) / 1024 * 1024); }
[[noreturn]] void fault(cudaError_t error) {
#ifndef EMULATOR_THREADS  // else blocks that wait for this one would wait forever
  if (current != nullptr) {
    failure = error;
    fiber::exchange(current->context, scheduler);
  }
#endif
  abort();
}
void check_global(void const* target) {
  auto const* const at = static_cast<uint8_t const*>(target);
  if (at >= shared() && at < memory.data() + memory.size()) { fprintf(stderr, "global store to shared memory\n"); fault(cudaErrorInvalidAddressSpace); }
}
void yield() { fiber::exchange(current->context, scheduler); }
int arrive_named(int id, int count) {
  Named& b = named_barriers[id];
  int const generation = b.generation;
  if (++b.arrived == count) { b.arrived = 0; ++b.generation; }
  return generation;
}
void sync_named(int id, int count) {
  for (int const generation = arrive_named(id, count); named_barriers[id].generation == generation;) yield();
}
void barrier() {
  if (++at_barrier == int(fibers.size()) - ended) { at_barrier = 0; for (auto& f : fibers) f.ready = true; return; }
  current->ready = false; yield();
}
float half_bits(uint16_t h) {
  static std::vector<float> const all = [] {
    std::vector<float> made(1 << 16);
    for (int i = 0; i < 1 << 16; ++i) made[i] = float(cutlass::half_t::bitcast(uint16_t(i)));
    return made;
  }();
  return all[h];
}
float bf16_bits(uint16_t h) { uint32_t b = uint32_t(h) << 16; float f; memcpy(&f, &b, 4); return f; }
uint16_t to_half(float f) { return cutlass::half_t(f).raw(); }
void execute(Fiber* lanes) {
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
void execute_mma(Fiber* lanes) {
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
void collective(Request& request) {
  current->request = &request;
  int const warp = current->index / 32;
  if (++arrived[warp] == 32) {
    execute(&fibers[warp * 32]); arrived[warp] = 0;
    for (int i = 0; i < 32; ++i) fibers[warp * 32 + i].ready = true;
    return;
  }
  current->ready = false; yield();
}
uint64_t shuffle_bits(Op op, uint64_t value, int distance, int width) {
  uint64_t out = 0;
  Request r{op, ""}; r.in[0] = &value; r.out[0] = &out; r.distance = distance; r.width = width;
  collective(r);
  return out;
}
void ldmatrix(bool trans, void const* row, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  Request r{trans ? Op::ldmatrix_trans : Op::ldmatrix, ""};
  r.in[0] = row; r.out[0] = &a; r.out[1] = &b; r.out[2] = &c; r.out[3] = &d;
  collective(r);
}
void close(Groups& groups) { groups.closed.push_back(std::move(groups.open)); groups.open.clear(); }
void wait(Groups& groups, int left) {
  while (int(groups.closed.size()) > left) { for (auto& f : groups.closed.front()) f(); groups.closed.pop_front(); }
}
void spin() {
  if (++idle > 50000000) { fprintf(stderr, "deadlock: nothing waited for comes\n"); abort(); }
  yield();
}
struct Barrier { int count, left; int64_t bytes; uint32_t phase; };
struct BulkCopy { void const* barrier; int bytes; std::function<void()> run; };
static EMULATED_LOCAL std::map<void const*, Barrier> barriers;
static EMULATED_LOCAL std::vector<BulkCopy> bulk_copies;
static void complete_phase(Barrier& b) {
  if (b.left < 0) { fprintf(stderr, "a barrier has too many arrivals\n"); abort(); }
  if (b.left == 0 && b.bytes == 0) { b.phase ^= 1; b.left = b.count; idle = 0; }
}
void init_barrier(void const* barrier, int arrivals) { barriers[barrier] = {arrivals, arrivals, 0, 0}; }
void arrive(void const* barrier, int64_t bytes) { auto& b = barriers.at(barrier); b.bytes += bytes; --b.left; complete_phase(b); }
void complete_bytes(void const* barrier, int64_t bytes) { auto& b = barriers.at(barrier); b.bytes -= bytes; complete_phase(b); }
uint32_t phase_of(void const* barrier) { return barriers.at(barrier).phase; }
void wait_for_copies(void const* barrier, uint32_t parity) {
  static EMULATED_LOCAL int64_t waits = 0;
  int64_t const own = ++waits;
  while (phase_of(barrier) == parity) {
    bool ran = false;
    for (size_t i = 0; i < bulk_copies.size(); ++i) {
      if (bulk_copies[i].barrier != barrier) continue;
      auto const copy = bulk_copies[i];
      bulk_copies.erase(bulk_copies.begin() + i--);
      copy.run();
      barriers.at(barrier).bytes -= copy.bytes;
      ran = true;
    }
    if (ran) complete_phase(barriers.at(barrier));
    else {
      current->waiting = own;  // for what another block of the cluster sends, perhaps
      spin();
    }
  }
  current->waiting = 0;
}
void copy_later(void const* barrier, int bytes, std::function<void()> copy) { bulk_copies.push_back({barrier, bytes, std::move(copy)}); }
CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, cuuint64_t const* sizes, cuuint64_t const* bytes,
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
Box box_of(CUtensorMap const& map, std::initializer_list<int> from) {
  Box box = {}; memcpy(&box.map, &map, sizeof(TensorMap)); box.rows = box.map.rows;
  if (int(from.size()) != box.map.rank) { fprintf(stderr, "a copy of another rank than its descriptor\n"); abort(); }
  std::copy(from.begin(), from.end(), box.from);
  return box;
}
void start() {
  body();
  current->done = true; current->ready = false;
  // A barrier waits for no thread that has ended.
  if (++ended < int(fibers.size()) && at_barrier > 0 && at_barrier == int(fibers.size()) - ended) {
    at_barrier = 0;
    for (auto& f : fibers) f.ready = !f.done;
  }
  fiber::exchange(current->context, scheduler);
}
void begin_block(int threads) {
  // Where a caller launches by itself, threads stand in one line.
  unsigned const wide = int(blockDim.x * blockDim.y) == threads ? blockDim.x : unsigned(threads);
  fibers.resize(threads); at_barrier = ended = 0; named_barriers = {}; arrived.assign((threads + 31) / 32, 0);
  std::fill(memory.begin(), memory.end(), uint8_t(0xff)); ++blocks;
  for (int i = 0; i < threads; ++i) {
    Fiber& f = fibers[i];
    if (!f.stack) f.stack.reset(new char[kStack]);
    f.tid = uint3{unsigned(i) % wide, unsigned(i) / wide, 0}; f.index = i; f.done = false; f.ready = true; f.waiting = 0; f.copies = f.products = {}; f.stores.clear();
    fiber::prepare(f.context, f.stack.get(), kStack, start);
  }
}
bool run_threads() {
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
void end_block() {
  for (auto& f : fibers) if (!f.done) { fprintf(stderr, "deadlock\n"); abort(); }
}
void run_block(int threads) {
  begin_block(threads);
  run_threads();
  if (failure == cudaSuccess) end_block();
}
Block::Block() = default;
Block::Block(Block&&) noexcept = default;
Block& Block::operator=(Block&&) noexcept = default;
Block::~Block() = default;
void register_variable(Variable variable) {
  auto const known = [&](Variable const& v) { return v.data == variable.data; };
  if (!cluster.empty() && std::none_of(variables.begin(), variables.end(), known)) variables.push_back(variable);
}
Block::Copy& Block::copy(size_t variable) {
  if (copies.size() < variables.size()) copies.resize(variables.size());
  copies[variable].bytes.resize(variables[variable].size);
  return copies[variable];
}
void Block::exchange() {
  std::swap(fibers, emu::fibers); std::swap(memory, emu::memory); std::swap(arrived, emu::arrived);
  std::swap(at_barrier, emu::at_barrier); std::swap(ended, emu::ended); std::swap(blocks, emu::blocks);
  for (size_t i = 0; i < variables.size(); ++i) {
    auto& [bytes, block] = copy(i);
    std::swap_ranges(bytes.begin(), bytes.end(), variables[i].data); std::swap(block, *variables[i].block);
  }
}
void wait_for_cluster() { ++at_cluster_barrier; current->ready = false; yield(); }
void* of_rank(void const* place, int rank) {
  uint8_t* const first = shared();
  if (rank == rank_in_cluster) return const_cast<void*>(place);
  for (size_t i = 0; i < variables.size(); ++i) {
    size_t const offset = static_cast<uint8_t const*>(place) - variables[i].data;
    if (offset >= variables[i].size) continue;
    auto& [bytes, block] = cluster[rank].copy(i);
    if (block != cluster[rank].blocks) { block = cluster[rank].blocks; std::fill(bytes.begin(), bytes.end(), uint8_t(0xff)); }
    return bytes.data() + offset;
  }
  auto const other = (reinterpret_cast<uintptr_t>(cluster[rank].memory.data()) + 1023) / 1024 * 1024;
  return reinterpret_cast<uint8_t*>(other) + (static_cast<uint8_t const*>(place) - first);
}
void run_cluster(std::function<uint3(unsigned)> const& at, int size, int threads, size_t bytes) {
  cluster = std::vector<Block>(size);
  auto const each = [&](auto const& work) {
    for (rank_in_cluster = 0; rank_in_cluster < size; ++rank_in_cluster) {
      blockIdx = at(unsigned(rank_in_cluster));
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
  cluster.clear(); variables.clear(); at_cluster_barrier = 0;
}
cudaError_t run_clusters(cudaLaunchConfig_t const* c, int size) {
  gridDim = c->gridDim; blockDim = c->blockDim;
  for (unsigned x = 0; x < gridDim.x && failure == cudaSuccess; x += size) {
    auto const at = [&](unsigned rank) { return uint3{x + rank, 0, 0}; };
    run_cluster(at, std::min(size, int(gridDim.x - x)), int(blockDim.x), c->dynamicSmemBytes);
  }
  return failure.exchange(cudaSuccess);
}
cudaError_t run_columns(cudaLaunchConfig_t const* c, int size) {
  gridDim = c->gridDim; blockDim = c->blockDim;
  if (int(gridDim.y) != size) { fprintf(stderr, "clusters of %d in a grid of %u\n", size, gridDim.y); abort(); }
  for (unsigned x = 0; x < gridDim.x && failure == cudaSuccess; ++x) {
    auto const at = [&](unsigned rank) { return uint3{x, rank, 0}; };
    run_cluster(at, size, int(blockDim.x * blockDim.y), c->dynamicSmemBytes);
  }
  return failure.exchange(cudaSuccess);
}
cudaError_t run_blocks(cudaLaunchConfig_t const* c) {
  for (unsigned i = 0; i < c->numAttrs; ++i) {
    auto const& [id, pad, value] = c->attrs[i];
    if (id == cudaLaunchAttributeClusterDimension && value.clusterDim.y > 1) return run_columns(c, int(value.clusterDim.y));
  }
  gridDim = c->gridDim; blockDim = c->blockDim;
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
void emulated_fault(cudaError_t error) { emu::fault(error); }
bool emulated_local(uintptr_t address) { return emu::current != nullptr && address - uintptr_t(emu::current->stack.get()) < emu::kStack; }
