"""Stages that are joined in the text: where it pays, what stays, and that the program computes the same."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ucutlass import frontend, ir
from ucutlass.grammar.format import format_file
from ucutlass.pipeline.joins import JoinedText, joined
from ucutlass.reference import evaluate
from ucutlass.reference.unrounded import unrounded
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete


def fused(text: str, **sizes: int) -> JoinedText:
    checked = frontend.read_text(text)
    program = frontend.program(checked)
    assert isinstance(program, ir.Pipeline)
    extents = dict(zip(program.dims, complete(program, sizes), strict=True))
    return joined(checked.tree, program, extents)


BLOCK = """
# A block.
pipeline block(x: bf16[T, D], w: bf16[F, D], v: bf16[E, F]) -> bf16[T, E] {
  # the first product
  h: bf16[T, F] = dot[D](x, w)
  g: bf16[T, F] = silu(h)  # stays
  schedule sm90a for h { tile 128x128x64 }
  schedule sm90a for return { tile 128x128x64 }
  return dot[F](g, v)
}
"""


def test_a_binding_that_its_reader_can_compute_loses_its_type() -> None:
    result = fused(BLOCK, T=4096, D=256, F=256, E=256)
    assert result.text == (
        "# A block.\n"
        "pipeline block(x: bf16[T, D], w: bf16[F, D], v: bf16[E, F]) -> bf16[T, E] {\n"
        "  # the first product\n"
        "  h = bf16(dot[D](x, w))\n"
        "  g: bf16[T, F] = silu(h)  # stays\n"
        "\n  schedule sm90a for return { tile 128x128x64 }\n"
        "  return dot[F](g, v)\n"
        "}\n"
    )
    first, second = result.joins
    assert first.joined and first.buffers == ("h",) and first.stages == ("h", "g")
    assert first.together is not None and first.together < first.apart
    assert not second.joined and second.together is None and "[UC0" in second.why


def test_a_text_that_is_joined_stays() -> None:
    text = fused(BLOCK, T=4096, D=256, F=256, E=256).text
    assert fused(text, T=4096, D=256, F=256, E=256).text == text


def test_attention_that_was_cut_at_its_scores_is_one_kernel() -> None:
    result = fused(
        "pipeline cut(q: bf16[B, T, D], k: bf16[B, T, D], v: bf16[B, T, E]) -> bf16[B, T, E] {\n"
        "  s: bf16[B, T, S=T] = dot[D](q, k[T = S]) * rsqrt(size(D))\n"
        "  p: bf16[B, T, S] = softmax[S](s)\n"
        "  return dot[S](p, v[T = S])\n}\n",
        B=8,
        T=512,
        D=64,
        E=64,
    )
    assert result.joins[0].buffers == ("s", "p") and result.joins[0].joined
    assert "  s: [B, T, S=T] = bf16(dot[D](q, k[T = S]) * rsqrt(size(D)))\n" in result.text


def test_a_dot_that_many_would_compute_anew_stays_stored() -> None:
    reads = "".join(f"  y{i}: f32[T, F] = exp(h) * {i}.5\n" for i in range(4))
    result = fused(
        "pipeline p(x: f32[T, D], w: f32[F, D]) -> (a: f32[T, F], b: f32[T, F], c: f32[T, F], d: f32[T, F]) {\n"
        f"  h: f32[T, F] = dot[D](x, w)\n{reads}  return a = y0, b = y1, c = y2, d = y3\n}}\n",
        T=4096,
        D=4096,
        F=4096,
    )
    (join,) = result.joins
    assert not join.joined and join.together is not None and join.together > join.apart
    assert "h: f32[T, F] = dot[D](x, w)" in result.text


def test_torch_stages_are_left_and_said() -> None:
    result = fused(
        "pipeline p(x: f32[T, D], w: f32[F, D]) -> f32[T, F] {\n"
        "  h: f32[T, F] = dot[D](x, w)\n  r: f32[T, F] = torch.sort(h)\n  return relu(r)\n}\n",
        T=64,
        D=64,
        F=64,
    )
    assert "UC0501" in result.joins[0].why
    assert "torch function" in result.joins[1].why
    assert not any(join.joined for join in result.joins)


CALLS = """
kernel linear(x: bf16[M, K], w: bf16[N, K], s: f32) -> bf16[M, N] {
  scaled = dot[K](x, w) * s
  return scaled
}

kernel rows(x: bf16[M, K]) -> bf16[M, K] {
  top = max[K](x)
  return x - top
}

kernel pair(x: bf16[M, K], y: bf16[K, M]) -> bf16[M, K] {
  return x + y
}

pipeline calls(x: bf16[T, D], w: bf16[F, D], r: bf16[T, F], scaled: bf16[F]) -> bf16[T, F] {
  # the product
  h = linear(x, w, 0.5)
  return gelu(h) + r + scaled
}

pipeline behind(x: bf16[T, D], top: bf16[D]) -> bf16[T, D] {
  g: bf16[T, D] = gelu(x) + top
  return rows(g)
}

pipeline own(a: bf16[T, B=T]) -> bf16[T, B] {
  h: bf16[T, B] = relu(a)
  return pair(h, a)
}
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "calls",
            "  # the product\n"
            "  scaled2 = dot[D](x, w) * 0.5\n"
            "  h = bf16(scaled2)\n"
            "  return gelu(h) + r + scaled\n",
        ),
        ("behind", "  g = bf16(gelu(x) + top)\n  top2 = max[D](g)\n  return g - top2\n"),
    ],
)
def test_a_kernel_that_a_stage_calls_is_written_in_place(name: str, text: str) -> None:
    checked = frontend.read_text(CALLS)
    program = frontend.program(checked, name)
    assert isinstance(program, ir.Pipeline)
    sizes = {d: n for d, n in {"T": 64, "D": 32, "F": 48}.items() if d in program.dims}
    result = joined(checked.tree, program, sizes)
    assert text in result.text
    after = frontend.program(frontend.read_text(result.text), name)
    arguments = [t for t in generate(program, sizes, "normal", seed=4) if isinstance(t, torch.Tensor)]
    (expected,), (joined_result,) = evaluate(program, arguments), evaluate(after, arguments)
    assert torch.equal(expected, joined_result)


def test_a_call_whose_names_do_not_fit_is_left() -> None:
    checked = frontend.read_text(CALLS)
    program = frontend.program(checked, "own")
    assert isinstance(program, ir.Pipeline)
    (join,) = joined(checked.tree, program, {"T": 8, "B": 8}).joins
    assert not join.joined and "two names" in join.why


# --- the same computation -----------------------------------------------------------------

STATEMENTS = (
    "relu({a}) + {b} * 0.5",
    "{a} * {b}",
    "exp(-abs({a}))",
    "where(index(N) > 1, {a}, {b})",
    "{a}[N = N - 1] + {b}",
    "{a}[M = size(M) - 1 - M]",
    "{a} - mean[N]({b})",
    "({a} - mean[N]({a})) * rsqrt(var[N]({a}) + 0.25)",
    "softmax[N]({a})",
    "max[R=3]({a}[N = N + R - 1])",
    "sum[R=3]({a}[N = 2*R - N]) * {b}",
    "cumsum[N]({a})",
    "{E}(dot[P]({E}({a}[N = P]), u))",
)
"""Bindings over [M, N] of two earlier ones."""


@st.composite
def pipelines(draw: st.DrawFn) -> str:
    """A pipeline over [T, D] whose stages are written in place or call kernels over [M, N]."""
    element = draw(st.sampled_from(["f32", "bf16"]))
    names, lines, kernels = ["x", "y"], [], []
    for number in range(draw(st.integers(2, 6))):
        form = draw(st.sampled_from(STATEMENTS))
        a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names[-2:]))
        if draw(st.booleans()):
            value = form.format(a=a, b=b, E=element)
            value = re.sub(r"\bN\b", "D", re.sub(r"\bM\b", "T", value))
            lines.append(f"  v{number}: {element}[T, D] = {value}\n")
        else:
            kernels.append(
                f"kernel k{number}(a: {element}[M, N], b: {element}[M, N], u: {element}[N, P=N]) "
                f"-> {element}[M, N] {{\n  v0 = {form.format(a='a', b='b', E=element)}\n  return v0\n}}\n\n"
            )
            lines.append(f"  v{number} = k{number}({a}, {b}, u)\n")
        names.append(f"v{number}")
    last = draw(st.sampled_from(names[2:]))
    return (
        f"{''.join(kernels)}"
        f"pipeline p(x: {element}[T, D], y: {element}[T, D], u: {element}[D, P=D]) -> {element}[T, D] {{\n"
        f"{''.join(lines)}  return {last} + {names[-1]}\n}}\n"
    )


@given(text=pipelines())
@settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much]
)
def test_a_joined_text_computes_what_the_text_does(text: str) -> None:
    differ(text, 5, 7)


@pytest.mark.slow
@given(text=pipelines(), rows=st.integers(1, 9), columns=st.integers(1, 9))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_many_joined_texts_compute_what_the_texts_do(text: str, rows: int, columns: int) -> None:
    differ(text, rows, columns)


def differ(text: str, rows: int, columns: int) -> None:
    """Raises AssertionError where a text and its joined text differ in float64."""
    sizes = {"T": rows, "D": columns}
    result = fused(text, **sizes)
    before, after = (frontend.program(frontend.read_text(t), "p") for t in (text, result.text))
    arguments = [t.double() for t in generate(before, sizes, "normal", seed=4) if isinstance(t, torch.Tensor)]
    (expected,) = evaluate(unrounded(before), arguments)
    (joined_result,) = evaluate(unrounded(after), arguments)
    assert torch.allclose(expected, joined_result, rtol=1e-9, atol=1e-9, equal_nan=True), result.text
    # With roundings: the same casts stand where the same values were stored.
    tree = frontend.read_text(result.text).tree
    assert format_file(tree) == result.text


SEVERAL = """
kernel moments(y: f32[M, N]) -> (m: f32[N], v: f32[N]) {
  return m = mean[M](y), v = var[M](y)
}

pipeline normed(x: f32[M=256, K=8192], w: f32[N=512, K]) -> f32[N] {
  y: f32[M, N] = dot[K](x, w)
  m: f32[N], v: f32[N] = moments(y)
  return m * rsqrt(v + 1e-5)
}
"""


def test_a_stage_that_stores_several_buffers_is_left() -> None:
    checked = frontend.read_text(SEVERAL)
    program = frontend.program(checked, "normed")
    assert isinstance(program, ir.Pipeline)
    extents = dict(zip(program.dims, complete(program, {}), strict=True))
    assert joined(checked.tree, program, extents).text == format_file(checked.tree)
