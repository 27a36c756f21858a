"""Pairs of dots and dots over ragged groups that tests compute: a text of one kernel `k`, small extents for
the host, which plain multiply-adds serve, larger ones for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GroupedGemmProgram:
    text: str
    small: Mapping[str, int]
    large: tuple[Mapping[str, int], ...]


def _pair(elem: str, out: str, w: str = "F, D") -> str:
    return (
        f"kernel k(x: {elem}[T, D], w: {elem}[{w}], u: {elem}[{w}]) -> {out}[T, F] "
        "{ return silu(dot[D](x, w)) * dot[D](x, u) }"
    )


_GRADIENT = """kernel k(dy: {e}[T, F], x: {e}[T, D], offsets: i32[O]) -> {out}[E=O-1, F, D] {{
  own = segment(T, offsets) == index(E)
  return dot[T]({c}(where(own, dy, 0)), {c}(where(own, x, 0)))
}}"""

GROUPED_GEMMS: Mapping[str, GroupedGemmProgram] = MappingProxyType(
    {
        "gated pair": GroupedGemmProgram(
            _pair("bf16", "bf16"),
            {"T": 33, "D": 35, "F": 67},
            ({"T": 333, "D": 264, "F": 328}, {"T": 1, "D": 8, "F": 8}, {"T": 2048, "D": 512, "F": 1032}),
        ),
        "gated pair, weights by columns": GroupedGemmProgram(
            _pair("f16", "f16", "D, F"), {"T": 9, "D": 35, "F": 67}, ({"T": 333, "D": 264, "F": 328},)
        ),
        "gated pair of fp8": GroupedGemmProgram(
            _pair("e4m3", "bf16"), {"T": 9, "D": 35, "F": 67}, ({"T": 333, "D": 400, "F": 336},)
        ),
        "gated pair of tf32": GroupedGemmProgram(
            "kernel k(x: f32[T, D], w: f32[F, D], u: f32[F, D]) -> f32[T, F] "
            "{ return silu(dot[D](tf32(x), tf32(w))) * dot[D](tf32(x), tf32(u)) }",
            {"T": 9, "D": 35, "F": 67},
            ({"T": 333, "D": 264, "F": 328},),
        ),
        "gated pair of f32": GroupedGemmProgram(
            _pair("f32", "f32"), {"T": 9, "D": 35, "F": 67}, ({"T": 130, "D": 264, "F": 72},)
        ),
        "pair of integers": GroupedGemmProgram(
            "kernel k(x: s8[T, D], w: s8[F, D], u: s8[F, D]) -> i32[T, F] "
            "{ return dot[D](x, w) + 2 * dot[D](x, u) }",
            {"T": 9, "D": 35, "F": 67},
            ({"T": 333, "D": 272, "F": 336},),
        ),
        "batched pair with operands": GroupedGemmProgram(
            "kernel k(x: bf16[B, T, D], w: bf16[B, F, D], u: bf16[B, F, D], b: f32[F], r: bf16[B, T, F], "
            "s: f32[]) -> "
            "(y: bf16[B, T, F], z: f32[B, T, F]) {\n  h = gelu(dot[D](x, w) + b) * dot[D](x, u)\n"
            "  return y = h + r, z = h * s + index(B) }",
            {"B": 2, "T": 9, "D": 35, "F": 67},
            ({"B": 3, "T": 130, "D": 136, "F": 200},),
        ),
        "moe": GroupedGemmProgram(
            "kernel k(x: bf16[T, D], w: bf16[E, F, D], offsets: i32[E+1]) -> bf16[T, F] "
            "{ return silu(dot[D](x, w[E = segment(T, offsets)])) }",
            {"T": 40, "D": 35, "F": 67, "E": 5},
            (
                {"T": 1000, "D": 200, "F": 328, "E": 7},
                {"T": 64, "D": 8, "F": 8, "E": 70},
                {"T": 37, "D": 64, "F": 64, "E": 3},
                {"T": 3000, "D": 256, "F": 512, "E": 2},
            ),
        ),
        "moe with operands": GroupedGemmProgram(
            "kernel k(x: bf16[T, D], w: bf16[E, F, D], b: f32[E, F], r: bf16[T, F], s: f32[T], "
            "offsets: i64[E+1]) -> (y: bf16[T, F], z: f32[T, F]) {\n  g = segment(T, offsets)\n"
            "  h = silu(dot[D](x, w[E = g]) + b[E = g]) * s + r\n"
            "  return y = h, z = h + index(F) }",
            {"T": 40, "D": 35, "F": 67, "E": 5},
            ({"T": 777, "D": 136, "F": 264, "E": 5},),
        ),
        "gated moe": GroupedGemmProgram(
            "kernel k(x: f16[T, D], w: f16[E, F, D], u: f16[E, F, D], offsets: i32[E+1]) -> f16[T, F] {\n"
            "  g = segment(T, offsets)\n  return silu(dot[D](x, w[E = g])) * dot[D](x, u[E = g]) }",
            {"T": 40, "D": 35, "F": 67, "E": 5},
            ({"T": 1000, "D": 200, "F": 328, "E": 7},),
        ),
        "moe, gradient of rows": GroupedGemmProgram(
            "kernel k(dy: f16[T, F], w: f16[E, F, D], offsets: i64[E+1]) -> f16[T, D] "
            "{ return dot[F](dy, w[E = segment(T, offsets)]) }",
            {"T": 40, "D": 35, "F": 67, "E": 5},
            ({"T": 501, "D": 264, "F": 392, "E": 40},),
        ),
        "moe, gradient of weights": GroupedGemmProgram(
            _GRADIENT.format(e="bf16", c="bf16", out="bf16"),
            {"T": 40, "D": 35, "F": 67, "O": 6},
            (
                {"T": 1003, "D": 200, "F": 328, "O": 8},
                {"T": 130, "D": 264, "F": 72, "O": 41},
                {"T": 1, "D": 8, "F": 8, "O": 3},
            ),
        ),
        "moe, gradient of weights in f32": GroupedGemmProgram(
            _GRADIENT.format(e="f32", c="", out="f32"),
            {"T": 40, "D": 35, "F": 67, "O": 6},
            ({"T": 203, "D": 40, "F": 72, "O": 8},),
        ),
        "fp8 with scales of blocks": GroupedGemmProgram(
            "kernel k(x: e4m3[M, (G J)], sx: f32[M, G], w: e4m3[(P Q), (G J)], sw: f32[P, G]) -> "
            "bf16[M, (P Q)] { return sum[G](dot[J](x, w) * sx * sw) }",
            {"M": 5, "G": 2, "J": 20, "P": 1, "Q": 24},
            ({"M": 333, "G": 3, "J": 128, "P": 2, "Q": 128}, {"M": 1, "G": 9, "J": 128, "P": 1, "Q": 64}),
        ),
        "narrow weights": GroupedGemmProgram(
            "kernel k(x: bf16[M, K], w: s8[N, K], s: bf16[N]) -> bf16[M, N] { return dot[K](x, bf16(w)) * s }",
            {"M": 5, "K": 33, "N": 35},
            ({"M": 333, "K": 272, "N": 200}, {"M": 1, "K": 1024, "N": 72}, {"M": 2000, "K": 400, "N": 3000}),
        ),
        "narrow weights of fp8": GroupedGemmProgram(
            "kernel k(x: f16[M, K], w: e4m3[N, K], s: f32[], r: f16[M, N]) -> (y: f16[M, N], z: f32[M, N]) {\n"
            "  h = gelu(dot[K](x, f16(w)) * s)\n  return y = h + r, z = h }",
            {"M": 5, "K": 33, "N": 35},
            ({"M": 333, "K": 272, "N": 200}, {"M": 20, "K": 96, "N": 72}),
        ),
        "narrow weights, scales of parts": GroupedGemmProgram(
            "kernel k(x: bf16[M, (G J)], w: s8[N, (G J)], s: f32[N, G]) -> bf16[M, N] "
            "{ return sum[G](dot[J](x, bf16(w)) * s) }",
            {"M": 5, "G": 3, "J": 20, "N": 35},
            ({"M": 333, "G": 5, "J": 128, "N": 200}, {"M": 40, "G": 3, "J": 64, "N": 136}),
        ),
        "weights of four bits": GroupedGemmProgram(
            "kernel k(x: bf16[M, K], w: s4[N, K], s: bf16[N]) -> bf16[M, N] { return dot[K](x, bf16(w)) * s }",
            {"M": 5, "K": 34, "N": 35},
            ({"M": 333, "K": 288, "N": 200}, {"M": 1, "K": 1024, "N": 72}, {"M": 20, "K": 96, "N": 520}),
        ),
        "weights of four bits, f16": GroupedGemmProgram(
            "kernel k(x: f16[M, K], w: s4[N, K], b: f32[N], r: f16[M, N]) -> (y: f16[M, N], z: f32[M, N]) {\n"
            "  h = gelu(dot[K](x, f16(w)) * 0.1 + b)\n  return y = h + r, z = h }",
            {"M": 5, "K": 34, "N": 35},
            ({"M": 333, "K": 288, "N": 200}, {"M": 20, "K": 32, "N": 72}),
        ),
        "weights of four bits, scales of parts": GroupedGemmProgram(
            "kernel k(x: bf16[M, (G J)], w: s4[N, (G J)], s: bf16[N, G]) -> bf16[M, N] "
            "{ return sum[G](dot[J](x, bf16(w)) * s) }",
            {"M": 5, "G": 3, "J": 22, "N": 35},
            (
                {"M": 333, "G": 5, "J": 128, "N": 200},
                {"M": 40, "G": 3, "J": 64, "N": 136},
                {"M": 130, "G": 2, "J": 384, "N": 72},
            ),
        ),
        "weights of four bits by columns": GroupedGemmProgram(
            "kernel k(x: bf16[M, K], w: s4[K, N]) -> f32[M, N] { return dot[K](x, bf16(w)) }",
            {"M": 5, "K": 33, "N": 36},
            ({"M": 333, "K": 272, "N": 200},),
        ),
        "narrow rows": GroupedGemmProgram(
            "kernel k(x: e5m2[M, K], w: bf16[N, K]) -> f32[N, M] { return dot[K](bf16(x), w) }",
            {"M": 5, "K": 33, "N": 35},
            ({"M": 333, "K": 272, "N": 200},),
        ),
        "fp8 with scales of rows": GroupedGemmProgram(
            "kernel k(x: e4m3[M, (G J)], sx: f32[G, M], w: e4m3[N, (G J)], sw: bf16[G, N], b: f32[N]) "
            "-> f32[M, N] { return silu(sum[G](sx * sw * dot[J](x, w)) + b) }",
            {"M": 5, "G": 3, "J": 20, "N": 35},
            ({"M": 333, "G": 3, "J": 128, "N": 200}, {"M": 70, "G": 2, "J": 384, "N": 72}),
        ),
        "bf16 with scales of parts": GroupedGemmProgram(
            "kernel k(x: bf16[M, (G J)], s: f32[N, G], w: bf16[N, (G J)]) -> bf16[M, N] "
            "{ return sum[G](dot[J](x, w) * s) }",
            {"M": 5, "G": 3, "J": 20, "N": 35},
            ({"M": 333, "G": 5, "J": 128, "N": 200}, {"M": 33, "G": 3, "J": 64, "N": 136}),
        ),
    }
)
