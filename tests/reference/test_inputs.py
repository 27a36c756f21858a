"""Random arguments: seeded, valid, of the distribution asked for."""

from __future__ import annotations

import pytest
import torch

from tests.reference.tasks import TASKS, load, named
from ucutlass.reference import sizes_of
from ucutlass.runtime.inputs import DISTRIBUTIONS, generate
from ucutlass.shapes import ShapeError

GEMM = named("kernel k(x: bf16[M, K], w: bf16[N, K], a: f32) -> f32[M, N] { return a * dot[K](x, w) }", "k")


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.program)
def test_arguments_fit_the_program(task: object) -> None:
    for distribution in DISTRIBUTIONS:
        arguments = generate(load(task), task.sizes, distribution)
        assert sizes_of(load(task), arguments).items() >= dict(task.sizes).items()


def test_the_seed_decides() -> None:
    sizes = {"M": 3, "N": 4, "K": 5}
    first, again, other = (generate(GEMM, sizes, seed=s) for s in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0][:, :4], first[1][:3, :4])


def test_scalars_can_be_given() -> None:
    assert generate(GEMM, {"M": 1, "N": 1, "K": 1}, scalars={"a": 2.5})[2] == 2.5


def test_a_missing_extent_is_named() -> None:
    with pytest.raises(ShapeError, match="K is missing"):
        generate(GEMM, {"M": 3})


@pytest.mark.parametrize(
    ("elem", "acc", "limit"), [("f16", "f16", 2**11), ("e4m3", "fast", 2**13), ("bf16", "f32", 2**24)]
)
def test_integers_cannot_leave_the_accumulators_range(elem: str, acc: str, limit: int) -> None:
    program = named(
        f"kernel k(x: {elem}[M, K], w: {elem}[N, K]) -> f32[M, N] {{ return dot[K](x, w, acc={acc}) }}", "k"
    )
    x, w = generate(program, {"M": 8, "N": 8, "K": 5000}, "integer")
    sums = x.double().abs() @ w.double().abs().T
    assert 0 < sums.max() <= limit
    assert torch.equal(x.double(), x.double().round())


def test_coordinates_and_offsets_are_valid() -> None:
    text = """kernel k(x: bf16[T, D], w: bf16[E, F, D], o: i32[E+1]) -> bf16[T, F] {
      return dot[D](x, w[E = segment(T, o)])
    }"""
    offsets = generate(named(text, "k"), {"T": 50, "D": 2, "E": 6, "F": 3})[2]
    assert offsets[0] == 0 and offsets[-1] == 50 and offsets.dtype == torch.int32
    assert (offsets.diff() >= 0).all()
    text = "kernel k(z: f32[V, D], t: i64[T]) -> f32[T, D] { return z[V = t] }"
    ids = generate(named(text, "k"), {"V": 7, "D": 2, "T": 200})[1]
    assert ids.min() == 0 and ids.max() == 6


@pytest.mark.parametrize("elem", ["f16", "bf16", "e4m3", "e5m2", "f32"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_distribution_is_finite(elem: str, distribution: str) -> None:
    program = named(f"kernel k(x: {elem}[M, N]) -> f32[M, N] {{ return x }}", "k")
    (x,) = generate(program, {"M": 20, "N": 30}, distribution)
    assert x.double().isfinite().all()
    assert bool((x.double() != 0).any()) is (distribution != "zeros")
