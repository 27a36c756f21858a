"""The attention family: two dots around a softmax."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ucutlass import ir
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.ir.traversal import find
from ucutlass.kernels import space
from ucutlass.kernels.attention import cost
from ucutlass.kernels.attention.granularity import granularity
from ucutlass.kernels.attention.match import AttentionPattern, is_attention, match_attention
from ucutlass.kernels.attention.plan import AttentionPlan
from ucutlass.kernels.attention.planner import plan_attention
from ucutlass.kernels.attention.rules import RULES
from ucutlass.kernels.attention.space import axes
from ucutlass.kernels.attention.variants import VARIANTS
from ucutlass.kernels.family import Family
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.violation import Violation


def match(kernel: ir.Kernel) -> AttentionPattern | None:
    """The pattern of two dots around a softmax. Raises Refused."""
    dots = find(kernel, ir.Dot)
    return match_attention(kernel, dots) if is_attention(dots) else None


def plan_pattern(
    pattern: AttentionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """The best legal kernel that the request allows, or why there is none. Raises Refused."""
    planner = partial(plan_attention, pattern, sizes, arch, device, aligned=aligned)
    return space.planned(planner, axes, request)


def schedules(
    pattern: AttentionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    free: bool = False,
) -> Iterator[Planned]:
    """The planner's choice for a request and the other legal kernels around it. Raises Refused."""
    return space.kernels(partial(plan_attention, pattern, sizes, arch, device), axes, request, free)


def candidates(
    pattern: AttentionPattern, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Iterator[Planned]:
    """Kernels near the planner's choice for a request, the cheapest first. Raises Refused."""
    return space.candidates(partial(plan_attention, pattern, sizes, arch, device), axes, request)


FAMILY = Family(
    name="attention",
    pattern=AttentionPattern,
    plan=AttentionPlan,
    match=match,
    plan_pattern=plan_pattern,
    schedules=schedules,
    candidates=candidates,
    granularity=granularity,
    resources=cost.resources,
    traffic=cost.traffic,
    tile_cost=cost.tile_cost,
    prices=False,
    rules=RULES,
    variants=VARIANTS,
)
