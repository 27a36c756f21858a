"""The cases of `benchmarks.correctness`: every operator, lane, operand order and epilogue function.

Schedules are fixed in what shapes a kernel's source, so that one build serves all shapes of a
case: what costs time is a distinct source. Shapes stand at the edges of the tiles, at primes and
at 1; TMA kernels get those that keep 16-byte strides, the others everything.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.case_text import (
    ALL,
    EVEN,
    FEW,
    FEW_ODD,
    HUGE,
    ODD,
    SMALL_K,
    TMA,
    case,
    cooperative,
    gemv,
    multistage,
    pingpong,
    sizes,
)
from benchmarks.epilogue_cases import epilogues
from benchmarks.farm import Case


def cases() -> Iterator[Case]:
    """All of them; `group/case` is a name."""
    yield from lanes()
    yield from orders()
    yield from batches()
    yield from vectors()
    yield from epilogues()
    yield from schedules()


# --- lanes ---------------------------------------------------------------------------

PLAIN = "(x: {e}[M, K], w: {e}[N, K]) -> {r}[M, N]"
LANES: tuple[tuple[str, str, str, str, str, str], ...] = (
    # name, memory, result, dot, the TMA schedule, tile of multistage
    ("f16", "f16", "f32", "dot[K](x, w)", pingpong(), "64x64x32"),
    ("f16 in f16", "f16", "f32", "dot[K](x, w, acc=f16)", cooperative(), "64x64x32"),
    ("bf16", "bf16", "bf16", "dot[K](x, w)", cooperative("128x256x64"), "128x64x32"),
    ("tf32", "f32", "f32", "dot[K](tf32(x), tf32(w))", pingpong("64x128x32"), "64x64x16"),
    ("e4m3", "e4m3", "f32", "dot[K](x, w)", cooperative("128x128x128"), "64x64x64"),
    ("e4m3 fast", "e4m3", "bf16", "dot[K](x, w, acc=fast)", pingpong("64x128x128"), "64x64x64"),
    ("e5m2", "e5m2", "f32", "dot[K](x, w)", pingpong("64x64x128"), "64x64x64"),
    (
        "e5m2 fast",
        "e5m2",
        "f16",
        "dot[K](x, w, acc=fast) * 0.0009765625",
        cooperative("128x128x128"),
        "64x64x64",
    ),
    ("s8", "s8", "i32", "dot[K](x, w)", pingpong("64x128x128"), "64x64x64"),
)


def lanes() -> Iterator[Case]:
    for name, memory, result, dot, tma, tile in LANES:
        fp8 = memory in ("e4m3", "e5m2")
        shapes = SMALL_K if fp8 else TMA
        # Half-precision sums end at 65504: no wide values there.
        kinds = tuple(d for d in ALL if d != "wide" or "acc=f16" not in dot)
        yield case(
            f"lanes, TMA/{name}", PLAIN.format(e=memory, r=result), f"  return {dot}", tma, shapes, kinds
        )
        yield case(
            f"lanes, multistage/{name}",
            PLAIN.format(e=memory, r="f32" if fp8 else result),
            f"  return {dot.split(' *')[0]}",
            multistage(tile),
            FEW_ODD if fp8 else ODD,
            kinds,
        )
    plain = PLAIN.format(e="f32", r="f32")
    for name, schedule in (
        ("f32", pingpong("64x128x32")),
        ("f32 wide", cooperative("128x192x32", "2x1")),
        ("f32 stream-K", cooperative("128x128x32").replace("split_k 1", "split_k stream")),
    ):
        yield case(f"lanes, TMA/{name}", plain, "  return dot[K](x, w)", schedule, TMA, ALL)
    for name, math in (("tf32x3", "tf32x3"), ("f32 simt", "simt")):
        schedule = multistage("64x64x32", f"  math {math}")
        yield case(f"lanes, multistage/{name}", plain, "  return dot[K](x, w)", schedule, ODD, ALL)
        if math == "tf32x3":
            yield case(
                f"lanes, multistage/{name} aligned", plain, "  return dot[K](x, w)", schedule, FEW, ALL
            )
    for memory, tile in (("bf16", "128x128x32"), ("s8", "128x128x64"), ("e4m3", "64x128x64")):
        result = {"s8": "i32"}.get(memory, "f32")
        yield case(
            f"lanes, multistage/{memory} aligned",
            PLAIN.format(e=memory, r=result),
            "  return dot[K](x, w)",
            multistage(tile),
            SMALL_K if memory == "e4m3" else FEW,
            ALL,
        )
    wide = PLAIN.format(e="bf16", r="bf16")
    yield case(
        "odd extents/bf16 8205 x 2949 x 5921", wide, "  return dot[K](x, w)", multistage("128x64x32"), HUGE
    )
    yield case("odd extents/bf16 even", wide, "  return dot[K](x, w)", multistage("128x64x32"), EVEN)
    yield case(
        "odd extents/bf16 TMA, odd N",
        wide,
        "  return dot[K](x, w)",
        pingpong(),
        sizes("M N K", (1, 1, 16), (7, 1, 8), (127, 31, 64), (129, 509, 72), (509, 127, 1000)),
    )
    yield case(
        "large/bf16",
        wide,
        "  return dot[K](x, w)",
        cooperative("128x256x64"),
        sizes("M N K", (4096, 4096, 4096), (8192, 1024, 8192), (64, 14336, 4096)),
    )


# --- operand orders --------------------------------------------------------------------


def orders() -> Iterator[Case]:
    a_orders, b_orders, d_orders = ("M, K", "K, M"), ("N, K", "K, N"), ("M, N", "N, M")
    aligned = sizes("M N K", (16, 16, 16), (144, 80, 48), (128, 256, 64), (272, 144, 208))
    for a in a_orders:
        for b in b_orders:
            for d in d_orders:
                schedule = (
                    pingpong("128x64x64") if (a == "M, K") == (d == "M, N") else cooperative("128x128x64")
                )
                yield case(
                    f"orders, TMA/f16 [{a}] [{b}] [{d}]",
                    f"(x: f16[{a}], w: f16[{b}]) -> f16[{d}]",
                    "  return dot[K](x, w)",
                    schedule,
                    aligned,
                )
            if (a, b) != ("M, K", "N, K"):
                yield case(
                    f"orders, multistage/f16 [{a}] [{b}] [N, M]",
                    f"(x: f16[{a}], w: f16[{b}]) -> f16[N, M]",
                    "  return dot[K](x, w)",
                    multistage("64x64x32"),
                    FEW_ODD,
                )
    dot = "  return dot[K](tf32(x), tf32(w))"
    for a, b, schedule in (
        ("K, M", "N, K", pingpong("64x128x32")),
        ("K, M", "K, N", cooperative("128x64x32")),
        ("M, K", "K, N", pingpong("64x128x32").replace("swap no", "swap yes")),
    ):
        yield case(
            f"orders, TMA/tf32 [{a}] [{b}]",
            f"(x: f32[{a}], w: f32[{b}]) -> f32[M, N]",
            dot,
            schedule,
            aligned,
        )
    for e, r in (("s8", "i32"), ("e4m3", "f32")):
        yield case(
            f"orders, multistage/{e} [K, M] [K, N]",
            f"(x: {e}[K, M], w: {e}[K, N]) -> {r}[M, N]",
            "  return dot[K](x, w)",
            multistage("64x64x64"),
            FEW_ODD,
        )


# --- batches, composite axes, several contracted modes -----------------------------------


def batches() -> Iterator[Case]:
    three = sizes("B M N K", (1, 1, 16, 16), (3, 127, 144, 80), (7, 64, 272, 64), (2, 257, 128, 208))
    four = sizes("B C M N K", (1, 1, 1, 16, 16), (3, 2, 65, 80, 48), (2, 5, 129, 144, 64))
    odd = sizes("B M N K", (1, 1, 1, 1), (3, 13, 7, 31), (5, 127, 129, 67))
    dot = "  return dot[K](x, w)"
    for name, signature, schedule, shapes in (
        (
            "TMA, outermost",
            "(x: bf16[B, M, K], w: bf16[B, N, K]) -> bf16[B, M, N]",
            pingpong("64x64x64"),
            three,
        ),
        ("TMA, in the middle", "(x: bf16[M, B, K], w: bf16[K, B, N]) -> bf16[M, B, N]", cooperative(), three),
        (
            "TMA, two names",
            "(x: f16[B, M, C, K], w: f16[C, B, N, K]) -> f16[B, C, M, N]",
            pingpong("64x64x64"),
            four,
        ),
        (
            "TMA, five apart",
            "(x: f16[A, B, C, D, E, M, K], w: f16[E, D, C, B, A, N, K]) -> f16[C, A, E, B, D, M, N]",
            cooperative("128x64x64"),
            sizes("A B C D E M N K", (2, 3, 2, 3, 2, 127, 72, 80), (3, 1, 2, 5, 2, 64, 128, 64)),
        ),
        ("multistage, innermost", "(x: bf16[M, K, B], w: bf16[N, B, K]) -> bf16[N, B, M]", multistage(), odd),
        (
            "multistage, result innermost",
            "(x: f16[B, M, K], w: f16[B, K, N]) -> f16[M, N, B]",
            multistage(),
            odd,
        ),
    ):
        yield case(f"batch/{name}", signature, dot, schedule, shapes)
    for name, signature, schedule, shapes in (
        (
            "TMA, B shared",
            "(x: bf16[S, B, K], w: bf16[K, N], s: f32[B]) -> bf16[B, S, N]",
            pingpong("64x128x64"),
            sizes("S B N K", (1, 1, 16, 16), (127, 3, 144, 80), (64, 5, 256, 128)),
        ),
        (
            "TMA, A shared",
            "(x: f16[M, K], w: f16[B, N, K], s: f32[B]) -> f16[B, M, N]",
            cooperative("128x64x64"),
            three,
        ),
        (
            "multistage, both lack one",
            "(x: bf16[B, M, K], w: bf16[C, N, K], s: f32[B, C]) -> f32[C, B, M, N]",
            multistage(),
            sizes("B C M N K", (1, 1, 1, 1, 1), (3, 2, 31, 13, 7), (2, 3, 127, 65, 129)),
        ),
    ):
        yield case(f"broadcast/{name}", signature, "  return dot[K](x, w) * s", schedule, shapes)
    yield case(
        "composite/heads split on store",
        "(x: bf16[B, L, K], w: bf16[K, (A=16 D=64)], b: bf16[(A D)]) -> bf16[B, A, L, D]",
        "  return dot[K](x, w) + b",
        pingpong("64x64x64"),
        sizes("B L K", (1, 1, 16), (2, 127, 80), (3, 200, 256)),
    )
    yield case(
        "composite/grouped causal scores",
        "(q: f16[B, (H G=4), L, D], k: f16[B, H, S, D]) -> f32[B, (H G), L, S]",
        "  return where(index(S) <= index(L), dot[D](q, k) * rsqrt(size(D)), -inf)",
        cooperative(),
        sizes("B H L S D", (1, 1, 1, 16, 16), (2, 3, 127, 144, 64), (1, 2, 256, 256, 128)),
    )
    yield case(
        "composite/merged rows",
        "(x: f16[(M U=3), K], w: f16[N, K], r: f16[U, N]) -> f16[M, U, N]",
        "  return dot[K](x, w) + r",
        pingpong("128x64x64"),
        sizes("M N K", (4, 16, 16), (127, 144, 80), (129, 272, 208)),
    )
    yield case(
        "several K/one run",
        "(x: bf16[M, K, J], w: bf16[N, K, J]) -> f32[M, N]",
        "  return dot[K, J](x, w)",
        cooperative("128x64x64"),
        sizes("M N K J", (1, 16, 1, 16), (127, 144, 5, 16), (65, 80, 9, 48)),
    )
    yield case(
        "several K/two orders",
        "(x: bf16[M, K, J], w: bf16[N, J, K]) -> f32[M, N]",
        "  return dot[K, J](x, w)",
        multistage(),
        sizes("M N K J", (1, 1, 1, 1), (13, 7, 3, 31), (127, 129, 13, 31)),
    )
    yield case(
        "several K/batch between",
        "(x: f32[K, B, J, M], w: f32[B, K, N, J]) -> f32[B, M, N]",
        "  return dot[K, J](tf32(x), tf32(w))",
        multistage("64x64x16"),
        sizes("B M N K J", (1, 1, 1, 1, 1), (2, 13, 7, 3, 31), (3, 65, 129, 5, 13)),
    )


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
    yield case(
        "matrix-vector/bf16 by multistage",
        "(a: bf16[M, K], x: bf16[K]) -> f32[M]",
        "  return dot[K](a, x)",
        multistage(),
        odd[:4],
    )


# --- schedules ---------------------------------------------------------------------------------------


def schedules() -> Iterator[Case]:
    plain = PLAIN.format(e="bf16", r="bf16")
    dot = "  return dot[K](x, w)"
    deep = sizes("M N K", (1, 16, 1024), (129, 272, 1040), (256, 512, 4096), (65, 80, 8208))
    for splits in ("stream", "2", "3", "16"):
        yield case(
            f"split K/TMA {splits}",
            plain,
            dot,
            cooperative("128x128x64").replace("split_k 1", f"split_k {splits}"),
            deep,
        )
        if splits != "stream":
            odd = sizes("M N K", (1, 1, 513), (13, 7, 1031), (127, 129, 2053))
            yield case(
                f"split K/multistage {splits}",
                plain,
                dot,
                multistage("128x64x32").replace("split_k 1", f"split_k {splits}"),
                odd,
            )
    yield case(
        "split K/TMA with an epilogue",
        "(x: f16[M, K], w: f16[N, K], b: f16[N], r: f16[M, N]) -> (y: f16[M, N], s: f32[M])",
        "  d = gelu(dot[K](x, w) + b)\n  return y = d + r, s = max[N](d)",
        cooperative("128x64x64").replace("split_k 1", "split_k stream"),
        deep,
    )
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
            plain,
            dot,
            multistage(tile, f"  warp_tile {warp}  raster along_m  swizzle 4"),
            FEW_ODD,
        )
