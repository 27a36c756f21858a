"""This module gathers the whole evidence of one candidate: verified on the suite, benched by protocol,
audited, recorded.

What `ucc verify`, `ucc bench` and `ucc audit` do one after the other, for a candidate that would lead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ucutlass import frontend, ir
from ucutlass.agent.gpu_calls import GpuCalls, shared_bytes, value
from ucutlass.agent.integrity import audit
from ucutlass.agent.integrity.audit_record import record_of
from ucutlass.agent.integrity.bundle import MissingEvidence, ReferenceProbe
from ucutlass.agent.integrity.gather import AuditSubject, gather
from ucutlass.agent.integrity.precision import DeclaredPrecision
from ucutlass.agent.module import TorchModule, match_module
from ucutlass.agent.outcome import FailedOutcome, RejectedOutcome, TimedOutcome, WrongOutcome
from ucutlass.assembly import AnyBuilt, kernels_of
from ucutlass.handoff import program_payload
from ucutlass.ir.hardware import Device
from ucutlass.runtime import isolation
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.runtime.evidence import Machine, Record
from ucutlass.runtime.inputs import nodes_of
from ucutlass.runtime.store import EvidenceStore, record
from ucutlass.runtime.verify.pool import MOST_LOSSES, START_SECONDS
from ucutlass.runtime.verify.suite import memory_of
from ucutlass.shapes import free_dims
from ucutlass.spans import span
from ucutlass.tasks import verification
from ucutlass.tasks.bench_record import BenchedProgram, describe, recorded, share
from ucutlass.tasks.built import built_payload

MOST_CASES = 24
"""Of the suite: every distribution at the problem's extents, and a few at others."""

VERIFYING_PROCESSES = 3
"""Of one suite at once: most of a case is its process's own time, hundreds of small operations."""

ALONE_BYTES = 40 << 30
ALONE_SHARE = 0.5
"""Of all cases that are judged at once by whoever has the GPU alone, or that share of the device's memory."""

RATIO_WIDTH = 0.01
"""To which the ratio to a baseline is measured, where time allows: who leads is decided by a race."""

SANITIZER_SECONDS = 4 * 600.0
"""What all sanitizers may take together, by the limit that each has."""


@dataclass(frozen=True, slots=True)
class BuiltCandidate:
    """Describes what is judged: a built candidate at every extent of its program by name. `probe` waits for what
    the audit asks the reference, where that was begun before."""

    checked: frontend.Checked
    program: ir.Program
    built: AnyBuilt
    sizes: Mapping[str, int]
    probe: Callable[[], ReferenceProbe | MissingEvidence] | None = None


@dataclass(frozen=True, slots=True)
class ConfirmationSettings:
    """`baseline` is a name of `ucc bench --baseline`, or ""; where a `module` says what is computed,
    the module runs so, in every other way of `COLUMNS`, and in `compiled`, "" for none. Seconds bound the comparison (`seconds`), each
    case of the suite (`case`) and the comparison's process (`limit`)."""

    arch: str
    device: Device | None
    precision: DeclaredPrecision | None
    baseline: str = "eager"
    seed: int = 0
    seconds: float = 3.0
    case: float = 60.0
    limit: float = 300.0
    module: TorchModule | None = None
    compiled: str = "compile-max-autotune"


def confirm_candidate(
    subject: BuiltCandidate, how: ConfirmationSettings, gpu_calls: GpuCalls
) -> TimedOutcome | WrongOutcome | FailedOutcome | RejectedOutcome:
    """Raises StoreError and MachineError: what is no candidate's fault."""
    proof = machine_record(subject, how, gpu_calls, most=MOST_CASES)
    if isinstance(proof, str):
        return FailedOutcome("run", proof[:600])
    if not proof.result["ok"]:
        return WrongOutcome("; ".join(str(w) for w in proof.result["failures"][:3])[:600])
    return _benched(subject, how, gpu_calls, proof, compiled=False)


def complete_comparison(
    subject: BuiltCandidate, how: ConfirmationSettings, gpu_calls: GpuCalls, confirmed: TimedOutcome
) -> TimedOutcome | WrongOutcome | FailedOutcome | RejectedOutcome:
    """Times a confirmed candidate in turns with every baseline, the compiled ones too, and audits that with
    the proof that there is. Raises StoreError and MachineError."""
    try:
        proof = EvidenceStore.open().get(confirmed.records[0])
    except (IndexError, LookupError) as missing:
        return FailedOutcome("time", f"the record of its verification is not there: {missing}"[:600])
    outcome = _benched(subject, how, gpu_calls, proof, compiled=True)
    if not isinstance(outcome, TimedOutcome):
        return outcome
    return replace(outcome, joules=confirmed.joules, first=confirmed.first, advice=confirmed.advice)


def _benched(
    subject: BuiltCandidate, how: ConfirmationSettings, gpu_calls: GpuCalls, proof: Record, *, compiled: bool
) -> TimedOutcome | WrongOutcome | FailedOutcome | RejectedOutcome:
    """Returns the outcome of a verified candidate by the timing protocol and the audit."""
    with span("reference"):
        # Before anything is timed: it takes the CPU.
        probe = None if subject.probe is None else subject.probe()
    row = _bench(subject, how, gpu_calls, compiled)
    if isinstance(row, str):
        return FailedOutcome("time", row[:600])
    if not row["regimes"]:
        return WrongOutcome("; ".join(v["words"] for v in row["verified"] if not v["ok"])[:600])
    described = BenchedProgram(subject.checked, subject.program, subject.built)
    row = describe(described) | row
    for report in row["regimes"]:
        share(report, described, how.device)
    store = EvidenceStore.open()
    with span("audit"):
        bench = store.get(recorded(row, described, {})[0])
        candidate = AuditSubject(subject.checked, subject.program, subject.sizes)
        bundle = gather(candidate, (bench, proof), precision=how.precision, seed=how.seed, probe=probe)
        audit_report = audit(bundle)
        audit_id = store.add(record_of(candidate, bundle, audit_report, (bench, proof)))
    if not audit_report.accepted:
        objections = "; ".join(f"{f.rule}: {f.words}" for f in audit_report.findings[:3])
        return RejectedOutcome(audit_report.verdict, objections[:800], (proof.id, bench.id, audit_id))
    outcome = _timed(row["regimes"][0], (proof.id, bench.id, audit_id))
    versus = dict(outcome.versus)
    if how.module is not None and "eager" in versus:
        timed_ways = {b["name"] for b in baselines_of(subject.program, how, compiled)}
        versus |= {way: versus["eager"] for way in _columns(how, compiled) if way not in timed_ways}
    return replace(outcome, versus=tuple(versus.items()))


def _timed(report: Mapping[str, Any], records: Sequence[str]) -> TimedOutcome:
    own = report["outcomes"][0]
    ratio = next((v["ratio"] for v in report["versus"] if v["ratio"]), None)
    seconds = own["span"]["median"] * 1e-6
    # `bench` gives the candidate's time over the baseline's.
    versus = tuple((str(v["baseline"]), 1 / v["ratio"]["median"]) for v in report["versus"] if v["ratio"])
    if ratio is None:
        return TimedOutcome(seconds, records=tuple(records), versus=versus)
    low, high = 1 / ratio["high"], 1 / ratio["low"]
    return TimedOutcome(seconds, 1 / ratio["median"], low, high, records=tuple(records), versus=versus)


def machine_record(
    subject: BuiltCandidate,
    how: ConfirmationSettings,
    gpu_calls: GpuCalls,
    *,
    most: int = 64,
    sanitized: bool = False,
) -> Record | str:
    """Returns the record of the suite, of at most so many cases and with `sanitized` of the sanitizers too, or
    why nothing is known. Raises DeviceUnusable, StoreError."""
    plan = verification.plan(
        subject.checked, subject.program, subject.built, dict(subject.sizes), seed=how.seed, most=most
    )
    memory = memory_of(subject.program, _free(subject))
    shared = not sanitized and memory <= shared_bytes(how.device)
    # Its own processes have limits of their own; this one bounds all of them together.
    limit = (MOST_LOSSES + 2) * START_SECONDS + how.case * len(plan.suite.cases)
    limit += SANITIZER_SECONDS if sanitized else 0.0
    outcome = gpu_calls.call(
        "verified",
        verification.gpu_arguments(
            plan,
            subject.built,
            how.case,
            sanitized=sanitized,
            side_by_side=side_by_side(memory, how.device, shared=shared),
        ),
        limit=limit,
        artifacts=artifacts_of(subject.built),
        shared=shared,
    )
    match outcome:
        case isolation.Raised("DeviceUnusable", message):
            raise verification.DeviceUnusable(message, "see `ucc doctor` and `nvidia-smi`")
        case isolation.Returned(dict(evidence)):
            described = BenchedProgram(subject.checked, subject.program, subject.built)
            machine, protocol = Machine(**evidence["machine"]), verification.protocol(plan, how.case)
            verify_record = record("verify", described.subject, machine, protocol, evidence["evidence"])
            EvidenceStore.open().add(verify_record)
            return verify_record
        case _:
            return str(value(outcome, "the verification"))


def side_by_side(memory: int, device: Device | None, *, shared: bool) -> int:
    """Returns how many processes judge cases of so many bytes at once, where others share the GPU or none does."""
    alone = ALONE_BYTES if device is None else int(ALONE_SHARE * device.memory)
    return max(1, min(VERIFYING_PROCESSES, (shared_bytes(device) if shared else alone) // max(1, memory)))


def _free(subject: BuiltCandidate) -> dict[str, int]:
    return {d: n for d, n in subject.sizes.items() if d in free_dims(subject.program)}


def _bench(
    subject: BuiltCandidate, how: ConfirmationSettings, gpu_calls: GpuCalls, compiled: bool
) -> dict[str, Any] | str:
    """Returns what the comparison's process found, or why there is nothing."""
    protocol = Protocol(
        max_seconds=how.seconds,
        min_seconds=min(0.3, how.seconds),
        warmup=0.5,
        launches=4,
        wall_launches=4,
        width=RATIO_WIDTH,
        seed=how.seed,
    )
    baselines = baselines_of(subject.program, how, compiled)
    arguments = {
        "program": program_payload(subject.checked),
        "built": built_payload(subject.built),
        "name": subject.program.name,
        "sizes": dict(subject.sizes),
        "arch": how.arch,
        "seed": how.seed,
        "baselines": baselines,
        "protocols": [asdict(protocol)],
        "bandwidth": how.device.bandwidth if how.device else None,
        # The audit holds the record of the suite to be of the very library that is timed.
        "proven": True,
    }
    outcome = gpu_calls.call(
        "compared", arguments, limit=_limit(baselines, how), artifacts=artifacts_of(subject.built)
    )
    comparison = value(outcome, "the comparison")
    return comparison if isinstance(comparison, str) else dict(comparison)


COLUMNS = ("eager", "eager-tf32")
"""The ways in which a module is timed beside a candidate; TF32 only where something is float32. Where nothing is
multiplied by a matrix, other than in convolutions, the two are one, which is timed once."""


def leaves_out(how: ConfirmationSettings) -> bool:
    """Returns whether a confirmation has no time of the compiled module, since torch would compile it first."""
    return (
        bool(how.baseline) and how.module is not None and len(_columns(how, True)) > len(_columns(how, False))
    )


def _columns(how: ConfirmationSettings, compiled: bool) -> list[str]:
    assert how.module is not None
    single = any(tensor.dtype == "float32" for tensor in (*how.module.facts.state, *how.module.facts.results))
    columns = [c for c in COLUMNS if single or c != "eager-tf32"]
    return list(
        dict.fromkeys((how.baseline, *columns, *((how.compiled,) if compiled and how.compiled else ())))
    )


def _is_compiled(name: str) -> bool:
    return name.startswith("compile")


def baselines_of(program: ir.Program, how: ConfirmationSettings, compiled: bool) -> list[dict[str, Any]]:
    """Returns what the candidate is timed in turns with, the one that it is to beat first."""
    if not how.baseline:
        return []
    if how.module is None:
        return [{"name": how.baseline}]
    met = match_module(program, how.module)
    assert not isinstance(met, str), met  # it was judged before
    module_arguments = {"module": how.module.arguments(), "names": dict(met.keys)}
    multiplies = how.module.facts.multiplies and _multiplies(program)
    ways = [w for w in _columns(how, compiled) if w != "eager-tf32" or multiplies or w == how.baseline]
    return [{"name": name} | module_arguments for name in ways]


def _multiplies(program: ir.Program) -> bool:
    """Returns whether a program has dots, or functions of torch that may have."""
    if isinstance(program, ir.Pipeline) and not all(isinstance(s.call, ir.Kernel) for s in program.stages):
        return True
    return any(isinstance(node, ir.Dot) for node in nodes_of(program))


def _limit(baselines: Sequence[Mapping[str, Any]], how: ConfirmationSettings) -> float:
    """Returns seconds of the comparison: as many again for every way in which a module is compiled, which
    takes minutes the first time."""
    compiled = [b for b in baselines if "module" in b and _is_compiled(str(b["name"]))]
    return how.limit * (1 + len(compiled))


def artifacts_of(built: AnyBuilt) -> list[str]:
    """Returns the keys of its cache entries, which must lie where it runs."""
    return sorted({kernel.artifact.key for kernel in kernels_of(built)})
