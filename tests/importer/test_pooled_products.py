"""Products without windows whose results are averaged over windows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.importer.float64_check import difference

SHAPE = (2, 6, 9, 11)

POOLED = {
    "transition": nn.Sequential(nn.ReLU(), nn.Conv2d(6, 4, 1, bias=False), nn.AvgPool2d(2, 2)),
    "padded": nn.Sequential(nn.Conv2d(6, 8, 1, bias=False), nn.AvgPool2d(3, 2, 1)),
    "one axis": nn.Sequential(nn.Conv2d(6, 8, 1, bias=False), nn.AvgPool2d((1, 3))),
}

NOT_POOLED = {
    "bias": nn.Sequential(nn.Conv2d(6, 8, 1), nn.AvgPool2d(2)),
    "windows in the product": nn.Sequential(nn.Conv2d(6, 8, 3, bias=False), nn.AvgPool2d(2)),
    "largest": nn.Sequential(nn.Conv2d(6, 8, 1, bias=False), nn.MaxPool2d(2)),
    "groups": nn.Sequential(nn.Conv2d(6, 6, 1, groups=3, bias=False), nn.AvgPool2d(2)),
    "as many": nn.Sequential(nn.Conv2d(6, 6, 1, bias=False), nn.AvgPool2d(3, 1, 1)),
}


@pytest.mark.parametrize("name", POOLED)
def test_operands_are_pooled(name: str) -> None:
    torch.manual_seed(0)
    program, wrong = difference(POOLED[name].eval(), torch.randn(SHAPE))
    assert not wrong, program.text
    assert 0 < program.text.index("mean[") < program.text.index("dot["), program.text


@pytest.mark.parametrize("name", NOT_POOLED)
def test_other_products_stay_right(name: str) -> None:
    torch.manual_seed(0)
    program, wrong = difference(NOT_POOLED[name].eval(), torch.randn(SHAPE))
    assert not wrong, program.text


def test_a_pool_of_the_product_of_two_images_stays() -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.avg_pool2d(torch.einsum("bchw,cdhw->bdhw", x, y), 2)

    torch.manual_seed(0)
    program, wrong = difference(Both(), torch.randn(2, 3, 4, 4), torch.randn(3, 5, 4, 4))
    assert not wrong, program.text
