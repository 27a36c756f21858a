"""The workshops of `benchmarks.tuned`: those of `ucc tune`, many at once on one engine, until a deadline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Timer
from typing import Protocol, TypeAlias

from benchmarks.budget import NEVER, Deadline
from benchmarks.tuned_rows import ARCH, SEED, Task
from ucutlass import frontend
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import Engine
from ucutlass.kernels.planned import Planned
from ucutlass.runtime.parallel import jobs
from ucutlass.tune.evaluator import EngineEvaluator
from ucutlass.tune.space import BinaryGroup
from ucutlass.tune.tune import ConfirmedKernel, FailedTrial, KernelEvaluator, TimedGroup

PROCESS_SECONDS = 180.0
"""What one call of a process that launches may take."""

WAIT_SECONDS = 60.0
"""For a timing lane that another program holds."""


class Shop(KernelEvaluator, Protocol):
    """What a search works with, and is done with."""

    def prepare(self) -> None:
        """Starts what takes a while to start."""

    def close(self) -> None:
        """Gives it free."""


Shops: TypeAlias = "Callable[[Task], Shop]"


class OutOfTime(Exception):
    """The deadline passed in the middle of a search, which then counts for nothing."""


@dataclass(slots=True)
class Shared(EngineEvaluator):
    """`EngineEvaluator`, which raises OutOfTime once the deadline is over, and has the next search's confirming process
    import while this one's runs."""

    deadline: Deadline = NEVER

    def time(self, groups: Sequence[BinaryGroup]) -> Sequence[TimedGroup | FailedTrial]:
        self._in_time()
        return EngineEvaluator.time(self, groups)

    def confirm(self, finalists: Sequence[Planned]) -> Sequence[ConfirmedKernel | FailedTrial]:
        self._in_time()
        found = EngineEvaluator.confirm(self, finalists)
        self.prepare()
        return found

    def _in_time(self) -> None:
        if self.deadline.passed:
            raise OutOfTime


@contextmanager
def on_gpu(deadline: Deadline) -> Iterator[Shops]:
    """Workshops that share the machine's compilers and its first GPU. When time is up, builds are ended."""
    shops: list[Shared] = []
    with closing(LocalEngine(cpus=jobs(), on_wait=print)) as engine:

        def cancel() -> None:
            for shop in tuple(shops):
                shop.cancel()

        def make(task: Task) -> Shop:
            shops.append(shop_of(task, engine, deadline))
            return shops[-1]

        timer = None if math.isinf(deadline.at) else Timer(max(0.0, deadline.left()), cancel)
        if timer is not None:
            timer.start()
        try:
            yield make
        finally:
            if timer is not None:
                timer.cancel()


def shop_of(task: Task, engine: Engine, deadline: Deadline) -> Shared:
    checked = frontend.read_text(task.text)
    return Shared(
        checked,
        frontend.kernel(checked),
        task.sizes,
        ARCH,
        SEED,
        PROCESS_SECONDS,
        WAIT_SECONDS,
        engine=engine,
        deadline=deadline,
    )


class Dry:
    """Every kernel takes what the cost model says."""

    def prepare(self) -> None:
        pass

    def close(self) -> None:
        pass

    def build(self, groups: Sequence[BinaryGroup]) -> Sequence[FailedTrial | None]:
        return [None] * len(groups)

    def time(self, groups: Sequence[BinaryGroup]) -> Sequence[TimedGroup | FailedTrial]:
        return [TimedGroup(tuple(m.estimate.seconds for m in g.members)) for g in groups]

    def confirm(self, finalists: Sequence[Planned]) -> Sequence[ConfirmedKernel | FailedTrial]:
        return [ConfirmedKernel((kernel.estimate.seconds,) * 24) for kernel in finalists]

    def cancel(self) -> None:
        pass

    def now(self) -> float:
        return 0.0
