"""A planned kernel of any family: what building, launching and reports read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ucutlass.ir.elements import Element
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule


class PlanProblem(Protocol):
    """What every family's problem has: the compute type of its multiplications, and how many entries the
    launch's arrays of tensors and of scalars have."""

    @property
    def compute_type(self) -> Element: ...

    @property
    def pointers(self) -> int: ...

    @property
    def scalars(self) -> int: ...


class Plan(Protocol):
    """A kernel's plan: one problem under one concrete schedule for one architecture, proven legal. It holds
    no name that a program chose, and no extent but those that shape the code. `emitter` is the dotted name
    of the module that writes it, `launch_parameters` name what a launch may choose without another build."""

    @property
    def arch(self) -> str: ...

    @property
    def problem(self) -> PlanProblem: ...

    @property
    def schedule(self) -> object: ...

    @property
    def emitter(self) -> str: ...

    @property
    def launch_parameters(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a kernel multiplies and reads: `operations` at the rate of `compute_type` (an entry of
    `Device.peaks`), and the bytes of operands that its tiles read from L2."""

    operations: int
    compute_type: str
    l2_bytes: float


@dataclass(frozen=True, slots=True)
class Note:
    """A choice and its reason; `field` is "" for what concerns the whole kernel."""

    field: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a family's cost model says of a kernel: `seconds` in all.

    `slots` thread blocks run at a time, `tiles` is what they share (with tiles that only fill up clusters
    and swizzle), `waves` their ratio. `quantisation` is the part of the busiest slot's time that the average
    slot is busy, `padding` the useful part of the multiplications. `sm_seconds`, `l2_seconds` and
    `dram_seconds` are the limits that the model knows; `power_seconds` is what sustained power allows the
    multiplications alone. `dram_bytes` cross the memory bus. What a family's model does not price is 0.
    """

    seconds: float
    slots: int
    tiles: int
    waves: float
    quantisation: float
    padding: float
    sm_seconds: float
    l2_seconds: float
    dram_seconds: float
    power_seconds: float
    dram_bytes: float


@dataclass(frozen=True, slots=True)
class Grid:
    """The thread blocks of a launch: `tiles` of work, of which `slots` run at a time. `padding` is the useful
    part of what they compute."""

    tiles: int
    slots: int
    padding: float = 1.0

    @property
    def waves(self) -> float:
        return self.tiles / self.slots

    @property
    def quantisation(self) -> float:
        """The part of the busiest slot's time that the average slot is busy, where tiles are alike."""
        return self.waves / max(1, -(-self.tiles // self.slots))


def blocks_per_sm(arch: Arch, threads: int, registers: int, shared_memory: int) -> int:
    """Returns how many thread blocks an SM holds at a time, at least 1: by its threads, its registers and its
    shared memory. `registers` are those of a thread, `shared_memory` is in bytes of a block."""
    return max(
        1,
        min(
            arch.shared_memory_sm // (shared_memory + arch.shared_memory_reserved),
            arch.registers // max(1, registers * threads),
            arch.threads // threads,
            MOST_BLOCKS,
        ),
    )


MOST_BLOCKS = 32
"""Thread blocks that an SM holds at most (CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability": 32 of 8.0 and 9.0, 24 of 8.9)."""


def counted(
    grid: Grid, seconds: float, compute_seconds: float, memory_seconds: float, moved: float
) -> Estimate:
    """Returns the estimate of a model whose `seconds` are given, with the numbers that follow from the launch.
    `moved` are the bytes that cross the memory bus."""
    return Estimate(
        seconds,
        grid.slots,
        grid.tiles,
        grid.waves,
        grid.quantisation,
        grid.padding,
        compute_seconds,
        0.0,
        memory_seconds,
        0.0,
        moved,
    )


Unit: TypeAlias = Literal["wgmma", "mma", "ffma"]
"""What multiplies: a warp group's asynchronous tensor-core instruction, a warp's, or plain multiply-adds."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel takes of an SM, and how its work is cut, for reports and advice.

    `variant` names the kernel among those of its family. `extents` are the problem's, by the family's names
    for them: rows, columns, what is summed (0 where nothing is), batch. `unit` is None where a kernel
    multiplies no operands. `tile` is what a thread block computes at a time: rows, columns, depth of a step;
    None where operands are not shared between the elements of a block. `threads` are a block's. `memory` has
    the bytes of shared memory by part. `stages` of the loop's pipeline are in flight, `most_stages` would
    fit; both are None where loads are not staged, or the loop is too short for more. For `busy_stages` of
    them no load can be in flight. `accumulators` are 32-bit registers a thread holds sums or inputs in. The
    loop over `loop` takes `steps`, in `parts` of which each has its own accumulators. `routes` has a word for
    each tensor of the epilogue; `direct_bytes` are those of whole ones that threads move, not TMA.
    `operand_bytes` are those of what the loop reads.
    """

    variant: str
    extents: Mapping[str, int]
    unit: Unit | None
    threads: int
    memory: Mapping[str, int]
    memory_limit: int
    accumulators: int
    operand_bytes: int
    tile: tuple[int, int, int] | None = None
    cluster: tuple[int, int] = (1, 1)
    stages: int | None = None
    most_stages: int | None = None
    busy_stages: int = 2
    loop: str = ""
    steps: int = 1
    parts: int = 1
    routes: tuple[str, ...] = ()
    direct_bytes: int = 0

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory of a block."""
        return sum(self.memory.values())

    @property
    def part_steps(self) -> int:
        """Steps of the loop in one part."""
        return -(-self.steps // self.parts)

    @property
    def rows(self) -> int:
        return self._extent(0)

    @property
    def columns(self) -> int:
        return self._extent(1)

    @property
    def batch(self) -> int:
        return self._extent(3)

    def _extent(self, index: int) -> int:
        return tuple(self.extents.values())[index]


@dataclass(frozen=True, slots=True)
class TileCost:
    """How a tile's time divides, by the cost model: `step_cycles` are SM cycles of a step of the loop,
    `epilogue_share` and `function_share` the shares of a tile's cycles that its epilogue and the epilogue's
    functions take. `l2_seconds` is what L2 needs for the operands that the tiles read."""

    step_cycles: float
    epilogue_share: float
    function_share: float
    l2_seconds: float


BY_MODEL = "by the cost model"
"""The origin of a schedule that the family's cost model chose."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A kernel and how to launch it for these extents, in the order of the program's dimensions.

    `launch` has the values of the launch parameters, which cost no build. `request` has every field fixed
    and stands for the same plan; `notes` are the reasons for the fields that were left out; `origin` says in
    words what chose it, "" where nothing was chosen.
    """

    plan: Plan
    launch: tuple[int, ...]
    sizes: tuple[int, ...]
    request: PartialSchedule
    device: Device
    estimate: Estimate
    notes: tuple[Note, ...] = ()
    origin: str = ""

    @property
    def seconds(self) -> float:
        """The estimate."""
        return self.estimate.seconds
