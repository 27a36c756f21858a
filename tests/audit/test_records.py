"""What the audit reads is what bench and verify write; a field that is not there is no evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.audit.bundles import program
from tests.audit.producers import bench, subject, verified, without
from ucutlass import frontend, ir
from ucutlass.agent.integrity.bundle import BenchEvidence, MissingEvidence, StoppedBench, VerifyEvidence
from ucutlass.agent.integrity.records import ancestor_of, proof_of, timing_of
from ucutlass.runtime.evidence import Record, RecordSubject, sealed

TEXT = """kernel linear(x: bf16[M, K], w: bf16[N, K], b: f32[N]) -> f32[M, N] {
  return relu(dot[K](x, w) + b)
}
"""


@pytest.fixture(scope="module")
def of() -> RecordSubject:
    return subject(frontend.read_text(TEXT), {"M": 512, "N": 512, "K": 512})


@pytest.fixture(scope="module")
def time(of: RecordSubject) -> Record:
    return bench(of, 25.0)


@pytest.fixture(scope="module")
def proof(of: RecordSubject) -> Record:
    kernel = program(TEXT)
    assert isinstance(kernel, ir.Kernel)
    return verified(of, kernel)


def test_a_time_is_read(time: Record, of: RecordSubject) -> None:
    outcome = timing_of(time)
    assert isinstance(outcome, BenchEvidence)
    assert outcome.seconds == pytest.approx(25e-6) and outcome.regime == "cold"
    assert outcome.clock == pytest.approx(1.83e9, rel=1e-3)
    assert (outcome.of.source, outcome.of.binary, outcome.of.harness) == (of.source, of.binary, time.harness)
    assert outcome.findings == ()


def test_the_regime_is_read(of: RecordSubject) -> None:
    outcome = timing_of(bench(of, 25.0, "warm"))
    assert isinstance(outcome, BenchEvidence) and outcome.regime == "warm"


def test_a_refusal_is_read_with_its_findings(of: RecordSubject) -> None:
    outcome = timing_of(bench(of, 0.0, trick=True))
    assert isinstance(outcome, StoppedBench) and outcome.stage == "audit"
    assert {f.kind for f in outcome.findings} == {"off-stream"}


@pytest.mark.parametrize(
    "path",
    [
        ("outcomes",),
        ("findings",),
        ("outcomes", "0", "span"),
        ("outcomes", "0", "sm_clock"),
        ("outcomes", "0", "findings"),
    ],
)
def test_a_time_without_a_field_is_no_evidence(time: Record, path: tuple[str, ...]) -> None:
    outcome = timing_of(without(time, *path))
    assert isinstance(outcome, MissingEvidence) and "counts as no evidence" in outcome.why


@pytest.mark.parametrize("span", [0.0, -1.0, "25", True, None])
def test_a_time_that_is_none_is_no_evidence(time: Record, span: object) -> None:
    first = {**time.result["outcomes"][0], "span": {"median": span}}
    changed = sealed(replace(time, result={**time.result, "outcomes": [first]}, id=""))
    assert isinstance(timing_of(changed), MissingEvidence)


def test_a_time_without_a_regime_is_no_evidence(time: Record) -> None:
    assert isinstance(timing_of(replace(time, protocol={})), MissingEvidence)


def test_a_proof_is_read(proof: Record) -> None:
    outcome = proof_of(proof)
    assert (
        isinstance(outcome, VerifyEvidence)
        and outcome.ok
        and len(outcome.cases) == 17
        and outcome.failures == ()
    )
    assert outcome.untried == ()
    zeros = next(c for c in outcome.cases if c.name.startswith("zeros"))
    normal = next(c for c in outcome.cases if c.name.startswith("normal"))
    assert not zeros.reference_varies and not zeros.varies
    assert normal.reference_varies and normal.varies and normal.rms == 0.0


def test_what_a_short_suite_did_not_try_is_told(of: RecordSubject, proof: Record) -> None:
    kernel = program(TEXT)
    assert isinstance(kernel, ir.Kernel)
    short = proof_of(verified(of, kernel, distributions=("zeros",)))
    assert isinstance(short, VerifyEvidence) and short.ok and "normal" in short.untried
    assert "zeros" not in short.untried and len(short.untried) == 15
    elsewhere = replace(of, sizes={**of.sizes, "M": 7})
    moved = proof_of(sealed(replace(proof, subject=elsewhere, id="")))
    assert isinstance(moved, VerifyEvidence) and len(moved.untried) == 16


def test_a_failed_proof_is_read(of: RecordSubject) -> None:
    kernel = program(TEXT)
    assert isinstance(kernel, ir.Kernel)
    outcome = proof_of(verified(of, kernel, wrong=100.0))
    assert isinstance(outcome, VerifyEvidence) and not outcome.ok and outcome.failures
    assert any(case.worst > 1 for case in outcome.cases)


@pytest.mark.parametrize(
    "path",
    [
        ("ok",),
        ("cases",),
        ("failures",),
        ("cases", "0", "ok"),
        ("cases", "0", "rms"),
        ("cases", "0", "varies"),
        ("cases", "0", "worst"),
    ],
)
def test_a_proof_without_a_field_is_no_evidence(proof: Record, path: tuple[str, ...]) -> None:
    assert isinstance(proof_of(without(proof, *path)), MissingEvidence)


def test_a_case_that_stayed_undecided_is_read_as_open(proof: Record) -> None:
    first, *others = proof.result["cases"]
    made = replace(proof, result=proof.result | {"cases": [first | {"outcome": "undecided"}, *others]})
    outcome = proof_of(made)
    assert isinstance(outcome, VerifyEvidence) and [case.open for case in outcome.cases[:2]] == [True, False]


def test_an_ancestor_is_an_audit(time: Record) -> None:
    record = sealed(replace(time, kind="audit", result={"verdict": "below-sol"}, id=""))
    assert ancestor_of(record).verdict == "below-sol"  # type: ignore[union-attr]
    assert isinstance(ancestor_of(time), MissingEvidence)
    assert isinstance(ancestor_of(replace(record, result={"verdict": "splendid"})), MissingEvidence)
