"""Rules on the matrix-vector kernel: columns, and how a block covers its rows."""

from __future__ import annotations

from ucutlass.kernels.gemm.plan import GemvSchedule
from ucutlass.kernels.gemm.schedule import COLUMNS, GemmCandidate, changed, multistage, nearest
from ucutlass.kernels.gemm.smem import gemv_cover
from ucutlass.kernels.rule import Breach

ROWS = (1, 2, 4, 8, 16, 32, 64)

MOST_ROWS_K = 16
"""Rows of a thread block where a thread reads whole rows (emit/gemm/gemv.py)."""

THREADS = (32, 64, 128, 256, 512, 1024)
"""Threads of a block (emit/gemm/gemv.py)."""

MOST_SUMS = 64
"""Running sums of a thread: with the vectors it loads they stay within 128 registers."""

SM_REGISTERS = 65536


def _schedule(c: GemmCandidate) -> GemvSchedule:
    assert isinstance(c.schedule, GemvSchedule)
    return c.schedule


def columns(c: GemmCandidate) -> Breach | None:
    held, n, most = _schedule(c).columns, c.shape.n, COLUMNS[-1]
    if held in COLUMNS and n <= held:
        return None
    if n <= most:
        best = next(w for w in COLUMNS if w >= max(n, min(held, most)))
        text = f"N is {n}" if held in COLUMNS else f"columns {held} is not 1, 2, 4 or 8"
        return Breach(
            f"{text}; a kernel of {held} columns computes {held}",
            f"use `columns {best}`",
            ("columns",),
            changed(c, columns=best),
        )
    if c.shape.m <= most:
        other = "no" if c.swapped else "yes"
        return Breach(
            f"the matrix-vector kernel takes at most {most} columns, and N is {n}",
            f"use `swap {other}`: then N is {c.shape.m}",
            ("swap",),
            changed(c, swap=other, columns=None, rows=None, threads=None),
        )
    return Breach(
        f"the matrix-vector kernel takes at most {most} columns; M is {c.shape.m}, N is {n}",
        "use `warps multistage`, pingpong or cooperative",
        ("warps",),
        multistage(c),
    )


def rows(c: GemmCandidate) -> Breach | None:
    held = _schedule(c).rows
    along_m = c.problem.a.contiguous == "m"
    legal = ROWS if along_m else tuple(r for r in ROWS if r <= MOST_ROWS_K)
    if held in legal:
        return None
    best = nearest(held, legal)
    return Breach(
        f"rows {held} is not a power of two up to {legal[-1]}",
        f"use `rows {best}`",
        ("rows",),
        changed(c, rows=best),
    )


def threads(c: GemmCandidate) -> Breach | None:
    s = _schedule(c)
    block = gemv_cover(c.problem, s).block
    if block in THREADS:
        return None
    each = block // s.threads
    best = nearest(s.threads, tuple(t // each for t in THREADS if t >= each))
    text = f"{s.rows} x {s.threads} threads" if each > 1 else f"{s.threads} threads"
    return Breach(
        f"a block of {text} is not a power of two from {THREADS[0]} to {THREADS[-1]}",
        f"use `threads {best}`",
        ("threads", "rows"),
        changed(c, threads=best),
    )


def sums(c: GemmCandidate) -> Breach | None:
    s = _schedule(c)
    cover = gemv_cover(c.problem, s)
    limit = min(MOST_SUMS, SM_REGISTERS // cover.block // 2)
    if cover.sums <= limit:
        return None
    fix = (
        changed(c, rows=max(1, s.rows // 2))
        if cover.sums == s.rows * s.columns and s.rows > 1
        else changed(c, threads=max(1, s.threads // 2))
    )
    return Breach(
        f"{cover.sums} running sums in each of {cover.block} threads; beyond {limit} they spill",
        "use fewer rows, columns or threads",
        ("rows", "threads", "columns"),
        fix,
    )


def memory(c: GemmCandidate) -> Breach | None:
    s = _schedule(c)
    used, capacity = c.memory.total, c.arch.shared_memory
    if used <= capacity:
        return None
    return Breach(
        f"{used} bytes of shared memory for partial sums; a block has {capacity}",
        "use fewer rows or threads",
        ("rows", "threads"),
        changed(
            c, rows=s.rows // 2, threads=s.threads * 2 if s.rows * s.threads < THREADS[0] * 2 else s.threads
        ),
    )
