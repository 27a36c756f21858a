"""Computes the SM clock inside a window from cycles of each SM and nanoseconds of the global timer.

Needs no privilege. A stamp, a kernel of a few instructions (`runtime/native/clock_stamp.ptx`), has
every SM write both counters; two stamps around a window give the mean clock in between. Method:
nvbench (NVIDIA/nvbench pull request 193), there for one SM.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TypeAlias

STAMP = "ucc_clock_stamp"
"""The stamp's name in profiles."""

SmTimes: TypeAlias = Mapping[int, tuple[int, int]]
"""By SM: nanoseconds of the global timer, cycles of the SM."""

SHORTEST_NS = 500_000
"""The global timer moves in steps of up to about 1 us: over half a millisecond that is 0.2 %."""


def sm_clock(before: SmTimes, after: SmTimes) -> float | None:
    """Returns the median SM's clock in Hz between two stamps.

    None where it cannot be known: fewer than half of the SMs are in both, or the window is shorter
    than `SHORTEST_NS`.
    """
    both = before.keys() & after.keys()
    if not both or 2 * len(both) < max(len(before), len(after)):
        return None
    rates = []
    for sm in both:
        nanoseconds = after[sm][0] - before[sm][0]
        cycles = after[sm][1] - before[sm][1]
        if nanoseconds < SHORTEST_NS or cycles <= 0:
            return None
        rates.append(cycles * 1e9 / nanoseconds)
    return statistics.median(rates)
