"""Splits CUDA source into tokens, as far as the checks of an adopted source need it.

Comments are gone, and lines that a backslash continues are joined, as the compiler does before it reads
directives (C++17, [lex.phases]). Raw string literals undo that joining, so a source may have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from ucutlass.adopt.refusals import SourceRefused

TokenKind: TypeAlias = Literal["string", "char", "number", "name", "other"]


@dataclass(frozen=True, slots=True)
class Token:
    """`line` counts from 1, in the file as it is."""

    kind: TokenKind
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Directive:
    """A line of the preprocessor: its `name`, "" for a lone `#`, and the rest of the line."""

    name: str
    rest: str
    line: int


_SPLICE = re.compile(r"\\[ \t]*\n")

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<raw>(?:u8|[uUL])?R")
      | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
      | (?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
      | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
      | (?P<name>[^\W\d]\w*)
      | (?P<newline>\n)
      | (?P<space>[^\S\n]+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def scan(text: str) -> tuple[tuple[Token, ...], tuple[Directive, ...]]:
    """Returns the tokens of all lines that are no directives, and the directives. Tokens that a macro's
    definition holds are among the tokens too, since they become code. Raises SourceRefused for a raw string
    literal."""
    tokens: list[Token] = []
    directives: list[Directive] = []
    for line in _lines(text):
        if line and line[0].text in ("#", "%:"):
            name = line[1].text if len(line) > 1 else ""
            rest = " ".join(token.text for token in line[2:])
            directives.append(Directive(name, rest, line[0].line))
            if name != "define":
                continue
        tokens += line
    return tuple(tokens), tuple(directives)


def _lines(text: str) -> Iterator[list[Token]]:
    """Yields the tokens of each line, comments left out. `%:` is one token, since it is another `#`."""
    splices = [m.start() for m in _SPLICE.finditer(text)]
    joined = _SPLICE.sub("", text)
    starts = _line_starts(text, splices)
    line: list[Token] = []
    number = 0
    for m in _TOKEN.finditer(joined):
        kind = m.lastgroup
        at = starts[number] if number < len(starts) else len(starts)
        if kind == "raw":
            raise SourceRefused("literal", f"line {at}: write the string without R")
        if kind == "newline":
            yield line
            line = []
        elif kind not in ("comment", "space"):
            if line and (line[-1].text, m[0]) == ("%", ":"):
                line[-1] = Token("other", "%:", at)
            else:
                line.append(Token(cast(TokenKind, kind), m[0], at))
        number += m[0].count("\n")
    yield line


def _line_starts(text: str, splices: Sequence[int]) -> list[int]:
    """Returns the number in the file of each line that is left when continued lines are joined."""
    joined = set(splices)
    starts, number, begin = [1], 1, 0
    for end in (m.start() for m in re.finditer("\n", text)):
        number += 1
        before = text[begin:end].rstrip(" \t")
        if not (before.endswith("\\") and begin + len(before) - 1 in joined):
            starts.append(number)
        begin = end + 1
    return starts
