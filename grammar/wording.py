"""Unexpected tokens in a person's words, with a hint for the slips that habit makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterable, Mapping

from lark import Token

from ucutlass.grammar import problems
from ucutlass.grammar.problems import Problem
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
    (_LOGIC, _LOGIC, "a comparison"),
    (frozenset({"OR", "AND"}), frozenset({"OR", "AND"}), "`and`, `or`"),
    (_STATEMENT, _STATEMENT | {"REQUIRE", "SCHEDULE"}, "a statement"),
    (_ITEM, _ITEM, "`kernel`, `pipeline`, `fn`"),
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
    said: list[str] = []
    for needed, covered, words in _GROUPS:
        if needed <= rest:
            said.append(words)
            rest -= covered
    said += sorted(f"`{text}`" for text, name in literals.items() if name in rest)
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} or {said[-1]}" if said else "nothing more"


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

    def began_with(self, *keywords: str) -> bool:
        """Whether the innermost brace's statement list or the item began with one of these."""
        opened = next((t for t in reversed(self.before) if t.type in _HEADS), None)
        return opened is not None and str(opened) in keywords


_HEADS = frozenset({"KERNEL", "PIPELINE", "FN", "SCHEDULE", "RETURN", "REQUIRE", "WHEN", "RBRACE"})
_FOREIGN_ITEMS = frozenset({"def", "func", "function", "define", "void", "auto", "class"})
_FOREIGN_BINDS = frozenset({"let", "var", "const", "val", "auto"})


def _in_field(s: Site) -> bool:
    return {"SHAPE", "INT", "NAME"} <= s.accepts and "LPAR" not in s.accepts


def _after_field(s: Site) -> bool:
    return "OR" in s.accepts and "RBRACE" in s.accepts and "PLUS" not in s.accepts


Slip = tuple[Callable[[Site], bool], str]

_SLIPS: tuple[Slip, ...] = (
    (lambda s: _in_field(s) and s.text in (":", "="), "leave it out: a field is its name, then its value, as in `stages 4`"),
    (lambda s: _in_field(s) and s.text == "}", "give the field a value; `auto` is always legal"),
    (lambda s: _after_field(s) and s.text in (",", ":"), "leave it out: fields need no separator, alternatives are written `or`"),
    (lambda s: _in_field(s) and s.text == "(", "write a shape as `128x256x64`"),
    (lambda s: _in_field(s) and s.text in ("true", "false"), "write a word, a number or a shape; `auto` is always legal"),
    (lambda s: s.accepts == {"ARROW"} and s.text in ("{", ":", "="), "say what it gives, as in `-> f32[M, N]`"),
    (lambda s: s.text == "where" and "LBRACE" in s.accepts,
     "give an extent where its name is new, as in `-> f32[B, P=2*H]`; state a condition as `require K % 8 == 0`"),
    (lambda s: s.text == ":" and s.began_with("fn") and "COMMA" in s.accepts, "the parameters of a `fn` have no types"),
    (lambda s: s.text == "->" and s.began_with("fn"), "a `fn` has no result type: write `= expression` or a block"),
    (lambda s: s.text in (",", ")") and s.accepts == {"COLON"} and s.began_with("kernel", "pipeline"),
     "give the parameter a type, as in `x: bf16[M, K]`"),
    (lambda s: s.text == "," and s.began_with("return"), "several results are named: `return y = e1, peak = e2`"),
    (lambda s: s.last == "if" or s.text in ("if", "else"), "there is no `if`: select by `where(condition, a, b)`"),
    (lambda s: s.last in ("for", "while"), "there are no loops: name what is reduced, as in `sum[K](x)`"),
    (lambda s: s.last in _FOREIGN_BINDS, "leave it out: bind as `name = expression`"),
    (lambda s: "KERNEL" in s.accepts and s.text in _FOREIGN_ITEMS, "write `kernel`, `pipeline` or `fn`"),
    (lambda s: s.text in ("<", "<=", ">", ">=", "==", "!=") and "PLUS" in s.accepts,
     "comparisons do not chain: write `a < b and b < c`"),
    (lambda s: s.text == "(" and s.last in (")", "]"), "only a name can be called, as in `f(x)` or `f[K](x)`"),
    (lambda s: s.text == "[" and s.last_type in ("INT", "FLOAT"), "a number has no dimensions to index"),
    (lambda s: s.text == ":" and "RSQB" in s.accepts,
     "there are no slices: write an index as an equation, as in `x[L = L + 1]`"),
    (lambda s: s.text == "]" and s.last == "[", "name what is consumed, as in `sum[K](x)`, or leave the brackets out"),
    (lambda s: s.text == ")" and s.accepts == {"NAME"}, "a composite axis has two names or more, as in `(H G)`"),
    (lambda s: s.text == "," and "RPAR" in s.accepts and s.accepts <= {"NAME", "RPAR", "EQUAL"} | _OPERATORS | {"LPAR", "LSQB"},
     "the names of a composite axis stand side by side, as in `(H G)`"),
    (lambda s: s.text == "=" and "EQ" in s.accepts and s.began_with("require", "when"), "write `==` to compare"),
    (lambda s: s.text in ("+", "/", "*", "-") and s.last in ("+", "/", "*", "-", "//", "**"),
     "the language has no such operator; it has + - * / // % **"),
    (lambda s: s.text == "=" and s.last in ("+", "-", "*", "/"), "values are bound once: write `y = x + ..` with a new name"),
    (lambda s: s.text == ">" and s.last == "=", "write `->`"),
    (lambda s: s.text == "," and s.began_with("kernel", "pipeline", "fn", "}") and "ARROW" not in s.accepts and "PLUS" in s.accepts,
     "only a call of a kernel with several results gives several: `a, b = two_results(x)`"),
    (lambda s: s.token is not None and s.token.type in ("SCHEDULE", "REQUIRE") and s.began_with("fn", "return"),
     "a `fn` holds bindings and `return`; schedules and conditions belong to kernels"),
    (lambda s: s.token is not None and s.text.isalpha() and s.token.type == s.text.upper() and "NAME" in s.accepts,
     "this word is reserved; choose another name"),
)
"""The first that holds gives the hint."""


def unexpected(
    token: Token | None, before: tuple[Token, ...], accepts: Iterable[str], literals: Mapping[str, str]
) -> Problem:
    """The problem of `token` (None: the text ended) after the tokens `before` of its item."""
    site = Site(token, before, frozenset(accepts))
    hint = next((words for holds, words in _SLIPS if holds(site)), None)
    due = expected(site.accepts, literals)
    if token is None:
        end = span_of(before[-1]).end if before else 0
        return Problem(problems.UNEXPECTED_TOKEN, f"the text ends where {due} is due", Span(end, end), hint)
    shown = token if len(token) <= 24 else token[:21] + "..."
    return Problem(problems.UNEXPECTED_TOKEN, f"unexpected `{shown}`; expected {due}", span_of(token), hint)
