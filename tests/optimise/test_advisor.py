"""Advice of candidates: counted for each, profiled for a leader, and what is missing is told once."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.optimise.made_up import UNPLANNED, judged_in_turn
from tests.optimise.test_evaluator import CHAIN, H200, LINEAR, bench, problem, took
from ucutlass import frontend
from ucutlass.advice import Counters
from ucutlass.agent import advisor
from ucutlass.agent import evaluator as evaluator_module
from ucutlass.agent.advisor import NOT_LOOKED, Advisor, advisor_of, headline
from ucutlass.agent.evidence import BuiltCandidate, ConfirmationSettings
from ucutlass.agent.gpu_calls import GpuCalls
from ucutlass.agent.outcome import Outcome, TimedOutcome
from ucutlass.agent.problem import OptimizationProblem, ProgramCandidate, candidate_of, problem_of
from ucutlass.agent.session import SessionSettings, SessionState
from ucutlass.agent.tree import CandidateTree
from ucutlass.assembly import BuiltPipeline
from ucutlass.backend import Built
from ucutlass.engine.work import TABLE, EngineTask
from ucutlass.runtime import isolation

SLOW = LINEAR.replace("{ return", "{ schedule sm90a { tile 64x64x64 } return")
TIMED = {"microseconds": 500.0, "spread": 0.01, "wall_microseconds": 503.0, "copy_bandwidth": 4e12}
COUNTERS = asdict(Counters(tensor=0.3, dram=0.7654, dram_bytes=9e9, seconds=5e-4))
BIG = {"M": 4096, "N": 4096, "K": 4096}


def static(text: str, of: OptimizationProblem, seconds: float, advisor: Advisor | None = None) -> str:
    outcome = candidate_of(of, text)
    assert isinstance(outcome, ProgramCandidate)
    chosen = advisor or Advisor()
    return chosen.static(outcome.checked, outcome.program, of.sizes, of.arch, H200, seconds)


def test_every_candidate_is_told_what_decides_its_time_and_what_to_try() -> None:
    of = replace(problem(), sizes=BIG)
    text = static(SLOW, of, 5e-4)
    first, second, *rest = text.splitlines()
    assert first.startswith("bottleneck: ") and headline(text) == first
    assert second.startswith("took 500.00 us, estimated ") and "of the bound's speed" in second
    assert any(line.startswith("  try: ") for line in rest)
    assert sum(line.startswith("advice: ") for line in rest) <= 3
    assert static(SLOW, of, 5e-4, Advisor("none")) == ""


def test_the_class_goes_by_what_was_measured() -> None:
    of = problem()
    near, far = (static(LINEAR, of, s) for s in (4e-6, 1e-3))
    assert headline(near) != headline(far)


def test_a_family_without_a_cost_model_is_told_its_neighbours() -> None:
    text = "kernel s(x: bf16[M, N]) -> bf16[M, N] { return softmax[N](x) }"
    of = problem_of(text, "s.ucu", "s", {"M": 4096, "N": 4096}, "sm90a")
    said = static(text, of, 1e-3)
    assert "one field away" in said and "  try: " in said


def test_a_pipeline_is_told_of_its_stages() -> None:
    of = problem(CHAIN)
    first, second, *_ = static(CHAIN, of, 5e-5).splitlines()
    assert first.startswith("took 50.00 us; estimated by stage: ") and first.count(" us") >= 3
    assert second.startswith("stage ") and "bottleneck: " in second


# --- leaders ---------------------------------------------------------------------


@dataclass
class Profiler:
    """An engine whose GPU has Nsight Compute, or says why it has not."""

    counters: Any = field(default_factory=lambda: {"counters": COUNTERS})
    timed: Any = field(default_factory=lambda: TIMED)
    asked: list[str] = field(default_factory=list)

    gpus = cpus = 1

    def submit(self, name: str, arguments: Mapping[str, Any], **more: Any) -> EngineTask:
        assert name in TABLE
        self.asked.append(name)
        answer = {"profiled": self.timed, "counted": self.counters}[name]
        future: Future[isolation.CallOutcome] = Future()
        future.set_result(answer if not isinstance(answer, dict) else isolation.Returned(answer, "", 2.0))
        return EngineTask(future, lambda: None)

    def leave(self, near: str) -> None: ...
    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(advisor.cuda_tools, "find", lambda *_: None)


def subject(text: str) -> BuiltCandidate:
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    chosen = frontend.plan_kernel(checked, kernel, tuple(BIG.values()), "sm90a", H200)
    from ucutlass.runtime.ptxas import PtxasReport

    artifact = SimpleNamespace(report=PtxasReport((), ()), versions={}, key="k", library=Path("/none"))
    built = Built(chosen, None, artifact)  # type: ignore[arg-type]
    return BuiltCandidate(checked, kernel, built, BIG)


def profiled(engine: Profiler, advisor: Advisor) -> tuple[str, GpuCalls]:
    gpu = GpuCalls(engine, "x", 1.0)
    return advisor.profiled(subject(SLOW), "sm90a", gpu, 0, 5e-4), gpu


def test_a_leader_is_timed_and_counted_and_its_gpu_seconds_are_spent() -> None:
    engine = Profiler()
    said, gpu = profiled(engine, Advisor("profiled"))
    assert engine.asked == ["profiled", "counted"] and gpu.held == 4.0
    assert headline(said).startswith("bottleneck: ") and "advice: " in said
    without, _ = profiled(Profiler(counters={"missing": "no ncu"}), Advisor("profiled"))
    assert said.splitlines()[:-1] != without.splitlines()[:-1], "counters say more"
    assert "0.7654" not in said, "numbers of rules, no raw counters"
    assert f"{NOT_LOOKED}disassembly (no cuobjdump)" in said


@pytest.mark.parametrize(
    "absent",
    [
        {"missing": "ERR_NVGPUCTRPERM: ask for permission"},
        isolation.TimedOut(3.0, ""),
        isolation.Exited(1, ""),
    ],
)
def test_what_is_missing_is_told_once_and_not_asked_for_again(absent: Any) -> None:
    engine, advisor = Profiler(counters=absent), Advisor("profiled")
    first, _ = profiled(engine, advisor)
    assert "counters (" in first and NOT_LOOKED in first
    second, _ = profiled(engine, advisor)
    assert NOT_LOOKED not in second and headline(second).startswith("bottleneck: ")
    assert engine.asked == ["profiled", "counted", "profiled"]


def test_a_session_that_goes_on_does_not_say_it_again() -> None:
    state = SessionState(settings=SessionSettings(advice="profiled"), tree=CandidateTree())
    assert advisor_of(state, 5.0) == Advisor("profiled", 5.0, leaders_only=True), "rules read none"
    state.settings = replace(state.settings, proposer="command")
    assert advisor_of(state, 5.0) == Advisor("profiled", 5.0)
    said = f"bottleneck: memory\n{NOT_LOOKED}counters (no ncu)"
    state.tree.add(None, "k", "t", "", TimedOutcome(1.0, advice=said))
    assert advisor_of(state, 5.0).missing_reported


def test_a_profile_that_is_lost_leaves_the_measured_time() -> None:
    said, _ = profiled(Profiler(timed=isolation.Crashed("SIGSEGV", "")), Advisor("profiled"))
    assert "timing of the profile (the profile's process was ended by SIGSEGV)" in said
    assert headline(said).startswith("bottleneck: ")


def test_only_a_new_leader_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_module, "build_program", lambda *a, **k: BuiltPipeline(UNPLANNED, ()))
    seconds = iter((1e-5, 1.01e-5, 0.9e-5))

    def agreed(subject: BuiltCandidate, how: ConfirmationSettings, gpu: GpuCalls) -> Outcome:
        return TimedOutcome(next(seconds), 2.0, 1.9, 2.1, records=("a",))

    live = bench([took(1e-5), took(1e-5), took(1e-5), took(9.0)], agreed)
    numbers: list[float] = []
    live.advisor = Advisor("profiled")
    monkeypatch.setattr(Advisor, "profiled", lambda self, *told: numbers.append(told[-1]) or "seen")
    tiles = ("64x64x64", "128x64x64", "128x128x64", "128x256x64")
    texts = [LINEAR.replace("{ return", f"{{ schedule sm90a {{ tile {tile} }} return") for tile in tiles]
    outcomes = [judged.outcome for judged in judged_in_turn(live, *texts)]
    said = [outcome.advice for outcome in outcomes if isinstance(outcome, TimedOutcome)]
    assert numbers == [1e-5, 0.9e-5] and said[0] == said[2] == "seen"
    assert said[1].startswith("bottleneck: ") and said[3].startswith("bottleneck: ")


def test_no_verdict_waits_for_advice_that_nobody_reads_before_a_candidate_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluator_module, "build_program", lambda *a, **k: BuiltPipeline(UNPLANNED, ()))
    confirmed = TimedOutcome(1e-5, 2.0, 1.9, 2.1, records=("a",))
    live = bench([took(1e-5), took(9.0)], lambda *_: confirmed)
    live.advisor = Advisor(leaders_only=True)
    tiles = ("64x64x64", "128x64x64")
    texts = [LINEAR.replace("{ return", f"{{ schedule sm90a {{ tile {tile} }} return") for tile in tiles]
    leader, other = (judged.outcome for judged in judged_in_turn(live, *texts))
    assert isinstance(leader, TimedOutcome) and leader.advice.startswith("bottleneck: ")
    assert isinstance(other, TimedOutcome) and not other.advice


def test_counters_of_a_machine_without_the_tool_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from ucutlass.runtime import system
    from ucutlass.tasks import hardware_counters

    monkeypatch.setattr(system, "driver", lambda: None)
    assert hardware_counters.counted({}, [], 1.0) == {"missing": "no GPU here"}
    gpu = system.Gpu(0, "NVIDIA H200", (9, 0), 141 * 10**9, 132)
    monkeypatch.setattr(system, "driver", lambda: system.Driver((13, 0), (gpu,), ""))
    assert "no ncu" in hardware_counters.counted({}, [], 1.0)["missing"]
    monkeypatch.setattr(
        system, "driver", lambda: system.Driver((13, 0), (replace(gpu, capability=(1, 0)),), "")
    )
    assert "no table of metrics" in hardware_counters.counted({}, [], 1.0)["missing"]
