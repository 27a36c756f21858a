"""This module is `ucc explain`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ucutlass import frontend, ir
from ucutlass.advice import advise, facts_of, select
from ucutlass.cli import algebra as algebra_text
from ucutlass.cli import inputs, pipelines, show
from ucutlass.cli.advice import past, rows, within_schedule
from ucutlass.cli.cpu_limit import cpu_limited
from ucutlass.cli.errors import reported
from ucutlass.cli.options import arch_option, file_argument, json_option, kernel_option, sizes_option
from ucutlass.explanation import explain, to_json
from ucutlass.explanation import rows as explained_rows
from ucutlass.ir.hardware import DEVICES
from ucutlass.ir.schedule import show as show_schedule
from ucutlass.shapes import complete, parse_sizes
from ucutlass.sol.bounds import bounds
from ucutlass.tune.database import TunedRow
from ucutlass.tune.lookup import rows_by_gpu
from ucutlass.units import duration


@click.command("explain")
@file_argument
@sizes_option
@kernel_option
@arch_option()
@click.option(
    "--device", type=click.Choice(tuple(DEVICES)), help="GPU to plan for; by default the target's usual one."
)
@click.option("--algebra", is_flag=True, help="Derive programs that are equal for all inputs and cheaper.")
@click.option(
    "--fold-weights",
    metavar="NAMES",
    default="",
    help="With --algebra: parameters that stay from call to call; what depends on them alone is computed once.",
)
@json_option
def command(
    file: Path,
    sizes: tuple[str, ...],
    name: str | None,
    arch: str,
    device: str | None,
    algebra: bool,
    fold_weights: str,
    as_json: bool,
) -> None:
    """Say what the compiler chooses for FILE's kernel or pipeline and a shape, and why.

    Shows waves and quantisation, registers, shared memory, stages, bytes and intensity against
    the device, the reason of every field that the schedule left out, what `ucc tune` recorded for this
    shape, and what advice can be given without running anything. Of a pipeline: each stage's launch, bytes
    and stream, the workspace, and for each cut whether one launch could do both sides, and what it costs.
    Needs no GPU.

    With --algebra: which programs are equal to this one for all inputs by the rules of algebra, and are
    estimated to take less time, with the derivation of the cheapest, rule by rule.
    """
    with reported(as_json), cpu_limited(file):
        checked = inputs.read(file)
        program = frontend.program(checked, name)
        extents = complete(program, parse_sizes(sizes))
        gpu = DEVICES[device] if device else None
        by_name = dict(zip(program.dims, extents, strict=True))
        with checked.limits(program):
            if algebra:
                algebra_text.explain(checked, program, by_name, arch, gpu, fold_weights, as_json)
                return
            if isinstance(program, ir.Pipeline):
                pipelines.explain(checked, program, extents, arch, gpu, as_json)
                return
            planned = frontend.plan_kernel(checked, program, extents, arch, gpu).planned
            bound = bounds(program, by_name, planned.device, planned=planned)
        explanation = explain(planned, bound)
        advice = advise(facts_of(checked, program, planned), past(planned.device))
        advice = within_schedule(advice, program, extents, arch)
        tuned = rows_by_gpu(program, extents, arch)
    if as_json:
        row = to_json(explanation) | {"advice": select.to_json(advice), "recorded": _recorded_json(tuned)}
        show.data(row, default=str)
    else:
        show.table(("", ""), explained_rows(explanation) + _recorded(tuned) + rows(advice))


def _recorded_json(tuned: Mapping[str, TunedRow]) -> list[dict[str, Any]]:
    return [
        {
            "gpu": gpu,
            "schedule": show_schedule(row.request),
            "microseconds": row.microseconds,
            "record": row.record,
        }
        for gpu, row in tuned.items()
    ]


def _recorded(tuned: Mapping[str, TunedRow]) -> list[tuple[str, str]]:
    return [
        ("recorded", f"{duration(row.microseconds * 1e-6)} on {gpu}: {show_schedule(row.request)}")
        for gpu, row in tuned.items()
    ]
