"""A file is whole, the old or the new, whatever fails and whenever the process dies."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.capabilities import bound_by_modes
from ucutlass import files

OLD = "kernel before\r\n\u00e9\n"
NEW = "kernel after, \u03b1 \u2192 \u03c9\n" * 5000

CALLS = ("open", "write", "fsync", "fchmod", "link", "replace", "close")
"""What `ucutlass.files` asks the system for; each of them may fail."""


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob(".*")]


# --- what is written ------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_text_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    target = tmp_path_factory.mktemp("round") / "a.ucu"
    files.write(target, text)
    assert target.read_bytes() == text.encode("utf-8")
    assert files.read_text(target) == text


def test_bytes_and_other_files(tmp_path: Path) -> None:
    files.write_all({tmp_path / "a": b"\0\xff", tmp_path / "b": Path(sys.executable)})
    assert (tmp_path / "a").read_bytes() == b"\0\xff"
    assert (tmp_path / "b").read_bytes() == Path(sys.executable).read_bytes()


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o640])
def test_a_replaced_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "a.ucu"
    target.write_bytes(OLD.encode())
    target.chmod(mode)
    files.write(target, NEW)
    assert stat.S_IMODE(target.stat().st_mode) == mode


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "a.ucu", NEW)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.ucu").stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_leaves_a_file_to_its_owner(tmp_path: Path) -> None:
    target = tmp_path / "a.ucu"
    target.write_bytes(OLD.encode())
    os.chown(target, 4321, 1234)
    files.write(target, NEW)
    assert (target.stat().st_uid, target.stat().st_gid) == (4321, 1234)


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link, second = tmp_path / "far" / "a.ucu", tmp_path / "b.ucu", tmp_path / "c.ucu"
    target.write_bytes(OLD.encode())
    link.symlink_to("far/a.ucu")
    second.symlink_to(link)
    files.write(second, NEW)
    assert second.is_symlink() and link.is_symlink() and not target.is_symlink()
    assert target.read_text(encoding="utf-8") == NEW


def test_a_link_to_nothing_makes_what_it_leads_to(tmp_path: Path) -> None:
    link = tmp_path / "b.ucu"
    link.symlink_to("a.ucu")
    files.write(link, NEW)
    assert link.is_symlink() and (tmp_path / "a.ucu").read_text(encoding="utf-8") == NEW


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError) as caught:
        files.write(tmp_path / "a", NEW)
    assert caught.value.errno == errno.ELOOP


def test_a_pipe_and_a_device_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        files.write(pipe, NEW)
        out, _ = reader.communicate(timeout=60)
    assert out.decode() == NEW and stat.S_ISFIFO(pipe.stat().st_mode)
    files.write(Path(os.devnull), NEW)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_standard_output_by_its_path_is_added_to(tmp_path: Path) -> None:
    """Where it is a file, it keeps what it had: the shell's `>>`."""
    out = tmp_path / "out"
    out.write_text("before\n")
    run = "from ucutlass.files import write; from pathlib import Path; write(Path('/dev/stdout'), 'x\\n')"
    with out.open("a") as stream:
        subprocess.run([sys.executable, "-c", run], stdout=stream, check=True)
    assert out.read_text() == "before\nx\n"


def test_a_folder_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        files.write(tmp_path, NEW)


def test_a_file_that_may_not_be_written_stays(tmp_path: Path) -> None:
    target = tmp_path / "a.ucu"
    target.write_bytes(OLD.encode())
    target.chmod(0o400)
    with pytest.raises(PermissionError):
        bound_by_modes(lambda: files.write(target, NEW))
    assert target.read_bytes() == OLD.encode()


# --- what fails -----------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], at: int) -> bool:
    """Whether the call of this number, counted over all of CALLS, was reached by `act` and failed."""
    count = 0
    real = {name: getattr(os, name) for name in CALLS}

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                if name == "close":
                    real[name](*arguments)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real[name](*arguments, **more)

        return call

    with monkeypatch.context() as patched:
        for name in CALLS:
            patched.setattr(os, name, wrapped(name))
        try:
            act()
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return True
    return False


def test_every_call_that_fails_leaves_every_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are there, one behind a link, and a new one: all of them change or none does."""
    there, behind, link, new = (tmp_path / n for n in ("a", "b", "link", "new"))
    failures = 0
    for at in range(1, 1000):
        for path in (there, behind, link, new):
            path.unlink(missing_ok=True)
        there.write_text(OLD, encoding="utf-8", newline="")
        behind.write_text(OLD, encoding="utf-8", newline="")
        link.symlink_to("b")
        contents: dict[Path, files.Content] = {there: NEW, link: NEW, new: NEW}
        failed = failing(monkeypatch, lambda c=contents: files.write_all(c), at)  # type: ignore[misc]
        assert leftovers(tmp_path) == []
        if not failed:
            break
        failures += 1
        assert there.read_bytes() == behind.read_bytes() == OLD.encode(), at
        assert link.is_symlink() and not new.exists(), at
    assert failures >= 20
    assert there.read_bytes() == behind.read_bytes() == new.read_bytes() == NEW.encode()


def in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except OSError as error:
            status = error.errno or 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_file_size_limit(tmp_path: Path) -> None:
    target = tmp_path / "a.ucu"
    target.write_bytes(OLD.encode())

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        files.write(target, NEW)

    assert in_child(limited) == errno.EFBIG
    assert target.read_bytes() == OLD.encode() and leftovers(tmp_path) == []


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    target, other = small_disk / "a.ucu", small_disk / "b.ucu"
    target.write_bytes(OLD.encode())
    with pytest.raises(OSError, match=r"No space left.*a\.ucu"):
        files.write(target, "x" * (1 << 20))
    with pytest.raises(OSError, match="No space left"):
        files.write_all({other: "short", target: "x" * (1 << 20)})
    assert target.read_bytes() == OLD.encode() and not other.exists() and leftovers(small_disk) == []


@pytest.mark.parametrize("name", ["write", "fsync", "link", "replace"])
def test_a_kill_at_any_moment_leaves_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    target = tmp_path / "a.ucu"
    target.write_text(OLD, encoding="utf-8", newline="")
    monkeypatch.setattr(os, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    assert in_child(lambda: files.write(target, NEW)) == -signal.SIGKILL
    assert target.read_bytes() == OLD.encode()


def test_the_error_names_the_target(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        files.write(tmp_path / "no" / "a.ucu", NEW)
    assert ".ucc-" not in str(caught.value) and "no" in str(caught.value)


# --- what is read ---------------------------------------------------------------------


def test_bytes_that_are_no_text_are_placed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"kernel \xff")
    with pytest.raises(files.NotText, match=r"byte 7 \(0xFF\) is not UTF-8"):
        files.read_text(path)


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"12345")
    assert files.read_bytes(path, 5) == b"12345"
    for endless in (path, Path("/dev/zero")):
        with pytest.raises(OSError, match="more than 4 bytes") as caught:
            files.read_bytes(endless, 4)
        assert caught.value.errno == errno.EFBIG


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no such file system")
def test_a_read_that_fails_names_the_file() -> None:
    """Reading fails here, not opening, whose errors name it themselves."""
    with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
        files.read_bytes(Path("/proc/self/mem"))


def test_a_folder_to_write_to_is_made_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a" / "b"
    files.make_writable(folder)
    files.make_writable(folder)
    (folder / "c").touch()
    with pytest.raises(FileExistsError):
        files.make_writable(folder / "c")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as for who is not root
    with pytest.raises(PermissionError, match="may not be written to"):
        files.make_writable(folder)
