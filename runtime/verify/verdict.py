"""Defines the verdict on a launch and what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass.runtime.verify.comparison import Comparison

VerdictState: TypeAlias = Literal["right", "wrong", "undecided"]
"""`undecided`: nothing is wrong, but most bounds are so wide that nothing could have been."""


def worst(states: Iterable[VerdictState]) -> VerdictState:
    """Returns what several verdicts come to together: wrong where one is, else undecided where one is."""
    distinct = set(states)
    return "wrong" if "wrong" in distinct else "undecided" if "undecided" in distinct else "right"


@dataclass(frozen=True, slots=True)
class LaunchProblem:
    """Something wrong with a run besides its numbers."""

    kind: Literal[
        "unwritten",
        "overrun",
        "input changed",
        "not repeatable",
        "reads poison",
        "not its stages'",
        "not its operands'",
    ]
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """One launch of a pipeline on the very numbers that it was given, against the reference of that stage
    alone. `torch`: a torch function, whose own result is taken as given; it has no comparison."""

    name: str
    comparisons: tuple[Comparison, ...] = ()
    problems: tuple[LaunchProblem, ...] = ()
    torch: bool = False

    @property
    def state(self) -> VerdictState:
        return _state(self.comparisons, self.problems)

    def __str__(self) -> str:
        if self.torch:
            return f"stage {self.name}: torch's own result, taken as given"
        return "\n".join(f"stage {self.name}: {part}" for part in (*self.problems, *self.comparisons))


@dataclass(frozen=True, slots=True)
class LaunchVerdict:
    """`comparisons` hold the results against the reference of the whole program; `missing` says why there
    are none. `stages` are a pipeline's, in order: where each is right on its own inputs, and the whole gives
    bit by bit what they give one after the other, the whole is right, whatever the bound end to end."""

    comparisons: tuple[Comparison, ...]
    problems: tuple[LaunchProblem, ...]
    stages: tuple[StageVerdict, ...] = ()
    missing: str = ""

    @property
    def every(self) -> tuple[Comparison, ...]:
        """The comparisons of the whole, then those of the stages."""
        return (*self.comparisons, *(c for stage in self.stages for c in stage.comparisons))

    @property
    def state(self) -> VerdictState:
        stages = {stage.state for stage in self.stages}
        end_to_end: VerdictState = "undecided" if self.missing else _state(self.comparisons, self.problems)
        if self.problems or "wrong" in stages | {end_to_end}:
            return "wrong"
        return "right" if end_to_end == "right" or stages == {"right"} else "undecided"

    @property
    def rests_on_stages(self) -> bool:
        """Whether it is right by its stages alone: end to end nothing is proven."""
        return self.ok and bool(self.missing or not all(c.decided for c in self.comparisons))

    @property
    def ok(self) -> bool:
        """Whether it is right, and something was proven."""
        return self.state == "right"

    def __str__(self) -> str:
        lines = [self.proof()] if self.stages else []
        lines += [str(p) for p in self.problems]
        lines += [f"end to end, {c}" if self.stages else str(c) for c in self.comparisons]
        return "\n".join([*lines, *(str(s) for s in self.stages if s.state != "right")])

    def proof(self) -> str:
        """Returns what is proven of a pipeline, and by what: one line."""
        judged = [s for s in self.stages if not s.torch]
        compared = [(c.worst, s.name) for s in judged for c in s.comparisons]
        worst, where = max(compared, default=(0.0, ""))
        by_stages = (
            f"{sum(s.state == 'right' for s in judged)} of {len(judged)} stages are right on what they were "
            f"given, the worst error is {worst:.3g} of its bound{f', in {where}' if worst else ''}"
        )
        torch_stages = [s.name for s in self.stages if s.torch]
        torch = (
            f", torch's own results are taken as given ({', '.join(torch_stages)})" if torch_stages else ""
        )
        loose = _share([c for s in judged for c in s.comparisons])
        idle = f", bounds say nothing of {loose:.2%} of their elements" if loose else ""
        return f"{self.state}: {by_stages}{idle}{torch}; {self._end_to_end()}"

    def _end_to_end(self) -> str:
        if self.missing:
            return f"there is no bound end to end: {self.missing}"
        idle = _share(self.comparisons)
        if not idle:
            return "so is the whole, end to end"
        rests = ": this rests on the stages" if self.rests_on_stages else ""
        return f"end to end the bound says nothing of {idle:.2%} of the elements{rests}"


def _state(comparisons: Sequence[Comparison], problems: Sequence[LaunchProblem]) -> VerdictState:
    if problems or not all(c.ok for c in comparisons):
        return "wrong"
    return "right" if all(c.decided for c in comparisons) else "undecided"


def _share(comparisons: Sequence[Comparison]) -> float:
    """Returns the share of elements whose bound says nothing."""
    return sum(c.useless for c in comparisons) / max(1, sum(c.elements for c in comparisons))
