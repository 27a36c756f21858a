"""`ucc tune`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import click

from ucutlass import frontend, ir
from ucutlass.cli import inputs, show
from ucutlass.cli.engines import at_hand, engine_option, opened
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import (
    PositiveNumber,
    WholeNumber,
    arch_option,
    json_option,
    kernel_option,
    seconds_option,
    sizes_option,
)
from ucutlass.cli.tune_replay import replayed
from ucutlass.cli.tune_show import OnJob, progress, report, report_set
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import LIMIT_SECONDS, WAIT_SECONDS
from ucutlass.files import write
from ucutlass.ir.hardware import Device
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete, parse_sizes
from ucutlass.tune import shapes_file
from ucutlass.tune.evaluator import EngineEvaluator
from ucutlass.tune.job import JobEvaluator, TuningJob, TuningSettings, describe, job_of, prepare, tune
from ucutlass.tune.policy import POLICIES, Name, SearchLimits
from ucutlass.tune.shape_set import to_json, tune_set
from ucutlass.tune.source import ScheduleNotWritten, with_schedules

Winners: TypeAlias = list[tuple[Mapping[str, int], Planned]]
"""By the extents that they are for."""

JobAt: TypeAlias = Callable[[Mapping[str, int]], TuningJob]
EvaluatorAt: TypeAlias = Callable[[Mapping[str, int]], JobEvaluator]

_NO_GPU = "nothing was tuned: there is no NVIDIA GPU {} that a compile target serves"


class _Budget(PositiveNumber):
    """Seconds, written `120`, `120s` or `2m`."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        match = re.fullmatch(r"(.*?)(s|m)", value.strip()) if isinstance(value, str) else None
        if match is None:
            return super().convert(value, param, ctx)
        return super().convert(match[1], param, ctx) * (60 if match[2] == "m" else 1)


@click.command("tune")
@click.argument("files", nargs=-1, required=True, type=inputs.existing())
@sizes_option
@kernel_option
@arch_option(None)
@click.option("--budget", type=_Budget(), metavar="120s", help="Most time to search, as 120s or 2m.")
@click.option(
    "--builds",
    type=WholeNumber(min=1),
    default=SearchLimits().builds,
    show_default=True,
    help="Most binaries to build.",
)
@click.option("--free", is_flag=True, help="Every legal schedule, not only what the program denotes.")
@click.option(
    "--policy",
    type=click.Choice(tuple(POLICIES)),
    default="guided",
    show_default=True,
    help="How to choose what to build.",
)
@click.option(
    "--seed", type=WholeNumber(), default=0, help="Seed of the random arguments and of the random policy."
)
@click.option(
    "--guards",
    type=WholeNumber(min=1),
    metavar="N",
    help="Most guarded schedules for a set of shapes; those of most weight stay.",
)
@click.option("--progress", "lines", is_flag=True, help="A line a trial on stderr where it is no terminal.")
@engine_option
@click.option("--write", "writes", is_flag=True, help="Put the winner's schedule into FILE, formatted.")
@click.option("--replay", "replays", is_flag=True, help="FILES are recordings: compare policies, no GPU.")
@seconds_option("--limit", LIMIT_SECONDS, "Seconds that each process that launches kernels may take.")
@seconds_option("--wait", WAIT_SECONDS, "Seconds to wait for another process that times.")
@json_option
def command(
    files: tuple[Path, ...],
    sizes: tuple[str, ...],
    name: str | None,
    arch: str | None,
    budget: float | None,
    builds: int,
    free: bool,
    policy: Name,
    seed: int,
    guards: int | None,
    lines: bool,
    spec: str | None,
    writes: bool,
    replays: bool,
    limit: float,
    wait: float,
    as_json: bool,
) -> None:
    """Find the fastest kernel that FILE's program denotes for these extents, on this GPU.

    Ranks before it builds, times while it builds, sweeps raster, swizzle and splits on one binary, stops
    at the bound or the budget, measures the finalists again in a fresh process and verifies them. The
    winner is recorded for `ucc build` and `ucutlass.load(.., tuned=True)`.

    -s shapes.csv tunes every shape of a file (a header of dimension names and optionally `weight`, a line
    a shape) and finds few guarded schedules that serve them all.
    """
    with reported(as_json):
        if inputs.STDIN in files and (writes or replays):
            fail(Status.CALL, "--write and --replay need files, not standard input", as_json)
        if replays:
            replayed(files, as_json)
            return
        if len(files) != 1:
            fail(Status.CALL, "one FILE is tuned at a time; several are for --replay", as_json)
        checked = inputs.read(files[0])
        program = frontend.kernel(checked, name)
        listed, rest = shapes_file.split(sizes)
        # The call's mistakes before the machine's.
        shapes = _one(program, rest) if listed is None else shapes_file.read(listed, program, rest)
        # One engine for all shapes: its processes have imported what they need.
        with closing(opened(spec, as_json)) as hall:
            gpu = at_hand(hall)
            if gpu is None:
                where = "here" if isinstance(hall, LocalEngine) else "at the engine's worker"
                fail(Status.MACHINE, _NO_GPU.format(where), as_json)
            target, device = arch or gpu.arch.name, gpu.device
            for shape in shapes:  # and the program's, before minutes of tuning
                frontend.plan_kernel(checked, program, complete(program, shape.sizes), target, device)
            prepare()
            limits = (
                SearchLimits(builds=builds) if budget is None else SearchLimits(builds=builds, seconds=budget)
            )
            settings = TuningSettings(limits, policy, seed, free)
            job_at = _jobs(checked, program, target, device, free, says=not as_json)

            def evaluator(sizes: Mapping[str, int]) -> JobEvaluator:
                return EngineEvaluator(checked, program, sizes, target, seed, limit, wait, engine=hall)

            with progress(len(shapes), limits, as_json, lines) as on_job:
                if listed is None:
                    row, winners = _tuned(shapes[0].sizes, job_at, evaluator, settings, on_job)
                else:
                    row, winners = _tuned_set(shapes, job_at, evaluator, settings, guards, on_job)
        if writes and winners:
            _write(files[0], checked, program, winners, device, as_json)
            row["written"] = str(files[0])
    if as_json:
        show.data(row)
    else:
        (report if listed is None else report_set)(row)
    if not row["ok"]:
        sys.exit(Status.PROGRAM)


def _write(
    file: Path,
    checked: frontend.Checked,
    program: ir.Kernel,
    winners: Winners,
    device: Device | None,
    as_json: bool,
) -> None:
    """Puts the winners' schedules into the file, or ends the command where they cannot stand there."""
    try:
        text = with_schedules(checked, program, winners, device)
    except ScheduleNotWritten as problem:
        fail(Status.PROGRAM, str(problem), as_json)
    write(file, text)


def _one(program: ir.Kernel, sizes: Sequence[str]) -> tuple[shapes_file.WeightedShape, ...]:
    extents = parse_sizes(sizes)
    complete(program, extents)
    return (shapes_file.WeightedShape(extents),)


def _jobs(
    checked: frontend.Checked, program: ir.Kernel, target: str, device: Device | None, free: bool, says: bool
) -> JobAt:
    """Returns the job of given extents; `says` once what the program itself fixes of a schedule."""
    noted: list[Mapping[str, tuple[str, ...]]] = []

    def job_at(sizes: Mapping[str, int]) -> TuningJob:
        job = job_of(checked, program, sizes, target, device, free)
        if says and job.fixed is not None and job.fixed.fields not in noted:
            noted.append(job.fixed.fields)
            show.note(f"ucc: {job.fixed.words}")
        return job

    return job_at


def _tuned_set(
    shapes: Sequence[shapes_file.WeightedShape],
    job_at: JobAt,
    evaluator_at: EvaluatorAt,
    settings: TuningSettings,
    guards: int | None,
    on_job: OnJob,
) -> tuple[dict[str, Any], Winners]:
    done = tune_set(shapes, job_at, lambda job: evaluator_at(job.sizes), settings, most=guards, on_job=on_job)
    return to_json(done), [(s.shape.sizes, s.kernel) for s in done.shapes if s.kernel is not None]


def _tuned(
    sizes: Mapping[str, int],
    job_at: JobAt,
    evaluator_at: EvaluatorAt,
    settings: TuningSettings,
    on_job: OnJob,
) -> tuple[dict[str, Any], Winners]:
    with closing(evaluator_at(sizes)) as evaluator:
        evaluator.prepare()  # its processes get ready while schedules are listed
        job = job_at(sizes)
        outcome = tune(job, evaluator, settings, on_trial=on_job(0, job))
    winner = outcome.tuned.winner
    return describe(outcome, settings), [] if winner is None else [(job.sizes, winner.kernel)]
