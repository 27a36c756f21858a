"""Random arguments: seeded, valid, of the distribution asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tests.reference.tasks import TASKS, load, named
from ucutlass.reference import expect, sizes_of
from ucutlass.reference.rounding import FORMATS
from ucutlass.runtime.inputs import DISTRIBUTIONS, MEANINGS, Distribution, generate, roles_of
from ucutlass.runtime.verify import check
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


@pytest.mark.parametrize(
    ("kind", "value", "given"),
    [("f32", "x * a", 0.5), ("i32", "where(a > 0, x, 0.0)", 1), ("bool", "where(a, x, 0.0)", True)],
)
def test_scalars_are_of_the_type_that_a_launch_wants(kind: str, value: str, given: object) -> None:
    text = f"kernel k(x: f32[M, K], a: {kind}) -> f32[M, K] {{ return {value} }}"
    number = generate(named(text, "k"), {"M": 1, "K": 1})[1]
    assert (type(number), number) == (type(given), given)


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


def test_masked_gathers_get_coordinates_too() -> None:
    text = """kernel k(z: f32[T, V], ids: i64[T], skipped: i64) -> f32[T] {
      counts = ids != skipped
      return where(counts, z[V = where(counts, ids, 0)], 0)
    }"""
    ids = generate(named(text, "k"), {"V": 7, "T": 200})[1]
    assert isinstance(ids, torch.Tensor) and ids.min() == 0 and ids.max() == 6


@pytest.mark.parametrize("elem", ["f16", "bf16", "e4m3", "e5m2", "f32"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_distribution_is_finite(elem: str, distribution: str) -> None:
    program = named(f"kernel k(x: {elem}[M, N]) -> f32[M, N] {{ return x }}", "k")
    (x,) = generate(program, {"M": 20, "N": 30}, distribution)
    assert x.double().isfinite().all()
    assert bool((x.double() != 0).any()) is (distribution != "zeros")


TILE = {"M": 16, "N": 8, "K": 32}
EDGES = {"M": 40, "N": 20, "K": 70}


@pytest.mark.parametrize(
    ("distribution", "start"),
    [("residue", {"K": 64}), ("residue_rows", {"M": 32}), ("residue_columns", {"N": 16})],
)
def test_residues_fill_the_last_tile_alone(distribution: str, start: dict[str, int]) -> None:
    x, w, _ = generate(GEMM, EDGES, distribution, seed=1, tile=TILE)
    for tensor, dims in ((x, "MK"), (w, "NK")):
        for axis, dim in enumerate(dims):
            filled = (tensor != 0).any(dim=1 - axis)
            assert filled[start.get(dim, 0) :].all()
            assert not filled[: start.get(dim, 0)].any()


def test_a_residue_without_a_tile_is_the_last_coordinate() -> None:
    x, w, _ = generate(GEMM, EDGES, "residue", seed=3)
    assert not x[:, :-1].any() and x[:, -1].any() and w[:, -1].any()


def test_a_whole_last_tile_is_a_residue_too() -> None:
    x = generate(GEMM, {**EDGES, "K": 64}, "residue", tile=TILE)[0]
    assert not x[:, :32].any() and x[:, 32:].any()


@pytest.mark.parametrize("elem", ["f16", "bf16", "e4m3", "e5m2", "f32"])
def test_denormals_are_the_elements_own(elem: str) -> None:
    program = named(f"kernel k(x: {elem}[M, K], w: {elem}[N, K]) -> f32[M, N] {{ return dot[K](x, w) }}", "k")
    x, w = generate(program, {"M": 30, "N": 20, "K": 40}, "denormal", seed=5)
    smallest_normal = FORMATS[elem].smallest
    assert (x.double() != 0).all() and (x.double().abs() < 2.0**smallest_normal).all()
    assert torch.equal(w.double(), w.double().round()) and w.double().any()
    (expected,) = expect(program, [x, w])
    assert (expected.bound == 0).all() and expected.reference.any()


def test_special_numbers_are_few_and_of_every_kind() -> None:
    x, w, _ = generate(GEMM, EDGES, "special", seed=2)
    for tensor in (x, w):
        assert int(tensor.isnan().sum()) == 1 and int(tensor.isinf().sum()) == 2
        assert tensor.max() == torch.inf or tensor.isnan().any()
    (lonely,) = generate(named("kernel k(x: f32[M]) -> f32[M] { return x }", "k"), {"M": 1}, "special")
    assert lonely.isfinite().all()


def test_one_sided_numbers_stay_within_f16() -> None:
    program = named("kernel k(x: f16[M, K], w: f16[N, K]) -> f16[M, N] { return dot[K](x, w) }", "k")
    for distribution in ("positive", "negated"):
        arguments = generate(program, {"M": 4, "N": 5, "K": 16384}, distribution)
        (expected,) = expect(program, arguments)
        assert expected.reference.isfinite().all()
    x = generate(program, {"M": 4, "N": 5, "K": 16}, "negated")[0]
    assert (x <= -4).all() and (x >= -8).all()


def test_every_distribution_has_its_meaning() -> None:
    assert set(MEANINGS) == {*DISTRIBUTIONS, "special"}
    assert all(MEANINGS.values())


def test_a_pipelines_roles_are_in_its_own_names() -> None:
    """A called kernel's names are other dimensions than the pipeline's, even where they are spelled alike."""
    program = named(
        "kernel linear(x: f16[M, K], w: f16[N, K]) -> f16[M, N] { return dot[K](x, w) }\n"
        "kernel pick(t: f16[V, M], ids: i64[K]) -> f16[K, M] { return t[V = ids] }\n"
        "pipeline p(x: f16[K, D], w: f16[V, D], ids: i64[L]) -> f16[L, V] {\n"
        "  h = linear(x, w)\n  return pick(h, ids)\n}\n",
        "p",
    )
    roles = roles_of(program)
    assert roles["x"].over == ("D",) and roles["w"].right and roles["ids"].below == "K"
    for distribution in DISTRIBUTIONS:
        *_, ids = generate(program, {"K": 3, "D": 4, "V": 5, "L": 40}, distribution, seed=1)
        assert isinstance(ids, torch.Tensor) and int(ids.min()) >= 0 and int(ids.max()) < 3


@pytest.mark.parametrize("distribution", ["integer", "normal"])
@pytest.mark.parametrize("length", [20, 5000])
def test_long_products_stay_within_their_type(distribution: Distribution, length: int) -> None:
    """Factors of a running product whose every prefix is finite, so that a factor which is left out shows."""
    program = named("kernel k(x: f32[M, L]) -> f32[M, L] { return cumprod[L](x) }", "k")
    arguments = generate(program, {"M": 8, "L": length}, distribution, seed=3)

    def right(given: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        results[0].copy_(given[0].cumprod(1))

    def one_left_out(given: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        results[0].copy_(given[0].index_fill(1, torch.tensor([length // 2]), 1.0).cumprod(1))

    assert check(program, right, arguments).state == "right"
    assert check(program, one_left_out, arguments).state == "wrong"


@pytest.mark.parametrize("function", ["log", "sqrt", "rsqrt"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "e4m3"])
def test_logarithms_and_roots_of_arguments_have_values(function: str, dtype: str) -> None:
    """One number without a value leaves a sum none, and nothing would be judged."""
    text = f"kernel k(x: {dtype}[M, K], y: f32[M, K]) -> f32[M] {{ return sum[K]({function}(f32(x)) * y) }}"
    for distribution in ("integer", "normal", "uniform", "large", "small"):
        x, y = generate(named(text, "k"), {"M": 8, "K": 64}, distribution)
        assert bool((x.to(torch.float32) > 0).all()) and bool((y < 0).any())


def test_logarithms_of_negative_numbers_are_still_judged() -> None:
    kernel = named("kernel k(x: f32[M, K]) -> f32[M, K] { return log(x) }", "k")
    drawn = {d: generate(kernel, {"M": 8, "K": 64}, d)[0] for d in MEANINGS}
    assert {d for d, x in drawn.items() if bool((x < 0).any())} >= {"negated", "powers", "wide", "special"}
