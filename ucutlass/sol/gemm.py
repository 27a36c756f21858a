"""Speed of light of a GEMM: what no kernel can beat on a device, from the problem alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ucutlass.ir.hardware import Device
from ucutlass.kernels.gemm.candidate import shape_of
from ucutlass.kernels.gemm.plan import GemmProblem


@dataclass(frozen=True, slots=True)
class SpeedOfLight:
    """`seconds` is the larger of both limits, and `limit` names it. `bytes` counts every tensor
    once, `intensity` is FLOP per byte, and above `ridge` the multiplications decide. `lane` is
    the entry of the device's peaks that was taken."""

    seconds: float
    limit: Literal["multiplications", "memory"]
    flops: int
    bytes: int
    compute_seconds: float
    memory_seconds: float
    intensity: float
    ridge: float
    compute_type: str


def speed_of_light(problem: GemmProblem, sizes: tuple[int, ...], device: Device) -> SpeedOfLight:
    """The bound of a problem with these extents, in the problem's own lane.

    Data-sheet peaks and bandwidth. Lane f32 counts at the faster of FFMA and three tf32 passes;
    a lane that the device's tensor cores lack counts as f16, to which it widens exactly.
    """
    shape = shape_of(problem, sizes)
    compute_type = fastest_compute_type(problem.lane.name, device)
    peak, bandwidth = device.peaks[compute_type], device.bandwidth
    size = shape.operand_bytes + shape.epilogue_bytes
    compute, memory = shape.flops / peak, size / bandwidth
    return SpeedOfLight(
        max(compute, memory),
        "multiplications" if compute >= memory else "memory",
        shape.flops,
        size,
        compute,
        memory,
        shape.flops / size,
        peak / bandwidth,
        compute_type,
    )


def fastest_compute_type(compute_type: str, device: Device) -> str:
    """The entry of `Device.peaks` that bounds a lane."""
    options = ("f32", "tf32x3") if compute_type == "f32" else (compute_type,)
    return max((o for o in options if o in device.peaks), key=lambda o: device.peaks[o], default="f16")
