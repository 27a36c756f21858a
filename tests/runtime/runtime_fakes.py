"""A compiler that is a shell script: quick, and it does what the test asks for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ucutlass.emit.text import Source
from ucutlass.runtime.toolchain import Cutlass, HostCompiler, Nvcc, Toolchain

T = TypeVar("T")

SCRIPT = """#!/bin/sh
home=$(dirname "$0")
if [ "$1" = --version ]; then
  echo "Cuda compilation tools, release 13.0, V$(cat "$home/version")"
  exit 0
fi
for last; do :; done
echo $$ >> "$home/runs"
echo "$PWD" >> "$home/folders"
. "$home/behaviour"
"""

GOOD = 'cat "$last" > kernel.so; echo "ptxas info    : Used 168 registers"\n'
HELD = 'while [ ! -e "$home/go" ]; do sleep 0.02; done\n' + GOOD
FOREVER = 'sleep 1000 & echo $! >> "$home/children"; wait\n'


@dataclass(frozen=True)
class FakeNvcc:
    """`runs` is one process id a compilation that was started."""

    home: Path
    toolchain: Toolchain

    def behave(self, script: str) -> None:
        """Sh code for every compilation from now on; `$last` is the source, `$home` this folder."""
        (self.home / "behaviour").write_text(script)

    def release(self) -> None:
        (self.home / "go").touch()

    @property
    def runs(self) -> list[int]:
        return self.numbers("runs")

    def numbers(self, name: str) -> list[int]:
        path = self.home / name
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def fake_nvcc(home: Path, version: str = "13.0.88") -> FakeNvcc:
    home.mkdir(parents=True, exist_ok=True)
    (home / "version").write_text(version)
    nvcc = home / "nvcc"
    nvcc.write_text(SCRIPT)
    nvcc.chmod(0o755)
    fake = FakeNvcc(
        home,
        Toolchain(
            Nvcc(nvcc, version, "PATH", ()),
            HostCompiler(home / "g++", "12.2.0"),
            Cutlass(home / "cutlass", "4.2.0.0", "0" * 64),
        ),
    )
    fake.behave(GOOD)
    return fake


def source(code: str = "int f();", header: str = "", arch: str = "sm_90a") -> Source:
    return Source(text=f"{header}{code}", code=code, entry="ucc_0123456789abcdef", arch=arch)


def in_child(work: Callable[[], None]) -> int:
    """Runs `work` in a forked process; its status as os.waitstatus_to_exitcode gives it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def all_ended(pids: Iterable[int]) -> bool:
    """Whether all of them are gone. A killed group dies soon after its leader, not with it: waits
    for the rest as long as a loaded machine may take."""
    deadline = time.monotonic() + 120
    left = [pid for pid in pids if alive(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = [pid for pid in left if alive(pid)]
    return not left


def hung(call: Callable[[float], T], note: Path) -> tuple[float, T]:
    """A call that writes `note` and then hangs, under the first time limit that let it come so far, and that
    limit in seconds: an idle machine needs the shortest, and a loaded one is given more."""
    for limit in (2.0, 8.0, 32.0):
        outcome = call(limit)
        if note.exists() and note.read_text():
            return limit, outcome
    raise AssertionError(f"{note} was not written within {limit:g} s")


KILLED = -signal.SIGKILL
