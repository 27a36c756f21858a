"""Every sweep of `sweep_programs` on the host: the emitted CUDA file against the float64 reference."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.emulated import Job, emulate
from benchmarks.random_sweeps import job
from tests.families.sweep_programs import SWEEPS

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")

QUICK = {
    "layer norm", "softmax of a middle name", "cross entropy", "reverse scan", "softmax far below zero",
    "max pool, channels last", "places down", "scan of few long rows",
}  # fmt: skip
"""One of each way through the emitter; the others are slow tests, for their number."""


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SWEEPS]
)
def test_sweeps_compute_their_programs(name: str) -> None:
    sweep = SWEEPS[name]
    row = emulate(Job(name, sweep.text, "k", dict(sweep.small), None, 0))
    assert row.status == "right", row.detail


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_sweeps_compute_their_programs(seed: int) -> None:
    row = emulate(job(seed))
    assert row.status in ("right", "rejected"), f"{row.detail}\n{row.job.text}{row.job.sizes}"
