"""This module has the options of `ucc optimize` and `ucc kernelbench` that say how to search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ucutlass.agent import dialogue, search
from ucutlass.agent.budget import Budget
from ucutlass.agent.dialogue import DIALOGUES
from ucutlass.agent.problem_loader import LoaderSettings
from ucutlass.agent.search import SEARCHES
from ucutlass.agent.session import SessionSettings
from ucutlass.agent.stop import StopRule
from ucutlass.cli import proposer_options, session_options
from ucutlass.cli.options import (
    PositiveNumber,
    RenamedOption,
    WholeNumber,
    arch_option,
    grouped,
    part,
    seconds_option,
)
from ucutlass.cli.proposer_options import ProposerOptions
from ucutlass.cli.session_options import SessionOptions
from ucutlass.engine.work import LIMIT_SECONDS, WAIT_SECONDS
from ucutlass.runtime.module.signature import Mode, Precision
from ucutlass.runtime.parallel import jobs
from ucutlass.shapes import parse_sizes

SEARCH: Mapping[str, search.Name] = {"rules": "flat", "anthropic": "epsilon", "command": "epsilon"}
"""By proposer, where none is asked for: see docs/agent.md."""

KEPT, MOST_KEPT = 4, 8
"""Programs of one answer: of rules as many as compile side by side, up to a number from which on too little is
learnt between two answers."""


def kept_programs(proposer: str, cores: int) -> int:
    """Returns how many programs of one answer are taken where so many compilers run at once."""
    return max(KEPT, min(cores // 2, MOST_KEPT)) if proposer == "rules" else KEPT


ATTEMPTS = 40
"""Of a problem, where none are asked for."""

BASELINES = ("eager", "compile", "compile-max-autotune", "cublas", "none")

# --- which candidate to go on from ------------------------------------------------

_STRATEGY = (
    click.option(
        "--search",
        "how",
        type=click.Choice(tuple(SEARCHES)),
        help="Which candidate to go on from; by default flat for rules, epsilon for others.",
    ),
    click.option(
        "--dialogue",
        "steps",
        type=click.Choice(tuple(DIALOGUES)),
        default="single",
        show_default=True,
        help="In which steps a proposer is asked.",
    ),
    click.option("--seed", type=WholeNumber(), default=0, help="Seed of the arguments and of every choice."),
)


@dataclass(frozen=True, slots=True)
class StrategyOptions:
    """`how` is None where nothing was asked for."""

    how: search.Name | None
    steps: dialogue.Name
    seed: int


# --- how much to spend ------------------------------------------------------------

_LIMITS = (
    click.option(
        "--attempts", type=WholeNumber(min=0), help=f"Most candidates to judge; {ATTEMPTS} by default."
    ),
    click.option("--gpu-seconds", type=PositiveNumber(), help="Most seconds on the GPU for a problem."),
    click.option(
        "--seconds",
        type=PositiveNumber(),
        help="Most seconds for a problem, waiting for the GPU not counted; a step that has begun ends.",
    ),
    click.option("--tokens", type=WholeNumber(min=1), help="Most tokens of a model, for all problems."),
    click.option("--dollars", type=PositiveNumber(), help="Most money for a model, for all problems."),
    click.option("--run-attempts", type=WholeNumber(min=1), help="Most candidates of a run over a folder."),
    click.option(
        "--run-gpu-seconds", type=PositiveNumber(), help="Most seconds on the GPU of a run over a folder."
    ),
    click.option(
        "--run-seconds",
        type=PositiveNumber(),
        help="Most seconds that this command works on a run over a folder; steps that have begun end.",
    ),
    click.option(
        "--eps",
        type=PositiveNumber(),
        default=0.05,
        show_default=True,
        help="Stop within this share of the bound, where the baseline is beaten.",
    ),
    click.option(
        "--patience",
        type=WholeNumber(min=1),
        default=12,
        show_default=True,
        help="Stop after so many attempts without progress, where the baseline is beaten.",
    ),
    click.option("--never-stop", is_flag=True, help="Spend the whole budget, whatever was reached."),
)


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """Budgets are None where they were not given."""

    attempts: int | None
    gpu_seconds: float | None
    seconds: float | None
    tokens: int | None
    dollars: float | None
    run_attempts: int | None
    run_gpu_seconds: float | None
    run_seconds: float | None
    eps: float
    patience: int
    never_stop: bool

    @property
    def session(self) -> Budget:
        """Returns the budget of one problem alone, without a default."""
        return Budget(self.attempts, self.tokens, self.dollars, self.gpu_seconds, self.seconds)

    @property
    def problem(self) -> Budget:
        """Returns the budget of one problem of a run, without a default; tokens and dollars are the run's."""
        return Budget(self.attempts, None, None, self.gpu_seconds, self.seconds)

    @property
    def run(self) -> Budget:
        """Returns the budget of a run over many problems."""
        return Budget(self.run_attempts, self.tokens, self.dollars, self.run_gpu_seconds, self.run_seconds)

    @property
    def stop(self) -> StopRule:
        return StopRule(None, None) if self.never_stop else StopRule(self.eps, self.patience)


# --- how files are read -----------------------------------------------------------

_FILES = (
    arch_option(None),
    click.option(
        "--start",
        type=click.Path(exists=True, path_type=Path),
        metavar="FILE.ucu",
        help="A module's first program, or a folder of them by the modules' paths.",
    ),
    click.option(
        "--mode",
        type=click.Choice(("constructed", "train", "eval")),
        default="constructed",
        show_default=True,
        help="The mode in which a module runs.",
    ),
    click.option(
        "--precision",
        type=click.Choice(("own", "f32", "f16", "bf16")),
        default="own",
        show_default=True,
        help="What a module's floating tensors are cast to.",
    ),
    click.option(
        "--compute-type",
        "--lane",
        "compute_type",
        cls=RenamedOption,
        metavar="TYPE",
        help="The least precision, such as bf16; by default FILE's own.",
    ),
)


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """`arch` is None where none was asked for."""

    arch: str | None
    start: Path | None
    mode: Mode
    precision: Precision
    compute_type: str | None


# --- how candidates are timed -----------------------------------------------------

_TIMING = (
    click.option(
        "--baseline",
        type=click.Choice(BASELINES),
        default="eager",
        show_default=True,
        help="What candidates that would lead are timed in turns with.",
    ),
    click.option(
        "--compiled",
        type=click.Choice(("compile", "compile-max-autotune", "none")),
        default="compile-max-autotune",
        show_default=True,
        help="How torch compiles a module, beside the search, that the best is compared with.",
    ),
    seconds_option("--limit", LIMIT_SECONDS, "Seconds that each process that launches kernels may take."),
    seconds_option("--wait", WAIT_SECONDS, "Seconds to wait for another process that times."),
)


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """Holds `limit` and `wait` in seconds."""

    baseline: str
    compiled: str
    limit: float
    wait: float

    @property
    def beside(self) -> str:
        """Returns the compiled way that `ucutlass.agent.optimize.Machinery` takes."""
        return "" if self.compiled == "none" or not self.held else self.compiled

    @property
    def held(self) -> str:
        """Returns the baseline that `ucutlass.agent.optimize.Machinery` takes."""
        return "" if self.baseline == "none" else self.baseline


# --- all of it --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Describes what the options say of a search. `journal` is None for the user's own."""

    proposer: ProposerOptions
    strategy: StrategyOptions
    limits: BudgetOptions
    files: ProblemOptions
    session: SessionOptions
    timing: TimingOptions
    journal: Path | None

    def settings(self, budget: Budget) -> SessionSettings:
        """Returns the settings of a session with this budget."""
        proposer, own = self.proposer.chosen, self.strategy
        return SessionSettings(
            own.how or SEARCH[proposer],
            own.steps,
            budget,
            self.limits.stop,
            own.seed,
            keep=kept_programs(proposer, jobs()),
            proposer=proposer,
            advice=self.session.depth(proposer),
            objective=self.session.objective,
            judge=self.session.judge,
        )

    def reading(self, arch: str, sizes: Sequence[str] = (), program: str | None = None) -> LoaderSettings:
        """Returns how files are loaded; `arch` is for where none was asked for, and `sizes` are as they were
        given. Raises ShapeError."""
        files = self.files
        return LoaderSettings(
            files.arch or arch,
            parse_sizes(sizes),
            program,
            files.compute_type,
            files.mode,
            files.precision,
            files.start,
            self.proposer.chosen != "rules",
            self.timing.limit,
        )


def _how(values: Mapping[str, Any]) -> SearchOptions:
    return SearchOptions(
        part(ProposerOptions, values),
        part(StrategyOptions, values),
        part(BudgetOptions, values),
        part(ProblemOptions, values),
        part(SessionOptions, values),
        part(TimingOptions, values),
        values["journal"],
    )


_JOURNAL = click.option("--journal", type=click.Path(dir_okay=False, path_type=Path), help="Another journal.")

_SHARED = (*_STRATEGY, *_LIMITS, *_FILES, *session_options.OPTIONS, *_TIMING, _JOURNAL)

search_options = grouped("how", _how, *proposer_options.OPTIONS, *proposer_options.TRAFFIC, *_SHARED)
"""Gives a command `how` to search for one problem, or for a folder of them."""

run_options = grouped("how", _how, *proposer_options.OPTIONS, *_SHARED)
"""Gives a command `how` to search for many problems."""
