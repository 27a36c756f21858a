"""Sessions of the agent on a cluster: a problem's times on one GPU, and a worker that dies amid a trial."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import GPUS, notes, table

from tests.optimise.made_up import UNPLANNED, Mortal
from tests.optimise.test_evaluator import H200, LINEAR, SIZES
from ucutlass.agent import evaluator as evaluator_module
from ucutlass.agent.budget import Budget
from ucutlass.agent.optimize import Machinery, open_session, run_session
from ucutlass.agent.outcome import TimedOutcome
from ucutlass.agent.problem import OptimizationProblem, problem_of
from ucutlass.agent.proposer import Answer, OnSpend
from ucutlass.agent.run import CandidateJudgement
from ucutlass.agent.session import Ask, ProposedProgram, SessionSettings, SessionState
from ucutlass.agent.stop import StopRule
from ucutlass.assembly import BuiltPipeline
from ucutlass.engine.cluster import local_cluster
from ucutlass.engine.dask import DaskEngine
from ucutlass.engine.errors import NoWorkers
from ucutlass.engine.work import TaskEntry
from ucutlass.runtime.cache import Cache

pytestmark = pytest.mark.slow

pytest.importorskip("distributed")

TILES = ("64x64x64", "128x32x64", "128x128x64", "128x256x64", "256x128x64")
TABLE = table() | {"attempt": TaskEntry("engine_fakes:trial", "gpu", "warm")}
SETTINGS = SessionSettings("flat", budget=Budget(len(TILES)), stop=StopRule(None, None), advice="none")


class Proposer:
    """Each tile in turn; the fourth kills its worker."""

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        at = f"schedule sm90a {{ tile {TILES[len(state.tree) - 1]} }} return"
        return Answer([ProposedProgram(state.tree[0].text.replace("return", at), "")])


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_module, "build_program", lambda *a, **k: BuiltPipeline(UNPLANNED, ()))
    # Who would lead is confirmed on the engine too; here another reading is taken for that.
    confirmed = CandidateJudgement(TimedOutcome(1e-5, records=("a",)))
    monkeypatch.setattr(evaluator_module.GpuEvaluator, "confirm", lambda bench, due: confirmed)


def problem(name: str) -> OptimizationProblem:
    return problem_of(LINEAR.replace("linear", name), f"{name}.ucu", None, SIZES, "sm90a")


def worked(engine: Any, name: str) -> SessionState:
    session = open_session(Mortal(), problem(name), SETTINGS, H200)  # type: ignore[arg-type]
    return run_session(session, Machinery(engine, H200), lambda *_: Proposer())


def test_problems_are_spread_and_a_death_amid_a_trial_costs_no_attempt(tmp_path: Path) -> None:
    environs = [{"UCUTLASS_CACHE_DIR": str(tmp_path / f"worker{i}")} for i in range(2)]
    with local_cluster(GPUS[:2], 2, environs=environs) as spec:
        engine = DaskEngine(spec.replace("dask", "tcp"), table=TABLE, cache=Cache(tmp_path / "own", 1 << 30))
        with ThreadPoolExecutor(2) as pool:
            states = list(pool.map(lambda name: worked(engine, name), ("one", "two")))
        engine.close()
    for state in states:
        assert state.spend.attempts == len(TILES) and len(state.tree) == len(TILES) + 1
        assert [type(n.outcome) for n in state.tree.nodes] == [TimedOutcome] * (len(TILES) + 1)
        assert state.spend.gpu_seconds > 0
    lines = [line.split() for line in notes(tmp_path / "trials")]
    assert len(notes(tmp_path / "fatal")) == 3, "who died with a trial, that trial again, the other problem's"
    assert len(lines) == 2 * (len(TILES) + 1) + 1, "nothing else ran twice"
    # Until the worker died, each problem was on a GPU of its own; one may not have begun by then.
    before = lines[: next(at for at, line in enumerate(lines) if line[2] == "fatal") + 1]
    apart = ({("one", GPUS[0]), ("two", GPUS[1])}, {("one", GPUS[1]), ("two", GPUS[0])})
    assert any({(name, gpu) for name, gpu, _ in before} <= each for each in apart)


def test_a_cluster_without_a_gpu_stops_the_session_and_spends_nothing(tmp_path: Path) -> None:
    sink = Mortal()
    with local_cluster(GPUS[:0], 2) as spec:
        engine = DaskEngine(
            spec.replace("dask", "tcp"),
            table=TABLE,
            cache=Cache(tmp_path / "own", 1 << 30),
            patience_seconds=0.0,
        )
        session = open_session(sink, problem("one"), SETTINGS, H200)  # type: ignore[arg-type]
        with pytest.raises(NoWorkers, match="no worker with the resource GPU"):
            run_session(session, Machinery(engine, H200), lambda *_: Proposer())
        engine.close()
    assert [e.kind for e in sink.events] == ["opened"], "it can be resumed as it was"
