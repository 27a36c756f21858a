"""Syntax tree to canonical text: `ucc fmt`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import chain

from ucutlass.grammar.parse import check_length, parse
from ucutlass.grammar.syntax import (
    Argument,
    Axis,
    Binary,
    Bind,
    BracketName,
    Call,
    Comments,
    CompositeAxis,
    Expr,
    Field,
    FieldValue,
    File,
    Function,
    Index,
    IndexItem,
    IntValue,
    Item,
    Literal_,
    Name,
    NamedAxis,
    NamelessAxis,
    Number,
    Program,
    Require,
    Result,
    Return,
    Schedule,
    ShapeValue,
    Statement,
    Target,
    TypeExpr,
    Unary,
    WordValue,
)

COLUMNS = 110
"""A head or a schedule that would be longer is broken into lines; expressions are left whole."""
_INDENT = "  "


def format_file(tree: File) -> str:
    """The one text of a tree that the parser can give: `parse(format_file(tree)) == tree`.

    Numbers keep their spelling, comments their nodes; all other freedom is gone. A second
    formatting changes nothing.
    """
    blocks = [_item(item) for item in tree.items]
    if tree.closing:
        blocks.append(_comment_lines(tree.closing))
    return "\n".join("\n".join([*block, ""]) for block in blocks)


def formatted(source: str) -> str:
    """The canonical text of a program. Raises SyntaxProblem as `parse`, also where the canonical text would
    be longer than any that is read."""
    text = format_file(parse(source))
    check_length(text, "the canonical form of the text")
    return text


# --- lines -----------------------------------------------------------------------


def _comment_lines(comments: Iterable[str]) -> list[str]:
    return [f"# {text}" if text else "#" for text in comments]


def _with_comments(lines: list[str], comments: Comments) -> list[str]:
    if comments.behind is not None:
        lines = [*lines[:-1], f"{lines[-1]}  {_comment_lines([comments.behind])[0]}"]
    return _comment_lines(comments.before) + lines


def _indented(lines: Iterable[str]) -> list[str]:
    return [_INDENT + line if line else line for line in lines]


def _item(item: Item) -> list[str]:
    match item:
        case Program(kind, name, params, results):
            texts = [f"{p.name}: {_type(p.type)}" for p in params]
            head = _head(f"{kind} {name}", texts, results)
            return _with_comments(_block(head, _statements(item.body), item.closing), item.comments)
        case Function(name, dims, params, body):
            brackets = f"[{', '.join(dims)}]" if dims else ""
            start = f"fn {name}{brackets}({', '.join(params)})"
            if item.is_block:
                return _with_comments(_block([f"{start} {{"], _statements(body), item.closing), item.comments)
            return _with_comments([f"{start} = {_returned(body)}"], item.comments)


def _returned(body: Sequence[Statement]) -> str:
    match body:
        case [Return((only,))]:
            return _expr(only.value)
    raise ValueError("the body of a function that is no block is one Return of one value")


def _results(results: Sequence[Result]) -> list[str]:
    return [_type(r.type) if r.name is None else f"{r.name}: {_type(r.type)}" for r in results]


def _head(start: str, params: list[str], results: Sequence[Result]) -> list[str]:
    """`kernel f(params) -> results {`, one parameter a line where that is too long."""
    texts = _results(results)
    named = results[0].name is not None
    result_text = f"({', '.join(texts)})" if named else texts[0]
    whole = f"{start}({', '.join(params)}) -> {result_text} {{"
    if len(whole) <= COLUMNS or not params:
        return [whole]
    lines = [f"{start}(", *_indented(_listed(params))]
    last = f") -> {result_text} {{"
    if len(last) <= COLUMNS or not named:
        return [*lines, last]
    return [*lines, ") -> (", *_indented(_listed(texts)), ") {"]


def _listed(texts: Sequence[str]) -> list[str]:
    return [*(f"{text}," for text in texts[:-1]), texts[-1]]


def _block(head: list[str], body: list[str], closing: Sequence[str]) -> list[str]:
    inner = body + _comment_lines(closing)
    if not inner:
        return [*head[:-1], head[-1] + "}"]
    return [*head, *_indented(inner), "}"]


def _statements(statements: Sequence[Statement]) -> list[str]:
    """Returns the statements, with an empty line between the algorithm and the schedules."""
    lines: list[str] = []
    previous: Statement | None = None
    for statement in statements:
        if isinstance(statement, Schedule) and previous is not None and not isinstance(previous, Schedule):
            lines.append("")
        lines += _with_comments(_statement(statement), statement.comments)
        previous = statement
    return lines


def _statement(statement: Statement) -> list[str]:
    match statement:
        case Bind(targets, value):
            return [f"{', '.join(map(_target, targets))} = {_expr(value)}"]
        case Return(items):
            texts = [_expr(i.value) if i.name is None else f"{i.name} = {_expr(i.value)}" for i in items]
            return [f"return {', '.join(texts)}"]
        case Require(condition):
            return [f"require {_expr(condition)}"]
        case Schedule(arch, when, fields, closing):
            of = "" if statement.stage is None else f" for {statement.stage.words}"
            guard = "" if when is None else f" when {_expr(when)}"
            return _schedule(f"schedule {arch}{of}{guard}", fields, closing)


def _schedule(head: str, fields: Sequence[Field], closing: Sequence[str]) -> list[str]:
    """Returns a schedule, on one line where that fits and no comment stands inside."""
    texts = [f"{f.name} {' or '.join(map(_value, f.alternatives))}" for f in fields]
    whole = f"{head} {{ {'  '.join(texts)} }}"
    commented = closing or any(f.comments != Comments() for f in fields)
    if fields and not commented and len(_INDENT + whole) <= COLUMNS:
        return [whole]
    lines = [_with_comments([text], f.comments) for f, text in zip(fields, texts, strict=True)]
    return _block([f"{head} {{"], list(chain.from_iterable(lines)), closing)


def _value(value: FieldValue) -> str:
    match value:
        case ShapeValue(sizes):
            return "x".join(map(str, sizes))
        case IntValue(number):
            return str(number)
        case WordValue(word):
            return word


def _target(target: Target) -> str:
    return target.name if target.type is None else f"{target.name}: {_type(target.type)}"


# --- types -----------------------------------------------------------------------


def _type(type_: TypeExpr) -> str:
    axes = "" if type_.axes is None else f"[{', '.join(map(_axis, type_.axes))}]"
    return (type_.element or "") + axes


def _axis(axis: Axis) -> str:
    match axis:
        case NamedAxis(name, extent):
            return _introduced(name, extent)
        case CompositeAxis(parts):
            return f"({' '.join(map(_axis, parts))})"
        case NamelessAxis(extent):
            return _expr(extent, _Spacing.EXTENT, _SUM)


def _introduced(name: str, extent: Expr | None) -> str:
    return name if extent is None else f"{name}={_expr(extent, _Spacing.EXTENT, _SUM)}"


# --- expressions -----------------------------------------------------------------


class _Spacing(Enum):
    """Where an expression stands: `a * b + c`, `x[H = 2*P + R - 1]`, `P=2*H+1`."""

    PLAIN = 0
    INDEX = 1
    EXTENT = 2


_LOWEST, _NOT, _COMPARISON, _SUM, _FACTOR, _POWER, _PRIMARY = 1, 3, 4, 5, 7, 8, 9

_LEVELS: Mapping[str, int] = {
    "or": 1,
    "and": 2,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
    "==": 4,
    "!=": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "//": 6,
    "%": 6,
    "**": 8,
}
"""Binding strength of the operators between two operands."""

_OPERANDS: Mapping[int, tuple[int, int]] = {_COMPARISON: (_SUM, _SUM), _POWER: (_PRIMARY, _FACTOR)}
"""What the operands must bind where that is not grouping to the left: comparisons do not chain,
`**` groups to the right and takes a sign there."""


def format_expression(expr: Expr) -> str:
    """The expression in canonical form, on one line."""
    return _expr(expr)


def _expr(expr: Expr, spacing: _Spacing = _Spacing.PLAIN, level: int = _LOWEST) -> str:
    """`expr` in parentheses if it binds weaker than `level`."""
    own = _PRIMARY
    match expr:
        case Number():
            text = _number(expr)
        case Literal_(word):
            text = word
        case Name(name):
            text = name
        case Call(callee, brackets, arguments):
            names = "" if brackets is None else f"[{', '.join(map(_bracket_name, brackets))}]"
            text = f"{callee}{names}({', '.join(map(_argument, arguments))})"
        case Index(base, items):
            text = f"{_indexed(base)}[{', '.join(map(_index_item, items))}]"
        case Unary("not", operand):
            own = _NOT
            text = "not " + _expr(operand, spacing, own)
        case Unary("-", operand):
            own = _FACTOR
            text = "-" + _expr(operand, spacing, own)
        case Binary(op, left, right):
            own = _LEVELS[op]
            before, after = _OPERANDS.get(own, (own, own + 1))
            gap = "" if _tight(own, spacing) else " "
            text = f"{_expr(left, spacing, before)}{gap}{op}{gap}{_expr(right, spacing, after)}"
    return text if own >= level else f"({text})"


def _tight(own: int, spacing: _Spacing) -> bool:
    match spacing:
        case _Spacing.PLAIN:
            return False
        case _Spacing.INDEX:
            return own > _SUM
        case _Spacing.EXTENT:
            return own >= _SUM


def _indexed(base: Expr) -> str:
    """Names, calls and indexed values take brackets as they are."""
    return _expr(base) if isinstance(base, (Name, Call, Index)) else f"({_expr(base)})"


def _bracket_name(name: BracketName) -> str:
    return name.name if name.extent is None else f"{name.name}={_expr(name.extent, _Spacing.EXTENT)}"


def _argument(argument: Argument) -> str:
    value = _expr(argument.value)
    return value if argument.name is None else f"{argument.name}={value}"


def _index_item(item: IndexItem) -> str:
    return f"{_expr(item.left, _Spacing.INDEX)} = {_expr(item.right, _Spacing.INDEX)}"


def _number(number: Number) -> str:
    return number.text if _spells(number.text, number.value) else repr(number.value)


_NUMBER_CHARACTERS = frozenset("0123456789.eE+-")


def _spells(text: str, value: int | float) -> bool:
    if not text or text[0] in "+-" or not _NUMBER_CHARACTERS.issuperset(text):
        return False
    try:
        read = int(text) if text.isdigit() else float(text)
    except ValueError:
        return False
    return type(read) is type(value) and read == value
