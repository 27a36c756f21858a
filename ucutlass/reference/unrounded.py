"""A program without its roundings: what it computes in the real numbers, as near as float64 is to them.

Two programs that compute the same differ in where they round, by as much as their bounds allow, and after
some stages bounds allow anything. Without roundings they agree to float64's precision, or are two things.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from ucutlass.elements import F64, Element
from ucutlass.ir import (
    Cast,
    Kernel,
    ParamDecl,
    Pipeline,
    Program,
    ResultDecl,
    Stage,
    TensorType,
    TorchCall,
    Value,
    rebuild,
)


def unrounded(program: Program) -> Program:
    """The program with casts between float types left out, and what it stores as float in f64. Parameters
    keep their types; integers round and wrap as before. For `ucutlass.reference.evaluate`."""
    match program:
        case Kernel():
            return _kernel(program, set())
        case Pipeline():
            given = {p.name for p in program.params}
            every = program.buffers + program.results
            stored = {name: _wide(type_) for name, type_ in every if name not in given}
            return replace(
                program,
                results=tuple((n, stored.get(n, t)) for n, t in program.results),
                buffers=tuple((n, stored[n]) for n, _ in program.buffers),
                stages=tuple(_stage(stage, stored) for stage in program.stages),
            )


def _stage(stage: Stage, stored: Mapping[str, TensorType]) -> Stage:
    match stage.call:
        case Kernel() as kernel:
            pairs = zip(kernel.params, stage.arguments, strict=True)
            return replace(stage, call=_kernel(kernel, {p.name for p, a in pairs if a in stored}))
        case TorchCall() as call:
            return replace(stage, call=replace(call, result=_wide(call.result)))


def _kernel(kernel: Kernel, inner: Set[str]) -> Kernel:
    """`inner` are the parameters that take what another stage stored."""
    return replace(
        kernel,
        params=tuple(_param(p) if p.name in inner else p for p in kernel.params),
        results=tuple(
            ResultDecl(r.name, _wide(r.type), rebuild(r.value, _plain), r.span) for r in kernel.results
        ),
    )


def _param(decl: ParamDecl) -> ParamDecl:
    return replace(decl, type=_wide(decl.type)) if isinstance(decl.type, TensorType) else decl


def _plain(node: Value) -> Value:
    if not isinstance(node, Cast) or node.elem.kind != "float":
        return node
    return node.value if node.value.elem.kind == "float" else replace(node, elem=F64)


def _wide(type_: TensorType) -> TensorType:
    return TensorType(_elem(type_.elem), type_.axes)


def _elem(elem: Element) -> Element:
    return F64 if elem.kind == "float" else elem
