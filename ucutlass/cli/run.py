"""`ucc run`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ucutlass import frontend, ir
from ucutlass.backend import Built, build_kernel
from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import arch_option, file_argument, json_option, kernel_option, sizes_option
from ucutlass.hardware import arch_for, device_named
from ucutlass.runtime import isolate, system
from ucutlass.schedule import show as show_schedule
from ucutlass.shapes import complete, parse_sizes
from ucutlass.sol import speed_of_light

_INTERPRETED = 512
"""Extents are cut to this where no GPU is present: the interpreter is there to be right."""


@click.command("run")
@file_argument
@sizes_option
@kernel_option
@arch_option(None)
@click.option("--seed", default=0, help="Seed of the random arguments.")
@click.option(
    "--limit", default=300.0, show_default=True, help="Seconds that the kernel's own process may take."
)
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
    """Check, plan, emit, build and run FILE's kernel; verify it and time it.

    With an NVIDIA GPU the kernel runs there, in a process of its own: a crash or hang is reported
    and hurts nothing. Without one it is built all the same, and the reference interpreter
    runs on the CPU instead; the output says which of the two happened.
    """
    with reported(as_json):
        checked = frontend.read(file)
        program = frontend.kernel(checked, name)
        extents = complete(program, parse_sizes(sizes))
        gpu = _gpu()
        target = arch or (gpu[1] if gpu else "sm90a")
        device = device_named(gpu[0]) if gpu else None
        with show.building(program.name) as progress:
            built = build_kernel(checked, program, extents, target, device=device, on_progress=progress)
        row = _describe(program, built)
        given = parse_sizes(sizes)
        if gpu:
            row |= _on_gpu(checked, program, given, target, seed, limit, built)
        else:
            row |= _on_cpu(checked, program, given, seed, limit)
    _report(row, as_json)
    if row.get("ok") is False:
        sys.exit(Status.PROGRAM)


def _gpu() -> tuple[str, str] | None:
    """Name and compile target of the first GPU that can run our kernels."""
    driver = system.driver()
    for gpu in driver.gpus if driver else ():
        if (arch := arch_for(gpu.capability)) is not None:
            return gpu.name, arch.name
    return None


def _describe(program: ir.Kernel, built: Built) -> dict[str, Any]:
    planned = built.planned
    bound = speed_of_light(planned.candidate.problem, planned.sizes, planned.device)
    return {
        "kernel": program.name,
        "sizes": dict(zip(program.dims, planned.sizes, strict=True)),
        "arch": planned.plan.arch,
        "schedule": show_schedule(planned.request),
        "source": str(built.artifact.source),
        "library": str(built.artifact.library),
        "findings": [asdict(f) for f in built.artifact.report.findings],
        "bound_microseconds": bound.seconds * 1e6,
        "bound_limit": bound.limit,
        "bound_device": planned.device.name,
    }


def _on_gpu(
    checked: frontend.Checked,
    program: ir.Kernel,
    sizes: dict[str, int],
    arch: str,
    seed: int,
    limit: float,
    built: Built,
) -> dict[str, Any]:
    answer = _isolated("on_gpu", checked, program, sizes, seed, limit, {"arch": arch})
    if "lost" in answer:
        return {"ran": "GPU", "ok": False} | answer
    share = built_share(built, answer["microseconds"])
    return {"ran": "GPU"} | answer | {"share_of_bound": share}


def built_share(built: Built, microseconds: float | None) -> float | None:
    """The speed of light over the measured time; None where nothing was measured."""
    if microseconds is None:
        return None
    bound = speed_of_light(built.planned.candidate.problem, built.planned.sizes, built.planned.device)
    return bound.seconds * 1e6 / microseconds


def _on_cpu(
    checked: frontend.Checked, program: ir.Kernel, sizes: dict[str, int], seed: int, limit: float
) -> dict[str, Any]:
    cut = {name: min(size, _INTERPRETED) for name, size in sizes.items()}
    answer = _isolated("on_cpu", checked, program, cut, seed, limit, {})
    if "lost" in answer:
        return {"ran": "CPU", "ok": False} | answer
    return {"ran": "CPU", "interpreted_sizes": cut} | answer


def _isolated(
    what: str,
    checked: frontend.Checked,
    program: ir.Kernel,
    sizes: dict[str, int],
    seed: int,
    limit: float,
    more: dict[str, Any],
) -> dict[str, Any]:
    outcome = isolate.run(
        f"ucutlass.trials.run:{what}",
        {
            "text": checked.source,
            "file": checked.file,
            "name": program.name,
            "sizes": sizes,
            "seed": seed,
            **more,
        },
        limit_seconds=limit,
    )
    match outcome:
        case isolate.Returned(value):
            assert isinstance(value, dict)
            return value
        case isolate.Raised(kind, message):
            return {"lost": f"{kind}: {message}"}
        case isolate.Crashed(signal):
            return {"lost": f"the process of the kernel was ended by {signal}"}
        case isolate.TimedOut(seconds):
            return {"lost": f"the kernel did not end within {seconds:.0f} s and was killed"}
        case isolate.TooMuchMemory(limit_bytes):
            return {"lost": f"the process of the kernel passed {limit_bytes} bytes and was killed"}
        case isolate.Exited(status):
            return {"lost": f"the process of the kernel ended by itself with status {status}"}


def _report(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(row, indent=2))
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
        if row["microseconds"] is not None:
            lines.append(("time", f"{row['microseconds']:.2f} us, spread {row['spread']:.1%}"))
            lines.append(
                (
                    "speed of light",
                    f"{row['share_of_bound']:.0%} of {row['bound_device']}'s bound by {row['bound_limit']}, "
                    f"{row['bound_microseconds']:.2f} us",
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
                f"{row['bound_microseconds']:.2f} us on {row['bound_device']}, bound by {row['bound_limit']}",
            )
        )
    lines.append(("source", row["source"]))
    show.table(("", ""), lines)


