"""The example that lets a command-line agent propose, through the proposer that runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.optimise.proposers.talking import BETTER, answered, block, failed
from ucutlass.agent.proposers.command import CommandProposer
from ucutlass.agent.proposers.problem_facts import ProblemDescription

SCRIPT = Path(__file__).parents[3] / "examples" / "command_agent.py"

AGENT = """
import os, pathlib, sys
prompt = sys.stdin.read()
assert "uCUTLASS in two pages" in prompt and "M=" in prompt, prompt[:1000]
assert not list(pathlib.Path().iterdir())
print(pathlib.Path(sys.argv[1]).read_text())
"""


def proposer(subject: ProblemDescription, *agent: str) -> CommandProposer:
    return CommandProposer(subject, [sys.executable, str(SCRIPT), *agent])


def test_an_agent_that_answers(subject: ProblemDescription, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "answer").write_text(block(BETTER))
    agent = (sys.executable, str(tmp_path / "agent.py"), str(tmp_path / "answer"))
    answer, _ = answered(proposer(subject, *agent))
    assert [program.text for program in answer.programs] == [BETTER]


@pytest.mark.parametrize("agent", [("false",), ("no-such-agent",)])
def test_an_agent_that_fails_stops_the_session(subject: ProblemDescription, agent: tuple[str, ...]) -> None:
    assert "ended with status 1" in str(failed(proposer(subject, *agent)))
