"""Modules become programs that a person would have written, and that compute the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any, NoReturn

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from tests.importer.float64_check import difference
from ucutlass import frontend
from ucutlass.importer import stages
from ucutlass.importer.export import ForwardArguments
from ucutlass.importer.graph import Unsupported
from ucutlass.importer.program import WrongCall, from_torch, imported
from ucutlass.importer.text import INLINE_STAGES
from ucutlass.ir import Kernel, Pipeline
from ucutlass.kernels.families import match
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.shapes import complete


class Function(nn.Module):
    """A function of tensors as a module without parameters."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> object:
        return self.function(x) if y is None else self.function(x, y)


class Gated(nn.Module):
    def __init__(self, width: int = 16, inner: int = 32) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.conv(x))
        return F.relu(x + y)


TEXTS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...], str]] = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(8, 6), nn.GELU()),
        ((4, 8),),
        """
        kernel sequential(input: f32[M=4, K=8], _0_weight: f32[N=6, K], _0_bias: f32[N]) -> f32[M, N] {
          return gelu(dot[K](input, _0_weight) + _0_bias)
        }
        """,
    ),
    "layer norm": (
        lambda: nn.LayerNorm(8),
        ((2, 3, 8),),
        """
        kernel layernorm(input: f32[B=2, L=3, D=8], weight: f32[D], bias: f32[D]) -> f32[B, L, D] {
          return (input - mean[D](input)) * rsqrt(var[D](input) + 1e-5) * weight + bias
        }
        """,
    ),
    "transposed product": (
        lambda: Function(lambda x: x @ x.T),
        ((4, 8),),
        """
        kernel function(x: f32[M=4, K=8]) -> f32[M, N=4] {
          return dot[K](x, x[M = N])
        }
        """,
    ),
    "gated": (
        lambda: Gated().bfloat16(),
        ((4, 16),),
        """
        pipeline gated(
          x: bf16[M=4, K=16],
          gate_weight: bf16[F=32, K],
          up_weight: bf16[F, K],
          down_weight: bf16[N=16, F]
        ) -> bf16[M, N] {
          up: bf16[M, F] = silu(dot[K](x, gate_weight)) * dot[K](x, up_weight)
          return dot[F](up, down_weight)
        }
        """,
    ),
}
"""Modules with the shapes of their inputs and their programs."""


@pytest.mark.parametrize("name", TEXTS)
def test_a_module_is_written_as_a_person_would(name: str) -> None:
    torch.manual_seed(0)
    make, shapes, text = TEXTS[name]
    module = make()
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    program = from_torch(module, *(torch.randn(shape, dtype=dtype) for shape in shapes))
    assert program.text.strip() == dedent(text).strip()


@pytest.mark.parametrize(("element", "products"), [(torch.float32, [1, 1, 1]), (torch.bfloat16, [2, 1])])
def test_products_side_by_side_are_one_kernel_where_that_is_quicker(
    element: torch.dtype, products: list[int]
) -> None:
    program = from_torch(Gated(512, 1408).to(element), torch.randn(512, 512, dtype=element))
    lines = [line.count("dot[") for line in program.text.splitlines()]
    assert [count for count in lines if count] == products


class Doubled(nn.Module):
    """Adds what a convolution reads to what it gives, so often that kernels are called by name."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(INLINE_STAGES + 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = F.silu(conv(x)) + x
        return x


def test_a_called_kernel_that_reads_its_operand_by_another_name_is_served() -> None:
    program = from_torch(Doubled().eval(), torch.randn(1, 8, 16, 16))
    assert "x[C = K]" in program.text
    checked = frontend.read_text(program.text)
    for name in frontend.programs(checked):
        kernel = frontend.program(checked, name)
        if isinstance(kernel, Kernel):
            match(kernel)


class Heads(nn.Module):
    """Attention of one projection's parts, with a bias that an index finds in a table."""

    places: torch.Tensor

    def __init__(self, biased: bool) -> None:
        super().__init__()
        self.biased = biased
        self.qkv = nn.Linear(128, 3 * 128)
        self.table = nn.Parameter(torch.randn(12, 2))
        self.register_buffer("places", torch.randint(0, 12, (6 * 6,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 6, 3, 2, 64).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.places].view(6, 6, 2).permute(2, 0, 1)
        y = F.scaled_dot_product_attention(q, k, v, bias if self.biased else None)
        return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("biased", [False, True])
def test_parts_of_a_projection_are_read_where_they_lie(biased: bool) -> None:
    program, words = difference(Heads(biased).bfloat16(), torch.randn(2, 6, 128).bfloat16())
    own = frontend.program(frontend.read_text(program.text), program.name)
    assert not words and isinstance(own, Pipeline) and len(own.stages) == 2 + biased


def test_many_layers_of_attention_call_one_kernel() -> None:
    layers = nn.Sequential(*[Heads(False) for _ in range(8)]).bfloat16()
    program, words = difference(layers, torch.randn(2, 6, 128).bfloat16())
    assert not words and program.text.count("softmax") == 2  # the last is named as the result


def test_half_precision_attention_is_one_kernel() -> None:
    q = torch.randn(2, 4, 64, 32, dtype=torch.bfloat16)
    program, words = difference(Function(lambda q, k: F.scaled_dot_product_attention(q, k, k)), q, q.clone())
    assert not words
    assert program.text.startswith("kernel function(")


def test_what_several_stages_read_is_computed_by_each_where_that_is_quicker() -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.exp(x)
        return y.sum(1), y.amax(0)

    program, words = difference(Function(both), torch.randn(256, 256))
    assert not words
    assert "return y0 = sum[N](exp(x)), y1 = max[M](exp(x))" in program.text


def test_an_operand_is_copied_where_reading_it_as_it_lies_would_cost_the_dot_more() -> None:
    product = Function(lambda x, y: x[:, 1].transpose(0, 1) @ y)
    narrow, wide = (
        from_torch(product, torch.empty(256, 3, 256, 256, dtype=t), torch.empty(256, 256, 256, dtype=t)).text
        for t in (torch.float16, torch.float32)
    )
    assert "return dot[K](x[C = 1], y)" in narrow
    assert "select: f32[M, B, K] = x[C = 1]" in wide and "return dot[K](select, y)" in wide


def rotated(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * 3 + torch.cat((-second, first), -1)


def thirds(x: torch.Tensor) -> torch.Tensor:
    a, b, c = x.chunk(3, -1)
    return x + torch.cat((c, a * 2, b), -1)


@pytest.mark.parametrize(
    ("function", "shape", "text"),
    [
        (rotated, (4, 8), "x * 3 + where(index(Z) == 0, -x[Z = 1], x[Z = 0])"),
        (thirds, (4, 12), "where(index(Z) == 0, x[Z = 2], where(index(Z) == 1, x[Z = 0] * 2, x[Z = 1]))"),
    ],
)
def test_parts_that_are_joined_are_read_by_their_number(
    function: Callable[..., object], shape: tuple[int, ...], text: str
) -> None:
    program, words = difference(Function(function), torch.randn(shape))
    assert not words
    assert text in program.text


class Recurrent(nn.Module):
    def __init__(self, kind: str, result: int, bidirectional: bool = False) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(4, 5, 2, bidirectional=bidirectional)
        self.result = result

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, state = self.layers(x)
        chosen: torch.Tensor = [outputs, *(state if isinstance(state, tuple) else (state,))][self.result]
        return chosen * 2


def _written(x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.tensor([[0], [-1]]), torch.tensor([1, 2])
    return x.index_put((rows, columns), x.new_ones(2, 2)).index_put((columns,), x[:2] * 2, accumulate=True)


def _pieces(x: torch.Tensor) -> torch.Tensor:
    """A mask that is written piece by piece, as shifted windows have it."""
    mask = x.new_zeros(6, 6)
    for number, (rows, columns) in enumerate((i, j) for i in (0, 2, 4) for j in (0, 2, 4)):
        mask[rows : rows + 2, columns : columns + 2] = number
    return x + mask


AGREE: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "residual block": (Residual, ((2, 4, 6, 6),)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), ((2, 5, 16),)),
    "shuffle": (
        lambda: nn.Sequential(
            nn.Conv2d(6, 6, 1, groups=3), nn.ChannelShuffle(2), nn.Conv2d(6, 6, 1, groups=3)
        ),
        ((2, 6, 4, 4),),
    ),
    "unclean reshape": (lambda: Function(lambda x: x.transpose(0, 1).reshape(4, 15).relu()), ((12, 5),)),
    "group norm": (lambda: nn.GroupNorm(2, 6), ((2, 6, 5),)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), ((2, 4, 5, 5),)),
    "average pooling": (
        lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        ((1, 2, 6, 7),),
    ),
    "many parts": (lambda: Function(lambda x: torch.cat([x * i for i in range(20)], 1)), ((3, 2),)),
    "cross entropy": (lambda: Function(lambda x: F.cross_entropy(x, torch.arange(4) % 3)), ((4, 3),)),
    "sorted": (lambda: Function(lambda x: x.T.sort(1)[0] * 2), ((4, 3),)),
    "top values": (lambda: Function(lambda x: x.topk(2, 1)), ((4, 5),)),
    "ellipsis": (lambda: Function(lambda x, y: torch.einsum("...ij,jk->...ik", x, y)), ((2, 3, 4), (4, 5))),
    "uneven pooling": (lambda: nn.AdaptiveAvgPool2d((3, 2)), ((1, 2, 7, 4),)),
    "bilinear": (
        lambda: Function(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
        ((1, 2, 3, 4),),
    ),
    "reflected": (lambda: Function(lambda x: F.pad(x, (2, 1), mode="reflect")), ((2, 3, 5),)),
    "repeated along a product": (lambda: Function(lambda x: x.expand(3, 4) @ x.expand(3, 4).T), ((4,),)),
    "no axes": (lambda: Function(lambda x: x.sum() - x.mean()), ((4, 3),)),
    "windows of what is repeated": (
        lambda: Function(lambda x: x.repeat_interleave(2, 0).flatten().unfold(0, 2, 1)),
        ((3, 1),),
    ),
    "growing concatenation": (
        lambda: Function(
            lambda x, y: torch.cat([x, y, torch.cat([x, y], 1).sum(1, keepdim=True)], 1).softmax(1)
        ),
        ((3, 2), (3, 4)),
    ),
    "largest of what is padded": (
        lambda: Function(lambda x: F.pad(x, (2, 1)).amax(0) - F.pad(x.abs(), (1, 1)).prod(1)[0]),
        ((3, 4),),
    ),
    "LSTM": (lambda: Recurrent("LSTM", 0, True), ((3, 2, 4),)),
    "last state of an LSTM": (lambda: Recurrent("LSTM", 2), ((3, 2, 4),)),
    "GRU": (lambda: Recurrent("GRU", 1), ((3, 2, 4),)),
    "RNN": (lambda: Recurrent("RNN", 0), ((3, 2, 4),)),
    "written at indices": (lambda: Function(_written), ((3, 4),)),
    "scattered": (
        lambda: Function(lambda x: torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.5)),
        ((3, 4),),
    ),
    "written by a mask": (lambda: Function(lambda x: x.index_put((x > 0,), x.new_full((), 3.0))), ((3, 4),)),
    "histogram": (lambda: Function(lambda x: torch.histc(x, 5, -1, 1)), ((30,),)),
    "negative indices": (lambda: Function(lambda x: x[torch.tensor([-1, 0, -2])]), ((4, 3),)),
    "losses of ignored targets": (
        lambda: Function(
            lambda x: F.cross_entropy(x, torch.tensor([0, -100, 2, 1]), x[0].abs(), label_smoothing=0.1)
        ),
        ((4, 3),),
    ),
    "packed mask": (
        lambda: Function(lambda x: x * (torch.arange(5).diff(prepend=torch.tensor([-1])) == 1).cumsum(0)),
        ((4, 5),),
    ),
    "mask in pieces": (lambda: Function(_pieces), ((6, 6),)),
    "constants": (lambda: Function(lambda x: (x * 2, torch.ones(3, 4) * 0.5, torch.arange(5))), ((4,),)),
    "two results": (lambda: Function(lambda x: (x.sum(1), x.max(1))), ((4, 3),)),
    "input as a result": (lambda: Function(lambda x, y: (x, x + y)), ((4, 3), (4, 3))),
}


@pytest.mark.parametrize("name", AGREE)
def test_a_program_computes_what_its_module_does(name: str) -> None:
    torch.manual_seed(0)
    make, shapes = AGREE[name]
    _, words = difference(make(), *(torch.randn(shape) for shape in shapes))
    assert not words


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.new_zeros(3, 4).index_add(0, torch.arange(20) % 3, x),
        lambda x: x.new_ones(16, 4).index_put((torch.arange(20) % 16 - 16,), x, accumulate=True),
        lambda x: x.new_ones(20, 5).scatter_add(1, (x.abs() * 9).long() % 5, x),
    ],
)
def test_sums_into_few_rows_are_reductions(function: Callable[[torch.Tensor], object]) -> None:
    torch.manual_seed(3)
    program, wrong = difference(Function(function), torch.randn(20, 4))
    assert not wrong and "torch." not in program.text


def test_what_forward_writes_into_buffers_is_a_result() -> None:
    torch.manual_seed(0)
    module = nn.BatchNorm1d(3)
    x = torch.randn(5, 3)
    program = from_torch(module, x)
    results = program.kernel.reference(*program.arguments(x))
    module(x)
    assert isinstance(results, tuple)
    torch.testing.assert_close(results[1], module.running_mean)
    torch.testing.assert_close(results[2], module.running_var)
    assert int(results[3]) == 1


@pytest.mark.parametrize(
    ("make", "shape", "other"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 6), nn.GELU()), (4, 8), (7, 8)),
        (lambda: nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), (2, 5, 16), (3, 9, 16)),
        (lambda: Function(lambda x: x[:, :3] + torch.arange(x.shape[0])[:, None]), (5, 6), (2, 11)),
    ],
)
def test_extents_that_export_takes_for_dynamic_are_free(
    make: Callable[[], nn.Module], shape: tuple[int, ...], other: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    module = make().eval()
    varying = {i: torch.export.Dim.AUTO for i in range(len(shape)) if shape[i] != other[i]}
    program = from_torch(module, torch.randn(shape), dynamic_shapes=(varying,))
    for x in (torch.randn(shape), torch.randn(other)):
        with torch.no_grad():
            torch.testing.assert_close(program.reference(x), module(x))
    with pytest.raises(WrongCall, match="any"):
        program.arguments(torch.randn(*other, 1))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.flip(0),
        lambda x: x[: x.shape[0] // 2],
        lambda x: torch.cat([x, x]),
        lambda x: torch.cat([x, x.mean(0, keepdim=True)]),
        lambda x: x[1::2],
    ],
)
def test_what_depends_on_an_extent_is_a_formula(function: Callable[[torch.Tensor], object]) -> None:
    varying = ({0: torch.export.Dim.AUTO},)
    program = from_torch(Function(function), torch.randn(8, 3), dynamic_shapes=varying)
    for n in (4, 5, 7, 8, 31):
        x = torch.randn(n, 3)
        torch.testing.assert_close(program.reference(x), function(x))


def test_a_program_that_would_hold_for_one_extent_alone_is_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.std() + x  # by a number of elements less one, which is a float

    with pytest.raises(Unsupported, match="not one program for all extents"):
        from_torch(Function(function), torch.randn(8, 3), dynamic_shapes=({0: torch.export.Dim.AUTO},))


def test_results_keep_their_structure() -> None:
    x = torch.randn(4, 3)
    program = from_torch(Function(lambda x: {"a": x + 1, "b": [x * 2, None]}), x)
    result = program.reference(x)
    torch.testing.assert_close(result["a"], x + 1)
    torch.testing.assert_close(result["b"][0], x * 2)
    assert result["b"][1] is None


class _Named(nn.Module):
    def forward(
        self, x: torch.Tensor, *, y: torch.Tensor, twice: bool = False, **more: torch.Tensor
    ) -> torch.Tensor:
        return x - y * (2 if twice else 1) + more.get("z", 0)


def test_a_call_names_the_arguments_that_the_import_named() -> None:
    x, y, z = torch.randn(3, 4, 5).unbind()
    program = from_torch(_Named(), x, z=z, twice=True, y=y)
    assert [i.name for i in program.inputs] == ["x", "z", "y"]
    torch.testing.assert_close(program.reference(y, twice=True, y=z, z=x), _Named()(y, y=z, twice=True, z=x))
    with pytest.raises(WrongCall, match=r"for z, twice, y by name, here y"):
        program.reference(x, y=y)
    with pytest.raises(WrongCall, match="for the argument True, not False"):
        program.reference(x, y=y, twice=False, z=z)
    rows = torch.export.Dim("rows")
    free = from_torch(_Named(), x, y=y, dynamic_shapes={"x": {0: rows}, "y": {0: rows}})
    assert free.reference(torch.ones(7, 5), y=torch.ones(7, 5)).abs().max() == 0


def test_a_tensor_that_is_two_arguments_is_so_in_each_call() -> None:
    module = Function(lambda x, y: x - 2 * y)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    program = from_torch(module, x, x)
    torch.testing.assert_close(program.reference(y, y), module(y, y))
    with pytest.raises(WrongCall, match="one tensor as x and y"):
        program.reference(x, y)


@pytest.mark.parametrize("mark", [torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic])
def test_marks_for_torch_compile_free_no_extent(mark: Callable[[torch.Tensor, int], None]) -> None:
    module, x = nn.Linear(4, 5), torch.randn(3, 4)
    mark(x, 0)
    program = from_torch(module, x)
    torch.testing.assert_close(program.reference(x), module(x))
    with pytest.raises(WrongCall, match=r"\(3, 4\), not \(2, 4\)"):
        program.reference(torch.randn(2, 4))


@pytest.mark.parametrize("state", ["weight", "running_mean"])
def test_an_argument_that_is_the_modules_own_tensor_is_an_argument(state: str) -> None:
    module = nn.BatchNorm1d(4).eval()
    own = getattr(module, state)[None]
    module.register_buffer("own", own)
    program = from_torch(module, own)
    x = torch.randn(1, 4)
    torch.testing.assert_close(program.reference(x), module(x))


@dataclass
class _Pair:
    first: torch.Tensor
    second: torch.Tensor


@pytest.mark.parametrize(
    ("function", "argument"),
    [(lambda x: _Pair(x, x * 2), torch.ones(3)), (lambda x: x.first, _Pair(torch.ones(3), torch.ones(3)))],
    ids=["gives", "takes"],
)
def test_a_class_that_export_does_not_know_is_told_how_it_would(function: Any, argument: Any) -> None:
    with pytest.raises(Unsupported, match=r"_Pair, .* torch.export.register_dataclass\(_Pair\) tells"):
        from_torch(Function(function), argument)


def _striped(x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[:, 1::2] = x > 0
    return mask


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x > 0).roll(1, 1),
        lambda x: F.pad(x > 0, (1, 2), value=True),
        lambda x: torch.diag_embed(x > 0),
        lambda x: F.pad(torch.ones(4, 3, dtype=torch.bool), (2, 1)) & (x[:, :1] > 0),
        _striped,
    ],
    ids=["roll", "pad", "diagonals", "constant", "every second"],
)
def test_conditions_are_moved(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(3)
    program, wrong = difference(Function(function), torch.randn(4, 3))
    assert not wrong and "torch." not in program.text


def test_a_call_of_another_shape_is_refused() -> None:
    program = from_torch(Function(torch.relu), torch.randn(4, 3))
    with pytest.raises(WrongCall, match=r"x of \(4, 3\), not \(5, 3\)"):
        program.arguments(torch.randn(5, 3))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: F.dropout(x, 0.5), "aten.native_dropout.default at {here}: dropout, whose mask is random"),
        (lambda x: torch.nonzero(x), "aten.nonzero.default at {here}: the importer has no rule"),
        (lambda x: x[x > 0], "aten.index.Tensor at {here}: a shape depends on the values of tensors"),
        (
            lambda x: x * (1 if x.sum() > 0 else 2),
            "torch.export at {here}: control flow depends on the values",
        ),
        (lambda x: x.new_tensor(x.tolist()), "torch.export at {here}: "),
        (
            lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
            "cond at {here}: a branch or a loop on values",
        ),
        (lambda x: torch.fft.fft(x).abs(), "aten._fft_r2c.default at {here}: "),
        (lambda x: torch.view_as_complex(x.view(4, 2, 2)).abs(), "aten.view_as_complex.default at {here}: "),
        (
            lambda x: torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged).sum(),
            "torch.export at {here}: ",
        ),
    ],
)
def test_what_no_program_computes_is_refused_in_a_line_with_its_operator_and_place(
    function: Callable[[torch.Tensor], object], words: str
) -> None:
    with pytest.raises(Unsupported) as refused:
        from_torch(Function(function), torch.randn(4, 4))
    before, _, after = words.partition("{here}")
    here = rf"[^\n]*{re.escape(Path(__file__).name)}:\d+, [^\n]*"
    assert re.match(re.escape(before) + here + re.escape(after), str(refused.value)), str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("argument", "kind"),
    [
        (lambda x: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged), "nested"),
        (lambda x: x.to_sparse(), "sparse_coo"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "quantized"),
        (lambda x: TwoTensor(x, x), "TwoTensor"),
    ],
)
def test_arguments_that_no_program_takes_are_refused_before_they_are_exported(
    argument: Callable[[torch.Tensor], torch.Tensor], kind: str
) -> None:
    with pytest.raises(Unsupported, match=f"argument 0 is a {kind} tensor, which no program takes"):
        from_torch(Function(torch.relu), argument(torch.randn(4, 4)))


def test_a_quantized_layer_is_refused_by_its_path() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))
    quantize: Any = torch.ao.quantization.quantize_dynamic
    quantized = quantize(model, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(Unsupported, match=r"1 is a quantized layer \(Linear\)"):
        from_torch(quantized, torch.randn(2, 4))


def test_a_parameter_of_such_a_kind_is_refused_by_its_path() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[1].weight.detach().to_sparse())
    with pytest.raises(Unsupported, match=r"1\.weight is a sparse_coo tensor, which no program takes"):
        from_torch(model, torch.randn(2, 4))


def test_what_is_no_module_is_refused() -> None:
    function: Any = torch.relu
    with pytest.raises(Unsupported, match=r"it is a builtin_function_or_method, not a torch\.nn\.Module"):
        from_torch(function, torch.randn(2, 4))


def test_several_threads_import_one_after_the_other() -> None:
    """Two exports at once would fail, and TorchDynamo would compile nothing afterwards."""
    models = [nn.Sequential(nn.Linear(4, 4 + n), nn.ReLU(), nn.LayerNorm(4 + n)) for n in range(4)]
    x = torch.randn(3, 4)
    with ThreadPoolExecutor(len(models)) as threads:
        programs = list(threads.map(lambda model: from_torch(model, x), models))
    for model, program in zip(models, programs, strict=True):
        torch.testing.assert_close(program.reference(x), model(x))


def test_a_refusal_names_the_operator_and_the_line() -> None:
    with pytest.raises(Unsupported) as raised:
        from_torch(Function(lambda x: F.dropout(x, 0.5)), torch.randn(4, 4))
    assert raised.value.origin is not None
    assert raised.value.origin.operator == "aten.native_dropout.default"
    assert Path(__file__).name in raised.value.origin.line


def test_the_report_says_what_became_of_each_operator() -> None:
    program = from_torch(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Unflatten(1, (2, 3))), torch.randn(2, 4)
    )
    fates = {fate.operator: fate.by for fate in program.report}
    assert fates["aten.linear.default"] == "kernel"
    assert fates["aten.view.default"] == "nothing"


def test_a_cut_that_no_copy_helps_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names what is in the way: whoever divides a graph leaves that out, and not its end."""
    rounds: list[str] = []

    def run(cutter: Any) -> NoReturn:
        node = next(n for n in cutter.graph.nodes if n.origin.operator == "aten.relu.default")
        rounds.append(node.name)
        raise stages._Unclean(((node, False),), "no kernel does both")

    monkeypatch.setattr(stages._Cutter, "run", run)
    with pytest.raises(Unsupported, match="no kernel does both") as refused:
        imported(nn.Sequential(nn.ReLU(), nn.Tanh()), ForwardArguments((torch.randn(2, 8),)))
    assert refused.value.origin is not None and refused.value.origin.operator == "aten.relu.default"
    assert len(rounds) == 1


class _Outer(nn.Module):
    """A reduction whose every result many sums use."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, 4096, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.min(x, dim=1, keepdim=True)[0] + self.bias


@pytest.mark.parametrize(
    ("module", "x", "count"),
    [
        (_Outer(), (512, 4096), 2),  # in one launch, every sum would reduce its row anew
        (nn.LayerNorm(4096), (512, 4096), 1),
        (nn.Sequential(nn.MaxPool2d(2), nn.ReLU()), (8, 16, 64, 64), 1),
    ],
    ids=["repeated", "norm", "pool"],
)
def test_a_reduction_is_a_stage_of_its_own_where_that_is_quicker(
    module: nn.Module, x: tuple[int, ...], count: int
) -> None:
    assert imported(module, ForwardArguments((torch.randn(x),)))[0].stages == count


def test_constants_are_taken_to_the_device_of_a_call() -> None:
    program = from_torch(Function(lambda x: x[:, [0, 2]] * torch.tensor([1.0, 2.0])), torch.randn(4, 3))
    arguments = program.arguments(torch.empty(4, 3, device="meta"))
    assert len(arguments) == 3 and {t.device.type for t in arguments} == {"meta"}


def test_a_stage_that_others_names_would_refuse_is_a_kernel_with_its_own() -> None:
    module = Function(lambda y: torch.hstack([y, y]) == torch.stack([y, y], 1).sum())
    program = from_torch(module, torch.randn(3, 1, 31))
    checked = frontend.read_text(program.text, "own.ucu")
    pipeline = frontend.program(checked, program.name)
    assert isinstance(pipeline, Pipeline)
    plan = plan_pipeline(checked, pipeline, complete(pipeline, {}), "sm90a")
    assert all(stage.chosen is not None for stage in plan.stages)


def test_an_operator_that_is_registered_after_an_import_is_taken_apart_too() -> None:
    """What torch takes apart is looked up once for the operators that there are."""

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = torch.ops.ucutlass_tests.twice(torch.relu(x))
            return y

    from_torch(torch.nn.ReLU(), torch.zeros(4, 8))
    with torch.library._scoped_library("ucutlass_tests", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2.0, "CompositeImplicitAutograd")
        assert "relu(x) * 2.0" in from_torch(Twice(), torch.zeros(4, 8)).text
