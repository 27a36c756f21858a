"""The benchmark of searches, on an engine that times nothing: what its rows hold, and that each search is raced."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from benchmarks import searches
from ucutlass.agent import evaluator, prebuild
from ucutlass.agent.prebuild import builder_pool
from ucutlass.engine.work import EngineTask
from ucutlass.ir.hardware import device_named
from ucutlass.runtime import isolation

TEXT = """
kernel k(x: bf16[M, N]) -> f32[M] {
  return sum[N](x)
}
"""


class Engine:
    """Attempts take as long as their text, but for the problem's own, which takes longest."""

    gpus = cpus = 1

    def __init__(self, wrong: bool = False) -> None:
        self.asked: list[str] = []
        self._wrong = wrong

    def submit(self, name: str, arguments: Mapping[str, Any], **more: Any) -> EngineTask:
        self.asked.append(name)
        future: Future[isolation.CallOutcome] = Future()
        answer: Any = None
        if name == "attempt":
            text = arguments["built"]["text"]
            own = "schedule" not in text
            answer = {"seconds": None if self._wrong else 1.0 if own else 1e-6 * len(text), "words": "far"}
        elif name == "race":
            faster = len(arguments["candidate"]["built"]["text"]) / 1000
            answer = {"verdict": "faster", "ratio": faster, "rounds": 10}
        future.set_result(isolation.Returned(answer, "", 0.1))
        return EngineTask(future, lambda: None)

    def leave(self, near: str) -> None: ...
    def close(self) -> None: ...


def row(engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    for module in (evaluator, prebuild, searches):
        monkeypatch.setattr(module, "build_program", lambda checked, *a, **k: checked.source)
    for module in (evaluator, searches):
        monkeypatch.setattr(module, "built_payload", lambda text: {"text": text})
    monkeypatch.setattr(evaluator, "artifacts_of", lambda built: [])
    with builder_pool(1) as pool:
        shared = searches.Shared(engine, device_named("NVIDIA H200"), pool, folder, 6, 3)  # type: ignore[arg-type]
        return searches.row(shared, ("sum bf16", TEXT, {"M": 4096, "N": 3000}))


def test_each_search_is_raced_against_the_compiler_s_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()
    found = row(engine, tmp_path, monkeypatch)
    assert found["ok"] and engine.asked.count("race") == 2
    assert engine.asked.count("attempt") == 2 * (6 + 1)
    assert found["rules over random"] == found["rules"] / found["random"] and found["rules"] > 1
    assert "rules over random" in searches.line({**found})
    assert len(list(tmp_path.glob("*.sqlite"))) == 2


def test_a_search_without_a_right_program_is_a_row_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = row(Engine(wrong=True), tmp_path, monkeypatch)
    assert not found["ok"] and "far" in found["detail"]
