"""Integrity: may a candidate's numbers be believed? Evidence in, one verdict with its reasons out."""

from ucutlass.agent.integrity.bundle import EvidenceBundle
from ucutlass.agent.integrity.rules import RULES, audit
from ucutlass.agent.integrity.verdict import ACCEPTED, PRECEDENCE, AuditFinding, AuditReport, AuditVerdict

__all__ = [
    "ACCEPTED",
    "PRECEDENCE",
    "RULES",
    "AuditFinding",
    "AuditReport",
    "AuditVerdict",
    "EvidenceBundle",
    "audit",
]
