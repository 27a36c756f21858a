"""A few random programs, from their text to the numbers that their CUDA files compute on the host."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.emulated import Job, emulate, random_jobs
from ucutlass.runtime import isolate

JOBS = list(random_jobs(first=20, wanted=3))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")
@pytest.mark.parametrize("job", JOBS, ids=[job.name for job in JOBS])
def test_emitted_kernels_compute_their_programs(job: Job) -> None:
    row = emulate(job)
    assert row.status == "right", f"{row.detail}\n{row.job.text}{row.job.sizes}"


def test_a_kernel_that_ends_its_process_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolate, "run", lambda *_, **__: isolate.Crashed("SIGABRT", "cp.async target"))
    assert emulate(JOBS[0]).status == "wrong"
