"""Derives the facts of any planned kernel without building or timing it."""

from __future__ import annotations

from functools import partial

from ucutlass import frontend, ir
from ucutlass.advice.facts import KernelFacts, facts_of
from ucutlass.advice.family import FamilyFacts, speed_of
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import Request
from ucutlass.kernels.families import schedules
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.kernels.planned import Planned
from ucutlass.sol.bounds import bounds


def static_facts(
    checked: frontend.Checked, kernel: ir.Kernel, planned: Planned, arch: str
) -> KernelFacts | FamilyFacts:
    """Returns the facts of a plan of `kernel`, whatever its family."""
    if isinstance(planned.plan, GemmPlan):
        return facts_of(planned)
    pattern = frontend.pattern(checked, kernel)
    sizes = dict(zip(kernel.dims, planned.sizes, strict=True))
    neighbours = partial(schedules, pattern, planned.sizes, ARCHES[arch], planned.device, Request())
    return FamilyFacts(planned, speed_of(bounds(kernel, sizes, planned.device)), neighbours)
