"""Shared memory of a GEMM's kernels, byte for byte, which the rules and the emitters both read.

The sm90 numbers of CUTLASS's collectives follow CUTLASS 4.2: `sm90_compute_tile_shape_or_override` and
`sm90_get_tma_dispatch_policy` (epilogue/collective/builders/sm90_builder.inl), the storage of
`Sm90TmaWarpSpecialized`'s collective and of the `Sm90AuxLoad`, `Sm90AuxStore` and
`Sm90RowBroadcast` visitors, and the kernels' `SharedStorage`
(gemm/kernel/sm90_gemm_tma_warpspecialized_{pingpong,cooperative}.hpp). A test holds them against
values of `SharedStorageSize` that nvcc computed. The lean, multistage and matrix-vector kernels are our own: their
emitters take the layout from here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

from ucutlass.ir.hardware import ARCHES
from ucutlass.kernels.access import Access, Reduction
from ucutlass.kernels.gemm.plan import (
    MAX_CLUSTER,
    GemmProblem,
    GemmSchedule,
    GemvSchedule,
    Math,
    Route,
    Sm80Schedule,
    Sm90Schedule,
    epilogue_tensors,
    multipliers,
)

_MOST_REMEMBERED = 1 << 14
"""Sets of arguments whose stages a process remembers: candidates of a plan, and plans of equal problems with other
extents, share tiles."""

BARRIER = 8
"""Bytes of an mbarrier."""

SWIZZLES = ((128, 1024), (64, 512), (32, 256))
"""Bytes of a shared-memory line, and the alignment of a tile whose lines are multiples of them
(`alignment_for_swizzle`, 2^(B+M+S)); 128 otherwise."""

ContiguousMode: TypeAlias = Literal["m", "n"]
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


def operand_parts(problem: GemmProblem, math: Math) -> tuple[int, int]:
    """Tiles of A and of B that a wgmma kernel loads for a step of K: f32 in two parts, but for those that it splits
    itself."""
    if problem.compute_type.name != "f32":
        return 1, 1
    return {"tf32x3_fused": (1, 1), "tf32x3_rs": (1, 2)}.get(math, (2, 2))


def sm90_memory(
    problem: GemmProblem,
    routes: tuple[Route, ...],
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
    stages: int,
    math: Math = "tensor",
) -> SharedMemory:
    """Shared memory of an sm90 kernel with that many stages; padding counts as barriers."""
    if lean_alone(problem):
        # f32 in parts, each as large as the operand (emit/gemm/lean_split.py), by a lean kernel alone.
        least, stage = (
            least_lean_epilogue(problem, routes, tile, warps),
            lean_main_loop(problem, tile, 2, math, 1) - lean_main_loop(problem, tile, 1, math, 1),
        )
        padding = lean_main_loop(problem, tile, stages, math) - stages * stage
        return SharedMemory(stage, stages, least or 0, LEAN_BARRIERS + padding)
    epilogue = sm90_epilogue(problem, routes, tile, warps)
    order = 2 * BARRIER + (4 * BARRIER if warps == "pingpong" else 0)
    scheduler = 16
    pipelines = 2 * BARRIER * (stages + epilogue.load_stages) + order + scheduler
    loop_align = 128
    align = max(epilogue.alignment, loop_align)
    stage = stage_bytes(problem, tile)
    total = _round(_round(_round(pipelines, align) + epilogue.bytes, loop_align) + stages * stage, align)
    return SharedMemory(stage, stages, epilogue.bytes, total - epilogue.bytes - stages * stage)


@lru_cache(_MOST_REMEMBERED)
def sm90_stages(
    problem: GemmProblem,
    routes: tuple[Route, ...],
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
    capacity: int,
    most: int,
    math: Math = "tensor",
) -> int:
    """The most stages, up to `most`, that fit in `capacity` bytes; the barriers grow with them."""
    stages = min(most, most_stages(sm90_memory(problem, routes, tile, warps, 1, math), capacity))
    while stages > 0 and sm90_memory(problem, routes, tile, warps, stages, math).total > capacity:
        stages -= 1
    return stages


def lean_alone(problem: GemmProblem) -> bool:
    """Whether a lean kernel alone multiplies these operands by wgmma: f32, and tf32 that lie across K."""
    return problem.compute_type.name == "f32" or across_k(problem)


def across_k(problem: GemmProblem) -> bool:
    """Whether a tf32 operand is not contiguous along K, as wgmma reads 4-byte operands: A then passes through
    registers, and B is turned in shared memory."""
    return problem.compute_type.name == "tf32" and not (problem.a.k == ((),) and problem.b.k == ((),))


# --- the lean kernel --------------------------------------------------------------------

SHARED_BYTES = ARCHES["sm90a"].shared_memory
"""Bytes that a block of a lean kernel asks for, all that there are."""

LEAN_BARRIERS = 1024
"""Bytes before its tiles, whose alignment it is: barriers and the scheduler's state are fewer."""

_TILE_ALIGNMENT = 1024
"""At which tensors that TMA moves begin."""

_BOX_ROW = (16, 128)
"""Bytes that the row of a TMA box has at least and at most."""

_COLUMNS = (64, 32, 16)
"""Columns of a step of the epilogue, the widest first."""

_FEW_COLUMNS = (32, 16)
"""With results by columns: a thread holds one of each column that it meets in a step. And where the blocks of a
cluster divide a tile's steps."""


@dataclass(frozen=True, slots=True)
class LeanEpilogue:
    """How the epilogue goes through a tile: the columns of a step, the buffers of a step's results, the stages of
    what a step loads, and the bytes that these and the vectors of two tiles take."""

    columns: int
    store_buffers: int
    load_stages: int
    bytes: int


def lean_main_loop(
    problem: GemmProblem,
    tile: tuple[int, int, int],
    stages: int,
    math: Math,
    alignment: int = _TILE_ALIGNMENT,
) -> int:
    """Bytes of the main loop: A and B, and for f32 their small parts, each in stages of its own that begin at
    multiples of `alignment`."""
    m, n, k = tile
    item = multipliers(problem, math).compute_type.bytes
    operands = (_round(stages * rows * k * item, alignment) for rows in (m, n))
    loaded = sum(parts * bytes_ for parts, bytes_ in zip(operand_parts(problem, math), operands, strict=True))
    return loaded + split_parts(problem, math) * _round(SPLIT_BUFFERS * n * k * item, alignment)


SPLIT_BUFFERS = 2
"""Steps of K for which a kernel that splits B in shared memory keeps its parts."""


def split_parts(problem: GemmProblem, math: Math) -> int:
    """Returns how many parts of B a kernel writes beside what it loads: the small ones where B lies along K, since
    the big ones take its place."""
    return 0 if math != "tf32x3_fused" else 1 if problem.b.k[-1] == () else 2


def lean_epilogue(
    problem: GemmProblem, routes: tuple[Route, ...], schedule: Sm90Schedule
) -> LeanEpilogue | None:
    """The epilogue with the widest steps, then the most buffers, that fit beside the main loop's stages; None
    where none does."""
    main_loop = lean_main_loop(problem, schedule.tile, schedule.stages, schedule.math)
    left = SHARED_BYTES - LEAN_BARRIERS - main_loop
    epilogues = _lean_epilogues(problem, routes, schedule.tile, schedule.warps)
    if schedule.scheduler == "cluster_k":
        # Blocks divide a tile by steps; where TMA stores nothing, a line that keeps the main loop's place.
        epilogues = (
            replace(e, bytes=max(e.bytes, _TILE_ALIGNMENT)) for e in epilogues if e.columns in _FEW_COLUMNS
        )
    return next((epilogue for epilogue in epilogues if epilogue.bytes <= left), None)


@lru_cache(maxsize=1 << 14)
def least_lean_epilogue(
    problem: GemmProblem,
    routes: tuple[Route, ...],
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
) -> int | None:
    """The bytes that the epilogue takes at least; None where no width of a step serves all its tensors."""
    return min((epilogue.bytes for epilogue in _lean_epilogues(problem, routes, tile, warps)), default=None)


FEWEST_LEAN_STAGES = 5
"""Of a ring: with fewer, one less would show."""


@lru_cache(_MOST_REMEMBERED)
def lean_stages(
    problem: GemmProblem,
    routes: tuple[Route, ...],
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
    most: int,
    math: Math,
) -> int:
    """The stages up to `most` beside which a lean kernel's epilogue fits, which takes more than that of CUTLASS's
    collectives: these are built by nvcc, in 45 s where NVRTC takes 4. `most` where fewer than FEWEST_LEAN_STAGES would
    be left."""
    least = least_lean_epilogue(problem, routes, tile, warps)
    if least is None:
        return most
    fewest = FEWEST_LEAN_STAGES
    if problem.arithmetic.statistics:
        # No other build serves them, and the passes wait for the steps' stores rather than for operands.
        least, fewest = next(_lean_epilogues(problem, routes, tile, warps)).bytes, 2
    capacity = SHARED_BYTES - LEAN_BARRIERS - least
    fitting = range(most, fewest - 1, -1)
    return next((s for s in fitting if lean_main_loop(problem, tile, s, math) <= capacity), most)


def vector_elements(access: Access, tile: tuple[int, int, int]) -> int:
    """Elements of a tile that a warp stages of an input: those of a row or a column, or the only one; 0 of a
    whole tensor."""
    return {"row": tile[1], "column": tile[0], "full": 0}.get(access.shape, 1)


def row_parts(rows: int) -> int:
    """Bytes of what the blocks of the largest cluster send of `rows` rows of a warp group: for two warp groups, in two
    turns, two values each."""
    return 2 * 2 * MAX_CLUSTER * rows * 2 * 4


def _lean_epilogues(
    problem: GemmProblem,
    routes: tuple[Route, ...],
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
) -> Iterator[LeanEpilogue]:
    """The best first. A stage of loads is written anew at most one tile after it was read (there are vectors of
    two tiles), so that there are at most as many as steps and one more."""
    loads, stores = through_tma(problem, routes)
    rows = 128 if warps == "cooperative" else 64
    counts = ((vector_elements(t, tile), t.elem.bytes) for t in problem.inputs)
    vectors = sum(2 * _round(count * size, 16) for count, size in counts)
    parts = row_parts(tile[0] * 64 // rows) if problem.arithmetic.statistics else 0
    along_n = [t.elem.bytes for t in (*loads, *stores) if t.n == ()]
    first = stores[0].elem.bytes if stores else None

    def staged(tensors: list[Access], columns: int) -> int:
        return sum(_round(rows * columns * t.elem.bytes, _TILE_ALIGNMENT) for t in tensors)

    for columns in _lean_columns(problem, tile, warps, first):
        if tile[1] % columns or not all(_BOX_ROW[0] <= columns * size <= _BOX_ROW[1] for size in along_n):
            continue
        steps = max(1, tile[0] // rows) * tile[1] // columns
        for buffers, stages in itertools.product((2, 1), (4, 3, 2) if loads else (2,)):
            if loads and vectors and stages > steps + 1:
                continue
            bytes_ = buffers * staged(stores, columns) + stages * staged(loads, columns) + vectors + parts
            yield LeanEpilogue(columns, buffers, stages, _round(bytes_, _TILE_ALIGNMENT))


def _lean_columns(
    problem: GemmProblem,
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
    first: int | None,
) -> tuple[int, ...]:
    """The columns that a step may have. `first` is the bytes of an element of the first result that TMA stores.

    Where a thread adds rows of several atoms to one number, it does so in the order of CUTLASS's epilogue,
    whose subtiles (`EpilogueTileAuto`) decide it: the same bits.
    """
    reduced = [o.access for o in problem.outputs if isinstance(o, Reduction)]
    several = tile[0] > (128 if warps == "cooperative" else 64)
    if several and any(t.m is None and t.n is None for t in reduced):
        wide = 64 if warps == "pingpong" and first == 1 and tile[1] % 64 == 0 else 32
        return (math.gcd(wide, tile[1]),)
    return _FEW_COLUMNS if any(t.m is None and t.n is not None for t in reduced) else _COLUMNS


# --- the multistage kernel --------------------------------------------------------------


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
    contiguous_mode: ContiguousMode | None = None,
) -> int:
    """The most rows that the multistage kernel's epilogue stages at a time through the main loop's bytes, in
    whole MMA rows of all warps; at least one such. `contiguous_mode` is as for `staged_bytes`."""
    rows, least = tile[0], 16 * max(1, tile[0] // warp_tile[0])
    main = stages * stage_bytes(problem, tile)
    while rows % (2 * least) == 0 and staged_bytes(problem, rows, tile[1], contiguous_mode) > main:
        rows //= 2
    return rows


def sm80_bytes(problem: GemmProblem, schedule: Sm80Schedule, contiguous_mode: ContiguousMode) -> int:
    """The dynamic shared memory of a multistage kernel's block: its stages, through which the epilogue goes."""
    rows = sm80_rows(problem, schedule.tile, schedule.warp_tile, schedule.stages, contiguous_mode)
    main = schedule.stages * stage_bytes(problem, schedule.tile)
    return max(main, staged_bytes(problem, rows, schedule.tile[1], contiguous_mode))


def staged_bytes(
    problem: GemmProblem, rows: int, columns: int, contiguous_mode: ContiguousMode | None = None
) -> int:
    """The bytes of so many rows of a tile in the epilogue of a kernel of ours: accumulators, and a value for
    every reduction. `contiguous_mode` is the mode along which they lie side by side; None: the larger of the two."""
    by_mode = {"n": rows * (columns + SM80_PAD_N), "m": columns * (rows + SM80_PAD_M)}
    elements = max(by_mode.values()) if contiguous_mode is None else by_mode[contiguous_mode]
    return elements * (_SUM_BYTES + _reduced_bytes(problem))


_SUM_BYTES = 4
"""Bytes of an accumulator that an epilogue of ours stages."""


def _reduced_bytes(problem: GemmProblem) -> int:
    """Bytes that such an epilogue stages besides for an element: a value for every reduction over rows or
    columns."""
    reduced = (o for o in problem.outputs if isinstance(o, Reduction) and None in (o.access.m, o.access.n))
    return sum(8 if o.wide else 4 for o in reduced)


# --- the matrix-vector kernel -----------------------------------------------------------

_IN_FLIGHT = 8
"""Loads of the matrix that a thread has in flight at a time, about."""


@dataclass(frozen=True, slots=True)
class GemvCover:
    """How a block of the matrix-vector kernel covers its tile.

    `order` is the mode along which neighbouring threads read the matrix. `threads_m` x `threads_k` threads share
    rows and K, `block` in all; a thread loads `unroll` vectors of `vector` elements at a time and has so many
    running `sums`; `parts` groups of threads leave theirs in shared memory.
    """

    order: Literal["k", "m"]
    tile_m: int
    threads_m: int
    threads_k: int
    vector: int
    unroll: int
    parts: int
    sums: int

    @property
    def block(self) -> int:
        return self.threads_m * self.threads_k


def gemv_cover(problem: GemmProblem, schedule: GemvSchedule) -> GemvCover:
    """The cover of a tile. Along M a thread's rows are adjacent, one vector of at most 8; along K
    vectors are short enough for a thread's share of the matrix to stay in registers."""
    a, rows, columns, threads = problem.a, schedule.rows, schedule.columns, schedule.threads
    widest = min(a.align, 16 // a.elem.bytes) if a.contiguous else 1
    if a.contiguous == "m":
        vector = min(widest, 8)
        parts = threads if rows >= 32 else -(-rows * threads // 32)
        return GemvCover("m", rows * vector, rows, threads, vector, _IN_FLIGHT // 2, parts, vector * columns)
    vector = min(widest, max(4, 64 // rows))
    unroll = max(1, min(4, _IN_FLIGHT // rows))
    return GemvCover("k", rows, 1, threads, vector, unroll, -(-threads // 32), rows * columns)


def gemv_staged(problem: GemmProblem, schedule: GemvSchedule) -> int:
    """Elements that the epilogue stages: the tile's, and at least one for every warp, in which a reduction keeps
    the warps' values."""
    return max(32, gemv_cover(problem, schedule).tile_m * schedule.columns)


def gemv_bytes(problem: GemmProblem, schedule: GemvSchedule) -> int:
    """The dynamic shared memory of a block: sums of every part, the accumulators of the tile, and a value for
    every reduction."""
    cover = gemv_cover(problem, schedule)
    parts = cover.parts * cover.tile_m * schedule.columns * _SUM_BYTES
    return parts + gemv_staged(problem, schedule) * (_SUM_BYTES + _reduced_bytes(problem))


# --- any kernel -------------------------------------------------------------------------


def memory_of(problem: GemmProblem, schedule: GemmSchedule, routes: tuple[Route, ...]) -> SharedMemory:
    """Shared memory of a kernel."""
    match schedule:
        case Sm90Schedule(tile, _, stages, warps, _, math_):
            return sm90_memory(problem, routes, tile, warps, stages, math_)
        case Sm80Schedule(tile, warp_tile, stages, _):
            return sm80_memory(problem, tile, warp_tile, stages)
        case GemvSchedule():
            return SharedMemory(0, 0, gemv_bytes(problem, schedule), 0)


def most_stages(memory: SharedMemory, capacity: int) -> int:
    """The most stages that fit beside a kernel's epilogue and barriers."""
    return (capacity - memory.epilogue - memory.barriers) // memory.stage


def _alignment(line: int) -> int:
    return next((alignment for width, alignment in SWIZZLES if line % width == 0), 128)


def _round(value: int, to: int) -> int:
    return -(-value // to) * to
