"""Wall seconds from a program never seen to a tuned, verified kernel, beside torch.compile's first call.

Each is a fresh process with empty caches: `ucc tune` with a kernel cache and a store of its own, and
torch.compile(mode="max-autotune-no-cudagraphs") with folders of its own for Inductor and Triton. Both are
clocked from the start of their process to its end, imports and CUDA contexts included; nothing runs beside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.speed import Shape
from benchmarks.tuned_rows import MAIN, OTHERS, Task
from ucutlass.files import put
from ucutlass.runtime import isolation
from ucutlass.runtime.switches import CACHE_DIR, DATA_DIR

LIMIT_SECONDS = 400.0
"""What either of the two may take."""

_PAIRS = (
    ("gemm", "square 4096"),
    ("bias+gelu", "wide N"),
    ("gemm", "M 16"),
    ("gemm", "2048 rows"),
    ("gemm", "1000 rows"),
    ("residual+relu", "tall"),
    ("gemm", "batch 32"),
    ("gemm", "large K"),
)
"""In the order in which they are taken."""


def tasks(count: int) -> list[Task]:
    """The first so many pairs, in bf16."""
    shapes: dict[str, Shape] = {s[0]: s for s in MAIN + OTHERS}
    return [Task(kind, shapes[name], "bf16") for kind, name in _PAIRS[:count]]


def clocked(task: Task, builds: int, number: int) -> Row:
    """Returns a task's row; who goes first takes turns."""
    return {"name": f"wall {task.name}", **clock(task, builds, number % 2 == 1)}


def clock(task: Task, builds: int, torch_first: bool) -> Row:
    """`ours` and `compile` in seconds of whole processes; `search` and `call` of their work alone."""
    with tempfile.TemporaryDirectory(prefix="ucutlass-wall-") as folder:
        parts = [_ours(task, builds, Path(folder)), _theirs(task, Path(folder))]
        rows = [part() for part in (parts[::-1] if torch_first else parts)]
    failed = [row for row in rows if not row["ok"]]
    if failed:
        return failed[0]
    merged = rows[0] | rows[1]
    return merged | {"ratio": merged["compile"] / merged["ours"], "torch_first": torch_first}


def _ours(task: Task, builds: int, folder: Path) -> Callable[[], Row]:
    def part() -> Row:
        file = folder / "kernel.ucu"
        put(file, task.text + "\n")
        sizes = ",".join(f"{name}={extent}" for name, extent in task.sizes.items())
        command = [
            sys.executable,
            "-m",
            "ucutlass.cli",
            "tune",
            str(file),
            "-s",
            sizes,
            "--json",
            "--builds",
            str(builds),
        ]
        more = {CACHE_DIR: str(folder / "kernels"), DATA_DIR: str(folder / "data")}
        start = time.monotonic()
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
                env=os.environ | more,
                timeout=LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return {"ok": False, "error": "TimedOut", "detail": f"ucc tune took over {LIMIT_SECONDS:.0f} s"}
        seconds = time.monotonic() - start
        try:
            answer = json.loads(ended.stdout)
        except ValueError:
            answer = {}
        if ended.returncode or not answer.get("ok"):
            detail = f"ucc tune ended with {ended.returncode}: {ended.stderr[-1200:]}"
            return {"ok": False, "error": "NothingTuned", "detail": detail}
        return {
            "ok": True,
            "ours": seconds,
            "search": answer["seconds"],
            "us": answer["microseconds"],
            "built": len(answer["trials"]),
            "stopped": answer["stopped"],
            "schedule": answer["schedule"],
        }

    return part


def _theirs(task: Task, folder: Path) -> Callable[[], Row]:
    def part() -> Row:
        caches = {
            name: str(folder / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        }
        start = time.monotonic()
        outcome = isolation.run(
            "benchmarks.tuned_rows:first_call",
            {"item": task.item()},
            limit_seconds=LIMIT_SECONDS,
            environ=os.environ | caches,
        )
        seconds = time.monotonic() - start
        if not isinstance(outcome, isolation.Returned):
            detail = isolation.failure_text(outcome, "torch.compile")[-1500:]
            return {"ok": False, "error": type(outcome).__name__, "detail": detail}
        return {"ok": True, "compile": seconds, "call": outcome.value["seconds"]}

    return part
