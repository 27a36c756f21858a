"""Im2col kernels whose tiles' sums blocks of a cluster share: values on the host, and what is refused."""

from __future__ import annotations

import pytest

from tests.kernels.convolution_emulated import judge, plan
from ucutlass.diagnostics import ProgramError
from ucutlass.kernels.convolution.plan import ConvolutionPlan, Im2colSchedule

NHWC = (
    "kernel k(x: bf16[N=2, H=6, W=7, C=64], w: bf16[K=40, R=3, S=3, C]) -> bf16[N, P=6, Q=7, K] "
    "{ return dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w) schedule sm90a { warps cooperative SCHEDULE } }"
)
NCHW = (
    "kernel k(x: f32[N=2, C=40, H=6, W=7], w: f32[K=72, C, R=3, S=3], b: f32[K]) -> f32[N, K, P=6, Q=7] "
    "{ return relu(dot[R, S, C](tf32(x[H = P + R - 1, W = Q + S - 1]), tf32(w)) + b) schedule sm90a { warps cooperative SCHEDULE } }"
)
TRANSPOSED = (
    "kernel k(x: f32[N=2, C=32, H=4, W=3], w: f32[C, K=40, R=3, S=3]) -> f32[N, K, P=2*H, Q=2*W] "
    "{ return dot[R, S, C](x[2*H = P + 1 - R, 2*W = Q + 1 - S], w) schedule sm90a { warps cooperative SCHEDULE } }"
)
REDUCED = NHWC.replace("bf16[N, P=6, Q=7, K] { return", "bf16[N, P=6, Q=7] { return max[K](").replace(
    ", w) schedule", ", w)) schedule"
)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        (NHWC, "split_k 2"),
        pytest.param(NHWC, "tile 192x256x64 split_k 8", marks=pytest.mark.slow),
        pytest.param(NCHW, "split_k 4", marks=pytest.mark.slow),
        pytest.param(TRANSPOSED, "split_k 8", marks=pytest.mark.slow),
    ],
    ids=["rows of channels", "a tile with a producer group", "rows of pixels", "phases, some of one stage"],
)
def test_blocks_of_a_cluster_add_their_parts(text: str, schedule: str) -> None:
    scheduled = text.replace("SCHEDULE", schedule)
    planned = plan(scheduled, {}, "sm90a").plan
    assert isinstance(planned, ConvolutionPlan) and isinstance(planned.schedule, Im2colSchedule)
    assert planned.schedule.split_k > 1
    assert judge(scheduled, {}, arch="sm90a") == []


def test_blocks_share_a_tile_where_tiles_leave_processors_idle() -> None:
    layer = "kernel k(x: f32[N, C=512, H=7, W=7], w: f32[K=512, C, R=3, S=3]) -> f32[N, K, P=7, Q=7] { return dot[C, R, S](tf32(x[H = P + R - 1, W = Q + S - 1]), tf32(w)) }"
    parts = [plan(layer, {"N": n}, "sm90a").request.fixed().get("split_k") for n in (2, 256)]
    assert parts == [8, None]


def test_rows_that_are_reduced_have_one_block() -> None:
    assert "split_k" not in plan(REDUCED.replace("SCHEDULE", ""), {}, "sm90a").request.fixed()


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (NHWC.replace("SCHEDULE", "split_k 3"), "split_k 2"),
        (REDUCED.replace("SCHEDULE", "split_k 2"), "split_k 1"),
        (TRANSPOSED.replace("SCHEDULE", "fold yes  split_k 8"), "split_k 1"),
    ],
)
def test_what_no_cluster_shares_is_refused(text: str, hint: str) -> None:
    with pytest.raises(ProgramError) as error:
        plan(text, {}, "sm90a")
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "UC0481" and hint in str(diagnostic)
