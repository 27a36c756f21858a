"""Symbolic shapes: one program for every extent.

The importer works on numbers. A graph with symbolic shapes is imported twice, with two different primes for
each symbol. Where the two programs differ in nothing but the extents of their parameters, those extents are
free: nothing in the program depends on them. Where a stored value's extent follows from theirs, it is left
out too. Where anything else differs, it is written as a formula of the parameters' extents
(`ucutlass.importer.derived_extents`), and where there is none, the program holds for one shape alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeAlias

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode

from ucutlass import ir
from ucutlass.check import check_tree
from ucutlass.grammar import syntax
from ucutlass.importer.derived_extents import Formulas, NoFormula, formulas, with_formulas
from ucutlass.ir.extents import Fixed, evaluate
from ucutlass.shapes import free_dims

Extents: TypeAlias = Callable[[Any], int]
"""An extent of a fake tensor, a number or symbolic, to the number that stands for it."""

PRIMES = ((1009, 1019, 1031, 1049, 1061, 1087, 1093, 1103), (2003, 2017, 2027, 2039, 2053, 2081, 2089, 2111))
"""What stands for symbols, in the two imports. Far from each other and from ordinary extents, and no product of
two of them is a third."""


class DependsOnExtents(Exception):
    """A program would hold for one shape alone."""


@dataclass(frozen=True, slots=True)
class StandIns:
    """A number for each symbol of a graph's shapes."""

    numbers: Mapping[Any, int]

    def __call__(self, extent: Any) -> int:
        """Returns the number of an extent. Raises DependsOnExtents where a symbol has none."""
        if isinstance(extent, int):
            return extent
        value = extent.node.expr.subs(self.numbers)
        if value.free_symbols:
            raise DependsOnExtents(f"the extent {extent} has symbols that no shape gives")
        return int(value)


FIXED = StandIns({})


def symbols_of(values: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the symbols in the shapes of fake tensors and among symbolic numbers, in order of appearance."""
    symbols: dict[Any, None] = {}
    for extent in _symbolic(values):
        symbols |= dict.fromkeys(sorted(extent.node.expr.free_symbols, key=str))
    return tuple(symbols)


def _symbolic(values: Iterable[Any]) -> Iterator[torch.SymInt]:
    """Yields the symbolic extents and strides of fake tensors, and symbolic numbers, without the lengths of nested ones."""
    for value in values:
        match value:
            case torch.Tensor() if value.layout == torch.strided:
                extents: tuple[Any, ...] = (*value.shape, *value.stride())
            case torch.Tensor():
                extents = tuple(value.shape)
            case _:
                extents = (value,)
        yield from (n for n in extents if isinstance(n, torch.SymInt) and isinstance(n.node, SymNode))


SMALL = tuple(int(n) for n in sympy.primerange(11, 256))
"""What stands for symbols where the larger primes are more than an extent can be, or than a kernel computes."""


def stand_ins(symbols: Sequence[Any]) -> tuple[StandIns, StandIns]:
    """Returns the numbers of both imports. Raises DependsOnExtents for more symbols than there are primes."""
    if len(symbols) > len(PRIMES[0]):
        raise DependsOnExtents(f"{len(symbols)} symbolic extents; at most {len(PRIMES[0])} are served")
    first, second = (
        StandIns({s: sympy.Integer(n) for s, n in zip(symbols, primes, strict=False)}) for primes in PRIMES
    )
    return first, second


def small_stand_ins(symbols: Sequence[Any], values: Iterable[Any]) -> tuple[StandIns, StandIns]:
    """Returns smaller numbers for both imports of a graph of these fake tensors and numbers: none is an extent of
    its own, nor more than the symbol may be. Raises DependsOnExtents where there are too few."""
    values = list(values)
    extents = [n for v in values for n in (v.shape if isinstance(v, torch.Tensor) else (v,))]
    symbolic = list(_symbolic(values))
    excluded = {n + more for n in extents if isinstance(n, int) for more in (-1, 0, 1)}
    first: dict[Any, Any] = {}
    second: dict[Any, Any] = {}
    for symbol in symbols:
        environment = next(n.node.shape_env for n in symbolic if symbol in n.node.expr.free_symbols)
        bounds = environment.var_to_range[symbol]
        free = [n for n in SMALL if n not in excluded and bounds.lower <= n <= bounds.upper]
        if len(free) < 2:
            raise DependsOnExtents(f"no two numbers stand for the extent {symbol}")
        # Not next to each other: windows over them are of different widths.
        low, high = free[len(free) // 2 - 1], free[-1]
        first[symbol], second[symbol] = sympy.Integer(low), sympy.Integer(high)
        excluded |= {low, high}
    return StandIns(first), StandIns(second)


def formulas_of(values: Iterable[Any], numbers: Sequence[StandIns]) -> Formulas:
    """Returns what numbers in two imports of a graph are, by the fake tensors and numbers in it."""
    values = list(values)
    extents = {
        extent.node.expr: None
        for value in values
        for extent in (value.shape if isinstance(value, torch.Tensor) else (value,))
        if isinstance(extent, torch.SymInt)
    }
    return formulas(symbols_of(values), extents, [stand_in.numbers for stand_in in numbers])


def with_free_extents(first: syntax.File, other: syntax.File, table: Formulas | None = None) -> syntax.File:
    """Returns the program that two imports agree on, where they do not by themselves with formulas of a table.
    Raises DependsOnExtents."""
    try:
        return _agreed(_tied(_common(first, other, typed=False), first, other), first, other)
    except DependsOnExtents:
        if table is None:
            raise
    try:
        return _agreed(with_formulas(first, other, table), first, other)
    except NoFormula as problem:
        raise DependsOnExtents(str(problem)) from problem


def _agreed(tree: syntax.File, first: syntax.File, other: syntax.File) -> syntax.File:
    """Returns a program with free extents that at those of both imports is what they say. Raises
    DependsOnExtents."""
    module, diagnostics = check_tree(tree)
    if errors := [d for d in diagnostics if d.severity == "error"]:
        raise DependsOnExtents(f"without extents: {errors[0].message} [{errors[0].code}]")
    for item, program in zip(tree.items, module.programs, strict=True):
        assert isinstance(item, syntax.Program)
        brought = {name for param in item.params for name in _names(param.type.axes)}
        if unknown := sorted(set(free_dims(program)) - brought):
            raise DependsOnExtents(f"no parameter has the extent of {unknown[0]}")
    for imported in (first, other):
        fixed, _ = check_tree(imported)
        for free_program, fixed_program in zip(module.programs, fixed.programs, strict=True):
            _same_extents(free_program, fixed_program)
    return tree


def _names(axes: Any) -> list[str]:
    """Returns the names in a type's axes."""
    match axes:
        case syntax.NamedAxis(name=name):
            return [name]
        case syntax.CompositeAxis(parts=parts):
            return _names(parts)
        case tuple():
            return [name for axis in axes for name in _names(axis)]
        case _:
            return []


def _same_extents(free: ir.Program, fixed: ir.Program, outer: Mapping[str, int] = {}) -> None:
    """What a program's free names come to at an import's extents is what that import said of every other name.
    `outer` are the sizes of the names of the program that calls this one. Raises DependsOnExtents."""
    sizes = {name: extent.value for name, extent in fixed.dims.items() if isinstance(extent, Fixed)}
    for name, extent in free.dims.items():
        try:
            follows = name not in sizes or evaluate(extent, {**sizes, **outer}) == sizes[name]
        except (KeyError, ZeroDivisionError) as problem:
            raise DependsOnExtents(f"the extent of {name} is not known") from problem
        if not follows:
            raise DependsOnExtents(f"the extent of {name} would not follow the inputs'")
    if isinstance(free, ir.Pipeline) and isinstance(fixed, ir.Pipeline):
        for mine, theirs in zip(free.stages, fixed.stages, strict=True):
            if isinstance(mine.call, ir.Kernel) and isinstance(theirs.call, ir.Kernel):
                _same_extents(mine.call, theirs.call, sizes)


def _tied(tree: syntax.File, first: syntax.File, other: syntax.File) -> syntax.File:
    """Returns the program that two imports have in common, which says of names of its parameters that have one extent
    in both that they are as long in every call (`M=K`): one is then read in the other's place."""
    items = zip(tree.items, first.items, other.items, strict=True)
    return replace(
        tree,
        items=tuple(
            replace(mine, params=_Ties().of(mine.params, a.params, b.params))
            if isinstance(mine, syntax.Program)
            and isinstance(a, syntax.Program)
            and isinstance(b, syntax.Program)
            else mine
            for mine, a, b in items
        ),
    )


@dataclass(slots=True)
class _Ties:
    """`names` has the first name of each pair of extents."""

    names: dict[tuple[Any, Any], str] = field(default_factory=dict)

    def of(self, mine: Any, first: Any, other: Any) -> Any:
        match mine:
            case syntax.NamedAxis(name=name) if first.extent != other.extent:
                tied = self.names.setdefault((first.extent, other.extent), name)
                return mine if tied == name else replace(mine, extent=syntax.Name(tied))
            case tuple():
                return tuple(self.of(*each) for each in zip(mine, first, other, strict=True))
            case syntax.Param():
                return replace(mine, type=self.of(mine.type, first.type, other.type))
            case syntax.TypeExpr() | syntax.CompositeAxis():
                changed = "axes" if isinstance(mine, syntax.TypeExpr) else "parts"
                inside = (getattr(each, changed) for each in (mine, first, other))
                return replace(mine, **{changed: self.of(*inside)})
            case _:
                return mine


def _common(first: Any, other: Any, typed: bool) -> Any:
    match first, other:
        case syntax.NamedAxis(name=name), syntax.NamedAxis(name=same) if name == same and typed:
            return first if first == other else replace(first, extent=None)
        case syntax.BracketName(name=name), syntax.BracketName(name=same) if name == same:
            return first if first == other else replace(first, extent=None)
        case tuple(), tuple() if len(first) == len(other):
            return tuple(_common(a, b, typed) for a, b in zip(first, other, strict=True))
        case _ if first == other:
            return first
        case _ if is_dataclass(first) and not isinstance(first, type) and type(first) is type(other):
            inside = typed or isinstance(first, syntax.Param | syntax.Target)
            changed = {
                field.name: _common(getattr(first, field.name), getattr(other, field.name), inside)
                for field in fields(first)
                if field.compare
            }
            return replace(first, **changed)
        case _:
            raise DependsOnExtents("the program depends on an extent")
