"""Shared memory of convolution's kernels of TMA and wgmma: stages, through which the epilogue goes, a table of
rows, and barriers. The multistage kernel's is a GEMM's (`ucutlass.kernels.gemm.smem`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ucutlass.ir.hardware import ARCHES, Device
from ucutlass.kernels.convolution.plan import (
    IN_F16,
    ConvolutionProblem,
    Im2colSchedule,
    Passes,
    WgradSchedule,
)
from ucutlass.kernels.convolution.plan_im2col import Im2col, stores_sums
from ucutlass.kernels.gemm.smem import ContiguousMode, staged_bytes

MOST_STAGES = 12

LEAST_ROWS, PACK = 32, 4
"""Rows of accumulators that the epilogue passes at a time at least, and those that a thread reads together."""

PARTS: Mapping[Passes, tuple[int, int]] = MappingProxyType(
    {"tensor": (1, 1), "tf32x3": (1, 2), "f16x3": (2, 2), "f16": (1, 1)}
)
"""The parts of A and B that a stage holds."""

RESERVED = ARCHES["sm90a"].shared_memory_reserved
"""Bytes of an SM's shared memory that the system takes for each thread block."""


def stage_bytes(problem: ConvolutionProblem, schedule: Im2colSchedule | WgradSchedule) -> int:
    """Returns the bytes of one stage: a tile of each operand."""
    m, n, k = schedule.tile
    return rows_of_tiles(m, n, problem.passes) * k * problem.a.read.bytes


def runs_of(schedule: Im2colSchedule | WgradSchedule) -> int:
    """Returns the runs of A's rows that a block holds: fewer of the longest rows, 128 bytes of f16."""
    if isinstance(schedule, WgradSchedule) or schedule.halo == 0:
        return 0
    return runs_held(schedule.part)


def runs_held(part: int) -> int:
    """Returns the runs of rows of so many f16 that a block holds."""
    return 2 if part == 64 else 4


def main_bytes(problem: ConvolutionProblem, schedule: Im2colSchedule | WgradSchedule) -> int:
    """Returns the bytes of all stages, and of the runs of A's rows where these are rings of their own."""
    if isinstance(schedule, WgradSchedule) or schedule.halo == 0:
        return schedule.stages * stage_bytes(problem, schedule)
    m, n, _ = schedule.tile
    rows = runs_of(schedule) * (m + schedule.halo) + schedule.stages * n
    return PARTS[problem.passes][0] * rows * schedule.part * problem.a.read.bytes


def rows_of_tiles(tile_m: int, tile_n: int, passes: Passes) -> int:
    """Returns the rows of a stage: f32 has a tile of each part of B, and in f16 passes of A."""
    parts_of_a, parts_of_b = PARTS[passes]
    return parts_of_a * tile_m + parts_of_b * tile_n


def rows_staged(
    problem: ConvolutionProblem, schedule: Im2colSchedule | WgradSchedule, contiguous_mode: ContiguousMode
) -> int:
    """Returns the most rows that the epilogue takes at a time in the stages' bytes, which lie side by side
    along N or along M."""
    rows, main = schedule.tile[0], main_bytes(problem, schedule)
    whole = isinstance(schedule, WgradSchedule)
    while rows > LEAST_ROWS and staged_bytes(problem.gemm, rows, schedule.tile[1], contiguous_mode) > main:
        if whole and rows % 64:
            break
        rows //= 2
    # Blocks of a cluster take whole packs of them.
    parts = schedule.split_k if isinstance(schedule, Im2colSchedule) else 1
    return rows if rows % (PACK * parts) == 0 else LEAST_ROWS


def end_of_tiles(
    problem: ConvolutionProblem, schedule: Im2colSchedule | WgradSchedule, contiguous_mode: ContiguousMode
) -> int:
    """Returns the bytes of the stages or the epilogue, whichever are more, behind which the table of rows and
    the barriers lie."""
    main = main_bytes(problem, schedule)
    rows = rows_staged(problem, schedule, contiguous_mode)
    return (max(main, staged_bytes(problem.gemm, rows, schedule.tile[1], contiguous_mode)) + 15) // 16 * 16


def tables_bytes(tile_m: int, stages: int) -> int:
    """Returns the bytes of a table of rows, of barriers, and of what bringing the tiles to a multiple of 1024
    bytes may take."""
    return 4 * tile_m + 16 * stages + 1024


def shared_bytes(
    problem: ConvolutionProblem, schedule: Im2colSchedule | WgradSchedule, contiguous_mode: ContiguousMode
) -> int:
    """Returns the dynamic shared memory of a thread block."""
    barriers = schedule.stages + runs_of(schedule)
    return end_of_tiles(problem, schedule, contiguous_mode) + tables_bytes(schedule.tile[0], barriers)


CONSUMER_REGISTERS: Mapping[int, int] = MappingProxyType({1: 232, 2: 240, 3: 160})
"""By warp groups that multiply: registers of a thread where the producer's warp group keeps 24. Where one alone
multiplies, an SM has two such blocks."""


def deep(tile_m: int, tile_n: int, groups: int, passes: Passes = "tensor") -> bool:
    """Whether warp groups hold sums in registers that a producer's group leaves them."""
    if passes == "f16x3":
        return groups > 1 or tile_n > 64
    if passes == "tf32x3":
        return groups > 2 or (groups == 2 and tile_n > 64)
    return groups > 2 and tile_m * tile_n // (128 * groups) > 96


def _registers(tile_m: int, tile_n: int, groups: int, passes: Passes) -> int:
    """Returns the registers of a thread that multiplies. Three passes sum each stage apart; those of TF32 hold the
    parts of 64 x 32 elements of A, those of f16 another sum, of the parts' cross products."""
    sums = tile_m * tile_n // (128 * groups)
    return {"tensor": sums + 28, "tf32x3": 2 * sums + 48 + 36, "f16x3": 3 * sums + 40, "f16": sums + 28}[
        passes
    ]


STORING, STORING_COLUMNS, MORE_SUMS = 64, 88, 32
"""Registers of a thread beside its sums where one f16 pass stores these, as remainders in columns too, and the sums
beyond which four take a register more: with fewer ptxas 13.0 spills, and an H100 took up to 1.8 times as long."""


def storing_registers(problem: ConvolutionProblem, access: Im2col, split_k: int) -> int:
    """Returns the registers beside its sums with which a thread of one f16 pass stores these; 0 where others do."""
    if problem.passes != "f16" or not stores_sums(problem, access, split_k):
        return 0
    return STORING if problem.stacked == 1 else STORING_COLUMNS


def _allowed_registers(warps: int) -> int:
    """Returns the registers of a thread of so many warps of an SM, whose four parts have 16384 each."""
    return 16384 // (32 * -(-warps // 4)) // 8 * 8


def stages_beside_runs(
    tile_m: int, tile_n: int, groups: int, part: int, halo: int, steps: int, device: Device, passes: Passes
) -> int:
    """Returns the stages of B that fit beside runs of A's rows in f16 parts, one tap of so many channels each, no more
    than there are steps; 0 where there is no room for two."""
    if _registers(tile_m, tile_n, groups, passes) > CONSUMER_REGISTERS[groups]:
        return 0
    runs, row = runs_held(part), 2 * PARTS[passes][0] * part
    available = device.shared_memory - RESERVED - tables_bytes(tile_m, MOST_STAGES + runs) - 64
    fit = (available - runs * row * (tile_m + halo)) // (row * tile_n)
    return min(fit, MOST_STAGES, max(2, steps)) if fit >= 2 else 0


def stages_held(
    tile_m: int,
    tile_n: int,
    groups: int,
    blocks: int,
    steps: int,
    device: Device,
    passes: Passes = "tensor",
    storing: int = 0,
    producers: int = 1,
) -> int:
    """Stages of 128 bytes of K that so many blocks of an SM have room for, no more than there are steps;
    0 where registers or shared memory do not suffice for two. Of f16 passes one step may take two or four of them.
    `storing`: registers beside the sums that are stored from there; `producers`: the warps that fill stages."""
    steps = max(steps, 2) if passes in IN_F16 else steps
    warps = 4 * groups + producers
    sums = tile_m * tile_n // (128 * groups)
    own = sums + storing + max(0, sums - MORE_SUMS) // 4
    if storing and own > _allowed_registers(warps * blocks):
        return 0
    registers = _registers(tile_m, tile_n, groups, passes)
    if deep(tile_m, tile_n, groups, passes):
        if blocks != (2 if groups == 1 else 1) or registers > CONSUMER_REGISTERS[groups]:
            return 0
    elif (warps + warps % 2) * 32 * blocks * registers > 65536 or registers > 232:
        return 0
    available = device.shared_memory // blocks - RESERVED - tables_bytes(tile_m, MOST_STAGES) - 64
    fit = min(available // (rows_of_tiles(tile_m, tile_n, passes) * 128), MOST_STAGES)
    # The epilogue passes 32 rows of accumulators through at least.
    if fit < min(2, steps) or available < 64 * (tile_n + 8) * 4:
        return 0
    return max(2, min(fit, steps + 1)) if steps > 1 else max(1, min(fit, 2))
