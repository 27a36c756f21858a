// Functions of an emulator are compiled once, into an object that every emulated kernel is linked with: for a kernel's
// own unit g++ may inline them and writes none (gnu_inline). `EMULATED_ONCE` is defined where that object is compiled
// (host_compiler.py). Blocks side by side have thread-local variables, and a unit with all of it.
#pragma once
#if defined(EMULATED_ONCE)
#define EMULATED
#elif defined(EMULATOR_THREADS)
#define EMULATED inline
#else
#define EMULATED inline __attribute__((gnu_inline))
#endif
