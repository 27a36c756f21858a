"""The epilogue's cases of `tests.cases.correctness`: functions, logic, casts, operands, reductions."""

from __future__ import annotations

from collections.abc import Iterator

from tests.cases.campaign import Case
from tests.cases.text import FEW, case, cooperative, multistage, pingpong, sizes


def epilogues() -> Iterator[Case]:
    yield from functions()
    yield from logic()
    yield from operands()
    yield from reductions()


# --- functions -----------------------------------------------------------------------------

SPARE = "d = dot[K](x, w) * 0.25"
FAST: tuple[tuple[str, ...], ...] = (
    ("relu(d)", "leaky_relu(d)", "leaky_relu(d, 0.2)", "gelu(d)", "gelu_tanh(d)", "silu(d)"),
    ("sigmoid(d)", "tanh(d)", "softplus(d)", "elu(d)", "elu(d, 0.7)", "selu(d)"),
    (
        "mish(d)",
        "hardswish(d)",
        "hardtanh(d, -2, 3)",
        "clamp(d, -1.5, p)",
        "exp(d * 0.125)",
        "(d * 0.125) ** 3",
    ),
    ("log(abs(d) + 0.5)", "log1p(abs(d))", "sqrt(abs(d))", "rsqrt(abs(d) + 0.25)", "erf(d)", "sin(d)"),
    ("cos(d)", "d / (abs(p) + 1)", "abs(d)", "min(d, p)", "max(d, p)", "pow(abs(d) + 0.5, 1.7)"),
)
FUNCTIONS: tuple[tuple[str, ...], ...] = (
    *FAST,
    ("floor(d)", "round(d)", "sign(d)", "-d", "hardtanh(d)", "(abs(d) + 0.5) ** 2"),
    ("d + p", "d - p", "d * p", "d // 0.75", "d % 1.5", "(d + p) * (d - p)"),
)
"""Six results a kernel; `FAST` are those with functions that have cheaper forms for 16-bit results.
With integers the dot is exact, so that the function's own error shows."""


def functions() -> Iterator[Case]:
    named = "abcdef"
    shapes = sizes("M N K", (1, 16, 16), (127, 144, 32), (129, 272, 64))
    odd = sizes("M N K", (1, 1, 1), (31, 13, 7), (127, 129, 67))
    for number, group in enumerate(FUNCTIONS):
        returned = ", ".join(f"{n} = {f}" for n, f in zip(named, group, strict=True))
        body = f"  {SPARE}\n  return {returned}"
        label = ", ".join(group)
        full = ", ".join(f"{n}: f32[M, N]" for n in named)
        yield case(
            f"functions, f32 results/{label}",
            f"(x: f16[M, K], w: f16[N, K], p: f32[N]) -> ({full})",
            body,
            multistage("64x64x32"),
            odd,
            ("normal", "integer", "positive", "zeros"),
        )
        if group not in FAST:
            continue
        half = ", ".join(f"{n}: {'bf16' if number % 2 else 'f16'}[M, N]" for n in named)
        yield case(
            f"functions, 16-bit results/{label}",
            f"(x: bf16[M, K], w: bf16[N, K], p: f32[N]) -> ({half})",
            body,
            pingpong("64x64x64"),
            shapes,
            ("normal", "integer", "zeros"),
        )
    yield case(
        "functions, f32 results/by TMA",
        "(x: f16[M, K], w: f16[N, K], b: f32[N]) -> (a: f32[M, N], b2: f32[M, N], c: f32[M, N])",
        f"  {SPARE} + b\n  return a = gelu(d), b2 = mish(d), c = softplus(d)",
        cooperative("128x64x64"),
        shapes,
    )


# --- comparisons, casts, masks -----------------------------------------------------------------


_EVEN = sizes("M N K", (1, 16, 16), (127, 144, 32), (129, 272, 64))
_ODD = sizes("M N K", (1, 1, 1), (31, 13, 7), (127, 129, 67))


def logic() -> Iterator[Case]:
    compare = (
        "  d = dot[K](x, w)\n"
        "  return a = where(d < p, d, 0), b = where(d <= p and d >= -3, 1, d),"
        " c = where(d == p or d != 0, d * 2, p),"
        " e = where(not (d > 1), p, d), f = d > p, g = d == 2"
    )
    results = "(a: f32[M, N], b: f32[M, N], c: f16[M, N], e: bf16[M, N], f: bool[M, N], g: bool[N, M])"
    for name, schedule, extents in (("TMA", pingpong("64x64x64"), _EVEN), ("multistage", multistage(), _ODD)):
        yield case(
            f"comparisons and where/{name}",
            f"(x: f16[M, K], w: f16[N, K], p: f32[N]) -> {results}",
            compare,
            schedule,
            extents,
            ("integer", "zeros", "normal"),
        )
    masks = (
        "  d = dot[K](x, w)\n  u = where(index(N) <= index(M), d, -inf)\n"
        "  return a = u, b = where(index(M) == index(N) + 3 or index(B) == 1, 1, d) * size(K),"
        " c = where(index(N) % 5 < 2, d, index(M) * 0.5), e = max[N](u)"
    )
    signature = (
        "(x: bf16[B, M, K], w: bf16[B, N, K])"
        " -> (a: bf16[B, M, N], b: f32[B, M, N], c: f32[B, N, M], e: f32[B, M])"
    )
    yield case(
        "masks by index/TMA",
        signature,
        masks,
        cooperative("128x64x64"),
        sizes("B M N K", (1, 1, 16, 16), (3, 127, 144, 32), (2, 129, 272, 64)),
    )
    yield case(
        "masks by index/multistage",
        signature,
        masks,
        multistage(),
        sizes("B M N K", (1, 1, 1, 1), (3, 31, 13, 7), (2, 127, 129, 67)),
    )
    yield from _casts()


def _casts() -> Iterator[Case]:
    casts = (
        "  d = dot[K](x, w) * 0.25\n"
        "  return a = f32(bf16(d)) + d, b = f32(e4m3(d)), c = f32(e5m2(d)), e = i32(floor(d)) + 1,"
        " f = d, g = d"
    )
    signature = (
        "(x: f16[M, K], w: f16[N, K])"
        " -> (a: f32[M, N], b: f16[M, N], c: f32[M, N], e: i32[M, N], f: e4m3[M, N], g: e5m2[M, N])"
    )
    yield case("casts/TMA", signature, casts, pingpong("64x64x64"), _EVEN)
    yield case("casts/multistage", signature, casts, multistage(), _ODD)
    integers = (
        "  d = dot[K](x, w)\n"
        "  return a = s8(clamp(d // 7, -100, 100)), b = d % 13 + p, c = f32(d) * 0.5, e = abs(max(d, p))"
    )
    signature = (
        "(x: s8[M, K], w: s8[N, K], p: i32[N]) -> (a: s8[M, N], b: i32[M, N], c: f32[M, N], e: i32[N, M])"
    )
    yield case("casts/integers by TMA", signature, integers, pingpong("64x64x128"), _EVEN)
    yield case("casts/integers by multistage", signature, integers, multistage("64x64x64"), _ODD)


# --- operands ----------------------------------------------------------------------------------


def operands() -> Iterator[Case]:
    shapes = sizes("B M N K", (1, 1, 16, 16), (3, 127, 144, 32), (2, 129, 272, 64))
    odd = sizes("B M N K", (1, 1, 1, 1), (3, 31, 13, 7), (2, 127, 129, 67))
    vector = (
        "(x: bf16[B, M, K], w: bf16[B, N, K], h: f32, s: f32[], r: f16[N], c: bf16[M], b: f32[B],"
        " rb: f32[B, N], cb: f16[M, B])"
        " -> bf16[B, M, N]"
    )
    body = "  return (dot[K](x, w) * h + s * r - c) * b + rb * cb"
    full = (
        "(x: f16[B, M, K], w: f16[B, N, K], r: f16[B, M, N], q: f32[M, N], t: bf16[B, N, M], u: f32[N, M])"
        " -> (y: f16[B, M, N], z: f32[B, M, N])"
    )
    both = "  d = dot[K](x, w) + r\n  return y = d * q - t, z = d + u"
    kinds = (
        "(x: f16[M, K], w: f16[N, K], a: e4m3[M, N], b: s8[M, N], c: u8[N], d: i32[M], e: bool[M, N],"
        " f: e5m2[N])"
        " -> (y: f32[M, N], z: f16[M, N])"
    )
    mixed = "  v = dot[K](x, w) + a * f\n  return y = where(e, v + b, v - c) + d, z = v * 0.5"
    two = sizes("M N K", (1, 16, 16), (127, 144, 32), (129, 272, 64))
    for name, schedule in (("TMA", pingpong("64x64x64")), ("multistage", multistage())):
        by_tma = name == "TMA"
        yield case(
            f"operands/{name}: scalars, rows, columns, batches",
            vector,
            body,
            schedule,
            shapes if by_tma else odd,
        )
        yield case(f"operands/{name}: whole tensors", full, both, schedule, shapes if by_tma else odd)
        yield case(
            f"operands/{name}: element types",
            kinds,
            mixed,
            schedule,
            two if by_tma else sizes("M N K", (1, 1, 1), (31, 13, 7), (127, 129, 67)),
        )
    yield case(
        "operands/TMA: residual and bias, cooperative",
        "(x: bf16[M, K], w: bf16[N, K], b: bf16[N], r: bf16[M, N]) -> bf16[M, N]",
        "  return relu(dot[K](x, w) + b) + r",
        cooperative("128x128x64"),
        FEW,
    )


# --- reductions ------------------------------------------------------------------------------------


def reductions() -> Iterator[Case]:
    shapes = sizes("M N K", (1, 16, 16), (127, 144, 32), (257, 272, 64), (509, 1040, 208))
    odd = sizes("M N K", (1, 1, 1), (31, 13, 7), (127, 129, 67), (509, 257, 31))
    rows = "(x: f16[M, K], w: f16[N, K]) -> (y: f16[M, N], a: f32[M], b: f32[M], c: f32[M], e: f32[M])"
    over_rows = "y = d, a = sum[N](d), b = max[N](abs(d)), c = min[N](d), e = mean[N](d * d)"
    columns = "(x: f16[M, K], w: f16[N, K]) -> (y: f16[M, N], a: f32[N], b: f32[N], c: bf16[N], e: f32[N])"
    over_columns = "y = d, a = sum[M](d), b = max[M](d), c = min[M](d), e = mean[M](relu(d))"
    everything = "(x: f16[M, K], w: f16[N, K]) -> (y: f16[M, N], a: f32[], b: f32[], c: f32[], e: f32[])"
    over_all = "y = d, a = sum[M, N](d), b = max[M, N](d), c = min[M, N](d), e = mean[M, N](abs(d))"
    for name, signature, returned, tma in (
        ("rows", rows, over_rows, pingpong("64x128x64")),
        ("columns", columns, over_columns, cooperative("128x64x64")),
        ("everything", everything, over_all, pingpong("64x64x64")),
    ):
        body = f"  d = dot[K](x, w)\n  return {returned}"
        yield case(f"reductions, TMA/{name}", signature, body, tma, shapes)
        yield case(f"reductions, multistage/{name}", signature, body, multistage(), odd)
    yield case(
        "reductions, TMA/batches, nothing stored",
        "(x: bf16[B, M, K], w: bf16[B, N, K]) -> (a: f32[B, M], b: f32[B], c: f32[N])",
        "  d = dot[K](x, w)\n  return a = sum[N](d), b = max[M, N](d), c = max[B, M](d)",
        cooperative("128x128x64"),
        sizes("B M N K", (1, 1, 16, 16), (3, 127, 144, 32), (5, 129, 272, 64)),
    )
