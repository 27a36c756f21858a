from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, Event, Lock

import pytest
from runtime_fakes import FOREVER, FakeNvcc, all_ended, source

from ucutlass.runtime import errors, parallel, system
from ucutlass.runtime.build import Artifact, Produced, Recipe
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.progress import Progress
from ucutlass.runtime.ptxas import PtxasReport

GIB = 2**30


@pytest.mark.parametrize(
    ("cores", "free", "expected"), [(16, 128 * GIB, 16), (16, 9 * GIB, 2), (2, 128 * GIB, 2), (8, 1 * GIB, 1)]
)
def test_jobs_are_bounded_by_cores_and_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, free: int, expected: int
) -> None:
    monkeypatch.delenv("UCUTLASS_BUILD_JOBS", raising=False)
    monkeypatch.setattr(system, "cores", lambda: cores)
    monkeypatch.setattr(system, "memory_available", lambda: free)
    assert parallel.jobs() == expected
    assert parallel.jobs(5) == 5
    assert parallel.jobs(group=4) == max(1, min(cores, free // (7 * GIB)))
    assert parallel.jobs(first=GIB) == max(1, min(cores, free // GIB))
    assert parallel.jobs(first=GIB, a_core=1.5) == max(1, min(cores * 3 // 2, free // GIB))
    monkeypatch.setenv("UCUTLASS_BUILD_JOBS", "3")
    assert parallel.jobs() == 3


def test_results_keep_their_order_and_failures_their_place(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave('if grep -q bad "$last"; then echo "error: bad"; exit 1; fi; cat "$last" > kernel.so\n')
    heard: list[Progress] = []
    sources = [source(code) for code in ("int a();", "bad", "int b();", "x", "int a();")]
    sources[3] = source("x", arch="sm_1")
    results = parallel.build_many(sources, fake.toolchain, cache, on_progress=heard.append, max_jobs=2)
    first, refused, second, unknown, same = results
    assert isinstance(first, Artifact) and first.library.read_text() == "int a();"
    assert isinstance(refused, errors.BuildError)
    assert isinstance(second, Artifact) and second.library.read_text() == "int b();"
    assert isinstance(unknown, errors.ArchUnknown)
    assert same == first
    assert len(fake.runs) == 3
    ends = [e for e in heard if e.kind in ("built", "cached", "failed")]
    assert [(e.done, e.total) for e in ends] == [(1, 3), (2, 3), (3, 3)]


def test_no_more_compilers_than_jobs(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(
        'mkdir "$home/slot1" 2>/dev/null && mine=1 || { mkdir "$home/slot2" && mine=2; } || exit 1\n'
        'sleep 0.1; rmdir "$home/slot$mine"; cat "$last" > kernel.so\n'
    )
    sources = [source(f"int f{i}();") for i in range(8)]
    results = parallel.build_many(sources, fake.toolchain, cache, max_jobs=2)
    assert all(isinstance(r, Artifact) for r in results)


def test_cancelling_ends_running_builds_and_starts_no_more(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(FOREVER)
    cancel = Event()

    def listen(event: Progress) -> None:
        if event.kind == "compiling":
            cancel.set()

    sources = [source(f"int f{i}();") for i in range(5)]
    results = parallel.build_many(
        sources, fake.toolchain, cache, cancel=cancel, on_progress=listen, max_jobs=1
    )
    assert all(isinstance(r, errors.BuildCancelled) for r in results)
    assert len(fake.runs) <= 1
    assert all_ended(fake.runs + fake.numbers("children"))


def test_a_listener_that_raises_ends_everything_and_is_heard(fake: FakeNvcc, cache: Cache) -> None:
    held = "while [ ! -e $home/go ]; do sleep 0.02; done"
    fake.behave(f'if grep -q bad "$last"; then exit 1; fi; touch "$home/held"; {held}\n')
    heard: list[Progress] = []

    def listen(event: Progress) -> None:
        heard.append(event)
        if event.kind == "failed" and "cancelled" not in event.detail:
            while not (fake.home / "held").exists():
                pass
            raise ZeroDivisionError("listener")

    with pytest.raises(ZeroDivisionError):
        parallel.build_many(
            [source("int a();"), source("bad")],
            fake.toolchain,
            cache,
            on_progress=listen,
            max_jobs=2,
            limit_seconds=60,
        )
    assert [e.detail for e in heard if "cancelled" in e.detail]
    assert all_ended(fake.runs)


def test_nothing_to_build(fake: FakeNvcc, cache: Cache) -> None:
    assert parallel.build_many([], fake.toolchain, cache) == ()
    assert parallel.make_many([], cache) == ()


# --- recipes of any kind ----------------------------------------------------------


@dataclass
class Bench:
    """Recipes that count how many of them are made at once, and who is made."""

    made: list[str] = field(default_factory=list)
    most: int = 0
    now: int = 0
    lock: Lock = field(default_factory=Lock)

    def recipe(self, name: str, work: Callable[[Event | None], None] = lambda _: None) -> Recipe:
        def produce(folder: Path, _: Callable[[], Path], cancel: Event | None) -> Produced:
            with self.lock:
                self.made.append(name)
                self.now += 1
                self.most = max(self.most, self.now)
            try:
                work(cancel)
            finally:
                with self.lock:
                    self.now -= 1
            (folder / "kernel.so").write_text(name)
            return Produced(1.0, PtxasReport())

        return Recipe("bench", f"ucc_{name}", "sm_90a", "none", {}, {"name": name}, produce)


def refuse(_: Event | None) -> None:
    raise errors.BuildTimedOut("ucc_bad", 1.0)


def test_recipes_keep_their_order_and_equal_ones_are_made_once(cache: Cache) -> None:
    bench, heard = Bench(), list[Progress]()
    recipes = [bench.recipe("a"), bench.recipe("bad", refuse), bench.recipe("b"), bench.recipe("a")]
    first, bad, second, same = parallel.make_many(recipes, cache, on_progress=heard.append, max_jobs=2)
    assert isinstance(first, Artifact) and first.library.read_text() == "a" and same == first
    assert isinstance(bad, errors.BuildTimedOut)
    assert isinstance(second, Artifact) and second.library.read_text() == "b"
    assert sorted(bench.made) == ["a", "b", "bad"]
    ends = [e for e in heard if e.kind in ("built", "failed")]
    assert [(e.done, e.total) for e in ends] == [(1, 3), (2, 3), (3, 3)]


def test_as_many_recipes_at_once_as_their_memory_allows(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for another to be there, so three at once are seen, and never four."""
    monkeypatch.delenv("UCUTLASS_BUILD_JOBS", raising=False)
    monkeypatch.setattr(system, "cores", lambda: 8)
    monkeypatch.setattr(system, "memory_available", lambda: 3 * GIB)
    bench, meet = Bench(), Barrier(3)
    recipes = [bench.recipe(str(i), lambda _: void(meet.wait(60))) for i in range(6)]
    outcomes = parallel.make_many(recipes, cache, compiler_bytes=GIB)
    assert all(isinstance(one, Artifact) for one in outcomes)
    assert bench.most == 3


def void(_: object) -> None:
    pass


def test_cancelling_reaches_the_recipe_at_work_and_starts_no_more(cache: Cache) -> None:
    cancel = Event()

    def held(told: Event | None) -> None:
        assert told is cancel
        cancel.set()
        raise errors.BuildCancelled("ucc_0")

    bench = Bench()
    recipes = [bench.recipe(str(i), held) for i in range(4)]
    outcomes = parallel.make_many(recipes, cache, cancel=cancel, max_jobs=1)
    assert all(isinstance(one, errors.BuildCancelled) for one in outcomes)
    assert len(bench.made) == 1


def test_what_a_recipe_never_should_raise_ends_the_others(cache: Cache) -> None:
    started = Event()

    def broken(_: Event | None) -> None:
        started.wait(60)
        raise ZeroDivisionError("recipe")

    def held(told: Event | None) -> None:
        started.set()
        assert told is not None and told.wait(60)
        raise errors.BuildCancelled("ucc_held")

    bench = Bench()
    with pytest.raises(ZeroDivisionError):
        parallel.make_many([bench.recipe("a", broken), bench.recipe("b", held)], cache, max_jobs=2)
    assert bench.now == 0


def test_this_machine_has_cores_and_memory() -> None:
    assert system.cores() >= 1
    assert 0.0 < system.process_age() < 86400.0
    assert 0 < system.memory_available() <= system.memory_total()


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"memory.max": "max", "memory.current": "5"}, 100 * GIB),
        ({"memory.max": str(8 * GIB), "memory.current": str(3 * GIB)}, 5 * GIB),
        (
            {
                "memory.max": str(8 * GIB),
                "memory.current": str(7 * GIB),
                "memory.stat": f"anon 1\ninactive_file {2 * GIB}",
            },
            3 * GIB,
        ),
    ],
)
def test_a_containers_memory_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], free: int
) -> None:
    proc, group = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {200 * GIB // 1024} kB\nMemAvailable: {100 * GIB // 1024} kB\n")
    (proc / "self/cgroup").write_text("0::/box/inner\n")
    (group / "box/inner").mkdir(parents=True)
    for name, text in files.items():
        (group / "box" / name).write_text(text)
    monkeypatch.setattr(system, "_PROC", proc)
    monkeypatch.setattr(system, "_CGROUP", group)
    assert system.memory_available() == free


def test_a_containers_core_quota_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,cpuacct:/box\n")
    (tmp_path / "cgroup/cpu/box").mkdir(parents=True)
    (tmp_path / "cgroup/cpu/box/cpu.cfs_quota_us").write_text("150000")
    (tmp_path / "cgroup/cpu/box/cpu.cfs_period_us").write_text("100000")
    monkeypatch.setattr(system, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(system, "_CGROUP", tmp_path / "cgroup")
    assert system.cores() == 1
