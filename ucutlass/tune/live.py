"""The workshop of a GPU: builds in this process's threads, everything that launches in others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any

from ucutlass import frontend, ir
from ucutlass.backend import Built, source_of, toolchain
from ucutlass.frontend import Chosen
from ucutlass.plan import GemmPlan
from ucutlass.planner import Planned
from ucutlass.runtime import isolate
from ucutlass.runtime.bench import lane
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.parallel import Failure, build_many
from ucutlass.runtime.statistics import MIN_BLOCKS
from ucutlass.trials.profile import request_json
from ucutlass.tune.space import Group
from ucutlass.tune.tune import Confirmed, Failed, Timed

_WORDS = 500
"""Characters of a failure's message that are kept."""


@dataclass(slots=True)
class Live:
    """`limit` bounds each process that launches, `wait` the wait for the GPU's timing lane, in seconds.
    `machine` is what the confirming process saw, `artifacts` what was built."""

    checked: frontend.Checked
    program: ir.Kernel
    sizes: Mapping[str, int]
    arch: str
    seed: int
    limit: float
    wait: float
    on_wait: Callable[[str], None] = lambda _: None
    machine: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[GemmPlan, Artifact] = field(default_factory=dict)
    _stop: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)

    def build(self, groups: Sequence[Group]) -> Sequence[Failed | None]:
        # One compiler a call: the search decides how many calls run at once.
        made = build_many(
            [source_of(self.checked, self.program, g.members[0]) for g in groups],
            toolchain(), Cache.from_switches(), cancel=self._stop, max_jobs=1, group=len(groups),
        )  # fmt: skip
        return [self._kept(group, one) for group, one in zip(groups, made, strict=True)]

    def _kept(self, group: Group, made: Artifact | Failure) -> Failed | None:
        if not isinstance(made, Artifact):
            return Failed("build", f"{type(made).__name__}: {made}"[:_WORDS])
        with self._lock:
            self.artifacts[group.plan] = made
        return None

    def time(self, groups: Sequence[Group]) -> Sequence[Timed | Failed]:
        requests = [m for g in groups for m in g.members]
        found = self._isolated("timed", requests)
        if isinstance(found, Failed):
            # One of them took the process with it: each gets one of its own.
            return [found] if len(groups) == 1 else [one for g in groups for one in self.time([g])]
        seconds = list(found["seconds"])
        answers: list[Timed | Failed] = []
        for group in groups:
            mine, seconds = seconds[: len(group.members)], seconds[len(group.members) :]
            answers.append(Timed(tuple(mine)))
        return answers

    def confirm(self, finalists: Sequence[Planned]) -> Sequence[Confirmed | Failed]:
        versions = dict(self.artifacts[finalists[0].plan].versions)
        found = self._isolated("confirmed", finalists, versions=versions)
        if isinstance(found, Failed):
            if len(finalists) == 1:
                return [Failed("verification", found.words)]
            return [one for kernel in finalists for one in self.confirm([kernel])]
        self.machine = found["machine"]
        return [
            Confirmed(tuple(rounds)) if len(rounds) >= MIN_BLOCKS else Failed("verification", words[:_WORDS])
            for rounds, words in zip(found["rounds"], found["words"], strict=True)
        ]

    def cancel(self) -> None:
        self._stop.set()

    def now(self) -> float:
        return time.monotonic()

    def built(self, kernel: Planned) -> Built:
        """A kernel of the search as the commands know it."""
        source = source_of(self.checked, self.program, kernel)
        return Built(Chosen(kernel, None), source, self.artifacts[kernel.plan])

    def _isolated(self, what: str, kernels: Sequence[Planned], **more: Any) -> dict[str, Any] | Failed:
        arguments = {
            "text": self.checked.source, "file": self.checked.file, "name": self.program.name,
            "sizes": dict(self.sizes), "arch": self.arch, "seed": self.seed,
            "requests": [request_json(k.request) for k in kernels], **more,
        }  # fmt: skip
        with lane.held(lane.gpu_uuid(), timeout_seconds=self.wait, on_wait=self.on_wait):
            outcome = isolate.run(f"ucutlass.trials.tune:{what}", arguments, limit_seconds=self.limit)
        if isinstance(outcome, isolate.Returned) and isinstance(outcome.value, dict):
            return outcome.value
        return Failed("timing", isolate.lost(outcome, "the timing"))


def write(path: Path, text: str) -> None:
    """Replaces a file whole, or not at all."""
    temporary = path.with_name(f".{path.name}.tuned")
    temporary.write_text(text)
    temporary.replace(path)
