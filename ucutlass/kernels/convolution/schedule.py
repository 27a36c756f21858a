"""A convolution's schedule in the fields of a program: `warps` is the kernel, the rest that kernel's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from ucutlass.ir.elements import TF32
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import RASTERS, WORDS, Family, Request, Warps, served, without
from ucutlass.kernels.convolution.im2col import MOST_BLOCKS, TILES, _taps, stages_held
from ucutlass.kernels.convolution.plan import (
    ConvProblem,
    ConvSchedule,
    DirectSchedule,
    Im2colSchedule,
    across_mode,
    along,
    sides,
)
from ucutlass.kernels.convolution.plan_im2col import Im2col, im2col
from ucutlass.kernels.gemm.candidate import RASTER_WORD, Candidate, Shape, routes_of
from ucutlass.kernels.gemm.plan import GemmProblem, LaunchParameters, Sm80Schedule
from ucutlass.kernels.gemm.rules import BY_CODE
from ucutlass.kernels.gemm.schedule import warp_tile
from ucutlass.kernels.gemm.smem import stage_bytes
from ucutlass.kernels.violation import Finding, Violation, found_by

KERNELS: tuple[Family, ...] = ("im2col", "gather", "direct")

SWIZZLE = 4
"""Tiles side by side where the schedule says nothing."""

GROUPS: Mapping[int, int] = MappingProxyType({rows: groups for rows, _, groups in TILES})
"""By rows of a tile: the warp groups that share them."""

SM80_STAGES = 4
"""As many as the planner takes at most by itself."""

Made: TypeAlias = "tuple[ConvSchedule, tuple[int, ...]]"
"""A schedule and the launch parameters: raster, swizzle, splits."""


@dataclass(frozen=True, slots=True)
class Room:
    """What bounds a schedule: the problem, its extents as rows, columns, summed and batch, and the taps that
    the direct kernel's window would have for so many rows, 0 where it has none to keep."""

    problem: ConvProblem
    sizes: tuple[int, ...]
    extents: tuple[int, int, int, int]
    arch: Arch
    device: Device
    taps: Callable[[int], int]


def request_of(s: ConvSchedule, launch: tuple[int, ...]) -> Request:
    """The schedule as fields. One stage, of a sum of one step, is no choice."""
    raster, swizzle, splits = launch
    word = RASTER_WORD[raster]
    match s:
        case DirectSchedule(width, rows, _, _, threads):
            return Request(warps="direct", vector=width, rows=rows, threads=threads)
        case Sm80Schedule(tile, warp, stages, math_):
            return Request(
                warps="multistage",
                tile=tile,
                warp_tile=warp,
                stages=stages,
                split_k=splits,
                raster=word,
                math=None if math_ == "tensor" else math_,
                swizzle=swizzle,
            )
        case Im2colSchedule(tile, _, stages, _, blocks):
            return Request(
                warps="cooperative",
                tile=tile,
                stages=stages if stages > 1 else None,
                blocks=blocks,
                raster=word,
                swizzle=swizzle,
            )
    return Request(warps="cooperative", raster=word, swizzle=swizzle)


def asked(room: Room, own: ConvSchedule, splits: int, request: Request) -> Made | tuple[Violation, ...]:
    """The planner's own schedule of the kernel with what a request fixes, or the rules that are broken."""
    usual = (RASTERS["heuristic"], SWIZZLE, splits)
    if request.given().items() <= request_of(own, usual).given().items():
        return own, usual
    launch = (RASTERS[request.raster or "heuristic"], request.swizzle or SWIZZLE, splits)
    match own:
        case DirectSchedule():
            direct = _direct(room, own, request)
            return found_by(DIRECT, (room, own, direct)) or (direct, launch)
        case Im2colSchedule():
            tiled = _im2col(room, own, request)
            wrong = found_by(IM2COL, (room, own, tiled)) or _ruled(_candidate(room, _FLAT, launch), _SWIZZLE)
            return wrong or (tiled, launch)
        case Sm80Schedule():
            gathered = _gather(room, own, request)
            parts = request.split_k if isinstance(request.split_k, int) else splits
            launch = (*launch[:2], parts)
            wrong = _ruled(_candidate(room, gathered, launch), _GATHER)
            return wrong or found_by(GATHER, (room, own, gathered)) or (gathered, launch)
    if not without(request, "warps", "raster", "swizzle").given():
        return own, launch
    said = "this kernel's tile, stages and blocks are the planner's"
    return (
        Violation(
            "UC0481", said, "leave all but `warps`, `raster` and `swizzle` out", tuple(request.given()), None
        ),
    )


def wanted(request: Request, direct: bool) -> Warps | None:
    """The kernel that a request means, by its word: what it says, or the one kernel that has its fields; None
    where the planner chooses, among the tiled ones or, where there is no tile to share, the `direct` one."""
    among = served(request, KERNELS)
    open_ = "direct" in among if direct else {"im2col", "gather"} <= set(among)
    return request.warps or (None if open_ else WORDS[among[0]][0])


def no_kernel(word: str, why: str) -> tuple[Violation, ...]:
    """UC0480: the kernel that `warps` asks for does not take the convolution."""
    return (
        Violation(
            "UC0480",
            f"`warps {word}`: {why}",
            "leave `warps` out: the compiler takes the kernel that serves this convolution",
            ("warps",),
            None,
        ),
    )


# --- what follows from what is fixed ------------------------------------------------------


def _direct(room: Room, own: DirectSchedule, r: Request) -> DirectSchedule:
    threads = r.threads or own.threads
    if own.turned:
        # The window lies along the neighbours, so that these are the repeats; one by one they stay so.
        rows = r.rows or (r.vector if r.vector and own.width > 1 else own.rows)
        width = r.vector or (rows if own.width > 1 else 1)
        return replace(own, width=width, rows=rows, threads=threads)
    width = r.vector or own.width
    rows = r.rows or (own.rows if _repeats(room.problem, width) else 1)
    return replace(own, width=width, rows=rows, taps=room.taps(rows) if rows > 1 else 0, threads=threads)


def _repeats(problem: ConvProblem, width: int) -> bool:
    """Whether a thread can repeat itself along a window's results: neighbours must be read together."""
    return across_mode(problem) >= 0 and along(problem, problem.a, width > 1) != "kStep"


def _im2col(room: Room, own: Im2colSchedule, r: Request) -> Im2colSchedule:
    tile = r.tile or own.tile
    groups = own.groups if tile[0] == own.tile[0] else GROUPS.get(tile[0], 1)
    held = {b: room_for(room, own, tile, groups, b) for b in range(1, MOST_BLOCKS + 1)}
    fits = [b for b in range(own.blocks, 0, -1) if held[b] > 0]
    blocks = r.blocks or next(iter(fits), own.blocks)
    return replace(
        own, tile=tile, groups=groups, blocks=blocks, stages=r.stages or held.get(blocks, 0) or own.stages
    )


def room_for(room: Room, own: Im2colSchedule, tile: tuple[int, int, int], groups: int, blocks: int) -> int:
    """The most stages of a tile that so many blocks of an SM have room for; 0 where they have none."""
    how = im2col(room.problem)
    assert isinstance(how, Im2col)
    a = room.problem.a
    padded = -(-room.sizes[a.axes[how.channel].extent] // a.pad) * a.pad
    parts = math.prod(_taps(s, room.sizes) for s in how.space) * -(-padded // own.part)
    return stages_held(tile[0], tile[1], groups, blocks, -(-parts // (own.tile[2] // own.part)), room.device)


def _gather(room: Room, own: Sm80Schedule, r: Request) -> Sm80Schedule:
    math_, tile = r.math or own.math, r.tile or own.tile
    same = tile == own.tile and math_ == own.math
    warps = r.warp_tile or (own.warp_tile if same else warp_tile(tile, math_))
    fit = room.arch.shared_memory // stage_bytes(multiplied(room.problem), tile)
    return Sm80Schedule(tile, warps, r.stages or max(2, min(own.stages if same else SM80_STAGES, fit)), math_)


def multiplied(problem: ConvProblem) -> GemmProblem:
    """The product as the multistage kernel multiplies it, operands' elements as they are read."""
    gemm = problem.gemm
    seen = replace(gemm, a=replace(gemm.a, elem=problem.a.read), b=replace(gemm.b, elem=problem.b.read))
    if problem.a.packed is None or problem.a.packed == problem.a.elem:
        return seen
    return replace(seen, lane=TF32, accumulate="f32")


# --- the rules ----------------------------------------------------------------------------

_FLAT = Sm80Schedule((64, 64, 64), (32, 32), 2, "tensor")
"""In place of a schedule where rules look at the launch parameters alone."""

_SWIZZLE = ("UC0432",)
_GATHER = ("UC0412", "UC0426", "UC0428", "UC0432", "UC0440", "UC0441", "UC0442", "UC0443")
"""The rules of the multistage kernel that are of its schedule, not of a GEMM's operands."""


def _candidate(room: Room, s: Sm80Schedule, launch: tuple[int, ...]) -> Candidate:
    """The convolution as the multistage kernel's product, for the rules that both have."""
    gemm = multiplied(room.problem)
    m, n, k, batch = room.extents
    shape = Shape(m, n, k, batch, 0, 0)
    return Candidate(
        room.arch, gemm, room.sizes, shape, s, LaunchParameters(*launch), routes_of(gemm, "sm80"), False
    )


def _ruled(c: Candidate, codes: tuple[str, ...]) -> tuple[Violation, ...]:
    found = ((code, BY_CODE[code].check(c)) for code in codes)
    return tuple(Violation(code, f.message, f.hint, f.fields, None) for code, f in found if f is not None)


def _line(c: tuple[Room, Sm80Schedule, Sm80Schedule]) -> Finding | None:
    """Copies of one line of K are shared by the threads of a block (`emit.conv_sm80.check`)."""
    room, _, s = c
    problem = room.problem
    threads = 32 * (s.tile[0] // s.warp_tile[0]) * (s.tile[1] // s.warp_tile[1])
    for side in sides(problem):
        copies = s.tile[2] // side.copy_width
        if side.along_k and copies > threads:
            return Finding(
                f"a line of {s.tile[2]} elements of K is {copies} copies: a block has {threads} threads",
                "use a smaller K in `tile`, or a smaller `warp_tile`",
                ("tile", "warp_tile"),
                None,
            )
    return None


def _tile(c: tuple[Room, Im2colSchedule, Im2colSchedule]) -> Finding | None:
    room, own, s = c
    (m, n, k), depth = s.tile, own.tile[2]
    how = im2col(room.problem)
    step = 64 if isinstance(how, Im2col) and how.across else 16
    if m in GROUPS and n % step == 0 and step <= n <= 256 and k == depth:
        return None
    rows, near = " or ".join(map(str, sorted(GROUPS))), min(GROUPS, key=lambda r: abs(r - m))
    best = min(256, max(step, round(n / step) * step))
    return Finding(
        f"tile {m}x{n}x{k}: its rows are {rows}, its columns multiples of {step} up to 256, its K is "
        f"{depth}, 128 bytes",
        f"use `tile {near}x{best}x{depth}`",
        ("tile",),
        None,
    )


def _room(c: tuple[Room, Im2colSchedule, Im2colSchedule]) -> Finding | None:
    room, own, s = c
    if _tile(c) is not None:
        return None
    most = room_for(room, own, s.tile, s.groups, s.blocks) if s.blocks <= MOST_BLOCKS else 0
    if most == 0:
        fewer = range(1, min(s.blocks, MOST_BLOCKS + 1))
        less = [b for b in fewer if room_for(room, own, s.tile, s.groups, b)]
        said = f"{s.blocks} blocks of {s.tile[0]}x{s.tile[1]} an SM: registers and shared memory hold "
        return Finding(
            f"{said}{max(less, default=0)}",
            f"use `blocks {max(less)}` or less" if less else "use a smaller `tile`",
            ("blocks", "tile"),
            None,
        )
    if s.stages <= max(most, own.stages if s.tile == own.tile and s.blocks == own.blocks else 0):
        return None
    return Finding(
        f"{s.stages} stages in each of {s.blocks} blocks an SM: {most} fit, or are all that the sum has",
        f"use `stages {most}`" if most > 1 else "leave `stages` out",
        ("stages", "blocks", "tile"),
        None,
    )


def _width(c: tuple[Room, DirectSchedule, DirectSchedule]) -> Finding | None:
    _, own, s = c
    apart = own.turned and own.width > 1 and s.width != s.rows
    if s.width & (s.width - 1) == 0 and s.width <= own.width and not apart:
        return None
    side = "; the window lies along them, so `rows` are as many" if own.turned and own.width > 1 else ""
    return Finding(
        f"{s.width} neighbours and {s.rows} rows a thread: extents and alignments allow powers of two up to "
        f"{own.width} neighbours{side}",
        f"use `vector {own.width}`",
        ("vector", "rows"),
        None,
    )


def _rows(c: tuple[Room, DirectSchedule, DirectSchedule]) -> Finding | None:
    room, own, s = c
    most = 16 if own.turned or _repeats(room.problem, s.width) else 1
    if s.rows <= most:
        return None
    why = "is at most 16" if most > 1 else "is 1: no window slides along results that are read together"
    return Finding(
        f"{s.rows} results of a thread along a window; here it {why}",
        f"use `rows {most}`",
        ("rows", "vector"),
        None,
    )


def _threads(c: tuple[Room, DirectSchedule, DirectSchedule]) -> Finding | None:
    _, _, s = c
    if s.threads % 32 == 0 and 32 <= s.threads <= 512:
        return None
    best = min(512, max(32, round(s.threads / 32) * 32))
    return Finding(
        f"{s.threads} threads a block: whole warps of 32 up to 512 threads are possible",
        f"use `threads {best}`",
        ("threads",),
        None,
    )


IM2COL = (("UC0481", _tile), ("UC0482", _room))
GATHER = (("UC0481", _line),)
DIRECT = (("UC0483", _width), ("UC0483", _rows), ("UC0483", _threads))
"""By code (`ucutlass.codes`), in the order they are asked."""
