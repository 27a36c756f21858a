"""What a family of kernels gives that compute a torch function, which a pipeline calls.

Programs have no schedules for them, so that such a family has no rules and no variants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ucutlass.ir.elements import Element
from ucutlass.ir.hardware import Arch, Device
from ucutlass.kernels.planned import Planned


class CallProblem(Protocol):
    """A call at concrete extents: `sizes` are what its entry takes, which `dims` names by position."""

    @property
    def dims(self) -> tuple[str, ...]: ...

    @property
    def sizes(self) -> tuple[int, ...]: ...


class MatchCall(Protocol):
    """The problem of a call of torch's function on tensors of these elements and shapes, of which the results of these
    numbers are stored; None for another's."""

    def __call__(
        self,
        function: str,
        keywords: Mapping[str, int | float],
        gives: tuple[int, ...],
        elements: Sequence[Element],
        shapes: Sequence[tuple[int, ...]],
    ) -> CallProblem | None: ...


@dataclass(frozen=True, slots=True)
class CallFamily:
    """One family. `problem` and `plan` are the types by which its problems and plans are told; `plan_problem` returns None
    where no kernel serves a problem on a device, so that torch computes it."""

    name: str
    problem: type
    plan: type
    match: MatchCall
    plan_problem: Callable[[Any, Arch, Device], Planned | None]
