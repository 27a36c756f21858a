"""The judge: is what a kernel wrote the program's result?

`check` judges one launch, or a pipeline stage by stage, `suite` says which launches a kernel must stand,
`pool` runs them in processes that may be lost, and `Evidence` is what came of it.
"""

from ucutlass.runtime.verify.comparison import Comparison, compare
from ucutlass.runtime.verify.evidence import CaseResult, Evidence
from ucutlass.runtime.verify.guards import CANARY, GUARD, POISONS, Guarded, guarded
from ucutlass.runtime.verify.judge import Exposed, Jitter, Launch
from ucutlass.runtime.verify.stages import Staged, check
from ucutlass.runtime.verify.suite import Case, LeftOut, Suite, suite
from ucutlass.runtime.verify.verdict import Problem, StageVerdict, State, Verdict, worst

__all__ = [
    "CANARY",
    "GUARD",
    "POISONS",
    "Case",
    "CaseResult",
    "Comparison",
    "Evidence",
    "Exposed",
    "Guarded",
    "Jitter",
    "Launch",
    "LeftOut",
    "Problem",
    "StageVerdict",
    "Staged",
    "State",
    "Suite",
    "Verdict",
    "check",
    "compare",
    "guarded",
    "suite",
    "worst",
]
