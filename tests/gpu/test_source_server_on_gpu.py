"""A session at source level against a local model server on a GPU: killed in the middle, and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.source_server import SOURCE, session
from ucutlass.agent.journal import Journal
from ucutlass.agent.outcome import FailedOutcome, TimedOutcome
from ucutlass.agent.session import replay_events

pytest.importorskip("anthropic")

pytestmark = pytest.mark.gpu


def test_a_compile_error_is_fed_back_and_code_searched_before_and_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "data"))
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "NO_PROXY"):
        monkeypatch.setenv(name, "")  # restored afterwards
    checks = session(tmp_path, SOURCE, "B=1000,M=16,N=16,K=16", 240.0)
    journal = Journal(tmp_path / "sessions.sqlite")
    (id,) = journal.sessions()
    _, broken, repaired = replay_events(journal.events(id)).tree.nodes
    assert isinstance(broken.outcome, FailedOutcome) and broken.outcome.stage == "build"
    assert isinstance(repaired.outcome, TimedOutcome), repaired.outcome
    checks.pop("the source is served")  # beside other tests it need not be the faster one
    assert all(checks.values()), checks
