"""A whole session on a GPU: confirmed on the engine's GPU, profiled, weighed by energy.

One candidate is judged: each takes a minute, in fresh processes one after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ucutlass.adopt import database as adopted
from ucutlass.agent.advisor import NOT_LOOKED
from ucutlass.agent.budget import Budget
from ucutlass.agent.energy import NOT_MEASURED
from ucutlass.agent.journal import Journal
from ucutlass.agent.optimize import Machinery, open_session, rules, run_session
from ucutlass.agent.outcome import TimedOutcome
from ucutlass.agent.problem import problem_of
from ucutlass.agent.proposer import Answer, OnSpend
from ucutlass.agent.report.facts import facts
from ucutlass.agent.report.page import page
from ucutlass.agent.session import Ask, ProposedProgram, SessionSettings, SessionState
from ucutlass.agent.source_files import CandidateFiles
from ucutlass.agent.source_winner import adopt_winner
from ucutlass.agent.stop import StopRule
from ucutlass.engine.local import LocalEngine
from ucutlass.runtime import gpu, switches
from ucutlass.runtime.store import EvidenceStore
from ucutlass.tune.database import TuningDatabase

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

PROGRAM = Path(__file__).parent.parent.parent / "examples" / "layer_norm.ucu"

KERNEL = "kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return relu(dot[K](x, w)) }\n"
CHAIN = """
pipeline chain(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] {
  h: bf16[M, N] = dot[K](x, w) + b
  return softmax[N](h)
}
"""
SIZES = {"M": 4096, "N": 4096, "K": 1024}
"""Large enough for medians that settle within the seconds of a comparison, also of two launches."""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEngine]:
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path))
    monkeypatch.setenv(switches.BUILD_PATH, "auto")  # as anyone builds: nvcc alone takes ten times as long
    local_engine = LocalEngine()
    yield local_engine
    local_engine.close()


@pytest.mark.parametrize("text", [KERNEL, CHAIN], ids=["kernel", "pipeline"])
def test_a_session_confirms_profiles_and_weighs(text: str, engine: LocalEngine, tmp_path: Path) -> None:
    current_gpu = gpu.at_hand()
    assert current_gpu is not None
    problem = problem_of(text, "p.ucu", None, SIZES, current_gpu.arch.name)
    settings = SessionSettings(
        "flat", budget=Budget(1), stop=StopRule(None, None), advice="profiled", objective="energy-tie"
    )
    journal = Journal(tmp_path / "sessions.sqlite")
    session = open_session(journal, problem, settings, current_gpu.device)
    state = run_session(session, Machinery(engine, current_gpu.device), rules)
    own = state.tree[0].outcome
    assert isinstance(own, TimedOutcome) and len(own.records) == 3, own
    kinds = {EvidenceStore.open().get(id).kind for id in own.records}
    assert kinds == {"verify", "bench", "audit"}
    assert own.gain is not None and own.low is not None and own.low <= own.gain
    assert own.advice.startswith(("bottleneck: ", "took "))
    if own.joules is None:
        assert any(words.startswith(NOT_MEASURED) for words in state.messages), state.messages
    else:
        assert 0 < own.joules < 10
    assert (
        sum(NOT_LOOKED in n.outcome.advice for n in state.tree.nodes if isinstance(n.outcome, TimedOutcome))
        <= 1
    )
    assert 0 < state.spend.gpu_seconds < state.spend.seconds
    print(own.advice, own.joules, state.messages, state.spend)
    assert "What was gained" in page(facts(session.id, journal.events(session.id)))


def streaming_stores(file: str) -> str:
    return file.replace('"st.global.v4.b32', '"st.global.cs.v4.b32')


@dataclass(frozen=True)
class Editor:
    """Answers with the emitted layer norm, whose stores are streaming."""

    files: CandidateFiles | None = None

    def writing_source(self, files: CandidateFiles) -> Editor:
        return Editor(files)

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        assert self.files is not None
        parent = state.tree[ask.pick.parent]
        return Answer(
            [ProposedProgram(parent.text, "streaming stores", streaming_stores(self.files.of(parent).text))]
        )


def test_a_session_at_source_level_judges_a_source_as_adopting_does(
    engine: LocalEngine, tmp_path: Path
) -> None:
    current_gpu = gpu.at_hand()
    assert current_gpu is not None
    text, sizes = PROGRAM.read_text(encoding="utf-8"), {"T": 4096, "D": 1024}
    problem = problem_of(text, "p.ucu", None, sizes, current_gpu.arch.name)
    settings = SessionSettings(
        "flat", budget=Budget(1), stop=StopRule(None, None), proposer="command", level="source"
    )
    session = open_session(Journal(tmp_path / "sessions.sqlite"), problem, settings, current_gpu.device)
    where = Machinery(engine, current_gpu.device, gpu=current_gpu.gpu.name)
    state = run_session(session, where, lambda *_: Editor())
    node = state.tree[1]
    print(node.outcome, state.messages)
    assert isinstance(node.outcome, TimedOutcome), node.outcome
    assert "ptxas: " in node.outcome.advice
    if state.tree.best() is not node:
        assert node.id in state.tree.provisional, "another was faster"
        return
    proof = EvidenceStore.open().get(node.outcome.records[0])
    assert proof.kind == "verify" and proof.result["sanitizers"]
    assert adopt_winner(state, current_gpu.gpu.name, current_gpu.device).state == "confirmed"
    assert len(adopted.rows(TuningDatabase.open())) == 1
