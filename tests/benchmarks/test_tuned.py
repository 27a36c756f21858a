"""The tables of tuned kernels: which rows there are, what is said of rows that are lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import tuned, tuned_rows, tuned_wall
from benchmarks.harness import Item, Row, lines
from benchmarks.speed import SHAPES
from benchmarks.tuned import table
from benchmarks.tuned_rows import GROUPS, KINDS, MAIN, OTHERS, Task, tasks
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
SOME = [t for t in EVERY if t.shape[0] in ("square 4096", "M 48") and t.dtype != "f16"]
"""One of every kind, and a shape of each half of the plain ones."""

WALLS = tuned_wall.tasks(2)


def test_sixteen_shapes_and_sixteen_more() -> None:
    assert len(MAIN) == len(OTHERS) == 16
    assert len({s[1:] for s in (*MAIN, *OTHERS)}) == 32
    assert not {s[1:] for s in OTHERS} & {s[1:] for s in SHAPES}
    assert len({t.name for t in EVERY}) == len(EVERY)
    assert {t.kind for t in EVERY} == set(KINDS)


@pytest.mark.parametrize("task", EVERY, ids=lambda t: t.name)
def test_every_row_has_kernels_to_choose_from(task: Task) -> None:
    checked = frontend.read_text(task.text)
    program = frontend.kernel(checked)
    space = explore(checked, program, complete(program, task.sizes), tuned_rows.ARCH)
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
        found = a * b * (x.double() @ w.double().mT)
    else:
        found = KINDS[kind].eager(*arguments).double()
    # Two roundings to bf16 of the same number are at most 2^-8 of it apart; sums cancel a little.
    assert tuned_rows._distance(expected, found) < 2**-7


class CostModel:
    """A workshop in which every kernel takes what the cost model says."""

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


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of searches on an engine: the cost model's times. The last task has no compiler."""

    def tune_many(jobs: Sequence[TuningJob], engine: Any, settings: TuningSettings, *, on_done: Any) -> None:
        for number, job in enumerate(jobs):
            if number == len(jobs) - 1:
                on_done(number, MachineError("no compiler", "install one"))
                continue
            shop: Any = CostModel()
            result = search(job.space, shop, settings.policy, settings.limits, seed=settings.seed, jobs=1)
            on_done(number, FinishedSearch(result, shop))

    def compared(target: str, items: Sequence[Item], journal: Path, **_: object) -> list[Row]:
        lost = {"ok": False, "error": "Crashed", "detail": "SIGSEGV"}
        return [{"name": items[0]["name"], **lost}, *(_equal(item) for item in items[1:])]

    def _equal(item: Item) -> Row:
        kind = KINDS[item["kind"]]
        rivals = [kind.rival, *(["compile"] if kind.compiled and item["compiled"] else [])]
        errors = {"error ours": 1e-6, "error eager": 1e-6} if item["dtype"] == "f32" else {}
        times = {"ours": 1.0, **dict.fromkeys(rivals, 1.0), "best": rivals[0], "ratio": 1.0, "spread": 0.0}
        ratios = {name: [1.0, 1.0, 1.0] for name in rivals}
        return {"name": item["name"], "ok": True, **times, "ratios": ratios, **errors}

    monkeypatch.setattr(tuned, "tune_many", tune_many)
    monkeypatch.setattr(tuned.harness, "run", compared)


def test_a_whole_run_and_its_tables(engines: None, tmp_path: Path) -> None:
    every = [*SOME, replace(SOME[0], shape=("lost", *SOME[0].shape[1:]))]
    every = [replace(SOME[0], shape=("gone", *SOME[0].shape[1:])), *every]
    searches = tuned.tune_all(every, None, "NVIDIA H200", 8, tmp_path / "t.jsonl")  # type: ignore[arg-type]
    assert list(searches) == [task.name for task in every]
    assert [row["name"] for row in lines(tmp_path / "t.jsonl")] == list(searches)
    rows, lost = tuned.compare_all(every, searches, True, tmp_path / "c.jsonl")
    assert [row["name"] for row in rows] == [task.name for task in SOME]
    assert [row["name"] for row in lost] == [every[-1].name, every[0].name]
    pair = {"ours": 1.0, "search": 1.0, "built": 2, "compile": 1.0, "call": 1.0, "ratio": 1.0}
    text = table({"rows": rows, "lost": lost, "wall": [{"name": "wall w", **pair}]})
    assert all(f"{task.kind} {task.dtype}, best rival / tuned: geomean 1.000" in text for task in SOME)
    assert "the 16 main shapes: geomean 1.000, least 1.000, 1 rows" in text
    assert "48 x 5120 x 5120" in text and "torch.compile / `ucc tune`: geomean 1.000" in text
    assert f"lost: {every[-1].name}: MachineError: no compiler" in text
    row = searches[SOME[0].name]
    best = min(row["timed"], key=lambda t: t["us"])
    assert best["us"] == pytest.approx(row["finals"][0]["us"])
    assert row["request"] in [t["request"] for t in row["timed"]]
    assert row["builds"] <= 8 < len(row["timed"])


def test_a_clocked_program_that_is_not_tuned_is_told(tmp_path: Path) -> None:
    row = tuned_wall._ours(replace(WALLS[0], shape=("nothing", 1, 0, 8, 8)), 1, tmp_path)()
    assert not row["ok"] and "ucc tune ended with" in row["detail"]


def test_errors_are_told_beside_those_of_eager() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(32, 64), torch.randn(16, 64)
    values = tuned_rows._errors([x, w], x @ w.mT + 1e-3, KINDS["tf32x3"].eager)
    size = float((x.double() @ w.double().mT).square().mean().sqrt())
    assert values["error ours"] == pytest.approx(1e-3 / size, rel=0.02)
    assert values["rms error eager"] < 1e-6 < values["rms error ours"]
