"""The bounds: honest arithmetic of every compute type is within, seeded mistakes are not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import permutations, product

import pytest
import torch
from torch import Tensor

from tests.pairs.spaces import SPACES
from tests.reference.tasks import named
from ucutlass.diagnostics import ProgramError
from ucutlass.ir import Dot, Kernel, Program, TensorType
from ucutlass.ir.elements import ELEMENTS, F16, TF32
from ucutlass.ir.traversal import find
from ucutlass.kernels.convolution.family import FAMILY as CONVOLUTIONS
from ucutlass.kernels.convolution.match import ConvolutionPattern
from ucutlass.kernels.refused import Refused
from ucutlass.reference import evaluate, expect
from ucutlass.reference.accumulation import may_be_convolution
from ucutlass.reference.rounding import FORMATS, quantum, round_float, store
from ucutlass.runtime.inputs import DISTRIBUTIONS, Distribution, generate
from ucutlass.runtime.verify import Comparison, compare
from ucutlass.runtime.verify.comparison import useless

M, N, K = 12, 20, 1111
Add = Callable[[Tensor, Tensor], Tensor]


def _cut(x: Tensor, bits: int) -> Tensor:
    """Low bits cut off, as tensor cores do."""
    exponent = torch.frexp(x).exponent
    scale = 2.0 ** (bits - exponent.double())
    return torch.where(x == 0, x, (x * scale).trunc() / scale)


def _rounded(a: Tensor, b: Tensor) -> Tensor:
    return (a + b).float().double()


def _sequential(products: Tensor, add: Add) -> Tensor:
    total = torch.zeros_like(products[..., 0])
    for k in range(products.shape[-1]):
        total = add(total, products[..., k])
    return total


def _by_threads(products: Tensor, add: Add, threads: int = 32) -> Tensor:
    """Every thread takes each 32nd product; a tree joins them."""
    compute_types = torch.nn.functional.pad(products, (0, -products.shape[-1] % threads)).unflatten(
        -1, (-1, threads)
    )
    parts = _sequential(compute_types.transpose(-1, -2), add)
    while parts.shape[-1] > 1:
        half = parts.shape[-1] // 2
        parts = add(parts[..., :half], parts[..., half:])
    return parts[..., 0]


def _split(products: Tensor, add: Add, splits: int = 5) -> Tensor:
    parts = torch.stack([_sequential(c, add) for c in products.chunk(splits, dim=-1)], dim=-1)
    return _sequential(parts, add)


def _promoted(products: Tensor) -> Tensor:
    """fp8 with the sum moved to f32 every 128 products."""
    parts = [_sequential(c, _aligned) for c in products.split(128, dim=-1)]
    return _sequential(torch.stack(parts, dim=-1), _rounded)


def _aligned(a: Tensor, b: Tensor) -> Tensor:
    """Both addends cut 13 bits below the larger one's leading bit."""
    exponent = torch.frexp(torch.maximum(a.abs(), b.abs())).exponent.double() - 1
    step = 2.0 ** (exponent - 13)
    return (a / step).floor() * step + (b / step).floor() * step


def _instructions(products: Tensor) -> Tensor:
    """f16 sums: eight products an instruction, rounded to f16."""
    parts = torch.nn.functional.pad(products, (0, -products.shape[-1] % 8)).unflatten(-1, (-1, 8)).sum(-1)
    return _sequential(parts, lambda a, b: round_float(a + b, F16))


def _tf32x3(x: Tensor, w: Tensor) -> Tensor:
    high_x, high_w = round_float(x, TF32), round_float(w, TF32)
    low_x, low_w = round_float(x - high_x, TF32), round_float(w - high_w, TF32)
    pieces = [low_x[:, None] * high_w, high_x[:, None] * low_w, high_x[:, None] * high_w]
    return _sequential(torch.cat(pieces, dim=-1), lambda a, b: _cut(a + b, 24))


def _f16_parts(x: Tensor) -> tuple[Tensor, Tensor, float]:
    """Both parts and the scale, as emit/hopper/f16x3.j2 has them."""
    exponent = math.frexp(float(x.abs().max()))[1] - 15
    scale = 2.0 ** (-10 if -32 <= exponent < -9 else exponent)
    high = round_float(x / scale, F16)
    return high, round_float((x / scale - high) * 2048, F16), scale


def _f16x3(x: Tensor, w: Tensor) -> Tensor:
    (high_x, low_x, scale_x), (high_w, low_w, scale_w) = _f16_parts(x), _f16_parts(w)

    def cut(a: Tensor, b: Tensor) -> Tensor:
        return _cut(a + b, 24)

    cross = torch.cat([low_x[:, None] * high_w, high_x[:, None] * low_w], dim=-1)
    sums = _sequential(high_x[:, None] * high_w, cut) + _sequential(cross, cut) / 2048
    return sums.float().double() * (scale_x * scale_w)


def _products(x: Tensor, w: Tensor) -> Tensor:
    return x.double()[:, None] * w.double()


HONEST: dict[str, tuple[str, str, Callable[[Tensor, Tensor], Tensor]]] = {
    "bf16, in order": ("bf16", "dot[K](x, w)", lambda x, w: _sequential(_products(x, w), _rounded)),
    "bf16, threads and a tree": ("bf16", "dot[K](x, w)", lambda x, w: _by_threads(_products(x, w), _rounded)),
    "bf16, split": ("bf16", "dot[K](x, w)", lambda x, w: _split(_products(x, w), _rounded)),
    "f16, low bits cut": (
        "f16",
        "dot[K](x, w)",
        lambda x, w: _sequential(_products(x, w), lambda a, b: _cut(a + b, 24)),
    ),
    "f16 sums": ("f16", "dot[K](x, w, acc=f16)", lambda x, w: _instructions(_products(x, w))),
    "f32, FFMA": ("f32", "dot[K](x, w)", lambda x, w: _sequential(_products(x, w), _rounded)),
    "f32, three passes": ("f32", "dot[K](x, w)", lambda x, w: _tf32x3(x.double(), w.double())),
    "f32, three passes of f16": ("f32", "dot[K](x, w)", lambda x, w: _f16x3(x.double(), w.double())),
    "tf32, rounded": (
        "f32",
        "dot[K](tf32(x), tf32(w))",
        lambda x, w: _sequential(
            _products(round_float(x.double(), TF32), round_float(w.double(), TF32)), _rounded
        ),
    ),
    "e4m3": ("e4m3", "dot[K](x, w)", lambda x, w: _promoted(_products(x, w))),
    "e4m3, fast": ("e4m3", "dot[K](x, w, acc=fast)", lambda x, w: _sequential(_products(x, w), _aligned)),
    "e5m2": ("e5m2", "dot[K](x, w)", lambda x, w: _promoted(_products(x, w))),
}


def _gemm(elem: str, expression: str, out: str = "f32") -> Program:
    return named(f"kernel k(x: {elem}[M, K], w: {elem}[N, K]) -> {out}[M, N] {{ return {expression} }}", "k")


def _judge(
    program: Program, arguments: list[Tensor], out: Tensor, tile: tuple[int, int] | None = None
) -> Comparison:
    (expected,) = expect(program, arguments)
    return compare(store(out, expected.elem), expected.reference, expected.bound, tile=tile)


OVERFLOW = {("f16 sums", "powers"), ("f16 sums", "wide")}
"""Whose sums overflow f16."""


@pytest.mark.parametrize(
    ("case", "distribution"), [(c, d) for c in HONEST for d in DISTRIBUTIONS if (c, d) not in OVERFLOW]
)
def test_honest_sums_are_within(case: str, distribution: Distribution) -> None:
    elem, expression, device = HONEST[case]
    program = _gemm(elem, expression)
    arguments = generate(program, {"M": M, "N": N, "K": K}, distribution, seed=3)
    verdict = _judge(program, arguments, device(*arguments))
    assert verdict.ok, verdict


@pytest.mark.parametrize("channels", [1, 9])
def test_f16_sums_of_a_window_whose_channels_are_padded_are_within(channels: int) -> None:
    """Each tap's channels begin a step of their own, as kernels copy them."""
    program = named(
        "kernel k(x: f16[L, C], w: f16[R, C, K]) -> f16[P=L-3, K] "
        "{ return dot[R, C](x[L = P + R], w, acc=f16) }",
        "k",
    )
    arguments = generate(program, {"L": 600, "C": channels, "R": 4, "K": 40}, "normal", seed=3)
    x, w = (a.double() for a in arguments)
    taps = [_instructions((x[r : r + 597, None] * w[r].T).double()) for r in range(4)]
    out = _sequential(torch.stack(taps, dim=-1), lambda a, b: round_float(a + b, F16))
    verdict = _judge(program, arguments, out)
    assert verdict.ok and (channels > 1 or verdict.worst > 0.1), verdict


CONVOLUTIONS_OF_TF32 = {
    "windows": (
        "x: f32[K, L], w: f32[N, K, R]",
        "f32[M = L - 1, N]",
        "dot[K, R](tf32(x[L = M + R]), tf32(w))",
    ),
    "one tap": ("x: f32[K, L], w: f32[N, K]", "f32[M = L, N]", "dot[K](tf32(x[L = M]), tf32(w))"),
    "1x1 layers": ("x: f32[B, K, M], w: f32[N, K]", "f32[B, N, M]", "dot[K](tf32(x), tf32(w))"),
    "their gradients": ("x: f32[B, N, K], w: f32[B, M, K]", "f32[M, N]", "dot[B, K](tf32(x), tf32(w))"),
}


def _bound_of_small(parameters: str, result: str, expression: str) -> Tensor:
    """The bound of the last result, which reads small numbers alone, where another reads a large one."""
    program = named(f"kernel k({parameters}) -> {result} {{ return {expression} }}", "k")
    assert isinstance(program, Kernel)
    generator = torch.Generator().manual_seed(5)
    sizes = {"B": 3, "K": 24, "L": 9, "M": 9, "N": 5, "R": 2}
    x, w = (
        1e-3 * torch.rand([sizes[d] for d in p.type.dims], generator=generator)
        for p in program.params
        if isinstance(p.type, TensorType)
    )
    x.view(-1)[0] = 2.0**20
    (expected,) = expect(program, [x, w])
    return expected.bound.reshape(-1)[-1]


@pytest.mark.parametrize("case", CONVOLUTIONS_OF_TF32)
def test_convolutions_of_tf32_have_the_bound_of_one_f16(case: str) -> None:
    """An f16 ends 2**-38 below the largest element, also where it multiplies small ones."""
    assert _bound_of_small(*CONVOLUTIONS_OF_TF32[case]) > 24 * 2.0**-38 * 2.0**20 * 5e-4


@pytest.mark.parametrize(
    ("parameters", "result"),
    [
        ("x: f32[M, K], w: f32[N, K]", "f32[M, N]"),
        ("x: f32[K, M], w: f32[K, N]", "f32[M, N]"),
        ("x: f32[B, M, K], w: f32[B, K, N]", "f32[B, M, N]"),
    ],
)
def test_products_of_tf32_have_a_bound_of_what_they_read(parameters: str, result: str) -> None:
    bound = _bound_of_small(parameters, result, "dot[K](tf32(x), tf32(w))")
    assert 0 < bound < 24**2 * 2.0**-22 * 1e-6


def _one_by_one() -> Iterator[str]:
    """Products over K, or B and K, of up to three names by up to three, in every order of memory, with lines of odd bytes."""
    for over, names, factors in (
        ("K", "BKP", "NK"),
        ("BK", "BKP", "BKN"),
        ("K", "KP", "KN"),
        ("K", "BKP", "BKN"),
    ):
        for x, w in product(permutations(names), permutations(factors)):
            results = [d for d in dict.fromkeys((*x, *w)) if d not in over]
            shapes = [", ".join(f"{d}=7" if d == "P" else d for d in dims) for dims in (x, w)]
            operands = f"x: f32[{shapes[0]}], w: f32[{shapes[1]}]"
            yield f"kernel k({operands}) -> f32[{', '.join(results)}] {{ return dot[{', '.join(over)}](tf32(x), tf32(w)) }}"


def _drawn_convolutions() -> Iterator[str]:
    space, draw = SPACES["convolution"], random.Random(7)
    for _ in range(150):
        choice = {axis: draw.choice(features) for axis, features in space.axes.items()}
        yield space.program(choice | {"compute type": "tf32"}, draw).text


def test_whatever_the_convolution_family_takes_in_tf32_has_the_bound_of_one_f16() -> None:
    served = 0
    for text in (*_one_by_one(), *_drawn_convolutions()):
        try:
            kernel = named(text, "k")
            assert isinstance(kernel, Kernel)
            if not isinstance(CONVOLUTIONS.match(kernel), ConvolutionPattern):
                continue
        except (ProgramError, Refused):
            continue
        dots = find(kernel, Dot)  # none in a sum of products, which is f32
        assert all(may_be_convolution(dot) for dot in dots), text
        served += len(dots)
    assert served > 50


@pytest.mark.parametrize("case", HONEST)
def test_integers_must_be_bit_exact(case: str) -> None:
    elem, expression, _ = HONEST[case]
    program = _gemm(elem, expression)
    arguments = generate(program, {"M": M, "N": N, "K": K}, "integer", seed=4)
    (expected,) = expect(program, arguments)
    assert (expected.bound == 0).all()
    assert expected.reference.abs().max() > 3


def test_the_bound_is_not_idle() -> None:
    """A device that only just keeps its compute type's promise uses a visible part of the bound."""
    program = _gemm("f16", "dot[K](x, w)")
    arguments = generate(program, {"M": M, "N": N, "K": K}, "positive", seed=5)
    assert _judge(program, arguments, HONEST["f16, low bits cut"][2](*arguments)).worst > 0.1


@pytest.mark.parametrize("elem", [pytest.param("bf16", marks=pytest.mark.slow), "f32"])
def test_the_bound_of_a_million_products_is_not_idle(elem: str) -> None:
    program = named(f"kernel k(a: {elem}[M, K], b: {elem}[K, 1]) -> f32[M, 1] {{ return dot[K](a, b) }}", "k")
    (found,) = expect(program, generate(program, {"M": 8, "K": 1 << 20}, "normal", seed=1))
    assert not useless(found.reference, found.bound).any()


@pytest.mark.parametrize("distribution", ["normal", "integer"])
def test_f16_parts_of_wide_tensors_are_within_the_bound(distribution: Distribution) -> None:
    """Rows far below the largest lose bits, and not more than the bound says; those near it keep all."""
    program = _gemm("f32", "dot[K](x, w)")
    x, w = generate(program, {"M": M, "N": N, "K": K}, distribution, seed=7)
    x *= torch.exp2(-8.0 * torch.arange(M))[:, None]
    assert _judge(program, [x, w], _f16x3(x.double(), w.double())).ok
    reference = expect(program, [x, w])[0].reference
    assert not torch.equal(_f16x3(x.double(), w.double())[-1], reference[-1])


def test_f16_sums_fail_as_f32_sums() -> None:
    program = _gemm("f16", "dot[K](x, w)")
    arguments = generate(program, {"M": M, "N": N, "K": K}, "normal", seed=6)
    assert not _judge(program, arguments, _instructions(_products(*arguments))).ok


def test_tf32_fails_as_f32() -> None:
    program = _gemm("f32", "dot[K](x, w)")
    arguments = generate(program, {"M": M, "N": N, "K": 128}, "normal", seed=6)
    assert not _judge(program, arguments, HONEST["tf32, rounded"][2](*arguments)).ok


def test_operands_cut_to_tf32_fail_as_rounded_ones() -> None:
    """As tensor cores read f32 memory that nothing has rounded: low bits ignored."""
    program = _gemm("f32", "dot[K](tf32(x), tf32(w))")
    arguments = generate(program, {"M": M, "N": N, "K": 128}, "normal", seed=6)
    cut = [
        (x / step).trunc() * step
        for x in map(torch.Tensor.double, arguments)
        for step in (quantum(x, FORMATS[TF32.name]),)
    ]
    assert not _judge(program, arguments, _sequential(_products(*cut), _rounded)).ok


@pytest.mark.parametrize("n", [144, 128])
def test_a_mean_may_divide_its_terms_first(n: int) -> None:
    """Terms divided by 144 are no integers and their sums round; by 128 they add exactly."""
    program = named("kernel k(x: f32[M, N]) -> f32[M] { return mean[N](x) }", "k")
    arguments = generate(program, {"M": 64, "N": n}, "integer", seed=4)
    terms = (arguments[0] / n).double()
    out = terms[:, 0]
    for term in terms.unbind(1)[1:]:
        out = (out + term).float().double()
    assert _judge(program, arguments, out).ok
    (expected,) = expect(program, arguments)
    assert bool((expected.bound == 0).all()) == (n == 128)


# --- mutants -------------------------------------------------------------------------

EPILOGUE = "relu(dot[K](x, w) + b) * s"


def _right(x: Tensor, w: Tensor, b: Tensor, s: Tensor) -> Tensor:
    return (x @ w.T + b).relu() * s[:, None]


def _transposed_tile(out: Tensor) -> Tensor:
    out = out.clone()
    out[8:16, 8:16] = out[8:16, 8:16].T
    return out


MUTANTS: dict[str, Callable[..., Tensor]] = {
    "wrong bias index": lambda x, w, b, s: _right(x, w, b.roll(1), s),
    "bias along the wrong side": lambda x, w, b, s: (x @ w.T + s[:, None]).relu() * s[:, None],
    "one k dropped": lambda x, w, b, s: _right(x[:, :-1], w[:, :-1], b, s),
    "one k twice": lambda x, w, b, s: _right(torch.cat((x, x[:, :1]), 1), torch.cat((w, w[:, :1]), 1), b, s),
    "transposed tile": lambda x, w, b, s: _transposed_tile(_right(x, w, b, s)),
    "off by one row": lambda x, w, b, s: _right(x.roll(1, 0), w, b, s),
    "missing last column": lambda x, w, b, s: torch.nn.functional.pad(_right(x, w, b, s)[:, :-1], (0, 1)),
    "epilogue without relu": lambda x, w, b, s: (x @ w.T + b) * s[:, None],
    "one stale element": lambda x, w, b, s: (
        _right(x, w, b, s).index_put(
            (torch.tensor([5]), torch.tensor([7])), torch.tensor(0.0, dtype=torch.float64)
        )
        + 0
    ),
    "NaN in one element": lambda x, w, b, s: _right(x, w, b, s).index_put(
        (torch.tensor([5]), torch.tensor([7])), torch.tensor(torch.nan, dtype=torch.float64)
    ),
}


@pytest.mark.parametrize("elem", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("mutant", "distribution"),
    [
        (mutant, distribution)
        for mutant in MUTANTS
        for distribution in ("normal", "uniform", "integer", "positive", "wide")
        if (mutant, distribution) != ("epilogue without relu", "positive")  # nothing is negative
    ],
)
def test_mutants_are_caught(mutant: str, elem: str, distribution: Distribution) -> None:
    text = (
        f"kernel k(x: {elem}[M, K], w: {elem}[N, K], b: {elem}[N], s: f32[M]) -> {elem}[M, N] "
        f"{{ return {EPILOGUE} }}"
    )
    program = named(text, "k")
    arguments = generate(program, {"M": 24, "N": 17, "K": 333}, distribution, seed=7)
    if mutant == "one stale element":
        arguments[2][7], arguments[3][5] = 1000.0, 1.0  # relu must not have made it 0 already
    wide = [a.double() for a in arguments]
    assert _judge(program, arguments, _right(*wide)).ok
    verdict = _judge(program, arguments, MUTANTS[mutant](*wide), tile=(8, 8))
    assert not verdict.ok, verdict
    assert verdict.worst > 1


@pytest.mark.parametrize("elem", ["tf32", "e4m3", "e5m2"])
@pytest.mark.parametrize("mutant", ["one k dropped", "off by one row", "missing last column"])
def test_mutants_of_cheap_compute_types_are_caught_on_integers(mutant: str, elem: str) -> None:
    memory = ELEMENTS["f32"] if elem == "tf32" else ELEMENTS[elem]
    dot = "dot[K](tf32(x), tf32(w))" if elem == "tf32" else "dot[K](x, w)"
    text = (
        f"kernel k(x: {memory.name}[M, K], w: {memory.name}[N, K], b: f32[N], s: f32[M]) -> f32[M, N] "
        f"{{ return relu({dot} + b) * s }}"
    )
    program = named(text, "k")
    arguments = generate(program, {"M": 24, "N": 17, "K": 333}, "integer", seed=8)
    arguments[0][:, -1] = arguments[1][:, -1] = torch.ones(()).to(arguments[0].dtype)
    wide = [a.double() for a in arguments]
    assert _judge(program, arguments, _right(*wide)).ok
    assert not _judge(program, arguments, MUTANTS[mutant](*wide)).ok


# --- element-wise work ---------------------------------------------------------------


def test_an_uncertain_comparison_allows_both_branches() -> None:
    text = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> f32[M, N] { return where(dot[K](x, w) > 0, 1, -1) }"
    x, w = generate(named(text, "k"), {"M": 50, "N": 50, "K": K}, "normal", seed=12)
    x[0], x[0, 1110] = 1, 0
    w[0, 555:1110] = -w[0, :555]  # their product is 0, but no order of sums knows
    (dot,) = expect(_gemm("bf16", "dot[K](x, w)"), [x, w])
    unsure = dot.reference.abs() <= dot.bound
    (expected,) = expect(named(text, "k"), [x, w])
    assert torch.equal(expected.bound == 2, unsure & (dot.bound > 0))
    assert unsure.any() and not unsure.all()


TURNING = ["gelu", "gelu_tanh", "silu", "mish", "hardswish", "abs", "sin", "elu", "tanh", "exp"]


@pytest.mark.parametrize("name", TURNING)
def test_the_radius_of_a_function_covers_its_argument(name: str) -> None:
    """Anywhere in the interval, turning points included."""
    signature, argument_text = "kernel k(x: bf16[M, K], w: bf16[K]) -> f32[M]", "dot[K](x, w) * 0.001"
    program = named(f"{signature} {{ return {name}({argument_text}) }}", "k")
    x = torch.randn(400, 64, generator=torch.Generator().manual_seed(9)).bfloat16() * 100
    w = torch.randn(64, generator=torch.Generator().manual_seed(10)).bfloat16()
    (expected,) = expect(program, [x, w])
    inner = named(f"{signature} {{ return {argument_text} }}", "k")
    (argument,) = expect(inner, [x, w])
    f = named(f"kernel k(x: f64[M]) -> f64[M] {{ return {name}(x) }}", "k")
    for shift in torch.linspace(-1, 1, 21).tolist():
        (moved,) = evaluate(f, [argument.reference + shift * argument.bound])
        assert ((moved - expected.reference).abs() <= expected.bound * (1 + 1e-9) + 1e-45).all()


@pytest.mark.parametrize(("out", "allowed"), [("bf16", True), ("f32", False)])
def test_fast_forms_serve_only_what_is_rounded_to_16_bits(out: str, allowed: bool) -> None:
    """A relative error of 2**-17 may flip a rounding to bf16; in an f32 result it is wrong."""
    program = named(f"kernel k(x: f32[M], y: f32[M]) -> {out}[M] {{ return y * gelu(x) }}", "k")
    arguments = generate(program, {"M": 20000}, "normal", seed=13)
    (expected,) = expect(program, arguments)
    (exact,) = evaluate(program, arguments, rounded=False)
    off = store(exact * (1 + 2.0**-17), expected.elem)
    assert not torch.equal(off.double(), expected.reference)
    assert compare(off, expected.reference, expected.bound).ok is allowed


def test_a_pipeline_carries_its_radius_through_buffers() -> None:
    text = """pipeline p(x: bf16[M, K], w: bf16[N, K]) -> f32[M, N] {
      h: bf16[M, N] = dot[K](x, w)
      return h * 3
    }"""
    program = named(text, "p")
    arguments = generate(program, {"M": 40, "N": 40, "K": K}, "normal", seed=11)
    (expected,) = expect(program, arguments)
    flipped = _sequential(_products(*arguments), _rounded)
    out = round_float(flipped, ELEMENTS["bf16"]) * 3
    assert compare(out.float(), expected.reference, expected.bound).ok
    assert (expected.bound > 0).any()
