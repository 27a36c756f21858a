"""Depthwise convolutions with channels first, of which a thread computes several lines of results: on the host
behind the emulator, and what the rules refuse."""

from __future__ import annotations

import shutil

import pytest

from tests.kernels.convolution_emulated import direct_schedule, judge, plan
from ucutlass.diagnostics import ProgramError
from ucutlass.kernels.convolution.space import axes

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

SAME = """kernel k(x: E[N, C, H, W], w: E[C, R=3, S=3], b: f32[C]) -> E[N, C, P=H, Q=W] {
  return relu(dot[R, S](x[H = P + R - 1, W = Q + S - 1], w) + b)
  schedule sm90a { warps direct  SCHEDULE }
}"""
STRIDED = SAME.replace("P=H, Q=W", "P=(H+1)//2, Q=(W+1)//2").replace(
    "= P + R - 1, W = Q +", "= 2*P + R - 1, W = 2*Q +"
)
STRIDED_LARGE = STRIDED.replace("R=3, S=3", "R=5, S=5").replace(
    "R - 1, W = 2*Q + S - 1", "R - 2, W = 2*Q + S - 2"
)
DILATED = SAME.replace("P + R - 1, W = Q + S - 1", "P + 2*R - 2, W = Q + 3*S - 3")
LARGE = SAME.replace("R=3, S=3", "R=7, S=5").replace("P + R - 1, W = Q + S - 1", "P + R - 3, W = Q + S - 2")
FLIPPED = SAME.replace("P + R - 1, W = Q + S - 1", "P + 1 - R, W = Q + 1 - S")
"""A gradient of the input: the last tap reads the lowest position."""
FLIPPED_LARGE = LARGE.replace("P + R - 3, W = Q + S - 2", "P + 3 - R, W = Q + 4 - 2*S")
DIVIDED = (
    SAME.replace("H, W], w", "P, Q], w")
    .replace("C, P=H, Q=W]", "C, H=2*P, W=2*Q]")
    .replace("H = P + R - 1, W = Q + S - 1", "2*P = H + 1 - R, 2*Q = W + 1 - S")
)
"""A gradient of the input of a strided convolution."""
DIVIDED_LARGE = DIVIDED.replace("R=3, S=3", "R=5, S=7").replace(
    "H + 1 - R, 2*Q = W + 1", "H + 2 - R, 2*Q = W + 3"
)
GROUPED = (
    SAME.replace("w: E[C, R=3, S=3]", "w: E[C, D, R=3, S=3]")
    .replace("x: E[N, C,", "x: E[N, C, D,")
    .replace("dot[R, S]", "dot[D, R, S]")
)
"""Of groups of D channels with one result each, whose sum has a name beside the windows'."""


@emulated
@pytest.mark.parametrize(
    ("text", "element", "schedule", "sizes", "wide"),
    [
        pytest.param(SAME, "f32", "items 8", {"N": 2, "C": 3, "H": 11, "W": 16}, True, id="f32"),
        pytest.param(SAME, "bf16", "items 4", {"N": 2, "C": 3, "H": 6, "W": 24}, True, id="bf16"),
        pytest.param(SAME, "f32", "items 3", {"N": 1, "C": 2, "H": 7, "W": 13}, False, id="odd"),
        pytest.param(STRIDED, "f32", "items 4", {"N": 1, "C": 3, "H": 11, "W": 15}, False, id="strided"),
        pytest.param(STRIDED, "f32", "items 2", {"N": 1, "C": 3, "H": 9, "W": 16}, True, id="strided wide"),
        pytest.param(STRIDED, "f16", "items 2", {"N": 2, "C": 2, "H": 8, "W": 32}, True, id="strided f16"),
        pytest.param(
            STRIDED_LARGE, "f32", "items 2", {"N": 1, "C": 2, "H": 10, "W": 24}, True, id="strided large"
        ),
        pytest.param(DILATED, "f32", "items 2", {"N": 1, "C": 2, "H": 9, "W": 12}, True, id="dilated"),
        pytest.param(LARGE, "f16", "items 2", {"N": 1, "C": 2, "H": 9, "W": 16}, True, id="large"),
        pytest.param(FLIPPED, "f32", "items 4", {"N": 1, "C": 3, "H": 7, "W": 16}, True, id="flipped"),
        pytest.param(FLIPPED, "bf16", "items 2", {"N": 1, "C": 3, "H": 7, "W": 13}, False, id="flipped odd"),
        pytest.param(
            FLIPPED_LARGE, "f16", "items 2", {"N": 1, "C": 2, "H": 9, "W": 16}, True, id="flipped large"
        ),
        pytest.param(DIVIDED, "f32", "items 2", {"N": 1, "C": 3, "P": 5, "Q": 8}, False, id="divided"),
        pytest.param(DIVIDED, "bf16", "items 4", {"N": 2, "C": 2, "P": 3, "Q": 7}, False, id="divided odd"),
        pytest.param(
            DIVIDED_LARGE, "f16", "items 2", {"N": 1, "C": 2, "P": 6, "Q": 9}, False, id="divided large"
        ),
        pytest.param(GROUPED, "f32", "items 4", {"N": 1, "C": 2, "D": 3, "H": 6, "W": 8}, True, id="grouped"),
    ],
)
def test_lines_compute_their_program(
    text: str, element: str, schedule: str, sizes: dict[str, int], wide: bool
) -> None:
    written, chosen = direct_schedule(text, element, schedule, sizes)
    assert chosen.items > 1 and chosen.wide == wide
    assert judge(written, sizes, arch="sm90a") == []


@emulated
@pytest.mark.parametrize("schedule", ["", "rows 4", "vector 4 rows 3"])
def test_flipped_windows_of_neighbouring_channels_compute_their_program(schedule: str) -> None:
    text = """kernel k(x: bf16[N, H, W, C], w: bf16[C, R=3, S=3]) -> bf16[N, P=H, Q=W, C] {
  return dot[R, S](x[H = P + 1 - R, W = Q + 1 - S], w)
  schedule sm90a { warps direct  SCHEDULE }
}"""
    written, chosen = direct_schedule(text, "bf16", schedule, sizes := {"N": 1, "C": 16, "H": 6, "W": 9})
    assert chosen.taps == 3
    assert judge(written, sizes, arch="sm90a") == []


@emulated
@pytest.mark.parametrize(
    ("channels", "taps", "schedule", "width"),
    [
        pytest.param(5, 5, "", 1, id="odd channels"),
        pytest.param(5, 7, "rows 8", 1, id="odd channels, more rows"),
        pytest.param(16, 11, "", 4, id="long windows"),
    ],
)
def test_results_along_a_line_share_the_taps_that_they_read(
    channels: int, taps: int, schedule: str, width: int
) -> None:
    text = f"""kernel k(x: bf16[N, H, W, C], w: bf16[C, R=3, S={taps}]) -> bf16[N, P=H, Q=W, C] {{
  return dot[R, S](x[H = P + R - 1, W = Q + S - {taps // 2}], w)
  schedule sm90a {{ warps direct  SCHEDULE }}
}}"""
    written, chosen = direct_schedule(
        text, "bf16", schedule, sizes := {"N": 2, "C": channels, "H": 4, "W": 13}
    )
    assert (chosen.width, chosen.taps) == (width, taps) and chosen.rows > 1
    assert judge(written, sizes, arch="sm90a") == []


@emulated
@pytest.mark.parametrize("schedule", ["", "rows 6", "rows 3", "vector 4 rows 2"])
def test_divided_windows_of_neighbouring_channels_compute_their_program(schedule: str) -> None:
    text = """kernel k(y: bf16[N, P, Q, C], w: bf16[C, R=3, S=5]) -> bf16[N, H=2*P, W=2*Q, C] {
  return dot[R, S](y[2*P = H + 1 - R, 2*Q = W + 2 - S], w)
  schedule sm90a { warps direct  SCHEDULE }
}"""
    written, chosen = direct_schedule(text, "bf16", schedule, sizes := {"N": 1, "C": 16, "P": 3, "Q": 5})
    assert chosen.taps == (0 if schedule == "rows 3" else 5)
    assert judge(written, sizes, arch="sm90a") == []


@pytest.mark.parametrize("schedule", ["rows 3", "items 3"])
def test_divided_windows_have_whole_phases(schedule: str) -> None:
    with pytest.raises(ProgramError, match="multiples of 2"):
        direct_schedule(DIVIDED, "f32", schedule, {"N": 1, "C": 2, "P": 5, "Q": 7})


def test_tuning_searches_lines() -> None:
    text = SAME.replace("E[", "f32[").replace("  schedule sm90a { warps direct  SCHEDULE }\n", "")
    assert {2, 4} <= set(axes(plan(text, {"N": 16, "C": 256, "H": 112, "W": 112}, "sm90a"))["items"])


def test_too_many_lines_are_refused() -> None:
    with pytest.raises(ProgramError, match="at most 64 sums"):
        direct_schedule(SAME, "f32", "items 17", {"N": 1, "C": 2, "H": 40, "W": 16})


def test_without_a_second_window_there_is_one_line() -> None:
    along = (
        SAME.replace("H = P + R - 1, ", "")
        .replace("R=3, ", "")
        .replace("dot[R, S]", "dot[S]")
        .replace("P=H", "H")
    )
    for items in (1, 2):
        with pytest.raises(ProgramError, match="no second window"):
            direct_schedule(along, "f32", f"items {items}", {"N": 1, "C": 2, "H": 8, "W": 16})


@pytest.mark.parametrize(
    ("element", "sizes", "items"),
    [
        ("f32", {"N": 16, "C": 256, "H": 112, "W": 112}, 8),
        ("bf16", {"N": 16, "C": 256, "H": 112, "W": 112}, 4),
        ("f32", {"N": 64, "C": 384, "H": 14, "W": 14}, 7),
        ("f32", {"N": 16, "C": 960, "H": 7, "W": 7}, 1),
        ("f32", {"N": 1, "C": 32, "H": 56, "W": 56}, 1),
    ],
)
def test_the_planner_chooses_lines_where_there_are_many_results(
    element: str, sizes: dict[str, int], items: int
) -> None:
    _, chosen = direct_schedule(
        SAME.replace("  schedule sm90a { warps direct  SCHEDULE }\n", ""), element, "", sizes
    )
    assert chosen.items == items


@pytest.mark.parametrize(("images", "items"), [(16, 2), (1, 1)], ids=["many results", "few"])
def test_the_planner_computes_two_lines_of_a_strided_window(images: int, items: int) -> None:
    text = STRIDED.replace("  schedule sm90a { warps direct  SCHEDULE }\n", "")
    _, chosen = direct_schedule(text, "f32", "", {"N": images, "C": 64, "H": 112, "W": 112})
    assert chosen.items == items
