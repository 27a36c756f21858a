"""Every rule holds for all inputs: both sides, evaluated in float64, agree within what rounding explains."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algebra.equations import Program, apart, arguments, differ, equations, program
from tests.algebra.examples import EXAMPLES, kernel
from tests.algebra.refused import REFUSED
from ucutlass.algebra.rule import AlgebraRule, Equation
from ucutlass.algebra.rules import RULES
from ucutlass.diagnostics import ProgramError

SPECIAL = {"always": ("special", "infinite"), "no NaN": ("infinite",), "finite": ()}
"""The values beside finite ones of which a rule says that it holds."""


def test_every_rule_has_a_name_of_its_own_and_examples() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert {rule.name for rule in RULES} == {*EXAMPLES}


@cache
def _equations(text: str, rule: AlgebraRule) -> tuple[Program, list[Equation]]:
    at = program(text)
    return at, equations(at, rule)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=3)
def test_both_sides_agree(rule: AlgebraRule, seed: int) -> None:
    for text in EXAMPLES[rule.name]:
        at, pairs = _equations(text, rule)
        assert pairs, f"{rule.name} says nothing of {text}"
        for kind in ("ordinary", "large", *SPECIAL[rule.holds]):
            assert not apart(at, pairs, arguments(at.kernel, seed, kind)), f"{rule.name}, {kind}: {text}"


ELEMENTS = ("f32", "bf16", "f16")
KINDS = ("ordinary", "large", "small", "equal")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(data=st.data())
@settings(max_examples=4)
def test_both_sides_agree_of_any_type_and_extent(rule: AlgebraRule, data: st.DataObject) -> None:
    """Extents of 1 and windows beyond an end among them: the rule says something or nothing, and nothing wrong."""
    text = data.draw(st.sampled_from(EXAMPLES[rule.name]))
    for dim, given_extent in (("M", 3), ("N", 4), ("K", 5), ("J", 2)):
        text = text.replace(f"{dim}={given_extent}", f"{dim}={data.draw(st.integers(1, 5))}")
    text = text.replace(": f32[", f": {data.draw(st.sampled_from(ELEMENTS))}[")
    try:
        at = program(text)
    except ProgramError as refused:
        assert "dot multiplies one element type" in str(refused)
        return
    pairs = equations(at, rule)
    kind = data.draw(st.sampled_from((*KINDS, *SPECIAL[rule.holds])))
    values = arguments(at.kernel, data.draw(st.integers(0, 2**32 - 1)), kind)
    assert not apart(at, pairs, values, only_finite=rule.holds == "finite")


def test_conditions_are_those_that_have_counterexamples() -> None:
    assert {rule.name for rule in RULES if rule.condition} == {*REFUSED}


@pytest.mark.parametrize("rule", [r for r in RULES if r.condition], ids=lambda rule: rule.name)
def test_a_condition_is_necessary(rule: AlgebraRule) -> None:
    for text, other in REFUSED[rule.name]:
        at, wrong = program(text), program(other)
        roots = {id(root) for root in at.roots}
        assert not any({id(left), id(right)} & roots for left, right in equations(at, rule)), text
        drawn = [
            arguments(at.kernel, seed, kind) for seed in range(10) for kind in ("ordinary", "equal", "large")
        ]
        assert any(differ(at, wrong, values) for values in drawn), f"{rule.name}: {text} is {other}"


def test_a_rule_that_is_wrong_is_noticed() -> None:
    rule = next(r for r in RULES if r.name == "extreme of an increasing function")
    at = program(kernel("max[N](silu(x))", "M"))
    assert not equations(at, rule), "silu does not keep the order"
    scale = next(r for r in RULES if r.name == "extreme of a multiple")
    at = program(kernel("max[N](x * -0.5)", "M"))
    ((left, right),) = equations(at, scale)
    wrong = replace(right, args=tuple(replace(a, op="max") if hasattr(a, "op") else a for a in right.args))  # type: ignore[union-attr,call-arg,arg-type]
    assert apart(at, [(left, wrong)], arguments(at.kernel, 1, "ordinary"))


def test_an_extent_that_a_call_brings_decides_no_rule() -> None:
    rule = next(r for r in RULES if r.name == "reduction of one")
    assert equations(program("kernel k(x: f32[M=3, N=1]) -> f32[M] { return max[N](x) }"), rule)
    assert not equations(program("kernel k(x: f32[M=3, N]) -> f32[M] { return max[N](x) }"), rule)
