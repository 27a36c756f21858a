"""This module makes texts that come from programs and tools fit to be shown: nothing invisible, nothing
endless."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

LINES = 400
"""Lines of a text or of a difference that a page shows."""

WIDTH = 400
"""Characters of a line that a page shows."""

COMPARED = 100_000
"""Characters of two texts together up to which they are compared: the comparison is quadratic at worst,
and a program has some hundred to some thousand."""

LineKind: TypeAlias = Literal["same", "added", "removed", "place"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """Describes a piece of a line. `changed`: it is not in the line that this one replaces, or that replaces
    it."""

    text: str
    changed: bool = False


@dataclass(frozen=True, slots=True)
class TextLine:
    """Describes a line without the sign that tells its kind."""

    kind: LineKind
    parts: tuple[TextPart, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Holds the lines to show. `whole` is False where some, or parts of some, are left out."""

    lines: tuple[TextLine, ...]
    whole: bool
    compared: bool = True


def plain(text: str) -> str:
    """Returns the text with its line breaks; what no font shows, or what turns the order of others round, is
    written as its number. Half a surrogate pair, which no file can hold, is among it."""
    return "".join(c if c == "\n" or c.isprintable() else _number(c) for c in text)


def _number(c: str) -> str:
    return "    " if c == "\t" else f"\\u{ord(c):04x}"


def one_line(text: str, most: int = 200) -> str:
    """Returns the text on one line, cut."""
    shown = plain(" ".join(text[: 4 * most].split()))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def excerpt(text: str, lines: int = LINES) -> Excerpt:
    """Returns the beginning of a text."""
    return _cut((("same", line) for line in _lines(text)), lines)


def difference(before: str, after: str, lines: int = LINES) -> Excerpt:
    """Returns what changed, with three lines around it; the beginning of `after` where the texts are too long
    to be compared. No lines where nothing changed."""
    if len(before) + len(after) > COMPARED:
        shown = excerpt(after, lines)
        return Excerpt(shown.lines, shown.whole, compared=False)
    shown = _cut(_changed(_lines(before), _lines(after)), lines)
    return Excerpt(_worded(shown.lines), shown.whole)


def _changed(before: list[str], after: list[str]) -> Iterator[tuple[LineKind, str]]:
    for at, line in enumerate(difflib.unified_diff(before, after, n=3, lineterm="")):
        if at < 2:
            continue  # the names of two files
        yield _KINDS[line[0]], line if line[0] == "@" else line[1:]


_KINDS: dict[str, LineKind] = {"+": "added", "-": "removed", " ": "same", "@": "place"}


def _lines(text: str) -> list[str]:
    """Splits by line breaks alone: `splitlines` also breaks at characters that `plain` shows."""
    return text.rstrip("\n").split("\n") if text else []


def _cut(lines: Iterable[tuple[LineKind, str]], most: int) -> Excerpt:
    lines_: list[TextLine] = []
    complete = True
    for kind, text in lines:
        if len(lines_) == most:
            return Excerpt(tuple(lines_), False)
        if len(text) > WIDTH:
            complete = False
        shown = plain(text[:WIDTH]) + ("…" if len(text) > WIDTH else "")
        lines_.append(TextLine(kind, (TextPart(shown),)))
    return Excerpt(tuple(lines_), complete)


# --- words -----------------------------------------------------------------------


def _worded(lines: tuple[TextLine, ...]) -> tuple[TextLine, ...]:
    """Marks the words that changed where lines were replaced by as many: a schedule is one long line."""
    runs = [list(run) for _, run in itertools.groupby(lines, key=lambda line: line.kind)]
    for old, new in itertools.pairwise(runs):
        if (old[0].kind, new[0].kind, len(old)) == ("removed", "added", len(new)):
            for at, (before, after) in enumerate(zip(old, new, strict=True)):
                left, right = _paired(before.text, after.text)
                old[at], new[at] = TextLine("removed", left), TextLine("added", right)
    return tuple(itertools.chain.from_iterable(runs))


def _paired(before: str, after: str) -> tuple[tuple[TextPart, ...], tuple[TextPart, ...]]:
    old, new = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (before, after))
    left: list[TextPart] = []
    right: list[TextPart] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        left += [TextPart("".join(old[a:b]), tag != "equal")] if b > a else []
        right += [TextPart("".join(new[c:d]), tag != "equal")] if d > c else []
    return tuple(left), tuple(right)
