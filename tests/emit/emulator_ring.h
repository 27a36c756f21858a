// The device functions of a reduction's ring on the host, in place of those that hold PTX: mbarriers and bulk copies.
// Included inside the kernel's namespace; `emulator.h` stands before it. A copy happens as late as it may, when someone
// waits for it, so that what is read too early shows, and what is overwritten too early does when it is read.

struct Barrier { int count = 0, left = 0, bytes = 0; uint32_t phase = 0; };
struct Copying { uint64_t* barrier; int bytes; std::function<void()> run; };
inline EMULATED_LOCAL std::map<uint64_t*, Barrier> barriers;
inline EMULATED_LOCAL std::vector<Copying> copying;
inline EMULATED_LOCAL int64_t idle = 0;

inline void complete_phase(Barrier& b) {
  if (b.left < 0) { fprintf(stderr, "a barrier has too many arrivals\n"); abort(); }
  if (b.left == 0 && b.bytes == 0) { b.phase ^= 1; b.left = b.count; idle = 0; }
}
inline void mbarrier_init(uint64_t* barrier, int arrivals) { barriers[barrier] = {arrivals, arrivals, 0, 0}; }
inline void fence_mbarrier_init() {}
inline void fence_proxy_async() {}
inline void mbarrier_arrive(uint64_t* barrier) { auto& b = barriers.at(barrier); --b.left; complete_phase(b); }
inline void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  auto& b = barriers.at(barrier);
  b.bytes += int(bytes); --b.left; complete_phase(b);
}
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
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
    if (ran) { complete_phase(barriers.at(barrier)); continue; }
    if (++idle > 50000000) { fprintf(stderr, "deadlock: nothing waited for comes\n"); abort(); }
    emu::yield();
  }
}
inline void cp_async_bulk(void* smem, void const* source, uint32_t bytes, uint64_t* barrier) {
  if (uintptr_t(smem) % 16 || uintptr_t(source) % 16 || bytes % 16 || bytes == 0) {
    fprintf(stderr, "cp.async.bulk of %u bytes from %p to %p\n", bytes, source, smem);
    emu::fault(cudaErrorMisalignedAddress);
  }
  uint8_t* const target = static_cast<uint8_t*>(smem);
  if (target < emu::shared() || target + bytes > emu::shared() + emu::memory.size() - 1024) { fprintf(stderr, "cp.async.bulk target\n"); abort(); }
  memset(target, 0xff, bytes);  // the hardware may write at any time from now on
  copying.push_back({barrier, int(bytes), [=] { memcpy(target, source, bytes); }});
}
inline void cp_async_bulk_retained(void* smem, void const* source, uint32_t bytes, uint64_t* barrier) { cp_async_bulk(smem, source, bytes, barrier); }
inline void sync_warp() { emu::shuffle(emu::Op::shuffle_xor, 0, 1); }

