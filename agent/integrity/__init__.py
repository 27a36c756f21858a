"""This package decides whether a candidate's numbers may be believed: it takes evidence and returns one
verdict with its reasons."""

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
