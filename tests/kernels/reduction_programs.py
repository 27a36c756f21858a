"""Reductions that tests compute: a text of one kernel `k`, small extents for the host, large ones for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ReductionProgram:
    text: str
    small: Mapping[str, int]
    large: tuple[Mapping[str, int], ...]


_NORM = "d = x - mean[{o}](x)\n return d * rsqrt(mean[{o}](d * d) + 1e-5) * g + b"
_POOL = "(x[H = 2*P + R - 1, W = 2*Q + S - 1])"

REDUCTIONS: Mapping[str, ReductionProgram] = MappingProxyType(
    {
        "layer norm": ReductionProgram(
            "kernel k(x: f16[T, D], g: f16[D], b: f16[D]) -> f16[T, D] { " + _NORM.format(o="D") + " }",
            {"T": 5, "D": 776},
            ({"T": 1031, "D": 4096}, {"T": 77, "D": 1009}, {"T": 3, "D": 300_000}, {"T": 999, "D": 8}),
        ),
        "softmax": ReductionProgram(
            "kernel k(x: bf16[T, D]) -> bf16[T, D] { return softmax[D](x) }",
            {"T": 3, "D": 4100},
            ({"T": 513, "D": 4096}, {"T": 7, "D": 131_075}, {"T": 2, "D": 2_000_000}),
        ),
        "softmax of long rows": ReductionProgram(
            "kernel k(x: f32[T, D]) -> f32[T, D] { return softmax[D](x) }",
            {"T": 2, "D": 2052},
            ({"T": 300, "D": 8192}, {"T": 140, "D": 32_768}, {"T": 70, "D": 262_144}, {"T": 33, "D": 8191}),
        ),
        "norm of short groups": ReductionProgram(
            "kernel k(x: bf16[M, (G=4 C)], g: bf16[(G C)], b: bf16[(G C)]) -> bf16[M, (G C)] { "
            + _NORM.format(o="C")
            + " }",
            {"M": 9, "C": 64},
            ({"M": 1031, "C": 16}, {"M": 517, "C": 32}, {"M": 211, "C": 128}, {"M": 77, "C": 256}),
        ),
        "places of extremes": ReductionProgram(
            "kernel k(x: f16[A, L]) -> (p: i64[A], q: f16[A]) { return p = argmin[L](x), q = min[L](x) }",
            {"A": 5, "L": 520},
            ({"A": 77, "L": 8192}, {"A": 31, "L": 1009}, {"A": 9, "L": 100_000}),
        ),
        "places down": ReductionProgram(
            "kernel k(x: f32[B, L, C]) -> i64[B, C] { return argmax[L](x) }",
            {"B": 2, "L": 37, "C": 36},
            ({"B": 5, "L": 1000, "C": 300}, {"B": 3, "L": 64, "C": 129}),
        ),
        "scan down odd rows": ReductionProgram(
            "kernel k(x: f32[A, L, C]) -> f32[A, L, C] { return cumsum[L](x) }",
            {"A": 2, "L": 33, "C": 77},
            ({"A": 7, "L": 2048, "C": 1023}, {"A": 3, "L": 1009, "C": 513}, {"A": 4, "L": 512, "C": 1024}),
        ),
        "transposed": ReductionProgram(
            "kernel k(x: bf16[A, L]) -> bf16[L, A] { return x * 2 }",
            {"A": 128, "L": 192},
            ({"A": 1024, "L": 4096}, {"A": 1030, "L": 514}, {"A": 517, "L": 263}),
        ),
        "softmax far below zero": ReductionProgram(
            "kernel k(x: f32[A, B], z: f32[A]) -> f32[A, B] { return softmax[A](x - abs(z) - 500) }",
            {"A": 31, "B": 12},
            ({"A": 1000, "B": 260}, {"A": 77, "B": 1001}),
        ),
        "logsumexp far below zero": ReductionProgram(
            "kernel k(x: f32[T, D]) -> f32[T] { return logsumexp[D](x - 500) }",
            {"T": 5, "D": 520},
            ({"T": 100, "D": 4096}, {"T": 3, "D": 300_000}),
        ),
        "softmax of a middle name": ReductionProgram(
            "kernel k(x: f32[A, D, C]) -> f32[A, D, C] { return softmax[D](x) }",
            {"A": 3, "D": 33, "C": 20},
            ({"A": 5, "D": 100, "C": 1000}, {"A": 3, "D": 3001, "C": 37}),
        ),
        "log_softmax": ReductionProgram(
            "kernel k(x: f16[A, L]) -> f16[A, L] { return log_softmax[L](x) }",
            {"A": 3, "L": 520},
            ({"A": 100, "L": 32_000}, {"A": 31, "L": 127}),
        ),
        "rms norm of channels": ReductionProgram(
            "kernel k(x: f32[B, C, H]) -> f32[B, C, H] { return x * rsqrt(mean[C](x * x) + 1e-5) }",
            {"B": 2, "C": 19, "H": 120},
            ({"B": 4, "C": 64, "H": 4096}, {"B": 3, "C": 1031, "H": 129}),
        ),
        "group norm": ReductionProgram(
            "kernel k(x: f32[B, (G=4 C), H, W], g: f32[(G C)], b: f32[(G C)]) -> f32[B, (G C), H, W] { "
            + _NORM.format(o="C, H, W")
            + " }",
            {"B": 2, "C": 3, "H": 8, "W": 8},
            ({"B": 4, "C": 16, "H": 64, "W": 64}, {"B": 1, "C": 3, "H": 17, "W": 19}),
        ),
        "batch statistics": ReductionProgram(
            "kernel k(x: f32[B, C, H, W], g: f32[C], b: f32[C]) -> f32[B, C, H, W] { "
            + _NORM.format(o="B, H, W")
            + " }",
            {"B": 3, "C": 2, "H": 60, "W": 1024},
            ({"B": 16, "C": 5, "H": 128, "W": 128}, {"B": 7, "C": 3, "H": 31, "W": 29}),
        ),
        "variance": ReductionProgram(
            "kernel k(x: f32[A, L]) -> f32[A] { return var[L](x) }",
            {"A": 3, "L": 200},
            ({"A": 4, "L": 1_000_003},),
        ),
        "sum of all": ReductionProgram(
            "kernel k(x: f32[A, L]) -> f32[] { return sum[A, L](x * x) }",
            {"A": 200, "L": 1024},
            ({"A": 3000, "L": 1024}, {"A": 997, "L": 1013}),
        ),
        "sum of rows of integers": ReductionProgram(
            "kernel k(x: s8[A, L], y: i32[A]) -> (s: i32[A], z: i32[A, L]) "
            "{ return s = sum[L](x * y), z = x + y }",
            {"A": 4, "L": 64},
            ({"A": 100, "L": 5000},),
        ),
        "column sums": ReductionProgram(
            "kernel k(x: bf16[A, L]) -> f32[L] { return sum[A](x) }",
            {"A": 3000, "L": 64},
            ({"A": 30_000, "L": 512}, {"A": 4099, "L": 37}),
        ),
        "product": ReductionProgram(
            "kernel k(x: f32[A, L]) -> f32[A] { return prod[L](x) }",
            {"A": 3, "L": 20},
            ({"A": 300, "L": 23},),
        ),
        "argmax and max": ReductionProgram(
            "kernel k(x: bf16[A, L]) -> (i: i64[A], m: f32[A]) { return i = argmax[L](x), m = max[L](x) }",
            {"A": 7, "L": 1000},
            ({"A": 70, "L": 50_000}, {"A": 9, "L": 613}),
        ),
        "argmin of a first name": ReductionProgram(
            "kernel k(x: f32[L, A]) -> i64[A] { return argmin[L](x) }",
            {"A": 24, "L": 50},
            ({"A": 1000, "L": 777},),
        ),
        "cross entropy": ReductionProgram(
            "kernel k(z: f32[T, V], t: i64[T]) -> f32[T] { return logsumexp[V](z) - z[V = t] }",
            {"T": 9, "V": 333},
            ({"T": 200, "V": 4096}, {"T": 3, "V": 50_257}),
        ),
        "scan of a middle name": ReductionProgram(
            "kernel k(x: f32[A, L, C]) -> f32[A, L, C] { return cumsum[L](x) }",
            {"A": 3, "L": 37, "C": 24},
            ({"A": 4, "L": 512, "C": 256}, {"A": 2, "L": 601, "C": 31}),
        ),
        "reverse scan": ReductionProgram(
            "kernel k(x: f32[A, L]) -> f32[A, L] { return cumsum[L](x, reverse=true) }",
            {"A": 3, "L": 1204},
            ({"A": 100, "L": 8192}, {"A": 5, "L": 1021}),
        ),
        "masked exclusive scan": ReductionProgram(
            "kernel k(x: f32[A, L], m: bool[A, L]) -> f32[A, L] "
            "{ return cumsum[L](where(m, x, 0), exclusive=true) * 2 }",
            {"A": 2, "L": 2051},
            ({"A": 64, "L": 10_000},),
        ),
        "cumulative product": ReductionProgram(
            "kernel k(x: f32[A, L]) -> f32[A, L] { return cumprod[L](x * 0.01 + 1) }",
            {"A": 2, "L": 70},
            ({"A": 64, "L": 100},),
        ),
        "scan of few long rows": ReductionProgram(
            "kernel k(x: f32[A, L]) -> (y: f32[A, L], p: f32[A, L]) { e = exp(x - max[L](x))\n"
            " return y = cumsum[L](x, reverse=true), p = cumsum[L](e, reverse=true, exclusive=true) }",
            {"A": 2, "L": 23_003},
            ({"A": 1, "L": 300_001}, {"A": 40, "L": 400_000}),
        ),
        "scans in one pass": ReductionProgram(
            "kernel k(x: bf16[A, L], m: bool[A, L]) -> (y: f32[A, L], p: f32[A, L]) { v = where(m, x, 0)\n"
            " return y = cumsum[L](v, reverse=true) * x + 1,"
            " p = cumsum[L](abs(x), reverse=true, exclusive=true) }",
            {"A": 2, "L": 23_003},
            ({"A": 1, "L": 5_000_011}, {"A": 8, "L": 2_097_152}, {"A": 40, "L": 300_007}),
        ),
        "product in one pass": ReductionProgram(
            "kernel k(x: f32[A, L]) -> f32[A, L] { return cumprod[L](x * 0.0001 + 1, exclusive=true) }",
            {"A": 1, "L": 10_300},
            ({"A": 3, "L": 1_000_003}, {"A": 1, "L": 8_388_608}),
        ),
        "counts in one pass": ReductionProgram(
            "kernel k(x: i32[A, L]) -> i64[A, L] { return cumsum[L](x) }",
            {"A": 1, "L": 20_011},
            ({"A": 1, "L": 3_000_017}, {"A": 2, "L": 4_194_304}),
        ),
        "scan down few long columns": ReductionProgram(
            "kernel k(x: f32[L, C]) -> f32[L, C] { return cumsum[L](x) }",
            {"L": 12_001, "C": 8},
            ({"L": 300_003, "C": 8}, {"L": 30_000, "C": 513}),
        ),
        "transpose": ReductionProgram(
            "kernel k(x: f16[A, B]) -> f16[B, A] { return x }", {"A": 40, "B": 24}, ({"A": 1000, "B": 512},)
        ),
        "embedding": ReductionProgram(
            "kernel k(t: bf16[V, D], i: i64[B, L]) -> bf16[B, L, D] { return t[V = i] * sqrt(size(D)) }",
            {"V": 50, "D": 64, "B": 3, "L": 5},
            ({"V": 1000, "D": 512, "B": 8, "L": 100}, {"V": 50, "D": 33, "B": 3, "L": 5}),
        ),
        "average pool": ReductionProgram(
            "kernel k(x: f32[N, C, H, W]) -> f32[N, C, P=(H+1)//2, Q=(W+1)//2] "
            "{ return hardswish(mean[R=3, S=3]" + _POOL + ") }",
            {"N": 2, "C": 3, "H": 13, "W": 16},
            ({"N": 4, "C": 16, "H": 57, "W": 64},),
        ),
        "max pool, channels last": ReductionProgram(
            "kernel k(x: f16[N, H, W, C]) -> f16[N, P=(H+1)//2, Q=(W+1)//2, C] { return max[R=3, S=3]"
            + _POOL
            + " }",
            {"N": 2, "C": 16, "H": 9, "W": 8},
            ({"N": 4, "C": 64, "H": 57, "W": 64}, {"N": 4, "C": 3, "H": 7, "W": 6}),
        ),
        "causal depthwise": ReductionProgram(
            "kernel k(x: bf16[B, C, L], w: bf16[C, 1, K=4], b: bf16[C]) -> bf16[B, C, L] { "
            "return silu(sum[K](x[L = L + K - 3] * w) + b) }",
            {"B": 2, "C": 5, "L": 48},
            ({"B": 2, "C": 50, "L": 1024},),
        ),
        # A window's vectors begin where two other names say: at no multiple of a vector.
        "window over two names": ReductionProgram(
            "kernel k(x: f32[N, L]) -> f32[N, Q=4, P=16] { return max[R=3](x[L = P + 3*Q + R]) }",
            {"N": 3, "L": 64},
            ({"N": 300, "L": 64},),
        ),
        "sum of a pool over all positions": ReductionProgram(
            "kernel k(x: f32[B, F, H, W]) -> f32[B] { return "
            "sum[F, P=H//4, Q=W//4](sigmoid(mean[R=4, S=4](x[H = 4*P + R, W = 4*Q + S]))) }",
            {"B": 3, "F": 2, "H": 13, "W": 19},
            ({"B": 128, "F": 16, "H": 126, "W": 127}, {"B": 3, "F": 5, "H": 382, "W": 381}),
        ),
        "mean of a pool": ReductionProgram(
            "kernel k(x: f32[B, F, D, H, W]) -> f32[B, F, 1, 1, 1] { return "
            "clamp(mean[O=D//2, P=H//2, Q=W//2](max[T=2, R=2, S=2](x[D = 2*O + T, H = 2*P + R, W = 2*Q + S])), 0, 1) }",
            {"B": 2, "F": 3, "D": 4, "H": 7, "W": 9},
            ({"B": 16, "F": 16, "D": 31, "H": 63, "W": 63}, {"B": 2, "F": 3, "D": 16, "H": 64, "W": 130}),
        ),
        "softmax of a pool": ReductionProgram(
            "kernel k(x: f32[B, F, H, W], s: f32[F]) -> f32[B, P=H//2, Q=W//2] { "
            "y = softmax[F](max[R=2, S=2](x[H = 2*P + R, W = 2*Q + S])) - s\n return max[F](sigmoid(y) * y) }",
            {"B": 2, "F": 16, "H": 9, "W": 11},
            ({"B": 40, "F": 16, "H": 64, "W": 64}, {"B": 3, "F": 35, "H": 31, "W": 127}),
        ),
        "sum of a pool": ReductionProgram(
            "kernel k(x: f32[A, L]) -> f32[A] { return sum[P=L](max[R=3](x[L = P + R - 1])) }",
            {"A": 4, "L": 64},
            ({"A": 100, "L": 5001},),
        ),
        "norm of a window that stays": ReductionProgram(
            "kernel k(x: f32[L]) -> f32[P=L-2, R=3] { v = x[L = P + R]\n return v - mean[R](v) }",
            {"L": 40},
            ({"L": 100_001},),
        ),
        "triangle": ReductionProgram(
            "kernel k(a: f32[M, K]) -> f32[M, K] { return where(index(K) <= index(M), a, 0) }",
            {"M": 33, "K": 40},
            ({"M": 1000, "K": 1000},),
        ),
        "masked sum of a renamed axis": ReductionProgram(
            "kernel k(x: f32[B, L]) -> f32[B, L] { return sum[S](where(index(S) <= index(L), x[L = S], 0)) }",
            {"B": 3, "L": 40},
            ({"B": 7, "L": 1001},),
        ),
        "concatenation": ReductionProgram(
            "kernel k(x: f32[M], y: f32[N]) -> f32[P=M+N] { return x[M = P] + y[N = P - size(M)] }",
            {"M": 33, "N": 40},
            ({"M": 100_000, "N": 77_777},),
        ),
        "shift of a sum": ReductionProgram(
            "kernel k(x: f32[L], b: f32[L]) -> f32[L] { return (x + b)[L = L - 1] * 3 }",
            {"L": 70},
            ({"L": 100_000},),
        ),
        "embedding bag": ReductionProgram(
            "kernel k(t: f32[V, D], ids: i64[B, L]) -> f32[B, D] { return sum[L](t[V = ids]) }",
            {"V": 20, "D": 64, "B": 8, "L": 16},
            ({"V": 50_000, "D": 128, "B": 300, "L": 40}, {"V": 100, "D": 3, "B": 2, "L": 70_000}),
        ),
        "weighted combination of gathered rows": ReductionProgram(
            "kernel k(t: bf16[V, D], ids: i32[T, E], w: f32[T, E]) -> bf16[T, D] { "
            "return sum[E](t[V = ids] * w) }",
            {"V": 30, "D": 72, "T": 9, "E": 3},
            ({"V": 4096, "D": 4096, "T": 1000, "E": 8},),
        ),
        "scan of gathered rows": ReductionProgram(
            "kernel k(t: f32[V, D], ids: i64[B, L]) -> f32[B, L, D] { return cumsum[L](t[V = ids]) * 0.5 }",
            {"V": 20, "D": 16, "B": 3, "L": 40},
            ({"V": 1000, "D": 64, "B": 30, "L": 5000},),
        ),
        "gather by a scan": ReductionProgram(
            "kernel k(t: f32[V, D], x: i32[B, L]) -> f32[B, L, D] { return t[V = cumsum[L](x) % size(V)] }",
            {"V": 7, "D": 16, "B": 3, "L": 40},
            ({"V": 100, "D": 64, "B": 30, "L": 5000},),
        ),
        "gather by a window": ReductionProgram(
            "kernel k(t: f32[V, D], x: i32[L, D]) -> f32[D] { "
            "return sum[L](t[V = max[R=3](x[D = D + R - 1]) % size(V)]) }",
            {"V": 7, "D": 48, "L": 10},
            ({"V": 100, "D": 4096, "L": 1000},),
        ),
        "normalised over rows, gathers by a window": ReductionProgram(
            "kernel k(ids: u8[B, G], x: f32[V, Z], w: f32[B, L, D]) -> f32[B, L, D] { "
            "v = sum[R=2, Q=2](x[V = ids[G = L + Q - 1], Z = D + R - 1]) a = w - v "
            "return (a - mean[B](a)) * rsqrt(var[B](a) + 0.5) }",
            {"B": 23, "L": 3, "D": 4, "Z": 4, "G": 3, "V": 24},
            ({"B": 1023, "L": 3, "D": 4, "Z": 4, "G": 3, "V": 24},),
        ),
        "window of gathered rows": ReductionProgram(
            "kernel k(t: f32[V, D], ids: i64[B, L]) -> f32[B, P=D-2] { "
            "return sum[L, R=3](t[V = ids, D = P + R]) }",
            {"V": 20, "D": 66, "B": 5, "L": 9},
            ({"V": 1000, "D": 514, "B": 300, "L": 30},),
        ),
        "repeated": ReductionProgram(
            "kernel k(x: bf16[A, L], c: bool[A]) -> (y: bf16[A, N=3, L], d: bool[A, N, L]) { "
            "return y = expand[N](x), d = expand[N, L](c) }",
            {"A": 5, "L": 72},
            ({"A": 300, "L": 1000},),
        ),
        "sum of what is repeated": ReductionProgram(
            "kernel k(x: f32[A]) -> f32[A] { return sum[N=37](expand[N](x) * 2 + index(N)) + sum[N](expand[N](x)) }",
            {"A": 70},
            ({"A": 3000},),
        ),
        "to e4m3": ReductionProgram(
            "kernel k(x: f32[A, L], s: f32) -> e4m3[A, L] { return x * s }",
            {"A": 3, "L": 200},
            ({"A": 300, "L": 1000},),
        ),
    }
)
