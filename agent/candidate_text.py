"""This module reads the texts of candidates.

A candidate's text comes from outside: a proposer answered it, or a journal holds it. It enters here, once in
a process, and judge, builders, proposers and prompts take the one record of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ucutlass.diagnostics import Diagnostic, ProgramError
from ucutlass.frontend import Checked, checked_tree, parsed
from ucutlass.grammar.syntax import File

FILE = "candidate"
"""What diagnostics call the file of a candidate."""

MOST_TEXTS = 512
"""Texts that a process remembers: more than a session judges."""


@dataclass(frozen=True, slots=True)
class CandidateText:
    """Describes a text that was read. `tree` is None where its syntax is wrong, `program` where anything is;
    `diagnostics` say what."""

    text: str
    tree: File | None
    program: Checked | None
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def checked(self) -> Checked:
        """Returns the checked program. Raises ProgramError with all diagnostics."""
        if self.program is None:
            raise ProgramError(self.diagnostics, self.text, FILE)
        return self.program


@lru_cache(maxsize=MOST_TEXTS)
def candidate_text(text: str) -> CandidateText:
    """Returns a text with its tree and its typed programs."""
    try:
        tree = parsed(text, FILE)
    except ProgramError as error:
        return CandidateText(text, None, None, error.diagnostics)
    try:
        return CandidateText(text, tree, checked_tree(tree, text, FILE))
    except ProgramError as error:
        return CandidateText(text, tree, None, error.diagnostics)
