"""This module says what an optimisation spends, and what it may spend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Spend:
    """`attempts` are programs that were judged. `input`, `cached`, `written` and `output` are tokens as an
    API counts them: sent anew, read from its cache, written to it, and answered. `dollars` follows from
    them and a price list. `gpu_seconds` are those that held the GPU lock, `seconds` of wall time; waiting for
    the lock counts in neither."""

    attempts: int = 0
    input: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0
    dollars: float = 0.0
    gpu_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Returns the sum of all tokens, whatever they cost."""
        return self.input + self.cached + self.written + self.output

    def __add__(self, other: Spend) -> Spend:
        return Spend(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Spend)))


NOTHING = Spend()


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds one problem's or a whole run's spend by the most of each; None is no limit. One problem's, or a
    whole run's."""

    attempts: int | None = 40
    tokens: int | None = None
    dollars: float | None = None
    gpu_seconds: float | None = None
    seconds: float | None = None


_UNITS: Mapping[str, str] = {
    "attempts": "attempts",
    "tokens": "tokens",
    "dollars": "dollars",
    "gpu_seconds": "seconds of GPU",
    "seconds": "seconds",
}


def exhausted(budget: Budget, spend: Spend) -> str | None:
    """Returns which limit is reached, in words; None where none is."""
    for name, unit in _UNITS.items():
        most = getattr(budget, name)
        if most is not None and getattr(spend, name) >= most:
            return f"the budget of {most:g} {unit} is spent"
    return None


def spend_of_json(value: Mapping[str, Any]) -> Spend:
    """Raises TypeError for another's fields."""
    return Spend(**value)


def to_json(value: Spend | Budget) -> dict[str, Any]:
    return asdict(value)
