"""This module is `ucc profile`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from ucutlass import frontend, ir
from ucutlass.advice import Advice, Counters, KernelFacts, advise, facts_of, select
from ucutlass.backend import Built, build_kernel
from ucutlass.cli import gpu, inputs, show
from ucutlass.cli.advice import ledger_rows, past, rows, within_schedule
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import (
    WholeNumber,
    arch_option,
    json_option,
    kernel_option,
    seconds_option,
    sizes_option,
)
from ucutlass.handoff import program_payload
from ucutlass.ir.hardware import Device, device_named
from ucutlass.ir.schedule import scheduled
from ucutlass.ir.schedule import show as show_schedule
from ucutlass.runtime import isolation, system
from ucutlass.runtime.bench import gpu_lock
from ucutlass.runtime.evidence import Machine, Record
from ucutlass.runtime.profile import cuda_tools, metrics, ncu, sass
from ucutlass.runtime.profile.ledger import LedgerEntry, to_result
from ucutlass.runtime.statistics import paired_ratio
from ucutlass.runtime.store import EvidenceStore, record
from ucutlass.shapes import complete, parse_sizes
from ucutlass.tasks import hardware_counters
from ucutlass.tasks.built import kernel_payload
from ucutlass.tasks.profile import AGREE, timing_of
from ucutlass.tasks.record_subject import subject_of_built
from ucutlass.units import duration


@dataclass(frozen=True, slots=True)
class ProfileJob:
    """Describes a kernel to look at, built. `gpu` is None where there is none that runs it."""

    checked: frontend.Checked
    program: ir.Kernel
    sizes: Mapping[str, int]
    arch: str
    built: Built
    gpu: system.Gpu | None
    seed: int
    limit: float
    wait: float

    def trial(self) -> dict[str, Any]:
        """Returns the arguments that every trial of this job takes."""
        return {
            "program": program_payload(self.checked),
            "name": self.program.name,
            "sizes": dict(self.sizes),
            "arch": self.arch,
            "seed": self.seed,
        }


@click.command("profile")
@click.argument("file", required=False, type=inputs.existing())
@sizes_option
@kernel_option
@arch_option(None)
@click.option("--counters/--no-counters", default=True, help="Read hardware counters with Nsight Compute.")
@click.option("--energy", is_flag=True, help="Measure joules a launch, over 2 s of launches.")
@click.option(
    "--cache",
    type=click.Choice(("all", "none")),
    default="all",
    show_default=True,
    help="Flush all caches before each pass of the counters, or none.",
)
@click.option("--try", "tried", is_flag=True, help="Build and time the first edit too, and keep the outcome.")
@click.option("--ledger", is_flag=True, help="Show what each rule's edits brought so far, and do no more.")
@click.option("--seed", type=WholeNumber(), default=0, help="Seed of the random arguments.")
@seconds_option("--limit", 300.0, "Seconds that each process may take.")
@seconds_option("--wait", 600.0, "Seconds to wait for another process that times.")
@json_option
def command(
    file: Path | None,
    sizes: tuple[str, ...],
    name: str | None,
    arch: str | None,
    counters: bool,
    energy: bool,
    cache: ncu.CacheControl,
    tried: bool,
    ledger: bool,
    seed: int,
    limit: float,
    wait: float,
    as_json: bool,
) -> None:
    """Say what decides the time of FILE's kernel, and which edits of its schedule to try.

    Looks as far as this machine allows: counted facts, then the built kernel (ptxas and its
    disassembly), then timing on a GPU, then hardware counters; what could not be had is said with the
    reason. At most three findings, each with its numbers. The kernel runs in processes of its own.
    """
    with reported(as_json):
        if ledger:
            _ledger(as_json)
            return
        if file is None:
            fail(Status.CALL, "a FILE is needed, or --ledger", as_json)
        job = _job(inputs.read(file), name, parse_sizes(sizes), arch, seed, limit, wait)
        facts, row, missing = _gather_facts(job, counters, energy, cache)
        advice = advise(facts, past(job.built.planned.device))
        advice = within_schedule(advice, job.program, job.built.planned.sizes, job.arch)
        row |= {"advice": select.to_json(advice), "unavailable": missing}
        parent = _add_record(job, row)
        if tried:
            row["tried"] = _try(job, advice, parent)
        _report(row, advice, as_json)
    if "lost" in row:
        sys.exit(Status.PROGRAM)


def _job(
    checked: frontend.Checked,
    name: str | None,
    sizes: Mapping[str, int],
    arch: str | None,
    seed: int,
    limit: float,
    wait: float,
) -> ProfileJob:
    program = frontend.kernel(checked, name)
    extents = complete(program, sizes)
    local_gpu = gpu.at_hand()
    target = arch or (local_gpu.arch.name if local_gpu else "sm90a")
    device = local_gpu.device if local_gpu else None
    with show.building(program.name) as progress:
        built = build_kernel(checked, program, extents, target, device=device, on_progress=progress)
    return ProfileJob(
        checked, program, sizes, target, built, local_gpu.gpu if local_gpu else None, seed, limit, wait
    )


# --- looking ---------------------------------------------------------------------


def _gather_facts(
    job: ProfileJob, counters: bool, energy: bool, cache: ncu.CacheControl
) -> tuple[KernelFacts, dict[str, Any], dict[str, str]]:
    """Returns the facts, what was measured as JSON values, and why each missing tier is missing."""
    planned, missing = job.built.planned, dict[str, str]()
    row: dict[str, Any] = {
        "kernel": job.program.name,
        "sizes": dict(zip(job.program.dims, planned.sizes, strict=True)),
        "arch": job.arch,
        "schedule": show_schedule(planned.request),
        "device": planned.device.name,
    }
    codes = _disassembled(job)
    if isinstance(codes, sass.NoCode):
        missing["disassembly"] = codes.reason
    build = sass.build_facts(job.built.artifact.report, codes)
    row["build"] = asdict(build)
    planned_facts = facts_of(job.checked, job.program, planned)
    facts = replace(planned_facts, build=build)
    if job.gpu is None:
        absent = ("timing", "counters", "energy") if energy else ("timing", "counters")
        missing |= dict.fromkeys(absent, "no GPU here that runs this kernel")
        return facts, row, missing
    EvidenceStore.open().prepare()
    with _gpu_lock(job):
        return _measured(job, facts, row, missing, counters, energy, cache)


@contextmanager
def _gpu_lock(job: ProfileJob) -> Iterator[None]:
    """Holds the GPU lock, so that the job is alone on the GPU as far as processes of ours go. Raises
    LockTimeout, CacheError."""

    def announce(holder: str) -> None:
        show.note(f"ucc: waiting for {holder}, which times on this GPU")

    with gpu_lock.hold_gpu(gpu_lock.gpu_uuid(), timeout_seconds=job.wait, on_wait=announce):
        yield


def _measured(
    job: ProfileJob,
    facts: KernelFacts,
    row: dict[str, Any],
    missing: dict[str, str],
    counters: bool,
    energy: bool,
    cache: ncu.CacheControl,
) -> tuple[KernelFacts, dict[str, Any], dict[str, str]]:
    answer = _timed(job, energy)
    if "lost" in answer:
        missing |= {"timing": answer["lost"], "counters": "the kernel does not run"}
        return facts, row | {"lost": answer["lost"]}, missing
    row["timing"] = answer
    if "no_energy" in answer:
        missing["energy"] = answer["no_energy"]
    facts = replace(facts, timing=timing_of(answer))
    if not counters:
        return facts, row, missing | {"counters": "not asked for"}
    match _counted(job, cache):
        case ncu.NoCounters(reason):
            missing["counters"] = reason
        case ncu.KernelCounters(kernel, values, dropped, _):
            row["counters"] = {"kernel": kernel, "dropped": list(dropped), "cache": cache} | asdict(values)
            facts = replace(facts, counters=values)
            if none := _unknown(job, values):
                missing["single counters"] = f"unknown on this GPU: {', '.join(none)}"
    return facts, row, missing


def _disassembled(job: ProfileJob) -> tuple[sass.SassSummary, ...] | sass.NoCode:
    tool = cuda_tools.find("cuobjdump", os.environ)
    if tool is None:
        return sass.NoCode("no cuobjdump in CUDA_HOME, PATH or beside nvcc")
    return sass.read(job.built.artifact.library, tool)


def _payload(built: Built) -> dict[str, Any]:
    """Returns a built kernel as its process takes it."""
    return kernel_payload(built.planned, built.artifact.key)


def _timed(job: ProfileJob, energy: bool) -> dict[str, Any]:
    arguments = job.trial() | {
        "built": _payload(job.built),
        "energy": energy,
        "versions": dict(job.built.artifact.versions),
    }
    return _isolated("timed", arguments, job.limit)


def _isolated(what: str, arguments: dict[str, Any], limit: float) -> dict[str, Any]:
    outcome = isolation.run(f"ucutlass.tasks.profile:{what}", arguments, limit_seconds=limit)
    if not isinstance(outcome, isolation.Returned):
        return {"lost": isolation.failure_text(outcome, "the kernel")}
    assert isinstance(outcome.value, dict)
    return outcome.value


def _counted(job: ProfileJob, cache: ncu.CacheControl) -> ncu.KernelCounters | ncu.NoCounters:
    assert job.gpu is not None
    kernels = [u.kernel for u in job.built.artifact.report.usage]
    trial = job.trial() | {"built": _payload(job.built)}
    return hardware_counters.count(job.gpu.capability, trial, kernels, job.limit, cache)


def _unknown(job: ProfileJob, values: Counters) -> tuple[str, ...]:
    assert job.gpu is not None
    return metrics.unknown(values) if metrics.table_for(job.gpu.capability) else ()


# --- keeping ---------------------------------------------------------------------


def _add_record(job: ProfileJob, row: Mapping[str, Any]) -> Record | None:
    """Returns the record of what was measured; None where nothing was, or the kernel was lost."""
    if "timing" not in row:
        return None
    machine = Machine(**row["timing"]["machine"])
    protocol = {"clock": "events over graphs, rotated buffers", "counters": "ncu --clock-control none"}
    subject = subject_of_built(job.checked, job.program, job.built)
    profile_record = record("profile", subject, machine, protocol, json.loads(json.dumps(row)))
    EvidenceStore.open().add(profile_record)
    return profile_record


def _try(job: ProfileJob, advice: Advice, parent: Record | None) -> dict[str, Any]:
    """Builds the first finding's first edit, times it in turns with the kernel, and adds to the ledger."""
    first = next(((f, e) for f in advice.findings for e in f.edits), None)
    if first is None or job.gpu is None or parent is None:
        return {"lost": "no edit to try" if first is None else "nothing is timed without a GPU"}
    finding, edit = first
    edited = scheduled(job.program, job.arch, edit.request)
    extents = complete(job.program, job.sizes)
    device: Device | None = device_named(job.gpu.name)
    with show.building(f"{job.program.name}, edited") as progress:
        other = build_kernel(job.checked, edited, extents, job.arch, device=device, on_progress=progress)
    builds = {"now": _payload(job.built), "edit": _payload(other)}
    versions = dict(job.built.artifact.versions)
    with _gpu_lock(job):
        answer = _isolated("compared", job.trial() | {"builds": builds, "versions": versions}, job.limit)
    if "lost" in answer:
        return {"schedule": edit.schedule, "lost": answer["lost"]}
    if (apart := answer["differences"]["edit"]) > AGREE:
        return {"schedule": edit.schedule, "lost": f"results differ by {apart:.3g} of their norm"}
    ratio = paired_ratio(answer["times"]["edit"], answer["times"]["now"], job.seed)
    entry = LedgerEntry(
        finding.rule,
        advice.classified.bottleneck,
        show_schedule(job.built.planned.request),
        edit.schedule,
        (edit.expected.low, edit.expected.high),
        ratio.median,
        ratio.low,
        ratio.high,
    )
    protocol = {"clock": "events over graphs, rotated buffers", "order": "A B B A", "blocks": ratio.blocks}
    advice_record = record("advice", parent.subject, parent.machine, protocol, to_result(entry), (parent.id,))
    EvidenceStore.open().add(advice_record)
    return to_result(entry)


# --- saying ----------------------------------------------------------------------


def _report(row: dict[str, Any], advice: Advice, as_json: bool) -> None:
    if as_json:
        show.data(row)
        return
    sizes = " ".join(f"{n}={v}" for n, v in row["sizes"].items())
    lines = [
        ("kernel", f"{row['kernel']} {sizes}"),
        ("schedule", f"{row['arch']} {{ {row['schedule']} }}"),
        ("looked at", ", ".join(advice.tiers)),
        *((f"no {what}", why) for what, why in row["unavailable"].items()),
        ("bound", f"{duration(advice.bound.seconds)} on {row['device']}, by {advice.bound.limit}"),
        _time(row, advice),
    ]
    if energy := row.get("timing", {}).get("energy"):
        words = f"{energy['joules'] * 1e3:.3g} mJ a launch at {energy['watts']:.0f} W, idle not subtracted"
        lines.append(("energy", words + "".join(f"; {t}" for t in energy["throttled"])))
    lines += rows(advice)
    if tried := row.get("tried"):
        lines.append(("tried", tried["lost"] if "lost" in tried else _outcome(tried)))
    show.table(("", ""), lines)


def _time(row: Mapping[str, Any], advice: Advice) -> tuple[str, str]:
    share = f"{advice.bound.seconds / advice.seconds:.0%} of the bound's speed"
    if timing := row.get("timing"):
        return "time", f"{duration(timing['microseconds'] * 1e-6)}, spread {timing['spread']:.1%}: {share}"
    return "estimate", f"{duration(advice.seconds)}, nothing was timed: {share}"


def _outcome(tried: Mapping[str, Any]) -> str:
    low, high = tried["interval"]
    return f"{tried['ratio']:.3f} of the time ({low:.3f} to {high:.3f}): {tried['edit']}"


def _ledger(as_json: bool) -> None:
    lines = ledger_rows()
    if as_json:
        names = ("device", "rule", "name", "tried", "faster", "in range", "median ratio")
        show.data([dict(zip(names, line, strict=True)) for line in lines])
    elif not lines:
        show.say("no edit has been tried yet: ucc profile FILE -s .. --try adds one")
    else:
        head = ("device", "rule", "name", "tried", "faster", "in range", "median ratio")
        show.table(head, [[str(cell) for cell in line] for line in lines])
