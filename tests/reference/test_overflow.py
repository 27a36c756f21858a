"""What overflows on the way: no honest order of work is called wrong, and what certainly stays finite, or
certainly does not, is still told."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.reference.tasks import named
from ucutlass.reference import Expected, evaluate, expect
from ucutlass.reference.error_bounds import difference, farthest
from ucutlass.runtime.verify import compare

BIG = 3e38
INF, NAN = math.inf, math.nan


def judged(expected: Expected, out: Tensor) -> bool:
    return compare(
        out, expected.reference, expected.bound, overflows=expected.overflows, free=expected.free
    ).ok


def in_order(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[:, 0])
    for column in x.T:
        total = total + column
    return total


def pairwise(x: Tensor) -> Tensor:
    while x.shape[1] > 1:
        x = x[:, 0::2] + x[:, 1::2]
    return x[:, 0]


ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "forwards": in_order,
    "backwards": lambda x: in_order(x.flip(1)),
    "pairwise": pairwise,
    "rising": lambda x: in_order(x.sort(1).values),
    "falling": lambda x: in_order(x.sort(1, descending=True).values),
}
ROWS = torch.tensor(
    [
        [BIG, -BIG, BIG, -BIG],
        [BIG, BIG, -BIG, -BIG],
        [1e38, 1e38, 1e38, -2e38],
        [BIG, BIG, BIG, BIG],
        [-BIG, -BIG, -1.0, 2.0],
        [1.0, 2.0, 3.0, 4.0],
        [BIG, 4e37, -1e37, 0.0],
        [8e37, 8e37, 8e37, 8e37],
    ],
    dtype=torch.float32,
)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("op", ["sum", "mean", "dot"])
def test_a_sum_may_overflow_in_any_order(op: str, order: str) -> None:
    ones = torch.ones(4)
    text = {
        "sum": "(x: f32[M, N], w: f32[N]) -> f32[M] { return sum[N](x * w) }",
        "mean": "(x: f32[M, N], w: f32[N]) -> f32[M] { return mean[N](x * w) }",
        "dot": "(x: f32[M, N], w: f32[N]) -> f32[M] { return dot[N](tf32(x), tf32(w)) }",
    }[op]
    x = ROWS.bfloat16().float() if op == "dot" else ROWS
    (expected,) = expect(named(f"kernel k{text}", "k"), [x, ones])
    out = ORDERS[order](x) / (4 if op == "mean" else 1)
    assert judged(expected, out), (out, expected)


def test_what_cannot_overflow_is_still_judged() -> None:
    (expected,) = expect(named("kernel k(x: f32[M, N]) -> f32[M] { return sum[N](x) }", "k"), [ROWS])
    free = expected.bound.isinf().tolist()
    assert free == [True, True, False, False, False, False, False, False]
    right = in_order(ROWS)
    for row, wrong in ((3, BIG), (3, NAN), (4, INF), (5, INF), (5, 11.0), (7, INF), (2, INF)):
        out = right.clone()
        out[row] = wrong
        assert not judged(expected, out), (row, wrong)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_may_overflow_within_its_prefix(reverse: bool) -> None:
    flag = "true" if reverse else "false"
    text = f"kernel k(x: f32[M, N]) -> f32[M, N] {{ return cumsum[N](x, reverse={flag}) }}"
    (expected,) = expect(named(text, "k"), [ROWS])
    x = ROWS.flip(1) if reverse else ROWS
    prefixes = [ORDERS["falling"](x[:, : i + 1]) for i in range(4)]
    scanned = torch.stack(prefixes, 1)
    assert judged(expected, scanned.flip(1) if reverse else scanned)
    first = expected.bound[:, -1 if reverse else 0]
    assert not first.isinf().any()


def test_a_product_may_overflow_or_vanish_on_the_way() -> None:
    x = torch.tensor(
        [[1e30, 1e30, 1e-30, 1e-30], [1e-30, 1e-30, 1e30, 1e-10], [2.0, 3.0, 0.5, 1.0], [1e30] * 4]
    )
    for op in ("prod", "cumprod"):
        text = "[M] { return prod[N](x) }" if op == "prod" else "[M] { return cumprod[N](x)[N = 3] }"
        (expected,) = expect(named(f"kernel k(x: f32[M, N]) -> f32{text}", "k"), [x])
        for permuted in (x, x.flip(1), x[:, [0, 2, 1, 3]]):
            out = torch.ones(4)
            for column in permuted.T:
                out = out * column
            assert judged(expected, out), (op, out)
        assert not judged(expected, torch.tensor([1.0, 1e-10, 2.0, INF]))


def test_a_dot_in_f16_may_overflow_there() -> None:
    text = "kernel k(x: f16[M, N], w: f16[J, N]) -> f32[M, J] { return dot[N](x, w, acc=f16) }"
    x = torch.tensor([[200.0, 200.0, 200.0, -200.0], [200.0] * 4, [1.0, 2.0, 3.0, 4.0]]).half()
    w = torch.full((1, 4), 160.0).half()
    (expected,) = expect(named(text, "k"), [x, w])
    assert judged(expected, torch.tensor([[INF], [INF], [1600.0]]))
    assert judged(expected, torch.tensor([[64000.0], [INF], [1600.0]]))
    assert not judged(expected, torch.tensor([[64000.0], [128000.0], [1600.0]]))
    assert not judged(expected, torch.tensor([[64000.0], [INF], [INF]]))


F32 = {
    "logarithm of an exponential": ("log(exp(x))", lambda x: x.exp().log()),
    "difference of infinities": ("exp(x) - exp(x)", lambda x: x.exp() - x.exp()),
    "sigmoid by hand": ("1 / (1 + exp(-x))", lambda x: 1 / (1 + (-x).exp())),
    "times what vanishes": ("exp(x) * exp(-x)", lambda x: x.exp() * (-x).exp()),
    "scaled down": ("exp(x) * 1e-30", lambda x: x.exp() * 1e-30),
    "square": ("x * x * 1e37", lambda x: x * x * 1e37),
    "mean of squares": ("x * rsqrt(mean[N](x * x * 1e37))", None),
    "a literal beyond": ("x * 1e39", lambda x: x * INF),
}


@pytest.mark.parametrize("name", F32)
def test_element_wise_work_overflows_as_f32_does(name: str) -> None:
    text, honest = F32[name]
    x = torch.tensor([[-120.0, -95.0, -3.0, 0.5], [3.0, 88.0, 89.0, 120.0]])
    (expected,) = expect(named(f"kernel k(x: f32[M, N]) -> f32[M, N] {{ return {text} }}", "k"), [x])
    if honest is None:
        honest = lambda x: x * (x * x * 1e37).mean(1, keepdim=True).rsqrt()  # noqa: E731
    assert judged(expected, honest(x)), (honest(x), expected)
    assert not bool(expected.bound.isinf().all())


def test_a_fused_product_need_not_overflow() -> None:
    kernel = named("kernel k(x: f32[N], y: f32[N]) -> f32[N] { return x * x - y }", "k")
    x, y = torch.tensor([2e19, 2e19, 3.0]), torch.tensor([3e38, 1.0, 2.0])
    (expected,) = expect(kernel, [x, y])
    fused = (x.double() * x.double() - y.double()).float()
    assert judged(expected, fused) and judged(expected, x * x - y)
    assert not judged(expected, torch.tensor([1e38, INF, 8.0]))


def test_an_infinity_between_launches_may_be_the_largest_number() -> None:
    text = """pipeline p(x: f32[N]) -> f32[N] {
      h: f16[N] = exp(x)
      return h - 65504
    }"""
    (expected,) = expect(named(text, "p"), [torch.tensor([math.log(65520.0), 12.0, 1.0])])
    later = math.e - 65504
    for first in (INF, 0.0):
        assert judged(expected, torch.tensor([first, INF, torch.tensor(math.e).half().float() - 65504]))
    assert not judged(expected, torch.tensor([0.0, 0.0, later]))


def test_the_reference_overflows_as_f32_does() -> None:
    kernel = named("kernel k(x: f32[N]) -> f32[N] { return log(exp(x)) }", "k")
    (out,) = evaluate(kernel, [torch.tensor([100.0, -100.0, 2.0])])
    assert torch.equal(out.isinf(), torch.tensor([True, False, False]))


@pytest.mark.parametrize("elem", ["f32", "bf16", "f16", "e4m3", "e5m2"])
@pytest.mark.parametrize("count", [300, 3000])
def test_a_product_with_a_zero_may_overflow_before_it(elem: str, count: int) -> None:
    """4^3000 leaves float64's range as well; infinity times 0 is NaN, also in elements that saturate."""
    kernel = named(f"kernel k(x: f32[M, N]) -> {elem}[M] {{ return prod[N](x) }}", "k")
    x = torch.full((1, count), 4.0)
    x[0, -1] = 0.0
    (expected,) = expect(kernel, [x])
    assert expected.reference.tolist() == [0.0] and expected.bound.isinf().all()
    assert judged(expected, torch.tensor([NAN])) and judged(expected, torch.tensor([0.0]))
    (certain,) = expect(kernel, [x[:, :-1]])
    assert not judged(certain, torch.tensor([NAN]))


@pytest.mark.parametrize("shape", [(), (3,), (5, 7)])
@pytest.mark.parametrize("seed", range(4))
def test_the_farthest_end_is_the_largest_difference(shape: tuple[int, ...], seed: int) -> None:
    """Also where a centre or an end is NaN or infinite, in some elements or in all of them."""
    random = torch.Generator().manual_seed(seed)
    odd = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1.5, -2.0], dtype=torch.float64)

    def drawn() -> Tensor:
        return odd[torch.randint(len(odd), shape, generator=random)]

    for _ in range(40):
        centre, ends = drawn(), [drawn(), drawn()]
        largest = torch.maximum(difference(ends[0], centre), difference(ends[1], centre))
        assert torch.equal(farthest(ends, centre), largest)
