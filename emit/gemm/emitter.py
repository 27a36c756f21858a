"""A GEMM's plan to CUDA source."""

from __future__ import annotations

from ucutlass.emit.gemm import gemv, sm80, sm90
from ucutlass.emit.parts import Lean
from ucutlass.kernels.gemm.plan import GemmPlan, GemvSchedule, Sm80Schedule, Sm90Schedule


def render(plan: GemmPlan) -> str:
    """The code of a plan. Raises NotServed for f32 by wgmma where a lean kernel does not serve the plan."""
    match plan.schedule:
        case Sm90Schedule() if in_parts(plan):
            # Here, since most processes never need what builds kernels in parts.
            from ucutlass.emit.gemm.lean import listing

            return listing(plan)
        case Sm90Schedule():
            return sm90.render(plan)
        case Sm80Schedule() as schedule:
            return sm80.render(plan.problem, schedule)
        case GemvSchedule() as schedule:
            return gemv.render(plan.problem, schedule)


def parts(plan: GemmPlan) -> Lean:
    """The plan's kernel for NVRTC. Raises NotServed."""
    # Here, since most processes never need what builds kernels in parts.
    from ucutlass.emit.gemm.lean import lean

    return lean(plan)


def in_parts(plan: GemmPlan) -> bool:
    """Whether the kernel is built in parts or not at all."""
    return sm90.is_lean_alone(plan)
