"""This module has the options of `ucc optimize` and `ucc kernelbench` that say where sessions work and what
they look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import click

from ucutlass.agent.session import Depth
from ucutlass.agent.tree import Objective
from ucutlass.cli.engines import engine_option
from ucutlass.cli.options import WholeNumber

DEPTH: Mapping[str, Depth] = {"rules": "static", "anthropic": "profiled", "command": "profiled"}
"""How far candidates are looked into, by proposer, where nothing is asked for: `rules` reads no advice."""

CORES = 8
"""The cores that each problem of a run gets, where nothing is asked for. Two problems of one GPU wait for its lock half
of the time: on an H100 a first verdict took 21 s in place of 3."""

OPTIONS = (
    engine_option,
    click.option(
        "--advice",
        type=click.Choice(get_args(Depth)),
        help="What is said of candidates: nothing, what counting says, or of leaders the profiler's "
        "findings too; by default static for rules, profiled for others.",
    ),
    click.option(
        "--objective",
        type=click.Choice(get_args(Objective)),
        default="time",
        show_default=True,
        help="Which candidate is the best: the fastest, or of those that are as fast the one with "
        "the least energy a call.",
    ),
    click.option(
        "--judge",
        metavar="MODEL",
        default="",
        help="Ask this model for its opinion of leaders, which decides nothing.",
    ),
    click.option(
        "--race/--no-race",
        default=True,
        help="Time who would lead in turns with the fastest, until it is decided, and confirm it if it is "
        "faster; the default.",
    ),
    click.option(
        "--sample-rows/--no-sample-rows",
        "samples",
        default=True,
        help="Hold candidates against sampled rows of references that are too large to be kept, until they "
        "are confirmed; the default.",
    ),
    click.option(
        "--at-once",
        type=WholeNumber(min=1),
        help=f"Problems of a run that are worked on at once; by default one for each GPU that has {CORES} cores.",
    ),
    click.option(
        "--no-measure", is_flag=True, help="Do not let a model have programs measured while it answers."
    ),
)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Holds what the options say. `advice` and `at_once` are None where nothing was."""

    spec: str | None
    advice: Depth | None
    objective: Objective
    judge: str
    race: bool
    samples: bool
    at_once: int | None
    no_measure: bool

    @property
    def measures(self) -> bool:
        return not self.no_measure

    def problems_at_once(self, cpus: int, gpus: int = 1) -> int:
        """Returns how many problems of a run are worked on at once with so many compilers and GPUs."""
        return self.at_once or max(1, min(gpus, cpus // CORES))

    def depth(self, proposer: str) -> Depth:
        return self.advice or DEPTH[proposer]
