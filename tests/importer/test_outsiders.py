"""Modules of kinds that models have and that the other tests' do not: each as the smallest that shows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.importer.float64_check import difference
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.importer import export
from ucutlass.importer.graph import Unsupported
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef
from ucutlass.importer.program import from_torch
from ucutlass.importer.symbolic import with_free_extents

Draw = Callable[[], Tensor]


class Of(nn.Module):
    """A function of tensors."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)


def of(*values: float) -> Draw:
    return partial(torch.tensor, values)


def normal(*shape: int) -> Draw:
    return partial(torch.randn, *shape)


def whole(high: int, *shape: int) -> Draw:
    return partial(torch.randint, 0, high, shape)


def _left_padded() -> Tensor:
    """A causal mask of two sequences, of which the first two tokens of one are padding: no key is left to them."""
    tokens = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]).bool()
    return torch.tril(torch.ones(4, 4)).bool() & tokens[:, None, None, :]


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


NAN, INF = float("nan"), float("inf")
HEADS = normal(2, 3, 4, 8)

MODULES: dict[str, tuple[Callable[..., object], tuple[Draw, ...]]] = {
    "attention whose mask hides every key": (_attention, (HEADS, HEADS, HEADS, _left_padded)),
    "attention whose sum hides every key": (
        lambda q, m: _attention(q, q, q, torch.where(m, 0.0, -torch.inf)),
        (HEADS, _left_padded),
    ),
    "attention by a mask that depends on no input": (
        lambda q: _attention(q, q, q, torch.arange(4)[:, None] > torch.arange(4) + 1),
        (HEADS,),
    ),
    "as_strided of a dense tensor": (
        lambda x: torch.as_strided(
            (x * 2).contiguous(memory_format=torch.channels_last), (2, 20, 3), (60, 3, 1)
        ),
        (normal(2, 3, 4, 5),),
    ),
    "as_strided that reads elements again": (
        lambda x: torch.as_strided(x + 1, (3, 2, 4), (5, 0, 2), 3),
        (normal(4, 6),),
    ),
    "a part without elements is joined": (
        lambda x: torch.cat([x[..., :4], x[..., 4:], torch.tensor([[]])[:, :0].expand(3, 0)], -1) * 2,
        (normal(3, 4),),
    ),
    "a product of vectors": (torch.vdot, (normal(5), normal(5))),
    "grid_sample": (
        lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=False),
        (normal(2, 3, 5, 4), normal(2, 3, 2, 2)),
    ),
    "affine_grid": (lambda t: F.affine_grid(t, [2, 1, 3, 4], align_corners=False), (normal(2, 2, 3),)),
    "fmin and fmax": (
        lambda x, y: (torch.fmin(x, y), torch.fmax(x, y)),
        (of(1, NAN, 2, NAN), of(3, 1, NAN, NAN)),
    ),
    "signs of zeros": (
        lambda x, y: (torch.signbit(y), torch.copysign(x, y)),
        (of(1, 2, -3, -4), of(0, -0.0, -1, 2)),
    ),
    "isinf": (torch.isinf, (of(1, INF, -INF, NAN),)),
    "round to decimals": (
        lambda x: (torch.round(x, decimals=2), torch.round(100 * x, decimals=-1)),
        (normal(3, 4),),
    ),
    "rrelu in eval mode": (lambda x: F.rrelu(x, 0.1, 0.4), (normal(3, 4),)),
    "shifts": (lambda x: ((x - 4) >> 1, x << 3), (whole(9, 3, 4),)),
    "ldexp and dist": (lambda x, y: (torch.ldexp(x, y), torch.dist(x, y, 3)), (normal(3, 4), normal(3, 4))),
    "repeat_interleave of all": (lambda x: x.repeat_interleave(2), (normal(3, 4),)),
    "a diagonal aside": (lambda x: torch.diag_embed(x, -2, 0, 2), (normal(2, 3, 4),)),
    "indices of a triangle": (
        lambda x: x[:, torch.tril_indices(3, 4)[0], torch.tril_indices(3, 4)[1]],
        (normal(2, 3, 4),),
    ),
    "bucketize": (lambda x: torch.bucketize(x, torch.arange(-2.0, 2.0)), (normal(3, 4),)),
    "median": (lambda x: x.median(), (normal(3, 4),)),
    "median of what is no number": (
        lambda x: x.median(-1)[0],
        (partial(torch.tensor, [[1.0, NAN, 2.0], [1.0, 5.0, 3.0]]),),
    ),
    "the largest of a short axis": (lambda x: x.topk(3, 1), (normal(2, 5, 3),)),
    "the largest is no number": (
        lambda x: (x.topk(2, -1), x.topk(3, -1, largest=False)),
        (partial(torch.tensor, [[1.0, NAN, 2.0, INF], [-INF, 1.0, -5.0, 7.0]]),),
    ),
    "the largest": (lambda x: (x.topk(1, 0), (x * 8).long().topk(2, -1, largest=False)), (normal(3, 4),)),
    "experts by their group": (
        lambda x: torch.zeros_like(x).scatter(
            1, x.view(3, 2, 3).sum(-1).topk(1)[1] + x[:, :1].topk(1)[1], 1.0
        ),
        (normal(3, 6),),
    ),
    "a value at a few places": (
        lambda x: torch.zeros_like(x).scatter(1, x.topk(2, 1)[1], 1.0) + x.scatter(-1, x.topk(3)[1], -2.0),
        (normal(3, 6),),
    ),
    "sums at a few places": (
        lambda x, ids, y: x.scatter_add(1, ids, y),
        (normal(3, 6), whole(6, 3, 4), normal(3, 4)),
    ),
    "values at a few places": (
        lambda x: x.scatter(1, x.topk(2, 1)[1], x[:, 2:4]) + x.scatter(0, (x[:3] * 9).long() % 5, x[2:]),
        (normal(5, 6),),
    ),
    "values at places that name one place again": (
        lambda x, ids, y: x.index_put((ids,), y),
        (normal(5, 6), partial(torch.tensor, [3, 1, 3, 0]), normal(4, 6)),
    ),
    "windows that lie side by side": (
        lambda x: F.fold(x, (4, 6), (2, 3), stride=(2, 3)),
        (normal(2, 12, 4),),
    ),
    "windows that lie over each other": (
        lambda x: F.fold(x, (5, 6), (3, 2), padding=1, stride=(2, 1)),
        (normal(2, 12, 21),),
    ),
    "windows of one image with holes": (
        lambda x: F.fold(x, (5, 6), 2, dilation=2, stride=2),
        (normal(12, 4),),
    ),
    "distances of all pairs": (
        lambda x, y: (torch.cdist(x, y), torch.cdist(x[None], y, p=1.0), torch.cdist(x, y, p=INF)),
        (normal(4, 3), normal(5, 3)),
    ),
    "arctangents": (
        lambda x, y: (torch.atan(3 * x), torch.asin(y), torch.acos(y), torch.atan((4 * x).long())),
        (normal(3, 40), of(-1, -0.999, -0.5, 0, 1e-6, 0.3, 0.7, 0.9999, 1, 1.5)),
    ),
    "the angle of a point": (
        torch.atan2,
        (
            of(0, -0.0, 0, -0.0, 1, -1, 2, -3, INF, -INF, 0.5, NAN),
            of(1, 1, -1, -1, 0, 0, -4, -5, 2, -INF, INF, 1),
        ),
    ),
    "smaller without aliases": (
        lambda x: (
            F.interpolate(x, (5, 7), mode="bilinear", antialias=True),
            F.interpolate(x, (6, 30), mode="bicubic", antialias=True),
            F.interpolate(x, scale_factor=(0.37, 1.6), mode="bilinear", antialias=True),
        ),
        (normal(2, 3, 16, 20),),
    ),
    "a slice without elements is written": (
        lambda x: torch.slice_scatter(x * 2, x[:, :0], 1, 2, 2),
        (normal(3, 4),),
    ),
    "einsum of diagonals": (
        lambda x, y: (torch.einsum("bii->ib", x), torch.einsum("ii,bij->bj", y, x), torch.einsum("...ii", x)),
        (normal(2, 4, 4), normal(4, 4)),
    ),
    "kthvalue": (lambda x: x.kthvalue(2, 0), (normal(3, 4),)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_program_computes_what_its_module_does(name: str) -> None:
    torch.manual_seed(0)
    function, draws = MODULES[name]
    program, where = difference(Of(function), *(draw() for draw in draws))
    assert not where, f"{where}\n{program.text}"


@pytest.mark.parametrize(
    "name", ["a value at a few places", "sums at a few places", "values at a few places"]
)
def test_few_writes_are_comparisons(name: str) -> None:
    function, draws = MODULES[name]
    assert not any(fate.by == "torch" for fate in from_torch(Of(function), *(d() for d in draws)).report)


def test_rows_of_groups_are_multiplied_by_the_matrix_of_theirs() -> None:
    torch.manual_seed(0)
    ends = torch.tensor([5, 5, 20, 32], dtype=torch.int32)
    x, w = torch.randn(32, 16, dtype=torch.bfloat16), torch.randn(4, 16, 8, dtype=torch.bfloat16)
    program = from_torch(Of(lambda x, w, ends: torch._grouped_mm(x, w, offs=ends)), x, w, ends)
    assert "[E = segment(" in program.text and not any(fate.by == "torch" for fate in program.report)
    groups = zip([0, *ends[:-1].tolist()], ends.tolist(), w.double(), strict=True)
    expected = torch.cat([x[begin:end].double() @ matrix for begin, end, matrix in groups])
    torch.testing.assert_close(program.reference(x, w, ends).double(), expected, rtol=1e-2, atol=1e-2)


def test_a_mask_that_hides_every_key_costs_attention_no_stage_of_its_own_but_the_rows() -> None:
    q = torch.randn(2, 4, 64, 64, dtype=torch.bfloat16)
    mask = torch.ones(2, 1, 64, 64, dtype=torch.bool)
    text = from_torch(Of(_attention), q, q.clone(), q.clone(), mask).text
    assert text.count(": bool[B, 1, L, 1] = ") == 1 and text.count("dot[") == 2 and text.count("bf16[B") == 4


class Biased(nn.Module):
    """Attention with a bias that is learned, and a mask of numbers that are large but finite."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, q: Tensor, mask: Tensor) -> Tensor:
        least = torch.finfo(torch.float32).min
        return _attention(q, q, q, self.bias + torch.where(mask, 0.0, least))


def test_rows_are_not_looked_at_where_no_sum_can_be_infinite() -> None:
    torch.manual_seed(0)
    program, where = difference(Biased(), HEADS(), _left_padded())
    assert not where and "attends" not in program.text


def test_rows_are_not_looked_at_where_the_mask_is_known() -> None:
    function = MODULES["attention by a mask that depends on no input"][0]
    assert "attends" in from_torch(Of(function), HEADS()).text  # its first row has no key
    causal = Of(lambda q: _attention(q, q, q, torch.arange(4)[:, None] >= torch.arange(4)))
    assert "attends" not in from_torch(causal, HEADS()).text


def _distance() -> Tensor:
    return torch.arange(4) - torch.arange(4)[:, None]


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (lambda: _distance() <= 0, ["index(S) <= index(L)"]),
        (lambda: _distance() <= 1, ["index(S) <= index(L) + 1"]),
        (
            lambda: (_distance() <= 0) & (_distance() > -2),
            ["index(S) <= index(L)", "index(S) >= index(L) - 1"],
        ),
        (lambda: _distance() >= -1, ["index(S) >= index(L) - 1"]),
        (lambda: _distance() < 9, []),
        (lambda: torch.ones((), dtype=torch.bool).expand(4, 4), []),
        (lambda: torch.where(_distance() <= 0, 0.0, -torch.inf), ["index(S) <= index(L)"]),
        (lambda: torch.where(_distance() <= 0, 0.0, -65504.0), ["index(S) <= index(L)"]),
        (lambda: (_distance() <= 0).expand(2, 1, 4, 4), ["index(S) <= index(L)"]),
    ],
)
def test_a_mask_that_is_a_window_of_keys_is_an_index(mask: Callable[[], Tensor], said: list[str]) -> None:
    torch.manual_seed(0)
    program, where = difference(Of(lambda q: _attention(q, q, q, mask())), HEADS())
    assert not where and all(words in program.text for words in said)
    assert "bool" not in program.text and program.text.count("index(") == 2 * len(said)


@pytest.mark.parametrize(
    "mask",
    [
        lambda: (_distance() <= 0) & (_distance() != -1),
        lambda: _distance().abs() % 2 == 0,
        lambda: torch.where(_distance() <= 0, 0.5, -torch.inf),
        lambda: torch.where(_distance() <= 0, 0.0, -1000.0),
        lambda: torch.stack([_distance() <= 0, _distance() <= 1])[:, None],
    ],
)
def test_a_mask_that_is_no_window_of_keys_stays(mask: Callable[[], Tensor]) -> None:
    torch.manual_seed(0)
    program, where = difference(Of(lambda q: _attention(q, q, q, mask())), HEADS())
    assert not where and "index(S) <= index(L)" not in program.text


class Windowed(nn.Module):
    """A mask that lies in a buffer, which a user may write to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool).tril())

    def forward(self, q: Tensor) -> Tensor:
        return _attention(q, q, q, self.mask)


def test_a_mask_in_a_buffer_is_read() -> None:
    assert "bool[" in from_torch(Windowed(), HEADS()).text


def test_arguments_that_a_rule_does_not_expect_refuse_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(builder: GraphBuilder, arguments: Arguments) -> ValueRef:
        ref: ValueRef = arguments["nothing of this name"]
        return ref

    monkeypatch.setattr(export, "RULES", {**export.RULES, "aten.relu.default": careless})
    with pytest.raises(Unsupported, match=r"aten\.relu\.default: its rule does not serve it: KeyError"):
        from_torch(nn.ReLU(), torch.randn(3))


def test_results_without_elements_are_refused() -> None:
    with pytest.raises(Unsupported, match="no elements"):
        from_torch(Of(lambda x: x[:, :0]), torch.randn(3, 4))


def test_rows_are_not_looked_at_where_the_mask_is_known_but_for_the_batch() -> None:
    def causal(q: Tensor) -> Tensor:
        mask = torch.arange(4)[:, None] >= torch.arange(4)
        return _attention(q, q, q, mask.expand(q.shape[0], 1, 4, 4))

    batch = ({0: torch.export.Dim("batch", min=2)},)
    text = from_torch(Of(causal), HEADS(), dynamic_shapes=(batch,)).text
    assert "attends" not in text and "f32[B, " in text


CALLED = """
kernel double(x: f32[M, N]) -> f32[M, N] {
  return 2 * x
}

pipeline p(a: f32[A=SIZE, C=8]) -> f32[B, C] {
  y: f32[B=SIZE, C] = double(a)
  return exp(y)
}
"""


def test_a_free_extent_reaches_a_stage_under_another_name() -> None:
    first, other = (parse(CALLED.replace("SIZE", size)) for size in ("1009", "2003"))
    text = format_file(with_free_extents(first, other))
    assert "a: f32[A, C=8]" in text and "1009" not in text
