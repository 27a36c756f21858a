"""Convolutions for tests, each with extents that leave edges: (program, extents of its free dimensions)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


def _kernel(head: str, result: str, value: str) -> str:
    return f"kernel k({head}) -> {result} {{ return {value} }}"


def _forward(elem: str, out: str, value: str = "dot[R, S, C]({x}, {w})", more: str = "") -> str:
    x, w = ("tf32(x{})", "tf32(w)") if elem == "tf32" else ("x{}", "w")
    stored = "f32" if elem == "tf32" else elem
    window = "[H = 2*P + R - 1, W = 2*Q + S - 1]"
    return _kernel(
        f"x: {stored}[N, H, W, C], w: {stored}[K, R=3, S=3, C]{more}",
        f"{out}[N, P=(H+1)//2, Q=(W+1)//2, K]",
        value.format(x=x.format(window), w=w),
    )


_EDGE = {"N": 2, "H": 9, "W": 7, "C": 16, "K": 24}

PROGRAMS: Mapping[str, tuple[str, Mapping[str, int]]] = MappingProxyType(
    {
        "f16 strided": (_forward("f16", "f16"), _EDGE),
        "bf16 fused": (
            _forward(
                "bf16",
                "bf16",
                "relu(dot[R, S, C]({x}, {w}) + b) + y",
                ", b: f32[K], y: bf16[N, P=(H+1)//2, Q=(W+1)//2, K]",
            ),
            {**_EDGE, "C": 40},
        ),
        "tf32": (_forward("tf32", "f32"), {**_EDGE, "C": 12}),
        "f32": (_forward("f32", "f32"), {**_EDGE, "C": 5, "K": 11}),
        "f16 three channels": (_forward("f16", "f16"), {**_EDGE, "C": 3, "K": 17}),
        "bf16 dilated asymmetric": (
            _kernel(
                "x: bf16[N, H, W, C], w: bf16[R=3, S=2, C, K]",
                "f32[N, P=H-3, Q=W, K]",
                "dot[R, S, C](x[H = P + 2*R, W = Q + 3*S - 2], w)",
            ),
            {"N": 3, "H": 8, "W": 11, "C": 8, "K": 16},
        ),
        "f32 channels first": (
            _kernel(
                "x: f32[B, C, H, W], w: f32[K, C, R=3, S=3], b: f32[K]",
                "f32[B, K, P=H, Q=W]",
                "relu(dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w) + b)",
            ),
            {"B": 2, "C": 7, "H": 6, "W": 13, "K": 10},
        ),
        "f16 channels first": (
            _kernel(
                "x: f16[B, C, H, W], w: f16[K, C, R=3, S=3]",
                "f16[B, K, P=H, Q=W]",
                "dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w)",
            ),
            {"B": 2, "C": 21, "H": 6, "W": 13, "K": 10},
        ),
        "transposed": (
            _kernel(
                "x: f32[B, C, H, W], w: f32[C, K, R=4, S=4], b: f32[K]",
                "f32[B, K, P=2*H, Q=2*W]",
                "tanh(dot[R, S, C](x[2*H = P + 1 - R, 2*W = Q + 1 - S], w) + b)",
            ),
            {"B": 2, "C": 6, "H": 5, "W": 7, "K": 9},
        ),
        "data gradient": (
            _kernel(
                "y: bf16[N, P, Q, K], w: bf16[K, R=3, S=3, C]",
                "bf16[N, H=2*P, W=2*Q, C]",
                "dot[R, S, K](y[2*P = H + 1 - R, 2*Q = W + 1 - S], w)",
            ),
            {"N": 2, "P": 5, "Q": 3, "K": 16, "C": 24},
        ),
        "weight gradient": (
            _kernel(
                "x: f16[N, H, W, C], y: f16[N, P=H, Q=W, K]",
                "f32[K, R=3, S=3, C]",
                "dot[N, P, Q](x[H = P + R - 1, W = Q + S - 1], y)",
            ),
            {"N": 2, "H": 5, "W": 9, "C": 16, "K": 8},
        ),
        "weight gradient odd": (
            _kernel(
                "x: bf16[N, H, W, C], y: bf16[N, P=H, Q=W, K]",
                "f32[K, R=3, S=3, C]",
                "dot[N, P, Q](x[H = P + R - 1, W = Q + S - 1], y)",
            ),
            {"N": 2, "H": 5, "W": 4, "C": 3, "K": 7},
        ),
        "weight gradient grouped": (
            _kernel(
                "x: f16[N, H, W, (G=3 C)], y: f16[N, P=H, Q=W, (G K)]",
                "f32[G, K, C, R=3, S=3]",
                "dot[N, P, Q](x[H = P + R - 1, W = Q + S - 1], y)",
            ),
            {"N": 2, "H": 7, "W": 12, "C": 24, "K": 40},
        ),
        # Operands exchanged, steps and dilations, one window turned round, names of the result lie apart.
        "weight gradient exchanged": (
            _kernel(
                "x: bf16[N, H, W, C], y: bf16[N, P=(H+1)//2, Q=W-1, K], b: f32[C]",
                "bf16[R=3, S=2, C, K]",
                "dot[N, P, Q](y, x[H = 2*P + 2*R - 2, W = Q + 1 - S]) * 0.5 + b",
            ),
            {"N": 3, "H": 13, "W": 12, "C": 40, "K": 24},
        ),
        "weight gradient in TF32": (
            _kernel(
                "x: f32[N, H, W, C], y: f32[N, P=(H+1)//2, Q=W-1, K], b: f32[C]",
                "f32[R=3, S=2, C, K]",
                "dot[N, P, Q](tf32(y), tf32(x[H = 2*P + 2*R - 2, W = Q + 1 - S])) * 0.5 + b",
            ),
            {"N": 3, "H": 13, "W": 12, "C": 40, "K": 24},
        ),
        "grouped, channels first": (
            _kernel(
                "x: f32[B, (G=3 C), H, W], w: f32[(G K), C, R=3, S=3], b: f32[(G K)]",
                "f32[B, (G K), P=H, Q=W]",
                "relu(dot[R, S, C](tf32(x[H = P + R - 1, W = Q + S - 1]), tf32(w)) + b)",
            ),
            {"B": 2, "C": 16, "H": 5, "W": 6, "K": 24},
        ),
        "grouped, transposed, three dimensions": (
            _kernel(
                "x: f32[B, (G=2 C), D, H, W], w: f32[(G C), K, T=3, R=5, S=3]",
                "f32[B, (G K), O=2*D, P=2*H, Q=W]",
                "dot[C, T, R, S](tf32(x[2*D = O + 1 - T, 2*H = P + 2 - R, W = Q + 1 - S]), tf32(w))",
            ),
            {"B": 2, "C": 8, "D": 3, "H": 2, "W": 4, "K": 12},
        ),
        "transposed by three": (
            _kernel(
                "x: bf16[B, C, H, W], w: bf16[C, K, R=3, S=4]",
                "bf16[B, K, P=3*H, Q=5*W-2]",
                "dot[R, S, C](x[3*H = P + 1 - 2*R, 5*W = Q - S], w)",
            ),
            {"B": 2, "C": 32, "H": 5, "W": 4, "K": 40},
        ),
        "grouped": (
            _kernel(
                "x: f16[N, H, W, (G=4 C)], w: f16[(G K), R=3, S=3, C], b: f32[(G K)]",
                "f16[N, P=H, Q=W, (G K)]",
                "gelu(dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w) + b)",
            ),
            {"N": 2, "H": 6, "W": 7, "C": 8, "K": 16},
        ),
        "three dimensions": (
            _kernel(
                "x: bf16[N, D, H, W, C], w: bf16[K, T=3, R=3, S=3, C]",
                "bf16[N, O=D, P=H, Q=W, K]",
                "dot[T, R, S, C](x[D = O + T - 1, H = P + R - 1, W = Q + S - 1], w)",
            ),
            {"N": 1, "D": 3, "H": 5, "W": 4, "C": 8, "K": 24},
        ),
        "one dimension": (
            _kernel(
                "x: f16[N, L, C], w: f16[K, R=5, C]",
                "f16[N, P=(L+1)//2, K]",
                "dot[R, C](x[L = 2*P + R - 2], w)",
            ),
            {"N": 3, "L": 21, "C": 32, "K": 40},
        ),
        "depthwise": (
            _kernel(
                "x: f16[N, H, W, C], w: f16[R=3, S=3, C], b: f32[C]",
                "f16[N, P=(H+1)//2, Q=(W+1)//2, C]",
                "relu(dot[R, S](x[H = 2*P + R - 1, W = 2*Q + S - 1], w) + b)",
            ),
            {"N": 2, "H": 9, "W": 11, "C": 24},
        ),
        "depthwise channels first": (
            _kernel(
                "x: bf16[B, C, L], w: bf16[C, 1, K=4], b: bf16[C]",
                "bf16[B, C, L]",
                "silu(sum[K](x[L = L + K - 3] * w) + b)",
            ),
            {"B": 2, "C": 5, "L": 37},
        ),
        "depthwise weight gradient": (
            _kernel(
                "x: bf16[N, H, W, C], y: bf16[N, P=(H+1)//2, Q=(W+1)//2, C]",
                "bf16[C, R=3, S=3]",
                "dot[N, P, Q](x[H = 2*P + R - 1, W = 2*Q + S - 1], y)",
            ),
            {"N": 9, "H": 11, "W": 13, "C": 24},
        ),
        "depthwise weight gradient, channels first": (
            _kernel(
                "x: f32[N, C, H, W], y: f32[N, C, P=H, Q=W]",
                "f32[C, R=5, S=5]",
                "dot[N, P, Q](x[H = P + R - 2, W = Q + S - 2], y)",
            ),
            {"N": 3, "C": 5, "H": 11, "W": 13},
        ),
        "depthwise data gradient": (
            _kernel(
                "y: f32[N, C, P, Q], w: f32[C, R=3, S=3]",
                "f32[N, C, H=2*P, W=2*Q]",
                "dot[R, S](y[2*P = H + 1 - R, 2*Q = W + 1 - S], w)",
            ),
            {"N": 2, "C": 3, "P": 5, "Q": 6},
        ),
        "from the far end": (
            _kernel(
                "x: f32[N, L, C], w: f32[K, R=3, C]",
                "f32[N, P=L, K]",
                "dot[R, C](x[L = size(L) - 1 - P + R], w)",
            ),
            {"N": 2, "L": 9, "C": 8, "K": 4},
        ),
        "reduced": (
            _kernel(
                "x: f16[N, H, W, C], w: f16[K, R=3, S=3, C]",
                "(y: f16[N, P=H, Q=W, K], top: f32[K])",
                "y = dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w), "
                "top = max[N, P, Q](dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w))",
            ),
            {"N": 2, "H": 6, "W": 7, "C": 16, "K": 24},
        ),
        # Images, or rows that the result holds apart from the others, are innermost: a batch moves along what
        # memory holds side by side.
        "tf32 images innermost": (
            _kernel(
                "x: f32[C, W, H, N], w: f32[K, R, C, S]",
                "f32[P=H, Q=W, K, N]",
                "dot[R, S, C](tf32(x[H = P + R - 1, W = Q + S]), tf32(w))",
            ),
            {"C": 16, "W": 4, "H": 6, "N": 2, "K": 8, "R": 3, "S": 1},
        ),
        "tf32 images innermost, channels between": (
            _kernel(
                "x: f32[W, C, H, N], w: f32[K, R=3, C, S=2]",
                "f32[P=H, Q=W, K, N]",
                "dot[R, S, C](tf32(x[H = P + R - 1, W = Q + S]), tf32(w))",
            ),
            {"C": 16, "W": 5, "H": 6, "N": 4, "K": 8},
        ),
        "tf32 grouped, rows innermost": (
            _kernel(
                "x: f32[W, N, G, C, H], w: f32[G, K, S=3, C]",
                "f32[N, Q=W, G, H, K]",
                "dot[S, C](tf32(x[W = Q + S - 1]), tf32(w))",
            ),
            {"W": 5, "N": 2, "G": 2, "C": 8, "H": 4, "K": 16},
        ),
        "f16 images innermost": (
            _kernel(
                "x: f16[C, H, W, N], w: f16[K, R=3, S=3, C]",
                "f32[P=H, Q=W, K, N]",
                "dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w)",
            ),
            {"C": 8, "H": 5, "W": 4, "N": 8, "K": 16},
        ),
        # What memory holds side by side are columns that the result holds apart; nothing else is summed.
        "f32 columns across, no channels": (
            _kernel("x: f32[N, H], w: f32[R=3, J, K]", "f32[N, P=H-2, K, J]", "dot[R](x[H = P + R], w)"),
            {"N": 2, "H": 12, "J": 8, "K": 8},
        ),
        # The weights lie along a window's name, the images along the channels: one of them is copied first.
        "along two summed names": (
            _kernel(
                "x: f16[N, H, W, C], w: f16[S=3, C, K, R=2]",
                "f32[N, P=2, Q=2, K]",
                "dot[R, S, C](w, x[H = 3*P + R - 1, W = 3*Q + 2*S])",
            ),
            {"N": 3, "H": 7, "W": 2, "C": 72, "K": 64},
        ),
    }
)
