"""This module is `ucc adopt`."""

from __future__ import annotations

import re
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click

from ucutlass import frontend, spans
from ucutlass.adopt import database as adopted
from ucutlass.adopt.database import AdoptedRow, UnknownSource
from ucutlass.adopt.refusals import SourceRefused
from ucutlass.adopt.source import read as read_source
from ucutlass.agent.adoption import AdoptionJob, AdoptionSettings, adopt, build
from ucutlass.backend import Built
from ucutlass.cli import gpu, inputs, show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import (
    WholeNumber,
    arch_option,
    grouped,
    json_option,
    kernel_option,
    part,
    seconds_option,
    sizes_option,
)
from ucutlass.ir.hardware import ARCHES
from ucutlass.runtime.gpu import CurrentGpu
from ucutlass.shapes import complete, parse_sizes
from ucutlass.tune.database import TuningDatabase, TuningKey
from ucutlass.units import duration


@dataclass(frozen=True, slots=True)
class _Seconds:
    build: float
    case: float
    bench: float
    limit: float
    wait: float


@click.command("adopt")
@click.argument("source", required=False, type=inputs.existing())
@click.option(
    "--for", "file", type=inputs.existing(), metavar="FILE", help="The program that the source computes."
)
@sizes_option
@kernel_option
@arch_option(None)
@click.option("--list", "listed", is_flag=True, help="List the adopted sources.")
@click.option(
    "--drop", "dropped", metavar="DIGEST", help="Remove a source by the first digits of its digest."
)
@click.option("--slower", is_flag=True, help="Adopt it even where the text's own kernel is faster.")
@click.option("--seed", type=WholeNumber(0), help="Repeat this seed's numbers; by default fresh ones.")
@grouped(
    "seconds",
    lambda values: part(_Seconds, values),
    seconds_option("--build", 600.0, "Seconds that the compiler may take."),
    seconds_option("--case", 120.0, "Seconds that a case of the verification may take."),
    seconds_option("--bench", 20.0, "Most seconds of measuring."),
    seconds_option("--limit", 600.0, "Seconds that the comparison's own process may take."),
    seconds_option("--wait", 600.0, "Seconds to wait for another process that times."),
)
@json_option
def command(
    source: Path | None,
    file: Path | None,
    sizes: tuple[str, ...],
    name: str | None,
    arch: str | None,
    listed: bool,
    dropped: str | None,
    slower: bool,
    seed: int | None,
    seconds: _Seconds,
    as_json: bool,
) -> None:
    """Adopt SOURCE, CUDA that was edited or written by hand, for a kernel of FILE at these extents.

    Native code runs with your rights: read what you adopt. It is checked as text, object and PTX, verified
    with every sanitizer, timed in turns with the text's own kernel, and audited; then
    `ucutlass.load(.., tuned=True)` takes it on this GPU for exactly these extents. Without an NVIDIA GPU it is
    checked and built, nothing is adopted, and the exit status is 3.
    """
    with reported(as_json):
        if listed or dropped is not None:
            if source is not None or file is not None or (listed and dropped is not None):
                raise click.UsageError("--list and --drop stand alone")
            _list(as_json) if dropped is None else _drop(dropped, as_json)
            return
        if source is None or file is None:
            raise click.UsageError("name a source, and the program that it computes with --for FILE")
        chosen_seed = secrets.randbits(63) if seed is None else seed
        settings = AdoptionSettings(
            chosen_seed, seconds.build, seconds.case, seconds.bench, seconds.limit, seconds.wait, slower
        )
        try:
            row = _adopt(source, file, sizes, name, arch, settings, as_json)
        except SourceRefused as refused:
            _refuse(refused, as_json)
    _report(row, as_json)


def _adopt(
    source: Path,
    file: Path,
    sizes: tuple[str, ...],
    name: str | None,
    arch: str | None,
    settings: AdoptionSettings,
    as_json: bool,
) -> dict[str, Any]:
    checked = inputs.read(file)
    program = frontend.kernel(checked, name)
    extents = complete(program, parse_sizes(sizes))
    local_gpu = gpu.at_hand()
    target = arch or (local_gpu.arch.name if local_gpu else "sm90a")
    device = local_gpu.device if local_gpu else None
    text = read_source(source, "sm_" + ARCHES[target].name.removeprefix("sm"), inputs.content)
    job = AdoptionJob(checked, program, extents, target, device, text)
    with spans.recording() as seconds:
        with show.building(program.name) as progress:
            built = build(job, settings, progress)
        return _judged(job, built, local_gpu, settings, source, seconds, as_json)


def _judged(
    job: AdoptionJob,
    built: Built,
    local_gpu: CurrentGpu | None,
    settings: AdoptionSettings,
    source: Path,
    seconds: spans.SpanRecording,
    as_json: bool,
) -> dict[str, Any]:
    if local_gpu is None:
        words = (
            f"{inputs.name(source)} passed what can be checked without a GPU, and was not adopted: there is no "
            "NVIDIA GPU here that a compile target serves"
        )
        fail(Status.MACHINE, words, as_json)
    row = adopt(job, built, local_gpu.gpu.name, settings, on_step=lambda step: show.note(f"ucc: {step}"))
    seconds_by_part = {name: round(took, 2) for name, took in seconds.seconds.items() if took >= 0.005}
    return _row(local_gpu.gpu.name, job.arch, job.sizes, row) | {"seconds": seconds_by_part}


def _refuse(refused: SourceRefused, as_json: bool) -> NoReturn:
    if as_json:
        show.data({"error": str(refused), "refusal": refused.code, "status": int(Status.PROGRAM)})
        sys.exit(Status.PROGRAM)
    fail(Status.PROGRAM, f"not adopted: {refused}", as_json)


def _list(as_json: bool) -> None:
    rows = [_of(key, row) for key, row in adopted.rows(TuningDatabase.open())]
    if as_json:
        show.data(rows)
        return
    show.table(
        ("source", "kernel", "extents", "device", "state", "time", "text's", "adopted"),
        [
            (
                row["source"][:16],
                row["kernel"],
                "x".join(map(str, row["extents"])),
                f"{row['device']} {row['arch']}",
                row["state"],
                duration(row["microseconds"] * 1e-6) if row["microseconds"] else "",
                duration(row["rival"] * 1e-6) if row["rival"] else "",
                row["created"],
            )
            for row in rows
        ],
    )


def _drop(digest: str, as_json: bool) -> None:
    if not re.fullmatch(r"[0-9a-f]{4,64}", digest):
        raise click.BadParameter(f"{digest!r} is no digest: 4 to 64 hex digits", param_hint="'--drop'")
    try:
        count = adopted.drop(TuningDatabase.open(), digest)
    except UnknownSource as unknown:
        fail(Status.CALL, str(unknown), as_json)
    if as_json:
        show.data({"dropped": count})
    else:
        show.line("dropped", str(count))


def _of(key: TuningKey, row: AdoptedRow) -> dict[str, Any]:
    return _row(key.device, key.arch, key.extents, row)


def _row(device: str, arch: str, extents: tuple[int, ...], row: AdoptedRow) -> dict[str, Any]:
    return {
        "source": row.source,
        "kernel": row.kernel,
        "device": device,
        "arch": arch,
        "extents": list(extents),
        "state": row.state,
        "microseconds": row.microseconds,
        "rival": row.rival,
        "records": list(row.records),
        "created": row.created,
    }


def _report(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show.data(row)
        return
    lines = [
        ("adopted", row["source"][:16]),
        ("kernel", f"{row['kernel']} {'x'.join(map(str, row['extents']))}"),
        ("device", f"{row['device']} {row['arch']}"),
        ("time", duration(row["microseconds"] * 1e-6)),
        ("text's own", duration(row["rival"] * 1e-6)),
        *(("record", record[:16]) for record in row["records"]),
        ("seconds", ", ".join(f"{name} {took:.1f}" for name, took in row["seconds"].items())),
    ]
    show.table(("", ""), lines)
