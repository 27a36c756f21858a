"""This module makes calls to an engine's GPUs and counts what they held and what they waited: only the first
is spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ucutlass import spans
from ucutlass.agent.step_time import WAITING
from ucutlass.engine.errors import TaskLost
from ucutlass.engine.work import Engine, EngineTask
from ucutlass.ir.hardware import Device
from ucutlass.runtime import gpu, isolation
from ucutlass.runtime.bench.gpu_lock import gpu_uuid

SHARED_BYTES = 6 << 30
SHARED_SHARE = 0.075
"""Of a computation's memory, or that share of the device's if that is more: up to which others use the GPU meanwhile."""


def shared_bytes(device: Device | None) -> int:
    """Returns up to how much memory a computation shares the device, None for an unknown one."""
    return SHARED_BYTES if device is None else max(SHARED_BYTES, int(SHARED_SHARE * device.memory))


@dataclass(slots=True)
class GpuCalls:
    """Calls of one judgement. `near` keeps them on one GPU, `wait` bounds the wait for the GPU lock in seconds.
    `held` are the seconds that calls held the GPU lock, `waited` those in which they had none yet: in a queue, for
    the lock, on a network."""

    engine: Engine
    near: str
    wait: float
    held: float = 0.0
    waited: float = 0.0

    def took(self, waited: float, held: float) -> None:
        """Counts seconds of a call."""
        self.waited += waited
        self.held += held

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        limit: float,
        artifacts: Sequence[str] = (),
        shared: bool = False,
    ) -> isolation.CallOutcome | str:
        """Returns what became of a function of the engine's table; words where every worker that took it died
        with it. `shared`: others may use the GPU meanwhile, since it times nothing. Raises a MachineError that
        every other call would meet too."""
        start = time.monotonic()
        task = self._submitted(name, arguments, limit, artifacts, shared)
        try:
            outcome = task.result()
        except TaskLost as lost:
            # How long the dead held the lock nobody knows: all of it counts, rather than nothing.
            self.held += time.monotonic() - start
            return str(lost)
        waited = max(0.0, time.monotonic() - start - outcome.gpu_seconds)
        self.took(waited, outcome.gpu_seconds)
        spans.add({**outcome.parts, WAITING: waited})
        return outcome

    def begin(
        self, name: str, arguments: Mapping[str, Any], *, limit: float, shared: bool = False
    ) -> Callable[[], None]:
        """Begins a call of which nothing is expected but that later ones find its work done; `shared` as of `call`.
        What is returned drops it where it has not begun to compute, since the call that needs it does so too, and
        else waits for it and counts it; whatever it ended with, the call that needs it says."""
        task = self._submitted(name, arguments, limit, (), shared)

        def end() -> None:
            start = time.monotonic()
            task.cancel()
            with suppress(TaskLost):
                outcome = task.result()
                self.took(0.0, outcome.gpu_seconds)
                spans.add(_last_seconds(outcome, time.monotonic() - start))

        return end

    def _submitted(
        self,
        name: str,
        arguments: Mapping[str, Any],
        limit: float,
        artifacts: Sequence[str],
        shared: bool = False,
    ) -> EngineTask:
        return self.engine.submit(
            name,
            arguments,
            artifacts=artifacts,
            limit_seconds=limit,
            wait_seconds=self.wait,
            near=self.near,
            shared=shared,
        )


def _last_seconds(outcome: isolation.CallOutcome, waited: float) -> Mapping[str, float]:
    """Returns the parts of the last `waited` seconds of a call: those before it went by beside other work. What
    the call did not measure is a wait."""
    total = sum(outcome.parts.values())
    share = min(1.0, waited / total) if total else 0.0
    parts = {name: share * seconds for name, seconds in outcome.parts.items()}
    return {**parts, WAITING: parts.get(WAITING, 0.0) + waited - share * total}


def gpu_at_hand() -> str:
    """Returns the UUID of this machine's GPU; "" where there is none that our kernels run on."""
    return gpu_uuid() if gpu.at_hand() is not None else ""


def device_at_hand() -> Device | None:
    """Returns the facts of the GPU that `gpu_at_hand` names; None where there is none, or the table lacks it."""
    current = gpu.at_hand()
    return None if current is None else current.device


def value(outcome: isolation.CallOutcome | str, what: str) -> Mapping[str, Any] | str:
    """Returns the object that a call returned, or why it returned none; `what` names whose process it was."""
    match outcome:
        case isolation.Returned(dict(answer)):
            return answer
        case str():
            return outcome
        case _:
            return isolation.failure_text(outcome, what)
