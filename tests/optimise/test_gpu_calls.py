"""What counts as spent: the time that a GPU was held, and none in which it was waited for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.optimise.made_up import UNPLANNED, judged_in_turn
from tests.optimise.test_evaluator import LINEAR, Engine, bench, took
from ucutlass import spans
from ucutlass.agent import evaluator as evaluator_module
from ucutlass.agent import gpu_calls as gpu_calls_module
from ucutlass.agent.evidence import BuiltCandidate, ConfirmationSettings
from ucutlass.agent.gpu_calls import GpuCalls, value
from ucutlass.agent.outcome import Outcome, TimedOutcome
from ucutlass.agent.step_time import WAITING
from ucutlass.assembly import BuiltPipeline
from ucutlass.engine import gpu_slot as place_module
from ucutlass.engine.errors import TaskLost
from ucutlass.engine.gpu_slot import GpuSlot
from ucutlass.engine.work import TABLE, EngineTask, RemoteCall
from ucutlass.runtime import isolation
from ucutlass.runtime.bench.gpu_lock import hold_gpu


@dataclass
class Clock:
    """Stands still but where it is told to go on."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (gpu_calls_module, evaluator_module, place_module):
        monkeypatch.setattr(module, "time", made)
    return made


@dataclass
class Crowded:
    """an engine whose GPU is free after 100 s, and then has every call for 2 s; or kills its workers."""

    clock: Clock
    dies: bool = False
    near: list[str] = field(default_factory=list)
    artifacts: list[tuple[str, ...]] = field(default_factory=list)

    gpus = cpus = 1

    def submit(self, name: str, arguments: Mapping[str, Any], **more: Any) -> EngineTask:
        assert name in TABLE
        self.near.append(more["near"])
        future: Future[isolation.CallOutcome] = Future()
        self.clock.now += 102.0
        if self.dies:
            future.set_exception(TaskLost(name, ("a", "b", "c")))
        else:
            future.set_result(isolation.Returned({"seconds": 1e-5, "words": ""}, "", 2.0))
        return EngineTask(future, lambda: None)

    def leave(self, near: str) -> None: ...
    def close(self) -> None: ...


def test_the_wait_for_a_gpu_is_in_no_spend(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: Any, **__: Any) -> BuiltPipeline:
        clock.now += 30.0
        return BuiltPipeline(UNPLANNED, ())

    def confirm(subject: BuiltCandidate, how: ConfirmationSettings, gpu: GpuCalls) -> Outcome:
        for name in ("verified", "compared"):
            assert isinstance(gpu.call(name, {}, limit=1.0), isolation.Returned)
        clock.now += 5.0  # the audit's own work
        return TimedOutcome(1e-5, 2.0, 1.9, 2.1)

    monkeypatch.setattr(evaluator_module, "build_program", built)
    live = bench([took(1.0)], confirm)
    live.engine = Crowded(clock)
    (judged,) = judged_in_turn(live, LINEAR)
    assert isinstance(judged.outcome, TimedOutcome)
    # An attempt and the two halves of a confirmation, 2 s each; built for 30 s, audited for 5 s.
    assert judged.spend.gpu_seconds == 6.0 and judged.spend.seconds == 30 + 6 + 5
    assert len(set(live.engine.near)) == 1, "all of one problem's times are of one GPU"


def test_two_problems_may_be_on_two_gpus() -> None:
    assert bench([took(1.0)]).near != bench([took(1.0)]).near


def test_what_lost_workers_took_counts(clock: Clock) -> None:
    gpu = GpuCalls(Crowded(clock, dies=True), "x", 1.0)
    words = value(gpu.call("attempt", {}, limit=1.0), "the attempt")
    assert isinstance(words, str) and "lost 3 times" in words
    assert (gpu.held, gpu.waited) == (102.0, 0.0)


def test_a_call_that_ended_badly_held_the_gpu_lock_too() -> None:
    gpu = GpuCalls(Engine([isolation.TimedOut(3.0, "", 3.5)]), "x", 1.0)
    assert "did not end" in str(value(gpu.call("attempt", {}, limit=3.0), "the attempt"))
    assert gpu.held == 3.5


def test_a_place_says_how_long_it_had_the_gpu(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def held(*_: Any, **__: Any) -> Iterator[None]:
        clock.now += 100.0
        yield

    def called(self: GpuSlot, process: Any, work: RemoteCall) -> isolation.CallOutcome:
        clock.now += 2.0
        return isolation.Crashed("SIGSEGV", "")

    monkeypatch.setattr(place_module.gpu_lock, "hold_gpu", held)
    monkeypatch.setattr(GpuSlot, "_called", called)
    place = GpuSlot(lambda: "GPU-0")
    for name in ("attempt", "compared"):
        assert place.run(RemoteCall(TABLE[name], {}), Event()) == isolation.Crashed("SIGSEGV", "", 2.0)
    place.close()


def test_a_wait_for_the_gpu_lock_is_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(spans, "clock", lambda: float(next(ticks)))
    with (
        spans.recording() as record,
        hold_gpu("GPU-0", timeout_seconds=1.0, on_wait=lambda _: None, folder=tmp_path),
    ):
        pass
    assert record.seconds == {WAITING: 2.0}, "for whose turn it is, and for the lock"
