"""This module computes the speed-of-light times that a reading is held against, and says whose work they
are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ucutlass import ir
from ucutlass.agent.integrity.bundle import SolTimes, StageWork
from ucutlass.ir.hardware import ARCHES, Device
from ucutlass.kernels.families import plan_call
from ucutlass.pipeline.sized import with_copies
from ucutlass.reference.binding import bind
from ucutlass.sol.bounds import Rates, Regime, calibrated, data_sheet, fused_bound
from ucutlass.sol.ceilings import Ceilings
from ucutlass.sol.graph import TorchBuffer, ValueGraph, axis_length, graph_of
from ucutlass.sol.program import compulsory, torch_stage
from ucutlass.sol.work import Work

_MEMORY = "memory"
"""The name of the memory's term in `ucutlass.sol.bounds`."""

_AT_BOOST = ("f32", "special functions")
"""Terms whose rates on the data sheet assume the boost clock; tensor cores assume `Device.clock`."""


def limits_of(program: ir.Program, sizes: Mapping[str, int], device: Device) -> SolTimes:
    """Returns the data sheet's times, at its clock; `sizes` has every dimension's extent."""
    rates = data_sheet(device)
    estimated = device.l2_bytes_per_clock is None
    what = f"data sheet of the {device.name}"
    return _limits(what, compulsory(program, sizes), device, rates, device.clock, estimated)


def calibrated_limits(
    program: ir.Program, sizes: Mapping[str, int], device: Device, ceilings: Ceilings
) -> SolTimes:
    """Returns the times that this very device was seen to reach."""
    rates = calibrated(device, ceilings)
    work = compulsory(program, sizes)
    return _limits("calibration", work, device, rates, ceilings.clock, ceilings.l2 is None)


def _limits(what: str, work: Work, device: Device, rates: Rates, clock: float, estimated: bool) -> SolTimes:
    def terms(regime: Regime) -> dict[str, float]:
        return {t.name: t.seconds for t in fused_bound(work, device, rates, regime).limits}

    cold = terms("cold")
    # What the data sheet gives at the boost clock takes longer at the tensor cores'.
    slower = dict.fromkeys(_AT_BOOST, device.boost / device.clock)
    if rates.basis == "calibrated":
        slower = {}
    compute = max((s * slower.get(name, 1.0) for name, s in cold.items() if name != _MEMORY), default=0.0)
    memory, cache = cold.get(_MEMORY, 0.0), terms("warm").get(_MEMORY, 0.0)
    return SolTimes(what, compute, memory, cache, clock, device.boost, estimated)


def stage_works(
    program: ir.Program, sizes: Mapping[str, int], device: Device, arch: str = "sm90a"
) -> tuple[StageWork, ...]:
    """Returns every launch with the speed-of-light time of its own work; torch functions are the library's but where a
    kernel for `arch` computes them."""
    rates = data_sheet(device)
    match program:
        case ir.Kernel():
            return (_stage(program.name, False, compulsory(program, sizes), device, rates),)
        case ir.Pipeline():
            return tuple(_stages(program, sizes, device, rates, arch))


def _stages(
    program: ir.Pipeline, sizes: Mapping[str, int], device: Device, rates: Rates, arch: str
) -> Iterator[StageWork]:
    graph = graph_of(program, sizes)
    steps = with_copies(program, [sizes[d] for d in program.dims]).steps
    for stage, step in zip(program.stages, steps, strict=True):
        match stage.call:
            case ir.Kernel() as kernel:
                shapes = [_shape(graph, a) if isinstance(a, str) else None for a in stage.arguments]
                own = bind(kernel, shapes, sizes)
                yield _stage(kernel.name, False, compulsory(kernel, own), device, rates)
            case ir.TorchCall(function=function):
                buffer = graph.buffers[stage.outputs[0]]
                assert isinstance(buffer, TorchBuffer)
                work = torch_stage(buffer, graph)
                kernel_of_ours = step.problem is not None and plan_call(step.problem, ARCHES[arch], device)
                yield _stage(f"torch.{function}", not kernel_of_ours, work, device, rates)


def _stage(name: str, library: bool, work: Work, device: Device, rates: Rates) -> StageWork:
    return StageWork(name, library, fused_bound(work, device, rates).seconds)


def _shape(graph: ValueGraph, buffer: str) -> tuple[int, ...] | None:
    kind = graph.types[buffer]
    if isinstance(kind, ir.ScalarType):
        return None
    return tuple(axis_length(axis, graph.extents) for axis in kind.axes)
