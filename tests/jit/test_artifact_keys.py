"""An artifact that NVRTC built is found by the source for nvcc, until anything that decides what it is has changed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.jit.lean_plans import biased
from tests.runtime.runtime_fakes import FakeNvcc, fake_nvcc, source
from ucutlass import backend
from ucutlass.emit.text import Source
from ucutlass.runtime.build import Artifact, Recipe, nvcc_recipe
from ucutlass.runtime.cache import KNOWN, Cache
from ucutlass.runtime.jit import artifact_keys, nvjitlink, nvrtc
from ucutlass.runtime.progress import Progress
from ucutlass.runtime.switches import BuildPath
from ucutlass.runtime.toolchain import Toolchain


@dataclass
class Bench:
    """A machine whose compilers and versions are what a test says; `asked` are the sources whose parts were
    emitted."""

    fake: FakeNvcc
    cache: Cache
    makers: Path
    toolchain: Toolchain
    asked: list[str] = field(default_factory=list)

    def recipe_of(self, one: Source, *_: object) -> Recipe:
        self.asked.append(one.code)
        return nvcc_recipe(one, self.fake.toolchain)

    def made(self, one: Source | None = None, build_path: BuildPath = "auto") -> Artifact:
        return backend.build_artifact(one or source(), biased(), build_path, self.cache)

    def later(self) -> None:
        """As in another process."""
        artifact_keys._makers.cache_clear()

    @property
    def answers(self) -> list[Path]:
        return sorted((self.cache.root / KNOWN).iterdir())


@pytest.fixture
def bench(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    fake, makers = fake_nvcc(tmp_path / "fake"), tmp_path / "makers"
    makers.mkdir()
    (makers / "lean.py").write_text("one = 1\n")
    one = Bench(fake, cache, makers, fake.toolchain)
    monkeypatch.setattr(backend, "toolchain", lambda: one.toolchain)
    monkeypatch.setattr(backend, "recipe_of", one.recipe_of)
    monkeypatch.setattr(nvrtc, "locate", lambda nvcc: "libnvrtc.so.13")
    monkeypatch.setattr(nvjitlink, "locate", lambda nvcc: "libnvJitLink.so.13")
    with monkeypatch.context() as patch:
        patch.setattr(artifact_keys, "_MAKERS", ((makers, "*.py"),))
        artifact_keys._makers.cache_clear()
        yield one
    artifact_keys._makers.cache_clear()


def test_what_is_known_is_found_without_its_parts(bench: Bench) -> None:
    first = bench.made()
    heard: list[Progress] = []
    again = backend.build_artifact(source(), biased(), "auto", bench.cache, heard.append)
    assert again == first and [event.kind for event in heard] == ["cached"]
    assert len(bench.asked) == 1


def test_another_process_knows_it_too(bench: Bench) -> None:
    bench.made()
    bench.later()
    bench.made()
    assert len(bench.asked) == 1


def test_a_header_is_no_part_of_the_question(bench: Bench) -> None:
    assert bench.made(source(header="// of one program\n")) == bench.made(source(header="// of another\n"))
    assert len(bench.asked) == 1


# --- what forgets -----------------------------------------------------------------


def newer(tools: Toolchain, part: str, **changes: Any) -> Toolchain:
    return replace(tools, **{part: replace(getattr(tools, part), **changes)})


TOOLS = {
    "nvcc": lambda t: newer(t, "nvcc", version="13.1.5"),
    "g++": lambda t: newer(t, "host", version="13.1.0"),
    "cutlass": lambda t: newer(t, "cutlass", digest="1" * 64),
}


@pytest.mark.parametrize("change", TOOLS.values(), ids=TOOLS)
def test_another_compiler_forgets(change: Callable[[Toolchain], Toolchain], bench: Bench) -> None:
    bench.made()
    bench.toolchain = change(bench.toolchain)
    bench.made()
    assert len(bench.asked) == 2
    bench.toolchain = bench.fake.toolchain
    bench.made()
    assert len(bench.asked) == 2, "the old one is still known"


def test_another_question_has_its_own_answer(bench: Bench) -> None:
    bench.made()
    bench.made(build_path="nvrtc")
    bench.made(source("int g();"))
    bench.made(source(arch="sm_89"))
    assert len(bench.asked) == len(bench.answers) == 4


def longer(folder: Path) -> None:
    path = folder / "lean.py"
    stat = path.stat()
    path.write_text("one = 1 + 0\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def later(folder: Path) -> None:
    stat = (folder / "lean.py").stat()
    os.utime(folder / "lean.py", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


def more(folder: Path) -> None:
    (folder / "other.py").write_text("two = 2\n")


@pytest.mark.parametrize("change", [longer, later, more])
def test_a_change_of_what_makes_the_parts_forgets(change: Callable[[Path], None], bench: Bench) -> None:
    bench.made()
    change(bench.makers)
    bench.later()
    bench.made()
    assert len(bench.asked) == 2


def test_what_makes_the_parts_is_there() -> None:
    """A pattern that finds nothing would forget nothing."""
    found = {(folder, pattern): list(folder.glob(pattern)) for folder, pattern in artifact_keys._MAKERS}
    assert all(found.values())
    names = {path.name for paths in found.values() for path in paths}
    assert names >= {"lean.py", "lean.cpp", "lean.h", "lean_device.j2", "lean_host.j2"}
    assert names >= {"link.py", "compiler_process.py", "arithmetic_unit.py", "arithmetic.py"}


# --- an answer whose artifact is gone ---------------------------------------------


def removed(bench: Bench, one: Artifact) -> None:
    shutil.rmtree(one.folder)


def quarantined(bench: Bench, one: Artifact) -> None:
    assert bench.cache.quarantine(one.key) is not None


def cut(bench: Bench, one: Artifact) -> None:
    one.library.write_bytes(b"")


@pytest.mark.parametrize("lose", [removed, quarantined, cut])
def test_what_is_not_there_whole_is_built_again(
    lose: Callable[[Bench, Artifact], None], bench: Bench
) -> None:
    first = bench.made()
    lose(bench, first)
    again = bench.made()
    assert again.key == first.key and again.library.stat().st_size > 0
    assert len(bench.asked) == len(bench.fake.runs) == 2


def test_clearing_the_cache_forgets(bench: Bench) -> None:
    bench.made()
    bench.cache.clear()
    assert not (bench.cache.root / KNOWN).exists()
    bench.made()
    assert len(bench.fake.runs) == 2


# --- the file ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"half", b"\xff" * 64, b"../" * 21 + b"x", b"0" * 64, b"z" * 64, b"0" * 65],
    ids=["empty", "half", "no text", "a path", "another's", "no number", "too long"],
)
def test_a_damaged_answer_is_as_none(content: bytes, bench: Bench) -> None:
    first = bench.made()
    (answer,) = bench.answers
    answer.write_bytes(content)
    assert bench.made() == first
    assert len(bench.asked) == 2 and answer.read_text() == first.key


def test_where_nothing_can_be_written_the_long_way_is_taken(bench: Bench) -> None:
    bench.cache.root.mkdir()
    (bench.cache.root / KNOWN).write_text("a file where the folder is to be")
    assert bench.made() == bench.made()
    assert len(bench.asked) == 2 and len(bench.fake.runs) == 1


def full_disk(_fd: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_on_a_full_disk_no_half_an_answer_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.made()
    (answer,) = bench.answers
    answer.unlink()
    monkeypatch.setattr(os, "fsync", full_disk)
    bench.made()
    assert not answer.exists() and len(bench.fake.runs) == 1
