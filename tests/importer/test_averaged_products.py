"""Averages and sums of products and convolutions, which are taken of an operand before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.importer.float64_check import difference
from ucutlass.importer import averaged_products

SHAPE = (2, 6, 9, 11)


class Applied(nn.Module):
    """A module, then a function of its result."""

    def __init__(self, module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.module(x))


AVERAGED = {
    "transition": nn.Sequential(nn.ReLU(), nn.Conv2d(6, 4, 1, bias=False), nn.AvgPool2d(2, 2)),
    "bias": nn.Sequential(nn.Conv2d(6, 8, 1), nn.AvgPool2d(2)),
    "one axis": nn.Sequential(nn.Conv2d(6, 8, 1, bias=False), nn.AvgPool2d((1, 3))),
    "padded": nn.Sequential(nn.Conv2d(6, 8, 1, bias=False), nn.AvgPool2d(3, 2, 1)),
    "larger steps": nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.AvgPool2d(2)),
    "dilated": nn.Sequential(nn.Conv2d(6, 8, (2, 3), 1, (1, 2), (2, 1)), nn.AvgPool2d((2, 3), (3, 2))),
    "strided": nn.Sequential(nn.Conv2d(6, 8, 3, 2, 1), nn.AvgPool2d(2)),
    "transposed": nn.Sequential(nn.ConvTranspose2d(6, 4, 3, 2, 1, 1), nn.AvgPool2d(2)),
    "transposed, no step": nn.Sequential(nn.ConvTranspose2d(6, 4, 3), nn.AvgPool2d(3, 2)),
    "everywhere": nn.Sequential(nn.Conv2d(6, 8, 3), nn.AdaptiveAvgPool2d(1)),
    "everywhere, padded": Applied(nn.Conv2d(6, 8, 3, padding=1), lambda y: y.mean((2, 3)) * 2 - 1),
    "everywhere, strided": Applied(nn.Conv2d(6, 8, 3, 2, 1), lambda y: (y / 3).mean((2, 3), keepdim=True)),
    "everywhere, transposed": Applied(nn.ConvTranspose2d(6, 8, 3, 2, 1, 1), lambda y: (y * 0.5).mean((2, 3))),
    "everywhere, all met": Applied(nn.ConvTranspose2d(6, 8, 3), lambda y: y.sum((2, 3))),
    "along one axis": Applied(nn.Conv2d(6, 8, 3, padding=1), lambda y: y.mean(2)),
    "over filters": Applied(nn.Conv2d(6, 8, 3, padding=1), lambda y: y.sum(1, keepdim=True).sigmoid()),
    "over features": Applied(nn.Linear(11, 7), lambda y: (y / 2).sum(-1)),
    "over rows": Applied(nn.Linear(11, 7), lambda y: y.mean(2)),
    "pooled features": Applied(
        nn.Linear(11, 8), lambda y: nn.functional.avg_pool3d(y[:, None], (1, 1, 4))[:, 0]
    ),
    "an addend": Applied(nn.Linear(11, 11), lambda y: (y + torch.ones(6, 1, 1) - y.new_ones(9, 1)).mean(1)),
}

OTHERS = {
    "largest": nn.Sequential(nn.Conv2d(6, 8, 1, bias=False), nn.MaxPool2d(2)),
    "groups": nn.Sequential(nn.Conv2d(6, 6, 1, groups=3, bias=False), nn.AvgPool2d(2)),
    "as many": nn.Sequential(nn.Conv2d(6, 6, 1, bias=False), nn.AvgPool2d(3, 1, 1)),
    "a border of zeros": nn.Sequential(nn.Conv2d(6, 8, 1), nn.AvgPool2d(3, 2, 1)),
    "a border of zeros, windows": nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.AvgPool2d(3, 2, 1)),
    "beyond the end": nn.Sequential(nn.Conv2d(6, 8, 3), nn.AvgPool2d(3, 2, ceil_mode=True)),
    "a function": Applied(nn.Conv2d(6, 8, 3), lambda y: y.relu().mean((2, 3))),
    "a product": Applied(nn.Conv2d(6, 8, 3), lambda y: (y * y).mean((2, 3))),
    "a quotient": Applied(nn.Conv2d(6, 8, 3), lambda y: (1 / y).mean((2, 3))),
    "read twice": Applied(nn.Conv2d(6, 8, 3), lambda y: y - y.mean((2, 3), keepdim=True)),
    "steps that do not divide": nn.Sequential(nn.ConvTranspose2d(6, 4, 3, 2), nn.AvgPool2d(3)),
}


@pytest.fixture(autouse=True)
def at_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaged_products._AverageWriter, "is_quicker", lambda writer: True)


@pytest.mark.parametrize("name", AVERAGED)
def test_operands_are_averaged(name: str) -> None:
    torch.manual_seed(0)
    program, wrong = difference(AVERAGED[name].eval(), torch.randn(SHAPE))
    assert not wrong, program.text
    ahead = [program.text.find(word) for word in ("mean[", "sum[")]
    assert 0 < min(n for n in ahead if n > 0) < program.text.index("dot["), program.text
    behind = program.text[program.text.index("dot[") :]
    assert "mean[" not in behind and "sum[" not in behind, program.text


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay_right(name: str) -> None:
    torch.manual_seed(0)
    program, wrong = difference(OTHERS[name].eval(), torch.randn(SHAPE))
    assert not wrong, program.text


def test_a_pool_of_the_product_of_two_images_stays() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.avg_pool2d(torch.einsum("bchw,cdhw->bdhw", x, y), 2)

    torch.manual_seed(0)
    program, wrong = difference(Both(), torch.randn(2, 3, 4, 4), torch.randn(3, 5, 4, 4))
    assert not wrong, program.text


def test_the_sum_of_two_convolutions() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.long, self.short = nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(6, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.avg_pool2d(self.long(x.relu()) + self.short(x) + 1, 2)

    torch.manual_seed(0)
    program, wrong = difference(Block(), torch.randn(SHAPE))
    assert not wrong, program.text
    assert program.text.count("mean[") >= 3, program.text


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_drawn_windows(data: st.DataObject) -> None:
    """Any convolution along one axis under any average that lies inside of it."""

    def whole(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    transposed, width, stride, dilation = whole(0, 1), whole(1, 4), whole(1, 3), whole(1, 2)
    padding = whole(0, dilation * (width - 1))
    kind = nn.ConvTranspose1d if transposed else nn.Conv1d
    convolution = kind(2, 3, width, stride, padding, dilation=dilation)
    x = torch.randn(2, 2, whole(8, 12), generator=torch.Generator().manual_seed(whole(0, 9)))
    length = convolution(x).shape[-1]
    pool = whole(2, max(2, length))
    if length < pool:
        return
    mean = Applied(convolution, lambda y: y.mean(-1)) if whole(0, 2) == 0 else None
    program, wrong = difference(mean or nn.Sequential(convolution, nn.AvgPool1d(pool, whole(1, pool))), x)
    assert not wrong, program.text


def test_a_switch_leaves_averages_behind_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCUTLASS_AVERAGES_AHEAD", "0")
    torch.manual_seed(0)
    program, wrong = difference(AVERAGED["transition"].eval(), torch.randn(SHAPE))
    assert not wrong, program.text
    assert program.text.index("dot[") < program.text.index("mean["), program.text


def test_both_axes_of_an_image_are_pooled_at_once() -> None:
    torch.manual_seed(0)
    program, wrong = difference(AVERAGED["transition"].eval(), torch.randn(SHAPE))
    assert not wrong, program.text
    assert program.text.count("mean[") == 1, program.text
