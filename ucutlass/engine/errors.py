"""Defines the errors of an engine, one class for each mistake."""

from __future__ import annotations

from ucutlass.runtime.errors import MachineError


class EngineUnknown(ValueError):
    """An engine was asked for by a name that is none."""


class EngineMissing(MachineError):
    """The package that the engine needs is not installed."""


class EngineUnreachable(MachineError):
    """No scheduler answers at the engine's address, or not any more."""


class NoWorkers(MachineError):
    """For some time the engine has had no worker that could take the work."""


class WorkerUnfit(MachineError):
    """A worker cannot do what was asked, and said why; another try would meet the same."""


class TaskLost(MachineError):
    """Every worker that took this task died with it."""

    def __init__(self, target: str, workers: tuple[str, ...]) -> None:
        what = f"{target} was lost {len(workers)} times: its worker died, on {', '.join(workers)}"
        MachineError.__init__(self, what, "see those workers' logs and the kernel's log there (dmesg)")
        self.target = target
        self.workers = workers

    def __reduce__(self) -> tuple[type[TaskLost], tuple[str, tuple[str, ...]]]:
        return TaskLost, (self.target, self.workers)
