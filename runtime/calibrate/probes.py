"""Defines the probes of `ucc calibrate`: torch's fastest ways to copy, read and multiply.

Tensors hold random numbers: zeros draw less power, clock higher and reach what no data reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ucutlass.runtime.calibrate.ceilings import CeilingProbe

ProbeLaunch: TypeAlias = Callable[[], object]
ProductShape: TypeAlias = tuple[int, int, int]
"""M, N and K."""

MakeProductLaunch: TypeAlias = Callable[[str, ProductShape], ProbeLaunch]
"""Allocates on a device and gives the launch."""


@dataclass(frozen=True, slots=True)
class ProbeSizes:
    """`memory` bytes of each buffer that is copied or read; `products` are M, N, K of matrix products."""

    memory: int
    products: tuple[ProductShape, ...]


def sizes_for(l2: int, free: int) -> ProbeSizes:
    """Returns buffers of 2 GiB or an eighth of the free memory, and at least sixteen L2s, so that what is
    left in the L2 does not count; products large enough for many waves on any GPU."""
    memory = max(16 * l2, min(2 * 2**30, free // 8)) // 4096 * 4096
    return ProbeSizes(memory, ((4096,) * 3, (8192,) * 3, (8192, 8192, 16384), (16384, 8192, 4096)))


def torch_probes(sizes: ProbeSizes, device: str) -> list[CeilingProbe]:
    """Returns the probes that torch alone can run, copy and read first, then compute type by compute type."""
    memory = [*_copies(sizes.memory, device), *_reads(sizes.memory, device)]
    return memory + [
        CeilingProbe(compute_type, f"{name} {m}x{n}x{k}", 2.0 * m * n * k, _bind(make, device, (m, n, k)))
        for compute_type, name, make in _PRODUCTS
        for m, n, k in sizes.products
    ]


def _bind(make: MakeProductLaunch, device: str, shape: ProductShape) -> Callable[[], ProbeLaunch]:
    return lambda: make(device, shape)


# --- memory -----------------------------------------------------------------------


def _copies(size: int, device: str) -> list[CeilingProbe]:
    """Each byte is read and written."""

    def two() -> tuple[torch.Tensor, torch.Tensor]:
        source = torch.randn(size // 4, device=device)
        return source, torch.empty_like(source)

    def by_copy() -> ProbeLaunch:
        source, target = two()
        return lambda: target.copy_(source)

    def by_kernel() -> ProbeLaunch:
        source, target = two()
        return lambda: torch.mul(source, 1.5, out=target)

    return [
        CeilingProbe("copy", "Tensor.copy_", 2.0 * size, by_copy),
        CeilingProbe("copy", "torch.mul with a number", 2.0 * size, by_kernel),
    ]


def _reads(size: int, device: str) -> list[CeilingProbe]:
    def by_sum() -> ProbeLaunch:
        source = torch.randn(size // 4, device=device)
        return lambda: torch.sum(source)

    def by_rows() -> ProbeLaunch:
        source = torch.randn(size // 4, device=device).view(-1, 1024)
        return lambda: torch.amax(source, dim=1)

    return [
        CeilingProbe("read", "torch.sum", float(size), by_sum),
        CeilingProbe("read", "torch.amax over rows of 1024", float(size), by_rows),
    ]


# --- matrix products --------------------------------------------------------------


def _operands(dtype: torch.dtype, device: str, shape: ProductShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `[M, K]` and `[K, N]`, both contiguous in K: the layout that every compute type supports."""
    m, n, k = shape
    if dtype == torch.int8:
        a, b = (torch.randint(-128, 128, (rows, k), dtype=dtype, device=device) for rows in (m, n))
    else:
        a, b = (torch.randn(rows, k, device=device).to(dtype) for rows in (m, n))
    return a, b.t()


def _mm(dtype: torch.dtype) -> MakeProductLaunch:
    def make(device: str, shape: ProductShape) -> ProbeLaunch:
        a, b = _operands(dtype, device, shape)
        out = torch.empty(shape[0], shape[1], dtype=dtype, device=device)
        return lambda: torch.mm(a, b, out=out)

    return make


@contextmanager
def _tf32(allowed: bool) -> Any:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _mm_f32(tf32: bool) -> MakeProductLaunch:
    def make(device: str, shape: ProductShape) -> ProbeLaunch:
        plain = _mm(torch.float32)(device, shape)

        def launch() -> object:
            with _tf32(tf32):
                return plain()

        return launch

    return make


def _scaled(left: str, right: str) -> MakeProductLaunch:
    """torch._scaled_mm: cuBLASLt's fp8 product with one scale for each operand, result bf16."""

    def make(device: str, shape: ProductShape) -> ProbeLaunch:
        m, n, k = shape
        a = torch.randn(m, k, device=device).to(getattr(torch, left))
        b = torch.randn(n, k, device=device).to(getattr(torch, right)).t()
        unit_scale = torch.ones((), device=device)
        return lambda: torch._scaled_mm(
            a, b, scale_a=unit_scale, scale_b=unit_scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return make


def _int8(device: str, shape: ProductShape) -> ProbeLaunch:
    a, b = _operands(torch.int8, device, shape)
    return lambda: torch._int_mm(a, b)


_PRODUCTS: Sequence[tuple[str, str, MakeProductLaunch]] = (
    ("f16", "torch.mm float16", _mm(torch.float16)),
    ("bf16", "torch.mm bfloat16", _mm(torch.bfloat16)),
    ("tf32", "torch.mm float32, TF32 allowed", _mm_f32(True)),
    ("f32", "torch.mm float32", _mm_f32(False)),
    ("e4m3", "torch._scaled_mm e4m3", _scaled("float8_e4m3fn", "float8_e4m3fn")),
    ("e5m2", "torch._scaled_mm e5m2 by e4m3", _scaled("float8_e5m2", "float8_e4m3fn")),
    ("s8", "torch._int_mm", _int8),
)
"""Lane, name, and what makes the launch."""
