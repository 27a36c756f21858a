"""Proposers by their makers, for a problem: what is wrong before anything is measured is wrong at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.optimise.made_up import Mortal
from tests.optimise.proposers.messages_api import KEY, says
from tests.optimise.proposers.talking import BETTER, PROGRAM, SIZES, Bench, block
from ucutlass.agent.budget import Budget
from ucutlass.agent.problem import problem_of
from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.proposers import factory
from ucutlass.agent.proposers.conversation import ModelSettings
from ucutlass.agent.run import open_journal_session, run
from ucutlass.agent.session import SessionSettings, SessionState
from ucutlass.agent.stop import StopRule
from ucutlass.ir.hardware import DEVICES

PROBLEM = problem_of(PROGRAM, "linear.ucu", None, SIZES, "sm90a")


def ran(maker: Any) -> SessionState:
    chosen = SessionSettings("flat", "single", Budget(1), StopRule(None, None))
    session = open_journal_session(Mortal(), {"text": PROGRAM}, chosen, bound=1.4e-4, baseline=None, id="s")
    return run(session, maker(PROBLEM, DEVICES["H200"], 0), Bench())


def test_a_model_its_record_and_a_command(at: Any, tmp_path: Path) -> None:
    server, record = at(says(block(BETTER))), tmp_path / "traffic" / "of a session.jsonl"
    told = ("gelu: 1.2 times as fast with a wider tile",)
    maker = factory.model(ModelSettings(), key=KEY, base_url=server.url, record=record, memory=told)
    live = ran(maker)
    assert live.tree[1].text == BETTER and told[0] in server.requests[0]["system"][1]["text"]
    assert [t["name"] for t in server.requests[0]["tools"]] == ["check", "explain", "sol", "guide"]
    again = ran(factory.recorded(record, ModelSettings(), memory=told))
    assert again.tree.nodes == live.tree.nodes and again.spend == live.spend
    with pytest.raises(ProposerFailed, match="was not recorded"):
        ran(factory.recorded(record, ModelSettings(effort="low"), memory=told))
    answer = f"import sys, json; sys.stdin.read(); print(json.dumps({{'text': {BETTER!r}}}))"
    assert ran(factory.command([sys.executable, "-c", answer])).tree[1].text == BETTER


def test_what_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ProposerFailed, match="there is no API key"):
        factory.model(ModelSettings())
    with pytest.raises(ProposerFailed, match="cannot be read"):
        factory.recorded(tmp_path / "nothing.jsonl", ModelSettings())
    (tmp_path / "prose").write_text("no traffic\n")
    with pytest.raises(ProposerFailed, match="prose:1 is no recorded request"):
        factory.recorded(tmp_path / "prose", ModelSettings())


def test_without_a_device_the_targets_usual_one_is_told() -> None:
    problem_description = factory.subject(PROBLEM, None)
    assert problem_description.device == "H200" and problem_description.compute_type == "bf16"
    assert problem_description.bound and problem_description.facts
