"""Builds the kernels of many planned programs at once, each distinct kernel once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.harness import Row
from ucutlass.emit.text import Source
from ucutlass.files import put

BuildKernel: TypeAlias = Callable[[Source, Mapping[str, Any]], str]
"""Builds a source of a plan's payload; the artefact's key."""


def build_here(source: Source, plan: Mapping[str, Any]) -> str:
    """Raises as `ucutlass.backend.build_artifact` does."""
    from ucutlass.backend import build_artifact, build_stage
    from ucutlass.handoff import planned_of
    from ucutlass.runtime.cache import Cache

    cache = Cache.from_switches()
    return build_artifact(source, planned_of(plan).plan, build_stage(None), cache).key


@dataclass(frozen=True, slots=True)
class KernelBuilder:
    """Runs at most so many compilers as the pool has threads."""

    pool: ThreadPoolExecutor
    build: BuildKernel = build_here
    _futures: dict[str, Future[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def future(self, source: Source, plan: Mapping[str, Any]) -> Future[str]:
        """Returns the key of a kernel's artefact, once it is built."""
        with self._lock:
            if source.entry not in self._futures:
                self._futures[source.entry] = self.pool.submit(self.build, source, plan)
            return self._futures[source.entry]


def build(payload: Path, builder: KernelBuilder, deadline: float | None = None) -> Row:
    """Builds the program of a payload of `benchmarks.module_program`, and puts into the file what
    `ucutlass.tasks.built.loaded_built` takes as `built`. Returns what a row says of it. Waits until the
    `deadline`, a time of the monotonic clock."""
    start = time.monotonic()
    handed = json.loads(payload.read_text(encoding="utf-8"))
    kernels = handed.pop("kernels")
    futures = [
        None if kernel is None else builder.future(Source(**kernel["source"]), kernel["plan"])
        for kernel in kernels
    ]
    built: list[Row | None] = []
    for number, (kernel, future) in enumerate(zip(kernels, futures, strict=True)):
        if kernel is None or future is None:
            built.append(None)
            continue
        try:
            built.append({"plan": kernel["plan"], "key": future.result(_left(deadline))})
        except TimeoutError:
            return {"status": "lost", "lost": "the run's time was over"}
        except Exception as refused:  # the row says in which words, whatever it was
            words = f"kernel {number}: {type(refused).__name__}: {refused}"
            return {"status": "build failed", "why": words[:600]}
    own = {"sizes": handed.pop("sizes"), "kernels": built, "orders": handed.pop("orders")}
    put(payload, json.dumps(handed | {"built": own}))
    return {"build_seconds": round(time.monotonic() - start, 2)}


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
