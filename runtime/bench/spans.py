"""Assigns device events to iterations, and computes how long each iteration took on the device.

The device's own time line decides. A stamp (a tiny kernel of ours, `frequency.STAMP`) runs before
and after each block on the timed stream: what starts between the two is the block's. Within a
block iterations follow one another, each with the same kernels in the same order. Anything that
does not fit is an error: a time that cannot be attributed is no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ucutlass.runtime.bench.frequency import STAMP
from ucutlass.runtime.bench.timing_issues import TimingIssue
from ucutlass.runtime.bench.trace import DeviceEvent


class AttributionError(Exception):
    """Device events do not fit the launches that were made. `block` is the block's number in its
    session, None where no block in particular is at fault; `finding` names the misfit."""

    def __init__(self, finding: str, message: str, block: int | None = None) -> None:
        super().__init__(message)
        self.finding = finding
        self.block = block


@dataclass(frozen=True, slots=True)
class Iteration:
    """One launch of a candidate, in nanoseconds: `span` from the first start to the last end of its
    kernels, `total` the sum of their durations. A kernel that begins while the launch before it ends, as
    those do that wait for it themselves, counts from that end on: each moment is of one launch."""

    span: int
    total: int


@dataclass(frozen=True, slots=True)
class EventWindow:
    """What started between two stamps, the stream that the stamps ran on, and when the second began."""

    stream: int
    events: tuple[DeviceEvent, ...]
    closed: int


def windows(events: Sequence[DeviceEvent]) -> tuple[tuple[EventWindow, ...], tuple[DeviceEvent, ...]]:
    """Returns the windows between the 1st and 2nd stamp, the 3rd and 4th and so on, and whatever lies
    outside of all of them.

    Raises AttributionError for an odd number of stamps: the profiler lost one.
    """
    stamps = [e for e in events if e.name == STAMP]
    if len(stamps) % 2:
        raise AttributionError("escaped", f"the profiler saw {len(stamps)} stamps, an odd number")
    others = [e for e in events if e.name != STAMP]
    enclosed = []
    for opening, closing in zip(stamps[::2], stamps[1::2], strict=True):
        inside = tuple(e for e in others if opening.start <= e.start <= closing.start)
        enclosed.append(EventWindow(opening.stream, inside, closing.start))
    enclosed_ids = {id(e) for w in enclosed for e in w.events}
    return tuple(enclosed), tuple(e for e in others if id(e) not in enclosed_ids)


def iterations(
    events: Sequence[DeviceEvent], period: Sequence[str], count: int, branches: bool = False
) -> tuple[Iteration, ...]:
    """Returns the iterations of a block, `period` being the names of one iteration's kernels in order; with
    `branches` they may begin in any.

    Raises AttributionError: `no-kernel`, or `names-changed` with the first that differs.
    """
    if not events:
        raise AttributionError("no-kernel", f"{count} iterations launched nothing on the device")
    size = len(period)
    if len(events) != size * count:
        raise AttributionError(
            "names-changed",
            f"{count} iterations of {size} kernels are {size * count}, and the device ran {len(events)}: "
            + _counted(e.name for e in events),
        )
    results: list[Iteration] = []
    ended = 0  # the launch before
    for i in range(count):
        part = events[i * size : (i + 1) * size]
        names = [e.name for e in part]
        if sorted(names) != sorted(period) if branches else names != list(period):
            raise AttributionError(
                "names-changed", f"iteration {i} ran {_counted(names)}, the ones before it {_counted(period)}"
            )
        begun, last = max(ended, min(e.start for e in part)), max(e.end for e in part)
        total = sum(max(0, e.end - max(ended, e.start)) for e in part)
        results.append(Iteration(max(0, last - begun), total))
        ended = max(ended, last)
    return tuple(results)


def _counted(names: object) -> str:
    assert hasattr(names, "__iter__")
    return ", ".join(f"{n} x {name[:80]}" for name, n in Counter(names).most_common(6))


# --- the audit -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Audit:
    """What one launch does on the device: the names of its kernels in order, the longest span in
    nanoseconds, and what is wrong with it."""

    period: tuple[str, ...]
    span: int
    findings: tuple[TimingIssue, ...]


def audit(events: Sequence[DeviceEvent], launches: int, branches: bool = False) -> Audit:
    """Reads a session in which every launch stood alone between two stamps, the whole device idle
    before and after. With `branches` a launch may use other streams, but must have joined them: all that
    it does lies between its stamps.

    Findings: `no-kernel`, `names-changed`, `off-stream` for work on another stream than the
    stamps', `escaped` for work that began outside of every launch. Raises AttributionError where the
    stamps themselves do not add up.
    """
    launch_windows, outside = windows(events)
    if len(launch_windows) != launches:
        raise AttributionError(
            "escaped", f"{launches} launches were made, {len(launch_windows)} are in the trace"
        )
    periods = [tuple(e.name for e in w.events) for w in launch_windows]
    timed = {w.stream for w in launch_windows}
    strangers = [e for e in events if e.stream not in timed]
    wrong: list[TimingIssue] = []
    if branches:
        periods = [tuple(sorted(p)) for p in periods]
        late = [e for w in launch_windows for e in w.events if e.end > w.closed]
        outside = (*outside, *late)
        if strangers and not late:
            used = len({e.stream for e in strangers})
            words = f"each launch forks {used} streams and joins them before it ends"
            wrong.append(TimingIssue("branches", words))
            strangers = []
    if not all(periods):
        empty = sum(not p for p in periods)
        wrong.append(TimingIssue("no-kernel", f"{empty} of {launches} launches ran nothing on the device"))
    if len(set(periods)) > 1:
        odd = next(i for i, p in enumerate(periods) if p != periods[0])
        wrong.append(
            TimingIssue(
                "names-changed",
                f"launch {odd} ran {_counted(periods[odd]) or 'nothing'}, the first {_counted(periods[0])}",
            )
        )
    if strangers:
        streams = sorted({e.stream for e in strangers})
        wrong.append(
            TimingIssue(
                "off-stream",
                f"{_counted(e.name for e in strangers)} ran on stream {streams}, "
                f"the timed one is {sorted(timed)}",
            )
        )
    if outside:
        wrong.append(
            TimingIssue("escaped", f"{_counted(e.name for e in outside)} began outside of every launch")
        )
    spans = [
        max(e.end for e in w.events) - min(e.start for e in w.events) for w in launch_windows if w.events
    ]
    return Audit(periods[-1] if periods else (), max(spans, default=0), tuple(wrong))
