"""A sweep's schedule in the fields of a program: what is fixed is kept, the rest follows, rules judge.

The planner's own choice (`sweep_planning`) is where every request starts from; what it leaves open is filled
here so that a row still fits, and a request that no kernel keeps gets the rule's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ucutlass.ir.hardware import Arch
from ucutlass.ir.schedule import Request
from ucutlass.kernels.reduction.plan import TILE, SweepProblem, SweepSchedule, phases, scans_of
from ucutlass.kernels.violation import Finding, Violation, found_by

CLUSTERS = (1, 2, 4, 8)
"""Blocks of a cluster: 8 is the largest that every GPU with clusters runs."""

MOST_THREADS = 1024
MOST_SCAN_THREADS = 256
"""Of a block whose lines scan columns: each line leaves a sum in shared memory for every row of a vector."""

CHAIN_THREADS, CHAIN_ITEMS = 256, 8
"""Of a block that scans a part of a row in its registers: threads, and the most vectors of each."""

MOST_BLOCKS = 2**31 - 1
"""Of a launch, along the grid's longest side."""

MOST_HELD = 256
"""Bytes of loads that a thread holds at most: 64 registers, twice what the planner takes by itself."""


@dataclass(frozen=True, slots=True)
class Room:
    """What bounds a schedule. `rows`, `columns` count elements, `held` gives the bytes a thread keeps of so
    many elements at a time, `widest` is the longest vector, `turn` what a square in shared memory would turn:
    the mode, and the loads with their words; `largest` are the threads of the planner's own block;
    `spread` gives the blocks that share a row of so many chunks where nothing asks for another number."""

    problem: SweepProblem
    arch: Arch
    rows: int
    columns: int
    held: Callable[[int], int]
    widest: int
    turn: tuple[int, tuple[tuple[int, int], ...]] | None
    largest: int
    spread: Callable[[int], int]

    @property
    def scans(self) -> bool:
        return bool(scans_of(self.problem))

    @property
    def chains(self) -> bool:
        """Whether a row may be scanned in one pass by several blocks: nothing of it is reduced before."""
        return self.scans and phases(self.problem) == 0

    def kept(self, vector: int) -> int:
        """Bytes that a thread keeps of one vector where a row lies in registers: of what it loads, or of what
        it scans, for which the same registers serve."""
        scanned = sum(8 if s.kind == "i64" else 4 for _, s in scans_of(self.problem))
        return max(self.held(vector), scanned * vector)

    def line(self, vector: int) -> int:
        """What threads share: vectors of columns where vectors lie along them, else columns."""
        return max(1, self.columns // vector) if self.problem.across else self.columns


def moved_bytes(problem: SweepProblem, vector: int) -> int:
    """Bytes of all loads of one vector, where there are no columns to tell what is kept from what is not."""
    return max((x.elem.bytes for x in problem.loads), default=4) * vector * max(1, len(problem.loads))


def request_of(room: Room, s: SweepSchedule) -> Request:
    """The schedule as fields: those that its kernel has."""
    if not room.problem.columns:
        return Request(
            vector=s.vector, rows=s.rows, items=s.items, keep="shared" if s.turned else "registers"
        )
    clustered = s.keep == "registers" and room.problem.across and room.arch.wgmma and not room.scans
    return Request(
        vector=s.vector,
        threads=s.threads,
        rows=s.rows,
        items=s.items,
        keep=s.keep,
        cluster=(1, s.cluster) if clustered else None,
        split_k=s.splits if s.keep == "reread" else None,
    )


def asked(room: Room, own: SweepSchedule, request: Request) -> SweepSchedule | tuple[Violation, ...]:
    """The planner's own schedule with what a request fixes, or the rules that are broken."""
    if request.given().items() <= request_of(room, own).given().items():
        return own
    clusters = CLUSTERS if request.cluster is None and room.arch.wgmma else (own.cluster,)
    first: tuple[Violation, ...] = ()
    for cluster in dict.fromkeys((own.cluster, *clusters)):
        made = _filled(room, own, request, cluster)
        broken = found_by(RULES, (room, made, request))
        if not broken:
            return made
        first = first or broken
    return first


# --- what follows from what is fixed ------------------------------------------------------


def _filled(room: Room, own: SweepSchedule, r: Request, cluster: int) -> SweepSchedule:
    vector = r.vector or own.vector
    if not room.problem.columns:
        return _elements(room, own, r, vector)
    splits = r.split_k if isinstance(r.split_k, int) else None
    apart = splits is not None and (splits > 1 or room.scans)
    keep = r.keep or ("reread" if apart else "registers" if r.cluster else own.keep)
    shared = keep == "registers" and room.problem.across and not room.scans
    clustered = r.cluster[1] if r.cluster else cluster if shared else 1
    scanned = keep == "registers" and room.scans
    fill = _chain if scanned else _across if room.problem.across else _down
    threads, rows, items = fill(room, own, r, vector, keep, clustered)
    chunks = math.ceil(room.line(vector) / (threads * items))
    kept = own.splits if keep == own.keep else room.spread(chunks) if own.chained else 1
    # A word that is no whole row is the rules' to refuse: `shared` has no kernel with columns.
    return SweepSchedule(
        vector,
        threads,
        rows,
        items,
        "registers" if keep == "registers" else "reread",
        splits or min(kept, chunks),
        cluster=clustered,
        chained=scanned and chunks > 1,
    )


def _elements(room: Room, own: SweepSchedule, r: Request, vector: int) -> SweepSchedule:
    keep = r.keep or ("shared" if own.turned else "registers")
    rows = r.rows or own.rows
    if keep == "shared" and room.turn is not None:
        across, turned = room.turn
        items = r.items or max(1, TILE * TILE // vector // rows)
        return SweepSchedule(vector, r.threads or 1, rows, items, "registers", 1, across, turned)
    items = r.items or (1 if own.turned else own.items)
    return SweepSchedule(vector, r.threads or 1, rows, items, "registers")


def _chain(
    room: Room, own: SweepSchedule, r: Request, vector: int, keep: str, cluster: int
) -> tuple[int, int, int]:
    """A scan whose row, or a part of it, lies in the registers of a block."""
    line = room.line(vector)
    most = max(1, min(CHAIN_ITEMS, MOST_HELD // 2 // room.kept(vector)))
    if not room.problem.across:
        rows = r.rows or (min(own.rows, max(1, MOST_THREADS // r.threads)) if r.threads else own.rows)
        lines = r.threads or min(own.threads, max(1, MOST_THREADS // rows))
        return lines, rows, r.items or min(most, math.ceil(line / lines))
    threads = r.threads or min(CHAIN_THREADS, power(math.ceil(line / (r.items or most))))
    items = r.items or min(most, math.ceil(line / threads))
    return threads, r.rows or (1 if threads * items < line else max(1, 128 // threads)), items


def _across(
    room: Room, own: SweepSchedule, r: Request, vector: int, keep: str, cluster: int
) -> tuple[int, int, int]:
    held, share = room.held(vector), math.ceil(room.line(vector) / cluster)
    if keep == "registers":
        wanted = math.ceil(share / r.items) if r.items else math.ceil(share * held / 64)
        least = 32 if cluster > 1 else min(32, power(share))
        threads = r.threads or min(MOST_THREADS, max(power(wanted), least))
        items = r.items or max(1, math.ceil(share / threads))
    else:
        share = math.ceil(share / (r.split_k if isinstance(r.split_k, int) else 1))
        threads = r.threads or (own.threads if own.keep == keep else min(256, power(share)))
        fits = max(1, min(4, MOST_HELD // 2 // held, math.ceil(share / threads)))
        items = r.items or (min(own.items, fits) if own.keep == keep else fits)
    return threads, r.rows or (1 if cluster > 1 else max(1, 128 // threads)), items


def _down(
    room: Room, own: SweepSchedule, r: Request, vector: int, keep: str, cluster: int
) -> tuple[int, int, int]:
    held, columns = room.held(vector), room.columns
    rows = r.rows or (min(own.rows, max(1, MOST_THREADS // r.threads)) if r.threads else own.rows)
    if keep == "registers":
        wanted = math.ceil(columns / r.items) if r.items else math.ceil(columns * held / (MOST_HELD // 2))
        lines = r.threads or max(own.threads if not r.items and not r.rows else 1, power(wanted))
        return lines, rows, r.items or max(1, math.ceil(columns / lines))
    lines = r.threads or min(own.threads, max(1, MOST_THREADS // rows))
    part = columns / (r.split_k if isinstance(r.split_k, int) else 1)
    fits = max(1, min(8, MOST_HELD // 2 // held, math.ceil(part / lines)))
    return lines, rows, r.items or (min(own.items, fits) if own.keep == keep else fits)


def power(value: int) -> int:
    """The least power of two that is not below."""
    return 1 << max(0, value - 1).bit_length()


def _is_power(value: int) -> bool:
    return value >= 1 and value & (value - 1) == 0


# --- the rules ----------------------------------------------------------------------------

Candidate = tuple[Room, SweepSchedule, Request]


def _vector(c: Candidate) -> Finding | None:
    room, s, _ = c
    if _is_power(s.vector) and s.vector <= room.widest:
        return None
    return Finding(
        f"vectors of {s.vector} elements: extents, alignments and types allow powers of two up to "
        f"{room.widest}",
        f"use `vector {min(room.widest, power(s.vector + 1) // 2)}` or less",
        ("vector",),
        None,
    )


def _block(c: Candidate) -> Finding | None:
    room, s, _ = c
    scans = room.scans and not room.problem.across
    most = max(MOST_SCAN_THREADS, room.largest) if scans else MOST_THREADS
    size, what = s.threads * s.rows, f"{s.threads} threads x {s.rows} rows"
    if not room.problem.columns and s.threads != 1:
        return Finding(
            f"{s.threads} threads share the columns of a row, and nothing here is reduced or scanned: there "
            "are no columns",
            "give `rows`, the threads of a block, instead",
            ("threads",),
            None,
        )
    if not (_is_power(s.threads) and _is_power(s.rows)):
        said, mend = f"{what}: both are powers of two", f"use {power(s.threads)} x {power(s.rows)}"
    elif size > most:
        said, mend = f"{what} are {size} threads of a block: at most {most} fit", "lessen one of them"
    elif room.problem.across and size % 32:
        said = f"{what} are {size} threads: rows share whole warps of 32"
        mend = f"use `rows {32 // s.threads}`"
    else:
        return None
    return Finding(said, mend, ("threads", "rows"), None)


def _kept(c: Candidate) -> Finding | None:
    """What lies where: a square, a row, or parts of one."""
    room, s, r = c
    if not room.problem.columns:
        if r.keep == "reread":
            return Finding(
                "nothing is reduced or scanned, so nothing would be read again",
                "use `keep registers`",
                ("keep",),
                None,
            )
        if r.keep == "shared" and room.turn is None:
            return Finding(
                "every tensor is read as it lies: no square has to be turned in shared memory",
                "use `keep registers`",
                ("keep",),
                None,
            )
        if s.turned and s.vector * s.rows * s.items != TILE * TILE:
            return Finding(
                f"{s.rows} threads of {s.items} vectors of {s.vector} hold {s.vector * s.rows * s.items} "
                f"elements: a square has {TILE} x {TILE}, {TILE * TILE}",
                "leave `items` out",
                ("items", "rows", "vector"),
                None,
            )
        return _held(room, s)
    if r.keep == "shared":
        return Finding(
            "a row of columns is kept in registers or read again; squares in shared memory are "
            "for tensors that are only copied",
            "use `keep registers` or `keep reread`",
            ("keep",),
            None,
        )
    line = room.line(s.vector)
    if s.chained:
        return _chained(room, s, r) or _held(room, s)
    if s.keep == "registers" and s.threads * s.items * s.cluster < line:
        return Finding(
            f"{s.cluster} blocks of {s.threads} threads with {s.items} vectors of {s.vector} hold "
            f"{s.threads * s.items * s.cluster * s.vector} elements: a row has {line * s.vector}",
            f"use `items {math.ceil(line / (s.threads * s.cluster))}`, or `keep reread`",
            ("items", "threads", "keep", "cluster", "vector"),
            None,
        )
    return _held(room, s)


def _chained(room: Room, s: SweepSchedule, r: Request) -> Finding | None:
    """A row in the registers of several blocks, of which each scans a part."""
    line, part = room.line(s.vector), s.threads * s.items
    parts, said = math.ceil(line / part), f"a block's registers hold {part * s.vector} elements of a row"
    if not room.problem.across:
        said = f"a block's registers hold {part} of a row's elements"
    if not room.chains:
        return Finding(
            f"{said}, and what is scanned needs all {room.columns} of them first",
            "use `keep reread`, with `split_k` for several blocks a row",
            ("keep", "threads", "items"),
            None,
        )
    if room.problem.across and s.rows > 1:
        return Finding(
            f"{said}: {parts} blocks share each row, and {s.rows} rows a block",
            "use `rows 1`",
            ("rows", "keep"),
            None,
        )
    if r.split_k is not None:
        return Finding(
            f"{said}, so that {parts} blocks share a row of {room.columns} and read it once",
            "leave `split_k` out, or use `keep reread`",
            ("split_k", "keep"),
            None,
        )
    blocks = math.ceil(room.rows // (1 if room.problem.across else s.vector) / s.rows) * parts
    if blocks > MOST_BLOCKS:
        return Finding(
            f"{said}: the launch would have {blocks} blocks, and at most {MOST_BLOCKS} fit",
            "use more `threads` or `items`, or `keep reread`",
            ("keep", "threads", "items"),
            None,
        )
    return None


def _held(room: Room, s: SweepSchedule) -> Finding | None:
    kept = s.keep == "registers" and room.scans
    bytes_ = (room.kept if kept else room.held)(s.vector) * s.items
    if s.items == 1 or bytes_ <= MOST_HELD:
        return None
    return Finding(
        f"{s.items} vectors of {s.vector} are {bytes_} bytes of loads in a thread: beyond {MOST_HELD} its "
        "registers spill",
        f"use `items {max(1, MOST_HELD * s.items // bytes_)}` or more `threads`",
        ("items", "threads", "keep", "vector"),
        None,
    )


def _shared(c: Candidate) -> Finding | None:
    """How many blocks share a row."""
    room, s, r = c
    sides = r.cluster or (1, s.cluster)
    clusters = sides[0] == 1 and s.cluster in CLUSTERS
    can = room.problem.across and room.arch.wgmma and s.keep == "registers" and not room.scans
    if (s.cluster > 1 and not can) or not clusters:
        return Finding(
            f"a cluster of {sides[0]}x{sides[1]}: 1x1, 1x2, 1x4 or 1x8 blocks of Hopper share a row that "
            "lies in their registers, along which vectors lie",
            "use `cluster 1x1`, or `split_k`",
            ("cluster", "keep"),
            None,
        )
    if s.cluster > 1 and (s.rows > 1 or s.threads % 32):
        return Finding(
            f"{s.threads} threads x {s.rows} rows: each block of a cluster holds its part of one row, with "
            "whole warps of 32 threads",
            f"use `rows 1  threads {max(32, s.threads)}`, or `cluster 1x1`",
            ("rows", "threads", "cluster"),
            None,
        )
    if r.split_k == "stream" or (s.splits > 1 and not room.problem.columns):
        what = "stream-K is of dots" if r.split_k == "stream" else "a copy has no parts to add"
        return Finding(what, "use `split_k 1`", ("split_k",), None)
    chunks = math.ceil(room.line(s.vector) / (s.threads * s.items))
    if s.splits > 1 and (s.keep == "registers" or s.splits > chunks):
        return Finding(
            f"{s.splits} parts of a row that is read in {chunks} chunks of {s.threads * s.items} vectors"
            + (" and lies in registers" if s.keep == "registers" else ""),
            f"use `keep reread  split_k {max(1, chunks)}` or less",
            ("split_k", "keep"),
            None,
        )
    return None


RULES = (("UC0470", _vector), ("UC0471", _block), ("UC0472", _kept), ("UC0473", _shared))
"""By code (`ucutlass.codes`), in the order they are asked."""
