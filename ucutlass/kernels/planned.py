"""A planned kernel of any family: what building, launching and reports read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ucutlass.ir.elements import Element
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import Request


class PlanProblem(Protocol):
    """What every family's problem has: the compute type of its multiplications, and how many entries the
    launch's arrays of tensors and of scalars have."""

    @property
    def lane(self) -> Element: ...

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
    `dram_seconds` are the limits that `seconds` joins; `power_seconds` is what sustained power allows the
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


def memory_or_compute(
    memory_seconds: float, compute_seconds: float, moved: float, overhead: float
) -> Estimate:
    """The estimate of a model that knows no tiles: the longer of both times, after an overhead in seconds."""
    seconds = overhead + max(memory_seconds, compute_seconds)
    return Estimate(seconds, 0, 0, 0.0, 1.0, 1.0, compute_seconds, 0.0, memory_seconds, 0.0, moved)


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
    request: Request
    device: Device
    estimate: Estimate
    notes: tuple[Note, ...] = ()
    origin: str = ""

    @property
    def seconds(self) -> float:
        """The estimate."""
        return self.estimate.seconds
