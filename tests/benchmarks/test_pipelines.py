"""The benchmark's pipelines compute what their eager twins do, in every compute type, and are cut where they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import harness, pipelines
from benchmarks.pipeline_cases import (
    CASES,
    COMPUTE_TYPES,
    PROGRAMS,
    Case,
    arguments,
    checked,
    in_compute_type,
)
from tests.pipeline.test_stages import staged
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.reference import evaluate
from ucutlass.runtime import verify

IDS = [case.name for case in CASES]
NEAR = {"bf16": 6e-2, "f16": 1e-2, "tf32": 4e-3, "f32": 1e-5}
"""In the norm, against torch in f32: what rounding operands and intermediates brings."""


def test_there_are_twenty_chains_and_five_blocks() -> None:
    assert sum(n.startswith("l2_") for n in IDS) == 20
    assert sum(n.startswith("l3_") for n in IDS) == 5
    assert {p.stem for p in PROGRAMS.glob("*.ucu")} == set(IDS)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_programs_are_in_canonical_form(case: Case) -> None:
    assert format_file(parse(case.text)) == case.text


@pytest.mark.parametrize("compute_type", COMPUTE_TYPES)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_pipeline_computes_what_its_twin_does(case: Case, compute_type: str) -> None:
    _, program = checked(case, compute_type)
    given = arguments(program, case.small, "cpu", seed=7)
    (result,) = evaluate(program, given)
    expected = case.twin(*(a.float() for a in given))
    assert result.shape == expected.shape
    error = float((result.double() - expected.double()).norm() / expected.double().norm())
    assert error <= NEAR[compute_type], error


def test_a_compute_type_wraps_both_operands_of_every_dot() -> None:
    text = "dot[S](bf16(a), v) + dot[R, S, C](x[H = P + R, W = Q + S], w)"
    assert in_compute_type(text, "tf32") == (
        "dot[S](tf32(f32(a)), tf32(v)) + dot[R, S, C](tf32(x[H = P + R, W = Q + S]), tf32(w))"
    )
    assert in_compute_type(text, "f16").startswith("dot[S](f16(a), v)")


def test_attention_in_f32_is_cut_at_its_scores() -> None:
    (block,) = (case for case in CASES if case.name.startswith("l3_44"))
    stages = {compute_type: len(checked(block, compute_type)[1].stages) for compute_type in COMPUTE_TYPES}
    assert stages == {"bf16": 9, "f16": 9, "tf32": 11, "f32": 11}


@pytest.mark.parametrize("compute_type", ["bf16", "f32"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_norms_are_small_for_what_is_right_and_tell_what_is_not(case: Case, compute_type: str) -> None:
    _, program = checked(case, compute_type)
    given = arguments(program, case.small, "cpu", seed=7)
    (result,) = evaluate(program, given)
    row = pipelines.norms(case, result, given)
    assert row["error"] < NEAR[compute_type] and row["theirs"] < NEAR[compute_type]
    assert pipelines.norms(case, result * 1.1, given)["error"] > 0.05


def test_a_row_says_what_of_the_verdict_is_proven() -> None:
    (case,) = (c for c in CASES if c.name.startswith("l3_03"))
    sizes = {"M": 16, "A": 32, "D": 64, "N": 48}
    _, program = checked(case, "bf16")
    staged_launch = staged(case.text, sizes, {8: lambda x: x * 1.02})
    row = pipelines.stated(verify.check(program, staged_launch, arguments(program, sizes, "cpu")))
    assert not row["ok"] and row["state"] == "wrong" and row["judged"].startswith("wrong: 16 of 17 stages")
    assert [s["name"] for s in row["stages"] if s["state"] != "right"] == ["h8 = layer"]
    assert row["end_to_end"]["useless"] > row["end_to_end"]["elements"] / 2
    assert row["end_to_end"]["worst"] < 1 < float(row["stages"][8]["worst"])
    json.loads(json.dumps(row, allow_nan=False))


def test_seeds_differ() -> None:
    _, program = checked(CASES[0], "bf16")
    a, b = (arguments(program, CASES[0].small, "cpu", seed=s) for s in (1, 2))
    assert not torch.equal(a[0], b[0])


def test_a_report_sorts_what_was_timed_lost_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [pipelines.Task(case, compute_type) for compute_type in ("bf16", "f32") for case in CASES[:2]]
    timed = {
        "us": {"ours": 10.0, "eager": 20.0},
        "ok": True,
        "judged": "",
        "of_eager": 2.0,
        "of_best": 2.0,
        "torch_share": 0.25,
        "error": 2e-3,
        "theirs": 3e-3,
        "rests_on_stages": True,
    }

    def rows(target: str, items: list[harness.Item], journal: Path, **limits: object) -> list[harness.Row]:
        assert [i["lane"] for i in items] == ["bf16", "bf16"] and items[0]["seed"] == 1
        lost = {"name": items[1]["name"], "ok": False, "error": "Crashed", "detail": "SIGSEGV"}
        return [{"name": items[0]["name"], **timed}, lost]

    stopped = {task.name: "no kernel [UC0300]" for task in chosen[2:]}
    plans = dict.fromkeys([task.name for task in chosen[:2]])
    monkeypatch.setattr(pipelines, "all_planned", lambda _: (plans, dict(stopped)))
    monkeypatch.setattr(pipelines, "prebuild", lambda ready, plans: {})
    monkeypatch.setattr(harness, "run", rows)
    monkeypatch.setattr(pipelines, "machine", dict)
    report = pipelines.run(chosen, tmp_path / "p.jsonl", {"seed": 1, "compile": True})
    assert report["stopped"] == stopped
    (compute_type,) = report["by_lane"].items()
    assert (
        compute_type[0] == "bf16"
        and compute_type[1]["timed"] == 1
        and compute_type[1]["not right"] == [chosen[1].name]
    )
    assert compute_type[1]["of_best"]["geomean"] == pytest.approx(2.0)
    assert (
        compute_type[1]["of_eager"]["least"] == pytest.approx(2.0) and compute_type[1]["of_compile"] is None
    )
    assert compute_type[1]["torch_share"] == 0.25
    assert compute_type[1]["error_over_theirs"]["most"] == pytest.approx(2 / 3)
    assert compute_type[1]["rest_on_stages"] == [chosen[0].name]
    words = pipelines.table(report)
    assert "x2.00" in words and "error 2.00e-03 theirs 3.00e-03" in words
    assert "Crashed: SIGSEGV" in words and "no kernel [UC0300]" in words
