"""This module is `ucc verify`."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ucutlass import frontend, ir
from ucutlass.assembly import AnyBuilt, build_program
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
from ucutlass.runtime.distributions import MEANINGS
from ucutlass.shapes import complete, parse_sizes


@dataclass(frozen=True, slots=True)
class _Options:
    seed: int
    distributions: tuple[str, ...]
    most: int
    limit: float
    wait: float
    sanitize: bool


@click.command("verify")
@file_argument
@sizes_option
@kernel_option
@arch_option(None)
@click.option("--seed", type=WholeNumber(0), help="Repeat this seed's run; by default a fresh one.")
@click.option(
    "--distribution",
    "distributions",
    multiple=True,
    type=click.Choice(tuple(MEANINGS)),
    help="Only these numbers at the asked extents; may be repeated.",
)
@click.option("--cases", "most", default=64, show_default=True, type=WholeNumber(1), help="Cases at most.")
@click.option("--sanitize", is_flag=True, help="Also run reduced extents under compute-sanitizer's tools.")
@seconds_option("--limit", 120.0, "Seconds that a case may take.")
@seconds_option("--wait", 600.0, "Seconds to wait for another process that times.")
@json_option
def command(
    file: Path,
    sizes: tuple[str, ...],
    name: str | None,
    arch: str | None,
    seed: int | None,
    distributions: tuple[str, ...],
    most: int,
    limit: float,
    wait: float,
    sanitize: bool,
    as_json: bool,
) -> None:
    """Hold FILE's kernel or pipeline against the float64 reference, on many inputs and extents.

    Every case runs on poisoned, guarded memory in a process that it may crash. The verdict is
    kept as an evidence record. Needs an NVIDIA GPU: without one nothing is verified, and the exit
    status is 3.
    """
    chosen = secrets.randbits(63) if seed is None else seed
    options = _Options(chosen, distributions, most, limit, wait, sanitize)
    with reported(as_json):
        checked = inputs.read(file)
        program = frontend.program(checked, name)
        free_sizes = parse_sizes(sizes)
        extents = complete(program, free_sizes)
        local_gpu = gpu.at_hand()
        if local_gpu is None:
            words = "nothing was verified: there is no NVIDIA GPU here that a compile target serves"
            fail(Status.MACHINE, words, as_json)
        target = arch or local_gpu.arch.name
        with show.building(program.name) as progress:
            built = build_program(
                checked, program, extents, target, device=local_gpu.device, on_progress=progress
            )
        row = _verify(checked, program, built, dict(zip(program.dims, extents, strict=True)), options)
    _report(row, as_json)
    if not row["ok"]:
        sys.exit(_status(row))


def _status(row: dict[str, Any]) -> Status:
    """Returns the exit status: it is the machine's fault where all that is missing is a tool that does not run here."""
    right = all(case["ok"] for case in row["cases"]) and row["cases"]
    tools = all(s["status"] in ("clean", "not available") for s in row["sanitizers"])
    return Status.MACHINE if right and tools else Status.PROGRAM


def _gpu_lock(wait: float) -> AbstractContextManager[None]:
    """Holds the GPU lock: a comparison that is being timed must not share the device with this."""
    from ucutlass.runtime.bench.gpu_lock import gpu_uuid, hold_gpu

    def waiting(holder: str) -> None:
        show.note(f"ucc: waiting for {holder}, which times on this GPU")

    return hold_gpu(gpu_uuid(), timeout_seconds=wait, on_wait=waiting)


def _verify(
    checked: frontend.Checked, program: ir.Program, built: AnyBuilt, sizes: dict[str, int], options: _Options
) -> dict[str, Any]:
    from ucutlass.runtime import store
    from ucutlass.tasks import verification
    from ucutlass.tasks.record_subject import subject_of_built

    store.EvidenceStore.open().prepare()
    subject = subject_of_built(checked, program, built)
    plan = verification.plan(
        checked,
        program,
        built,
        sizes,
        seed=options.seed,
        distributions=options.distributions,
        most=options.most,
    )
    with _gpu_lock(options.wait):
        machine = verification.machine(built)
        evidence = verification.run(plan, case_seconds=options.limit, sanitize=options.sanitize)
    result = evidence.to_json()
    protocol = verification.protocol(plan, options.limit)
    record_id = store.record("verify", subject, machine, protocol, result)
    store.EvidenceStore.open().add(record_id)
    return {
        "kernel": program.name,
        "sizes": sizes,
        "arch": subject.arch,
        "schedule": subject.schedule,
        "device": machine.device,
        "record": record_id.id,
        **result,
    }


# --- words -------------------------------------------------------------------------------


def _report(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show.data(row)
        return
    columns = ("case", "extents", "error / bound", "at", "tile position", "")
    show.table(columns, [_line(case) for case in row["cases"]])
    lines = [(f"sanitizer {s['tool']}", f"{s['status']}: {s['message']}") for s in row["sanitizers"]]
    lines += [("left out", f"{entry['what']}: {entry['why']}") for entry in row["left_out"]]
    lines += [("left open", words) for words in row["open"]]
    lines += [("against it", words) for words in row["failures"]]
    right = sum(case["outcome"] == "right" for case in row["cases"])
    verdict = "right" if row["ok"] else "not verified"
    lines += [
        ("kernel", f"{row['kernel']} {row['arch']}: {row['schedule']}"),
        ("ran on", row["device"]),
        ("verdict", f"{verdict}: {right} of {len(row['cases'])} cases right{_by_stages(row['cases'])}"),
        ("repeat with", f"--seed {row['seed']}"),
        ("record", row["record"][:16]),
    ]
    show.table(("", ""), lines)


def _by_stages(cases: Sequence[dict[str, Any]]) -> str:
    resting = sum(case["rests_on_stages"] for case in cases)
    words = f", {resting} of them by their stages: end to end nothing is known there"
    return words if resting else ""


def _line(case: dict[str, Any]) -> Sequence[str]:
    kind = "" if case["kind"] in ("values", "edge") else f"{case['kind']} "
    extents = " ".join(f"{d}={n}" for d, n in case["sizes"].items())
    within = [(stage["name"], c) for stage in case["stages"] for c in stage["comparisons"]]
    every = [*(("", c) for c in case["comparisons"]), *within]
    stage, worst = max(every, key=lambda entry: float(entry[1]["worst"]), default=("", None))
    if worst is None:
        ending = "refused" if case["ok"] else case["outcome"]
        return f"{kind}{case['distribution']}", extents, "-", "-", "-", ending
    place = ",".join(map(str, worst["index"])) + (f" of {stage}" if stage else "")
    tile = "-" if worst["in_tile"] is None else ",".join(map(str, worst["in_tile"]))
    error = f"{float(worst['worst']):.3g}"
    return f"{kind}{case['distribution']}", extents, error, place, tile, case["outcome"]
