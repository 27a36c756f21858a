"""Symbolic shapes: one program for every extent.

The importer works on numbers. A graph with symbolic shapes is imported twice, with two different primes for
each symbol. Where the two programs differ in nothing but the extents of their parameters, those extents are
free: nothing in the program depends on them. Where a stored value's extent follows from theirs, it is left
out too. Where anything else differs, the program holds for one shape alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias

import sympy
import torch

from ucutlass import ir
from ucutlass.check import check_tree
from ucutlass.grammar import syntax
from ucutlass.ir.extents import Fixed, evaluate

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
    for value in values:
        match value:
            case torch.Tensor() if value.layout == torch.strided:
                extents: tuple[Any, ...] = (*value.shape, *value.stride())
            case torch.Tensor():
                extents = tuple(value.shape)
            case _:
                extents = (value,)
        for extent in extents:
            if isinstance(extent, torch.SymInt):
                symbols |= dict.fromkeys(sorted(extent.node.expr.free_symbols, key=str))
    return tuple(symbols)


def stand_ins(symbols: Sequence[Any]) -> tuple[StandIns, StandIns]:
    """Returns the numbers of both imports. Raises DependsOnExtents for more symbols than there are primes."""
    if len(symbols) > len(PRIMES[0]):
        raise DependsOnExtents(f"{len(symbols)} symbolic extents; at most {len(PRIMES[0])} are served")
    first, second = (
        StandIns({s: sympy.Integer(n) for s, n in zip(symbols, primes, strict=False)}) for primes in PRIMES
    )
    return first, second


def with_free_extents(first: syntax.File, other: syntax.File) -> syntax.File:
    """Returns the program that two imports agree on. Raises DependsOnExtents."""
    tree: syntax.File = _common(first, other, typed=False)
    module, diagnostics = check_tree(tree)
    if errors := [d for d in diagnostics if d.severity == "error"]:
        raise DependsOnExtents(f"without extents: {errors[0].message} [{errors[0].code}]")
    for imported in (first, other):
        fixed, _ = check_tree(imported)
        for free_program, fixed_program in zip(module.programs, fixed.programs, strict=True):
            _same_extents(free_program, fixed_program)
    return tree


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
