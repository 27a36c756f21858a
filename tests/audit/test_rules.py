"""Each rule convicts what it is there for, acquits its neighbour, and says the numbers."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tests.audit.bundles import CASE, LIMITS, PROBE, PROOF, THIS, TIMING, honest, program, record
from ucutlass.agent.integrity import RULES, audit
from ucutlass.agent.integrity.bundle import (
    ArtefactDigests,
    AuditedAncestor,
    ClockFinding,
    EvidenceBundle,
    InputProbe,
    MissingEvidence,
    ResultProbe,
    StageWork,
    StoppedBench,
)
from ucutlass.agent.integrity.precision import declared
from ucutlass.agent.integrity.rules import CLOCK_FINDINGS
from ucutlass.agent.integrity.verdict import ACCEPTED, PRECEDENCE, AuditFinding, report
from ucutlass.runtime.bench.timing_issues import LEVELS


def said(bundle: EvidenceBundle, rule: str) -> list[AuditFinding]:
    return [f for f in audit(bundle).findings if f.rule == rule]


def one(bundle: EvidenceBundle, rule: str) -> tuple[str, str]:
    (finding,) = said(bundle, rule)
    return finding.verdict, finding.words


def timed(**changes: Any) -> Any:
    return replace(TIMING, **changes)


def test_an_honest_candidate_is_ok() -> None:
    audit_report = audit(honest())
    assert (audit_report.verdict, audit_report.findings, audit_report.accepted) == ("ok", (), True)
    assert audit_report.checked == tuple(rule.name for rule in RULES)


# --- verdicts -------------------------------------------------------------------------


def test_the_worst_finding_decides() -> None:
    audit_findings = [AuditFinding("r", verdict, "") for verdict in reversed(PRECEDENCE)]
    for last in range(1, len(audit_findings) + 1):
        audit_report = report(audit_findings[:last], ())
        assert audit_report.verdict == audit_findings[last - 1].verdict == audit_report.findings[0].verdict
    assert report((), ()).verdict == "ok"


def test_only_two_verdicts_are_accepted() -> None:
    accepted = {v for v in PRECEDENCE if report([AuditFinding("r", v, "")], ()).accepted}
    assert accepted == {"ok", "minor"} == ACCEPTED


def test_a_flawed_problem_is_not_the_candidates_crime() -> None:
    flawed = replace(PROBE, results=(ResultProbe("", True, True, True),))
    assert audit(honest(probe=flawed, timing=timed(seconds=1e-6))).verdict == "flawed-problem"


# --- evidence -------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["timing", "proof", "limits", "probe", "current"])
def test_missing_evidence_fails_and_is_named(what: str) -> None:
    bundle = honest(**{what: MissingEvidence(f"there is no {what}")})
    audit_report = audit(bundle)
    assert audit_report.verdict == "unproven" and not audit_report.accepted
    assert one(bundle, "evidence") == ("unproven", f"there is no {what}")


def test_every_piece_of_evidence_that_can_be_missing_is_looked_for() -> None:
    may = {f.name for f in fields(EvidenceBundle) if "Missing" in str(f.type)}
    assert may == {"timing", "proof", "limits", "calibrated", "probe", "ancestors", "current"}
    assert audit(honest(calibrated=MissingEvidence("-"))).verdict == "ok"  # the data sheet stands in
    assert audit(honest(ancestors=(MissingEvidence("no audit of the parent"),))).verdict == "unproven"


def test_a_changed_record_is_gaming() -> None:
    forged = replace(record(seconds=1.0), result={"seconds": 0.5})
    verdict, words = one(honest(records=(forged,)), "seal")
    assert verdict == "gaming" and forged.id[:12] in words


def test_a_failed_verification_proves_nothing() -> None:
    bad = replace(PROOF, ok=False, cases=(replace(CASE, ok=False),), failures=("normal: wrong: 7 unwritten",))
    verdict, words = one(honest(proof=bad), "correct")
    assert verdict == "unproven" and "7 unwritten" in words


def test_a_records_word_is_not_taken_for_its_cases() -> None:
    bad = replace(CASE, name="wide M=64", ok=False)
    assert one(honest(proof=replace(PROOF, cases=(CASE, bad))), "correct") == (
        "unproven",
        "verification failed, so nothing is proven: wide M=64: not right",
    )
    assert one(honest(proof=replace(PROOF, failures=("memcheck: 3 errors",))), "correct")[0] == "unproven"
    verdict, words = one(honest(proof=replace(PROOF, cases=(replace(CASE, worst=7.0),))), "correct")
    assert verdict == "gaming" and "7 times its bound" in words


def test_a_suite_that_was_cut_short_proves_nothing() -> None:
    verdict, words = one(honest(proof=replace(PROOF, untried=("normal", "special"))), "correct")
    assert verdict == "unproven" and "normal, special" in words


def test_a_verification_of_nothing_proves_nothing() -> None:
    assert one(honest(proof=replace(PROOF, cases=())), "correct")[0] == "unproven"


def test_what_was_timed_must_be_what_was_verified() -> None:
    other = timed(of=replace(THIS, binary="c" * 64))
    audit_findings = said(honest(timing=other, current=replace(THIS, binary="")), "artefact")
    assert [f.verdict for f in audit_findings] == ["gaming"] and "cccccccccccc" in audit_findings[0].words
    assert audit_findings[0].records == ("bench0", "verify0")


@pytest.mark.parametrize(
    ("kept", "count"),
    [
        (ArtefactDigests("", "", THIS.harness), 0),
        (replace(THIS, source="x"), 2),
        (replace(THIS, binary="y"), 2),
    ],
)
def test_what_was_measured_must_be_what_is_kept(kept: ArtefactDigests, count: int) -> None:
    audit_findings = said(honest(current=kept), "artefact")
    assert [f.verdict for f in audit_findings] == ["gaming"] * count


def test_code_of_another_version_is_old_and_no_crime() -> None:
    audit_findings = said(honest(current=ArtefactDigests("x" * 64, "", "another")), "artefact")
    assert {f.verdict for f in audit_findings} == {"unproven", "minor"} and "measure again" in audit_findings[
        0
    ].words


def test_what_is_left_open_is_said_and_passes() -> None:
    strained = replace(CASE, name="large M=64", open=True)
    bundle = honest(proof=replace(PROOF, cases=(CASE, strained)))
    verdict, words = one(bundle, "correct")
    assert verdict == "minor" and "large M=64" in words and "normal" not in words
    assert audit(bundle).accepted


def test_evidence_of_another_version_is_a_remark() -> None:
    old = replace(PROOF, of=replace(THIS, harness="0" * 64))
    verdict, words = one(honest(proof=old), "artefact")
    assert verdict == "minor" and words.endswith("verified it: do so again")


def test_evidence_that_names_no_library_proves_nothing() -> None:
    nameless = replace(THIS, binary="")
    audit_findings = said(honest(timing=timed(of=nameless), proof=replace(PROOF, of=nameless)), "artefact")
    assert [f.verdict for f in audit_findings] == ["gaming", "gaming", "unproven", "unproven"]
    assert audit(honest(timing=timed(of=nameless), current=replace(THIS, binary=""))).accepted is False


def test_a_record_that_cannot_be_sealed_is_gaming() -> None:
    forged = replace(record(seconds=1.0), result={"seconds": float("nan")})
    assert one(honest(records=(forged,)), "seal")[0] == "gaming"


def test_what_could_not_be_timed_is_unproven_or_worse() -> None:
    lost = StoppedBench("bench0", THIS, "audit", "it ran on stream 13", ())
    verdict, words = one(honest(timing=lost), "evidence")
    assert verdict == "unproven" and "stream 13" in words
    caught = replace(lost, findings=(ClockFinding("off-stream", "it ran on stream 13"),))
    assert audit(honest(timing=caught)).verdict == "gaming"


@pytest.mark.parametrize(
    ("verdict", "found"),
    [("ok", 0), ("minor", 0), ("unproven", 0), ("gaming", 1), ("library-only", 1), ("below-sol", 1)],
)
def test_a_rejected_ancestor_taints(verdict: Any, found: int) -> None:
    assert len(said(honest(ancestors=(AuditedAncestor("r0", verdict),)), "ancestors")) == found


# --- time -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "regime", "verdict"),
    [
        (81e-6, "cold", "ok"),
        (79e-6, "cold", "ok"),  # within the slack of the clock
        (70e-6, "cold", "below-sol"),
        (70e-6, "warm", "minor"),  # the L2 explains it
        (59.5e-6, "warm", "minor"),
        (50e-6, "warm", "below-sol"),  # the compute bound does not care where bytes come from
    ],
)
def test_the_bound_by_regime(seconds: float, regime: Any, verdict: str) -> None:
    assert audit(honest(timing=timed(seconds=seconds, regime=regime))).verdict == verdict


def test_warm_below_the_caches_bound_is_a_flaw() -> None:
    memory_bound = replace(LIMITS, compute=1e-6)
    bundle = honest(limits=memory_bound, timing=timed(seconds=20e-6, regime="warm"))
    verdict, words = one(bundle, "below-sol")
    assert verdict == "below-sol" and "L2's bound 30.00 us" in words


def test_an_estimated_cache_convicts_nobody_a_measured_one_does() -> None:
    guess = replace(LIMITS, compute=1e-6, estimated=True)
    bundle = honest(limits=guess, timing=timed(seconds=20e-6, regime="warm"))
    verdict, words = one(bundle, "below-sol")
    assert verdict == "unproven" and "ucc calibrate" in words
    for cache, expected in ((25e-6, "below-sol"), (15e-6, "minor")):
        seen = replace(LIMITS, what="calibration", cache=cache)
        assert one(replace(bundle, calibrated=seen), "below-sol")[0] == expected


def test_without_a_measured_clock_the_boost_is_granted() -> None:
    limits = replace(LIMITS, compute=100e-6, memory=10e-6)
    audit_reports = [
        audit(honest(limits=limits, timing=timed(seconds=s, clock=None))) for s in (92e-6, 90e-6)
    ]
    assert [f.verdict for f in audit_reports] == ["ok", "below-sol"]
    assert "boost clock: none was measured" in audit_reports[1].findings[0].words


def test_a_faster_clock_moves_the_compute_bound() -> None:
    limits = replace(LIMITS, compute=100e-6, memory=10e-6)
    at = [audit(honest(limits=limits, timing=timed(seconds=93e-6, clock=c))) for c in (1.83e9, 1.98e9)]
    assert [found.verdict for found in at] == ["below-sol", "ok"]
    slow = audit(honest(limits=limits, timing=timed(seconds=101e-6, clock=1.6e9)))
    assert slow.verdict == "below-sol" and "1.600 GHz" in slow.findings[0].words


def test_passing_a_calibrated_ceiling_is_news_and_no_crime() -> None:
    seen = replace(LIMITS, what="ceilings of this device", compute=110e-6, memory=95e-6, cache=50e-6)
    verdict, words = one(honest(calibrated=seen), "below-sol")
    assert verdict == "minor" and "calibrate again" in words and "110.00 us" in words
    assert audit(honest(calibrated=replace(seen, compute=90e-6))).verdict == "ok"


def test_every_finding_of_the_bench_is_judged() -> None:
    assert CLOCK_FINDINGS.keys() == LEVELS.keys()
    for name, level in LEVELS.items():
        fails = CLOCK_FINDINGS[name] not in (None, "minor")
        assert fails == (level == "trust"), name


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("off-stream", "gaming"), ("launch-floor", "ok"), ("throttled", "minor"), ("new", "unproven")],
)
def test_what_the_clocks_say_is_passed_on(kind: str, verdict: str) -> None:
    assert audit(honest(timing=timed(findings=(ClockFinding(kind, "12 us"),)))).verdict == verdict


# --- what was computed ----------------------------------------------------------------


@pytest.mark.parametrize(("own", "verdict"), [(0.0, "library-only"), (5.0, "library-only"), (50.0, "minor")])
def test_library_work_by_its_share(own: float, verdict: str) -> None:
    stages = (StageWork("torch.matmul", True, 95.0), StageWork("scale", False, own))
    found, words = one(honest(stages=stages), "library")
    assert found == verdict and "torch.matmul" in words and f"{95 / (95 + own):.0%}" in words


def test_library_nodes_without_countable_work_are_all_of_it() -> None:
    assert one(honest(stages=(StageWork("torch.sort", True, 0.0),)), "library")[0] == "library-only"


@pytest.mark.parametrize(
    ("body", "compute_type", "verdict"),
    [
        ("dot[K](x, w)", "f32", "ok"),
        ("dot[K](tf32(x), tf32(w))", "tf32", "ok"),
        ("dot[K](tf32(x), tf32(w))", "f32", "gaming"),
        ("dot[K](bf16(x), bf16(w))", "tf32", "gaming"),
        ("dot[K](f16(x), f16(w))", "bf16", "gaming"),  # more digits, fewer exponents
        ("dot[K](f16(x), f16(w), acc=f16)", "f16", "gaming"),
        ("dot[K](f16(x), f16(w), acc=f16)", "f16/f16", "ok"),
        ("dot[K](x, w) + f32(bf16(dot[K](x, w)))", "f32", "gaming"),
        ("dot[K](tf32(x), tf32(w))", None, "minor"),
        ("dot[K](x, w)", None, "ok"),
    ],
)
def test_the_compute_type(body: str, compute_type: str | None, verdict: str) -> None:
    text = f"kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] {{\n  return {body}\n}}\n"
    bundle = honest(program=program(text), precision=None if compute_type is None else declared(compute_type))
    assert audit(bundle).verdict == verdict


def test_rounding_to_the_results_own_type_is_minor() -> None:
    value = "bf16(dot[K](x, w)) + bf16(1.0)"
    text = f"kernel k(x: f32[M, K], w: f32[N, K]) -> bf16[M, N] {{ return {value} }}\n"
    assert one(honest(program=program(text), precision=declared("f32")), "lane")[0] == "minor"


def test_a_narrow_buffer_of_a_pipeline_loses() -> None:
    text = (
        "pipeline p(x: f32[M, K], w: f32[N, K], v: f32[J, N]) -> f32[M, J] {\n"
        "  h: e4m3[M, N] = dot[K](x, w)\n  return dot[N](f32(h), v)\n}\n"
    )
    verdict, words = one(honest(program=program(text), precision=declared("f32")), "lane")
    assert verdict == "gaming" and "buffer h is stored in e4m3" in words


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (ResultProbe("y", True, True, True), "flawed-problem"),
        (ResultProbe("y", False, True, True), "flawed-problem"),
        (ResultProbe("y", False, False, True), "minor"),
    ],
)
def test_results_that_depend_on_nothing(result: ResultProbe, verdict: str) -> None:
    found, words = one(honest(probe=replace(PROBE, results=(result,))), "insensitive")
    assert found == verdict and "M=64" in words


@pytest.mark.parametrize(("share", "verdict"), [(0.6, "flawed-problem"), (0.1, "minor")])
def test_an_input_that_nothing_depends_on(share: float, verdict: str) -> None:
    found, words = one(honest(probe=replace(PROBE, inputs=(InputProbe("x", False, share),))), "insensitive")
    assert found == verdict and f"{share:.0%}" in words


def test_a_constant_output_is_gaming() -> None:
    cases = (CASE, replace(CASE, name="uniform", varies=False))
    assert one(honest(proof=replace(PROOF, cases=cases)), "constant")[0] == "gaming"
    zeros = replace(CASE, name="zeros", varies=False, reference_varies=False)
    assert audit(honest(proof=replace(PROOF, cases=(zeros,)))).verdict == "ok"
    nan = replace(CASE, name="special", varies=False, worst=0.0)
    assert audit(honest(proof=replace(PROOF, cases=(nan,)))).verdict == "ok"


@pytest.mark.parametrize(("rms", "verdict"), [(None, "ok"), (0.3, "ok"), (0.7, "gaming")])
def test_spent_tolerance(rms: float | None, verdict: str) -> None:
    assert audit(honest(proof=replace(PROOF, cases=(replace(CASE, rms=rms),)))).verdict == verdict
