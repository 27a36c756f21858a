"""Who proposes, by the options of `ucc optimize` and `ucc kernelbench`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ucutlass.agent.journal import Journal
from ucutlass.agent.problem import problem_of_json
from ucutlass.agent.run import Session
from ucutlass.cli.errors import Status, fail

if TYPE_CHECKING:
    from ucutlass.agent.optimize import ProposerOf


def chosen_proposer(given: Mapping[str, Any]) -> str:
    """The one that is named, or that the other options speak of; `rules` where none does."""
    other = "anthropic" if given["model"] or given["replay"] else "rules"
    return str(given["proposer"] or ("command" if given["program"] else other))


@dataclass(frozen=True, slots=True)
class Asking:
    """What the options say of the proposer."""

    proposer: str
    model: str | None
    effort: Any
    program: str | None
    record: Path | None
    replay: Path | None
    no_memory: bool


def maker(asking: Asking, kept: Journal, session: Session, as_json: bool) -> ProposerOf:
    """The maker of the session's proposer. Raises ProposerFailed for a key, a file or an SDK that lacks."""
    from ucutlass.agent.memory import alike, conclusions
    from ucutlass.agent.optimize import rules
    from ucutlass.agent.proposers import models
    from ucutlass.agent.proposers.conversation import DEFAULT_MODEL, Chosen

    if asking.proposer == "rules":
        return rules
    told = problem_of_json(session.state.problem)
    known = [] if asking.no_memory else alike(conclusions(kept), told.lane, told.name)
    memory = [one.words for one in known]
    if asking.proposer == "command":
        if not asking.program:
            fail(Status.CALL, "--proposer command needs --command 'PROGRAM ARGUMENTS'", as_json)
        return models.command(shlex.split(asking.program), memory=memory)
    chosen = Chosen(asking.model or DEFAULT_MODEL, asking.effort)
    if asking.replay is not None:
        return models.recorded(asking.replay, chosen, memory=memory)
    click.echo(f"ucc: {chosen.model} proposes; its tokens cost money", err=True)
    return models.model(chosen, record=asking.record, memory=memory)
