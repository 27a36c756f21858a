"""Legality rules: one type for all kernel families."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.violation import Violation

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Breach:
    """What a rule's check returns for a candidate that breaks it: a violation without the rule's code."""

    message: str
    hint: str
    fields: tuple[str, ...] = ()
    nearest: PartialSchedule | None = None


@dataclass(frozen=True, slots=True)
class Rule(Generic[C]):
    """A legality rule over a family's candidates, each a problem with its schedule, or with what of the two
    the rule reads.

    `text` is the line of the diagnostics page, and of the guide where `in_guide`; `source` says where the
    rule comes from: a specification, a header of CUTLASS, the emitter, a measurement. `check` returns None
    for a candidate that keeps the rule. `variants` are the names of the family's kernels that the rule
    applies to. Rules of several families, or several rules of one family, may share a code.
    """

    code: str
    title: str
    text: str
    source: str
    check: Callable[[C], Breach | None]
    variants: frozenset[str]
    in_guide: bool = False

    def violation(self, candidate: C) -> Violation | None:
        """The violation of a candidate that breaks the rule, None for one that keeps it."""
        breach = self.check(candidate)
        if breach is None:
            return None
        return Violation(self.code, breach.message, breach.hint, breach.fields, breach.nearest)


def broken(rules: Iterable[Rule[C]], candidate: C) -> tuple[Violation, ...]:
    """The violations of every rule that the candidate breaks, in the order of the rules."""
    each = (rule.violation(candidate) for rule in rules)
    return tuple(violation for violation in each if violation is not None)
