"""Finds the GPU that a command or a call works on: the first that CUDA shows, if our kernels run there."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.ir.hardware import Arch, Device, arch_for, device_named
from ucutlass.runtime import system


@dataclass(frozen=True, slots=True)
class CurrentGpu:
    """`arch` is the best compile target; `device` its facts, None where the table lacks it."""

    gpu: system.Gpu
    arch: Arch
    device: Device | None


def at_hand() -> CurrentGpu | None:
    """Returns the GPU, or None without a driver or GPU and where no target serves the first GPU. A process
    takes that one unless told otherwise, so another would be planned for and not run on."""
    driver = system.driver()
    if driver is None or not driver.gpus:
        return None
    gpu = driver.gpus[0]
    arch = arch_for(gpu.capability)
    return None if arch is None else CurrentGpu(gpu, arch, device_named(gpu.name))
