"""The kernel families, and what is asked of whichever serves a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from ucutlass import ir
from ucutlass.ir.elements import Element
from ucutlass.ir.hardware import Arch, Device, default_device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.ir.traversal import find
from ucutlass.kernels.call_family import CallFamily, CallProblem
from ucutlass.kernels.family import Family
from ucutlass.kernels.granularity import Granularity
from ucutlass.kernels.planned import BY_MODEL, Plan, Planned, Resources, TileCost, Traffic
from ucutlass.kernels.refused import Refused
from ucutlass.kernels.rule import Rule
from ucutlass.kernels.violation import Violation

NAMES = ("convolution", "reduction", "grouped_gemm", "gemm", "attention")
"""The packages of `ucutlass.kernels`, in the order in which they are asked to match a kernel."""

FAMILIES: tuple[Family, ...] = tuple(
    import_module(f"ucutlass.kernels.{name}.family").FAMILY for name in NAMES
)

CALL_FAMILIES: tuple[CallFamily, ...] = tuple(
    import_module(f"ucutlass.kernels.{name}.family").FAMILY for name in ("recurrence",)
)
"""The families of kernels that compute torch functions."""

PLANS: tuple[type, ...] = (*(f.plan for f in FAMILIES), *(f.plan for f in CALL_FAMILIES))
"""The types of all plans."""

RULES: tuple[Rule[Any], ...] = tuple(rule for family in FAMILIES for rule in family.rules)
"""The legality rules of all families."""


BY_RULES = "by the planner's rules"
"""The origin of a schedule that no price decided."""


def match(kernel: ir.Kernel) -> object:
    """The pattern of a kernel, of the first family that serves it.

    Raises Refused with the diagnostic: UC0300 where no family serves it, UC03xx where one launch cannot.
    """
    for family in FAMILIES:
        pattern = family.match(kernel)
        if pattern is not None:
            return pattern
    raise Refused.no_family(kernel, f"a kernel with {len(find(kernel, ir.Dot))} dots")


def match_call(
    function: str,
    keywords: Mapping[str, int | float],
    gives: tuple[int, ...],
    elements: Sequence[Element],
    shapes: Sequence[tuple[int, ...]],
) -> CallProblem | None:
    """The problem of a call of torch's function, of the first family that has one."""
    problems = (family.match(function, keywords, gives, elements, shapes) for family in CALL_FAMILIES)
    return next((problem for problem in problems if problem is not None), None)


def plan_call(problem: CallProblem, arch: Arch, device: Device | None = None) -> Planned | None:
    """The cheapest kernel of a call; None where torch is to compute it. Without a device the architecture's default one
    is planned for."""
    family = next(family for family in CALL_FAMILIES if isinstance(problem, family.problem))
    return family.plan_problem(problem, arch, device or default_device(arch))


def family_of(pattern: object) -> Family:
    """The family of a pattern."""
    return next(family for family in FAMILIES if isinstance(pattern, family.pattern))


def family_of_plan(plan: Plan) -> Family:
    """The family of a plan."""
    return next(family for family in FAMILIES if isinstance(plan, family.plan))


def plan_pattern(
    pattern: object,
    sizes: Sequence[int],
    arch: Arch,
    device: Device | None,
    request: PartialSchedule,
    aligned: Sequence[bool] | None = None,
) -> Planned | tuple[Violation, ...]:
    """As `family.PlanPattern`; without a device the architecture's default one is planned for."""
    gpu = device or default_device(arch)
    fine = None if aligned is None else tuple(aligned)
    family = family_of(pattern)
    planned = family.plan_pattern(pattern, tuple(sizes), arch, gpu, request, fine)
    if isinstance(planned, tuple) or planned.origin or planned.request == request:
        return planned
    return replace(planned, origin=BY_MODEL if family.prices else BY_RULES)


def schedules(
    pattern: object,
    sizes: Sequence[int],
    arch: Arch,
    device: Device | None,
    request: PartialSchedule,
    free: bool = False,
) -> Iterator[Planned]:
    """As `family.ListSchedules`; without a device the architecture's default one is planned for."""
    gpu = device or default_device(arch)
    return family_of(pattern).schedules(pattern, tuple(sizes), arch, gpu, request, free)


def candidates(
    pattern: object, sizes: Sequence[int], arch: Arch, device: Device, request: PartialSchedule
) -> Iterator[Planned]:
    """As `family.ListCandidates`."""
    return family_of(pattern).candidates(pattern, tuple(sizes), arch, device, request)


def resources(planned: Planned) -> Resources:
    """What a kernel takes of an SM, and how its work is cut."""
    return family_of_plan(planned.plan).resources(planned)


def tile_cost(planned: Planned) -> TileCost | None:
    """How a tile's time divides, by the family's cost model; None where the kernel has no tiles."""
    return family_of_plan(planned.plan).tile_cost(planned)


def traffic(planned: Planned) -> Traffic | None:
    """What a kernel's tiles multiply and read; None where it has no tiles that read operands again."""
    return family_of_plan(planned.plan).traffic(planned)


def granularity(plan: Plan, dims: Sequence[str], launch: Sequence[int] = ()) -> Granularity:
    """How a plan cuts the program's dimensions, which `dims` names by position. `launch` has the launch
    parameters: each part of a split sum has a pipeline of its own to fill."""
    return family_of_plan(plan).granularity(plan, dims, launch)
