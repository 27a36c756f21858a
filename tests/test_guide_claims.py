"""What the guide says in a few words, each as a program: it is in the text, and it is so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from ucutlass import frontend, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.guide import guide
from ucutlass.ir.compute_types import COMPUTE_TYPES
from ucutlass.ir.elements import F32
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import show
from ucutlass.pipeline.sized import kernels
from ucutlass.reference import evaluate
from ucutlass.typical_sizes import typical_sizes

HEADS = "q: {0}[B, H, L, D=64], k: {0}[B, H, S, D], v: {0}[B, H, S, D]"
SCORES = "dot[D](q, k) * 0.125"
OUTCOME = "dot[S](f16(softmax[S]({})), v)"


@dataclass(frozen=True)
class Claim:
    """`words` stand in the guide; `texts` are programs that check and plan, or end in `code`."""

    words: str
    texts: tuple[str, ...]
    code: str = ""


def kernel(params: str, result: str, value: str) -> str:
    return f"kernel k({params}) -> {result} {{ return {value} }}"


def attention(score: str, more: str = "", elem: str = "f16") -> str:
    params = HEADS.format(elem) + more
    return kernel(params, "f16[B, H, L, D]", OUTCOME.format(score).replace("f16(", f"{elem}("))


RAGGED = "x: f16[T, D], w: f16[E, F, D], u: f16[E, F, D], b: f16[E, F], offsets: i32[E+1]"
MM = "x: f16[M, K], w: f16[N, K]"
GROUP = "[E = segment(T, offsets)]"

CLAIMS: dict[str, Claim] = {
    "constant coordinates": Claim(
        "`qkv[Z = 0]` selects, also for a dot and in attention",
        (
            kernel("x: f16[Z=3, M, K]", "f16[M, K]", "x[Z = 0] * x[Z = 2]"),
            kernel("x: f16[Z=3, M, K], w: f16[N, K]", "f16[M, N]", "dot[K](x[Z = 0], w)"),
            "kernel k(x: f16[B, H, L, Z=3, D=64]) -> f16[B, H, L, D] { "
            "return dot[S](f16(softmax[S=L](dot[D](x[Z = 0], x[Z = 1, L = S]))), x[Z = 2, L = S]) }",
        ),
    ),
    "several coordinates": Claim(
        "several equations in one bracket",
        (
            kernel("x: f32[A, B, C]", "f32[C]", "x[A = 0, B = 1]"),
            kernel("x: f32[H, W]", "f32[P=H, Q=W]", "max[R=3](x[H = P + R - 1, W = Q])"),
        ),
    ),
    "a rename within brackets": Claim(
        "`sum[S](x[L = S])`", (kernel("x: f32[L]", "f32[]", "sum[S](x[L = S])"),)
    ),
    "more than two names on an axis": Claim(
        "`(H G D)` is one memory axis seen as several names",
        (kernel("x: f16[M, (H G=2 D=64)]", "f16[M, H, G, D]", "x * 2"),),
    ),
    "softmax over two names": Claim(
        "`softmax[M, N]` over both", (kernel("x: f32[B, M, N]", "f32[B, M, N]", "softmax[M, N](x)"),)
    ),
    "functions of several values": Claim(
        "takes any values and gives one",
        (
            "fn f(x, y, z) { a = x * y  return a + z }\n"
            + kernel("x: f32[N], y: f32[N]", "f32[N]", "f(x, y, 1)"),
        ),
    ),
    "functions give one value": Claim(
        "takes any values and gives one",
        ("fn f(x) { return a = x, b = x }\n" + kernel("x: f32[N]", "f32[N]", "f(x)"),),
        "UC0223",
    ),
    "an extent in a result": Claim(
        "`-> f32[P=H-R+1]`",
        (kernel("x: f32[N, H], w: f32[R]", "f32[N, P=H-R+1]", "sum[R](x[H = P + R] * w)"),),
    ),
    "an extent in a binding": Claim(
        "`w: [N, P=H//2] = ..`",
        ("kernel k(x: f32[N, H]) -> f32[N] { w: [N, P=H//2] = max[R=2](x[H = 2*P + R])  return sum[P](w) }",),
    ),
    "an extent in a later parameter": Claim(
        "`y: f32[T=L+1]`", (kernel("x: f32[B, L], y: f32[B, T=L+1]", "f32[B, L]", "x + y[T = L + 1]"),)
    ),
    "integers that index": Claim(
        "gathers by s8 u8 i32 i64",
        tuple(
            kernel(f"z: f32[V, D], ids: {elem}[L]", "f32[L, D]", "z[V = ids]")
            for elem in ("s8", "u8", "i32", "i64")
        ),
    ),
    "a bool is no number": Claim(
        "bool has no arithmetic", (kernel("x: f32[N], c: bool[N]", "f32[N]", "x * c"),), "UC0212"
    ),
    "a bool as a number": Claim(
        "`where(c, 1, 0)`", (kernel("x: f32[N], c: bool[N]", "f32[N]", "x * where(c, 1, 0)"),)
    ),
    "case": Claim("Case matters", (kernel("x: f32[N], n: f32, X: f32[N]", "f32[N]", "x * n + X"),)),
    "a value named like a function": Claim(
        "Dimensions and values share one namespace",
        (kernel("x: f32[N], max: f32[N], exp: f32[N]", "f32[N]", "max[N](x) * max + exp(exp)"),),
    ),
    "i32 beside f32": Claim(
        "mixed work (i32 beside f32) is f32",
        (
            kernel("x: f32[N], i: i32[N]", "f32[N]", "x * i"),
            kernel(MM + ", i: i32[M]", "f32[M, N]", "dot[K](x, w) * i"),
        ),
    ),
    "attention's types": Claim(
        "attention, f16, bf16, tf32, f32",
        (attention(SCORES), attention(SCORES, elem="bf16"), attention(SCORES, elem="f32")),
    ),
    "a bias in attention": Claim("stored bias", (attention(SCORES + " + bias", ", bias: f16[H, L, S]"),)),
    "a gathered bias in attention": Claim(
        "store shifted, selected or gathered ones in a stage before",
        (attention(SCORES + " + t[R = i]", ", t: f16[H, R], i: i32[L, S]"),),
        "UC0304",
    ),
    "a gathered bias that is stored": Claim(
        "store shifted, selected or gathered ones in a stage before",
        (
            f"pipeline p({HEADS.format('f16')}, t: f16[H, R], i: i32[L, S]) -> f16[B, H, L, D] {{ "
            f"b: f16[H, L, S] = t[R = i]  return {OUTCOME.format(SCORES + ' + b')} }}",
        ),
    ),
    "several results of attention": Claim(
        "results of the outcome alone",
        (
            f"kernel k({HEADS.format('f16')}) -> (o: f16[B, H, L, D], p: f32[B, H, L, D]) {{ "
            f"a = {OUTCOME.format(SCORES)}  return o = a, p = a * 2 }}",
        ),
    ),
    "logsumexp beside attention": Claim(
        "results of the outcome alone",
        (
            f"kernel k({HEADS.format('f16')}) -> (o: f16[B, H, L, D], p: f32[B, H, L]) {{ "
            f"s = {SCORES}  return o = {OUTCOME.format('s')}, p = logsumexp[S](s) }}",
        ),
        "UC0300",
    ),
    "ragged rows with a bias": Claim(
        "bias `b[E = segment(T, offsets)]`",
        (kernel(RAGGED.replace("u: f16[E, F, D], ", ""), "f16[T, F]", f"dot[D](x, w{GROUP}) + b{GROUP}"),),
    ),
    "ragged gated pairs": Claim(
        "ragged groups, also gated",
        (kernel(RAGGED, "f16[T, F]", f"silu(dot[D](x, w{GROUP}) + b{GROUP}) * dot[D](x, u{GROUP})"),),
    ),
    "a call in a return": Claim(
        "`return linear(h, w2)`",
        (
            kernel(MM, "f16[M, N]", "dot[K](x, w)")
            + "\npipeline p(x: f16[M, K], w: f16[N, K], w2: f16[O, N]) -> f16[M, O] "
            "{ h = k(x, w)  return k(h, w2) }",
        ),
    ),
    "a stored binding that is returned": Claim(
        "return y = dot[F](a, w2), h = a",
        (
            f"pipeline p({MM}) -> (y: f16[M, N], m: f32[M]) {{ a: f16[M, N] = dot[K](x, w)  "
            "return y = a, m = max[N](a) }",
        ),
    ),
}


def plan(text: str) -> None:
    """Checks a text and plans its kernels for ordinary extents."""
    checked = frontend.read_text(text)
    program = checked.module.programs[-1]
    for one in [program] if isinstance(program, ir.Kernel) else kernels(program):
        sizes = typical_sizes(one, None)
        assert sizes is not None
        frontend.plan_kernel(checked, one, sizes, "sm90a")


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_in_the_guide_and_so(name: str) -> None:
    claim = CLAIMS[name]
    assert claim.words in guide()
    for text in claim.texts:
        if not claim.code:
            plan(text)
            continue
        with pytest.raises(ProgramError) as caught:
            plan(text)
        assert {d.code for d in caught.value.diagnostics} == {claim.code}


def test_the_first_accumulation_is_the_default() -> None:
    assert "the first is the default: f16 f32 or f16" in guide()
    checked = frontend.read_text(kernel(MM, "f32[M, N]", "dot[K](x, w)"))
    (result,) = frontend.kernel(checked).results
    assert (
        isinstance(result.value, ir.Dot) and result.value.accumulate == COMPUTE_TYPES["f16"].accumulations[0]
    )


def test_plain_f32_operands_give_f32_accuracy() -> None:
    assert "f32 operands give f32 accuracy" in guide()
    checked = frontend.read_text(kernel(MM.replace("f16", "f32"), "f32[M, N]", "dot[K](x, w)"))
    program = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, program, (4096, 4096, 4096), "sm90a").planned
    assert planned.plan.problem.compute_type is F32
    x, w = (torch.randn(8, 64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    (value,) = evaluate(program, [x, w])
    torch.testing.assert_close(value.double(), x.double() @ w.double().T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("sizes", "warps"), [((4096, 1001, 4096), "multistage"), ((1, 1001, 4096), "gemv")])
def test_unaligned_data_run_on_another_kernel(sizes: tuple[int, ...], warps: str) -> None:
    assert "(unaligned data: `multistage` or `gemv`)" in guide()
    checked = frontend.read_text(kernel(MM, "f16[M, N]", "dot[K](x, w)"))
    planned = frontend.plan_kernel(checked, frontend.kernel(checked), sizes, "sm90a").planned
    assert f"warps {warps}" in show(planned.request)


def test_a_rule_is_an_error_only_where_the_schedule_leaves_no_kernel() -> None:
    assert "an error only where the schedule leaves none" in guide()
    text = kernel(MM.replace("K]", "K=1001]", 1), "f16[M, N]", "dot[K](x, w)")
    plan(text)
    with pytest.raises(ProgramError) as caught:
        plan(text[:-1] + "schedule sm90a { warps cooperative } }")
    assert {d.code for d in caught.value.diagnostics} == {"UC0418"}
    assert "sm90a" in ARCHES
