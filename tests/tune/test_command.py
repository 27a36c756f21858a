"""`ucc tune` on machines of the test's own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_machine import H200, Machine, fake_machine
from tune_fakes import RECORDING

from ucutlass import frontend
from ucutlass.handoff import planned_of
from ucutlass.runtime import isolation
from ucutlass.runtime.store import EvidenceStore
from ucutlass.runtime.subject import algorithm_digest
from ucutlass.shapes import complete
from ucutlass.tasks.tune import waking_kernel
from ucutlass.tune.evaluator import EngineEvaluator
from ucutlass.tune.job import TuningJob, job_of

LINEAR = """kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {
  return dot[K](x, w)

  schedule sm90a {
    warps cooperative
    tile 128x256x64 or 256x128x64 or 128x128x64
    cluster 2x1
    swap no
    split_k 1
    raster heuristic
    swizzle 1 or 2
  }
}
"""
SIZES = ("-s", "M=4096,N=4096,K=4096")
MACHINE = {"device": "NVIDIA H200", "uuid": "GPU-1", "versions": {"driver": "580"}}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """No GPU, and an nvcc that makes an empty library at once."""
    yield from fake_machine(tmp_path, monkeypatch, None)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "linear.ucu"
    path.write_text(LINEAR)
    return path


class Gpu:
    """Stands for the processes that launch. A schedule's time is its tile's and swizzle's."""

    def __init__(self) -> None:
        self.tiles = {128 * 256: 800e-6, 128 * 128: 720e-6}
        self.calls: list[tuple[str, list[dict[str, Any]]]] = []
        self.crash: tuple[int, ...] | None = None
        self.wrong: tuple[int, ...] | None = None

    def seconds(self, request: dict[str, Any]) -> float:
        m, n, _ = request["tile"]
        return self.tiles[m * n] / request["swizzle"] * (1.01 if m > n else 1.0)

    def run(self, target: str, arguments: dict[str, Any], **_: Any) -> isolation.CallOutcome:
        document = json.loads(json.dumps(arguments))
        if "plans" not in document:
            return isolation.Returned(None, "")  # it is woken
        what = target.removeprefix("ucutlass.tasks.tune:")
        requests = [planned_of(plan).request.fixed() for plan in document["plans"]]
        self.calls.append((what, requests))
        tiles = [tuple(r["tile"]) for r in requests]
        if self.crash in tiles:
            return isolation.Crashed("SIGSEGV", "")
        times = [self.seconds(r) for r in requests]
        if what == "timed":
            return isolation.Returned({"seconds": times, "words": [""] * len(times)}, "")
        wrong = [t == self.wrong for t in tiles]
        rounds = [[] if w else [s] * 24 for s, w in zip(times, wrong, strict=True)]
        words = ["normal: far beyond its bound" if w else "" for w in wrong]
        return isolation.Returned({"machine": MACHINE, "rounds": rounds, "words": words}, "")


@pytest.fixture
def gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: H200)
    monkeypatch.setattr(isolation.WarmProcess, "call", lambda _, *asked, **limits: made.run(*asked, **limits))
    # Of this test alone: another run of the suite on this machine must not hold its GPU lock.
    own = f"GPU-{uuid.uuid4()}"
    monkeypatch.setattr("ucutlass.runtime.bench.gpu_lock.gpu_uuid", lambda: own)
    return made


def test_without_a_gpu_nothing_is_tuned(machine: Machine, program: Path) -> None:
    result = machine.ucc("tune", program, *SIZES)
    assert result.status == 3 and "no NVIDIA GPU" in result.err and machine.builds == 0


def test_the_calls_mistakes_come_before_the_machines(machine: Machine, program: Path) -> None:
    assert machine.ucc("tune", program, "-s", "M=4096").status == 2
    assert machine.ucc("tune", program, program, *SIZES).status == 2
    assert machine.ucc("tune", program, *SIZES, "--budget", "soon").status == 2


def test_the_fastest_wins_is_kept_and_written(machine: Machine, gpu: Gpu, program: Path) -> None:
    result = machine.ucc("tune", program, *SIZES, "--json", "--write", "--budget", "2m")
    assert result.status == 0, result.out + result.err
    row = result.json
    assert row["microseconds"] == pytest.approx(360.0) and "tile 128x128x64" in row["schedule"]
    assert row["shrinkage"] == 0.0 and row["gain"]["median"] < 1 and row["binaries"] == 3
    assert [what for what, _ in gpu.calls].count("confirmed") == 1
    (kept,) = EvidenceStore.open().find(kind="tune")
    assert kept.id == row["record"] and kept.result["schedule"] == row["schedule"]
    assert kept.subject.binary and kept.machine.device == "NVIDIA H200"
    again = frontend.read(program)
    kernel = frontend.kernel(again)
    sizes = complete(kernel, {"M": 4096, "N": 4096, "K": 4096})
    chosen = frontend.plan_kernel(again, kernel, sizes, "sm90a").planned
    assert chosen.request.tile == (128, 128, 64) and chosen.request.swizzle == 2
    assert machine.ucc("fmt", "--check", program).status == 0


def test_processes_get_ready_while_schedules_are_listed(
    machine: Machine, gpu: Gpu, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(*arguments: Any) -> TuningJob:
        order.append("list")
        return job_of(*arguments)

    monkeypatch.setattr(EngineEvaluator, "prepare", lambda _: order.append("prepare"))
    monkeypatch.setattr("ucutlass.cli.tune.job_of", noted)
    assert machine.ucc("tune", program, *SIZES).status == 0
    assert order[:2] == ["prepare", "list"]


def test_words(machine: Machine, gpu: Gpu, program: Path) -> None:
    result = machine.ucc("tune", program, *SIZES)
    values = dict(line.split("\t", 1) for line in result.out.splitlines())
    assert result.status == 0 and values["winner"].startswith("360.00 us")
    assert values["schedule"].startswith("sm90a { warps cooperative  tile 128x128x64")
    assert "after 3 builds" in values["stopped"] and program.read_text() == LINEAR


def test_a_crash_costs_its_own_kernel(machine: Machine, gpu: Gpu, program: Path) -> None:
    gpu.crash = (128, 128, 64)
    row = machine.ucc("tune", program, *SIZES, "--json").json
    lost = [t for t in row["trials"] if "lost" in t]
    assert len(lost) == 1 and "128x128x64" in lost[0]["schedule"] and "SIGSEGV" in lost[0]["lost"]["words"]
    assert "tile 128x256x64" in row["schedule"]


def test_a_wrong_kernel_is_not_written(machine: Machine, gpu: Gpu, program: Path) -> None:
    gpu.wrong = (128, 128, 64)
    row = machine.ucc("tune", program, *SIZES, "--json", "--write").json
    assert "tile 128x256x64" in row["schedule"] and "128x256x64" in program.read_text()
    assert any("beyond its bound" in f.get("lost", {}).get("words", "") for f in row["finals"])


def test_builds_that_fail_everywhere_leave_no_winner(machine: Machine, gpu: Gpu, program: Path) -> None:
    machine.behave("echo 'kernel.cu(1): error: no' >&2; exit 1\n")
    result = machine.ucc("tune", program, *SIZES, "--json", "--write")
    assert result.status == 1 and result.json["ok"] is False and not gpu.calls
    assert {t["lost"]["stage"] for t in result.json["trials"]} == {"build"}
    assert program.read_text() == LINEAR and not EvidenceStore.open().find(kind="tune")


@pytest.mark.slow
def test_replay_needs_no_gpu(machine: Machine) -> None:
    found = machine.ucc("tune", "--replay", RECORDING, "--json").json
    total = found["files"]["h200_bf16.json"]
    assert total["shapes"] == len(found["shapes"]) == 20
    assert total["enough"]["guided"][found["builds"].index(8)] == 20


def test_replay_refuses_another_file(machine: Machine, program: Path) -> None:
    assert machine.ucc("tune", "--replay", program).status == 2


def test_a_process_that_times_wakes_with_a_typed_product() -> None:
    text = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"
    written = frontend.kernel(frontend.read_text(text))
    assert algorithm_digest(waking_kernel()) == algorithm_digest(written)
