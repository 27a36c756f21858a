"""What is kept of compilers' versions, and when they are asked again."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from runtime_fakes import alive

from ucutlass.runtime import version_cache

ELF = b"\x7fELF and more"


class Asked:
    """A compiler that counts how often it is asked."""

    def __init__(self, says: str = "13.0") -> None:
        self.says, self.times = says, 0

    def __call__(self) -> str:
        self.times += 1
        return self.says


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of answers."""
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "versions.json"


@pytest.fixture
def compiler(tmp_path: Path, kept: Path) -> Path:
    path = tmp_path / "compiler"
    path.write_bytes(ELF)
    return path


def test_what_is_the_same_is_asked_once(compiler: Path) -> None:
    ask = Asked()
    assert [version_cache.version(compiler, ask) for _ in range(3)] == ["13.0"] * 3
    assert ask.times == 1


def longer(path: Path) -> None:
    stat = path.stat()
    path.write_bytes(ELF + b".")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def later(path: Path) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


@pytest.mark.parametrize("change", [longer, later])
def test_another_size_or_time_is_asked_again(change: Callable[[Path], None], compiler: Path) -> None:
    assert version_cache.version(compiler, Asked("13.0")) == "13.0"
    change(compiler)
    assert version_cache.version(compiler, Asked("13.1")) == "13.1"


def test_a_link_stands_for_what_it_leads_to(compiler: Path, tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "link"
    other.write_bytes(ELF)
    stat = compiler.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    link.symlink_to(compiler)
    ask = Asked()
    assert (
        version_cache.version(compiler, ask) == version_cache.version(link, ask) == "13.0" and ask.times == 1
    )
    link.unlink()
    link.symlink_to(other)
    assert version_cache.version(link, Asked("13.1")) == "13.1"


def test_a_script_is_asked_each_time(tmp_path: Path, kept: Path) -> None:
    """What it starts may change while it stays as it is."""
    script, ask = tmp_path / "nvcc", Asked()
    script.write_text("#!/bin/sh\nexec other\n")
    for _ in range(3):
        version_cache.version(script, ask)
    assert ask.times == 3 and not kept.exists()


def test_what_cannot_be_read_is_asked(tmp_path: Path, kept: Path) -> None:
    assert version_cache.version(tmp_path / "none", Asked()) == "13.0"
    assert not kept.exists()


def test_a_failure_is_not_kept(compiler: Path, kept: Path) -> None:
    def fails() -> str:
        raise LookupError("it says no version")

    with pytest.raises(LookupError):
        version_cache.version(compiler, fails)
    assert not kept.exists() and version_cache.version(compiler, Asked()) == "13.0"


def test_answers_of_others_stay(compiler: Path, tmp_path: Path) -> None:
    other, ask = tmp_path / "other", Asked()
    other.write_bytes(ELF)
    for path in (compiler, other, compiler, other):
        version_cache.version(path, ask)
    assert ask.times == 2


# --- the file ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"null", b"[]", b"[" * 100_000, b'"13.0"', b'{"13.0": 1}', b'{"x": "12.0"}'],
    ids=["empty", "cut", "no text", "nothing", "list", "deep", "word", "number", "another's"],
)
def test_a_damaged_or_foreign_file_is_as_none(content: bytes, compiler: Path, kept: Path) -> None:
    kept.parent.mkdir()
    kept.write_bytes(content)
    ask = Asked()
    assert [version_cache.version(compiler, ask) for _ in range(2)] == ["13.0"] * 2
    assert ask.times == 1, "the file is whole again"


def test_an_answer_that_is_no_text_is_none(compiler: Path, kept: Path) -> None:
    version_cache.version(compiler, Asked())
    (name,) = json.loads(kept.read_text())
    kept.write_text(json.dumps({name: 13}))
    assert version_cache.version(compiler, Asked("13.1")) == "13.1"


def test_without_a_folder_it_is_asked_each_time(compiler: Path, kept: Path) -> None:
    kept.parent.write_text("a file where the folder is to be")
    ask = Asked()
    assert [version_cache.version(compiler, ask) for _ in range(2)] == ["13.0"] * 2
    assert ask.times == 2


def disk_full(_fd: int, _data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_on_a_full_disk_the_answers_that_are_there_stay(
    compiler: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version_cache.version(compiler, Asked())
    before = kept.read_bytes()
    other = tmp_path / "other"
    other.write_bytes(ELF)
    with monkeypatch.context() as full:
        full.setattr(os, "write", disk_full)
        assert version_cache.version(other, Asked("13.1")) == "13.1"
    assert kept.read_bytes() == before


def test_a_file_that_many_write_is_always_whole(compiler: Path, kept: Path, tmp_path: Path) -> None:
    """Of two writers the last one's answers stay; none sees half a file."""
    version_cache.version(compiler, Asked())
    writers = []
    for i in range(3):
        if (child := os.fork()) == 0:
            status = 1
            try:
                for j in range(60):
                    path = tmp_path / f"compiler_{i}_{j}"
                    path.write_bytes(ELF)
                    version_cache.version(path, Asked(f"13.{j}"))
                status = 0
            finally:
                os._exit(status)
        writers.append(child)
    looks = 0
    while any(map(alive, writers)):
        assert all(isinstance(answer, str) for answer in json.loads(kept.read_text()).values())
        looks += 1
    assert [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in writers] == [0, 0, 0]
    assert looks > 0 and len(json.loads(kept.read_text())) > 1
