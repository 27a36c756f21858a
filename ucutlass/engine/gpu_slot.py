"""Manages one GPU of this machine, or none: its timing lock and the processes that launch on it."""

from __future__ import annotations

import importlib
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from threading import Event, Lock, Thread
from typing import Any

from ucutlass import spans
from ucutlass.engine.work import CANCELLED, RemoteCall
from ucutlass.runtime import isolation
from ucutlass.runtime.bench import gpu_lock
from ucutlass.runtime.errors import BuildCancelled, MachineError
from ucutlass.runtime.process_template import ProcessTemplate

WAKE_SECONDS = 30.0
"""What a process may take to get ready, and to wait for its turn with the GPU locked."""

MOST_SPARES = 4
"""Processes that are ready, of as many as are awaited: what shares the GPU takes them faster than one is ready."""

_NOTHING = "os:getpid"


def visible_gpu() -> str:
    """Returns the UUID of this process's first GPU, which names its lock. Raises NoGpu."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    # CUDA takes the first digits of a UUID too; a lock must have one name.
    if re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", first):
        return first
    return gpu_lock.gpu_uuid()


class GpuSlot:
    """`gpu` says the UUID when it is first needed; `environ` is that of the processes that launch, None for
    this one's, which are forks of `template` where there is one. Calls that need the GPU wait for its lock, so any number of threads may call."""

    def __init__(
        self,
        gpu: Callable[[], str] = visible_gpu,
        environ: Mapping[str, str] | None = None,
        on_wait: Callable[[str], None] = lambda _: None,
        template: ProcessTemplate | None = None,
    ) -> None:
        self._gpu = gpu
        self._environ = environ
        self._on_wait = on_wait
        self._template = template
        self._warm = isolation.WarmProcess(environ, template)
        self._spares: list[isolation.WarmProcess] = []
        self._ending: list[Thread] = []
        # Searches that said that they will ask for a fresh process, and what it should import.
        self._awaited = 0
        self._names: Sequence[str] = ()
        self._unlocked: Sequence[str] = ()
        self._woken = False
        self._lock = Lock()

    def run(self, work: RemoteCall, cancel: Event) -> isolation.CallOutcome:
        """Raises what a function that runs here raises as MachineError, LockTimeout and NoGpu."""
        if cancel.is_set():
            return CANCELLED
        match work.row.process:
            case "here":
                return _here(work, cancel)
            case "prepare":
                self._prepare(work.row.target.split(), work.row.unlocked.split())
                return isolation.Returned(None, "")
            case process:
                with ExitStack() as stack:
                    called = self._ready_process(process, work, stack)
                    try:
                        stack.enter_context(
                            gpu_lock.hold_gpu(
                                self._gpu(),
                                timeout_seconds=work.wait_seconds,
                                on_wait=self._on_wait,
                                shared=work.shared,
                                cancel=cancel,
                            )
                        )
                    except BuildCancelled:
                        return CANCELLED
                    return self._computed(called, work)

    def _ready_process(self, kind: str, work: RemoteCall, stack: ExitStack) -> isolation.WarmProcess | None:
        """Returns the process that is to be called, once it takes calls: who waited for its imports with the GPU locked
        would keep all others waiting. None where the worker itself is called."""
        match kind:
            case "warm":
                process = self._warm
            case "fresh":
                process = stack.enter_context(self._fresh_process())
            case _:
                return None
        process.call(_NOTHING, {}, limit_seconds=work.limit_seconds)
        return process

    def _computed(self, process: isolation.WarmProcess | None, work: RemoteCall) -> isolation.CallOutcome:
        """Calls with the GPU locked, once no process of a former call is on it, where none may be."""
        start = time.monotonic()
        if not work.shared:
            self._await_endings()
        outcome = self._attended(work) if process is None else self._called(process, work)
        return replace(outcome, gpu_seconds=time.monotonic() - start)

    def _called(self, process: isolation.WarmProcess, work: RemoteCall) -> isolation.CallOutcome:
        return process.call(work.row.target, work.arguments, limit_seconds=work.limit_seconds)

    def _prepare(self, names: Sequence[str], unlocked: Sequence[str]) -> None:
        with self._lock:
            self._awaited += 1
            self._names, self._unlocked = names, unlocked
            self._have_spares(MOST_SPARES)
            first, self._woken = not self._woken, True
        if first:
            self._wake(self._warm)

    def _have_spares(self, count: int) -> None:
        """With the lock: has so many ready, as far as they are awaited."""
        while len(self._spares) < min(count, self._awaited):
            self._spares.append(isolation.WarmProcess(self._environ, self._template))
            self._wake(self._spares[-1])

    def _wake(self, process: isolation.WarmProcess) -> None:
        """Starts the process and lets it import; then, in a thread, lets it do once on the GPU what is slow
        the first time, step by step, beside others that time nothing. That takes the lock and not the process on its own:
        one that waited for the lock would keep whoever holds it, and calls it, waiting."""
        process.prepare([name for name in self._names if ":" not in name])
        functions = [name for name in self._names if ":" in name]
        if functions:
            Thread(target=self._call_all, args=(process, functions), daemon=True).start()

    def _call_all(self, process: isolation.WarmProcess, functions: Sequence[str]) -> None:
        # What fails here is said by the call that needs it. A process that was taken and closed meanwhile
        # takes no call, which executors say with a RuntimeError.
        with suppress(MachineError, RuntimeError):
            for function in (_NOTHING, *self._unlocked):  # after the first its imports are done
                process.call(function, {}, limit_seconds=WAKE_SECONDS)
            rest = list(functions)
            while rest:
                with gpu_lock.hold_gpu(
                    self._gpu(), timeout_seconds=WAKE_SECONDS, on_wait=lambda _: None, shared=True
                ):
                    if not _has_more(process.call(rest[0], {}, limit_seconds=WAKE_SECONDS)):
                        del rest[0]

    @contextmanager
    def _fresh_process(self) -> Iterator[isolation.WarmProcess]:
        """Gives a process that has done nothing but get ready, and ends with the block, which does not wait for it: the
        driver takes most of a second to end a process that used the GPU."""
        with self._lock:
            process = (
                self._spares.pop(0) if self._spares else isolation.WarmProcess(self._environ, self._template)
            )
            self._awaited = max(0, self._awaited - 1)
            self._have_spares(MOST_SPARES)
        try:
            yield process
        finally:
            ending = Thread(target=process.close, daemon=True)
            ending.start()
            with self._lock:
                self._ending.append(ending)

    def _await_endings(self) -> None:
        with self._lock:
            endings, self._ending = self._ending, []
        for ending in endings:
            ending.join()

    def _attended(self, work: RemoteCall) -> isolation.CallOutcome:
        """Calls here, as `isolation_child` does, a function that judges what fresh processes do."""
        with spans.recording() as record:
            try:
                function = _function(work.row.target)
                answer = function(**work.arguments, fresh=self._fresh_process)
            except Exception as error:
                words = traceback.format_exc()
                return isolation.Raised(
                    type(error).__qualname__, str(error), words, "", parts=dict(record.seconds)
                )
        return isolation.Returned(answer, "", parts=dict(record.seconds))

    def close(self) -> None:
        with self._lock:
            spares, self._spares = self._spares, []
        for process in (self._warm, *spares):
            process.close()
        self._await_endings()


def _has_more(outcome: isolation.CallOutcome) -> bool:
    """Returns whether a function that gets a process ready has another step."""
    return isinstance(outcome, isolation.Returned) and outcome.value is True


def _here(work: RemoteCall, cancel: Event) -> isolation.CallOutcome:
    """As `isolation_child` calls, but in this process."""
    try:
        return isolation.Returned(_function(work.row.target)(**work.arguments, cancel=cancel), "")
    except MachineError:
        raise
    except Exception as error:
        return isolation.Raised(type(error).__qualname__, str(error), traceback.format_exc(), "")


def _function(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
