"""Legality of convolutions: rules of extents, of the kernel that `warps` chooses, and of each kernel's schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from ucutlass.ir.elements import TF32
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule, without
from ucutlass.kernels.access import Reduction
from ucutlass.kernels.convolution.match import ConvolutionPattern
from ucutlass.kernels.convolution.plan import (
    ConvolutionProblem,
    DepthwiseWgradSchedule,
    DirectSchedule,
    Im2colSchedule,
    RegisterTileSchedule,
    across_mode,
    axis_stride,
    line_mode,
    sides,
    slide,
)
from ucutlass.kernels.convolution.plan_depthwise_wgrad import MOST_SUMS as MOST_TAP_SUMS
from ucutlass.kernels.convolution.plan_im2col import Im2col, im2col
from ucutlass.kernels.convolution.plan_register_tile import MOST_BYTES, shared_bytes
from ucutlass.kernels.convolution.problem import offsets
from ucutlass.kernels.convolution.schedule_im2col import MOST_BLOCKS, SPLITS, TILES, _taps, channel_run
from ucutlass.kernels.convolution.smem import stages_beside_runs, stages_held, storing_registers
from ucutlass.kernels.gemm.plan import GemmProblem, LaunchParameters, Sm80Schedule
from ucutlass.kernels.gemm.problem import Shape
from ucutlass.kernels.gemm.rules import BY_CODE
from ucutlass.kernels.gemm.schedule import GemmCandidate, routes_of
from ucutlass.kernels.rule import Breach, Rule

MOST = 2**31 - 1

MOST_SUMS = 64
"""Of a thread of the direct kernel that computes several lines of results."""

MOST_LINES, MOST_LINE_SUMS = 64, 96
"""Lines of results of such a thread whose neighbours are channels, and the sums of those that it has begun."""

MOST_TILE_SUMS = 128
"""Of a thread's register tile."""

MOST_ROWS = 16
"""Results or positions below one another of a thread."""

"""Rows, columns, contracted elements and positions of windows: the kernels count them in 32 bits."""

GROUPS: Mapping[int, int] = MappingProxyType({rows: groups for rows, _, groups in TILES})
"""By rows of a tile: the warp groups that share them."""

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class ScheduleBounds:
    """What bounds a schedule: the problem, its extents as rows, columns, summed and batch, and the taps that
    the direct kernel's window would have for so many rows, 0 where it has none to keep."""

    problem: ConvolutionProblem
    sizes: tuple[int, ...]
    extents: tuple[int, int, int, int]
    arch: Arch
    device: Device
    taps: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class ConvolutionCandidate(Generic[S]):
    """What bounds a schedule, the planner's own one of the kernel, the schedule with the fields that the
    program fixed, and its launch parameters."""

    bounds: ScheduleBounds
    own: S
    schedule: S
    launch: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConvolutionCase:
    """A pattern with its extents, before it has a schedule."""

    pattern: ConvolutionPattern
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChosenWord:
    """The kernel that `warps` chooses, and why it does not take the convolution; "" where it does."""

    warps: str
    reason: str


@dataclass(frozen=True, slots=True)
class NoRegisterTile:
    """Why threads cannot have the register tile that `columns` asks for."""

    reason: str


# --- extents and the choice of the kernel ---------------------------------------------------


def _extents(c: ConvolutionCase) -> Breach | None:
    pattern, sizes = c.pattern, c.sizes
    k = math.prod(sizes[pattern.position[d]] for d in pattern.k)
    longest = max(
        (sizes[pattern.position[p.name]] for s in (pattern.a, pattern.b) for p in s.axes if p.position),
        default=0,
    )
    far = max((abs(o) for o in offsets(pattern, sizes)), default=0)
    if max(k, 4 * longest, 4 * far) <= MOST:
        return None
    return Breach(
        f"{k} products are summed, windows stand on axes of up to {longest}, offsets go to {far}: a launch "
        f"counts products to {MOST} and positions to a quarter of that",
        "cut the tensor along its longest name",
    )


def _chosen(c: ChosenWord) -> Breach | None:
    if not c.reason:
        return None
    return Breach(
        f"`warps {c.warps}`: {c.reason}",
        "leave `warps` out: the compiler takes the kernel that serves this convolution",
        ("warps",),
    )


# --- what the schedules of a kernel have room for -------------------------------------------


def repeats(problem: ConvolutionProblem, width: int) -> bool:
    """Whether a thread can repeat itself along a window's results: neighbours, if it has any, must be read together."""
    together = width == 1 or axis_stride(problem, problem.a, True) != "kStep"
    return across_mode(problem) >= 0 and together


def most_stages(
    bounds: ScheduleBounds,
    own: Im2colSchedule,
    tile: tuple[int, int, int],
    groups: int,
    blocks: int,
    split_k: int,
) -> int:
    """The most stages of a tile that so many blocks of an SM have room for; 0 where they have none."""
    how = im2col(bounds.problem)
    assert isinstance(how, Im2col)
    run = channel_run(bounds.problem, how, bounds.sizes)
    parts = math.prod(_taps(s, bounds.sizes) for s in how.space) * -(-run // own.part)
    if own.halo:
        stages = stages_beside_runs(
            tile[0], tile[1], groups, own.part, own.halo, parts, bounds.device, bounds.problem.passes
        )
        return stages if blocks == 1 else 0
    return stages_held(
        tile[0],
        tile[1],
        groups,
        blocks,
        -(-parts // (own.tile[2] // own.part) // split_k),
        bounds.device,
        bounds.problem.passes,
        storing_registers(bounds.problem, how, split_k),
    )


def multiplied(problem: ConvolutionProblem) -> GemmProblem:
    """The product as the multistage kernel multiplies it, operands' elements as they are read."""
    gemm = problem.gemm
    widened = replace(gemm, a=replace(gemm.a, elem=problem.a.read), b=replace(gemm.b, elem=problem.b.read))
    if problem.a.packed is None or problem.a.packed == problem.a.elem:
        return widened
    return replace(widened, compute_type=TF32, accumulate="f32")


# --- schedules ------------------------------------------------------------------------------


def _line(c: ConvolutionCandidate[Sm80Schedule]) -> Breach | None:
    """Copies of one line of K are shared by the threads of a block (`emit.conv_sm80.check`)."""
    bounds, s = c.bounds, c.schedule
    problem = bounds.problem
    threads = 32 * (s.tile[0] // s.warp_tile[0]) * (s.tile[1] // s.warp_tile[1])
    for side in sides(problem):
        copies = s.tile[2] // side.copy_width
        if side.along_k and copies > threads:
            return Breach(
                f"a line of {s.tile[2]} elements of K is {copies} copies: a block has {threads} threads",
                "use a smaller K in `tile`, or a smaller `warp_tile`",
                ("tile", "warp_tile"),
                None,
            )
    return None


def _tile(c: ConvolutionCandidate[Im2colSchedule]) -> Breach | None:
    bounds, own, s = c.bounds, c.own, c.schedule
    (m, n, k), depth = s.tile, own.tile[2]
    how = im2col(bounds.problem)
    step = 64 if isinstance(how, Im2col) and how.across else 16
    joined = bounds.problem.b.join is not None
    if m in GROUPS and n % step == 0 and step <= n <= 256 and k == depth and (not joined or n == own.tile[1]):
        return None
    if joined and n != own.tile[1]:
        return Breach(
            f"tile {m}x{n}x{k}: the columns of the groups that share a tile are {own.tile[1]}",
            f"use `tile {m}x{own.tile[1]}x{depth}`",
            ("tile",),
            None,
        )
    rows, near = " or ".join(map(str, sorted(GROUPS))), min(GROUPS, key=lambda r: abs(r - m))
    best = min(256, max(step, round(n / step) * step))
    return Breach(
        f"tile {m}x{n}x{k}: its rows are {rows}, its columns multiples of {step} up to 256, its K is "
        f"{depth}, 128 bytes",
        f"use `tile {near}x{best}x{depth}`",
        ("tile",),
        None,
    )


def _stages_and_blocks(c: ConvolutionCandidate[Im2colSchedule]) -> Breach | None:
    bounds, own, s = c.bounds, c.own, c.schedule
    if _tile(c) is not None:
        return None
    most = most_stages(bounds, own, s.tile, s.groups, s.blocks, s.split_k) if s.blocks <= MOST_BLOCKS else 0
    if most == 0:
        fewer = range(1, min(s.blocks, MOST_BLOCKS + 1))
        less = [b for b in fewer if most_stages(bounds, own, s.tile, s.groups, b, s.split_k)]
        message = f"{s.blocks} blocks of {s.tile[0]}x{s.tile[1]} an SM: registers and shared memory hold "
        return Breach(
            f"{message}{max(less, default=0)}",
            f"use `blocks {max(less)}` or less" if less else "use a smaller `tile`",
            ("blocks", "tile"),
            None,
        )
    if s.stages <= max(most, own.stages if s.tile == own.tile and s.blocks == own.blocks else 0):
        return None
    return Breach(
        f"{s.stages} stages in each of {s.blocks} blocks an SM: {most} fit, or are all that the sum has",
        f"use `stages {most}`" if most > 1 else "leave `stages` out",
        ("stages", "blocks", "tile"),
        None,
    )


def _split_k(c: ConvolutionCandidate[Im2colSchedule]) -> Breach | None:
    split_k, problem = c.schedule.split_k, c.bounds.problem
    whole = {
        "a result that is reduced is not split": any(isinstance(o, Reduction) for o in problem.gemm.outputs),
        "a sum by shared rows is not split": c.own.halo > 0,
        "a sum whose results between neighbours are columns is not split": problem.stacked > 1,
    }
    why = next((words for words, holds in whole.items() if holds), None)
    legal = SPLITS if why is None else (1,)
    if split_k in legal:
        return None
    best = min(legal, key=lambda n: abs(n - split_k))
    why = why or "blocks of a cluster share it"
    return Breach(
        f"split_k {split_k} is not {' or '.join(map(str, legal))}: {why}",
        f"use `split_k {best}`",
        ("split_k",),
    )


def _width(c: ConvolutionCandidate[DirectSchedule]) -> Breach | None:
    own, s = c.own, c.schedule
    apart = own.innermost and own.width > 1 and s.width != s.rows
    if s.width & (s.width - 1) == 0 and s.width <= own.width and not apart:
        return None
    side = "; the window lies along them, so `rows` are as many" if own.innermost and own.width > 1 else ""
    return Breach(
        f"{s.width} neighbours and {s.rows} rows a thread: extents and alignments allow powers of two up to "
        f"{own.width} neighbours{side}",
        f"use `vector {own.width}`",
        ("vector", "rows"),
        None,
    )


def _rows(c: ConvolutionCandidate[DirectSchedule]) -> Breach | None:
    bounds, own, s = c.bounds, c.own, c.schedule
    moving = slide(bounds.problem, len(bounds.problem.batch) - 1) if own.innermost else None
    if moving is not None and not moving.repeats(s.rows):
        return Breach(
            f"{s.rows} results of a thread along a window that reads multiples of {moving.scale}",
            f"use `rows {own.rows}`",
            ("rows", "vector"),
            None,
        )
    most = MOST_ROWS if own.innermost or repeats(bounds.problem, s.width) else 1
    if s.rows <= most:
        return None
    why = "is at most 16" if most > 1 else "is 1: no window slides along results that are read together"
    return Breach(
        f"{s.rows} results of a thread along a window; here it {why}",
        f"use `rows {most}`",
        ("rows", "vector"),
        None,
    )


def _items(c: ConvolutionCandidate[DirectSchedule]) -> Breach | None:
    s, most = c.schedule, MOST_SUMS // c.schedule.rows if c.own.item_taps else 0
    lines = (
        slide(c.bounds.problem, line_mode(c.bounds.problem, s.innermost)) if s.items > 1 and most else None
    )
    if lines is not None and not s.innermost:
        begun = (s.item_taps - 1) // lines.step + 1
        most = MOST_LINES if s.taps and begun * s.rows * s.width <= MOST_LINE_SUMS else 1
    if lines is not None and not lines.repeats(s.items):
        return Breach(
            f"{s.items} lines of results of a thread, whose window reads multiples of {lines.scale}",
            f"use `items {lines.scale}`",
            ("items", "rows"),
            None,
        )
    if s.items <= most:
        return None
    sums = MOST_SUMS if s.innermost else MOST_LINE_SUMS
    why = f"a thread keeps at most {sums} sums" if most else "no second window slides along them"
    return Breach(
        f"{s.items} lines of {s.rows} results of a thread, of which {most} are possible: {why}",
        f"use `items {most}`" if most else "leave `items` out",
        ("items", "rows"),
        None,
    )


def _tap_sums(c: ConvolutionCandidate[DepthwiseWgradSchedule]) -> Breach | None:
    s, problem = c.schedule, c.bounds.problem
    taps = math.prod(s.taps)
    aligned = min(problem.a.align, problem.b.align) if c.own.lanes > 1 else 1
    most = max(w for w in (1, 2, 4, 8) if w == 1 or (w <= aligned and w * taps <= MOST_TAP_SUMS))
    if s.width & (s.width - 1) == 0 and s.width <= most and s.rows <= MOST_ROWS:
        return None
    return Breach(
        f"{s.width} channels of {taps} taps and {s.rows} rows a thread: extents, alignments and registers allow "
        f"powers of two up to {most} channels and {MOST_ROWS} rows",
        f"use `vector {min(s.width, most)}` and `rows {min(s.rows, MOST_ROWS)}`",
        ("vector", "rows"),
        None,
    )


def _register_tile(c: ConvolutionCandidate[RegisterTileSchedule]) -> Breach | None:
    s = c.schedule
    if s.rows * s.columns > MOST_TILE_SUMS:
        return Breach(
            f"{s.rows} positions by {s.columns} columns a thread: it keeps at most {MOST_TILE_SUMS} sums",
            f"use `rows {max(1, MOST_TILE_SUMS // s.columns)}`",
            ("rows", "columns"),
            None,
        )
    need = shared_bytes(c.bounds.problem, s, c.bounds.sizes)
    if need <= MOST_BYTES:
        return None
    return Breach(
        f"the weights of {s.columns} columns take {need} bytes of shared memory: a block has {MOST_BYTES}",
        "use fewer `columns`",
        ("columns",),
        None,
    )


def _no_register_tile(c: NoRegisterTile) -> Breach:
    return Breach(f"`columns`: {c.reason}", "leave `columns` out", ("columns",))


def _threads(c: ConvolutionCandidate[Any]) -> Breach | None:
    s = c.schedule
    if s.threads % 32 == 0 and 32 <= s.threads <= 512:
        return None
    best = min(512, max(32, round(s.threads / 32) * 32))
    return Breach(
        f"{s.threads} threads a block: whole warps of 32 up to 512 threads are possible",
        f"use `threads {best}`",
        ("threads",),
        None,
    )


def _wgrad(request: PartialSchedule) -> Breach | None:
    if not without(request, "warps", "fold", "math", "raster", "swizzle").fixed():
        return None
    return Breach(
        "this kernel's tile, stages and blocks are the planner's",
        "leave all but `warps`, `math`, `raster` and `swizzle` out",
        tuple(request.fixed()),
    )


# --- GEMM's rules of the multistage kernel --------------------------------------------------

_FLAT = Sm80Schedule((64, 64, 64), (32, 32), 2, "tensor")
"""In place of a schedule where a rule reads the launch parameters alone."""


def _as_gemm(bounds: ScheduleBounds, s: Sm80Schedule, launch: tuple[int, ...]) -> GemmCandidate:
    """The convolution as the multistage kernel's product, for the rules that both have."""
    gemm = multiplied(bounds.problem)
    m, n, k, batch = bounds.extents
    shape = Shape(m, n, k, batch, 0, 0)
    return GemmCandidate(
        bounds.arch, gemm, bounds.sizes, shape, s, LaunchParameters(*launch), routes_of(gemm, "sm80"), False
    )


def _of_gemm(code: str, variants: frozenset[str]) -> Rule[ConvolutionCandidate[Any]]:
    """A GEMM's rule for a convolution; its nearest neighbour would be a GEMM's."""
    rule = BY_CODE[code]

    def check(c: ConvolutionCandidate[Any]) -> Breach | None:
        s = c.schedule if isinstance(c.schedule, Sm80Schedule) else _FLAT
        breach = rule.check(_as_gemm(c.bounds, s, c.launch))
        return None if breach is None else replace(breach, nearest=None)

    return Rule(rule.code, rule.title, rule.text, rule.source, check, variants)


# --- the tables -----------------------------------------------------------------------------

_IM2COL, _GATHER, _DIRECT = (frozenset({name}) for name in ("im2col", "gather", "direct"))

EXTENT_RULES: tuple[Rule[ConvolutionCase], ...] = (
    Rule(
        "UC0460",
        "positions of a convolution",
        "more elements than a launch numbers",
        "emit/convolution: positions are counted in 32 bits",
        _extents,
        _IM2COL | _GATHER | _DIRECT,
    ),
)

VARIANT_RULES: tuple[Rule[ChosenWord], ...] = (
    Rule(
        "UC0480",
        "the kernel of a convolution",
        "a kernel that does not take the convolution",
        "PTX ISA, cp.async.bulk.tensor im2col mode: the layouts that TMA gathers",
        _chosen,
        _IM2COL | _GATHER | _DIRECT,
    ),
)

_TILE = "a tile that a convolution's kernel does not take"

IM2COL_RULES: tuple[Rule[ConvolutionCandidate[Im2colSchedule]], ...] = (
    Rule(
        "UC0481",
        "im2col tile",
        _TILE,
        "PTX ISA, wgmma.mma_async: N to 256, swizzled rows of 128 bytes",
        _tile,
        _IM2COL,
    ),
    Rule(
        "UC0481",
        "blocks of a sum",
        _TILE,
        "CUDA C++ Programming Guide: a portable cluster has up to 8 thread blocks",
        _split_k,
        _IM2COL,
    ),
    Rule(
        "UC0482",
        "stages and blocks of an SM",
        "stages and blocks of an SM that a convolution's tile leaves no room for",
        "CUDA C++ Programming Guide: 65536 registers and 228 KiB of shared memory an SM",
        _stages_and_blocks,
        _IM2COL,
    ),
)

_SWIZZLE = _of_gemm("UC0432", _IM2COL | _GATHER)

IM2COL_LAUNCH_RULES: tuple[Rule[ConvolutionCandidate[Any]], ...] = (_SWIZZLE,)

GEMM_RULES: tuple[Rule[ConvolutionCandidate[Any]], ...] = (
    *(_of_gemm(code, _GATHER) for code in ("UC0412", "UC0426", "UC0428")),
    _SWIZZLE,
    *(_of_gemm(code, _GATHER) for code in ("UC0440", "UC0441", "UC0442", "UC0443")),
)
"""Those that judge the multistage kernel's schedule, not a GEMM's operands."""

GATHER_RULES: tuple[Rule[ConvolutionCandidate[Sm80Schedule]], ...] = (
    Rule(
        "UC0481",
        "multistage line of K",
        _TILE,
        "emit/convolution/sm80.py: the threads of a block share the copies of a line of K",
        _line,
        _GATHER,
    ),
)

WGRAD_RULES: tuple[Rule[PartialSchedule], ...] = (
    Rule(
        "UC0481",
        "wgrad schedule",
        _TILE,
        "kernels/convolution/schedule_wgrad.py: the planner derives tile, stages and blocks from the windows",
        _wgrad,
        _IM2COL,
    ),
)

_VECTORS = "neighbours, rows or threads that the direct convolution does not take"

DIRECT_RULES: tuple[Rule[ConvolutionCandidate[DirectSchedule]], ...] = (
    Rule(
        "UC0483",
        "direct vectors",
        _VECTORS,
        "PTX ISA, ld.global.v2, v4: addresses are multiples of the vector's bytes",
        _width,
        _DIRECT,
    ),
    Rule(
        "UC0483",
        "direct rows",
        _VECTORS,
        "CUDA C++ Programming Guide: 255 registers a thread",
        _rows,
        _DIRECT,
    ),
    Rule(
        "UC0483",
        "direct items",
        _VECTORS,
        "CUDA C++ Programming Guide: 255 registers a thread",
        _items,
        _DIRECT,
    ),
    Rule(
        "UC0483",
        "direct threads",
        _VECTORS,
        "65536 registers an SM: 512 threads have 128 each",
        _threads,
        _DIRECT,
    ),
)

DEPTHWISE_WGRAD_RULES: tuple[Rule[ConvolutionCandidate[DepthwiseWgradSchedule]], ...] = (
    Rule(
        "UC0483",
        "sums of taps",
        _VECTORS,
        "CUDA C++ Programming Guide: 255 registers a thread",
        _tap_sums,
        _DIRECT,
    ),
    Rule(
        "UC0483",
        "threads of sums of taps",
        _VECTORS,
        "65536 registers an SM: 512 threads have 128 each",
        _threads,
        _DIRECT,
    ),
)

REGISTER_TILE_RULES: tuple[Rule[ConvolutionCandidate[RegisterTileSchedule]], ...] = (
    Rule(
        "UC0483",
        "register tile",
        _VECTORS,
        "CUDA C++ Programming Guide: 255 registers a thread, 227 KiB of shared memory a block",
        _register_tile,
        _DIRECT,
    ),
    Rule(
        "UC0483",
        "threads of register tiles",
        _VECTORS,
        "65536 registers an SM: 512 threads have 128 each",
        _threads,
        _DIRECT,
    ),
)

NO_REGISTER_TILE_RULES: tuple[Rule[NoRegisterTile], ...] = (
    Rule(
        "UC0483",
        "register tile of a convolution",
        _VECTORS,
        "kernels/convolution/plan_register_tile.py: one name of the weights' own, windows of one tap",
        _no_register_tile,
        _DIRECT,
    ),
)

RULES: tuple[Rule[Any], ...] = (
    *GEMM_RULES,
    *EXTENT_RULES,
    *VARIANT_RULES,
    *IM2COL_RULES,
    *GATHER_RULES,
    *WGRAD_RULES,
    *DIRECT_RULES,
    *DEPTHWISE_WGRAD_RULES,
    *REGISTER_TILE_RULES,
    *NO_REGISTER_TILE_RULES,
)
