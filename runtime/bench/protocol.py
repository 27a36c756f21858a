"""Holds every number of the measurement's protocol, and the pure decisions that depend on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass.runtime.statistics import MIN_BLOCKS, paired_ratio, quantile, relative_error_of_median

CacheRegime: TypeAlias = Literal["cold", "warm"]
"""`cold`: operands come from memory, sets of buffers rotate through more than twice the L2. `warm`:
every launch takes the same buffers, so that what fits is in the L2."""

GAIN_SHARE = 0.05
WIDEST = 0.03
"""A ratio of 2 need not be known to 1 %: a share of its logarithm, and at most so much, decides as much."""


LONGEST = 4.0
"""Of `max_seconds`: a launch on many GB takes milliseconds, and what its rounds check takes longer."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """Seconds, but where a name says otherwise.

    `warmup`: of the candidate's own load before the first measurement; clocks settle in about
    3 s of matrix products (CUTLASS, media/docs/cpp, on methodology). A round is one palindrome of
    blocks A B B A, the first of all is dropped; rounds go on until both `min_rounds` that can be compared and
    `min_seconds` are reached and every candidate's median has a relative error below `error`, or until
    `max_seconds`, or LONGEST times as long where those hold fewer than `min_rounds`: without them there is no ratio.
    `block_us`: how long a block should take at least, so that the SM clock can be read from it.
    `width`: where it is not 0, rounds go on until the interval of every ratio is within this share of the ratio,
    instead of `error`, since a search asks which is faster and by how much.
    `launches`: fewest in a block and between two events. `audits`: sets that the audit visits, twice
    each. `wall_launches`: plain launches between two looks at the host's clock. `drift` and `spread`:
    see `comparable`. `resolution`: see `statistics.verdict`.
    """

    regime: CacheRegime = "cold"
    warmup: float = 3.0
    min_rounds: int = MIN_BLOCKS
    min_seconds: float = 1.0
    max_seconds: float = 20.0
    error: float = 0.005
    block_us: float = 3000.0
    launches: int = 20
    most_launches: int = 4096
    audits: int = 3
    wall_launches: int = 20
    drift: float = 0.01
    spread: float = 0.05
    capped_spread: float = 0.2
    width: float = 0.0
    resolution: float = 0.01
    seed: int = 0


def launches_for(launch_us: float, sets: int, protocol: Protocol) -> int:
    """Returns the number of launches in a block: a multiple of the sets, enough for `block_us`, and at least
    `launches` unless those would take ten times as long: then what fits into that, and one of each set at
    least."""
    launch_us = max(launch_us, 0.5)
    fewest = min(protocol.launches, math.ceil(10 * protocol.block_us / launch_us))
    launches = min(max(fewest, math.ceil(protocol.block_us / launch_us)), protocol.most_launches)
    return math.ceil(max(launches, 2) / sets) * sets


def most_seconds(rounds: int, protocol: Protocol) -> float:
    """Returns after how many seconds measuring ends, settled or not, with so many rounds."""
    return protocol.max_seconds * (LONGEST if rounds < protocol.min_rounds else 1.0)


def palindrome(count: int) -> tuple[int, ...]:
    """Returns the order of a round: 0 1 .. n-1 n-1 .. 1 0, so that every pair of candidates is met as A B B
    A and a drift that is linear in time meets all alike."""
    return (*range(count), *reversed(range(count)))


@dataclass(frozen=True, slots=True)
class TimingBlock:
    """One candidate's turn: median microseconds a launch over its iterations, their spread (the
    interquartile range over the median), the mean SM clock in Hz while it ran, None if unknown."""

    median: float
    spread: float
    clock: float | None


def block_of(spans: Sequence[float], clock: float | None) -> TimingBlock:
    """Returns a block from the microseconds of each iteration."""
    ordered = sorted(spans)
    median = quantile(ordered, 0.5)
    return TimingBlock(median, (quantile(ordered, 0.75) - quantile(ordered, 0.25)) / median, clock)


def comparable(
    a: Sequence[TimingBlock], b: Sequence[TimingBlock], protocol: Protocol, power_capped: bool = False
) -> bool:
    """Returns whether the blocks A, A and B, B of one round may be compared: the SM clock of the two sides
    agrees within `drift`, and no block spreads by more than `spread` (the contract that
    agents.md 4.2.14 quotes). An unknown clock cannot disagree; the measurement says so elsewhere.

    `power_capped` (see `nvml.power_capped`): clocks do not count, and blocks may spread by `capped_spread`. Kernels
    of unequal power never agree there, the clock changes within a block, the time at the limit is what each has,
    and the order A B B A cancels what drifts. The ratio's interval says how much is left."""
    limit = protocol.capped_spread if power_capped else protocol.spread
    if any(x.spread > limit for x in (*a, *b)):
        return False
    clocks = [[x.clock for x in side if x.clock is not None] for side in (a, b)]
    if power_capped or not all(clocks):
        return True
    first, second = (quantile(sorted(side), 0.5) for side in clocks)
    return abs(first - second) <= protocol.drift * max(first, second)


def rounds(blocks: Sequence[TimingBlock]) -> list[tuple[TimingBlock, TimingBlock]]:
    """Returns a candidate's two blocks of each round."""
    return list(zip(blocks[::2], blocks[1::2], strict=True))


def settled(
    blocks: Sequence[Sequence[TimingBlock]], seconds: float, protocol: Protocol, power_capped: bool = False
) -> bool:
    """Returns whether measuring may stop: `blocks` are each candidate's so far, the first one's first. A
    round that cannot be compared is no reason to have none: others take its place."""
    if seconds < protocol.min_seconds or any(len(b) < 2 * protocol.min_rounds for b in blocks):
        return False
    first, *others = (rounds(b) for b in blocks)
    for other in others:
        pairs = [p for p in zip(first, other, strict=True) if comparable(*p, protocol, power_capped)]
        if len(pairs) < protocol.min_rounds:
            return False
        if protocol.width and not _narrow(pairs, protocol):
            return False
    if protocol.width and others:
        return True
    return all(relative_error_of_median([x.median for x in b]) < protocol.error for b in blocks)


def _narrow(pairs: Sequence[tuple[Sequence[TimingBlock], Sequence[TimingBlock]]], protocol: Protocol) -> bool:
    """Returns whether the ratio of two candidates is known to `width`, or to GAIN_SHARE of how far it is from 1 if
    that is less narrow."""
    ours, theirs = ([b.median for pair in pairs for b in pair[side]] for side in (0, 1))
    ratio = paired_ratio(ours, theirs, protocol.seed)
    from_one = min(WIDEST, GAIN_SHARE * abs(math.log(ratio.median)))
    return max(ratio.high / ratio.median, ratio.median / ratio.low) <= 1 + max(protocol.width, from_one)
