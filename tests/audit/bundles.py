"""Bundles for tests of the audit: an honest one, to be spoilt in one place at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ucutlass import frontend, ir
from ucutlass.agent.integrity.bundle import (
    ArtefactDigests,
    BenchEvidence,
    EvidenceBundle,
    InputProbe,
    MissingEvidence,
    ReferenceProbe,
    ResultProbe,
    SolTimes,
    StageWork,
    VerifiedCase,
    VerifyEvidence,
)
from ucutlass.runtime.evidence import Machine, Record, RecordSubject, sealed

PROGRAM = """kernel linear(x: bf16[M, K], w: bf16[N, K], b: f32[N]) -> bf16[M, N] {
  return relu(dot[K](x, w) + b)
}
"""
SUBJECT = RecordSubject("linear", "p" * 64, "a" * 64, "auto", "sm90a", "bf16", {"M": 64}, "s" * 64, "b" * 64)


def program(text: str = PROGRAM) -> ir.Program:
    return frontend.read_text(text).module.programs[-1]


def record(kind: Any = "bench", **result: Any) -> Record:
    machine = Machine("NVIDIA H200", "GPU-0", {})
    return sealed(Record(kind, SUBJECT, machine, "h" * 64, {}, result, "2026-01-01T00:00:00Z"))


THIS = ArtefactDigests("s" * 64, "b" * 64, "h" * 64)
TIMING = BenchEvidence("bench0", THIS, 100e-6, "cold", 1.83e9, ())
CASE = VerifiedCase("normal M=64", True, 0.3, 0.05, True, True)
PROOF = VerifyEvidence("verify0", THIS, True, (CASE,), ())
LIMITS = SolTimes(
    "data sheet of the H200",
    compute=60e-6,
    memory=80e-6,
    cache=30e-6,
    clock=1.83e9,
    boost=1.98e9,
    estimated=False,
)
PROBE = ReferenceProbe(
    (("M", 64),),
    (ResultProbe("", False, False, False),),
    (InputProbe("x", True, 0.5), InputProbe("w", True, 0.45), InputProbe("b", True, 0.05)),
)


def honest(**changes: Any) -> EvidenceBundle:
    evidence_bundle = EvidenceBundle(
        program=program(),
        precision=None,
        timing=TIMING,
        proof=PROOF,
        limits=LIMITS,
        calibrated=MissingEvidence("no calibration"),
        probe=PROBE,
        stages=(StageWork("linear", False, 80e-6),),
        ancestors=(),
        current=THIS,
        records=(record(), record("verify")),
    )
    return replace(evidence_bundle, **changes)
