"""The schedules that a family's kernel may run by: some fields other than the planner would have them.

A family's `axes` says which values of a field are worth trying; the family's planner judges every request and fills what
is left open, so that nothing here can propose a kernel that does not exist.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import FIELDS, RASTERS, PartialSchedule, Value, without
from ucutlass.kernels.planned import Planned, TileCost, Traffic
from ucutlass.kernels.violation import Violation

Plan: TypeAlias = Callable[[PartialSchedule], "Planned | tuple[Violation, ...]"]
"""A family's planner for one pattern, extents and device."""

Axes: TypeAlias = Mapping[str, tuple[Value, ...]]
"""By field: the values to try."""

STEPS, STEPS_FREE = 2, 3
"""Fields that may differ from the planner's choice at a time, and where every schedule is looked at."""

FAR: Mapping[str, float] = MappingProxyType({"vector": 3.0, "stages": 3.0})
"""Fields whose doublings count for more: shorter vectors and other stages than fit seldom are faster."""

MOST = 4096
"""Requests that are planned at most."""


MOST_CANDIDATES = 64
"""Kernels that an edit chooses from: those of the fewest changes."""


def no_traffic(planned: Planned) -> Traffic | None:
    """Returns None: the family has no tiles whose traffic would count."""
    return None


def no_tile_cost(planned: Planned) -> TileCost | None:
    """Returns None: the family has no tiles to price."""
    return None


def candidates(plan: Plan, axes: Callable[[Planned], Axes], request: PartialSchedule) -> Iterator[Planned]:
    """Kernels near the planner's choice for a request, the cheapest first."""
    near = itertools.islice(kernels(plan, axes, request), MOST_CANDIDATES)
    yield from sorted(near, key=lambda planned: planned.seconds)


@dataclass(frozen=True, slots=True)
class PlannerSpace:
    """What a family's contract asks of its schedules (`ucutlass.kernels.family`), where its planner fills and
    judges one partial schedule at a time. `planner` takes a pattern, extents, target, device, partial schedule
    and alignments; `axes` gives the values worth trying near a kernel, by field."""

    planner: Callable[..., Planned | tuple[Violation, ...]]
    axes: Callable[[Planned], Axes]

    def plan_pattern(
        self,
        pattern: Any,
        sizes: tuple[int, ...],
        arch: Arch,
        device: Device,
        request: PartialSchedule,
        aligned: tuple[bool, ...] | None = None,
    ) -> Planned | tuple[Violation, ...]:
        """As `family.PlanPattern`. Raises Refused."""
        planner = partial(self.planner, pattern, sizes, arch, device, aligned=aligned)
        return planned(planner, self.axes, request)

    def schedules(
        self,
        pattern: Any,
        sizes: tuple[int, ...],
        arch: Arch,
        device: Device,
        request: PartialSchedule,
        free: bool = False,
    ) -> Iterator[Planned]:
        """As `family.ListSchedules`. Raises Refused."""
        return kernels(partial(self.planner, pattern, sizes, arch, device), self.axes, request, free)

    def candidates(
        self, pattern: Any, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
    ) -> Iterator[Planned]:
        """As `family.ListCandidates`. Raises Refused."""
        return candidates(partial(self.planner, pattern, sizes, arch, device), self.axes, request)


def kernels(
    plan: Plan, axes: Callable[[Planned], Axes], base: PartialSchedule, free: bool = False
) -> Iterator[Planned]:
    """The planner's choice for a request, then every other legal kernel within a few fields of it that keeps
    what is asked: fewer changes and shorter ways first, no kernel twice."""
    own = plan(base)
    if isinstance(own, tuple):
        return
    keys = {_key(own)}
    yield own
    open_ = {n: values for n, values in axes(own).items() if getattr(base, n) is None}
    for request in itertools.islice(_around(own.request, base, open_, STEPS_FREE if free else STEPS), MOST):
        planned = plan(request)
        if not isinstance(planned, tuple) and _key(planned) not in keys:
            keys.add(_key(planned))
            yield planned


def _key(planned: Planned) -> tuple[object, ...]:
    return planned.plan, planned.launch


def _around(
    start: PartialSchedule, base: PartialSchedule, open_: Axes, most: int
) -> Iterator[PartialSchedule]:
    """`base` with up to so many more fields fixed to other values than the start's. Where the way there is
    the same, the order is the table's."""
    requests = []
    for count in range(1, most + 1):
        for names in itertools.combinations(open_, count):
            ways = [[v for v in open_[n] if v != getattr(start, n)] for n in names]
            for values in itertools.product(*ways):
                changes: dict[str, Any] = dict(zip(names, values, strict=True))
                way = sum(FAR.get(n, 1.0) * apart(getattr(start, n), v) for n, v in changes.items())
                requests.append((count + way, changes))
    yield from (replace(base, **changes) for _, changes in sorted(requests, key=lambda pair: pair[0]))


def apart(a: Value | None, b: Value) -> float:
    """How far a field's values are: doublings of numbers, 1 for another word."""
    match a, b:
        case int(), int():
            return abs(math.log2(a / b))
        case tuple(), tuple():
            return math.fsum(abs(math.log2(x / y)) for x, y in zip(a, b, strict=True))
        case _:
            return 0.0 if a == b else 1.0


# --- what to try --------------------------------------------------------------------------


def ladder(field: str, start: Value | None, steps: int = 2) -> tuple[Value, ...]:
    """Halves and doubles of a number within the field's bounds; () where the kernel has no such field."""
    bounds = FIELDS[field].numbers
    if not isinstance(start, int) or bounds is None:
        return ()
    rungs = dict.fromkeys(v for step in range(1, steps + 1) for v in (start << step, start >> step))
    return tuple(v for v in rungs if bounds[0] <= v <= bounds[1])


ORDER: Axes = {"raster": tuple(RASTERS), "swizzle": (1, 2, 4, 8)}
"""What costs no build."""


# --- the nearest legal neighbour -----------------------------------------------------------


def planned(
    plan: Plan, axes: Callable[[Planned], Axes], request: PartialSchedule
) -> Planned | tuple[Violation, ...]:
    """The planner's answer for a request; of violations each with a legal request nearby."""
    answer = plan(request)
    if isinstance(answer, tuple) and request.fixed():
        return with_nearest(plan, axes, request, answer)
    return answer


def with_nearest(
    plan: Plan, axes: Callable[[Planned], Axes], base: PartialSchedule, broken: Sequence[Violation]
) -> tuple[Violation, ...]:
    """The violations, each with a legal request near what was asked where there is one."""
    own = plan(PartialSchedule())
    if isinstance(own, tuple):
        return tuple(broken)
    return tuple(replace(v, nearest=_nearest(plan, axes(own), own, base, v)) for v in broken)


def _nearest(
    plan: Plan, near: Axes, own: Planned, base: PartialSchedule, broken: Violation
) -> PartialSchedule | None:
    """The blamed fields moved, one of them, to the nearest value that is legal beside the others; else given
    up one by one, and at last all together."""
    blamed = [n for n in broken.fields if getattr(base, n) is not None]
    tried: list[PartialSchedule] = [] if broken.nearest is None else [broken.nearest]
    for name in blamed:
        start = getattr(base, name)
        values = {v for v in (*near.get(name, ()), getattr(own.request, name)) if v not in (None, start)}
        ways = sorted(values, key=lambda v: (apart(start, v), str(v)))
        tried += [replace(base, **{name: value}) for value in ways]
    tried += [without(base, *blamed[:count]) for count in range(1, len(blamed) + 1)]
    for request in (*tried, PartialSchedule()):
        planned = plan(request)
        if not isinstance(planned, tuple):
            return planned.request
    return None
