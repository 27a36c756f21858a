"""This module draws which kernels of a space to try next, without a model: by the tuner's ranking, and from
the legal neighbours of the candidate that the search goes on from.

The ranking is the tuner's (`ucutlass.tune.policy`): the cost model, corrected by what was measured. It is
drawn from, not followed, so that two seeds are two searches and a wrong estimate costs attempts, not the
result.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ucutlass import frontend, ir
from ucutlass.ir.hardware import Device
from ucutlass.tune import space as spaces
from ucutlass.tune.correction import distance
from ucutlass.tune.policy import GroupTimes, neighbours, predictions
from ucutlass.tune.space import ScheduleSpace

PROGRAMS = 4
"""Of one answer, where nothing else is said: as many as compile side by side on a small machine. More of
them fill more cores, and know less of what was measured."""

NEIGHBOUR = 8.0
"""How many times as likely a neighbour of the parent is drawn as another kernel of the same estimate."""

WARMTH = 0.05
"""A kernel that is predicted to take so much longer than the best one, as a share, is drawn 1 / e times
as often: about what the corrected estimates are off by."""

STEEP = 3.0
"""Without estimates: a kernel of twice the tile's area (distance 0.5) is drawn exp(-1.5) times as often."""


Draw: TypeAlias = Callable[[ScheduleSpace, GroupTimes, int | None, random.Random, int], Sequence[int]]
"""Numbers of at most so many groups that nobody looked at, each once; () where all were tried. The third is
the group to go on from, None where the search has none."""

Write: TypeAlias = Callable[[int], str | None]
"""A group as a program's text; None where it cannot be written, or would be no other candidate."""


def draw_programs(
    draw: Draw,
    write: Write,
    space: ScheduleSpace,
    measured: GroupTimes,
    parent: int | None,
    chance: random.Random,
    count: int,
) -> list[tuple[int, str]]:
    """Returns at most `count` groups with their texts, as `draw` has it: what cannot be written is drawn
    anew. Empty where nothing is left."""
    left = dict(measured)
    result: list[tuple[int, str]] = []
    while len(result) < count and (groups := draw(space, left, parent, chance, count - len(result))):
        for at in groups:
            left[at] = None
            text = write(at)
            if text is not None:
                result.append((at, text))
    return result


def predicted(space: ScheduleSpace, at: int) -> str:
    """Returns what the cost model says of a group, in words."""
    return f"predicted {space.groups[at].estimate * 1e6:.2f} us"


def nominate(
    space: ScheduleSpace, measured: GroupTimes, parent: int | None, chance: random.Random, count: int
) -> list[int]:
    """Does a `Draw` by the tuner's ranking, without replacement."""
    predicted = predictions(space, measured)
    result: list[int] = []
    while predicted and len(result) < count:
        least = min(predicted.values())
        weights = [_weight(space, at, seconds / least, parent) for at, seconds in predicted.items()]
        (draw_programs,) = chance.choices(list(predicted), weights)
        del predicted[draw_programs]
        result.append(draw_programs)
    return result


def nominate_by_distance(
    space: ScheduleSpace, measured: GroupTimes, parent: int, chance: random.Random, count: int
) -> list[int]:
    """Does as `nominate`, for one who knows no estimate: what is like the parent is likelier, by the distance
    that the tuner's correction goes by. What such a one finds is the search's merit alone."""
    here = space.groups[parent].request
    weights = {
        at: math.exp(-STEEP * distance(here, group.request))
        for at, group in enumerate(space.groups)
        if at not in measured
    }
    result: list[int] = []
    while weights and len(result) < count:
        (draw_programs,) = chance.choices(list(weights), list(weights.values()))
        del weights[draw_programs]
        result.append(draw_programs)
    return result


def nominate_uniformly(
    space: ScheduleSpace, measured: GroupTimes, parent: int | None, chance: random.Random, count: int
) -> list[int]:
    """Does as `nominate`, for one who knows nothing at all: every legal kernel is as likely as another. What
    a ranking and a search are held against."""
    left = [at for at in range(len(space.groups)) if at not in measured]
    return chance.sample(left, min(count, len(left)))


def widths(draw: Draw) -> tuple[bool, ...]:
    """Returns for which values of `free` the spaces of `explore` are drawn from, one after the other. The widest of a
    GEMM takes ten seconds, and the ranking draws its first per cent, which the other has in one; so it waits until
    these were tried."""
    return (True,) if draw is nominate_uniformly else (False, True)


def explore(
    checked: frontend.Checked,
    kernel: ir.Kernel,
    sizes: tuple[int, ...],
    arch: str,
    device: Device | None,
    *,
    free: bool,
) -> ScheduleSpace:
    """Returns the widest space of a kernel, or if not `free` what lies near the planner's choice. Raises as
    `ucutlass.tune.space.explore`."""
    where = (checked, kernel, sizes, arch, device)
    return spaces.explore(*where, free=True) if free else spaces.explore_near(*where)


def _weight(space: ScheduleSpace, at: int, ratio: float, parent: int | None) -> float:
    near = parent is not None and neighbours(space.groups[parent].request, space.groups[at].request)
    # The floor keeps kernels that the model thinks hopeless from being out of reach of every seed.
    return max(math.exp(-(ratio - 1) / WARMTH), 1e-6) * (NEIGHBOUR if near else 1.0)
