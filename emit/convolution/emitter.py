"""A convolution's plan to CUDA source."""

from __future__ import annotations

from ucutlass.emit.convolution import depthwise_wgrad, direct, im2col, register_tile, sm80, wgrad
from ucutlass.ir.hardware import ARCHES
from ucutlass.kernels.convolution.plan import (
    ConvolutionPlan,
    DepthwiseWgradSchedule,
    DirectSchedule,
    Im2colSchedule,
    RegisterTileSchedule,
    WgradSchedule,
)
from ucutlass.kernels.gemm.plan import Sm80Schedule


def render(plan: ConvolutionPlan) -> str:
    """The code of a plan, for `ucutlass.emit.text.finish`."""
    match plan.schedule:
        case DirectSchedule() as schedule:
            return direct.render(plan.problem, schedule)
        case DepthwiseWgradSchedule() as schedule:
            return depthwise_wgrad.render(plan.problem, schedule, ARCHES[plan.arch].wgmma)
        case RegisterTileSchedule() as schedule:
            return register_tile.render(plan.problem, schedule)
        case Im2colSchedule() as schedule:
            return im2col.render(plan.problem, schedule)
        case WgradSchedule() as schedule:
            return wgrad.render(plan.problem, schedule)
        case Sm80Schedule() as schedule:
            return sm80.render(plan.problem, schedule)
