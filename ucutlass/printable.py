"""Text of others on its way to a terminal: nothing in it is obeyed, nothing floods the screen.

File names, programs, exceptions, tools' words and records hold any character. What a terminal would obey or
what would turn the direction of writing (C0 and C1 controls, DEL, bidirectional marks, lone surrogates) is
written out as `\\x1b`, `\\u202e`.
"""

from __future__ import annotations

from pathlib import PurePath

MOST_CHARACTERS = 4_096
MOST_LINES = 40
"""Of one text of others, an exception or a tool's words; the rest is counted."""


def escaped(text: str, keep: str = "") -> str:
    """All of `text`, with every character written out that is not printable, but those of `keep`. A byte of
    a file name that is not of its encoding (PEP 383) is written as that byte."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _written(ord(c)) for c in text)


def _written(number: int) -> str:
    if 0xDC80 <= number <= 0xDCFF:
        number -= 0xDC00
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def cut(text: str, characters: int = MOST_CHARACTERS, lines: int = MOST_LINES) -> str:
    """The beginning of `text`, and how much follows it."""
    head = "\n".join(text[:characters].split("\n", lines)[:lines])
    left = len(text) - len(head)
    return text if left == 0 else f"{head} … {left} more characters"


def words(text: str) -> str:
    """A text of others in its own lines: cut, and with nothing in it to obey. A tab is a blank."""
    return escaped(cut(text).replace("\t", " "), keep="\n")


def one_line(text: str) -> str:
    """Returns the text as `words` does, the lines joined by semicolons: nothing begins a line of its own."""
    return escaped("; ".join(cut(text).replace("\t", " ").splitlines()))


def name(path: PurePath | str) -> str:
    """A file's name on one line, whatever it holds; it is not cut, so that it can be found."""
    return escaped(str(path))
