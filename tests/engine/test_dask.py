"""The engine of a Dask cluster: workers are processes with GPUs by name only and a cache folder each."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import GPUS, key_of, notes, table
from runtime_fakes import all_ended

import ucutlass.engine
from ucutlass.engine.cluster import local_cluster
from ucutlass.engine.dask import DaskEngine
from ucutlass.engine.dispatch import LIVES
from ucutlass.engine.errors import EngineMissing, EngineUnreachable, NoWorkers, TaskLost, WorkerUnfit
from ucutlass.runtime import archive
from ucutlass.runtime.cache import Cache, CacheEntry
from ucutlass.runtime.isolation import Crashed, Raised, Returned

pytestmark = pytest.mark.slow

pytest.importorskip("distributed")


@contextmanager
def cluster(folder: Path, workers: int = 2, **options: Any) -> Iterator[DaskEngine]:
    """Two cores and one GPU a worker."""
    environs = [{"UCUTLASS_CACHE_DIR": str(folder / f"worker{i}")} for i in range(workers)]
    with local_cluster(GPUS[:workers], 2, environs=environs) as spec:
        engine = DaskEngine(
            spec.replace("dask", "tcp"), table=table(), cache=Cache(folder / "own", 1 << 30), **options
        )
        try:
            yield engine
        finally:
            engine.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaskEngine, Path]]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder) as engine:
        yield engine, folder


@pytest.fixture
def engine(shared: tuple[DaskEngine, Path]) -> DaskEngine:
    return shared[0]


def value(found: object) -> Any:
    assert isinstance(found, Returned), found
    return found.value


def until(path: Path, lines: int) -> list[str]:
    while len(notes(path)) < lines:
        time.sleep(0.01)
    return notes(path)


def test_what_was_built_is_moved_and_not_rebuilt(shared: tuple[DaskEngine, Path], tmp_path: Path) -> None:
    engine, folder = shared
    log = tmp_path / "log"
    made = value(engine.submit("make", {"name": "moved", "log": str(log)}).result())
    key = key_of("moved")
    # Both workers read it, each in its own cache: one of them did not make it.
    asked = [engine.submit("read", {"key": key}, artifacts=[key], near=f"m{i}") for i in range(2)]
    read = [value(t.result()) for t in asked]
    for i in range(2):
        engine.leave(f"m{i}")
    assert {r["cache"] for r in read} == {str(folder / f"worker{i}") for i in range(2)}
    assert made["cache"] in {r["cache"] for r in read} and {r["text"] for r in read} == {"moved" * 4}
    assert len(notes(log)) == 1, "built once"
    assert isinstance(Cache(folder / "own", 1 << 30).load(key), CacheEntry)


def test_an_entry_that_is_nowhere_is_said_to_be(engine: DaskEngine) -> None:
    with pytest.raises(WorkerUnfit, match="not in"):
        engine.submit("read", {"key": key_of("none")}, artifacts=[key_of("none")]).result()


def test_an_entry_damaged_here_is_not_moved(shared: tuple[DaskEngine, Path], tmp_path: Path) -> None:
    engine, folder = shared
    own, key = Cache(folder / "own", 1 << 30), key_of("damaged")
    made = value(engine.submit("make", {"name": "damaged", "log": str(tmp_path / "log")}).result())
    other = next(str(folder / f"worker{i}") for i in range(2) if str(folder / f"worker{i}") != made["cache"])
    library = own.root / "entries" / key / "kernel.so"
    library.write_bytes(b"x" * library.stat().st_size)
    asked = [engine.submit("read", {"key": key}, artifacts=[key], near=f"d{i}") for i in range(2)]
    found = []
    for i, task in enumerate(asked):
        try:
            found.append(value(task.result())["cache"])
        except WorkerUnfit:
            found.append("unfit")
        engine.leave(f"d{i}")
    assert sorted(found) == sorted([made["cache"], "unfit"])
    assert archive.pack(Cache(Path(other), 1 << 30), key) is None


def test_one_gpu_runs_one_launch_and_a_token_stays_on_it(engine: DaskEngine, tmp_path: Path) -> None:
    logs = {n: tmp_path / n for n in ("x", "y")}
    turns = [(n, {"log": str(logs[n]), "who": f"{i}"}) for i in range(3) for n in "xy"]
    asked = [engine.submit("turn", arguments, near=n) for n, arguments in turns]
    gpus = [value(t.result()) for t in asked]
    assert set(gpus[::2]) != set(gpus[1::2]) and {*gpus} == {*GPUS[:2]}
    for n in "xy":
        engine.leave(n)
        lines = notes(logs[n])
        assert all(b == f"end {a.split()[1]}" for a, b in zip(lines[::2], lines[1::2], strict=True))


def test_builds_go_beside_a_launch(engine: DaskEngine, tmp_path: Path) -> None:
    """Four builds at once on two workers with two cores each, and none waits for a GPU."""
    log, go = tmp_path / "log", tmp_path / "go"
    asked = [engine.submit("wait", {"log": str(log), "until": str(go)}) for _ in range(5)]
    assert len(set(until(log, 4))) == 2
    assert value(engine.submit("turn", {"log": str(tmp_path / "t"), "who": "me"}).result()) in GPUS
    assert len(notes(log)) == 4, "a fifth would be too many for the cores"
    go.touch()
    assert {value(t.result()) for t in asked} == {"seen"}


def test_the_timing_process_stays_and_the_confirming_one_is_fresh(engine: DaskEngine) -> None:
    warm = {value(engine.submit("process", {}, near="p").result()) for _ in range(3)}
    fresh = [value(engine.submit("fresh", {}, near="p").result()) for _ in range(2)]
    found = engine.submit("crash", {}, near="p").result()
    after = value(engine.submit("process", {}, near="p").result())
    engine.leave("p")
    assert len(warm) == 1 and len(set(fresh)) == 2 and not warm & set(fresh)
    assert isinstance(found, Crashed) and after not in warm, "the worker lives, its process does not"


def test_failures_are_told_apart(engine: DaskEngine) -> None:
    found = engine.submit("fault", {}).result()
    assert isinstance(found, Raised) and (found.type, found.message) == ("LookupError", "no such thing")
    with pytest.raises(WorkerUnfit, match=r"CompilerMissing: no nvcc anywhere; to fix it: install one"):
        engine.submit("unfit", {}).result()
    with pytest.raises(KeyError):
        engine.submit("os.system", {})


def test_what_nobody_wants_ends(engine: DaskEngine, tmp_path: Path) -> None:
    log, never = tmp_path / "log", str(tmp_path / "never")
    asked = [engine.submit("wait", {"log": str(log), "until": never}) for _ in range(5)]
    until(log, 4)
    for task in asked:
        task.cancel()
    found = [t.result() for t in asked]
    assert found[:4] == [Returned("cancelled", "")] * 4 and isinstance(found[4], Raised)


# --- workers that die ------------------------------------------------------------


def test_a_worker_that_is_killed_loses_no_result(tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    with cluster(tmp_path) as engine:
        made = [engine.submit("make", {"name": f"k{i}", "log": str(tmp_path / "made")}) for i in range(8)]
        assert all(isinstance(t.result(), Returned) for t in made)
        asked = [engine.submit("wait", {"log": str(log), "until": str(go)}) for _ in range(8)]
        first = int(until(log, 4)[0].split()[1])
        child = value(engine.submit("process", {}, near="a").result())
        os.kill(first, signal.SIGKILL)
        go.touch()
        assert [value(t.result()) for t in asked] == ["seen"] * 8
        # What the dead one had built is still there for whoever needs it, and was built once.
        read = [
            engine.submit("read", {"key": key_of(f"k{i}")}, artifacts=[key_of(f"k{i}")], near=f"r{i}")
            for i in range(8)
        ]
        assert [value(t.result())["text"] for t in read] == [f"k{i}" * 10 for i in range(8)]
        assert len(notes(tmp_path / "made")) == 8
    assert all_ended([child])


def test_a_task_that_kills_its_workers_ends_in_a_typed_failure(tmp_path: Path) -> None:
    """And costs nobody else anything, though one worker is all there is."""
    bad, good = tmp_path / "bad", tmp_path / "good"
    # Four workers die here, and a busy machine takes a minute or more to start the next one.
    with cluster(tmp_path, workers=1, patience_seconds=600.0) as engine:
        lost = engine.submit("killed", {"log": str(bad), "times": 1000})
        beside = [engine.submit("make", {"name": f"g{i}", "log": str(good)}) for i in range(4)]
        with pytest.raises(TaskLost, match=r"engine_fakes:killed was lost 3 times") as raised:
            lost.result()
        assert len(raised.value.workers) == LIVES == len(notes(bad))
        assert [value(t.result())["artifacts"] for t in beside] == [[key_of(f"g{i}")] for i in range(4)]
        once = engine.submit("killed", {"log": str(tmp_path / "once"), "times": 1})
        assert value(once.result()) == {"tries": 2}


def test_work_that_no_worker_can_take_is_given_up(tmp_path: Path) -> None:
    with local_cluster((), 1) as spec:
        engine = DaskEngine(spec.replace("dask", "tcp"), table=table(), patience_seconds=0.5)
        with pytest.raises(NoWorkers, match=r"GPU"):
            engine.submit("process", {}).result()
        engine.close()


def test_two_engines_exclude_each_other_on_a_gpu(tmp_path: Path) -> None:
    """Two clusters that do not know of each other."""
    log = tmp_path / "log"
    with cluster(tmp_path / "a", workers=1) as one, cluster(tmp_path / "b", workers=1) as two:
        asked = [e.submit("turn", {"log": str(log), "who": f"{i}"}) for i, e in enumerate([one, two] * 2)]
        assert [value(t.result()) for t in asked] == [GPUS[0]] * 4
    lines = notes(log)
    assert len(lines) == 8
    assert all(b == f"end {a.split()[1]}" for a, b in zip(lines[::2], lines[1::2], strict=True)), lines


# --- the scheduler ---------------------------------------------------------------


def test_a_scheduler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.engine.dask._CONNECT_SECONDS", 0.5)
    with pytest.raises(EngineUnreachable, match="dask scheduler"):
        ucutlass.engine.open("dask://127.0.0.1:1")


def test_a_scheduler_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.engine.dask._CONNECT_SECONDS", 1.0)
    log = tmp_path / "log"
    with local_cluster(GPUS[:1], 1) as spec:
        engine = DaskEngine(spec.replace("dask", "tcp"), table=table())
        asked = [engine.submit("wait", {"log": str(log), "until": str(tmp_path / "never")}) for _ in range(2)]
        until(log, 1)
    for task in asked:
        with pytest.raises(EngineUnreachable):
            task.result()
    with pytest.raises(EngineUnreachable):
        engine.submit("process", {}).result()
    engine.close()


def test_without_distributed_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(EngineMissing, match=r"pip install 'ucutlass\[distributed\]'"):
        ucutlass.engine.open("dask://127.0.0.1:1")
    with pytest.raises(EngineMissing), local_cluster(GPUS[:1], 1):
        pass
