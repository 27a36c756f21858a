"""A kernel that doubles a tensor: what a family's folder in ucutlass/kernels has, in one file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ucutlass import ir
from ucutlass.ir.elements import F32, Element
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.family import Family
from ucutlass.kernels.granularity import Granularity
from ucutlass.kernels.planned import Grid, Planned, Resources, counted
from ucutlass.kernels.rule import Breach, Rule, broken
from ucutlass.kernels.variant import Variant
from ucutlass.kernels.violation import Violation

THREADS = 128


@dataclass(frozen=True, slots=True)
class DoublingPattern:
    """`return x + x`, of one f32 tensor."""

    kernel: ir.Kernel


@dataclass(frozen=True, slots=True)
class DoublingProblem:
    compute_type: Element
    dims: int
    pointers: int = 2
    scalars: int = 0


@dataclass(frozen=True, slots=True)
class DoublingSchedule:
    threads: int


@dataclass(frozen=True, slots=True)
class DoublingPlan:
    arch: str
    problem: DoublingProblem
    schedule: DoublingSchedule

    emitter: ClassVar[str] = "tests.kernels.toy.emitter"
    launch_parameters: ClassVar[tuple[str, ...]] = ()


def whole_block(schedule: DoublingSchedule) -> Breach | None:
    if schedule.threads <= 1024:
        return None
    message = f"threads is {schedule.threads}, a block has 1024 at most"
    return Breach(message, "take `threads 1024`", ("threads",), PartialSchedule(threads=1024))


VARIANTS = (Variant("doubling", (), ("threads",)),)

RULES = (
    Rule(
        "UC0470",
        "threads",
        "a block has 1024 threads at most",
        "CUDA C++ Programming Guide, compute capabilities",
        whole_block,
        frozenset({"doubling"}),
    ),
)


def match(kernel: ir.Kernel) -> DoublingPattern | None:
    """The pattern of `return x + x`."""
    value = kernel.results[0].value
    one_sum = isinstance(value, ir.Apply) and value.function == "add" and value.args[0] is value.args[1]
    return DoublingPattern(kernel) if one_sum and len(kernel.params) == len(kernel.results) == 1 else None


def plan_pattern(
    pattern: DoublingPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """A thread an element; `threads` is the one field, up to 1024."""
    threads = request.threads or THREADS
    if violations := broken(RULES, DoublingSchedule(threads)):
        return violations
    moved = 8.0 * math.prod(sizes)
    plan = DoublingPlan(arch.name, DoublingProblem(F32, len(sizes)), DoublingSchedule(threads))
    seconds, grid = moved / device.bandwidth, Grid(math.prod(sizes) // threads + 1, device.sms)
    price = counted(grid, device.launch_floor + seconds, 0.0, seconds, moved)
    return Planned(plan, (), sizes, PartialSchedule(threads=threads), device, price)


def schedules(
    pattern: DoublingPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    free: bool = False,
) -> Iterator[Planned]:
    """Blocks of 128, 256 and 512 threads."""
    for threads in (THREADS, 2 * THREADS, 4 * THREADS):
        planned = plan_pattern(
            pattern, sizes, arch, device, PartialSchedule(threads=request.threads or threads)
        )
        if isinstance(planned, Planned):
            yield planned


def candidates(
    pattern: DoublingPattern, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Iterator[Planned]:
    return schedules(pattern, sizes, arch, device, request)


def granularity(plan: DoublingPlan, dims: Sequence[str], launch: Sequence[int]) -> Granularity:
    return Granularity({dims[-1]: plan.schedule.threads}, {}, {})


def resources(planned: Planned) -> Resources:
    plan = planned.plan
    assert isinstance(plan, DoublingPlan)
    extents = {"elements": math.prod(planned.sizes)}
    return Resources("doubling", extents, None, plan.schedule.threads, {}, 0, 0, 0)


def nothing(planned: Planned) -> None:
    """No tiles read operands again."""


FAMILY = Family(
    name="doubling",
    pattern=DoublingPattern,
    plan=DoublingPlan,
    match=match,
    plan_pattern=plan_pattern,
    schedules=schedules,
    candidates=candidates,
    granularity=granularity,
    resources=resources,
    traffic=nothing,
    tile_cost=nothing,
    prices=False,
    rules=RULES,
    variants=VARIANTS,
)
