"""Text to tokens and comments, by the terminals of the grammar file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lark import Token
from lark.lexer import PatternStr, TerminalDef

from ucutlass.grammar import problems
from ucutlass.grammar.problems import MAX_NESTING, MAX_PROBLEMS, Problem, shortened
from ucutlass.grammar.syntax import Span


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment without its `#`; `after` is where the code before it on its line ends, if any."""

    text: str
    start: int
    after: int | None


@dataclass(frozen=True, slots=True)
class TokenScan:
    """All of a text. `problems` and `tokens` are in the order of the text."""

    tokens: tuple[Token, ...]
    comments: tuple[Comment, ...]
    problems: tuple[Problem, ...]


_REGEXES = ("WS", "COMMENT", "TORCH", "NAME", "SHAPE", "FLOAT", "INT")
"""The grammar's regular expressions, each before those that match less of the same text."""

_NUMBERS = frozenset({"SHAPE", "FLOAT", "INT"})


class Scanner:
    """Splits text by a grammar's terminals: words by the regular expressions, then literals."""

    def __init__(self, terminals: Iterable[TerminalDef]) -> None:
        by_name = {t.name: t.pattern for t in terminals}
        self.literals: Mapping[str, str] = {
            p.value: name for name, p in by_name.items() if isinstance(p, PatternStr)
        }
        signs = sorted((s for s in self.literals if not s.isalpha()), key=len, reverse=True)
        words = [f"(?P<{name}>{by_name[name].to_regexp()})" for name in _REGEXES]
        self._regex = re.compile("|".join([*words, f"(?P<SIGN>{'|'.join(map(re.escape, signs))})"]))

    def scan(self, source: str) -> TokenScan:
        """Never fails: what is no token becomes a problem and is skipped."""
        tokens: list[Token] = []
        comments: list[Comment] = []
        problems: list[Problem] = []
        at, end, match = 0, len(source), self._regex.match
        while at < end and len(problems) < MAX_PROBLEMS:
            m = match(source, at)
            if m is None:
                stop = _stray_end(source, at)
                problems.append(_unexpected_character(source, at, stop, tokens[-1] if tokens else None))
                at = stop
                continue
            kind, text, start, at = m.lastgroup, m.group(), at, m.end()
            if kind == "WS":
                continue
            if kind == "COMMENT":
                comments.append(_comment(source, text, start, tokens))
                continue
            if kind != "SIGN" and tokens and tokens[-1].end_pos == start and tokens[-1].type in _NUMBERS:
                problems.append(_malformed_number(tokens[-1], text, start))
            name = kind if kind in _NUMBERS else self.literals.get(text, kind)
            assert name is not None
            tokens.append(Token(name, text, start_pos=start, end_pos=at))
        return TokenScan(tuple(tokens), tuple(comments), tuple(problems))


def _comment(source: str, text: str, start: int, tokens: list[Token]) -> Comment:
    body = text[1:].removeprefix(" ").rstrip()
    last = tokens[-1].end_pos if tokens else None
    same_line = last is not None and "\n" not in source[last:start]
    return Comment(body, start, last if same_line else None)


_STRING = re.compile(r""" "[^"\n]*" | '[^'\n]*' """, re.VERBOSE)


def _stray_end(source: str, at: int) -> int:
    """The end of the string literal or the run of equal characters at `at`."""
    string = _STRING.match(source, at)
    if string:
        return string.end()
    stop = at + 1
    while stop < len(source) and source[stop] == source[at]:
        stop += 1
    return stop


_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_ATTRIBUTES = "values have no methods or attributes; write a function, as in `relu(x)`"
_NO_TRANSPOSE = "there is no transpose: a type's order of names is memory order, and operations go by name"
_SIZE = "write `size(D)` for the extent of the dimension D"
_ATTRIBUTES: Mapping[str, str] = {"T": _NO_TRANSPOSE, "mT": _NO_TRANSPOSE, "shape": _SIZE, "size": _SIZE}

_CHARACTERS: Mapping[str, str] = {
    "@": "write the product as `dot[K](a, b)`, naming what is summed",
    "|": "write `or`",
    "&": "write `and`",
    "!": "write `not`, or `!=` for unequal",
    "?": "select by `where(condition, a, b)`",
    ";": "leave it out: statements need no separator, lists take `,`",
    "^": "write a power as `a ** b`",
    "~": "write `not`",
    '"': "there are no strings in the language",
    "'": "there are no strings in the language",
    "`": "leave it out",
    "\\": "leave it out: line ends mean nothing",
    "\u00a0": "replace this non-breaking space by an ordinary one",
    "\u2212": "replace this Unicode minus by `-`",
    "\u00d7": "write `*`, or `x` inside a shape such as 128x256x64",
    "\u2192": "write `->`",
    "\u2264": "write `<=`",
    "\u2265": "write `>=`",
    "\u2260": "write `!=`",
    "\ufeff": "remove this byte order mark",
}


def _unexpected_character(source: str, at: int, stop: int, last: Token | None) -> Problem:
    char = source[at]
    shown = f"`{char}`" if char.isprintable() else f"U+{ord(char):04X}"
    message = f"unexpected character {shown}"
    hint = _character_hint(source, at, stop, last)
    return Problem(problems.UNEXPECTED_CHARACTER, message, Span(at, stop), hint)


def _character_hint(source: str, at: int, stop: int, last: Token | None) -> str | None:
    char = source[at]
    if char == "." and last is not None and last.type == "TORCH" and last.end_pos == at:
        return "one name stands behind `torch.`, as in `torch.relu(x)`"
    if char == ".":
        word = _ATTRIBUTE.match(source, stop)
        return _ATTRIBUTES.get(word.group(), _NO_ATTRIBUTES) if word else None
    if char.isalpha():
        return "names are made of the letters a-z and A-Z, digits and `_`"
    return _CHARACTERS.get(char)


def _malformed_number(number: Token, text: str, start: int) -> Problem:
    span = Span(number.start_pos or 0, start + len(text))
    hint = f"write a product as `{shortened(number)} * {shortened(text)}`" if text[0].isalpha() else None
    message = f"the number `{shortened(number)}` runs into `{shortened(text)}`"
    return Problem(problems.MALFORMED_NUMBER, message, span, hint)


_OPENING = frozenset({"LPAR", "LSQB", "LBRACE"})
_CLOSING = frozenset({"RPAR", "RSQB", "RBRACE"})
_PAIRS: Mapping[str, str] = {"(": ")", "[": "]", "{": "}"}


def check_brackets(tokens: Iterable[Token]) -> Problem | None:
    """The first bracket that does not match, is never closed, or nests too deep."""
    stack: list[Token] = []
    for token in tokens:
        if token.type in _OPENING:
            stack.append(token)
            if len(stack) > MAX_NESTING:
                message = f"{len(stack)} brackets are open; at most {MAX_NESTING} may be at once"
                hint = "bind the inner part to a name"
                return Problem(problems.NESTED_TOO_DEEP, message, span_of(token), hint)
        elif token.type in _CLOSING:
            if not stack:
                message = f"`{token}` closes nothing"
                return Problem(problems.UNBALANCED_BRACKETS, message, span_of(token), "remove it")
            opened = stack.pop()
            if _PAIRS[opened] != token:
                return _mismatch(opened, token)
    if stack:
        message = f"`{stack[-1]}` is never closed"
        hint = f"add `{_PAIRS[stack[-1]]}`"
        return Problem(problems.UNBALANCED_BRACKETS, message, span_of(stack[-1]), hint)
    return None


def _mismatch(opened: Token, closed: Token) -> Problem:
    message = f"`{closed}` stands where `{_PAIRS[opened]}` is due: the last open bracket is `{opened}`"
    hint = f"close the `{opened}` with `{_PAIRS[opened]}` first"
    return Problem(problems.UNBALANCED_BRACKETS, message, span_of(closed), hint)


def span_of(token: Token) -> Span:
    assert token.start_pos is not None and token.end_pos is not None
    return Span(token.start_pos, token.end_pos)
