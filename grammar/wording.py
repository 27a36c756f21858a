"""Unexpected tokens in a person's words, with a hint for the slips that habit makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lark import Token

from ucutlass.grammar import problems
from ucutlass.grammar.problems import Problem, shortened
from ucutlass.grammar.syntax import Span
from ucutlass.grammar.tokens import span_of

_EXPRESSION = frozenset({"NAME", "INT", "FLOAT", "TORCH", "MINUS", "LPAR", "TRUE", "FALSE", "INF"})
_OPERATORS = frozenset({"PLUS", "MINUS", "STAR", "SLASH", "FLOOR", "PERCENT", "POWER"})
_LOGIC = frozenset({"OR", "AND", "LESSTHAN", "LE", "MORETHAN", "GE", "EQ", "NE"})
_STATEMENT = frozenset({"NAME", "RETURN"})
_ITEM = frozenset({"KERNEL", "PIPELINE", "FN"})
_VALUE = frozenset({"SHAPE", "INT", "NAME"})

_GROUPS: tuple[tuple[frozenset[str], frozenset[str], str], ...] = (
    (_EXPRESSION, _EXPRESSION | {"NOT"}, "an expression"),
    (_OPERATORS, _OPERATORS | _LOGIC | {"LPAR", "LSQB"}, "an operator"),
    (_STATEMENT, _STATEMENT | {"REQUIRE", "SCHEDULE"}, "a statement"),
    (_ITEM, _ITEM, "`kernel`, `pipeline` or `fn`"),
    (_VALUE, _VALUE, "a value (a shape such as 128x256x64, a number or a word)"),
    (frozenset({"NAME"}), frozenset({"NAME"}), "a name"),
    (frozenset({"INT"}), frozenset({"INT"}), "a whole number"),
    (frozenset({"SHAPE"}), frozenset({"SHAPE"}), "a shape such as 128x256x64"),
    (frozenset({"$END"}), frozenset({"$END"}), "the next `kernel`, `pipeline` or `fn`"),
)
"""Where all of the first are expected, the second are said in the words of the third."""


def expected(accepts: Iterable[str], literals: Mapping[str, str]) -> str:
    """What the terminals `accepts` are to a reader; `literals` maps a sign or word to its terminal."""
    rest = frozenset(accepts)
    alternatives: list[str] = []
    for needed, covered, words in _GROUPS:
        if needed <= rest:
            alternatives.append(words)
            rest -= covered
    alternatives += sorted(f"`{text}`" for text, name in literals.items() if name in rest)
    return (
        alternatives[0]
        if len(alternatives) == 1
        else f"{', '.join(alternatives[:-1])} or {alternatives[-1]}"
        if alternatives
        else "nothing more"
    )


@dataclass(frozen=True, slots=True)
class Site:
    """Where a token was not expected: what was open, what stood before, what could have stood."""

    token: Token | None
    before: tuple[Token, ...]
    accepts: frozenset[str]

    @property
    def text(self) -> str:
        return "" if self.token is None else str(self.token)

    @property
    def last(self) -> str:
        return str(self.before[-1]) if self.before else ""

    @property
    def last_type(self) -> str:
        return self.before[-1].type if self.before else ""

    @property
    def open(self) -> str:
        """The innermost bracket that is open, "" for none."""
        stack = ""
        for token in self.before:
            if token in _OPENING:
                stack += token
            elif token in _CLOSING:
                stack = stack[:-1]
        return stack[-1:]

    @property
    def in_function(self) -> bool:
        return bool(self.before) and self.before[0] == "fn"

    def began_with(self, *keywords: str) -> bool:
        """Whether the last keyword or closed block before is one of these."""
        opened = next((t for t in reversed(self.before) if t.type in _HEADS), None)
        return opened is not None and str(opened) in keywords


_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")
_HEADS = frozenset({"KERNEL", "PIPELINE", "FN", "SCHEDULE", "RETURN", "REQUIRE", "WHEN", "RBRACE"})
_FOREIGN_ITEMS = frozenset({"def", "func", "function", "define", "void", "auto", "class"})
_FOREIGN_BINDS = frozenset({"let", "var", "const", "val", "auto"})
_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})


def _wants_value(s: Site) -> bool:
    return s.accepts == _VALUE


def _after_value(s: Site) -> bool:
    return s.accepts == {"NAME", "OR", "RBRACE"}


def _wants_expression(s: Site) -> bool:
    return s.accepts >= _EXPRESSION


def _after_operand(s: Site) -> bool:
    return "PLUS" in s.accepts


def _wants_item(s: Site) -> bool:
    return "KERNEL" in s.accepts


def _wants_statement(s: Site) -> bool:
    return "RETURN" in s.accepts and not _after_operand(s)


def _after_first_name(s: Site) -> bool:
    """Behind a statement's first name, or its target's type."""
    return s.accepts in ({"COMMA", "COLON", "EQUAL"}, {"COMMA", "EQUAL"}, {"COMMA", "EQUAL", "LSQB"})


def _in_composite(s: Site) -> bool:
    return "NAME" in s.accepts and s.accepts.isdisjoint({"COMMA", "RETURN", "RBRACE"}) and s.open == "("


def _in_head(s: Site) -> bool:
    return s.began_with("kernel", "pipeline")


def _reserved(s: Site) -> bool:
    return s.token is not None and s.text.isalpha() and s.token.type == s.text.upper()


Slip: TypeAlias = tuple[Callable[[Site], bool], str]

_SLIPS: tuple[Slip, ...] = (
    # schedules
    (
        lambda s: _wants_value(s) and s.text in (":", "="),
        "leave it out: a field is its name, then its value, as in `stages 4`",
    ),
    (lambda s: _wants_value(s) and s.text == "}", "give the field a value; `auto` is always legal"),
    (lambda s: _wants_value(s) and s.text == "(", "write a shape as `128x256x64`"),
    (_wants_value, "write a shape, a whole number or a word; `auto` is always legal"),
    (
        lambda s: _after_value(s) and s.text in (",", ":"),
        "leave it out: fields need no separator, alternatives are written `or`",
    ),
    (lambda s: s.last == "schedule", "say which architecture it is for, as in `schedule sm90a { .. }`"),
    (
        lambda s: s.last == "for" and s.accepts == {"NAME", "RETURN"},
        "name a stage of the pipeline: what a binding stores, as in `for h`, or `for return`",
    ),
    (
        lambda s: s.text == "for" and s.began_with("when"),
        "the stage stands before the condition: `schedule sm90a for h when T <= 64 { .. }`",
    ),
    (
        lambda s: s.accepts == {"FOR", "WHEN", "LBRACE"} and s.last_type == "NAME",
        "a stage stands behind `for`, a condition behind `when`",
    ),
    (
        lambda s: s.text == "=" and _after_operand(s) and s.began_with("require", "when"),
        "write `==` to compare",
    ),
    # heads
    (lambda s: s.accepts == {"ARROW"}, "say what it gives, as in `-> f32[M, N]`"),
    (
        lambda s: s.text == "where" and s.accepts >= {"LBRACE"},
        "give an extent where its name is new, as in `-> f32[B, P=2*H]`; state a condition as `require "
        "K % 8 == 0`",
    ),
    (
        lambda s: s.text == ":" and s.began_with("fn") and s.open == "(" and "RPAR" in s.accepts,
        "the parameters of a `fn` have no types",
    ),
    (
        lambda s: s.text == "->" and s.began_with("fn"),
        "a `fn` has no result type: write `= expression` or a block",
    ),
    (
        lambda s: s.accepts == {"COLON"} and "->" in s.before,
        "several results are named: `-> (y: f32[M], peak: f32[N])`",
    ),
    (lambda s: s.accepts == {"COLON"} and _in_head(s), "give the parameter a type, as in `x: bf16[M, K]`"),
    (
        lambda s: s.text == "[" and s.accepts == {"LPAR"},
        "dimensions are named in the parameters' types; only a `fn` lists them",
    ),
    (
        lambda s: s.text == "[" and s.last in (":", "->"),
        "an element type stands before the brackets, as in `bf16[M, K]`",
    ),
    (
        lambda s: s.text == "=" and s.open == "(" and "RPAR" in s.accepts and _in_head(s),
        "parameters have no defaults",
    ),
    (
        lambda s: s.text == "," and _in_composite(s),
        "the names of a composite axis stand side by side, as in `(H G)`",
    ),
    (lambda s: s.text == ")" and _in_composite(s), "a composite axis has two names or more, as in `(H G)`"),
    # statements
    (
        lambda s: s.text == "," and _after_operand(s) and s.open == "{" and s.began_with("return"),
        "several results are named: `return y = e1, peak = e2`",
    ),
    (
        lambda s: s.text == "," and _after_operand(s) and s.open == "{",
        "one value a binding; only a call of a program with several results gives several: `a, b = "
        "two_results(x)`",
    ),
    (
        lambda s: s.last == "if" or s.text in ("if", "else"),
        "there is no `if`: select by `where(condition, a, b)`",
    ),
    (
        lambda s: s.last == "while" or (s.text == "for" and (_wants_statement(s) or _after_operand(s))),
        "there are no loops: name what is reduced, as in `sum[K](x)`",
    ),
    (lambda s: s.last in _FOREIGN_BINDS, "leave it out: bind as `name = expression`"),
    (lambda s: s.text in ("//", "/") and (_wants_item(s) or _wants_statement(s)), "comments start with `#`"),
    (lambda s: _after_first_name(s) and "//" in s.before[-4:], "comments start with `#`"),
    (
        lambda s: _after_first_name(s) and s.text in ("+", "-", "*", "/") and s.last_type == "NAME",
        "values are bound once: write `y = x + ..` with a new name",
    ),
    (
        lambda s: s.text in ("schedule", "require") and s.in_function,
        "a `fn` holds bindings and `return`; schedules and conditions belong to kernels",
    ),
    (lambda s: _wants_item(s) and s.text in _FOREIGN_ITEMS, "write `kernel`, `pipeline` or `fn`"),
    # expressions
    (
        lambda s: s.text in _COMPARISONS and _after_operand(s),
        "comparisons do not chain: write `a < b and b < c`",
    ),
    (
        lambda s: s.text == "(" and s.last in (")", "]"),
        "only a name can be called, as in `f(x)` or `f[K](x)`",
    ),
    (lambda s: s.text == "[" and s.last_type in ("INT", "FLOAT"), "a number has no dimensions to index"),
    (
        lambda s: s.text == ":" and s.open == "[",
        "there are no slices: write an index as an equation, as in `x[L = L + 1]`",
    ),
    (
        lambda s: s.text == "]" and s.last == "[",
        "name what is consumed, as in `sum[K](x)`, or leave the brackets out",
    ),
    (lambda s: s.text == "+" and _wants_expression(s), "there is no sign `+`: leave it out"),
    (
        lambda s: _reserved(s) and "NAME" in s.accepts and not _wants_expression(s) and not _after_operand(s),
        "this word is reserved; choose another name",
    ),
    (
        _after_first_name,
        "a statement is `name = expression`, or starts with `return`, `require` or `schedule`",
    ),
)
"""The first that holds gives the hint."""


def unexpected(
    token: Token | None,
    before: tuple[Token, ...],
    following: Token | None,
    accepts: Iterable[str],
    literals: Mapping[str, str],
) -> Problem:
    """The problem of `token` after the tokens `before` of its item.

    `token` is None where the item ended too early: before the keyword `following` of the next
    one, or with the text.
    """
    site = Site(token, before, frozenset(accepts))
    hint = next((words for holds, words in _SLIPS if holds(site)), None)
    due = expected(site.accepts, literals)
    if token is not None:
        message = f"unexpected `{shortened(token)}`; expected {due}"
        return Problem(problems.UNEXPECTED_TOKEN, message, span_of(token), hint)
    end = span_of(before[-1]).end
    where = "the text ends" if following is None else f"`{following}` begins a new item"
    return Problem(problems.UNEXPECTED_TOKEN, f"{where} where {due} is due", Span(end, end), hint)
