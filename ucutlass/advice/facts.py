"""What is known of a kernel when advice is given, by tier: analytic, build, timing, hardware counters.

The lowest tier always exists. A field of a higher tier is None where it was not collected: unknown, never
zero, so that a rule which needs it stays silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass import frontend, ir
from ucutlass.ir.hardware import ARCHES, Arch, cluster_slots
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels import families
from ucutlass.kernels.planned import Planned, Resources
from ucutlass.sol.bounds import bounds
from ucutlass.sol.speed import SpeedOfLight, speed_of_light

Tier: TypeAlias = Literal["analytic", "build", "timing", "counters"]

TIERS: tuple[Tier, ...] = ("analytic", "build", "timing", "counters")
"""The tiers, from what is always known to what needs hardware counters."""


@dataclass(frozen=True, slots=True)
class Analytic:
    """Counted from the plan, without a GPU. Seconds and cycles are the cost model's.

    `slots` is the number of thread blocks that run at a time, `sms` that of the device's SMs. `part_steps`
    are the steps of the loop in one part (all of them where it is not split). `most_stages` is the number of
    stages that would fit. `l2_bytes` is what tiles read from L2, with multicast, and `l2_seconds` the time
    that L2 needs for it. `epilogue_share` is the epilogue's share of a tile's cycles, `function_share` that of
    its arithmetic. `step_cycles` are SM cycles per step of the loop. `floor_share` is the launch floor's share
    of the estimate. `direct_bytes` are bytes of whole epilogue tensors that threads move instead of TMA.
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

    request: PartialSchedule
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
    """A plan and what is known of it. `pattern` is what the kernel's family made of the program, from which
    other schedules are planned. `bound` is the program's speed of light on the device."""

    pattern: object
    planned: Planned
    bound: SpeedOfLight
    resources: Resources
    analytic: Analytic
    build: BuildFacts | None = None
    timing: TimingFacts | None = None
    counters: Counters | None = None

    @property
    def seconds(self) -> float:
        """The measured time, or else the estimate."""
        return self.timing.seconds if self.timing else self.analytic.seconds

    @property
    def arch(self) -> Arch:
        return ARCHES[self.planned.plan.arch]

    @property
    def prices(self) -> bool:
        """Whether the family's cost model tells schedules of this problem apart."""
        return families.family_of_plan(self.planned.plan).prices

    def plan(self, request: PartialSchedule) -> Planned | None:
        """Returns the same problem under another schedule; None where that is not legal."""
        p = self.planned
        other = families.plan_pattern(self.pattern, p.sizes, self.arch, p.device, request)
        return other if isinstance(other, Planned) else None

    def tiers(self) -> tuple[Tier, ...]:
        """Returns the tiers that have facts."""
        by_tier = (self.analytic, self.build, self.timing, self.counters)
        return tuple(t for t, k in zip(TIERS, by_tier, strict=True) if k is not None)


def facts_of(checked: frontend.Checked, kernel: ir.Kernel, planned: Planned) -> KernelFacts:
    """Returns the facts of a plan of `kernel`, whatever its family, without building or timing it."""
    sizes = dict(zip(kernel.dims, planned.sizes, strict=True))
    bound = speed_of_light(bounds(kernel, sizes, planned.device))
    resources = families.resources(planned)
    return KernelFacts(frontend.pattern(checked, kernel), planned, bound, resources, analytic(planned))


def analytic(planned: Planned) -> Analytic:
    """Returns the analytic facts of a plan, by its family's cost model."""
    estimate, device = planned.estimate, planned.device
    resources, cost, tiles = (
        families.resources(planned),
        families.tile_cost(planned),
        families.traffic(planned),
    )
    return Analytic(
        seconds=estimate.seconds,
        tiles=estimate.tiles,
        slots=estimate.slots,
        sms=device.sms,
        cluster_slots=cluster_slots(device, resources.cluster[0] * resources.cluster[1]),
        waves=estimate.waves,
        quantisation=estimate.quantisation,
        padding=estimate.padding,
        steps=resources.steps,
        part_steps=resources.part_steps,
        stages=resources.stages,
        most_stages=resources.most_stages,
        accumulators=resources.accumulators,
        dram_bytes=estimate.dram_bytes,
        dram_seconds=estimate.dram_seconds,
        power_seconds=estimate.power_seconds,
        l2_bytes=float(resources.operand_bytes) if tiles is None else tiles.l2_bytes,
        l2_seconds=cost.l2_seconds if cost else resources.operand_bytes / device.l2_bandwidth,
        epilogue_share=cost.epilogue_share if cost else 0.0,
        function_share=cost.function_share if cost else 0.0,
        step_cycles=cost.step_cycles if cost else 0.0,
        floor_share=device.launch_floor / estimate.seconds,
        direct_bytes=resources.direct_bytes,
    )
