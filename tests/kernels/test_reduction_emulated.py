"""Every reduction of `reduction_programs` on the host: the emitted CUDA file against the float64 reference."""

from __future__ import annotations

import shutil

import pytest

from tests import isolated
from tests.emulated import LIMIT_SECONDS, Job, emulate
from tests.kernels.reduction_programs import REDUCTIONS
from ucutlass.runtime import isolation

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")

QUICK = {"layer norm", "reverse scan", "places down", "embedding bag", "window over two names"}
"""One of each way through the emitter; the others are slow tests, for their number."""


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in REDUCTIONS]
)
def test_reductions_compute_their_programs(name: str) -> None:
    reduction = REDUCTIONS[name]
    row = emulate(Job(name, reduction.text, "k", dict(reduction.small), None, 0))
    assert row.status == "right", row.detail


@pytest.mark.parametrize(
    "name",
    ["transposed", *(pytest.param(n, marks=pytest.mark.slow) for n in ("softmax", "window over two names"))],
)
def test_tensors_that_do_not_begin_at_16_bytes(name: str) -> None:
    row = emulate(Job(name, REDUCTIONS[name].text, "k", dict(REDUCTIONS[name].small), None, 0, shifted=True))
    assert row.status == "right", row.detail


HUGE = {
    "softmax": {"T": 18, "D": 2052},
    "softmax of long rows": {"T": 18, "D": 2052},
    "softmax of a middle name": {"A": 18, "D": 33, "C": 20},
    "softmax of a short row": {"T": 18, "D": 24},
}
_SHORT = "kernel k(x: f32[T, D]) -> f32[T, D] { return softmax[D](x * 0.5) }"


@pytest.mark.parametrize(
    "name", [n if n == "softmax of long rows" else pytest.param(n, marks=pytest.mark.slow) for n in HUGE]
)
def test_softmax_of_huge_numbers(name: str) -> None:
    """Also where a number's last place times log2(e) is more than exponentials span."""
    program = REDUCTIONS[name].text if name in REDUCTIONS else _SHORT
    outcome = isolated.run(
        "tests.kernels.huge_numbers:emulate_here",
        {"program": program, "sizes": HUGE[name], "scores": ["rows"], "seed": 3},
        limit_seconds=LIMIT_SECONDS,
    )
    assert isinstance(outcome, isolation.Returned), outcome
    (result,) = outcome.value
    assert result["missing"] == 0
    assert result["error"] < (2.0**-7 if "bf16" in program else 2.0**-16)


@pytest.mark.parametrize(
    "value", ["(x - mean[B, P](x)) * rsqrt(var[B, P](x) + 1e-5) * w", "softmax[B, P](x - max[B, P](x)) * w"]
)
def test_parts_that_a_launch_of_its_own_merges(value: str) -> None:
    schedule = "schedule sm90a { split_k 20  rows 8  threads 2  items 1  vector 4  keep reread }"
    text = f"kernel k(x: f32[B, P, K], w: f32[K]) -> f32[B, P, K] {{ return {value}\n {schedule} }}"
    row = emulate(Job("parts", text, "k", {"B": 4, "P": 45, "K": 52}, None, 0))
    assert row.status == "right", row.detail


CLUSTERS = {
    "norm": "(x - mean[K](x)) * rsqrt(var[K](x) + 1e-5) * w",
    "softmax": "softmax[K](x * w)",
    "places": "x * f32(argmax[K](x))",
}


@pytest.mark.parametrize("columns", [1288, pytest.param(4096, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "value", ["norm", *(pytest.param(v, marks=pytest.mark.slow) for v in ("softmax", "places"))]
)
@pytest.mark.parametrize(
    "fields",
    ["cluster 1x2", "cluster 1x4  stages 2", pytest.param("cluster 1x8  threads 64", marks=pytest.mark.slow)],
)
def test_blocks_of_a_cluster_share_a_row(fields: str, value: str, columns: int) -> None:
    """Their parts meet at the cluster's barrier, or where lines come through a ring at the mbarrier of each block."""
    schedule = f"schedule sm90a {{ {fields} }}"
    text = f"kernel k(x: f32[M, K], w: f32[K]) -> f32[M, K] {{ return {CLUSTERS[value]}\n {schedule} }}"
    row = emulate(Job("cluster", text, "k", {"M": 3, "K": columns}, None, 0))
    assert row.status == "right" and fields.split()[1] in row.schedule.split(), row.detail


@pytest.mark.parametrize("elem", ["bf16", pytest.param("f32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("columns", [1288, pytest.param(1283, marks=pytest.mark.slow)])
def test_parts_that_follow_one_another_through_registers(elem: str, columns: int) -> None:
    """Two that threads fill, and one that they do not."""
    schedule = "schedule sm90a { keep reread  threads 32  items 2  rows 1  split_k 1 }"
    text = (
        f"kernel k(x: {elem}[T, D], t: i64[T]) -> f32[T] {{ return logsumexp[D](x) - x[D = t] {schedule} }}"
    )
    row = emulate(Job("parts", text, "k", {"T": 3, "D": columns}, None, 0))
    assert row.status == "right", row.detail


_POOLED = "max[R=2, S=2](tanh(x)[H = 2*P + R, W = 2*Q + S])"


@pytest.mark.parametrize(
    "value",
    [
        "(y - mean[C, P, Q](y)) * rsqrt(var[C, P, Q](y) + 1e-5)",
        pytest.param("softmax[C, P, Q](y)", marks=pytest.mark.slow),
    ],
)
def test_windows_that_several_passes_need(value: str) -> None:
    """One pass reads them, and registers hold them for the others."""
    text = (
        "kernel k(x: f32[B, C=5, H=13, W=18]) -> f32[B, C, P=6, Q=9] {"
        f" y: [B, C, P, Q] = {_POOLED}\n return {value} }}"
    )
    row = emulate(Job("windows", text, "k", {"B": 3}, None, 0))
    assert row.status == "right", row.detail
