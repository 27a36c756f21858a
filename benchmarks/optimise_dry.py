"""What `benchmarks.optimise --dry` asks in place of a GPU: times by rule, after as long as a GPU takes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from ucutlass.engine.work import TABLE as REAL
from ucutlass.engine.work import Row, Table
from ucutlass.ir.hardware import DEVICES

UUID = "GPU-00000000-0000-0000-0000-000000000000"
H200 = next(d for d in DEVICES.values() if "H200" in d.name)

TABLE: Table = {
    **REAL,
    "prepare": Row("json", "gpu", "prepare"),
    "attempt": Row("benchmarks.optimise_dry:tried", "gpu", "warm"),
    "timed": Row("benchmarks.optimise_dry:timed", "gpu", "warm"),
    "compared": Row("benchmarks.optimise_dry:compared", "gpu", "warm"),
}

ATTEMPT_SECONDS = 0.3
FINAL_SECONDS = 3.0


def _micro(text: str) -> float:
    return 100 + int(hashlib.sha256(text.encode()).hexdigest()[:6], 16) / 2**24 * 100


def tried(text: str, problem: str, name: str, sizes: dict[str, int], arch: str, seed: int) -> dict[str, Any]:
    time.sleep(ATTEMPT_SECONDS)
    return {"seconds": _micro(text) * 1e-6, "words": "", "spent": ATTEMPT_SECONDS}


def timed(
    text: str,
    file: str,
    name: str,
    sizes: dict[str, int],
    arch: str,
    requests: list[dict[str, Any]],
    keys: list[str],
    seed: int,
    counts: list[int],
    best: float | None,
) -> dict[str, Any]:
    time.sleep(ATTEMPT_SECONDS / 3)
    return {"seconds": [_micro(f"{text} {r}") * 1e-6 for r in requests], "words": [""] * len(requests)}


def compared(
    task: str, texts: Mapping[str, str], cases: int, full: bool, compiled: bool, seed: int = 0
) -> dict[str, Any]:
    time.sleep(FINAL_SECONDS)
    us = {name: _micro(text) for name, text in texts.items()} | {"eager": 200.0, "eager_tf32": 180.0}
    us |= {"compile": 150.0} if compiled else {}
    return {
        "us": us,
        "spread": {},
        "best": min(texts, key=us.__getitem__),
        "cases": cases,
        "verdicts": {},
        "wrong": [],
        "uncompiled": "",
        "ready_seconds": 0.0,
        "spent": FINAL_SECONDS,
    }
