"""This module has the audit's rules: one table of pure functions from a bundle to objections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ucutlass.agent.integrity import precision
from ucutlass.agent.integrity.bundle import (
    ArtefactDigests,
    BenchEvidence,
    EvidenceBundle,
    MissingEvidence,
    SolTimes,
    StoppedBench,
    VerifyEvidence,
)
from ucutlass.agent.integrity.verdict import AuditFinding, AuditReport, AuditVerdict, report
from ucutlass.runtime.evidence import Record, intact

SLACK = 0.02
"""By how much of a bound a reading may be below it: what the clock that is measured in the window
and the median of a run are good for together (1 % each, the protocol's own limits)."""

MOSTLY = 0.8
"""Share of the work, by speed-of-light time of each launch, from which torch nodes are the candidate: a
library's matrix product with an epilogue behind it is the library's."""

SPENT = 0.5
"""Root mean square of error over bound from which the tolerance counts as spent. The bound is a worst
case over rounding's signs: errors of honest kernels add up like random walks and stay far below."""


@dataclass(frozen=True, slots=True)
class Objection:
    verdict: AuditVerdict
    words: str
    records: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditRule:
    """`says` is the rule in one line; `patterns` are the rows of the gaming catalogue that it meets."""

    name: str
    says: str
    patterns: tuple[int, ...]
    check: Callable[[EvidenceBundle], Iterator[Objection]]


def audit(bundle: EvidenceBundle, names: Collection[str] | None = None) -> AuditReport:
    """Runs every rule, or those of `names`; the worst objection is the verdict."""
    chosen = [rule for rule in RULES if names is None or rule.name in names]
    findings = [AuditFinding(r.name, o.verdict, o.words, o.records) for r in chosen for o in r.check(bundle)]
    return report(findings, [rule.name for rule in chosen])


# --- evidence -------------------------------------------------------------------------


def _seals(bundle: EvidenceBundle) -> Iterator[Objection]:
    for record in bundle.records:
        if not _holds(record):
            words = f"the {record.kind} record {record.id[:12]} is not what was sealed: it was changed"
            yield Objection("gaming", words, (record.id,))


def _holds(record: Record) -> bool:
    try:
        return intact(record)
    except (TypeError, ValueError):  # what cannot be sealed was not: NaN, keys that are no text
        return False


def _evidence(bundle: EvidenceBundle) -> Iterator[Objection]:
    looked = (bundle.timing, bundle.proof, bundle.limits, bundle.probe, bundle.current, *bundle.ancestors)
    for what in looked:
        match what:
            case MissingEvidence(why):
                yield Objection("unproven", why)
            case StoppedBench(record=record, stage=stage, words=words):
                yield Objection("unproven", f"it could not be timed ({stage}): {words}", (record,))


def _correct(bundle: EvidenceBundle) -> Iterator[Objection]:
    """The record's word is not taken for its cases'."""
    proof = bundle.proof
    if isinstance(proof, MissingEvidence):
        return
    wrong = [c.name for c in proof.cases if not c.ok]
    if not proof.ok or proof.failures or wrong:
        words = "; ".join((*proof.failures[:3], *(f"{name}: not right" for name in wrong[:3])))
        words = f"verification failed, so nothing is proven: {words or 'the judge said no'}"
        yield Objection("unproven", words, (proof.record,))
    elif not proof.cases:
        yield Objection("unproven", "the verify record holds no case", (proof.record,))
    elif beyond := [c for c in proof.cases if c.worst > 1]:
        words = f"{beyond[0].name} is called right with an error of {beyond[0].worst:.3g} times its bound"
        yield Objection("gaming", words, (proof.record,))
    elif proof.untried:
        words = f"not verified at these extents with {', '.join(proof.untried)}: run `ucc verify` in full"
        yield Objection("unproven", words, (proof.record,))
    elif left := [c.name for c in proof.cases if c.open]:
        words = f"nothing wrong, but nothing proven of {', '.join(left)}: no kernel could be judged there"
        yield Objection("minor", words, (proof.record,))


def _artefacts(bundle: EvidenceBundle) -> Iterator[Objection]:
    """Compares what was timed with what was verified by the library, and both with the current artefact by
    all that it says."""
    available = [e for e in (bundle.timing, bundle.proof) if not isinstance(e, MissingEvidence)]
    for evidence in available:
        if not evidence.of.binary:
            words = f"record {evidence.record[:12]} names no library: nothing says what it is of"
            yield Objection("unproven", words, (evidence.record,))
    if len(available) == 2 and available[0].of.binary != available[1].of.binary:
        first, other = (_short(e.of.binary) for e in available)
        words = f"the library that was timed ({first}) is not the one that was verified ({other})"
        yield _foreign(words, available[0].of, available[1].of, tuple(e.record for e in available))
    if isinstance(bundle.current, MissingEvidence):
        return
    for evidence in available:
        verb = "verified" if isinstance(evidence, VerifyEvidence) else "timed"
        pairs = {
            "code": (evidence.of.source, bundle.current.source),
            "library": (evidence.of.binary, bundle.current.binary),
        }
        for what, (measured, current) in pairs.items():
            if current and measured != current:
                words = f"the {what} {verb} ({_short(measured)}) is not what is kept ({_short(current)})"
                yield _foreign(words, evidence.of, bundle.current, (evidence.record,))
        if evidence.of.harness != bundle.current.harness:
            words = f"another version of this package ({_short(evidence.of.harness)}) {verb} it: do so again"
            yield Objection("minor", words, (evidence.record,))


def _foreign(
    words: str, first: ArtefactDigests, other: ArtefactDigests, records: tuple[str, ...]
) -> Objection:
    """Two versions of this package emit different code: that is a measurement that grew old."""
    if first.harness == other.harness:
        return Objection("gaming", words, records)
    return Objection("unproven", f"{words}: another version of this package made it, measure again", records)


def _short(digest: str) -> str:
    return digest[:12] or "none"


def _ancestors(bundle: EvidenceBundle) -> Iterator[Objection]:
    for ancestor in bundle.ancestors:
        if not isinstance(ancestor, MissingEvidence) and ancestor.verdict not in ("ok", "minor", "unproven"):
            words = f"it descends from a candidate judged {ancestor.verdict} ({ancestor.record[:12]})"
            yield Objection("gaming", words, (ancestor.record,))


# --- time -----------------------------------------------------------------------------


def _below_sol(bundle: EvidenceBundle) -> Iterator[Objection]:
    """Compares the time with the data sheet at the measured clock. The compute bound holds warm and cold; the
    bound of the memory interface does not hold for bytes that wait in the L2."""
    timing, limits = bundle.timing, bundle.limits
    if not isinstance(timing, BenchEvidence) or isinstance(limits, MissingEvidence):
        return
    clock = timing.clock or limits.boost
    compute = limits.compute * limits.clock / clock
    how = f"at {clock / 1e9:.3f} GHz" + ("" if timing.clock else ", the boost clock: none was measured")
    if _beats(timing, compute):
        words = f"{_us(timing.seconds)} is below the {limits.what}'s compute bound {_us(compute)} {how}"
        yield Objection("below-sol", words, (timing.record,))
    elif _beats(timing, limits.memory):
        yield from _below_memory(timing, _with_measured_cache(limits, bundle.calibrated))
    else:
        yield from _above_calibrated(bundle, timing)


def _with_measured_cache(limits: SolTimes, calibrated: SolTimes | MissingEvidence) -> SolTimes:
    """A measured bandwidth of the L2 stands in for an estimate."""
    if isinstance(calibrated, MissingEvidence) or calibrated.estimated or not limits.estimated:
        return limits
    return replace(limits, cache=calibrated.cache, estimated=False)


def _below_memory(timing: BenchEvidence, limits: SolTimes) -> Iterator[Objection]:
    memory = f"{_us(timing.seconds)} is below the {limits.what}'s memory bound {_us(limits.memory)}"
    if timing.regime == "cold":
        words = f"{memory}, though its buffers were rotated out of the L2: the protocol says cold"
        yield Objection("below-sol", words, (timing.record,))
    elif _beats(timing, limits.cache) and limits.estimated:
        words = f"{memory}, and below the L2's {_us(limits.cache)}, an estimate: `ucc calibrate` measures it"
        yield Objection("unproven", words, (timing.record,))
    elif _beats(timing, limits.cache):
        words = f"{memory} and, warm as it ran, below the L2's bound {_us(limits.cache)} too"
        yield Objection("below-sol", words, (timing.record,))
    else:
        words = f"{memory}, as a warm run may: its bytes wait in the L2, whose bound is {_us(limits.cache)}"
        yield Objection("minor", words, (timing.record,))


def _above_calibrated(bundle: EvidenceBundle, timing: BenchEvidence) -> Iterator[Objection]:
    """A calibrated ceiling is what this device was seen to reach: passing it is news, no crime."""
    calibrated = bundle.calibrated
    if isinstance(calibrated, MissingEvidence):
        return
    compute = calibrated.compute * calibrated.clock / (timing.clock or calibrated.boost)
    bound = max(compute, calibrated.memory if timing.regime == "cold" else calibrated.cache)
    if _beats(timing, bound):
        words = (
            f"{_us(timing.seconds)} is faster than the ceilings calibrated on this device allow "
            f"({_us(bound)}), but not than its data sheet: calibrate again"
        )
        yield Objection("minor", words, (timing.record,))


def _beats(timing: BenchEvidence, bound: float) -> bool:
    return timing.seconds < bound * (1 - SLACK)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us"


CLOCK_FINDINGS: Mapping[str, AuditVerdict | None] = MappingProxyType(
    {
        "off-stream": "gaming",
        "escaped": "gaming",
        "span-beyond-events": "gaming",
        "wrong-output": "gaming",
        "beyond-bound": "below-sol",
        "no-kernel": "unproven",
        "names-changed": "unproven",
        "wall-short": "unproven",
        "not-cold": "unproven",
        "persisting-l2": "unproven",
        "unaudited": "minor",
        "capture-differs": "minor",
        "clock-unknown": "minor",
        "throttled": "minor",
        "noisy": "minor",
        "unsettled": "minor",
        "branches": None,
        "no-nvml": None,
        "direct-launch": None,
        "launch-overhead": None,
        "event-gaps": None,
        "launch-floor": None,
        "power-capped": None,
    }
)
"""What each finding of `ucutlass.runtime.bench.timing_issues` means here; None: nothing. One that is not
here is new, and counts as `unproven` until it is."""


def _clocks(bundle: EvidenceBundle) -> Iterator[Objection]:
    if isinstance(bundle.timing, MissingEvidence):
        return
    for finding in bundle.timing.findings:
        verdict = CLOCK_FINDINGS.get(finding.kind, "unproven")
        if verdict is not None:
            yield Objection(verdict, f"{finding.kind}: {finding.words}", (bundle.timing.record,))


# --- what was computed ----------------------------------------------------------------


def _library(bundle: EvidenceBundle) -> Iterator[Objection]:
    total = sum(stage.seconds for stage in bundle.stages)
    nodes = [stage for stage in bundle.stages if stage.library]
    if not nodes:
        return
    share = sum(stage.seconds for stage in nodes) / total if total else 1.0
    names = ", ".join(dict.fromkeys(stage.name for stage in nodes))
    words = f"{names}: {len(nodes)} of {len(bundle.stages)} stages, {share:.0%} of the speed-of-light time"
    yield Objection("library-only" if share >= MOSTLY else "minor", f"library calls do work here: {words}")


_LOSES: Mapping[str, str] = MappingProxyType(
    {
        "compute type": "multiplies in",
        "accumulation": "accumulates in",
        "cast": "rounds to",
        "buffer": "is stored in",
    }
)


def _compute_type(bundle: EvidenceBundle) -> Iterator[Objection]:
    own = precision.operand_precision(bundle.program)
    policy = bundle.precision or own
    if policy is None:
        return
    declared_type = (
        f"the declared compute type {policy}" if bundle.precision else f"the operands' own {policy}"
    )
    for loss in precision.losses(bundle.program, policy):
        fine = bundle.precision is None or loss.at_end
        hint = "" if bundle.precision else "; say which compute type the problem allows with --compute-type"
        words = f"{loss.where} {_LOSES[loss.kind]} {loss.name}, below {declared_type}{hint}"
        yield Objection("minor" if fine else "gaming", words)


def _insensitive(bundle: EvidenceBundle) -> Iterator[Objection]:
    if isinstance(bundle.probe, MissingEvidence):
        return
    at = " ".join(f"{name}={size}" for name, size in bundle.probe.sizes)
    for result in bundle.probe.results:
        name = result.name or "the result"
        if result.constant:
            words = f"one number passes for all of {name}, whatever the inputs ({at})"
            yield Objection("flawed-problem", words)
        elif result.fixed:
            words = f"{name} does not depend on the inputs: one tensor passes ({at})"
            yield Objection("flawed-problem", words)
        elif result.flat:
            words = f"one number passes for {name} within 1e-2 + 1e-2 |x| ({at}), though not within its bound"
            yield Objection("minor", words)
    for tensor in bundle.probe.inputs:
        if not tensor.moves and tensor.share > 0:
            verdict: AuditVerdict = "flawed-problem" if tensor.share > 0.5 else "minor"
            words = f"no result depends on {tensor.name}, {tensor.share:.0%} of the bytes to be read ({at})"
            yield Objection(verdict, words)


def _constant(bundle: EvidenceBundle) -> Iterator[Objection]:
    if isinstance(bundle.proof, MissingEvidence):
        return
    for case in bundle.proof.cases:
        # Without any error it is the reference, whose NaNs and zeros differ in bits alone.
        if case.reference_varies and not case.varies and case.worst > 0:
            words = f"{case.name}: the output is one number everywhere, the reference is not"
            yield Objection("gaming", words, (bundle.proof.record,))


def _tolerance(bundle: EvidenceBundle) -> Iterator[Objection]:
    if isinstance(bundle.proof, MissingEvidence):
        return
    for case in bundle.proof.cases:
        if case.ok and case.rms is not None and case.rms > SPENT:
            words = (
                f"{case.name}: errors are {case.rms:.2f} of the bound in root mean square (honest rounding "
                f"stays below {SPENT}): cheaper arithmetic that just passes"
            )
            yield Objection("gaming", words, (bundle.proof.record,))


RULES: tuple[AuditRule, ...] = (
    AuditRule("seal", "every record is what was sealed", (56, 63, 71), _seals),
    AuditRule("evidence", "every piece of evidence is there", (71,), _evidence),
    AuditRule("correct", "the kernel was verified", (6, 11, 17, 18, 19, 23), _correct),
    AuditRule("artefact", "what was timed is what was verified and what is kept", (70,), _artefacts),
    AuditRule("ancestors", "no ancestor was rejected", (69,), _ancestors),
    AuditRule("below-sol", "no time is below what the device can do", (11, 40, 46, 48, 72), _below_sol),
    AuditRule("clocks", "the clocks agree", (40, 41, 45, 49), _clocks),
    AuditRule("library", "the work is not the library's", (2,), _library),
    AuditRule("lane", "nothing is computed in less than the declared compute type", (15, 16), _compute_type),
    AuditRule("insensitive", "the problem's results depend on its inputs", (1, 13), _insensitive),
    AuditRule("constant", "the output is not a constant", (1,), _constant),
    AuditRule("tolerance", "errors are those of rounding", (14,), _tolerance),
)
