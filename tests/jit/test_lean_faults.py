"""What becomes of a lean build whose compilers are killed, hang, fill the disk or are missing."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.jit.lean_plans import biased
from tests.runtime.runtime_fakes import hung
from ucutlass import backend
from ucutlass.emit import emit
from ucutlass.emit.gemm.lean import lean
from ucutlass.emit.parts import Lean
from ucutlass.runtime import errors, nvcc
from ucutlass.runtime.build import Artifact, Recipe, make
from ucutlass.runtime.cache import Cache, CacheEntry
from ucutlass.runtime.jit import device_compile, link, nvjitlink, nvrtc
from ucutlass.runtime.jit import nvrtc_build as lean_parts
from ucutlass.runtime.jit.compiler_process import FULL
from ucutlass.runtime.switches import BuildPath
from ucutlass.runtime.toolchain import Nvcc, Toolchain, find

pytestmark = pytest.mark.nvcc

TINY = 'extern "C" __device__ float arithmetic(float x) { return x; }\n'
OPTIONS = ("-std=c++17", "-arch=sm_90a", "-dlto", "-rdc=true")


@pytest.fixture
def tools(compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink) -> Toolchain:
    return find()


@dataclass(frozen=True)
class Worker:
    """In place of the worker's interpreter: it writes down its process id, then does what it is told."""

    folder: Path

    def does(self, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in = self.folder / "python"
        stand_in.write_text(f'#!/bin/sh\necho $$ >> "{self.folder}/started"\n{script}\n')
        stand_in.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(stand_in))

    @property
    def started(self) -> list[int]:
        path = self.folder / "started"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def wait(self) -> int:
        end = time.monotonic() + 60.0
        while not self.started and time.monotonic() < end:
            time.sleep(0.01)
        return self.started[0]


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    folder = tmp_path / "worker"
    folder.mkdir()
    return Worker(folder)


def all_ended(pids: list[int]) -> bool:
    """Those that were killed as a group are waited for: some are nobody's children."""
    end = time.monotonic() + 60.0
    while not all(map(ended, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    return all(map(ended, pids))


def ended(pid: int) -> bool:
    """Whether no such process runs; one that nobody waited for counts as ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def compiled(folder: Path, cancel: Event | None = None, limit: float = 60.0) -> device_compile.CompilerOutput:
    """One run of NVRTC in `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "part.cu").write_text(TINY)
    return device_compile.run(
        "ucc_0",
        folder,
        nvrtc.locate(find().nvcc),
        (device_compile.NvrtcCompile("part.cu", "part.ltoir", OPTIONS),),
        None,
        log="build.log",
        command="nvcc",
        keep=lambda: folder,
        cancel=cancel,
        limit_seconds=limit,
    )


def lean_recipe(tools: Toolchain, cache: Cache, kernel: Lean | None = None) -> Recipe:
    return link.recipe(emit(biased(), ""), kernel or lean(biased()), tools, cache)


def assert_nothing_stays(cache: Cache) -> None:
    """But the driver's part, where it was made before the rest failed."""
    entries = [entry for entry in cache.entries() if isinstance(entry, CacheEntry)]
    assert {entry.about["builder"] for entry in entries} <= {"lean-driver"}
    assert len(entries) == len(cache.entries()) and not list((cache.root / "staging").iterdir())


# --- the worker -------------------------------------------------------------------


def test_a_worker_that_is_killed_takes_its_build_alone(
    tools: Toolchain, cache: Cache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system does where memory ends; nothing half made stays, and the next build is whole."""
    with monkeypatch.context() as patch:
        worker.does(f'exec "{sys.executable}" "$@"', patch)
        killer = Thread(target=lambda: os.kill(worker.wait(), signal.SIGKILL))
        killer.start()
        with pytest.raises(errors.OutOfMemory, match="NVRTC was killed") as caught:
            make(lean_recipe(tools, cache), cache)
        killer.join()
    assert "UCUTLASS_BUILD_JOBS" in caught.value.fix
    assert_nothing_stays(cache)
    one = make(lean_recipe(tools, cache), cache)
    assert isinstance(one, Artifact) and one.library.is_file()


def test_a_worker_that_hangs_ends_in_time(
    compiler: nvrtc.Nvrtc, tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = worker.folder / "child"
    worker.does(f'sleep 1000 & echo $! > "{child}"; wait', monkeypatch)

    def ends(limit: float) -> None:
        with pytest.raises(errors.BuildTimedOut):
            compiled(tmp_path / "build", limit=limit)

    hung(ends, child)
    assert all_ended([*worker.started, int(child.read_text())])


def test_a_cancelled_worker_ends(
    compiler: nvrtc.Nvrtc, tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.does("exec sleep 1000", monkeypatch)
    event = Event()

    def tell() -> None:
        worker.wait()
        event.set()

    teller = Thread(target=tell)
    teller.start()
    with pytest.raises(errors.BuildCancelled):
        compiled(tmp_path / "build", cancel=event)
    teller.join()
    assert all_ended(worker.started)


def test_a_cancelled_build_leaves_nothing(
    tools: Toolchain, cache: Cache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's compiler runs beside the worker and ends with it."""
    worker.does("exec sleep 1000", monkeypatch)
    event = Event()

    def tell() -> None:
        worker.wait()
        event.set()

    teller = Thread(target=tell)
    teller.start()
    with pytest.raises(errors.BuildCancelled):
        make(lean_recipe(tools, cache), cache, cancel=event)
    teller.join()
    assert all_ended(worker.started)
    assert_nothing_stays(cache)


def test_a_worker_that_crashes_is_a_build_error_with_its_words(
    compiler: nvrtc.Nvrtc, tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.does("echo 'internal error: gone wrong'; kill -SEGV $$", monkeypatch)
    with pytest.raises(errors.BuildError) as caught:
        compiled(tmp_path / "build")
    assert caught.value.errors == ("internal error: gone wrong",)
    assert "gone wrong" in caught.value.log.read_text()


def test_a_worker_that_cannot_start_is_the_machines_fault(
    compiler: nvrtc.Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(errors.CompilerUnusable):
        compiled(tmp_path / "build")


def test_a_worker_finds_the_package_from_anywhere(
    compiler: nvrtc.Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing of the caller's says where it is, but its own `sys.path`."""
    folder = tmp_path / "build"
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    compiler_output = compiled(folder)
    assert (folder / "part.ltoir").stat().st_size > 0
    assert [name for name, _ in compiler_output.phases] == ["NVRTC part.cu"]


# --- the host's compiler ----------------------------------------------------------


@pytest.fixture
def compilers(tmp_path: Path) -> Callable[[str], Path]:
    """A compiler that does what it is told, and writes its process id into `started` beside it."""

    def make_one(script: str) -> Path:
        folder = tmp_path / "compiler"
        folder.mkdir()
        path = folder / "compiler"
        path.write_text(f'#!/bin/sh\necho $$ >> "{folder}/started"\n{script}\n')
        path.chmod(0o755)
        return path

    return make_one


def started(compiler: Path, count: int = 1) -> list[int]:
    """Process ids of its runs, once there are so many."""
    path, end = compiler.parent / "started", time.monotonic() + 60.0
    while time.monotonic() < end:
        if path.exists() and len(found := path.read_text().split()) >= count:
            return [int(one) for one in found]
        time.sleep(0.01)
    raise AssertionError("it was not started")


def test_a_cancellation_after_nvrtc_reaches_the_hosts_compiler(
    tools: Toolchain, cache: Cache, compilers: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, told = compilers("exec sleep 1000"), Event()

    def run(*_: object, **__: object) -> device_compile.CompilerOutput:
        started(host)
        told.set()
        return device_compile.CompilerOutput("", ())

    monkeypatch.setattr(device_compile, "run", run)
    slow = replace(tools, host=replace(tools.host, path=host))
    with pytest.raises(errors.BuildCancelled):
        make(lean_parts.recipe(lean(biased()), slow), cache, cancel=told)
    assert all_ended(started(host))
    assert_nothing_stays(cache)


def test_a_hosts_compiler_that_is_killed_is_named(
    tools: Toolchain, cache: Cache, compilers: Callable[[str], Path]
) -> None:
    broken = replace(tools, host=replace(tools.host, path=compilers("kill -KILL $$")))
    with pytest.raises(errors.OutOfMemory, match=r"g\+\+ was killed"):
        make(lean_parts.recipe(lean(biased()), broken), cache)
    assert_nothing_stays(cache)


def test_a_refused_device_text_ends_the_hosts_compiler_before_it_is_kept(
    tools: Toolchain, cache: Cache, compilers: Callable[[str], Path]
) -> None:
    """Which works in the folder that is moved."""
    host, kernel = compilers("exec sleep 1000"), lean(biased())
    slow = replace(tools, host=replace(tools.host, path=host))
    broken = replace(kernel, device=replace(kernel.device, text="nothing_here x;", code="nothing_here x;"))
    with pytest.raises(errors.BuildError, match="nothing_here") as caught:
        make(lean_parts.recipe(broken, slow), cache)
    assert all_ended(started(host))
    assert not (caught.value.source.parent / "tmp_host.log").exists(), "swept as it ended"
    assert_nothing_stays(cache)


def test_a_drivers_part_that_is_refused_holds_no_skeleton_and_is_told_by_the_link(
    tools: Toolchain, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, source = (
        (lean_parts.NATIVE / name).read_text() for name in (lean_parts.HEADER, lean_parts.DRIVER_SOURCE)
    )
    (tmp_path / lean_parts.HEADER).write_text(header)
    (tmp_path / lean_parts.DRIVER_SOURCE).write_text(source + "int gone() { return nothing_here; }\n")
    monkeypatch.setattr(lean_parts, "NATIVE", tmp_path)
    with pytest.raises(errors.BuildError, match="nothing_here") as caught:
        make(lean_recipe(tools, cache), cache)
    assert (
        "nothing_here" in caught.value.source.read_text() and "nothing_here" in caught.value.log.read_text()
    )
    assert [e.about["builder"] for e in cache.entries() if isinstance(e, CacheEntry)] == ["lean-skeleton"]


# --- the disk ---------------------------------------------------------------------


def test_a_full_disk_is_no_fault_of_the_source(compiler: nvrtc.Nvrtc, tmp_path: Path) -> None:
    folder = tmp_path / "build"
    folder.mkdir()
    (folder / "part.ltoir").symlink_to("/dev/full")
    with pytest.raises(errors.CacheFull, match="No space left on device") as caught:
        compiled(folder)
    assert "ucc cache clear" in caught.value.fix


def test_a_full_quota_is_told(
    compiler: nvrtc.Nvrtc, tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.does(f"exit {FULL[errno.EDQUOT]}", monkeypatch)
    with pytest.raises(errors.CacheFull, match="quota"):
        compiled(tmp_path / "build")


@pytest.fixture
def disk_size() -> str:
    return "160k"


@pytest.mark.parametrize(
    ("taken", "made"), [(0, lean_recipe), (100 * 2**10, lambda tools, _: lean_parts.driver_recipe(tools))]
)
def test_a_disk_that_is_really_full(
    taken: int, made: Callable[[Toolchain, Cache], Recipe], tools: Toolchain, small_disk: Path
) -> None:
    """The sources have room, the device's part has not, or what g++ makes; nor have their words."""
    (small_disk / "other").write_bytes(b"." * taken)
    cache = Cache(small_disk, 10 * 2**30)
    with pytest.raises(errors.CacheFull):
        make(made(tools, cache), cache)
    assert_nothing_stays(cache)


# --- what is missing or refused ---------------------------------------------------


@pytest.mark.parametrize("way", ["auto", "nvrtc"])
def test_without_nvrtc_no_other_way_is_taken(
    way: BuildPath, tools: Toolchain, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked for NVRTC is told what to install, and gets no slow build instead."""

    def missing(nvcc: Nvcc) -> str:
        raise nvrtc.NvrtcMissing("no NVRTC of CUDA 13.0", nvrtc.LIBRARY.install((13, 0)))

    monkeypatch.setattr(nvrtc, "locate", missing)
    with pytest.raises(nvrtc.NvrtcMissing, match="pip install 'nvidia-cuda-nvrtc"):
        backend.recipe_of(emit(biased(), ""), biased(), way, cache)


def test_a_host_text_that_is_refused_is_a_build_error(tools: Toolchain, cache: Cache) -> None:
    """Its compiler is done long before the device's."""
    kernel = lean(biased())
    broken = replace(kernel, host=kernel.host + "int gone() { return nothing_here; }\n")
    with pytest.raises(errors.BuildError, match="nothing_here") as caught:
        make(lean_recipe(tools, cache, broken), cache)
    assert caught.value.source.read_text() == broken.host, "where the compiler's lines are"
    assert_nothing_stays(cache)


def test_a_device_text_that_is_refused_is_kept_with_what_was_said(tools: Toolchain, cache: Cache) -> None:
    kernel = lean(biased())
    text = kernel.device.text.replace("struct Mainloop {", "struct Mainloop { nothing_here x;", 1)
    broken = replace(kernel, device=replace(kernel.device, text=text, code=text))
    with pytest.raises(errors.BuildError) as caught:
        make(lean_recipe(tools, cache, broken), cache)
    assert "nothing_here" in caught.value.errors[0]
    assert caught.value.source.read_text() == text and "nothing_here" in caught.value.log.read_text()
    assert caught.value.source.name == nvcc.SOURCE and lean_parts.DEVICE_PART in caught.value.command
    assert_nothing_stays(cache)
