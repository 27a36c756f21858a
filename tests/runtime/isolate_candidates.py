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
    return {"path": sys.path, "probe": os.environ.get("PROBE")}
