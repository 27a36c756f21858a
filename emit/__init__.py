"""Kernel plans to CUTLASS C++."""

from __future__ import annotations

from ucutlass.emit.text import Source, finish
from ucutlass.plan import GemmPlan, GemvSchedule, Sm80Schedule, Sm90Schedule

__all__ = ["Source", "emit"]


def emit(plan: GemmPlan, header: str) -> Source:
    """The stand-alone CUDA source of a plan.

    `header` is free text (the program, the schedule, the versions) for the comment at the top
    of the file; it takes no part in the code, its digest or the entry's name.
    """
    return finish(_code(plan), header, "sm_" + plan.arch.removeprefix("sm"))


def _code(plan: GemmPlan) -> str:
    # Imported here: the families import `ucutlass.emit.arithmetic`, hence this package.
    match plan.schedule:
        case Sm90Schedule():
            from ucutlass.emit import gemm_sm90

            return gemm_sm90.render(plan)
        case Sm80Schedule():
            from ucutlass.emit import gemm_sm80

            return gemm_sm80.render(plan)
        case GemvSchedule():
            from ucutlass.emit import gemv

            return gemv.render(plan)
