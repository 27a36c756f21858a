"""Programs end with whoever started them, all of their children too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from runtime_fakes import FOREVER, FakeNvcc, all_ended, fake_nvcc

from ucutlass.runtime import errors, process
from ucutlass.runtime.cache import Cache

FAMILY = """
echo $$ >> "{home}/pids"
sh -c 'echo $$ >> "{home}/pids"; sleep 600 & echo $! >> "{home}/pids"; wait' &
sleep 600
"""
"""Three generations that would stay for minutes."""

CALLER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from pathlib import Path
from ucutlass.runtime import process
home, how = Path(sys.argv[1]), sys.argv[2]
line = ["sh", str(home / "family")]
if how == "run":
    process.run(line, folder=home, env={}, log=home / "log", limit_seconds=600, cancel=None)
elif how == "output":
    process.output(line, 600)
else:
    from ucutlass.agent.proposers import command
    command._run(line, b"text", 600, {"PATH": "/usr/bin:/bin"})
"""


def pids(home: Path, count: int) -> list[int]:
    """Once so many have begun."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = (home / "pids").read_text().split() if (home / "pids").exists() else []
        if len(found) >= count:
            return [int(pid) for pid in found]
        time.sleep(0.01)
    raise AssertionError("the program did not begin")


ENDS = [
    ("run", signal.SIGTERM),
    ("run", signal.SIGKILL),
    ("run", signal.SIGINT),
    ("output", signal.SIGKILL),
    ("command", signal.SIGKILL),
]


@pytest.mark.parametrize("how, end", ENDS)
def test_a_program_ends_with_its_caller(tmp_path: Path, how: str, end: signal.Signals) -> None:
    (tmp_path / "family").write_text(FAMILY.format(home=tmp_path))
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(tmp_path), how],
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        started = pids(tmp_path, 3)
    finally:
        caller.send_signal(end)
        caller.wait(60)
    assert all_ended(started)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_build_leaves_no_compiler_and_the_next_one_begins_anew(
    tmp_path: Path, cache: Cache, end: signal.Signals
) -> None:
    from test_build import line, start_builder

    fake: FakeNvcc = fake_nvcc(tmp_path / "toolkit")
    fake.behave(FOREVER + "\n")
    first = start_builder(fake, cache)
    assert line(first) == "compiling"
    deadline = time.monotonic() + 60
    while not fake.numbers("children") and time.monotonic() < deadline:
        time.sleep(0.01)
    first.send_signal(end)
    assert first.wait(60) == -end
    assert all_ended(fake.runs + fake.numbers("children"))
    fake.behave('cat "$last" > kernel.so\n')
    second = start_builder(fake, cache)
    out, _ = second.communicate(timeout=60)
    assert out.split()[:2] == ["compiling", "built"] and len(fake.runs) == 2
    cache.tidy()
    assert list((cache.root / "staging").iterdir()) == []


def run(command: list[str], folder: Path, **more: object) -> process.ProcessStatus:
    settings = {"env": dict(os.environ), "limit_seconds": 60.0, "cancel": None, **more}
    return process.run(command, folder=folder, log=folder / "log", **settings)  # type: ignore[arg-type]


def test_the_program_is_given_its_words_as_they_are(tmp_path: Path) -> None:
    words = ["", "a b", "$(touch pwned)", "`id`", "-n", "*", "\n", "'\"\\"]
    said = "sys.argv[1:], sys.stdin.read(), os.getpid() == os.getpgid(0)"
    script = f"import os, sys; sys.stdout.write(repr(({said})))"
    assert run([sys.executable, "-c", script, *words], tmp_path) == 0
    assert (tmp_path / "log").read_text() == repr((words, "", True))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("status", [0, 1, 125])
def test_the_exit_status_is_the_programs(tmp_path: Path, status: int) -> None:
    assert run(["sh", "-c", f"exit {status}"], tmp_path) == status


def test_a_signal_is_told(tmp_path: Path) -> None:
    assert run(["sh", "-c", "kill -SEGV $$"], tmp_path) == -signal.SIGSEGV


def absent(folder: Path) -> Path:
    return folder / "absent"


def forbidden(folder: Path) -> Path:
    (folder / "program").write_text("#!/bin/sh\n")
    return folder / "program"


def no_program(folder: Path) -> Path:
    (folder / "program").write_bytes(b"\x7fELF and no more")
    (folder / "program").chmod(0o755)
    return folder / "program"


@pytest.mark.parametrize("program", [absent, forbidden, no_program])
def test_what_cannot_be_started(tmp_path: Path, program: Callable[[Path], Path]) -> None:
    with pytest.raises(errors.CompilerUnusable, match="cannot be started"):
        run([str(program(tmp_path))], tmp_path)


def test_nothing_is_left_of_a_program_that_ends(tmp_path: Path) -> None:
    """Neither its children nor the supervisor."""
    before = set(Path("/proc").glob("[0-9]*"))
    assert run(["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pids"], tmp_path) == 0
    assert all_ended(pids(tmp_path, 1))
    mine = [p for p in set(Path("/proc").glob("[0-9]*")) - before if _parent(p) == os.getpid()]
    assert mine == []


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def test_cancelling_ends_it(tmp_path: Path) -> None:
    cancel = Event()
    cancel.set()
    assert run(["sleep", "600"], tmp_path, cancel=cancel) == "cancelled"


def test_output_does_not_wait_for_who_holds_the_pipe() -> None:
    start = time.monotonic()
    done = process.output(["sh", "-c", "echo out; echo err >&2; sleep 600 & exit 3"], 60)
    assert done == process.ProcessOutput(3, "out\n", "err\n")
    with pytest.raises(TimeoutError, match=r"longer than 0\.2 s"):
        process.output(["sh", "-c", "sleep 600 & sleep 600"], 0.2)
    assert time.monotonic() - start < 60
