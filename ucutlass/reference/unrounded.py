"""Removes every rounding from a program, leaving what it computes as mathematics.

Parameters, casts to floating element types, stored buffers and stored results become float64, whatever the
program's compute types; integers and conversions to them stay. Two ways to write one computation then differ
by float64's round-off alone, which distinguishes them from two computations however low the precision is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ucutlass.ir import (
    Apply,
    Cast,
    Constant,
    Dot,
    Kernel,
    ParamDecl,
    ParamType,
    Pipeline,
    Program,
    Reduce,
    ScalarType,
    Scan,
    Stage,
    TensorType,
    TorchCall,
    Value,
    rebuild,
)
from ucutlass.ir.elements import F64, Element
from ucutlass.reference.interpreter import Argument


def unrounded(program: Program) -> Program:
    """Returns the same program over float64, for `ucutlass.reference.evaluate` of `wide` arguments; it is
    never planned."""
    match program:
        case Kernel():
            return _kernel(program)
        case Pipeline():
            return replace(
                program,
                params=_params(program.params),
                results=tuple((name, _tensor(kind)) for name, kind in program.results),
                buffers=tuple((name, _tensor(kind)) for name, kind in program.buffers),
                stages=tuple(map(_stage, program.stages)),
            )


def wide(arguments: Sequence[Argument]) -> list[Argument]:
    """Returns arguments for the program without roundings: floating tensors as float64, others as they
    are."""
    return [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments]


def _stage(stage: Stage) -> Stage:
    match stage.call:
        case Kernel() as kernel:
            return replace(stage, call=_kernel(kernel))
        case TorchCall() as call:
            return replace(stage, call=replace(call, results=tuple(map(_tensor, call.results))))


def _kernel(kernel: Kernel) -> Kernel:
    results = tuple(replace(r, type=_tensor(r.type), value=rebuild(r.value, _uncast)) for r in kernel.results)
    return replace(kernel, params=_params(kernel.params), results=results, schedules=())


def _uncast(node: Value) -> Value:
    """Returns the node in float64, whose range no work leaves. A cast between floats is its operand, so that a dot still
    reads a window without materialising it."""
    match node:
        case Cast(value=value, elem=elem) if elem.kind == value.elem.kind == "float":
            return value
        case Constant() | Cast() | Apply() | Dot() | Reduce() | Scan():
            return replace(node, elem=_wide(node.elem))
        case _:
            return node


def _params(params: Sequence[ParamDecl]) -> tuple[ParamDecl, ...]:
    return tuple(replace(p, type=_type(p.type)) for p in params)


def _type(kind: ParamType) -> ParamType:
    match kind:
        case TensorType():
            return _tensor(kind)
        case ScalarType(elem):
            return ScalarType(_wide(elem))


def _tensor(kind: TensorType) -> TensorType:
    return replace(kind, elem=_wide(kind.elem))


def _wide(elem: Element) -> Element:
    return F64 if elem.kind == "float" else elem
