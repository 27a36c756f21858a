"""Defines the cold and warm cache regimes: how many buffer sets rotate, and what content each holds."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ucutlass.ir import Program
from ucutlass.reference.interpreter import Argument
from ucutlass.runtime.bench.protocol import CacheRegime
from ucutlass.runtime.bench.timing_issues import TimingIssue
from ucutlass.runtime.inputs import roles_of

ROTATED_L2 = 4.0
"""Bytes that rotate, in L2s. CUTLASS's methodology asks for at least two; were lines replaced at random, two
would leave exp(-2) = 14 % of them where they are, four leave 2 %."""

MOST_SETS = 4096
"""Sets cost host time to make and graph nodes to launch; kernels so small that this binds are the
launch floor."""


def sets_for(bytes_per_set: int, l2: int, regime: CacheRegime) -> int:
    """Returns how many buffer sets rotate, every byte of operands and results of one set counted."""
    if regime == "warm":
        return 1
    return max(2, min(MOST_SETS, math.ceil(ROTATED_L2 * l2 / bytes_per_set)))


def not_cold(bytes_per_set: int, sets: int, l2: int, regime: CacheRegime) -> tuple[TimingIssue, ...]:
    """Returns `not-cold` where what rotates does not pass twice the L2."""
    rotated = bytes_per_set * sets
    if regime == "warm" or rotated >= 2 * l2:
        return ()
    return (
        TimingIssue(
            "not-cold",
            f"{sets} sets of {bytes_per_set} bytes rotate {rotated} bytes, twice the L2 is {2 * l2}",
        ),
    )


def rotated_arguments(
    program: Program, first: Sequence[Argument], sets: int, seed: int
) -> list[list[Argument]]:
    """Returns `sets` sets of arguments, none with another's content, all on buffers of their own.

    The first is as given; the others hold its numbers rotated along memory by a random distance, a
    device copy each, so the distribution is the same and every element moved. Coordinates,
    offsets, truth values and host scalars stay: their values have meaning.
    """
    chance = random.Random(seed)
    roles = roles_of(program)
    bound = {name for name, role in roles.items() if role.below is not None or role.offsets_of is not None}
    names = [p.name for p in program.params]
    argument_sets = [list(first)]
    for _ in range(sets - 1):
        argument_sets.append([_moved(a, n in bound, chance) for a, n in zip(first, names, strict=True)])
    return argument_sets


def _moved(argument: Argument, fixed: bool, chance: random.Random) -> Argument:
    if not isinstance(argument, Tensor):
        return argument
    if fixed or argument.dtype == torch.bool or argument.numel() < 2:
        return argument.clone()
    raw = argument.contiguous().view(_CARRIERS.get(argument.dtype, argument.dtype)).reshape(-1)
    turned = torch.roll(raw, chance.randrange(1, raw.numel()))
    return turned.view(argument.dtype).reshape(argument.shape)


_CARRIERS: Mapping[torch.dtype, torch.dtype] = {
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
"""torch has no roll for fp8."""
