"""Advice: what decides a kernel's time, what is wrong with it, and which legal edit to try."""

from ucutlass.advice.classify import Classified, classify
from ucutlass.advice.edits import neighbours
from ucutlass.advice.facts import Build, Counters, Facts, Rival, Timing, facts_of
from ucutlass.advice.finding import Edit, Evidence, Expected, Finding, Rule
from ucutlass.advice.rules import RULES
from ucutlass.advice.select import Advice, HitRate, advise, finding

__all__ = [
    "RULES",
    "Advice",
    "Build",
    "Classified",
    "Counters",
    "Edit",
    "Evidence",
    "Expected",
    "Facts",
    "Finding",
    "HitRate",
    "Rival",
    "Rule",
    "Timing",
    "advise",
    "classify",
    "facts_of",
    "finding",
    "neighbours",
]
