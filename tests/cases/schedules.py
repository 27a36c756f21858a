"""The cases of matrix times vector, and of schedules."""

from __future__ import annotations

from collections.abc import Iterator

from tests.cases.campaign import Case
from tests.cases.text import ALL, FEW_ODD, PLAIN, case, cooperative, gemv, multistage, pingpong, sizes

# --- matrix times vector -----------------------------------------------------------------


def vectors() -> Iterator[Case]:
    odd = sizes("M K", (1, 1), (7, 3), (31, 127), (127, 509), (509, 131), (2053, 1031))
    for name, memory, result, dot, shapes in (
        ("f16", "f16", "f32", "dot[K](a, x)", odd),
        ("bf16", "bf16", "bf16", "dot[K](a, x)", odd),
        ("tf32", "f32", "f32", "dot[K](tf32(a), tf32(x))", odd),
        ("f32", "f32", "f32", "dot[K](a, x)", odd),
        ("e4m3", "e4m3", "f32", "dot[K](a, x)", odd[:4]),
        ("e5m2", "e5m2", "f32", "dot[K](a, x)", odd[:4]),
        ("s8", "s8", "i32", "dot[K](a, x)", odd),
    ):
        yield case(
            f"matrix-vector/{name}",
            f"(a: {memory}[M, K], x: {memory}[K]) -> {result}[M]",
            f"  return {dot}",
            gemv(),
            shapes,
            ALL,
        )
    yield from _vectors()
    yield case(
        "matrix-vector/bf16 by multistage",
        "(a: bf16[M, K], x: bf16[K]) -> f32[M]",
        "  return dot[K](a, x)",
        multistage(),
        odd[:4],
    )


def _vectors() -> Iterator[Case]:
    """Of other forms than rows times one vector."""
    aligned = sizes("M K", (4, 8), (8, 64), (136, 1024), (1000, 4096))
    yield case(
        "matrix-vector/bf16 aligned",
        "(a: bf16[M, K], x: bf16[K], b: f32[M]) -> f32[M]",
        "  return silu(dot[K](a, x) + b)",
        gemv(2, 1, 128),
        aligned,
    )
    yield case(
        "matrix-vector/bf16 along M",
        "(a: bf16[K, M], x: bf16[K]) -> f32[M]",
        "  return dot[K](a, x)",
        gemv(16, 1, 16),
        sizes("M K", (8, 1), (64, 31), (136, 1023), (1000, 509)),
    )
    yield case(
        "matrix-vector/f16 row vector",
        "(x: f16[K], w: f16[N, K], b: f16[N]) -> f16[N]",
        "  return dot[K](x, w) + b",
        gemv(4, 1, 64, "yes"),
        sizes("N K", (1, 1), (127, 31), (509, 131)),
    )
    yield case(
        "matrix-vector/f16 eight columns",
        "(x: f16[M, K], w: f16[N, K]) -> (y: f32[N, M], s: f32[N], t: f32[M])",
        "  d = dot[K](x, w)\n  return y = d, s = sum[M](d), t = max[N](d)",
        gemv(2, 8, 64),
        sizes("M N K", (1, 3, 1), (127, 5, 31), (509, 7, 131)),
    )
    yield case(
        "matrix-vector/bf16 batched",
        "(x: bf16[M, B, K], w: bf16[B, K]) -> bf16[B, M]",
        "  return dot[K](x, w)",
        gemv(),
        sizes("B M K", (1, 1, 1), (3, 127, 31), (5, 31, 509)),
    )
    yield case(
        "matrix-vector/f32 dot of vectors",
        "(x: f32[K], w: f32[K]) -> f32[]",
        "  return dot[K](x, w)",
        gemv(1, 1, 128),
        sizes("K", (1,), (31,), (509,), (65537,)),
    )


# --- schedules ---------------------------------------------------------------------------------------


_PLAIN = PLAIN.format(e="bf16", r="bf16")
_DOT = "  return dot[K](x, w)"


def schedules() -> Iterator[Case]:
    yield from _splits()
    yield from _swaps()
    yield from _tiles()


def _splits() -> Iterator[Case]:
    deep = sizes("M N K", (1, 16, 1024), (129, 272, 1040), (256, 512, 4096), (65, 80, 8208))
    for splits in ("stream", "2", "3", "16"):
        yield case(
            f"split K/TMA {splits}",
            _PLAIN,
            _DOT,
            cooperative("128x128x64").replace("split_k 1", f"split_k {splits}"),
            deep,
        )
        if splits != "stream":
            odd = sizes("M N K", (1, 1, 513), (13, 7, 1031), (127, 129, 2053))
            yield case(
                f"split K/multistage {splits}",
                _PLAIN,
                _DOT,
                multistage("128x64x32").replace("split_k 1", f"split_k {splits}"),
                odd,
            )
    for splits in ("2", "3", "8"):
        yield case(
            f"split K/cluster {splits}",
            _PLAIN,
            _DOT,
            cooperative("128x128x64").replace("split_k 1", f"split_k {splits}  partials cluster"),
            deep,
        )
    yield case(
        "split K/TMA with an epilogue",
        "(x: f16[M, K], w: f16[N, K], b: f16[N], r: f16[M, N]) -> (y: f16[M, N], s: f32[M])",
        "  d = gelu(dot[K](x, w) + b)\n  return y = d + r, s = max[N](d)",
        cooperative("128x64x64").replace("split_k 1", "split_k stream"),
        deep,
    )


def _swaps() -> Iterator[Case]:
    yield case(
        "swap/TMA",
        "(x: f16[M, K], w: f16[N, K], b: f16[N], c: f32[M]) -> (y: f16[M, N], s: f32[M])",
        "  d = dot[K](x, w) * c + b\n  return y = d, s = sum[N](d)",
        pingpong("64x16x64").replace("swap no", "swap yes"),
        sizes("M N K", (1, 16, 16), (16, 144, 80), (33, 272, 208)),
    )
    yield case(
        "swap/multistage",
        "(x: f16[M, K], w: f16[K, N], c: f32[M]) -> f32[M, N]",
        "  return dot[K](x, w) + c",
        multistage().replace("swap no", "swap yes"),
        FEW_ODD,
    )


def _tiles() -> Iterator[Case]:
    spread = sizes("M N K", (1, 16, 16), (127, 144, 80), (513, 1040, 208), (1024, 2048, 512))
    residual = "(x: f16[M, K], w: f16[K, N], r: f16[M, N]) -> f16[M, N]"
    for schedule in (
        cooperative("256x64x64", "2x1"),
        pingpong("64x256x64", "1x2"),
        cooperative("128x208x64", "2x2"),
        pingpong("192x64x64", "4x1"),
        cooperative("256x128x64", "1x4"),
        pingpong("64x128x128", "8x1"),
        pingpong("256x96x32", "1x1"),
        pingpong("64x16x128", "1x1"),
    ):
        words = schedule.split()
        name = f"tiles and clusters/TMA {words[3]} {words[5]}"
        yield case(
            name, residual, "  return dot[K](x, w) + r", schedule + "  raster along_n  swizzle 2", spread
        )
    for tile, warp in (("16x16x32", "16x16"), ("256x64x32", "64x32"), ("128x48x32", "32x48")):
        yield case(
            f"tiles and clusters/multistage {tile}",
            _PLAIN,
            _DOT,
            multistage(tile, f"  warp_tile {warp}  raster along_m  swizzle 4"),
            FEW_ODD,
        )
