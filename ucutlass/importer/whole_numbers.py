"""Keeps the low bits of whole numbers that are made narrower, as PyTorch does: the language saturates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from ucutlass.grammar.syntax import Binary, Call, Expr, Literal_, Name, Number, Unary
from ucutlass.importer.expressions import add, binary, sub

Bounds: TypeAlias = tuple[int, int]

RANGES: Mapping[str, Bounds] = MappingProxyType(
    {
        "bool": (0, 1),
        "u8": (0, 2**8 - 1),
        "s8": (-(2**7), 2**7 - 1),
        "i32": (-(2**31), 2**31 - 1),
        "i64": (-(2**63), 2**63 - 1),
    }
)
"""The least and the largest number of each element that holds whole ones."""


def wrapped(body: Expr, element: str, operands: Sequence[str]) -> Expr:
    """Returns the body of a value of `element`, computed of operands of these elements, with its low bits alone where
    it is a whole number that 8 bits may not hold."""
    if element not in ("s8", "u8") or not operands or any(own not in RANGES for own in operands):
        return body
    low, high = RANGES[element]
    bounds = _bounds(body, {f"x{i}": RANGES[own] for i, own in enumerate(operands)})
    if bounds is not None and low <= bounds[0] and bounds[1] <= high:
        return body
    return low_bits(body, element)


def low_bits(body: Expr, element: str) -> Expr:
    """Returns the number of an element that has the low bits of a whole one."""
    low, high = RANGES[element]
    count = high - low + 1
    return binary("%", body, count) if low == 0 else sub(binary("%", add(body, -low), count), -low)


def _bounds(body: Expr, names: Mapping[str, Bounds]) -> Bounds | None:
    """Returns between which numbers a body of whole ones is, None where nothing says so."""
    match body:
        case Number(int() as value):
            return value, value
        case Literal_("true" | "false") | Unary("not", _):
            return RANGES["bool"]
        case Binary("or" | "and" | "<" | "<=" | ">" | ">=" | "==" | "!=", _, _):
            return RANGES["bool"]
        case Name(name):
            return names.get(name)
        case Unary("-", inner):
            bounds = _bounds(inner, names)
            return None if bounds is None else (-bounds[1], -bounds[0])
        case Binary("%", _, Number(int() as count)) if count > 0:
            return 0, count - 1
        case Binary(op, left, right):
            return _combined(op, _bounds(left, names), _bounds(right, names))
        case Call(callee, None, _) if callee in RANGES:
            return RANGES[callee]
        case Call("sign", None, _):
            return -1, 1
        case Call("min" | "max" | "clamp" | "where" as callee, None, arguments):
            values = [_bounds(a.value, names) for a in arguments[callee == "where" :]]
            return _of_function(callee, values)
    return None


def _combined(op: str, left: Bounds | None, right: Bounds | None) -> Bounds | None:
    """Returns the bounds of a sum, a difference, a product, or a quotient by a number above 0."""
    if left is None or right is None:
        return None
    match op:
        case "+":
            return left[0] + right[0], left[1] + right[1]
        case "-":
            return left[0] - right[1], left[1] - right[0]
        case "*":
            products = [x * y for x in left for y in right]
            return min(products), max(products)
        case "//" if right[0] > 0:
            return min(left[0] // n for n in right), max(left[1] // n for n in right)
    return None


def _of_function(callee: str, values: Sequence[Bounds | None]) -> Bounds | None:
    """Returns the bounds of `min`, `max`, `clamp`, or of either value of `where`."""
    bounds = [value for value in values if value is not None]
    if len(bounds) < len(values):
        return None
    lows, highs = [low for low, _ in bounds], [high for _, high in bounds]
    match callee:
        case "min":
            return min(lows), min(highs)
        case "max":
            return max(lows), max(highs)
        case "clamp":
            return min(lows[1:]), max(highs[1:])
    return min(lows), max(highs)
