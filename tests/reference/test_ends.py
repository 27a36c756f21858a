"""The ends of things: positions outside a tensor, extents of 0, integers beyond their type."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.reference.tasks import named
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.neutral import NEUTRAL, in_element
from ucutlass.reference import errors, evaluate, expect

INTEGERS = ("s8", "u8", "i32", "i64")
FLOATS = ("f32", "f16", "bf16", "e4m3", "e5m2")


def run(text: str, *arguments: object) -> Tensor:
    (out,) = evaluate(named(f"kernel k{text}", "k"), arguments)
    return out


def tensor(values: list[float] | list[int], elem: str) -> Tensor:
    return torch.tensor(values).to(getattr(torch, ELEMENTS[elem].torch))


@pytest.mark.parametrize("elem", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin", "sum", "prod"])
def test_a_window_past_the_border_sees_only_what_is_there(op: str, elem: str) -> None:
    """Numbers beside the end of the type too, of which one is least and one largest."""
    ends = torch.iinfo(getattr(torch, ELEMENTS[elem].torch)) if elem in INTEGERS else None
    values = [5, 7, 9] if ends is None else [ends.min + 1, 7, ends.max - 1]
    x = tensor(values, elem)
    result = "i64" if elem in INTEGERS or op.startswith("arg") else "f32"
    out = run(f"(x: {elem}[H]) -> {result}[P=H] {{ return {op}[R=3](x[H = P + R - 1]) }}", x)
    expected = []
    for p in range(3):
        taps = {
            r: x[p + r - 1].double() if elem in FLOATS else x[p + r - 1].long()
            for r in range(3)
            if 0 <= p + r - 1 < 3
        }
        pick = max if op.endswith("max") else min
        best = pick(taps, key=lambda r: taps[r].item())
        inside = torch.stack(list(taps.values()))
        expected.append(
            best if op.startswith("arg") else taps[best] if op in ("max", "min") else getattr(inside, op)()
        )
    assert out.tolist() == [float(w) if result == "f32" else int(w) for w in expected]


@pytest.mark.parametrize("elem", [*INTEGERS, *FLOATS, "bool"])
@pytest.mark.parametrize("op", NEUTRAL)
def test_a_neutral_element_is_a_value_of_the_type(op: str, elem: str) -> None:
    value = in_element(NEUTRAL[op], ELEMENTS[elem])
    stored = torch.tensor(value).to(getattr(torch, ELEMENTS[elem].torch))
    if elem in INTEGERS or elem == "bool":
        assert stored.item() == value and not isinstance(value, float)
    elif elem != "e4m3":  # which has no infinity: what is read of it is wider
        assert stored.item() == value


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("max[R](i32(bool(x[H = P + R - 1])))", [0, 0, 0]),
        ("min[R](i32(bool(y[H = P + R - 1])))", [1, 1, 1]),
        ("max[R](s8(x[H = P + R - 1] - 3))", [-3, -3, -3]),
        ("max[R](s8(x[H = P + R + 9]))", [-128, -128, -128]),
        ("i32(logsumexp[R](s8(x[H = P + R + 9])) == -inf)", [1, 1, 1]),
        ("i32(logsumexp[R](i32(x[H = P + R - 1])) * 1000)", [693, 1099, 693]),
    ],
)
def test_a_neutral_element_passes_through_casts(text: str, wanted: list[int]) -> None:
    whole = f"(x: f32[H], y: f32[H]) -> i32[P=H] {{ return {text.replace('[R]', '[R=3]')} }}"
    assert run(whole, torch.zeros(3), torch.ones(3)).tolist() == wanted


EMPTY = {
    "sum[N](x)": 0.0,
    "prod[N](x)": 1.0,
    "mean[N](x)": math.nan,
    "var[N](x)": math.nan,
    "logsumexp[N](x)": -math.inf,
    "dot[N](x, x)": 0.0,
    "x[N = 0]": 0.0,
    "max[R=2](x[N = R])": -math.inf,
    "sum[N](softmax[N](x))": 0.0,
    "sum[N](log_softmax[N](x))": 0.0,
    "sum[N](cumsum[N](x, exclusive=true))": 0.0,
    "sum[N](cumprod[N](x, exclusive=true, reverse=true))": 0.0,
}


@pytest.mark.parametrize("text", EMPTY)
def test_what_an_extent_of_0_gives(text: str) -> None:
    kernel = named(f"kernel k(x: f32[M, N]) -> f32[M] {{ return {text} }}", "k")
    (out,) = evaluate(kernel, [torch.zeros(2, 0)])
    assert str(out.tolist()) == str([EMPTY[text]] * 2)
    (expected,) = expect(kernel, [torch.zeros(2, 0)])
    assert expected.bound.tolist() == [0.0, 0.0]
    assert expect(kernel, [torch.zeros(0, 3)])[0].bound.shape == (0,)


@pytest.mark.parametrize("elem", ["f32", "bf16", "s8", "i64"])
@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("judge", [evaluate, expect])
def test_of_nothing_no_element_is_the_largest(op: str, elem: str, judge: object) -> None:
    kernel = named(f"kernel k(x: {elem}[M, N]) -> i64[M] {{ return i64({op}[N](x)) }}", "k")
    x = tensor([], elem).reshape(2, 0)
    with pytest.raises(errors.ExtentRangeError, match=f"{op} runs over N, and the extent of N is 0"):
        judge(kernel, [x])  # type: ignore[operator]


WRAPPED = {
    "x + 4294967297": lambda v: v + 4294967297,
    "x - 9223372036854775807": lambda v: v - 9223372036854775807,
    "x * 4611686018427387905": lambda v: v * 4611686018427387905,
    "-4294967297 * x + 3000000000": lambda v: v * -4294967297 + 3000000000,
    "x + x": lambda v: v + v,
    "-x": lambda v: -v,
}


@pytest.mark.parametrize("text", WRAPPED)
@pytest.mark.parametrize("elem", ["s8", "u8", "i32"])
def test_i32_arithmetic_wraps_beside_any_literal(text: str, elem: str) -> None:
    ends = torch.iinfo(getattr(torch, ELEMENTS[elem].torch))
    x = tensor([ends.min, ends.max, 5, 0], elem)
    out = run(f"(x: {elem}[H]) -> i64[H] {{ return {text} }}", x)
    assert out.tolist() == [(WRAPPED[text](v) + 2**31) % 2**32 - 2**31 for v in x.tolist()]


def test_a_literal_beyond_32_bits_is_not_cut_where_nothing_wraps() -> None:
    x = torch.tensor([5, -7], dtype=torch.int32)
    assert run("(x: i32[H]) -> i64[H] { return min(x, 4294967297) }", x).tolist() == [5, -7]
    assert run("(x: i32[H]) -> i64[H] { return x // 4294967297 }", x).tolist() == [0, -1]
    assert run("(x: i32[H]) -> bool[H] { return x < 4294967296 }", x).tolist() == [True, True]
    chosen = run("(x: i32[H]) -> i64[H] { return where(x > 0, x, -4294967297) }", x)
    assert chosen.tolist() == [5, -4294967297]


def test_an_extent_is_an_i64_whether_the_text_says_it_or_the_call() -> None:
    x = torch.full((3,), 2**31 - 1, dtype=torch.int32)
    for extent in ("H", "H=3"):
        assert run(f"(x: i32[{extent}]) -> i64[H] {{ return x + size(H) }}", x).tolist() == [2**31 + 2] * 3


def test_a_literal_beyond_f32_is_infinite_before_it_is_folded() -> None:
    x = torch.ones(1)
    assert run("(x: f32[H]) -> f32[H] { return x + 1e39 / inf }", x).isnan().all()
    assert run("(x: f32[H]) -> f32[H] { return x + 3e38 * 2 - inf }", x).isnan().all()


def test_64_bits_wrap_and_conversions_saturate() -> None:
    x = torch.tensor([2**63 - 1, -(2**63)])
    assert run("(x: i64[H]) -> i64[H] { return x + 1 }", x).tolist() == [-(2**63), -(2**63) + 1]
    assert run("(x: i64[H]) -> i64[] { return sum[H](x - 1) }", x).item() == -3 % 2**64 - 2**64
    y = torch.tensor([math.nan, math.inf, -math.inf, 2.5, 3.5, -300.0, 1e30])
    assert run("(y: f32[H]) -> s8[H] { return y }", y).tolist() == [0, 127, -128, 2, 4, -128, 127]
    assert run("(y: f32[H]) -> u8[H] { return y }", y).tolist() == [0, 255, 0, 2, 4, 0, 255]
    assert run("(y: f32[H]) -> i64[H] { return y }", y).tolist()[1:3] == [2**63 - 1, -(2**63)]
