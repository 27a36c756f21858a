"""This module has the evaluator of a GPU: builds and launches go to an engine, by default that of this
machine."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

from ucutlass import frontend, ir
from ucutlass.backend import Built, source_of
from ucutlass.engine.errors import TaskLost
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import Engine, EngineTask
from ucutlass.frontend import ChosenPlan
from ucutlass.handoff import plan_payload, program_payload
from ucutlass.kernels.planned import Plan, Planned
from ucutlass.runtime import isolation
from ucutlass.runtime.build import Artifact, cached_artifact
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.statistics import MIN_BLOCKS
from ucutlass.runtime.switches import BuildPath
from ucutlass.tune.build_cache import BuildCache
from ucutlass.tune.space import BinaryGroup
from ucutlass.tune.tune import ConfirmedKernel, FailedTrial, TimedGroup

_WORDS = 500
"""Characters of a failure's message that are kept."""

_POLL_SECONDS = 0.1


@dataclass(slots=True)
class EngineEvaluator:
    """`limit` bounds each process that launches, `wait` the wait for the GPU lock, in seconds.
    `build_path` is how kernels are built (`ucutlass.backend`). `machine` is what the confirming process saw,
    `artifacts` what was built; they lie in this machine's cache wherever they were made.

    An `engine` that is given is the caller's to close. Searches that share one may share `build_cache` too. All
    launches of one evaluator are on one GPU.
    """

    checked: frontend.Checked
    program: ir.Kernel
    sizes: Mapping[str, int]
    arch: str
    seed: int
    limit: float
    wait: float
    on_wait: Callable[[str], None] = lambda _: None
    engine: Engine | None = None
    build_path: BuildPath | None = None
    build_cache: BuildCache = field(default_factory=BuildCache)
    machine: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[Plan, Artifact] = field(default_factory=dict)
    near: str = field(default_factory=lambda: uuid.uuid4().hex)
    _engine: Engine = field(init=False)
    _payload: dict[str, Any] = field(init=False)
    _best: float | None = None
    _is_prepared: bool = False
    _builds: list[EngineTask] = field(default_factory=list)
    _stop: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._payload = program_payload(self.checked)
        self._engine = LocalEngine(on_wait=self.on_wait) if self.engine is None else self.engine

    def prepare(self) -> None:
        """Starts the processes that will launch, so that they are ready when the first build is. Again does nothing."""
        if not self._is_prepared:
            self._is_prepared = True
            self._engine.submit("prepare", {}, near=self.near)

    def build(self, groups: Sequence[BinaryGroup]) -> Sequence[FailedTrial | None]:
        others = {
            g.plan: f for g in groups if (f := self.build_cache.claim((g.plan, self.build_path))) is not None
        }
        mine = [g for g in groups if g.plan not in others]
        # First what others may wait for, or two searches could wait for one another.
        failures = dict(zip((g.plan for g in mine), self._built(mine), strict=True))
        for group in groups:
            if group.plan in others:
                failures[group.plan] = self._taken(group, others[group.plan])
        return [failures[g.plan] for g in groups]

    def _taken(self, group: BinaryGroup, future: Future[str]) -> FailedTrial | None:
        """Returns what another search builds, or built."""
        while not self._stop.is_set():
            if not wait([future], timeout=_POLL_SECONDS).done:
                continue
            artifact = cached_artifact(future.result(), Cache.from_switches()) if future.result() else None
            if artifact is not None:
                with self._lock:
                    self.artifacts[group.plan] = artifact
                return None
            if future.result():
                self.build_cache.forget((group.plan, self.build_path))
            return self.build([group])[0]
        return FailedTrial("build", "cancelled")

    def _built(self, groups: Sequence[BinaryGroup]) -> Sequence[FailedTrial | None]:
        """Builds what was claimed, and says so whatever happens."""
        if not groups:
            return []
        keys = [""] * len(groups)
        try:
            # One compiler a call: the search decides how many calls run at once.
            plans = [plan_payload(g.members[0]) for g in groups]
            with self._lock:
                if self._stop.is_set():
                    return [FailedTrial("build", "cancelled")] * len(groups)
                arguments = self._what(plans, build_path=self.build_path)
                task = self._engine.submit("build", arguments, near=self.near)
                self._builds.append(task)
            answer = _answer(task, "the build")
            if isinstance(answer, str):
                return [FailedTrial("build", answer[:_WORDS])] * len(groups)
            cache = Cache.from_switches()
            artifacts = [cached_artifact(key, cache) if key else None for key in answer["made"]]
            keys = [artifact.key if artifact is not None else "" for artifact in artifacts]
            return [
                self._register(group, artifact, words)
                for group, artifact, words in zip(groups, artifacts, answer["words"], strict=True)
            ]
        finally:
            for group, key in zip(groups, keys, strict=True):
                self.build_cache.built((group.plan, self.build_path), key)

    def _register(self, group: BinaryGroup, artifact: Artifact | None, words: str) -> FailedTrial | None:
        if artifact is None:
            return FailedTrial("build", (words or "what was built is not in the cache any more")[:_WORDS])
        with self._lock:
            self.artifacts[group.plan] = artifact
        return None

    def time(self, groups: Sequence[BinaryGroup]) -> Sequence[TimedGroup | FailedTrial]:
        members = [m for g in groups for m in g.members]
        counts = [len(g.members) for g in groups]
        answer = self._isolated("timed", members, keys=self._keys(members), counts=counts, best=self._best)
        if isinstance(answer, FailedTrial):
            # One of them took the process with it: each gets one of its own.
            return [answer] if len(groups) == 1 else [result for g in groups for result in self.time([g])]
        seconds = list(answer["seconds"])
        self._best = min((s for s in (*seconds, self._best) if s is not None), default=None)
        answers: list[TimedGroup | FailedTrial] = []
        for group in groups:
            mine, seconds = seconds[: len(group.members)], seconds[len(group.members) :]
            answers.append(TimedGroup(tuple(mine)))
        return answers

    def confirm(self, finalists: Sequence[Planned]) -> Sequence[ConfirmedKernel | FailedTrial]:
        versions = dict(self.artifacts[finalists[0].plan].versions)
        keys = self._keys(finalists)
        answer = self._isolated("confirmed", finalists, keys=keys, versions=versions)
        if isinstance(answer, FailedTrial):
            if len(finalists) == 1:
                return [FailedTrial("verification", answer.words)]
            return [result for kernel in finalists for result in self.confirm([kernel])]
        self.machine = answer["machine"]
        return [
            ConfirmedKernel(tuple(rounds))
            if len(rounds) >= MIN_BLOCKS
            else FailedTrial("verification", words[:_WORDS])
            for rounds, words in zip(answer["rounds"], answer["words"], strict=True)
        ]

    def cancel(self) -> None:
        with self._lock:
            self._stop.set()
        for task in self._builds:
            task.cancel()

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        """Gives the GPU free, and ends an engine that was not given."""
        self._engine.leave(self.near)
        if self.engine is None:
            self._engine.close()

    def built(self, kernel: Planned) -> Built:
        """Returns a kernel of the search as the commands know it."""
        source = source_of(self.checked, self.program, kernel)
        return Built(ChosenPlan(kernel, None), source, self.artifacts[kernel.plan])

    def _what(self, plans: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        return {"program": self._payload, "name": self.program.name, "plans": list(plans), **more}

    def _keys(self, kernels: Sequence[Planned]) -> list[str]:
        """Returns the keys of kernels, empty for one that was never built: the process that should load it
        says so."""
        return [self.artifacts[k.plan].key if k.plan in self.artifacts else "" for k in kernels]

    def _isolated(
        self, what: str, kernels: Sequence[Planned], keys: Sequence[str], **more: Any
    ) -> dict[str, Any] | FailedTrial:
        """Returns what a function of `ucutlass.tasks.tune` returned."""
        plans = [plan_payload(kernel) for kernel in kernels]
        arguments = self._what(plans, sizes=dict(self.sizes), keys=list(keys), seed=self.seed, **more)
        task = self._engine.submit(
            what,
            arguments,
            artifacts=sorted({k for k in keys if k}),
            limit_seconds=self.limit,
            wait_seconds=self.wait,
            near=self.near,
        )
        answer = _answer(task, "the timing")
        return FailedTrial("timing", answer[:_WORDS]) if isinstance(answer, str) else answer


def _answer(task: EngineTask, what: str) -> dict[str, Any] | str:
    """Returns a task's result, or why it has none; raises a MachineError that another task would meet too."""
    try:
        outcome = task.result()
    except TaskLost as lost:
        return str(lost)
    if isinstance(outcome, isolation.Returned) and isinstance(outcome.value, dict):
        return outcome.value
    return isolation.failure_text(outcome, what)
