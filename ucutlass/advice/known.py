"""What counting says of any planned kernel: the facts that advice begins with."""

from __future__ import annotations

from functools import partial

from ucutlass import frontend, ir
from ucutlass.advice.facts import Facts, facts_of
from ucutlass.advice.family import FamilyFacts, speed_of
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import Request
from ucutlass.kernels.families import GemmForm
from ucutlass.kernels.gemm.planner import Planned
from ucutlass.kernels.planned import AnyPlanned
from ucutlass.kernels.planning import kernels
from ucutlass.sol.bounds import bounds


def facts_about(
    checked: frontend.Checked, kernel: ir.Kernel, planned: AnyPlanned, arch: str
) -> Facts | FamilyFacts:
    """The facts of a plan of `kernel`, of whatever family; nothing is built or timed."""
    if isinstance(planned, Planned):
        return facts_of(planned)
    found = frontend.form(checked, kernel)
    assert not isinstance(found, GemmForm)
    sizes = dict(zip(kernel.dims, planned.sizes, strict=True))
    near = partial(kernels, found, planned.sizes, ARCHES[arch], planned.device, Request())
    return FamilyFacts(planned, speed_of(bounds(kernel, sizes, planned.device)), near)
