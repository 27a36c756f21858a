"""Hints are right: what they say to write is accepted where it is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.check.test_diagnostics import CHECKED, STAGES, kernel
from tests.check.test_diagnostics import MM as PLAIN
from tests.check.test_diagnostics import TORCH as TORCH_STAGE
from tests.typed import check
from ucutlass.check.calls import BUILTINS
from ucutlass.check.spellings import SPELLINGS
from ucutlass.diagnostics import Diagnostic, ProgramError
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.functions import NAMED
from ucutlass.reference import evaluate

GIVEN = (
    "x: f32[M, N], y: f32[M, N], w: f32[K, N], v: f32[B, C, H], b: f32[N], c: bool[M, N], ids: i32[L], "
    "g: f32[O, C, R], j: f32[J], p: f32[P]"
)


def found(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(ProgramError) as caught:
        check(text)
    return caught.value.diagnostics


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_is_a_program(name: str) -> None:
    spelling = SPELLINGS[name]
    assert name == name.lower() and name not in {*NAMED, *BUILTINS, *ELEMENTS}
    assert spelling.write or spelling.instead
    if spelling.stage:
        check(f"pipeline p({GIVEN}) -> f32[M, N] {{\n  {spelling.write}\n  return x + 1\n}}\n")
    elif spelling.write:
        check(f"kernel k({GIVEN}) -> f32[M, N] {{\n  a = {spelling.write}\n  return x\n}}\n")


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_foreign_name_gets_its_spelling(name: str) -> None:
    for text in (
        f"kernel k(x: f32[M, N]) -> f32[M, N] {{ return {name}(x) }}\n",
        f"kernel k(x: f32[M, N]) -> f32[M, N] {{ return {name}[N](x) }}\n",
        f"fn f(x) = {name}(x)\n",
        f"pipeline p(x: f32[M, N]) -> f32[M, N] {{ h: f32[M, N] = {name}(x)  return h }}\n",
    ):
        (problem,) = found(text)
        assert SPELLINGS[name].hint in (problem.hint or ""), text


# --- what the expressions compute -----------------------------------------------------

TORCH: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu6": lambda x, y: F.relu6(x),
    "hardsigmoid": lambda x, y: F.hardsigmoid(x),
    "swish": lambda x, y: F.silu(x),
    "logsigmoid": lambda x, y: F.logsigmoid(x),
    "softsign": lambda x, y: F.softsign(x),
    "tanhshrink": lambda x, y: F.tanhshrink(x),
    "softmin": lambda x, y: F.softmin(x, dim=1),
    "hardshrink": lambda x, y: F.hardshrink(x),
    "softshrink": lambda x, y: F.softshrink(x),
    "celu": lambda x, y: F.celu(x),
    "threshold": lambda x, y: F.threshold(x, 0, 0),
    "square": lambda x, y: x.square(),
    "reciprocal": lambda x, y: x.reciprocal(),
    "remainder": lambda x, y: x.remainder(y),
    "expm1": lambda x, y: x.expm1(),
    "exp2": lambda x, y: x.exp2(),
    "log2": lambda x, y: x.log2(),
    "log10": lambda x, y: x.log10(),
    "tan": lambda x, y: x.tan(),
    "sinh": lambda x, y: x.sinh(),
    "cosh": lambda x, y: x.cosh(),
    "ceil": lambda x, y: x.ceil(),
    "trunc": lambda x, y: x.trunc(),
    "logaddexp": lambda x, y: x.logaddexp(y),
    "lerp": lambda x, y: x.lerp(y, 0.5),
    "clip": lambda x, y: x.clip(0, 1),
    "std": lambda x, y: x.std(dim=1, correction=0),
    "norm": lambda x, y: x.norm(dim=1),
    "l1_norm": lambda x, y: x.abs().sum(dim=1),
    "normalize": lambda x, y: F.normalize(x, dim=1),
    "cosine_similarity": lambda x, y: F.cosine_similarity(x, y, dim=1),
    "layer_norm": lambda x, y: F.layer_norm(x, x.shape[1:]),
    "rms_norm": lambda x, y: F.rms_norm(x, x.shape[1:], eps=1e-5),
    "batch_norm": lambda x, y: F.batch_norm(x, None, None, training=True),
    "tril": lambda x, y: x.tril(),
    "triu": lambda x, y: x.triu(),
    "flip": lambda x, y: x.flip(1),
    "transpose": lambda x, y: x,
    "mse_loss": lambda x, y: F.mse_loss(x, y),
    "l1_loss": lambda x, y: F.l1_loss(x, y),
    "count_nonzero": lambda x, y: x.count_nonzero(dim=1),
    "isfinite": lambda x, y: x.isfinite(),
}


@pytest.mark.parametrize("name", TORCH)
def test_a_spelling_computes_what_torch_does(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(5, 7, generator=draw, dtype=torch.float64).float() for _ in range(2))
    expected = TORCH[name](x.double(), y.double())
    type_ = ["f32[]", "f32[M]", "f32[M, N]"][expected.ndim]
    if name == "transpose":
        type_ = "f32[J, N]"
    write = SPELLINGS[name].write
    value = f"where({write}, 1, 0)" if expected.dtype is torch.bool else write
    text = f"kernel k(x: f32[M, N], y: f32[M, N]) -> {type_} {{ return {value} }}\n"
    (program,) = check(text).programs
    (result,) = evaluate(program, [x, y])
    torch.testing.assert_close(result.double(), expected.double(), rtol=1e-5, atol=1e-6, equal_nan=True)


# --- hints that are applied -----------------------------------------------------------

MM = "x: bf16[M, K], w: bf16[N, K]"
ROWS = "x: f32[M, N]"


def k(body: str, params: str = ROWS, result: str = "f32[M, N]") -> str:
    return f"kernel k({params}) -> {result} {{\n  {body}\n}}\n"


APPLIED: dict[str, tuple[str, str, str]] = {
    "relu6": (k("return relu6(x)"), "clamp(x, 0, 6)", k("return clamp(x, 0, 6)")),
    "another name for an axis": (
        k("return x + r", "x: f32[M, K], r: f32[M, C]", "f32[M, K]"),
        "r[C = K]",
        k("return x + r[C = K]", "x: f32[M, K], r: f32[M, C]", "f32[M, K]"),
    ),
    "max as a function": (k("return x - max(x)"), "max[N](x)", k("return x - max[N](x)")),
    "sum as a function": (k("return x - sum(x * 2)"), "sum[N](x * 2)", k("return x - sum[N](x * 2)")),
    "mean with dim": (k("return x - mean(x, dim=1)"), "mean[N](x)", k("return x - mean[N](x)")),
    "argmax as a function": (k("return x + argmax(x)"), "argmax[N](x)", k("return x + argmax[N](x)")),
    "softmax as a function": (k("return softmax(x)"), "softmax[N](x)", k("return softmax[N](x)")),
    "softmax along an axis": (k("return softmax(x, 1)"), "softmax[N](x)", k("return softmax[N](x)")),
    "dot as a function": (k("return dot(x, w)", MM), "dot[K](x, w)", k("return dot[K](x, w)", MM)),
    "in a fn": (
        "fn f[D](x) = x - max(x)\n" + k("return f[N](x)"),
        "max[D](x)",
        "fn f[D](x) = x - max[D](x)\n" + k("return f[N](x)"),
    ),
    "clamp by name": (k("return clamp(x, lo=0, hi=1)"), "clamp(x, lo, hi)", k("return clamp(x, 0, 1)")),
    "clamp by torch's names": (
        k("return clamp(x, min=0, max=1)"),
        "clamp(x, lo, hi)",
        k("return clamp(x, 0, 1)"),
    ),
    "leaky_relu by another name": (
        k("return leaky_relu(x, alpha=0.1)"),
        "leaky_relu(x, slope=0.01)",
        k("return leaky_relu(x, slope=0.1)"),
    ),
    "leaky_relu of nothing": (
        k("return leaky_relu(alpha=0.1)"),
        "leaky_relu(x, slope=0.01)",
        k("return leaky_relu(x, slope=0.1)"),
    ),
    "a position that divides": (
        k("return x[N = P // 2]", result="f32[M, P=2*N]"),
        "i64(index(P) // 2)",
        k("return x[N = i64(index(P) // 2)]", result="f32[M, P=2*N]"),
    ),
    "a position that multiplies": (
        k("return x[N = N * N % size(N)]"),
        "i64(index(N) * index(N) % size(N))",
        k("return x[N = i64(index(N) * index(N) % size(N))]"),
    ),
    "a gather by floats": (
        k("return x[N = y]", "x: f32[M, N], y: f32[L]", "f32[M, L]"),
        "N = i64(y)",
        k("return x[N = i64(y)]", "x: f32[M, N], y: f32[L]", "f32[M, L]"),
    ),
    "std": (k("return x / std[N](x)"), "sqrt(var[N](x))", k("return x / sqrt(var[N](x))")),
    "any": (
        k("return any[N](x > 0)", result="bool[M]"),
        "max[N](where(c, 1, 0)) == 1",
        k("return max[N](where(x > 0, 1, 0)) == 1", result="bool[M]"),
    ),
    "torch in a kernel": (k("return torch.relu6(x)"), "clamp(x, 0, 6)", k("return clamp(x, 0, 6)")),
    "used before it is bound": (
        k("a = b + 1  b = x  return a"),
        "write the binding of b first",
        k("b = x  a = b + 1  return a"),
    ),
    "used before it is bound, in a fn": (
        "fn f(x) { a = b + 1  b = x  return a }\n" + k("return f(x)"),
        "write the binding of b first",
        "fn f(x) { b = x  a = b + 1  return a }\n" + k("return f(x)"),
    ),
    "a value in a guard": (
        k("return x  schedule sm90a when x > 0 { vector 4 }"),
        "where(c, a, b)",
        k("return where(x > 0, x, 0)"),
    ),
    "a value in a requirement": (
        k("require x > 0  return x"),
        "where(c, a, b)",
        k("return where(x > 0, x, 0)"),
    ),
    "a dimension in lower case": (
        k("return sum[n](x)", result="f32[M]"),
        "did you mean N?",
        k("return sum[N](x)", result="f32[M]"),
    ),
    "a dimension in lower case, of a size": (
        k("return x * size(m)"),
        "did you mean M?",
        k("return x * size(M)"),
    ),
    "a value in upper case": (k("return X"), "did you mean x?", k("return x")),
    "a letter too many": (k("bias = x  return biass"), "did you mean bias?", k("bias = x  return bias")),
    "a function as a value": (k("return x + relu"), "relu(..)", k("return x + relu(x)")),
    "a name like none": (k("return zebra"), "values here: x", k("return x")),
    "a dimension like none": (
        k("return sum[Q9](x)", result="f32[M]"),
        "dimensions here: M, N",
        k("return sum[N](x)", result="f32[M]"),
    ),
    "a negative position": (
        k("return x[N = -1]", result="f32[M]"),
        "x[N = size(N) - 1]",
        k("return x[N = size(N) - 1]", result="f32[M]"),
    ),
    "reduced twice": (
        k("return sum[N](max[N](x))", result="f32[M]"),
        "sum[M](..)",
        k("return sum[M](max[N](x))", result="f32[]"),
    ),
}


@pytest.mark.parametrize("name", APPLIED)
def test_a_hint_fixes(name: str) -> None:
    wrong, snippet, fixed = APPLIED[name]
    hints = [d.hint or "" for d in found(wrong)]
    assert snippet in hints[0], hints
    check(fixed)


def test_a_renaming_hint_points_at_the_tensor() -> None:
    text = k("return x + r", "x: f32[M, K], r: f32[M, C]", "f32[M, K]")
    (problem,) = found(text)
    ((note, span),) = problem.notes
    assert note == "C comes from r" and text[span.start : span.end].startswith("r: f32")


def test_an_axis_of_a_product_is_not_offered_another_name() -> None:
    text = k("return dot[K](x, w)", MM, "f32[M]")
    assert "[N =" not in (found(text)[0].hint or "")


def test_a_name_of_two_tensors_is_no_accident() -> None:
    text = k("return x * w", "x: f32[M, N], w: f32[N, K]", "f32[M, K]")
    assert "[N =" not in (found(text)[0].hint or "")


FIXED: dict[str, tuple[str, str]] = {
    "UC0102": ("size(K)", kernel("return dot[K](x, w) * rsqrt(size(K))")),
    "UC0104": ("fn frob(x) = x * x", "fn frob(x) = x * x\n" + kernel("return frob(dot[K](x, w))")),
    "UC0105": ("relu(x)", kernel("return relu(dot[K](x, w))")),
    "UC0201": ("bf16", kernel(PLAIN)),
    "UC0202": ("x[M = J]", kernel("return dot[K](x, x[M = J])", "x: bf16[M, K]", "f32[M, J]")),
    "UC0203": ("f16(..)", kernel("return dot[K](f16(x), w)", "x: bf16[M, K], w: f16[N, K]")),
    "UC0206": ("dot[.., S]", kernel("return dot[K, S](x, w)", "x: bf16[M, K, S], w: bf16[N, K, S]")),
    "UC0208": ("sum[N](..)", kernel("return sum[N](dot[K](x, w))", result="f32[M]")),
    "UC0209": ("P=3", kernel("return dot[K](x, w) + index(P)", result="f32[M, N, P=3]")),
    "UC0211": ("max[N](..)", kernel("return max[N](dot[K](x, w))", result="f32[M]")),
    "UC0212": ("where(c, 1, 0)", kernel("return relu(where(dot[K](x, w) > 0, 1, 0))")),
    "UC0213": ("(M1=8 ..)", kernel(PLAIN, "x: bf16[(M1=8 M2), K], w: bf16[N, K]", "f32[M1, M2, N]")),
    "UC0214": ("i64(index(K) * index(K))", kernel("return dot[K](x[K = i64(index(K) * index(K))], w)")),
    "UC0216": ("tf32(x)", kernel("return dot[K](tf32(x), tf32(w))", "x: f32[M, K], w: f32[N, K]")),
    "UC0217": ("acc=f32", kernel("return dot[K](x, w, acc=f32)")),
    "UC0218": ("return e", kernel(PLAIN)),
    "UC0219": ("f32[]", kernel("return sum[M, N](dot[K](x, w))", result="f32[]")),
    "UC0221": ("//", kernel(PLAIN, "x: bf16[M, K=6//2], w: bf16[N, K]")),
    "UC0222": ("relu(..)", kernel("return relu(dot[K](x, w))")),
    "UC0223": ("return e", kernel("a = dot[K](x, w)  return a")),
    "UC0224": (
        "b[N = N - 1]".replace("b", "x"),
        kernel("return dot[K](x, w) + b[N = N - 1]", "x: bf16[M, K], w: bf16[N, K], b: f32[N]"),
    ),
    "UC0402": ("tile", kernel(PLAIN + "  schedule sm90a { tile 128x128x64 }")),
    "UC0403": ("MxNxK", kernel(PLAIN + "  schedule sm90a { tile 128x128x64 }")),
    "UC0405": ("M <= 64", kernel(PLAIN + "  schedule sm90a when M <= 64 { stages 3 }")),
    "UC0503": ("h = bf16(..)", kernel("h = bf16(dot[K](x, w))  return h")),
    "UC0504": (
        "h: f32[B, C] = torch.NAME(x)",
        "pipeline p(x: f32[M]) -> f32[M] { h: f32[M] = torch.sort(x)  return h }\n",
    ),
    "UC0505": ("schedule sm90a for h", STAGES % "schedule sm90a for h { vector 4 }"),
    "UC0508": (
        "dot[N](x, w)",
        "pipeline p(x: f32[M, N], w: f32[N]) -> f32[M] { h: f32[M] = dot[N](x, w)  return h }\n",
    ),
    "UC0509": ("torch.softmax(x, dim=0)", TORCH_STAGE % ("f32[M, N]", "softmax(x, dim=0)")),
}
"""Of the smallest program of a code: what its hint says to write, and that program with it."""


@pytest.mark.parametrize("code", FIXED)
def test_the_hint_of_a_code_fixes(code: str) -> None:
    snippet, fixed = FIXED[code]
    assert snippet in (found(CHECKED[code])[0].hint or "")
    check(fixed)


@pytest.mark.parametrize("code", CHECKED)
def test_every_error_says_what_to_do(code: str) -> None:
    assert all(problem.hint for problem in found(CHECKED[code]))


def test_extents_that_differ_are_not_offered_as_one() -> None:
    text = k("return x + r", "x: f32[M, K=4], r: f32[M, C=8]", "f32[M, K]")
    assert "[C =" not in (found(text)[0].hint or "")
