// The device functions of a reduction's ring on the host, in place of those that hold PTX: mbarriers and bulk copies.
// Included inside the kernel's namespace; `emulator.h` stands before it. A copy happens as late as it may, when someone
// waits for it, so that what is read too early shows, and what is overwritten too early does when it is read.

inline void mbarrier_init(uint64_t* barrier, int arrivals) { emu::init_barrier(barrier, arrivals); }
inline void fence_mbarrier_init() {}
inline void fence_proxy_async() {}
inline void mbarrier_arrive(uint64_t* barrier) { emu::arrive(barrier, 0); }
inline void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) { emu::arrive(barrier, bytes); }
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) { emu::wait_for_copies(barrier, parity); }
inline void cp_async_bulk(void* smem, void const* source, uint32_t bytes, uint64_t* barrier) {
  if (uintptr_t(smem) % 16 || uintptr_t(source) % 16 || bytes % 16 || bytes == 0) {
    fprintf(stderr, "cp.async.bulk of %u bytes from %p to %p\n", bytes, source, smem);
    emu::fault(cudaErrorMisalignedAddress);
  }
  uint8_t* const target = static_cast<uint8_t*>(smem);
  if (target < emu::shared() || target + bytes > emu::shared() + emu::memory.size() - 1024) { fprintf(stderr, "cp.async.bulk target\n"); abort(); }
  memset(target, 0xff, bytes);  // the hardware may write at any time from now on
  emu::copy_later(barrier, int(bytes), [=] { memcpy(target, source, bytes); });
}
inline void cp_async_bulk_retained(void* smem, void const* source, uint32_t bytes, uint64_t* barrier) { cp_async_bulk(smem, source, bytes, barrier); }
inline void sync_warp() { emu::shuffle(emu::Op::shuffle_xor, 0, 1); }

