"""The proposer without a model on pipelines: cuts, and schedules of stages."""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from time import sleep
from typing import Any

import pytest

from tests.optimise.made_up import Mortal
from ucutlass import frontend, ir
from ucutlass.agent.budget import Budget
from ucutlass.agent.evaluator import GpuEvaluator
from ucutlass.agent.evidence import ConfirmationSettings
from ucutlass.agent.outcome import FailedOutcome, Outcome, RefusedOutcome, TimedOutcome
from ucutlass.agent.problem import OptimizationProblem, problem_of
from ucutlass.agent.proposers import cuts, stages
from ucutlass.agent.proposers.pipeline_plan import PlannedCandidate, look, stage_times
from ucutlass.agent.proposers.rules import rules
from ucutlass.agent.proposers.schedule_sampling import Draw, draw_programs, nominate, nominate_uniformly
from ucutlass.agent.run import CandidateJudgement, OptimizationSession, open_journal_session, run
from ucutlass.agent.search import Selection
from ucutlass.agent.session import Ask, SessionSettings, SessionState, replay_events
from ucutlass.agent.stop import StopRule
from ucutlass.agent.tree import CandidateTree
from ucutlass.ir.hardware import DEVICES
from ucutlass.runtime.subject import algorithm_digest
from ucutlass.tune.space import ScheduleSpace, explore

H200 = next(d for d in DEVICES.values() if "H200" in d.name)
SIZES = {"M": 1024, "N": 1024, "K": 1024}
CHAIN = """\
pipeline chain(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] {
  h: bf16[M, N] = dot[K](x, w) + b
  return gelu(h) * 2
}
"""
FOUR = """\
kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {
  return dot[K](x, w)
}

pipeline four(x: bf16[T, D], up: bf16[F, D], down: bf16[D, F]) -> bf16[T, D] {
  a = linear(x, w=up)
  r: bf16[T, F] = torch.relu(a)
  h: bf16[T, F] = silu(r)
  n: bf16[T, D] = dot[F](h, down)
  return softmax[D](n)
}
"""
FOUR_SIZES = {"T": 512, "D": 256, "F": 1024}


_SPACES: dict[object, ScheduleSpace] = {}


def explored(
    checked: frontend.Checked, kernel: ir.Kernel, sizes: tuple[int, ...], *more: Any, free: bool
) -> ScheduleSpace:
    """`explore`, each space once for all tests and its first groups alone: it takes seconds."""
    key = algorithm_digest(kernel), sizes
    if key not in _SPACES:
        schedule_space = explore(checked, kernel, sizes, *more, free=free)
        _SPACES[key] = replace(schedule_space, groups=schedule_space.groups[:80])
    return _SPACES[key]


@pytest.fixture(autouse=True)
def _spaces_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "explore", explored)


def problem(text: str = CHAIN, sizes: Mapping[str, int] = SIZES) -> OptimizationProblem:
    return problem_of(text, "p.ucu", None, sizes, "sm90a")


def planned(text: str, of: OptimizationProblem | None = None) -> PlannedCandidate:
    one = look(text, of or problem(), H200)
    assert one is not None
    return one


@dataclass
class MadeUp:
    """A pipeline takes what its stages take: their estimates, each times what its plan draws."""

    problem: OptimizationProblem
    live: GpuEvaluator = field(init=False)

    def __post_init__(self) -> None:
        self.live = GpuEvaluator(self.problem, None, ConfirmationSettings("sm90a", H200, None))  # type: ignore[arg-type]

    def key(self, text: str, source: str = "") -> str | RefusedOutcome:
        return self.live.key(text)

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        one = planned(text, self.problem)
        drawn_ = [random.Random(repr(p)).uniform(0.9, 1.3) for p in one.point]
        return CandidateJudgement(
            TimedOutcome(sum(e * f for e, f in zip(one.estimates, drawn_, strict=True)))
        )


def session(
    of: OptimizationProblem, attempts: int, seed: int = 0, draw: Draw = nominate, sink: Any = None
) -> SessionState:
    sink = sink or Mortal()
    if sink.events:
        held = OptimizationSession("s", sink, replay_events(sink.events))
    else:
        settings = SessionSettings("epsilon", budget=Budget(attempts), stop=StopRule(None, None), seed=seed)
        held = open_journal_session(sink, {"text": of.text}, settings, bound=0.0, baseline=None, id="s")
    return run(held, rules(of, H200, seed, draw), MadeUp(of))


def ask(state: SessionState, parent: int, call: int = 1) -> Any:
    return Ask(call, Selection(parent), ("implement",), 0)


def tree_of(*nodes: tuple[int | None, str, Outcome]) -> SessionState:
    tree = CandidateTree()
    for at, (parent, text, outcome) in enumerate(nodes):
        tree.add(parent, str(at), text, "", outcome)
    return SessionState(tree=tree)


# --- cuts --------------------------------------------------------------------------------


def near(text: str, own: str = CHAIN) -> list[cuts.CutProposal]:
    return cuts.neighbours(text, problem(own), H200)


def test_cuts_are_taken_away_and_put_back() -> None:
    (fused,) = near(CHAIN)
    assert "h = bf16(dot[K](x, w) + b)" in fused.text and fused.why == "fuse h into what reads it"
    assert fused.seconds < planned(CHAIN).seconds
    (back,) = near(fused.text)
    assert back.why == "store h" and "h: bf16[M, N] = dot[K](x, w) + b" in back.text


def test_a_binding_that_only_names_its_dimensions_is_no_cut() -> None:
    assert near(CHAIN.replace("h: bf16[M, N] = dot[K](x, w) + b", "h: [M, N] = dot[K](x, w) + b")) == []


def test_schedules_stay_with_the_stages_that_compute_what_they_did() -> None:
    three = (
        "pipeline chain(x: bf16[M, K], w: bf16[N, K], v: bf16[K, N]) -> bf16[M, K] {\n"
        "  h: bf16[M, N] = dot[K](x, w)\n  g: bf16[M, N] = silu(h)\n  return dot[N](g, v)\n"
        "  schedule sm90a for h { tile 64x64x64 }\n  schedule sm90a for g { vector 4 }\n"
        "  schedule sm90a for return { tile 128x64x64 }\n}\n"
    )
    (fused,) = near(three, three)
    assert "for return { tile 128x64x64 }" in fused.text, "it computes what it did"
    assert "for h" not in fused.text, "it is no stage any more"
    assert "for g" not in fused.text, "it is another kernel now"
    (back,) = near(fused.text, three)
    assert "for return { tile 128x64x64 }" in back.text and "for g" not in back.text


# --- sessions ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("draw", [nominate, nominate_uniformly])
def test_every_proposal_is_another_legal_candidate_of_cuts_and_of_stages(draw: Draw) -> None:
    state = session(problem(), 24, draw=draw)
    assert len(state.tree) == 25 and all(isinstance(n.outcome, TimedOutcome) for n in state.tree.nodes)
    assert len({n.key for n in state.tree.nodes}) == 25
    whys = [n.why for n in state.tree.nodes[1:]]
    assert any(w.startswith("fuse") for w in whys)
    assert any(w.startswith("h: ") for w in whys) and any(w.startswith("return: ") for w in whys)
    assert all("schedule sm90a for" in n.text or "h = bf16(" in n.text for n in state.tree.nodes[1:])


def test_a_seed_is_a_course_and_another_seed_another() -> None:
    first, again, other = (session(problem(), 4, seed) for seed in (3, 3, 4))
    assert [n.text for n in first.tree.nodes] == [n.text for n in again.tree.nodes]
    assert [n.text for n in first.tree.nodes] != [n.text for n in other.tree.nodes]


def test_a_session_that_is_killed_goes_on_as_it_would_have() -> None:
    whole = session(problem(), 12)
    sink = Mortal(dies={9: "after", 14: "before", 21: "after"})
    state = None
    while state is None:
        try:
            state = session(problem(), 12, sink=sink)
        except BaseException as death:
            assert type(death).__name__ == "Killed"
    assert state.tree.nodes == whole.tree.nodes


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces of three groups."""

    def first(*arguments: Any, **more: Any) -> ScheduleSpace:
        schedule_space = explored(*arguments, **more)
        return replace(schedule_space, groups=schedule_space.groups[:3])

    monkeypatch.setattr(stages, "explore", first)


@pytest.mark.slow
def test_stages_that_call_a_kernel_get_it_there_and_torch_functions_none(few: None) -> None:
    state = session(problem(FOUR, FOUR_SIZES), 12)
    whys = [n.why for n in state.tree.nodes[1:]]
    assert not any(w.startswith("r = torch") for w in whys)
    called = next(n.text for n in state.tree.nodes if n.why.startswith("a = linear: "))
    assert "schedule sm90a when M == 512 and K == 256 and N == 1024" in called


def test_what_takes_longer_is_varied_more_often_as_far_as_anything_is_known() -> None:
    state = tree_of((None, CHAIN, TimedOutcome(10e-6)))
    assert planned(CHAIN).estimates[0] > 1.8 * planned(CHAIN).estimates[1]

    def counted(draw: Draw) -> tuple[int, int]:
        proposer = rules(problem(), H200, draw=draw, count=60)
        programs = proposer.propose(ask(state, 0), state, lambda _: None).programs
        return sum(w.why.startswith("h: ") for w in programs), sum(
            w.why.startswith("return: ") for w in programs
        )

    h, returned = counted(nominate)
    assert h > 1.4 * returned
    h, returned = counted(nominate_uniformly)
    assert h < 1.4 * returned and returned < 1.4 * h


@pytest.mark.parametrize("draw", [nominate, nominate_uniformly])
def test_a_pipeline_of_which_all_was_tried_is_exhausted(few: None, draw: Draw) -> None:
    state = session(problem(), 400, draw=draw)
    assert state.ended == "no candidate is left to go on from"
    points = {planned(n.text).point for n in state.tree.nodes}
    assert len(points) == len(state.tree) > 7, "each once: two stages, three groups each, and the cut's"


# --- what was measured -------------------------------------------------------------------


def with_block(text: str, block: str) -> str:
    """In the last program of a text."""
    return f"{text.removesuffix('}' + chr(10))}  {block}\n}}\n"


H_BLOCK, R_BLOCK = "schedule sm90a for h { tile 64x64x64 }", "schedule sm90a for return { vector 4 }"


def test_what_a_candidate_gains_on_its_parent_is_the_changed_stages() -> None:
    other, both = with_block(CHAIN, H_BLOCK), with_block(with_block(CHAIN, H_BLOCK), R_BLOCK)
    (fused,) = near(CHAIN)
    state = tree_of(
        (None, CHAIN, TimedOutcome(10e-6)),
        (0, other, TimedOutcome(9e-6)),
        (1, both, TimedOutcome(9.5e-6)),
        (0, both, TimedOutcome(8e-6)),
        (0, fused.text, TimedOutcome(7e-6)),
        (0, other, FailedOutcome("run", "")),
    )
    times = stage_times(state.tree, lambda text: look(text, problem(), H200))
    root = planned(CHAIN)
    share = root.estimates[0] / root.seconds
    assert times[0] == pytest.approx((10e-6 * share, 10e-6 * (1 - share)))
    assert times[1] == pytest.approx((times[0][0] - 1e-6, times[0][1]))
    assert times[2] == pytest.approx((times[1][0], times[1][1] + 0.5e-6))
    one = planned(both)
    assert times[3] == pytest.approx(tuple(8e-6 * e / one.seconds for e in one.estimates)), "two changes"
    assert times[4] == pytest.approx((7e-6,)) and 5 not in times


TWICE = """\
kernel layer(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {
  return relu(dot[K](x, w))
}

pipeline twice(x: bf16[T, D], a: bf16[D2=D, D], b: bf16[D2, D], c: bf16[D2, D]) -> bf16[T, D] {
  g = layer(x, a)
  h = layer(g, b)
  e: bf16[T, D] = x * 2
  return layer(h, c)
}
"""


def test_stages_that_call_one_kernel_change_together_and_share_what_that_gains() -> None:
    of = problem(TWICE, {"T": 512, "D": 512})
    quick = TWICE.replace("w))", "w))\n  schedule sm90a { tile 64x64x64 }")
    slow = with_block(TWICE, "schedule sm90a for e { vector 2 }")
    state = tree_of(
        (None, TWICE, TimedOutcome(10e-6)), (0, quick, TimedOutcome(7e-6)), (0, slow, TimedOutcome(9.9e-6))
    )
    times = stage_times(state.tree, lambda text: look(text, of, H200))
    layers = [i for i, s in enumerate(planned(TWICE, of).plan.stages) if s.step.name != "e"]
    assert [times[0][i] - times[1][i] for i in layers] == pytest.approx([1e-6] * 3)
    first = rules(of, H200).propose(ask(state, 2), state, lambda _: None).programs[0]
    assert first.why == "the quickest kernels that were seen of g = layer"
    assert planned(first.text, of).point[0][1] == planned(quick, of).point[0][1]
    assert "for e" in first.text


def test_a_gain_of_more_than_the_stage_took_leaves_it_some_time() -> None:
    state = tree_of((None, CHAIN, TimedOutcome(10e-6)), (0, with_block(CHAIN, R_BLOCK), TimedOutcome(1e-6)))
    times = stage_times(state.tree, lambda text: look(text, problem(), H200))
    assert all(t > 0 for t in times[1])


def test_the_quickest_of_each_stage_are_put_together_and_only_once() -> None:
    a, b = with_block(CHAIN, H_BLOCK), with_block(CHAIN, R_BLOCK)
    state = tree_of(
        (None, CHAIN, TimedOutcome(10e-6)), (0, a, TimedOutcome(9e-6)), (0, b, TimedOutcome(9.5e-6))
    )
    proposer = rules(problem(), H200)
    first = proposer.propose(ask(state, 1), state, lambda _: None).programs[0]
    assert first.why == "the quickest kernels that were seen of return"
    assert planned(first.text).point == planned(with_block(a, R_BLOCK)).point
    state.tree.add(1, "3", first.text, "", TimedOutcome(8.6e-6))
    again = proposer.propose(ask(state, 1, 2), state, lambda _: None).programs
    assert again and not any(w.why.startswith("the quickest") for w in again)
    random_ = (
        rules(problem(), H200, draw=nominate_uniformly).propose(ask(state, 2), state, lambda _: None).programs
    )
    assert not any(w.why.startswith("the quickest") for w in random_)


def test_a_kernel_that_failed_is_not_proposed_for_its_stage_again(few: None) -> None:
    """Of three groups one is the compiler's own; whichever of the others failed, only the third is left."""
    proposer = rules(problem(), H200, count=12)
    state = tree_of((None, CHAIN, TimedOutcome(10e-6)))
    every = proposer.propose(ask(state, 0), state, lambda _: None).programs
    failed = next(w.text for w in every if w.why.startswith("h: "))
    root, broken = (None, CHAIN, TimedOutcome(10e-6)), (0, failed, FailedOutcome("build", ""))
    state = tree_of(root, broken, (0, every[-1].text, TimedOutcome(9e-6)))
    plan = planned(failed).kernel(0).plan
    programs = proposer.propose(ask(state, 2, 2), state, lambda _: None).programs
    assert programs and all(planned(w.text).kernel(0).plan != plan for w in programs)


def test_a_candidate_that_is_no_pipeline_has_nothing_to_vary() -> None:
    state = tree_of((None, CHAIN, TimedOutcome(1e-5)), (0, "no program", RefusedOutcome("")))
    assert rules(problem(), H200).propose(ask(state, 1), state, lambda _: None).exhausted


# --- drawing -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def space() -> ScheduleSpace:
    one = planned(CHAIN)
    step = one.plan.stages[1].step
    assert step.kernel is not None
    return explore(one.checked, step.kernel, step.sizes, "sm90a", H200, free=True)


def test_what_cannot_be_written_is_drawn_anew(space: ScheduleSpace) -> None:
    left = {len(space.groups) - 1, 5}

    def write(at: int) -> str | None:
        return str(at) if at in left else None

    found = draw_programs(nominate_uniformly, write, space, {}, None, random.Random(0), 4)
    assert {at for at, _ in found} == left
    assert (
        draw_programs(nominate_uniformly, write, space, dict.fromkeys(left), None, random.Random(0), 4) == []
    )


def test_random_legal_search_takes_every_group_as_likely(space: ScheduleSpace) -> None:
    small = replace(space, groups=space.groups[:5])
    counts = dict.fromkeys(range(5), 0)
    for seed in range(2000):
        (at,) = nominate_uniformly(small, {}, 0, random.Random(seed), 1)
        counts[at] += 1
    assert all(330 < n < 470 for n in counts.values())
    assert sorted(nominate_uniformly(small, {1: 1.0, 2: None}, 0, random.Random(0), 9)) == [0, 3, 4]


def test_a_space_that_is_explored_ahead_is_not_explored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    explorations: list[str] = []

    def slow(*arguments: Any, **more: Any) -> ScheduleSpace:
        explorations.append("")
        sleep(0.2)
        return explored(*arguments, **more)

    monkeypatch.setattr(stages, "explore", slow)
    problem = problem_of(CHAIN, "chain.ucu", None, SIZES, "sm90a")
    proposer = stages.StageProposer(problem, H200)
    here = proposer.look(CHAIN)
    assert here is not None
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: proposer.space(here, 0, False), range(2))
    assert first is second and len(explorations) == 1
