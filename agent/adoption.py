"""Adopts CUDA source that was written or edited by hand for a program at concrete extents.

What a schedule guarantees by construction is a claim here. So the source is looked at as text, as object code
and as PTX before its code runs, and then held to what any schedule is held to: the whole suite and every
sanitizer, a comparison in turns with the text's own kernel, and the audit. Each step refuses in its own words,
and nothing is served before the last one has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any

from ucutlass import frontend, ir
from ucutlass.adopt import database as adopted
from ucutlass.adopt import fences, host
from ucutlass.adopt.database import AdoptedRow
from ucutlass.adopt.lookup import versions_of
from ucutlass.adopt.refusals import SourceRefused
from ucutlass.adopt.source import digest_of
from ucutlass.agent.integrity import audit
from ucutlass.agent.integrity.audit_record import record_of
from ucutlass.agent.integrity.gather import AuditSubject, gather
from ucutlass.agent.integrity.machine_precision import machine_losses
from ucutlass.agent.integrity.precision import DeclaredPrecision
from ucutlass.backend import Built, build_adopted, build_kernel, source_of, toolchain
from ucutlass.emit import NotServed
from ucutlass.emit.text import Source
from ucutlass.handoff import program_payload
from ucutlass.ir.hardware import Device
from ucutlass.runtime import isolation, nvcc
from ucutlass.runtime.bench.gpu_lock import gpu_uuid, hold_gpu
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.runtime.entry_codes import CUDA_BASE, CUTLASS_BASE
from ucutlass.runtime.evidence import Record
from ucutlass.runtime.progress import OnProgress, ignore
from ucutlass.runtime.store import EvidenceStore, record
from ucutlass.spans import span
from ucutlass.tasks import verification
from ucutlass.tasks.bench_record import BenchedProgram, describe, recorded, share
from ucutlass.tasks.built import built_payload
from ucutlass.tasks.record_subject import subject_of_built
from ucutlass.tune.database import TuningDatabase, key_of
from ucutlass.tune.lookup import recall

WORKSPACE_SECONDS = 60.0
"""What the entry may take to answer, with the loading of its library."""

MOST_WORKSPACE = 1 << 38
"""Bytes; more than any GPU has."""


@dataclass(frozen=True, slots=True)
class AdoptionJob:
    """A source and what it is adopted for: every extent in the order of `program.dims`."""

    checked: frontend.Checked
    program: ir.Kernel
    sizes: tuple[int, ...]
    arch: str
    device: Device | None
    source: Source

    @property
    def named_sizes(self) -> dict[str, int]:
        return dict(zip(self.program.dims, self.sizes, strict=True))


@dataclass(frozen=True, slots=True)
class AdoptionSettings:
    """Seconds bound the compiler (`build`), each case of the suite (`case`), the comparison's measuring
    (`bench`), its process (`limit`), and the wait for another process that times (`wait`). `slower`: a source
    that is slower than the text's own kernel is adopted all the same."""

    seed: int
    build: float = 600.0
    case: float = 120.0
    bench: float = 20.0
    limit: float = 600.0
    wait: float = 600.0
    slower: bool = False


# --- without a GPU -------------------------------------------------------------------


def build(job: AdoptionJob, settings: AdoptionSettings, on_progress: OnProgress = ignore) -> Built:
    """Builds the source as nvcc builds an emitted one, and looks at what came of it. No code of it has run
    afterwards but the answer to how much workspace it needs.

    Raises SourceRefused, ProgramError where the program has no kernel for these extents, and what
    `ucutlass.runtime.build.build` raises: BuildTimedOut for a source at which the compiler hangs.
    """
    chosen = frontend.plan_kernel(job.checked, job.program, job.sizes, job.arch, job.device)
    built = build_adopted(chosen, job.source, limit_seconds=settings.build, on_progress=on_progress)
    _check_object(job, built)
    _ask_workspace(job, built)
    return built


@span("checking the object")
def _check_object(job: AdoptionJob, built: Built) -> None:
    folder = built.artifact.folder
    try:
        host.check((folder / nvcc.OBJECT).read_bytes(), job.source.entry)
        ptx = (folder / nvcc.PTX).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError as problem:
        raise SourceRefused("object", f"the compiler left no {problem.filename}") from problem
    if losses := machine_losses(job.program, ptx):
        words = "; ".join(f"{loss.where} works in {loss.name}" for loss in losses[:3])
        raise SourceRefused("precision", words)
    fences.check(ptx)


@span("asking for the workspace")
def _ask_workspace(job: AdoptionJob, built: Built) -> None:
    problem = built.planned.plan.problem
    outcome = isolation.run(
        "ucutlass.tasks.adopted:workspace",
        {
            "library": str(built.artifact.library),
            "entry": built.artifact.entry,
            "extents": list(job.sizes),
            "pointers": problem.pointers,
            "scalars": problem.scalars,
            "launch": list(built.planned.launch),
        },
        limit_seconds=WORKSPACE_SECONDS,
    )
    match outcome:
        case isolation.Returned({"code": 0, "bytes": int(size)}) if size <= MOST_WORKSPACE:
            return
        # Without a driver an entry that asks for the device cannot answer; verification asks it again.
        case isolation.Returned({"code": int(code)}) if CUDA_BASE < code < CUTLASS_BASE:
            return
        case isolation.Raised("DriverMissing", _):
            return
        case isolation.Returned({"code": code, "bytes": size}):
            raise SourceRefused("workspace", f"the entry returned {code} and wrote {size}")
        case _:
            raise SourceRefused("workspace", isolation.failure_text(outcome, "the entry")[:300])


# --- with one ------------------------------------------------------------------------


def adopt(
    job: AdoptionJob,
    built: Built,
    gpu: str,
    settings: AdoptionSettings,
    *,
    on_step: Callable[[str], None] = lambda _: None,
) -> AdoptedRow:
    """Holds a built source to its program on this GPU (the driver's name), and keeps it as confirmed.

    While that goes on it is kept as unconfirmed, which nothing serves. Raises SourceRefused, after which it is
    not kept at all; StoreError, DeviceUnusable and what a build raises, after which it stays unconfirmed.
    """
    store, database = EvidenceStore.open(), TuningDatabase.open()
    store.prepare()
    key = key_of(job.program, job.sizes, gpu, job.arch)
    row = AdoptedRow(
        digest_of(job.source),
        job.program.name,
        "unconfirmed",
        job.source.text,
        base_of(job, built),
        built.planned.launch,
        versions=versions_of(toolchain()),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    adopted.keep(database, key, row)
    try:
        confirmed = _confirmed(job, built, gpu, settings, store, row, on_step)
    except SourceRefused:
        adopted.remove(database, key, row.source)
        raise
    adopted.keep(database, key, confirmed)
    return confirmed


def base_of(job: AdoptionJob, built: Built) -> str:
    """Returns what is emitted for the job's plan, where the source was edited from it: an emitted entry is named
    after the digest of its code. "" where it was not."""
    try:
        emitted = source_of(job.checked, job.program, built.planned)
    except NotServed:
        return ""
    return emitted.text if emitted.entry == job.source.entry else ""


def _confirmed(
    job: AdoptionJob,
    built: Built,
    gpu: str,
    settings: AdoptionSettings,
    store: EvidenceStore,
    row: AdoptedRow,
    on_step: Callable[[str], None],
) -> AdoptedRow:
    on_step("verifying")
    proof = verified(job, built, settings)
    store.add(proof)
    if not proof.result["ok"]:
        raise SourceRefused("wrong", "; ".join(map(str, proof.result["failures"][:3]))[:600])
    on_step("building the text's own kernel")
    with span("building the text's own kernel"):
        own, _ = recall(job.checked, job.program, job.sizes, job.arch, gpu, job.device, beyond=True)
        rival = build_kernel(job.checked, own, job.sizes, job.arch, device=job.device)
    on_step("timing")
    report = compared(job, built, rival, settings)
    on_step("auditing")
    evidence = audited(job, built, proof, report, settings, store)
    return replace(
        row,
        state="confirmed",
        microseconds=evidence.microseconds,
        rival=evidence.rival,
        records=evidence.records,
    )


@dataclass(frozen=True, slots=True)
class AdoptionEvidence:
    """What the audit accepted: the medians of the source and of the text's own kernel in turns, the ids of the
    records (of the comparison, of the verification, of the audit), and the comparison's report."""

    microseconds: float
    rival: float
    records: tuple[str, str, str]
    report: Mapping[str, Any]


@span("audit")
def audited(
    job: AdoptionJob,
    built: Built,
    proof: Record,
    comparison_report: Mapping[str, Any],
    settings: AdoptionSettings,
    store: EvidenceStore,
    precision: DeclaredPrecision | None = None,
) -> AdoptionEvidence:
    """Returns the evidence of a source that was verified (`proof`) and compared with the text's own kernel, once
    it is recorded and audited. Raises SourceRefused, StoreError."""
    described = BenchedProgram(job.checked, job.program, built)
    answer = describe(described) | dict(comparison_report)
    if wrong := [case["words"] for case in answer["verified"] if not case["ok"]]:
        raise SourceRefused("wrong", wrong[0][:600])
    for regime in answer["regimes"]:
        share(regime, described, job.device)
    bench = store.get(recorded(answer, described, {})[0])
    ours, theirs = _times(answer["regimes"][0], settings)
    candidate = AuditSubject(job.checked, job.program, job.named_sizes)
    library = built.artifact.library
    bundle = gather(
        candidate, (bench, proof), precision=precision, library=library, code=job.source.code, seed=0
    )
    verdict = audit(bundle)
    judged = store.add(record_of(candidate, bundle, verdict, (bench, proof)))
    if not verdict.accepted:
        words = "; ".join(f"{f.rule}: {f.words}" for f in verdict.findings[:3])
        raise SourceRefused("audit", f"{verdict.verdict}: {words}"[:600])
    return AdoptionEvidence(ours, theirs, (bench.id, proof.id, judged), answer["regimes"][0])


def _times(regime: Mapping[str, Any], settings: AdoptionSettings) -> tuple[float, float]:
    """Returns the medians of the source and of the text's own kernel, in microseconds. Raises SourceRefused
    where there is none, and where the whole interval says that the source is slower."""
    first, *others = regime["outcomes"]
    if not first.get("trusted"):
        words = first.get("words") or "; ".join(f["message"] for f in first.get("findings", []))
        raise SourceRefused("untimed", str(words)[:300] or "the time is not trusted")
    versus = next(iter(regime["versus"]), None)
    if versus is None or not others or "failed" in others[0]:
        words = others[0]["words"] if others else "it did not run"
        raise SourceRefused("untimed", f"the text's own kernel was not timed: {words}"[:300])
    ours, theirs = (outcome["span"]["median"] for outcome in (first, others[0]))
    if versus["verdict"] == "slower" and not settings.slower:
        ratio = versus["ratio"]
        words = f"{ours:.2f} us against {theirs:.2f} us, {ratio['low']:.3f} to {ratio['high']:.3f} times"
        raise SourceRefused("slower", words)
    return ours, theirs


def verified(job: AdoptionJob, built: Built, settings: AdoptionSettings) -> Record:
    """Returns the record of the whole suite, and of every sanitizer where that is right. Raises DeviceUnusable,
    LockTimeout."""
    plan = verification.plan(job.checked, job.program, built, job.named_sizes, seed=settings.seed)
    with hold_gpu(gpu_uuid(), timeout_seconds=settings.wait, on_wait=lambda _: None, shared=True):
        with span("suite"):
            machine = verification.machine(built)
            evidence = verification.run(plan, case_seconds=settings.case)
        if evidence.ok:
            with span("sanitizers"):
                evidence = replace(evidence, sanitizers=verification.sanitizers(plan))
    subject = subject_of_built(job.checked, job.program, built)
    protocol = verification.protocol(plan, settings.case)
    return record("verify", subject, machine, protocol, evidence.to_json())


@span("timing in turns")
def compared(job: AdoptionJob, built: Built, rival: Built, settings: AdoptionSettings) -> Mapping[str, Any]:
    """Returns what `ucutlass.tasks.bench:on_gpu` found of the source against the text's own kernel, in turns.
    Raises SourceRefused where its process was lost."""
    arguments = comparison(job, built, rival, settings)
    with hold_gpu(gpu_uuid(), timeout_seconds=settings.wait, on_wait=lambda _: None):
        outcome = isolation.run("ucutlass.tasks.bench:on_gpu", arguments, limit_seconds=settings.limit)
    match outcome:
        case isolation.Returned(dict(answer)):
            return answer
        case _:
            raise SourceRefused("untimed", isolation.failure_text(outcome, "the comparison")[:300])


def comparison(
    job: AdoptionJob,
    built: Built,
    rival: Built,
    settings: AdoptionSettings,
    baselines: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Returns the arguments of `ucutlass.tasks.bench:on_gpu`: the source in turns with the text's own kernel, the
    first of its baselines, and with others."""
    protocol = Protocol(
        max_seconds=settings.bench, min_seconds=min(1.0, settings.bench), seed=settings.seed % 2**31
    )
    program = program_payload(job.checked)
    text = {"name": "text", "program": program, "kernel": job.program.name, "built": built_payload(rival)}
    return {
        "program": program,
        "built": built_payload(built),
        "name": job.program.name,
        "sizes": job.named_sizes,
        "arch": job.arch,
        "seed": settings.seed % 2**31,
        "baselines": [text, *map(dict, baselines)],
        "protocols": [asdict(protocol)],
        "bandwidth": job.device.bandwidth if job.device else None,
    }
