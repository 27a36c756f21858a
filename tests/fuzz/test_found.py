"""Programs on which the fuzzer once found an exception that was no diagnostic."""

from __future__ import annotations

import pytest

from tests.fuzz import fuzz

GEMM = (
    "kernel f(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {{ return dot[K](x, w) schedule sm90a {{ {} }} }}"
)

FOUND = {
    "two parameters of one name in a pipeline": (
        "pipeline p(x: bf16[T, D], w: bf16[F, D], w: bf16[D, F]) -> bf16[T, D] {"
        " h: bf16[T, F] = dot[D](x, w) return dot[F](h, w) }"
    ),
    "a cluster larger than the GPU": GEMM.format("cluster 64x64"),
    "more batch dimensions than a kernel addresses, and a schedule": (
        "kernel f(x: bf16[A, M, B, C, D, E, F, K], w: bf16[B, N, A, D, C, F, E, K])"
        " -> bf16[C, A, M, D, F, B, E, N] {"
        " return dot[K](x, w) schedule sm90a { stages auto } }"
    ),
    "an extent that is computed from itself": (
        "kernel f(x: f32[N, H]) -> f32[N, H=(H+1)//2] { return mean[R=3](x[H = 2*H + R - 1]) }"
    ),
}


@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
def test_what_once_raised_is_refused(text: str) -> None:
    assert fuzz.check(text.encode(), []) in ("refused", "typed")


def test_bytes_that_are_no_text_are_refused() -> None:
    assert fuzz.check(b"\xff\xfe", []) == "refused"
