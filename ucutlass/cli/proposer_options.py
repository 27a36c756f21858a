"""This module has the options of `ucc optimize` and `ucc kernelbench` that say who proposes."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ucutlass.agent.journal import Journal
from ucutlass.agent.problem import problem_of_json
from ucutlass.agent.run import OptimizationSession
from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail
from ucutlass.cli.outputs import OutputPath

if TYPE_CHECKING:
    from ucutlass.agent.optimize import ProposerOf


PROPOSERS = ("rules", "anthropic", "command")

EFFORTS = ("low", "medium", "high", "xhigh", "max")

OPTIONS = (
    click.option(
        "--proposer",
        type=click.Choice(PROPOSERS),
        help="What makes candidates: rules (the default) needs no model, anthropic is a model over "
        "the Messages API, command any program.",
    ),
    click.option("--model", metavar="NAME", help="Which model of anthropic."),
    click.option(
        "--effort", type=click.Choice(EFFORTS), help="How hard the model works; by default its own."
    ),
    click.option("--command", "program", metavar="WORDS", help="The program of the proposer command."),
    click.option(
        "--pass-env",
        multiple=True,
        metavar="NAME",
        help="Give the program of --command this variable of the environment too; repeatable.",
    ),
    click.option("--no-memory", is_flag=True, help="Tell a model nothing of earlier sessions."),
)

TRAFFIC = (
    click.option("--record", type=OutputPath(), metavar="FILE", help="Keep a model's traffic."),
    click.option(
        "--replay",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Answer from kept traffic instead of a model.",
    ),
)
"""Of one session: traffic is kept in its order."""


@dataclass(frozen=True, slots=True)
class ProposerOptions:
    """Describes what the options say of the proposer; None where they say nothing."""

    proposer: str | None
    model: str | None
    effort: Any
    program: str | None
    pass_env: tuple[str, ...]
    no_memory: bool
    record: Path | None = None
    replay: Path | None = None

    @property
    def chosen(self) -> str:
        """Returns the proposer that is named, or that the other options speak of; `rules` where none does."""
        other = "anthropic" if self.model or self.replay else "rules"
        return self.proposer or ("command" if self.program else other)


def proposer_factory(
    asking: ProposerOptions, journal: Journal, session: OptimizationSession, as_json: bool
) -> ProposerOf:
    """Returns the factory of the session's proposer. Raises ProposerFailed for a key, a file or an SDK that
    lacks."""
    from ucutlass.agent.memory import conclusions, conclusions_for
    from ucutlass.agent.optimize import rules
    from ucutlass.agent.proposers import factory
    from ucutlass.agent.proposers.conversation import DEFAULT_MODEL, ModelSettings

    proposer = session.state.settings.proposer
    if proposer == "rules":
        return partial(rules, count=session.state.settings.keep)
    problem = problem_of_json(session.state.problem)
    largest = (
        [] if asking.no_memory else conclusions_for(conclusions(journal), problem.compute_type, problem.name)
    )
    memory = [conclusion.words for conclusion in largest]
    if proposer == "command":
        if not asking.program:
            fail(Status.CALL, "--proposer command needs --command 'PROGRAM ARGUMENTS'", as_json)
        if unset := [name for name in asking.pass_env if name not in os.environ]:
            fail(Status.CALL, f"--pass-env {unset[0]}: no such variable is set", as_json)
        return factory.command(shlex.split(asking.program), memory=memory, pass_env=asking.pass_env)
    chosen = ModelSettings(asking.model or DEFAULT_MODEL, asking.effort)
    if asking.replay is not None:
        return factory.recorded(asking.replay, chosen, memory=memory)
    show.note(f"ucc: {chosen.model} proposes; its tokens cost money")
    return factory.model(chosen, record=asking.record, memory=memory)
