"""The schedules around a convolution's own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType

from ucutlass.ir.elements import F32, TF32, Element
from ucutlass.ir.schedule import Math, PartialSchedule
from ucutlass.kernels.convolution.plan import (
    ConvolutionPlan,
    DepthwiseWgradSchedule,
    DirectSchedule,
    RegisterTileSchedule,
)
from ucutlass.kernels.gemm.plan import Sm80Schedule
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.space import ORDER, Axes, ladder

MATHS: Mapping[Element, tuple[Math, ...]] = MappingProxyType({F32: ("tf32x3", "f16x3"), TF32: ("f16",)})
"""The words of `math` with which TMA's and wgmma's kernels multiply a compute type."""


def axes(planned: Planned) -> Axes:
    """The values worth trying near a kernel, by field."""
    plan = planned.plan
    assert isinstance(plan, ConvolutionPlan)
    if isinstance(plan.schedule, DirectSchedule):
        return _direct(planned.request)
    if isinstance(plan.schedule, DepthwiseWgradSchedule):
        return {"vector": (1, 2, 4, 8), "rows": (1, 2, 4, 8), "threads": (64, 128, 256)}
    if isinstance(plan.schedule, RegisterTileSchedule):
        return {
            "rows": (1, 2, 4, 8),
            "columns": (1, 2, 4, 8),
            "threads": (64, 128, 256),
            "warps": ("cooperative", "multistage"),
        }
    gathered = isinstance(plan.schedule, Sm80Schedule)
    return _tiled(planned.request, plan.problem.compute_type, gathered)


def _tiled(own: PartialSchedule, compute_type: Element, gathered: bool) -> Axes:
    kernel: Axes = {"warps": ("cooperative", "multistage"), "stages": (2, 3, 4, 5, 6, 8, 10, 12), **ORDER}
    item = compute_type.bytes
    if not gathered:
        maths = MATHS.get(compute_type, ())
        depths: tuple[int, ...] = (32, 64) if maths else (128 // item,)
        tiles = itertools.product((64, 128, 192), (32, 64, 96, 128, 160, 192, 256), depths)
        math: Axes = {"math": maths} if maths else {}
        return {**kernel, **math, "tile": tuple(tiles), "blocks": (1, 2, 3, 4, 5, 6)}
    depths = (64 // item, 32 // item, 128 // item)
    tiles = itertools.product((32, 64, 128, 256), (32, 64, 128, 256), depths)
    parts = ladder("split_k", own.split_k, 3)
    return {**kernel, "tile": tuple(tiles), "math": ("tf32x3", "simt"), "split_k": parts}


def _direct(own: PartialSchedule) -> Axes:
    return {
        "vector": ladder("vector", own.vector, 3),
        "rows": ladder("rows", own.rows, 3),
        "items": ladder("items", own.items, 3),
        "threads": (32, 64, 128, 256, 512),
        "warps": ("cooperative", "multistage"),
    }
