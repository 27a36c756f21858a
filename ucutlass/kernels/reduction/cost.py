"""How long a reduction takes, and what its launch counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ucutlass.ir.extents import evaluate
from ucutlass.ir.hardware import ARCHES, Arch, Device
from ucutlass.kernels.planned import Estimate, Grid, Planned, Resources, blocks_per_sm, counted
from ucutlass.kernels.reduction.plan import (
    HELD_AT_ONCE,
    AxisAccess,
    Load,
    ReductionPlan,
    ReductionProblem,
    ReductionSchedule,
    phases,
    scans_of,
)
from ucutlass.kernels.reduction.schedule import moved_bytes
from ucutlass.kernels.reduction.smem import TILE, ring_bytes, transpose_tiles


@dataclass(frozen=True, slots=True)
class Extent:
    """The problem's numbers: `rows` and `columns` count elements of each, `bytes` what all tensors hold."""

    rows: int
    columns: int
    bytes: int


@dataclass(frozen=True, slots=True)
class VectorRows:
    """The rows of a problem on a device, read by vectors of `vector` elements, which with `straddle` may straddle the ends
    of rows."""

    problem: ReductionProblem
    extent: Extent
    vector: int
    arch: Arch
    device: Device
    straddle: bool = False

    @property
    def vectors(self) -> int:
        """Whole vectors of a row."""
        return self.extent.columns // self.vector


def estimate(
    problem: ReductionProblem,
    schedule: ReductionSchedule,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    launch: tuple[int, ...],
) -> Estimate:
    """Returns the time to move all tensors, loads as often as the kernel reads them, or to visit every element
    of what each row reduces, where rows reduce the same ones. Of schedules it tells apart those that read rows
    again."""
    extent = measure(problem, sizes)
    moved = extent.bytes * (1 + passes_of(problem, schedule)) / 2
    memory = moved / device.bandwidth
    visits = extent.rows * extent.columns * math.prod(sizes[i] for mode in problem.windows for i in mode)
    computing = visits / (_VISITS * device.sms * device.clock)
    block = schedule.threads * schedule.rows
    registers = min(255, _held_registers(problem, schedule) + _WORKING)
    resident = blocks_per_sm(arch, block, registers, sum(_memory(problem, schedule).values()))
    slots, blocks = device.sms * resident, _blocks(problem, schedule, extent)
    # Blocks that stay for the launch are no more than run at a time.
    grid = Grid(min(blocks, slots) if schedule.stages > 1 else blocks, slots)
    return counted(grid, device.launch_floor + max(memory, computing), computing, memory, moved)


_VISITS = 64
"""Elements that an SM reads and reduces in a clock at most: every second lane of its four schedulers."""

_WORKING = 24
"""Registers of a thread beside what it holds of a row: addresses, partial results (a judgement)."""


def _blocks(problem: ReductionProblem, s: ReductionSchedule, extent: Extent) -> int:
    """Returns the thread blocks of a launch."""
    if not problem.columns:
        if s.transposed:
            return math.ceil(extent.rows / (TILE * s.tile))
        return math.ceil(extent.rows / (s.vector * s.rows * s.items))
    rows = math.ceil(extent.rows / (1 if problem.across else s.vector) / s.rows)
    parts = _chunks(problem, s, extent) if s.look_back else s.splits
    return rows * parts * s.sharers


def _chunks(problem: ReductionProblem, s: ReductionSchedule, extent: Extent) -> int:
    """Returns the parts of a row that a block holds one after another."""
    line = extent.columns / (s.vector if problem.across else 1)
    return math.ceil(line / (s.threads * s.items * s.sharers))


def _held_registers(problem: ReductionProblem, s: ReductionSchedule) -> int:
    """Returns the 32-bit registers of a thread that hold loads."""
    held = kept_bytes(problem, s.vector) if problem.columns else moved_bytes(problem, s.vector)
    items = min(s.items, HELD_AT_ONCE) if s.keep == "shared" else s.items
    return math.ceil(held * items / 4)


def _memory(problem: ReductionProblem, s: ReductionSchedule) -> dict[str, int]:
    """Returns bytes of shared memory by part: the tiles in which loads are transposed, the ring of a row's lines."""
    parts = {"tiles": sum(tile.bytes for tile in transpose_tiles(problem, s)), "ring": ring_bytes(problem, s)}
    return {name: count for name, count in parts.items() if count}


def measure(problem: ReductionProblem, sizes: tuple[int, ...]) -> Extent:
    """The problem's numbers for these extents."""

    def count(modes: tuple[tuple[int, ...], ...]) -> int:
        return math.prod(sizes[i] for mode in modes for i in mode)

    rows, columns = count(problem.rows), count(problem.columns)
    moved = sum(x.elem.bytes * _reach(problem, x.axes, sizes) for x in problem.loads)
    moved += sum(o.elem.bytes * rows * (columns if o.whole else 1) for o in problem.outputs)
    return Extent(rows, columns, moved)


def _reach(problem: ReductionProblem, axes: tuple[AxisAccess, ...], sizes: tuple[int, ...]) -> int:
    """Elements that a load reads at most: the product of the modes that move it, or of the lengths of its axes
    between the first and the last coordinate that it has, where windows overlap and parts are concatenated."""
    lengths = [math.prod(sizes[i] for i in mode) for mode in problem.modes]
    modes = {m for axis in axes for m, _ in axis.at.terms}
    names = {str(i): n for i, n in enumerate(sizes)}
    spans = [sum(abs(c) * (lengths[m] - 1) for m, c in axis.at.terms) // axis.scale + 1 for axis in axes]
    spans = [
        span if axis.extent is None else min(span, evaluate(axis.extent, names))
        for span, axis in zip(spans, axes, strict=True)
    ]
    gathers = any(axis.gathered is not None for axis in axes)
    most = math.prod(lengths[m] for m in modes)
    return most if gathers else min(most, math.prod(spans))


def passes_of(problem: ReductionProblem, s: ReductionSchedule) -> int:
    """How often the loads are read: before each reduction, and for results that every column has. A scan's parts
    in one pass are read once, however many they are."""
    if s.keep != "reread":
        return 1
    last = bool(scans_of(problem)) or any(o.whole for o in problem.outputs)
    return phases(problem) + last + (s.splits > 1 and bool(scans_of(problem)))


def kept_bytes(problem: ReductionProblem, vector: int) -> int:
    """Bytes a thread keeps of one vector of every load; what is the same in many rows (a gain of groups) is
    read again from the caches."""
    return max(vector * sum(load.elem.bytes for load in kept(problem)), 4)


def kept(problem: ReductionProblem) -> list[Load]:
    """The loads that differ from every row to the next and along the vector."""
    rows = set(range(len(problem.rows)))
    columns = set(range(len(problem.rows), len(problem.rows) + len(problem.columns)))

    def differs(load: Load) -> bool:
        modes = {m for axis in load.axes for m, _ in axis.at.terms}
        return bool(modes & columns) and rows <= modes and problem.vector in modes

    return [load for load in problem.loads if differs(load)]


# --- what reports read -----------------------------------------------------------------------


def _variant(s: ReductionSchedule) -> str:
    """Returns where the kernel's rows lie between their loads and their results."""
    if s.transposed:
        return "transpose"
    if s.look_back:
        return "look-back"
    if s.stages > 1:
        return "ring"
    return "registers" if s.keep == "registers" else "multi-pass"


def resources(planned: Planned) -> Resources:
    """Returns what a block takes of an SM, and how rows and columns are cut."""
    plan = planned.plan
    assert isinstance(plan, ReductionPlan), type(plan)
    problem, s = plan.problem, plan.schedule
    extent = measure(problem, planned.sizes)
    chunks = _chunks(problem, s, extent) if problem.columns else 1
    return Resources(
        variant=_variant(s),
        extents={"rows": extent.rows, "columns": extent.columns, "summed": 0, "batch": 1},
        unit=None,
        threads=s.threads * s.rows,
        memory=_memory(problem, s),
        memory_limit=ARCHES[plan.arch].shared_memory,
        accumulators=_held_registers(problem, s),
        operand_bytes=sum(x.elem.bytes * _reach(problem, x.axes, planned.sizes) for x in problem.loads),
        cluster=(1, s.cluster),
        loop="columns",
        steps=chunks,
        parts=chunks if s.look_back else s.splits * s.grid,
    )
