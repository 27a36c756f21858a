"""The interface to a device on a GPU: what it reports is there and of the right kind; no speed is tested."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.trust_tasks import TRICKS, findings_of, tried
from ucutlass.runtime.bench.frequency import STAMP, sm_clock
from ucutlass.runtime.bench.protocol import Protocol

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

SIZES = {"M": 1024, "N": 1024, "K": 1024}
SHORT = Protocol(warmup=0.2, min_seconds=0.0, max_seconds=10.0)


@pytest.fixture
def gpu() -> Any:
    from ucutlass.runtime.bench.cuda import Cuda

    return Cuda()


def test_the_profiler_sees_stamps_and_kernels_on_one_stream(gpu: Any) -> None:
    assert gpu.no_profiler() == ""
    x = torch.randn(512, 512, device="cuda")

    def work(stamp: Any) -> None:
        stamp()
        torch.mm(x, x)
        stamp()

    events = gpu.session(work, 2, True).events
    names = [e.name for e in events]
    assert names[0] == names[-1] == STAMP and len(names) >= 3
    assert len({e.stream for e in events}) == 1
    assert all(e.end > e.start for e in events)


def test_a_graph_runs_what_was_captured_and_the_profiler_sees_each_launch(gpu: Any) -> None:
    x = [torch.randn(512, 512, device="cuda") for _ in range(4)]
    y = [torch.zeros(512, 512, device="cuda") for _ in range(4)]

    def launch(i: int) -> Any:
        torch.add(x[i], 1.0, out=y[i])
        return (y[i],)

    launch(0)
    replay = gpu.capture(launch, [0, 1, 2, 3] * 5)
    gpu.poison(replay.outputs(2))
    assert y[2].isnan().all()

    def work(stamp: Any) -> None:
        stamp()
        replay.play()
        stamp()

    events = gpu.session(work, 2, True).events
    assert len([e for e in events if e.name != STAMP]) == 20
    assert torch.equal(y[2], x[2] + 1.0)


def test_every_sm_reports_its_clock(gpu: Any) -> None:
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def work(stamp: Any) -> None:
        stamp()
        for _ in range(20):
            torch.mm(x, x)
        stamp()

    before, after = gpu.session(work, 2, False).stamps
    count = torch.cuda.get_device_properties(0).multi_processor_count
    assert len(before) == len(after) == count
    clock = sm_clock(before, after)
    assert clock is not None and 2e8 < clock < 4e9


def test_nvml_knows_this_gpu_or_says_why_not(gpu: Any) -> None:
    sample = gpu.sample()
    assert sample is not None or gpu.no_nvml()
    assert sample is None or 1e8 < sample.clock < 4e9


def test_the_carve_out_can_be_taken_away(gpu: Any) -> None:
    assert gpu.reset_persisting()
    assert gpu.persisting() == 0


@pytest.mark.parametrize("name", TRICKS)
def test_tricks_are_caught(gpu: Any, name: str) -> None:
    report = tried(name, SIZES, gpu, SHORT)
    found, expected = set(findings_of(report)), TRICKS[name].findings
    assert bool(found & expected) if expected else not found, report["outcomes"][0]
    gpu.reset_persisting()
