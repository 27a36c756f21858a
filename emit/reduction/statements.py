"""Statements that a reduction's passes are made of: scopes, results before they are narrowed, indentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ucutlass.emit.arithmetic import convert, kind_of, rounded
from ucutlass.emit.reduction.writer import stored_cpp
from ucutlass.ir.elements import Element
from ucutlass.kernels.arithmetic import ScalarKind
from ucutlass.kernels.reduction.plan import ReductionOutput


def indented(lines: Iterable[str]) -> Iterable[str]:
    depth = 1
    for line in lines:
        closing = len(line) - len(line.lstrip("}"))
        shown = depth - closing
        depth += line.count("{") - line.count("}")
        yield line if line.startswith("#") else "  " * max(1, shown) + line


def scope(lines: list[str]) -> list[str]:
    """A block in which items are the elements at a row's ends."""
    return ["{", "constexpr int kVector = 1, kItems = kEnds;", *lines, "}"] if lines else []


def peeled(item: list[str], loads: list[str]) -> list[str]:
    return scope(["#pragma unroll", "for (int i = 0; i < kItems; ++i) {", *item, *loads, "}"])


def wide(o: ReductionOutput) -> str:
    """What a result is before it is narrowed: floats are rounded a vector at a time."""
    return "float" if o.elem.kind == "float" else stored_cpp(o.elem)


def zeros(j: int, o: ReductionOutput) -> list[str]:
    """Result j of a thread that may have none."""
    return [f"Pack<{wide(o)}, kVector> wide{j};", f"wide{j} = splat<kVector>({wide(o)}(0));"]


def narrowed(elem: Element, value: str, kind: ScalarKind) -> str:
    """A value as it is stored, but for floats, which are rounded a vector at a time."""
    match elem.kind:
        case "float":
            return convert(value, kind, kind_of(elem))
        case "bool":
            return f"uint8_t({convert(value, kind, kind_of(elem))})"
        case "int":
            return f"{elem.cpp}({rounded(value, kind, elem)})"


def whole_or_not(condition: str, inside: Sequence[str]) -> list[str]:
    """Returns the statements twice: with a constant `whole` where the condition holds, and without."""
    parts = [("if (" + condition + ") {", "true"), ("} else {", "false")]
    return [*(x for start, value in parts for x in (start, f"constexpr bool whole = {value};", *inside)), "}"]


def over_items(item: Sequence[str], inside: Sequence[str]) -> list[str]:
    """Returns the statements for each item that is there."""
    return ["#pragma unroll", "for (int i = 0; i < kItems; ++i) {", *item, "if (ok) {", *inside, "}", "}"]


def ahead_of(statements: Sequence[str], beginning: str, statement: str) -> list[str]:
    """Returns the statements with another ahead of the first one that begins so, at the end where none does."""
    places = (n for n, line in enumerate(statements) if line.startswith(beginning))
    first = next(places, len(statements))
    return [*statements[:first], statement, *statements[first:]]
