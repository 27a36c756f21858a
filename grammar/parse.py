"""Text to syntax tree."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from lark import Lark, Token
from lark.exceptions import UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from ucutlass.grammar import problems, syntax
from ucutlass.grammar.build import Build
from ucutlass.grammar.comments import attach
from ucutlass.grammar.problems import MAX_CHARACTERS, MAX_DEPTH, MAX_PROBLEMS, Problem, SyntaxProblem
from ucutlass.grammar.syntax import File, Item, Span
from ucutlass.grammar.tables import grammar_text, load_parser
from ucutlass.grammar.tokens import Scanner, check_brackets
from ucutlass.grammar.wording import unexpected

__all__ = ["SyntaxProblem", "decode", "grammar_text", "parse"]


def decode(data: bytes) -> str:
    """A file's bytes as text. Raises SyntaxProblem for what is not UTF-8 or holds a NUL."""
    body = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        # The bytes before the fault are sound, so their characters place it.
        at = len(body[: error.start].decode("utf-8"))
        message = f"byte {len(data) - len(body) + error.start} (0x{body[error.start]:02X}) is not UTF-8"
        problem = Problem(problems.NOT_TEXT, message, Span(at, at), "save the file as UTF-8")
        raise SyntaxProblem((problem,)) from None
    _check_text(text)
    return text


def parse(source: str) -> File:
    """The tree of a program's text.

    Raises SyntaxProblem with every problem found, at most one of an item (and a few of its
    characters): reading goes on at the next `kernel`, `pipeline` or `fn`.
    """
    _check_text(source)
    language = _language()
    scan = language.scanner.scan(source)
    problems = list(scan.problems)
    items: list[Item] = []
    for tokens, following in _split(scan.tokens):
        if len(problems) >= MAX_PROBLEMS:
            break
        if any(_holds(tokens, p.span) for p in scan.problems):
            continue
        match language.item(tokens, following):
            case Problem() as problem:
                problems += _with_brackets(tokens, problem)
            case item:
                items.append(item)
    if problems:
        raise SyntaxProblem(tuple(sorted(problems, key=lambda p: p.span.start)))
    return attach(File(tuple(items)), scan.tokens, scan.comments)


def check_length(text: str, what: str = "the text") -> None:
    """Raises SyntaxProblem UC0006 for a text that is longer than any that is read."""
    if len(text) > MAX_CHARACTERS:
        message = f"{what} has {len(text)} characters; at most {MAX_CHARACTERS} are read"
        raise SyntaxProblem((Problem(problems.FILE_TOO_LARGE, message, Span(0, 0), "split the file"),))


def _check_text(text: str) -> None:
    check_length(text)
    at = text.find("\0")
    if at >= 0:
        message = "the text holds a NUL character; a program is plain text"
        raise SyntaxProblem((Problem(problems.NOT_TEXT, message, Span(at, at + 1)),))


_ITEMS = frozenset({"KERNEL", "PIPELINE", "FN"})


def _split(tokens: Sequence[Token]) -> Iterator[tuple[tuple[Token, ...], Token | None]]:
    """Each item's tokens, and the one behind them: its keyword starts an item wherever it stands."""
    # What stands before the first keyword is an item too, a wrong one.
    starts = [i for i, t in enumerate(tokens) if i == 0 or t.type in _ITEMS]
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=False):
        yield tuple(tokens[start:end]), tokens[end] if end < len(tokens) else None


def _holds(tokens: Sequence[Token], span: Span) -> bool:
    return (tokens[0].start_pos or 0) <= span.start <= (tokens[-1].end_pos or 0)


def _with_brackets(tokens: Sequence[Token], problem: Problem) -> list[Problem]:
    """A bracket that does not match says more than the token at which that came to light."""
    brackets = check_brackets(tokens)
    if brackets is None:
        return [problem]
    return [problem, brackets] if problem.span.start < brackets.span.start else [brackets]


@dataclass(frozen=True, slots=True)
class _Language:
    """The parser's tables; holds nothing of any one text."""

    lark: Lark
    scanner: Scanner

    def item(self, tokens: tuple[Token, ...], following: Token | None) -> Item | Problem:
        """The item that `tokens` make, or the first problem in them."""
        brackets = check_brackets(tokens)
        if brackets is not None and brackets.code == problems.NESTED_TOO_DEEP:
            return brackets
        parser = self.lark.parse_interactive(start="item")
        fed = 0
        try:
            for token in tokens:
                parser.feed_token(token)
                fed += 1
            item: Item = parser.feed_token(Token("$END", ""))
        except SyntaxProblem as error:
            return error.problems[0]
        except UnexpectedToken:
            before = tokens[:fed]
            at_fault = tokens[fed] if fed < len(tokens) else None
            return unexpected(at_fault, before, following, self._accepts(before), self.scanner.literals)
        return _too_deep(item) or item

    def _accepts(self, tokens: Sequence[Token]) -> set[str]:
        # Fed anew: a failing token may have been reduced upon before it failed.
        parser: InteractiveParser = self.lark.parse_interactive(start="item")
        for token in tokens:
            parser.feed_token(token)
        return set(parser.accepts())  # type: ignore[no-untyped-call]  # lark leaves it bare


@cache
def _language() -> _Language:
    lark = load_parser(Build())
    return _Language(lark, Scanner(lark.terminals))


_PARTS: Mapping[type, tuple[str, ...]] = {
    kind: tuple(f.name for f in fields(kind) if f.type not in ("Span", "str", "Comments"))
    for kind in vars(syntax).values()
    if isinstance(kind, type) and is_dataclass(kind) and kind is not Span
}
"""The fields of each kind of node in which nodes may stand."""


def _too_deep(item: Item) -> Problem | None:
    """A problem where the tree has more than MAX_DEPTH levels; walks with a stack of its own."""
    stack: list[tuple[Any, int]] = [(item, 0)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, tuple):
            stack += [(x, depth) for x in node]
            continue
        parts = _PARTS.get(type(node), ())
        if parts and depth > MAX_DEPTH:
            return _depth_problem(node)
        stack += [(getattr(node, part), depth + 1) for part in parts]
    return None


def _depth_problem(node: Any) -> Problem:
    message = f"the expression has more than {MAX_DEPTH} levels"
    return Problem(problems.NESTED_TOO_DEEP, message, node.span, "bind parts of it to names")
