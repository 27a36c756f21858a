"""Every diagnostic code has a smallest program that earns it, and it alone."""

from __future__ import annotations

import pytest

from tests.check.limit_programs import LIMITS, MANY_ERRORS
from tests.typed import check
from ucutlass import ir
from ucutlass.codes import CODES
from ucutlass.diagnostics import ProgramError
from ucutlass.ir import extents
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.families import match, plan_pattern
from ucutlass.kernels.refused import Refused
from ucutlass.limits import ERRORS


def kernel(body: str, params: str = "x: bf16[M, K], w: bf16[N, K]", result: str = "f32[M, N]") -> str:
    return f"kernel k({params}) -> {result} {{\n  {body}\n}}\n"


def attention(compute_type: str, over: str = "S", v: str = "H, S, D") -> str:
    weights = f"softmax[{over}](dot[D](q, k))"
    weights = weights if compute_type == "f32" else f"{compute_type}({weights})"
    return (
        f"kernel k(q: {compute_type}[H, L, D], k: {compute_type}[H, S, D], v: {compute_type}[{v}]) -> {compute_type}[H, L, D] {{\n"
        f"  return dot[S]({weights}, v)\n}}\n"
    )


MM = "return dot[K](x, w)"

STAGES = (
    "kernel k(x: f32[M]) -> f32[M] { return x + 1 }\n"
    "pipeline p(x: f32[M]) -> f32[M] {\n"
    "  a = k(x)\n  h: f32[M] = a * 2\n  return h - a\n  %s\n}\n"
)
"""A stage that calls a kernel, one in place, and the returned one."""

TORCH = "pipeline p(x: f32[M, N]) -> f32[M] {\n  h: %s = torch.%s\n  return sum[N](h)\n}\n"

CHECKED: dict[str, str] = {
    "UC0101": kernel("return dot[K](x, v)"),
    "UC0102": kernel("return dot[K](x, w) * rsqrt(K)"),
    "UC0103": kernel("a = dot[K](x, w)  a = a + 1  return a"),
    "UC0104": kernel("return frob(dot[K](x, w))"),
    "UC0105": kernel("return relu(dot[K](x, w), 1)"),
    "UC0106": "fn f(x) = f(x)\n" + kernel("return f(dot[K](x, w))"),
    "UC0107": "fn f0(x) = x * x + 1\n"
    + "".join(f"fn f{i}(x) = f{i - 1}(f{i - 1}(f{i - 1}(x)))\n" for i in range(1, 8))
    + kernel("return f7(dot[K](x, w))"),
    "UC0108": kernel("M = dot[K](x, w)  return M"),
    "UC0109": "pipeline p(x: f32[M]) -> f32[M] { return x + 1 }\n"
    "pipeline q(x: f32[M]) -> f32[M] { h: f32[M] = p(x)  return h + 1 }\n",
    "UC0201": kernel(MM, params="x: bf17[M, K], w: bf16[N, K]"),
    "UC0202": kernel("return dot[K](x, w)", result="f32[M, M]"),
    "UC0203": kernel(MM, params="x: bf16[M, K], w: f16[N, K]"),
    "UC0204": kernel(MM, params="x: i64[M, K], w: i64[N, K]"),
    "UC0205": kernel("return dot[N](x, w)"),
    "UC0206": kernel("return dot[K](x, w)", params="x: bf16[M, K, S], w: bf16[N, K, S]"),
    "UC0207": kernel("return dot[K](x, w)", result="f32[M, N, P=2]"),
    "UC0208": kernel("return dot[K](x, w)", result="f32[M]"),
    "UC0209": kernel("return dot[K](x, w) + index(P)", result="f32[M, N, P]"),
    "UC0210": kernel(MM, params="x: bf16[M, K=64], w: bf16[N, K=128]"),
    "UC0211": kernel("return max[K](dot[K](x, w))"),
    "UC0212": kernel("return relu(dot[K](x, w) > 0)"),
    "UC0213": kernel(
        "return dot[K](x, w)", params="x: bf16[(M1 M2), K], w: bf16[N, K]", result="f32[M1, M2, N]"
    ),
    "UC0214": kernel("return dot[K](x[K = K * K], w)"),
    "UC0215": kernel("return dot[K](x[N = K], w)"),
    "UC0216": kernel(MM, params="x: tf32[M, K], w: tf32[N, K]"),
    "UC0217": kernel("return dot[K](x, w, acc=f16)"),
    "UC0218": kernel("return y = dot[K](x, w)"),
    "UC0219": kernel("return sum[M, N](dot[K](x, w))", result="f32"),
    "UC0220": kernel(MM, params="x: bf16[M, K, 2], w: bf16[N, K]"),
    "UC0221": kernel(MM, params="x: bf16[M, K=6/2], w: bf16[N, K]"),
    "UC0222": kernel("return relu[M](dot[K](x, w))"),
    "UC0223": kernel("a = dot[K](x, w)"),
    "UC0224": kernel("return dot[K](x, w) + b[N = -1]", params="x: bf16[M, K], w: bf16[N, K], b: f32[N]"),
    "UC0401": kernel(MM + "  schedule sm42 { stages 3 }"),
    "UC0402": kernel(MM + "  schedule sm90a { tyle 128x128x64 }"),
    "UC0403": kernel(MM + "  schedule sm90a { tile 128x128 }"),
    "UC0404": kernel(MM + "  schedule sm90a { stages 3 }  schedule sm90a when M <= 64 { stages 4 }"),
    "UC0405": kernel(MM + "  schedule sm90a when M + 1 { stages 3 }"),
    "UC0406": kernel(MM + "  schedule sm90a { stages 3  stages 4 }"),
    "UC0501": "kernel k(x: f32[M]) -> f32[M] { return x + 1 }\n"
    "pipeline p(x: f16[M]) -> f32[M] { return k(x) }\n",
    "UC0502": "kernel f(x: f32[M]) -> f32[M] { return x + 1 }\n"
    "kernel g(x: f32[M]) -> f32[M] { return f(x) * 2 }\n",
    "UC0503": kernel("h: bf16[M, N] = dot[K](x, w)  return h"),
    "UC0505": STAGES % "schedule sm90a { vector 4 }",
    "UC0506": STAGES % "schedule sm90a for g { vector 4 }",
    "UC0507": STAGES % "schedule sm90a for a { vector 4 }",
    "UC0508": TORCH % ("f32[M, N]", "einsum(x)"),
    "UC0509": TORCH % ("f32[M, N]", "softmax(x, axis_of=1)"),
    "UC0510": TORCH % ("f32[M]", "softmax(x, dim=1)"),
    "UC0504": "pipeline p(x: f32[M]) -> f32[M] { h = torch.sort(x)  return h }\n",
}

REFUSED: dict[str, str] = {
    "UC0300": kernel(
        "return dot[K](x, w) + dot[K](x, u) + dot[K](x, v)",
        params="x: bf16[M, K], w: bf16[N, K], u: bf16[N, K], v: bf16[N, K]",
    ),
    "UC0302": kernel("return dot[K](bf16(relu(x)), w)"),
    "UC0303": kernel("d = dot[K](x, w)  return d - max[M, N](d)"),
    "UC0304": kernel("return dot[K](x, w) + r[M = M - 1]", params="x: bf16[M, K], w: bf16[N, K], r: f32[M]"),
    "UC0305": kernel(
        "return dot[K](x, w)",
        params="x: bf16[A, U, B, V, C, W, D, K], w: bf16[A, B, C, D, N, K]",
        result="f32[D, U, C, V, B, W, A, N]",
    ),
    "UC0306": kernel(MM, result="f64[M, N]"),
    "UC0307": kernel(
        "return dot[K](x, w) + r", params="x: bf16[M, K], w: bf16[N, K], r: f32[Z]", result="f32[M, N, Z]"
    ),
    "UC0308": kernel("return dot[K](bf16(x), w)", params="x: f32[M, K], w: bf16[N, K]"),
    "UC0309": kernel("return var[N](dot[K](x, w))", result="f32[M]"),
    "UC0310": kernel("return relu(x)", params="x: f64[M]", result="f32[M]"),
    "UC0311": kernel("return x - max[N](x) / sum[M](x)", params="x: f32[M, N]"),
    "UC0312": kernel(
        "return y = x + 1, r = x[N = 0]", params="x: f32[M, N]", result="(y: f32[M, N], r: f32[M])"
    ),
    "UC0313": kernel("return var[R=4](x[L = P + R])", params="x: f32[L]", result="f32[P=L-3]"),
    "UC0314": kernel("return sum[N](x)[M = size(M) - 1 - M]", params="x: f32[M, N]", result="f32[M]"),
    "UC0316": kernel("return cumsum[L](x) + cumsum[L](x, reverse=true)", params="x: f32[L]", result="f32[L]"),
    "UC0320": attention("e4m3"),
    "UC0321": attention("bf16", over="S, L"),
    "UC0322": attention("bf16", v="H, D, S"),
    "UC0330": kernel(
        "return dot[K](x, w) * dot[K](y, u)",
        params="x: bf16[M, K], y: bf16[M, K], w: bf16[N, K], u: bf16[N, K]",
    ),
    "UC0331": "kernel k(y: bf16[T, F], x: bf16[T, D], o: i32[O]) -> f32[E=O-1, F, D] {\n"
    "  return dot[T](bf16(where(segment(T, o) == index(E), y, 0)), x)\n}\n",
}

WARNED: dict[str, str] = {
    "UC0801": kernel(MM, params="x: bf16[M, K], w: bf16[N, K], b: f32[N]"),
    "UC0802": kernel("a = 1  " + MM),
    "UC0803": "fn f(x) = x\n" + kernel(MM),
    "UC0804": kernel(MM + "  schedule sm90a when M < 1 { stages 3 }"),
    "UC0805": kernel(
        MM + "  schedule sm90a when M <= 64 { stages 3 }  schedule sm90a when M < 9 { stages 4 }"
    ),
    "UC0806": kernel("require M >= 1  " + MM),
    "UC0807": kernel("require M % 0 == 0  " + MM),
    "UC0808": kernel(MM + "  schedule sm90a { stages 3 or 4 or 3 }"),
}
"""Programs that earn a warning."""

SIZED = {"UC0305", "UC0314"}
"""Codes of recognition that come once extents are there."""

ELSEWHERE = {
    "UC0333",
    "UC0334",
    "UC0439",
    "UC0601",
    "UC0602",
    "UC0603",
    "UC0701",
    "UC0709",
    "UC0710",
    "UC0711",
    "UC0719",
}
"""Codes that need more than a text; their own tests have them."""


def codes(text: str) -> list[str]:
    with pytest.raises(ProgramError) as caught:
        check(text)
    return [d.code for d in caught.value.diagnostics]


@pytest.mark.parametrize("code", CHECKED)
def test_checker_rejects(code: str) -> None:
    texts = codes(CHECKED[code])
    assert texts[0] == code and set(texts) == {code}


@pytest.mark.parametrize("code", REFUSED)
def test_recognition_refuses(code: str) -> None:
    (program,) = check(REFUSED[code]).programs
    assert isinstance(program, ir.Kernel)
    with pytest.raises(Refused) as caught:
        form = match(program)
        if code in SIZED:
            plan_pattern(form, [4] * len(program.dims), ARCHES["sm90a"], None, PartialSchedule())
    assert caught.value.diagnostic.code == code


@pytest.mark.parametrize("code", LIMITS)
def test_limits_are_named(code: str) -> None:
    assert codes(LIMITS[code][0]) == [code]


def test_errors_are_listed_up_to_a_limit() -> None:
    texts = codes(MANY_ERRORS[0])
    assert texts == ["UC0101"] * ERRORS.most + ["UC0701"]


def test_every_code_is_earned() -> None:
    assert set(CHECKED) | set(REFUSED) | set(LIMITS) | set(WARNED) | ELSEWHERE == set(CODES)


def test_all_errors_of_a_file_at_once() -> None:
    text = CHECKED["UC0101"].replace("kernel k", "kernel a") + CHECKED["UC0203"].replace(
        "kernel k", "kernel b"
    )
    assert codes(text) == ["UC0101", "UC0203"]


def test_all_errors_of_a_statement_at_once() -> None:
    assert codes(kernel("a = nope  return a * rsqrt(K) + other")) == ["UC0101", "UC0102", "UC0101"]


def test_functions_that_nobody_calls_are_read_too() -> None:
    text = "fn f[D](x) = sum[D](x) * nope + frob(x)\n" + kernel(MM)
    assert codes(text) == ["UC0101", "UC0104"]


def test_a_mistake_in_a_function_is_told_once() -> None:
    text = "fn f(x) = x * nope\n" + kernel("return f(dot[K](x, w)) + f(dot[K](x, w) * 2)")
    assert codes(text) == ["UC0101"]


def test_a_rejected_name_does_not_cascade() -> None:
    assert codes(kernel("a = dot[K](x, nope)  b = a * 2  return b + a")) == ["UC0101"]


ALSO: tuple[tuple[str, str], ...] = (
    (
        "UC0108",
        kernel("return M = dot[K](x, w)", result="(M: f32[M, N])")
        .replace("(M: f32[M, N])", "(M: f32[M, N], y: f32[M, N])")
        .replace("return M = dot[K](x, w)", "return M = dot[K](x, w), y = dot[K](x, w)"),
    ),
    ("UC0221", kernel(MM, params="x: bf16[M=N+1, K], w: bf16[N=M+1, K]")),
    ("UC0221", kernel(MM, params="x: bf16[M=0, K], w: bf16[N, K]")),
    ("UC0405", kernel("require M  " + MM)),
    (
        "UC0501",
        "kernel a(x: f32[M, N]) -> f32[M, N] { return x + 1 }\n"
        "pipeline p(x: f32[A=2, B=3]) -> f32[B, A] { return a(x) }\n",
    ),
    (
        "UC0501",
        "kernel a(x: f32[M]) -> f32[M] { return x + 1 }\n"
        "pipeline p(x: f32[T], z: f32[U]) -> f32[T] { h: bf16[T] = a(x)  return a(x) }\n",
    ),
)


@pytest.mark.parametrize(("code", "text"), ALSO)
def test_checker_rejects_also(code: str, text: str) -> None:
    assert set(codes(text)) == {code}


def test_a_large_literal_widens_what_does_not_wrap() -> None:
    for text, elem in (("+ 3000000000", "i32"), ("* 3000000000", "i32"), ("// 3000000000", "i64")):
        body = f"return dot[K](x, w) {text}"
        (program,) = check(kernel(body, params="x: s8[M, K], w: s8[N, K]", result="f32[M, N]")).programs
        assert isinstance(program, ir.Kernel)
        assert program.results[0].value.elem.name == elem


def test_the_neutral_element_passes_through_casts() -> None:
    text = "kernel k(x: f16[L]) -> f32[P=L] { return max[R=3](f32(x[L = P + R - 1])) }"
    (program,) = check(text).programs
    assert isinstance(program, ir.Kernel)
    reduce = program.results[0].value
    assert isinstance(reduce, ir.Reduce) and isinstance(reduce.value, ir.Cast)
    assert isinstance(reduce.value.value, ir.Read) and reduce.value.value.fill == float("-inf")


def test_a_new_name_takes_the_callees_extent() -> None:
    text = (
        "kernel a(x: f32[M]) -> f32[P=2*M] { return x[M = P - 1] }\n"
        "pipeline p(x: f32[T]) -> f32[Q=2*T] { h: f32[U] = a(x)  return h[U = Q] }\n"
    )
    pipeline = check(text).programs[1]
    assert extents.show(pipeline.dims["U"]) == "(2 * T)"


def test_rendering_points_at_the_place() -> None:
    with pytest.raises(ProgramError) as caught:
        check(kernel("return dot[K](x, v)"), "k.ucu")
    assert "k.ucu:2:20: error: nothing is named v here [UC0101]" in str(caught.value)
