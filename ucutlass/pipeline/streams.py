"""Which stream each step runs on: independent steps on branches that fork from the caller's stream
and join it again.

Lane 0 is the caller's stream. What one step must wait for on another lane is an event that the other
records; waits that earlier ones imply are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_STREAMS = 4
"""Streams that a call spreads over: each costs events, and few stages are small enough to share a GPU."""


@dataclass(frozen=True, slots=True)
class StreamSlot:
    """Where and when a step runs. `waits` are steps on other lanes; `forks`: it is the first of a side
    lane, which waits for what the caller's stream held before the call; `records`: another lane waits
    for it."""

    lane: int
    waits: tuple[int, ...] = ()
    forks: bool = False
    records: bool = False


@dataclass(frozen=True, slots=True)
class StreamAssignment:
    """`turns` by step; `count` lanes; `joins` are the side lanes that lane 0 must wait for at the end.
    `before[i]` holds every step that has ended when step i begins."""

    turns: tuple[StreamSlot, ...]
    count: int
    joins: tuple[int, ...]
    before: tuple[frozenset[int], ...]


def assign_streams(
    after: Sequence[frozenset[int]], home: Sequence[bool], most: int = MOST_STREAMS
) -> StreamAssignment:
    """Lanes for steps in their order. `after[i]`: the earlier steps that step i needs; `home[i]`: it
    must run on lane 0. With `most` 1 all run there, in order."""
    needs = _transitive_closure(after)
    placed: list[int] = []
    for step, all_needed in enumerate(needs):
        alone = home[step] or most == 1
        placed.append(0 if alone else _stream(placed, after[step], all_needed, most))
    return _slots(after, placed)


def _transitive_closure(after: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    found: list[frozenset[int]] = []
    for direct in after:
        found.append(direct.union(*(found[d] for d in direct)))
    return found


def _stream(placed: Sequence[int], direct: frozenset[int], needs: frozenset[int], most: int) -> int:
    """A lane on which this step waits for nothing that it does not need: of those whose last step it
    needs the one with the fewest events, else a new one."""
    last = {lane: step for step, lane in enumerate(placed)}
    free = [lane for lane, step in last.items() if step in needs]
    if free:
        return min(free, key=lambda lane: (sum(placed[d] != lane for d in direct), lane))
    unused = next((lane for lane in range(most) if lane not in last), None)
    return unused if unused is not None else min(last, key=lambda lane: last[lane])


def _slots(after: Sequence[frozenset[int]], placed: Sequence[int]) -> StreamAssignment:
    count = max(placed, default=0) + 1
    known: list[frozenset[int]] = [frozenset()] * count  # what has ended where each lane stands
    begun = [lane == 0 for lane in range(count)]
    before: list[frozenset[int]] = []
    waits: list[tuple[int, ...]] = []
    forks: list[bool] = []
    for step, lane in enumerate(placed):
        needed = [d for d in sorted(after[step], reverse=True) if d not in known[lane]]
        mine: list[int] = []
        seen = known[lane]
        for other in needed:  # the latest first: it may imply the others
            if other not in seen:
                mine.append(other)
                seen |= before[other] | {other}
        forks.append(not begun[lane] and not mine)
        begun[lane] = True
        waits.append(tuple(sorted(mine)))
        before.append(seen)
        known[lane] = seen | {step}
    recorded = {w for ws in waits for w in ws}
    turns = tuple(StreamSlot(lane, waits[i], forks[i], i in recorded) for i, lane in enumerate(placed))
    tails = {lane: step for step, lane in enumerate(placed)}
    joins = tuple(lane for lane in range(1, count) if tails[lane] not in known[0])
    return StreamAssignment(turns, count, joins, tuple(before))
