"""Depthwise convolutions with channels last, of which a thread goes down several lines of results: on the host behind
the emulator, and what the rules refuse."""

from __future__ import annotations

import shutil

import pytest

from tests.kernels.convolution_emulated import direct_schedule, judge
from ucutlass.diagnostics import ProgramError

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

SAME = """kernel k(x: E[N, H, W, C], w: E[C, R=3, S=3], b: f32[C]) -> E[N, P=H, Q=W, C] {
  return relu(dot[R, S](x[H = P + R - 1, W = Q + S - 1], w) + b)
  schedule sm90a { warps direct  SCHEDULE }
}"""
INNERMOST = SAME.replace("w: E[C, R=3, S=3]", "w: E[R=3, S=3, C]")
"""Neighbouring weights are those of neighbouring channels."""
STRIDED = SAME.replace("P=H, Q=W", "P=(H+1)//2, Q=(W+1)//2").replace(
    "= P + R - 1, W = Q +", "= 2*P + R - 1, W = 2*Q +"
)
LARGE = SAME.replace("R=3, S=3", "R=7, S=5").replace("P + R - 1, W = Q + S - 1", "P + R - 3, W = Q + S - 2")
FLIPPED = SAME.replace("P + R - 1, W = Q + S - 1", "P + 1 - R, W = Q + 1 - S")
"""A gradient of the input: the last tap reads the lowest position."""
WIDE = SAME.replace("W = Q + S - 1", "W = Q + 2*S - 2")
"""Dilated along lines."""
DILATED = SAME.replace("H = P + R - 1", "H = P + 2*R - 2")
ROUNDED = SAME.replace(
    "dot[R, S](x[H = P + R - 1, W = Q + S - 1], w)",
    "dot[R, S](tf32(x[H = P + R - 1, W = Q + S - 1]), tf32(w))",
)
ADDED = SAME.replace("b: f32[C])", "b: f32[C], y: E[N, P, Q, C])").replace("+ b)", "+ b * y + f32(index(P)))")


@emulated
@pytest.mark.parametrize(
    ("text", "element", "schedule", "sizes"),
    [
        pytest.param(SAME, "f32", "vector 2 rows 4 items 4", {"N": 2, "H": 9, "W": 10, "C": 6}, id="f32"),
        pytest.param(
            INNERMOST, "bf16", "vector 4 rows 2 items 3", {"N": 1, "H": 7, "W": 5, "C": 8}, id="innermost"
        ),
        pytest.param(SAME, "f16", "vector 1 rows 7 items 9", {"N": 1, "H": 9, "W": 7, "C": 3}, id="odd"),
        pytest.param(
            STRIDED, "f32", "vector 2 rows 2 items 3", {"N": 1, "H": 11, "W": 9, "C": 4}, id="strided"
        ),
        pytest.param(LARGE, "f32", "vector 1 rows 4 items 5", {"N": 1, "H": 8, "W": 9, "C": 2}, id="large"),
        pytest.param(
            FLIPPED, "bf16", "vector 2 rows 4 items 2", {"N": 2, "H": 5, "W": 6, "C": 4}, id="flipped"
        ),
        pytest.param(WIDE, "f32", "vector 2 rows 4 items 4", {"N": 1, "H": 6, "W": 9, "C": 4}, id="wide"),
        pytest.param(
            ROUNDED, "f32", "vector 2 rows 2 items 4", {"N": 1, "H": 6, "W": 5, "C": 4}, id="rounded"
        ),
        pytest.param(ADDED, "bf16", "vector 2 rows 3 items 2", {"N": 1, "H": 5, "W": 7, "C": 6}, id="added"),
    ],
)
def test_lines_compute_their_program(text: str, element: str, schedule: str, sizes: dict[str, int]) -> None:
    written, chosen = direct_schedule(text, element, schedule, sizes)
    assert chosen.items > 1 and not chosen.innermost
    assert judge(written, sizes, arch="sm90a") == []


def test_lines_that_a_thread_does_not_hold_are_refused() -> None:
    sizes = {"N": 1, "H": 40, "W": 40, "C": 16}
    with pytest.raises(ProgramError, match="at most 96 sums"):
        direct_schedule(SAME, "bf16", "vector 8 rows 8 items 4", sizes)
    with pytest.raises(ProgramError, match="no second window"):
        direct_schedule(DILATED, "bf16", "vector 2 rows 4 items 4", sizes)


@pytest.mark.parametrize(
    ("element", "sizes", "schedule"),
    [
        ("f32", {"N": 32, "H": 56, "W": 56, "C": 72}, (2, 8, 14)),
        ("bf16", {"N": 64, "H": 14, "W": 14, "C": 1024}, (4, 7, 14)),
        ("f32", {"N": 64, "H": 7, "W": 7, "C": 256}, (1, 7, 0)),
    ],
)
def test_the_planner_goes_down_lines_where_results_are_many(
    element: str, sizes: dict[str, int], schedule: tuple[int, int, int]
) -> None:
    _, chosen = direct_schedule(
        SAME.replace("  schedule sm90a { warps direct  SCHEDULE }\n", ""), element, "", sizes
    )
    assert (chosen.width, chosen.rows, chosen.items) == schedule
