"""This module applies edits to a program that are addressed to nodes of its syntax tree: nothing that is not
addressed can change.

    linear                          a kernel, a pipeline or an fn, whole
    linear.h                        the statement that binds h
    linear.h.type                   the type with which h is stored; empty: h is not stored
    linear.return                   the return statement
    linear.schedule[2]              a schedule block, counted from 1; empty removes it
    linear.schedule[2].for          the stage of a pipeline that it is for
    linear.schedule[2].when         its condition; empty: it always holds
    linear.schedule[2].tile         a field's alternatives; empty leaves the field out
    linear.schedule[+]              further schedule blocks, behind the last
    +                               further kernels and functions, behind the last

What is put there is parsed alone and must be just such a node, so that no text reaches beyond its place. All
edits of one answer are addressed to the program as it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ucutlass.agent.candidate_text import candidate_text
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import SyntaxProblem, parse
from ucutlass.grammar.syntax import (
    Bind,
    Expr,
    Field,
    File,
    Function,
    Item,
    Number,
    Program,
    Result,
    Return,
    Schedule,
    StageName,
    Statement,
    Target,
    TypeExpr,
)


@dataclass(frozen=True, slots=True)
class ProgramEdit:
    """Puts a text in the place of what stands at an address."""

    at: str
    put: str


class BadEdit(ValueError):
    """Raised for an edit that cannot be carried out; says why, and what can be addressed."""


MOST_EDITS = 40


def apply_edits(text: str, edits: Sequence[ProgramEdit]) -> str:
    """Returns the program with these edits, in canonical form. Raises BadEdit; then none was carried out."""
    if len(edits) > MOST_EDITS:
        raise BadEdit(f"{len(edits)} edits; at most {MOST_EDITS} are taken")
    tree = _tree(text)
    placed = [_LocatedEdit(_place(tree, e.at), e) for e in edits]
    _check_disjoint(placed)
    items: list[Item] = []
    for at, item in enumerate(tree.items):
        mine = [p for p in placed if p.place.item == at]
        items += _item(item, mine) if mine else [item]
    for p in placed:
        if p.place.item is None:
            items += _parsed_items(p.edit)
    if not items:
        raise BadEdit("nothing would be left of the program")
    return format_file(replace(tree, items=tuple(items)))


def addresses(text: str) -> list[tuple[str, str]]:
    """Returns what can be addressed in a program, with the text that stands there now. Raises BadEdit for a
    text that is no program."""
    tree = _tree(text)
    result: list[tuple[str, str]] = []
    for item in tree.items:
        result += _addresses(item)
    return result


# --- addresses -------------------------------------------------------------------

_ADDRESS = re.compile(
    r"(?P<item>\w+)(?:\.(?:schedule\[(?P<block>\d{1,4}|\+)\](?:\.(?P<field>\w+))?"
    r"|(?P<name>\w+)(?P<type>\.type)?))?"
)


@dataclass(frozen=True, slots=True)
class _EditTarget:
    """`item` is None for `+`; `statement` None for the whole item, and for blocks to be added `more`.
    `part` is a schedule's field, `for` or `when`; `target` counts the names that a statement binds."""

    item: int | None
    statement: int | None = None
    part: str | None = None
    target: int | None = None
    more: bool = False

    def holds(self, other: _EditTarget) -> bool:
        """Returns whether the other lies in this one, or is it."""
        if self.item != other.item or self.more or self.item is None:
            return False
        if self.statement is None:
            return True
        if self.statement != other.statement:
            return False
        return (self.part, self.target) in ((None, None), (other.part, other.target))


@dataclass(frozen=True, slots=True)
class _LocatedEdit:
    place: _EditTarget
    edit: ProgramEdit


def _tree(text: str) -> File:
    read = candidate_text(text)
    if read.tree is None:
        raise BadEdit(f"the program to edit cannot be read: {read.diagnostics[0].message}")
    return read.tree


def _place(tree: File, at: str) -> _EditTarget:
    at = at.strip()
    if at == "+":
        return _EditTarget(None)
    match = _ADDRESS.fullmatch(at)
    if match is None:
        raise BadEdit(f"{at[:80]!r} is no address; one reads like kernel_name.schedule[1].tile")
    item = _only_match([i for i, x in enumerate(tree.items) if x.name == match["item"]], at, _names(tree))
    node = tree.items[item]
    if match["block"] is not None:
        return _in_schedule(node, item, at, match["block"], match["field"])
    if match["name"] is None:
        return _EditTarget(item)
    if match["name"] == "return" and match["type"] is None:
        returns = [i for i, s in enumerate(node.body) if isinstance(s, Return)]
        return _EditTarget(item, _only_match(returns, at, "one return"))
    bound = [
        (i, t)
        for i, s in enumerate(node.body)
        if isinstance(s, Bind)
        for t, target in enumerate(s.targets)
        if target.name == match["name"]
    ]
    statement, target = bound[_only_match(range(len(bound)), at, f"bindings {_bindings(node)}")]
    return _EditTarget(item, statement, target=target if match["type"] else None)


def _in_schedule(node: Item, item: int, at: str, block: str, field: str | None) -> _EditTarget:
    if not isinstance(node, Program):
        raise BadEdit(f"{at}: a fn has no schedule")
    if block == "+":
        if field is not None:
            raise BadEdit(f"{at}: write the whole block to be added at {node.name}.schedule[+]")
        return _EditTarget(item, more=True)
    blocks = [i for i, s in enumerate(node.body) if isinstance(s, Schedule)]
    if not 1 <= int(block) <= len(blocks):
        raise BadEdit(f"{at}: {node.name} has {len(blocks)} schedule blocks; schedule[+] adds one")
    return _EditTarget(item, blocks[int(block) - 1], part=field)


def _only_match(matches: Sequence[int], at: str, there: str) -> int:
    if len(matches) == 1:
        return matches[0]
    many = "nothing" if not matches else f"{len(matches)} things"
    raise BadEdit(f"{at} names {many} in this program, which has {there}")


def _names(tree: File) -> str:
    return ", ".join(i.name for i in tree.items) or "nothing"


def _bindings(node: Item) -> str:
    return ", ".join(t.name for s in node.body if isinstance(s, Bind) for t in s.targets) or "none"


def _check_disjoint(placed: Sequence[_LocatedEdit]) -> None:
    for number, first in enumerate(placed):
        for other in placed[number + 1 :]:
            if first.place.holds(other.place) or other.place.holds(first.place):
                raise BadEdit(f"{first.edit.at} and {other.edit.at} are two edits of one place")


def _addresses(item: Item) -> list[tuple[str, str]]:
    result: list[tuple[str, str]] = []
    blocks = 0
    for statement in item.body:
        match statement:
            case Bind(targets):
                result += [(f"{item.name}.{t.name}", _formatted(statement)) for t in targets]
                result += [(f"{item.name}.{t.name}.type", _type(t.type)) for t in targets]
            case Return():
                result.append((f"{item.name}.return", _formatted(statement)))
            case Schedule():
                blocks += 1
                at = f"{item.name}.schedule[{blocks}]"
                result.append((at, _formatted(statement)))
                result += [(f"{at}.for", statement.stage.words)] if statement.stage is not None else []
                result += [(f"{at}.{f.name}", _alternatives(f)) for f in statement.fields]
    return result


# --- what is put there -----------------------------------------------------------


def _item(item: Item, placed: Sequence[_LocatedEdit]) -> list[Item]:
    """Returns what takes the place of an item."""
    replacements = [p for p in placed if p.place.statement is None and not p.place.more]
    if replacements:
        return _parsed_items(replacements[0].edit)
    body: list[Statement] = []
    for at, statement in enumerate(item.body):
        mine = [p for p in placed if p.place.statement == at]
        body += _statement(statement, mine) if mine else [statement]
    for p in placed:
        if p.place.more:
            body += _parsed_statements(p.edit, (Schedule,))
    if isinstance(item, Function) and not _is_expression(body):
        return [replace(item, body=tuple(body), is_block=True)]
    return [replace(item, body=tuple(body))]


def _is_expression(body: Sequence[Statement]) -> bool:
    """Returns whether it may follow the `=` of an fn."""
    match body:
        case [Return((only,))]:
            return only.name is None
        case _:
            return False


Parts: TypeAlias = "tuple[type[Statement], ...]"


def _statement(statement: Statement, placed: Sequence[_LocatedEdit]) -> list[Statement]:
    first = placed[0]
    if (first.place.part, first.place.target) == (None, None):
        kinds: Parts = (Schedule,) if isinstance(statement, Schedule) else (Bind, Return)
        return _parsed_statements(first.edit, kinds)
    for p in placed:
        match statement:
            case Schedule():
                statement = _part(statement, p.place.part or "", p.edit)
            case Bind():
                statement = _retyped(statement, p.place.target or 0, p.edit)
    return [statement]


def _part(block: Schedule, name: str, edit: ProgramEdit) -> Schedule:
    if name == "when":
        return replace(block, when=_parsed_when(edit))
    if name == "for":
        return replace(block, stage=_parsed_stage(edit))
    there = [i for i, f in enumerate(block.fields) if f.name == name]
    if len(there) > 1:
        raise BadEdit(f"{edit.at} is given {len(there)} times in this block; edit the whole block")
    fields = list(block.fields)
    if not edit.put.strip():
        if not there:
            raise BadEdit(f"{edit.at} is not given, so it cannot be left out")
        del fields[there[0]]
    elif there:
        new = _parsed_field(name, edit)
        fields[there[0]] = replace(fields[there[0]], alternatives=new.alternatives)
    else:
        fields.append(_parsed_field(name, edit))
    return replace(block, fields=tuple(fields))


def _retyped(bind: Bind, at: int, edit: ProgramEdit) -> Bind:
    targets = list(bind.targets)
    targets[at] = replace(targets[at], type=_parsed_type(edit))
    return replace(bind, targets=tuple(targets))


# --- reading it ------------------------------------------------------------------
#
# Each wrapper is parsed and then compared with what it would be around a harmless text: a fragment that
# closes its wrapper and goes on makes another tree.


def _parsed_items(edit: ProgramEdit) -> list[Item]:
    return list(_parse(edit, edit.put).items)


def _parsed_statements(edit: ProgramEdit, kinds: Parts) -> list[Statement]:
    """Returns statements of these kinds; none for an empty text."""
    kernel = _only_kernel(edit, f"kernel f() -> f32[] {{\n{edit.put}\n}}")
    expected = " or ".join(k.__name__.lower() for k in kinds)
    if not all(isinstance(s, kinds) for s in kernel.body):
        raise BadEdit(f"{edit.at}: only {expected} statements can stand there")
    return list(kernel.body)


def _parsed_field(name: str, edit: ProgramEdit) -> Field:
    # Its name is not the parser's to judge here: the checker knows the fields.
    match _parsed_block(edit, f"schedule sm90a {{ {name} {edit.put}\n}}").fields:
        case (Field(field_name) as field,) if field_name == name:
            return field
    raise BadEdit(f"{edit.at}: {_excerpt(edit)} is no value, nor values with `or` between them")


def _parsed_when(edit: ProgramEdit) -> Expr | None:
    if not edit.put.strip():
        return None
    block = _parsed_block(edit, f"schedule sm90a when {edit.put}\n{{ }}")
    if block.fields:
        raise BadEdit(f"{edit.at}: {_excerpt(edit)} is no condition")
    return block.when


def _parsed_stage(edit: ProgramEdit) -> StageName:
    match _parsed_block(edit, f"schedule sm90a for {edit.put}\n{{ }}"):
        case Schedule(when=None, fields=(), stage=StageName() as stage):
            return stage
    raise BadEdit(f"{edit.at}: {_excerpt(edit)} is no stage: the name of a stored binding, or `return`")


def _parsed_block(edit: ProgramEdit, text: str) -> Schedule:
    match _only_kernel(edit, f"kernel f() -> f32[] {{\n{text}\n}}").body:
        case (Schedule() as block,):
            return block
    raise BadEdit(f"{edit.at}: {_excerpt(edit)} is more than what is to stand there")


def _parsed_type(edit: ProgramEdit) -> TypeExpr | None:
    if not edit.put.strip():
        return None
    match _only_kernel(edit, f"kernel f() -> f32[] {{\nx: {edit.put}\n= y\n}}").body:
        case (Bind((Target("x", TypeExpr() as type_expr),)),):
            return type_expr
    raise BadEdit(f"{edit.at}: {_excerpt(edit)} is no type")


def _only_kernel(edit: ProgramEdit, text: str) -> Program:
    match _parse(edit, text).items:
        case (Program("kernel", "f") as kernel,):
            return kernel
    raise BadEdit(f"{edit.at}: {_excerpt(edit)} is more than what is to stand there")


def _parse(edit: ProgramEdit, text: str) -> File:
    """Raises BadEdit; comments stay out, for they might hold what the wrapper ends with."""
    try:
        return parse(re.sub(r"#[^\n]*", "", text))
    except SyntaxProblem as problem:
        raise BadEdit(f"{edit.at}: {_excerpt(edit)} cannot be read: {problem.problems[0].message}") from None


def _excerpt(edit: ProgramEdit) -> str:
    return repr(edit.put if len(edit.put) <= 60 else edit.put[:57] + "...")


# --- how it stands there now -----------------------------------------------------


def _formatted(statement: Statement) -> str:
    lines = format_file(_wrapped(statement)).splitlines()[1:-1]
    return "\n".join(line.removeprefix("  ") for line in lines).strip("\n")


def _wrapped(statement: Statement) -> File:
    return File((Program("kernel", "f", (), (Result(TypeExpr("f32", ())),), (statement,)),))


def _alternatives(field: Field) -> str:
    shown = _formatted(Schedule("sm90a", None, (replace(field, name="x"),)))
    return re.sub(r"^schedule sm90a \{\s*x |\s*\}$", "", shown)


def _type(type_: TypeExpr | None) -> str:
    if type_ is None:
        return ""
    shown = _formatted(Bind((Target("x", type_),), Number(0, "0")))
    return shown.removeprefix("x: ").removesuffix(" = 0")
