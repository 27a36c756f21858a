"""How long a convolution takes, and what its launch counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ucutlass.ir.elements import TF32
from ucutlass.ir.hardware import ARCHES, Arch, Device
from ucutlass.kernels.convolution.cost_f32 import im2col_seconds, multistage_seconds
from ucutlass.kernels.convolution.cost_register_tile import register_tile_seconds
from ucutlass.kernels.convolution.plan import (
    ConvolutionPlan,
    ConvolutionProblem,
    ConvolutionSchedule,
    DepthwiseWgradSchedule,
    DirectSchedule,
    Im2colSchedule,
    OperandAccess,
    RegisterTileSchedule,
    WgradSchedule,
)
from ucutlass.kernels.convolution.plan_depthwise_wgrad import BLOCKS, tile_bytes
from ucutlass.kernels.convolution.plan_im2col import Im2col, im2col
from ucutlass.kernels.convolution.plan_register_tile import RegisterTile, register_tile
from ucutlass.kernels.convolution.plan_wgrad import WgradAccess, wgrad_access
from ucutlass.kernels.convolution.rules import multiplied
from ucutlass.kernels.convolution.schedule_im2col import channel_run
from ucutlass.kernels.convolution.schedule_wgrad import tap_run
from ucutlass.kernels.convolution.smem import (
    MOST_STAGES,
    main_bytes,
    runs_of,
    stages_beside_runs,
    stages_held,
    storing_registers,
    tables_bytes,
)
from ucutlass.kernels.gemm.plan import Sm80Schedule
from ucutlass.kernels.gemm.smem import sm80_memory
from ucutlass.kernels.planned import (
    Estimate,
    Grid,
    Planned,
    Resources,
    TileCost,
    Traffic,
    Unit,
    blocks_per_sm,
    counted,
)

UNTILED = (DirectSchedule, DepthwiseWgradSchedule, RegisterTileSchedule)
"""The kernels of plain threads, which share no tile of the product."""

REACHED = 0.4
"""Of the peak, roughly, by the kernels of this family."""


@dataclass(frozen=True, slots=True)
class Extents:
    """The problem's numbers."""

    m: int
    n: int
    k: int
    batch: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * self.batch


def measure(problem: ConvolutionProblem, sizes: tuple[int, ...]) -> Extents:
    """Returns the problem's numbers for these extents."""

    def count(dims: tuple[int, ...]) -> int:
        return math.prod(sizes[d] for d in dims)

    batch = math.prod(count(run) for run in problem.batch)
    return Extents(count(problem.m), count(problem.n), count(problem.k), batch)


def estimate(
    problem: ConvolutionProblem,
    schedule: ConvolutionSchedule,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    launch: tuple[int, ...],
) -> Estimate:
    """Returns a rough estimate: what is moved at the memory's bandwidth, or multiplied at a share of the peak,
    after operands are copied into another order. It does not tell schedules apart; Hopper's in f32 have the
    prices by which the planner chooses. Plain threads that share no taps load one element a cycle of an SM: 1000
    products of 384, a block's, took an H100 275 us."""
    extents = measure(problem, sizes)
    moved = sum(_elements_read(w, sizes) * w.elem.bytes for w in (problem.a, problem.b))
    moved += extents.m * extents.n * extents.batch * sum(o.access.elem.bytes for o in problem.gemm.outputs)
    rate = REACHED * device.peaks[_rate(problem, schedule, device)]
    multiplied_seconds = extents.flops / _phases(problem, schedule) / rate
    copied = [
        _elements_read(w, sizes) * (w.elem.bytes + w.read.bytes)
        for w in (problem.a, problem.b)
        if w.pack is not None
    ]
    packs = device.launch_floor * len(copied) + sum(copied) / device.bandwidth
    memory = moved / device.bandwidth
    match schedule:
        case Im2colSchedule() if problem.passes != "tensor" or problem.compute_type == TF32:
            seconds = im2col_seconds(problem, schedule, sizes, device)
        case RegisterTileSchedule():
            tile = register_tile(problem)
            assert isinstance(tile, RegisterTile), tile
            seconds = register_tile_seconds(problem, tile, schedule, sizes, device)
        case Sm80Schedule(math="tf32x3") if arch.wgmma:
            seconds = multistage_seconds(problem, schedule, launch[2], sizes, device)
        case DirectSchedule(taps=0):
            blocks = _grid(problem, schedule, sizes, arch, device, launch).tiles
            loads = extents.flops / 2 / min(device.sms, blocks) / device.clock
            seconds = device.launch_floor + packs + max(memory, multiplied_seconds, loads)
        case _:
            seconds = device.launch_floor + packs + max(memory, multiplied_seconds)
    grid = _grid(problem, schedule, sizes, arch, device, launch)
    return counted(grid, seconds, multiplied_seconds, memory, moved)


def _elements_read(operand: OperandAccess, sizes: tuple[int, ...]) -> int:
    return math.prod(sizes[a.extent] for a in operand.axes)


def _rate(problem: ConvolutionProblem, schedule: ConvolutionSchedule, device: Device) -> str:
    """Returns the entry of `Device.peaks` at which the kernel multiplies."""
    if isinstance(schedule, (Im2colSchedule, WgradSchedule)) and problem.passes != "tensor":
        return problem.passes
    compute_type = "f32" if isinstance(schedule, UNTILED) else problem.compute_type.name
    return compute_type if compute_type in device.peaks else "f32"


# --- what a launch counts --------------------------------------------------------------------


def _grid(
    problem: ConvolutionProblem,
    schedule: ConvolutionSchedule,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    launch: tuple[int, ...],
) -> Grid:
    extents = measure(problem, sizes)
    results = extents.m * extents.n * extents.batch
    resident = _resident(problem, schedule, arch)
    if isinstance(schedule, DirectSchedule):
        each = (
            schedule.rows
            * max(1, schedule.items)
            * (1 if schedule.innermost else schedule.width)
            * schedule.threads
        )
        return Grid(math.ceil(results / each), device.sms * resident)
    if isinstance(schedule, DepthwiseWgradSchedule):
        each = schedule.width * schedule.lanes * math.prod(schedule.taps)
        return Grid(max(math.ceil(results / each), BLOCKS), device.sms * resident)
    if isinstance(schedule, RegisterTileSchedule):
        each = schedule.rows * schedule.columns * schedule.threads
        return Grid(math.ceil(results / each), device.sms * resident)
    tile_m, tile_n, _ = schedule.tile
    rows, batch = _rows(problem, schedule, sizes)
    tiles = math.ceil(rows / tile_m) * math.ceil(extents.n * problem.stacked / tile_n) * batch
    return Grid(
        tiles * _parts(schedule, launch), device.sms * resident, min(1.0, results / (tiles * tile_m * tile_n))
    )


def _parts(schedule: ConvolutionSchedule, launch: tuple[int, ...]) -> int:
    """Returns the thread blocks that share the sum of a tile."""
    return schedule.split_k if isinstance(schedule, Im2colSchedule) else launch[2]


def _rows(
    problem: ConvolutionProblem, schedule: ConvolutionSchedule, sizes: tuple[int, ...]
) -> tuple[int, int]:
    """Returns the rows that tiles are laid over, and how often: rows of a strided gradient fall into phases,
    those of a gradient of weights are padded to whole parts of channels."""
    extents = measure(problem, sizes)
    match schedule:
        case Im2colSchedule():
            how = im2col(problem)
            if not isinstance(how, Im2col):
                return extents.m, extents.batch
            own = {s.result: s.results(sizes) for s in how.space}
            rows = math.prod(own.get(d, sizes[d]) for d in problem.m)
            return math.ceil(rows / how.phases), extents.batch * how.phases
        case WgradSchedule(part=part):
            access = wgrad_access(problem)
            if not isinstance(access, WgradAccess):
                return extents.m, extents.batch
            channels = tap_run(problem, access, sizes)
            taps = math.prod(
                sizes[s.tap_dim] for s in access.space if s.tap_dim is not None and s.tap_dim in problem.m
            )
            return taps * math.ceil(channels / part) * part, extents.batch
        case _:
            return extents.m, extents.batch


def _phases(problem: ConvolutionProblem, schedule: ConvolutionSchedule) -> int:
    """Returns the parts of the results that read taps of their own alone; other kernels multiply all taps of a row."""
    how = im2col(problem) if isinstance(schedule, Im2colSchedule) else ""
    return how.phases * problem.stacked if isinstance(how, Im2col) else 1


def _resident(problem: ConvolutionProblem, schedule: ConvolutionSchedule, arch: Arch) -> int:
    """Returns the thread blocks that an SM holds."""
    match schedule:
        case Im2colSchedule(blocks=blocks) | WgradSchedule(blocks=blocks):
            return blocks
        case Sm80Schedule():
            registers = min(255, _sums(schedule) + 96)
            return blocks_per_sm(
                arch, _threads(schedule), registers, sum(_memory(problem, schedule).values())
            )
        case DirectSchedule():
            registers = min(255, _sums(schedule) * (2 if schedule.items > 1 else 1) + 40)
            return blocks_per_sm(arch, schedule.threads, registers, 0)
        case DepthwiseWgradSchedule(threads=threads):
            held = tile_bytes(problem, schedule)
            return blocks_per_sm(arch, threads, min(255, _sums(schedule) + 64), held)
        case RegisterTileSchedule(threads=threads):
            return blocks_per_sm(arch, threads, min(255, _sums(schedule) + 64), 0)


def _threads(schedule: ConvolutionSchedule) -> int:
    match schedule:
        case (
            DirectSchedule(threads=threads)
            | DepthwiseWgradSchedule(threads=threads)
            | RegisterTileSchedule(threads=threads)
        ):
            return threads
        case Sm80Schedule(tile=tile, warp_tile=warp):
            return 32 * (tile[0] // warp[0]) * (tile[1] // warp[1])
        case WgradSchedule(groups=groups, word=word):
            return 32 * (4 * groups + (4 if word else 1))
        case Im2colSchedule(groups=groups):
            return 32 * (4 * groups + 1)


def _sums(schedule: ConvolutionSchedule) -> int:
    """Returns the registers of a thread that hold sums."""
    match schedule:
        case DirectSchedule(width=width, rows=rows, innermost=False, items=items, item_taps=taps) if (
            items > 1
        ):
            return rows * width * taps  # of the lines that are begun
        case DirectSchedule(width=width, rows=rows, innermost=innermost, items=items):
            return rows * max(1, items) * (1 if innermost else width)
        case DepthwiseWgradSchedule(width=width, taps=taps):
            return width * math.prod(taps)
        case RegisterTileSchedule(rows=rows, columns=columns):
            return rows * columns
        case Sm80Schedule(warp_tile=(m, n)):
            return m * n // 32
        case Im2colSchedule(tile=(m, n, _), groups=groups) | WgradSchedule(tile=(m, n, _), groups=groups):
            return m * n // (128 * groups)


def _memory(problem: ConvolutionProblem, schedule: ConvolutionSchedule) -> dict[str, int]:
    """Returns bytes of shared memory by part. The epilogue goes through the stages' bytes; what it takes
    beyond them counts."""
    match schedule:
        case DepthwiseWgradSchedule(columns=columns) if columns:
            return {"tile": tile_bytes(problem, schedule)}
        case DirectSchedule() | DepthwiseWgradSchedule() | RegisterTileSchedule():
            return {}
        case Sm80Schedule(tile, warp_tile, stages, _):
            memory = sm80_memory(multiplied(problem), tile, warp_tile, stages)
            return {"stages": memory.stage * stages, "epilogue": memory.epilogue}
        case Im2colSchedule() | WgradSchedule():
            m, n, _ = schedule.tile
            stages = main_bytes(problem, schedule)
            epilogue = 4 * max(_LEAST_ROWS * (n + _PAD), n * (_LEAST_ROWS + _PAD))
            return {
                "stages": stages,
                "epilogue": max(0, epilogue - stages),
                "table of rows and barriers": tables_bytes(m, schedule.stages + runs_of(schedule)),
            }


_LEAST_ROWS, _PAD = 32, 8
"""Rows of accumulators that the epilogue passes at a time at least, and the elements that pad each."""


# --- what reports read -----------------------------------------------------------------------


def resources(planned: Planned) -> Resources:
    """Returns what a block takes of an SM, and how the product is cut."""
    problem, schedule = _plan(planned)
    extents, arch = measure(problem, planned.sizes), ARCHES[planned.plan.arch]
    operands = sum(_elements_read(w, planned.sizes) * w.elem.bytes for w in (problem.a, problem.b))
    if isinstance(schedule, UNTILED):
        tile, stages, most, variant = None, None, None, "direct"
    else:
        tile = schedule.tile
        variant = "gather" if isinstance(schedule, Sm80Schedule) else "im2col"
        stages, most = schedule.stages, _most_stages(problem, schedule, arch, planned.device)
    steps = 1 if tile is None else _steps(problem, schedule, planned.sizes)
    parts = 1 if tile is None else _parts(schedule, planned.launch)
    if stages is not None and math.ceil(steps / parts) <= stages:
        stages, most = None, None
    return Resources(
        variant=variant,
        extents={"M": extents.m, "N": extents.n, "K": extents.k, "batch": extents.batch},
        unit=_unit(schedule),
        threads=_threads(schedule),
        memory=_memory(problem, schedule),
        memory_limit=arch.shared_memory,
        accumulators=_sums(schedule),
        operand_bytes=operands,
        tile=tile,
        stages=stages,
        most_stages=most,
        loop="K",
        steps=steps,
        parts=parts,
        routes=("direct",) * len(problem.gemm.outputs),
    )


def _unit(schedule: ConvolutionSchedule) -> Unit:
    match schedule:
        case Im2colSchedule() | WgradSchedule():
            return "wgmma"
        case Sm80Schedule(math=math_) if math_ != "simt":
            return "mma"
        case _:
            return "ffma"


def _most_stages(
    problem: ConvolutionProblem,
    schedule: Sm80Schedule | Im2colSchedule | WgradSchedule,
    arch: Arch,
    device: Device,
) -> int:
    """Returns the stages that fit, of so many blocks an SM."""
    match schedule:
        case Sm80Schedule(tile, warp_tile, stages, _):
            memory = sm80_memory(multiplied(problem), tile, warp_tile, stages)
            return (arch.shared_memory - memory.epilogue) // memory.stage
        case Im2colSchedule(halo=halo) if halo:
            m, n, _ = schedule.tile
            return stages_beside_runs(
                m, n, schedule.groups, schedule.part, halo, MOST_STAGES, device, problem.passes
            )
        case Im2colSchedule() | WgradSchedule():
            m, n, _ = schedule.tile
            how = im2col(problem)
            split_k = schedule.split_k if isinstance(schedule, Im2colSchedule) else 1
            storing = storing_registers(problem, how, split_k) if isinstance(how, Im2col) else 0
            return stages_held(
                m, n, schedule.groups, schedule.blocks, MOST_STAGES, device, problem.passes, storing
            )


def _steps(problem: ConvolutionProblem, schedule: ConvolutionSchedule, sizes: tuple[int, ...]) -> int:
    """Returns the steps of K: every tap has whole parts of channels."""
    extents = measure(problem, sizes)
    if isinstance(schedule, UNTILED):
        return 1
    how = im2col(problem)
    if not isinstance(schedule, Im2colSchedule) or not isinstance(how, Im2col):
        return math.ceil(extents.k / schedule.tile[2])
    channels = channel_run(problem, how, sizes)
    taps = math.prod(-(-s.taps(sizes) // s.every) for s in how.space)
    return math.ceil(taps * math.ceil(channels / schedule.part) / (schedule.tile[2] // schedule.part))


def traffic(planned: Planned) -> Traffic | None:
    """Returns what the tiles multiply and the bytes of operands that they read; None without tiles."""
    problem, schedule = _plan(planned)
    if isinstance(schedule, UNTILED):
        return None
    extents, (tile_m, tile_n, depth) = measure(problem, planned.sizes), schedule.tile
    tiles = planned.estimate.tiles / _parts(schedule, planned.launch)
    read = min(tile_m, extents.m) * problem.a.read.bytes + min(tile_n, extents.n) * problem.b.read.bytes
    steps = _steps(problem, schedule, planned.sizes)
    return Traffic(extents.flops, _rate(problem, schedule, planned.device), tiles * steps * depth * read)


def tile_cost(planned: Planned) -> TileCost | None:
    """Returns the cycles of a step of K, the estimate divided over the steps of the busiest SM; None without
    tiles. The model knows no epilogue."""
    moved = traffic(planned)
    if moved is None:
        return None
    e, launch_resources = planned.estimate, resources(planned)
    turns = -(-e.tiles // e.slots) * (e.slots // planned.device.sms) * launch_resources.part_steps
    cycles = e.sm_seconds * planned.device.clock / turns
    return TileCost(cycles, 0.0, 0.0, moved.l2_bytes / planned.device.l2_bandwidth)


def _plan(planned: Planned) -> tuple[ConvolutionProblem, ConvolutionSchedule]:
    plan = planned.plan
    assert isinstance(plan, ConvolutionPlan), type(plan)
    return plan.problem, plan.schedule
