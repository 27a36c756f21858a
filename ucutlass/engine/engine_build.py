"""Builds kernels for an engine: it takes JSON and returns the keys of the cache entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any

from ucutlass import frontend
from ucutlass.backend import build_planned
from ucutlass.handoff import checked_of, planned_of
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.switches import BuildPath


def build(
    program: Mapping[str, Any],
    name: str,
    plans: Sequence[Mapping[str, Any]],
    build_path: BuildPath | None,
    cancel: Event,
) -> dict[str, Any]:
    """Builds plans by one compiler: `made` has a key, or "" where there is none, for each plan, `words` why
    there is none, `artifacts` the keys. `program` and `plans` are payloads of `ucutlass.handoff`. Raises
    ToolchainError and HandoffError."""
    checked = checked_of(program)
    planned = [planned_of(plan) for plan in plans]
    built = build_planned(
        checked,
        frontend.kernel(checked, name),
        planned,
        build_path=build_path,
        cancel=cancel,
        max_jobs=1,
        group=len(planned),
    )
    keys = [result.key if isinstance(result, Artifact) else "" for result in built]
    words = ["" if isinstance(result, Artifact) else f"{type(result).__name__}: {result}" for result in built]
    return {"made": keys, "words": words, "artifacts": sorted({k for k in keys if k})}
