"""Builds kernels for an engine: it takes JSON and returns the keys of the cache entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any

from ucutlass import frontend
from ucutlass.backend import build_planned
from ucutlass.ir.schedule import partial_schedule_of_json, scheduled
from ucutlass.kernels.planned import Planned
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.switches import BuildPath
from ucutlass.shapes import complete


def planned(
    checked: frontend.Checked, name: str, sizes: Mapping[str, int], arch: str, request: Mapping[str, Any]
) -> Planned:
    """Returns the plan of one schedule. Raises ProgramError and ShapeError."""
    program = scheduled(frontend.kernel(checked, name), arch, partial_schedule_of_json(request))
    return frontend.plan_kernel(checked, program, complete(program, sizes), arch).planned


def build(
    text: str,
    file: str,
    name: str,
    sizes: dict[str, int],
    arch: str,
    requests: Sequence[Mapping[str, Any]],
    build_path: BuildPath | None,
    cancel: Event,
) -> dict[str, Any]:
    """One compiler on all of them: `made` has a key, or "" where there is none, for each request,
    `words` why there is none, `artifacts` the keys. Raises ToolchainError."""
    checked = frontend.read_text(text, file)
    plans = [planned(checked, name, sizes, arch, r) for r in requests]
    built = build_planned(
        checked,
        frontend.kernel(checked, name),
        plans,
        build_path=build_path,
        cancel=cancel,
        max_jobs=1,
        group=len(plans),
    )
    keys = [result.key if isinstance(result, Artifact) else "" for result in built]
    words = ["" if isinstance(result, Artifact) else f"{type(result).__name__}: {result}" for result in built]
    return {"made": keys, "words": words, "artifacts": sorted({k for k in keys if k})}
