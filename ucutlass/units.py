"""Durations as people read them."""

from __future__ import annotations

_UNITS = ((1e-6, 1e-9, "ns"), (1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min"))
"""Up to which duration in seconds a unit is used, its length in seconds, and its name."""


def duration(seconds: float) -> str:
    """A time in the unit that suits it, from nanoseconds to hours: two decimals of microseconds, else four
    digits."""
    if seconds == 0:
        return "0 s"
    if 1e-7 <= seconds < 1e-3:
        return f"{seconds * 1e6:.2f} us"
    for most, unit, name in _UNITS:
        if seconds < most:
            return f"{seconds / unit:.4g} {name}"
    return f"{seconds / 3600:.4g} h"
