"""An engine's functions without compilers and GPUs: entries without code, times by rule."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any

from ucutlass.engine.work import TaskEntry, TaskTable
from ucutlass.files import put
from ucutlass.handoff import checked_of, planned_of
from ucutlass.runtime.cache import Cache, CacheEntry
from ucutlass.runtime.ptxas import PtxasReport
from ucutlass.tasks.tune import FINAL_ROUNDS

TABLE: TaskTable = {
    "build": TaskEntry("tests.tune.engine_stub:build", "cpu", "here"),
    "prepare": TaskEntry("json", "gpu", "prepare"),
    "timed": TaskEntry("tests.tune.engine_stub:timed", "gpu", "warm"),
    "confirmed": TaskEntry("tests.tune.engine_stub:confirmed", "gpu", "fresh"),
}

LAUNCH_PARAMETERS = {"raster", "swizzle", "split_k"}
"""Fields that change no binary."""


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _key(text: str, arch: str, request: Mapping[str, Any]) -> str:
    return _digest(text, arch, {f: v for f, v in request.items() if f not in LAUNCH_PARAMETERS})


def build(
    program: Mapping[str, Any],
    name: str,
    plans: Sequence[Mapping[str, Any]],
    build_path: str | None,
    cancel: Event,
) -> dict[str, Any]:
    cache = Cache.from_switches()
    planned = [planned_of(plan) for plan in plans]
    keys = [_key(checked_of(program).source, p.plan.arch, p.request.fixed()) for p in planned]
    for key in keys:
        with cache.locked(key, timeout_seconds=60):
            if isinstance(cache.load(key), CacheEntry):
                continue
            with cache.staging(key) as folder:
                put(folder / "kernel.so", bytes.fromhex(key) * 1000)
                about = {
                    "builder": "dry",
                    "entry": f"ucc_{key[:16]}",
                    "arch": "sm90a",
                    "command": "",
                    "versions": {},
                    "seconds": 0.0,
                    "report": PtxasReport().to_json(),
                    "worker": os.getpid(),
                }
                cache.publish(key, folder, about)
    return {"made": keys, "words": [""] * len(keys), "artifacts": sorted(set(keys))}


def timed(
    program: Mapping[str, Any],
    name: str,
    sizes: dict[str, int],
    plans: list[dict[str, Any]],
    keys: list[str],
    seed: int,
    counts: list[int] | None = None,
    best: float | None = None,
) -> dict[str, Any]:
    """Raises LookupError where an entry was not moved to this worker."""
    cache = Cache.from_switches()
    for key in keys:
        found, library = cache.load(key), bytes.fromhex(key) * 1000
        if not isinstance(found, CacheEntry) or (found.folder / "kernel.so").read_bytes() != library:
            raise LookupError(f"{key} is not in {cache.root}")
    requests = [planned_of(plan).request.fixed() for plan in plans]
    seconds = [(1 + int(_digest(sizes, r)[:8], 16) / 2**32) * 1e-4 for r in requests]
    return {"seconds": seconds, "words": [""] * len(requests)}


def confirmed(
    program: Mapping[str, Any],
    name: str,
    sizes: dict[str, int],
    plans: list[dict[str, Any]],
    keys: list[str],
    seed: int,
    versions: dict[str, str],
) -> dict[str, Any]:
    found = timed(program, name, sizes, plans, keys, seed)["seconds"]
    machine = {"device": "none", "uuid": os.environ["CUDA_VISIBLE_DEVICES"], "versions": {}}
    return {"machine": machine, "rounds": [[s] * FINAL_ROUNDS for s in found], "words": [""] * len(found)}
