"""Recorded schedules in the backend: taken where the option says so, and what was chosen before is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.dynamo.test_backend import Block, compiled
from tests.dynamo.test_serving import timing
from ucutlass import frontend
from ucutlass.adopt.database import latest
from ucutlass.assembly import ProgramAtSizes, planned_sources
from ucutlass.dynamo import builds
from ucutlass.dynamo.builds import Job, launched
from ucutlass.dynamo.options import CompileOptions, options_of
from ucutlass.dynamo.region import Region
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.tune.database import TunedRow, TuningDatabase, TuningKey, key_of
from ucutlass.tune.space import explore

GPU = "NVIDIA H200"
KERNEL = "kernel linear(x: bf16[M=512, K=128], w: bf16[N=256, K]) -> bf16[M, N] { return dot[K](x, w) }"
PIPELINE = (
    KERNEL + "\npipeline both(x: bf16[M=512, K=128], w: bf16[N=256, K], v: bf16[L=128, N]) -> bf16[M, L] {"
)
PIPELINE += "\n  y: bf16[M, N] = linear(x, w)\n  return dot[N](y, v)\n}"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One H200 as far as anybody asks, and a tuning database of the test's own."""
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "data"))
    gpu = SimpleNamespace(name=GPU, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)


def record(created: str = "2026-11-22T00:00:00+00:00") -> PartialSchedule:
    """Records a schedule for the kernel that the compiler would not choose."""
    checked = frontend.read_text(KERNEL)
    program = frontend.kernel(checked)
    request = explore(checked, program, (512, 128, 256), "sm90a", free=True).groups[5].request
    row = TunedRow(request, 12.5, 10.0, {"nvcc": "13.0.88"}, "f" * 64, created)
    TuningDatabase.open().keep(key_of(program, (512, 128, 256), GPU, "sm90a"), row)
    return request


def planned(text: str, name: str, monkeypatch: pytest.MonkeyPatch, **options: bool) -> list[PartialSchedule]:
    """Returns the schedules of what the backend would build for a program, stage by stage."""
    requests: list[PartialSchedule] = []

    def build(programs: Sequence[ProgramAtSizes], arch: str, device: Any) -> Any:
        for job in programs:
            plan, _ = planned_sources(job, arch, device)
            chosen = [s.chosen for s in plan.stages] if hasattr(plan, "stages") else [plan]
            requests.extend(c.planned.request for c in chosen if c is not None)
        return lambda: [RuntimeError("nothing is built")] * len(programs)

    monkeypatch.setattr(builds, "start_programs", build)
    shapes = ((512, 128), (256, 128), (128, 256))[: 2 if name == "linear" else 3]
    job = Job(Region(text, name, (), ()), shapes, torch.device("cuda:0"))
    launched([job], CompileOptions(**options))()
    return requests


@pytest.mark.parametrize(
    ("text", "name"), [pytest.param(KERNEL, "linear", marks=pytest.mark.slow), (PIPELINE, "both")]
)
def test_a_recorded_schedule_is_taken_unless_the_option_says_otherwise(
    text: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = planned(text, name, monkeypatch)
    request = record()
    after = planned(text, name, monkeypatch)
    assert before[0] != request and after == [request, *before[1:]]
    assert planned(text, name, monkeypatch, tuned=False) == before


def test_later_shapes_ask_the_database_too(monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[tuple[bool, str]] = []

    def kernel(text: Any, program: Any, arch: Any, tuned: bool, ready: Any = None, lends: str = "no") -> str:
        values.append((tuned, lends))
        return "loaded"

    monkeypatch.setattr(builds, "LoadedKernel", kernel)
    monkeypatch.setattr(builds, "start_programs", lambda programs, arch, device: tuple)
    job = Job(Region(KERNEL, "linear", (), ()), None, torch.device("cuda:0"))
    for options in ({}, {"tuned": False}, {"cuda_graphs": True}):
        launched([job], options_of(options))()
    assert values == [(True, "all"), (False, "all"), (True, "near")]


def test_a_choice_is_measured_anew_once_something_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.dynamo.backend.CompiledModule._timed", lambda self: GPU)
    model, x = Block(), torch.randn(4, 32)

    def remembered(**options: bool) -> bool:
        fast, report = compiled(model, timing(2.0, 1.0), **options)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
        return report.choices[0].remembered

    assert [remembered(), remembered(), remembered(tuned=False)] == [False, True, False]
    record()
    assert [remembered(), remembered(), remembered(tuned=False)] == [False, True, True]


def test_what_is_recorded_for_other_gpus_is_nothing_new() -> None:
    database = TuningDatabase.open()
    assert latest(database, GPU) == "" and not database.path.exists()
    record()
    state = latest(database, GPU)
    key = TuningKey("NVIDIA H100", "sm90a", "a" * 64, (1,))
    row = TunedRow(PartialSchedule(), 1.0, 1.0, {}, "f" * 64, "2027-01-01T00:00:00+00:00")
    database.keep(key, row)
    assert latest(database, GPU) == state
    database.keep(replace(key, device=GPU), row)
    assert latest(database, GPU) != state
