"""This module writes a program in a lower compute type where the problem allows it: both operands of each product of
f32 are rounded to TF32, as PyTorch does with `torch.backends.cuda.matmul.allow_tf32`, or stored in 16 bits before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ucutlass import frontend
from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.integrity.precision import declared, holds
from ucutlass.check import check_tree
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_file
from ucutlass.ir.elements import BF16, ELEMENTS, F16, F32, TF32, Element
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


# --- 16 bits -------------------------------------------------------------------------

HALVES = (BF16, F16)
"""What operands may be stored in; fp8 takes scales, which are another program's."""


def in_half(text: str, name: str, compute_type: str) -> dict[Element, str]:
    """Returns, by the element, texts of pipelines that multiply in 16 bits what the program `name` multiplies in f32 or
    TF32, where `compute_type` is no more precise than that. Raises UnknownComputeType, and ProgramError for a text that
    is no program."""
    least = ELEMENTS[declared(compute_type).compute_type]
    tree = candidate_text(text).checked.tree
    texts: dict[Element, str] = {}
    for elem in HALVES if least.kind == "float" else ():
        stored = _stored(tree, name, elem) if holds(elem, least) else None
        if stored is not None and not any(d.severity == "error" for d in check_tree(stored)[1]):
            texts[elem] = format_file(stored)
    return texts


def _stored(tree: syntax.File, name: str, elem: Element) -> syntax.File | None:
    """Returns the tree with the operands of the program's products stored in an element; None where no product has
    operands that stand in memory, or the program has such names."""
    (program,) = (p for p in tree.items if isinstance(p, syntax.Program) and p.name == name)
    memory = dict(_single(program))
    renamed = {operand: f"{operand}_{elem.name}" for operand in memory}
    body = _operands_renamed(program.body, renamed)
    read = set(_names(body))
    stored = [operand for operand in memory if renamed[operand] in read]
    if not stored or {*renamed.values()} & {
        *memory,
        *_names(program.body),
        *(p.name for p in program.params),
    }:
        return None
    binds = {
        operand: syntax.Bind(
            (syntax.Target(renamed[operand], _typed(memory[operand], elem)),),
            syntax.Call(elem.name, None, (syntax.Argument(syntax.Name(operand)),)),
        )
        for operand in stored
    }
    statements: list[syntax.Statement] = [binds.pop(p.name) for p in program.params if p.name in binds]
    for statement in body:
        target = statement.targets[0] if isinstance(statement, syntax.Bind) else None
        bind = None if target is None else binds.get(target.name)
        if bind is None or not isinstance(statement, syntax.Bind):
            statements.append(statement)
        elif target is not None and target.name not in read and not _is_called(statement.value, tree):
            # Nothing but products reads it.
            kind = replace(memory[target.name], element=elem.name)
            statements.append(replace(statement, targets=(syntax.Target(renamed[target.name], kind),)))
        else:
            statements += [statement, bind]
    changed = replace(program, kind="pipeline", body=tuple(statements))
    return replace(tree, items=tuple(changed if item is program else item for item in tree.items))


def _is_called(value: syntax.Expr, tree: syntax.File) -> bool:
    """Returns whether a value is what a kernel or torch gives, whose type is theirs to say."""
    programs = {item.name for item in tree.items if isinstance(item, syntax.Program)}
    return isinstance(value, syntax.Call) and (value.callee in programs or "." in value.callee)


def _single(program: syntax.Program) -> Iterator[tuple[str, syntax.TypeExpr]]:
    """Yields the parameters and stored bindings of f32 whose axes have names."""
    typed = [(p.name, p.type) for p in program.params]
    for statement in program.body:
        if isinstance(statement, syntax.Bind) and len(statement.targets) == 1:
            target = statement.targets[0]
            typed += [] if target.type is None else [(target.name, target.type)]
    for name, type_ in typed:
        named = all(not isinstance(axis, syntax.NamelessAxis) for axis in type_.axes or ())
        if type_.element == F32.name and type_.axes and named:
            yield name, type_


def _typed(type_: syntax.TypeExpr, elem: Element) -> syntax.TypeExpr:
    """Returns the type with another element, its dimensions without extents."""

    def bare(axis: syntax.Axis) -> syntax.Axis:
        match axis:
            case syntax.CompositeAxis(parts):
                return syntax.CompositeAxis(tuple(syntax.NamedAxis(p.name) for p in parts))
            case syntax.NamedAxis(name):
                return syntax.NamedAxis(name)
        return axis

    return syntax.TypeExpr(elem.name, tuple(map(bare, type_.axes or ())))


def _operands_renamed(node: Any, renamed: Mapping[str, str]) -> Any:
    """Returns a tree whose dots read other names, where both operands are such names, indexed or not."""
    match node:
        case tuple():
            return tuple(_operands_renamed(child, renamed) for child in node)
        case syntax.Call(callee="dot", arguments=(left, right, *rest)):
            first, second = (_renamed(argument.value, renamed) for argument in (left, right))
            if first is not None and second is not None:
                sides = (replace(left, value=first), replace(right, value=second))
                return replace(node, arguments=(*sides, *rest))
            return replace(node, arguments=_operands_renamed(node.arguments, renamed))
        case _ if is_dataclass(node) and not isinstance(node, type):
            changed = {
                f.name: _operands_renamed(getattr(node, f.name), renamed) for f in fields(node) if f.init
            }
            return replace(node, **changed)
        case _:
            return node


def _renamed(operand: syntax.Expr, renamed: Mapping[str, str]) -> syntax.Expr | None:
    match operand:
        case syntax.Call(callee="tf32", arguments=(syntax.Argument(value=value),)):
            return _renamed(value, renamed)
        case syntax.Name(name) if name in renamed:
            return syntax.Name(renamed[name])
        case syntax.Index(base=syntax.Name(name)) if name in renamed:
            return replace(operand, base=syntax.Name(renamed[name]))
        case _:
            return None


def _names(node: Any) -> Iterator[str]:
    match node:
        case tuple():
            for child in node:
                yield from _names(child)
        case syntax.Name(name):
            yield name
        case _ if is_dataclass(node) and not isinstance(node, type):
            for field in fields(node):
                yield from _names(getattr(node, field.name))
