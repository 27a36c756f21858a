"""One graph of values for a program's stages: what is stored between launches is an operand of what reads it.

A kernel of the file is seen through where it is called. Stages that call torch, and kernels that cannot be said in the
pipeline's names, stay as they are: their results are inputs of the graph, and what they read is a result of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.algebra.calls import OtherNames, in_names, is_in_place, names_of
from ucutlass.algebra.egraph import EGraph
from ucutlass.algebra.terms import Terms, inside
from ucutlass.ir import Value


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """`program` has, beside its own, the dimensions of called kernels. `inputs` are the names of the graph's inputs in the order of `ir.ParamValue.index`: the parameters, then
    the results of stages that stay. `stored` has the value of every tensor that a stage writes, by its name;
    `roots` are the names of those that must be computed: results, and what stages that stay read. `calls` are the
    stages of a kernel of the file that the graph sees through."""

    program: ir.Program
    inputs: tuple[str, ...]
    stored: Mapping[str, Value]
    types: Mapping[str, ir.TensorType]
    roots: tuple[str, ...]
    kept: tuple[ir.Stage, ...]
    calls: tuple[ir.Stage, ...] = ()


def order_of(program: ir.Program) -> dict[str, int]:
    return {dim: at for at, dim in enumerate(program.dims)}


def whole_program(program: ir.Program, terms: Terms) -> WholeProgram:
    """Returns a program's graph, interned. Raises Full."""
    names = [p.name for p in program.params]
    types = {p.name: p.type for p in program.params if isinstance(p.type, ir.TensorType)}
    if isinstance(program, ir.Kernel):
        results = {f"return {r.name}".strip(): r for r in program.results}
        inputs = {n: _input(terms, program.params[i], i) for i, n in enumerate(names)}
        same = {d: d for d in program.dims}
        own = {n: _stored(terms, r, tuple(names), inputs, same) for n, r in results.items()}
        types |= {n: r.type for n, r in results.items()}
        return WholeProgram(program, tuple(names), own, types, tuple(results), ())
    types |= dict(program.buffers) | dict(program.results)
    values = {n: _input(terms, program.params[i], i) for i, n in enumerate(names)}
    stored: dict[str, Value] = {}
    opaque: list[ir.Stage] = []
    calls: list[ir.Stage] = []
    roots: list[str] = []
    for stage in program.stages:
        dims = _names(stage, types, terms)
        if isinstance(stage.call, ir.Kernel) and dims is not None:
            calls += [] if is_in_place(stage.call, stage, types, terms) else [stage]
            for name, result in zip(stage.outputs, stage.call.results, strict=True):
                stored[name] = _stored(terms, result, stage.arguments, values, dims)
                values[name] = stored[name]
            continue
        opaque.append(stage)
        roots += [a for a in stage.arguments if isinstance(a, str) and a in stored]
        for name in stage.outputs:
            values[name] = _tensor(terms, types[name], len(names))
            names.append(name)
    roots += [name for name, _ in program.results]
    needed = dict.fromkeys(r for r in roots if r in stored)
    program = replace(program, dims={**program.dims, **terms.extents})
    return WholeProgram(program, tuple(names), stored, types, tuple(needed), tuple(opaque), tuple(calls))


def _names(stage: ir.Stage, types: Mapping[str, ir.TensorType], terms: Terms) -> dict[str, str] | None:
    """Returns the dimensions of a stage's kernel as the pipeline names them; None where the stage stays as it is."""
    kernel = stage.call
    if not isinstance(kernel, ir.Kernel) or kernel.requires:
        return None
    if is_in_place(kernel, stage, types, terms):
        return {dim: dim for dim in kernel.dims}
    try:
        return names_of(kernel, stage, types, terms)
    except OtherNames:
        return None


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
    names: Mapping[str, str],
) -> Value:
    """Returns a result's value as its type stores it, its dimensions by `names`."""

    def interned(node: Value) -> Value:
        if isinstance(node, ir.ParamValue):
            argument = arguments[node.index]
            if isinstance(argument, str):
                return terms.cast(values[argument], node.elem)
            return terms.graph.add(ir.Constant(argument, node.elem))
        return normal(terms, in_names(node, names, terms))

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
    tensors = {p.name for p in program.params}
    if isinstance(program, ir.Pipeline):
        tensors |= {output for stage in program.stages for output in stage.outputs}
    return Terms(EGraph(order_of(program), most_terms), dict(program.dims), frozenset(tensors))
