"""The live bench and the proposer without a model, with a made-up GPU."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.optimise.made_up import UNPLANNED, Mortal, judged_in_turn
from ucutlass.agent import evaluator as evaluator_module
from ucutlass.agent.advisor import Advisor
from ucutlass.agent.budget import Budget
from ucutlass.agent.evaluator import GpuEvaluator
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
from ucutlass.agent.proposer import Answer, Preparing
from ucutlass.agent.proposers import rules as rules_module
from ucutlass.agent.proposers.algebra import AlgebraProposer
from ucutlass.agent.proposers.rules import ScheduleProposer, rules
from ucutlass.agent.run import open_journal_session, run
from ucutlass.agent.session import (
    LEADS,
    Confirm,
    ProposedProgram,
    SessionSettings,
    SessionState,
    replay_events,
)
from ucutlass.agent.stop import StopRule
from ucutlass.assembly import BuiltPipeline
from ucutlass.diagnostics import ProgramError
from ucutlass.engine.work import TABLE, EngineTask
from ucutlass.handoff import checked_of
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
    return GpuEvaluator(
        problem(of), Engine(list(answers)), how, confirmation=confirm or agreed, advisor=advisor
    )


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_module, "build_program", lambda *a, **k: BuiltPipeline(UNPLANNED, ()))


def judged(live: GpuEvaluator, text: str = LINEAR) -> Outcome:
    return judged_in_turn(live, text)[0].outcome


SLOWER = LINEAR.replace("{ return", "{ schedule sm90a { tile 64x64x64 } return")


def test_a_reading_is_provisional_until_it_is_confirmed() -> None:
    live = bench([took(2e-5)])
    assert isinstance(live.key(LINEAR), str)
    judged_ = live.judge(LINEAR)
    assert judged_.provisional and judged_.outcome == TimedOutcome(2e-5)
    confirmed = live.confirm(Confirm(0, LINEAR, TimedOutcome(2e-5), None))
    assert confirmed.outcome == TimedOutcome(1e-5, 2.0, 1.9, 2.1, records=("a", "b"), first=2e-5)
    assert not confirmed.provisional and not confirmed.incomplete
    live.confirms = False
    assert not live.judge(LINEAR).provisional
    wrong = bench([{"seconds": None, "words": "off"}])
    assert isinstance(wrong.key(LINEAR), str) and not wrong.judge(LINEAR).provisional


def test_a_confirmation_needs_no_judgement_in_this_process() -> None:
    confirmed = bench([took(2e-5)]).confirm(Confirm(0, LINEAR, TimedOutcome(2e-5), None))
    assert isinstance(confirmed.outcome, TimedOutcome) and confirmed.outcome.records


def session_of(live: GpuEvaluator, texts: Sequence[str]) -> SessionState:
    class Each:
        def propose(self, ask: Any, state: Any, on_spend: Any) -> Answer:
            return Answer([ProposedProgram(text, "") for text in texts])

    settings = SessionSettings("flat", budget=Budget(len(texts)), stop=StopRule(None, None))
    session = open_journal_session(Mortal(), {"text": LINEAR}, settings, bound=0.0, baseline=None)
    return run(session, Each(), live)


def test_who_would_lead_is_confirmed_and_who_would_not_is_not() -> None:
    confirmed: list[str] = []

    def agreed(subject: Any, how: ConfirmationSettings, gpu: GpuCalls) -> Outcome:
        confirmed.append(subject.checked.source)
        return TimedOutcome(1e-5, 2.0, 1.9, 2.1, records=("a", "b"))

    near = SLOWER.replace("64x64x64", "128x32x64")
    live = bench([took(2e-5), took(1.1e-5), took(1e-5 * LEADS), took(9e-6)], agreed)
    best = SLOWER.replace("64x64x64", "128x128x64")
    state = session_of(live, [SLOWER, near, best])
    # Of one answer the fastest reading comes first, then all that are as fast as what is confirmed.
    assert confirmed == [LINEAR, best, near]
    assert [bool(n.outcome.records) for n in state.tree.nodes] == [True, False, True, True]  # type: ignore[union-attr]
    assert state.tree.provisional == {1} and state.tree.best() is state.tree[0]


@pytest.mark.parametrize("verdict", ["faster", "undecided", "slower"])
def test_who_is_not_faster_in_turns_with_the_fastest_is_not_confirmed(verdict: str) -> None:
    raced = {"verdict": verdict, "ratio": 1.01, "rounds": 9}
    live = bench([took(2e-5), took(1.01e-5), raced])
    live.races = True
    state = session_of(live, [SLOWER])
    race = live.engine.asked[-1]  # type: ignore[attr-defined]
    assert [set(race[side]) for side in ("candidate", "incumbent")] == [{"program", "built", "sizes"}] * 2
    assert checked_of(race["candidate"]["program"]).source == SLOWER
    assert checked_of(race["incumbent"]["program"]).source == LINEAR
    behind = verdict != "faster"
    assert bool(state.tree[1].outcome.records) is not behind  # type: ignore[union-attr]
    assert state.behind == ({1} if behind else set()) == state.tree.provisional
    assert state.tree.best() is state.tree[0] or not behind


def test_a_race_that_is_lost_with_its_process_decides_nothing() -> None:
    live = bench([took(2e-5), took(1.01e-5), isolation.Crashed("SIGSEGV", "")])
    live.races = True
    state = session_of(live, [SLOWER])
    assert state.tree[1].outcome.records and not state.behind  # type: ignore[union-attr]


def test_what_a_judgement_needs_is_begun_while_a_candidate_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    probes: list[bool] = []

    class Noting(Engine):
        def submit(self, name: str, arguments: Mapping[str, Any], **more: Any) -> EngineTask:
            log.append(name)
            if name in ("prepare_judge", "expected"):
                future: Future[isolation.CallOutcome] = Future()
                future.set_result(isolation.Returned(None, "", 0.25))
                return EngineTask(future, lambda: None)
            return super().submit(name, arguments, **more)

    class Probed(evaluator_module.ProbeTask):
        def __init__(self, subject: Any, seed: int, *, begins: bool, call: Any) -> None:
            probes.append(begins)
            super().__init__(subject, seed, begins=False, call=call)

    monkeypatch.setattr(evaluator_module, "ProbeTask", Probed)
    live = bench([took(2e-5)])
    live.engine, live.prepares = Noting([took(2e-5), took(3e-5)]), True
    live.awaits = lambda text: log.append("built")
    state = session_of(live, [SLOWER])
    prepared = ["prepare_judge"] * (evaluator_module.CONFIRMING_PROCESSES - 1)
    # Schedules of one algorithm share a reference and a probe; more than one process gets ready after the verdict.
    first = ["prepare_judge", "expected", "built", "attempt", *prepared]
    assert log == [*first, "prepare_judge", "built", "attempt", *prepared]
    assert len(state.tree) == 2 and state.spend.gpu_seconds == 2 * 0.5 + 0.25
    assert probes == [True]


def test_what_a_confirmation_refutes_leads_no_more() -> None:
    def agreed(subject: Any, how: ConfirmationSettings, gpu: GpuCalls) -> Outcome:
        right = subject.checked.source == LINEAR
        return TimedOutcome(1e-5, 2.0, 1.9, 2.1, records=("a",)) if right else WrongOutcome("(0, 0)")

    state = session_of(bench([took(2e-5), took(8e-6)], agreed), [SLOWER])
    assert state.tree[1].outcome == WrongOutcome("(0, 0)") and state.tree.best() is state.tree[0]
    assert not state.tree.provisional and state.scale.baseline == pytest.approx(2e-5)


def test_a_best_that_lacks_baselines_is_completed_once_at_the_end() -> None:
    live, completed = bench([took(2e-5), took(8e-6)]), []

    def complete(subject: Any, how: ConfirmationSettings, gpu: GpuCalls, first: TimedOutcome) -> Outcome:
        completed.append(subject.checked.source)
        return replace(first, versus=(("eager", 2.0), ("compile-max-autotune", 1.2)))

    live.completion = complete
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evaluator_module, "leaves_out", lambda how: True)
        state = session_of(live, [SLOWER])
    best = state.tree.best()
    assert best is not None and isinstance(best.outcome, TimedOutcome)
    assert completed == [best.text] and dict(best.outcome.versus)["compile-max-autotune"] == 1.2
    assert state.ended == "the budget of 1 attempts is spent"


def test_a_comparison_that_fails_costs_no_confirmation() -> None:
    live = bench([took(2e-5)])
    live.completion = lambda *_: FailedOutcome("time", "torch.compile took too long")
    first = TimedOutcome(1e-5, 2.0, 1.9, 2.1, records=("a", "b"))
    found = live.confirm(Confirm(0, LINEAR, first, 1e-5, complete=True))
    assert found.outcome == first and "took too long" in found.messages[0] and not found.incomplete


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
    assert isinstance(judged(live), RejectedOutcome)


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

    def key(self, text: str, source: str = "") -> str | RefusedOutcome:
        return self.live.key(text)

    def judge(self, text: str, source: str = "") -> Any:
        from ucutlass.agent.run import CandidateJudgement

        return CandidateJudgement(TimedOutcome(random.Random(text).uniform(1e-5, 2e-5)))


def test_the_problem_s_own_mistakes_are_errors() -> None:
    with pytest.raises(ProgramError):
        problem_of("kernel k(", "p.ucu", None, {}, "sm90a")


def test_a_space_is_explored_once_and_beside_the_first_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    explored: list[int] = []
    ended = threading.Event()
    real = rules_module.explore

    def explore(*arguments: Any, **more: Any) -> Any:
        explored.append(threading.get_ident())
        return real(*arguments, **more)

    monkeypatch.setattr(rules_module, "explore", explore)
    proposer = rules(problem(), H200)
    assert isinstance(proposer, Preparing) and not explored, "a session's first verdict does not wait for it"

    def meanwhile() -> None:
        proposer.prepare()
        ended.set()

    live = bench([took(2e-5), took(3e-5)])
    live.meanwhile = lambda: meanwhile
    assert isinstance(live.key(LINEAR), str) and live.judge(LINEAR).provisional
    assert not explored
    for _ in range(2):
        live.confirm(Confirm(0, LINEAR, TimedOutcome(2e-5), None))
    assert ended.wait(60) and explored != [threading.get_ident()]
    settings = SessionSettings("flat", budget=Budget(2), stop=StopRule(None, None))
    session = open_journal_session(Mortal(), {"text": LINEAR}, settings, bound=0.0, baseline=None)
    assert len(run(session, proposer, bench([took(2e-5)])).tree) == 3 and len(explored) == 1


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
