"""A few random programs, from their text to the numbers that their CUDA files compute on the host."""

from __future__ import annotations

import shutil

import pytest

from tests import isolated
from tests.emulated import Job, emulate, random_jobs
from ucutlass.ir.schedule import Warps
from ucutlass.runtime import isolation

JOBS = list(random_jobs(first=20, count=3))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")
@pytest.mark.parametrize(
    "job",
    [*(pytest.param(job, marks=pytest.mark.slow) for job in JOBS[:-1]), JOBS[-1]],
    ids=[j.name for j in JOBS],
)
def test_emitted_kernels_compute_their_programs(job: Job) -> None:
    row = emulate(job)
    assert row.status == "right", f"{row.detail}\n{row.job.text}{row.job.sizes}"


WRAPS = """kernel k(x: s8[M, K], w: s8[N, K], r: i32[M, N])
    -> (y: i32[M, N], rows: i32[M], low: s8[N], all: i32[]) {
  v = (dot[K](x, w) * 2000000000 - r) * 3
  return y = v, rows = sum[N](v), low = sum[M](dot[K](x, w)), all = sum[M, N](abs(v))
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")
@pytest.mark.parametrize("warps", [pytest.param("multistage", marks=pytest.mark.slow), "gemv"])
def test_integer_work_wraps_and_sums_saturate_as_the_reference(warps: Warps) -> None:
    """Products leave 32 bits at once; sums of 64 bits leave those of i32 and s8 when stored."""
    row = emulate(Job("wraps", WRAPS, "k", {"M": 21, "N": 3, "K": 17}, warps, 0))
    assert row.status == "right", row.detail


APART = """kernel k(x: f16[E, A, B, C, D, M, K], w: f16[D, E, C, B, A, K, N], r: f32[C, E, A, D, B])
    -> (y: f16[B, E, A, D, C, M, N], t: f32[A, E, C, M], u: f32[B, D, N]) {
  v = dot[K](x, w) * 0.25 + r + index(D)
  return y = v, t = sum[B, D, N](v), u = max[E, A, C, M](v)
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")
@pytest.mark.parametrize("warps", ["multistage", "gemv"])
def test_five_batch_modes_that_lie_apart(warps: Warps) -> None:
    sizes = {"E": 2, "A": 2, "B": 3, "C": 2, "D": 2, "M": 17, "N": 3, "K": 19}
    row = emulate(Job("apart", APART, "k", sizes, warps, 0))
    assert row.status == "right", row.detail


def test_a_kernel_that_ends_its_process_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "run", lambda *_, **__: isolation.Crashed("SIGABRT", "cp.async target"))
    assert emulate(JOBS[0]).status == "wrong"
