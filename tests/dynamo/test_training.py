"""Training steps through the backend: right against float64, and which operators programs compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.dynamo.test_backend import compiled
from tests.dynamo.training_step import TRAINING_STEPS, NotTrained, outside, training_difference
from tests.importer.drawn_modules import DrawnModule, draw


class Transformer(nn.Module):
    """A language model of one block, with dropout."""

    def __init__(self, words: int = 20, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.words, self.heads = words, heads
        self.embedding = nn.Embedding(words, width)
        self.norm, self.last = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.embedding(ids))
        batch, length, width = x.shape
        heads = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.out(mixed))
        x = x + self.dropout(self.down(F.gelu(self.up(self.last(x)))))
        return F.cross_entropy((x @ self.embedding.weight.T).view(-1, self.words), target.view(-1))


class Convolutions(nn.Module):
    """Strided, depthwise, transposed and dilated convolutions, and pooling of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.AvgPool2d(3, 2, 1),
            nn.ConvTranspose2d(8, 6, 2, stride=2),
            nn.BatchNorm2d(6),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 4, 1, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


def test_a_language_model_trains_and_torch_draws_masks_and_sums_rows_alone() -> None:
    torch.manual_seed(0)
    report, words = training_difference(
        Transformer(), torch.randint(0, 20, (2, 6)), torch.randint(0, 20, (2, 6))
    )
    assert not words
    names = {o.operator for o in outside(report)}
    assert names == {"aten.empty.memory_format", "aten.bernoulli.p", "aten.embedding_dense_backward.default"}
    # The gradient of the embedding is added to that of the same weights in the last product.
    assert [len(graph.texts) for graph in report.graphs] == [1, 2]


class Tables(nn.Module):
    """Kinds of tokens, of which a table has few, and words, of which it has many."""

    def __init__(self, kinds: int) -> None:
        super().__init__()
        self.kind, self.word = nn.Embedding(kinds, 6, padding_idx=1), nn.Embedding(40, 6)

    def forward(self, kinds: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.kind(kinds) * self.word(words))


@pytest.mark.parametrize(("kinds", "outside_of_programs"), [(3, 1), (40, 2)])
def test_the_gradient_of_a_short_table_is_a_reduction(kinds: int, outside_of_programs: int) -> None:
    torch.manual_seed(0)
    report, words = training_difference(
        Tables(kinds), torch.randint(0, kinds, (2, 9)), torch.randint(0, 40, (2, 9))
    )
    assert not words
    names = [o.operator for o in outside(report)]
    assert names == ["aten.embedding_dense_backward.default"] * outside_of_programs


def test_lengths_vary_in_training_without_compiling_anew() -> None:
    torch.manual_seed(3)
    model = Transformer()
    fast, report = compiled(model)
    for length in (5, 11):
        ids, target = torch.randint(0, 20, (2, length)), torch.randint(0, 20, (2, length))
        for tensor in (ids, target):
            torch._dynamo.mark_dynamic(tensor, 1, min=2, max=512)
        torch.manual_seed(4)
        loss = fast(ids, target)
        loss.backward()
        torch.manual_seed(4)
        torch.testing.assert_close(loss, model(ids, target))
    assert len(report.graphs) == 2 and all(graph.texts for graph in report.graphs)
    assert not [o for o in outside(report) if "extent" in o.why]


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_convolutional_network_trains_in_programs_alone(channels_last: bool) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 3, 16, 16)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    report, words = training_difference(Convolutions(), x)
    assert not words and not outside(report)


class Windows(nn.Module):
    """Windows of one axis."""

    def __init__(self, dim: int, size: int, step: int) -> None:
        super().__init__()
        self.of = dim, size, step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 2).unfold(*self.of) * 3


@pytest.mark.parametrize(
    ("shape", "dim", "size", "step"),
    [
        ((2, 40, 3), 1, 4, 2),
        ((2, 41, 3), -2, 3, 3),
        ((45,), 0, 4, 3),
        ((2, 41), 1, 1, 2),
        ((2, 40), 1, 30, 1),
    ],
)
def test_the_gradient_of_windows_is_added_up_in_a_program(
    shape: tuple[int, ...], dim: int, size: int, step: int
) -> None:
    torch.manual_seed(0)
    report, words = training_difference(Windows(dim, size, step), torch.randn(shape))
    assert not words and not outside(report)


def test_attention_of_torch_is_trained_by_torch() -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 2, k, v)

    fast, report = compiled(model)
    arguments = [torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3)]
    fast(*arguments).sum().backward()
    mine = [x.grad for x in arguments]
    for x in arguments:
        x.grad = None
    model(*arguments).sum().backward()
    for a, x in zip(mine, arguments, strict=True):
        torch.testing.assert_close(a, x.grad)
    assert any("attention's gradient has no kernel" in o.why for o in outside(report))


@pytest.mark.parametrize(("p", "train"), [(0.4, True), (0.0, True), (1.0, True), (0.4, False)])
def test_dropout_is_eagers(p: float, train: bool) -> None:
    """With the same random numbers, which the CPU draws alike in both."""
    x = torch.randn(4, 9, requires_grad=True)
    fast, _ = compiled(lambda x: F.dropout(x * 3, p, train) + 1)
    torch.manual_seed(5)
    y = fast(x)
    torch.manual_seed(5)
    torch.testing.assert_close(y, F.dropout(x * 3, p, train) + 1)


def test_a_mask_is_drawn_anew_in_every_call() -> None:
    x = torch.ones(64)
    fast, _ = compiled(lambda x: F.dropout(x * 3, 0.5, True))
    assert not torch.equal(fast(x), fast(x))


def _agrees(data: st.DataObject, most: int) -> None:
    def pick(options: Any) -> Any:
        return data.draw(st.sampled_from(list(options)))

    plan, state = draw(pick, data.draw(st.integers(1, most)), TRAINING_STEPS)
    if not plan.steps:
        return
    try:
        report, words = training_difference(DrawnModule(plan, state).train(), *plan.inputs)
    except (NotTrained, torch._dynamo.exc.TorchRuntimeError):
        event("PyTorch cannot train or TorchDynamo cannot follow it")
        return
    event(f"{sum(len(graph.texts) for graph in report.graphs)} programs")
    texts = "\n".join(text for graph in report.graphs for text in graph.texts.values())
    assert not words, f"{words}\n{plan}\n{texts}"


@given(st.data())
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_drawn_module_trains_right(data: st.DataObject) -> None:
    _agrees(data, 3)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_drawn_modules_train_right(data: st.DataObject) -> None:
    _agrees(data, 6)
