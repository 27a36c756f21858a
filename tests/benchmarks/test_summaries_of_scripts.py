"""Scripts that have runs of their own: what they draw has kernels, and what they measure is held against bars. In place
of devices and compilers stand tables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import (
    algebra,
    bars,
    campaign,
    drawn_modules,
    drawn_on_gpu,
    family_builds,
    harness,
    recompiles,
    record,
    searches,
    tuning_wall,
)
from benchmarks.drawn_on_gpu import Judged

MACHINE = {"gpu": "a table", "commit": "one", "tree": "abc"}


@pytest.fixture
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs a script's main with words, and returns its status and its summary."""
    monkeypatch.setattr(harness, "machine", lambda: dict(MACHINE))

    def run(main: Callable[[], object], *words: str) -> tuple[int, dict[str, Any]]:
        out = tmp_path / "rows.json"
        monkeypatch.setattr(sys, "argv", ["script", *words, "--out", str(out)])
        try:
            status = main()
        except SystemExit as ended:
            status = ended.code
        assert isinstance(status, int)
        return status, json.loads(bars.summary_path(out).read_text(encoding="utf-8"))

    return run


def _values(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {figure["class"]: figure["most"][0] for figure in summary["classes"]}


@pytest.mark.parametrize("family", searches.FAMILIES)
def test_every_problem_that_a_search_draws_has_a_kernel(family: str) -> None:
    problems = searches.FAMILIES[family](3, 5)
    assert len(problems) == 3
    for name, text, sizes in problems:
        assert isinstance(campaign.emitted((text, sizes)), campaign.Emitted), name


def test_a_search_s_rows_are_gone_on_behind_and_time_ends_them(
    summary: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def row(shared: searches.Shared, case: tuple[str, str, Mapping[str, int]]) -> dict[str, Any]:
        asked.append(case[0])
        return {"name": case[0], "ok": True, "rules": 1.2, "random": 1.0, "rules over random": 1.2}

    class Engine:
        cpus = 1

        def close(self) -> None: ...

    monkeypatch.setattr(searches, "row", row)
    monkeypatch.setattr(searches, "LocalEngine", Engine)
    monkeypatch.setattr(searches.gpu, "at_hand", lambda: SimpleNamespace(device=None))
    words = ("--families", "gemm,reduction", "--drawn", "2", "--seed", "3")
    status, found = summary(searches.main, *words, "--seconds", "0")
    assert status == 3 and len(found["not reached"]) == 4 and not asked
    for _ in range(2):
        status, found = summary(searches.main, *words)
        assert status == 0 and _values(found)["all rules"] == 1.2 and len(asked) == 4


def test_recordings_are_of_every_schedule_that_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(target: str, items: list[dict[str, Any]], rows: Path, **_: object) -> list[dict[str, Any]]:
        (item,) = items
        assert (
            target == "benchmarks.record:shape_row" and len(item["texts"]) > 20 and len(item["unbuilt"]) == 1
        )
        timed = [{"shape": item["name"], "schedule": schedule, "us": 1.0} for schedule in item["texts"]]
        return [{"name": item["name"], "ok": True, "rows": timed, "failures": item["unbuilt"]}]

    monkeypatch.setattr(campaign, "run", run)
    monkeypatch.setattr(campaign, "build", lambda kernels, *_: ["no", *[""] * (len(kernels) - 1)])
    monkeypatch.setattr(harness, "machine", lambda: dict(MACHINE))
    monkeypatch.setattr(record, "machine", lambda: dict(MACHINE))
    out = tmp_path / "recorded.json"
    monkeypatch.setattr(sys, "argv", ["record", "--out", str(out), "--only", "square 4096"])
    record.main()
    report = json.loads(out.read_text(encoding="utf-8"))
    assert len(report["failures"]) == 1 and len(report["rows"]) > 20


def test_recompiles_are_counted_and_the_host_s_time_is_beside_inductor_s(
    summary: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(name: str, backend: str, dtype: str, count: int, seed: int) -> dict[str, Any]:
        assert (dtype, count, seed) == ("bf16", 50, 7)
        if name == "b" and backend == "inductor":
            raise ValueError("it does not compile")
        return {
            "model": name,
            "backend": backend,
            "graphs": [1, 1 if name == "a" else 3],
            "making_later": {},
            "host_us": 40.0 if backend == "ucutlass" else 50.0,
            "wrong": [],
        }

    monkeypatch.setattr(recompiles, "measured", measured)
    status, found = summary(recompiles.main, "--models", "a,b", "--seed", "7")
    assert status == 1 and found["wrong"] == ["b inductor"]
    assert _values(found) == {recompiles.GRAPHS: 2.0, recompiles.MAKING: 0.0, recompiles.HOST: 1.25}
    missed = {figure["class"] for figure in found["classes"] if figure["missed"]}
    assert missed == {recompiles.GRAPHS}


def test_tuning_is_held_against_max_autotune_s_wall(
    summary: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def clocked(command: tuple[str, ...], environ: object) -> tuple[float, bytes]:
        asked.append(command[0])
        if len(asked) > 4:
            raise subprocess.TimeoutExpired(command, 1.0)
        ours = command[0] == "ucutlass.cli"
        return (20.0 if ours else 30.0), b'{"seconds": 5.0, "trials": []}'

    monkeypatch.setattr(tuning_wall, "clocked", clocked)
    status, found = summary(tuning_wall.main, "--drawn", "3", "--seed", "2")
    assert status == 1 and len(found["wrong"]) == 1
    assert asked[:2] == ["ucutlass.cli", "benchmarks.tuning_wall"] and asked[2] == "benchmarks.tuning_wall"
    (figure,) = found["classes"]
    assert figure["rows"] == 2 and figure["geomean"] == pytest.approx(1.5) and not figure["missed"]


def test_the_slowest_build_of_a_family_is_held_against_its_seconds(
    summary: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(item: Mapping[str, Any]) -> dict[str, Any]:
        wall = 4.5 if item["kernel"] == "scan" else 2.0
        about = {"kernel": item["kernel"], "path": item["path"], "builder": ""}
        return {**about, "phases": {}, "wall": wall, "cpu": wall}

    monkeypatch.setattr(family_builds, "row", row)
    status, found = summary(family_builds.main, "--only", "scan,pointwise")
    assert status == 1 and found["classes"][0]["most"] == [4.5, "scan"]
    status, found = summary(family_builds.main, "--only", "pointwise")
    assert status == 0 and found["classes"][0]["rows"] == 1


@pytest.mark.parametrize(("verdict", "expected"), [("right", 3), ("wrong", 1)])
def test_a_module_that_is_wrong_on_a_gpu_fails_a_run_and_one_that_is_absent_is_told(
    verdict: str,
    expected: int,
    summary: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drawn_on_gpu, "run", lambda *_: [Judged(0, "right"), Judged(2, verdict)])
    monkeypatch.setattr(drawn_on_gpu.torch.cuda, "get_device_name", lambda: "a table")
    status, found = summary(drawn_on_gpu.main, "--count", "3", "--jobs", "1")
    assert status == expected and len(found["not reached"]) == 1
    assert found["wrong"] == (["2"] if verdict == "wrong" else [])


def test_workers_of_drawn_modules_take_the_gpus_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, str]] = []

    class Child:
        def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
            started.append((command[-1], env["CUDA_VISIBLE_DEVICES"]))

        def poll(self) -> None: ...
        def kill(self) -> None: ...
        def wait(self) -> None: ...

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(drawn_on_gpu.subprocess, "Popen", Child)
    monkeypatch.setattr(harness, "gpus", lambda options: 2)
    monkeypatch.setattr(sys, "argv", ["drawn_on_gpu", "--jobs", "4", "--seconds", "0"])
    monkeypatch.setattr(drawn_on_gpu.torch.cuda, "get_device_name", lambda: "a table")
    assert drawn_on_gpu.main() == 3
    assert [device for _, device in started] == ["0", "1", "0", "1"]


def test_drawn_modules_have_a_summary(summary: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    status, found = summary(drawn_modules.main, "--count", "1", "--seed", "3")
    assert status == 0 and _values(found) == {"wrong or failed": 0.0}


def test_what_algebra_brings_has_a_summary(
    tmp_path: Path, summary: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The problems of a checkout, whose programs are in a folder of its own."""
    asked: list[Path] = []

    def problems(root: Path, levels: list[int], only: list[int]) -> Iterator[tuple[int, int, Path]]:
        asked.append(root)
        yield 2, 80, Path("80_Gemm.py")

    def problem_row(process: object, level: int, number: int, path: Path, device: str) -> dict[str, Any]:
        return {
            "level": level,
            "file": path.name,
            "before": 2e-5,
            "after": 1e-5,
            "constants": [],
            "rules": ["r"],
        }

    monkeypatch.setattr(algebra, "problems", problems)
    monkeypatch.setattr(algebra, "problem_row", problem_row)
    status, found = summary(algebra.main, str(tmp_path), "--levels", "2")
    assert status == 0 and _values(found) == {algebra.GAIN: 2.0}
    assert asked == [tmp_path / "KernelBench"]
