"""This module is `ucc run`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ucutlass import frontend, ir
from ucutlass.assembly import AnyBuilt, build_program, kernels_of, schedule_of, sizes_of
from ucutlass.backend import Built
from ucutlass.cli import gpu, inputs, show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import (
    WholeNumber,
    arch_option,
    file_argument,
    json_option,
    kernel_option,
    seconds_option,
    sizes_option,
)
from ucutlass.handoff import program_payload
from ucutlass.ir.hardware import ARCHES, default_device
from ucutlass.runtime import isolation
from ucutlass.shapes import complete, parse_sizes
from ucutlass.sol.bounds import TimeBounds, bounds
from ucutlass.tasks.built import built_payload
from ucutlass.units import duration

_INTERPRETED = 512
"""Extents are cut to this where no GPU is present: the interpreter is there to be right."""


@click.command("run")
@file_argument
@sizes_option
@kernel_option
@arch_option(None)
@click.option("--seed", type=WholeNumber(), default=0, help="Seed of the random arguments.")
@seconds_option("--limit", 300.0, "Seconds that the kernel's own process may take.")
@json_option
def command(
    file: Path,
    sizes: tuple[str, ...],
    name: str | None,
    arch: str | None,
    seed: int,
    limit: float,
    as_json: bool,
) -> None:
    """Check, plan, emit, build and run FILE's kernel or pipeline; verify it and time it.

    With an NVIDIA GPU the kernel runs there, in a process of its own: a crash or hang is reported
    and hurts nothing. Without one it is built all the same, and the reference interpreter
    runs on the CPU instead; the output says which of the two happened.
    """
    with reported(as_json):
        checked = inputs.read(file)
        program = frontend.program(checked, name)
        extents = complete(program, parse_sizes(sizes))
        local_gpu = gpu.at_hand()
        target = arch or (local_gpu.arch.name if local_gpu else "sm90a")
        device = local_gpu.device if local_gpu else None
        with show.building(program.name) as progress:
            built = build_program(checked, program, extents, target, device=device, on_progress=progress)
        row = _describe(program, built)
        free_sizes = parse_sizes(sizes)
        if local_gpu:
            row |= _on_gpu(checked, program, free_sizes, target, seed, limit, built)
        else:
            row |= _on_cpu(checked, program, free_sizes, seed, limit)
    _report(row, as_json)
    if row.get("ok") is False:
        sys.exit(Status.PROGRAM)


def _describe(program: ir.Program, built: AnyBuilt) -> dict[str, Any]:
    bound = _bounds(program, built)
    kernels = kernels_of(built)
    row = {
        "kernel": program.name,
        "sizes": dict(zip(program.dims, sizes_of(built), strict=True)),
        "arch": kernels[0].planned.plan.arch if kernels else "",
        "schedule": schedule_of(built),
        "findings": [asdict(f) for kernel in kernels for f in kernel.artifact.report.findings],
        "bound_microseconds": bound.fused.seconds * 1e6,
        "bound_limit": bound.limit,
        "bound_device": bound.device,
    }
    if isinstance(built, Built):
        return row | {"source": str(built.artifact.source), "library": str(built.artifact.library)}
    stages = [
        {"name": stage.step.name, "source": "" if kernel is None else str(kernel.artifact.source)}
        for stage, kernel in zip(built.plan.stages, built.built, strict=True)
    ]
    return row | {"stages": stages}


def _on_gpu(
    checked: frontend.Checked,
    program: ir.Program,
    sizes: dict[str, int],
    arch: str,
    seed: int,
    limit: float,
    built: AnyBuilt,
) -> dict[str, Any]:
    answer = _isolated(
        "on_gpu", checked, program, sizes, seed, limit, {"arch": arch, "built": built_payload(built)}
    )
    if "lost" in answer:
        return {"ran": "GPU", "ok": False} | answer
    share = built_share(program, built, answer["microseconds"])
    return {"ran": "GPU"} | answer | {"share_of_bound": share}


def built_share(program: ir.Program, built: AnyBuilt, microseconds: float | None) -> float | None:
    """Returns the fused bound over the measured time; None where nothing was measured."""
    if microseconds is None:
        return None
    return _bounds(program, built).fused.seconds * 1e6 / microseconds


def _bounds(program: ir.Program, built: AnyBuilt) -> TimeBounds:
    sizes = dict(zip(program.dims, sizes_of(built), strict=True))
    planned = [kernel.planned for kernel in kernels_of(built)]
    alone = built.planned if isinstance(built, Built) else None
    device = planned[0].device if planned else default_device(ARCHES["sm90a"])
    return bounds(program, sizes, device, planned=alone)


def _on_cpu(
    checked: frontend.Checked, program: ir.Program, sizes: dict[str, int], seed: int, limit: float
) -> dict[str, Any]:
    cut = {name: min(size, _INTERPRETED) for name, size in sizes.items()}
    answer = _isolated("on_cpu", checked, program, cut, seed, limit, {})
    if "lost" in answer:
        return {"ran": "CPU", "ok": False} | answer
    return {"ran": "CPU", "interpreted_sizes": cut} | answer


def _isolated(
    what: str,
    checked: frontend.Checked,
    program: ir.Program,
    sizes: dict[str, int],
    seed: int,
    limit: float,
    more: dict[str, Any],
) -> dict[str, Any]:
    outcome = isolation.run(
        f"ucutlass.tasks.run:{what}",
        {"program": program_payload(checked), "name": program.name, "sizes": sizes, "seed": seed, **more},
        limit_seconds=limit,
    )
    if not isinstance(outcome, isolation.Returned):
        return {"lost": isolation.failure_text(outcome, "the kernel")}
    assert isinstance(outcome.value, dict)
    return outcome.value


def _report(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show.data(row)
        return
    if "lost" in row:
        fail(Status.PROGRAM, f"{row['kernel']}: {row['lost']}", False)
    lines = [
        ("kernel", row["kernel"] + " " + " ".join(f"{n}={v}" for n, v in row["sizes"].items())),
        ("built for", f"{row['arch']}: {row['schedule']}"),
    ]
    lines += [("ptxas", f"{f['code']}: {f['message']}; {f['hint']}") for f in row["findings"]]
    if row["ran"] == "GPU":
        lines.append(("ran on", row["device"]))
        lines += [(c["name"] or "result", c["words"].partition(": ")[2]) for c in row["comparisons"]]
        lines += [("problem", p) for p in row["problems"]]
        lines += [("stage", s["words"]) for s in row["judged_stages"] if s["state"] != "right"]
        lines.append(("verdict", row["proof"] or row["state"]))
        if row["microseconds"] is not None:
            lines.append(("time", f"{duration(row['microseconds'] * 1e-6)}, spread {row['spread']:.1%}"))
            lines.append(
                (
                    "speed of light",
                    f"{row['share_of_bound']:.0%} of {row['bound_device']}'s bound by {row['bound_limit']}, "
                    f"{duration(row['bound_microseconds'] * 1e-6)}",
                )
            )
    else:
        cut = " ".join(f"{n}={v}" for n, v in row["interpreted_sizes"].items())
        lines.append(("ran on", f"the CPU, no GPU here: the float64 reference interpreter, at {cut}"))
        lines += [
            (
                r["name"] or "result",
                f"shape {r['shape']}, mean {r['mean']:.6g}, {'finite' if r['finite'] else 'NOT FINITE'}; "
                "the kernel itself was built, not run",
            )
            for r in row["results"]
        ]
        lines.append(("time", "none: nothing was timed without a GPU"))
        lines.append(
            (
                "speed of light",
                f"{duration(row['bound_microseconds'] * 1e-6)} on {row['bound_device']}, bound by {row['bound_limit']}",
            )
        )
    lines += [(s["name"], s["source"] or "torch: not compiled") for s in row.get("stages", ())]
    if row.get("torch_share"):
        lines.append(("torch functions", f"{row['torch_share']:.0%} of the stages' time"))
    if "source" in row:
        lines.append(("source", row["source"]))
    show.table(("", ""), lines)
