"""What `EngineEvaluator` asks of an engine, and what it makes of the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from benchmarks.engine import jobs
from tests.tune import engine_stub
from ucutlass import backend
from ucutlass.backend import Built
from ucutlass.engine.errors import NoWorkers, TaskLost
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import EngineTask
from ucutlass.handoff import checked_of, plan_payload, planned_of
from ucutlass.runtime import isolation
from ucutlass.runtime.errors import CompilerMissing, MachineError
from ucutlass.runtime.isolation import Crashed, Returned
from ucutlass.runtime.launch import LaunchRequest
from ucutlass.tasks import tune as trials
from ucutlass.tasks.built import ArtifactGone
from ucutlass.tune.build_cache import BuildCache
from ucutlass.tune.evaluator import EngineEvaluator
from ucutlass.tune.job import TuningJob, TuningSettings
from ucutlass.tune.parallel import FinishedSearch, tune_many
from ucutlass.tune.policy import SearchLimits
from ucutlass.tune.tune import ConfirmedKernel, FailedTrial, TimedGroup

JOBS = jobs(8)
GPUS = ("GPU-00000000-0000-0000-0000-000000000010", "GPU-00000000-0000-0000-0000-000000000011")
Fault = Callable[[str, Mapping[str, Any]], isolation.CallOutcome | Exception | None]


class Engine:
    """Runs the dry functions in this process; `fault` may answer in their place."""

    gpus, cpus = 1, 2

    def __init__(self, fault: Fault = lambda _, __: None) -> None:
        self.fault = fault
        self.asked: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        self.left: list[str] = []

    def submit(self, name: str, arguments: Mapping[str, Any], **more: Any) -> EngineTask:
        document = json.loads(json.dumps(arguments))
        self.asked.append((name, document, more))
        future: Future[isolation.CallOutcome] = Future()
        answer = self.fault(name, document)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        elif name == "build":
            future.set_result(Returned(engine_stub.build(**document, cancel=Event()), ""))
        elif name != "prepare":
            future.set_result(Returned(getattr(engine_stub, name)(**document), ""))
        return EngineTask(future, lambda: None)

    def leave(self, near: str) -> None:
        self.left.append(near)

    def close(self) -> None:
        raise AssertionError("it is not Live's to close")

    def names(self) -> list[str]:
        return [name for name, _, _ in self.asked]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPUS[0])


@pytest.fixture
def job() -> TuningJob:
    return next(iter(JOBS.values()))


def live(job: TuningJob, engine: Engine, **more: Any) -> EngineEvaluator:
    return EngineEvaluator(job.checked, job.program, job.sizes, "sm90a", 0, 20.0, 30.0, engine=engine, **more)


@pytest.mark.parametrize("name", JOBS)
def test_a_worker_gets_the_plan_that_was_chosen(name: str) -> None:
    """As JSON: the same binary with the same launch parameters, and nothing is planned again."""
    job = JOBS[name]
    for group in job.space.groups:
        for member in group.members:
            arrived = planned_of(json.loads(json.dumps(plan_payload(member))))
            assert arrived == member and arrived.plan == group.plan


def test_what_is_asked_for(job: TuningJob) -> None:
    engine = Engine()
    shop = live(job, engine, build_path="nvrtc")
    groups = job.space.groups[:2]
    shop.prepare()
    shop.prepare()  # before schedules are listed, and as the search begins
    assert shop.build(groups) == [None, None]
    times = shop.time(groups)
    assert all(isinstance(t, TimedGroup) for t in times)
    assert [len(t.seconds) for t in times if isinstance(t, TimedGroup)] == [len(g.members) for g in groups]
    (found,) = shop.confirm([groups[0].members[0]])
    assert isinstance(found, ConfirmedKernel) and shop.machine["uuid"] == GPUS[0]
    assert engine.names() == ["prepare", "build", "timed", "confirmed"]
    (_, build, _), (_, timed, more) = engine.asked[1], engine.asked[2]
    assert build["build_path"] == "nvrtc" and len(build["plans"]) == 2
    keys = [shop.artifacts[g.plan].key for g in groups]
    assert more["artifacts"] == sorted(keys) and (more["limit_seconds"], more["wait_seconds"]) == (20.0, 30.0)
    assert timed["counts"] == [len(g.members) for g in groups] and timed["best"] is None
    assert timed["keys"] == [k for g, k in zip(groups, keys, strict=True) for _ in g.members]
    assert {m["near"] for _, _, m in engine.asked} == {shop.near}, "all on one GPU"
    shop.close()
    assert engine.left == [shop.near]


def test_who_takes_its_process_along_is_alone_with_it(job: TuningJob) -> None:
    groups = job.space.groups[:3]
    bad = json.loads(json.dumps(plan_payload(groups[1].members[0])))

    def fault(name: str, given: Mapping[str, Any]) -> isolation.CallOutcome | None:
        return Crashed("SIGSEGV", "") if name == "timed" and bad in given["plans"] else None

    engine = Engine(fault)
    shop = live(job, engine)
    shop.build(groups)
    found = shop.time(groups)
    assert [type(f) for f in found] == [TimedGroup, FailedTrial, TimedGroup]
    assert isinstance(found[1], FailedTrial) and "SIGSEGV" in found[1].words
    assert engine.names() == ["build"] + ["timed"] * 4


@pytest.mark.parametrize("name", ["build", "timed", "confirmed"])
def test_a_lost_worker_is_a_failure_of_the_kernel_and_a_broken_machine_is_not(
    job: TuningJob, name: str
) -> None:
    def steps(problem: Exception) -> Any:
        shop = live(job, Engine(lambda asked, _: problem if asked == name else None))
        groups = job.space.groups[:1]
        calls: dict[str, Callable[[], Sequence[Any]]] = {
            "build": lambda: shop.build(groups),
            "timed": lambda: shop.time(groups),
            "confirmed": lambda: shop.confirm([groups[0].members[0]]),
        }
        return [calls[step]() for step in list(calls)[: list(calls).index(name) + 1]][-1][0]

    found = steps(TaskLost("f", ("a", "b", "c")))
    assert isinstance(found, FailedTrial) and "3 times" in found.words
    for problem in (NoWorkers("none", "start one"), CompilerMissing("no nvcc", "install it")):
        with pytest.raises(type(problem)):
            steps(problem)


def test_searches_share_what_they_build(job: TuningJob) -> None:
    engine, made = Engine(), BuildCache()
    shops = [live(job, engine, build_cache=made) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda shop: shop.build(job.space.groups[:4]), shops))
    assert found == [[None] * 4] * 3
    built = [r for name, given, _ in engine.asked if name == "build" for r in given["plans"]]
    assert len(built) == 4, "each once"
    assert shops[0].artifacts == shops[1].artifacts == shops[2].artifacts
    # Another way of building is another binary.
    before = len(engine.asked)
    assert live(job, engine, build_cache=made, build_path="nvrtc").build(job.space.groups[:1]) == [None]
    assert len(engine.asked) == before + 1


def test_what_one_search_failed_to_build_another_may_try(job: TuningJob) -> None:
    made, answers = BuildCache(), iter([TaskLost("f", ("a",)), None])
    shops = [live(job, Engine(lambda *_: next(answers)), build_cache=made) for _ in range(2)]
    (first,) = shops[0].build(job.space.groups[:1])
    assert isinstance(first, FailedTrial) and shops[1].build(job.space.groups[:1]) == [None]


def test_an_entry_that_was_evicted_is_built_again(job: TuningJob, tmp_path: Path) -> None:
    engine, made = Engine(), BuildCache()
    live(job, engine, build_cache=made).build(job.space.groups[:1])
    (entry,) = (tmp_path / "cache" / "entries").iterdir()
    entry.rename(tmp_path / "gone")
    assert live(job, engine, build_cache=made).build(job.space.groups[:1]) == [None]
    assert engine.names() == ["build"] * 2


def test_who_waits_for_another_search_can_be_cancelled(job: TuningJob) -> None:
    build_cache = BuildCache()
    assert build_cache.claim((job.space.groups[0].plan, None)) is None  # somebody is at it, for ever
    shop = live(job, Engine(), build_cache=build_cache)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(shop.build, job.space.groups[:1])
        shop.cancel()
        assert waits.result() == [FailedTrial("build", "cancelled")]
    assert shop.build(job.space.groups[1:2]) == [FailedTrial("build", "cancelled")]


# --- in the process that launches ------------------------------------------------


def test_what_is_timed_is_the_entry_that_was_named(job: TuningJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the launch parameters that were asked for; no compiler is looked for."""
    shop = live(job, Engine())
    group = job.space.groups[0]
    shop.build([group])
    key = shop.artifacts[group.plan].key
    bound: list[Built] = []
    monkeypatch.setattr("ucutlass.runtime.launch.Launcher", lambda _, choose: choose)
    monkeypatch.setattr("ucutlass.backend.bind", lambda built, _: bound.append(built))
    backend.toolchain.cache_clear()
    monkeypatch.setattr("ucutlass.backend.find", lambda: pytest.fail("a tool chain was looked for"))
    for member in group.members:
        loaded = trials._loaded(job.checked, job.program.name, plan_payload(member), key)
        choose: Any = loaded.launcher
        choose(LaunchRequest(member.sizes, (True, True, True), torch.device("cuda")))
    assert [(b.artifact.key, b.planned.plan, b.planned.launch) for b in bound] == [
        (key, group.plan, m.launch) for m in group.members
    ]


@pytest.mark.parametrize("key", ["", "ab" * 32])
def test_an_entry_that_is_not_there_is_said_to_be_gone(job: TuningJob, key: str) -> None:
    with pytest.raises(ArtifactGone):
        trials._loaded(job.checked, job.program.name, plan_payload(job.first), key)


# --- many at once ----------------------------------------------------------------


@pytest.fixture
def local() -> Iterator[LocalEngine]:
    engine = LocalEngine(GPUS, 2, table=engine_stub.TABLE)
    yield engine
    engine.close()


def test_many_searches_in_their_order(local: LocalEngine) -> None:
    heard: list[int] = []
    ended = tune_many(
        list(JOBS.values()),
        local,
        TuningSettings(SearchLimits(builds=3)),
        on_done=lambda n, _: heard.append(n),
    )
    assert sorted(heard) == list(range(len(JOBS)))
    for job, one in zip(JOBS.values(), ended, strict=True):
        assert isinstance(one, FinishedSearch) and one.tuned.winner is not None
        assert one.tuned.winner.kernel.sizes == job.first.sizes and one.evaluator.checked is job.checked
        assert one.evaluator.built(one.tuned.winner.kernel).artifact.builder == "dry"
    assert {one.evaluator.machine["uuid"] for one in ended if isinstance(one, FinishedSearch)} == set(GPUS)


def test_one_that_fails_stops_no_other(job: TuningJob) -> None:
    names = list(JOBS)
    engine = Engine(
        lambda name, given: (
            NoWorkers("none", "start one")
            if name == "timed"
            and given["sizes"] == JOBS[names[2]].sizes
            and "bf16" in checked_of(given["program"]).source
            else None
        )
    )
    ended = tune_many(list(JOBS.values()), engine, TuningSettings(SearchLimits(builds=2)))
    assert [isinstance(e, MachineError) for e in ended] == [n == names[2] for n in names]
    assert len(engine.left) == len(JOBS), "each gives its GPU free"


def test_a_search_that_finds_nothing_is_an_end_too(job: TuningJob) -> None:
    (ended,) = tune_many(
        [job],
        Engine(lambda n, _: Crashed("SIGKILL", "") if n == "timed" else None),
        TuningSettings(SearchLimits(builds=2)),
    )
    assert isinstance(ended, FinishedSearch) and ended.tuned.winner is None


def test_no_jobs(local: LocalEngine) -> None:
    assert tune_many([], local, TuningSettings()) == ()
