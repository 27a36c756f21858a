"""This module has torch compile modules, and times them, beside a search: nothing waits for it before the end.

A process of its own compiles a module without the GPU lock, which it takes to time the module in turns with eager
PyTorch, where nobody else waits for the GPU. What a candidate gains over the compiled module is then what it gains over eager, in turns, times what eager
loses to the compiled module, in turns. Times are kept on disk (`ucutlass.agent.baseline_cache`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import Any

from ucutlass import frontend, ir
from ucutlass.agent.baseline_cache import BaselineCache, BaselineRatio, about_baseline, key_of
from ucutlass.agent.module import TorchModule, bytes_of_module, match_module
from ucutlass.handoff import program_payload
from ucutlass.runtime import isolation
from ucutlass.runtime.bench.gpu_lock import gpu_uuid
from ucutlass.runtime.bench.protocol import Protocol

PROTOCOL = Protocol(warmup=0.3, min_seconds=0.2, max_seconds=3.0, launches=6, wall_launches=4, width=0.01)

CORES = 4
"""For each module that is compiled: candidates are built meanwhile."""

SMALL_BYTES = 2 << 30
"""Of a module's tensors, up to which they stay on the GPU while it is compiled, without the lock. A larger one is
compiled once its search has ended."""


@dataclass(frozen=True, slots=True)
class BackgroundBaselines:
    """Compiles modules in `way` on `pool`, once each. `gpu` is the driver's name of the GPU; `limit` bounds a
    process, `wait` its wait for the GPU lock, in seconds. Modules are spread over `gpus` where these are given.
    `on_wait` is told what a session waits for that has nothing else to do."""

    way: str
    gpu: str
    pool: Executor
    cache: BaselineCache
    limit: float
    wait: float
    gpus: Sequence[str] = ()
    on_wait: Callable[[str], None] = lambda _: None
    _futures: dict[str, Future[BaselineRatio | str]] = field(default_factory=dict)
    _stop: Event = field(default_factory=Event)

    def end(self) -> None:
        """Ends what is under way, which nobody waits for any more: the next search begins with it again."""
        self._stop.set()
        self.pool.shutdown(cancel_futures=True)

    def begin(
        self, checked: frontend.Checked, program: ir.Program, module: TorchModule, *, searching: bool
    ) -> None:
        """Begins with a module that a program meets, unless it was begun with or is known, or it is large and its
        search goes on."""
        about = about_baseline(module, self.way, self.gpu, PROTOCOL)
        key = key_of(about)
        if key not in self._futures:
            kept_ratio = self.cache.find(key)
            if kept_ratio is None and searching and bytes_of_module(module) > SMALL_BYTES:
                return
            self._futures[key] = (
                self.pool.submit(self._timed, key, about, checked, program, module)
                if kept_ratio is None
                else _done(kept_ratio)
            )

    def ratio(self, module: TorchModule, *, waits: bool) -> BaselineRatio | str | None:
        """Returns the ratio of a module that was begun with, or why there is none; None where it is not known
        yet and this does not wait, or was not begun with."""
        future = self._futures.get(key_of(about_baseline(module, self.way, self.gpu, PROTOCOL)))
        if future is None or not (waits or future.done()):
            return None
        if not future.done():
            self.on_wait(f"torch, which compiles {module.file} ({self.way}) and then times it")
        return future.result()

    def _timed(
        self,
        key: str,
        about: dict[str, Any],
        checked: frontend.Checked,
        program: ir.Program,
        module: TorchModule,
    ) -> BaselineRatio | str:
        met = match_module(program, module)
        if isinstance(met, str):
            return met
        gpu = self.gpus[int(key, 16) % len(self.gpus)] if self.gpus else gpu_uuid()
        arguments = {
            "program": program_payload(checked),
            "name": program.name,
            "sizes": dict(met.sizes),
            "module": module.arguments(),
            "names": dict(met.keys),
            "way": self.way,
            "protocol": asdict(PROTOCOL),
            "gpu": gpu,
            "wait": self.wait,
            "releases": bytes_of_module(module) <= SMALL_BYTES,
        }
        outcome = isolation.run(
            "ucutlass.tasks.baseline_times:versus_eager",
            arguments,
            limit_seconds=self.limit + self.wait,
            environ=os.environ | {"CUDA_VISIBLE_DEVICES": gpu} if self.gpus else None,
            stop=self._stop,
        )
        match outcome:
            case isolation.Returned({"median": float(median), "low": float(low), "high": float(high)}):
                ratio = BaselineRatio(median, low, high)
                with suppress(OSError):
                    self.cache.add(key, about, ratio)
                return ratio
            case isolation.Returned({"words": str(words)}):
                return words
            case _:
                return isolation.failure_text(outcome, "the compiled module")


def _done(ratio: BaselineRatio) -> Future[BaselineRatio | str]:
    future: Future[BaselineRatio | str] = Future()
    future.set_result(ratio)
    return future


@contextmanager
def background_baselines(
    way: str,
    gpu: str,
    cpus: int,
    limit: float,
    wait: float,
    gpus: Sequence[str] = (),
    on_wait: Callable[[str], None] = lambda _: None,
) -> Iterator[BackgroundBaselines | None]:
    """Gives what compiles modules in `way`, "" for none, on a machine of so many cores, and times them on `gpus`, or
    the first; `on_wait` as there."""
    if not way:
        yield None
        return
    pool = ThreadPoolExecutor(max(1, cpus // CORES), thread_name_prefix="ucutlass-baseline")
    background = BackgroundBaselines(way, gpu, pool, BaselineCache.open(), limit, wait, gpus, on_wait)
    try:
        yield background
    finally:
        background.end()
