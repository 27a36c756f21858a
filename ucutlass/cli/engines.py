"""This module opens the engine that `--engine` names, and finds its GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import click

from ucutlass import engine
from ucutlass.cli import gpu, show
from ucutlass.cli.errors import Status, fail
from ucutlass.engine import worker_gpu
from ucutlass.engine.errors import EngineUnknown
from ucutlass.engine.local import LocalEngine
from ucutlass.runtime import system
from ucutlass.runtime.bench.gpu_lock import gpu_uuids
from ucutlass.runtime.cache import this_process
from ucutlass.runtime.gpu import CurrentGpu
from ucutlass.runtime.process_template import ProcessTemplate

SWITCH_SECONDS = 0.0005
"""For which a thread that computes keeps Python's lock where another one wants it, instead of 5 ms: while candidates
are ranked and planned, who waits for a process wants it hundreds of times a call."""

F = TypeVar("F", bound=Callable[..., Any])

engine_option = click.option(
    "--engine",
    "spec",
    metavar="SPEC",
    help="Where builds and timings run: local (the default), or dask://HOST:PORT.",
)


def equal_gpus() -> tuple[str, ...]:
    """Returns the UUIDs of this machine's GPUs that are of the first one's kind, where there are several."""
    driver = system.driver()
    if driver is None or len(driver.gpus) < 2:
        return ()
    kind = driver.gpus[0].name
    uuids = [u for g, u in zip(driver.gpus, gpu_uuids(), strict=True) if g.name == kind]
    return tuple(uuids) if len(uuids) > 1 else ()


def opened(
    spec: str | None,
    as_json: bool,
    *,
    announces: bool = True,
    template: ProcessTemplate | None = None,
    gpus: Sequence[str] = (),
) -> engine.Engine:
    """Opens the engine, which is the caller's to close; with `announces` who waits for a GPU says so. Processes of
    this machine are forks of `template`, and launch on `gpus`, or the first GPU. Ends the
    command for a name that is no engine; raises as `engine.open`."""
    on_wait = announce if announces else lambda _: None
    try:
        if spec is None:
            return LocalEngine(gpus or None, on_wait=on_wait, template=template)
        return engine.open(spec, on_wait=on_wait)
    except EngineUnknown as problem:
        fail(Status.CALL, str(problem), as_json)


def threads_take_turns_quickly() -> None:
    """Has threads of this command that wait for processes held up little by those that compute."""
    sys.setswitchinterval(SWITCH_SECONDS)


def journaled() -> AbstractContextManager[None]:
    """Has a signal end this command at once while a session works, which is written down as it happens."""
    signals = click.get_current_context().find_root().obj
    return nullcontext() if signals is None else signals.journaled()


def at_hand(hall: engine.Engine) -> CurrentGpu | None:
    """Returns the kind of its GPUs; None where there is none that a compile target serves."""
    # A cluster's client needs no GPU.
    return gpu.at_hand() if isinstance(hall, LocalEngine) else worker_gpu.worker_gpu(hall)


def announce(holder: str) -> None:
    """Says whom a call waits for; steps of one session that take turns say nothing."""
    if holder != this_process():
        say_wait(f"{holder}, which uses this GPU")


def say_wait(what: str) -> None:
    """Says what a command waits for; each wait has a limit of its own."""
    show.note(f"ucc: waiting for {show.one_line(what)}")
