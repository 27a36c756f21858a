"""This module makes proposers that are told a problem in words: a model, its recorded traffic, a command.

Each gives a function from a problem, the device and the session's seed to its proposer, as
`ucutlass.agent.optimize` keeps them. What can be wrong before anything is measured, a key that is missing or
a file that is no traffic, is wrong here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from ucutlass.agent.problem import OptimizationProblem
from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.proposers.anthropic import open_service
from ucutlass.agent.proposers.command import CommandProposer
from ucutlass.agent.proposers.conversation import ModelProposer, ModelSettings
from ucutlass.agent.proposers.judge import ModelJudge
from ucutlass.agent.proposers.problem_facts import ProblemDescription, subject_of, subject_of_module
from ucutlass.agent.proposers.service import MessageService
from ucutlass.agent.proposers.tools import toolbox
from ucutlass.agent.proposers.traffic import NotTraffic, RecordingService, ReplayingService
from ucutlass.ir.hardware import ARCHES, Device, default_device

Model: TypeAlias = Callable[[OptimizationProblem, Device | None, int], ModelProposer]
Command: TypeAlias = Callable[[OptimizationProblem, Device | None, int], CommandProposer]


def subject(
    problem: OptimizationProblem, device: Device | None, baseline: str = "", memory: Sequence[str] = ()
) -> ProblemDescription:
    """Returns the description of a problem; without a device, for the target's usual one. Raises ProgramError
    and ShapeError."""
    target = device or default_device(ARCHES[problem.arch])
    if problem.module is not None:
        return subject_of_module(
            problem.module,
            problem.checked,
            problem.program,
            problem.arch,
            target.name,
            compute_type=problem.compute_type,
            baseline=baseline,
            memory=memory,
        )
    return subject_of(
        problem.start,
        problem.program,
        problem.sizes,
        problem.arch,
        target.name,
        compute_type=problem.compute_type,
        baseline=baseline,
        memory=memory,
    )


def model(
    chosen: ModelSettings,
    *,
    key: str | None = None,
    base_url: str | None = None,
    record: Path | None = None,
    baseline: str = "",
    memory: Sequence[str] = (),
) -> Model:
    """Returns a factory of proposers that ask a model over the Messages API; `record` is a file for its
    traffic. Raises ProposerFailed."""
    service: MessageService = open_service(key, base_url=base_url)
    if record is not None:
        service = RecordingService(service, record)
    return _of(service, chosen, baseline, memory)


def recorded(path: Path, chosen: ModelSettings, *, baseline: str = "", memory: Sequence[str] = ()) -> Model:
    """Returns a factory of proposers that answer from a model's recorded traffic, for a session with the same
    problem and settings. Raises ProposerFailed."""
    try:
        service = ReplayingService.open(path)
    except (NotTraffic, OSError) as wrong:
        raise ProposerFailed(f"the recorded traffic cannot be read: {wrong}", "name another file") from wrong
    return _of(service, chosen, baseline, memory)


def _of(service: MessageService, chosen: ModelSettings, baseline: str, memory: Sequence[str]) -> Model:
    def make(problem: OptimizationProblem, device: Device | None, seed: int = 0) -> ModelProposer:
        description = subject(problem, device, baseline, memory)
        return ModelProposer(description, service, chosen, toolbox(description))

    return make


def judge(name: str, *, key: str | None = None, base_url: str | None = None) -> ModelJudge:
    """Returns an advisory voice over the Messages API. Raises ProposerFailed without a key or the SDK."""
    return ModelJudge(open_service(key, base_url=base_url), ModelSettings(name))


def command(
    words: Sequence[str],
    limit_seconds: float = 600.0,
    *,
    baseline: str = "",
    memory: Sequence[str] = (),
    pass_env: Sequence[str] = (),
) -> Command:
    """Returns a factory of proposers that run a program with its arguments; `pass_env` is as of
    CommandProposer."""

    def make(problem: OptimizationProblem, device: Device | None, seed: int = 0) -> CommandProposer:
        description = subject(problem, device, baseline, memory)
        return CommandProposer(description, tuple(words), limit_seconds, tuple(pass_env))

    return make
