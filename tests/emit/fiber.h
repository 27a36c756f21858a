// The stacks of emulated threads, and how one goes on from another. swapcontext saves the mask of signals as well, by two
// system calls, which cost more than the arithmetic of an emulated kernel.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void emulated_switch(void** from, void* to);
#if defined(EMULATED_ONCE) || defined(EMULATOR_THREADS)
// What a callee keeps is saved on its stack (System V ABI, AMD64, 3.2.1).
extern "C" __attribute__((naked, noinline)) void emulated_switch(void**, void*) {
  asm("pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
      "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
      "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret");
}
#endif
namespace fiber {
struct Context { void* stack = nullptr; };
/// The first switch to the context calls `start`, which does not return.
inline void prepare(Context& context, char* stack, size_t bytes, void (*start)()) {
  auto const top = reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(stack) + bytes) / 16 * 16);
  for (int i = 1; i <= 8; ++i) top[-i] = 0;
  top[-2] = reinterpret_cast<uint64_t>(start);  // below it are six registers; above, where a caller's address would be
  context.stack = top - 8;
}
inline void exchange(Context& from, Context& to) { emulated_switch(&from.stack, to.stack); }
}  // namespace fiber
#else
#include <ucontext.h>
namespace fiber {
struct Context { ucontext_t context; };
inline void prepare(Context& context, char* stack, size_t bytes, void (*start)()) {
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = stack; context.context.uc_stack.ss_size = bytes; context.context.uc_link = nullptr;
  makecontext(&context.context, start, 0);
}
inline void exchange(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
}  // namespace fiber
#endif
