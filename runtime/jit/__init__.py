"""Builds kernels with NVRTC and nvJitLink: a skeleton is compiled once, an epilogue's arithmetic is
linked into it."""
