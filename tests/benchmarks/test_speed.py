"""What the speed table says where kernels are not built, rows are lost, or time runs out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from benchmarks import speed
from benchmarks.budget import NEVER, Deadline, append
from benchmarks.speed import FUSED, HELD_OUT, SHAPES, run, table, tasks
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildCancelled, BuildError
from ucutlass.runtime.ptxas import Report

ARTIFACT = Artifact("key", Path("nowhere"), "nvcc", "ucc_0", "sm_90a", "nvcc", {}, 1.0, Report())
REFUSED = BuildError("ucc_0", ("error: no",), Path("s"), Path("l"), "nvcc")
WANTED = [task for task in tasks(["bf16"], True) if task.shape[0] in ("M 1", "512 rows", "M 8")]


def test_every_shape_has_its_tasks() -> None:
    made = tasks(["bf16", "f16"], fused=True)
    assert len(made) == 2 * len(SHAPES + HELD_OUT) + 2 * len(FUSED) == len({t.name for t in made})
    assert [t.kind for t in tasks(["f16"], fused=False)] == ["gemm"] * len(SHAPES + HELD_OUT)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compilers and processes that do as they are told: what comes of builds, which row is lost."""

    def use(results: Sequence[object], lost: str = "") -> list[str]:
        timed = list[str]()

        def build_sources(sources: Sequence[object], *, cancel: Event) -> Sequence[object]:
            return [BuildCancelled("ucc_0") for _ in sources] if cancel.is_set() else results[: len(sources)]

        def relayed(target: str, items: list[dict[str, Any]], rows: Path, **_: object) -> None:
            for item in items:
                timed.append(item["name"])
                about = {key: item[key] for key in ("name", "kind", "dtype")} | {"shape": item["shape"][0]}
                told = {"ok": False, "error": "Crashed", "detail": "SIGSEGV"}
                times = {"ok": True, "ours": 2.0, "mm": 3.0, "ratio": 1.5, "spread": 0.01}
                fused = {"over eager": 2.0, "over compile": 1.0, "schedule": item["schedule"]}
                append(rows, about | (told if item["name"] == lost else times | fused))

        monkeypatch.setattr(speed, "build_sources", build_sources)
        monkeypatch.setattr(speed, "machine", dict)
        monkeypatch.setattr(speed.relay, "run", relayed)
        return timed

    return use


def test_a_kernel_not_built_and_a_row_lost_are_told(use: Any, tmp_path: Path) -> None:
    use([ARTIFACT, REFUSED, *[ARTIFACT] * 8], lost=WANTED[0].name)
    report = run(WANTED, tmp_path / "rows.jsonl", NEVER)
    assert list(report["unbuilt"]) == [WANTED[1].name]
    assert [row["name"] for row in report["lost"]] == [WANTED[0].name]
    assert len(report["gemm"]) + len(report["fused"]) == len(WANTED) - 2 and report["left"] == []
    text = table(report, ["bf16"])
    assert "lost: gemm bf16" in text and "not built: gemm bf16" in text
    assert "geomean over eager: 2.000" in text
    assert "geomean of mm / ours 1.500, worst 1.500, 1 of 28 shapes" in text


def test_the_same_call_goes_on(use: Any, tmp_path: Path) -> None:
    use([ARTIFACT] * 8)
    assert run(WANTED, tmp_path / "rows.jsonl", Deadline(0.0))["left"] == [task.name for task in WANTED]
    use([ARTIFACT] * 8)
    run(WANTED[:2], tmp_path / "rows.jsonl", NEVER)
    timed = use([ARTIFACT] * 8)
    assert run(WANTED, tmp_path / "rows.jsonl", NEVER)["left"] == []
    assert timed == [task.name for task in WANTED[2:]]
