"""This module writes a program in a lower compute type where the problem allows it: both operands of each product of
f32 are rounded to TF32, as PyTorch does with `torch.backends.cuda.matmul.allow_tf32`."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from ucutlass import frontend
from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.integrity.precision import declared, holds
from ucutlass.check import check_tree
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_file
from ucutlass.ir.elements import ELEMENTS, F32, TF32
from ucutlass.runtime.bench.eager import compute_types


def in_compute_type(text: str, name: str, compute_type: str | None) -> str:
    """Returns the text with the products of its program `name` in TF32, where `compute_type` is no more precise than
    that, all of them multiply f32, and the program may; else the text itself. Raises UnknownComputeType."""
    if not text or compute_type is None or not holds(TF32, ELEMENTS[declared(compute_type).compute_type]):
        return text
    checked = candidate_text(text).program
    if checked is None or compute_types(frontend.program(checked, name)) != {F32.name}:
        return text
    tree = in_tf32(checked.tree)
    _, diagnostics = check_tree(tree)
    return text if any(d.severity == "error" for d in diagnostics) else format_file(tree)


def in_tf32(tree: syntax.File) -> syntax.File:
    """Returns a syntax tree in which both operands of each `dot` are rounded to TF32."""
    rounded = _rounded(tree)
    assert isinstance(rounded, syntax.File)
    return rounded


def _rounded(node: Any) -> Any:
    match node:
        case tuple():
            return tuple(map(_rounded, node))
        case syntax.Call(callee="dot", arguments=(left, right, *rest)):
            return replace(node, arguments=(_operand(left), _operand(right), *rest))
        case _ if is_dataclass(node) and not isinstance(node, type):
            return replace(node, **{f.name: _rounded(getattr(node, f.name)) for f in fields(node) if f.init})
        case _:
            return node


def _operand(argument: syntax.Argument) -> syntax.Argument:
    match argument.value:
        case syntax.Call(callee="tf32"):
            return argument
        case value:
            return replace(argument, value=syntax.Call("tf32", None, (syntax.Argument(_rounded(value)),)))
