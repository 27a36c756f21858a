"""Sessions of the proposer, their journal and their recorded traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.optimise.made_up import Mortal
from tests.optimise.proposers.messages_api import KEY, Script, calls, cut, says
from tests.optimise.proposers.talking import BETTER, PROGRAM, SIZES, Bench, block, proposer
from ucutlass.agent.budget import Budget
from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.proposers.anthropic import open_service
from ucutlass.agent.proposers.conversation import ModelProposer, ModelSettings
from ucutlass.agent.proposers.problem_facts import ProblemDescription, subject_of
from ucutlass.agent.proposers.tools import toolbox
from ucutlass.agent.proposers.traffic import NotTraffic, RecordingService, ReplayingService
from ucutlass.agent.run import OptimizationSession, open_journal_session, run
from ucutlass.agent.session import SessionSettings, SessionState, replay_events
from ucutlass.agent.stop import StopRule
from ucutlass.frontend import read_text


def scripts_of_a_session() -> list[Script]:
    sizes = ("64x128", "128x256", "256x128")
    scripts = [says(block(PROGRAM.replace("128x128", size))) for size in sizes]
    return [says(calls("check", {"program": BETTER})), *scripts, says("I have no more ideas")]


def session_on(service: Any, subject: ProblemDescription) -> tuple[SessionState, Mortal]:
    sink = Mortal()
    chosen = SessionSettings("flat", "single", Budget(4), StopRule(None, None))
    session = open_journal_session(sink, {"text": PROGRAM}, chosen, bound=1.4e-4, baseline=2e-4, id="s")
    return run(session, ModelProposer(subject, service, ModelSettings(), toolbox(subject)), Bench()), sink


def test_a_recorded_session_replays_bit_for_bit(at: Any, subject: ProblemDescription, tmp_path: Path) -> None:
    server = at(*scripts_of_a_session())
    path = tmp_path / "traffic.jsonl"
    service = RecordingService(open_service(KEY, base_url=server.url), path)
    state, sink = session_on(service, subject)
    assert state.spend.attempts == 4 and len(state.tree) == 5 and len(server.requests) == 5
    again, resink = session_on(ReplayingService.open(path), subject)
    assert again.spend == state.spend and again.tree.nodes == state.tree.nodes
    answers, replayed = (
        [{**e.body, "time": None} for e in events if e.kind == "answered"]
        for events in (sink.events, resink.events)
    )
    assert answers == replayed
    other = subject_of(read_text(PROGRAM, "problem"), None, {**SIZES, "M": 64}, "sm90a", "H200")
    with pytest.raises(ProposerFailed, match="was not recorded"):
        session_on(ReplayingService.open(path), other)


def test_a_cut_record_is_asked_again_and_a_wrong_one_is_refused(
    at: Any, subject: ProblemDescription, tmp_path: Path
) -> None:
    path = tmp_path / "traffic.jsonl"
    service = RecordingService(open_service(KEY, base_url=at(*scripts_of_a_session()).url), path)
    state, _ = session_on(service, subject)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(ProposerFailed, match="was not recorded"):
        session_on(ReplayingService.open(path), subject)
    server = at(scripts_of_a_session()[-1])
    ask_last = RecordingService(open_service(KEY, base_url=server.url), path)

    class Either:
        def send(self, request: Any, on_usage: Any) -> Any:
            try:
                return ReplayingService.open(path).send(request, on_usage)
            except ProposerFailed:
                return ask_last.send(request, on_usage)

    again, _ = session_on(Either(), subject)
    assert again.tree.nodes == state.tree.nodes and len(server.requests) == 1
    assert len(path.read_bytes().splitlines()) == len(whole.splitlines())
    path.write_bytes(whole.replace(b'"max_tokens":32000', b'"max_tokens":32001', 1))
    with pytest.raises(NotTraffic, match=r"jsonl:\d is no recorded request"):
        ReplayingService.open(path)


def test_a_failed_call_is_in_the_journal_with_its_spend_and_can_be_resumed(
    at: Any, subject: ProblemDescription
) -> None:
    server = at(cut(block(BETTER), after=2), says(block(BETTER)))
    sink = Mortal()
    chosen = SessionSettings("flat", "single", Budget(1), StopRule(None, None))
    session = open_journal_session(sink, {"text": PROGRAM}, chosen, bound=1.4e-4, baseline=None, id="s")
    it = proposer(server, subject)
    with pytest.raises(ProposerFailed):
        run(session, it, Bench())
    assert [e.kind for e in sink.events][-3:] == ["asked", "spent", "failed"]
    again = OptimizationSession("s", sink, replay_events(sink.events))
    state = run(again, it, Bench())
    # The same request, so its prompt was in the cache; nothing is counted twice.
    assert server.requests[0] == server.requests[1]
    assert state.spend.written == server.counted[0].written and state.spend.cached == server.counted[1].cached
