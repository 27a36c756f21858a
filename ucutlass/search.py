"""The planner's search space: what to try for every field that was left out, and how a
request becomes a concrete candidate. Small on purpose: planning takes milliseconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, Literal

from ucutlass.hardware import Arch, Device
from ucutlass.plan import (
    Access,
    CoordinateValue,
    GemmProblem,
    GemvSchedule,
    Instruction,
    Knobs,
    Reduction,
    Sm80Schedule,
    Sm90Schedule,
    Store,
)
from ucutlass.rules.candidate import Candidate, Shape, ceil_div, routes_of, shape_of
from ucutlass.rules.memory import most_stages, sm80_memory, sm90_memory
from ucutlass.rules.operands import GEMV_COLUMNS, WGMMA_LANES
from ucutlass.schedule import FAMILY, RASTERS, Family, Request, Warps, families

# --- transposition -----------------------------------------------------------------


def _turn(access: Access) -> Access:
    return replace(access, m=access.n, n=access.m)


def _turn_instruction(instruction: Instruction) -> Instruction:
    match instruction:
        case CoordinateValue(mode="m"):
            return replace(instruction, mode="n")
        case CoordinateValue(mode="n"):
            return replace(instruction, mode="m")
        case _:
            return instruction


def transpose(problem: GemmProblem) -> GemmProblem:
    """The same computation with M and N, and A and B, in each other's place."""
    turned: list[Store | Reduction] = [replace(o, access=_turn(o.access)) for o in problem.outputs]
    arithmetic = replace(
        problem.arithmetic, instructions=tuple(_turn_instruction(i) for i in problem.arithmetic.instructions)
    )
    return replace(
        problem, m=problem.n, n=problem.m, a=_turn(problem.b), b=_turn(problem.a),
        inputs=tuple(_turn(t) for t in problem.inputs), outputs=tuple(turned), arithmetic=arithmetic,
    )


# --- one candidate -----------------------------------------------------------------

MOST_STAGES = 12
"""More stages than this hide nothing: 12 x 16 KiB cover DRAM's latency several times."""


def build(problem: GemmProblem, sizes: tuple[int, ...], arch: Arch, request: Request) -> Candidate:
    """The candidate that a request stands for; fields still left out get their plain default.

    The request fixes `warps`, and `tile` for the tiled kernels.
    """
    swapped = request.swap == "yes"
    problem = transpose(problem) if swapped else problem
    assert request.warps is not None
    family = FAMILY[request.warps]
    routes = routes_of(problem, family)
    shape = shape_of(problem, sizes)
    splits = 0 if request.split_k == "stream" else request.split_k or 1
    knobs = Knobs(RASTERS[request.raster or "heuristic"], request.swizzle or 1, splits)
    schedule: Sm90Schedule | Sm80Schedule | GemvSchedule
    match request.warps:
        case "gemv":
            schedule = gemv_schedule(problem, shape, request)
        case "multistage":
            assert request.tile is not None
            schedule = _sm80_schedule(problem, arch, request, request.tile)
        case "pingpong" | "cooperative" as warps:
            assert request.tile is not None
            most = most_stages(sm90_memory(problem, routes, request.tile, warps, 2), arch.shared_memory)
            schedule = Sm90Schedule(
                request.tile, request.cluster or (1, 1), request.stages or max(2, min(most, MOST_STAGES)), warps,
                "persistent" if splits == 1 else "stream_k",
            )
    return Candidate(arch, problem, sizes, shape, schedule, knobs, routes, swapped)


def _sm80_schedule(
    problem: GemmProblem, arch: Arch, request: Request, tile: tuple[int, int, int]
) -> Sm80Schedule:
    math: Literal["tensor", "tf32x3", "simt"] = request.math or ("tf32x3" if problem.lane.name == "f32" else "tensor")
    most = most_stages(sm80_memory(problem, tile, 1), arch.shared_memory)
    return Sm80Schedule(
        tile, request.warp_tile or warp_tile(tile, math), request.stages or max(2, min(most, _SM80_STAGES)), math
    )


_SM80_STAGES = 4


def warp_tile(tile: tuple[int, int, int], math: str) -> tuple[int, int]:
    """Four warps, eight where four would hold too many accumulators: as CUTLASS's generator."""
    m, n, _ = tile
    best = (min(m, 64), min(n, 64))
    if math != "tensor" and m * n >= 128 * 128:
        best = (min(m, 32), min(n, 64))
    elif (m // best[0]) * (n // best[1]) < 4:
        best = (max(16, m // 2), max(16, n // 2))
    while (m // best[0]) * (n // best[1]) > 8 and best[0] < m:
        best = (best[0] * 2, best[1])
    return best


def gemv_schedule(problem: GemmProblem, shape: Shape, request: Request) -> GemvSchedule:
    """Columns as N needs; fewer rows a block for a short matrix, so that every SM gets some."""
    columns = request.columns or next((w for w in (1, 2, 4, 8) if w >= shape.n), GEMV_COLUMNS)
    wide = problem.a.k[-1] == ()
    threads = request.threads or (128 if shape.k * problem.a.elem.bytes >= 4096 or not wide else 64)
    rows = request.rows or (4 if wide and shape.m * shape.batch >= 4096 else 2 if wide else 1)
    return GemvSchedule(rows, columns, threads)


# --- the space ---------------------------------------------------------------------

Tiles = tuple[tuple[Warps, tuple[int, int]], ...]

_SM90_LARGE: Tiles = (
    ("cooperative", (128, 256)), ("cooperative", (256, 128)), ("cooperative", (128, 128)),
    ("pingpong", (128, 128)), ("pingpong", (64, 256)), ("pingpong", (64, 128)), ("pingpong", (128, 64)),
    ("cooperative", (256, 192)), ("cooperative", (128, 192)), ("cooperative", (256, 96)), ("pingpong", (64, 192)),
)
_SM90_SMALL: Tiles = (
    ("pingpong", (64, 64)), ("pingpong", (64, 32)), ("pingpong", (64, 16)),
    ("cooperative", (128, 64)), ("cooperative", (128, 32)), ("cooperative", (128, 16)),
)
_CLUSTERS = ((1, 1), (2, 1), (1, 2))

_SM80_TILES = ((128, 128), (128, 256), (256, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (256, 64))


def expand(
    problem: GemmProblem, shape: Shape, device: Device, request: Request, tried: tuple[Family, ...]
) -> Iterator[Request]:
    """The requests to price for these kernel families: the given one with its open fields filled."""
    for family in tried:
        match family:
            case "sm90":
                yield from _expand_sm90(problem, shape, device, request)
            case "gemv":
                yield from _expand_gemv(shape, request)
            case "sm80":
                yield from _expand_sm80(problem, shape, device, request)


def rounds(problem: GemmProblem, shape: Shape, arch: Arch, request: Request) -> tuple[tuple[Family, ...], ...]:
    """Kernel families to price together; a later round is for when the rules leave none of an
    earlier one. The multistage kernel comes after Hopper's where those can run at all."""
    allowed = families(request)
    if request.warps is not None:
        return (allowed,)
    short = min(shape.m, shape.n) <= GEMV_COLUMNS
    gemv: tuple[Family, ...] = ("gemv",) if "gemv" in allowed and (short or len(allowed) == 1) else ()
    sm80: tuple[Family, ...] = ("sm80",) if "sm80" in allowed else ()
    if "sm90" in allowed and (_sm90_likely(problem, arch) or not sm80):
        return (("sm90", *gemv), sm80) if sm80 else (("sm90", *gemv),)
    return ((*sm80, *gemv),)


def _sm90_likely(problem: GemmProblem, arch: Arch) -> bool:
    """A glance that spares pricing; the rules decide."""
    aligned = all(t.align * t.elem.bytes >= 16 for t in (problem.a, problem.b))
    return arch.wgmma and aligned and len(problem.k) == 1 and problem.lane.name in WGMMA_LANES


def _swaps(shape: Shape, request: Request) -> tuple[Literal["no", "yes"], ...]:
    """The transpose is worth pricing where M is too short for a tile's 64 rows."""
    if request.swap is not None:
        return (request.swap,)
    return ("no", "yes") if shape.m < 64 and shape.m < shape.n else ("no",)


def _expand_sm90(problem: GemmProblem, shape: Shape, device: Device, request: Request) -> Iterator[Request]:
    size = problem.lane.bytes
    depth = request.tile[2] if request.tile else 128 // size
    swaps: tuple[Literal["no", "yes"], ...] = _swaps(shape, request)
    if problem.lane.name == "tf32" and request.swap is None:
        swaps, depth = _tf32_orders(problem, request, depth)
    for swap in swaps:
        m, n = (shape.n, shape.m) if swap == "yes" else (shape.m, shape.n)
        for warps, tile in _sm90_tiles(m, n, depth, request):
            for cluster in _clusters(m, n, tile, request):
                for split in _splits(shape, tile, cluster, warps, device, request, m, n):
                    yield replace(
                        request, warps=warps, tile=tile, cluster=cluster, split_k=split, swap=swap,
                        swizzle=request.swizzle or _swizzle(m, n, tile, cluster, shape, size, device),
                    )


def _tf32_orders(
    problem: GemmProblem, request: Request, depth: int
) -> tuple[tuple[Literal["no", "yes"], ...], int]:
    """K-major A with N-major B runs only swapped; both MN-major needs 32 elements of K."""
    if problem.b.k[-1] == ():
        return ("no",), depth
    return (("yes",), depth) if problem.a.k[-1] == () else (("no",), depth if request.tile else 32)


def _sm90_tiles(m: int, n: int, depth: int, request: Request) -> Iterator[tuple[Warps, tuple[int, int, int]]]:
    if request.tile is not None:
        options: tuple[Warps, ...] = (request.warps,) if request.warps else (
            ("cooperative", "pingpong") if request.tile[0] % 128 == 0 else ("pingpong",)
        )
        yield from ((w, request.tile) for w in options)
        return
    small = m <= 1024 or n <= 1024 or m * n <= 2048 * 2048
    for warps, (tile_m, tile_n) in _SM90_LARGE + (_SM90_SMALL if small else ()):
        if request.warps not in (None, warps) or (request.split_k not in (None, 1) and warps == "pingpong"):
            continue
        if (tile_n >= 2 * n and tile_n > 16) or (tile_m >= 2 * m and tile_m > (128 if warps == "cooperative" else 64)):
            continue
        yield warps, (tile_m, tile_n, depth)


def _clusters(m: int, n: int, tile: tuple[int, int, int], request: Request) -> tuple[tuple[int, int], ...]:
    if request.cluster is not None:
        return (request.cluster,)
    return tuple(
        c for c in _CLUSTERS
        if c == (1, 1) or (c[0] > 1 and m > tile[0] and tile[1] % 16 == 0) or (c[1] > 1 and n > tile[1])
    )


def _splits(
    shape: Shape, tile: tuple[int, int, int], cluster: tuple[int, int], warps: Warps, device: Device,
    request: Request, m: int, n: int,
) -> tuple[int | Literal["stream"], ...]:
    """No split, and where fewer than half the slots have a tile, the split that fills them."""
    if request.split_k is not None:
        return (request.split_k,)
    tiles = ceil_div(m, tile[0]) * ceil_div(n, tile[1]) * shape.batch
    steps = ceil_div(shape.k, tile[2])
    if warps not in ("cooperative", "multistage") or steps < 16:
        return (1,)
    if 2 * tiles > device.sms:
        tail = tiles % device.sms
        return (1, "stream") if warps == "cooperative" and 0 < 2 * tail < device.sms and tiles < 4 * device.sms else (1,)
    most = min(device.sms // tiles, steps // 4, 16)
    return (1, most) if most > 1 else (1,)


def _swizzle(
    m: int, n: int, tile: tuple[int, int, int], cluster: tuple[int, int], shape: Shape, size: int, device: Device
) -> int:
    """The widest swizzle up to 4 that adds no tiles, once the operands outgrow L2."""
    if (m + n) * shape.k * size < device.l2:
        return 1
    rows, columns = ceil_div(m, tile[0]), ceil_div(n, tile[1])
    return next((s for s in (4, 2) if rows % (s * cluster[0]) == 0 and columns % (s * cluster[1]) == 0), 1)


def _expand_sm80(problem: GemmProblem, shape: Shape, device: Device, request: Request) -> Iterator[Request]:
    maths: tuple[Literal["tf32x3", "simt"] | None, ...] = (request.math,)
    if problem.lane.name == "f32" and request.math is None:
        maths = ("tf32x3", "simt")
    for swap in (request.swap,) if request.swap else ("no",):
        m, n = (shape.n, shape.m) if swap == "yes" else (shape.m, shape.n)
        for math in maths:
            for tile in _sm80_tiles(m, n, problem, math, request):
                for split in _splits(shape, tile, (1, 1), "multistage", device, request, m, n):
                    if split != 1 and problem.accumulate == "f16" and request.split_k is None:
                        continue
                    yield replace(request, warps="multistage", tile=tile, math=math, split_k=split, swap=swap)


def _sm80_tiles(
    m: int, n: int, problem: GemmProblem, math: str | None, request: Request
) -> Iterator[tuple[int, int, int]]:
    if request.tile is not None:
        yield request.tile
        return
    depth = 8 if math == "simt" else 64 // problem.lane.bytes
    for tile_m, tile_n in _SM80_TILES:
        if (tile_n >= 2 * n and tile_n > 32) or (tile_m >= 2 * m and tile_m > 32):
            continue
        if math is not None and tile_m * tile_n > 128 * 128:
            continue
        yield (tile_m, tile_n, depth)


def _expand_gemv(shape: Shape, request: Request) -> Iterator[Request]:
    if request.swap is not None:
        yield replace(request, warps="gemv")
        return
    if shape.n <= GEMV_COLUMNS or shape.m > GEMV_COLUMNS:
        yield replace(request, warps="gemv", swap="no")
    if shape.m <= GEMV_COLUMNS:
        yield replace(request, warps="gemv", swap="yes")
