"""The cases of `tests.cases.correctness`: every operator, compute type, operand order and epilogue function.

Schedules are fixed in what shapes a kernel's source, so that one build serves all shapes of a
case: what costs time is a distinct source. Shapes stand at the edges of the tiles, at primes and
at 1; TMA kernels get those that keep 16-byte strides, the others everything.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.cases.campaign import Case
from tests.cases.epilogues import epilogues
from tests.cases.schedules import schedules, vectors
from tests.cases.text import (
    ALL,
    EVEN,
    FEW,
    FEW_ODD,
    HUGE,
    ODD,
    PLAIN,
    SMALL_K,
    TMA,
    case,
    cooperative,
    multistage,
    pingpong,
    sizes,
)


def cases() -> Iterator[Case]:
    """All of them; `group/case` is a name."""
    yield from compute_types()
    yield from orders()
    yield from batches()
    yield from vectors()
    yield from epilogues()
    yield from schedules()


# --- compute types ---------------------------------------------------------------------------

COMPUTE_TYPES: tuple[tuple[str, str, str, str, str, str], ...] = (
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


def compute_types() -> Iterator[Case]:
    """Every compute type by TMA and multistage; results are recorded under the names `lanes, ..`."""
    for name, memory, result, dot, tma, tile in COMPUTE_TYPES:
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
        ("f32 stream-K", cooperative("128x128x32").replace("split_k 1", "split_k stream  math tf32x3")),
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


_THREE = sizes("B M N K", (1, 1, 16, 16), (3, 127, 144, 80), (7, 64, 272, 64), (2, 257, 128, 208))


def batches() -> Iterator[Case]:
    four = sizes("B C M N K", (1, 1, 1, 16, 16), (3, 2, 65, 80, 48), (2, 5, 129, 144, 64))
    odd = sizes("B M N K", (1, 1, 1, 1), (3, 13, 7, 31), (5, 127, 129, 67))
    dot = "  return dot[K](x, w)"
    for name, signature, schedule, shapes in (
        (
            "TMA, outermost",
            "(x: bf16[B, M, K], w: bf16[B, N, K]) -> bf16[B, M, N]",
            pingpong("64x64x64"),
            _THREE,
        ),
        (
            "TMA, in the middle",
            "(x: bf16[M, B, K], w: bf16[K, B, N]) -> bf16[M, B, N]",
            cooperative(),
            _THREE,
        ),
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
    yield from _broadcast()
    yield from _composite()
    yield from _several()


def _broadcast() -> Iterator[Case]:
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
            _THREE,
        ),
        (
            "multistage, both lack one",
            "(x: bf16[B, M, K], w: bf16[C, N, K], s: f32[B, C]) -> f32[C, B, M, N]",
            multistage(),
            sizes("B C M N K", (1, 1, 1, 1, 1), (3, 2, 31, 13, 7), (2, 3, 127, 65, 129)),
        ),
    ):
        yield case(f"broadcast/{name}", signature, "  return dot[K](x, w) * s", schedule, shapes)


def _composite() -> Iterator[Case]:
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


def _several() -> Iterator[Case]:
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
