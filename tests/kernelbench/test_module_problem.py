"""A PyTorch module as a problem: from its file to a candidate's outcome, on the CPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from module_files import LINEAR, linear

from ucutlass.agent import live as live_module
from ucutlass.agent.evidence import How
from ucutlass.agent.live import Live
from ucutlass.agent.module import read
from ucutlass.agent.outcome import Outcome, Refused, Timed
from ucutlass.agent.problem import Problem, problem_of_json, problem_of_module, problem_to_json
from ucutlass.engine.work import Task
from ucutlass.hardware import DEVICES
from ucutlass.runtime import isolate

H200 = next(d for d in DEVICES.values() if "H200" in d.name)


@dataclass
class Engine:
    """Every attempt is right and takes 20 us."""

    asked: list[Mapping[str, Any]] = field(default_factory=list)
    gpus = cpus = 1

    def submit(self, name: str, arguments: Mapping[str, Any], **more: Any) -> Task:
        self.asked.append(arguments)
        future: Future[isolate.Outcome] = Future()
        future.set_result(isolate.Returned({"seconds": 2e-5, "words": "", "spent": 0.1}, ""))
        return Task(future, lambda: None)

    def leave(self, near: str) -> None: ...
    def close(self) -> None: ...


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    file = tmp_path_factory.mktemp("problem") / "7_Linear_relu_.py"
    file.write_text(linear())
    return problem_of_module(read(file), LINEAR, "linear.ucu", None, "sm90a")


@pytest.fixture
def bench(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> Live:
    monkeypatch.setattr(live_module, "build_program", lambda *a, **k: "built")
    how = How("sm90a", H200, problem.policy)
    return Live(problem, Engine(), how, confirm=lambda subject, how: Timed(1e-5, 2.0, 1.9, 2.1))


def judged(live: Live, text: str) -> Outcome:
    key = live.key(text)
    return key if isinstance(key, Refused) else live.judge(text).outcome


def test_a_program_that_computes_the_module_is_judged(bench: Live, problem: Problem) -> None:
    assert problem.sizes == {"M": 32, "K": 48, "N": 40} and problem.lane == "f32"
    assert isinstance(judged(bench, LINEAR), Timed)
    (asked,) = bench.engine.asked  # type: ignore[attr-defined]
    assert asked["problem"] == LINEAR and asked["sizes"] == {"M": 32, "K": 48, "N": 40}


def test_a_program_that_computes_something_else_is_not_built(bench: Live) -> None:
    found = judged(bench, LINEAR.replace("* 2", "* 2.000001"))
    assert isinstance(found, Refused) and "computes something else" in found.words
    assert not bench.engine.asked  # type: ignore[attr-defined]


def test_a_module_problem_comes_back_from_json(problem: Problem) -> None:
    assert problem_of_json(json.loads(json.dumps(problem_to_json(problem)))) == problem
