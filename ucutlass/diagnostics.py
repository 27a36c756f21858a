"""Diagnostics: what is wrong with a program, where, with which numbers, and what would fix it."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ucutlass.grammar.syntax import Span
from ucutlass.limits import ERRORS
from ucutlass.printable import cut, name, words


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding about a program's text.

    `code` is stable (`UC0123`, see `ucutlass.codes`); `message` says what happened with the
    numbers; `hint` what would make it legal; `notes` point at other places that matter.
    """

    code: str
    message: str
    span: Span
    hint: str | None = None
    notes: tuple[tuple[str, Span], ...] = ()
    severity: Literal["error", "warning"] = "error"


def listed(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Each once, as many as a reader is shown; where there are more, a last one says so."""
    every = tuple(dict.fromkeys(diagnostics))
    if len(every) <= ERRORS.most:
        return every
    first = every[ERRORS.most]
    more = Diagnostic(ERRORS.code, ERRORS.message(len(every)), first.span, ERRORS.hint)
    return (*every[: ERRORS.most], more)


class ProgramError(Exception):
    """A program has errors; `diagnostics` holds all of them, in the order of the text."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...], source: str, file: str) -> None:
        self.diagnostics = diagnostics
        self.source = source
        self.file = file
        super().__init__(render(diagnostics, source, file))


@dataclass(frozen=True, slots=True)
class TextPosition:
    """One-based line and column of a character offset."""

    line: int
    column: int


class Lines:
    """Offsets to lines and columns of one text."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._starts = [0] + [i + 1 for i, c in enumerate(source) if c == "\n"]

    def position(self, offset: int) -> TextPosition:
        line = bisect.bisect_right(self._starts, offset)
        return TextPosition(line, offset - self._starts[line - 1] + 1)

    def text(self, line: int) -> str:
        start = self._starts[line - 1]
        end = self._starts[line] - 1 if line < len(self._starts) else len(self._source)
        return self._source[start:end]


def render(diagnostics: tuple[Diagnostic, ...], source: str, file: str) -> str:
    """All diagnostics as a person reads them: file:line:column, the line, a caret, the hint. Nothing in it
    is obeyed by a terminal."""
    lines = Lines(source)
    return "\n".join(part for d in diagnostics for part in _one(d, lines, name(file)))


def _one(d: Diagnostic, lines: Lines, file: str) -> list[str]:
    at = lines.position(d.span.start)
    out = [f"{file}:{at.line}:{at.column}: {d.severity}: {words(d.message)} [{d.code}]"]
    out += _excerpt(d.span, lines)
    for note, span in d.notes:
        where = lines.position(span.start)
        out.append(f"{file}:{where.line}:{where.column}: note: {words(note)}")
        out += _excerpt(span, lines)
    if d.hint:
        out.append(f"  hint: {words(d.hint)}")
    return out


_WIDTH = 160
"""Characters of a source line shown; longer lines are cut around the caret."""


def _excerpt(span: Span, lines: Lines) -> list[str]:
    at = lines.position(span.start)
    text = lines.text(at.line)
    start = max(0, at.column - _WIDTH // 2) if len(text) > _WIDTH else 0
    # A terminal obeys control characters; a text may hold any.
    shown = "".join(c if c.isprintable() else " " for c in text[start : start + _WIDTH])
    column = at.column - 1 - start
    width = max(1, min(span.end - span.start, len(shown) - column))
    gutter = f"{at.line:5} | "
    return [gutter + shown, " " * 6 + "| " + " " * column + "^" + "~" * (width - 1)]


def to_json(diagnostics: tuple[Diagnostic, ...], source: str, file: str) -> list[dict[str, Any]]:
    """The same for machines; offsets count characters, lines and columns from 1."""
    lines = Lines(source)

    def place(span: Span) -> dict[str, int]:
        start, end = lines.position(span.start), lines.position(span.end)
        return {
            "start": span.start,
            "end": span.end,
            "line": start.line,
            "column": start.column,
            "end_line": end.line,
            "end_column": end.column,
        }

    return [
        {
            "file": file,
            "code": d.code,
            "severity": d.severity,
            "message": cut(d.message),
            "hint": None if d.hint is None else cut(d.hint),
            "span": place(d.span),
            "notes": [{"message": cut(m), "span": place(s)} for m, s in d.notes],
        }
        for d in diagnostics
    ]
