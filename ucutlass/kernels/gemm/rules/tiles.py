"""Rules on the tiled kernels' shapes and resources: tile, cluster, stages, registers, splits."""

from __future__ import annotations

from dataclasses import replace

from ucutlass.ir.elements import F32
from ucutlass.kernels.access import Reduction
from ucutlass.kernels.gemm.plan import (
    COOPERATIVE_MATHS,
    MAX_CLUSTER,
    GemmProblem,
    Math,
    Sm80Schedule,
    Sm90Schedule,
    multipliers,
)
from ucutlass.kernels.gemm.problem import accumulator_bytes, ceil_div
from ucutlass.kernels.gemm.schedule import GemmCandidate, changed, nearest
from ucutlass.kernels.gemm.smem import SharedMemory, across_k, lean_epilogue, lean_main_loop, most_stages
from ucutlass.kernels.rule import Breach

MAX_TILE = 256
"""A TMA box has at most 256 elements a side, a wgmma at most 256 columns."""

COOPERATIVE_M = (128, 256)
PINGPONG_M = (64, 128, 192, 256)
"""Legal tile M."""

THREADS = {"pingpong": 128, "cooperative": 256}
"""Threads that hold the accumulators of a tile."""

MIN_TILE_N = 16
"""CUTLASS's smallest tile along N (cutlass_library/sm90_utils.py, is_tile_desc_valid)."""

BYTES_K = 32
"""Bytes of K that one wgmma or one mma.sync of the newest shape takes."""

MAX_ACCUMULATORS = 208
"""32-bit accumulators a thread may hold: of 240 registers that the consumers get at most, the
rest is addresses and epilogue (CUTLASS's HeavyRegisterPressure threshold)."""

MAX_ACCUMULATORS_BESIDE_A = 160
"""Those where operand A passes through registers too: with 192 ptxas 13.0 serialises wgmma and spills
in the main loop, with 160 it spills at most once a tile (read off SASS, 17 tiles of tf32)."""

MAX_ACCUMULATORS_F32 = 192
"""Those of f32 in three passes: beside 208 and an epilogue with reductions ptxas 13.0 spills (its account of
sixty kernels)."""

MAX_REGISTERS_F32_RS = 176
"""Those of f32 where A is split in registers, with the parts of a k tile of A among them: ptxas 13.0 keeps 192
beside a plain epilogue, and spills beside others."""

STREAM_K_ITERATIONS = 8
"""CUTLASS gives a stream-K unit at least so many steps of K (`min_iters_per_sk_unit_`)."""

LONGEST_RING = 32
"""Stages that the field `stages` takes; shared memory ends sooner."""

MULTISTAGE_RING = 16
"""Stages that the multistage template counts to (emit/gemm/sm80.py)."""


def _sm90(c: GemmCandidate) -> Sm90Schedule:
    assert isinstance(c.schedule, Sm90Schedule)
    return c.schedule


def tile_text(tile: tuple[int, ...]) -> str:
    """`128x256x64`"""
    return "x".join(map(str, tile))


def tile_m(c: GemmCandidate) -> Breach | None:
    s = _sm90(c)
    m = s.tile[0]
    legal = COOPERATIVE_M if s.warps == "cooperative" else PINGPONG_M
    if m in legal:
        return None
    best = nearest(m, legal)
    why = "two warp groups of 64 rows each share it" if s.warps == "cooperative" else "a wgmma has 64 rows"
    return Breach(
        f"tile M {m} is not {' or '.join(map(str, legal))}: {why}",
        f"use tile M {best}",
        ("tile",),
        changed(c, tile=(best, *s.tile[1:]), stages=None),
    )


WIDTHS = tuple(range(MIN_TILE_N, MAX_TILE + 1, 16))


def tile_n(c: GemmCandidate) -> Breach | None:
    s = _sm90(c)
    n = s.tile[1]
    if n in WIDTHS:
        return None
    best = nearest(n, WIDTHS)
    return Breach(
        f"tile N {n} is not a multiple of 16 from {WIDTHS[0]} to {WIDTHS[-1]}: wgmma ends at {MAX_TILE}, and "
        f"the TMA epilogue stores 16 columns at a time",
        f"use tile N {best}",
        ("tile",),
        changed(c, tile=(s.tile[0], best, s.tile[2]), stages=None),
    )


PROMOTED_K = 128
"""Products between two promotions of a sum of fp8 or f32: for fp8 as CUTLASS's default has it and the error
bounds count on (`ucutlass.reference.accumulation`). Stricter than the hardware, so that no schedule costs
accuracy."""


def tile_k(c: GemmCandidate) -> Breach | None:
    s = _sm90(c)
    k, compute_type = s.tile[2], multipliers(c.problem, s.math).compute_type
    size = compute_type.bytes
    step = BYTES_K // size
    promotes = accumulator_sets(c.problem, s.math) > 1
    most = PROMOTED_K if promotes else MAX_TILE
    if k % step == 0 and step <= k <= most:
        return None
    best = nearest(k, tuple(range(step, most + 1, step)))
    why = f"a wgmma takes {BYTES_K} bytes, {step} elements of {compute_type.name}"
    if promotes and k > most:
        sums = "sums of f32" if c.problem.compute_type.name == "f32" else "fp8 sums"
        why = f"{sums} move to f32 registers at least every {most} products, and a tile's move together"
    return Breach(
        f"tile K {k} is not a multiple of {step} up to {most}: {why}",
        f"use tile K {best}",
        ("tile",),
        changed(c, tile=(*s.tile[:2], best), stages=None),
    )


def accumulators_per_thread(c: GemmCandidate) -> int:
    """32-bit registers of accumulators a thread holds; 0 for a matrix-vector kernel."""
    match c.schedule:
        case Sm90Schedule(tile=(m, n, _), warps=warps, math=math):
            sets = accumulator_sets(c.problem, math)
            return m * n * accumulator_bytes(c.problem) * sets // (4 * THREADS[warps])
        case Sm80Schedule(warp_tile=(m, n)):
            return m * n * accumulator_bytes(c.problem) // (4 * 32)
        case _:
            return 0


def accumulator_sets(problem: GemmProblem, math: Math) -> int:
    """Returns how many sets of accumulators a wgmma kernel has: fp8 with f32 accumulation has two (CUTLASS's
    GmmaFP8Accumulation), and so does f32 (emit/gemm/lean_promotion.j2); the cross products of f16 parts have a third."""
    if math == "f16x3":
        return 3
    return 2 if problem.compute_type.name in ("e4m3", "e5m2", "f32") and problem.accumulate == "f32" else 1


def fragment_registers(c: GemmCandidate) -> int:
    """Returns the 32-bit registers of a thread that hold what A is split into, 0 where A is not split there: a
    wgmma takes 4 of each part for 8 elements of K."""
    match c.schedule:
        case Sm90Schedule(tile=(m, _, k), math="tf32x3_rs" | "tf32x3_fused", warps=warps):
            return m // (THREADS[warps] // 2) * k // 8 * 8
        case _:
            return 0


def most_accumulators(problem: GemmProblem) -> int:
    """Returns the most accumulators of a wgmma kernel, all sets together."""
    if problem.compute_type.name == "f32":
        return MAX_ACCUMULATORS_F32
    return MAX_ACCUMULATORS_BESIDE_A if across_k(problem) else MAX_ACCUMULATORS


def accumulators_fit(c: GemmCandidate) -> Breach | None:
    held, limit = accumulators_per_thread(c), most_accumulators(c.problem)
    s = _sm90(c)
    m, n, k = s.tile
    threads = THREADS[s.warps]
    if fragments := fragment_registers(c):
        return _fragments_fit(c, held, fragments)
    if held <= limit:
        return None
    of = "a k tile" if c.problem.compute_type.name == "f32" else "fp8"
    sets = f", in two sets: partial sums of {of} and the f32 total"
    sets = {1: "", 2: sets, 3: f"{sets}, and one of cross products"}[accumulator_sets(c.problem, s.math)]
    sets += ", beside fragments of A, which is not contiguous along K" if across_k(c.problem) else ""
    text = (
        f"a tile of {m}x{n} is {held} accumulator registers in each of {threads} threads{sets}; "
        f"beyond {limit} wgmma is serialised and spills"
    )
    if s.warps == "pingpong" and m in COOPERATIVE_M and held <= 2 * limit:
        fix = changed(c, warps="cooperative", stages=None)
        return Breach(text, "use `warps cooperative`, whose warp groups share it", ("tile", "warps"), fix)
    fitted = limit * n // held // 16 * 16
    tile = (m // 2, n, k) if m >= n and m > least_m(s) else (m, fitted, k)
    fix = changed(c, tile=tile, stages=None)
    return Breach(text, f"use tile {tile_text(tile)}", ("tile", "warps"), fix)


def _fragments_fit(c: GemmCandidate, held: int, fragments: int) -> Breach | None:
    """As `accumulators_fit`, where A is split in registers."""
    if held + fragments <= MAX_REGISTERS_F32_RS:
        return None
    s = _sm90(c)
    m, n, k = s.tile
    if k > 32:
        tile = (m, n, 32)
    elif m > 2 * least_m(s) or (m > least_m(s) and m >= n):
        tile = (least_m(s), n, k)
    else:
        tile = (m, (MAX_REGISTERS_F32_RS - fragments) * n // held // 16 * 16, k)
    return Breach(
        f"a tile of {tile_text(s.tile)} is {held} accumulator registers in each of {THREADS[s.warps]} threads, in two "
        f"sets, and {fragments} of what A is split into; beyond {MAX_REGISTERS_F32_RS} wgmma is serialised and spills",
        f"use tile {tile_text(tile)}",
        ("tile", "warps"),
        changed(c, tile=tile, stages=None),
    )


def least_m(s: Sm90Schedule) -> int:
    """The smallest tile M of a schedule: 64 rows for each warp group that shares it."""
    return THREADS[s.warps] // 2


def stages_fit(c: GemmCandidate) -> Breach | None:
    match c.schedule:
        case Sm90Schedule(tile=tile, stages=stages):
            longest = LONGEST_RING
        case Sm80Schedule(tile=tile, stages=stages):
            longest = MULTISTAGE_RING
        case _:
            return None
    memory, capacity = c.memory, c.arch.shared_memory
    # The multistage epilogue reuses the ring; what it needs beyond one shrinks as the ring grows.
    fixed = replace(memory, epilogue=0) if c.family == "sm80" else memory
    most = min(longest, most_stages(fixed, capacity))
    if 2 <= stages <= most and memory.total <= capacity:
        return None
    if most < 2 or 2 <= stages <= most:
        return _tile_too_deep(c, tile, memory)
    if stages < 2:
        text = f"{stages} stages: the main loop needs at least 2"
    elif memory.total <= capacity:
        text = f"{stages} stages: the ring takes at most {longest}"
    else:
        text = (
            f"{stages} stages of {memory.stage} bytes, {memory.epilogue} of epilogue and "
            f"{memory.barriers} of barriers are {memory.total} bytes of shared memory; a block has "
            f"{capacity}: at most {most} stages fit"
        )
    best = min(max(stages, 2), most)
    return Breach(text, f"use `stages {best}`", ("stages", "tile"), changed(c, stages=best))


def _tile_too_deep(c: GemmCandidate, tile: tuple[int, int, int], memory: SharedMemory) -> Breach:
    """Not even two stages fit: half the K, then half the larger side."""
    m, n, k = tile
    if k * c.problem.compute_type.bytes >= 4 * BYTES_K:
        smaller = (m, n, k // 2)
    else:
        smaller = (m, n // 2, k) if n >= m else (m // 2, n, k)
    return Breach(
        f"two stages of {memory.stage} bytes, {memory.epilogue} of epilogue, {memory.barriers} of barriers "
        f"are more than the {c.arch.shared_memory} bytes of shared memory that a block has",
        f"use tile {tile_text(smaller)}",
        ("tile", "stages"),
        changed(c, tile=smaller, stages=None, warp_tile=None),
    )


def cluster_size(c: GemmCandidate) -> Breach | None:
    s = _sm90(c)
    m, n = s.cluster
    legal = (1, 2, 4, 8)
    if m in legal and n in legal and m * n <= MAX_CLUSTER:
        return _parts_fit(c, s)
    best = [nearest(m, legal), nearest(n, legal)]
    while best[0] * best[1] > MAX_CLUSTER:
        best[best[1] > best[0]] //= 2
    text = f"has {m * n} thread blocks" if m in legal and n in legal else "is not made of 1, 2, 4 or 8"
    return Breach(
        f"cluster {m}x{n} {text}: sides are powers of two and the product at most "
        f"{MAX_CLUSTER}, the portable size",
        f"use `cluster {best[0]}x{best[1]}`",
        ("cluster",),
        changed(c, cluster=tuple(best)),
    )


def _parts_fit(c: GemmCandidate, s: Sm90Schedule) -> Breach | None:
    m, n = s.cluster
    most = MAX_CLUSTER // (m * n)
    if s.scheduler != "cluster_k" or 2 <= c.launch.splits <= most:
        return None
    if most < 2:
        return Breach(
            f"cluster {m}x{n} leaves no place for further parts of K: a cluster has at most {MAX_CLUSTER} thread blocks",
            "use `cluster 1x1`",
            ("cluster", "partials"),
            changed(c, cluster=(1, 1)),
        )
    if c.launch.splits == 0:
        return Breach(
            "stream-K adds its parts in device memory",
            "use `partials memory`, or give `split_k` a number",
            ("split_k", "partials"),
            changed(c, partials="memory"),
        )
    return Breach(
        f"`split_k {c.launch.splits}` times cluster {m}x{n} are more thread blocks than the {MAX_CLUSTER} of a cluster",
        f"use `split_k {most}`, or `partials memory`",
        ("split_k", "cluster", "partials"),
        changed(c, split_k=most),
    )


def partials_in_cluster(c: GemmCandidate) -> Breach | None:
    """A K whose parts meet in a cluster is built by the lean kernel alone, whose steps its blocks divide."""
    s, problem = _sm90(c), c.problem
    if s.scheduler != "cluster_k" or s.warps != "cooperative":
        return None
    tensors = (*problem.inputs, *(o.access for o in problem.outputs))
    sums = s.tile[0] * s.tile[1] * accumulator_bytes(problem)
    k_major = problem.a.k[-1] == problem.b.k[-1] == ()
    refusals = {
        "a reduction in the epilogue takes whole tiles": any(
            isinstance(o, Reduction) for o in problem.outputs
        ),
        "there are several batch modes": len(problem.batch) > 1,
        "f16 accumulators are not exchanged": problem.accumulate == "f16",
        "there are elements of 8 bytes": any(t.elem.bytes > 4 for t in tensors),
        "operands of 1 byte are to be contiguous along K": problem.compute_type.bytes == 1 and not k_major,
        f"the sums of a tile are {sums} bytes, more than the main loop's buffers": sums
        > lean_main_loop(problem, s.tile, s.stages, s.math),
        "its epilogue does not fit beside the main loop": lean_epilogue(problem, c.routes, s) is None,
    }
    for why, refused in refusals.items():
        if refused:
            return Breach(
                f"the blocks of a cluster cannot add parts of K: {why}",
                "use `partials memory`",
                ("partials",),
                changed(c, partials="memory"),
            )
    return None


def rows_in_cluster(c: GemmCandidate) -> Breach | None:
    """Statistics of whole rows meet in a cluster of the lean kernel alone."""
    statistics = c.problem.arithmetic.statistics
    if not statistics:
        return None
    s = c.schedule
    if not isinstance(s, Sm90Schedule):
        return Breach(
            "only the blocks of a TMA kernel's cluster combine statistics of rows whose values they hold",
            "use `warps cooperative` on sm90a, or cut: store the dot's result and reduce it in a second stage",
            ("warps",),
            changed(c, warps="cooperative", **dict.fromkeys(_MULTISTAGE_ALONE)) if c.arch.wgmma else None,
        )
    problem = c.problem
    if any(statistic.along == "m" for statistic in statistics):
        return Breach(
            "the rows whose statistics are taken lie along M",
            f"use `swap {'no' if c.swapped else 'yes'}`",
            ("swap",),
            changed(c, swap="no" if c.swapped else "yes"),
        )
    if s.tile[1] * s.cluster[1] < c.shape.n:
        width = nearest_width(c.shape.n)
        return Breach(
            f"a row of {c.shape.n} does not lie within the {s.cluster[1]} tiles of {s.tile[1]} columns of a cluster",
            f"use `cluster 1x{MAX_CLUSTER}` and tiles of {width} columns",
            ("cluster", "tile"),
            changed(c, cluster=(1, MAX_CLUSTER), tile=(128, width, s.tile[2]), stages=None),
        )
    if s.scheduler != "persistent":
        return Breach(
            "a K in parts and statistics of rows do not go together",
            "leave `split_k` out",
            ("split_k", "partials"),
            changed(c, split_k=1, partials=None),
        )
    tensors = (*problem.inputs, *(o.access for o in problem.outputs))
    refusals = {
        "f32 in three passes": problem.compute_type == F32,
        "other compute types than f16 and bf16": problem.compute_type.bytes != 2
        or problem.accumulate != "f32",
        "several batch modes or modes of K": len(problem.batch) > 1 or len(problem.k) > 1,
        "elements of 8 bytes": any(t.elem.bytes > 4 for t in tensors),
        "an epilogue that does not fit beside the main loop": lean_epilogue(problem, c.routes, s) is None,
    }
    return next(
        (
            Breach(
                f"no kernel combines statistics of rows with {why}",
                "cut here: store the dot's result, go on in a second stage",
                ("stages", "tile"),
                None,
            )
            for why, refused in refusals.items()
            if refused
        ),
        None,
    )


_MULTISTAGE_ALONE = ("tile", "warp_tile", "stages", "split_k", "rows", "columns", "threads", "math")


def nearest_width(n: int) -> int:
    """Columns of the narrowest tiles of which the largest cluster holds a row."""
    return max(16, ceil_div(ceil_div(n, MAX_CLUSTER), 16) * 16)


def multicast_slices(c: GemmCandidate) -> Breach | None:
    s = _sm90(c)
    m, n = s.cluster
    across = s.math in COOPERATIVE_MATHS or c.problem.compute_type.name == "tf32"
    if across and c.problem.a.k[-1] != () and s.tile[2] % (8 * n):
        return Breach(
            f"a cluster of {m}x{n} loads tile K {s.tile[2]} of A, which is not contiguous along K, in {n} slices: "
            f"each must be whole groups of 8 lines",
            f"use `cluster {m}x1`",
            ("cluster", "tile"),
            changed(c, cluster=(m, 1)),
        )
    if _b_in_slices_of_k(c.problem, s.math) and s.tile[2] % (8 * m):
        return Breach(
            f"a cluster of {m}x{n} loads tile K {s.tile[2]} of B, which is not contiguous along K, in {m} slices: "
            f"each must be whole groups of 8 lines",
            f"use `cluster 1x{n}`",
            ("cluster", "tile"),
            changed(c, cluster=(1, n)),
        )
    if s.tile[1] % (8 * m) == 0 and s.tile[0] % (8 * n) == 0:
        return None
    fewer = (max(1, m // 2), n) if s.tile[1] % (8 * m) else (m, max(1, n // 2))
    side, parts, extent = ("N", m, s.tile[1]) if s.tile[1] % (8 * m) else ("M", n, s.tile[0])
    return Breach(
        f"a cluster of {m}x{n} loads tile {side} {extent} in {parts} slices: "
        f"each must be whole groups of 8 rows",
        f"use `cluster {fewer[0]}x{fewer[1]}`",
        ("cluster", "tile"),
        changed(c, cluster=fewer),
    )


def _b_in_slices_of_k(problem: GemmProblem, math: Math) -> bool:
    turned = math in ("tf32x3_fused", "f16x3") or problem.compute_type.name == "tf32"
    return turned and problem.b.k[-1] != ()


def stream_k_is_cooperative(c: GemmCandidate) -> Breach | None:
    s = _sm90(c)
    if s.warps == "cooperative" or s.scheduler == "persistent":
        return None
    tile = s.tile if s.tile[0] in (128, 256) else (128, *s.tile[1:])
    return Breach(
        "pingpong has no stream-K scheduler, which also splits K",
        "use `warps cooperative`, or leave `split_k` out",
        ("split_k", "warps"),
        changed(c, warps="cooperative", tile=tile, stages=None),
    )


def splits_fit(c: GemmCandidate) -> Breach | None:
    splits, steps = c.launch.splits, c.k_tiles
    if c.family == "gemv" or 0 <= splits <= max(1, steps):
        return None
    return Breach(
        f"`split_k {splits}` of a K of {c.shape.k}: that is {steps} steps of the tile",
        f"use `split_k {max(1, steps)}` or less",
        ("split_k",),
        changed(c, split_k=max(1, steps)),
    )


def swizzle_is_power(c: GemmCandidate) -> Breach | None:
    swizzle = c.launch.swizzle
    if swizzle in (1, 2, 4, 8):
        return None
    best = nearest(swizzle, (1, 2, 4, 8))
    return Breach(
        f"swizzle {swizzle} is not 1, 2, 4 or 8",
        f"use `swizzle {best}`",
        ("swizzle",),
        changed(c, swizzle=best),
    )
