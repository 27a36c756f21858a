"""The syntax tree: what a program's text says, with the place where it says it.

Nodes are frozen dataclasses told apart with `match`. Spans and the spelling of
numbers do not take part in comparison, so `parse(format_file(tree)) == tree`.
Comments do: they belong to the statement they stand before or behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of character offsets into the source text."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """The smallest span that holds both."""
        return Span(min(self.start, other.start), max(self.end, other.end))


NOWHERE = Span(0, 0)


def _span() -> Span:
    return field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Comments:
    """Comment texts without `#`: whole lines before a node, one behind its last line."""

    before: tuple[str, ...] = ()
    behind: str | None = None


# --- expressions -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """`1`, `0.5`, `1e-5`: `value` is an int where the text has neither point nor exponent."""

    value: int | float
    text: str = field(default="", compare=False)
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Literal_:
    """The words that stand for values: `true`, `false`, `inf`."""

    word: Literal["true", "false", "inf"]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Name:
    name: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Unary:
    op: Literal["-", "not"]
    operand: Expr
    span: Span = _span()


BinaryOp: TypeAlias = Literal[
    "or", "and", "<", "<=", ">", ">=", "==", "!=", "+", "-", "*", "/", "//", "%", "**"
]


@dataclass(frozen=True, slots=True)
class Binary:
    op: BinaryOp
    left: Expr
    right: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class BracketName:
    """A consumed name in `sum[K](..)`, with its extent where it is introduced: `max[R=3](..)`."""

    name: str
    extent: Expr | None = None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call; `name` is set in `linear(x = h)` and `cumsum[L](e, exclusive=true)`."""

    value: Expr
    name: str | None = None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Call:
    """`f(args)`, `f[K](args)` or `torch.f(args)`; `brackets` is None where none were written."""

    callee: str
    brackets: tuple[BracketName, ...] | None
    arguments: tuple[Argument, ...]
    callee_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class IndexItem:
    """One equation of an index: `H = 2*P + R - 1`, `2*H = P + 1 - R`, `V = ids`."""

    left: Expr
    right: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Index:
    base: Expr
    items: tuple[IndexItem, ...]
    span: Span = _span()


Expr: TypeAlias = Number | Literal_ | Name | Unary | Binary | Call | Index

# --- types -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedAxis:
    """`K`, `K=1024`, `P=2*H`."""

    name: str
    extent: Expr | None = None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class CompositeAxis:
    """`(H G)`: one axis in memory, outer name first."""

    parts: tuple[NamedAxis, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class NamelessAxis:
    """`1`, `E+1`: an axis that no expression can name."""

    extent: Expr
    span: Span = _span()


Axis: TypeAlias = NamedAxis | CompositeAxis | NamelessAxis


@dataclass(frozen=True, slots=True)
class TypeExpr:
    """`f32` (axes None: a number passed by value), `f32[]` (axes empty: one element on the
    device), `bf16[M, K]`; `element` is None in a binding such as `w: [N, R=3] = ..`."""

    element: str | None
    axes: tuple[Axis, ...] | None
    element_span: Span = _span()
    span: Span = _span()


# --- statements ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    type: TypeExpr | None = None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Bind:
    """`a = e`, `h: bf16[T, F] = e`, `a, b = two_results(e)`."""

    targets: tuple[Target, ...]
    value: Expr
    comments: Comments = Comments()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class ReturnItem:
    value: Expr
    name: str | None = None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Return:
    items: tuple[ReturnItem, ...]
    comments: Comments = Comments()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Require:
    """`require K % 8 == 0`: a condition on extents that every call must meet."""

    condition: Expr
    comments: Comments = Comments()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class ShapeValue:
    """`128x256x64`."""

    sizes: tuple[int, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class IntValue:
    value: int
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class WordValue:
    """`auto`, `pingpong`, `along_m`, `stream`."""

    word: str
    span: Span = _span()


FieldValue: TypeAlias = ShapeValue | IntValue | WordValue


@dataclass(frozen=True, slots=True)
class Field:
    """`tile 128x128x64 or 128x256x64`."""

    name: str
    alternatives: tuple[FieldValue, ...]
    comments: Comments = Comments()
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class StageName:
    """A stage of a pipeline: the binding `h`, or a result, `return` (`name` None) and `return y`."""

    name: str | None
    returned: bool = False
    span: Span = _span()

    @property
    def words(self) -> str:
        """As a text has it."""
        return " ".join(word for word in ("return" if self.returned else None, self.name) if word)


@dataclass(frozen=True, slots=True)
class Schedule:
    """`schedule sm90a when M <= 64 { .. }`; `arch_span` and `when` place its diagnostics. In a pipeline
    `schedule sm90a for h { .. }` says of which stage."""

    arch: str
    when: Expr | None
    fields: tuple[Field, ...]
    closing: tuple[str, ...] = ()
    comments: Comments = Comments()
    arch_span: Span = _span()
    span: Span = _span()
    stage: StageName | None = None


Statement: TypeAlias = Bind | Return | Require | Schedule

# --- items -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Param:
    name: str
    type: TypeExpr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a program; `name` is None for the single unnamed one."""

    type: TypeExpr
    name: str | None = None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Program:
    """A `kernel` (one launch) or a `pipeline` (several). `closing` holds comments before `}`."""

    kind: Literal["kernel", "pipeline"]
    name: str
    params: tuple[Param, ...]
    results: tuple[Result, ...]
    body: tuple[Statement, ...]
    closing: tuple[str, ...] = ()
    comments: Comments = Comments()
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Function:
    """`fn rms[D](x) = ..` (body is one Return) or `fn f[D](x) { d = ..  return .. }`.

    `is_block` remembers which of the two forms was written.
    """

    name: str
    dims: tuple[str, ...]
    params: tuple[str, ...]
    body: tuple[Statement, ...]
    is_block: bool = False
    closing: tuple[str, ...] = ()
    comments: Comments = Comments()
    name_span: Span = _span()
    span: Span = _span()


Item: TypeAlias = Program | Function


@dataclass(frozen=True, slots=True)
class File:
    items: tuple[Item, ...]
    closing: tuple[str, ...] = ()
