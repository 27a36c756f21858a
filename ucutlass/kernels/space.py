"""The schedules that a family's kernel may run by: some fields other than the planner would have them.

`axes` says which values of a field are worth trying; the family's planner judges every request and fills what
is left open, so that nothing here can propose a kernel that does not exist.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

from ucutlass.ir.schedule import FIELDS, RASTERS, Request, Value, without
from ucutlass.kernels.attention.plan import AttentionPlan
from ucutlass.kernels.convolution.plan import ConvPlan, DirectSchedule
from ucutlass.kernels.gemm.plan import Sm80Schedule
from ucutlass.kernels.grouped_gemm.plan import ProductsPlan, SimtSchedule
from ucutlass.kernels.planned import FamilyPlanned
from ucutlass.kernels.reduction.plan import SweepPlan
from ucutlass.kernels.violation import Violation

Plan: TypeAlias = Callable[[Request], "FamilyPlanned | tuple[Violation, ...]"]
"""A family's planner for one form, extents and device."""

Axes: TypeAlias = Mapping[str, tuple[Value, ...]]
"""By field: the values to try."""

STEPS, STEPS_FREE = 2, 3
"""Fields that may differ from the planner's choice at a time, and where every schedule is looked at."""

FAR: Mapping[str, float] = MappingProxyType({"vector": 3.0, "stages": 3.0})
"""Fields whose doublings count for more: shorter vectors and other stages than fit seldom are faster."""

MOST = 4096
"""Requests that are planned at most."""


def kernels(plan: Plan, asked: Request, free: bool = False) -> Iterator[FamilyPlanned]:
    """The planner's choice for a request, then every other legal kernel within a few fields of it that keeps
    what is asked: fewer changes and shorter ways first, no kernel twice."""
    own = plan(asked)
    if isinstance(own, tuple):
        return
    seen = {_key(own)}
    yield own
    open_ = {n: values for n, values in axes(own).items() if getattr(asked, n) is None}
    for request in itertools.islice(_around(own.request, asked, open_, STEPS_FREE if free else STEPS), MOST):
        made = plan(request)
        if not isinstance(made, tuple) and _key(made) not in seen:
            seen.add(_key(made))
            yield made


def _key(one: FamilyPlanned) -> tuple[object, ...]:
    return one.plan, one.knob_values


def _around(start: Request, asked: Request, open_: Axes, most: int) -> Iterator[Request]:
    """`asked` with up to so many more fields fixed to other values than the start's. Where the way there is
    the same, the order is the table's."""
    found = []
    for count in range(1, most + 1):
        for names in itertools.combinations(open_, count):
            ways = [[v for v in open_[n] if v != getattr(start, n)] for n in names]
            for values in itertools.product(*ways):
                given: dict[str, Any] = dict(zip(names, values, strict=True))
                way = sum(FAR.get(n, 1.0) * apart(getattr(start, n), v) for n, v in given.items())
                found.append((count + way, given))
    yield from (replace(asked, **given) for _, given in sorted(found, key=lambda pair: pair[0]))


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


def axes(own: FamilyPlanned) -> Axes:
    """The values worth trying near a kernel, by field."""
    match own.plan:
        case SweepPlan():
            return _sweep(own.request)
        case AttentionPlan():
            return _attention(own.request)
        case ProductsPlan(schedule=SimtSchedule()):
            return {"warps": ("pingpong", "cooperative")}
        case ProductsPlan(problem=problem):
            return _products(own.request, problem.products)
        case ConvPlan(schedule=DirectSchedule()):
            return _direct(own.request)
        case ConvPlan(schedule=schedule, problem=problem):
            return _tiled(own.request, problem.lane.bytes, isinstance(schedule, Sm80Schedule))


def _ladder(field: str, start: Value | None, steps: int = 2) -> tuple[Value, ...]:
    """Halves and doubles of a number within the field's bounds; () where the kernel has no such field."""
    bounds = FIELDS[field].numbers
    if not isinstance(start, int) or bounds is None:
        return ()
    found = dict.fromkeys(v for step in range(1, steps + 1) for v in (start << step, start >> step))
    return tuple(v for v in found if bounds[0] <= v <= bounds[1])


def _sweep(own: Request) -> Axes:
    return {
        "threads": _ladder("threads", own.threads, 3),
        "rows": _ladder("rows", own.rows),
        "items": _ladder("items", own.items),
        "vector": _ladder("vector", own.vector),
        "cluster": ((1, 1), (1, 2), (1, 4), (1, 8)),
        "split_k": _ladder("split_k", own.split_k, 3),
        "keep": FIELDS["keep"].words,
    }


def _attention(own: Request) -> Axes:
    assert own.tile is not None
    tiles = itertools.product((64, 128, 192), range(64, 257, 16), own.tile[2:])
    return {"tile": tuple(tiles), "stages": (2, 3, 4)}


_ORDER: Axes = {"raster": tuple(RASTERS), "swizzle": (1, 2, 4, 8)}
"""What costs no build."""


def _products(own: Request, products: int) -> Axes:
    """Stages stay as many as fit, as for one product."""
    assert own.tile is not None
    columns = (64 // products, 128 // products, 256 // products)
    tiles = itertools.product((64, 128, 256), columns, own.tile[2:])
    return {
        "warps": ("pingpong", "cooperative"),
        "tile": tuple(tiles),
        "cluster": ((1, 1), (2, 1), (1, 2)),
        **_ORDER,
    }


def _tiled(own: Request, item: int, gathered: bool) -> Axes:
    kernel: Axes = {"warps": ("cooperative", "multistage"), "stages": (2, 3, 4, 5, 6, 8, 10, 12), **_ORDER}
    if not gathered:
        sides = itertools.product((64, 128, 192), (32, 64, 96, 128, 160, 192, 256), (128 // item,))
        return {**kernel, "tile": tuple(sides), "blocks": (1, 2, 3, 4, 5, 6)}
    depths = (64 // item, 32 // item, 128 // item)
    tiles = itertools.product((32, 64, 128, 256), (32, 64, 128, 256), depths)
    parts = _ladder("split_k", own.split_k, 3)
    return {**kernel, "tile": tuple(tiles), "math": ("tf32x3", "simt"), "split_k": parts}


def _direct(own: Request) -> Axes:
    return {
        "vector": _ladder("vector", own.vector, 3),
        "rows": _ladder("rows", own.rows, 3),
        "threads": (32, 64, 128, 256, 512),
        "warps": ("cooperative", "multistage"),
    }


# --- the nearest legal neighbour -----------------------------------------------------------


def with_nearest(plan: Plan, asked: Request, broken: Sequence[Violation]) -> tuple[Violation, ...]:
    """The violations, each with a legal request near what was asked where there is one."""
    own = plan(Request())
    if isinstance(own, tuple):
        return tuple(broken)
    return tuple(replace(v, nearest=_nearest(plan, own, asked, v)) for v in broken)


def _nearest(plan: Plan, own: FamilyPlanned, asked: Request, broken: Violation) -> Request | None:
    """The blamed fields moved, one of them, to the nearest value that is legal beside the others; else given
    up one by one, and at last all together."""
    blamed = [n for n in broken.fields if getattr(asked, n) is not None]
    tried: list[Request] = [] if broken.nearest is None else [broken.nearest]
    near = axes(own)
    for name in blamed:
        given = getattr(asked, name)
        values = {v for v in (*near.get(name, ()), getattr(own.request, name)) if v not in (None, given)}
        ways = sorted(values, key=lambda v: (apart(given, v), str(v)))
        tried += [replace(asked, **{name: value}) for value in ways]
    tried += [without(asked, *blamed[:count]) for count in range(1, len(blamed) + 1)]
    for request in (*tried, Request()):
        made = plan(request)
        if not isinstance(made, tuple):
            return made.request
    return None
