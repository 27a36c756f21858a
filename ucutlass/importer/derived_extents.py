"""Extents that follow from others: what two imports of one graph say differently, as a formula.

An import works on a number for each symbol of the graph's shapes. A number that differs between two imports,
(1010, 2004), is a formula of symbols, `s0 + 1`, where the graph's own shapes have it, or where it is one of
them and a constant. In the text the symbol becomes the name of a parameter's axis that has its extent:
`U=L+1` for the extent of a name, `size(L) + 1` for a number in an expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeAlias

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Call, Name, Number
from ucutlass.importer.expressions import add, binary, mul, sub

Pair: TypeAlias = tuple[int, int]
"""A number of both imports."""

MOST_OFFSET = 1 << 16
"""The largest constant that a formula adds to an extent of the graph."""


class NoFormula(Exception):
    """A number depends on symbols in a way that the text cannot say."""


@dataclass(frozen=True, slots=True)
class Formulas:
    """What numbers of two imports are: `symbols` has the pair of each symbol, `extents` a formula for each pair
    that the graph's shapes have, None where two formulas come to the same pair."""

    symbols: Mapping[Pair, Any]
    extents: Mapping[Pair, Any]

    @property
    def firsts(self) -> dict[int, int]:
        """The number of the first import for each of the second."""
        return {second: first for first, second in self.extents}

    def of(self, pair: Pair) -> Any:
        """Returns the formula of a number, a sympy expression. Raises NoFormula."""
        if pair in self.extents:
            exact = self.extents[pair]
            if exact is None:
                raise NoFormula(f"{pair[0]} is several extents at once")
            return exact
        shifted = [
            formula + sympy.Integer(pair[0] - a)
            for (a, b), formula in self.extents.items()
            if formula is not None and pair[0] - a == pair[1] - b and abs(pair[0] - a) <= MOST_OFFSET
        ]
        if len({sympy.expand(formula) for formula in shifted}) != 1:
            raise NoFormula(f"{pair[0]} is no extent of the graph and a constant")
        return shifted[0]


def formulas(
    symbols: Sequence[Any], extents: Iterable[Any], numbers: Sequence[Mapping[Any, Any]]
) -> Formulas:
    """Returns the formulas of a graph: its symbols, its symbolic extents as sympy expressions, and the number of
    each symbol in both imports."""
    first, second = numbers
    own = {(int(first[s]), int(second[s])): s for s in symbols}
    table: dict[Pair, Any] = dict(own)
    for extent in extents:
        values = [extent.subs(numbers) for numbers in (first, second)]
        if any(value.free_symbols for value in values):
            continue
        pair = int(values[0]), int(values[1])
        earlier = table.setdefault(pair, extent)
        if earlier is not None and sympy.expand(earlier - extent) != 0:
            table[pair] = None
    return Formulas(own, table)


def with_formulas(first: syntax.File, other: syntax.File, table: Formulas) -> syntax.File:
    """Returns the program of two imports with a formula for each number that differs. Raises NoFormula."""
    if len(first.items) != len(other.items):
        raise NoFormula("the imports have different kernels")
    pairs = zip(first.items, other.items, strict=True)
    return replace(first, items=tuple(_FormulaWriter(table).program(a, b) for a, b in pairs))


@dataclass(slots=True)
class _FormulaWriter:
    """One program. `roots` has the name of an axis that has each symbol's extent."""

    table: Formulas
    roots: dict[Any, str] = field(default_factory=dict)

    in_parameters: bool = False

    def program(self, first: Any, other: Any) -> Any:
        if not isinstance(first, syntax.Program) or not isinstance(other, syntax.Program):
            raise NoFormula("the imports have different kernels")
        self.in_parameters = True
        params = self._common(first.params, other.params)
        self.in_parameters = False
        return replace(self._common(replace(first, params=()), replace(other, params=())), params=params)

    def _common(self, first: Any, other: Any) -> Any:
        match first, other:
            case ((syntax.NamedAxis() | syntax.BracketName()), _) if (
                _same_name(first, other) and first != other
            ):
                return replace(first, extent=self._extent(first, other))
            case Number(value=int(a)), Number(value=int(b)) if a != b:
                return self._formula(self.table.of((a, b)), in_type=False)
            case tuple(), tuple() if len(first) == len(other):
                return tuple(self._common(a, b) for a, b in zip(first, other, strict=True))
            case _ if first == other:
                return first
            case _ if is_dataclass(first) and not isinstance(first, type) and type(first) is type(other):
                changed = {
                    f.name: self._common(getattr(first, f.name), getattr(other, f.name))
                    for f in fields(first)
                    if f.compare
                }
                return replace(first, **changed)
            case _:
                raise NoFormula("the program depends on an extent")

    def _extent(self, first: Any, other: Any) -> syntax.Expr | None:
        """Returns the extent of a name; None for the first of a parameter's axes that has a symbol's, which each
        call brings."""
        match first.extent, other.extent:
            case Number(value=int(a)), Number(value=int(b)):
                symbol = self.table.symbols.get((a, b))
                if self.in_parameters and symbol is not None and symbol not in self.roots:
                    self.roots[symbol] = first.name
                    return None
                return self._formula(self.table.of((a, b)), in_type=True)
            case _:
                raise NoFormula(f"the extent of {first.name} is given in one import alone")

    def _formula(self, formula: Any, in_type: bool) -> syntax.Expr:
        match formula:
            case sympy.Integer():
                return Number(int(formula)) if formula >= 0 else sub(0, int(-formula))
            case sympy.Symbol():
                if formula not in self.roots:
                    raise NoFormula("no axis of a parameter before has the extent")
                name = self.roots[formula]
                return Name(name) if in_type else Call("size", None, (syntax.Argument(Name(name)),))
            case sympy.Add():
                return self._sum(sorted(formula.args, key=_order), in_type)
            case sympy.Mul():
                factors = [self._formula(part, in_type) for part in sorted(formula.args, key=_order)]
                product = factors[0]
                for factor in factors[1:]:
                    product = mul(product, factor)
                return product
            case FloorDiv() | Mod() | PythonMod():
                left, right = (self._formula(part, in_type) for part in formula.args)
                return binary("//" if isinstance(formula, FloorDiv) else "%", left, right)
            case _:
                raise NoFormula(f"{formula} cannot be said")

    def _sum(self, parts: Sequence[Any], in_type: bool) -> syntax.Expr:
        """Returns a sum that begins with a part that is added."""
        added = [part for part in parts if not part.could_extract_minus_sign()]
        if not added:
            raise NoFormula("an extent is below zero")
        total = self._formula(added[0], in_type)
        for part in added[1:]:
            total = add(total, self._formula(part, in_type))
        for part in parts:
            if part.could_extract_minus_sign():
                total = sub(total, self._formula(-part, in_type))
        return total


def _same_name(first: Any, other: Any) -> bool:
    return type(first) is type(other) and first.name == other.name


def _order(part: Any) -> tuple[bool, str]:
    """Symbols come before numbers in a sum, numbers before symbols in no product."""
    return bool(part.is_Integer), str(part)
