"""The declarations of an emitted file as a tree of tokens that loses nothing of the text.

This reads the C++ that the templates write, by what delimits declarations in it: brackets, semicolons, lines of the
preprocessor, and the words before a brace. It resolves no names and no types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ucutlass.emit.parts import NotServed


class Lexeme(NamedTuple):
    """A word, literal, mark, or line of the preprocessor. `space` is the white space and the comments before it."""

    space: str
    text: str


Lexemes: TypeAlias = tuple[Lexeme, ...]


@dataclass(frozen=True, slots=True)
class PreprocessorLine:
    """A line of the preprocessor, with those that continue it."""

    line: Lexeme


@dataclass(frozen=True, slots=True)
class Statement:
    """A declaration that ends with a semicolon and has no members: of a variable, an alias, an enumeration, or a
    function that is defined elsewhere."""

    tokens: Lexemes


@dataclass(frozen=True, slots=True)
class FunctionDefinition:
    """A function's definition; its body begins with the brace."""

    head: Lexemes
    body: Lexemes

    @property
    def words(self) -> frozenset[str]:
        return frozenset(token.text for token in self.head)

    @property
    def name(self) -> str:
        """The word before the parameters, which are the last bracket of the head."""
        return self.head[_opening_parentheses(self.head)[-1] - 1].text


@dataclass(frozen=True, slots=True)
class Block:
    """A namespace, the functions of one language linkage, or a class: what opens it, and what closes it."""

    opening: Lexemes
    members: tuple[Declaration, ...]
    closing: Lexemes


Declaration: TypeAlias = PreprocessorLine | Statement | FunctionDefinition | Block

_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
    |\#(?:\\.|[^\\\n])*\n?
    |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'
    |\d[\w'.]*|\w+|[<>=!]=|\S
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSING = {"(": ")", "{": "}", "[": "]"}


def declarations(text: str) -> tuple[Declaration, ...]:
    """Returns the declarations of a file. Raises NotServed where its brackets do not match."""
    tokens = tuple(_tokens(text))
    return tuple(_declarations(tokens, _pairs(tokens), 0, len(tokens)))


def written(tokens: Iterable[Lexeme]) -> str:
    """Returns the text of tokens, with the space before each."""
    return "".join(part for token in tokens for part in token)


def closing_angle(tokens: Sequence[Lexeme], opening: int) -> int:
    """Returns the index of the mark that closes the template arguments which begin at `opening`."""
    depth = 0
    for i in range(opening, len(tokens)):
        depth += (tokens[i].text == "<") - (tokens[i].text == ">")
        if depth == 0:
            return i
    raise NotServed(f"the template arguments after {tokens[opening - 1].text} in an emitted file do not end")


def _tokens(text: str) -> Iterator[Lexeme]:
    end = 0
    for match in _TOKEN.finditer(text):
        if match["comment"] is None:
            yield Lexeme(text[end : match.start()], match[0])
            end = match.end()


def _pairs(tokens: Sequence[Lexeme]) -> Mapping[int, int]:
    """The index of each bracket that closes, by that of the one which opens."""
    pairs: dict[int, int] = {}
    unclosed: list[int] = []
    for i, (_, text) in enumerate(tokens):
        if text in _CLOSING:
            unclosed.append(i)
        elif text in (")", "}", "]"):
            if not unclosed or _CLOSING[tokens[unclosed[-1]].text] != text:
                raise _unmatched(tokens, i)
            pairs[unclosed.pop()] = i
    if unclosed:
        raise _unmatched(tokens, unclosed[-1])
    return pairs


def _unmatched(tokens: Sequence[Lexeme], at: int) -> NotServed:
    line = written(tokens[: at + 1]).count("\n") + 1
    return NotServed(
        f"the brackets of an emitted file do not match at {tokens[min(at, len(tokens) - 1)].text} of line {line}"
    )


def _declarations(tokens: Lexemes, pairs: Mapping[int, int], at: int, end: int) -> Iterator[Declaration]:
    while at < end:
        declaration, at = _declaration(tokens, pairs, at, end)
        yield declaration


def _declaration(tokens: Lexemes, pairs: Mapping[int, int], at: int, end: int) -> tuple[Declaration, int]:
    """Returns the declaration that begins at a token, and the index of the token behind it."""
    if tokens[at].text.startswith("#"):
        return PreprocessorLine(tokens[at]), at + 1
    mark = _first(tokens, pairs, at, end, "{;")
    head, close = tokens[at:mark], pairs.get(mark, mark)
    if tokens[mark].text == ";":
        return Statement(tokens[at : mark + 1]), mark + 1
    if _is_initialized(head) or head[0].text == "enum":
        stop = _first(tokens, pairs, mark, end, ";") + 1
        return Statement(tokens[at:stop]), stop
    if _is_scope(head) or _is_class(head):
        stop = close + 1 if _is_scope(head) else _first(tokens, pairs, mark, end, ";") + 1
        members = tuple(_declarations(tokens, pairs, mark + 1, close))
        closing = (Lexeme("\n", "}"), *tokens[close + 1 : stop])
        return Block(tokens[at : mark + 1], members, closing), stop
    return FunctionDefinition(head, tokens[mark : close + 1]), close + 1


def _first(tokens: Lexemes, pairs: Mapping[int, int], at: int, end: int, marks: str) -> int:
    """The index of the first of the marks outside of brackets."""
    while at < end:
        if tokens[at].text in marks:
            return at
        at = pairs.get(at, at) + 1
    raise _unmatched(tokens, end)


def _is_scope(head: Lexemes) -> bool:
    words = [token.text for token in head]
    return words[0] == "namespace" or words[:2] == ["inline", "namespace"] or words == ["extern", '"C"']


def _is_class(head: Lexemes) -> bool:
    """Whether a head, which may be a template's, is a class's and no function's that returns one."""
    start = closing_angle(head, 1) + 1 if head[0].text == "template" else 0
    return head[start].text in ("struct", "class", "union") and all(
        head[i - 1].text == "alignas" for i in _opening_parentheses(head)
    )


def _opening_parentheses(tokens: Lexemes) -> list[int]:
    """The indices of the parentheses that open outside of all others."""
    depth, outermost = 0, []
    for i, (_, text) in enumerate(tokens):
        if text == "(" and depth == 0:
            outermost.append(i)
        depth += (text == "(") - (text == ")")
    return outermost


def _is_initialized(head: Lexemes) -> bool:
    """Whether the brace after a head begins a variable's value: an equal sign stands outside of all brackets."""
    depth = 0
    for before, (_, mark) in zip((Lexeme("", ""), *head), head, strict=False):
        depth += (mark in ("(", "[", "<")) - (mark in (")", "]", ">"))
        if mark == "=" and depth == 0 and before.text != "operator":
            return True
    return False
