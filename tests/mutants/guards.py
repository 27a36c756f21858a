"""Trials of a guard, and mutants that take the guard away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing to judge: `wrong` tells whether the harness must object, `objected` whether it does."""

    wrong: bool
    objected: Callable[[], bool]

    def right(self) -> bool:
        return self.objected() == self.wrong


@dataclass(frozen=True, slots=True)
class Mutant:
    """A function or constant of ours put out of order. `places` are owner and attribute, every module
    that has it by name; `by` makes the replacement of the original. `lets` is the trial that must then
    end otherwise, or the guard that the mutant takes away would not be needed."""

    name: str
    patterns: tuple[int, ...]
    places: tuple[tuple[Any, str], ...]
    by: Callable[[Any], Any]
    lets: str


@contextmanager
def out_of_order(mutant: Mutant) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name in mutant.places:
            stack.enter_context(patch.object(owner, name, mutant.by(getattr(owner, name))))
        yield


def noticed(mutant: Mutant, trials: Mapping[str, Trial]) -> bool:
    """Whether the trial ends right with the intact harness, and wrong with the mutant."""
    trial = trials[mutant.lets]
    if not trial.right():
        return False
    with out_of_order(mutant):
        return not trial.right()
