"""Problems of which what depends on weights alone is computed once: what is left, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ucutlass import frontend
from ucutlass.agent.folded_problem import NothingFolded
from ucutlass.agent.problem import ProgramCandidate, candidate_of, problem_of_json, problem_to_json
from ucutlass.agent.problem_loader import LoaderSettings, problem_at, problem_in

LOW_RANK = """\
pipeline low_rank(x: f32[M, K=64], a: f32[K, J=4096], b: f32[J, N=64]) -> f32[M, N] {
  h: f32 = dot[K](x, a)
  return dot[J](h, b)
}
"""


def test_what_is_left_takes_what_is_computed_once() -> None:
    how = LoaderSettings("sm90a", {"M": 2048}, fold_weights=("a", "b"))
    problem = problem_in(LOW_RANK, "low_rank.ucu", how)
    assert [p.name for p in problem.typed.params] == ["x", "folded1"] and problem.sizes == {"M": 2048}
    once = frontend.program(problem.start, "low_rank_folded")
    assert {p.name for p in once.params} == {"a", "b"}
    assert isinstance(candidate_of(problem, problem.text), ProgramCandidate)
    assert not isinstance(candidate_of(problem, LOW_RANK), ProgramCandidate), "it takes other parameters"
    assert problem_of_json(problem_to_json(problem)) == problem


@pytest.mark.parametrize(
    ("names", "words"),
    [(("w",), "has no parameter w; it has x, a, b"), (("x",), "saves no time"), (("a",), "saves no time")],
)
def test_what_cannot_be_folded_is_said(names: tuple[str, ...], words: str) -> None:
    with pytest.raises(NothingFolded, match=words):
        problem_in(LOW_RANK, "low_rank.ucu", LoaderSettings("sm90a", {"M": 2048}, fold_weights=names))


def test_a_module_has_no_parameters_to_name(tmp_path: Path) -> None:
    with pytest.raises(NothingFolded, match="ucc import"):
        problem_at(tmp_path / "model.py", LoaderSettings("sm90a", fold_weights=("weight",)))
