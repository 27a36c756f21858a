"""What can be wrong with a program's text before it has a meaning."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.grammar.syntax import Span

UNEXPECTED_CHARACTER = "UC0001"
UNEXPECTED_TOKEN = "UC0002"
UNBALANCED_BRACKETS = "UC0003"
NUMBER_TOO_LARGE = "UC0004"
NESTED_TOO_DEEP = "UC0005"
FILE_TOO_LARGE = "UC0006"
NOT_TEXT = "UC0007"
MALFORMED_NUMBER = "UC0008"
MALFORMED_INDEX = "UC0009"
MALFORMED_CONSUMED = "UC0010"

MAX_CHARACTERS = 1 << 16
"""A program's text may have this many characters."""
MAX_NESTING = 64
"""Brackets of all kinds that may be open at once."""
MAX_DEPTH = 100
"""Levels that an expression's tree may have: keeps every later pass free to recurse."""
MAX_INTEGER = (1 << 63) - 1
MAX_PROBLEMS = 20
"""A file is not searched for more problems than these."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding: `message` says what happened, `hint` what would fix it."""

    code: str
    message: str
    span: Span
    hint: str | None = None


_SHOWN = 24


def shortened(text: str) -> str:
    """Text of a program fit for a message."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


class SyntaxProblem(Exception):
    """A text is not a program; `problems` holds what was found, in the order of the text."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{p.message} at {p.span.start} [{p.code}]" for p in problems))
