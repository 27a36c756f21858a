"""This module tunes from Python: `ucutlass.tune("linear.ucu", {"M": 4096, "N": 4096, "K": 4096})`, and
`tune_shapes` for a set of shapes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ucutlass import frontend, ir
from ucutlass.api import LoadedKernel, NoKernelsHere
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import LIMIT_SECONDS, WAIT_SECONDS
from ucutlass.ir.hardware import Device
from ucutlass.runtime import gpu
from ucutlass.shapes import complete
from ucutlass.tune.evaluator import EngineEvaluator
from ucutlass.tune.job import TuningJob, TuningSettings, describe, job_of, prepare
from ucutlass.tune.job import tune as tune_job
from ucutlass.tune.policy import Name, SearchLimits
from ucutlass.tune.shape_set import to_json, tune_set
from ucutlass.tune.shapes_file import WeightedShape, read
from ucutlass.tune.tune import OnTrial


@dataclass(frozen=True, slots=True)
class TuningResult:
    """Describes a tuned kernel. Where no kernel ran and was right, `schedule`, `microseconds`, `record` and
    the ratios are None.

    `schedule` is as a program writes it. `microseconds` were measured in a fresh process; `bound` is what
    the best plan could come to, in microseconds, 0 where none is known. `gain` is the speed over the
    kernel that the compiler would choose, `shrinkage` the share of the search's speed that was not
    confirmed. `builds` and `seconds` are what the search took, `stopped` why it ended. `details` is all of
    it, as `ucc tune --json` prints it.
    """

    kernel: str
    sizes: Mapping[str, int]
    arch: str
    device: str
    schedule: str | None
    microseconds: float | None
    bound: float
    gain: float | None
    shrinkage: float | None
    builds: int
    seconds: float
    stopped: str
    record: str | None
    details: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Returns whether a kernel ran and was right."""
        return self.schedule is not None


def tune(
    program: LoadedKernel | str | os.PathLike[str],
    sizes: Mapping[str, int],
    *,
    name: str | None = None,
    arch: str | None = None,
    budget: float | None = None,
    builds: int = SearchLimits().builds,
    free: bool = False,
    policy: Name = "guided",
    seed: int = 0,
    on_trial: OnTrial = lambda _: None,
) -> TuningResult:
    """Finds the fastest kernel that a program denotes for these extents (free dimensions by name), on the
    first GPU, and records it: `ucutlass.load(.., tuned=True)` takes it from then on.

    `program` is a file, with `name` where it has several kernels, or a kernel that was loaded. `budget`
    is in seconds; it and `builds` bound the search. `free` looks at every legal schedule. `on_trial` hears
    of each binary that was timed. A kernel that was called before keeps what it was built with.

    Raises OSError, ProgramError, ShapeError, ValueError for a budget that is none, NoKernelsHere without a
    GPU that a compile target serves, StoreError where nothing can be recorded, and ToolchainError.
    """
    checked, kernel = _read(program, name)
    complete(kernel, sizes)  # the call's mistakes before the machine's
    settings = _settings(budget, builds, policy, seed, free)
    target, device = _machine(arch)
    evaluator = EngineEvaluator(checked, kernel, sizes, target, seed, LIMIT_SECONDS, WAIT_SECONDS)
    with closing(evaluator) as open_evaluator:
        open_evaluator.prepare()  # its processes get ready while schedules are listed
        job = job_of(checked, kernel, sizes, target, device, free)
        outcome = tune_job(job, open_evaluator, settings, on_trial=on_trial)
    return _result(describe(outcome, settings), outcome.gain)


@dataclass(frozen=True, slots=True)
class ShapeSetResult:
    """Describes a tuned set of shapes: each by itself, in their order, and the few guarded schedules that
    serve them: a schedule's text, and which shapes take it.

    `gain` is the weighted geometric mean of the speed over what the compiler would choose, None where no
    shape has both. `details` is all of it, as `ucc tune -s shapes.csv --json` prints it.
    """

    shapes: tuple[TuningResult, ...]
    dispatch: tuple[tuple[str, tuple[int, ...]], ...]
    gain: float | None
    details: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Returns whether every shape has a kernel that ran and was right."""
        return all(result.ok for result in self.shapes)


Shapes: TypeAlias = "Sequence[Mapping[str, int]] | str | os.PathLike[str]"
"""Extents by name, one mapping a shape; or a CSV file of them."""


def tune_shapes(
    program: LoadedKernel | str | os.PathLike[str],
    shapes: Shapes,
    *,
    weights: Sequence[float] | None = None,
    guards: int | None = None,
    name: str | None = None,
    arch: str | None = None,
    budget: float | None = None,
    builds: int = SearchLimits().builds,
    free: bool = False,
    policy: Name = "guided",
    seed: int = 0,
    on_job: Callable[[int, TuningJob], OnTrial] | None = None,
) -> ShapeSetResult:
    """Does as `tune`, for a set of shapes: extents by name, with `weights` above 0, or a CSV file as `ucc
    tune -s` takes it, which has its own. `guards` is the most schedules that shall serve them all; `builds`
    bounds each shape's search, `budget` all of them. `on_job` hears of each shape by its number, and says who
    hears of its trials.

    Raises as `tune` does, ShapesFileError for a file that is none, and ValueError for no shapes and for
    weights that are not one above 0 for each.
    """
    checked, kernel = _read(program, name)
    weighted_shapes = _shapes(kernel, shapes, weights)
    if guards is not None and guards < 1:
        raise ValueError(f"guards is {guards}: one schedule is the least")
    settings = _settings(budget, builds, policy, seed, free)
    target, device = _machine(arch)

    def job_at(sizes: Mapping[str, int]) -> TuningJob:
        return job_of(checked, kernel, sizes, target, device, free)

    with closing(LocalEngine()) as engine:

        def evaluator_of(job: TuningJob) -> EngineEvaluator:
            return EngineEvaluator(
                checked, kernel, job.sizes, target, seed, LIMIT_SECONDS, WAIT_SECONDS, engine=engine
            )

        heard = on_job or (lambda at, job: lambda trial: None)
        done = tune_set(weighted_shapes, job_at, evaluator_of, settings, most=guards, on_job=heard)
    row = to_json(done)
    rows = tuple(_result(shape.row, shape.gain) for shape in done.shapes)
    dispatch = tuple((entry["schedule"], tuple(entry["shapes"])) for entry in row["dispatch"])
    return ShapeSetResult(rows, dispatch, done.gain, row)


def _shapes(kernel: ir.Kernel, shapes: Shapes, weights: Sequence[float] | None) -> tuple[WeightedShape, ...]:
    if isinstance(shapes, (str, os.PathLike)):
        if weights is not None:
            raise ValueError("a file of shapes has its own weights")
        return read(Path(shapes), kernel)
    weight_list = [1.0] * len(shapes) if weights is None else list(weights)
    fits = len(weight_list) == len(shapes) and all(math.isfinite(w) and w > 0 for w in weight_list)
    if not shapes or not fits:
        raise ValueError(f"{len(shapes)} shapes and {len(weight_list)} weights: one above 0 for each shape")
    for sizes in shapes:
        complete(kernel, sizes)
    return tuple(WeightedShape(sizes, weight) for sizes, weight in zip(shapes, weight_list, strict=True))


def _settings(budget: float | None, builds: int, policy: Name, seed: int, free: bool) -> TuningSettings:
    if builds < 1 or (budget is not None and not (math.isfinite(budget) and budget > 0)):
        raise ValueError(f"builds is {builds} and budget {budget}: at least one build, and seconds above 0")
    return TuningSettings(SearchLimits(builds, math.inf if budget is None else budget), policy, seed, free)


def _machine(arch: str | None) -> tuple[str, Device | None]:
    local_gpu = gpu.at_hand()
    if local_gpu is None:
        raise NoKernelsHere("there is no NVIDIA GPU here that a compile target serves: nothing was tuned")
    prepare()
    return arch or local_gpu.arch.name, local_gpu.device


def _result(row: Mapping[str, Any], gain: float | None) -> TuningResult:
    return TuningResult(
        row["kernel"],
        row["sizes"],
        row["arch"],
        row["device"],
        row["schedule"],
        row["microseconds"],
        row["bound"],
        gain,
        row["shrinkage"],
        len(row["trials"]),
        row["seconds"],
        row["stopped"],
        row.get("record"),
        row,
    )


def _read(
    program: LoadedKernel | str | os.PathLike[str], name: str | None
) -> tuple[frontend.Checked, ir.Kernel]:
    if isinstance(program, LoadedKernel):
        return program.checked, program.program
    checked = frontend.read(Path(program))
    return checked, frontend.kernel(checked, name)
