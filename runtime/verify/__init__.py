"""Judges whether a kernel wrote the program's result.

`check` judges one launch, or a pipeline stage by stage, `suite` says which launches a kernel must stand,
`pool` runs them in processes that may be lost, and `SuiteEvidence` is what came of it.
"""

from ucutlass.runtime.verify.comparison import Comparison, compare
from ucutlass.runtime.verify.evidence import CaseResult, SuiteEvidence
from ucutlass.runtime.verify.guards import CANARY, GUARD, POISONS, Guarded, guarded
from ucutlass.runtime.verify.judge import DirectLaunch, Jitter, JudgedLaunch
from ucutlass.runtime.verify.stages import StagedLaunch, check
from ucutlass.runtime.verify.suite import LeftOut, Suite, VerifyCase, suite
from ucutlass.runtime.verify.verdict import LaunchProblem, LaunchVerdict, StageVerdict, VerdictState, worst

__all__ = [
    "CANARY",
    "GUARD",
    "POISONS",
    "CaseResult",
    "Comparison",
    "DirectLaunch",
    "Guarded",
    "Jitter",
    "JudgedLaunch",
    "LaunchProblem",
    "LaunchVerdict",
    "LeftOut",
    "StageVerdict",
    "StagedLaunch",
    "Suite",
    "SuiteEvidence",
    "VerdictState",
    "VerifyCase",
    "check",
    "compare",
    "guarded",
    "suite",
    "worst",
]
