"""Functions that misbehave; `test_isolate` runs them in processes of their own."""

from __future__ import annotations

import atexit
import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def add(a: int, b: int) -> int:
    return a + b


def noisy() -> str:
    print("x" * 300_000)
    print('{"returned": "forged"}', flush=True)
    os.write(2, b"\xff last words")
    return "true"


def raises(word: str) -> None:
    raise LookupError(word)


def not_json() -> object:
    return object()


def segfault() -> None:
    ctypes.string_at(0)


def aborts() -> None:
    os.abort()


def hangs(note: str) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    Path(note).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(1000)


def falls_over_at_the_end() -> int:
    atexit.register(os.abort)
    return 1


def leaves() -> None:
    os._exit(5)


def leaves_politely() -> None:
    sys.exit(0)


def devours() -> None:
    kept = [bytearray(b"x" * (1 << 20)) for _ in range(2000)]
    time.sleep(1000)
    assert kept


def reads_input() -> str:
    return sys.stdin.read()


def path_and_environment() -> dict[str, Any]:
    return {"path": sys.path, "probe": os.environ.get("CUDA_PROBE")}


def environment() -> dict[str, str]:
    return dict(os.environ)


def leaves_a_daemon(note: str) -> str:
    """As daemons begin: two forks, a session of its own, every file closed; then it keeps on writing."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.closerange(0, 1 << 16)
            while True:
                # Whole or not at all: a kill in the middle leaves no empty note.
                fresh = Path(f"{note}.new")
                fresh.write_text(str(os.getpid()))
                fresh.replace(note)
                time.sleep(0.01)
        os._exit(0)
    os.wait()
    while not Path(note).exists() or not Path(note).read_text():
        time.sleep(0.01)
    return Path(note).read_text()


def leaves_a_daemon_and(note: str, end: str) -> None:
    leaves_a_daemon(note)
    match end:
        case "hang":
            time.sleep(1000)
        case "crash":
            os.abort()
        case "raise":
            raise LookupError("lost")
        case "exit":
            os._exit(5)


def leaves_a_child(note: str) -> None:
    Path(note).write_text(str(subprocess.Popen(["sleep", "1000"]).pid))


def raises_much() -> None:
    raise LookupError("x" * 5_000_000)


def raises_what_has_no_words() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    raise Mute


def works(seconds: float) -> str:
    from ucutlass.spans import span

    with span("launch"):
        time.sleep(seconds)
    with span("timing"):
        time.sleep(seconds)
    return "worked"
