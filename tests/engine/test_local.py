"""The engine of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from engine_fakes import GPUS, notes, table
from runtime_fakes import all_ended, hung

import ucutlass.engine
from ucutlass.cli import engines
from ucutlass.engine import worker_gpu
from ucutlass.engine.errors import EngineUnknown, WorkerUnfit
from ucutlass.engine.gpu_slot import GpuSlot
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import CANCELLED, RemoteCall, TaskEntry
from ucutlass.runtime import system
from ucutlass.runtime.bench import gpu_lock
from ucutlass.runtime.bench.gpu_lock import NoGpu
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import CompilerMissing, LockTimeout
from ucutlass.runtime.isolation import CallOutcome, Crashed, Raised, Returned, TimedOut


@pytest.fixture
def engine(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEngine]:
    local_engine = LocalEngine(GPUS[:2], 2, table=table())
    yield local_engine
    local_engine.close()


def value(found: object) -> object:
    assert isinstance(found, Returned), found
    return found.value


def test_builds_and_launches(engine: LocalEngine, tmp_path: Path) -> None:
    made = value(engine.submit("make", {"name": "k", "log": str(tmp_path / "log")}).result())
    assert isinstance(made, dict)
    (key,) = made["artifacts"]
    read = value(engine.submit("read", {"key": key}, artifacts=[key]).result())
    assert read == {"cache": made["cache"], "text": "k" * 20}
    assert (engine.gpus, engine.cpus) == (2, 2)


def test_tokens_have_a_gpu_each_and_keep_it(engine: LocalEngine, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    asked = [engine.submit("turn", {"log": log, "who": n}, near=n) for n in ("x", "y", "x", "y")]
    found = [value(t.result()) for t in asked]
    assert found[:2] == found[2:] and set(found) == set(GPUS[:2])
    engine.leave("x")
    assert value(engine.submit("turn", {"log": log, "who": "z"}, near="z").result()) == found[0]


def test_two_engines_exclude_each_other_on_a_gpu(cache: Cache, tmp_path: Path) -> None:
    log = tmp_path / "log"
    engines = [LocalEngine(GPUS[2:3], 1, table=table()) for _ in range(2)]
    asked = [
        e.submit("turn", {"log": str(log), "who": f"{i}"}) for _ in range(2) for i, e in enumerate(engines)
    ]
    for task in asked:
        value(task.result())
    for one in engines:
        one.close()
    lines = notes(log)
    assert len(lines) == 8
    assert all(b == f"end {a.split()[1]}" for a, b in zip(lines[::2], lines[1::2], strict=True)), lines


def test_who_waits_for_a_gpu_says_so_and_gives_up(cache: Cache, tmp_path: Path) -> None:
    texts: list[str] = []
    engine = LocalEngine(GPUS[3:], 1, table=table(), on_wait=texts.append)
    with gpu_lock.hold_gpu(GPUS[3], timeout_seconds=1, on_wait=texts.append), pytest.raises(LockTimeout):
        engine.submit("process", {}, wait_seconds=0.2).result()
    assert texts and isinstance(engine.submit("process", {}).result(), Returned)
    engine.close()


def test_the_timing_process_stays_and_the_confirming_one_is_fresh(engine: LocalEngine) -> None:
    engine.submit("prepare", {}, near="x").result()
    warm = {value(engine.submit("process", {}, near="x").result()) for _ in range(3)}
    fresh = [value(engine.submit("fresh", {}, near="x").result()) for _ in range(3)]
    engine.submit("prepare", {}, near="x").result()
    fresh += [value(engine.submit("fresh", {}, near="x").result())]
    assert len(warm) == 1 and len(set(fresh)) == 4 and not warm & set(fresh)
    assert os.getpid() not in warm and all_ended([int(str(p)) for p in fresh])


def test_an_attended_call_runs_here_and_is_given_fresh_processes(engine: LocalEngine) -> None:
    engine.submit("prepare", {}, near="x").result()
    task = engine.submit("attends", {"times": 2}, near="x")
    found = task.result()
    answer = value(found)
    assert isinstance(answer, dict) and answer["here"] == os.getpid()
    first, again, second, second_again = answer["numbers"]
    assert first == again != second == second_again and all_ended([first, second])
    assert found.gpu_seconds > 0 and found.parts
    raised = engine.submit("attends", {"times": 0}, near="x").result()
    assert isinstance(raised, Raised) and raised.type == "CompilerMissing"


def test_nobody_waits_for_imports_with_the_gpu_locked(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    slow = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists():\n    time.sleep(0.01)\n"
    (tmp_path / "imported_slowly.py").write_text(slow)
    monkeypatch.syspath_prepend(tmp_path)
    place = GpuSlot(lambda: GPUS[3])
    place._warm.prepare(["imported_slowly"])
    outcomes: list[CallOutcome] = []
    call = Thread(target=lambda: outcomes.append(place.run(RemoteCall(table()["process"], {}), Event())))
    call.start()
    time.sleep(0.5)
    with gpu_lock.hold_gpu(GPUS[3], timeout_seconds=1, on_wait=print):
        gate.touch()
    call.join(60)
    place.close()
    assert isinstance(outcomes[0], Returned)


def test_processes_are_woken_on_the_gpu_and_do_not_wait_for_it_themselves(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("UCUTLASS_WAKES", str(log))
    place = GpuSlot(lambda: GPUS[3])
    prepare, process = TaskEntry("json engine_fakes:wakes", "gpu", "prepare"), table()["process"]
    with gpu_lock.hold_gpu(GPUS[3], timeout_seconds=1, on_wait=print):
        place.run(RemoteCall(prepare, {}), Event())
        # Whoever holds the lock can call the process, though it waits to be woken.
        timing = value(place._called(place._warm, RemoteCall(process, {})))
        assert not notes(log)
    end = time.monotonic() + 60
    while len(notes(log)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    fresh = value(place.run(RemoteCall(table()["fresh"], {}), Event()))
    assert {int(pid) for pid in notes(log)} == {timing, fresh}
    place.close()


def test_a_process_is_woken_step_by_step(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two steps whoever waits for the GPU takes it."""
    log = tmp_path / "log"
    monkeypatch.setenv("UCUTLASS_WAKES", str(log))
    held: list[str] = []
    hold = gpu_lock.hold_gpu

    def counted(*arguments: Any, **named: Any) -> Any:
        held.append("")
        return hold(*arguments, **named)

    monkeypatch.setattr("ucutlass.engine.gpu_slot.gpu_lock.hold_gpu", counted)
    place = GpuSlot(lambda: GPUS[3])
    place.run(RemoteCall(TaskEntry("json engine_fakes:wakes_in_steps", "gpu", "prepare"), {}), Event())
    end = time.monotonic() + 60
    while len(notes(log)) < 6 and time.monotonic() < end:
        time.sleep(0.05)
    place.close()
    assert len(notes(log)) == len(held) == 6, "three steps of the warm process and of a spare one"


def test_a_crash_costs_its_own_call(engine: LocalEngine) -> None:
    first = engine.submit("process", {}, near="x").result()
    found = engine.submit("crash", {}, near="x").result()
    assert isinstance(found, Crashed) and found.signal == "SIGSEGV"
    assert value(engine.submit("process", {}, near="x").result()) != value(first)


@pytest.mark.slow
def test_a_call_may_have_processes_of_its_own_which_end_with_it(engine: LocalEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = {"log": str(log), "inner": "process"}
    found = value(engine.submit("nests", asked, near="x").result())
    assert isinstance(found, dict) and found["how"] == "Returned"
    assert len({found["outer"], found["inner"], os.getpid()}) == 3
    crashed = value(engine.submit("nests", {**asked, "inner": "crash"}, near="x").result())
    assert isinstance(crashed, dict) and crashed["how"] == "Crashed"

    def nests(limit: float) -> CallOutcome:
        return engine.submit("nests", {**asked, "inner": "stays"}, near="x", limit_seconds=limit).result()

    _, outcome = hung(nests, log)
    assert isinstance(outcome, TimedOut) and len(notes(log)) == 1
    assert all_ended([int(notes(log)[0])])


def test_failures_are_told_apart(engine: LocalEngine) -> None:
    found = engine.submit("fault", {}).result()
    assert isinstance(found, Raised) and (found.type, found.message) == ("LookupError", "no such thing")
    found = engine.submit("absent", {}).result()
    assert isinstance(found, Raised) and found.type == "ModuleNotFoundError"
    with pytest.raises(CompilerMissing):  # another task would meet it too
        engine.submit("unfit", {}).result()
    with pytest.raises(KeyError):
        engine.submit("os.system", {})
    with pytest.raises(TypeError):
        engine.submit("make", {"name": object()})


def test_what_nobody_wants_ends(engine: LocalEngine, tmp_path: Path) -> None:
    log, never = str(tmp_path / "log"), str(tmp_path / "never")
    asked = [engine.submit("wait", {"log": log, "until": never}) for _ in range(3)]
    while len(notes(log)) < 2:
        pass
    asked[2].cancel()
    assert asked[2].result() == CANCELLED  # in the queue still
    for task in asked[:2]:
        task.cancel()
        assert value(task.result()) == "cancelled"


def test_closing_ends_what_runs(cache: Cache, tmp_path: Path) -> None:
    engine = LocalEngine(GPUS[:1], 1, table=table())
    task = engine.submit("wait", {"log": str(tmp_path / "log"), "until": str(tmp_path / "never")})
    queued = engine.submit("wait", {"log": str(tmp_path / "log"), "until": str(tmp_path / "never")})
    process = value(engine.submit("process", {}).result())
    engine.close()
    assert task.result() in (Returned("cancelled", ""), CANCELLED) and queued.result() == CANCELLED
    assert all_ended([int(str(process))])


def test_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in ("", "ray://x:1", "dask://", "dask://host", "dask://a b:1", "tcp://host:1"):
        with pytest.raises(EngineUnknown, match=r"dask://HOST:PORT"):
            ucutlass.engine.open(spec)
    monkeypatch.setattr("ucutlass.runtime.bench.gpu_lock.gpu_uuids", lambda: GPUS[:3])
    engine = ucutlass.engine.open("local")
    assert engine.gpus == 3
    engine.close()


def test_without_a_gpu_there_is_no_local_engine() -> None:
    with pytest.raises(NoGpu):
        ucutlass.engine.open("local")


def test_the_gpu_of_an_engine(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    local_engine = LocalEngine(GPUS[:1], 1)
    gpu = system.Gpu(0, "NVIDIA H200", (9, 0), 141 * 10**9, 132)
    monkeypatch.setattr(system, "driver", lambda: system.Driver((13, 0), (gpu,), ""))
    current_gpu = worker_gpu.worker_gpu(local_engine)
    assert (
        current_gpu is not None
        and current_gpu.gpu == gpu
        and current_gpu.arch.name == "sm90a"
        and current_gpu.device is not None
    )
    monkeypatch.setattr(system, "driver", lambda: None)
    assert worker_gpu.worker_gpu(local_engine) is None
    local_engine.close()
    monkeypatch.setattr(engine, "_table", table() | {"gpu": table()["fault"]})
    with pytest.raises(WorkerUnfit, match="no such thing"):
        worker_gpu.worker_gpu(engine)


def test_runs_take_the_gpus_of_the_first_one_s_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    names, uuids = ("H100", "H100", "A10", "H100"), ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
    gpus = tuple(system.Gpu(at, name, (9, 0), 1 << 36, 132) for at, name in enumerate(names))
    monkeypatch.setattr(engines, "gpu_uuids", lambda: uuids)
    monkeypatch.setattr(system, "driver", lambda: system.Driver((13, 0), gpus, ""))
    assert engines.equal_gpus() == ("GPU-a", "GPU-b", "GPU-d")
    with closing(engines.opened(None, True, gpus=engines.equal_gpus())) as several:
        assert several.gpus == 3
    for few in (None, system.Driver((13, 0), (), "no device"), system.Driver((13, 0), gpus[1:3], "")):
        monkeypatch.setattr(system, "driver", lambda few=few: few)
        monkeypatch.setattr(engines, "gpu_uuids", lambda: uuids[1:3])
        assert engines.equal_gpus() == ()


def test_what_gets_ready_shares_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that wake time nothing, and hold nobody up who does not either."""
    holds: list[bool] = []

    @contextmanager
    def hold(gpu: str, **how: object) -> Iterator[None]:
        holds.append(bool(how.get("shared")))
        yield

    monkeypatch.setattr(gpu_lock, "hold_gpu", hold)
    place = GpuSlot(lambda: "GPU-a")
    try:
        prepare = TaskEntry("json os:getpid", "gpu", "prepare")
        place.run(RemoteCall(prepare, {}), Event())
        deadline = time.monotonic() + 60
        while len(holds) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        place.close()
    assert holds == [True, True]
