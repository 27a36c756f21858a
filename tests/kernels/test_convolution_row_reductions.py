"""Results of a convolution that are reduced over its columns: in registers, where nothing else is stored."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.kernels.convolution_emulated import judge, plan
from ucutlass.emit import emit

MINIMUM = (
    "kernel k(x: f32[B, C, H, W], w: f32[K, C, R=3, S=3], b: f32[K]) -> f32[B, 1, P=H-2, Q=W-2] "
    "{ return min[K]((dot[C, R, S](tf32(x[H = P + R, W = Q + S]), tf32(w)) + b) * 2.0) }"
)
SUM = (
    "kernel k(x: bf16[B, H, W, C], w: bf16[K, R=3, S=3, C], y: bf16[B, P, Q, K]) -> f32[B, P=H, Q=W] "
    "{ return sum[K](tanh(dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w)) * y) }"
)
THREE_PASSES = (
    "kernel k(x: f32[B, C, H, W], w: f32[K, C, R=3, S=3]) -> f32[B, 1, P=H-2, Q=W-2] "
    "{ return max[K](dot[C, R, S](x[H = P + R, W = Q + S], w)) schedule sm90a { warps cooperative } }"
)
APART = (
    "kernel k(x: f32[B, C, H, W], w: f32[C, K, R=3, S=3], b: f32[B, P, Q]) -> f32[B, 1, P=2*H, Q=2*W] "
    "{ return min[K](dot[C, R, S](x[2*H = P + 1 - R, 2*W = Q + 1 - S], w) + b) schedule sm90a { math f16x3 } }"
)
APART_BF16 = (
    "kernel k(x: bf16[B, H, W, C], w: bf16[C, R=3, S=3, K]) -> f32[B, P=2*H, Q=2*W] "
    "{ return min[K](dot[C, R, S](x[2*H = P + 1 - R, 2*W = Q + 1 - S], w)) schedule sm90a { warps cooperative } }"
)
KEPT = (
    "kernel k(x: f32[B, C, H, W], w: f32[K, C, R=3, S=3]) -> f32[B, K] "
    "{ return sum[P=H-2, Q=W-2](dot[C, R, S](tf32(x[H = P + R, W = Q + S]), tf32(w))) }"
)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (MINIMUM, {"B": 2, "C": 32, "H": 7, "W": 11, "K": 72}),
        (APART, {"B": 2, "C": 20, "H": 5, "W": 6, "K": 72}),
        (APART_BF16, {"B": 2, "C": 24, "H": 5, "W": 6, "K": 72}),
        pytest.param(SUM, {"B": 2, "C": 64, "H": 5, "W": 7, "K": 200}, marks=pytest.mark.slow),
        pytest.param(THREE_PASSES, {"B": 2, "C": 8, "H": 6, "W": 9, "K": 40}, marks=pytest.mark.slow),
    ],
    ids=[
        "columns that fill no tile",
        "rows that lie apart",
        "rows that lie apart, one pass",
        "an operand of the whole result",
        "three TF32 passes",
    ],
)
def test_rows_are_reduced_in_registers(text: str, sizes: Mapping[str, int]) -> None:
    assert "reduce_rows(" in emit(plan(text, sizes, "sm90a").plan, "").text
    assert judge(text, sizes, arch="sm90a") == []


def test_columns_are_reduced_through_shared_memory() -> None:
    sizes = {"B": 2, "C": 32, "H": 7, "W": 11, "K": 72}
    assert "reduce_rows(" not in emit(plan(KEPT, sizes, "sm90a").plan, "").text
