"""The programs just beyond each legality rule that `benchmarks.rule_edges` forces.

Where a rule is also guarded in the emitted file or by an emitter, the guard is cut, so that the
hardware and CUTLASS answer, not we ourselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.gemm.candidate import Candidate
from ucutlass.kernels.gemm.plan import Route, Sm80Schedule

Cut = tuple[tuple[str, str], ...]


def unchanged(candidate: Candidate) -> Candidate:
    return candidate


@dataclass(frozen=True, slots=True)
class Edge:
    """A schedule that breaks rule `code`, for a program and its extents.

    `alter` changes what no request can say. `beside` is a legal neighbour, timed where the forced
    kernel is right. `cut` replaces guards of ours in the emitted file. `why` says why the rule
    stands if nothing bad happens. `how`: `run` verifies and times; `misaligned` verifies with
    addresses off by one element; `huge` allocates the extents and looks at the last rows.
    """

    code: str
    what: str
    text: str
    sizes: dict[str, int]
    beyond: PartialSchedule
    beside: PartialSchedule | None = None
    arch: str = "sm90a"
    alter: Callable[[Candidate], Candidate] = unchanged
    cut: Cut = ()
    how: Literal["run", "misaligned", "huge"] = "run"
    why: str = ""


PLAIN = "kernel k(x: f16[M, K], w: f16[N, K]) -> f16[M, N] { return dot[K](x, w) }"
F32 = "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](x, w) }"
E4M3 = "kernel k(x: e4m3[M, K], w: e4m3[N, K]) -> f16[M, N] { return dot[K](x, w) * 0.0625 }"
TURNED = "kernel k(x: f16[K, M], w: f16[K, N]) -> f32[M, N] { return dot[K](x, w) }"
COUNTED = (
    "kernel k(x: f16[M, K], w: f16[N, K]) -> f16[M, N] { return where(index(M) >= 0, dot[K](x, w), -7) }"
)

SQUARE = {"M": 2048, "N": 2048, "K": 2048}
THIN = {"M": 4096, "N": 8, "K": 2048}
LONG = {"M": 2**31 + 256, "N": 8, "K": 8}

COOPERATIVE = PartialSchedule(warps="cooperative", tile=(128, 128, 64), cluster=(1, 1), swap="no", split_k=1)
PINGPONG = PartialSchedule(warps="pingpong", tile=(64, 128, 64), cluster=(1, 1), swap="no", split_k=1)
MULTISTAGE = PartialSchedule(
    warps="multistage", tile=(128, 128, 32), warp_tile=(64, 64), stages=3, swap="no", split_k=1
)
GEMV = PartialSchedule(warps="gemv", rows=2, columns=8, threads=64, swap="no")

TMA_GUARD: Cut = (
    ("bool whole = reinterpret_cast<uintptr_t>(address) % 16 == 0;", "bool whole = true;"),
    ("whole = whole && s * int64_t(sizeof(Element)) % 16 == 0;", ""),
)
EXTENT_GUARD: Cut = (("return e >= 1 && e <= INT32_MAX;", "return e >= 1;"),)
COUNT_GUARD: Cut = (("if (p.m > INT32_MAX || p.n > INT32_MAX) return 1;", ""),)
SWIZZLE_GUARD: Cut = (("(swizzle != 1 && swizzle != 2 && swizzle != 4 && swizzle != 8)", "false"),)
MEMORY_GUARD: Cut = (
    ("Kernel::SharedStorageSize <= cutlass::gemm::collective::detail::sm90_smem_capacity_bytes", "true"),
)


def lane_math(candidate: Candidate) -> Candidate:
    """f32 in one pass of the tensor cores, which no request can ask for."""
    assert isinstance(candidate.schedule, Sm80Schedule)
    return replace(candidate, schedule=replace(candidate.schedule, math="tensor"))


def by_tma(candidate: Candidate) -> Candidate:
    """Every epilogue tensor by TMA, aligned or not."""
    tma: Route = "tma"
    return replace(candidate, routes=(tma,) * len(candidate.routes))


def _tiled(base: PartialSchedule, tile: tuple[int, int, int], **more: object) -> PartialSchedule:
    return replace(base, tile=tile, **more)  # type: ignore[arg-type]


EDGES: tuple[Edge, ...] = (
    Edge("UC0410", "pingpong compiled for sm80", PLAIN, SQUARE, PINGPONG, arch="sm80"),
    Edge(
        "UC0411",
        "f32 by wgmma, two batch modes",
        "kernel k(x: f32[A, M, B, K], w: f32[A, N, B, K]) -> f32[A, B, M, N] { return dot[K](x, w) }",
        {"A": 4, "B": 4, "M": 256, "N": 256, "K": 128},
        _tiled(COOPERATIVE, (128, 128, 32)),
    ),
    Edge(
        "UC0412",
        "`math simt` by wgmma",
        F32,
        SQUARE | {"K": 128},
        _tiled(COOPERATIVE, (128, 128, 32), math="simt"),
        _tiled(COOPERATIVE, (128, 128, 32)),
    ),
    Edge(
        "UC0412",
        "`math simt` on f16",
        PLAIN,
        SQUARE,
        _tiled(MULTISTAGE, (64, 64, 32), warp_tile=(32, 32), math="simt"),
        _tiled(MULTISTAGE, (64, 64, 32), warp_tile=(32, 32)),
    ),
    Edge(
        "UC0412",
        "f32 in one pass of mma.sync",
        F32,
        SQUARE,
        _tiled(MULTISTAGE, (64, 64, 32), warp_tile=(32, 32)),
        alter=lane_math,
    ),
    Edge(
        "UC0413",
        "two contracted modes by TMA",
        "kernel k(x: f16[M, K, J], w: f16[N, J, K]) -> f16[M, N] { return dot[K, J](x, w) }",
        {"M": 512, "N": 512, "K": 64, "J": 64},
        COOPERATIVE,
    ),
    Edge(
        "UC0415",
        "A contiguous along the batch",
        "kernel k(x: f16[M, K, B], w: f16[B, N, K]) -> f16[B, M, N] { return dot[K](x, w) }",
        {"B": 8, "M": 512, "N": 512, "K": 512},
        COOPERATIVE,
        cut=TMA_GUARD,
    ),
    Edge(
        "UC0416",
        "e4m3 with A contiguous along M",
        E4M3.replace("[M, K]", "[K, M]"),
        SQUARE,
        _tiled(COOPERATIVE, (128, 128, 128)),
    ),
    Edge(
        "UC0417",
        "tf32 with A along K and B along N",
        F32.replace("(x, w)", "(tf32(x), tf32(w))").replace("[N, K]", "[K, N]"),
        SQUARE,
        _tiled(COOPERATIVE, (128, 128, 32)),
    ),
    Edge(
        "UC0417",
        "tf32 along M and N, tile K 16",
        F32.replace("(x, w)", "(tf32(x), tf32(w))")
        .replace("[N, K]", "[K, N]")
        .replace("x: f32[M, K]", "x: f32[K, M]"),
        SQUARE,
        _tiled(COOPERATIVE, (128, 128, 16)),
        _tiled(COOPERATIVE, (128, 128, 32)),
    ),
    Edge(
        "UC0417",
        "tf32 along M and N, tile N 16",
        F32.replace("(x, w)", "(tf32(x), tf32(w))")
        .replace("[N, K]", "[K, N]")
        .replace("x: f32[M, K]", "x: f32[K, M]"),
        SQUARE,
        _tiled(COOPERATIVE, (128, 16, 32)),
        _tiled(COOPERATIVE, (128, 32, 32)),
    ),
    Edge("UC0418", "row strides of 8 bytes modulo 16", PLAIN, SQUARE | {"K": 2044}, PINGPONG, cut=TMA_GUARD),
    Edge("UC0418", "addresses off by one element", PLAIN, SQUARE, PINGPONG, cut=TMA_GUARD, how="misaligned"),
    Edge("UC0419", "cooperative tile M 64", PLAIN, SQUARE, _tiled(COOPERATIVE, (64, 128, 64))),
    Edge("UC0419", "pingpong tile M 96", PLAIN, SQUARE, _tiled(PINGPONG, (96, 64, 64))),
    Edge("UC0420", "tile N 24", PLAIN, SQUARE, _tiled(PINGPONG, (64, 24, 64))),
    Edge("UC0420", "tile N 8", PLAIN, SQUARE, _tiled(PINGPONG, (64, 8, 64)), _tiled(PINGPONG, (64, 16, 64))),
    Edge("UC0421", "tile K 24 of f16", PLAIN, SQUARE, _tiled(PINGPONG, (64, 128, 24))),
    Edge(
        "UC0421",
        "tile K 320 of f16",
        PLAIN,
        SQUARE,
        _tiled(PINGPONG, (64, 64, 320)),
        _tiled(PINGPONG, (64, 64, 256)),
        why="a deeper tile only takes fewer stages for the same bytes in flight; 256 bounds the search",
    ),
    Edge(
        "UC0421",
        "tile K 256 of fp8 summed in f32",
        E4M3,
        SQUARE,
        _tiled(PINGPONG, (64, 64, 256)),
        why="it runs, but 256 products add up in the tensor core's 13 bits where the language promises 128",
    ),
    Edge(
        "UC0423",
        "pingpong 128x256: 256 accumulators",
        PLAIN,
        SQUARE,
        _tiled(PINGPONG, (128, 256, 32)),
        _tiled(PINGPONG, (128, 208, 32)),
        why="nvcc of this version fits them; earlier ones spilt (NVIDIA/cutlass 2219, 3372)",
    ),
    Edge(
        "UC0423",
        "cooperative 256x256: 256 accumulators",
        PLAIN,
        SQUARE,
        _tiled(COOPERATIVE, (256, 256, 32)),
        _tiled(COOPERATIVE, (256, 128, 32)),
    ),
    Edge(
        "UC0423",
        "tf32 along M and N, cooperative 256x192: 192 accumulators beside A",
        F32.replace("(x, w)", "(tf32(x), tf32(w))")
        .replace("[N, K]", "[K, N]")
        .replace("x: f32[M, K]", "x: f32[K, M]"),
        SQUARE,
        _tiled(COOPERATIVE, (256, 192, 32)),
        _tiled(COOPERATIVE, (256, 128, 32)),
    ),
    Edge(
        "UC0423",
        "e4m3 pingpong 128x128: two sets of 128",
        E4M3,
        SQUARE,
        _tiled(PINGPONG, (128, 128, 128)),
        _tiled(PINGPONG, (64, 128, 128)),
    ),
    Edge(
        "UC0424",
        "cluster 3x1",
        PLAIN,
        SQUARE,
        _tiled(COOPERATIVE, (128, 128, 64), cluster=(3, 1)),
        COOPERATIVE,
    ),
    Edge(
        "UC0424",
        "cluster 16x1",
        PLAIN,
        SQUARE,
        _tiled(COOPERATIVE, (128, 128, 64), cluster=(16, 1)),
        COOPERATIVE,
    ),
    Edge(
        "UC0425",
        "tile N 16 in a cluster of 4x1",
        PLAIN,
        SQUARE,
        _tiled(PINGPONG, (64, 16, 64), cluster=(4, 1)),
        _tiled(PINGPONG, (64, 16, 64), cluster=(2, 1)),
        why="4 rows along K do arrive; along N a slice of 4 is 8 bytes, which TMA refuses: one rule for both",
    ),
    Edge("UC0426", "one stage by TMA", PLAIN, SQUARE, replace(COOPERATIVE, stages=1)),
    Edge(
        "UC0426",
        "five stages of 128x256x64",
        PLAIN,
        SQUARE,
        _tiled(COOPERATIVE, (128, 256, 64), stages=5),
        cut=MEMORY_GUARD,
    ),
    Edge("UC0426", "multistage with one stage", PLAIN, SQUARE, replace(MULTISTAGE, stages=1), MULTISTAGE),
    Edge(
        "UC0426",
        "multistage, 16 stages of 128x128x32",
        PLAIN,
        SQUARE,
        replace(MULTISTAGE, stages=16),
        MULTISTAGE,
    ),
    Edge("UC0427", "pingpong with stream-K", PLAIN, SQUARE, replace(PINGPONG, split_k=2)),
    Edge(
        "UC0428",
        "128 parts of 32 steps of K",
        PLAIN,
        SQUARE,
        replace(COOPERATIVE, split_k=128),
        replace(COOPERATIVE, split_k=32),
        why="CUTLASS caps the parts itself; what is reported stays what runs",
    ),
    Edge(
        "UC0428",
        "multistage, 200 parts of 64 steps of K",
        PLAIN,
        SQUARE,
        replace(MULTISTAGE, split_k=200),
        replace(MULTISTAGE, split_k=64),
        why="the launch caps the parts itself; what is reported stays what runs",
    ),
    Edge(
        "UC0430",
        "M of 2^31 + 256 by TMA",
        PLAIN,
        LONG,
        _tiled(PINGPONG, (64, 16, 64)),
        cut=EXTENT_GUARD,
        how="huge",
    ),
    Edge(
        "UC0430",
        "M of 2^31 + 256 counted in the epilogue",
        COUNTED,
        LONG,
        _tiled(MULTISTAGE, (128, 32, 32), warp_tile=(32, 32)),
        cut=COUNT_GUARD,
        how="huge",
    ),
    Edge(
        "UC0431",
        "a result with rows of 8 bytes modulo 16 by TMA",
        PLAIN,
        SQUARE | {"N": 2044},
        PINGPONG,
        alter=by_tma,
        cut=TMA_GUARD,
    ),
    Edge(
        "UC0433",
        "a sum over the batch alone",
        "kernel k(x: bf16[B, M, K], w: bf16[B, N, K]) -> f32[M, N] { return sum[B](dot[K](x, w)) }",
        {"B": 4, "M": 512, "N": 512, "K": 512},
        PINGPONG,
    ),
    Edge(
        "UC0432",
        "swizzle 3 by TMA",
        PLAIN,
        SQUARE,
        replace(COOPERATIVE, swizzle=3),
        replace(COOPERATIVE, swizzle=2),
        cut=SWIZZLE_GUARD,
        why="CUTLASS rounds it down to 2 (get_log_swizzle_size); what is reported stays what runs",
    ),
    Edge(
        "UC0432",
        "swizzle 3 of multistage",
        PLAIN,
        SQUARE,
        replace(MULTISTAGE, swizzle=3),
        replace(MULTISTAGE, swizzle=2),
        why="the field means the same in both kernels, and CUTLASS's takes powers of two",
    ),
    Edge(
        "UC0440",
        "multistage tile K 16 of f16: one step",
        PLAIN,
        SQUARE,
        _tiled(MULTISTAGE, (128, 128, 16)),
        MULTISTAGE,
    ),
    Edge("UC0441", "warp tile 8x64", PLAIN, SQUARE, replace(MULTISTAGE, warp_tile=(8, 64)), MULTISTAGE),
    Edge("UC0442", "six warps", PLAIN, SQUARE, _tiled(MULTISTAGE, (192, 128, 32)), MULTISTAGE),
    Edge("UC0442", "64 warps", PLAIN, SQUARE, _tiled(MULTISTAGE, (256, 256, 32), warp_tile=(32, 32))),
    Edge(
        "UC0443",
        "warp tile 128x64: 256 accumulators",
        PLAIN,
        SQUARE,
        _tiled(MULTISTAGE, (256, 128, 32), warp_tile=(128, 64)),
        MULTISTAGE,
    ),
    Edge(
        "UC0443",
        "tf32x3 warp tile 64x64: 128 accumulators",
        F32,
        SQUARE,
        _tiled(MULTISTAGE, (128, 128, 32), math="tf32x3"),
        _tiled(MULTISTAGE, (128, 128, 32), warp_tile=(64, 32), math="tf32x3"),
    ),
    Edge(
        "UC0450",
        "8 columns in a kernel of 4",
        PLAIN,
        THIN,
        replace(GEMV, columns=4),
        GEMV,
        why="it reads the matrix twice, at 1.29 x the time; a kernel of 8 columns is always legal",
    ),
    Edge(
        "UC0451",
        "3 rows",
        PLAIN,
        THIN,
        replace(GEMV, rows=3),
        GEMV,
        why="rows share a block along M, so their count divides it; 3 bring no more than 2 or 4",
    ),
    Edge("UC0452", "96 threads", PLAIN, THIN, replace(GEMV, threads=96), GEMV),
    Edge("UC0452", "2048 threads", PLAIN, THIN, replace(GEMV, threads=2048)),
    Edge(
        "UC0453", "16 rows x 8 columns: 128 sums", PLAIN, THIN, replace(GEMV, rows=16), replace(GEMV, rows=8)
    ),
    Edge("UC0454", "partial sums of 264 KiB", TURNED, THIN, replace(GEMV, rows=32, threads=32)),
)
