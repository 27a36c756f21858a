"""Legality of reduction kernels: vectors, blocks, what a thread holds, blocks that share a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ucutlass.ir.hardware import Arch
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.reduction.plan import ReductionProblem, ReductionSchedule, phases, scans_of
from ucutlass.kernels.reduction.plan_straddle import least_straddling, whole_vectors
from ucutlass.kernels.reduction.smem import TILE, ring_bytes, ring_limit, ring_loads
from ucutlass.kernels.rule import Breach, Rule

CLUSTERS = (1, 2, 4, 8)
"""Blocks of a cluster: 8 is the largest that every GPU with clusters runs."""

LARGE_CLUSTERS = (16,)
"""Blocks of a cluster that not every GPU runs: those of a ring, of which several fit an SM."""

MOST_THREADS = 1024
MOST_SCAN_THREADS = 256
"""Of a block whose lines scan columns: each line leaves a sum in shared memory for every row of a vector."""

LOOK_BACK_THREADS, LOOK_BACK_ITEMS = 256, 8
"""Of a block that scans a part of a row in its registers: threads, and the most vectors of each."""

MOST_BLOCKS = 2**31 - 1
"""Of a launch, along the grid's longest side."""

MOST_HELD = 256
"""Bytes of loads that a thread holds at most: 64 registers, twice what the planner takes by itself."""

MOST_INDEX = 2**31 - 1
"""Vectors, or rows, that a launch numbers: they are divided in 32 bits."""


@dataclass(frozen=True, slots=True)
class ReductionCase:
    """What bounds a schedule. `rows`, `columns` count elements, `held` gives the bytes a thread keeps of so
    many elements at a time, `widest` is the longest vector that divides rows, `straddling` the longest that may straddle
    their ends, `transpose` what a tile in shared memory would transpose:
    the mode, the loads with their words, and the tile's side along it; `largest` are the threads of the planner's own block;
    `spread` gives the blocks that share a row of so many chunks where nothing asks for another number."""

    problem: ReductionProblem
    arch: Arch
    rows: int
    columns: int
    held: Callable[[int], int]
    widest: int
    straddling: int
    transpose: tuple[int, tuple[tuple[int, int], ...], int] | None
    largest: int
    spread: Callable[[int], int]

    @property
    def scans(self) -> bool:
        return bool(scans_of(self.problem))

    @property
    def may_look_back(self) -> bool:
        """Whether a row may be scanned in one pass by several blocks: nothing of it is reduced before."""
        return self.scans and phases(self.problem) == 0

    def kept(self, vector: int) -> int:
        """Bytes that a thread keeps of one vector where a row lies in registers: of what it loads, or of what
        it scans, for which the same registers serve."""
        scanned = sum(8 if s.kind == "i64" else 4 for _, s in scans_of(self.problem))
        return max(self.held(vector), scanned * vector)

    def line(self, vector: int) -> int:
        """What threads share: vectors of columns where vectors lie along them, else columns."""
        if not self.problem.across:
            return self.columns
        if vector > self.widest:
            return max(1, whole_vectors(self.problem, self.columns, vector))
        return max(1, self.columns // vector)


@dataclass(frozen=True, slots=True)
class ReductionCandidate:
    """What bounds a schedule, the schedule, and the fields that the program fixed."""

    case: ReductionCase
    schedule: ReductionSchedule
    request: PartialSchedule


def power(value: int) -> int:
    """The least power of two that is not below."""
    return 1 << max(0, value - 1).bit_length()


def _is_power(value: int) -> bool:
    return value >= 1 and value & (value - 1) == 0


def _vector(c: ReductionCandidate) -> Breach | None:
    case, s = c.case, c.schedule
    widest = max(case.widest, case.straddling)
    if s.straddle and s.vector < (least := least_straddling(case.problem)):
        return Breach(
            f"vectors of {s.vector} elements that straddle lines: they are shifted by words of 4 bytes",
            f"use `vector {least}`, or `vector {case.widest}`",
            ("vector",),
            None,
        )
    if _is_power(s.vector) and s.vector <= widest:
        return None
    return Breach(
        f"vectors of {s.vector} elements: extents, alignments and types allow powers of two up to {widest}",
        f"use `vector {min(widest, power(s.vector + 1) // 2)}` or less",
        ("vector",),
        None,
    )


def _block(c: ReductionCandidate) -> Breach | None:
    case, s = c.case, c.schedule
    scans = case.scans and not case.problem.across
    most = max(MOST_SCAN_THREADS, case.largest) if scans else MOST_THREADS
    size, what = s.threads * s.rows, f"{s.threads} threads x {s.rows} rows"
    if not case.problem.columns and s.threads != 1:
        return Breach(
            f"{s.threads} threads share the columns of a row, and nothing here is reduced or scanned: there "
            "are no columns",
            "give `rows`, the threads of a block, instead",
            ("threads",),
            None,
        )
    if not (_is_power(s.threads) and _is_power(s.rows)):
        message, hint = f"{what}: both are powers of two", f"use {power(s.threads)} x {power(s.rows)}"
    elif size > most:
        message, hint = f"{what} are {size} threads of a block: at most {most} fit", "lessen one of them"
    elif case.problem.across and size % 32:
        message = f"{what} are {size} threads: rows share whole warps of 32"
        hint = f"use `rows {32 // s.threads}`"
    else:
        return None
    return Breach(message, hint, ("threads", "rows"), None)


def _kept(c: ReductionCandidate) -> Breach | None:
    """What lies where: a tile, a row, or parts of one."""
    case, s, r = c.case, c.schedule, c.request
    if not case.problem.columns:
        if r.keep == "reread":
            return Breach(
                "nothing is reduced or scanned, so nothing would be read again",
                "use `keep registers`",
                ("keep",),
                None,
            )
        if r.keep == "shared" and case.transpose is None:
            return Breach(
                "every tensor is read as it lies: no tile has to be transposed in shared memory",
                "use `keep registers`",
                ("keep",),
                None,
            )
        most = min((TILE * s.tile // word**2 for _, word in s.transposed), default=MOST_THREADS)
        if s.transposed and not TILE <= s.rows <= most:
            return Breach(
                f"{s.rows} threads transpose a tile of {TILE} x {s.tile}: {TILE} to {most} take whole lines of it",
                f"use `rows {min(most, max(TILE, s.rows))}`",
                ("rows",),
                None,
            )
        if s.transposed and s.vector * s.rows * s.items != TILE * s.tile:
            return Breach(
                f"{s.rows} threads of {s.items} vectors of {s.vector} hold {s.vector * s.rows * s.items} "
                f"elements: a tile has {TILE} x {s.tile}, {TILE * s.tile}",
                "leave `items` out",
                ("items", "rows", "vector"),
                None,
            )
        return _held(case, s)
    if r.keep == "shared" and s.keep != "shared":
        return Breach(
            "a row of columns is kept in registers or read again; it lies in shared memory, which bulk copies of "
            "Hopper fill, where vectors lie along it, nothing is scanned and `stages` says how many lines are there",
            "use `keep registers` or `keep reread`, or give `stages`",
            ("keep",),
            None,
        )
    line = case.line(s.vector)
    if s.look_back:
        return _look_back(case, s, r) or _held(case, s)
    if s.keep == "shared" and s.items > s.stages:
        return Breach(
            f"a row has {s.items} lines of {s.threads} vectors of {s.vector} in each block that shares it: a ring of "
            f"{s.stages} does not hold them",
            f"use `stages {s.items}`, a larger `cluster`, or `keep registers`",
            ("stages", "threads", "keep", "cluster", "vector"),
            None,
        )
    if s.keep != "reread" and s.threads * s.items * s.sharers < line:
        return Breach(
            f"{s.sharers} blocks of {s.threads} threads with {s.items} vectors of {s.vector} hold "
            f"{s.threads * s.items * s.sharers * s.vector} elements: a row has {line * s.vector}",
            f"use `items {math.ceil(line / (s.threads * s.sharers))}`, or `keep reread`",
            ("items", "threads", "keep", "cluster", "vector"),
            None,
        )
    return _held(case, s)


def _look_back(case: ReductionCase, s: ReductionSchedule, r: PartialSchedule) -> Breach | None:
    """A row in the registers of several blocks, of which each scans a part."""
    line, part = case.line(s.vector), s.threads * s.items
    parts, limit = math.ceil(line / part), f"a block's registers hold {part * s.vector} elements of a row"
    if not case.problem.across:
        limit = f"a block's registers hold {part} of a row's elements"
    if not case.may_look_back:
        return Breach(
            f"{limit}, and what is scanned needs all {case.columns} of them first",
            "use `keep reread`, with `split_k` for several blocks a row",
            ("keep", "threads", "items"),
            None,
        )
    if case.problem.across and s.rows > 1:
        return Breach(
            f"{limit}: {parts} blocks share each row, and {s.rows} rows a block",
            "use `rows 1`",
            ("rows", "keep"),
            None,
        )
    if r.split_k is not None:
        return Breach(
            f"{limit}, so that {parts} blocks share a row of {case.columns} and read it once",
            "leave `split_k` out, or use `keep reread`",
            ("split_k", "keep"),
            None,
        )
    blocks = math.ceil(case.rows // (1 if case.problem.across else s.vector) / s.rows) * parts
    if blocks > MOST_BLOCKS:
        return Breach(
            f"{limit}: the launch would have {blocks} blocks, and at most {MOST_BLOCKS} fit",
            "use more `threads` or `items`, or `keep reread`",
            ("keep", "threads", "items"),
            None,
        )
    return None


def _held(case: ReductionCase, s: ReductionSchedule) -> Breach | None:
    if s.keep == "shared":
        return None
    in_registers = s.keep == "registers" and case.scans
    bytes_ = (case.kept if in_registers else case.held)(s.vector) * s.items
    if s.items == 1 or bytes_ <= MOST_HELD:
        return None
    return Breach(
        f"{s.items} vectors of {s.vector} are {bytes_} bytes of loads in a thread: beyond {MOST_HELD} its "
        "registers spill",
        f"use `items {max(1, MOST_HELD * s.items // bytes_)}` or more `threads`",
        ("items", "threads", "keep", "vector"),
        None,
    )


def _shared(c: ReductionCandidate) -> Breach | None:
    """How many blocks share a row."""
    case, s, r = c.case, c.schedule, c.request
    sides = r.cluster or (1, s.cluster)
    clusters = sides[0] == 1 and s.cluster in (*CLUSTERS, *(LARGE_CLUSTERS if s.stages > 1 else ()))
    can = case.problem.across and case.arch.wgmma and s.keep != "reread" and not case.scans
    if (s.cluster > 1 and not can) or not clusters:
        return Breach(
            f"a cluster of {sides[0]}x{sides[1]}: 1x1, 1x2, 1x4 or 1x8 blocks of Hopper share a row that "
            "lies in their registers, along which vectors lie",
            "use `cluster 1x1`, or `split_k`",
            ("cluster", "keep"),
            None,
        )
    if s.cluster > 1 and ((s.rows > 1 and s.keep != "shared") or s.threads % 32):
        return Breach(
            f"{s.threads} threads x {s.rows} rows: each block of a cluster holds its part of one row, with "
            "whole warps of 32 threads",
            f"use `rows 1  threads {max(32, s.threads)}`, or `cluster 1x1`",
            ("rows", "threads", "cluster"),
            None,
        )
    if r.split_k == "stream" or (s.splits > 1 and not case.problem.columns):
        what = "stream-K is of dots" if r.split_k == "stream" else "a copy has no parts to add"
        return Breach(what, "use `split_k 1`", ("split_k",), None)
    chunks = math.ceil(case.line(s.vector) / (s.threads * s.items))
    if s.splits > 1 and (s.keep != "reread" or s.splits > chunks):
        return Breach(
            f"{s.splits} parts of a row that is read in {chunks} chunks of {s.threads * s.items} vectors"
            + (" and lies in registers" if s.keep != "reread" else ""),
            f"use `keep reread  split_k {max(1, chunks)}` or less",
            ("split_k", "keep"),
            None,
        )
    return None


def _ring(c: ReductionCandidate) -> Breach | None:
    """What passes through a ring in shared memory."""
    case, s = c.case, c.schedule
    if s.stages == 1:
        if s.blocks == 1:
            return None
        return Breach(
            f"blocks {s.blocks}: only blocks that stay for the launch, with a ring of lines, are counted by SM",
            "give `stages` too, or leave `blocks` out",
            ("blocks",),
            None,
        )
    if not case.arch.wgmma or case.scans or s.keep == "reread":
        return Breach(
            f"a ring of {s.stages} lines: bulk copies of Hopper bring rows that lie in registers and are reduced, "
            "not scanned",
            "leave `stages` out",
            ("stages", "keep"),
            None,
        )
    if not ring_loads(case.problem, s.vector, s.straddle):
        return Breach(
            f"a ring of {s.stages} lines of vectors of {s.vector}: bulk copies are of whole pieces of 16 bytes that "
            "lie along one run of columns, and a tensor's rows are not",
            "leave `stages` out, or use wider vectors",
            ("stages", "vector"),
            None,
        )
    if s.threads % 32:
        return Breach(
            f"{s.threads} threads a row: a line of a ring is read by whole warps of 32",
            "use `threads 32` or more",
            ("threads", "stages"),
            None,
        )
    if s.grid > 1 and (s.cluster > 1 or s.rows > 1 or s.keep == "shared"):
        return Breach(
            f"{s.grid} blocks share a row through global memory, and a cluster of {s.cluster} with {s.rows} rows a block",
            "use `cluster 1x1  rows 1`, or leave `split_k` out",
            ("split_k", "cluster", "rows"),
            None,
        )
    used, limit = ring_bytes(case.problem, s), ring_limit(case.arch, s)
    if used > limit:
        return Breach(
            f"a ring of {s.stages} lines takes {used} bytes of shared memory: {s.blocks} blocks an SM have {limit} each",
            f"use `stages {max(2, s.stages * limit // used)}`, fewer `blocks`, or fewer threads and more `items`",
            ("stages", "threads", "blocks"),
            None,
        )
    return None


def _index(c: ReductionCandidate) -> Breach | None:
    vector, across = c.schedule.vector, c.case.problem.across
    rows = c.case.rows // (1 if across else vector)
    columns = c.case.columns // (vector if across else 1)
    if max(rows, columns) <= MOST_INDEX:
        return None
    return Breach(
        f"{rows} rows of {columns} vectors of columns: a launch numbers at most {MOST_INDEX} of each",
        "cut the tensor along its outermost name",
    )


_ALL = frozenset({"reduction"})

LAUNCH_RULES: tuple[Rule[ReductionCandidate], ...] = (
    Rule(
        "UC0460",
        "elements of a launch",
        "more elements than a launch numbers",
        "emit/reduction: indices are divided in 32 bits",
        _index,
        _ALL,
    ),
)

SCHEDULE_RULES: tuple[Rule[ReductionCandidate], ...] = (
    Rule(
        "UC0470",
        "vectors of a reduction",
        "vectors that a reduction's tensors do not allow",
        "PTX ISA, ld.global.v2, v4: addresses are multiples of the vector's bytes",
        _vector,
        _ALL,
    ),
    Rule(
        "UC0471",
        "threads of a reduction",
        "threads and rows that make no block of a reduction",
        "CUDA C++ Programming Guide: 1024 threads a block; emit/reduction: shuffles of whole warps",
        _block,
        _ALL,
    ),
    Rule(
        "UC0472",
        "where a row lies",
        "a row, or a tile, that does not lie where the schedule says",
        "CUDA C++ Programming Guide: 255 registers a thread",
        _kept,
        _ALL,
    ),
    Rule(
        "UC0473",
        "blocks that share a row",
        "blocks that cannot share a reduction's row",
        "CUDA C++ Programming Guide, Thread Block Clusters: at most 8 on every GPU",
        _shared,
        _ALL,
    ),
    Rule(
        "UC0472",
        "where a ring of lines lies",
        "a row, or a tile, that does not lie where the schedule says",
        "PTX ISA, cp.async.bulk: addresses and bytes are multiples of 16",
        _ring,
        _ALL,
    ),
)

RULES: tuple[Rule[ReductionCandidate], ...] = (*LAUNCH_RULES, *SCHEDULE_RULES)
"""In the order of their codes."""
