"""This module writes an audit's verdict as a record of the evidence store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ucutlass.agent.integrity.bundle import EvidenceBundle
from ucutlass.agent.integrity.gather import AuditSubject, matches
from ucutlass.agent.integrity.verdict import AuditReport
from ucutlass.runtime.evidence import Record
from ucutlass.runtime.store import record
from ucutlass.runtime.subject import machine_of, subject_of


def record_of(
    candidate: AuditSubject,
    bundle: EvidenceBundle,
    audit_report: AuditReport,
    records: Sequence[Record],
    algebra: str | None = None,
) -> Record:
    """Returns the verdict, of the subject that was measured; of the text alone where nothing of it was. `algebra`
    says by which rules the candidate is equal to a problem's program."""
    mine = [r for r in records if matches(candidate, r)]
    sizes = [candidate.sizes[d] for d in candidate.program.dims]
    subject = next(
        (r.subject for r in mine),
        subject_of(candidate.program, candidate.checked.source, sizes, arch="", compute_type="", schedule=""),
    )
    machine = next((r.machine for r in mine), machine_of(None))
    protocol = {
        "rules": list(audit_report.checked),
        "lane": str(bundle.precision) if bundle.precision else None,
    }
    result: dict[str, Any] = {
        "verdict": audit_report.verdict,
        "accepted": audit_report.accepted,
        "findings": [asdict(f) | {"records": list(f.records)} for f in audit_report.findings],
    }
    if algebra is not None:
        result["algebra"] = algebra
    return record("audit", subject, machine, protocol, result, tuple(r.id for r in bundle.records))
