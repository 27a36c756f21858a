"""This module has the protocol of what proposes candidates: it takes a context and returns program texts and
what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from ucutlass.agent.budget import NOTHING, Spend
from ucutlass.agent.session import Ask, ProposedProgram, SessionState
from ucutlass.agent.source_files import CandidateFiles
from ucutlass.runtime.errors import FixableError


@dataclass(frozen=True, slots=True)
class Answer:
    """`programs` are complete texts. `exhausted`: nothing is left to propose below the candidate that was
    asked about. `spend` is what the call cost and was not reported while it ran. `messages` are words for
    people: what was tried again, what is not counted."""

    programs: Sequence[ProposedProgram] = ()
    note: str = ""
    spend: Spend = NOTHING
    exhausted: bool = False
    messages: tuple[str, ...] = ()


OnSpend: TypeAlias = Callable[[Spend], None]
"""Told what a call costs as soon as that is known: what was spent counts even if no answer comes."""


Measure: TypeAlias = Callable[[str], str]
"""Judges a program and says in words what became of it; whoever gives it counts what it costs."""


class ProposerFailed(FixableError):
    """Raised where a proposer cannot go on: no key, a refusal, a service that is down. The session stays as
    it is and can be resumed."""


class Proposer(Protocol):
    """Raises ProposerFailed; never answers by other means than it was asked for."""

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer: ...


@runtime_checkable
class Measuring(Protocol):
    """Is a proposer that can have programs measured while it answers."""

    def measuring(self, measure: Measure) -> Proposer:
        """Returns the same proposer with this way to measure."""


@runtime_checkable
class Preparing(Protocol):
    """Is a proposer that has work of its own before its first answer. To ask it costs nothing and changes nothing,
    so what it would answer may be asked for before it is due."""

    def prepare(self) -> None:
        """Does that work, which the first answer then finds done. Another thread may ask meanwhile. What is
        wrong with it the answer raises."""


@runtime_checkable
class SourceWriting(Protocol):
    """Is a proposer that can answer with CUDA source."""

    def writing_source(self, files: CandidateFiles) -> Proposer:
        """Returns the same proposer for a session at source level."""
