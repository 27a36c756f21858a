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

// Addresses in the shared memory of a cluster's blocks: where a place of this block is in that of a rank. What lies
// within kSpan bytes behind it has the numbers that follow.
struct Remote { void* place; int rank; };
constexpr uint32_t kSpan = 256;
inline std::vector<Remote>& remotes() { static std::vector<Remote> all; return all; }
inline uint32_t mapa(void const* pointer, uint32_t rank) {
  auto& all = remotes();
  auto const known = std::find_if(all.begin(), all.end(), [&](Remote const& r) { return r.place == pointer && r.rank == int(rank); });
  uint32_t const number = uint32_t(known - all.begin());
  if (known == all.end()) all.push_back({const_cast<void*>(pointer), int(rank)});
  return number * kSpan;
}
// Done when the other block waits for its barrier: its own variables stand at this place then.
template <class Word> void st_async(uint32_t address, Word word, uint32_t barrier) {
  auto const [place, rank] = remotes()[address / kSpan];
  auto const [counter, of] = remotes()[barrier / kSpan];
  uint8_t* const target = static_cast<uint8_t*>(place) + address % kSpan;
  emu::copy_later(emu::of_rank(counter, of), sizeof(Word), [=] { memcpy(target, &word, sizeof(Word)); });
}
