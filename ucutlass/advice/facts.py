"""What is known of a kernel when advice is given, by tier: analytic, build, timing, hardware counters.

The lowest tier always exists. A field of a higher tier is None where it was not collected: unknown, never
zero, so that a rule which needs it stays silent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ucutlass.ir.hardware import cluster_slots
from ucutlass.ir.schedule import Request
from ucutlass.kernels.gemm.candidate import candidate_of
from ucutlass.kernels.gemm.cost import DEFAULT, Constants, epilogue_cycles, l2_bytes
from ucutlass.kernels.gemm.plan import GemmProblem, GemvSchedule, Sm90Schedule
from ucutlass.kernels.gemm.rules.tiles import accumulators_per_thread
from ucutlass.kernels.gemm.smem import memory_of
from ucutlass.kernels.gemm.transpose import transpose
from ucutlass.kernels.planned import Planned
from ucutlass.sol import SpeedOfLight, speed_of_light

Tier: TypeAlias = Literal["analytic", "build", "timing", "counters"]

TIERS: tuple[Tier, ...] = ("analytic", "build", "timing", "counters")
"""The tiers, from what is always known to what needs hardware counters."""


@dataclass(frozen=True, slots=True)
class Analytic:
    """Counted from the plan, without a GPU. Seconds and cycles are the cost model's.

    `slots` is the number of thread blocks that run at a time, `sms` that of the device's SMs. `part_steps`
    are the steps of K of one split (all of them where K is not split). `most_stages` is the number of stages
    that would fit. `l2_bytes` is what tiles read from L2, with multicast, and `l2_seconds` the time that L2
    needs for it. `epilogue_share` is the epilogue's share of a tile's cycles, `function_share` that of its
    arithmetic. `step_cycles` are SM cycles per step of K. `floor_share` is the launch floor's share of the
    estimate. `direct_bytes` are bytes of whole epilogue tensors that threads move instead of TMA.
    """

    seconds: float
    tiles: int
    slots: int
    sms: int
    cluster_slots: int
    waves: float
    quantisation: float
    padding: float
    steps: int
    part_steps: int
    stages: int | None
    most_stages: int | None
    accumulators: int
    dram_bytes: float
    dram_seconds: float
    power_seconds: float
    l2_bytes: float
    l2_seconds: float
    epilogue_share: float
    function_share: float
    step_cycles: float
    floor_share: float
    direct_bytes: int


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """Facts from ptxas and the disassembly of the built library: bytes per thread, and static instruction
    counts. `serialised` is what ptxas reports of wgmma that waits for the previous one (C7509 to C7518).
    `narrow_accesses` are global loads and stores of at most 8 bytes, out of all `global_accesses`."""

    registers: int | None = None
    spill_bytes: int | None = None
    serialised: tuple[str, ...] | None = None
    tensor_instructions: int | None = None
    wgmma_instructions: int | None = None
    local_accesses: int | None = None
    global_accesses: int | None = None
    narrow_accesses: int | None = None


@dataclass(frozen=True, slots=True)
class Rival:
    """Another schedule of the same problem, measured beside this one. Seconds and joules are per launch."""

    request: Request
    seconds: float
    joules: float | None


@dataclass(frozen=True, slots=True)
class TimingFacts:
    """Measured times. `seconds` is per launch on the device, `wall_seconds` per call from the host, `spread`
    its interquartile range over the median. `bare_seconds` is the time of the same kernel with its epilogue's
    arithmetic and operands left out. `clock` and `start_clock` are in Hz, inside the window and before it.
    `copy_bandwidth` is bytes per second that a copy reaches on this device. `joules` is per launch, with idle
    power included. `power_capped` says whether the driver reported that power limited the clock."""

    seconds: float
    spread: float | None = None
    wall_seconds: float | None = None
    bare_seconds: float | None = None
    clock: float | None = None
    start_clock: float | None = None
    copy_bandwidth: float | None = None
    joules: float | None = None
    power_capped: bool | None = None
    rivals: tuple[Rival, ...] = ()


@dataclass(frozen=True, slots=True)
class Counters:
    """Hardware counters of one launch. Shares are fractions of peak (0 to 1), those named `_active` of the
    unit's own active cycles; bytes and counts are sums. Stalls are warps stalled for that reason per issue.
    None means not collected, or that the architecture has no such counter."""

    tensor: float | None = None
    tensor_active: float | None = None
    fma: float | None = None
    xu: float | None = None
    sm: float | None = None
    memory: float | None = None
    dram: float | None = None
    dram_bytes: float | None = None
    l2: float | None = None
    l2_hit: float | None = None
    tma_bytes: float | None = None
    local_accesses: float | None = None
    load_sectors: float | None = None
    load_requests: float | None = None
    shared_conflicts: float | None = None
    shared_wavefronts: float | None = None
    stall_barrier: float | None = None
    stall_long_scoreboard: float | None = None
    stall_short_scoreboard: float | None = None
    stall_gmma: float | None = None
    stall_total: float | None = None
    clusters_active: float | None = None
    sm_cycles_most: float | None = None
    sm_cycles_mean: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """A plan and what is known of it. `bound` is the problem's speed of light on the device."""

    planned: Planned
    bound: SpeedOfLight
    analytic: Analytic
    build: BuildFacts | None = None
    timing: TimingFacts | None = None
    counters: Counters | None = None

    @property
    def seconds(self) -> float:
        """The measured time, or else the estimate."""
        return self.timing.seconds if self.timing else self.analytic.seconds

    @property
    def problem(self) -> GemmProblem:
        """The problem as the program states it, whether or not the plan swaps its operands."""
        c = candidate_of(self.planned)
        return transpose(c.problem) if c.swapped else c.problem

    def tiers(self) -> tuple[Tier, ...]:
        """Returns the tiers that have facts."""
        by_tier = (self.analytic, self.build, self.timing, self.counters)
        return tuple(t for t, k in zip(TIERS, by_tier, strict=True) if k is not None)


def facts_of(
    planned: Planned,
    *,
    build: BuildFacts | None = None,
    timing: TimingFacts | None = None,
    counters: Counters | None = None,
    constants: Constants = DEFAULT,
) -> KernelFacts:
    """Returns the facts of a plan; the analytic ones are computed here, the others are passed in."""
    c = candidate_of(planned)
    bound = speed_of_light(c.problem, c.sizes, planned.device)
    return KernelFacts(planned, bound, analytic(planned, constants), build, timing, counters)


def analytic(planned: Planned, constants: Constants = DEFAULT) -> Analytic:
    """Returns the analytic facts of a plan, with the cost model's constants."""
    candidate, estimate, device = candidate_of(planned), planned.estimate, planned.device
    steps, parts = candidate.k_tiles, max(1, candidate.launch.splits)
    memory = memory_of(candidate)
    cluster = candidate.schedule.cluster if isinstance(candidate.schedule, Sm90Schedule) else (1, 1)
    stage_capacity = candidate.arch.shared_memory - memory.epilogue - memory.barriers
    pipelined = not isinstance(candidate.schedule, GemvSchedule)
    l2_read = l2_bytes(planned)
    epilogue, arithmetic, tile_cycles = _epilogue(planned, constants)
    return Analytic(
        seconds=estimate.seconds,
        tiles=estimate.tiles,
        slots=estimate.slots,
        sms=device.sms,
        cluster_slots=cluster_slots(device, cluster[0] * cluster[1]),
        waves=estimate.waves,
        quantisation=estimate.quantisation,
        padding=estimate.padding,
        steps=steps,
        part_steps=-(-steps // parts),
        stages=memory.stages if pipelined else None,
        most_stages=stage_capacity // memory.stage if pipelined else None,
        accumulators=accumulators_per_thread(candidate),
        dram_bytes=estimate.dram_bytes,
        dram_seconds=estimate.dram_seconds,
        power_seconds=estimate.power_seconds,
        l2_bytes=l2_read,
        l2_seconds=l2_read / (constants.l2_bytes * device.sms * device.clock * constants.clock),
        epilogue_share=epilogue / tile_cycles,
        function_share=arithmetic / tile_cycles,
        step_cycles=(tile_cycles - epilogue) / max(1, -(-steps // parts)),
        floor_share=device.launch_floor / estimate.seconds,
        direct_bytes=_direct_bytes(planned),
    )


def _epilogue(planned: Planned, constants: Constants) -> tuple[float, float, float]:
    """Returns SM cycles of a tile's epilogue, of its arithmetic alone, and of the whole tile, by shares of
    the cost model: the main loop is what remains of the busiest slot's time."""
    candidate, estimate, device = candidate_of(planned), planned.estimate, planned.device
    match candidate.schedule:
        case GemvSchedule():
            return 0.0, 0.0, 1.0
        case schedule:
            elements = schedule.tile[0] * schedule.tile[1]
    epilogue = epilogue_cycles(candidate, elements, constants)
    arithmetic = epilogue - epilogue_cycles(candidate, elements, replace(constants, function=0.0))
    resident = min(max(1, estimate.slots // device.sms), -(-estimate.tiles // device.sms))
    tile_passes = -(-estimate.tiles // estimate.slots) * resident
    tile_cycles = estimate.sm_seconds * device.clock * constants.clock / tile_passes
    return epilogue, arithmetic, max(tile_cycles, epilogue, 1.0)


def _direct_bytes(planned: Planned) -> int:
    """Returns bytes of whole epilogue tensors that threads move themselves."""
    candidate = candidate_of(planned)
    return sum(
        candidate.shape.m * candidate.shape.n * candidate.shape.batch * t.elem.bytes
        for t, route in zip(candidate.tensors, candidate.routes, strict=True)
        if route == "direct" and t.shape == "full"
    )
