"""Memory orders that the text leaves to the compiler, and those that it would better have."""

from __future__ import annotations

from math import factorial
from pathlib import Path

import pytest
import torch

from ucutlass import frontend, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.pipeline.orders import (
    MOST_ESTIMATES,
    better_orders,
    choose_orders,
    permuted,
    some_orders,
    type_text,
)
from ucutlass.pipeline.planning import PipelinePlan, estimator, plan_pipeline
from ucutlass.pipeline.sized import Step, sized_pipeline
from ucutlass.reference import evaluate
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete
from ucutlass.tasks.verify_cases import _Loaded, facts

FIRST = """
pipeline two(x: bf16[N, C, H, W], w: bf16[K, R=3, S=3, C], v: bf16[L, T=3, U=3, K]) -> bf16[N, L, Y=H, Z=W] {
  c: [N, K, P=H, Q=W] = relu(dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w))
  h: bf16STORED = c
  return dot[T, U, K](h[P = Y + T - 1, Q = Z + U - 1], v)
}
"""
"""Two convolutions of images that lie channels first."""

HEADS = """
pipeline heads(x: bf16[B, T, C], wq: bf16[(H=8 D), C], wk: bf16[(H D), C], wv: bf16[(H D), C])
  -> bf16[B, T, (H D)] {
  q: bf16 = dot[C](x, wq)
  k: bf16 = dot[C](x[T = S], wk)
  v: bf16 = dot[C](x[T = S], wv)
  s = where(index(S) <= index(T), dot[D](q, k) * rsqrt(size(D)), -inf)
  return dot[S](bf16(softmax[S](s)), v)
}
"""


def planned(text: str, **sizes: int) -> PipelinePlan:
    checked = frontend.read_text(text)
    program = frontend.program(checked)
    assert isinstance(program, ir.Pipeline)
    return plan_pipeline(checked, program, complete(program, sizes), "sm90a")


def chosen(plan: PipelinePlan) -> dict[str, str]:
    return {name: type_text(plan.sized.buffers[name].type) for name in plan.orders}


IMAGES = {"N": 32, "C": 64, "H": 56, "W": 56, "K": 128, "L": 64}


def test_a_convolution_fills_what_the_next_one_reads_without_a_copy() -> None:
    plan = planned(FIRST.replace("STORED", ""), **IMAGES)
    assert chosen(plan) == {"h": "bf16[N, P, Q, K]"}
    assert plan.sized.buffers["h"].shape == (32, 56, 56, 128)
    assert len(plan.stages) == 2, "the layout's change is in the first convolution"


def test_a_written_order_stands_and_a_better_one_is_named() -> None:
    checked = frontend.read_text(FIRST.replace("STORED", "[N, K, P, Q]"))
    program = frontend.program(checked)
    assert isinstance(program, ir.Pipeline)
    sizes = complete(program, IMAGES)
    plan = plan_pipeline(checked, program, sizes, "sm90a")
    assert not plan.orders and plan.sized.buffers["h"].shape == (32, 128, 56, 56)
    (one,) = better_orders(program, sizes, estimator(checked, "sm90a"))
    assert (one.buffer, type_text(one.type)) == ("h", "bf16[N, P, Q, K]") and one.saves > 1e-6


@pytest.mark.parametrize("sizes", [(128, 512, 768, 96), (16, 4096, 4096, 128)])
def test_heads_lie_as_their_product_leaves_them(sizes: tuple[int, ...]) -> None:
    plan = planned(HEADS, **dict(zip("BTCD", sizes, strict=True)))
    assert chosen(plan) == {"q": "bf16[B, T, H, D]", "k": "bf16[B, S, H, D]", "v": "bf16[B, S, H, D]"}


def test_one_order_that_no_reader_takes_is_not_chosen() -> None:
    """The maker would rather have it, and with any other buffer as the maker would have that one."""
    checked = frontend.read_text(HEADS)
    program = frontend.program(checked)
    assert isinstance(program, ir.Pipeline)
    real = estimator(checked, "sm90a")

    def seconds(step: object) -> float:
        name = step.stage.outputs[0]  # type: ignore[attr-defined]
        if name == "return":
            return real(step)  # type: ignore[arg-type]
        last = step.kernel.results[0].type.axes[-1].dims  # type: ignore[attr-defined]
        return 1.0 if last == ("D",) else 0.5

    sizes = complete(program, {"B": 4, "T": 256, "C": 256, "D": 64})
    orders = choose_orders(program, sizes, seconds)
    (attention,) = [s for s in sized_pipeline(permuted(program, orders), sizes).steps if s.name == "return"]
    assert real(attention) > 0


def test_an_order_changes_no_result() -> None:
    program = frontend.program(frontend.read_text(HEADS.replace("H=8", "H=2")))
    assert isinstance(program, ir.Pipeline)
    given = list(generate(program, {"B": 2, "T": 5, "C": 6, "D": 4}, "normal", seed=3))
    (expected,) = evaluate(program, given)
    turned = permuted(program, {"q": (3, 1, 2, 0), "v": (1, 0, 3, 2)})
    assert not turned.unordered and turned.buffers != program.buffers
    (actual,) = evaluate(turned, given)
    assert torch.equal(actual, expected)


def test_a_copy_into_a_result_falls_away() -> None:
    text = "pipeline p(x: bf16[M, K], w: bf16[N, K]) -> bf16[N, M] { h: bf16 = dot[K](x, w)  return h }"
    plan = planned(text, M=512, K=256, N=1024)
    assert [s.step.name for s in plan.stages] == ["return"]


CALLED = """
kernel scale(x: bf16[M, N]) -> bf16[M, N] {
  return x * 2
}

pipeline p(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {
  h: bf16 = dot[K](x, w)
  STAGE
  return y
}
"""


@pytest.mark.parametrize("stage", ["y = scale(h)", "y: bf16[M, N] = torch.relu(h)"])
def test_what_takes_axes_by_number_wants_them_written(stage: str) -> None:
    with pytest.raises(ProgramError) as raised:
        frontend.read_text(CALLED.replace("STAGE", stage))
    (d,) = raised.value.diagnostics
    assert d.code == "UC0501" and "axis by axis" in d.message


def test_a_calls_result_and_a_torch_functions_are_typed() -> None:
    for stage in ("y: bf16 = scale(x)", "y: bf16 = torch.relu(x)"):
        with pytest.raises(ProgramError) as raised:
            frontend.read_text(CALLED.replace("STAGE", stage))
        assert "UC0219" in {d.code for d in raised.value.diagnostics}


def test_a_kernel_that_is_called_turns_with_its_buffer() -> None:
    text = CALLED.replace("h: bf16 =", "h: bf16[M, N] =").replace("STAGE", "y = scale(h)")
    program = frontend.program(frontend.read_text(text))
    assert isinstance(program, ir.Pipeline)
    turned = permuted(program, {"h": (1, 0)})
    assert {n: b.shape for n, b in sized_pipeline(turned, (3, 4, 5)).buffers.items() if n == "h"} == {
        "h": (5, 3)
    }
    given = list(generate(program, {"M": 3, "K": 4, "N": 5}, "normal", seed=1))
    assert torch.equal(evaluate(turned, given)[0], evaluate(program, given)[0])


def test_the_text_is_in_canonical_form() -> None:
    text = FIRST.replace("STORED", "").lstrip()
    assert "h: bf16 = c" in format_file(parse(text))


def test_files_are_judged_in_the_chosen_order(stages: Path) -> None:
    text = """
kernel add(x: f32[A, B], s: f32) -> f32[A, B] {
  return x + s
}

pipeline p(x: f32[A, B], s: f32) -> f32[A, B] {
  a = add(x, s)
  b: f32 = a + s
  return b + s
}
"""
    entries = [(str(stages), "add", (i, 0, 0)) for i in range(3)]
    loaded = _Loaded(facts(frontend.read_text(text, "p.ucu"), "p", entries, {"b": (1, 0)}), "cpu")
    assert dict(loaded.pipeline.buffers)["b"].axes[0].dims == ("B",) and not loaded.pipeline.unordered
    x = torch.randn(9, 17)
    (result,) = results = loaded.results((9, 17))
    launch = loaded.launch((9, 17))
    launch.run([x, 0.5], results, torch.empty(launch.workspace, dtype=torch.uint8))
    assert torch.allclose(result, x + 1.5)


@pytest.mark.parametrize("axes", range(1, 8))
def test_the_orders_that_are_tried_are_orders_and_begin_with_the_written_one(axes: int) -> None:
    found = list(some_orders(axes))
    assert found[0] == tuple(range(axes)) and len(set(found)) == len(found)
    assert all(sorted(order) == list(range(axes)) for order in found)
    assert {order[-1] for order in found[:axes]} == set(range(axes))
    assert len(found) == factorial(axes) if axes <= 4 else len(found) < 100


def test_a_pipeline_of_many_buffers_takes_a_bounded_number_of_estimates() -> None:
    stages = [f"h{i}: bf16 = relu({f'h{i - 1}' if i else 'x'}) + 1" for i in range(30)]
    dims = "A, B, C, D, E, F"
    text = f"pipeline p(x: bf16[{dims}]) -> bf16[{dims}] {{ {' '.join(stages)} return h29 * 2 }}"
    program = frontend.read_text(text).module.programs[0]
    texts: list[str] = []

    def seconds(step: Step) -> float:
        texts.append(step.name)
        return 1.0

    assert isinstance(program, ir.Pipeline)
    assert choose_orders(program, (2,) * 6, seconds) == {f"h{i}": tuple(range(6)) for i in range(30)}
    assert len(texts) <= 3 * MOST_ESTIMATES
