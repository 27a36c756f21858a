"""Products whose results windows move, or that meet what lies in windows: a launch of their own moves them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.importer.float64_check import difference
from ucutlass import frontend
from ucutlass.frontend import plan_kernel
from ucutlass.ir.hardware import DEVICES
from ucutlass.kernels.gemm.plan import GemvSchedule
from ucutlass.shapes import complete


class Windowed(nn.Module):
    """A linear layer over 64 windows of 7 x 7."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 64)


class Departed(Windowed):
    def forward(self, x: Tensor, image: Tensor) -> Tensor:
        y = self.linear(x).reshape(1, 8, 8, 7, 7, 64).permute(0, 1, 3, 2, 4, 5)
        return image + y.reshape(1, 56, 56, 64)


class Met(Windowed):
    def forward(self, x: Tensor, image: Tensor) -> Tensor:
        parts = image.reshape(1, 8, 7, 8, 7, 64).permute(0, 1, 3, 2, 4, 5)
        return self.linear(x) + parts.reshape(1, 64, 49, 64)


class Reshaped(Windowed):
    def forward(self, x: Tensor, image: Tensor) -> Tensor:
        return image + self.linear(x).reshape(1, 56, 56, 64)


@pytest.mark.parametrize("module", [Departed, Met])
def test_what_lies_in_other_axes_does_not_cost_a_product_its_kernel(module: type[Windowed]) -> None:
    torch.manual_seed(0)
    program, wrong = difference(module().eval(), torch.randn(1, 64, 49, 256), torch.randn(1, 56, 56, 64))
    assert not wrong and "] = dot[K](x, linear_weight) + linear_bias\n" in program.text, program.text


def test_a_sum_in_the_same_order_of_memory_joins_the_product() -> None:
    torch.manual_seed(0)
    program, wrong = difference(Reshaped().eval(), torch.randn(1, 3136, 256), torch.randn(1, 56, 56, 64))
    assert not wrong and program.text.startswith("kernel reshaped("), program.text


@pytest.mark.parametrize("memory", ["(N=8 C=8), (M=7 M2=7), K=256", "K=256, (M=7 N=8), (M2=7 C=8)"])
def test_many_products_with_few_columns_go_to_no_matrix_vector_kernel(memory: str) -> None:
    """392 of them by 8 columns took an H200 59 and 95 us, and 18 in the multistage kernel."""
    text = (
        f"kernel k(x: f32[1, {memory}], y: f32[F=64, K], z: f32[1, (N C), (M M2), F]) -> f32[F, (N M), (C M2)]"
        " { return z + dot[K](x, y) }"
    )
    checked = frontend.read_text(text)
    program = frontend.program(checked, "k")
    chosen = plan_kernel(checked, program, complete(program, {}), "sm90a", DEVICES["H200"])
    assert not isinstance(chosen.planned.plan.schedule, GemvSchedule)
