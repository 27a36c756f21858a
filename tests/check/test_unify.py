"""Buffers laid on a callee's parameters, axis by axis."""

from __future__ import annotations

import pytest

from ucutlass.check import check
from ucutlass.diagnostics import ProgramError

PLUS = "kernel plus(a: f32[P, Q], b: f32[Q, P]) -> f32[P, Q] { return a + b }\n"


def call(x: str, y: str) -> str:
    body = "{ z: f32[M, N] = plus(x, y) return z }"
    return f"{PLUS}pipeline p(x: f32[{x}], y: f32[{y}]) -> f32[M=4, N=8] {body}"


def refusal(x: str, y: str) -> str:
    with pytest.raises(ProgramError) as caught:
        check(call(x, y))
    (found,) = caught.value.diagnostics
    assert found.code == "UC0501"
    return found.message


def test_a_buffer_gives_the_callee_its_dimensions() -> None:
    (_, pipeline) = check(call("4, 8", "8, 4")).programs
    assert pipeline.name == "p"


def test_two_buffers_must_give_one_extent() -> None:
    assert refusal("4, 8", "9, 4") == "Q of b is 8 elsewhere in this call and 9 here"


def test_axes_must_be_as_many() -> None:
    assert refusal("4, 8", "8") == "b has 2 axes, the buffer 1"


def test_known_extents_are_compared_through_names() -> None:
    text = (
        "kernel plus(a: f32[P, Q], b: f32[Q, P]) -> f32[P, Q] { return a + b }\n"
        "pipeline p(x: f32[M=4, N=8], y: f32[I=9, M]) -> f32[M, N] { return plus(x, y) }\n"
    )
    with pytest.raises(ProgramError) as caught:
        check(text)
    assert [d.code for d in caught.value.diagnostics] == ["UC0501"]
