"""Recognition: which kernel family serves a typed kernel, and in which form."""

from __future__ import annotations

from ucutlass import ir
from ucutlass.families.gemm import GemmForm, recognise_gemm
from ucutlass.families.refuse import Refused, find

__all__ = ["GemmForm", "Refused", "recognise"]


def recognise(kernel: ir.Kernel) -> GemmForm:
    """The family's form of a kernel.

    Raises Refused with the diagnostic: UC0300 where a family is missing so far, UC03xx where
    one launch cannot do it.
    """
    dots = find(kernel, ir.Dot)
    if len(dots) == 1:
        return recognise_gemm(kernel, dots[0])
    what = "no dot" if not dots else f"{len(dots)} dots"
    raise Refused.no_family(kernel, f"a kernel with {what}")
