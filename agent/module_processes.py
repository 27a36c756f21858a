"""This module keeps processes for each problem file that is under way, so that nothing waits for an import of
torch: one says what the file computes and whether a candidate computes the same, and beside it another imports its
first program.

A process runs the code of one file alone. Processes without a file wait ready, with their imports done. One that
raised, crashed or grew too large ends with its call (`ucutlass.runtime.isolation.WarmProcess`), and the next call
for its file takes another.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from threading import Lock
from typing import Any, TypeAlias

from ucutlass.engine.work import TABLE
from ucutlass.runtime import isolation
from ucutlass.runtime.process_template import ProcessTemplate

FEW_MODULES = (
    "torch",
    "ucutlass.frontend",
    "ucutlass.reference",
    "ucutlass.runtime.module.inspection",
    "ucutlass.runtime.module.reference",
    "ucutlass.tasks.problem_file",
)
"""What a process imports before it has a file, where it is to be ready soon."""

MODULES = (*FEW_MODULES, "ucutlass.importer.problem_file", "ucutlass.tasks.import_module")
"""What a process imports otherwise: the importer takes half as long as all else together."""

EXPORT = (
    "torch.export._trace",
    "torch._dynamo",
    "torch._inductor.config",
    "torch.fx.experimental.symbolic_shapes",
)
"""What torch imports once the importer exports a first module."""

AHEAD = "ucutlass.importer.export:decompositions"
"""What the first export of a process would do, and can be done before there is a module."""

IMPORT = "ucutlass.tasks.import_module:program_of_source"
"""What is asked beside everything else."""

MOST = 8
"""Processes that have a file: one that used the GPU holds a CUDA context of half a gigabyte. The one that was asked longest ago
ends first."""


ModuleCall: TypeAlias = isolation.IsolatedCall
"""Calls a function of `ucutlass.tasks` in a process that runs a problem file; `arguments` have its text as `source`."""


def in_own_process(
    target: str, arguments: Mapping[str, Any], *, limit_seconds: float, memory_bytes: int | None = None
) -> isolation.CallOutcome:
    """Is the ModuleCall that starts a process for each call."""
    return isolation.run(target, arguments, limit_seconds=limit_seconds, memory_bytes=memory_bytes)


class GpuProcess(isolation.WarmProcess):
    """Is a process that sees one GPU of several, by its UUID: a call that names a GPU is given this one."""

    def __init__(self, gpu: str, template: ProcessTemplate | None = None) -> None:
        super().__init__(os.environ | {"CUDA_VISIBLE_DEVICES": gpu}, template)
        self._gpu = gpu

    def call(
        self,
        target: str,
        arguments: Mapping[str, Any],
        *,
        limit_seconds: float,
        memory_bytes: int | None = None,
    ) -> isolation.CallOutcome:
        own = {"gpu": self._gpu} if arguments.get("gpu") else {}
        return super().call(
            target, {**arguments, **own}, limit_seconds=limit_seconds, memory_bytes=memory_bytes
        )


class ModuleProcesses:
    """Is a ModuleCall with a process for each file, and one for its import. `ready` processes without a file wait
    at first, and `later` once a file has its answer: imports of torch at the same time would delay that. Safe to
    call from many threads; calls of one file follow each other."""

    def __init__(
        self,
        ready: int = 1,
        most: int = MOST,
        later: int | None = None,
        start: Callable[[], isolation.WarmProcess] = isolation.WarmProcess,
    ) -> None:
        self._most = most
        self._start = start
        self._count = ready if later is None else later
        self._by_file: OrderedDict[str, isolation.WarmProcess] = OrderedDict()
        self._lock = Lock()
        self._closed = False
        # Of the first two one is asked what a file computes, while the other imports the importer.
        self._ready = [self._prepared(MODULES if at % 2 == 0 else FEW_MODULES) for at in range(ready)]
        self._few = self._ready[1::2]

    def __call__(
        self,
        target: str,
        arguments: Mapping[str, Any],
        *,
        limit_seconds: float,
        memory_bytes: int | None = None,
    ) -> isolation.CallOutcome:
        process, oldest = self._process_of(target == IMPORT, arguments["source"])
        if oldest is not None:
            oldest.close()
        try:
            return process.call(target, arguments, limit_seconds=limit_seconds, memory_bytes=memory_bytes)
        finally:
            with self._lock:
                while not self._closed and len(self._ready) < self._count:
                    self._ready.append(self._prepared(MODULES))

    def close(self) -> None:
        """Ends all processes; a call that is under way ends first."""
        with self._lock:
            processes = [*self._by_file.values(), *self._ready]
            self._by_file.clear()
            self._ready.clear()
            self._closed = True
        for process in processes:
            process.close()

    def _process_of(
        self, imports: bool, source: str
    ) -> tuple[isolation.WarmProcess, isolation.WarmProcess | None]:
        """Returns the process for a file's text, or for its import, and one that is to end for it."""
        key = hashlib.sha256(f"{imports} {source}".encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            if key not in self._by_file:
                self._by_file[key] = self._taken(imports)
            self._by_file.move_to_end(key)
            full = len(self._by_file) > self._most
            return self._by_file[key], self._by_file.popitem(last=False)[1] if full else None

    def _taken(self, imports: bool) -> isolation.WarmProcess:
        """Returns a process that is ready, with the importer if it is to import and sooner without it otherwise."""
        if not self._ready:
            return self._prepared(MODULES)
        process = min(self._ready, key=lambda process: (process in self._few) == imports)
        self._ready.remove(process)
        return process

    def _prepared(self, modules: Sequence[str]) -> isolation.WarmProcess:
        process = self._start()
        process.prepare(modules)
        return process


@contextmanager
def process_template() -> Iterator[ProcessTemplate]:
    """Gives the template of the processes that a session needs, those of problem files and those that launch."""
    judging = [name for name in TABLE["prepare_judge"].target.split() if ":" not in name]
    template = ProcessTemplate(FEW_MODULES, (*judging, *MODULES, *EXPORT, AHEAD))
    try:
        yield template
    finally:
        template.close()


def forked_call(template: ProcessTemplate) -> isolation.IsolatedCall:
    """Returns what calls a function in a process of its own, as `isolation.run`, that is a fork of `template`."""

    def call(
        target: str, arguments: Mapping[str, Any], *, limit_seconds: float, memory_bytes: int | None = None
    ) -> isolation.CallOutcome:
        process = isolation.WarmProcess(template=template)
        try:
            return process.call(target, arguments, limit_seconds=limit_seconds, memory_bytes=memory_bytes)
        finally:
            process.close()

    return call


@contextmanager
def module_processes(
    ready: int = 1, files: int = 1, template: ProcessTemplate | None = None, gpus: Sequence[str] = ()
) -> Iterator[ModuleProcesses]:
    """Gives processes for problem files, of which so many are under way at once; they end with the block. They are
    forks of `template` where there is one, and take turns with `gpus` where these are given."""
    turns = cycle(gpus)
    start = (
        (lambda: GpuProcess(next(turns), template))
        if gpus
        else partial(isolation.WarmProcess, template=template)
    )
    processes = ModuleProcesses(ready, max(MOST, 3 * files), max(ready, files), start)
    try:
        yield processes
    finally:
        processes.close()
