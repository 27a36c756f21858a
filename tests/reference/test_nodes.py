"""What single constructs mean, where plain torch has no counterpart or the edge cases matter."""

from __future__ import annotations

import math

import pytest
import torch

from tests.reference.tasks import named
from ucutlass.reference import contract, errors, evaluate


def run(text: str, *arguments: object, rounded: bool = False) -> list[torch.Tensor]:
    return list(evaluate(named(f"kernel k{text}", "k"), arguments, rounded=rounded))


def test_memory_order_is_only_an_order() -> None:
    x, w = torch.randn(4, 3), torch.randn(4, 5)
    (out,) = run("(x: f32[K, M], w: f32[K, N]) -> f32[N, M] { return dot[K](x, w) }", x, w)
    torch.testing.assert_close(out, (x.double().T @ w.double()).T)


def test_batch_broadcast_and_missing_batch() -> None:
    x, w = torch.randn(2, 3, 4), torch.randn(5, 4)
    (out,) = run("(x: f32[B, M, K], w: f32[N, K]) -> f32[B, N, M] { return dot[K](x, w) }", x, w)
    torch.testing.assert_close(out, torch.einsum("bmk,nk->bnm", x.double(), w.double()))


def test_nameless_axes_and_device_scalars() -> None:
    x, b, s = torch.randn(2, 3), torch.randn(3, 1, 1), torch.tensor(2.0)
    (out,) = run("(x: f32[N, C], b: f32[C, 1, 1], s: f32[]) -> f32[1, C, N] { return s * x + b }", x, b, s)
    assert out.shape == (1, 3, 2)
    torch.testing.assert_close(out[0], (2 * x.double() + b.double().reshape(1, 3)).T)


def test_a_number_is_rounded_to_its_type() -> None:
    (out,) = run("(x: f32[N], a: f32) -> f64[N] { return x * a }", torch.ones(1), 0.1)
    assert out.item() == torch.tensor(0.1).double().item()


def test_reads_outside_give_the_neutral_element() -> None:
    x = -torch.ones(4)
    assert run("(x: f32[L]) -> f32[P=L] { return max[R=3](x[L = P + R - 1]) }", x)[0].tolist() == [-1] * 4
    assert run("(x: f32[L]) -> f32[L] { return x[L = L - 1] }", x)[0].tolist() == [0, -1, -1, -1]
    product = run("(x: f32[L]) -> f32[P=L] { return prod[R=3](x[L = P + R - 1]) }", x)[0]
    assert product.tolist() == [1, -1, -1, 1]


def test_reverse_by_reading() -> None:
    x = torch.arange(5.0)
    (out,) = run("(x: f32[L]) -> f32[P=L] { return x[L = size(L) - 1 - P] }", x)
    assert out.tolist() == [4, 3, 2, 1, 0]


def test_integer_dots_are_exact() -> None:
    x = torch.randint(-128, 128, (3, 5000), dtype=torch.int8)
    w = torch.randint(-128, 128, (4, 5000), dtype=torch.int8)
    (out,) = run("(x: s8[M, K], w: s8[N, K]) -> i32[M, N] { return dot[K](x, w) }", x, w, rounded=True)
    assert out.dtype == torch.int32
    assert torch.equal(out.long(), x.long() @ w.long().T)


def test_integer_work_wraps_in_its_element() -> None:
    x = torch.tensor([2**31 - 1, -(2**31), 5], dtype=torch.int32)
    (out,) = run("(x: i32[N]) -> i64[N] { return (x + 1) * 3 - abs(x) }", x)
    wrapped = [(-(2**31) * 3) - (2**31 - 1), 3 * (1 - 2**31) + 2**31, 13]
    assert out.tolist() == [(v + 2**31) % 2**32 - 2**31 for v in wrapped]
    (out,) = run("(x: i32[N]) -> i64[N] { return -(x // -1) - 1 }", x)
    assert out.tolist() == [2**31 - 2, 2**31 - 1, 4]
    (out,) = run("(x: i64[N]) -> i64[N] { return x + 1 }", torch.tensor([2**63 - 1]))
    assert out.tolist() == [-(2**63)]


def test_an_integer_dot_wraps() -> None:
    """131,072 products of 128 * 128 are 2**31."""
    x = torch.full((1, 131073), -128, dtype=torch.int8)
    (out,) = run("(x: s8[M, K], w: s8[N, K]) -> i32[M, N] { return dot[K](x, w) }", x, x, rounded=True)
    assert out.tolist() == [[-(2**31) + 2**14]]


def test_sums_of_integers_are_wide_and_saturate_when_stored() -> None:
    x = torch.full((4,), 2**31 - 1, dtype=torch.int32)
    assert run("(x: i32[N]) -> i64[] { return sum[N](x) }", x)[0].item() == 4 * (2**31 - 1)
    (out,) = run("(x: i32[N]) -> i32[] { return sum[N](x) }", x, rounded=True)
    assert out.item() == 2**31 - 1
    (out,) = run("(x: i32[N]) -> i32[] { return i32(sum[N](x + x)) }", x, rounded=True)
    assert out.item() == -8


def test_scans_backwards_and_exclusive() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    sums = "(x: f32[L]) -> f32[L] { return cumsum[L](x, exclusive=true, reverse=true) }"
    assert run(sums, x)[0].tolist() == [9, 7, 4, 0]
    products = "(x: f32[L]) -> f32[L] { return cumprod[L](x, exclusive=true) }"
    assert run(products, x)[0].tolist() == [1, 1, 2, 6]


def test_variance_is_of_the_population() -> None:
    x = torch.tensor([[1.0, 2.0, 6.0]])
    assert run("(x: f32[M, N]) -> f32[M] { return var[N](x) }", x)[0].item() == pytest.approx(14 / 3)


def test_argmax_takes_the_first_of_equals_and_nan() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [math.nan, 5.0, math.nan]])
    assert run("(x: f32[M, N]) -> i64[M] { return argmax[N](x) }", x)[0].tolist() == [1, 0]


def test_nan_propagates_through_max() -> None:
    x = torch.tensor([[1.0, math.nan]])
    assert run("(x: f32[M, N]) -> f32[M] { return max[N](x) }", x)[0].isnan().all()
    assert run("(x: f32[M, N]) -> f32[M, N] { return max(x, 0.5) }", x)[0][0, 1].isnan()


def test_softmax_of_nothing_is_nan() -> None:
    x = torch.full((1, 3), -math.inf)
    assert run("(x: f32[M, N]) -> f32[M, N] { return softmax[N](x) }", x)[0].isnan().all()


def test_an_integer_divided_by_zero_is_zero() -> None:
    a, b = torch.tensor([7, -7], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)
    text = "(a: i32[N], b: i32[N]) -> (q: i32[N], r: i32[N]) { return q = a // b, r = a % b }"
    q, r = run(text, a, b)
    assert q.tolist() == [0, -4]
    assert r.tolist()[1] == 1


def test_gather_aligns_shared_names() -> None:
    z, t = torch.randn(4, 6), torch.tensor([5, 0, 2, 2])
    (out,) = run("(z: f32[T, V], t: i64[T]) -> f32[T] { return z[V = t] }", z, t)
    assert torch.equal(out, z.double()[torch.arange(4), t])


def test_gather_outside_is_an_error() -> None:
    with pytest.raises(errors.CoordinateRangeError, match=r"along V \(extent 6\) reads coordinates -1..2"):
        run("(z: f32[V], t: i64[T]) -> f32[T] { return z[V = t] }", torch.randn(6), torch.tensor([2, -1]))


@pytest.mark.parametrize("offsets", [[1, 2, 5], [0, 4, 3], [0, 2, 4]])
def test_offsets_that_do_not_cut_the_rows(offsets: list[int]) -> None:
    text = """(x: bf16[T, D], w: bf16[E, F, D], o: i32[E+1]) -> bf16[T, F] {
      return dot[D](x, w[E = segment(T, o)])
    }"""
    x, w = torch.ones(5, 2).bfloat16(), torch.ones(2, 3, 2).bfloat16()
    with pytest.raises(errors.OffsetsError):
        run(text, x, w, torch.tensor(offsets, dtype=torch.int32))


def test_segments_pick_the_groups_of_rows_with_empty_ones() -> None:
    text = """(w: bf16[E, F, D], o: i32[E+1], x: bf16[D], t: bf16[T]) -> f32[T, F] {
      return dot[D](x, w[E = segment(T, o)]) + t
    }"""
    w, x, t = torch.randn(3, 2, 4).bfloat16(), torch.randn(4).bfloat16(), torch.zeros(5).bfloat16()
    (out,) = run(text, w, torch.tensor([0, 2, 2, 5], dtype=torch.int32), x, t)
    rows = torch.tensor([0, 0, 2, 2, 2])
    torch.testing.assert_close(out, (w.double() @ x.double())[rows])


def test_a_large_window_is_summed_tap_by_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "(x: f32[N, H, C], w: f32[K, R=3, C]) -> f32[N, P=H, K] { return dot[R, C](x[H = P + R - 1], w) }"
    x, w = torch.randn(2, 7, 4), torch.randn(5, 3, 4)
    whole = run(text, x, w)
    monkeypatch.setattr(contract, "UNROLLED", 8)
    torch.testing.assert_close(run(text, x, w), whole, rtol=1e-13, atol=1e-13)


def test_several_results() -> None:
    x = torch.randn(3, 4)
    text = "(x: f32[M, N]) -> (y: f16[M, N], peak: f32[M]) { return y = x, peak = max[N](abs(x)) }"
    y, peak = run(text, x, rounded=True)
    assert torch.equal(y, x.half())
    assert torch.equal(peak, x.abs().amax(1))


def test_a_pipeline_calls_torch() -> None:
    text = """pipeline p(x: f32[M, N]) -> f32[M, N] {
      s: f32[M, N] = torch.sort(x, dim=1)
      return s * 2
    }"""
    x = torch.randn(3, 4)
    (out,) = evaluate(named(text, "p"), [x])
    assert torch.equal(out, x.sort(dim=1).values * 2)


@pytest.mark.gpu
def test_cuda_agrees_with_the_cpu() -> None:
    text = "(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return gelu(dot[K](x, w)) }"
    x, w = torch.randn(33, 70).bfloat16(), torch.randn(17, 70).bfloat16()
    (cpu,), (cuda,) = run(text, x, w), run(text, x.cuda(), w.cuda())
    torch.testing.assert_close(cuda.cpu(), cpu, rtol=1e-12, atol=1e-12)
