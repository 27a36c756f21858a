"""Options of how sessions work that `ucc optimize` shares with whatever else begins them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import click

from ucutlass.agent.session import Depth
from ucutlass.agent.tree import Objective
from ucutlass.cli.engines import engine_option

F = TypeVar("F", bound=Callable[..., Any])

DEPTH: Mapping[str, Depth] = {"rules": "static", "anthropic": "profiled", "command": "profiled"}
"""How far candidates are looked into, by proposer, where nothing is asked for: `rules` reads no advice."""

_OPTIONS = (
    engine_option,
    click.option("--advice", type=click.Choice(get_args(Depth)),
                 help="What is said of candidates: nothing, what counting says, or of leaders the profiler's "
                 "findings too; by default static for rules, profiled for others."),
    click.option("--objective", type=click.Choice(get_args(Objective)), default="time", show_default=True,
                 help="Which candidate is the best: the fastest, or of those that are as fast the one with "
                 "the least energy a call."),
    click.option("--judge", metavar="MODEL", default="",
                 help="Ask this model for its opinion of leaders, which decides nothing."),
    click.option("--no-measure", is_flag=True,
                 help="Do not let a model have programs measured while it answers."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Working:
    """What they say. `advice` is None where nothing was."""

    spec: str | None
    advice: Depth | None
    objective: Objective
    judge: str
    measures: bool

    def depth(self, proposer: str) -> Depth:
        return self.advice or DEPTH[proposer]


_NAMES = ("spec", "advice", "objective", "judge", "no_measure")


def working_of(given: Mapping[str, Any]) -> Working:
    """From the parameters of a command, by their names in Python."""
    return Working(
        given["spec"], given["advice"], given["objective"], given["judge"], not given["no_measure"]
    )


def working_options(command: F) -> F:
    """Adds the options to a command, which is given them as `working`."""

    @functools.wraps(command)
    def called(*arguments: Any, **given: Any) -> Any:
        working = working_of({name: given.pop(name) for name in _NAMES})
        return command(*arguments, working=working, **given)

    made: Any = called
    for option in reversed(_OPTIONS):
        made = option(made)
    found: F = made
    return found
