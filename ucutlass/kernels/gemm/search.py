"""The planner's search space: what to try for every field that was left out. Small on purpose:
planning takes milliseconds, and the rules still judge every candidate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, sqrt
from typing import TypeAlias

from ucutlass.ir.hardware import cluster_slots, clusters_at_a_time
from ucutlass.ir.schedule import Math, Partials, PartialSchedule, SplitK, Warps
from ucutlass.kernels.gemm.plan import COOPERATIVE_MATHS, MAX_CLUSTER, REGISTER_MATHS, multipliers
from ucutlass.kernels.gemm.problem import Shape, ceil_div
from ucutlass.kernels.gemm.rules.operands import WGMMA_TYPES
from ucutlass.kernels.gemm.rules.tiles import (
    MAX_REGISTERS_F32_RS,
    MAX_TILE,
    MIN_TILE_N,
    THREADS,
    accumulator_sets,
    most_accumulators,
)
from ucutlass.kernels.gemm.schedule import COLUMNS, TMA_BYTES, Orientation, PlanningCase, Swap
from ucutlass.kernels.gemm.smem import across_k, operand_parts
from ucutlass.kernels.gemm.variants import variants_of

Tile: TypeAlias = tuple[int, int, int]

SWAPS: tuple[Swap, ...] = ("no", "yes")

WarpsTile: TypeAlias = tuple[Warps, tuple[int, int]]
"""Warps, and the elements of a tile along M and N."""

_LARGE: tuple[WarpsTile, ...] = (
    ("cooperative", (128, 256)),
    ("cooperative", (256, 128)),
    ("cooperative", (128, 128)),
    ("pingpong", (128, 128)),
    ("pingpong", (64, 256)),
    ("pingpong", (64, 128)),
    ("pingpong", (128, 64)),
    ("cooperative", (256, 192)),
    ("cooperative", (128, 192)),
    ("cooperative", (256, 96)),
    ("pingpong", (64, 192)),
)
_SMALL: tuple[WarpsTile, ...] = (
    ("pingpong", (64, 64)),
    ("pingpong", (64, 32)),
    ("pingpong", (64, 16)),
    ("cooperative", (128, 64)),
    ("cooperative", (128, 32)),
    ("cooperative", (128, 16)),
)
"""Tiles of the Hopper kernels that are tried for every shape; `fitted` has the others."""

_LEAST: dict[Warps, int] = {"pingpong": 64, "cooperative": 128}
"""The smallest tile M."""

_LEAST_N = 16

_SMALL_SIDE = 1024
_SMALL_AREA = 2048 * 2048
"""Small tiles are tried for results no longer than the one or no larger than the other."""

_CLUSTERS = ((1, 1), (2, 1), (1, 2))
_WIDE_CLUSTERS = ((2, 2), (4, 1), (1, 4))
_WIDE = 4
"""For tiles that were fitted to one wave or leave half of the SMs to parts of K, which loads bind: so many SMs read the
same rows at once."""

_MULTISTAGE = (
    (128, 128),
    (128, 256),
    (256, 128),
    (128, 64),
    (64, 128),
    (64, 64),
    (64, 32),
    (32, 64),
    (256, 64),
    (32, 32),
)
_MULTISTAGE_F32 = 128 * 128
"""The largest multistage tile area for compute type f32, whose accumulators are half as many."""

_WARP_GRIDS = ((2, 2), (2, 4), (4, 2), (1, 2), (2, 1), (1, 1))
"""Warps along M and N to try where the warp tile is given and the tile is not."""

LINE = 128
"""Bytes of K in a tile: one line of the widest swizzle."""

_RING = 3
"""Steps of K in flight that hide the loads of the next one."""

_LONG_K = 16
"""Steps of K from which splitting, or a deeper tile, can pay."""

_LITTLE = 64 * 64
"""Area of tiles whose step of K is short beside its barriers."""

_FRAGMENTS = 32
"""Registers of what A is split into, in tiles of 64 rows to a warp group and 32 elements of K."""

_SKINNY = 2048
"""Below this extent the transpose may fit the tile's rows better: of 1336 rows 12 tiles of 112 leave less than 11 of 128."""


def rounds(case: PlanningCase, request: PartialSchedule) -> tuple[tuple[str, ...], ...]:
    """Kernel families to price together; a later round is for when the rules leave none of an
    earlier one. The multistage kernel comes after Hopper's where those can run at all, but for f32."""
    allowed = variants_of(request)
    if request.warps is not None:
        return (allowed,)
    shape = case.written.shape
    short = min(shape.m, shape.n) <= COLUMNS[-1]
    gemv: tuple[str, ...] = ("gemv",) if "gemv" in allowed and (short or len(allowed) == 1) else ()
    sm80: tuple[str, ...] = ("sm80",) if "sm80" in allowed else ()
    if request.math in COOPERATIVE_MATHS:
        return (("sm90",),)
    likely = request.math != "simt" and _sm90_likely(case)
    if "sm90" in allowed and (likely or not sm80):
        if case.written.problem.compute_type.name == "f32":
            # For wgmma a launch splits the operands first, which does not pay where there is little to do.
            return (("sm90", *sm80, *gemv),)
        return (("sm90", *gemv), sm80) if sm80 else (("sm90", *gemv),)
    return ((*sm80, *gemv),)


def _sm90_likely(case: PlanningCase) -> bool:
    """A glance that spares pricing; the rules decide."""
    problem = case.written.problem
    aligned = all(t.align * t.elem.bytes >= TMA_BYTES for t in (problem.a, problem.b))
    return case.arch.wgmma and aligned and len(problem.k) == 1 and problem.compute_type.name in WGMMA_TYPES


def expand(case: PlanningCase, request: PartialSchedule, tried: tuple[str, ...]) -> Iterator[PartialSchedule]:
    """The requests to price for these kernel families: the given one with its open fields filled."""
    for family in tried:
        match family:
            case "sm90":
                yield from _sm90(case, request)
            case "gemv":
                yield from _gemv(case, request)
            case "sm80":
                yield from _sm80(case, request)


# --- Hopper ------------------------------------------------------------------------


def _sm90(case: PlanningCase, request: PartialSchedule) -> Iterator[PartialSchedule]:
    for math in _maths(case, request):
        warps = "cooperative" if math in COOPERATIVE_MATHS and request.warps is None else request.warps
        yield from _sm90_of(case, replace(request, math=math, warps=warps))


def _maths(case: PlanningCase, request: PartialSchedule) -> tuple[Math | None, ...]:
    """How f32 is multiplied: None is what a launch before splits."""
    open_ = case.written.problem.compute_type.name == "f32" and request.math is None
    cooperative: tuple[Math | None, ...] = (None, "tf32x3_rs", "tf32x3_fused", "f16x3")
    return cooperative if open_ and request.warps != "pingpong" else (request.math,)


def _sm90_of(case: PlanningCase, request: PartialSchedule) -> Iterator[PartialSchedule]:
    written, depth = _orders(case, request)
    if case.written.problem.arithmetic.statistics:
        yield from _whole_rows(case, depth, request)
        return
    # In the other orientation a tile's columns divide M, which pays where there are few.
    for swap in SWAPS if request.swap is None else written:
        side = case.side(swap)
        fits = _fitted(case, side.shape, request)
        trimmed = _trimmed(case, side.shape, depth, request, fits)
        # Of few rows of f32 the zeros in a tile are work by any division.
        divided = request if request.math in REGISTER_MATHS else replace(request, partials="cluster")
        tiles: list[tuple[Warps, Tile, PartialSchedule]] = [
            ("cooperative", tile, divided) for tile in trimmed
        ]
        if swap in written:
            tiles += [(*tile, request) for tile in _sm90_tiles(case, side.shape, depth, request, fits)]
        for warps, tile, fields in tiles:
            for cluster in _clusters(case, side.shape, tile, request):
                for split, partials in _divisions(case, side.shape, tile, warps, cluster, fields):
                    yield replace(
                        request,
                        warps=warps,
                        tile=tile,
                        cluster=cluster,
                        split_k=split,
                        partials=partials,
                        swap=swap,
                        swizzle=request.swizzle or _swizzle(case, side, tile, cluster),
                    )


def _whole_rows(case: PlanningCase, depth: int, request: PartialSchedule) -> Iterator[PartialSchedule]:
    """Clusters whose tiles hold whole rows, as wide as these are."""
    swap = request.swap or ("no" if case.written.problem.arithmetic.statistics[0].along == "n" else "yes")
    shape = case.side(swap).shape
    clusters = [(m, n) for m in (1, 2) for n in (1, 2, 4, 8) if m * n <= MAX_CLUSTER]
    for cluster in clusters if request.cluster is None else [request.cluster]:
        m, n = cluster
        widths = {ceil_div(ceil_div(shape.n, n), step) * step for step in (MIN_TILE_N, _WHOLE_STEP)}
        widths = {width for width in widths if width <= MAX_TILE and width % (8 * m) == 0}
        tiles = [(w, (rows, width, depth)) for width in sorted(widths) for w, rows in _ROWS]
        if request.tile is not None:
            tiles = [(w, request.tile) for w in ("cooperative", "pingpong")]
        for warps, tile in tiles:
            if request.warps in (None, warps):
                yield replace(
                    request, warps=warps, tile=tile, cluster=cluster, swap=swap, split_k=request.split_k or 1
                )


_WHOLE_STEP = 32
"""Columns of which tiles that hold whole rows have a multiple too: those that an epilogue stores at once."""

_ROWS: tuple[tuple[Warps, int], ...] = (
    ("cooperative", 128),
    ("cooperative", 256),
    ("pingpong", 64),
    ("pingpong", 128),
)
"""Rows of tiles that hold whole rows in a cluster."""


def _orders(case: PlanningCase, request: PartialSchedule) -> tuple[tuple[Swap, ...], int]:
    """Orientations to try, and the tile's K. tf32 that lies across K passes through registers as A and is turned in
    shared memory as B, which take different times."""
    problem, shape = case.written.problem, case.written.shape
    item = multipliers(problem, request.math or "tensor").compute_type.bytes
    depth = request.tile[2] if request.tile else LINE // item
    if request.swap is not None:
        return (request.swap,), depth
    # The smaller operand of f32 is the one to split ahead.
    both = min(shape.m, shape.n) < _SKINNY or request.math in REGISTER_MATHS or across_k(problem)
    return ("no", "yes") if both else ("no",), depth


def _fitted(case: PlanningCase, shape: Shape, request: PartialSchedule) -> tuple[WarpsTile, ...]:
    if request.tile is not None:
        return ()
    held, listed = _most_accumulators(case, request), _listed(shape, request)
    # Wide clusters leave some SMs idle.
    slots = (case.device.sms, cluster_slots(case.device, _WIDE))
    tiles = dict.fromkeys(tile for count in slots for tile in fitted(shape, count, held, listed))
    return tuple(tile for tile in tiles if request.warps in (None, tile[0]))


def _trimmed(
    case: PlanningCase, shape: Shape, depth: int, request: PartialSchedule, fits: tuple[WarpsTile, ...]
) -> tuple[Tile, ...]:
    """Tiles whose columns divide N with little beside it, for a K that is divided in a cluster: such products have
    so few tiles that the zeros in them are much of the work."""
    open_ = request.tile is None and request.split_k is None and request.partials != "memory"
    if not open_ or request.warps not in (None, "cooperative") or shape.k < _LONG_K * depth:
        return ()
    others = {tile for _, tile in (*_listed(shape, request), *fits)}
    held = _most_accumulators(case, request)
    tiles = []
    for rows in (_LEAST["cooperative"], 2 * _LEAST["cooperative"]):
        widest = min(MAX_TILE, held * THREADS["cooperative"] // rows // MIN_TILE_N * MIN_TILE_N)
        least = ceil_div(shape.n, widest)
        along = ceil_div(shape.m, rows) * shape.batch
        most = case.device.sms // (_LEAST_PARTS_OF_K * along)
        # The narrowest tiles of which all parts run at a time.
        full = (clusters_at_a_time(case.device, parts) // along for parts in _PARTS_OF_K)
        few = range(least, min(most, least + _MORE_COLUMNS) + 1)
        if request.math in REGISTER_MATHS:
            few = few or range(least, least + 1)
        for count in (*few, *(count for count in full if count > least)):
            width = ceil_div(ceil_div(shape.n, count), MIN_TILE_N) * MIN_TILE_N
            if width >= _NARROWEST and (rows, width) not in others and rows < 2 * shape.m:
                tiles.append((rows, width, depth))
    return tuple(dict.fromkeys(tiles))


_LEAST_PARTS_OF_K = 2
_PARTS_OF_K = (2, 3, 4)
"""Into which K is divided."""

_MORE_COLUMNS = 3
"""Tiles along N beyond the fewest: narrower ones fill as much and are read more often."""

_NARROWEST = 64
"""Columns below which such a tile's loads take longer than its products."""


def _most_accumulators(case: PlanningCase, request: PartialSchedule) -> int:
    """Accumulators of one set that a thread may hold."""
    problem = case.written.problem
    most = MAX_REGISTERS_F32_RS - _FRAGMENTS if request.math in REGISTER_MATHS else most_accumulators(problem)
    return most // accumulator_sets(problem, request.math or "tensor")


def _listed(shape: Shape, request: PartialSchedule) -> tuple[WarpsTile, ...]:
    small = min(shape.m, shape.n) <= _SMALL_SIDE or shape.m * shape.n <= _SMALL_AREA
    return tuple(
        (warps, (rows, columns))
        for warps, (rows, columns) in _LARGE + (_SMALL if small else ())
        if request.warps in (None, warps)
        and not _too_large(shape.n, columns, _LEAST_N)
        and not _too_large(shape.m, rows, _LEAST[warps])
    )


def _sm90_tiles(
    case: PlanningCase, shape: Shape, depth: int, request: PartialSchedule, fits: tuple[WarpsTile, ...]
) -> Iterator[tuple[Warps, Tile]]:
    if request.tile is not None:
        options: tuple[Warps, ...] = (request.warps,) if request.warps else ("cooperative", "pingpong")
        yield from ((w, request.tile) for w in options)
        return
    for warps, (rows, columns) in (*_listed(shape, request), *fits):
        if (warps, (rows, columns)) in _SMALL and shape.k >= _LONG_K * depth:
            # The price is the same; a step of little work is lengthened first.
            first, second = (2, 1) if rows * columns <= _LITTLE else (1, 2)
            yield warps, (rows, columns, first * depth)
            yield warps, (rows, columns, second * depth)
        elif _RING * _line_bytes(case, rows, columns, request) > case.arch.shared_memory:
            # So is this one's: a ring of two steps waits for its loads (1158 against 1314 us, 4096 a side).
            yield warps, (rows, columns, depth // 2)
            yield warps, (rows, columns, depth)
        else:
            yield warps, (rows, columns, depth)


def _line_bytes(case: PlanningCase, rows: int, columns: int, request: PartialSchedule) -> int:
    """Bytes of a line of K of the tiles that a step loads."""
    parts = operand_parts(case.written.problem, request.math or "tensor")
    return LINE * (parts[0] * rows + parts[1] * columns)


def _too_large(extent: int, side: int, least: int) -> bool:
    """Whether half the tile's side would do for the extent."""
    return side >= 2 * extent and side > least


def _clusters(
    case: PlanningCase, shape: Shape, tile: Tile, request: PartialSchedule
) -> tuple[tuple[int, int], ...]:
    """A cluster shares loads among neighbours that exist."""
    if request.cluster is not None:
        return (request.cluster,)
    rows, columns = ceil_div(shape.m, tile[0]), ceil_div(shape.n, tile[1])
    tiles = rows * columns * shape.batch
    alone = tiles <= case.device.sms
    return tuple(
        (m, n)
        for m, n in _CLUSTERS + (_WIDE_CLUSTERS if alone else ())
        if m <= rows and n <= columns and (m == 1 or tile[1] % 16 == 0)
    )


def _divisions(
    case: PlanningCase,
    shape: Shape,
    tile: Tile,
    warps: Warps,
    cluster: tuple[int, int],
    request: PartialSchedule,
) -> Iterator[tuple[SplitK, Partials | None]]:
    """How K is divided, and where its parts meet."""
    divisions: list[tuple[SplitK, Partials | None]] = []
    if request.split_k is not None or request.partials != "cluster":
        divisions += [(split, request.partials) for split in _splits(case, shape, tile, warps, request)]
    if request.split_k is None and request.partials != "memory":
        divisions += [
            (split, "cluster") for split in _cluster_splits(case, shape, tile, warps, cluster, request)
        ]
    least = _least_parts(case, shape, tile, warps, request)
    exact = [d for d in divisions if d[0] == "stream" or d[0] >= least]
    yield from exact or [(split, request.partials) for split in _filling(case, shape, tile, least)]


def _filling(case: PlanningCase, shape: Shape, tile: Tile, least: int) -> tuple[int, ...]:
    """Parts of K that have to be so many: these, and a few more where the last wave is fuller by them."""
    tiles = ceil_div(shape.m, tile[0]) * ceil_div(shape.n, tile[1]) * shape.batch
    most = max(least, min(least + _FEW_PARTS, ceil_div(shape.k, tile[2]) // 4))
    fullest = min(range(least, most + 1), key=lambda p: ceil_div(tiles * p, case.device.sms) / p)
    return tuple(dict.fromkeys((least, fullest)))


def _least_parts(case: PlanningCase, shape: Shape, tile: Tile, warps: Warps, request: PartialSchedule) -> int:
    """Parts of K by which the sum of f32 rounds no more than eager's, which has many where tiles leave SMs idle. The
    sum of p parts, each of K / 32p sums of the tensor cores, errs by 2.3e-8 * sqrt(K / 96) / p of the sum of positive
    numbers in the root mean square (an H200's; 16384 numbers: 2.98e-7 whole, 0.85e-7 in four parts)."""
    tiles = ceil_div(shape.m, _EAGER_SIDE) * ceil_div(shape.n, _EAGER_SIDE) * shape.batch
    f32 = case.written.problem.compute_type.name == "f32" and request.split_k is None
    if not f32 or warps != "cooperative" or 4 * tiles > 3 * case.device.sms:
        return 1
    least = ceil(sqrt(shape.k / _WHOLE))
    return max(1, min(least, ceil_div(shape.k, tile[2]) // 4, _MANY_PARTS))


def _cluster_splits(
    case: PlanningCase,
    shape: Shape,
    tile: Tile,
    warps: Warps,
    cluster: tuple[int, int],
    request: PartialSchedule,
) -> tuple[int, ...]:
    """Parts that meet in a cluster: the most whose clusters all run at a time, and one fewer."""
    blocks, steps = cluster[0] * cluster[1], ceil_div(shape.k, tile[2])
    if request.partials is None and (warps != "cooperative" or steps < _LONG_K):
        return ()
    rows, columns = (
        ceil_div(ceil_div(e, t), c) for e, t, c in zip((shape.m, shape.n), tile, cluster, strict=False)
    )
    parts = range(2, max(2, min(MAX_CLUSTER // blocks, steps // 4)) + 1)
    tiles = rows * columns * shape.batch
    fit = [
        p for p in parts if tiles <= clusters_at_a_time(case.device, blocks * p) and blocks * p <= MAX_CLUSTER
    ]
    return tuple(fit[-2:]) or (tuple(parts) if request.partials == "cluster" else ())


def _splits(
    case: PlanningCase, shape: Shape, tile: Tile, warps: Warps, request: PartialSchedule
) -> tuple[SplitK, ...]:
    """No split; where fewer than half the slots have a tile, the split that fills them too; where fewer than all do,
    the one by which the last wave is fullest; and stream-K where that is less than half full."""
    if request.split_k is not None:
        return (request.split_k,)
    sms = case.device.sms
    tiles = ceil_div(shape.m, tile[0]) * ceil_div(shape.n, tile[1]) * shape.batch
    steps = ceil_div(shape.k, tile[2])
    if warps == "pingpong" or steps < _LONG_K:
        return (1,)
    if 2 * tiles <= sms:
        most = min(sms // tiles, steps // 4, _MOST_PARTS)
        return tuple(dict.fromkeys((1, min(most, _MANY_PARTS), most))) if most > 1 else (1,)
    if warps != "cooperative":
        return (1,)
    if tiles < sms:
        waves = {p: ceil_div(tiles * p, sms) / p for p in range(2, min(_FEW_PARTS, steps // 4) + 1)}
        best = min(waves, key=lambda p: waves[p], default=1)
        return (1, best) if waves.get(best, 1.0) <= _FULLER else (1,)
    return (1, "stream") if 0 < 2 * (tiles % sms) < sms and tiles < 4 * sms else (1,)


_EAGER_SIDE = 128
_WHOLE = 2560
"""Sides of the tiles that eager's f32 products have, and the longest K of f32 that stays whole beside idle SMs: so the
error is at most 1.2e-7, and 1.4e-7 with what tensor cores cut off sums of f16 parts."""

_FEW_PARTS, _FULLER = 4, 0.8
"""Parts that are tried for tiles of more than half of the SMs, and the share of a wave up to which they can pay."""

_MANY_PARTS, _MOST_PARTS = 16, 64
"""The parts of K that have paid, since each waits for the one before it, and those of a K of hundreds of thousands."""


def _swizzle(case: PlanningCase, side: Orientation, tile: Tile, cluster: tuple[int, int]) -> int:
    """The widest swizzle up to 4 that adds no tiles, once the operands outgrow L2."""
    if side.shape.operand_bytes // side.shape.batch < case.device.l2:
        return 1
    rows, columns = ceil_div(side.shape.m, tile[0]), ceil_div(side.shape.n, tile[1])
    return next((s for s in (4, 2) if rows % (s * cluster[0]) == 0 and columns % (s * cluster[1]) == 0), 1)


# --- widths that fill the GPU's waves ------------------------------------------------

# Those that are tried for every shape leave up to half of the SMs idle in the last wave where there are few
# tiles.

_HEIGHTS: tuple[tuple[Warps, int], ...] = (
    ("cooperative", 128),
    ("cooperative", 256),
    ("pingpong", 64),
    ("pingpong", 128),
    ("pingpong", 192),
)
_FITTED_WORK = 1.1
"""Share of the least work of the tiles that are tried anyway, up to which another width is worth a price."""

_FITTED_WAVES = 4
"""Beyond so many waves the last one weighs little."""


_LOAD_WEIGHT = 32
"""What loading a row or a column of the tile weighs beside one product; coarse, the cost model is to say."""


def work(shape: Shape, tile: WarpsTile, sms: int) -> int:
    """Returns the work of the busiest SM, in products for each step of K, where the waves go on whole."""
    _, (rows, columns) = tile
    return ceil_div(_tiles(shape, rows, columns), sms) * (rows * columns + _LOAD_WEIGHT * (rows + columns))


def fitted(shape: Shape, sms: int, accumulators: int, tried: tuple[WarpsTile, ...]) -> Iterator[WarpsTile]:
    """For each kind and height of a tile the width, in columns, by which the busiest SM works least, where
    that is at most a tenth more than with the best of `tried`, and is none of them. `accumulators` are what
    a thread may hold, in 32-bit registers."""
    least_work = min((work(shape, tile, sms) for tile in tried), default=None)
    for warps, rows in _HEIGHTS:
        if rows >= 2 * shape.m and rows > 64:
            continue
        widest = min(MAX_TILE, accumulators * THREADS[warps] // rows // MIN_TILE_N * MIN_TILE_N)
        widths = range(MIN_TILE_N, widest + 1, MIN_TILE_N)
        options = [(warps, (rows, width)) for width in widths if _few_waves(shape, rows, width, sms)]
        best = min(options, key=lambda tile: work(shape, tile, sms), default=None)
        if best is None or best in tried:
            continue
        if least_work is None or work(shape, best, sms) < _FITTED_WORK * least_work:
            yield best


def _few_waves(shape: Shape, rows: int, width: int, sms: int) -> bool:
    return _tiles(shape, rows, width) <= _FITTED_WAVES * sms


def _tiles(shape: Shape, rows: int, columns: int) -> int:
    return ceil_div(shape.m, rows) * ceil_div(shape.n, columns) * shape.batch


# --- the other kernels ------------------------------------------------------------


def _sm80(case: PlanningCase, request: PartialSchedule) -> Iterator[PartialSchedule]:
    side = case.side(request.swap)
    maths: tuple[Math | None, ...] = (request.math,)
    if side.problem.compute_type.name == "f32" and request.math is None:
        maths = ("tf32x3", "simt")
    for math in maths:
        for tile in _sm80_tiles(side, math, request):
            for split in _splits(case, side.shape, tile, "multistage", request):
                yield replace(
                    request,
                    warps="multistage",
                    tile=tile,
                    math=math,
                    split_k=split,
                    swap=request.swap or "no",
                )


def _sm80_tiles(side: Orientation, math: str | None, request: PartialSchedule) -> Iterator[Tile]:
    if request.tile is not None:
        yield request.tile
        return
    depth = 16 if math == "simt" else LINE // 2 // side.problem.compute_type.bytes
    if request.warp_tile is not None:
        yield from ((request.warp_tile[0] * a, request.warp_tile[1] * b, depth) for a, b in _WARP_GRIDS)
        return
    least = _MULTISTAGE[-1][0]
    for rows, columns in _MULTISTAGE:
        large = _too_large(side.shape.n, columns, least) or _too_large(side.shape.m, rows, least)
        if not large and (math is None or rows * columns <= _MULTISTAGE_F32):
            yield rows, columns, depth


def _gemv(case: PlanningCase, request: PartialSchedule) -> Iterator[PartialSchedule]:
    """Both orientations that leave few columns; as written where neither does."""
    if request.swap is not None:
        yield replace(request, warps="gemv")
        return
    few = COLUMNS[-1]
    shape = case.written.shape
    if shape.n <= few or shape.m > few:
        yield replace(request, warps="gemv", swap="no")
    if shape.m <= few:
        yield replace(request, warps="gemv", swap="yes")
