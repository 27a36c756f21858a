"""Element types as CUDA's own C++ types, each with the one header that it needs.

CUTLASS's types of the same elements take nvcc three of the four seconds in which it builds a reduction. Rounding
is the same: to nearest, ties to even, one conversion instruction a pair; the 8-bit floats saturate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ucutlass.ir.elements import TF32, Element


@dataclass(frozen=True, slots=True)
class CudaType:
    """A float narrower than f32, of `bytes`. PTX rounds two at once to its type `pair` where __CUDA_ARCH__ is
    `arch` or more."""

    cpp: str
    bytes: int
    header: str
    pair: str
    arch: int


CUDA_TYPES: Mapping[str, CudaType] = MappingProxyType(
    {
        "f16": CudaType("__half", 2, "<cuda_fp16.h>", "f16x2", 800),
        "bf16": CudaType("__nv_bfloat16", 2, "<cuda_bf16.h>", "bf16x2", 800),
        "e4m3": CudaType("__nv_fp8_e4m3", 1, "<cuda_fp8.h>", "e4m3x2", 890),
        "e5m2": CudaType("__nv_fp8_e5m2", 1, "<cuda_fp8.h>", "e5m2x2", 890),
    }
)
"""By the element's name; the other elements are plain C++ types."""

TENSOR_FLOAT = "TensorFloat"
"""The C++ type of tf32, which never lies in memory: the kernel's own."""


def plain(elem: Element) -> Element:
    """The element with a C++ type that is none of CUTLASS's."""
    if elem == TF32:
        return replace(elem, cpp=TENSOR_FLOAT)
    spelling = CUDA_TYPES.get(elem.name)
    return elem if spelling is None else replace(elem, cpp=spelling.cpp)


def types_of(elems: Iterable[Element]) -> tuple[CudaType, ...]:
    """The types of the elements that need one, in the table's order."""
    names = {elem.name for elem in elems}
    return tuple(cuda_type for name, cuda_type in CUDA_TYPES.items() if name in names)
