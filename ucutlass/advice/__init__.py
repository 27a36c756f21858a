"""Advice on a kernel: what limits its time, which problems it has, and which legal edits to try."""

from ucutlass.advice.classify import Classification, classify
from ucutlass.advice.edits import neighbours
from ucutlass.advice.facts import BuildFacts, Counters, KernelFacts, Rival, TimingFacts, facts_of
from ucutlass.advice.finding import AdviceRule, ExpectedRatio, Finding, Metric, ScheduleEdit
from ucutlass.advice.rules import RULES
from ucutlass.advice.select import Advice, HitRate, advise, finding, leading_findings

__all__ = [
    "RULES",
    "Advice",
    "AdviceRule",
    "BuildFacts",
    "Classification",
    "Counters",
    "ExpectedRatio",
    "Finding",
    "HitRate",
    "KernelFacts",
    "Metric",
    "Rival",
    "ScheduleEdit",
    "TimingFacts",
    "advise",
    "classify",
    "facts_of",
    "finding",
    "leading_findings",
    "neighbours",
]
