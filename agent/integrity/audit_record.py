"""An audit's verdict as a record of the evidence store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ucutlass.agent.integrity.bundle import EvidenceBundle
from ucutlass.agent.integrity.gather import AuditSubject, matches
from ucutlass.agent.integrity.verdict import AuditReport
from ucutlass.runtime.evidence import Record
from ucutlass.runtime.store import record
from ucutlass.runtime.subject import machine_of, subject_of


def record_of(
    candidate: AuditSubject, bundle: EvidenceBundle, found: AuditReport, records: Sequence[Record]
) -> Record:
    """The verdict, of the subject that was measured; of the text alone where nothing of it was."""
    mine = [r for r in records if matches(candidate, r)]
    sizes = [candidate.sizes[d] for d in candidate.program.dims]
    subject = next(
        (r.subject for r in mine),
        subject_of(candidate.program, candidate.checked.source, sizes, arch="", lane="", schedule=""),
    )
    machine = next((r.machine for r in mine), machine_of(None))
    protocol = {"rules": list(found.checked), "lane": str(bundle.lane) if bundle.lane else None}
    result = {
        "verdict": found.verdict,
        "accepted": found.accepted,
        "findings": [asdict(f) | {"records": list(f.records)} for f in found.findings],
    }
    return record("audit", subject, machine, protocol, result, tuple(r.id for r in bundle.records))
