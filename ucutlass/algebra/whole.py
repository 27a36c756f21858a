"""One graph of values for a program's stages: what is stored between launches is an operand of what reads it.

Stages that call a kernel of the file, or torch, stay as they are: their results are inputs of the graph, and what
they read is a result of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.algebra.egraph import EGraph
from ucutlass.algebra.terms import Terms, inside
from ucutlass.ir import Value


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """`inputs` are the names of the graph's inputs in the order of `ir.ParamValue.index`: the parameters, then
    the results of stages that stay. `stored` has the value of every tensor that a stage writes, by its name;
    `roots` are the names of those that must be computed: results, and what stages that stay read."""

    program: ir.Program
    inputs: tuple[str, ...]
    stored: Mapping[str, Value]
    types: Mapping[str, ir.TensorType]
    roots: tuple[str, ...]
    kept: tuple[ir.Stage, ...]


def order_of(program: ir.Program) -> dict[str, int]:
    return {dim: at for at, dim in enumerate(program.dims)}


def whole_program(program: ir.Program, terms: Terms) -> WholeProgram:
    """Returns a program's graph, interned. Raises Full."""
    names = [p.name for p in program.params]
    types = {p.name: p.type for p in program.params if isinstance(p.type, ir.TensorType)}
    if isinstance(program, ir.Kernel):
        results = {f"return {r.name}".strip(): r for r in program.results}
        inputs = {n: _input(terms, program.params[i], i) for i, n in enumerate(names)}
        own = {n: _stored(terms, r, tuple(names), inputs, program) for n, r in results.items()}
        types |= {n: r.type for n, r in results.items()}
        return WholeProgram(program, tuple(names), own, types, tuple(results), ())
    types |= dict(program.buffers) | dict(program.results)
    values = {n: _input(terms, program.params[i], i) for i, n in enumerate(names)}
    stored: dict[str, Value] = {}
    opaque: list[ir.Stage] = []
    roots: list[str] = []
    for stage in program.stages:
        if isinstance(stage.call, ir.Kernel) and stage.call.name in stage.outputs and _own(stage, program):
            for name, result in zip(stage.outputs, stage.call.results, strict=True):
                stored[name] = _stored(terms, result, stage.arguments, values, stage.call)
                values[name] = stored[name]
            continue
        opaque.append(stage)
        roots += [a for a in stage.arguments if isinstance(a, str) and a in stored]
        for name in stage.outputs:
            values[name] = _tensor(terms, types[name], len(names))
            names.append(name)
    roots += [name for name, _ in program.results]
    needed = dict.fromkeys(r for r in roots if r in stored)
    return WholeProgram(program, tuple(names), stored, types, tuple(needed), tuple(opaque))


def _own(stage: ir.Stage, program: ir.Pipeline) -> bool:
    """A stage that is written in place has the pipeline's own names."""
    assert isinstance(stage.call, ir.Kernel)
    return {*stage.call.dims} <= {*program.dims} and not stage.call.requires


def _input(terms: Terms, decl: ir.ParamDecl, index: int) -> Value:
    if isinstance(decl.type, ir.ScalarType):
        return terms.graph.add(ir.ParamValue(index, decl.type.elem, ()))
    return _tensor(terms, decl.type, index)


def _tensor(terms: Terms, type_: ir.TensorType, index: int) -> Value:
    return terms.graph.add(ir.ParamValue(index, type_.elem, terms.graph.dims(type_.dims)))


def _stored(
    terms: Terms,
    result: ir.ResultDecl,
    arguments: tuple[str | float | int, ...],
    values: Mapping[str, Value],
    kernel: ir.Kernel,
) -> Value:
    """Returns a result's value as its type stores it."""

    def interned(node: Value) -> Value:
        if isinstance(node, ir.ParamValue):
            argument = arguments[node.index]
            if isinstance(argument, str):
                return terms.cast(values[argument], node.elem)
            return terms.graph.add(ir.Constant(argument, node.elem))
        return normal(terms, node)

    assert kernel.results
    return terms.cast(ir.rebuild(result.value, interned), result.type.elem)


def normal(terms: Terms, node: Value) -> Value:
    """Returns the term of a node whose parts are interned: its dimensions in the program's order, and without
    what a read that stays inside would read outside."""
    node = replace(node, dims=terms.graph.dims(node.dims))
    if isinstance(node, ir.Dot | ir.Reduce | ir.Softmax):
        node = replace(node, over=terms.graph.dims(node.over))
    if isinstance(node, ir.Read) and inside(terms, node.positions):
        node = replace(node, fill=0.0)
    return terms.graph.add(node)


def new_graph(program: ir.Program, most_terms: int) -> Terms:
    return Terms(EGraph(order_of(program), most_terms), program.dims)
