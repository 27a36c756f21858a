"""Decides which form of a function a kernel may use: the accurate one, or a fast one with a relative error of
2**-16.

`ucutlass.emit.arithmetic` takes the fast forms where a value only ever reaches a rounding to 16 bits or
fewer, through functions that preserve relative errors. Here the same rule is applied to the typed program; it
covers at least the emitter's cases.
"""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass.ir import Apply, Cast, Dot, Reduce, Softmax, Value, children
from ucutlass.ir.elements import Element
from ucutlass.ir.traversal import upwards

FAST_UNITS = 2.0**-16 / 2.0**-24
"""The relative error of a fast form, in units of f32's round-off."""

_KEEPING: frozenset[str] = frozenset(
    {
        "multiply",
        "divide",
        "negate",
        "abs",
        "where",
        "min",
        "max",
        "clamp",
        "hardtanh",
        "relu",
        "leaky_relu",
        "sqrt",
        "rsqrt",
    }
)


def lenient(roots: Sequence[Value], stored: Sequence[Element]) -> frozenset[Value]:
    """Returns the values that may use fast forms; `stored` is the element type that each root is rounded
    to."""
    order = list(upwards(*roots))
    strict = {r for r, elem in zip(roots, stored, strict=True) if not _coarse(elem)}
    for node in reversed(order):
        match node:
            case Cast(elem=elem) if _coarse(elem):
                continue
            case Cast(elem=elem) if elem.kind == "float":
                keeps = True
            case Apply(function=function):
                keeps = function in _KEEPING
            case Reduce(op="max" | "min"):
                keeps = True
            case _:
                keeps = False
        if node in strict or not keeps:
            strict.update(children(node))
    return frozenset(order) - strict


def early_rounded(roots: Sequence[Value]) -> frozenset[Value]:
    """Returns the casts of a softmax that a dot sums: attention rounds the exponentials before it divides the
    dot by their sum."""
    dots = (node for node in upwards(*roots) if isinstance(node, Dot))
    casts = (x for dot in dots for x in (dot.left, dot.right) if isinstance(x, Cast))
    return frozenset(x for x in casts if isinstance(x.value, Softmax) and not x.value.log)


def _coarse(elem: Element) -> bool:
    return elem.kind == "float" and elem.bits <= 16
