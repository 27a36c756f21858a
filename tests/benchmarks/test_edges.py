"""Every legality rule has a forced kernel just beyond it, whose neighbour is legal."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import rule_edges
from benchmarks.edges import EDGES, Edge
from benchmarks.rule_edges import Outcome, force, judge, line_of, tried
from ucutlass.kernels.gemm.rules import RULES
from ucutlass.runtime import isolation
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildError, OutOfMemory
from ucutlass.runtime.ptxas import PtxasReport

NOT_EMITTED = {
    ("UC0411", "f32 by wgmma, two batch modes"),
    ("UC0412", "`math simt` by wgmma"),
    ("UC0412", "f32 in one pass of mma.sync"),
    ("UC0413", "two contracted modes by TMA"),
    ("UC0433", "a sum over the batch alone"),
}
"""Edges that end in the emitter: it has no words for them."""


def test_every_rule_has_an_edge() -> None:
    assert {r.code for r in RULES} == {e.code for e in EDGES}


@pytest.mark.parametrize("edge", EDGES, ids=lambda e: f"{e.code} {e.what}")
def test_forced_kernels_break_their_rule_and_neighbours_break_none(edge: Edge) -> None:
    if edge.beside is not None:
        assert force(edge, edge.beside, True).broken == ()
    if (edge.code, edge.what) in NOT_EMITTED:
        with pytest.raises((KeyError, ValueError)):
            force(edge, edge.beyond, False)
    else:
        forced = force(edge, edge.beyond, False)
        assert edge.code in forced.broken
        assert all(guard not in forced.source.code for guard, _ in edge.cut)


def test_an_edge_that_nothing_bad_comes_of_is_flagged() -> None:
    outcome = Outcome("UC0432", "swizzle 3", "nothing", "1.00 x its neighbour's time", ("UC0432",), "")
    assert "STRICTER" in line_of(outcome)


ARTIFACT = Artifact("key", Path("nowhere"), "nvcc", "ucc_0", "sm_90a", "nvcc", {}, 1.0, PtxasReport())
REFUSED = BuildError(
    "ucc_0", ("source.cu(7): error: no", "error: static assertion failed"), Path("s"), Path("l"), "nvcc"
)

ENDS: tuple[tuple[object, isolation.CallOutcome | None, str], ...] = (
    (REFUSED, None, "not compiled"),
    (OutOfMemory("killed", "fewer jobs"), None, "no answer"),
    (ARTIFACT, isolation.Returned({"ok": False, "detail": "1 of 2 elements"}, ""), "wrong"),
    (ARTIFACT, isolation.Raised("LaunchError", "code 1001", "", ""), "not launched"),
    (
        ARTIFACT,
        isolation.Raised("AcceleratorError", "CUDA error: an illegal memory access", "", ""),
        "faulted",
    ),
    (ARTIFACT, isolation.Raised("TypeError", "a mistake of the script", "", ""), "no answer"),
    (ARTIFACT, isolation.Crashed("SIGSEGV", ""), "crashed"),
    (ARTIFACT, isolation.Crashed("SIGALRM", ""), "hung"),
    (ARTIFACT, isolation.TimedOut(165.0, ""), "no answer"),
    (ARTIFACT, isolation.Exited(1, ""), "no answer"),
    (ARTIFACT, isolation.Returned({"ok": True, "detail": ""}, ""), "nothing"),
)


@pytest.mark.parametrize(("built", "run", "kind"), ENDS)
def test_only_what_the_forced_kernel_did_is_evidence(
    built: object, run: isolation.CallOutcome | None, kind: str
) -> None:
    index = next(i for i, e in enumerate(EDGES) if e.beside is None and e.how == "run")
    edge = EDGES[index]
    outcome = judge(index, force(edge, edge.beyond, False), built, None, run)
    assert outcome.kind == kind
    if built is REFUSED:
        assert "static assertion" in outcome.detail


def test_each_edge_of_a_batch_has_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    index = next(i for i, e in enumerate(EDGES) if e.beside is None and e.how == "run")
    forced = {index: force(EDGES[index], EDGES[index].beyond, False)}
    wrong = isolation.Returned({"ok": False, "detail": "1 of 2 elements"}, "")
    monkeypatch.setattr(rule_edges, "_isolated", lambda *_: wrong)
    for result, kind in ((REFUSED, "not compiled"), (ARTIFACT, "wrong")):
        answer = {forced[index].source.code: result}
        monkeypatch.setattr(rule_edges, "built_by_code", lambda forced, answer=answer: dict(answer))
        assert [(i, o.kind) for i, o in tried([index], forced, {})] == [(index, kind)]
