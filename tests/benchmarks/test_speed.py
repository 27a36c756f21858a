"""What the speed table says where kernels are not built or rows are lost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import speed
from benchmarks.harness import Item, Row
from benchmarks.speed import FUSED, HELD_OUT, SHAPES, run, table, tasks

CHOSEN = [task for task in tasks(["bf16"], True) if task.shape[0] in ("M 1", "512 rows", "M 8")]


def test_every_shape_has_its_tasks() -> None:
    every = tasks(["bf16", "f16"], fused=True)
    assert len(every) == 2 * len(SHAPES + HELD_OUT) + 2 * len(FUSED) == len({t.name for t in every})
    assert [t.kind for t in tasks(["f16"], fused=False)] == ["gemm"] * len(SHAPES + HELD_OUT)


@pytest.mark.parametrize("with_compile", [True, False])
def test_a_kernel_not_built_and_a_row_lost_are_named(
    with_compile: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lost, unbuilt = CHOSEN[0].name, CHOSEN[1].name

    def prebuild(plans: Mapping[str, object]) -> dict[str, str]:
        assert list(plans) == [task.name for task in CHOSEN]
        return {unbuilt: "error: no"}

    def timed(target: str, items: list[Item], rows: Path, **_: object) -> list[Row]:
        assert all("warps" in item["schedule"] and item["seed"] == 3 for item in items)
        return [_timed(item) for item in items]

    def _timed(item: Item) -> Row:
        about = {key: item[key] for key in ("name", "kind", "dtype", "schedule")} | {
            "shape": item["shape"][0]
        }
        if item["name"] == lost:
            return about | {"ok": False, "error": "Crashed", "detail": "SIGSEGV"}
        ratios: dict[str, Any] = {"over eager": 2.0} | ({"over compile": 1.0} if item["compile"] else {})
        return about | {"ok": True, "ours": 2.0, "mm": 3.0, "ratio": 1.5, "spread": 0.01} | ratios

    monkeypatch.setattr(speed.harness, "prebuild", prebuild)
    monkeypatch.setattr(speed.harness, "run", timed)
    monkeypatch.setattr(speed, "machine", dict)
    report = run(CHOSEN, tmp_path / "rows.jsonl", {"seed": 3, "compile": with_compile})
    assert list(report["unbuilt"]) == [unbuilt]
    assert [row["name"] for row in report["lost"]] == [lost]
    assert len(report["gemm"]) + len(report["fused"]) == len(CHOSEN) - 2
    text = table(report, ["bf16"])
    assert f"lost: {lost}" in text and f"not built: {unbuilt}" in text
    assert "over eager: geomean 2.000" in text and ("over compile: geomean" in text) is with_compile
    assert "bf16 all, mm / ours: geomean 1.500, least 1.500, 1 rows" in text
