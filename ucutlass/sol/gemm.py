"""Speed of light of a GEMM: a lower bound on the time of any kernel on a device, from the problem alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ucutlass.ir.hardware import Device
from ucutlass.kernels.gemm.candidate import shape_of
from ucutlass.kernels.gemm.plan import GemmProblem


@dataclass(frozen=True, slots=True)
class SpeedOfLight:
    """`seconds` is the larger of both limits, and `limit` names it. `bytes` counts every tensor once,
    `intensity` is FLOP per byte, and above `ridge` the multiplications decide. `compute_type` is the entry of
    the device's peaks that the bound uses."""

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
    """Returns the bound of a problem with these extents in the problem's own compute type.

    Rates are the data sheet's peaks and bandwidth. f32 counts at the faster of FFMA and three tf32 passes; a
    compute type that the device's tensor cores lack counts as f16, to which it widens exactly.
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
    """Returns the entry of `Device.peaks` that bounds a compute type."""
    options = ("f32", "tf32x3") if compute_type == "f32" else (compute_type,)
    return max((o for o in options if o in device.peaks), key=lambda o: device.peaks[o], default="f16")
