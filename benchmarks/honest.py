"""Honest kernels for `benchmarks.mutants`: random programs, built and run as they are, which judge and audit
must let pass."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks import campaign, harness
from tests import emulated
from tests.emit import emulator
from tests.emit.harness import HOST_SHIM
from tests.mutants.emulated import Prepared, exposed
from tests.mutants.gpu import is_built, loaded
from tests.random_programs import WARPS, random_program
from tests.soundness.lowering import distinct_scalars
from ucutlass import frontend
from ucutlass.agent.integrity import audit
from ucutlass.agent.integrity.bundle import (
    ArtefactDigests,
    EvidenceBundle,
    MissingEvidence,
    VerifiedCase,
    VerifyEvidence,
)
from ucutlass.agent.integrity.gather import probe_of
from ucutlass.backend import source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.handoff import program_payload
from ucutlass.runtime import verify
from ucutlass.runtime.inputs import Distribution, generate
from ucutlass.runtime.verify.suite import suite
from ucutlass.shapes import complete
from ucutlass.tasks.audit import probe

DISTRIBUTIONS: tuple[Distribution, ...] = (
    "integer",
    "residue",
    "normal",
    "positive",
    "negated",
    "wide",
    "zeros",
    "special",
)
RULES = ("seal", "correct", "ancestors", "lane", "insensitive", "constant", "tolerance")
"""What can be said of a kernel without a time."""

UNDECIDED = "undecided"
"""The verdict where nothing is wrong and the derived bounds, which are the program's alone, say nothing of most elements
on numbers that do not strain it: `ucc verify` calls no kernel of it right."""

LIMIT_SECONDS = 900.0
"""For one kernel on the host, g++ and emulation included."""

GPU_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Honest:
    """`verdict` is the audit's by RULES, or UNDECIDED. A problem of chance may be flawed, which is no conviction of its
    kernel; every other objection is a false alarm. `rms` is the largest of all cases."""

    name: str
    verdict: str
    words: str
    worst: float = 0.0
    rms: float = 0.0

    @property
    def ok(self) -> bool:
        return self.verdict in ("ok", "minor", "flawed-problem", UNDECIDED)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.ok}


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    text: str
    sizes: dict[str, int]


def jobs(count: int, seed: int, device: str) -> list[Job]:
    """Programs with a legal schedule: small ones of the emulable kernels, or any that nvcc builds alone, for a GPU."""
    return list(islice(_jobs(seed, device), count))


def _jobs(seed: int, device: str) -> Iterator[Job]:
    cpu = device == "cpu"
    while True:
        program = random_program(seed, emulated.EMULABLE if cpu else WARPS, small=cpu)
        job = Job(f"seed {seed}", program.text, program.sizes)
        seed += 1
        try:
            kernel = prepared(job)
        except ProgramError:
            continue
        if not kernel.source.in_parts:  # the campaign builds by nvcc
            yield job


def prepared(job: Job) -> Prepared:
    """Raises ProgramError where no legal schedule serves the job."""
    checked = frontend.read_text(job.text)
    kernel = frontend.kernel(checked)
    sizes = complete(kernel, job.sizes)
    planned = frontend.plan_kernel(checked, kernel, sizes, emulated.ARCH).planned
    return Prepared(kernel, job.sizes, planned, source_of(checked, kernel, planned))


def judge(
    chosen: Sequence[Job], libraries: Mapping[str, str], rows: Path, processes: int = 1
) -> list[Honest]:
    """Judges the jobs in `processes` that they share, rows to the file as they come. `libraries`: by
    name, for the GPU, `not built: ..` among them; a job without one runs on the host."""
    unbuilt = {name: library for name, library in libraries.items() if not is_built(library)}
    for job in chosen:
        if job.name in unbuilt:
            harness.append(rows, Honest(job.name, "unproven", unbuilt[job.name]).as_json())
    built = [job for job in chosen if job.name not in unbuilt]
    items = [{"name": j.name, "job": asdict(j), "library": libraries.get(j.name, "")} for j in built]
    seconds = GPU_SECONDS if libraries else LIMIT_SECONDS
    environs = [None] * processes
    campaign.run("benchmarks.honest:judged_row", items, rows, item_seconds=seconds, environs=environs)
    known = {row["name"]: row for row in harness.lines(rows)}
    return [from_row(known[job.name]) for job in chosen]


def from_row(row: Mapping[str, Any]) -> Honest:
    """Returns what a row of `judge` says; a job whose process was lost is unproven."""
    if "verdict" in row:
        return Honest(*(row[f.name] for f in fields(Honest)))
    return Honest(row["name"], "unproven", f"{row['error']}: {row['detail']}"[-600:])


def judged_row(item: dict[str, Any]) -> dict[str, Any]:
    """Runs in the child of `campaign.run`."""
    return Honest(item["name"], **judged_here(item["job"], item["library"])).as_json()


def judged_here(job: dict[str, Any], library: str) -> dict[str, Any]:
    """The fields of `Honest` but the name; on the host without a library, else on the GPU."""
    torch.set_num_threads(1)
    task = Job(**job)
    kernel = prepared(task)
    device = "cuda" if library else "cpu"
    launch = loaded(kernel, Path(library)) if library else _emulated(kernel)
    scalars = distinct_scalars(kernel.kernel)
    cases, failures, undecided = [], [], []
    # The suite leaves out numbers that say nothing about a program, such as those that overflow f16 sums.
    drawn = suite(kernel.kernel, kernel.sizes, seed=5, distributions=DISTRIBUTIONS, most=len(DISTRIBUTIONS))
    for case in drawn.cases:
        if case.kind != "values" or dict(case.sizes) != dict(kernel.sizes):
            continue
        arguments = generate(
            kernel.kernel, kernel.sizes, case.distribution, seed=case.seed, scalars=scalars, device=device
        )
        verdict = verify.check(kernel.kernel, launch, arguments)
        left_open = verdict.state == "undecided" and case.strains
        said = [] if verdict.ok or left_open else [f"{case.distribution}: {verdict}"]
        undecided += said if verdict.state == "undecided" else []
        failures += [] if verdict.state == "undecided" else said
        cases.append(_case(case.distribution, verdict, left_open or verdict.state == "undecided"))
    proof = VerifyEvidence("here", ArtefactDigests("", "", ""), not failures, tuple(cases), tuple(failures))
    why = MissingEvidence("no part of this")
    program = program_payload(frontend.read_text(task.text, f"{task.name}.ucu"))
    answers = probe(program, kernel.kernel.name, {d: kernel.sizes[d] for d in task.sizes}, 0)
    bundle = EvidenceBundle(kernel.kernel, None, why, proof, why, why, probe_of(answers), (), (), why, ())
    opinion = audit(bundle, RULES)
    objections = "; ".join(f"{f.rule}: {f.words}" for f in opinion.findings)
    accepted = opinion.verdict in ("ok", "minor")
    return {
        "verdict": UNDECIDED if undecided and accepted else opinion.verdict,
        "words": ("; ".join(undecided) if undecided and accepted else objections)[:600],
        "worst": max(c.worst for c in cases),
        "rms": max((c.rms for c in cases if c.rms is not None), default=0.0),
    }


def _case(name: str, verdict: verify.LaunchVerdict, left_open: bool) -> VerifiedCase:
    compared = verdict.comparisons
    return VerifiedCase(
        name,
        verdict.ok or left_open,
        max(c.worst for c in compared),
        max((c.rms for c in compared if c.rms is not None), default=None),
        all(c.varies for c in compared),
        all(c.reference_varies for c in compared),
        left_open,
    )


def _emulated(kernel: Prepared) -> verify.DirectLaunch:
    folder = Path(tempfile.mkdtemp(prefix="honest-"))
    try:
        text = f"#include <cmath>\n{HOST_SHIM}{kernel.source.text}"
        entry = emulator.build(replace(kernel.source, text=text), folder)
    finally:
        shutil.rmtree(folder)
    return exposed(entry, kernel.planned)
