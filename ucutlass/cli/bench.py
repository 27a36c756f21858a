"""This module is `ucc bench`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ucutlass import frontend
from ucutlass.assembly import build_program
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
from ucutlass.diagnostics import ProgramError
from ucutlass.handoff import program_payload
from ucutlass.ir.hardware import Device
from ucutlass.runtime import isolation
from ucutlass.runtime.bench import gpu_lock
from ucutlass.runtime.bench.protocol import CacheRegime, Protocol
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.store import EvidenceStore
from ucutlass.shapes import ShapeError, complete, parse_sizes
from ucutlass.tasks.bench_record import BenchedProgram, describe, recorded, share
from ucutlass.tasks.built import built_payload
from ucutlass.units import duration

NAMES = ("eager", "compile", "compile-max-autotune", "cublas")
"""As `ucutlass.runtime.bench.baselines.BASELINES`, which takes torch to import."""

_NO_GPU = "nothing was timed: there is no NVIDIA GPU here that a compile target serves"

_REGIMES: Mapping[str, tuple[CacheRegime, ...]] = {
    "cold": ("cold",),
    "warm": ("warm",),
    "both": ("cold", "warm"),
}


def _names(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value not in NAMES and not value.endswith(".ucu"):
            raise click.BadParameter(f"{value!r} is none of {', '.join(NAMES)}, and no .ucu file")
        if value not in NAMES and not Path(value).is_file():
            raise click.BadParameter(f"there is no file {value}")
    return tuple(dict.fromkeys(values))


@click.command("bench")
@file_argument
@sizes_option
@kernel_option
@arch_option(None)
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    callback=_names,
    metavar="NAME|FILE",
    help=f"What to compare with: {', '.join(NAMES)}, or another .ucu file; may be repeated.",
)
@click.option(
    "--regime",
    type=click.Choice(tuple(_REGIMES)),
    default="cold",
    show_default=True,
    help="Operands from memory, from the L2 as far as they fit, or one after the other.",
)
@seconds_option("--seconds", 20.0, "Most seconds of measuring, each regime.")
@click.option("--seed", type=WholeNumber(), default=0, help="Seed of the random arguments.")
@seconds_option("--limit", 600.0, "Seconds that the comparison's own process may take.")
@seconds_option("--wait", 600.0, "Seconds to wait for another process that times.")
@json_option
def command(
    file: Path,
    sizes: tuple[str, ...],
    name: str | None,
    arch: str | None,
    baselines: tuple[str, ...],
    regime: str,
    seconds: float,
    seed: int,
    limit: float,
    wait: float,
    as_json: bool,
) -> None:
    """Time FILE's kernel or pipeline on the GPU against baselines, in turns.

    The kernel is verified first: a wrong one has no speed. Times are of the kernels on the device (CUPTI),
    checked by CUDA events and the host's clock. 'faster' is said where a 95 % interval says so.
    Every comparison becomes a record (`ucc results`).
    """
    with reported(as_json):
        free_sizes = parse_sizes(sizes)
        checked = inputs.read(file)
        complete(frontend.program(checked, name), free_sizes)  # the call's mistakes before the machine's
        local_gpu = gpu.at_hand()
        if local_gpu is None:
            fail(Status.MACHINE, _NO_GPU, as_json)
        EvidenceStore.open().prepare()
        target = arch or local_gpu.arch.name
        device = local_gpu.device
        ours = _build_described(checked, name, free_sizes, target, device)
        others = {b: _other(Path(b), free_sizes, target, device) for b in baselines if b not in NAMES}
        files = {b: other for b, other in others.items() if isinstance(other, BenchedProgram)}
        protocols = [
            Protocol(regime=r, max_seconds=seconds, seed=seed, min_seconds=min(1.0, seconds))
            for r in _REGIMES[regime]
        ]
        arguments = {
            "program": program_payload(checked),
            "built": built_payload(ours.built),
            "name": ours.program.name,
            "sizes": free_sizes,
            "arch": target,
            "seed": seed,
            "baselines": [_baseline(b, others.get(b)) for b in baselines],
            "protocols": [asdict(p) for p in protocols],
            "bandwidth": device.bandwidth if device else None,
        }
        with gpu_lock.hold_gpu(gpu_lock.gpu_uuid(), timeout_seconds=wait, on_wait=_announce):
            outcome = isolation.run("ucutlass.tasks.bench:on_gpu", arguments, limit_seconds=limit)
        row = describe(ours) | _answered(outcome, ours.program.name, as_json)
        for report in row["regimes"]:
            share(report, ours, device)
        row["records"] = recorded(row, ours, files)
    _report(row, as_json)
    if not _ok(row):
        sys.exit(Status.PROGRAM)


def _baseline(name: str, other: BenchedProgram | str | None) -> dict[str, Any]:
    """Returns a baseline as the comparison's process takes it; a file goes as what it was built to."""
    match other:
        case None:
            return {"name": name}
        case str(words):
            return {"name": name, "refused": words}
        case BenchedProgram(checked, _, built):
            return {"name": name, "program": program_payload(checked), "built": built_payload(built)}


def _build_described(
    checked: frontend.Checked, name: str | None, sizes: Mapping[str, int], arch: str, device: Device | None
) -> BenchedProgram:
    """Raises ProgramError, ShapeError, and what `build_kernel` raises."""
    program = frontend.program(checked, name)
    extents = complete(program, sizes)
    with show.building(program.name) as progress:
        built = build_program(checked, program, extents, arch, device=device, on_progress=progress)
    return BenchedProgram(checked, program, built)


def _other(file: Path, sizes: Mapping[str, int], arch: str, device: Device | None) -> BenchedProgram | str:
    """Returns a baseline that is a file, built before the GPU is taken; where it cannot be built, why, which
    the report says. Raises OSError."""
    try:
        return _build_described(inputs.checked(file), None, sizes, arch, device)
    except (ProgramError, ShapeError, BuildError) as refused:
        return f"{type(refused).__name__}: {refused}"


def _announce(holder: str) -> None:
    show.note(f"ucc: waiting for {holder}, which times on this GPU")


def _answered(outcome: isolation.CallOutcome, kernel: str, as_json: bool) -> dict[str, Any]:
    """Returns what the process found; ends the command where it was lost."""
    if not isinstance(outcome, isolation.Returned):
        fail(Status.PROGRAM, f"{kernel}: {isolation.failure_text(outcome, 'the comparison')}", as_json)
    assert isinstance(outcome.value, dict)
    return outcome.value


def _ok(row: Mapping[str, Any]) -> bool:
    """Returns whether the kernel was right and has a time that can be trusted in every regime."""
    firsts = [r["outcomes"][0] for r in row["regimes"]]
    return all(v["ok"] for v in row["verified"]) and all(o.get("trusted") for o in firsts)


# --- words ---------------------------------------------------------------------------


def _report(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show.data(row)
        return
    sizes = " ".join(f"{n}={v}" for n, v in row["sizes"].items())
    head = [("kernel", f"{row['kernel']} {sizes}"), ("schedule", f"{row['arch']}: {row['schedule']}")]
    head.append(("device", row["device"]))
    if wrong := [v for v in row["verified"] if not v["ok"]]:
        head += [(f"wrong, {v['case']}", v["words"].replace("\n", "; ")) for v in wrong]
        head.append(("time", "none: a wrong kernel has no speed"))
    show.table(("", ""), head)
    for report in row["regimes"]:
        _regime(report)
    _stages(row.get("stages", ()))
    for record_id in row["records"]:
        show.line("record", record_id[:16])


def _stages(stages: Sequence[Mapping[str, Any]]) -> None:
    """Prints a pipeline's stages alone, one after the other, and what of it torch functions take."""
    total = sum(s["microseconds"] for s in stages)
    if not total:
        return
    lines = [
        (
            s["name"],
            duration(s["microseconds"] * 1e-6),
            f"{s['microseconds'] / total:.0%}",
            "torch" * s["torch"],
        )
        for s in stages
    ]
    show.table(("stage", "time", "share", ""), lines)
    share = sum(s["microseconds"] for s in stages if s["torch"]) / total
    show.line("torch functions", f"{share:.0%} of the stages' time")


def _regime(report: Mapping[str, Any]) -> None:
    rotated = report["buffers"]
    show.say(
        f"{report['protocol']['regime']}: {rotated['sets']} sets of {rotated['bytes_per_set'] / 1e6:.1f} MB, "
        f"{report['rounds']} rounds in {report['seconds']:.1f} s"
    )
    versus = {v["baseline"]: v for v in report["versus"]}
    show.table(
        ("", "median", "p10 to p90", "clock", "SM", "of the bound", "ratio", "verdict"),
        [_line(o, report, versus.get(o["name"])) for o in report["outcomes"]],
    )
    for outcome in report["outcomes"]:
        for finding in outcome["findings"]:
            show.line(finding["level"], f"{outcome['name']}: {finding['name']}: {finding['message']}")
    for finding in report["findings"]:
        show.line(finding["level"], f"{finding['name']}: {finding['message']}")


def _line(
    outcome: Mapping[str, Any], report: Mapping[str, Any], versus: Mapping[str, Any] | None
) -> Sequence[str]:
    if "failed" in outcome:
        return (outcome["name"], f"failed in {outcome['failed']}: {outcome['words']}", *[""] * 6)
    span, clock = outcome["span"], outcome["sm_clock"]
    bound = report["bound_at_clock"] or report["bound"]
    ratio = versus["ratio"] if versus else None
    verdict = (versus["verdict"] or versus["reason"]) if versus else ""
    return (
        outcome["name"],
        duration(span["median"] * 1e-6),
        f"{span['p10']:.2f} to {span['p90']:.2f}",
        outcome["clock"],
        f"{clock / 1e6:.0f} MHz" if clock else "unknown",
        f"{bound / span['median']:.0%}" if bound else "",
        f"{ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio else "",
        verdict,
    )
