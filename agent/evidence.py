"""The whole evidence of one candidate: verified on the suite, benched by protocol, audited, recorded.

What `ucc verify`, `ucc bench` and `ucc audit` do one after the other, for a candidate that would lead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ucutlass import frontend, ir
from ucutlass.agent.gpu_calls import GpuCalls, value
from ucutlass.agent.integrity import audit
from ucutlass.agent.integrity.audit_record import record_of
from ucutlass.agent.integrity.gather import AuditSubject, gather
from ucutlass.agent.integrity.precision import DeclaredPrecision
from ucutlass.agent.module import TorchModule, meet
from ucutlass.agent.outcome import FailedOutcome, RejectedOutcome, TimedOutcome, WrongOutcome
from ucutlass.assembly import AnyBuilt, kernels_of
from ucutlass.ir.hardware import Device
from ucutlass.runtime import isolation
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.runtime.evidence import Machine, Record
from ucutlass.runtime.store import EvidenceStore, record
from ucutlass.runtime.verify.pool import MOST_LOSSES, START_SECONDS
from ucutlass.tasks import verification
from ucutlass.tasks.bench_record import BenchedProgram, describe, recorded, share

MOST_CASES = 24
"""Of the suite: every distribution at the problem's extents, and a few at others."""


@dataclass(frozen=True, slots=True)
class BuiltCandidate:
    """What is judged: a built candidate at every extent of its program by name."""

    checked: frontend.Checked
    program: ir.Program
    built: AnyBuilt
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ConfirmationSettings:
    """`baseline` is a name of `ucc bench --baseline`, or ""; where a `module` says what is computed,
    the module runs so, and in every other way of `COLUMNS`. Seconds bound the comparison (`seconds`), each
    case of the suite (`case`) and the comparison's process (`limit`)."""

    arch: str
    device: Device | None
    lane: DeclaredPrecision | None
    baseline: str = "eager"
    seed: int = 0
    seconds: float = 5.0
    case: float = 60.0
    limit: float = 300.0
    module: TorchModule | None = None


def confirmed(
    subject: BuiltCandidate, how: ConfirmationSettings, lanes: GpuCalls
) -> TimedOutcome | WrongOutcome | FailedOutcome | RejectedOutcome:
    """Raises StoreError and MachineError: what is no candidate's fault."""
    proof = _verified(subject, how, lanes)
    if isinstance(proof, str):
        return FailedOutcome("run", proof[:600])
    if not proof.result["ok"]:
        return WrongOutcome("; ".join(str(w) for w in proof.result["failures"][:3])[:600])
    row = _benched(subject, how, lanes)
    if isinstance(row, str):
        return FailedOutcome("time", row[:600])
    if not row["regimes"]:
        return WrongOutcome("; ".join(v["words"] for v in row["verified"] if not v["ok"])[:600])
    made = BenchedProgram(subject.checked, subject.program, subject.built)
    row = describe(made) | row
    for report in row["regimes"]:
        share(report, made, how.device)
    store = EvidenceStore.open()
    bench = store.get(recorded(row, made, {})[0])
    candidate = AuditSubject(subject.checked, subject.program, subject.sizes)
    bundle = gather(candidate, (bench, proof), lane=how.lane, seed=how.seed)
    found = audit(bundle)
    kept = store.add(record_of(candidate, bundle, found, (bench, proof)))
    if not found.accepted:
        said = "; ".join(f"{f.rule}: {f.words}" for f in found.findings[:3])
        return RejectedOutcome(found.verdict, said[:800], (proof.id, bench.id, kept))
    return _timed(row["regimes"][0], (proof.id, bench.id, kept))


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


def _verified(subject: BuiltCandidate, how: ConfirmationSettings, lanes: GpuCalls) -> Record | str:
    """The suite's record, or why nothing is known."""
    plan = verification.plan(
        subject.checked, subject.program, subject.built, dict(subject.sizes), seed=how.seed, most=MOST_CASES
    )
    # Its own processes have limits of their own; this one bounds all of them together.
    limit = (MOST_LOSSES + 2) * START_SECONDS + how.case * len(plan.suite.cases)
    outcome = lanes.call(
        "verified",
        verification.gpu_arguments(plan, subject.built, how.case),
        limit=limit,
        artifacts=artifacts_of(subject.built),
    )
    match outcome:
        case isolation.Raised("DeviceUnusable", message):
            raise verification.DeviceUnusable(message, "see `ucc doctor` and `nvidia-smi`")
        case isolation.Returned(dict(found)):
            made = BenchedProgram(subject.checked, subject.program, subject.built)
            machine, protocol = Machine(**found["machine"]), verification.protocol(plan, how.case)
            kept = record("verify", made.subject, machine, protocol, found["evidence"])
            EvidenceStore.open().add(kept)
            return kept
        case _:
            return str(value(outcome, "the verification"))


def _benched(subject: BuiltCandidate, how: ConfirmationSettings, lanes: GpuCalls) -> dict[str, Any] | str:
    """What the comparison's process found, or why there is nothing."""
    protocol = Protocol(max_seconds=how.seconds, min_seconds=min(0.5, how.seconds), warmup=1.0, seed=how.seed)
    baselines = _baselines(subject.program, how)
    arguments = {
        "text": subject.checked.source,
        "file": subject.checked.file,
        "name": subject.program.name,
        "sizes": dict(subject.sizes),
        "arch": how.arch,
        "seed": how.seed,
        "baselines": baselines,
        "protocols": [asdict(protocol)],
        "bandwidth": how.device.bandwidth if how.device else None,
    }
    outcome = lanes.call(
        "compared", arguments, limit=_limit(baselines, how), artifacts=artifacts_of(subject.built)
    )
    found = value(outcome, "the comparison")
    return found if isinstance(found, str) else dict(found)


COLUMNS = ("eager", "eager-tf32", "compile-max-autotune")
"""The ways in which a module is timed beside a candidate; TF32 only where something is float32."""


def _baselines(program: ir.Program, how: ConfirmationSettings) -> list[dict[str, Any]]:
    """What the candidate is timed in turns with, the one that it is to beat first."""
    if not how.baseline:
        return []
    if how.module is None:
        return [{"name": how.baseline}]
    met = meet(program, how.module)
    assert not isinstance(met, str), met  # it was judged before
    single = any(one.dtype == "float32" for one in (*how.module.facts.state, *how.module.facts.results))
    columns = [c for c in COLUMNS if single or c != "eager-tf32"]
    told = {"module": how.module.told(), "names": dict(met.keys)}
    return [{"name": name} | told for name in dict.fromkeys((how.baseline, *columns))]


def _limit(baselines: Sequence[Mapping[str, Any]], how: ConfirmationSettings) -> float:
    """Seconds of the comparison: as many again for every way in which a module is compiled, which takes
    minutes the first time."""
    compiled = [b for b in baselines if "module" in b and str(b["name"]).startswith("compile")]
    return how.limit * (1 + len(compiled))


def artifacts_of(built: AnyBuilt) -> list[str]:
    """The keys of its cache entries, which must lie where it runs."""
    return sorted({one.artifact.key for one in kernels_of(built)})
