"""Problems and their candidates: what may change, and what may not."""

from __future__ import annotations

import json

import pytest

from ucutlass import frontend
from ucutlass.agent import candidate_text
from ucutlass.agent.edits import addresses
from ucutlass.agent.outcome import RefusedOutcome
from ucutlass.agent.problem import (
    MOST_CHARACTERS,
    ProgramCandidate,
    candidate_of,
    problem_of,
    problem_of_json,
    problem_to_json,
)
from ucutlass.agent.proposers.quoting import uncommented
from ucutlass.diagnostics import ProgramError
from ucutlass.frontend import read_text
from ucutlass.grammar.syntax import File
from ucutlass.handoff import program_payload
from ucutlass.shapes import ShapeError
from ucutlass.tasks import equivalence as asked


def same(text: str, other: str, name: str, sizes: dict[str, int], seed: int) -> str:
    ours, theirs = (program_payload(read_text(t)) for t in (text, other))
    return asked.same(ours, theirs, name, sizes, seed)


LINEAR = """
kernel linear(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] {
  return relu(dot[K](x, w) + b)
}
"""
CHAIN = """
pipeline chain(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] {
  h: bf16[M, N] = dot[K](x, w) + b
  return gelu(h) * 2
}
"""
SIZES = {"M": 256, "N": 256, "K": 256}


def judged(text: str, of: str = LINEAR, compute_type: str | None = None) -> ProgramCandidate | RefusedOutcome:
    return candidate_of(problem_of(of, "p.ucu", None, SIZES, "sm90a", compute_type), text)


def test_a_problem_comes_back_from_json() -> None:
    problem = problem_of(LINEAR, "p.ucu", None, SIZES, "sm90a")
    assert problem_of_json(json.loads(json.dumps(problem_to_json(problem)))) == problem
    assert problem.compute_type == "bf16" and problem.name == "linear M=256 K=256 N=256"


def test_a_schedule_and_spelling_are_free() -> None:
    own = judged(LINEAR)
    other = judged(
        LINEAR.replace("relu(", "max(0, ")
        .replace("max(0, ", "relu(")
        .replace("  return", "  # another schedule\n  schedule sm90a { tile 128x128x64 }\n  return")
    )
    assert isinstance(own, ProgramCandidate) and isinstance(other, ProgramCandidate)
    assert own.key == other.key


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("relu(dot[K](x, w) + b)", "relu(dot[K](x, w)"), "UC"),
        (("kernel linear", "kernel other"), "no program linear"),
        (("b: bf16[N]", "b: f32[N]"), "parameters or results"),
        (("w: bf16[N, K]", "w: bf16[K, N]"), "parameters or results"),
        (("x: bf16[M, K]", "y: bf16[M, K]"), "parameters or results"),
        (("dot[K](x, w)", "dot[K](e4m3(x), e4m3(w))"), "below the problem's compute type bf16"),
    ],
)
def test_what_a_candidate_may_not_change(change: tuple[str, str], said: str) -> None:
    text = LINEAR.replace(*change)
    if change[0].startswith("x:"):
        text = text.replace("(x, w)", "(y, w)")
    outcome = judged(text)
    assert isinstance(outcome, RefusedOutcome)
    assert said in outcome.words or any(code.startswith(said) for code in outcome.codes)


def test_a_pipeline_is_no_kernel() -> None:
    outcome = judged(CHAIN.replace("chain", "linear"))
    assert isinstance(outcome, RefusedOutcome) and "is a kernel, this is a pipeline" in outcome.words


@pytest.mark.parametrize("text", ["", "prose, no program", "}" * 50, "kernel " * 3000, "\x00\udcff"])
def test_what_is_no_program_is_refused(text: str) -> None:
    assert isinstance(judged(text), RefusedOutcome)


def test_a_megabyte_is_not_read() -> None:
    outcome = judged("# " + "x" * 1_000_000)
    assert isinstance(outcome, RefusedOutcome) and str(MOST_CHARACTERS) in outcome.words


def test_a_compute_type_below_the_declared_one() -> None:
    assert isinstance(judged(LINEAR, compute_type="bf16"), ProgramCandidate)
    # The problem's own program works below f32: what it does already is no loss of the candidate's.
    assert isinstance(judged(LINEAR, compute_type="f32"), ProgramCandidate)


def test_extents_that_do_not_fit() -> None:
    with pytest.raises(ShapeError):
        problem_of(LINEAR, "p.ucu", None, {"M": 1, "N": 1}, "sm90a")


DEEP = (
    "kernel layer(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {\n  return relu(dot[K](x, w))\n}\n"
    "pipeline deep(x: bf16[M, D], "
    + ", ".join(f"w{i}: bf16[D{i}=D, D]" for i in range(12))
    + ") -> bf16[M, D11] {\n  h0 = layer(x, w0)\n"
    + "".join(f"  h{i} = layer(h{i - 1}, w{i})\n" for i in range(1, 11))
    + "  return layer(h10, w11)\n}\n"
)


@pytest.mark.slow
def test_something_else_is_seen_where_bounds_allow_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part in a thousand in the middle of many stages; bounds alone see nothing of it."""
    monkeypatch.setattr(asked, "DRAWS", ("normal",))
    sizes = {"M": 8, "D": 64}
    other = DEEP.replace("h6 = layer(h5, w6)", "h6: bf16[M, D6] = relu(dot[D](h5[D5 = D], w6)) * 1.001")
    assert other != DEEP and "differs at" in same(DEEP, other, "deep", sizes, 0)
    monkeypatch.setattr(asked, "NEAR", 1e9)
    assert same(DEEP, other, "deep", sizes, 0) == ""
    monkeypatch.undo()
    cut = DEEP.replace("h6 = layer(h5, w6)", "h6: f32[M, D6] = relu(dot[D](h5[D5 = D], w6))").replace(
        "h7 = layer(h6, w7)", "h7: bf16[M, D7] = relu(dot[D](bf16(h6[D6 = D]), w7))"
    )
    assert cut != DEEP and same(DEEP, cut, "deep", sizes, 0) == ""


def test_another_cut_computes_the_same() -> None:
    fused = CHAIN.replace("h: bf16[M, N] = dot[K](x, w) + b", "h = bf16(dot[K](x, w) + b)")
    assert isinstance(judged(fused, CHAIN), ProgramCandidate)
    assert same(CHAIN, fused, "chain", SIZES, 0) == ""


@pytest.mark.parametrize(
    "change",
    [("* 2", "* 2.01"), ("+ b", "- b"), ("gelu(h)", "relu(h)"), ("gelu(h) * 2", "gelu(h) * 2 + 0.1")],
)
def test_something_else_is_seen(change: tuple[str, str]) -> None:
    assert "differs at" in same(CHAIN, CHAIN.replace(*change), "chain", SIZES, 0)


def test_a_text_is_parsed_once_whoever_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = LINEAR + "# nobody read this before\n"
    parses: list[str] = []

    def counted(source: str, file: str) -> File:
        parses.append(source)
        return frontend.parsed(source, file)

    monkeypatch.setattr(candidate_text, "parsed", counted)
    assert isinstance(judged(text), ProgramCandidate)
    assert addresses(text) and "nobody" not in uncommented(text)
    assert isinstance(judged(text), ProgramCandidate) and parses == [text]


def test_a_text_that_is_refused_still_has_its_tree() -> None:
    text = LINEAR.replace("return", "return unheard_of +")
    read = candidate_text.candidate_text(text)
    assert read.tree is not None and read.program is None and read.diagnostics
    with pytest.raises(ProgramError, match="unheard_of"):
        _ = read.checked
