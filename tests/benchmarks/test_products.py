"""Products that a seed draws, their candidates, and what of them a number of builds serves."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import bars, campaign, harness, products
from benchmarks.fit_heuristic import read
from benchmarks.product_cases import GROUPED, KINDS, NARROW, SPANS, Problem, drawn, rival_of
from benchmarks.products import candidates, classes, held, line, within
from ucutlass import frontend
from ucutlass.ir.hardware import DEVICES
from ucutlass.kernels.planned import Planned
from ucutlass.reference import evaluate
from ucutlass.runtime.errors import MachineError
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete
from ucutlass.tune.job import TuningJob, TuningSettings
from ucutlass.tune.parallel import FinishedSearch
from ucutlass.tune.space import BinaryGroup
from ucutlass.tune.tune import ConfirmedKernel, FailedTrial, TimedGroup, search

H100 = DEVICES["H100-SXM"]


@pytest.mark.parametrize("kind", [*KINDS, *GROUPED])
def test_a_seed_draws_products_that_the_planner_takes(kind: str) -> None:
    problems = drawn(4, 7, [kind])
    assert problems == drawn(4, 7, [kind]) != drawn(4, 8, [kind])
    assert len({problem.name for problem in problems}) == 4
    for problem in problems:
        ranked = candidates(problem, H100, 3)
        checked = frontend.read_text(problem.text)
        program = frontend.kernel(checked)
        chosen = frontend.plan_kernel(checked, program, complete(program, problem.sizes), "sm90a", H100)
        assert ranked[0].request == chosen.planned.request
        assert len({planned.request for planned in ranked}) == len(ranked) > 1


def test_spans_are_drawn_in_turn() -> None:
    deep = drawn(8, 3, ["bf16"], ["deep"])
    assert all(200 <= p.m <= 808 and 1500 <= p.n <= 2560 and 7000 <= p.k <= 10240 for p in deep)
    assert {p.order for p in deep} == {"KK", "KN", "MK", "MN"}
    assert set(SPANS) == {"few", "deep", "large", "small"}


def test_builds_go_to_first_choices_and_then_in_turns() -> None:
    def planned(plan: str) -> Any:
        return SimpleNamespace(plan=plan)

    ranked: dict[str, list[Any]] = {
        "x": [planned("a"), planned("b"), planned("c")],
        "y": [planned("d"), planned("a"), planned("e")],
    }
    assert {name: [str(p.plan) for p in every] for name, every in within(ranked, 1).items()} == {
        "x": ["a"],
        "y": ["d", "a"],
    }
    served = within(ranked, 4)
    assert [str(p.plan) for p in served["x"]] == ["a", "b", "c"] and [str(p.plan) for p in served["y"]] == [
        "d",
        "a",
    ]


def report() -> dict[str, Any]:
    problem = Problem("bf16", "KK", 1, 512, 2048, 8192)
    timed = [
        {"request": p.request.fixed(), "schedule": f"schedule {i}", "estimate": 1.0, "us": us}
        for i, (p, us) in enumerate(zip(candidates(problem, H100, 2), (30.0, 24.0), strict=True))
    ]
    row = {
        "name": problem.name,
        "ok": True,
        "problem": ["bf16", "KK", 1, 512, 2048, 8192],
        "candidates": timed,
        "rivals": {"torch": 27.0, "max-autotune": 33.0},
        "refused": {},
        "spread": 0.01,
    }
    return {"machine": {"gpu": "NVIDIA H100 80GB HBM3"}, "rows": [row]}


def test_a_row_names_what_was_faster_and_is_held_against_its_bars() -> None:
    rows = report()["rows"]
    assert "best 24.0: schedule 1" in line(rows[0])
    known = classes(rows)
    name = rows[0]["name"]
    assert known["bf16 over torch"] == {name: 0.9} and known["bf16 over the best rival"] == {name: 0.9}
    assert known["bf16 first choice over the fastest"] == {name: 0.8}
    bars_ = held(argparse.Namespace())
    missed = {
        f.label for f in bars.figures(known, {k: b for k, b in bars_.items() if k in known}) if f.missed
    }
    assert missed == {"bf16 over torch", "bf16 first choice over the fastest"}
    rows[0]["candidates"].append({"us": 25.0, "tuned": True, "schedule": ""})
    assert classes(rows)["bf16 tuned over the best rival"] == {name: 27 / 25}


def test_the_fit_reads_candidates(tmp_path: Any) -> None:
    path = tmp_path / "drawn.json"
    harness.write(path, report())
    rows, device = read(path)
    assert device == H100 and [row.seconds for row in rows] == pytest.approx([30e-6, 24e-6])
    assert {row.candidate.shape.k for row in rows} == {8192}


@pytest.mark.parametrize("kind", [k for k in (*KINDS, *NARROW) if k != "fp8"])
def test_a_rival_computes_what_the_program_says(kind: str) -> None:
    orders = KINDS[kind].orders if kind in KINDS else ("KK",)
    for order in orders:
        small = Problem(kind, order, 2 if kind == "batched" else 1, 48, 32, 128)
        program = frontend.kernel(frontend.read_text(small.text))
        arguments: list[Any] = generate(program, small.sizes, "normal", seed=1)
        (expected,) = evaluate(program, arguments)
        result = rival_of(small, [arguments])(0).double()
        # Two roundings to bf16 of the same number are at most 2^-8 of it apart; sums cancel a little.
        assert float((expected.double() - result).norm() / result.norm()) < 2**-7


# --- a search -----------------------------------------------------------------------------


class CostModel:
    """An evaluator for which every kernel takes what the cost model says."""

    def build(self, groups: Sequence[BinaryGroup]) -> Sequence[FailedTrial | None]:
        return [None] * len(groups)

    def time(self, groups: Sequence[BinaryGroup]) -> Sequence[TimedGroup | FailedTrial]:
        return [TimedGroup(tuple(m.estimate.seconds for m in g.members)) for g in groups]

    def confirm(self, finalists: Sequence[Planned]) -> Sequence[ConfirmedKernel | FailedTrial]:
        return [ConfirmedKernel((kernel.seconds,) * 24) for kernel in finalists]

    def cancel(self) -> None:
        pass

    def now(self) -> float:
        return 0.0


class NoEngine:
    def __init__(self, **_: object) -> None: ...
    def close(self) -> None: ...


def table_row(item: dict[str, Any]) -> dict[str, Any]:
    """In place of a device: what is tuned takes 20 us, other kernels 30, torch 25."""
    timed = [c | {"us": 20.0 if c.get("tuned") else 30.0} for c in item["candidates"]]
    return {
        "problem": item["problem"],
        "candidates": timed,
        "rivals": {"torch": 25.0},
        "refused": {},
        "spread": 0.0,
    }


def test_a_tuned_run_names_what_is_lost_and_holds_the_others_against_their_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of four kernels is not built, the last search finds no compiler."""

    def tune_many(jobs: Sequence[TuningJob], engine: Any, settings: TuningSettings, *, on_done: Any) -> None:
        for number, job in enumerate(jobs[:-1]):
            evaluator: Any = CostModel()
            result = search(
                job.space, evaluator, settings.policy, settings.limits, seed=settings.seed, jobs=1
            )
            on_done(number, FinishedSearch(result, evaluator))
        on_done(len(jobs) - 1, MachineError("no compiler", "install one"))

    def run(target: str, items: Sequence[dict[str, Any]], rows: Path, **_: object) -> list[dict[str, Any]]:
        assert target == "benchmarks.products:row" and callable(products.row)
        return [{"name": item["name"], "ok": True, **table_row(item)} for item in items]

    monkeypatch.setattr(campaign, "build", lambda kernels, *_: ["", "no", *[""] * (len(kernels) - 2)])
    monkeypatch.setattr(campaign, "run", run)
    monkeypatch.setattr(harness, "machine", dict)
    monkeypatch.setattr(products, "tune_many", tune_many)
    monkeypatch.setattr(products, "LocalEngine", NoEngine)
    out = tmp_path / "products.json"
    words = [
        "--kinds",
        "bf16",
        "--spans",
        "deep",
        "--drawn",
        "4",
        "--seed",
        "3",
        "--tune",
        "8",
        "--jobs",
        "1",
        "--out",
    ]
    monkeypatch.setattr("sys.argv", ["products", *words, str(out)])
    with pytest.raises(SystemExit) as ended:
        products.main()
    text = capsys.readouterr().out
    assert ended.value.code == 1
    assert "NotBuilt: no" in text and "MachineError: no compiler" in text
    assert "bf16 tuned over the best rival: geomean 1.250, least 1.250" in text
    assert (
        "bf16 over torch: geomean 0.833, least 0.833" in text and "missed: geomean 1.03; least 0.92" in text
    )
    right = [row for row in json.loads(out.read_text())["rows"] if row["ok"]]
    assert len(right) == 2 and all(0 < row["candidates"][-1]["builds"] <= 8 for row in right)
