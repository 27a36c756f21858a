"""Buffers laid on a callee's parameters, axis by axis."""

from __future__ import annotations

import pytest

from tests.typed import check
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


LINEAR = "kernel linear(x: f16[M, K], w: f16[N, K]) -> f16[M, N] { return dot[K](x, w) }\n"
TWICE = "kernel twice(x: f32[M, H], y: f32[M, P=2*H]) -> f32[M] { return sum[H](x) + sum[P](y) }\n"
SPLIT = "kernel split(x: f32[M, (H D)], y: f32[H=4]) -> f32[M, H] { return sum[D](x) * y }\n"
COLUMN = "kernel column(x: f32[N, 1]) -> f32[N] { return x }\n"


@pytest.mark.parametrize(
    ("callee", "pipeline", "said", "hint"),
    [
        (
            LINEAR,
            "(x: f16[M, A], w: f16[N, B]) -> f16[M, N] { return linear(x, w) }",
            "K of w is A elsewhere in this call and B here",
            "if they are one, say so in the pipeline's types: A=B",
        ),
        (
            TWICE,
            "(x: f32[M, A], y: f32[M, B]) -> f32[M] { return twice(x, y) }",
            "P of twice is 2 * H, 2 * A in this call, but its axis gives B",
            "if they are one, say so in the pipeline's types: B=2 * A",
        ),
        (
            SPLIT,
            "(x: f32[M, (H D)], y: f32[H]) -> f32[M, H] { return split(x, y) }",
            "H of x is 4 elsewhere in this call and H here",
            "if they are one, say so in the pipeline's types: H=4",
        ),
        (
            COLUMN,
            "(x: f32[N, J=2]) -> f32[N] { return column(x) }",
            "axis 1 of x is 1 in this call, the buffer's 2",
            None,
        ),
    ],
)
def test_extents_that_a_call_would_find_apart(
    callee: str, pipeline: str, said: str, hint: str | None
) -> None:
    with pytest.raises(ProgramError) as caught:
        check(f"{callee}pipeline p{pipeline}")
    (found,) = caught.value.diagnostics
    assert (found.code, found.message, found.hint) == ("UC0501", said, hint)


@pytest.mark.parametrize(
    ("callee", "pipeline"),
    [
        (LINEAR, "(x: f16[M, A], w: f16[N, B=A]) -> f16[M, N] { return linear(x, w) }"),
        (TWICE, "(x: f32[M, A], y: f32[M, B=A*2]) -> f32[M] { return twice(x, y) }"),
        (SPLIT, "(x: f32[M, A], y: f32[H=4]) -> f32[M, H] { return split(x, y) }"),
        (COLUMN, "(x: f32[N, 1]) -> f32[N] { return column(x) }"),
    ],
)
def test_one_extent_in_other_words_is_one(callee: str, pipeline: str) -> None:
    assert len(check(f"{callee}pipeline p{pipeline}").programs) == 2
