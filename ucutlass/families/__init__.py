"""Recognition: which kernel family serves a typed kernel, and in which form."""

from __future__ import annotations

from typing import TypeAlias

from ucutlass import ir
from ucutlass.families.gemm import GemmForm, recognise_gemm
from ucutlass.families.products import ProductsForm, is_products, recognise_products
from ucutlass.families.refuse import Refused, find
from ucutlass.families.sweep import SweepForm, recognise_sweep

__all__ = ["Form", "GemmForm", "ProductsForm", "Refused", "SweepForm", "recognise"]

Form: TypeAlias = GemmForm | ProductsForm | SweepForm
"""What a kernel is, as its family sees it."""


def recognise(kernel: ir.Kernel) -> Form:
    """The family's form of a kernel.

    Raises Refused with the diagnostic: UC0300 where a family is missing so far, UC03xx where
    one launch cannot do it.
    """
    match find(kernel, ir.Dot):
        case []:
            return recognise_sweep(kernel)
        case dots if is_products(kernel, dots):
            return recognise_products(kernel, dots)
        case [dot]:
            return recognise_gemm(kernel, dot)
        case dots:
            raise Refused.no_family(kernel, f"a kernel with {len(dots)} dots")
