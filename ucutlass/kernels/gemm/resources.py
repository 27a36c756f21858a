"""What a GEMM's kernel takes of an SM, and how a tile's time divides."""

from __future__ import annotations

from dataclasses import replace

from ucutlass.ir.hardware import Device
from ucutlass.kernels.gemm.candidate import Candidate, candidate_of
from ucutlass.kernels.gemm.cost import DEFAULT, Constants, epilogue_cycles, l2_bytes, warps_of
from ucutlass.kernels.gemm.plan import GemvSchedule, Sm80Schedule, Sm90Schedule
from ucutlass.kernels.gemm.rules.tiles import accumulators_per_thread
from ucutlass.kernels.gemm.smem import gemv_cover, memory_of
from ucutlass.kernels.planned import Estimate, Planned, Resources, TileCost, Unit


def resources(planned: Planned) -> Resources:
    """Returns what a block takes of an SM, and how the product is cut."""
    c, memory = candidate_of(planned), memory_of(candidate_of(planned))
    s, shape = c.schedule, c.shape
    pipelined = not isinstance(s, GemvSchedule)
    capacity = c.arch.shared_memory - memory.epilogue - memory.barriers
    parts = {"stages": memory.stage * memory.stages, "epilogue": memory.epilogue, "barriers": memory.barriers}
    return Resources(
        variant=c.family,
        extents={"M": shape.m, "N": shape.n, "K": shape.k, "batch": shape.batch},
        unit=_unit(c),
        threads=_threads(c),
        memory={name: size for name, size in parts.items() if size},
        memory_limit=c.arch.shared_memory,
        accumulators=accumulators_per_thread(c),
        operand_bytes=shape.operand_bytes,
        tile=None if isinstance(s, GemvSchedule) else s.tile,
        cluster=s.cluster if isinstance(s, Sm90Schedule) else (1, 1),
        stages=memory.stages if pipelined else None,
        most_stages=capacity // memory.stage if pipelined else None,
        loop="K",
        steps=c.k_tiles,
        parts=max(1, c.launch.splits),
        routes=c.routes,
        direct_bytes=_direct_bytes(c),
    )


def _unit(c: Candidate) -> Unit:
    match c.schedule:
        case Sm90Schedule():
            return "wgmma"
        case Sm80Schedule(math=math_) if math_ != "simt":
            return "mma"
        case _:
            return "ffma"


def _threads(c: Candidate) -> int:
    match c.schedule:
        case Sm90Schedule():
            return 384
        case Sm80Schedule() as schedule:
            return 32 * warps_of(schedule)
        case GemvSchedule() as schedule:
            return gemv_cover(c.problem, schedule).block


def _direct_bytes(c: Candidate) -> int:
    """Returns bytes of whole epilogue tensors that threads move themselves."""
    return sum(
        c.shape.m * c.shape.n * c.shape.batch * t.elem.bytes
        for t, route in zip(c.tensors, c.routes, strict=True)
        if route == "direct" and t.shape == "full"
    )


def tile_cost(planned: Planned, constants: Constants = DEFAULT) -> TileCost | None:
    """Returns how a tile's cycles divide: the main loop is what remains of the busiest slot's time beside the
    epilogue. None for the matrix-vector kernel, which has no tiles."""
    c = candidate_of(planned)
    if isinstance(c.schedule, GemvSchedule):
        return None
    elements = c.schedule.tile[0] * c.schedule.tile[1]
    epilogue = epilogue_cycles(c, elements, constants)
    functions = epilogue - epilogue_cycles(c, elements, replace(constants, function=0.0))
    cycles = max(_tile_cycles(planned.estimate, planned.device, constants), epilogue, 1.0)
    steps = max(1, -(-c.k_tiles // max(1, c.launch.splits)))
    device = planned.device
    return TileCost(
        (cycles - epilogue) / steps,
        epilogue / cycles,
        functions / cycles,
        l2_bytes(planned) / (constants.l2_bytes * device.sms * device.clock * constants.clock),
    )


def _tile_cycles(estimate: Estimate, device: Device, constants: Constants) -> float:
    resident = min(max(1, estimate.slots // device.sms), -(-estimate.tiles // device.sms))
    passes = -(-estimate.tiles // estimate.slots) * resident
    return estimate.sm_seconds * device.clock * constants.clock / passes
