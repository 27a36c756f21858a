"""Extents, shapes and copies of a pipeline."""

from __future__ import annotations

import pytest

from ucutlass import frontend, ir
from ucutlass.pipeline.names import outer_names
from ucutlass.pipeline.sized import SizedPipeline, sized_pipeline
from ucutlass.shapes import ShapeError, complete


def laid(text: str, **sizes: int) -> SizedPipeline:
    pipeline = frontend.program(frontend.read_text(text))
    assert isinstance(pipeline, ir.Pipeline)
    return sized_pipeline(pipeline, complete(pipeline, sizes))


MLP = """
kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }
pipeline mlp(x: bf16[T, D], up: bf16[F, D], down: bf16[D, F]) -> bf16[T, D] {
  a = linear(x, w = up)
  h: bf16[T, F] = silu(a)
  return linear(h, down)
}
"""


def test_stages_have_their_own_extents_in_their_own_order() -> None:
    found = laid(MLP, T=10, D=20, F=30)
    assert [s.name for s in found.steps] == ["a = linear", "h", "return = linear"]
    assert [s.sizes for s in found.steps] == [(10, 20, 30), (10, 30), (10, 30, 20)]
    assert [s.after for s in found.steps] == [frozenset(), {0}, {1}]
    assert {n: b.shape for n, b in found.buffers.items()} == {
        "x": (10, 20),
        "up": (30, 20),
        "down": (20, 30),
        "a": (10, 30),
        "h": (10, 30),
        "return": (10, 20),
    }
    assert (found.params, found.intermediates, found.results) == (
        ("x", "up", "down"),
        ("a", "h"),
        ("return",),
    )
    assert found.buffers["a"].bytes == 600


def test_names_are_those_of_the_pipeline() -> None:
    found = laid(MLP, T=10, D=20, F=30)
    assert outer_names(found, found.steps[0]) == {"M": "T", "K": "D", "N": "F"}
    assert outer_names(found, found.steps[2]) == {"M": "T", "K": "F", "N": "D"}


TWO = """
kernel two(x: f32[M], y: f32[M]) -> (p: f32[M], q: f32[M]) { return p = x * y, q = x - y }
"""


def test_what_is_returned_is_not_copied() -> None:
    found = laid(
        TWO
        + """
pipeline both(x: f32[A], y: f32[A]) -> (a: f32[A], b: f32[A], c: f32[A]) {
  p, q = two(x, y)
  r: f32[A] = p + 1
  return a = p, b = r, c = q
}
""",
        A=3,
    )
    assert [s.name for s in found.steps] == ["return a, return c = two", "return b"]
    assert found.intermediates == ()
    assert found.steps[1].stage.arguments == ("return a",)


@pytest.mark.parametrize("returned", ["a = x, b = y", "a = p, b = p"])
def test_parameters_and_second_returns_are_copied(returned: str) -> None:
    found = laid(
        TWO
        + f"""
pipeline copies(x: f32[A], y: f32[A]) -> (a: f32[A], b: f32[A]) {{
  p, q = two(x, y)
  return {returned}
}}
""",
        A=3,
    )
    assert len(found.steps) == (3 if "x" in returned else 2)


def test_another_order_is_a_copy_of_its_own() -> None:
    found = laid(
        TWO.replace("[M]", "[M, N]")
        + """
pipeline turned(x: f32[A, B], y: f32[A, B]) -> (a: f32[A, B], b: f32[B, A]) {
  p, q = two(x, y)
  return a = p, b = q
}
""",
        A=3,
        B=4,
    )
    assert [s.name for s in found.steps] == ["return a, q = two", "return b"]


def test_extents_that_a_stage_cannot_have() -> None:
    text = """
kernel halve(x: f32[M]) -> f32[P=M//2] { return x[M = P] }
pipeline p(x: f32[A]) -> f32[B=A//2] { return halve(x) }
"""
    assert laid(text, A=2).steps[0].sizes == (2, 1)
    with pytest.raises(ShapeError, match="UC0601"):
        laid(text, A=1)


def test_composite_axes_are_split_at_the_call() -> None:
    text = """
kernel norm(x: f32[N, (G=8 C)]) -> f32[N, (G C)] { return x * 2 }
pipeline p(x: f32[A, B]) -> f32[A, B] {
  h = norm(x)
  return norm(h)
}
"""
    assert laid(text, A=2, B=32).steps[0].sizes == (2, 8, 4)
    with pytest.raises(ShapeError, match=r"stage h = norm: axis 1 of x has 33 elements where 32 fit"):
        laid(text, A=2, B=33)


def test_a_stages_requirement_is_the_pipelines() -> None:
    text = """
kernel even(x: f32[M]) -> f32[M] { require M % 2 == 0  return x + 1 }
pipeline p(x: f32[A]) -> f32[A] { return even(x) }
"""
    assert laid(text, A=4).steps[0].sizes == (4,)
    with pytest.raises(ShapeError, match="UC0603"):
        laid(text, A=5)
