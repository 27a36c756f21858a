from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest
from runtime_fakes import FOREVER, HELD, KILLED, FakeNvcc, all_ended, fake_nvcc, source

from ucutlass.runtime import errors, nvcc
from ucutlass.runtime.build import Artifact, build, nvcc_recipe
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.progress import Progress
from ucutlass.runtime.toolchain import Cutlass, HostCompiler, Nvcc, Toolchain


def key(code: str = "int f();", arch: str = "sm_90a", header: str = "", **changes: object) -> str:
    base = Toolchain(
        Nvcc(Path("/x/nvcc"), "13.0.88", "PATH", ()),
        HostCompiler(Path("/usr/bin/g++"), "12.2.0"),
        Cutlass(Path("/y"), "4.2.0.0", "0" * 64),
    )
    toolchain = replace(
        base,
        nvcc=replace(base.nvcc, version=changes.get("nvcc", "13.0.88")),
        host=replace(base.host, version=changes.get("host", "12.2.0")),
        cutlass=replace(
            base.cutlass, version=changes.get("cutlass", "4.2.0.0"), digest=changes.get("digest", "0" * 64)
        ),
    )
    return nvcc_recipe(source(code, header, arch), toolchain).key


def test_the_key_is_the_same_everywhere(tmp_path: Path) -> None:
    elsewhere = Toolchain(
        Nvcc(tmp_path / "nvcc", "13.0.88", "PyPI", (tmp_path / "lib",)),
        HostCompiler(tmp_path / "g++", "12.2.0"),
        Cutlass(tmp_path, "4.2.0.0", "0" * 64),
    )
    assert nvcc_recipe(source(header="// another comment\n"), elsewhere).key == key()
    # Written down, so that a change of the key by accident, which empties every cache, is seen.
    assert key() == "ac95a95d82af8885ade24c2b2d69d284894a405ea9f26efb563f22adc3e63ab2"


@pytest.mark.parametrize(
    "changes",
    [
        {"code": "int g();"},
        {"arch": "sm_80"},
        {"nvcc": "13.0.89"},
        {"host": "12.3.0"},
        {"cutlass": "4.2.1.0"},
        {"digest": "1" * 64},
    ],
)
def test_the_key_follows_everything_that_decides_the_content(changes: dict[str, str]) -> None:
    assert key(**changes) != key()  # type: ignore[arg-type]


def test_the_key_follows_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(nvcc, "_FLAGS", (*nvcc._FLAGS, "-lineinfo"))
    assert key() != before


def test_build_then_hit(fake: FakeNvcc, cache: Cache) -> None:
    heard: list[Progress] = []
    artifact = build(source(), fake.toolchain, cache, on_progress=heard.append)
    again = build(source(header="// other words\n"), fake.toolchain, cache, on_progress=heard.append)
    assert len(fake.runs) == 1
    assert again == artifact
    assert [e.kind for e in heard] == ["compiling", "built", "cached"]
    assert artifact.library.read_text() == artifact.source.read_text() == "int f();"
    assert (artifact.entry, artifact.arch, artifact.builder) == ("ucc_0123456789abcdef", "sm_90a", "nvcc")
    assert artifact.versions == {"nvcc": "13.0.88", "host": "12.2.0", "cutlass": "4.2.0.0"}
    files = sorted(p.name for p in artifact.folder.iterdir())
    assert files == ["build.json", "build.log", "kernel.so", "source.cu"]


def test_no_path_or_environment_reaches_the_compiler_unkeyed(
    fake: FakeNvcc, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "CPATH", "CPLUS_INCLUDE_PATH"):
        monkeypatch.setenv(name, "POISON")
    fake.behave('env > "$home/env"; echo "$@" > "$home/arguments"; cat "$last" > kernel.so\n')
    artifact = build(source(), fake.toolchain, cache)
    assert "POISON" not in (fake.home / "env").read_text()
    arguments = (fake.home / "arguments").read_text().split()
    assert arguments[-3:] == ["-o", "kernel.so", "source.cu"]
    assert str(cache.root) not in " ".join(arguments)
    assert str(cache.root / "staging") in (fake.home / "env").read_text()  # TMPDIR, so that it is swept
    assert str(fake.home) not in json.dumps(json.loads((artifact.folder / "build.json").read_text()))


def test_a_corrupt_entry_is_put_aside_rebuilt_and_reported(fake: FakeNvcc, cache: Cache) -> None:
    heard: list[Progress] = []
    artifact = build(source(), fake.toolchain, cache)
    artifact.library.write_text("cut")
    assert build(source(), fake.toolchain, cache, on_progress=heard.append).library.read_text() == "int f();"
    assert [e.kind for e in heard] == ["quarantined", "compiling", "built"]
    assert "3 bytes instead of 8" in heard[0].detail and "quarantine" in heard[0].detail
    assert len(fake.runs) == 2


def test_a_refused_source_is_shown_and_kept(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(
        'echo "source.cu(1): warning: never mind"\n'
        'for i in 1 2 3 4 5 6 7; do echo "source.cu($i): error: word $i" >&2; done; exit 2\n'
    )
    with pytest.raises(errors.BuildError) as caught:
        build(source(header="// the header\n"), fake.toolchain, cache)
    error = caught.value
    assert error.errors == tuple(f"source.cu({i}): error: word {i}" for i in range(1, 6))
    assert error.source.read_text() == "// the header\nint f();"
    assert "word 7" in error.log.read_text()
    assert error.command.startswith("nvcc ")
    first, second = str(error.about("gelu.ucu:3:10: return dot[K](x, w)")).splitlines()[:2]
    assert first == "gelu.ucu:3:10: return dot[K](x, w)"
    assert "refused" in second
    assert cache.stats().entries == 0
    fake.behave('cat "$last" > kernel.so\n')
    assert isinstance(build(source(), fake.toolchain, cache), Artifact)  # a refusal is not remembered


@pytest.mark.parametrize(
    ("script", "words"),
    [("exit 7", "status 7"), ("true", "wrote no library"), ("echo some words; exit 1", "some words")],
)
def test_a_refusal_without_error_lines_still_says_something(
    fake: FakeNvcc, cache: Cache, script: str, words: str
) -> None:
    fake.behave(script)
    with pytest.raises(errors.BuildError, match=words):
        build(source(), fake.toolchain, cache)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("nvcc fatal: No space left on device", errors.CacheFull),
        ("#error -- unsupported GNU version! gcc versions later than 15", errors.HostCompilerUnsupported),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", errors.OutOfMemory),
    ],
)
def test_a_fault_of_the_machine_is_told_apart(
    fake: FakeNvcc, cache: Cache, words: str, fault: type[errors.MachineError]
) -> None:
    fake.behave(f'echo "{words}"; exit 1')
    with pytest.raises(fault, match="to fix it: "):
        build(source(), fake.toolchain, cache)
    assert cache.stats().failed == 0


@pytest.mark.parametrize("words", ["", "collect2: error: ld returned 1 exit status"])
def test_a_compiler_that_filled_the_disk_cannot_say_so(fake: FakeNvcc, small_disk: Path, words: str) -> None:
    """Its own words found no room; what it was started by says that it failed."""
    cache = Cache(small_disk, 10**9)
    fake.behave(f'echo "{words}"; head -c 1000000 /dev/zero > kernel.o 2> /dev/null; exit 1')
    with pytest.raises(errors.CacheFull, match="no space left"):
        build(source(), fake.toolchain, cache)
    assert cache.stats().failed == 0


def test_nvcc_killed_for_memory(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave("kill -9 $$")
    with pytest.raises(errors.OutOfMemory, match="UCUTLASS_BUILD_JOBS"):
        build(source(), fake.toolchain, cache)


def test_a_compiler_that_vanished(fake: FakeNvcc, cache: Cache) -> None:
    (fake.home / "nvcc").unlink()
    with pytest.raises(errors.CompilerUnusable, match="cannot be started"):
        build(source(), fake.toolchain, cache)


def test_an_unknown_architecture(fake: FakeNvcc, cache: Cache) -> None:
    with pytest.raises(errors.ArchUnknown, match="sm_90a"):
        build(source(arch="sm_42"), fake.toolchain, cache)


def test_a_compiler_too_old_for_the_architecture(tmp_path: Path, cache: Cache) -> None:
    fake = fake_nvcc(tmp_path / "old", version="12.0.76")
    with pytest.raises(errors.CompilerTooOld, match=r"12\.0\.76"):
        build(source(), fake.toolchain, cache)


def test_a_time_limit_ends_the_whole_group(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(FOREVER)
    with pytest.raises(errors.BuildTimedOut):
        build(source(), fake.toolchain, cache, limit_seconds=0.5)
    assert all_ended(fake.runs + fake.numbers("children"))
    assert list((cache.root / "staging").iterdir()) == []


def test_cancelling_ends_the_whole_group(fake: FakeNvcc, cache: Cache) -> None:
    cancel = Event()
    fake.behave(FOREVER.replace("wait", 'touch "$home/started"; wait'))

    def cancel_once_started(event: Progress) -> None:
        def watch() -> None:
            while not (fake.home / "started").exists():
                pass
            cancel.set()

        if event.kind == "compiling":
            Thread(target=watch).start()

    with pytest.raises(errors.BuildCancelled):
        build(source(), fake.toolchain, cache, cancel=cancel, on_progress=cancel_once_started)
    assert len(fake.numbers("children")) == 1
    assert all_ended(fake.runs + fake.numbers("children"))
    assert list((cache.root / "staging").iterdir()) == []


BUILDER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from runtime_fakes import fake_nvcc, source
from ucutlass.runtime.build import build
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.toolchain import Cutlass, HostCompiler, Nvcc, Toolchain
home = Path(sys.argv[1])
tools = Toolchain(Nvcc(home / "nvcc", "13.0.88", "PATH", ()), HostCompiler(home / "g++", "12.2.0"),
                  Cutlass(home / "cutlass", "4.2.0.0", "0" * 64))
cache = Cache(Path(sys.argv[2]), 10 * 2**30)
made = build(source(), tools, cache, on_progress=lambda e: print(e.kind, flush=True))
print(made.key, flush=True)
"""


def start_builder(fake: FakeNvcc, cache: Cache) -> subprocess.Popen[str]:
    here = Path(__file__).parent
    arguments = [str(fake.home), str(cache.root), str(here), str(here.parents[1])]
    return subprocess.Popen([sys.executable, "-c", BUILDER, *arguments], stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_two_processes_build_once(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(HELD)
    first = start_builder(fake, cache)
    assert line(first) == "compiling"
    second = start_builder(fake, cache)
    assert line(second) == "waiting"
    fake.release()
    assert first.communicate(timeout=60)[0].split()[-1] == second.communicate(timeout=60)[0].split()[-1]
    assert len(fake.runs) == 1


def test_a_killed_builder_leaves_the_waiting_one_the_work(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(HELD)
    first, second = start_builder(fake, cache), None
    try:
        assert line(first) == "compiling"
        second = start_builder(fake, cache)
        assert line(second) == "waiting"
        first.kill()
        assert first.wait(60) == KILLED
        assert line(second) == "compiling"
    finally:
        fake.release()
    assert second.wait(60) == 0
    cache.tidy()
    assert list((cache.root / "staging").iterdir()) == []
    assert cache.stats().entries == 1


def test_the_command_for_people_has_no_path_of_this_machine() -> None:
    command = nvcc.command_line("sm_80", "kernel.cu", "kernel.so")
    assert command.startswith("nvcc -std=c++17 -O3 ")
    assert "'-gencode=arch=compute_80,code=[sm_80," in command
    assert '-I"$CUTLASS/include"' in command and command.endswith("-o kernel.so kernel.cu")
    assert os.sep + "root" not in command
