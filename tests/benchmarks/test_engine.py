"""`benchmarks.engine` without compilers and GPUs: real workers, of which one is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import engine
from tests.tune import engine_stub
from ucutlass.engine.work import TaskTable

pytest.importorskip("distributed")


GPUS = [f"GPU-00000000-0000-0000-0000-{i:012x}" for i in range(2)]


def tune(monkeypatch: pytest.MonkeyPatch, table: TaskTable, out: Path, *more: str) -> int:
    monkeypatch.setattr(engine, "TABLE", table)
    monkeypatch.setattr(engine.gpu_lock, "gpu_uuids", lambda: GPUS)
    return engine.main([*more, "--out", str(out)])


@pytest.mark.slow
def test_all_come_though_a_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "engine.json"
    options = ("--kernels", "6", "--builds", "2", "--kill", "6")
    assert tune(monkeypatch, engine_stub.TABLE, out, *options) == 0
    report = json.loads(out.read_text())
    one, two, killed = report["runs"]
    assert [len(r["per_worker"]) for r in (one, two)] == [1, 2] and killed["killed"] == 2
    for run in report["runs"]:
        assert len(run["kernels"]) == 6 == sum(run["per_worker"].values())
        assert run["kernels"] == one["kernels"], "the same answers wherever they were found"
    assert one["builds"] == one["entries"] == two["builds"] == two["entries"] > 0, "moved, not rebuilt"
    assert report["ratio"] == pytest.approx(two["throughput"] / one["throughput"])
    assert "a worker killed after 2" in capsys.readouterr().out


def test_a_kernel_without_a_winner_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {**engine_stub.TABLE, "confirmed": engine_stub.TABLE["prepare"]}
    out = tmp_path / "engine.json"
    assert tune(monkeypatch, table, out, "--kernels", "2", "--builds", "1", "--gpus", "1") == 1
    assert all("no winner" in k for r in json.loads(out.read_text())["runs"] for k in r["kernels"].values())
