"""How a reduction runs: vectors, threads, what stays in registers, how many blocks share a row."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.addresses import PACK_BYTES, Sizes
from ucutlass.kernels.planned import Note, Planned
from ucutlass.kernels.reduction.cost import Extent, VectorRows, estimate, kept, kept_bytes, measure, passes_of
from ucutlass.kernels.reduction.cost_held import held_schedule
from ucutlass.kernels.reduction.match import ReductionPattern
from ucutlass.kernels.reduction.plan import (
    Load,
    ReductionOutput,
    ReductionPlan,
    ReductionProblem,
    ReductionSchedule,
    RowReduce,
    RowScan,
    contiguous_along,
    is_flat,
    lies_flat,
    phases,
    scans_of,
)
from ucutlass.kernels.reduction.plan_applied import applied_values
from ucutlass.kernels.reduction.plan_straddle import (
    MOST_STRADDLED,
    by_lines,
    reads_vectors,
    starts,
    straddling_vector,
    whole_vectors,
)
from ucutlass.kernels.reduction.planner_elementwise import (
    HELD,
    LEAST_STRADDLED,
    LEAST_THREADS,
    THREADS,
    is_short,
    items_of,
    lines_of,
)
from ucutlass.kernels.reduction.problem import alignment, reduction_problem
from ucutlass.kernels.reduction.rules import (
    CLUSTERS,
    LAUNCH_RULES,
    LOOK_BACK_ITEMS,
    LOOK_BACK_THREADS,
    MOST_THREADS,
    ReductionCandidate,
    ReductionCase,
    power,
)
from ucutlass.kernels.reduction.schedule import moved_bytes, request_of, resolve
from ucutlass.kernels.reduction.smem import TILE, resident_loads, ring_bytes, ring_limit, ring_loads
from ucutlass.kernels.reduction.variants import VARIANTS
from ucutlass.kernels.rule import broken
from ucutlass.kernels.violation import Violation, foreign_to

Transpose: TypeAlias = tuple[int, tuple[tuple[int, int], ...], int]
"""The mode along which loads lie side by side that is not the vector's, with those loads and how many of
their elements make a word, and the side of a tile along it."""

REGISTER_BUDGETS: tuple[tuple[int, int, int], ...] = (
    (32, 256, 1),
    (64, 512, 1),
    (128, MOST_THREADS, 1),
    (128, MOST_THREADS, 2),
    (128, MOST_THREADS, 4),
    (128, MOST_THREADS, 8),
    (192, MOST_THREADS, 8),
)
"""Bytes of a row that each thread keeps in registers, threads of a block at most, and blocks of a cluster
that share the row, best first (measured on an H200 by `benchmarks.memory_bound`). The next row on its way
through shared memory, in blocks that walk rows, was tried: 3 to 10 % slower than a block a row. 8 is the
largest cluster that every GPU with clusters runs (CUDA C++ Programming Guide, "Thread Block Clusters").
The last budget spares 16 of a thread's registers: a softmax of rows of 1.5 MB takes 3,409 us so, and 4,786 by
reading them thrice (KernelBench's l1_23). It is for words alone: 16-bit elements, which are widened,
spill."""


DENSE_THREADS, DENSE_ELEMENTS = 512, 32
"""Threads of a block, and elements of each where it has so many, above which a kernel that does not ask item by item whether
one is there takes so many registers that fewer blocks fit an SM: on an H100 a softmax of 25,152 bf16 takes 199 us so by 512
threads and 182 else, a layer norm of 348 bf16 by 16 threads 188 and 200 (`benchmarks.rows`)."""

SHORTEST_HELD = 7 * 2**14
"""Bytes of a row of 16-bit elements above which a block's registers hold it ill, 8 full vectors of 1024 threads. Where the
last are not full they hold it well: a softmax of 60,000 bf16 takes 218 us in shared memory on an H100 and 189 in
registers, one of 42,028 206 and 193, a layer norm of 50,048 198 and 202."""

LONGEST_HELD, LONGEST_ALONE = 2**20, 2**21
"""Bytes of the longest row that lies there where registers would hold it too, and of the longest of all: on an H200 a softmax
of 400,000 f32 takes 139 us so and 203 where blocks of the whole grid meet, a group norm of 2 MB 165 and 194, but a layer
norm of 524,288 f32 252, and 211 by reading rows again."""

STREAMED_THREADS, LONG_THREADS, STREAMED_ITEMS = 256, 512, 4
"""Threads of a row that one pass reduces to a value, those of longer rows of other than exponentials that vectors divide and
that fill the GPU, and vectors that each has in flight: on an H200 a cross entropy of 212,800 bf16 takes 67 us so and 71 by
512 threads, one of 101,208 73 and 76, one of 32,000 f16 69 and 74 by the registers of 1024 threads; one of 200 rows of
262,144 bf16 29 by 11 blocks of 256 threads a row (`benchmarks.rows`)."""

FEW_STREAMED, LONG_STREAMED = 6, 20
"""Rows for each SM below which blocks share such a row of 16-bit elements, and chunks of it from which they do, since of whole
ones some SMs would have one more than others: on an
H200 a cross entropy of 665 rows of 201,792 f16 takes 69 us by 8 blocks a row and 82 by one, of 720 of 186,000 bf16 69 and 90, but
of 1100 of 122,000 f16 69 and 68."""

VALUE_ITEMS = 9
"""Vectors of 16-bit elements that a thread of 256 at most keeps of a row of whose exponentials a value is left, where it does
not stream: a cross entropy of 16,512 bf16 takes 64 us so on an H200, 86 by 512 threads, and 70 by streaming; one of 2028 f16 64 by 32 threads
and 68 by 64."""

SOFTMAX_ITEMS = 9
"""Vectors of 16-bit elements that each of 512 threads keeps at most where nothing else is read, two blocks an SM: a softmax
of 35,072 f16 takes 133 us so on an H200, and 155 by 1024 threads."""

CLUSTER_THREADS, CLUSTER_ITEMS = (256, 512), 14
"""Threads of a block that keeps its part of a long row in registers, and vectors of each at most: on an H100 a layer norm of
53,560 f32 takes 1.09 times a copy's time so, 1.15 in shared memory and 1.23 by 1024 threads a block; an RMS norm of 79,200 f32
1.10, 1.13 and 1.25; a softmax of 204,160 f16 1.06, 1.16 and 1.34; one of 151,808 f32 by 512 threads 1.10, 1.14 and 1.42; but an
RMS norm of 165,728 bf16 1.21, 1.15 and 1.30."""

WORDS_BANDWIDTH = 30e9
"""Bytes per second of the memory for each SM (`Device.sm_bandwidth`) up to which rows of words lie so. More must be on its
way for a faster memory than such blocks keep of rows of words: on an H200, of 36e9, shared memory holds them at 0.90 of the
copy, while an H100, of 25e9, took the times of CLUSTER_THREADS. These two are all that was measured: the number lies between
them, and is not fitted."""

MEETING = (MOST_THREADS, 8)
"""Threads of a block and lines of the ring of rows that blocks of the whole grid share: a group norm of 64 groups of 4 MB
takes 226 us on an H100 so, and 281 by reading them twice (`benchmarks.rows`)."""

LEAST_GROUPS, BUSY = 3, 0.9
"""Such rows in flight at least, since all blocks of one wait at a time, and the part of the SMs that they must employ."""

PICKING = ((128, MOST_THREADS, 1), *REGISTER_BUDGETS[3:6])
"""The register budgets of argmax and argmin, whose meeting costs each warp more than its elements do."""

NARROW, WORD = 16, 4
"""Vectors of a line of a narrow block, and bytes of each: two sectors."""

LEAST_SIDE, LEAST_ASKED = 32, 16
"""Elements of either side from which tiles are transposed in shared memory, and where `keep shared` asks for it: a transpose of 1378 x 64 x 27 f32 takes 13.1 us
so on an H200, and 7.6 where each thread gathers a vector."""

NARROW_TILE, NARROW_THREADS, FEW_TILES = 16, 128, 4
"""The other side of tiles that are written element by element, or of which each SM would have few, and the threads of each: on an
H100 a sum of 178 x 496 x 2471 bf16 with a transpose takes 488 us so, and 525 by square ones, a transpose of 49 x 323 x 96 f32
6.0 and 6.3 (`benchmarks.pointwise`)."""

TILE_THREADS, TILE_VECTOR = 512, 8
"""Threads of a square tile of 16-bit elements, each of which has one vector of it, where nothing else is read: on an H200 a
transpose of 10,208 x 248 x 64 bf16 takes 178 us so, and 202 by 256, but a sum with one of 41 x 32 x 2304 7.1 and 6.6
(`benchmarks.pointwise`)."""

GATHERED = 160
"""Elements of a line of results up to which what lies across them is gathered where vectors do not divide lines, since the
sectors of a line's elements stay in the L1 for the next: on an H100 a transpose to lines of 129 f32 takes 209 us so, and 242 by
tiles, a sum with one to lines of 333 bf16 210, and 152 by tiles (`benchmarks.pointwise`)."""

STRADDLED_COLUMNS = 48
"""Elements of a row, or of a line of an element-wise kernel, from which vectors need not divide it."""

IDLE, WAVES = 1.1, 8
"""Vectors that threads could hold for each of a row, above which other threads are chosen; rows for each SM from which what
a row's threads do in all counts, and not how soon one row is done."""

LEAST_ROW, ROW_HELD, ROW_OVERHEAD = 64, 96, 1.2
"""Vectors of a row from which whole warps share it; bytes of it that a thread keeps at most where more threads could; what
a thread does once a row, in vectors: a softmax of 2050 bf16 takes 121 us by 64 threads on an H200, 133 by 128 and 178 by
256 (`benchmarks.rows`)."""


def plan_reduction(
    pattern: ReductionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """Returns the kernel of a reduction for these extents, or why there is none. Raises Refused."""
    if foreign := foreign_to(request, VARIANTS, "a kernel without dot"):
        return (foreign,)
    wants_tile = request.keep == "shared"
    wants_lines = any(field is not None for field in (request.threads, request.split_k, request.keep))
    problem = reduction_problem(pattern, sizes, aligned)
    if wants_lines or measure(problem, sizes).rows > vector_of(problem, sizes) * LEAST_STRADDLED * device.sms:
        problem = _of_lines(problem, sizes, aligned, device, wants_tile)
    extent = measure(problem, sizes)
    transpose = _transpose(problem, sizes, aligned, device, wants_tile)
    straddled_elements = extent.rows if is_flat(problem) else extent.columns
    straddling = straddling_vector(problem, aligned) if straddled_elements <= MOST_STRADDLED else 1
    own = schedule_of(problem, extent, sizes, arch, device, transpose, straddling)
    held = partial(kept_bytes if problem.columns else moved_bytes, problem)
    widest = vector_of(problem, sizes)
    blocks = math.ceil(extent.rows / (1 if problem.across else own.vector) / own.rows)
    case = ReductionCase(
        problem,
        arch,
        extent.rows,
        extent.columns,
        held,
        widest,
        straddling,
        transpose,
        own.threads * own.rows,
        partial(_scan_splits, blocks, device),
    )
    schedule = resolve(case, own, request)
    if isinstance(schedule, tuple):
        return schedule
    schedule = replace(schedule, full=_full(problem, extent, sizes, schedule))
    schedule = replace(schedule, dense=not schedule.full and _dense(case, schedule))
    schedule = replace(schedule, applied=_applies(problem, schedule))
    schedule = replace(schedule, short=is_short(problem, extent, schedule))
    schedule = replace(schedule, retain=_retain(problem, extent, schedule, device))
    schedule = replace(schedule, resident=_resident(problem, schedule, arch))
    if too_large := broken(LAUNCH_RULES, ReductionCandidate(case, schedule, request)):
        return too_large
    price = estimate(problem, schedule, sizes, arch, device, ())
    plan = ReductionPlan(arch.name, problem, schedule)
    fixed: dict[str, Any] = request.fixed()  # what a kernel lacks may be asked for where it changes nothing
    fields = replace(request_of(case, schedule), **fixed)
    reasons = _notes(problem, schedule, extent.rows, extent.columns, passes_of(problem, schedule), widest)
    return Planned(plan, (), sizes, fields, device, price, reasons)


def _of_lines(
    problem: ReductionProblem,
    sizes: tuple[int, ...],
    aligned: tuple[bool, ...] | None,
    device: Device,
    wants_tile: bool,
) -> ReductionProblem:
    """An element-wise problem by its lines, where vectors of 16 bytes do not divide them."""
    lines = by_lines(problem)
    if lines is None or _transpose(problem, sizes, aligned, device, wants_tile) is not None:
        return problem
    length = math.prod(sizes[i] for i in lines.columns[0])
    wider = vector_of(problem, sizes) < straddling_vector(lines, aligned)
    pays = wider and _narrowest(lines) >= WORD // 2 and STRADDLED_COLUMNS <= length <= MOST_STRADDLED
    return lines if pays else problem


def _narrowest(problem: ReductionProblem) -> int:
    """The least bytes of an element of what is contiguous along vectors."""
    every: list[Load | ReductionOutput] = [*problem.loads, *problem.outputs]
    along = starts(problem)
    return min((x.elem.bytes for x in every if x.pointer in along), default=0)


def schedule_of(
    problem: ReductionProblem,
    extent: Extent,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    transpose: Transpose | None,
    straddling: int = 1,
) -> ReductionSchedule:
    """Threads, vectors and what is kept, by the rules that the notes name; vectors of `straddling` may straddle the ends
    of rows."""
    vector = vector_of(problem, sizes)
    if vector < straddling and transpose is None:
        straddled = _straddled(problem, extent, sizes, vector, straddling, arch, device)
        if straddled is not None:
            return replace(straddled, straddle=True)
    if not problem.columns:
        if transpose is not None:
            across, loads, tile = transpose
            alone = vector == TILE_VECTOR and len(loads) == len(problem.loads)
            threads = NARROW_THREADS if tile != TILE else TILE_THREADS if alone else THREADS
            items = TILE * tile // vector // threads
            return ReductionSchedule(vector, 1, threads, items, "registers", 1, across, loads, tile)
        # Of bf16 that become f32, vectors of 8 take 1.07 times as long as of 4: half of each sector at a time.
        vector = min(vector, max(1, PACK_BYTES // max(o.elem.bytes for o in problem.outputs)))
        while vector > 1 and extent.rows < vector * LEAST_THREADS * device.sms:
            vector //= 2
        items = items_of(problem, extent, vector, device)
        return ReductionSchedule(vector, 1, THREADS, items, "registers")
    if problem.across:
        return _across(VectorRows(problem, extent, vector, arch, device))
    return _down(problem, extent, vector, device)


def _straddled(
    problem: ReductionProblem,
    extent: Extent,
    sizes: tuple[int, ...],
    widest: int,
    vector: int,
    arch: Arch,
    device: Device,
) -> ReductionSchedule | None:
    """Vectors of 16 bytes where rows, lines of windows or element-wise results are no multiples of them, whose own are of
    `widest` elements: on an H100 a softmax of 333 f32 takes 181 us so, and 385; a window of 4 x 4 over lines of 511 results
    509, and 1370; lines of 1001 bf16 in another order 99, and 194 (`benchmarks.rows`, `benchmarks.pointwise`). None where
    they were not measured to beat those."""
    narrow = _narrowest(problem)
    if is_flat(problem):
        if (
            widest * max(o.elem.bytes for o in problem.outputs) > WORD
            or extent.rows <= widest * LEAST_STRADDLED * device.sms
        ):
            return None
        axes = [load.axes for load in problem.loads]
        apart = all(contiguous_along(a, problem.vector) and not lies_flat(problem, a) for a in axes)
        items = items_of(problem, extent, vector, device, scattered=True) if apart and axes else 1
        return ReductionSchedule(vector, 1, THREADS, items, "registers")
    if not problem.columns:
        assert problem.vector is not None
        line = math.prod(sizes[i] for i in problem.modes[problem.vector])
        lines = STRADDLED_COLUMNS <= line <= MOST_STRADDLED and reads_vectors(problem)
        if widest > 1 or narrow < WORD or not lines:
            return None
        return ReductionSchedule(vector, 1, THREADS, items_of(problem, extent, vector, device), "registers")
    if narrow < WORD // 2 or extent.columns < STRADDLED_COLUMNS:
        return None
    whole = replace(extent, columns=whole_vectors(problem, extent.columns, vector) * vector)
    if phases(problem) == 0:
        return lines_of(problem, extent.rows, whole.columns // vector, vector, device)
    if not arch.wgmma:
        return None
    return _across(VectorRows(problem, whole, vector, arch, device, straddle=True))


def _retain(problem: ReductionProblem, extent: Extent, s: ReductionSchedule, device: Device) -> bool:
    """Whether rows stream through an L2 that could not hold them: in shared memory, softmaxes of 100,008 bf16 take 201 us
    so on an H100 and 206, layer norms of 65,536 f32 194 and 198; in registers, measured on an H200, an RMS
    norm of 131072 rows of 4096 bf16: 500 us with their lines the last to leave, 521 without a policy, 549 as
    the first to leave; rows of 32000, whose last vectors not every thread has: 718 us, 497 without."""
    norm = bool(problem.columns) and s.keep == "registers" and not scans_of(problem)
    return ((norm and s.full) or s.keep == "shared") and extent.bytes > 2 * device.l2


def _resident(problem: ReductionProblem, s: ReductionSchedule, arch: Arch) -> bool:
    """Whether a block that stays for the launch has room for its part of what is the same for all rows."""
    straddles = s.straddle and s.keep != "shared"
    if s.stages == 1 or straddles or not resident_loads(problem, s.vector, s.straddle):
        return False
    return ring_bytes(problem, replace(s, resident=True)) <= ring_limit(arch, s)


def _full(problem: ReductionProblem, extent: Extent, sizes: tuple[int, ...], s: ReductionSchedule) -> bool:
    """Whether every thread has all its items of every row, or a tile all its lines."""
    if not problem.columns:
        if not s.transposed or s.straddle:
            return False  # tensors of one element have no modes at all
        line, lines = (math.prod(sizes[i] for i in problem.modes[m]) for m in (problem.vector or 0, s.across))
        return line % TILE == 0 and lines % s.tile == 0
    if s.keep == "shared":
        return False  # lines are asked for, not a thread's items
    columns, line = extent.columns // (s.vector if problem.across else 1), s.threads * s.items
    if s.straddle:
        columns = whole_vectors(problem, extent.columns, s.vector)
        if columns == 0:
            return False
    return columns == line * s.sharers if s.keep == "registers" and not s.look_back else columns % line == 0


def _applies(problem: ReductionProblem, s: ReductionSchedule) -> bool:
    """Whether a value of one load's elements takes their place in registers."""
    held = bool(problem.columns) and s.keep == "registers" and not s.straddle and not s.look_back
    return held and bool(applied_values(problem))


def _dense(case: ReductionCase, s: ReductionSchedule) -> bool:
    """Whether every thread of a row in registers has all its items but the last."""
    if not case.problem.columns or case.scans or s.keep != "registers" or s.items == 1:
        return False
    block = s.threads * s.rows * s.blocks
    if block > DENSE_THREADS or (block == DENSE_THREADS and s.items * s.vector > DENSE_ELEMENTS):
        return False
    if s.straddle and whole_vectors(case.problem, case.columns, s.vector) == 0:
        return False
    line = case.line(s.vector)
    return line - (s.sharers - 1) * math.ceil(line / s.sharers) >= (s.items - 1) * s.threads


def vector_of(problem: ReductionProblem, sizes: tuple[int, ...]) -> int:
    """Elements a thread takes at a time: 16 bytes of the narrowest tensor that lies along the vector mode,
    or what divides the mode. 1 where what a row reduces is read element by element: neighbouring threads then
    read neighbouring elements."""
    if problem.vector is None:
        return 1
    every: list[Load | ReductionOutput] = [*problem.loads, *problem.outputs]
    reduced = [] if any(o.whole for o in problem.outputs) else kept(problem)
    if problem.columns and reduced and all(load.align == 1 for load in reduced):
        return 1
    vectors = [(x.elem.bytes, x.align) for x in every if x.align > 1]
    widest = max((align for _, align in vectors), default=1)
    vector = min(widest, PACK_BYTES // min((b for b, _ in vectors), default=PACK_BYTES), 8)
    length = math.prod(sizes[i] for i in problem.modes[problem.vector])
    while length % vector:
        vector //= 2
    return vector


def _transpose(
    problem: ReductionProblem,
    sizes: tuple[int, ...],
    aligned: tuple[bool, ...] | None,
    device: Device,
    wants_tile: bool,
) -> Transpose | None:
    """None where every load can be read as it lies, a side is too short, or lines are gathered as soon. `aligned` is as
    `reduction_problem` takes it; `wants_tile`: whether a program asks for tiles."""
    at, fine = Sizes({}, sizes), aligned or (True,) * problem.pointers
    vector, least = problem.vector, LEAST_ASKED if wants_tile else LEAST_SIDE
    if vector is None or at.number(problem.modes[vector]) < least:
        return None
    single = vector_of(problem, sizes) == 1
    gathers = straddling_vector(problem, aligned) > 1 and at.number(problem.modes[vector]) <= GATHERED
    if single and gathers and not wants_tile:
        return None
    for mode, run in enumerate(problem.rows):
        if mode == vector or at.number(run) < least:
            continue
        modes = [
            (k, alignment(problem, mode, load, at, fine[load.pointer], WORD))
            for k, load in enumerate(problem.loads)
            if load.elem.bytes in (2, 4)
            and not load.guards
            and contiguous_along(load.axes, mode)
            and any(vector in dict(a.at.terms) for a in load.axes)
            and all(a.extent is None and a.gathered is None for a in load.axes)
        ]
        if modes:
            elements = math.prod(at.number(m) for m in problem.rows)
            few = elements < FEW_TILES * device.sms * TILE * TILE
            return mode, tuple(modes), NARROW_TILE if single or few else TILE
    return None


def _across(rows: VectorRows) -> ReductionSchedule:
    """Threads, and perhaps blocks, that share a row: by the first way that serves it and its extents."""
    for schedule_in in (_streamed, _held, _in_registers, _held_alone, _meeting, _looking_back):
        if (schedule := schedule_in(rows)) is not None:
            return schedule
    return _in_passes(rows)


def _in_registers(rows: VectorRows) -> ReductionSchedule | None:
    """Rows that the registers of a block hold, or of a cluster. None of scans, which one pass or two serve."""
    problem, extent, device = rows.problem, rows.extent, rows.device
    vector, vectors, held = rows.vector, rows.vectors, kept_bytes(rows.problem, rows.vector)
    if scans_of(problem):
        return None
    row, words = vectors * held, _is_of_words(problem)
    exponentials = _exponentials(problem) and len(kept(problem)) == 1
    values = exponentials and not any(o.whole for o in problem.outputs)
    softmax = exponentials and not _shares_rows(problem)
    for budget, most, cluster in PICKING if _picks(problem) else REGISTER_BUDGETS:
        fits = row <= budget * cluster * most and (budget <= HELD or words)
        idle = cluster > 1 and extent.rows * cluster < device.sms
        if not fits or idle or (cluster > 1 and not rows.arch.wgmma):
            continue
        share = math.ceil(vectors / cluster)
        threads = power(max(1, math.ceil(share * held / budget), math.ceil(share / (budget // 16))))
        # Few vectors have a thread each; what fills a warp, two each, has one, whose sums meet in shuffles.
        threads = min(most, max(threads, power(share) if share < 8 else min(32, power(share) // 2)))
        spare = rows.straddle or threads * math.ceil(share / threads) > IDLE * share
        if cluster == 1 and spare and not _picks(problem) and extent.rows >= WAVES * device.sms:
            threads = _row_threads(vectors, held)
        if cluster == 1 and values and not words and extent.rows >= WAVES * device.sms:
            threads = min(threads, max(16, power(math.ceil(vectors / VALUE_ITEMS))))
        blocks = 1
        half = MOST_THREADS // 2
        most_items = SOFTMAX_ITEMS if softmax else HELD // PACK_BYTES if rows.straddle else 0
        if threads == MOST_THREADS and not words and vectors <= most_items * half:
            threads, blocks = half, 2
        items = math.ceil(share / threads)
        at_once = max(1, 128 // threads)
        return ReductionSchedule(vector, threads, at_once, items, "registers", cluster=cluster, blocks=blocks)
    return None


def _looking_back(rows: VectorRows) -> ReductionSchedule | None:
    """Scans in one pass by decoupled look-back. Element by element that takes 1.1 times as long as two passes on an H200
    (`benchmarks.memory_bound`)."""
    problem, vector = rows.problem, rows.vector
    if not scans_of(problem) or phases(problem) > 0 or vector == 1:
        return None
    items = _look_back_items(problem, vector, kept_bytes(problem, vector))
    parts = math.ceil(rows.vectors / (LOOK_BACK_THREADS * items))
    if not _takes_look_back(rows.extent.rows, parts, rows.device):
        return None
    return ReductionSchedule(vector, LOOK_BACK_THREADS, 1, items, "registers", look_back=True)


def _in_passes(rows: VectorRows) -> ReductionSchedule:
    """Rows that are read once for each of their reductions, and perhaps by several blocks."""
    problem, extent, device = rows.problem, rows.extent, rows.device
    vector, scans = rows.vector, bool(scans_of(problem))
    if scans:
        # Of f32 with bool, vectors of 8 take 1.2 times as long as of 4: half of each sector at a time.
        vector = min(vector, max(1, PACK_BYTES // _widest(problem)))
    vectors, held = extent.columns // vector, kept_bytes(problem, vector)
    threads = 256 if vectors >= 1024 else min(256, power(vectors))
    items = max(1, min(4, HELD // max(1, held), math.ceil(vectors / threads)))
    chunks = math.ceil(vectors / (threads * items))
    # Two waves of eight blocks an SM: a layer norm of 16 rows of 4 M bf16 takes 0.97 of one wave's time
    # (KernelBench's l1_40).
    splits = _scan_splits(extent.rows, device, chunks) if scans else _splits(extent.rows, chunks, 16, device)
    return ReductionSchedule(vector, threads, max(1, 128 // threads), items, "reread", splits)


def _row_threads(vectors: int, held: int) -> int:
    """Threads of a row of so many vectors, of each of which they keep `held` bytes: those that have least to do in all."""
    least = 16 if 16 <= vectors < LEAST_ROW else min(32, power(vectors))
    counts = [least << n for n in range(11) if least << n <= MOST_THREADS]
    fits = [n for n in counts if math.ceil(vectors / n) * held <= ROW_HELD]
    return min(fits or counts[-1:], key=lambda n: n * (math.ceil(vectors / n) + ROW_OVERHEAD))


def _streamed(rows: VectorRows) -> ReductionSchedule | None:
    """Rows of which one pass leaves a value, so that nothing of them is kept: parts of them follow one another through a
    block's registers. None for shorter rows, which a block holds well."""
    problem, extent, vector, vectors = rows.problem, rows.extent, rows.vector, rows.vectors
    if _picks(problem) or scans_of(problem) or phases(problem) != 1 or len(kept(problem)) != 1:
        return None
    if any(o.whole for o in problem.outputs):
        return None
    held, words = MOST_THREADS * HELD // kept_bytes(problem, vector), kept(problem)[0].elem.bytes >= WORD
    exponentials = _exponentials(problem)
    most = held if words else VALUE_ITEMS * STREAMED_THREADS if exponentials else held // 2
    if vectors <= most:
        return None
    fills = extent.rows >= 2 * rows.device.sms
    long = not exponentials and not rows.straddle and vectors >= held and fills
    threads = LONG_THREADS if long else STREAMED_THREADS
    chunks = math.ceil(vectors / (threads * STREAMED_ITEMS))
    splits = _splits(extent.rows, chunks, 16, rows.device)
    few = fills and extent.rows < FEW_STREAMED * rows.device.sms and chunks >= LONG_STREAMED
    if exponentials and few and not words:
        splits = max(1, min(chunks // 2, math.ceil(32 * rows.device.sms / extent.rows)))
    return ReductionSchedule(vector, threads, 1, STREAMED_ITEMS, "reread", splits)


def _exponentials(problem: ReductionProblem) -> bool:
    """Whether of rows the sums of exponentials alone are needed."""
    return {i.op for i in problem.instructions if isinstance(i, RowReduce)} == {"logsumexp"}


def _held(rows: VectorRows) -> ReductionSchedule | None:
    """Rows that lie in shared memory, or in a cluster's registers, where a block's registers hold them ill or not."""
    problem = rows.problem
    if not _is_read_once(problem) or len(problem.columns) != 1:
        return None
    words = _is_of_words(problem)
    shortest = MOST_THREADS * HELD if words or rows.vectors % MOST_THREADS else SHORTEST_HELD
    if not shortest < rows.vectors * kept_bytes(problem, rows.vector) <= LONGEST_HELD:
        return None
    clustered = _clustered(rows)
    return held_schedule(rows) if clustered is None else clustered


def _is_read_once(problem: ReductionProblem) -> bool:
    """Whether shared memory may hold rows: those of one tensor, since others nobody has timed, which are reduced and have
    results for all of their columns, and of which no thread's registers keep what is computed of them."""
    if _picks(problem) or scans_of(problem) or applied_values(problem):
        return False
    return len(kept(problem)) == 1 and phases(problem) > 0 and any(o.whole for o in problem.outputs)


def _is_of_words(problem: ReductionProblem) -> bool:
    return all(load.elem.bytes >= WORD for load in kept(problem))


def _shares_rows(problem: ReductionProblem) -> bool:
    """Whether all rows share what is as long as one, such as a norm's gains."""
    others = (load for load in problem.loads if load not in kept(problem))
    return any(contiguous_along(load.axes, problem.vector) for load in others)


def _clustered(rows: VectorRows) -> ReductionSchedule | None:
    """Rows in the registers of clusters of small blocks. None of norms of 16-bit elements, of which threads compute more, and of
    norms whose gains begin anywhere in a vector: a layer norm of 80,001 f32 takes 225 us so on an H100, 212 in shared memory."""
    problem, device = rows.problem, rows.device
    words, alone = _is_of_words(problem), not _shares_rows(problem)
    if not rows.arch.wgmma or not (alone or (words and not rows.straddle)):
        return None
    if device.sm_bandwidth > WORDS_BANDWIDTH if words else not _exponentials(problem):
        return None
    for cluster, threads in itertools.product(
        CLUSTERS[1:], CLUSTER_THREADS if words and alone else CLUSTER_THREADS[:1]
    ):
        items = math.ceil(math.ceil(rows.vectors / cluster) / threads)
        if items <= CLUSTER_ITEMS and rows.extent.rows * cluster >= device.sms:
            return ReductionSchedule(
                rows.vector, threads, 1, items, "registers", cluster=cluster, straddle=rows.straddle
            )
    return None


def _held_alone(rows: VectorRows) -> ReductionSchedule | None:
    """Rows that no cluster's registers hold, in the shared memory of one. None where all rows share what is as long."""
    if not _is_read_once(rows.problem) or _shares_rows(rows.problem):
        return None
    if rows.vectors * kept_bytes(rows.problem, rows.vector) > LONGEST_ALONE:
        return None
    return held_schedule(rows)


def _meeting(rows: VectorRows) -> ReductionSchedule | None:
    """Blocks of the whole grid that share rows of megabytes, where nearly all SMs have a part of one."""
    problem, vector, straddle, sms = rows.problem, rows.vector, rows.straddle, rows.device.sms
    if not rows.arch.wgmma or _picks(problem) or scans_of(problem):
        return None
    if not any(o.whole for o in problem.outputs) or len(kept(problem)) != 1:
        return None
    if len(ring_loads(problem, vector, straddle)) != 1 or resident_loads(problem, vector):
        return None
    threads, stages = MEETING
    grid = math.ceil(rows.vectors * kept_bytes(problem, vector) / (threads * HELD))
    groups = sms // grid
    if groups < LEAST_GROUPS or groups * grid < BUSY * sms or rows.extent.rows < 2 * groups:
        return None
    items = math.ceil(rows.vectors / (threads * grid))
    ring = ReductionSchedule(
        vector, threads, 1, items, "registers", stages=stages, grid=grid, straddle=straddle
    )
    return ring if ring_bytes(problem, ring) <= ring_limit(rows.arch, ring) else None


def _down(problem: ReductionProblem, extent: Extent, vector: int, device: Device) -> ReductionSchedule:
    """Vectors of rows: lines of threads side by side along the rows, and lines that share columns."""
    wide = max(1, extent.rows // vector)
    side = min(64, max(8, power(wide) if wide < 64 else 64))
    held = kept_bytes(problem, vector)
    if any(isinstance(i, RowScan) for i in problem.instructions):
        return _scan_down(problem, extent, vector, held, wide, device)
    blocks, share = math.ceil(wide / side), 1
    while side * share < THREADS and share < extent.columns:
        share *= 2
    while side * share < 1024 and extent.columns * held > share * HELD:
        share *= 2
    if extent.columns * held <= share * HELD:
        return ReductionSchedule(vector, share, side, math.ceil(extent.columns / share), "registers")
    if blocks < device.sms and (narrow := _narrow(problem, extent, vector, device)) is not None:
        return narrow
    # Of 1024 threads where loads are of single elements and rows fill the GPU: an argmax and a sum over the
    # middle of 128 x 4096 x 4095 take 0.90 and 0.84 of the time (KernelBench's l1_51 and l1_47).
    block = MOST_THREADS if vector == 1 and blocks >= 2 * device.sms else THREADS
    share = min(share, max(1, block // side))
    items = max(1, min(8, HELD // max(1, held), math.ceil(extent.columns / share)))
    splits = _splits(blocks, math.ceil(extent.columns / (share * items)), 4, device)
    return ReductionSchedule(vector, share, side, items, "reread", splits)


def _narrow(
    problem: ReductionProblem, extent: Extent, vector: int, device: Device
) -> ReductionSchedule | None:
    """Vectors of 4 bytes, whose columns registers hold: blocks of rows that fill the GPU, where wider ones
    would share their columns. With one of its two means so, a pipeline with a batch norm of 1024 x 8192 takes
    193 us for 201 in bf16, 367 for 374 in f32 (KernelBench's l2_33 and l2_84). None where they do
    not fit, or fill nothing."""
    if _picks(problem):
        return None
    widest = max((load.elem.bytes for load in kept(problem)), default=WORD)
    while vector > 1 and vector * widest > WORD:
        vector //= 2
    share = power(math.ceil(extent.columns * kept_bytes(problem, vector) / HELD))
    if NARROW * share > MOST_THREADS or extent.rows < NARROW * vector * device.sms:
        return None
    return ReductionSchedule(vector, share, NARROW, math.ceil(extent.columns / share), "registers")


def _picks(problem: ReductionProblem) -> bool:
    return any(isinstance(i, RowReduce) and i.op in ("argmax", "argmin") for i in problem.instructions)


def _scan_down(
    problem: ReductionProblem, extent: Extent, vector: int, held: int, wide: int, device: Device
) -> ReductionSchedule:
    """Lines of 1 or 2 KB, so that what is not aligned shares few of its sectors; as many of them as threads
    have registers for (measured on an H200 by `benchmarks.memory_bound`)."""
    side = max(8, min(power(wide), 64 if vector >= 4 else 512 // vector))
    share = 1
    while side * share < (512 if vector >= 4 else 1024) and share * 2 <= extent.columns:
        share *= 2
    most = max(1, min(8, HELD // max(1, held), math.ceil(extent.columns / share)))
    whole = (n for n in range(most, most // 2, -1) if extent.columns % (share * n) == 0)
    items = next(whole, most)
    blocks, most = math.ceil(wide / side), _look_back_items(problem, vector, held)
    if phases(problem) == 0 and _takes_look_back(blocks, math.ceil(extent.columns / (share * most)), device):
        return ReductionSchedule(vector, share, side, most, "registers", look_back=True)
    splits = _scan_splits(blocks, device, math.ceil(extent.columns / (share * items)))
    return ReductionSchedule(vector, share, side, items, "reread", splits)


def _widest(problem: ReductionProblem) -> int:
    """Bytes of an element of the widest tensor that lies along the vectors."""
    every: list[Load | ReductionOutput] = [*problem.loads, *problem.outputs]
    return max((x.elem.bytes for x in every if x.align > 1), default=1)


def _splits(rows: int, chunks: int, blocks: int, device: Device) -> int:
    """Blocks that share a row: so many that the GPU is full where rows alone do not fill it."""
    if rows >= device.sms * 2 or chunks <= 4:
        return 1
    return max(1, min(chunks // 2, math.ceil(device.sms * blocks / max(1, rows)), 1024))


def _takes_look_back(blocks: int, parts: int, device: Device) -> bool:
    """Whether blocks take parts of rows, each read once: where rows alone leave SMs idle and give parts."""
    return blocks < device.sms and parts > 4


def _look_back_items(problem: ReductionProblem, vector: int, held: int) -> int:
    """Vectors of a part that a thread takes: of what it scans, the registers of those loaded serve again."""
    scanned = vector * sum(8 if s.kind == "i64" else 4 for _, s in scans_of(problem))
    return max(1, min(LOOK_BACK_ITEMS, HELD // max(held, scanned)))


def _scan_splits(blocks: int, device: Device, chunks: int) -> int:
    """The same of a scan, whose parts are read once more for their totals: only where less than half of the
    GPU would read otherwise."""
    return _splits(blocks, chunks, 4, device) if 2 * blocks <= device.sms else 1


# --- notes --------------------------------------------------------------------------


def _notes(
    problem: ReductionProblem, s: ReductionSchedule, rows: int, columns: int, passes: int, widest: int
) -> tuple[Note, ...]:
    """Why a kernel runs as it does, for `ucc explain`; `passes` are those over the loads, `widest` is the vector that
    extents and types allow."""
    where = "none" if problem.vector is None else "columns" if problem.across else "rows"
    why = f"{'the widest' if s.vector == widest else f'of {widest}'} that extents and types allow"
    if s.straddle:
        why = f"which do not divide {'rows' if problem.columns else 'lines'}: those of {widest} that do are too short"
    reasons = [Note("", f"vectors of {s.vector}", f"along the {where}, {why}")]
    if any(isinstance(i, RowReduce | RowScan) for i in problem.instructions):
        text = (
            "every element is read once and kept in registers"
            if s.keep == "registers"
            else "every element is read once and lies in shared memory meanwhile"
            if s.keep == "shared"
            else f"a row's {columns} columns do not fit registers: "
            + ("one pass reads it" if passes == 1 else f"each of {passes} passes reads it")
        )
        reasons.append(Note("", f"{s.threads} threads a {'part' if s.look_back else 'row'}", text))
    if s.stages > 1:
        why = "bulk copies bring lines of the next rows while one is reduced and stored"
        reasons.append(Note("", f"a ring of {s.stages} lines", why))
    if s.grid > 1:
        reasons.append(
            Note("", f"{s.grid} blocks a row", "they meet through global memory, and read it once")
        )
    if s.cluster > 1:
        reasons.append(
            Note(
                "",
                f"a cluster of {s.cluster} blocks a row",
                "each has its part of one" if s.keep == "shared" else "one block's registers do not hold it",
            )
        )
    if s.look_back:
        part = s.threads * s.items * (s.vector if problem.across else 1)
        why = f"{rows} rows alone do not fill the GPU; a block waits for what earlier ones sum to"
        reasons.append(Note("", f"{math.ceil(columns / part)} blocks a row, in one pass", why))
    if s.splits > 1:
        why = f"{rows} rows alone do not fill the GPU"
        if scans_of(problem):
            why += "; the parts are read for their totals first, then scanned"
            why += ", since what is scanned needs the whole row before" if phases(problem) else ""
        reasons.append(Note("", f"{s.splits} blocks a row", why))
    return tuple(reasons)
