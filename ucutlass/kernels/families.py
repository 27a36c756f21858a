"""Recognition: which kernel family serves a typed kernel, and in which form."""

from __future__ import annotations

from typing import TypeAlias

from ucutlass import ir
from ucutlass.ir.traversal import find
from ucutlass.kernels.attention.match import AttentionForm, is_attention, recognise_attention
from ucutlass.kernels.convolution.match import ConvForm, as_gemm, is_convolution, recognise_convolution
from ucutlass.kernels.gemm.match import GemmForm, recognise_gemm
from ucutlass.kernels.grouped_gemm.match import ProductsForm, is_products, recognise_products
from ucutlass.kernels.reduction.match import SweepForm, recognise_sweep
from ucutlass.kernels.refused import Refused

__all__ = [
    "AttentionForm",
    "ConvForm",
    "Form",
    "GemmForm",
    "ProductsForm",
    "Refused",
    "SweepForm",
    "recognise",
]

Form: TypeAlias = GemmForm | ProductsForm | SweepForm | ConvForm | AttentionForm
"""What a kernel is, as its family sees it."""


def recognise(kernel: ir.Kernel) -> Form:
    """The family's form of a kernel.

    Raises Refused with the diagnostic: UC0300 where a family is missing so far, UC03xx where
    one launch cannot do it.
    """
    if is_convolution(kernel):
        found = recognise_convolution(kernel)
        return as_gemm(found) or found
    match find(kernel, ir.Dot):
        case []:
            return recognise_sweep(kernel)
        case dots if is_products(kernel, dots):
            return recognise_products(kernel, dots)
        case [dot]:
            return recognise_gemm(kernel, dot)
        case dots if is_attention(dots):
            return recognise_attention(kernel, dots)
        case dots:
            raise Refused.no_family(kernel, f"a kernel with {len(dots)} dots")
