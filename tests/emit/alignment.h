// What g++ calls where an access is not aligned to its type (-fsanitize=alignment): says which, and ends the launch.
// A thread's own variables are left out: what CUTLASS reinterprets there lies in registers on a GPU.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cuda_runtime.h>

/// Of the emulator that includes this: whether an address is the running thread's own variable; ends the launch.
bool emulated_local(uintptr_t address);
void emulated_fault(cudaError_t error);

#if defined(EMULATED_ONCE) || defined(EMULATOR_THREADS)
extern "C" {
struct ucc_misaligned_access {  // as libubsan's TypeMismatchData
  char const* file;
  uint32_t line, column;
  struct { uint16_t kind, info; char name[1]; } const* type;
  uint8_t log_alignment, kind;
};

__attribute__((used)) void __ubsan_handle_type_mismatch_v1(ucc_misaligned_access* access, uintptr_t address) {
  if (emulated_local(address)) return;
  static char const* const kinds[] = {"load", "store", "reference", "member access", "member call"};
  fprintf(stderr, "misaligned %s at %s:%u: %s needs %u bytes, the address is %p\n", kinds[access->kind < 5 ? access->kind : 0],
          access->file, access->line, access->type->name, 1u << access->log_alignment, reinterpret_cast<void*>(address));
  emulated_fault(cudaErrorMisalignedAddress);
}
}
#endif
