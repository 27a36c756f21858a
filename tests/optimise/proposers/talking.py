"""What the tests of proposers share: a problem, a bench, and calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.optimise.made_up import Mortal
from tests.optimise.proposers.messages_api import KEY, Server
from ucutlass.agent.budget import NOTHING, Budget, Spend
from ucutlass.agent.outcome import RefusedOutcome, TimedOutcome
from ucutlass.agent.proposer import Answer, ProposerFailed
from ucutlass.agent.proposers.anthropic import open_service
from ucutlass.agent.proposers.conversation import ModelProposer, ModelSettings
from ucutlass.agent.proposers.problem_facts import ProblemDescription
from ucutlass.agent.proposers.tools import toolbox
from ucutlass.agent.run import CandidateJudgement, open_journal_session, step
from ucutlass.agent.session import Ask, Judge, SessionSettings, SessionState, due
from ucutlass.agent.stop import StopRule

PROGRAM = """kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {
  return dot[K](x, w)

  schedule sm90a { tile 128x128x64 }
}
"""
BETTER = PROGRAM.replace("128x128x64", "128x256x64")
SIZES = {"M": 4096, "N": 4096, "K": 4096}


class Bench:
    """Every program is right and as slow as it is long."""

    def key(self, text: str, source: str = "") -> str | RefusedOutcome:
        return text

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        return CandidateJudgement(
            TimedOutcome(len(text) * 1e-6, gain=1.0, low=0.99, high=1.01, advice="use a larger tile")
        )


def asked(role: str = "implement", budget: Budget | None = None) -> tuple[Ask, SessionState]:
    """The first call of a session whose root was judged."""
    dialogue = {"implement": "single", "phases": "in-prompt", "plan": "stark", "analyse": "mantis"}[role]
    chosen = SessionSettings("flat", dialogue, budget or Budget(5), StopRule(None, None))  # type: ignore[arg-type]
    session = open_journal_session(Mortal(), {"text": PROGRAM}, chosen, bound=1.4e-4, baseline=2e-4, id="s")
    root = due(session.state)
    assert isinstance(root, Judge)
    step(session, None, Bench())  # type: ignore[arg-type]
    ask = due(session.state)
    assert isinstance(ask, Ask) and ask.role == role
    return ask, session.state


def proposer(
    server: Server,
    subject: ProblemDescription,
    chosen: ModelSettings | None = None,
    *,
    key: str = KEY,
    tools: bool = False,
    slept: list[float] | None = None,
    timeout: float = 30.0,
    measure: Any = None,
) -> ModelProposer:
    waits = [] if slept is None else slept
    service = open_service(key, base_url=server.url, timeout=timeout, sleep=waits.append)
    return ModelProposer(
        subject, service, chosen or ModelSettings(), toolbox(subject, measure) if tools else ()
    )


def answered(it: ModelProposer, role: str = "implement") -> tuple[Answer, Spend]:
    spent: list[Spend] = []
    ask, state = asked(role)
    answer = it.propose(ask, state, spent.append)
    return answer, sum(spent, NOTHING)


def failed(
    it: ModelProposer, role: str = "implement", budget: Budget | None = None
) -> tuple[ProposerFailed, Spend]:
    spent: list[Spend] = []
    ask, state = asked(role, budget)
    with pytest.raises(ProposerFailed) as caught:
        it.propose(ask, state, spent.append)
    return caught.value, sum(spent, NOTHING)


def block(program: str) -> str:
    return f"A larger tile feeds the tensor cores better.\n```ucu\n{program}```\n"
