"""Times each stage of a pipeline on the device."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ucutlass.runtime.launch import LaunchRequest
from ucutlass.runtime.launch_sequence import LaunchSequence, Runner, TorchFunctionStep
from ucutlass.runtime.launch_spec import LaunchSpec, dtype_of, shape_of
from ucutlass.runtime.torch_device import current

_AHEAD = 2_000_000
"""Cycles that the device waits first, so that launches queue up and the host's time is not counted."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """`seconds` on the device, the median; `torch`: the stage is a torch function."""

    name: str
    seconds: float
    torch: bool


def stage_times(
    spec: LaunchSpec,
    series: LaunchSequence,
    request: LaunchRequest,
    tensors: Sequence[torch.Tensor],
    scalars: Sequence[float],
    repeats: int,
) -> tuple[StageTime, ...]:
    """Times each step of a sequence on one stream, between CUDA events around it."""
    runner = Runner(spec.name, series, request.device)
    times: list[list[float]] = [[] for _ in series.steps]
    with current(request.device):
        results = [
            torch.empty(shape_of(spec, r, request.extents), dtype=dtype_of(r.elem), device=request.device)
            for r in spec.results
        ]
        workspace = torch.empty(series.workspace, dtype=torch.uint8, device=request.device)
        for _ in range(repeats + 1):
            marks: list[Any] = [_event() for _ in range(len(times) + 1)]
            _sleep(_AHEAD)
            marks[0].record()
            runner.run((*tensors, *results), scalars, workspace, partial(_mark, marks))
            torch.cuda.synchronize()
            for mine, begin, end in zip(times, marks, marks[1:], strict=False):
                mine.append(begin.elapsed_time(end) / 1000)
    # The first run warms up.
    return tuple(
        StageTime(step.name, statistics.median(mine[1:]), isinstance(step, TorchFunctionStep))
        for step, mine in zip(series.steps, times, strict=True)
    )


def torch_share(times: Sequence[StageTime]) -> float:
    """Returns the share of the stages' time that torch functions take."""
    total = sum(t.seconds for t in times)
    return sum(t.seconds for t in times if t.torch) / total if total else 0.0


def _mark(marks: Sequence[Any], step: int) -> None:
    marks[step + 1].record()


_sleep: Any = getattr(torch.cuda, "_sleep", lambda cycles: None)
_event: Any = partial(torch.cuda.Event, enable_timing=True)
