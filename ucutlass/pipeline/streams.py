"""Assigns a stream to each step: independent steps run on streams that fork from the caller's stream and join
it.

Stream 0 is the caller's stream. A step waits for a step on another stream by an event that the other stream
records; waits that earlier waits imply are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_STREAMS = 4
"""Most streams that a call uses: each costs events, and few stages are small enough to share a GPU."""


@dataclass(frozen=True, slots=True)
class StreamSlot:
    """Where and when a step runs. `waits` are steps on other streams. `forks` is set for the first step of a
    side stream, which waits for the work that the caller's stream held before the call. `records` is set
    where another stream waits for this step."""

    stream: int
    waits: tuple[int, ...] = ()
    forks: bool = False
    records: bool = False


@dataclass(frozen=True, slots=True)
class StreamAssignment:
    """`slots` has one entry for each step, `count` is the number of streams, and `joins` are the side streams
    that stream 0 waits for at the end. `before[i]` holds every step that has ended when step i begins."""

    slots: tuple[StreamSlot, ...]
    count: int
    joins: tuple[int, ...]
    before: tuple[frozenset[int], ...]


def assign_streams(
    after: Sequence[frozenset[int]], on_caller_stream: Sequence[bool], max_streams: int = MOST_STREAMS
) -> StreamAssignment:
    """Returns streams for steps in their order. `after[i]` are the earlier steps that step i needs;
    `on_caller_stream[i]` forces step i onto stream 0. With `max_streams` 1 all steps run there, in order."""
    needs = _transitive_closure(after)
    streams: list[int] = []
    for step, all_needed in enumerate(needs):
        caller_only = on_caller_stream[step] or max_streams == 1
        streams.append(0 if caller_only else _stream(streams, after[step], all_needed, max_streams))
    return _slots(after, streams)


def _transitive_closure(after: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    closure: list[frozenset[int]] = []
    for direct in after:
        closure.append(direct.union(*(closure[d] for d in direct)))
    return closure


def _stream(streams: Sequence[int], direct: frozenset[int], needs: frozenset[int], max_streams: int) -> int:
    """Returns a stream on which this step waits for nothing that it does not need. Among the streams whose
    last step it needs it takes the one with the fewest events, else a new stream."""
    last_steps = {stream: step for step, stream in enumerate(streams)}
    free = [stream for stream, step in last_steps.items() if step in needs]
    if free:
        return min(free, key=lambda stream: (sum(streams[d] != stream for d in direct), stream))
    unused = next((stream for stream in range(max_streams) if stream not in last_steps), None)
    return unused if unused is not None else min(last_steps, key=lambda stream: last_steps[stream])


def _slots(after: Sequence[frozenset[int]], streams: Sequence[int]) -> StreamAssignment:
    count = max(streams, default=0) + 1
    ended: list[frozenset[int]] = [frozenset()] * count  # what has ended, by stream
    started = [stream == 0 for stream in range(count)]
    before: list[frozenset[int]] = []
    waits: list[tuple[int, ...]] = []
    forks: list[bool] = []
    for step, stream in enumerate(streams):
        needed = [d for d in sorted(after[step], reverse=True) if d not in ended[stream]]
        events: list[int] = []
        done = ended[stream]
        for other in needed:  # the latest first: it may imply the others
            if other not in done:
                events.append(other)
                done |= before[other] | {other}
        forks.append(not started[stream] and not events)
        started[stream] = True
        waits.append(tuple(sorted(events)))
        before.append(done)
        ended[stream] = done | {step}
    recorded = {w for ws in waits for w in ws}
    slots = tuple(StreamSlot(stream, waits[i], forks[i], i in recorded) for i, stream in enumerate(streams))
    last_steps = {stream: step for step, stream in enumerate(streams)}
    joins = tuple(stream for stream in range(1, count) if last_steps[stream] not in ended[0])
    return StreamAssignment(slots, count, joins, tuple(before))
