"""Collects the verdicts of a suite's cases in a value that can be stored.

Missing evidence is failure: a case that did not run, or whose process was lost, is as bad as a
wrong result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeAlias

from ucutlass.runtime.sanitize import SanitizerReport
from ucutlass.runtime.verify.comparison import Comparison
from ucutlass.runtime.verify.suite import LeftOut, Suite, VerifyCase
from ucutlass.runtime.verify.verdict import LaunchProblem, LaunchVerdict, StageVerdict, VerdictState

CaseOutcome: TypeAlias = VerdictState | Literal["lost", "not run"]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """`lost`: the case raised, or its process ended, hung or was killed; `message` says how.
    `verdict` is None unless the case was judged; `seconds` is what it took."""

    case: VerifyCase
    outcome: CaseOutcome
    verdict: LaunchVerdict | None
    message: str = ""
    seconds: float = 0.0

    @property
    def open(self) -> bool:
        """Whether nothing is wrong, and bounds say too little, of numbers that only strain a program."""
        return self.outcome == "undecided" and self.case.strains

    @property
    def ok(self) -> bool:
        return self.outcome == "right" or self.open

    @property
    def worst(self) -> Comparison | None:
        """The comparison with the largest error over its bound, of the whole or of a stage."""
        comparisons = self.verdict.every if self.verdict else ()
        return max(comparisons, key=lambda c: c.worst, default=None)


@dataclass(frozen=True, slots=True)
class SuiteEvidence:
    """A whole suite's outcome. `results` has an entry for every case of the suite, in its order;
    `sanitizers` one for every tool that was asked for."""

    seed: int
    results: tuple[CaseResult, ...]
    left_out: tuple[LeftOut, ...]
    sanitizers: tuple[SanitizerReport, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether some case is right, every other is, too, or open, and every sanitizer ran and found
        nothing."""
        return bool(self.results) and not self.failures()

    @property
    def worst(self) -> Comparison | None:
        """The largest error over its bound of all cases; at most 1 where all are right."""
        comparisons = [r.worst for r in self.results if r.worst is not None]
        return max(comparisons, key=lambda c: c.worst, default=None)

    def failures(self) -> tuple[str, ...]:
        """Returns one line for everything that stands against the kernel, evidence that is missing too."""
        return tuple(self._failures())

    def _failures(self) -> Iterator[str]:
        if not self.results:
            yield "no case: nothing was verified"
        proven = any(result.outcome == "right" for result in self.results)
        for result in self.results:
            if not (result.ok and proven):
                yield _about(result)
        for report in self.sanitizers:
            if not report.ok:
                yield f"{report.tool}: {report.message}"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: numbers that are not finite become "inf", "-inf" and "nan"."""
        return {
            "ok": self.ok,
            "seed": self.seed,
            "cases": [_case_json(r) for r in self.results],
            "left_out": plain(self.left_out),
            "sanitizers": plain(self.sanitizers),
            "failures": list(self.failures()),
            "open": [_about(r) for r in self.results if r.open],
        }


def _case_json(result: CaseResult) -> dict[str, Any]:
    """Returns a case with its verdict. `worst` and `rms` are the largest of its comparisons, those of stages
    too; whether the output and the reference vary is said of all results."""
    compared = result.verdict.comparisons if result.verdict else ()
    every = result.verdict.every if result.verdict else ()
    case: dict[str, Any] = plain(result.case)
    return case | {
        "outcome": result.outcome,
        "ok": result.ok,
        "worst": plain(max((c.worst for c in every), default=None)),
        "rms": plain(max((c.rms for c in every if c.rms is not None), default=None)),
        "varies": all(c.varies for c in compared),
        "reference_varies": all(c.reference_varies for c in compared),
        "problems": [str(p) for p in (result.verdict.problems if result.verdict else ())],
        "comparisons": plain(compared),
        "stages": plain(result.verdict.stages if result.verdict else ()),
        "missing": result.verdict.missing if result.verdict else "",
        "rests_on_stages": result.verdict.rests_on_stages if result.verdict else False,
        "message": result.message,
        "seconds": result.seconds,
    }


def _about(result: CaseResult) -> str:
    return f"{result.case.name}: {result.outcome}: {result.message or _verdict_text(result.verdict)}"


def _verdict_text(verdict: LaunchVerdict | None) -> str:
    if verdict is None:
        return "no verdict"
    return str(verdict).replace("\n", "; ")


def evidence_of(
    suite: Suite, results: Sequence[CaseResult], sanitizers: Sequence[SanitizerReport] = ()
) -> SuiteEvidence:
    """Joins a suite with what was seen; cases without a result did not run."""
    results_by_name = {r.case.name: r for r in results}
    every = (
        results_by_name.get(c.name) or CaseResult(c, "not run", None, "it has no result") for c in suite.cases
    )
    return SuiteEvidence(suite.seed, tuple(every), suite.left_out, tuple(sanitizers))


# --- as JSON -------------------------------------------------------------------------


def plain(value: object) -> Any:
    """Dataclasses, mappings and sequences as JSON values."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {str(k): plain(v) for k, v in value.items()}
        case tuple() | list():
            return [plain(v) for v in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
        case _:
            return value


def verdict_of(fields: Mapping[str, Any]) -> LaunchVerdict:
    """Returns the verdict that `plain` made this of."""
    stages = (
        StageVerdict(s["name"], _comparisons(s), tuple(LaunchProblem(**p) for p in s["problems"]), s["torch"])
        for s in fields["stages"]
    )
    problems = tuple(LaunchProblem(**p) for p in fields["problems"])
    return LaunchVerdict(_comparisons(fields), problems, tuple(stages), fields["missing"])


def _comparisons(fields: Mapping[str, Any]) -> tuple[Comparison, ...]:
    return tuple(_comparison(c) for c in fields["comparisons"])


def _comparison(fields: Mapping[str, Any]) -> Comparison:
    floats = {
        n: float(fields[n]) for n in ("worst", "out", "reference", "bound", "rms") if fields[n] is not None
    }
    in_tile = None if fields["in_tile"] is None else tuple(fields["in_tile"])
    return Comparison(**{**fields, **floats, "index": tuple(fields["index"]), "in_tile": in_tile})
