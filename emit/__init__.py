"""Kernel plans to CUTLASS C++."""

from __future__ import annotations

from dataclasses import replace

from ucutlass.emit.gemm import gemv
from ucutlass.emit.gemm import sm80 as gemm_sm80
from ucutlass.emit.gemm import sm90 as gemm_sm90
from ucutlass.emit.text import Source, finish
from ucutlass.kernels.attention.plan import AttentionPlan
from ucutlass.kernels.convolution.plan import ConvPlan, DirectSchedule, Im2colSchedule, PlacesSchedule
from ucutlass.kernels.gemm.plan import GemmPlan, GemvSchedule, Sm80Schedule, Sm90Schedule
from ucutlass.kernels.grouped_gemm.plan import ProductsPlan
from ucutlass.kernels.plans import Plan
from ucutlass.kernels.reduction.plan import SweepPlan
from ucutlass.spans import span

__all__ = ["Source", "emit"]


@span("emitting")
def emit(plan: Plan, header: str) -> Source:
    """The stand-alone CUDA file of a plan, with `header` (any text) as its opening comment.

    Raises NotServed for f32 by wgmma where a lean kernel does not serve the plan.
    """
    made = finish(_code(plan), header, "sm_" + plan.arch.removeprefix("sm"))
    return replace(made, in_parts=isinstance(plan, GemmPlan) and gemm_sm90.is_lean_alone(plan))


def _code(plan: Plan) -> str:
    # Emitters of the other families are imported here: most processes need one of them, if any.
    match plan:
        case GemmPlan():
            return _gemm(plan)
        case ProductsPlan():
            from ucutlass.emit.grouped_gemm import emitter as products

            return products.render(plan)
        case SweepPlan():
            from ucutlass.emit.reduction import emitter as sweep

            return sweep.render(plan)
        case ConvPlan():
            return _convolution(plan)
        case AttentionPlan():
            from ucutlass.emit.attention import emitter as attention

            return attention.render(plan)


def _convolution(plan: ConvPlan) -> str:
    from ucutlass.emit.convolution import direct as conv_direct
    from ucutlass.emit.convolution import im2col as conv_sm90
    from ucutlass.emit.convolution import sm80 as conv_sm80
    from ucutlass.emit.convolution import wgrad as conv_places

    match plan.schedule:
        case DirectSchedule() as schedule:
            return conv_direct.render(plan.problem, schedule)
        case Im2colSchedule() as schedule:
            return conv_sm90.render(plan.problem, schedule)
        case PlacesSchedule() as schedule:
            return conv_places.render(plan.problem, schedule)
        case Sm80Schedule() as schedule:
            return conv_sm80.render(plan.problem, schedule)


def _gemm(plan: GemmPlan) -> str:
    match plan.schedule:
        case Sm90Schedule() if gemm_sm90.is_lean_alone(plan):
            # Here, since most processes never need what builds kernels in parts.
            from ucutlass.emit.gemm.lean import listing

            return listing(plan)
        case Sm90Schedule():
            return gemm_sm90.render(plan)
        case Sm80Schedule() as schedule:
            return gemm_sm80.render(plan.problem, schedule)
        case GemvSchedule() as schedule:
            return gemv.render(plan.problem, schedule)
