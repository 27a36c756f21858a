"""A session by hand: who proposes in one place, who judges in another, a journal between them.

    python examples/ask_tell.py [JOURNAL]

Runs anywhere: the judge here has no GPU. It checks each program against the problem and takes the cost
model's estimate for its time, so what comes out is an estimate too. With a model in the place of `propose`
and a machine with a GPU in the place of `judge` (`ucutlass.agent.evaluator.GpuEvaluator` is one) it is `ucc optimize`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ucutlass import frontend
from ucutlass.agent.budget import Budget, Spend
from ucutlass.agent.journal import Journal
from ucutlass.agent.optimize import open_session, rules
from ucutlass.agent.outcome import RefusedOutcome, RepeatedOutcome, TimedOutcome, words
from ucutlass.agent.problem import OptimizationProblem, candidate_of, problem_of
from ucutlass.agent.proposer import Answer
from ucutlass.agent.run import CandidateJudgement, record_answer, record_ask, record_judgement, resume_session
from ucutlass.agent.session import Ask, Confirm, End, Judge, Review, SessionSettings, SessionState, due
from ucutlass.ir.hardware import DEVICES
from ucutlass.ir.schedule import show
from ucutlass.shapes import complete

TEXT = """\
kernel linear_gelu(x: bf16[M, K], w: bf16[N, K], bias: bf16[N]) -> bf16[M, N] {
  return gelu(dot[K](x, w) + bias)

  schedule sm90a { tile 64x64x64 }
}
"""
DEVICE = DEVICES["H200"]
STEPS = 7
"""What one process does before another goes on: a session outlives those who work on it."""


def propose(problem: OptimizationProblem, ask: Ask, state: SessionState) -> Answer:
    """Where a model would be asked. `state.tree` has what was tried, `ask.pick.parent` what to go on from."""
    return rules(problem, DEVICE).propose(ask, state, on_spend=lambda spend: None)


def judge(problem: OptimizationProblem, text: str, state: SessionState) -> tuple[CandidateJudgement, str]:
    """Where a GPU would be. The key tells candidates apart; one that is known is not judged again."""
    candidate = candidate_of(problem, text)
    if isinstance(candidate, RefusedOutcome):
        return CandidateJudgement(candidate), f"refused:{len(state.tree)}"
    kernel = frontend.kernel(candidate.checked, problem.program)
    sizes = complete(kernel, problem.sizes)
    planned = frontend.plan_kernel(candidate.checked, kernel, sizes, problem.arch, DEVICE).planned
    key = f"{candidate.key}|{show(planned.request)}"
    before = state.tree.find(key)
    if before is not None:
        return CandidateJudgement(RepeatedOutcome(before.id)), key
    return CandidateJudgement(TimedOutcome(planned.seconds), Spend(seconds=0.1)), key


def work(journal: Journal, id: str, problem: OptimizationProblem, steps: int | None = None) -> SessionState:
    """Does what is due, so many steps of it, and leaves the rest to whoever comes next."""
    session = resume_session(journal, id)
    while steps is None or steps > 0:
        match due(session.state):
            case Ask() as ask:
                record_ask(session, ask)  # from here on a call may cost something: it is written down first
                record_answer(session, ask, propose(problem, ask, session.state))
            case Judge() as due_judgement:
                record_judgement(session, due_judgement, *judge(problem, due_judgement.text, session.state))
            case Confirm() | Review() | End():  # no time is provisional here; nothing is left to do
                break
        steps = None if steps is None else steps - 1
    return session.state


def main(path: Path) -> None:
    problem = problem_of(TEXT, "linear_gelu.ucu", None, {"M": 4096, "N": 4096, "K": 4096}, "sm90a")
    journal = Journal.open(path)
    id = open_session(journal, problem, SessionSettings("flat", budget=Budget(attempts=8)), DEVICE).id
    work(journal, id, problem, STEPS)  # one process, which ends here ..
    state = work(journal, id, problem)  # .. and another that goes on
    for node in state.tree.nodes:
        print(f"{node.id:2} {words(node.outcome)}")
    best = state.tree.best()
    assert best is not None
    print(f"by estimate alone the best of {len(state.tree)} is {best.id}:\n{best.text}", end="")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "sessions.sqlite")
