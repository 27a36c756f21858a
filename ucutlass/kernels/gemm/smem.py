"""Shared memory of the tiled kernels, byte for byte.

The sm90 numbers follow CUTLASS 4.2: `sm90_compute_tile_shape_or_override` and
`sm90_get_tma_dispatch_policy` (epilogue/collective/builders/sm90_builder.inl), the storage of
`Sm90TmaWarpSpecialized`'s collective and of the `Sm90AuxLoad`, `Sm90AuxStore` and
`Sm90RowBroadcast` visitors, and the kernels' `SharedStorage`
(gemm/kernel/sm90_gemm_tma_warpspecialized_{pingpong,cooperative}.hpp). A test holds them against
values of `SharedStorageSize` that nvcc computed. The emitter of the sm80
kernels reads their numbers here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass.kernels.access import Access, Reduction
from ucutlass.kernels.gemm.candidate import Candidate, ceil_div, epilogue_tensors
from ucutlass.kernels.gemm.plan import GemmProblem, GemvSchedule, Route, Sm80Schedule, Sm90Schedule
from ucutlass.kernels.gemm.smem_tf32x3 import BARRIERS, lean_epilogue, lean_ring

BARRIER = 8
"""Bytes of an mbarrier."""

SWIZZLES = ((128, 1024), (64, 512), (32, 256))
"""Bytes of a shared-memory line, and the alignment of a tile whose lines are multiples of them
(`alignment_for_swizzle`, 2^(B+M+S)); 128 otherwise."""

Along: TypeAlias = Literal["m", "n"]
"""The mode along which staged accumulators lie side by side."""

SM80_PAD_N, SM80_PAD_M = 8, 4
"""Elements added to a staged row or column of accumulators, so that the eight rows that a warp writes at once
fall into different banks."""


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
    warps: Literal["pingpong", "cooperative"], tile: tuple[int, int, int], step_bytes: int
) -> tuple[int, int]:
    """The M x N part of the tile that the epilogue handles at a time (`EpilogueTileAuto`)."""
    if warps == "cooperative":
        return min(128, tile[0]), math.gcd(min(32, tile[1]), tile[1])
    wide = 64 if step_bytes == 1 and tile[1] % 64 == 0 else 32
    return min(64, tile[0]), math.gcd(min(wide, tile[1]), tile[1])


def through_tma(problem: GemmProblem, routes: tuple[Route, ...]) -> tuple[list[Access], list[Access]]:
    """Loads and stores of route "tma". The first load is CUTLASS's C and the first store its D;
    the others are auxiliary loads and stores with as many stages."""
    moved = [t for t, route in zip(epilogue_tensors(problem), routes, strict=True) if route == "tma"]
    loads = sum(route == "tma" for route in routes[: len(problem.inputs)])
    return moved[:loads], moved[loads:]


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A tensor's staging in the epilogue: bytes of an element, and whether N is contiguous."""

    element: int
    along_n: bool

    def bytes(self, part: tuple[int, int], stages: int) -> int:
        return part[0] * part[1] * self.element * stages

    def alignment(self, part: tuple[int, int]) -> int:
        return _alignment((part[1] if self.along_n else part[0]) * self.element)


_NO_RESULT = _Buffer(2, True)
"""Where TMA stores no result CUTLASS keeps a buffer of half_t all the same."""


def _buffer(access: Access) -> _Buffer:
    return _Buffer(access.elem.bytes, access.n == ())


def sm90_epilogue(
    problem: GemmProblem,
    routes: tuple[Route, ...],
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
) -> Sm90Epilogue:
    """What the epilogue holds in shared memory: the collective's own C and D, then the visitors'
    tensors in the order of the emitted tree (rows, further loads, further stores).

    C's stages serve D where both are equally wide and wider than 8 bits (`ReuseSmem`).
    """
    loads, stores = ([_buffer(t) for t in side] for side in through_tma(problem, routes))
    d = stores[0] if stores else _NO_RESULT
    part = epilogue_tile(warps, tile, d.element)
    subtiles = max(1, tile[0] // part[0]) * (tile[1] // part[1])
    stages_d = min(subtiles, 2)
    reuse = bool(loads) and loads[0].element == d.element > 1
    stages_c = max(min(subtiles, 4), stages_d + 1) if reuse else min(subtiles, 4)
    align = max(b.alignment(part) for b in (*loads[:1], d))
    if not loads:
        collective = _round(d.bytes(part, stages_d), align)
    elif reuse and stores:
        collective = _round(max(loads[0].bytes(part, stages_c), d.bytes(part, stages_c)), align)
    else:
        source = _round(loads[0].bytes(part, stages_c), d.alignment(part))
        collective = _round(source + d.bytes(part, stages_d), align)
    members = [
        (_round(tile[1] * t.elem.bytes, 16), 16) for t in problem.inputs if t.shape == "row" and t.n == ()
    ]
    for tensors, stages in ((loads[1:], stages_c), (stores[1:], stages_d)):
        members += [(_round(b.bytes(part, stages), b.alignment(part)), b.alignment(part)) for b in tensors]
    visitors, visitors_align = _struct(members)
    align = max(align, visitors_align)
    return Sm90Epilogue(part, stages_c, _round(_round(collective, visitors_align) + visitors, align), align)


def _struct(members: list[tuple[int, int]]) -> tuple[int, int]:
    """Size and alignment of a C++ struct of members (size, alignment); an empty one has a byte."""
    size, alignment = 0, 1
    for bytes_, align in members:
        size, alignment = _round(size, align) + bytes_, max(alignment, align)
    return _round(size, alignment) or 1, alignment


def operand_parts(problem: GemmProblem) -> int:
    """Tiles of each operand that a wgmma kernel loads for a step of K."""
    return 2 if problem.lane.name == "f32" else 1


def sm90_memory(
    problem: GemmProblem,
    routes: tuple[Route, ...],
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
    stages: int,
) -> SharedMemory:
    """Shared memory of an sm90 kernel with that many stages; padding counts as barriers."""
    if problem.lane.name == "f32":
        # In two parts, each as large as the operands (emit/gemm/lean_split.py), by a kernel of our own.
        least, stage = lean_epilogue(problem, routes, tile, warps), 2 * stage_bytes(problem, tile)
        padding = lean_ring(problem, tile, stages) - stages * stage
        return SharedMemory(stage, stages, least or 0, BARRIERS + padding)
    epilogue = sm90_epilogue(problem, routes, tile, warps)
    order = 2 * BARRIER + (4 * BARRIER if warps == "pingpong" else 0)
    scheduler = 16
    pipelines = 2 * BARRIER * (stages + epilogue.load_stages) + order + scheduler
    loop_align = _REGISTER_SOURCED if register_sourced(problem) else 128
    align = max(epilogue.alignment, loop_align)
    stage = stage_bytes(problem, tile)
    total = _round(_round(_round(pipelines, align) + epilogue.bytes, loop_align) + stages * stage, align)
    return SharedMemory(stage, stages, epilogue.bytes, total - epilogue.bytes - stages * stage)


def sm90_stages(
    problem: GemmProblem,
    routes: tuple[Route, ...],
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
    capacity: int,
    most: int,
) -> int:
    """The most stages, up to `most`, that fit in `capacity` bytes; the barriers grow with them."""
    stages = min(most, most_stages(sm90_memory(problem, routes, tile, warps, 1), capacity))
    while stages > 0 and sm90_memory(problem, routes, tile, warps, stages).total > capacity:
        stages -= 1
    return stages


_REGISTER_SOURCED = 1024
"""Alignment of a main loop whose operand A passes through registers."""


def register_sourced(problem: GemmProblem) -> bool:
    """Whether CUTLASS passes A through registers: wgmma reads 4-byte operands K-major alone."""
    return problem.lane.name == "tf32" and not (problem.a.k == ((),) and problem.b.k == ((),))


def sm80_memory(
    problem: GemmProblem, tile: tuple[int, int, int], warp_tile: tuple[int, int], stages: int
) -> SharedMemory:
    """Shared memory of a multistage kernel. Its epilogue stages rows of accumulators, and of
    every reduction's values, through the main loop's bytes; only what is beyond them counts."""
    stage = stage_bytes(problem, tile)
    rows = sm80_rows(problem, tile, warp_tile, stages)
    return SharedMemory(stage, stages, max(0, staged_bytes(problem, rows, tile[1]) - stage * stages), 0)


def sm80_rows(
    problem: GemmProblem,
    tile: tuple[int, int, int],
    warp_tile: tuple[int, int],
    stages: int,
    along: Along | None = None,
) -> int:
    """The most rows that the multistage kernel's epilogue stages at a time through the main loop's bytes, in
    whole MMA rows of all warps; at least one such. `along` is as for `staged_bytes`."""
    rows, least = tile[0], 16 * max(1, tile[0] // warp_tile[0])
    main = stages * stage_bytes(problem, tile)
    while rows % (2 * least) == 0 and staged_bytes(problem, rows, tile[1], along) > main:
        rows //= 2
    return rows


def sm80_bytes(problem: GemmProblem, schedule: Sm80Schedule, along: Along) -> int:
    """The dynamic shared memory of a multistage kernel's block: its stages, through which the epilogue goes."""
    rows = sm80_rows(problem, schedule.tile, schedule.warp_tile, schedule.stages, along)
    main = schedule.stages * stage_bytes(problem, schedule.tile)
    return max(main, staged_bytes(problem, rows, schedule.tile[1], along))


def staged_bytes(problem: GemmProblem, rows: int, columns: int, along: Along | None = None) -> int:
    """The bytes of so many rows of a tile in the epilogue of a kernel of ours: accumulators, and a value for
    every reduction. `along` is the mode along which they lie side by side; None: the larger of the two."""
    by_mode = {"n": rows * (columns + SM80_PAD_N), "m": columns * (rows + SM80_PAD_M)}
    elements = max(by_mode.values()) if along is None else by_mode[along]
    return elements * (_SUM_BYTES + _reduced_bytes(problem))


_SUM_BYTES = 4
"""Bytes of an accumulator that an epilogue of ours stages."""


def _reduced_bytes(problem: GemmProblem) -> int:
    """Bytes that such an epilogue stages besides for an element: a value for every reduction over rows or
    columns."""
    reduced = (o for o in problem.outputs if isinstance(o, Reduction) and None in (o.access.m, o.access.n))
    return sum(8 if o.wide else 4 for o in reduced)


@dataclass(frozen=True, slots=True)
class GemvCover:
    """How a matrix-vector block covers the matrix: rows of its tile, threads of the block, groups
    of threads that leave sums in shared memory, and running sums of a thread."""

    tile_m: int
    block: int
    parts: int
    sums: int


def gemv_cover(problem: GemmProblem, schedule: GemvSchedule) -> GemvCover:
    """emit/gemm/gemv.py's cover: along M neighbouring threads take neighbouring vectors of rows, else
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
            sums = cover.tile_m * schedule.columns
            staged = max(32, sums) * (_SUM_BYTES + _reduced_bytes(candidate.problem))
            return SharedMemory(0, 0, cover.parts * sums * _SUM_BYTES + staged, 0)


def most_stages(memory: SharedMemory, capacity: int) -> int:
    """The most stages that fit beside a kernel's epilogue and barriers."""
    return (capacity - memory.epilogue - memory.barriers) // memory.stage


def _alignment(line: int) -> int:
    return next((alignment for width, alignment in SWIZZLES if line % width == 0), 128)


def _round(value: int, to: int) -> int:
    return ceil_div(value, to) * to
