"""Modules that torch compiles beside a search: once, kept on disk, and what a candidate gains over them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.optimise.test_evaluator import bench, took
from ucutlass import frontend
from ucutlass.agent import background_baselines as background_module
from ucutlass.agent import evaluator as evaluator_module
from ucutlass.agent.background_baselines import BackgroundBaselines
from ucutlass.agent.baseline_cache import BaselineCache, BaselineRatio, about_baseline, key_of
from ucutlass.agent.module import TorchModule, bytes_of_module
from ucutlass.agent.outcome import TimedOutcome
from ucutlass.agent.problem import problem_of
from ucutlass.agent.session import Confirm
from ucutlass.runtime import isolation
from ucutlass.runtime.module.signature import ModuleSignature, TensorSpec

TEXT = "kernel k(x: f32[M=4, N=8]) -> f32[M, N] { return relu(x) }\n"
SPEC = TensorSpec("x", (4, 8), "float32")
MODULE = TorchModule(
    "m.py", "source", "constructed", "own", ModuleSignature((SPEC,), (), (), (SPEC,), True, False)
)
RATIO = BaselineRatio(1.25, 1.2, 1.3)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What processes were asked, which all answer RATIO."""
    calls: list[dict[str, Any]] = []

    def run(target: str, arguments: dict[str, Any], **limits: Any) -> isolation.CallOutcome:
        visible = (limits.get("environ") or {}).get("CUDA_VISIBLE_DEVICES")
        assert visible is None or visible == arguments["gpu"]
        calls.append(arguments)
        return isolation.Returned({"median": 1.25, "low": 1.2, "high": 1.3}, "")

    monkeypatch.setattr(background_module.isolation, "run", run)
    monkeypatch.setattr(background_module, "gpu_uuid", lambda: "GPU-x")
    return calls


def begun(background: BackgroundBaselines, module: TorchModule = MODULE, searching: bool = True) -> None:
    checked = frontend.read_text(TEXT)
    background.begin(checked, frontend.program(checked), module, searching=searching)


def background_of(folder: Path, pool: ThreadPoolExecutor, gpu: str = "H100") -> BackgroundBaselines:
    return BackgroundBaselines("compile", gpu, pool, BaselineCache(folder), 10.0, 10.0)


def test_modules_are_spread_over_the_gpus(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    with ThreadPoolExecutor(1) as pool:
        several = replace(background_of(tmp_path, pool), gpus=("GPU-a", "GPU-b"))
        for number in range(8):
            begun(several, replace(MODULE, source=str(number)))
    assert {arguments["gpu"] for arguments in asked} == {"GPU-a", "GPU-b"}


def test_a_module_is_compiled_once_on_a_machine(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = background_of(tmp_path, pool)
        assert first.ratio(MODULE, waits=True) is None, "nobody began with it"
        begun(first)
        begun(first)
        assert first.ratio(MODULE, waits=True) == RATIO and len(asked) == 1
        assert (asked[0]["way"], asked[0]["names"], asked[0]["releases"]) == (
            "compile",
            {"x": "input 0"},
            True,
        )
        again = background_of(tmp_path, pool)
        begun(again)
        assert again.ratio(MODULE, waits=False) == RATIO and len(asked) == 1
        for other, module in (
            (background_of(tmp_path, pool, "H200"), MODULE),
            (again, replace(MODULE, source="other")),
            (replace(again, way="compile-max-autotune", _futures={}), MODULE),
        ):
            begun(other, module)
            assert other.ratio(module, waits=True) == RATIO
        assert len(asked) == 4


def test_an_entry_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path)
    about = about_baseline(MODULE, "compile", "H100", background_module.PROTOCOL)
    key = key_of(about)
    assert cache.find(key) is None
    cache.add(key, about, RATIO)
    assert cache.find(key) == RATIO
    for text in (
        "",
        "[]",
        '{"eager": {"median": "1"}}',
        '{"eager": {"median": -1.0, "low": 1.0, "high": 1.0}}',
    ):
        (tmp_path / f"{key}.json").write_text(text)
        assert cache.find(key) is None


def test_the_oldest_entries_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.agent.baseline_cache.MOST_ENTRIES", 2)
    cache = BaselineCache(tmp_path)
    for n in range(4):
        cache.add(str(n), {}, RATIO)
    assert len(list(tmp_path.glob("*.json"))) == 2 and cache.find("3") == RATIO


def test_a_large_module_is_compiled_after_its_search_with_the_lock(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bytes_of_module(MODULE) == 2 * 4 * 8 * 4
    monkeypatch.setattr(background_module, "SMALL_BYTES", 255)
    with ThreadPoolExecutor(1) as pool:
        background = background_of(tmp_path, pool)
        begun(background)
        assert background.ratio(MODULE, waits=False) is None and not asked
        begun(background, searching=False)
        assert background.ratio(MODULE, waits=True) == RATIO
    assert asked[0]["releases"] is False


def test_what_is_under_way_ends_with_the_run(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch compiles a network for minutes, which nobody waits for once a run's seconds are over."""
    ended: list[bool] = []

    def endless(
        target: str, arguments: dict[str, Any], *, stop: Event, **limits: Any
    ) -> isolation.CallOutcome:
        ended.append(stop.wait(60))
        return isolation.TimedOut(60.0, "")

    monkeypatch.setattr(background_module.isolation, "run", endless)
    monkeypatch.setattr(background_module.BaselineCache, "open", lambda: BaselineCache(tmp_path))
    with background_module.background_baselines("compile", "H100", 4, 60.0, 10.0) as background:
        assert background is not None
        begun(background)
        assert background.ratio(MODULE, waits=False) is None
    assert ended == [True]


def test_who_waits_for_the_compiler_is_told(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, run = Event(), background_module.isolation.run

    def slow(*arguments: Any, **named: Any) -> isolation.CallOutcome:
        assert compiled.wait(60)
        return run(*arguments, **named)

    def on_wait(what: str) -> None:
        texts.append(what)
        compiled.set()

    texts: list[str] = []
    monkeypatch.setattr(background_module.isolation, "run", slow)
    with ThreadPoolExecutor(1) as pool:
        background = replace(background_of(tmp_path, pool), on_wait=on_wait)
        begun(background)
        assert background.ratio(MODULE, waits=False) is None and not texts
        for _ in range(2):
            assert background.ratio(MODULE, waits=True) == RATIO
    assert texts == ["torch, which compiles m.py (compile) and then times it"]


def test_a_leader_gains_over_the_compiled_module_what_it_gains_over_eager_by_what_that_loses(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, run = Event(), background_module.isolation.run

    def slow(*arguments: Any, **named: Any) -> isolation.CallOutcome:
        assert compiled.wait(60)
        return run(*arguments, **named)

    monkeypatch.setattr(background_module.isolation, "run", slow)
    monkeypatch.setattr(evaluator_module, "leaves_out", lambda how: True)
    live = bench(
        [took(2e-5)], lambda *_: TimedOutcome(1e-5, 2.0, 1.9, 2.1, records=("a",), versus=(("eager", 2.0),))
    )
    live.problem = replace(problem_of(TEXT, "p.ucu", None, {}, "sm90a"), module=MODULE)
    with ThreadPoolExecutor(1) as pool:
        live.background = background_of(tmp_path, pool)
        early = live.confirm(Confirm(0, TEXT, TimedOutcome(2e-5), None))
        assert early.incomplete and isinstance(early.outcome, TimedOutcome), "torch is still compiling"
        assert dict(early.outcome.versus) == {"eager": 2.0}
        compiled.set()
        done = live.confirm(Confirm(0, TEXT, early.outcome, 1e-5, complete=True))
        assert not done.incomplete and isinstance(done.outcome, TimedOutcome)
        assert dict(done.outcome.versus) == {"eager": 2.0, "compile": 1.6}
        at_once = live.confirm(Confirm(0, TEXT, TimedOutcome(2e-5), None))
        assert not at_once.incomplete, "it is known now"
        live.background = replace(live.background, way="none", _futures={})
        monkeypatch.setattr(background_module.isolation, "run", lambda *a, **k: isolation.TimedOut(5.0, ""))
        failed = live.confirm(Confirm(0, TEXT, early.outcome, 1e-5, complete=True))
        assert failed.outcome == early.outcome and "did not end within 5 s" in failed.messages[0]
