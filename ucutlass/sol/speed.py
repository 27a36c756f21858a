"""The speed of light as advice reads it: the fused bound, with the time of its multiplications apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ucutlass.ir.hardware import DEVICES
from ucutlass.sol.bounds import TimeBounds


@dataclass(frozen=True, slots=True)
class SpeedOfLight:
    """A lower bound on the time of any kernel of a program on a device.

    `seconds` is the fused bound. `limit` names the larger of `compute_seconds`, which the operations of
    `compute_type` take, and `memory_seconds`. `bytes` counts every tensor once, `intensity` is FLOP per byte,
    and above `ridge` the multiplications decide.
    """

    seconds: float
    limit: Literal["multiplications", "memory"]
    flops: int
    bytes: int
    compute_seconds: float
    memory_seconds: float
    intensity: float
    ridge: float
    compute_type: str


def speed_of_light(bounds: TimeBounds) -> SpeedOfLight:
    """Returns a program's speed of light by the data sheet's rates."""
    flops, device = round(bounds.intensity * bounds.least.bytes), DEVICES[bounds.device]
    compute = flops / device.peaks[bounds.compute_type]
    memory = bounds.least.bytes / device.bandwidth
    return SpeedOfLight(
        bounds.fused.seconds,
        "multiplications" if compute >= memory else "memory",
        flops,
        bounds.least.bytes,
        compute,
        memory,
        bounds.intensity,
        bounds.ridge,
        bounds.compute_type,
    )
