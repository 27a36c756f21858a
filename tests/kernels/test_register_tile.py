"""Convolutions of few channels whose threads keep sums of several positions by several columns: on the host behind
the emulator, and what the rules refuse."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from tests.kernels.convolution_emulated import judge, plan
from ucutlass.diagnostics import ProgramError
from ucutlass.kernels.convolution.plan import ConvolutionPlan, RegisterTileSchedule
from ucutlass.kernels.planned import Planned

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

FIRST = """kernel k(x: E[N, C, H, W], w: E[K, C, R=3, S=3], b: f32[K]) -> E[N, K, P=H, Q=W] {
  return relu(dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w) + b)
  schedule sm90a { SCHEDULE }
}"""
STRIDED = FIRST.replace("P=H, Q=W", "P=(H+1)//2, Q=(W+1)//2").replace(
    "= P + R - 1, W = Q + S - 1", "= 2*P + R - 1, W = 2*Q + 2*S - 2"
)
LAST = """kernel k(x: E[N, H, W, C], w: E[K, R=3, S=2, C], b: f32[K], y: E[N, P, Q, K]) -> E[N, P=H-2, Q=W-1, K] {
  return dot[C, R, S](x[H = P + R, W = Q + S], w) + b + y * f32(index(K))
  schedule sm90a { SCHEDULE }
}"""
CUBES = """kernel k(x: E[N, C, D, H, W], w: E[K, C, T=2, R=3, S=3], b: f32[K]) -> E[N, K, O=D-1, P=H-2, Q=W-2] {
  return tanh(dot[C, T, R, S](x[D = O + T, H = P + R, W = Q + S], w) + b)
  schedule sm90a { SCHEDULE }
}"""
SMALLEST = """kernel k(x: E[N, C, H, W], w: E[K, C, R=3, S=3], b: f32[K]) -> f32[N, 1, P=H, Q=W] {
  return min[K](dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w) * 0.5 + b)
  schedule sm90a { SCHEDULE }
}"""
LARGEST = (
    SMALLEST.replace("min[K]", "max[K]").replace("-> f32[N, 1,", "-> bf16[N,").replace("* 0.5", "* index(K)")
)
SUM = LARGEST.replace("max[K]", "sum[K]")
ADJACENT = LAST.replace(", y: E[N, P, Q, K]", "").replace("+ y *", "+")
"""Columns are adjacent, and no operand differs from position to position."""
NORMED = ADJACENT.replace("b: f32[K]", "b: f32[K], m: f32[K], v: f32[K]").replace(
    "dot[C, R, S](x[H = P + R, W = Q + S], w) + b",
    "silu((dot[C, R, S](x[H = P + R, W = Q + S], w) - m) * rsqrt(v * v + 1e-5) + b)",
)
WHOLE_NUMBERS = ADJACENT.replace("-> E[", "-> i32[").replace("return dot", "return 16777217 + i32(8 * (dot")
WHOLE_NUMBERS = WHOLE_NUMBERS.replace(", w) + b + f32(index(K))", ", w) + b))")
"""Results that f32 does not hold."""
MIRRORED = FIRST.replace("P + R - 1", "P - R + 1")
BESIDE = (
    FIRST.replace("w: E[K,", "w: E[(G=4 K),")
    .replace("b: f32[K]", "b: f32[(G K)]")
    .replace("E[N, K, P=H", "E[N, (G K), P=H")
)
"""Columns of two names."""


def _planned(
    text: str, element: str, schedule: str, sizes: dict[str, int]
) -> tuple[str, RegisterTileSchedule]:
    written = text.replace("E[", f"{element}[").replace("SCHEDULE", schedule)
    chosen = plan(written, sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, RegisterTileSchedule)
    return written, chosen.schedule


@emulated
@pytest.mark.parametrize(
    ("text", "element", "schedule", "sizes", "channels"),
    [
        pytest.param(
            ADJACENT, "f32", "columns 4", {"N": 2, "H": 9, "W": 13, "C": 3, "K": 24}, 3, id="rows of f32"
        ),
        pytest.param(
            ADJACENT,
            "bf16",
            "columns 2 rows 2",
            {"N": 1, "H": 14, "W": 12, "C": 4, "K": 12},
            4,
            id="rows of bf16",
        ),
        pytest.param(
            NORMED,
            "f16",
            "columns 2 rows 4",
            {"N": 1, "H": 9, "W": 9, "C": 3, "K": 20},
            3,
            id="rows of a norm",
        ),
        pytest.param(
            WHOLE_NUMBERS, "f32", "columns 2", {"N": 1, "H": 6, "W": 7, "C": 3, "K": 8}, 3, id="whole numbers"
        ),
        pytest.param(FIRST, "f32", "columns 2", {"N": 2, "C": 3, "H": 9, "W": 13, "K": 21}, 3, id="f32"),
        pytest.param(
            STRIDED, "f32", "columns 1  rows 2", {"N": 1, "C": 5, "H": 9, "W": 12, "K": 6}, 1, id="strided"
        ),
        pytest.param(
            LAST, "bf16", "columns 2  rows 1", {"N": 2, "H": 7, "W": 6, "C": 8, "K": 8}, 4, id="channels last"
        ),
        pytest.param(
            LAST, "f32", "columns 4  threads 32", {"N": 1, "H": 6, "W": 9, "C": 2, "K": 18}, 2, id="ragged"
        ),
        pytest.param(
            CUBES, "f32", "columns 1", {"N": 2, "C": 1, "D": 4, "H": 7, "W": 8, "K": 4}, 1, id="cubes"
        ),
        pytest.param(
            MIRRORED, "f16", "columns 1", {"N": 1, "C": 6, "H": 6, "W": 7, "K": 3}, 3, id="mirrored"
        ),
        pytest.param(
            SMALLEST, "f32", "columns 1", {"N": 2, "C": 3, "H": 6, "W": 7, "K": 10}, 3, id="smallest"
        ),
        pytest.param(LARGEST, "f32", "columns 2", {"N": 2, "C": 2, "H": 6, "W": 7, "K": 24}, 2, id="largest"),
        pytest.param(
            BESIDE, "f32", "columns 1", {"N": 2, "C": 3, "H": 9, "W": 13, "K": 5}, 3, id="two names"
        ),
        pytest.param(
            BESIDE.replace("E[N, (G K), P=H, Q=W]", "E[N, P=H, Q=W, (G K)]"),
            "bf16",
            "columns 2",
            {"N": 2, "C": 3, "H": 9, "W": 13, "K": 6},
            3,
            id="two names, adjacent",
        ),
        pytest.param(SUM, "bf16", "columns 4", {"N": 1, "C": 4, "H": 6, "W": 7, "K": 9}, 4, id="sum"),
    ],
)
def test_tiles_compute_their_program(
    text: str, element: str, schedule: str, sizes: dict[str, int], channels: int
) -> None:
    written, chosen = _planned(text, element, schedule, sizes)
    assert chosen.channels == channels
    assert judge(written, sizes, arch="sm90a") == []


@emulated
@pytest.mark.parametrize(
    ("text", "element", "sizes"),
    [
        pytest.param(FIRST, "f32", {"N": 2, "C": 3, "H": 9, "W": 13, "K": 21}, id="ragged"),
        pytest.param(LAST, "bf16", {"N": 2, "H": 7, "W": 6, "C": 8, "K": 16}, id="adjacent"),
    ],
)
def test_a_thread_computes_all_columns(text: str, element: str, sizes: dict[str, int]) -> None:
    written, _ = _planned(text, element, "columns 2  rows 2", sizes)

    def whole(planned: Planned) -> Planned:
        assert isinstance(planned.plan, ConvolutionPlan)
        assert isinstance(planned.plan.schedule, RegisterTileSchedule)
        return replace(
            planned, plan=replace(planned.plan, schedule=replace(planned.plan.schedule, whole=True))
        )

    assert judge(written, sizes, arch="sm90a", change=whole) == []


def test_many_positions_have_all_columns_in_a_thread() -> None:
    _, chosen = _planned(FIRST, "f32", "columns 4", {"N": 64, "C": 3, "H": 224, "W": 224, "K": 64})
    assert chosen.whole
    _, few = _planned(FIRST, "f32", "columns 4", {"N": 1, "C": 3, "H": 224, "W": 224, "K": 64})
    assert not few.whole


def test_threads_with_all_columns_keep_few_sums_where_few_products_are_summed() -> None:
    _, chosen = _planned(FIRST, "f32", "", {"N": 64, "C": 3, "H": 224, "W": 224, "K": 64})
    assert chosen.whole and chosen.rows * chosen.columns == 64


@emulated
def test_products_of_tf32_are_rounded() -> None:
    text = FIRST.replace("E[", "f32[").replace("(x[", "(tf32(x[").replace("], w)", "]), tf32(w))")
    assert (
        judge(text.replace("SCHEDULE", "columns 1"), {"N": 1, "C": 3, "H": 5, "W": 6, "K": 4}, arch="sm90a")
        == []
    )


@pytest.mark.parametrize(
    ("text", "schedule", "sizes", "reason"),
    [
        (FIRST, "columns 8  rows 8", {"N": 1, "C": 3, "H": 8, "W": 8, "K": 64}, "at most 128 sums"),
        (FIRST, "columns 8", {"N": 1, "C": 512, "H": 8, "W": 8, "K": 64}, "bytes of shared memory"),
        (SUM.replace("sum[K]", "sum[K, Q=8]").replace("P=H, Q=W]", "P=H]"),
            "columns 2", {"N": 1, "C": 3, "H": 8, "W": 8, "K": 64}, "over all of its columns alone"),
        (FIRST, "columns 2  vector 2", {"N": 1, "C": 3, "H": 8, "W": 8, "K": 64}, "no `vector`"),
        (FIRST, "columns 2  threads 48", {"N": 1, "C": 3, "H": 8, "W": 8, "K": 64}, "whole warps"),
        (FIRST.replace("=3", "=17"), "columns 2", {"N": 1, "C": 1, "H": 40, "W": 40, "K": 4}, "34 taps"),
        (
            FIRST.replace("w: E[K, C, ", "w: E[C, ").replace("[N, K, P=H", "[N, C, P=H").replace("dot[C, ", "dot[").replace("b: f32[K]", "b: f32[C]"),
            "columns 2",
            {"N": 1, "C": 3, "H": 8, "W": 8},
            "one name of the result",
        ),
    ],
)  # fmt: skip
def test_what_has_no_tile_is_refused(text: str, schedule: str, sizes: dict[str, int], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        _planned(text, "f32", schedule, sizes)


@pytest.mark.parametrize("images", [1, 5])
def test_weights_that_a_window_shifts_have_no_tile(images: int) -> None:
    """The left operand's name of the result that the right one has not is read through a window."""
    text = """kernel k(x: f32[C, H, N], w: f32[R, C, K]) -> f32[K, P=17, N] {
  return dot[R, C](tf32(w), tf32(x[H = P + 1 - R, N = N - 1]))
}"""
    chosen = plan(text, {"C": 1, "H": 17, "N": images, "R": 2, "K": 33}, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan)
    assert not isinstance(chosen.schedule, RegisterTileSchedule)
