"""Defines what an engine runs: functions of a fixed table with JSON arguments, on a core or on a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

from ucutlass.runtime import isolation

Needs: TypeAlias = Literal["cpu", "gpu"]
"""A core for a compiler, or a GPU with its timing lock."""

ProcessKind: TypeAlias = Literal["here", "warm", "fresh", "attended", "prepare"]
"""Where a function runs: in the worker itself, where it may start compilers and is given `cancel`; in the
process that the GPU keeps for one call after another; in one of its own that never ran anything else; in the
worker with the GPU locked, where it is given `fresh`, which gives it such processes one after another. And
`prepare` runs nothing: it starts those processes, so that what is slow the first time is done when they are
needed."""


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """`target` is written `package.module:function`; for `prepare` it is modules to import, and
    functions to call with the GPU's lock shared, after those of `unlocked`, which need no lock."""

    target: str
    needs: Needs
    process: ProcessKind
    unlocked: str = ""


TaskTable: TypeAlias = Mapping[str, TaskEntry]

_CONTEXT = "ucutlass.tasks.gpu_turn:open_context"

TABLE: TaskTable = MappingProxyType(
    {
        "gpu": TaskEntry("ucutlass.engine.worker_gpu:describe", "gpu", "here"),
        "build": TaskEntry("ucutlass.engine.engine_build:build", "cpu", "here"),
        "prepare": TaskEntry(
            "torch ucutlass.backend ucutlass.tasks.tune ucutlass.tasks.tune:ready", "gpu", "prepare", _CONTEXT
        ),
        "prepare_judge": TaskEntry(
            "torch ucutlass.api ucutlass.runtime.verify.batch ucutlass.runtime.bench.measure "
            "ucutlass.tasks.candidate_run ucutlass.tasks.verify_cases ucutlass.tasks.bench "
            "ucutlass.tasks.candidate_run:ready",
            "gpu",
            "prepare",
            _CONTEXT,
        ),
        "timed": TaskEntry("ucutlass.tasks.tune:timed", "gpu", "warm"),
        "expected": TaskEntry("ucutlass.tasks.candidate_run:expect", "gpu", "warm"),
        "attempt": TaskEntry("ucutlass.tasks.candidate_run:run", "gpu", "warm"),
        "race": TaskEntry("ucutlass.tasks.candidate_run:race", "gpu", "warm"),
        "confirmed": TaskEntry("ucutlass.tasks.tune:confirmed", "gpu", "fresh"),
        "verified": TaskEntry("ucutlass.tasks.verification:on_gpu", "gpu", "attended"),
        "compared": TaskEntry("ucutlass.tasks.bench:on_gpu", "gpu", "fresh"),
        "profiled": TaskEntry("ucutlass.tasks.profile:timed", "gpu", "fresh"),
        "energy": TaskEntry("ucutlass.tasks.energy:measured", "gpu", "fresh"),
        "counted": TaskEntry("ucutlass.tasks.hardware_counters:counted", "gpu", "fresh"),
    }
)
"""All that can be asked for, by name."""

LIMIT_SECONDS = 300.0
WAIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """One call. `artifacts` are keys of cache entries that must lie where it runs. `limit_seconds` bounds
    a process that launches, `wait_seconds` the wait for the GPU's lock. Works that are `near` the same
    token run on one GPU while it lives, since two GPUs' times do not compare. `shared`: it times nothing and needs
    little memory, so others like it may use the GPU meanwhile."""

    row: TaskEntry
    arguments: Mapping[str, Any]
    artifacts: tuple[str, ...] = ()
    limit_seconds: float = LIMIT_SECONDS
    wait_seconds: float = WAIT_SECONDS
    near: str = ""
    shared: bool = False


@dataclass(frozen=True, slots=True)
class EngineTask:
    """A call under way. The future gives an `isolation.CallOutcome`, or raises a MachineError: TaskLost where
    its workers died. `cancel` drops it, or stops its compilers; it then raises nothing and returns soon."""

    future: Future[isolation.CallOutcome]
    cancel: Callable[[], None]

    def result(self) -> isolation.CallOutcome:
        try:
            return self.future.result()
        except CancelledError:
            return CANCELLED


CANCELLED = isolation.Raised("Cancelled", "nobody waits for it any more", "", "")


class Engine(Protocol):
    """Where builds and timings run. Safe to call from many threads."""

    @property
    def gpus(self) -> int:
        """GPUs there are at present; each has one timing lock."""

    @property
    def cpus(self) -> int:
        """Compilers that run at once."""

    def submit(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        artifacts: Sequence[str] = (),
        limit_seconds: float = LIMIT_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        near: str = "",
        shared: bool = False,
    ) -> EngineTask:
        """Calls a function of the table. Raises KeyError for another name, TypeError for arguments that
        are no JSON."""

    def leave(self, near: str) -> None:
        """The token is not used any more."""

    def close(self) -> None:
        """Ends what is under way; nothing may be asked for after it."""


def work_of(
    table: TaskTable,
    name: str,
    arguments: Mapping[str, Any],
    artifacts: Sequence[str],
    limit_seconds: float,
    wait_seconds: float,
    near: str,
    shared: bool = False,
) -> RemoteCall:
    """Returns the checked call, its arguments as another process would see them."""
    plain = json.loads(json.dumps(dict(arguments)))
    return RemoteCall(table[name], plain, tuple(artifacts), limit_seconds, wait_seconds, near, shared)


# --- as JSON ---------------------------------------------------------------------

_OUTCOMES: Mapping[str, type[isolation.CallOutcome]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            isolation.Returned,
            isolation.Raised,
            isolation.Crashed,
            isolation.TimedOut,
            isolation.TooMuchMemory,
            isolation.Exited,
        )
    }
)


def work_json(work: RemoteCall) -> dict[str, Any]:
    return asdict(work) | {"arguments": dict(work.arguments)}


def work_of_json(fields: Mapping[str, Any]) -> RemoteCall:
    return RemoteCall(
        **{**fields, "row": TaskEntry(**fields["row"]), "artifacts": tuple(fields["artifacts"])}
    )


def outcome_json(outcome: isolation.CallOutcome) -> dict[str, Any]:
    return {"kind": type(outcome).__name__, **asdict(outcome)}


def outcome_of_json(fields: Mapping[str, Any]) -> isolation.CallOutcome:
    return _OUTCOMES[fields["kind"]](**{k: v for k, v in fields.items() if k != "kind"})


def made_by(outcome: isolation.CallOutcome) -> tuple[str, ...]:
    """Returns the keys of cache entries that a function says it made, under `artifacts` of its result."""
    match outcome:
        case isolation.Returned(value={"artifacts": list(keys)}):
            return tuple(str(k) for k in keys)
        case _:
            return ()
