"""This module is `ucc explain`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import click

from ucutlass import frontend, ir
from ucutlass.advice import advise, facts_of, select
from ucutlass.cli import inputs, pipelines, show
from ucutlass.cli.advice import past, rows, within_schedule
from ucutlass.cli.cpu_limit import cpu_limited
from ucutlass.cli.errors import reported
from ucutlass.cli.options import arch_option, file_argument, json_option, kernel_option, sizes_option
from ucutlass.explain import Explanation, explain
from ucutlass.ir.hardware import DEVICES
from ucutlass.ir.schedule import show as show_schedule
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete, parse_sizes
from ucutlass.sol import report
from ucutlass.sol.bounds import TimeBounds, bounds
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
@json_option
def command(
    file: Path, sizes: tuple[str, ...], name: str | None, arch: str, device: str | None, as_json: bool
) -> None:
    """Say what the compiler chooses for FILE's kernel or pipeline and a shape, and why.

    Shows waves and quantisation, registers, shared memory, stages, bytes and intensity against
    the device, the reason of every field that the schedule left out, what `ucc tune` recorded for this
    shape, and what advice can be given without running anything. Of a pipeline: each stage's launch, bytes
    and stream, the workspace, and for each cut whether one launch could do both sides, and what it costs.
    Needs no GPU.
    """
    with reported(as_json), cpu_limited(file):
        checked = inputs.read(file)
        program = frontend.program(checked, name)
        extents = complete(program, parse_sizes(sizes))
        gpu = DEVICES[device] if device else None
        by_name = dict(zip(program.dims, extents, strict=True))
        with checked.limits(program):
            if isinstance(program, ir.Pipeline):
                pipelines.explain(checked, program, extents, arch, gpu, as_json)
                return
            planned = frontend.plan_kernel(checked, program, extents, arch, gpu).planned
            bound = bounds(program, by_name, planned.device, planned=planned)
        if not isinstance(planned.plan, GemmPlan):
            _family(planned, bound, rows_by_gpu(program, extents, arch), as_json)
            return
        explanation = explain(planned, bound)
        advice = advise(facts_of(planned), past(planned.device))
        advice = within_schedule(advice, program, extents, arch)
        tuned = rows_by_gpu(program, extents, arch)
    if as_json:
        memory = asdict(explanation.memory) | {"total": explanation.memory.total}
        row = asdict(explanation) | {"memory": memory, "advice": select.to_json(advice)}
        row |= {"bound": report.row(explanation.bound)}
        row["recorded"] = _recorded_json(tuned)
        show.data(row, default=str)
    else:
        show.table(("", ""), _lines(explanation) + _recorded(tuned) + rows(advice))


def _family(planned: Planned, bound: TimeBounds, tuned: Mapping[str, TunedRow], as_json: bool) -> None:
    """Prints what there is to say of a kernel without a cost model of tiles: its choices and their
    reasons."""
    if as_json:
        row: dict[str, Any] = {
            "arch": planned.plan.arch,
            "device": planned.device.name,
            "seconds": planned.seconds,
            "schedule": show_schedule(planned.request),
            "plan": asdict(cast(Any, planned.plan.schedule)),
            "bound": report.row(bound),
            "notes": [asdict(note) for note in planned.notes],
            "recorded": _recorded_json(tuned),
        }
        show.data(row, default=str)
        return
    lines = [
        ("kernel", type(planned.plan).__name__.removesuffix("Plan").lower()),
        ("schedule", f"{planned.plan.arch} {{ {show_schedule(planned.request)} }}"),
        ("device", planned.device.name),
        ("estimate", duration(planned.seconds)),
        ("bound", duration(bound.fused.seconds)),
        *((note.value, note.reason) for note in planned.notes),
    ]
    show.table(("", ""), lines + _recorded(tuned))


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


def _lines(e: Explanation) -> list[tuple[str, str]]:
    b = e.bound
    lines = [
        ("schedule", f"{e.arch} {{ {e.schedule} }}"),
        ("chosen", e.origin or "by the program"),
        ("planned for", e.device),
        ("problem", f"M {e.m}  N {e.n}  K {e.k}  batch {e.batch}, compute type {b.compute_type}"),
        (
            "tiles",
            f"{e.tiles} on {e.slots} slots: {e.waves:.2f} waves, {e.quantisation:.0%} busy; {e.padding:.0%} "
            "of the multiplications useful",
        ),
        ("steps of K", str(e.k_steps)),
        ("accumulators", f"{e.accumulators} registers a thread"),
        ("shared memory", f"{e.memory.total} of {e.memory_limit} bytes: {_memory(e)}"),
        ("epilogue", ", ".join(e.routes) or "no tensors"),
        ("work", report.work_words(b)),
        ("bound", f"{duration(b.fused.seconds)} by {b.limit}; {duration(b.realistic.seconds)} for this plan"),
        (
            "estimate",
            f"{duration(e.seconds)}, {e.bound_share:.0%} of the bound; about {e.dram_bytes / 1e6:.4g} MB "
            "from memory",
        ),
    ]
    return lines + [(note.field or "kernel", f"{note.value}: {note.reason}") for note in e.notes]


def _memory(e: Explanation) -> str:
    parts = asdict(e.memory)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in parts.items())
