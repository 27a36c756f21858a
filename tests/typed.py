"""The typed programs of a text, for tests of the checker."""

from __future__ import annotations

from ucutlass import ir
from ucutlass.frontend import read_text


def check(source: str, file: str = "<text>") -> ir.Module:
    """The typed programs of a text. Raises ProgramError with every error of the text."""
    return read_text(source, file).module
