"""Element types: the one table that the checker, the emitters and the guide read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["float", "int", "bool"]


@dataclass(frozen=True, slots=True)
class Element:
    """An element type.

    `bits` is its size in memory; those of 4 bits lie two a byte along the innermost axis, the first in
    the low bits. `mantissa` counts the fraction bits with the implicit one, so the unit round-off is
    2**-mantissa; 0 for integers. `cpp` is the CUTLASS type, `torch` the attribute of the torch module,
    for several a byte that of their bytes. `storable` is False for tf32, which is a way to round an
    operand of `dot` and never lies in memory.
    """

    name: str
    kind: Kind
    bits: int
    mantissa: int
    cpp: str
    torch: str
    storable: bool = True

    @property
    def bytes(self) -> int:
        """Bytes an element takes in memory; only for elements of whole bytes."""
        return self.bits // 8

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the largest value of an integer type."""
        signed = self.name != "u8"
        return (-(2 ** (self.bits - 1)) if signed else 0), 2 ** (self.bits - signed) - 1

    @property
    def packed(self) -> int:
        """Values that a unit of memory holds: more than 1 where several lie in a byte."""
        return max(1, 8 // self.bits)


F64 = Element("f64", "float", 64, 53, "double", "float64")
F32 = Element("f32", "float", 32, 24, "float", "float32")
TF32 = Element("tf32", "float", 32, 11, "cutlass::tfloat32_t", "float32", storable=False)
F16 = Element("f16", "float", 16, 11, "cutlass::half_t", "float16")
BF16 = Element("bf16", "float", 16, 8, "cutlass::bfloat16_t", "bfloat16")
E4M3 = Element("e4m3", "float", 8, 4, "cutlass::float_e4m3_t", "float8_e4m3fn")
E5M2 = Element("e5m2", "float", 8, 3, "cutlass::float_e5m2_t", "float8_e5m2")
S8 = Element("s8", "int", 8, 0, "int8_t", "int8")
U8 = Element("u8", "int", 8, 0, "uint8_t", "uint8")
S4 = Element("s4", "int", 4, 0, "cutlass::int4b_t", "uint8")
I32 = Element("i32", "int", 32, 0, "int32_t", "int32")
I64 = Element("i64", "int", 64, 0, "int64_t", "int64")
BOOL = Element("bool", "bool", 8, 0, "bool", "bool")

ELEMENTS: Mapping[str, Element] = MappingProxyType(
    {e.name: e for e in (F64, F32, TF32, F16, BF16, E4M3, E5M2, S8, U8, S4, I32, I64, BOOL)}
)
