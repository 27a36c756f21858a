"""Integrity: may a candidate's numbers be believed? Evidence in, one verdict with its reasons out."""

from ucutlass.agent.integrity.bundle import Bundle
from ucutlass.agent.integrity.rules import RULES, audit
from ucutlass.agent.integrity.verdict import ACCEPTED, PRECEDENCE, Finding, Report, Verdict

__all__ = ["ACCEPTED", "PRECEDENCE", "RULES", "Bundle", "Finding", "Report", "Verdict", "audit"]
