"""The agent's benchmark: two searches of equal attempts through the real agent, and its tables."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness, optimise, optimise_gpu
from benchmarks.optimise_cases import TASKS
from benchmarks.optimise_row import Shared, row
from tests.optimise.made_up import UNPLANNED
from ucutlass.agent import evaluator as evaluator_module
from ucutlass.agent import prebuild as prebuild_module
from ucutlass.assembly import BuiltPipeline
from ucutlass.engine.work import EngineTask
from ucutlass.handoff import checked_of
from ucutlass.ir.hardware import DEVICES
from ucutlass.runtime import isolation

NAME = "l1_88_new_gelu f32"
H200 = next(d for d in DEVICES.values() if "H200" in d.name)


class Engine:
    """A GPU that knows a time for every text. `wrong` are cases that what is delivered fails."""

    gpus = cpus = 1

    def __init__(self, wrong: tuple[str, ...] = (), final: isolation.CallOutcome | None = None) -> None:
        self.tried: list[str] = []
        self.wrong, self.final = list(wrong), final

    def submit(self, name: str, arguments: Mapping[str, Any], **more: Any) -> EngineTask:
        future: Future[isolation.CallOutcome] = Future()
        future.set_result(self._outcome(name, arguments))
        return EngineTask(future, lambda: None)

    def _outcome(self, name: str, given: Mapping[str, Any]) -> isolation.CallOutcome:
        if name == "attempt":
            text = checked_of(given["program"]).source
            self.tried.append(text)
            return isolation.Returned({"seconds": micro(text) * 1e-6, "words": "", "spent": 0.5}, "")
        assert name == "compared"
        us = {n: micro(text) for n, text in given["texts"].items()} | {"eager": 300.0, "eager_tf32": 250.0}
        made = {"us": us, "spread": {}, "best": min(us, key=us.__getitem__), "cases": given["cases"]}
        made |= {"wrong": self.wrong, "uncompiled": "", "spent": 1.0}
        return self.final or isolation.Returned(made, "")

    def leave(self, near: str) -> None: ...
    def close(self) -> None: ...


def micro(text: str) -> float:
    return 100 + int(hashlib.sha256(text.encode()).hexdigest()[:6], 16) / 2**24 * 100


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    for module in (prebuild_module, evaluator_module):
        monkeypatch.setattr(module, "build_program", lambda *a, **k: BuiltPipeline(UNPLANNED, ()))
    with ThreadPoolExecutor(2) as made:
        yield made


def options(tmp_path: Path, *words: str) -> argparse.Namespace:
    namespace = argparse.Namespace(
        out=tmp_path / "o.json",
        attempts=10,
        searches="rules,random",
        no_compile=True,
        quick=False,
        cases=3,
        programs=4,
        processes=1,
        seed=0,
    )
    return argparse.Namespace(**{**vars(namespace), **dict(w.split("=") for w in words)})


def item(tmp_path: Path, attempts: int = 10, name: str = NAME) -> harness.Item:
    (task,) = (t for t in TASKS if t.name == name)
    (made,) = optimise.items_of([task], options(tmp_path))
    return {**json.loads(json.dumps(made)), "attempts": attempts}


def test_both_searches_have_equal_attempts_and_are_compared(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    engine = Engine()
    found = row(Shared(engine, H200, pool), item(tmp_path))
    rules, random = found["searches"]["rules"], found["searches"]["random"]
    assert rules["attempts"] == random["attempts"] == 10 and found["ok"]
    assert len(engine.tried) == 22  # the problem's own, once a search
    assert rules["own"] == random["own"] and rules["outcomes"] == {"timed": 11}
    assert set(found["us"]) == {"default", "rules", "random", "eager", "eager_tf32"}
    assert rules["best"] == pytest.approx(min(rules["course"]))
    assert len({*engine.tried}) > 11  # they do not draw alike
    assert json.loads(json.dumps(found)) == found


@pytest.mark.slow
def test_a_pipeline_ends_where_nothing_is_left(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    found = row(Shared(Engine(), H200, pool), item(tmp_path, 3, "l3_01_mlp bf16"))
    assert found["ok"] and found["us"]["rules"] <= found["us"]["default"]


def test_what_is_wrong_or_lost_is_no_result(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    shared = Shared(Engine(wrong=("normal M=1: off",)), H200, pool)
    assert not row(shared, item(tmp_path / "a", 1))["ok"]
    lost = Shared(Engine(final=isolation.Crashed("SIGSEGV", "")), H200, pool)
    found = row(lost, item(tmp_path / "b", 1))
    assert not found["ok"] and "SIGSEGV" in found["detail"]


def test_functions_that_the_engine_is_asked_for_are_there() -> None:
    for name in ("attempt", "compared"):
        module, _, function = optimise_gpu.GPU[name].target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_tf32_is_allowed_for_one_call_alone() -> None:
    import torch

    flags = torch.backends.cuda.matmul
    before = flags.allow_tf32
    for expected in (True, False):
        seen = optimise_gpu._with(expected, lambda x: x + flags.allow_tf32, [torch.zeros(1)])
        assert bool(seen) is expected and flags.allow_tf32 is before


def test_rows_are_of_every_task_and_sessions_lie_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(target: str, items: list[harness.Item], path: Path, **limits: Any) -> list[harness.Row]:
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
        assert all(Path(i["journals"]).is_dir() for i in items)
        return [{"name": i["name"], "task": i["name"], **MADE} for i in items]

    monkeypatch.setattr(harness, "run", rows)
    monkeypatch.setattr(optimise, "machine", dict)
    tasks = [t for t in TASKS if t.name.startswith("l2_86")]
    report = optimise.run(tasks, options(tmp_path))
    assert [r["name"] for r in report["rows"]] == [t.name for t in tasks]
    assert report["summary"]["lane"]["tf32"]["right"] == 2
    json.dumps(report)


# --- the table ----------------------------------------------------------------------------

MADE: dict[str, Any] = {
    "ok": True,
    "lane": "tf32",
    "letter": "E",
    "level": 2,
    "attempts": 10,
    "wrong": [],
    "spent": 2.0,
    "us": {"default": 120.0, "rules": 100.0, "random": 130.0, "eager": 200.0, "eager_tf32": 150.0},
    "searches": {"rules": {"bound": 80.0, "gpu_seconds": 3.0}},
    "wall_seconds": 9.0,
}


def made(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "task": name, **MADE, **more}


def test_what_is_delivered_is_never_slower_than_the_default() -> None:
    slower = made("a", us={**MADE["us"], "rules": 125.0})
    assert optimise.delivered(slower) == 120.0
    assert optimise.ratio(slower, "default") == 1.0
    assert optimise.ratio(slower, "random") == 1.0  # random search keeps the default, too
    assert optimise.ratio(made("a"), "eager") == 2.0
    assert optimise.ratio(made("a"), "compile") is None


def test_means_are_of_what_is_right() -> None:
    rows = [made("a"), made("b", us={**MADE["us"], "eager": 800.0}), made("c", ok=False, wrong=["off"])]
    values = optimise.summary([*rows, {"name": "d", "ok": False, "error": "e", "detail": "f"}])
    assert values["all"]["problems"] == 3 and values["all"]["right"] == 2
    assert values["all"]["eager"] == {"geomean": pytest.approx(4.0), "least": 2.0, "of": 2}
    assert values["all"]["compile"] is None and values["lost"] == ["d"]
    words = optimise.table([*rows, {"name": "d", "ok": False, "error": "e", "detail": "f"}])
    open_ = optimise.table([made("e", verdicts={"right": 2, "undecided": 3}, cases=5)])
    assert "3 of 5 cases undecided" in open_
    assert "WRONG: off" in words and "lost: e: f" in words and "4.000" in words
