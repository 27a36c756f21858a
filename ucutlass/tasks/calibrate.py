"""Calibrates one GPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ucutlass.runtime.calibrate import CeilingProbe, ProbeTimer


def measure(index: int, wait_seconds: float) -> dict[str, Any]:
    """Runs every probe on the CUDA device of this index, with its timing lock held.

    Returns `machine`, `method`, `readings` and `refused` as JSON values.
    Raises LockTimeout where another process keeps the lock for longer than `wait_seconds`.
    """
    import torch

    from ucutlass.runtime.bench import gpu_lock
    from ucutlass.runtime.calibrate import CalibrationProtocol
    from ucutlass.runtime.calibrate.cuda import CudaProbeTimer, Kernels
    from ucutlass.runtime.calibrate.probes import sizes_for, torch_probes
    from ucutlass.runtime.subject import machine_of

    torch.cuda.set_device(index)
    ruler = CudaProbeTimer()
    sizes = sizes_for(ruler.cuda.l2, torch.cuda.mem_get_info()[0])
    probes = torch_probes(sizes, "cuda")
    try:
        probes += Kernels().probes(sizes.memory, ruler.cuda.l2)
        refused = []
    except (RuntimeError, OSError) as error:
        refused = [{"quantity": "l2", "name": "the kernels of calibrate.ptx", "why": str(error)}]
    with gpu_lock.hold_gpu(ruler.cuda.uuid, timeout_seconds=wait_seconds, on_wait=lambda _: None):
        answer = run(probes, ruler, CalibrationProtocol())
    answer["refused"] += refused
    return answer | {"machine": asdict(machine_of(index))}


def run(probes: list[CeilingProbe], ruler: ProbeTimer, method: Any) -> dict[str, Any]:
    """Warms the device up with the first matrix product that it can do, then measures each probe."""
    from ucutlass.runtime.calibrate import RATES, CeilingMeasurement, RefusedProbe, warm
    from ucutlass.runtime.calibrate import measure as timed

    for probe in probes:
        if probe.quantity not in (*RATES, "launch_floor"):
            try:
                warm(probe.make(), ruler, method.warmup)
            except RuntimeError:
                continue  # its own measurement below says why
            break
    answers = [timed(probe, ruler, method) for probe in probes]
    return {
        "method": asdict(method),
        "readings": [asdict(a) for a in answers if isinstance(a, CeilingMeasurement)],
        "refused": [asdict(a) for a in answers if isinstance(a, RefusedProbe)],
    }
