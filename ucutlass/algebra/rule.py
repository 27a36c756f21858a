"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass.algebra.terms import Terms
from ucutlass.ir import Value

Equation: TypeAlias = tuple[Value, Value]

Holds: TypeAlias = Literal["always", "finite", "no NaN"]
"""Of which values a rule is exact, rounding apart:

- `always`: of NaN and infinities too
- `no NaN`: of infinities too; where a value is NaN, one side may be a number
- `finite`: where every value of either side is finite, as real numbers are. Where one is infinite or NaN, or
  overflows, one side may be NaN or infinite and the other a number
"""

Head: TypeAlias = tuple[str, str]
"""The kind of a term, and its function or operation, "" for any."""


@dataclass(frozen=True, slots=True)
class AlgebraRule:
    """An equation of terms. `text` writes it in the language, `condition` says where it is true, "" for wherever it can
    be written; `source` says where it comes from. `apply` yields terms that are equal, the first of which is in the
    class of the term that it is given: that term with other terms of the same classes as parts. `heads` are those of
    terms that it takes."""

    name: str
    text: str
    condition: str
    holds: Holds
    source: str
    heads: tuple[Head, ...]
    apply: Callable[[Terms, Value], Iterator[Equation]]

    @property
    def statement(self) -> str:
        return f"{self.text}, {self.condition}" if self.condition else self.text
