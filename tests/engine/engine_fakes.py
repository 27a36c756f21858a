"""Functions that an engine calls in these tests, in its worker or in processes of a GPU."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

from ucutlass.engine.work import TaskEntry, TaskTable
from ucutlass.handoff import checked_of
from ucutlass.runtime.cache import Cache, CacheEntry
from ucutlass.runtime.errors import CompilerMissing

GPUS = tuple(f"GPU-00000000-0000-0000-0000-{i:012x}" for i in range(4))


def table() -> TaskTable:
    return {
        "make": TaskEntry("engine_fakes:make", "cpu", "here"),
        "wait": TaskEntry("engine_fakes:wait", "cpu", "here"),
        "fault": TaskEntry("engine_fakes:fault", "cpu", "here"),
        "unfit": TaskEntry("engine_fakes:unfit", "cpu", "here"),
        "killed": TaskEntry("engine_fakes:killed", "cpu", "here"),
        "absent": TaskEntry("no_such_module:f", "cpu", "here"),
        "prepare": TaskEntry("json", "gpu", "prepare"),
        "read": TaskEntry("engine_fakes:read", "gpu", "warm"),
        "turn": TaskEntry("engine_fakes:turn", "gpu", "warm"),
        "crash": TaskEntry("engine_fakes:crash", "gpu", "warm"),
        "process": TaskEntry("engine_fakes:process", "gpu", "warm"),
        "fresh": TaskEntry("engine_fakes:process", "gpu", "fresh"),
        "nests": TaskEntry("engine_fakes:nests", "gpu", "fresh"),
        "attends": TaskEntry("engine_fakes:attends", "gpu", "attended"),
    }


def note(log: str, words: str) -> None:
    """One line, whoever else writes."""
    with Path(log).open("a") as file:
        file.write(f"{words}\n")


def notes(log: str | Path) -> list[str]:
    path = Path(log)
    return path.read_text().splitlines() if path.exists() else []


def wakes() -> None:
    note(os.environ["UCUTLASS_WAKES"], str(os.getpid()))


def wakes_in_steps() -> bool:
    """Notes each of three steps."""
    log = Path(os.environ["UCUTLASS_WAKES"])
    note(str(log), str(os.getpid()))
    return log.read_text().split().count(str(os.getpid())) < 3


def key_of(name: str) -> str:
    return name.encode().hex().rjust(64, "0")


def make(name: str, log: str, cancel: Event) -> dict[str, Any]:
    """Makes a cache entry, as a build does, and notes that it did."""
    cache, key = Cache.from_switches(), key_of(name)
    with cache.locked(key, timeout_seconds=60):
        if not isinstance(cache.load(key), CacheEntry):
            note(log, f"{name} {os.getpid()}")
            with cache.staging(key) as folder:
                (folder / "kernel.so").write_bytes(name.encode() * 1000)
                cache.publish(key, folder, {"name": name})
    return {"artifacts": [key], "cache": str(cache.root)}


def attends(times: int, fresh: Any) -> dict[str, Any]:
    """Asks as many fresh processes for their number; of 0 it raises what another call would meet too."""
    if not times:
        raise CompilerMissing("nothing to attend to", "")
    numbers = []
    for _ in range(times):
        with fresh() as process:
            numbers += [process.call("engine_fakes:process", {}, limit_seconds=60.0).value for _ in range(2)]
    return {"here": os.getpid(), "numbers": numbers}


def read(key: str) -> dict[str, Any]:
    cache = Cache.from_switches()
    entry = cache.load(key)
    assert isinstance(entry, CacheEntry)
    return {"cache": str(cache.root), "text": (entry.folder / "kernel.so").read_text()[:20]}


def wait(log: str, until: str, cancel: Event) -> str:
    """Until a file is there, or nobody wants it."""
    note(log, f"began {os.getpid()}")
    while not Path(until).exists() and not cancel.is_set():
        time.sleep(0.01)
    return "cancelled" if cancel.is_set() else "seen"


def killed(log: str, times: int, cancel: Event) -> dict[str, Any]:
    """Takes its worker with it, the first `times` times."""
    note(log, f"killed {os.getpid()}")
    if len(notes(log)) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"tries": len(notes(log))}


def fault(cancel: Event) -> None:
    raise LookupError("no such thing")


def unfit(cancel: Event) -> None:
    from ucutlass.runtime.errors import CompilerMissing

    raise CompilerMissing("no nvcc anywhere", "install one")


def turn(log: str, who: str) -> str:
    """Notes when it begins and ends, with some time between."""
    note(log, f"begin {who}")
    time.sleep(0.2)
    note(log, f"end {who}")
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def process() -> int:
    return os.getpid()


def forges() -> int:
    """Writes an answer to no call into every pipe that it finds, as a faulty library might."""
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # the one that listed them is closed by now
            if fd > 2 and stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b'[99, {"returned": 1}]\n')
    return 2


def has(module: str) -> str:
    return os.environ["CUDA_PROBE"] if module in sys.modules else ""


def _parent(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[1])


def trial(program: dict[str, Any], problem: dict[str, Any], name: str, **more: Any) -> dict[str, Any]:
    """An attempt of the agent: right, and as slow as its text's length. Notes the problem and the GPU beside
    the worker's cache; a text with a certain tile takes its worker with it, the first time."""
    text = checked_of(program).source
    folder = Cache.from_switches().root.parent
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    fatal = "128x256x64" in text
    note(str(folder / "trials"), f"{name} {gpu} {'fatal' if fatal else 'fine'}")
    if fatal:
        note(str(folder / "fatal"), gpu)
        if len(notes(folder / "fatal")) == 1:
            os.kill(_parent(os.getppid()), signal.SIGKILL)  # who started the supervisor
            time.sleep(60)
    return {"seconds": 1e-5 + 1e-7 * len(text), "words": ""}


def nests(log: str, inner: str) -> dict[str, Any]:
    """A call that has processes of its own, as a verification has."""
    from ucutlass.runtime import isolation

    outcome = isolation.run(
        f"engine_fakes:{inner}", {"log": log} if inner == "stays" else {}, limit_seconds=60
    )
    return {"outer": os.getpid(), "inner": getattr(outcome, "value", None), "how": type(outcome).__name__}


def stays(log: str) -> None:
    note(log, str(os.getpid()))
    time.sleep(600)
