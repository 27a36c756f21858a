"""A planned kernel of any family: what building, launching and reports read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import Request
from ucutlass.kernels.gemm.planner import Planned
from ucutlass.kernels.gemm.reasons import Note
from ucutlass.kernels.plans import FamilyPlan


@dataclass(frozen=True, slots=True)
class FamilyPlanned:
    """A kernel of a family besides GEMM and how to launch it for these extents, in the order of the
    program's dimensions. `request` has the fields that the family fixes, `seconds` is the estimate,
    `knob_values` what a launch passes as knobs; `notes` and `origin` as in `Planned`."""

    plan: FamilyPlan
    knob_values: tuple[int, ...]
    sizes: tuple[int, ...]
    request: Request
    device: Device
    seconds: float
    notes: tuple[Note, ...] = ()
    origin: str = ""


AnyPlanned: TypeAlias = Planned | FamilyPlanned


def gemm_or_none(planned: AnyPlanned | None) -> Planned | None:
    """The plan where it is a GEMM's, whose tiles and waves reports look into."""
    return planned if isinstance(planned, Planned) else None
