"""The eager baseline is the program: against the float64 reference, as closely as its dtypes allow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ucutlass import frontend, ir
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.reference import evaluate
from ucutlass.runtime.bench.eager import FORMS, NotAvailable, compute_types, eager, needs_tf32
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete, free_dims

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").glob("*.ucu"))
PROGRAMS = [(f, p.name) for f in EXAMPLES for p in frontend.read(f).module.programs]
TOLERANCE = {"f32": 1e-4, "tf32": 2e-3, "f16": 1e-2, "bf16": 6e-2, "s8": 0.0}
NEEDS_GPU = {"e4m3", "e5m2"}
NO_EAGER = {
    "cross_entropy_rows": "a gather by several dimensions",
    "masked_exclusive_cumsum": "an exclusive scan",
    "embedding": "a gather by several dimensions",
    "average_pool": "read has no one torch function",
    "max_pool": "read has no one torch function",
}
"""Examples that no one torch function says, and why."""


def built(text: str, **number: int) -> tuple[ir.Program, dict[str, int], torch.fx.GraphModule]:
    program = frontend.read_text(text).module.programs[0]
    sizes = dict(zip(program.dims, complete(program, number), strict=True))
    return program, sizes, eager(program, sizes, "cpu")


def close(program: ir.Program, sizes: dict[str, int], module: torch.fx.GraphModule, tolerance: float) -> None:
    free = {d: sizes[d] for d in free_dims(program)}
    arguments = generate(program, free, "normal", seed=3)
    expected = evaluate(program, arguments)
    actual = module(*arguments)
    assert len(actual) == len(expected)
    for one, reference in zip(actual, expected, strict=True):
        assert one.shape == reference.shape and one.dtype == reference.dtype
        a, b = one.double(), reference.double()
        finite = b.isfinite()
        assert torch.equal(finite, a.isfinite())
        scale = b[finite].abs().max().clamp(min=1.0) if finite.any() else torch.tensor(1.0)
        assert float((a[finite] - b[finite]).abs().max() / scale) <= tolerance


def _floats(program: ir.Program) -> list[ir.TensorType]:
    types = [t.type for t in (*program.params, *program.results) if isinstance(t.type, ir.TensorType)]
    return [t for t in types if t.elem.kind == "float"]


@pytest.mark.parametrize("file, name", PROGRAMS, ids=[n for _, n in PROGRAMS])
def test_examples_agree_with_the_reference(file: Path, name: str) -> None:
    program = next(p for p in frontend.read(file).module.programs if p.name == name)
    sizes = dict(zip(program.dims, complete(program, dict.fromkeys(free_dims(program), 32)), strict=True))
    if name in NO_EAGER:
        with pytest.raises(NotAvailable, match=NO_EAGER[name]):
            eager(program, sizes, "cpu")
        return
    module = eager(program, sizes, "cpu")
    # Without a dot numbers are rounded as the tensors are.
    used = compute_types(program) or {t.elem.name for t in _floats(program)}
    if used & NEEDS_GPU:
        assert "_scaled_mm" in module.code
        return
    close(program, sizes, module, max(TOLERANCE[compute_type] for compute_type in used))


def test_a_linear_layer_is_written_as_one_would() -> None:
    text = (
        "kernel k(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] { return gelu(dot[K](x, w) + b) }"
    )
    _, _, module = built(text, M=8, N=16, K=32)
    code = module.code
    assert "linear(p0, p1, p2)" in code and "gelu(" in code
    assert "tensordot" not in code and "float32" not in code


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("kernel k(x: f32[M, K], w: f32[K, N]) -> f32[N, M] { return dot[K](x, w) }", (8, 16, 32)),
        ("kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M] { return sum[N](dot[K](x, w)) }", (8, 16, 32)),
        (
            "kernel k(x: f32[M, K], w: f32[N, K], s: f32[M]) -> f32[M, N] { return dot[K](x, w) * s }",
            (8, 4, 8),
        ),
        ("kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return max(dot[K](x, w), 0.25) }", (8, 4, 8)),
        ("kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return softmax[N](dot[K](x, w)) }", (8, 4, 8)),
        ("kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return cumsum[N](dot[K](x, w)) }", (8, 4, 8)),
        ("kernel k(x: f32[M, K], w: f32[N, K], a: f32) -> f32[M, N] { return a * dot[K](x, w) }", (8, 4, 8)),
        (
            "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] "
            "{ return where(index(M) < index(N), dot[K](x, w), 0) }",
            (8, 4, 8),
        ),
    ],
)
def test_forms_agree_with_the_reference(text: str, sizes: tuple[int, int, int]) -> None:
    program, full, module = built(text, **dict(zip("MNK", sizes, strict=True)))
    close(program, full, module, 1e-5)


def test_a_bias_along_the_rows_is_no_linear_layer() -> None:
    text = "kernel k(x: f32[M, K], w: f32[N, K], b: f32[M]) -> f32[M, N] { return dot[K](x, w) + b }"
    program, sizes, module = built(text, M=8, N=8, K=16)
    assert "linear" not in module.code
    close(program, sizes, module, 1e-5)


def test_every_function_has_its_torch_form() -> None:
    assert set(FORMS) == set(FUNCTIONS)


def test_torch_forms_compute_the_reference() -> None:
    """Where both are defined, on float32."""
    x = torch.linspace(-3, 3, 101)
    for name, function in FUNCTIONS.items():
        if function.domain in ("bool", "any") or name in ("clamp", "power", "pow"):
            continue
        count = function.arity[0]
        given = [x] if count == 1 else [x, torch.linspace(0.5, 2, 101)]
        here = FORMS[name](*given).double()
        defaults = [torch.tensor(d, dtype=torch.float64) for d in function.defaults]
        there = function.reference(*(g.double() for g in given), *defaults).double()
        assert torch.allclose(here, there, rtol=1e-4, atol=1e-5, equal_nan=True), name


def test_integer_products_are_two_matrices() -> None:
    text = "kernel k(x: s8[B, M, K], w: s8[B, N, K]) -> i32[B, M, N] { return dot[K](x, w) }"
    with pytest.raises(NotAvailable, match="two matrices"):
        built(text, B=2, M=32, N=32, K=32)


def test_tf32_is_asked_of_torch_as_a_whole() -> None:
    one = "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](tf32(x), tf32(w)) }"
    assert needs_tf32(frontend.read_text(one).module.programs[0])
    both = one.replace("return ", "return dot[K](x, w) + ")
    with pytest.raises(NotAvailable, match="one switch"):
        needs_tf32(frontend.read_text(both).module.programs[0])


def test_the_module_can_be_compiled_by_dynamo() -> None:
    text = "kernel k(x: f32[M, K], w: f32[N, K], b: f32[N]) -> f32[M, N] { return relu(dot[K](x, w) + b) }"
    program, _, module = built(text, M=8, N=8, K=16)
    arguments = generate(program, {"M": 8, "N": 8, "K": 16}, "normal", seed=0)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*arguments)[0], module(*arguments)[0])
