"""Shared memory of the tiled kernels, byte for byte.

The sm90 numbers follow CUTLASS 4.2: `sm90_compute_tile_shape_or_override` and
`sm90_get_tma_dispatch_policy` (epilogue/collective/builders/sm90_builder.inl), the storage of
`Sm90TmaWarpSpecialized`'s collective and of the `Sm90AuxLoad`, `Sm90AuxStore` and
`Sm90RowBroadcast` visitors, and the kernels' `SharedStorage`
(gemm/kernel/sm90_gemm_tma_warpspecialized_{pingpong,cooperative}.hpp). A test holds them against
eight values of `SharedStorageSize` that nvcc computed. The sm80 numbers are emit/gemm_sm80.py's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ucutlass.plan import Access, GemmProblem, GemvSchedule, Reduction, Route, Sm80Schedule, Sm90Schedule
from ucutlass.rules.candidate import Candidate, ceil_div, epilogue_tensors

BARRIER = 8
"""Bytes of an mbarrier."""

SWIZZLES = ((128, 1024), (64, 512), (32, 256))
"""Bytes of a shared-memory line, and the alignment of a tile whose lines are multiples of them
(`alignment_for_swizzle`, 2^(B+M+S)); 128 otherwise."""

SM80_PAD_N, SM80_PAD_M = 8, 4
"""Elements added to a staged row or column of accumulators (emit/gemm_sm80.py)."""


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Bytes of shared memory of a block. `stage` is one stage of A and B, `epilogue` what the
    epilogue takes beside the main loop, `barriers` the pipelines with their padding."""

    stage: int
    stages: int
    epilogue: int
    barriers: int

    @property
    def total(self) -> int:
        return self.stage * self.stages + self.epilogue + self.barriers


@dataclass(frozen=True, slots=True)
class Sm90Epilogue:
    """The TMA epilogue: its subtile, the stages of its load pipeline, its bytes, and the
    alignment that the whole of the kernel's storage takes from it."""

    tile: tuple[int, int]
    load_stages: int
    bytes: int
    alignment: int


def stage_bytes(problem: GemmProblem, tile: tuple[int, int, int]) -> int:
    """Bytes of one stage: a tile of A and one of B as they lie in memory."""
    m, n, k = tile
    return (m * problem.a.elem.bytes + n * problem.b.elem.bytes) * k


def epilogue_tile(
    warps: Literal["pingpong", "cooperative"], tile: tuple[int, int, int], d_bits: int
) -> tuple[int, int]:
    """The M x N part of the tile that the epilogue handles at a time (`EpilogueTileAuto`)."""
    if warps == "cooperative":
        return min(128, tile[0]), math.gcd(32, tile[1])
    wide = 64 if d_bits == 8 and tile[1] % 64 == 0 else 32
    return min(64, tile[0]), math.gcd(wide, tile[1])


def through_tma(problem: GemmProblem, routes: tuple[Route, ...]) -> tuple[list[Access], list[Access]]:
    """Loads and stores of route "tma". The first load is CUTLASS's C and the first store its D;
    the others are auxiliary loads and stores with as many stages."""
    moved = [t for t, route in zip(epilogue_tensors(problem), routes, strict=True) if route == "tma"]
    loads = sum(route == "tma" for route in routes[: len(problem.inputs)])
    return moved[:loads], moved[loads:]


def sm90_epilogue(
    problem: GemmProblem,
    routes: tuple[Route, ...],
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
) -> Sm90Epilogue:
    """What the epilogue holds in shared memory. C's stages serve D where both are equally wide
    and wider than 8 bits (`ReuseSmem`)."""
    loads, stores = through_tma(problem, routes)
    d_bits = stores[0].elem.bits if stores else 0
    part = epilogue_tile(warps, tile, d_bits)
    subtiles = max(1, tile[0] // part[0]) * (tile[1] // part[1])
    stages_d = min(subtiles, 2)
    reuse = bool(loads) and loads[0].elem.bits == d_bits > 8
    stages_c = max(min(subtiles, 4), stages_d + 1) if reuse else min(subtiles, 4)

    def area(tensors: list[Access], stages: int) -> int:
        return sum(_round(part[0] * part[1] * t.elem.bytes * stages, 128) for t in tensors)

    rows = sum(_round(tile[1] * t.elem.bytes, 16) for t in problem.inputs if t.shape == "row")
    used = area(loads, stages_c) + area(stores[1:] if reuse else stores, stages_d) + rows
    lines = (t.elem.bytes * part[1 if t.n == () else 0] for t in (*loads, *stores))
    alignment = max((_alignment(line) for line in lines), default=SWIZZLES[0][1])
    # One byte more: the visitors' own storage is at least an empty struct.
    return Sm90Epilogue(part, stages_c, _round(used + 1, alignment), alignment)


def sm90_memory(
    problem: GemmProblem,
    routes: tuple[Route, ...],
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
    stages: int,
) -> SharedMemory:
    """Shared memory of an sm90 kernel with that many stages."""
    epilogue = sm90_epilogue(problem, routes, tile, warps)
    order = 2 * BARRIER + (4 * BARRIER if warps == "pingpong" else 0)
    scheduler = 16
    pipelines = 2 * BARRIER * (stages + epilogue.load_stages) + order + scheduler
    return SharedMemory(
        stage_bytes(problem, tile), stages, epilogue.bytes, _round(pipelines, epilogue.alignment)
    )


def sm80_memory(
    problem: GemmProblem, tile: tuple[int, int, int], warp_tile: tuple[int, int], stages: int
) -> SharedMemory:
    """Shared memory of a multistage kernel. Its epilogue stages rows of accumulators, and of
    every reduction's values, through the main loop's bytes; only what is beyond them counts."""
    stage = stage_bytes(problem, tile)
    item = 4 + sum(_VALUE_BYTES for output in problem.outputs if isinstance(output, Reduction))

    def staged(rows: int) -> int:
        return item * max(rows * (tile[1] + SM80_PAD_N), tile[1] * (rows + SM80_PAD_M))

    rows, least = tile[0], 16 * max(1, tile[0] // warp_tile[0])
    while rows > least and rows % (2 * least) == 0 and staged(rows) > stage * stages:
        rows //= 2
    return SharedMemory(stage, stages, max(0, staged(rows) - stage * stages), 0)


_VALUE_BYTES = 4
"""Bytes of a value that the multistage epilogue reduces."""


@dataclass(frozen=True, slots=True)
class GemvCover:
    """How a matrix-vector block covers the matrix: rows of its tile, threads of the block, groups
    of threads that leave sums in shared memory, and running sums of a thread."""

    tile_m: int
    block: int
    parts: int
    sums: int


def gemv_cover(problem: GemmProblem, schedule: GemvSchedule) -> GemvCover:
    """emit/gemv.py's cover: along M neighbouring threads take neighbouring vectors of rows, else
    the threads of a block share the K of each row."""
    a, rows, threads = problem.a, schedule.rows, schedule.threads
    if a.contiguous != "m":
        return GemvCover(rows, threads, ceil_div(threads, 32), rows * schedule.columns)
    vector = min(a.align, 16 // a.elem.bytes, 8)
    parts = threads if rows >= 32 else ceil_div(rows * threads, 32)
    return GemvCover(rows * vector, rows * threads, parts, vector * schedule.columns)


def memory_of(candidate: Candidate) -> SharedMemory:
    """Shared memory of a candidate."""
    match candidate.schedule:
        case Sm90Schedule(tile, _, stages, warps, _):
            return sm90_memory(candidate.problem, candidate.routes, tile, warps, stages)
        case Sm80Schedule(tile, warp_tile, stages, _):
            return sm80_memory(candidate.problem, tile, warp_tile, stages)
        case schedule:
            cover = gemv_cover(candidate.problem, schedule)
            sums = cover.tile_m * schedule.columns * _VALUE_BYTES
            reductions = sum(isinstance(o, Reduction) for o in candidate.problem.outputs)
            return SharedMemory(0, 0, cover.parts * sums + max(32 * _VALUE_BYTES, sums) * (1 + reductions), 0)


def most_stages(memory: SharedMemory, capacity: int) -> int:
    """The most stages that fit beside a kernel's epilogue and barriers."""
    return (capacity - memory.epilogue - memory.barriers) // memory.stage


def _alignment(line: int) -> int:
    return next((alignment for width, alignment in SWIZZLES if line % width == 0), 128)


def _round(value: int, to: int) -> int:
    return ceil_div(value, to) * to
