"""`ucc optimize` from its words to its journal, on a machine whose GPU is made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from cli_machine import H200, LINEAR, SIZES, Machine, Result

from tests.optimise.proposers.messages_api import KEY, Server, calls, says, serving
from ucutlass.agent import optimize
from ucutlass.agent.energy import NOT_MEASURED
from ucutlass.agent.evaluator import GpuEvaluator
from ucutlass.agent.integrity import gather
from ucutlass.agent.integrity.bundle import MissingEvidence
from ucutlass.agent.journal import Journal
from ucutlass.agent.outcome import TimedOutcome
from ucutlass.agent.session import SessionState, replay_events
from ucutlass.engine.work import TABLE, EngineTask
from ucutlass.ir.hardware import DEVICES, arch_for
from ucutlass.runtime import isolation
from ucutlass.runtime.gpu import CurrentGpu

ANSWERS: Mapping[str, Any] = {
    "energy": {"no_energy": "NVML has no energy counter for this GPU"},
    "profiled": {"microseconds": 30.0, "spread": 0.01, "wall_microseconds": 33.0, "copy_bandwidth": 4e12},
    "counted": {"missing": "no ncu"},
    "race": {"verdict": "faster", "ratio": 0.99, "rounds": 6},
}

FASTER = LINEAR.read_text().replace("tile 128x256x64 or 256x128x64", "tile 128x128x64")


@dataclass
class Engine:
    """Every attempt is right and a little faster than the one before."""

    asked: list[str] = field(default_factory=list)
    closed: bool = False

    gpus = cpus = 1

    def submit(self, name: str, arguments: Mapping[str, Any], **more: Any) -> EngineTask:
        assert name in TABLE
        if name in ("prepare_judge", "expected"):
            begun: Future[isolation.CallOutcome] = Future()
            begun.set_result(isolation.Returned(None, ""))
            return EngineTask(begun, lambda: None)
        self.asked.append(name)
        tries = self.asked.count("attempt")
        answer = {"seconds": (100 - tries) * 1e-7, "words": ""} if name == "attempt" else ANSWERS[name]
        future: Future[isolation.CallOutcome] = Future()
        future.set_result(isolation.Returned(json.loads(json.dumps(answer)), "", 2.0))
        return EngineTask(future, lambda: None)

    def leave(self, near: str) -> None: ...

    def close(self) -> None:
        self.closed = True


Optimize: TypeAlias = Callable[..., Result]


@pytest.fixture
def engine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made = Engine()
    device = next(d for d in DEVICES.values() if "H200" in d.name)
    current_gpu = CurrentGpu(H200.gpus[0], arch_for((9, 0)), device)  # type: ignore[arg-type]
    monkeypatch.setattr("ucutlass.cli.optimize.opened", lambda spec, as_json, template: made)
    monkeypatch.setattr("ucutlass.cli.optimize.at_hand", lambda hall: current_gpu)

    def live(*arguments: Any, **more: Any) -> GpuEvaluator:
        bench = GpuEvaluator(*arguments, **more)
        bench.confirmation = lambda subject, how, gpu: TimedOutcome(
            (100 - made.asked.count("attempt")) * 1e-7, 2.0, 1.9, 2.1, records=("a" * 64,)
        )
        return bench

    monkeypatch.setattr(optimize, "GpuEvaluator", live)
    monkeypatch.setattr(gather, "probe_reference", lambda *_: MissingEvidence("nobody is asked here"))
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    yield made
    assert made.closed


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as made:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", made.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("NO_PROXY", "*")
        yield made


def state_of(machine: Machine) -> SessionState:
    journal = Journal(machine.home / "data" / "sessions.sqlite")
    (id,) = journal.sessions()
    return replay_events(journal.events(id))


def test_a_session_is_run_resumed_and_listed(machine: Machine, engine: Engine) -> None:
    first = machine.ucc("optimize", LINEAR, *SIZES, "--attempts", "2", "--never-stop", "--json").json
    assert first["attempts"] == 2 and first["best"]["gain"] == 2.0
    attempts, races = (engine.asked.count(name) for name in ("attempt", "race"))
    assert attempts == 3 and races, engine.asked
    assert first["spend"]["gpu_seconds"] == 2.0 * (attempts + races), "confirmations are made up"
    assert first["stopped"] == "the budget of 2 attempts is spent" and first["opinions"] == []
    state = state_of(machine)
    assert (state.settings.advice, state.settings.objective, state.settings.judge) == ("static", "time", "")
    assert all(n.outcome.advice for n in state.tree.nodes if isinstance(n.outcome, TimedOutcome))
    again = machine.ucc("optimize", "--resume", first["session"][:8], "--attempts", "3")
    assert again.status == 0 and "attempts\t3" in again.out
    assert engine.asked.count("attempt") == 4, "what was judged is not judged again"
    (row,) = machine.ucc("sessions", "--json").json
    assert row["id"] == first["session"] and row["candidates"] == 4


def test_energy_that_cannot_be_measured_is_said_once(machine: Machine, engine: Engine) -> None:
    result = machine.ucc("optimize", LINEAR, *SIZES, "--attempts", "2", "--objective", "energy-tie")
    assert result.status == 0 and result.err.count(NOT_MEASURED) == 1
    assert engine.asked.count("energy") == 1 and state_of(machine).settings.objective == "energy-tie"


def test_leaders_are_profiled_where_that_is_asked_for(machine: Machine, engine: Engine) -> None:
    machine.ucc("optimize", LINEAR, *SIZES, "--attempts", "1", "--advice", "profiled", "--never-stop")
    assert engine.asked == ["attempt", "profiled", "counted", "attempt", "race", "profiled"]
    own, other = (n.outcome for n in state_of(machine).tree.nodes)
    assert isinstance(own, TimedOutcome) and isinstance(other, TimedOutcome)
    assert "counters (no ncu)" in own.advice and "counters" not in other.advice


def test_a_model_measures_and_another_gives_its_opinion(
    machine: Machine, engine: Engine, server: Server
) -> None:
    label = json.dumps({"label": "ok", "words": "nothing to object to"})
    server.scripts += [says(calls("measure", {"program": FASTER})), says(f"```ucu\n{FASTER}```"), says(label)]
    result = machine.ucc(
        "optimize",
        LINEAR,
        *SIZES,
        "--model",
        "claude-opus-5-5",
        "--judge",
        "claude-sonnet-5-5",
        "--attempts",
        "1",
        "--advice",
        "none",
    )
    assert result.status == 0, result.err
    assert "claude-sonnet-5-5 of 1, deciding nothing: ok: nothing to object to" in result.err
    state = state_of(machine)
    assert [r["model"] for r in server.requests] == ["claude-opus-5-5"] * 2 + ["claude-sonnet-5-5"]
    assert len(state.tree) == 2 and state.spend.attempts == 1 and state.spend.dollars > 0
    assert state.settings.judge == "claude-sonnet-5-5" and state.opinions[1].label == "ok"


def test_a_model_measures_nothing_where_that_is_not_wanted(
    machine: Machine, engine: Engine, server: Server
) -> None:
    server.scripts += [says(f"```ucu\n{FASTER}```")]
    machine.ucc("optimize", LINEAR, *SIZES, "--model", "claude-opus-5-5", "--attempts", "1", "--no-measure")
    assert "measure" not in [t["name"] for t in server.requests[0]["tools"]]


def test_a_judge_without_a_key_is_said_before_anything_is_measured(machine: Machine, engine: Engine) -> None:
    result = machine.ucc("optimize", LINEAR, *SIZES, "--judge", "claude-sonnet-5-5")
    assert result.status == 3 and "ANTHROPIC_API_KEY is not set" in result.err and "--resume" in result.err
    assert not engine.asked and len(state_of(machine).tree) == 0


def test_an_engine_that_is_none_is_the_call_s_mistake(machine: Machine) -> None:
    result = machine.ucc("optimize", LINEAR, *SIZES, "--engine", "ray://x:1")
    assert result.status == 2 and "dask://HOST:PORT" in result.err


def test_without_a_gpu_nothing_is_optimised(machine: Machine) -> None:
    result = machine.ucc("optimize", LINEAR, *SIZES)
    assert result.status == 3 and "there is no NVIDIA GPU here" in result.err
    assert not Path(machine.home / "data" / "sessions.sqlite").exists()


LOW_RANK = """\
pipeline low_rank(x: f32[M, K=64], a: f32[K, J=4096], b: f32[J, N=64]) -> f32[M, N] {
  h: f32 = dot[K](x, a)
  return dot[J](h, b)
}
"""


def test_what_is_computed_once_is_left_out_of_a_session(machine: Machine, engine: Engine) -> None:
    file = machine.home / "low_rank.ucu"
    file.write_text(LOW_RANK)
    words = ("optimize", file, "-s", "M=2048", "--attempts", "0", "--fold-weights")
    assert machine.ucc(*words, "a, b").status == 0
    problem = state_of(machine).problem
    assert "pipeline low_rank_folded" in problem["text"] and problem["program"] == "low_rank"
    refused = machine.ucc(*words, "c")
    assert refused.status == 2 and "low_rank has no parameter c; it has x, a, b" in refused.err
    for words in (("optimize", machine.home), ("optimize", "--resume", "a")):
        assert machine.ucc(*words, "--fold-weights", "a").status == 2
