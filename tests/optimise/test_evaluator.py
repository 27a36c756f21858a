"""The live bench and the proposer without a model, with a made-up GPU."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.optimise.made_up import UNPLANNED, Mortal
from ucutlass.agent import evaluator as evaluator_module
from ucutlass.agent.advisor import Advisor
from ucutlass.agent.budget import Budget
from ucutlass.agent.evaluator import LEADS, GpuEvaluator
from ucutlass.agent.evidence import ConfirmationSettings
from ucutlass.agent.gpu_calls import GpuCalls
from ucutlass.agent.outcome import (
    FailedOutcome,
    Outcome,
    RefusedOutcome,
    RejectedOutcome,
    RepeatedOutcome,
    TimedOutcome,
    WrongOutcome,
)
from ucutlass.agent.problem import OptimizationProblem, problem_of
from ucutlass.agent.proposers.algebra import AlgebraProposer
from ucutlass.agent.proposers.rules import ScheduleProposer, rules
from ucutlass.agent.run import open_journal_session, run
from ucutlass.agent.session import SessionSettings, replay_events
from ucutlass.agent.stop import StopRule
from ucutlass.assembly import BuiltPipeline
from ucutlass.diagnostics import ProgramError
from ucutlass.engine.work import TABLE, EngineTask
from ucutlass.ir.hardware import DEVICES
from ucutlass.runtime import isolation

H200 = next(d for d in DEVICES.values() if "H200" in d.name)
SIZES = {"M": 1024, "N": 1024, "K": 1024}
LINEAR = "kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return relu(dot[K](x, w)) }\n"
CHAIN = """
pipeline chain(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] {
  h: bf16[M, N] = dot[K](x, w) + b
  return gelu(h) * 2
}
"""


def took(seconds: float) -> dict[str, Any]:
    """What an attempt that is right answers."""
    return {"seconds": seconds, "words": ""}


def problem(text: str = LINEAR) -> OptimizationProblem:
    return problem_of(text, "p.ucu", None, SIZES, "sm90a")


@dataclass
class Engine:
    """Answers attempts in turn; an answer is what the function returns, or how its process ended."""

    answers: list[Any]
    asked: list[Mapping[str, Any]] = field(default_factory=list)

    gpus = cpus = 1

    def submit(self, name: str, arguments: Mapping[str, Any], **more: Any) -> EngineTask:
        assert name in TABLE
        self.asked.append(arguments)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        future: Future[isolation.CallOutcome] = Future()
        future.set_result(answer if not isinstance(answer, dict) else isolation.Returned(answer, "", 0.5))
        return EngineTask(future, lambda: None)

    def leave(self, near: str) -> None: ...
    def close(self) -> None: ...


def bench(answers: Sequence[Any], confirm: Any = None, of: str = LINEAR) -> GpuEvaluator:
    def agreed(subject: Any, how: ConfirmationSettings, gpu: GpuCalls) -> Outcome:
        return TimedOutcome(1e-5, 2.0, 1.9, 2.1, records=("a", "b"))

    how = ConfirmationSettings("sm90a", H200, None)
    advisor = Advisor("none")
    return GpuEvaluator(problem(of), Engine(list(answers)), how, confirm=confirm or agreed, advisor=advisor)


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_module, "build_program", lambda *a, **k: BuiltPipeline(UNPLANNED, ()))


def judged(live: GpuEvaluator, text: str = LINEAR) -> Outcome:
    key = live.key(text)
    assert isinstance(key, str)
    return live.judge(text).outcome


def test_who_would_lead_is_confirmed_and_who_would_not_is_not() -> None:
    live = bench([took(2e-5)])
    assert judged(live) == TimedOutcome(1e-5, 2.0, 1.9, 2.1, records=("a", "b"), first=2e-5)
    assert live.best == 1e-5
    behind = judged(live, LINEAR.replace("{ return", "{ schedule sm90a { tile 64x64x64 } return"))
    assert behind == TimedOutcome(2e-5) and live.best == 1e-5
    near = bench([took(1e-5 * LEADS)])
    near.best = 1e-5
    assert isinstance(judged(near), TimedOutcome) and judged(near).records  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"seconds": None, "words": "normal: (0, 0) is off"}, WrongOutcome),
        (isolation.Crashed("SIGSEGV", ""), FailedOutcome),
        (isolation.TimedOut(3.0, ""), FailedOutcome),
        (isolation.Raised("LaunchError", "illegal address", "", ""), FailedOutcome),
        (isolation.Exited(1, ""), FailedOutcome),
    ],
)
def test_what_a_candidate_does_to_its_process_is_its_outcome(answer: Any, kind: type) -> None:
    outcome = judged(bench([answer]))
    assert type(outcome) is kind


def test_what_the_audit_rejects_does_not_lead() -> None:
    live = bench([took(1e-9)], lambda *_: RejectedOutcome("below-sol", "too fast"))
    assert isinstance(judged(live), RejectedOutcome) and live.best is None


def test_a_build_that_fails_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    live = bench([took(1.0)])

    def fails(checked: Any, program: Any, *a: Any, **k: Any) -> Any:
        raise checked.error(live_module_diagnostic(program))

    monkeypatch.setattr(evaluator_module, "build_program", fails)
    assert isinstance(judged(live), FailedOutcome)


def live_module_diagnostic(program: Any) -> Any:
    from ucutlass.diagnostics import Diagnostic

    return Diagnostic("UC0301", "no compiler takes it", program.span, "")


def test_one_schedule_in_two_spellings_is_one_candidate() -> None:
    live = bench([took(1.0)])
    one = LINEAR.replace("{ return", "{ schedule sm90a { tile 128x128x64 warps pingpong } return")
    two = LINEAR.replace("{ return", "{ schedule sm90a { warps pingpong\n tile 128x128x64 } # same\n return")
    assert live.key(one) == live.key(two) != live.key(LINEAR)


def test_an_illegal_schedule_is_refused_with_its_rule() -> None:
    found = bench([{}]).key(LINEAR.replace("{ return", "{ schedule sm90a { tile 128x512x64 } return"))
    assert isinstance(found, RefusedOutcome) and found.codes


def test_a_pipeline_that_computes_something_else_is_not_built() -> None:
    live = bench([took(1.0)], of=CHAIN)
    outcome = judged(live, CHAIN.replace("* 2", "* 3"))
    assert isinstance(outcome, RefusedOutcome) and "something else" in outcome.words
    assert not live.engine.asked  # type: ignore[attr-defined]


# --- proposals -----------------------------------------------------------------------


def test_every_proposed_schedule_is_another_legal_candidate() -> None:
    outcome = rules(problem(), H200)
    assert isinstance(outcome, AlgebraProposer) and isinstance(outcome.kernels, ScheduleProposer)
    bench_ = bench([took(3e-5)])
    session = open_journal_session(
        Mortal(),
        {"text": LINEAR},
        SessionSettings("flat", budget=Budget(24), stop=StopRule(None, None)),
        bound=0.0,
        baseline=None,
    )
    state = run(session, outcome, bench_)
    assert len(state.tree) == 25
    assert all(isinstance(n.outcome, TimedOutcome) for n in state.tree.nodes)
    assert len({n.key for n in state.tree.nodes}) == 25


@pytest.mark.slow
def test_a_session_on_a_made_up_gpu_is_the_same_when_it_is_resumed() -> None:
    whole = _session(Mortal())
    sink = Mortal(dies={9: "after", 14: "before", 21: "after"})
    state = None
    while state is None:
        try:
            state = _session(sink)
        except BaseException as death:
            assert type(death).__name__ == "Killed"
    assert state.tree.nodes == whole.tree.nodes


def _session(sink: Mortal) -> Any:
    from ucutlass.agent.run import OptimizationSession

    settings = SessionSettings("epsilon", budget=Budget(12), stop=StopRule(None, None))
    if sink.events:
        session = OptimizationSession("s", sink, replay_events(sink.events))
    else:
        session = open_journal_session(sink, {"text": LINEAR}, settings, bound=0.0, baseline=None, id="s")
    return run(session, rules(problem(), H200), _Drawn())


@dataclass
class _Drawn:
    """A time that the text draws."""

    live: GpuEvaluator = field(default_factory=lambda: bench([{}]))

    def key(self, text: str) -> str | RefusedOutcome:
        return self.live.key(text)

    def judge(self, text: str) -> Any:
        from ucutlass.agent.run import CandidateJudgement

        return CandidateJudgement(TimedOutcome(random.Random(text).uniform(1e-5, 2e-5)))


def test_the_problem_s_own_mistakes_are_errors() -> None:
    with pytest.raises(ProgramError):
        problem_of("kernel k(", "p.ucu", None, {}, "sm90a")


def test_repeats_are_seen_through_spelling() -> None:
    live = bench([took(1.0)])

    class Twice:
        def propose(self, ask: Any, state: Any, on_spend: Any) -> Any:
            from ucutlass.agent.proposer import Answer
            from ucutlass.agent.session import ProposedProgram

            return Answer([ProposedProgram(LINEAR + f"# {ask.call}\n", "")])

    session = open_journal_session(
        Mortal(), {"text": LINEAR}, SessionSettings("flat", budget=Budget(3)), bound=0.0, baseline=None
    )
    state = run(session, Twice(), live)
    assert [type(n.outcome) for n in state.tree.nodes[1:]] == [RepeatedOutcome] * 3
