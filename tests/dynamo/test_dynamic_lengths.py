"""Lengths that vary in models of text: masks from positions, tables of positions, and what is one longer."""

from __future__ import annotations

import warnings

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.dynamo.test_backend import compiled
from tests.dynamo.training_step import outside
from ucutlass import frontend
from ucutlass.assembly import ProgramAtSizes, planned_sources
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.importer.derived_extents import Formulas, NoFormula, formulas, with_formulas
from ucutlass.importer.program import from_torch
from ucutlass.shapes import complete


class Decoder(nn.Module):
    """One layer whose mask comes of positions, as transformers finds texts that are packed into one."""

    positions: Tensor

    def __init__(self, words: int = 50, width: int = 16, heads: int = 2, most: int = 40) -> None:
        super().__init__()
        self.heads = heads
        self.embedding, self.place = nn.Embedding(words, width), nn.Embedding(most, width)
        self.register_buffer("positions", torch.arange(most)[None])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, ids: Tensor) -> Tensor:
        batch, length = ids.shape
        places = self.positions[:, :length]
        x = self.embedding(ids) + self.place(places)
        heads = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        position = torch.arange(length, device=ids.device).expand(batch, -1)
        before = torch.cat([position[:, :1] - 1, position], -1)
        text = (before.diff(dim=-1) != 1).cumsum(-1)
        mask = (position[:, :, None] >= position[:, None]) & (text[:, :, None] == text[:, None])
        y = F.scaled_dot_product_attention(*heads, attn_mask=mask[:, None])
        return x + self.out(y.transpose(1, 2).reshape(batch, length, -1))


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_many_lengths_and_batches_are_one_program(count: int) -> None:
    torch.manual_seed(0)
    model = Decoder()
    fast, report = compiled(model)
    with torch.no_grad():
        for batch, length in torch.randint(2, 40, (count, 2)).tolist():
            ids = torch.randint(0, 50, (batch, length))
            torch._dynamo.mark_dynamic(ids, 0)
            torch._dynamo.mark_dynamic(ids, 1)
            torch.testing.assert_close(fast(ids), model(ids))
    assert len(report.graphs) == 1 and len(report.graphs[0].texts) == 1 and not outside(report)
    (text,) = report.graphs[0].texts.values()
    assert "=L + 1" in text or "=L+1" in text


def test_every_shape_is_free_with_dynamic_shapes() -> None:
    torch.manual_seed(1)
    model = Decoder()
    length = torch.export.Dim("length", min=2, max=39)
    program = from_torch(model, torch.randint(0, 50, (3, 9)), dynamic_shapes=({1: length},))
    for n in (2, 9, 33):
        ids = torch.randint(0, 50, (3, n))
        with torch.no_grad():
            torch.testing.assert_close(program.reference(ids), model(ids))


def test_a_program_with_formulas_is_planned() -> None:
    """Its kernels have legal schedules on a GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        length = torch.export.Dim("length", min=2, max=39)
        program = from_torch(Decoder(), torch.randint(0, 50, (3, 9)), dynamic_shapes=({1: length},))
    checked = frontend.read_text(program.text)
    own = frontend.program(checked, program.name)
    from ucutlass.pipeline.planning import plan_pipeline
    from ucutlass.shapes import complete

    for n in (5, 32):
        free = {name: n for name in own.dims if name == "L"}
        assert plan_pipeline(checked, own, complete(own, free), "sm90a").stages


class Written(nn.Module):
    """Attention that is written out as torch's own becomes products: no extent says whether keys are stored scaled."""

    def __init__(self, words: int = 50, width: int = 64, heads: int = 2, most: int = 300) -> None:
        super().__init__()
        self.heads = heads
        self.embedding, self.place = nn.Embedding(words, width), nn.Embedding(most, width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        batch, length = ids.shape
        x = self.norm(self.embedding(ids) + self.place.weight[:length])
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        scores = (q * 0.42) @ (k.transpose(-2, -1) * 0.42)
        weights = torch.where((scores == -torch.inf).all(-1, True), 0.0, scores.softmax(-1))
        y = self.norm(x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, -1)))
        return y, F.gelu(self.up(y))


def test_two_imports_cut_stages_by_one_of_their_estimates() -> None:
    """By its own, each would decide otherwise what is stored, and the graph be cut in halves."""
    torch.manual_seed(0)
    model = Written()
    fast, report = compiled(model)
    with torch.no_grad():
        for batch, length in ((3, 9), (5, 60)):
            ids = torch.randint(0, 50, (batch, length))
            torch._dynamo.mark_dynamic(ids, 0)
            torch._dynamo.mark_dynamic(ids, 1)
            torch.testing.assert_close(fast(ids), model(ids))
    assert [len(graph.texts) for graph in report.graphs] == [1]


def test_attention_of_free_extents_stays_whole() -> None:
    """Also where torch would take it apart into products and a softmax in f32."""
    torch.manual_seed(0)
    model = Decoder().half()
    fast, report = compiled(model)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        for batch, length in ((3, 9), (5, 33)):
            ids = torch.randint(0, 50, (batch, length))
            torch._dynamo.mark_dynamic(ids, 0)
            torch._dynamo.mark_dynamic(ids, 1)
            # Some roundings of values up to 4.
            torch.testing.assert_close(fast(ids), model(ids), rtol=0.0, atol=2.0**-8)
    (text,) = report.graphs[0].texts.values()
    assert "softmax[" in text and "f32" not in text


# --- formulas ---------------------------------------------------------------------

A, B = sympy.symbols("s0 s1", integer=True, positive=True)
NUMBERS = ({A: 101, B: 211}, {A: 103, B: 307})


def table(*extents: object) -> Formulas:
    return formulas((A, B), extents, NUMBERS)


def test_a_number_is_an_extent_of_the_graph_or_one_and_a_constant() -> None:
    known = table(A + B, 2 * A)
    assert known.of((101, 103)) == A and known.of((312, 410)) == A + B
    assert known.of((204, 208)) == 2 * A + 2
    for pair in ((101, 307), (50, 51), (101 + 10**6, 103 + 10**6)):
        with pytest.raises(NoFormula):
            known.of(pair)


def test_two_formulas_of_one_pair_are_none() -> None:
    known = table(sympy.floor(A / 2) * 2 + 1)
    with pytest.raises(NoFormula, match="several"):
        known.of((101, 103))


TEXT = """
kernel k(x: f32[M={m}, K=8], y: f32[N={n}]) -> f32[P={p}, K] {{
  return where(index(P) < {m}, x[M = P], y[N = P - {m}])
}}
"""


def test_numbers_become_formulas_of_the_parameters_axes() -> None:
    first, other = (parse(TEXT.format(m=m, n=n, p=m + n)) for m, n in ((101, 211), (103, 307)))
    text = format_file(with_formulas(first, other, table(A + B)))
    assert "x: f32[M, K=8], y: f32[N]" in text and "f32[P=M+N, K]" in text
    assert "index(P) < size(M)" in text and "N = P - size(M)" in text


def test_a_symbol_without_an_axis_before_has_no_formula() -> None:
    text = "kernel k(x: f32[P={p}]) -> f32[P] {{ return where(index(P) < {m}, x, 0) }}"
    first, other = (parse(text.format(m=m, p=m + n)) for m, n in ((101, 211), (103, 307)))
    with pytest.raises(NoFormula, match="no axis"):
        with_formulas(first, other, table(A + B))


class Mixed(nn.Module):
    """Products along both lengths of a square, whose extents are of one symbol, in parameters of two names."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = x @ x.transpose(1, 2) + torch.where(mask, 0.0, float("-inf"))
        return self.out(torch.softmax(scores, -1) @ self.value(x)) + x


def test_names_of_one_symbol_are_as_long_as_each_other() -> None:
    fast, report = compiled(Mixed(), fallback="error")
    for length in (24, 17):
        x, mask = torch.randn(3, length, 64), torch.rand(3, length, length) > 0.3
        mask |= torch.eye(length, dtype=torch.bool)
        for tensor in (x, mask):
            torch._dynamo.mark_dynamic(tensor, 1)
        torch._dynamo.mark_dynamic(mask, 2)
        with torch.no_grad():
            fast(x, mask)
    (graph,) = report.graphs
    (text,) = graph.texts.values()
    checked = frontend.read_text(text)
    sizes = complete(frontend.program(checked), {"B": 3, "M": 24})
    planned_sources(ProgramAtSizes(checked, frontend.program(checked), sizes), "sm90a", None)


class Patches(nn.Module):
    """The stem and the first layer of a vision transformer, whose stages are calls: attention's products have the batch
    on an axis whose letter another extent has."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.first, self.places = (
            nn.Parameter(torch.randn(1, 1, width)),
            nn.Parameter(torch.randn(1, 10, width)),
        )
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.stem(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.first.expand(len(x), -1, -1), patches], 1) + self.places
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


def test_names_of_axes_hold_no_extent_that_varies() -> None:
    torch.manual_seed(2)
    model = Patches().eval()
    fast, report = compiled(model)
    with torch.no_grad():
        for batch in (3, 11):
            x = torch.randn(batch, 3, 12, 12)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(fast(x), model(x))
    (graph,) = report.graphs
    (text,) = graph.texts.values()
    assert "kernel conv" in text and not outside(report)
