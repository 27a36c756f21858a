"""Pipelines of KernelBench compute what their eager twins do, in every compute type, and are cut where they say."""

from __future__ import annotations

import pytest
import torch

from tests.pipeline.kernelbench import (
    CASES,
    COMPUTE_TYPES,
    PROGRAMS,
    Case,
    arguments,
    checked,
    in_compute_type,
)
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.reference import evaluate

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


def test_seeds_differ() -> None:
    _, program = checked(CASES[0], "bf16")
    a, b = (arguments(program, CASES[0].small, "cpu", seed=s) for s in (1, 2))
    assert not torch.equal(a[0], b[0])
