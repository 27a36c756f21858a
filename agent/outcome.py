"""This module says what became of a candidate: there is one type for each way that it can end.

Only `TimedOutcome` is a result. It has passed the compiler, the judge and the audit; whatever did not is no
ancestor's merit, no memory and no result, and says in words why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class RefusedOutcome:
    """Says that the checker, the planner or the problem's own terms refused the program before anything was
    built. `codes` are those of the diagnostics, empty where the text was no program at all."""

    words: str
    codes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RepeatedOutcome:
    """Says that the program has the same algorithm and schedule as an earlier candidate: nothing was measured
    again."""

    of: int


@dataclass(frozen=True, slots=True)
class FailedOutcome:
    """Says that the program did not build, did not run, or took its process with it."""

    stage: Literal["build", "run", "time"]
    words: str


@dataclass(frozen=True, slots=True)
class WrongOutcome:
    """Says that the program ran, and that some element is further from the reference than its derived
    bound."""

    words: str


@dataclass(frozen=True, slots=True)
class RejectedOutcome:
    """Holds the audit's verdict on evidence that could not be believed; `records` are ids in the store."""

    verdict: str
    words: str
    records: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimedOutcome:
    """Says that the program is right, and its time believed. `seconds` is the median of one call; `low` and
    `high` bound the ratio of the baseline's time to it, `gain`, at 95 %. `joules` of one call, None where
    they were not measured. `records` are ids in the evidence store, `advice` the interpreted findings for
    whoever proposes next. `first` is the search's own reading of what was confirmed afterwards, `versus` the
    ratio of each baseline's time to it, by name."""

    seconds: float
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    joules: float | None = None
    records: tuple[str, ...] = ()
    advice: str = ""
    first: float | None = None
    versus: tuple[tuple[str, float], ...] = ()


Outcome: TypeAlias = (
    RefusedOutcome | RepeatedOutcome | FailedOutcome | WrongOutcome | RejectedOutcome | TimedOutcome
)

_KINDS: Mapping[str, type[Outcome]] = MappingProxyType(
    {
        "refused": RefusedOutcome,
        "repeated": RepeatedOutcome,
        "failed": FailedOutcome,
        "wrong": WrongOutcome,
        "rejected": RejectedOutcome,
        "timed": TimedOutcome,
    }
)
"""The classes by the kind that journals hold."""


class NotAnOutcome(ValueError):
    """Raised where a journal holds what no outcome is."""


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    kind = next(kind for kind, outcome_class in _KINDS.items() if isinstance(outcome, outcome_class))
    return {"kind": kind, **asdict(outcome)}


def outcome_of_json(value: Mapping[str, Any]) -> Outcome:
    """Raises NotAnOutcome."""
    held: dict[str, Any] = {n: _frozen(v) for n, v in value.items()}
    try:
        kind: Callable[..., Outcome] = _KINDS[held.pop("kind")]
        return kind(**held)
    except (KeyError, TypeError) as problem:
        raise NotAnOutcome(f"no outcome reads {dict(value)!r}"[:300]) from problem


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def words(outcome: Outcome) -> str:
    """Returns one line for people and models."""
    match outcome:
        case RefusedOutcome(message, codes):
            return f"refused {', '.join(codes)}: {message}" if codes else f"refused: {message}"
        case RepeatedOutcome(of):
            return f"the same as candidate {of}: not measured again"
        case FailedOutcome(stage, message):
            return f"failed ({stage}): {message}"
        case WrongOutcome(message):
            return f"wrong: {message}"
        case RejectedOutcome(verdict, message):
            return f"rejected ({verdict}): {message}"
        case TimedOutcome():
            ratio = "" if outcome.gain is None else f", {outcome.gain:.3f} of the baseline's speed"
            return f"{outcome.seconds * 1e6:.2f} us{ratio}"
