"""The tables of matrix products: which rows there are, what is said of rows that are lost."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import speed
from benchmarks.gemm_cases import GROUPS, HELD_OUT, KINDS, SHAPES, UNRECORDED, Task, tasks
from benchmarks.harness import ARCH, Item, Row, lines
from ucutlass import frontend
from ucutlass.kernels.gemm.planner import Planned
from ucutlass.reference import evaluate
from ucutlass.runtime.errors import MachineError
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete
from ucutlass.tune.job import TuningJob, TuningSettings
from ucutlass.tune.parallel import FinishedSearch
from ucutlass.tune.space import BinaryGroup, explore
from ucutlass.tune.tune import ConfirmedKernel, FailedTrial, TimedGroup, search

EVERY = tasks(GROUPS, ["bf16", "f16"])
TUNED = tasks(GROUPS, ["bf16", "f16"], tuned=True)
SOME = [t for t in TUNED if t.shape[0] in ("square 4096", "M 48") and t.dtype != "f16"]
"""One of every kind, and a shape of each half of the plain ones."""


def test_every_shape_has_its_tasks() -> None:
    plain = [t for t in EVERY if t.kind == "gemm"]
    assert len(plain) == 2 * len(SHAPES + HELD_OUT) == 56
    assert len([t for t in TUNED if t.kind == "gemm"]) == 2 * 32
    assert not {s[1:] for s in HELD_OUT + UNRECORDED} & {s[1:] for s in SHAPES}
    for chosen in (EVERY, TUNED):
        assert len({t.name for t in chosen}) == len(chosen)
        assert {t.kind for t in chosen} == set(KINDS)
    assert {t.dtype for t in EVERY if t.kind in ("bias+gelu", "residual+relu")} == {"bf16"}


@pytest.mark.parametrize("task", TUNED, ids=lambda t: t.name)
def test_every_row_has_kernels_to_choose_from(task: Task) -> None:
    checked = frontend.read_text(task.text)
    program = frontend.kernel(checked)
    space = explore(checked, program, complete(program, task.sizes), ARCH)
    assert len(space.groups) > 1
    if task.kind == "tf32x3":
        assert {m.request.math for g in space.groups for m in g.members} == {"tf32x3"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_rival_computes_what_the_program_says(kind: str) -> None:
    element = {"tf32x3": "f32", "fp8": "e4m3", "fp8 fast": "e4m3"}.get(kind, "bf16")
    small = Task(kind, ("small", 1, 48, 32, 64), element)
    program = frontend.kernel(frontend.read_text(small.text))
    arguments = generate(program, small.sizes, "normal", seed=1)
    (expected,) = evaluate(program, arguments)
    if "fp8" in kind:  # torch's scaled product, in words: it may not be there for this CPU
        x, w, a, b = arguments
        result = a * b * (x.double() @ w.double().mT)
    else:
        result = KINDS[kind].eager(*arguments).double()
    # Two roundings to bf16 of the same number are at most 2^-8 of it apart; sums cancel a little.
    assert speed.distance(expected, result) < 2**-7


class CostModel:
    """An evaluator for which every kernel takes what the cost model says."""

    def build(self, groups: Sequence[BinaryGroup]) -> Sequence[FailedTrial | None]:
        return [None] * len(groups)

    def time(self, groups: Sequence[BinaryGroup]) -> Sequence[TimedGroup | FailedTrial]:
        return [TimedGroup(tuple(m.estimate.seconds for m in g.members)) for g in groups]

    def confirm(self, finalists: Sequence[Planned]) -> Sequence[ConfirmedKernel | FailedTrial]:
        return [ConfirmedKernel((kernel.estimate.seconds,) * 24) for kernel in finalists]

    def cancel(self) -> None:
        pass

    def now(self) -> float:
        return 0.0


class NoEngine:
    def __init__(self, **_: object) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of builds: the second is refused. In place of searches on an engine: the cost model's times, and for
    the last task no compiler. In place of rows: equal times, and the first is lost."""

    def prebuild(plans: Mapping[str, object]) -> dict[str, str]:
        return {list(plans)[1]: "error: no"}

    def tune_many(jobs: Sequence[TuningJob], engine: Any, settings: TuningSettings, *, on_done: Any) -> None:
        for number, job in enumerate(jobs):
            if number == len(jobs) - 1:
                on_done(number, MachineError("no compiler", "install one"))
                continue
            evaluator: Any = CostModel()
            result = search(
                job.space, evaluator, settings.policy, settings.limits, seed=settings.seed, jobs=1
            )
            on_done(number, FinishedSearch(result, evaluator))

    def timed(target: str, items: Sequence[Item], journal: Path, **_: object) -> list[Row]:
        module, _, function = target.partition(":")
        assert module == speed.__name__ and callable(getattr(speed, function))
        assert all(item["seed"] == 3 for item in items)
        lost = {"ok": False, "error": "Crashed", "detail": "SIGSEGV"}
        return [{"name": items[0]["name"], **lost}, *(_equal(item) for item in items[1:])]

    def _equal(item: Item) -> Row:
        kind = KINDS[item["kind"]]
        rivals = [kind.rival, *(["compile"] if kind.compiled and item["compile"] else [])]
        errors = {"error ours": 1e-6, "error eager": 1e-6} if item["dtype"] == "f32" else {}
        about = {key: item[key] for key in ("name", "kind", "dtype", "schedule")}
        times = {"ours": 1.0, **dict.fromkeys(rivals, 1.5), "best": rivals[0], "ratio": 1.5, "spread": 0.0}
        ratios = {name: [1.5, 1.5, 1.5] for name in rivals}
        shape = {"shape": item["shape"][0], "sizes": item["shape"][1:]}
        return about | shape | times | errors | {"ok": True, "ratios": ratios}

    monkeypatch.setattr(speed.harness, "prebuild", prebuild)
    monkeypatch.setattr(speed.harness, "run", timed)
    monkeypatch.setattr(speed.harness, "machine", dict)
    monkeypatch.setattr(speed, "tune_many", tune_many)
    monkeypatch.setattr(speed, "LocalEngine", NoEngine)


def options(folder: Path, **more: object) -> argparse.Namespace:
    values = {"out": folder / "o.json", "tune": 0, "seed": 3, "no_compile": False, "quick": False} | more
    return argparse.Namespace(**values)


@pytest.mark.parametrize("no_compile", [True, False])
def test_a_kernel_not_built_and_a_row_lost_are_named(no_compile: bool, gpu: None, tmp_path: Path) -> None:
    chosen = [t for t in EVERY if t.shape[0] in ("M 1", "512 rows", "M 8") and t.dtype == "bf16"]
    report = speed.run(chosen, options(tmp_path, no_compile=no_compile))
    lost, unbuilt = chosen[0].name, chosen[1].name
    assert {row["name"] for row in report["lost"]} == {lost, unbuilt}
    assert len(report["gemm"]) + len(report["fused"]) == len(chosen) - 2
    text = speed.table(report)
    assert f"lost: {lost}: Crashed" in text and f"lost: {unbuilt}: NotBuilt: error: no" in text
    assert "bias+gelu bf16, eager / ours: geomean 1.500" in text
    assert ("bias+gelu bf16, compile / ours: geomean" in text) is not no_compile
    assert "gemm bf16 held out, best rival / ours: geomean 1.500, least 1.500, 1 rows" in text


def test_a_tuned_run_and_its_table(gpu: None, tmp_path: Path) -> None:
    every = [*SOME, replace(SOME[0], shape=("gone", *SOME[0].shape[1:]))]
    every = [replace(SOME[0], shape=("lost", *SOME[0].shape[1:])), *every]
    report = speed.run(every, options(tmp_path, tune=8))
    searches = lines(tmp_path / "o.jsonl")
    assert [row["name"] for row in searches] == [task.name for task in every]
    rows = [*report["gemm"], *report["fused"]]
    assert {row["name"] for row in rows} == {task.name for task in SOME}
    assert {row["name"] for row in report["lost"]} == {every[0].name, every[-1].name}
    assert all(0 < row["builds"] <= 8 and row["schedule"] for row in rows)
    text = speed.table(report)
    assert f"lost: {every[-1].name}: MachineError: no compiler" in text
    assert "48 x 5120 x 5120" in text and "8 builds" in text and "tf32x3 f32, eager / ours" in text


def test_errors_are_told_beside_those_of_eager() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(32, 64), torch.randn(16, 64)
    values = speed.errors([x, w], x @ w.mT + 1e-3, KINDS["tf32x3"].eager)
    size = float((x.double() @ w.double().mT).square().mean().sqrt())
    assert values["error ours"] == pytest.approx(1e-3 / size, rel=0.02)
    assert values["rms error eager"] < 1e-6 < values["rms error ours"]
