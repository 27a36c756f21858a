"""Algebra in the search: what is proposed, what is equal, and what holds for the given inputs alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.audit.bundles import honest
from ucutlass import frontend
from ucutlass.agent.integrity import audit
from ucutlass.agent.integrity.gather import probe_of
from ucutlass.agent.outcome import TimedOutcome
from ucutlass.agent.problem import OptimizationProblem, problem_of
from ucutlass.agent.proposers.algebra import AlgebraProposer
from ucutlass.agent.proposers.rules import rules
from ucutlass.agent.proposers.schedule_sampling import nominate_uniformly
from ucutlass.agent.search import Selection
from ucutlass.agent.session import Ask, SessionState
from ucutlass.agent.tree import CandidateTree
from ucutlass.algebra.derivation import proof
from ucutlass.handoff import program_payload
from ucutlass.ir.hardware import DEVICES
from ucutlass.tasks.audit import probe
from ucutlass.tasks.equivalence import same

SCORES = """\
pipeline scores(x: f32[M, K=2048], w: f32[N=2048, K], b: f32[N]) -> f32[M] {
  s: f32[M] = sum[N](dot[K](x, w) + b)
  return s * 1.5
}
"""
CLAMPED = "kernel clamped(x: f32[M=64, N=64]) -> f32[M] { return sum[N](clamp(x, -4.0, 4.0)) }"
SIZES = {"M": 64}


def _state(text: str) -> SessionState:
    tree = CandidateTree()
    tree.add(None, "start", text, "", TimedOutcome(1e-3))
    return SessionState(tree=tree)


def _ask(call: int = 1) -> Ask:
    return Ask(call, Selection(0), ("implement",), 0)


def _problem(text: str = SCORES, sizes: Mapping[str, int] = SIZES) -> OptimizationProblem:
    return problem_of(text, "p.ucu", None, sizes, "sm90a")


def _differs(one: str, other: str, sizes: Mapping[str, int]) -> str:
    first, second = (frontend.read_text(text) for text in (one, other))
    name = frontend.program(first).name
    return same(program_payload(first), program_payload(second), name, dict(sizes), 0)


def test_rules_propose_what_algebra_derives_first() -> None:
    programs = rules(_problem(), DEVICES["H200"]).propose(_ask(), _state(SCORES), lambda _: None).programs
    assert programs and all(p.why.startswith("algebra: ") for p in programs)
    assert "sum across dot" in programs[0].why and "predicted" in programs[0].why
    assert not any(_differs(SCORES, program.text, SIZES) for program in programs)


@pytest.mark.slow
def test_rules_propose_what_algebra_derives_once() -> None:
    state = _state(SCORES)
    proposer = rules(_problem(), DEVICES["H200"])
    for program in proposer.propose(_ask(), state, lambda _: None).programs:
        state.tree.add(0, program.text, program.text, program.why, TimedOutcome(1e-4))
    later = rules(_problem(), DEVICES["H200"]).propose(_ask(2), state, lambda _: None).programs
    assert later and not any(p.why.startswith("algebra: ") for p in later)


def test_rules_propose_products_in_16_bits_where_the_problem_allows_them() -> None:
    problem = problem_of(SCORES, "p.ucu", None, SIZES, "sm90a", "bf16")
    first, *others = rules(problem, DEVICES["H200"]).propose(_ask(), _state(SCORES), lambda _: None).programs
    assert first.why == "products of bf16" and "bf16(x)" in first.text
    assert all(p.why.startswith("algebra: ") for p in others)
    assert not _differs(SCORES, first.text, SIZES)
    assert (
        "bf16"
        not in rules(_problem(), DEVICES["H200"])
        .propose(_ask(), _state(SCORES), lambda _: None)
        .programs[0]
        .text
    )


def test_random_search_has_no_algebra() -> None:
    assert not isinstance(rules(_problem(), DEVICES["H200"], draw=nominate_uniformly), AlgebraProposer)


def test_what_the_problem_does_not_take_is_not_proposed() -> None:
    text = "kernel k(x: f32[M, K=2048], w: f32[N=2048, K]) -> f32[M] { return sum[N](dot[K](x, w)) }"
    programs = rules(_problem(text), DEVICES["H200"]).propose(_ask(), _state(text), lambda _: None).programs
    assert programs and not any(p.why.startswith("algebra: ") for p in programs), "a pipeline is no kernel"


def test_a_proof_names_the_algebra() -> None:
    state = _state(SCORES)
    (first, *_) = rules(_problem(), DEVICES["H200"]).propose(_ask(), state, lambda _: None).programs
    programs = [frontend.program(frontend.read_text(text)) for text in (SCORES, first.text)]
    by = proof(*programs)
    assert by is not None and "sum across dot" in {rule.name for rule in by}
    assert proof(programs[0], programs[0]) == ()


def test_a_clamp_that_does_not_act_on_the_given_inputs_stays() -> None:
    without = CLAMPED.replace("clamp(x, -4.0, 4.0)", "x")
    assert proof(*(frontend.program(frontend.read_text(t)) for t in (CLAMPED, without))) is None
    assert "differs" in _differs(CLAMPED, without, {}), "the judge draws numbers beyond it"


@pytest.mark.parametrize(
    "text",
    [
        "kernel k(x: f32[M=64, N=64]) -> f32[M] { m = max[N](x) return relu(m - m) }",
        "kernel k(x: f32[M=64, N=64]) -> f32[M, N] { return clamp(exp(x) + 3.0, 0.0, 1.0) }",
    ],
)
def test_a_problem_whose_result_depends_on_no_input_is_refused_as_flawed(text: str) -> None:
    probed = probe_of(probe(program_payload(frontend.read_text(text)), "k", {}, 0))
    report = audit(honest(probe=probed))
    assert report.verdict == "flawed-problem" and not report.accepted
