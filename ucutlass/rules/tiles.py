"""Rules on the tiled kernels' shapes and resources: tile, cluster, stages, registers, splits."""

from __future__ import annotations

from ucutlass.plan import Sm80Schedule, Sm90Schedule
from ucutlass.rules.candidate import Candidate, accumulator_bytes
from ucutlass.rules.memory import epilogue_tile, memory_of, most_stages, sm80_memory, sm90_memory
from ucutlass.rules.violation import Finding, changed

MAX_TILE = 256
"""A TMA box has at most 256 elements a side, a wgmma at most 256 columns."""

MIN_TILE_N = 16
"""CUTLASS's smallest tile along N (cutlass_library/sm90_utils.py, is_tile_desc_valid)."""

BYTES_K = 32
"""Bytes of K that one wgmma or one mma.sync of the newest shape takes."""

MAX_ACCUMULATORS = 208
"""32-bit accumulators a thread may hold: of 240 registers that the consumers get at most, the
rest is addresses and epilogue (CUTLASS's HeavyRegisterPressure threshold)."""

MAX_CLUSTER = 8
"""Thread blocks of a portable cluster (CUDA C++ Programming Guide)."""

STREAM_K_ITERATIONS = 8
"""CUTLASS gives a stream-K unit at least so many steps of K (`min_iters_per_sk_unit_`)."""

SM80_ACCUMULATORS = 128
"""32-bit accumulators a thread of the multistage kernel may hold beside its fragments."""


def _sm90(c: Candidate) -> Sm90Schedule:
    assert isinstance(c.schedule, Sm90Schedule)
    return c.schedule


def _sm80(c: Candidate) -> Sm80Schedule:
    assert isinstance(c.schedule, Sm80Schedule)
    return c.schedule


def _nearest(value: int, legal: tuple[int, ...]) -> int:
    """The legal value closest to the given one; the smaller of two."""
    return min(legal, key=lambda v: (abs(v - value), v))


def _tile(tile: tuple[int, int, int]) -> str:
    return "x".join(map(str, tile))


def tile_m(c: Candidate) -> Finding | None:
    s = _sm90(c)
    m = s.tile[0]
    legal = (128, 256) if s.warps == "cooperative" else (64, 128, 192, 256)
    if m in legal:
        return None
    best = _nearest(m, legal)
    why = "two warp groups of 64 rows each share it" if s.warps == "cooperative" else "a wgmma has 64 rows"
    return Finding(
        f"tile M {m} is not {' or '.join(map(str, legal))}: {why}", f"use tile M {best}", ("tile",),
        changed(c, tile=(best, *s.tile[1:]), stages=None),
    )


WIDTHS = tuple(range(MIN_TILE_N, MAX_TILE + 1, 8))
INTEGER_WIDTHS = (16, 24, *range(32, MAX_TILE + 1, 16))


def tile_n(c: Candidate) -> Finding | None:
    s = _sm90(c)
    n = s.tile[1]
    integer = c.problem.lane.kind == "int"
    legal = INTEGER_WIDTHS if integer else WIDTHS
    if n in legal:
        return None
    best = _nearest(n, legal)
    step = "16, 24 or a multiple of 16" if integer else "a multiple of 8"
    return Finding(
        f"tile N {n} is not {step} from {MIN_TILE_N} to {MAX_TILE}: no wgmma of {c.problem.lane.name} has such a width",
        f"use tile N {best}", ("tile",), changed(c, tile=(s.tile[0], best, s.tile[2]), stages=None),
    )


def tile_k(c: Candidate) -> Finding | None:
    s = _sm90(c)
    k, size = s.tile[2], c.problem.lane.bytes
    step = BYTES_K // size
    if k % step == 0 and step <= k <= MAX_TILE:
        return None
    best = _nearest(k, tuple(range(step, MAX_TILE + 1, step)))
    return Finding(
        f"tile K {k} is not a multiple of {step} up to {MAX_TILE}: a wgmma takes {BYTES_K} bytes, "
        f"{step} elements of {c.problem.lane.name}", f"use tile K {best}", ("tile",),
        changed(c, tile=(*s.tile[:2], best), stages=None),
    )


def epilogue_rows(c: Candidate) -> Finding | None:
    s = _sm90(c)
    for tensor, route in zip(c.tensors, c.routes, strict=True):
        if route != "tma" or tensor.n != ():
            continue
        width = epilogue_tile(s.warps, s.tile, _d_bits(c))[1]
        if width * tensor.elem.bytes % 16 == 0:
            continue
        step = 16 // tensor.elem.bytes
        best = _nearest(s.tile[1], tuple(range(max(step, MIN_TILE_N), MAX_TILE + 1, step)))
        return Finding(
            f"tile N {s.tile[1]} is stored in parts of {width} columns, {width * tensor.elem.bytes} bytes of "
            f"{tensor.elem.name}: TMA moves rows in multiples of 16 bytes", f"use tile N {best}", ("tile",),
            changed(c, tile=(s.tile[0], best, s.tile[2]), stages=None),
        )
    return None


def _d_bits(c: Candidate) -> int:
    count = len(c.problem.inputs)
    stores = (t for t, r in zip(c.tensors[count:], c.routes[count:], strict=True) if r == "tma")
    return next((t.elem.bits for t in stores), 32)


def accumulators_per_thread(c: Candidate) -> int:
    """32-bit registers of accumulators a thread holds; 0 for a matrix-vector kernel.

    fp8 with f32 accumulation keeps two sets (CUTLASS's GmmaFP8Accumulation).
    """
    match c.schedule:
        case Sm90Schedule(tile, _, _, warps, _):
            threads = 256 if warps == "cooperative" else 128
            area = tile[0] * tile[1]
        case Sm80Schedule(_, warp_tile, _, _):
            threads, area = 32, warp_tile[0] * warp_tile[1]
        case _:
            return 0
    sets = 2 if c.family == "sm90" and c.problem.lane.name in ("e4m3", "e5m2") and c.problem.accumulate == "f32" else 1
    return area * accumulator_bytes(c.problem) * sets // (4 * threads)


def accumulators_fit(c: Candidate) -> Finding | None:
    held = accumulators_per_thread(c)
    limit = MAX_ACCUMULATORS if c.family == "sm90" else SM80_ACCUMULATORS
    if held <= limit:
        return None
    if isinstance(c.schedule, Sm80Schedule):
        m, n = c.schedule.warp_tile
        return Finding(
            f"a warp tile of {m}x{n} is {held} accumulators a thread; beyond {limit} they spill",
            "use `warp_tile 64x64` or smaller", ("warp_tile", "tile"),
            changed(c, warp_tile=(m // 2, n) if m >= n else (m, n // 2)),
        )
    s = _sm90(c)
    m, n, k = s.tile
    smaller = (m // 2, n, k) if m >= n and m >= 128 and not (s.warps == "cooperative" and m == 128) else None
    threads = 256 if s.warps == "cooperative" else 128
    fitted = limit * threads * n * m // (held * threads * m) // 8 * 8
    tile = smaller or (m, fitted if c.problem.lane.kind == "float" else fitted // 16 * 16, k)
    return Finding(
        f"a tile of {m}x{n} is {held} accumulator registers in each of {threads} threads; beyond {limit} "
        f"wgmma is serialised and spills", f"use tile {_tile(tile)}", ("tile", "warps"),
        changed(c, tile=tile, stages=None),
    )


def stages_fit(c: Candidate) -> Finding | None:
    match c.schedule:
        case Sm90Schedule(tile, _, stages, warps, _):
            one = sm90_memory(c.problem, c.routes, tile, warps, 1)
        case Sm80Schedule(tile, _, stages, _):
            one = sm80_memory(c.problem, tile, 1)
        case _:
            return None
    memory, capacity = memory_of(c), c.arch.shared_memory
    most = most_stages(one, capacity)
    if stages >= 2 and memory.total <= capacity:
        return None
    if most >= 2:
        said = f"{stages} stages" if stages < 2 else (
            f"{stages} stages of {memory.stage} bytes, {memory.epilogue} bytes of epilogue and {memory.barriers} "
            f"of barriers are {memory.total} bytes of shared memory; a block has {capacity}"
        )
        best = min(max(stages, 2), most)
        why = "the main loop needs at least 2" if stages < 2 else f"at most {most} fit"
        return Finding(f"{said}: {why}", f"use `stages {best}`", ("stages", "tile"), changed(c, stages=best))
    smaller = (*tile[:2], tile[2] // 2) if tile[2] * c.problem.lane.bytes >= 2 * BYTES_K else (
        (tile[0], tile[1] // 2, tile[2]) if tile[1] >= 2 * MIN_TILE_N else (tile[0] // 2, *tile[1:])
    )
    return Finding(
        f"two stages of {memory.stage} bytes and {memory.epilogue} bytes of epilogue are more than the "
        f"{capacity} bytes of shared memory that a block has", f"use tile {_tile(smaller)}", ("tile", "stages"),
        changed(c, tile=smaller, stages=None),
    )


def cluster_size(c: Candidate) -> Finding | None:
    s = _sm90(c)
    m, n = s.cluster
    legal = (1, 2, 4, 8)
    if m in legal and n in legal and m * n <= MAX_CLUSTER:
        return None
    best = [_nearest(m, legal), _nearest(n, legal)]
    while best[0] * best[1] > MAX_CLUSTER:
        best[best[1] > best[0]] //= 2
    said = f"has {m * n} thread blocks" if m in legal and n in legal else "is not made of 1, 2, 4 or 8"
    return Finding(
        f"cluster {m}x{n} {said}: sides are powers of two and the product at most {MAX_CLUSTER}, the portable size",
        f"use `cluster {best[0]}x{best[1]}`", ("cluster",), changed(c, cluster=tuple(best)),
    )


def multicast_slices(c: Candidate) -> Finding | None:
    s = _sm90(c)
    m, n = s.cluster
    if s.tile[1] % (8 * m) == 0 and s.tile[0] % (8 * n) == 0:
        return None
    fewer = (max(1, m // 2), n) if s.tile[1] % (8 * m) else (m, max(1, n // 2))
    side, parts, extent = ("N", m, s.tile[1]) if s.tile[1] % (8 * m) else ("M", n, s.tile[0])
    return Finding(
        f"a cluster of {m}x{n} loads tile {side} {extent} in {parts} slices: each must be whole groups of 8 rows",
        f"use `cluster {fewer[0]}x{fewer[1]}`", ("cluster", "tile"), changed(c, cluster=fewer),
    )


def stream_k_is_cooperative(c: Candidate) -> Finding | None:
    s = _sm90(c)
    if s.warps == "cooperative" or s.scheduler == "persistent":
        return None
    tile = s.tile if s.tile[0] in (128, 256) else (128, *s.tile[1:])
    return Finding(
        "pingpong has no stream-K scheduler, which also splits K",
        "use `warps cooperative`, or leave `split_k` out", ("split_k", "warps"),
        changed(c, warps="cooperative", tile=tile, stages=None),
    )


def splits_fit(c: Candidate) -> Finding | None:
    splits, steps = c.knobs.splits, c.k_tiles
    if c.family == "gemv" or 0 <= splits <= max(1, steps):
        return None
    return Finding(
        f"`split_k {splits}` of a K of {c.shape.k}: that is {steps} steps of the tile",
        f"use `split_k {max(1, steps)}` or less", ("split_k",), changed(c, split_k=max(1, steps)),
    )


def wide_partial_sums(c: Candidate) -> Finding | None:
    if c.knobs.splits == 1 or c.problem.accumulate != "f16":
        return None
    return Finding(
        "the multistage kernel adds the parts of K in f32 or s32, and this dot accumulates in f16",
        "use `split_k 1`, or accumulate in f32", ("split_k",), changed(c, split_k=1),
    )


def swizzle_is_power(c: Candidate) -> Finding | None:
    swizzle = c.knobs.swizzle
    if swizzle in (1, 2, 4, 8):
        return None
    best = _nearest(swizzle, (1, 2, 4, 8))
    return Finding(f"swizzle {swizzle} is not 1, 2, 4 or 8", f"use `swizzle {best}`", ("swizzle",),
                   changed(c, swizzle=best))


# --- the multistage kernel ---------------------------------------------------------


def sm80_k_step(c: Candidate) -> int:
    """Tile K comes in multiples of this many elements: one mma.sync, or one FFMA slice."""
    return 8 if _sm80(c).math == "simt" else BYTES_K // c.problem.lane.bytes


def sm80_tile(c: Candidate) -> Finding | None:
    s = _sm80(c)
    m, n, k = s.tile
    step = sm80_k_step(c)
    sides = (32, 64, 128, 256)
    best = (_nearest(m, sides), _nearest(n, sides), _nearest(k, tuple(step * p for p in (1, 2, 4, 8))))
    if best == s.tile:
        return None
    return Finding(
        f"multistage tile {_tile(s.tile)}: M and N are 32, 64, 128 or 256 and K is {step} times a power of two "
        f"up to 8", f"use tile {_tile(best)}", ("tile",), changed(c, tile=best, warp_tile=None, stages=None),
    )


def sm80_warp_tile(c: Candidate) -> Finding | None:
    s = _sm80(c)
    (m, n), (tile_m_, tile_n_, _) = s.warp_tile, s.tile
    legal = (16, 32, 64, 128)
    if m in legal and n in legal and tile_m_ % m == 0 and tile_n_ % n == 0:
        return None
    best = tuple(_nearest(v, tuple(w for w in legal if side % w == 0) or (side,))
                 for v, side in ((m, tile_m_), (n, tile_n_)))
    return Finding(
        f"warp tile {m}x{n} does not divide the tile {tile_m_}x{tile_n_} into warps of 16, 32, 64 or 128 a side",
        f"use `warp_tile {best[0]}x{best[1]}`", ("warp_tile", "tile"), changed(c, warp_tile=best),
    )


def sm80_warps(c: Candidate) -> Finding | None:
    s = _sm80(c)
    (m, n), (tile_m_, tile_n_, _) = s.warp_tile, s.tile
    warps = (tile_m_ // m) * (tile_n_ // n)
    if 1 <= warps <= 8:
        return None
    best = (min(tile_m_, 2 * m), n) if m <= n else (m, min(tile_n_, 2 * n))
    return Finding(
        f"warp tile {m}x{n} in a tile of {tile_m_}x{tile_n_} makes {warps} warps; the kernel has registers for 8",
        f"use `warp_tile {best[0]}x{best[1]}`", ("warp_tile",), changed(c, warp_tile=best),
    )
