"""Describes the GPU of an engine's worker, for planning where there may be no GPU."""

from __future__ import annotations

from dataclasses import asdict
from threading import Event
from typing import Any

from ucutlass.engine.errors import WorkerUnfit
from ucutlass.engine.work import Engine
from ucutlass.ir.hardware import arch_for, device_named
from ucutlass.runtime import gpu, isolation, system


def describe(cancel: Event) -> dict[str, Any] | None:
    """Returns the first GPU that this process sees, as `system.Gpu`; None where there is none. Runs in a
    worker."""
    driver = system.driver()
    return asdict(driver.gpus[0]) if driver is not None and driver.gpus else None


def worker_gpu(engine: Engine) -> gpu.CurrentGpu | None:
    """As `ucutlass.runtime.gpu.at_hand`, of one of the engine's GPUs: those of one engine should be alike.

    Raises WorkerUnfit where the worker cannot say, and as a task.
    """
    outcome = engine.submit("gpu", {}).result()
    if not isinstance(outcome, isolation.Returned):
        raise WorkerUnfit(
            isolation.failure_text(outcome, "the GPU's"), "run `ucc doctor` where the worker runs"
        )
    if outcome.value is None:
        return None
    facts: dict[str, Any] = outcome.value
    major, minor = facts["capability"]
    device = system.Gpu(**{**facts, "capability": (major, minor)})
    arch = arch_for(device.capability)
    return None if arch is None else gpu.CurrentGpu(device, arch, device_named(device.name))
