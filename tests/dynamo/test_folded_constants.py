"""What a graph computes in float64 of constants alone is computed on the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.dynamo.test_backend import compiled
from ucutlass.dynamo.folded_constants import MOST_ELEMENTS


def positions(x: Tensor) -> Tensor:
    """Sinusoidal positions whose frequencies NumPy gives."""
    width = x.shape[-1] // 2
    rates = torch.exp(torch.arange(width, dtype=torch.float64) * -(np.log(10000.0) / (width - 1)))
    angles = torch.arange(x.shape[-2])[:, None] * rates.float()
    return x + torch.cat([angles.sin(), angles.cos()], -1)


@pytest.mark.parametrize(
    "model",
    [
        lambda x: torch.relu(x * np.sqrt(x.shape[-1])),
        lambda x: torch.relu(np.sqrt(x.shape[-1]) * x),
        lambda x: torch.relu(x / np.log(3.0) - np.exp(0.5)),
        positions,
    ],
    ids=["product", "product of a number", "quotient and difference", "table"],
)
def test_numpy_in_a_module_is_no_operator(model: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 8)
    fast, report = compiled(model)
    with torch.no_grad():
        result, expected = fast(x), model(x)
    torch.testing.assert_close(result, expected)
    assert result.dtype == expected.dtype
    (graph,) = report.graphs
    assert len(graph.texts) == 1 and "f64" not in next(iter(graph.texts.values()))
    assert not graph.outside


def test_a_result_in_float64_and_a_large_table_are_right() -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.arange(MOST_ELEMENTS + 1, dtype=torch.float64).sqrt().float()
        return torch.arange(x.shape[-1]) * torch.tensor(2.0, dtype=torch.float64).sqrt() + x, wide[
            : x.shape[-1]
        ] * x

    x = torch.randn(3, 8)
    fast, _ = compiled(model)
    with torch.no_grad():
        for result, expected in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(result, expected)
            assert result.dtype == expected.dtype
