"""What is proposed is built before it is judged, once, and what does not build is told by its judge."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.optimise.made_up import UNPLANNED, Mortal
from tests.optimise.test_evaluator import H200, LINEAR, Engine, problem, took
from ucutlass.agent import evaluator as evaluator_module
from ucutlass.agent import prebuild as prebuild_module
from ucutlass.agent.budget import Budget
from ucutlass.agent.optimize import Machinery, run_session
from ucutlass.agent.outcome import RefusedOutcome, TimedOutcome
from ucutlass.agent.prebuild import BuildCounter, Prebuilder, guess_answer
from ucutlass.agent.problem import problem_to_json
from ucutlass.agent.proposers.rules import rules
from ucutlass.agent.proposers.schedule_sampling import nominate_uniformly
from ucutlass.agent.run import CandidateJudgement, open_journal_session, step
from ucutlass.agent.session import Confirm, SessionSettings
from ucutlass.agent.stop import StopRule
from ucutlass.assembly import BuiltPipeline
from ucutlass.runtime.errors import BuildError, MachineError
from ucutlass.runtime.module.signature import Unusable
from ucutlass.runtime.progress import Progress


class NoCompiler(MachineError):
    pass


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(4) as made:
        yield made


def building(monkeypatch: pytest.MonkeyPatch, what: Callable[..., Any]) -> None:
    monkeypatch.setattr(prebuild_module, "build_program", what)
    nothing: Any = BuiltPipeline(UNPLANNED, ())
    monkeypatch.setattr(evaluator_module, "build_program", lambda *a, **k: nothing)


class Judge:
    """Takes every program for one of its own."""

    def key(self, text: str, source: str = "") -> str | RefusedOutcome:
        return text

    def confirm(self, due: Confirm) -> CandidateJudgement:
        raise AssertionError("nothing is provisional")


def test_a_judge_waits_for_the_build_and_for_no_other(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    slow = LINEAR.replace("relu", "gelu")
    free = threading.Event()

    def build(checked: Any, *a: Any, **k: Any) -> None:
        if "gelu" in checked.source:
            assert free.wait(60)

    building(monkeypatch, build)
    made = Prebuilder(problem(), H200, pool)
    made.begin([slow, LINEAR, slow, ""])
    made.wait(LINEAR)  # though `slow` was begun before it
    waiting = pool.submit(made.wait, slow)
    assert not waiting.done()
    free.set()
    waiting.result()
    made.wait("what nobody began")


def test_what_does_not_build_is_left_to_its_judge(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    def build(*a: Any, **k: Any) -> None:
        raise BuildError.__new__(BuildError)

    building(monkeypatch, build)
    made = Prebuilder(problem(), H200, pool)
    made.begin([LINEAR, "kernel nonsense"])
    for text in (LINEAR, "kernel nonsense"):
        made.wait(text)


def test_a_machine_at_fault_is_said(monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor) -> None:
    def build(*a: Any, **k: Any) -> None:
        raise NoCompiler("no nvcc", "install it")

    building(monkeypatch, build)
    prebuilder = Prebuilder(problem(), H200, pool)
    prebuilder.begin([LINEAR])
    with pytest.raises(NoCompiler):
        prebuilder.wait(LINEAR)


def test_a_session_builds_every_program_ahead_and_confirms_none(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    built: list[str] = []

    def build(checked: Any, *a: Any, on_progress: Any, **k: Any) -> None:
        built.append(checked.source)
        on_progress(Progress("built", "k", seconds=2.0, done=1))

    building(monkeypatch, build)
    counted, journal = BuildCounter(), Mortal()
    where = Machinery(Engine([took(1e-5)]), H200, "", builders=pool, counted=counted, confirms=False)
    settings = SessionSettings("flat", budget=Budget(9), stop=StopRule(None, None), keep=6)
    session = open_journal_session(journal, problem_to_json(problem()), settings, bound=0.0, baseline=None)
    state = run_session(session, where, lambda p, d, s: rules(p, d, s, nominate_uniformly, 6))
    # Of the second answer, no more than the budget has attempts for.
    assert len(state.tree) == 10 and state.spend.attempts == 9
    assert sorted(built) == sorted({n.text for n in state.tree.nodes})
    assert counted.built == 10 and counted.seconds == 20.0 and counted.cached == 0
    assert all(isinstance(n.outcome, TimedOutcome) and not n.outcome.records for n in state.tree.nodes)
    # Two answers of six: every program of an answer was begun with it.
    assert [e.kind for e in journal.events].count("asked") == 2


def test_a_uniform_draw_knows_no_estimate() -> None:
    import random

    outcome = rules(problem(), H200, 0, nominate_uniformly, 8)
    space = outcome._space(True)  # type: ignore[union-attr]
    every = nominate_uniformly(space, {}, 0, random.Random(1), 10**6)
    assert sorted(every) == list(range(len(space.groups)))
    first = [nominate_uniformly(space, {0: 1.0}, 0, random.Random(seed), 8) for seed in range(200)]
    assert all(len(set(one)) == 8 and 0 not in one for one in first)
    mean = sum(map(sum, first)) / 1600
    assert abs(mean / len(space.groups) - 0.5) < 0.05


def test_the_next_answer_is_built_while_the_last_program_is_judged(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    building(monkeypatch, lambda *a, **k: None)
    prebuilder = Prebuilder(problem(), H200, pool)
    proposer = prebuilder.proposer(rules(problem(), H200, 0))
    settings = SessionSettings("flat", budget=Budget(40), stop=StopRule(None, None))
    session = open_journal_session(Mortal(), problem_to_json(problem()), settings, bound=0.0, baseline=None)
    readings = itertools.count()
    guessed: list[set[str]] = []
    asked: list[set[str]] = []

    class Timing(Judge):
        def judge(self, text: str, source: str = "") -> CandidateJudgement:
            if len(session.state.tree) > 1 and len(session.state.pending) == 1:
                before = set(prebuilder._begun)
                text_before = json.dumps(session.state.problem)
                guess_answer(session.state, proposer)()
                guessed.append(set(prebuilder._begun) - before)
                assert json.dumps(session.state.problem) == text_before and session.state.pending
            return CandidateJudgement(TimedOutcome(1e-5 + 1e-9 * next(readings)))

    while len(asked) < 6 and step(session, proposer, Timing()):
        if session.state.last is not None and len(session.state.pending) == settings.keep:
            asked.append({program.text for program in session.state.pending})
    hits = [len(guess & answer) for guess, answer in zip(guessed, asked[1:], strict=False)]
    assert len(hits) == 5 and sum(hits) >= 0.5 * 4 * len(hits), hits


def test_problems_are_read_ahead_once_and_after_a_verdict_on_the_one_before() -> None:
    names = ["a", "b", "c", "d"]
    begun: list[str] = []
    ahead_begun = threading.Event()

    def problem_of(name: str) -> Any:
        begun.append(name)
        if name == "c":
            ahead_begun.set()
            raise Unusable(name, "import", "no such module")
        return name.upper()

    with prebuild_module.read_ahead(2) as ahead:
        reader = ahead(names, problem_of)
        assert reader.problem_of("a") == "A" and begun == ["a"]  # type: ignore[comparison-overlap]
        for _ in range(2):
            reader.go_on("a")
        assert ahead_begun.wait(60)
        assert reader.problem_of("b") == "B"  # type: ignore[comparison-overlap]
        with pytest.raises(Unusable):
            reader.problem_of("c")
        reader.go_on("a")
        assert reader.problem_of("d") == "D"  # type: ignore[comparison-overlap]
    assert sorted(begun) == names


def test_what_has_not_begun_never_does_once_all_is_over() -> None:
    begun = threading.Event()
    rest: list[Future[None]] = []
    ran: list[int] = []

    def slow() -> None:
        begun.set()
        while not (rest and rest[-1].cancelled()):  # by the end of the block, which waits for this
            time.sleep(0.01)
        ran.append(0)

    with prebuild_module.builder_pool(1) as pool:
        pool.submit(slow)
        assert begun.wait(60)
        rest += [pool.submit(ran.append, n) for n in (1, 2, 3)]
    assert ran == [0] and all(one.cancelled() for one in rest)
