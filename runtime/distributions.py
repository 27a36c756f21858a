"""What numbers the arguments of a verified run hold (`ucutlass.runtime.draws` draws them). Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

Distribution: TypeAlias = Literal[
    "integer",
    "residue",
    "residue_rows",
    "residue_columns",
    "normal",
    "uniform",
    "large",
    "small",
    "positive",
    "negated",
    "zeros",
    "one_hot",
    "powers",
    "wide",
    "denormal",
    "special",
]

MEANINGS: Mapping[Distribution, str] = MappingProxyType(
    {
        "integer": "small whole numbers, sparse where needed, whose dots nothing rounds: equal bitwise; in long "
        "products ±1 and few ±2",
        "residue": "integer, but 0 outside the last, partial tile of the summed dimensions",
        "residue_rows": "integer, but 0 outside the last, partial tile of the result's rows",
        "residue_columns": "integer, but 0 outside the last, partial tile of the result's columns",
        "normal": "mean 0, variance 1; in long products near ±1",
        "uniform": "from -1 to 1",
        "large": "3 times normal",
        "small": "0.01 times normal",
        "positive": "4 to 8: a large mean, sums without cancellation",
        "negated": "-8 to -4: what relu cuts and a clamp ends",
        "zeros": "0 everywhere",
        "one_hot": "a single 1 in each row of the last axis",
        "powers": "powers of two of both signs, as wide as the element reaches, at most 2**-8 to 2**8",
        "wide": "normal times such powers of two",
        "denormal": "numbers below the element's smallest normal one; a dot's right operand is integer",
        "special": "normal with an infinity of each sign and a NaN in every tensor",
    }
)
"""`large`, `small` and `negated` are the hidden set of KernelBench-Verified (normal negated would be
normal, so the one-sided numbers are). `positive` and `negated` shrink by a power of two where a long
dot would leave f16."""

DISTRIBUTIONS: tuple[Distribution, ...] = tuple(d for d in MEANINGS if d != "special")
"""Those of finite numbers only."""

EXACT: frozenset[Distribution] = frozenset({"integer", "residue", "residue_rows", "residue_columns"})
"""Whole numbers, drawn with the summed length in mind by `ucutlass.runtime.inputs`."""

ELEMENTWISE: frozenset[Distribution] = frozenset(
    {"normal", "uniform", "large", "small", "positive", "negated", "zeros", "powers", "wide", "denormal"}
)
"""Those of floats in which an element is drawn without regard to where it lies."""

CORE: frozenset[Distribution] = frozenset({"integer", "normal", "uniform"})
"""A program must be judged on these. Others strain it, some programs so much that no kernel of theirs can be
judged there: the softmax of scores that lie closer than their rounding, say, or rows of zeros over their norm."""

FAN_IN: frozenset[Distribution] = frozenset({"normal", "uniform", "large", "small"})
"""Those in which a pipeline's weights shrink with the length of their sums (`ucutlass.runtime.fan_in`)."""
