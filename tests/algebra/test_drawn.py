"""All rules together on drawn programs: whatever ends up in one class is equal."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algebra.equations import apart, arguments, program
from tests.algebra.examples import kernel
from ucutlass.algebra.rules import RULES
from ucutlass.algebra.saturation import Bounds, saturate

MATRICES = ("x", "y", "(x * u)", "(v - x)", "dot[K](a, b)", "dot[J](dot[K](a, c), d)")
ROWS = ("u", "dot[K](a, a)", "dot[N](x, v)")


@st.composite
def matrix(draw: st.DrawFn, depth: int) -> str:
    if depth == 0:
        return draw(st.sampled_from(MATRICES))
    inner = draw(matrix(depth - 1))
    form = draw(st.sampled_from(("function", "matrix", "row", "number", "softmax")))
    match form:
        case "function":
            name = draw(st.sampled_from(("relu", "tanh", "sigmoid", "abs", "negate", "clamp")))
            return {"negate": f"(-{inner})", "clamp": f"clamp({inner}, -0.5, 1.5)"}.get(
                name, f"{name}({inner})"
            )
        case "matrix":
            return f"({inner} {draw(st.sampled_from('+-*'))} {draw(matrix(depth - 1))})"
        case "row":
            return f"({inner} {draw(st.sampled_from('+-*'))} {draw(row(depth - 1))})"
        case "number":
            return f"({inner} {draw(st.sampled_from('+-*/'))} {draw(st.sampled_from(('2', '0.5', '-1.5')))})"
        case _:
            return f"{draw(st.sampled_from(('softmax', 'log_softmax')))}[N]({inner})"


@st.composite
def row(draw: st.DrawFn, depth: int) -> str:
    if depth == 0:
        return draw(st.sampled_from(ROWS))
    op = draw(st.sampled_from(("sum", "mean", "max", "min", "logsumexp", "var")))
    return f"{op}[N]({draw(matrix(depth - 1))})"


@given(expression=row(4), seed=st.integers(0, 1000))
@settings(max_examples=25)
def test_every_class_has_one_value(expression: str, seed: int) -> None:
    at = program(kernel(expression, "M"))
    saturate(at.terms, RULES, Bounds(terms=600, rounds=4, seconds=30))
    pairs = [(members[0], other) for _, members in at.terms.graph.classes() for other in members[1:]]
    assert not apart(at, pairs, arguments(at.kernel, seed, "ordinary"))
