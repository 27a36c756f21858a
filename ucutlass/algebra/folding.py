"""Divides a program into what depends on some parameters alone, which is computed once, and the rest.

Parameters that stay the same from call to call, such as weights, are named by the user: what is folded is right
only as long as they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.algebra.egraph import EGraph
from ucutlass.algebra.whole import WholeProgram
from ucutlass.algebra.writing import NotWritable, extent_expression
from ucutlass.grammar import syntax
from ucutlass.ir import Value, children
from ucutlass.ir.extents import Free
from ucutlass.ir.traversal import upwards


@dataclass(frozen=True, slots=True)
class FoldedPart:
    """One of the two programs: what it computes, over its own parameters, and its header, without a body."""

    whole: WholeProgram
    roots: Mapping[str, Value]
    header: syntax.Program


def depending_alone(roots: Iterable[Value], folded: frozenset[int]) -> frozenset[int]:
    """Returns the identities of the terms, of and below these, that depend on inputs, and on none but `folded`
    ones, by their index."""
    alone: set[int] = set()
    constant: set[int] = set()
    for term in upwards(*roots):
        parts = children(term)
        if isinstance(term, ir.ParamValue):
            if term.index in folded:
                alone.add(id(term))
        elif all(id(p) in alone or id(p) in constant for p in parts):
            (alone if any(id(p) in alone for p in parts) else constant).add(id(term))
    return frozenset(alone)


def divided(
    graph: EGraph, whole: WholeProgram, roots: Mapping[str, Value], folded: frozenset[int]
) -> tuple[FoldedPart, FoldedPart] | None:
    """Returns the program that is called once and the one that is called each time with its results; None where
    no more than parameters themselves depends on the folded ones alone. Raises NotWritable and Full."""
    program = whole.program
    if whole.kept:
        raise NotWritable("a stage calls a kernel or torch")
    tops = _tops(roots.values(), depending_alone(roots.values(), folded))
    if not tops:
        return None
    declared = {f"folded{n}": ir.ParamDecl(f"folded{n}", _type(top)) for n, top in enumerate(tops, 1)}
    if {*declared} & {*whole.inputs, *program.dims}:
        raise NotWritable("the program has names of its own like those of folded tensors")
    stops = {id(top): name for name, top in zip(declared, tops, strict=True)}
    rest = {v.index for v in _inputs(roots.values(), stops)}
    own = {v.index for v in _inputs(tops, {})}
    each = [p for i, p in enumerate(program.params) if i in rest or i not in folded]
    once = [p for i, p in enumerate(program.params) if i in own]
    results = _result_types(program)
    return (
        _part(
            graph, whole, f"{program.name}_folded", once, dict(zip(declared, tops, strict=True)), {}, declared
        ),
        _part(graph, whole, program.name, [*each, *declared.values()], roots, stops, results),
    )


def _part(
    graph: EGraph,
    whole: WholeProgram,
    name: str,
    params: Sequence[ir.ParamDecl],
    roots: Mapping[str, Value],
    stops: Mapping[int, str],
    results: Mapping[str, ir.ParamDecl],
) -> FoldedPart:
    index = {p.name: i for i, p in enumerate(params)}

    def moved(value: Value) -> Value:
        if id(value) in stops:
            return graph.add(ir.ParamValue(index[stops[id(value)]], value.elem, value.dims))
        if isinstance(value, ir.ParamValue):
            return graph.add(replace(value, index=index[whole.inputs[value.index]]))
        return graph.add(ir.with_children(value, moved))

    several = len(results) > 1 or any(results)
    introduced: set[str] = set()
    header = syntax.Program(
        "pipeline",
        name,
        tuple(syntax.Param(p.name, _typed(p.type, whole.program, introduced)) for p in params),
        tuple(
            syntax.Result(_typed(r.type, whole.program, introduced), r.name or None if several else None)
            for r in results.values()
        ),
        (),
    )
    named = {f"return {r.name}".strip() if several else "return": moved(v) for r, v in _pairs(results, roots)}
    typed = tuple((n, r.type) for n, r in zip(named, results.values(), strict=True))
    program = ir.Pipeline(
        name,
        whole.program.dims,
        tuple(params),
        tuple((n, t) for n, t in typed if isinstance(t, ir.TensorType)),
        (),
        (),
    )
    return FoldedPart(
        replace(whole, program=program, inputs=tuple(index), stored={}, types={}, calls=()), named, header
    )


def _pairs(
    results: Mapping[str, ir.ParamDecl], roots: Mapping[str, Value]
) -> Iterable[tuple[ir.ParamDecl, Value]]:
    return zip(results.values(), roots.values(), strict=True)


def _tops(roots: Iterable[Value], alone: frozenset[int]) -> list[Value]:
    """Returns the largest terms that are folded, without parameters themselves."""
    tops: dict[int, Value] = {}
    visited: set[int] = set()

    def visit(value: Value) -> None:
        if id(value) in visited:
            return
        visited.add(id(value))
        if id(value) not in alone:
            for child in children(value):
                visit(child)
        elif not isinstance(value, ir.ParamValue) and value.elem.storable and value.elem.kind == "float":
            tops[id(value)] = value

    for root in roots:
        visit(root)
    return list(tops.values())


def _inputs(roots: Iterable[Value], stops: Mapping[int, str]) -> list[ir.ParamValue]:
    below = upwards(*roots, into=lambda v: () if id(v) in stops else children(v))
    return [v for v in below if isinstance(v, ir.ParamValue)]


def _type(value: Value) -> ir.TensorType:
    return ir.TensorType(value.elem, tuple(ir.MemoryAxis((d,), Free(d)) for d in value.dims))


def _result_types(program: ir.Program) -> dict[str, ir.ParamDecl]:
    if isinstance(program, ir.Kernel):
        return {r.name: ir.ParamDecl(r.name, r.type) for r in program.results}
    named = [(name.removeprefix("return").strip(), type_) for name, type_ in program.results]
    return {name: ir.ParamDecl(name, type_) for name, type_ in named}


def _typed(type_: ir.ParamType, program: ir.Program, introduced: set[str]) -> syntax.TypeExpr:
    """Returns a type as a text has it, with the extents of dimensions that no type before it gave."""
    if isinstance(type_, ir.ScalarType):
        return syntax.TypeExpr(type_.elem.name, None)
    axes: list[syntax.Axis] = []
    for axis in type_.axes:
        named = []
        for dim in axis.dims:
            extent = None if dim in introduced else extent_expression(program.dims[dim], dim)
            introduced.add(dim)
            named.append(syntax.NamedAxis(dim, extent))
        if not named:
            length = extent_expression(axis.extent, "")
            assert length is not None
            axes.append(syntax.NamelessAxis(length))
        else:
            axes.append(named[0] if len(named) == 1 else syntax.CompositeAxis(tuple(named)))
    return syntax.TypeExpr(type_.elem.name, tuple(axes))
